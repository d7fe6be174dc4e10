//! `msgfs init`: everything a first mount would make, and a configuration to edit.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use msgfs::mailbox::{Mailbox, OpenError, Options};

use super::context::Context;
use super::failure::Failure;
use super::progress::Progress;
use super::{Global, output};

/// The configuration as it is without one, every line commented out.
const CONFIG: &str = r#"# msgfs configuration. Every key is optional; what is commented out shows the default.

# Who I am. Otherwise: --me, $MSGFS_ME, a file .agent-message in the current folder, its name.
# me = "foo"

# What marks a message as read: "on-read" (cat) or "on-remove" (rm).
# mark_read = "on-read"

# "mine", or "all": threads, transcripts and archive also show conversations between others.
# scope = "mine"

# Unsigned mail: "accept", "known" (refused from those whose key is known) or "refuse".
# unsigned = "accept"

# "fsync": what was sent is on disk. "none": the kernel decides when.
# durability = "fsync"

# How long reading .wait and .next blocks.
# wait_timeout = "60s"

# Mail to somebody who was never seen: "accept" or "refuse".
# unknown_recipient = "accept"

# Stores. Without any, the SAMP store at its default place is used.
# [[store]]
# name = "work"                      # default: the kind
# kind = "samp"
# dir = "~/sync/agent-message"
"#;

/// Make the configuration, my key and the store's folder, and say what was made
///
/// Not needed before `msgfs mount`, which makes what it needs. What exists is left as it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs init\n  msgfs init --me reviewer")]
pub(crate) struct Args {}

pub(crate) fn run(global: &Global, _args: &Args) -> Result<(), Failure> {
    let written = match &global.config {
        // A file that is named must be written before it can be asked who I am.
        Some(file) if !file.exists() => Some(write_config(file)?),
        _ => None,
    };
    let context = Context::find(global)?;
    let file = context.config_file();
    let written = written.map_or_else(|| write_config(&file), Ok)?;
    let note = if written { "written, edit it at will" } else { "exists, unchanged" };
    let mut lines = vec![format!("configuration: {} ({note})", context.shown(&file))];
    lines.push(format!("me: {} ({})", context.me.name, context.me.origin));
    lines.extend(open_once(global, &context)?);
    output::data(&(lines.join("\n") + "\n"))
}

/// Writes the configuration, unless there is one. Whether it was written.
fn write_config(file: &Path) -> Result<bool, Failure> {
    let failed = |e: &io::Error| Failure::io(format!("cannot write {}", file.display()), e);
    if let Some(folder) = file.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|e| failed(&e))?;
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(file) {
        Ok(mut out) => {
            let written = out.write_all(CONFIG.as_bytes()).and_then(|()| out.sync_all());
            written.map(|()| true).map_err(|e| failed(&e))
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(failed(&e)),
    }
}

/// Opens the mailbox once, which makes the key and the stores' folders.
fn open_once(global: &Global, context: &Context) -> Result<Vec<String>, Failure> {
    let missing: Vec<_> = context.stores()?.into_iter().filter(|(_, dir)| !dir.exists()).collect();
    let had_key = fs::symlink_metadata(context.paths.key_file()).is_ok();
    let options =
        Options { config: global.config.clone(), me: global.me.clone(), ..Options::default() };
    let mut progress = Progress::new();
    let mailbox = match Mailbox::open(&options, &mut |done, total| progress.update(done, total)) {
        Ok(mailbox) => mailbox,
        // It is in use, so everything it needs was made.
        Err(OpenError::Held(held)) => return Ok(vec![format!("in use: {}", held.holder)]),
        Err(e) => return Err(e.into()),
    };
    progress.finish();
    let mut lines = Vec::new();
    if let Some(key) = mailbox.fingerprint() {
        let file = context.shown(&context.paths.key_file());
        let note = if had_key { "exists" } else { "made" };
        lines.push(format!("key: {key} ({note}, {file})"));
    }
    for store in mailbox.stores() {
        let made = missing.iter().any(|(name, _)| name == store.name());
        let note = if made { "made" } else { "exists" };
        lines.push(format!("store {}: {} ({note})", store.name(), context.shown(store.dir())));
    }
    mailbox.close();
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use msgfs::config::{Config, Env};

    fn parsed(text: &str) -> Config {
        let env = Env::new("/", [("HOME", "/home/u")]);
        Config::parse(text, Path::new("/c.toml"), &env).unwrap()
    }

    #[test]
    fn the_configuration_says_the_defaults() {
        let mut defaults = parsed("");
        assert_eq!(parsed(CONFIG), defaults);
        // With the comment signs removed it is valid, too, and still the defaults.
        let key = |line: &&str| line.contains(" = ") || line.starts_with("# [[");
        let said: Vec<&str> =
            CONFIG.lines().filter(key).map(|line| line.trim_start_matches("# ")).collect();
        let said = parsed(&said.join("\n"));
        assert_eq!(said.me.as_deref(), Some("foo"));
        assert_eq!(said.entries.len(), 1);
        defaults.me.clone_from(&said.me);
        defaults.entries.clone_from(&said.entries);
        assert_eq!(said, defaults);
    }

    #[test]
    fn a_configuration_is_never_overwritten() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("a/config.toml");
        assert!(write_config(&file).unwrap());
        fs::write(&file, "me = \"x\"\n").unwrap();
        assert!(!write_config(&file).unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "me = \"x\"\n");
    }
}
