//! `msgfs init`: everything a first mount would make, and a configuration to edit.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt as _};
use std::path::Path;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use msgfs::config::{Config, Env, LockError};
use msgfs::hook::install::InstallPart;
use msgfs::link::LinkKind;
use msgfs::mailbox::MailboxOpenError;
use msgfs::model::sanitize_line;
use msgfs::store::atomic_file::write_atomic;
use msgfs::store::fs::make_dirs;
use msgfs::store::{Kind, StoreSpec};
use toml::de::DeTable;

use super::context::CommandContext;
use super::failure::Failure;
use super::{GlobalOptions, hook, output, serve};

/// The default configuration up to the stores, with every line commented out.
const CONFIG_BEGIN: &str = r#"# The configuration of msgfs. Every key is optional. A key behind a # shows its default.

# My name. --me, $MSGFS_ME and the mount that the current folder is in come before it. Without this line, msgfs
# takes the name in the file .agent-message of the current folder, or else the name of the folder.
# me = "foo"

# The act that marks a message as read: "on-read" (cat) or "on-remove" (rm).
# mark_read = "on-read"

# "mine" shows my conversations. With "all", threads, transcripts and archive also show those between others.
# scope = "mine"

# Unsigned mail: "accept" it, "refuse" it, or refuse it from senders whose key is "known".
# unsigned = "accept"

# "fsync": a message is on disk when it is sent. "none": the kernel decides when it goes to disk.
# durability = "fsync"

# The largest text of a message. A number alone is bytes.
# max_message = "16MiB"

# How msgfs notices changes of the stores: "auto", or "poll" (where the file system does not report changes).
# watch = "auto"

# How long a read of .wait or .next waits for mail.
# wait_timeout = "60s"

# Mail to a name that was never seen: "accept" it, "refuse" it, or refuse it only if the file name is "near" a
# known name.
# unknown_recipient = "near"

# The mail that rings the bell of a coding agent (`msgfs hook`): "all"; "direct": mail to me alone and answers to my
# mail; "urgent": mail of high priority, where a store has priorities; "off". Other mail waits in inbox/.
# bell = "all"

# Senders and threads whose mail never rings.
# muted = ["bob", "builds"]

# Search: the folder search/ and `msgfs search`. false turns both off.
# search = true

# Groups. `outbox/team` and `To: team` write to each member of team except me.
# [groups]
# team = ["bob", "carol"]

# Stores. If there is none here, msgfs uses the SAMP store at its default place. If they exist, it also uses the
# AgentAZAll mailbox that $AGENTAZALL_CONFIG or $AGENTAZALL_ROOT names, the AMP home at $AMP_DIR or
# ~/.agent-messaging, and the AMQ root at $AM_ROOT.
"#;

/// The default configuration behind the stores.
const CONFIG_END: &str = r#"
# Links carry mail to other machines. docs/links says what each kind needs. The links of AgentAZAll are in its
# config.json; they carry mail if its [[store]] has the key links. The links of AMP are its registrations.
# With a [[link]] here you switch one of these off, or allow it plain text to public addresses (insecure).
# [[link]]
# kind = "nats"
# store = "samp"                     # default: the store with the name of its kind
# url = "nats://10.0.0.5:4222"
# space = "team"                     # machines with one space share their mail

# Signatures of roles (ATSF, SSOT). "verify": a message must fit the key that it carries. "pin": also, the first
# key of a role is the only one that counts for it, as for a person.
# [trust]
# roles = "verify"
"#;

/// Returns the default configuration, with a `[[store]]` of every kind.
fn default_config() -> String {
    let stores: Vec<&str> = Kind::ALL.iter().map(|kind| kind.row().example).collect();
    [CONFIG_BEGIN, &stores.join("\n"), CONFIG_END].concat()
}

/// The line of [`CONFIG_BEGIN`] that would name me.
const EXAMPLE: &str = "# me = \"foo\"";

/// Returns the configuration to write. It has the name of me, if given, and comments with the stores on this
/// machine, which are used without them.
fn render_config(me: Option<&str>, found: &[StoreSpec]) -> String {
    let mut text = default_config();
    if let Some(me) = me {
        text = text.replacen(EXAMPLE, &format!("me = {}", toml::Value::from(me)), 1);
    }
    for spec in found {
        // TOML cannot hold a path that is not UTF-8, and a comment cannot hold a line break.
        let plain = |dir: &&str| !dir.chars().any(char::is_control);
        let Some(dir) = spec.dir.to_str().filter(plain) else { continue };
        let dir = toml::Value::from(dir);
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\n# This store is on this machine. msgfs uses it as long as there is no [[store]].\n# [[store]]\n\
             # kind = \"{}\"\n# dir = {dir}\n",
            spec.kind
        );
    }
    text
}

/// Make the configuration, my key and the folder of the store, and print what was made
///
/// You do not need this command before `msgfs mount`: the mount makes what it needs. Files that exist
/// stay as they are. With --me, the configuration gets my name; in a configuration that exists, only
/// this line changes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  msgfs init\n  msgfs init --me reviewer\n  msgfs init --link nats\n  \
        msgfs init --integrate"
)]
pub(crate) struct Args {
    /// Add an example of a link to other machines to the configuration, as a comment
    #[arg(long, value_name = "KIND", value_parser = kinds())]
    link: Option<&'static LinkKind>,
    /// Also tell coding agents how to use their mail, in a few lines of the instructions that they read
    #[arg(long)]
    integrate: bool,
    #[command(flatten)]
    choice: IntegrateArgs,
}

/// The options of `--integrate`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With --integrate")]
struct IntegrateArgs {
    #[command(flatten)]
    choice: hook::HarnessChoice,
    /// Remove these lines, and make nothing
    #[arg(long)]
    uninstall: bool,
}

/// Returns the parser of a kind of link.
fn kinds() -> impl TypedValueParser<Value = &'static LinkKind> {
    let names = LinkKind::ALL.iter().map(|kind| kind.name);
    PossibleValuesParser::new(names).try_map(|word| {
        LinkKind::from_name(&word).ok_or_else(|| format!("there are no links of kind {word}"))
    })
}

/// Appends an example to the configuration and keeps the rest.
fn append_link_example(file: &Path, kind: &LinkKind) -> Result<(), Failure> {
    let failed = |e: &io::Error| Failure::from_io(format!("cannot write {}", file.display()), e);
    let mut out = OpenOptions::new().append(true).open(file).map_err(|e| failed(&e))?;
    let text = fs::read(file).map_err(|e| failed(&e))?;
    let begun = text.last().is_some_and(|b| *b != b'\n');
    let example = format!("{}{}", if begun { "\n\n" } else { "\n" }, kind.render_example());
    out.write_all(example.as_bytes()).and_then(|()| out.sync_all()).map_err(|e| failed(&e))
}

/// Runs `msgfs init`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let IntegrateArgs { choice, uninstall } = &args.choice;
    let named = choice.is_dry_run() || *uninstall || choice.is_harness_named();
    if named && !args.integrate {
        return Err(Failure::Usage("--for, --dry-run and --uninstall go with --integrate".into()));
    }
    if !choice.is_dry_run() && !*uninstall {
        create_mailbox(global, args)?;
    }
    if args.integrate {
        hook::install_or_remove(choice, InstallPart::Instructions, false, *uninstall)?;
    }
    Ok(())
}

fn create_mailbox(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let me = global.me.as_deref();
    let written = match &global.config {
        // A named file must be written before it is read to determine me.
        Some(file) if !file.exists() => Some(create_config(file, me)?),
        _ => None,
    };
    let context = CommandContext::find(global)?;
    let file = context.config_file();
    let written = written.map_or_else(|| create_config(&file, me), Ok)?;
    let changed =
        if written { None } else { me.map(|me| set_config_me(&file, me)).transpose()?.flatten() };
    let mut note = match changed {
        Some(FormerName(before)) => {
            before.map_or("now it says who you are".into(), |me| format!("me was {me}"))
        }
        None if written => "written; you can edit it".into(),
        None => "exists, unchanged".into(),
    };
    if let Some(kind) = args.link {
        append_link_example(&file, kind)?;
        note = "with an example of a link at its end, as a comment".into();
    }
    let mut lines = vec![format!("configuration: {} ({note})", context.display_path(&file))];
    lines.push(format!("me: {} ({})", context.me.name, context.me.origin));
    lines.extend(open_and_describe(global, &context)?);
    output::print_data(&(lines.join("\n") + "\n"))
}

/// Writes the configuration, unless there is one. Returns true if it was written.
fn create_config(file: &Path, me: Option<&str>) -> Result<bool, Failure> {
    let failed = |e: &io::Error| Failure::from_io(format!("cannot write {}", file.display()), e);
    if let Some(folder) = file.parent() {
        make_dirs(folder, 0o700).map_err(|e| failed(&e))?;
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(file) {
        Ok(mut out) => {
            // The default places of stores do not depend on me.
            let found = Config::default().find_default_stores(&Env::from_process(), "");
            let written =
                out.write_all(render_config(me, &found).as_bytes()).and_then(|()| out.sync_all());
            written.map(|()| true).map_err(|e| failed(&e))
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(failed(&e)),
    }
}

/// The name that a configuration had before it was changed, if it had one.
struct FormerName(Option<String>);

/// Sets the name of me in an existing configuration. Returns the former name if it was another.
fn set_config_me(file: &Path, me: &str) -> Result<Option<FormerName>, Failure> {
    let failed = |e: &io::Error| Failure::from_io(format!("cannot write {}", file.display()), e);
    // The file behind a symlink is written, with the mode that it had.
    let place = fs::canonicalize(file).map_err(|e| failed(&e))?;
    let mode = fs::metadata(&place).map_err(|e| failed(&e))?.permissions().mode();
    let text = fs::read_to_string(&place).map_err(|e| failed(&e))?;
    let Some((text, before)) = replace_me(&text, me) else { return Ok(None) };
    write_atomic(&place, text.as_bytes(), mode & 0o7777).map_err(|e| failed(&e))?;
    Ok(Some(FormerName(before)))
}

/// Returns the configuration with this me, and the former name. `None` if it has this name already.
fn replace_me(text: &str, me: &str) -> Option<(String, Option<String>)> {
    let value = toml::Value::from(me).to_string();
    let table = DeTable::parse(text).ok()?;
    let Some(said) = table.get_ref().get("me") else {
        let line = format!("me = {value}");
        let example = text.lines().any(|line| line == EXAMPLE);
        let added = format!("{line}\n{text}");
        return Some((if example { text.replacen(EXAMPLE, &line, 1) } else { added }, None));
    };
    let before = said.get_ref().as_str().map(str::to_owned);
    if before.as_deref() == Some(me) {
        return None;
    }
    let mut text = text.to_owned();
    text.replace_range(said.span(), &value);
    Some((text, before))
}

/// Opens the mailbox once, which makes the key and the stores' folders.
fn open_and_describe(
    global: &GlobalOptions,
    context: &CommandContext,
) -> Result<Vec<String>, Failure> {
    let missing: Vec<_> =
        context.store_folders()?.into_iter().filter(|(_, dir)| !dir.exists()).collect();
    let had_key = fs::symlink_metadata(context.paths.key_file()).is_ok();
    let mailbox = match global.open_mailbox(false) {
        Ok(mailbox) => mailbox,
        // The mailbox is in use, so everything it needs was made.
        Err(MailboxOpenError::Lock(LockError::Held(holder))) => {
            return Ok(vec![format!("in use: {holder}")]);
        }
        Err(e) => return Err(e.into()),
    };
    let mut lines = Vec::new();
    if let Some(key) = mailbox.fingerprint() {
        let file = context.display_path(&context.paths.key_file());
        let note = if had_key { "exists" } else { "made" };
        lines.push(format!("key: {key} ({note}, {file})"));
    }
    for store in mailbox.stores() {
        let was_missing = missing.iter().any(|(name, _)| name == store.name());
        let note = match (was_missing, store.dir().exists()) {
            (_, false) => "missing",
            (true, true) => "made",
            (false, true) => "exists",
        };
        let me = serve::describe_other_me(store.as_ref(), &mailbox);
        let me = me.map(|me| format!(", {me}")).unwrap_or_default();
        let dir = context.display_path(store.dir());
        lines.push(format!("store {}: {dir} ({note}{me})", sanitize_line(store.name())));
    }
    lines.extend(mailbox.warnings().iter().map(|w| format!("warning: {}", sanitize_line(w))));
    mailbox.close();
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn parsed(text: &str) -> Config {
        let env = Env::new("/", [("HOME", "/home/u")]);
        Config::parse(text, Path::new("/c.toml"), &env).unwrap()
    }

    #[test]
    fn the_configuration_says_the_defaults() {
        let mut defaults = parsed("");
        let config = default_config();
        assert_eq!(parsed(&config), defaults);
        // With the comment signs removed the text is valid, too, and still has the defaults.
        let key = |line: &&str| line.contains(" = ") || line.starts_with("# [");
        let said: Vec<&str> =
            config.lines().filter(key).map(|line| line.trim_start_matches("# ")).collect();
        let said = parsed(&said.join("\n"));
        assert_eq!(said.me.as_deref(), Some("foo"));
        let kinds: Vec<Kind> = said.entries.iter().map(|e| e.kind).collect();
        assert_eq!(kinds, Kind::ALL);
        assert_eq!(said.groups.len(), 1);
        defaults.groups.clone_from(&said.groups);
        defaults.muted.clone_from(&said.muted);
        defaults.me.clone_from(&said.me);
        defaults.entries.clone_from(&said.entries);
        defaults.links.clone_from(&said.links);
        assert_eq!(said.links.len(), 1);
        assert_eq!(said, defaults);
    }

    #[test]
    fn every_key_is_there() {
        for key in Config::keys() {
            let said = [format!("\n# {key} = "), format!("\n# [{key}]"), format!("\n# [[{key}]]")];
            assert!(said.iter().any(|said| default_config().contains(said)), "{key}");
        }
    }

    #[test]
    fn examples_of_links_are_comments_that_are_links() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("config.toml");
        for kind in LinkKind::ALL {
            assert!(
                crate::cli::Cli::try_parse_from(["msgfs", "init", "--link", kind.name]).is_ok()
            );
            fs::write(&file, "me = \"x\"").unwrap();
            append_link_example(&file, kind).unwrap();
            let text = fs::read_to_string(&file).unwrap();
            assert_eq!(parsed(&text), Config { me: Some("x".into()), ..parsed("") }, "{text}");
            let (_, example) = text.split_once("# [[link]]").unwrap();
            let said = parsed(&format!("[[link]]{}", example.replace("\n# ", "\n")));
            assert_eq!(said.links[0].kind(), *kind);
        }
    }

    #[test]
    fn who_i_am_is_written_down_if_it_was_said() {
        let said = parsed(&render_config(Some("x"), &[]));
        assert_eq!(said, Config { me: Some("x".into()), ..parsed("") });
    }

    #[test]
    fn who_i_am_is_changed_and_nothing_else() {
        let changed = |text: &str| replace_me(text, "x");
        let (text, before) = changed(&default_config()).unwrap();
        assert_eq!((text.as_str(), before), (render_config(Some("x"), &[]).as_str(), None));
        assert_eq!(changed(&text), None);
        let own = "# mine\nme   = 'old'  # who\n\n[[store]]\nkind = \"samp\"\nme = \"foo\"\n";
        let (text, before) = changed(own).unwrap();
        assert_eq!((text, before), (own.replace("'old'", "\"x\""), Some("old".into())));
        let (text, _) = changed("[groups]\nteam = [\"a\"]").unwrap();
        assert_eq!(parsed(&text).me.as_deref(), Some("x"), "{text}");
    }

    #[test]
    fn what_is_found_is_written_down() {
        let spec = |dir: &str| {
            let spec =
                parsed("").stores(&Env::new("/", [("HOME", "/home/u")]), "").unwrap().remove(0);
            StoreSpec { kind: Kind::Amp, dir: dir.into(), ..spec }
        };
        for odd in ["/home/u/.agent-messaging", "/odd \"dir\"/'x'/\\"] {
            let text = render_config(None, &[spec(odd)]);
            assert_eq!(parsed(&text), parsed(""), "it is only proposed");
            let (_, found) = text.split_once("there is no [[store]].\n").unwrap();
            let said = parsed(&found.replace("# ", ""));
            let dir = said.entries[0].dir.as_deref();
            assert_eq!((said.entries[0].kind, dir), (Kind::Amp, Some(Path::new(odd))));
        }
        assert_eq!(render_config(None, &[spec("/a\nme = \"eve\"")]), default_config());
    }

    #[test]
    fn a_configuration_is_never_overwritten() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("a/config.toml");
        assert!(create_config(&file, None).unwrap());
        fs::write(&file, "me = \"x\"\n").unwrap();
        assert!(!create_config(&file, None).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "me = \"x\"\n");
    }
}
