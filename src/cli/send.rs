//! `msgfs send`: sends a message without knowledge of the tree.

use std::fmt::Write;
use std::time::Duration;

use clap_complete::engine::ArgValueCompleter;
use msgfs::model::{DeliveryState, Timestamp, encode_hex};
use msgfs::outbox::draft::DraftParser;
use msgfs::outbox::names;

use super::access::{self, AccessPurpose, TreeAccess};
use super::context::{self, CommandContext};
use super::failure::Failure;
use super::message;
use super::{GlobalOptions, complete, delivery_wait, output};

/// Send a message
///
/// The text stands after the recipients. Without it, the command reads the text from standard input.
/// Exit code 0 means that the message is sent. With any other code nothing is sent, and the command
/// prints the reason.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "Examples:\n  msgfs send bob 'tests are green'\n  \
    msgfs send bob,carol --subject 'schema change' < change.txt\n  \
    msgfs send bob@acme.crabmail.ai --attach plan.pdf 'the plan'\n  \
    msgfs send bob --key deploy-42 'deployed'   # you can repeat this for a week")]
pub(crate) struct Args {
    /// The recipients, separated by commas
    #[arg(value_name = "RECIPIENT[,RECIPIENT...]", value_parser = recipients,
        add = ArgValueCompleter::new(complete::recipients))]
    pub(crate) to: Recipients,
    /// The text. No text, or -, means standard input
    #[arg(value_name = "TEXT")]
    pub(crate) text: Vec<String>,
    /// More recipients, separated by commas, for the header line Cc
    #[arg(long, value_name = "RECIPIENT[,RECIPIENT...]", value_parser = recipients,
        add = ArgValueCompleter::new(complete::recipients))]
    cc: Option<Recipients>,
    /// The subject line
    #[arg(long, value_name = "LINE", value_parser = message::header_value)]
    pub(crate) subject: Option<String>,
    /// Send this file with the message, if the store carries files. You can repeat this option
    #[arg(long, value_name = "FILE", value_parser = file)]
    pub(crate) attach: Vec<String>,
    /// Send to a new name, even if it resembles a known name
    #[arg(long)]
    pub(crate) new: bool,
    /// Continue the thread with this id, or begin it
    #[arg(long, value_name = "ID", value_parser = message::header_value)]
    pub(crate) thread: Option<String>,
    /// Answer the message with this id (from its Message-ID line, with or without <> and @store)
    #[arg(long, value_name = "ID", value_parser = message::header_value)]
    pub(crate) re: Option<String>,
    /// The priority, in the words of the store (AMP: urgent, high, normal, low)
    #[arg(long, value_name = "WORD", value_parser = message::header_value)]
    pub(crate) priority: Option<String>,
    /// The type, in the words of the store (AMP: request, response, notification, ...)
    #[arg(long = "type", value_name = "WORD", value_parser = message::header_value)]
    pub(crate) kind: Option<String>,
    /// The task of the message, in stores that have tasks (SSOT)
    #[arg(long, value_name = "ID", value_parser = message::header_value)]
    pub(crate) task: Option<String>,
    /// A word of your own (idempotency key). Within a week, a second message with the same word is not sent
    #[arg(long, value_name = "IDEMPOTENCY-KEY", value_parser = message::header_value)]
    pub(crate) key: Option<String>,
    /// Send through this store, if several stores reach the recipient
    #[arg(long, value_name = "STORE", value_parser = message::header_value,
        add = ArgValueCompleter::new(complete::stores))]
    pub(crate) via: Option<String>,
    /// After that, wait until each recipient shows this state or a later one (see `msgfs sent`). Exit code 1
    /// means that the message was refused for a recipient, and 3 that the time is over
    #[arg(long, value_name = "STATE", value_parser = delivery_wait::state_parser())]
    wait_for: Option<DeliveryState>,
    /// Wait for the state at most this long: 60s, 5m, 1h. A bare number means seconds
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "wait_for",
        value_parser = super::wait::timeout)]
    timeout: Duration,
}

/// The recipients of one argument.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recipients(pub(crate) Vec<String>);

pub(crate) fn recipients(list: &str) -> Result<Recipients, String> {
    if list.split(',').any(|name| name.trim().is_empty()) {
        return Err("a name is missing; write one name, or several as in bob,carol".to_owned());
    }
    list.split(',').map(message::header_value).collect::<Result<_, _>>().map(Recipients)
}

/// Returns the absolute path of a file for a header line, because a mount may run in another folder.
pub(crate) fn file(name: &str) -> Result<String, String> {
    let path = std::path::absolute(name).map_err(|e| e.to_string())?;
    let path = path.to_str().ok_or("the path must be UTF-8")?;
    // Blanks around a header's value do not count.
    if message::header_value(path)? != path {
        return Err("the path must not begin or end with a blank".to_owned());
    }
    Ok(path.to_owned())
}

/// Runs `msgfs send`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    send_message(global, args)
}

/// Sends the message and says so.
pub(crate) fn send_message(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let text = message::require_text(message::read_text(&args.text)?)?;
    // The message is found again by its key.
    let key = args.key.clone().or_else(|| args.wait_for.map(|_| generate_key()));
    let draft = [render_headers(args, key.as_ref()).as_bytes(), &text].concat();
    // Recipients in the headers beat the name. Then the name must be unique, because the reason of a refusal is
    // found by it. Otherwise the draft replaces an earlier one to the same recipient.
    let headed = || names::command_draft_name(if args.new { "new" } else { "send" });
    let name = sole_recipient(args).map_or_else(headed, str::to_owned);
    let check = |state| delivery_wait::check_state(global, (&name, &draft), state);
    let recipients = args.wait_for.map(check).transpose()?;
    let name = format!("outbox/{name}");
    let other_name = format!("outbox/{}", headed());
    let to_line = if args.new { String::new() } else { format!("To: {}\n", args.to.0.join(", ")) };
    let with_recipient = [to_line.as_bytes(), &draft].concat();
    let sent = access::with_tree(global, AccessPurpose::ACT, |tree| {
        let by_other_name = || (&other_name, tree.write(&other_name, &with_recipient));
        let (name, written) = if !args.new && has_other_draft(tree, &name, &draft) {
            by_other_name()
        } else {
            match tree.write(&name, &draft) {
                // Somebody composes a message to the same recipient in a folder of this name.
                Err(Failure::Errno(libc::EISDIR, _)) => by_other_name(),
                written => (&name, written),
            }
        };
        written.map_err(|failure| {
            if matches!(failure, Failure::ServerGone) {
                return failure;
            }
            let msgfs = global.render_command();
            let reason = name_option(&failure.to_string());
            let failure = reason.replace("`msgfs send ", &format!("`{msgfs} send "));
            let kept = tree.ls(name).is_ok();
            let note = format!(
                "\nthe text is kept in {name}; correct it there, or drop it with: {msgfs} rm {name}"
            );
            Failure::refused(format!("{failure}{}", if kept { &note } else { "" }))
        })
    });
    sent.inspect_err(|_| context::announce_identity(global))?;
    let all: Vec<&str> =
        args.to.0.iter().chain(args.cc.iter().flat_map(|cc| &cc.0)).map(String::as_str).collect();
    let remark =
        CommandContext::find(global)?.me.explain_default().map(|remark| format!(" {remark}"));
    output::print_notice(&format!("sent to {}{}", all.join(", "), remark.unwrap_or_default()));
    match (args.wait_for, key, recipients) {
        (Some(state), Some(key), Some(recipients)) => {
            delivery_wait::wait_for_state(global, (&key, recipients), state, args.timeout)
        }
        _ => Ok(()),
    }
}

/// Returns true if a draft with another text was refused under a name. A new one would take its place.
fn has_other_draft(tree: &dyn TreeAccess, name: &str, draft: &[u8]) -> bool {
    let mut kept = Vec::new();
    let is_there = tree.has_path(name) && tree.cat(name, &mut kept).is_ok();
    let parser = DraftParser::with_headers(["Task"]);
    let body = |text: &[u8]| parser.parse(text).ok().map(|parsed| parsed.body);
    is_there && body(&kept).is_none_or(|kept| Some(kept) != body(draft))
}

/// Returns a key that no other message has.
fn generate_key() -> String {
    let mut random = [0; 16];
    // Without chance, the time has to do.
    if getrandom::fill(&mut random).is_err() {
        random = Timestamp::now().millis().to_le_bytes().repeat(2).try_into().unwrap_or_default();
    }
    format!("wait-{}", encode_hex(&random))
}

/// Returns the only recipient, if the draft is named after it.
fn sole_recipient(args: &Args) -> Option<&str> {
    let [only] = &args.to.0[..] else { return None };
    let stands =
        names::recipient_in_name(only) == only && !names::is_private(only) && !only.contains('/');
    stands.then_some(only)
}

/// The options that become a header line each.
const OPTIONS: [(&str, &str); 7] = [
    ("Thread", "--thread"),
    ("In-Reply-To", "--re"),
    ("Priority", "--priority"),
    ("Type", "--type"),
    ("Task", "--task"),
    ("Via", "--via"),
    ("Idempotency-Key", "--key"),
];

/// Returns the reason of a refusal with the option in place of the header line that the person did not write.
fn name_option(reason: &str) -> String {
    let is_about = |header: &str| {
        reason.starts_with(&format!("{header}: ")) || reason.contains(&format!(": {header}: "))
    };
    match OPTIONS.iter().find(|(header, _)| is_about(header)) {
        Some((_, option)) => reason.replace("remove the line", &format!("leave out {option}")),
        None => reason.to_owned(),
    }
}

/// Returns the header block, with the empty line that ends it.
fn render_headers(args: &Args, key: Option<&String>) -> String {
    let mut head = String::new();
    if args.task.is_some() && args.subject.is_none() {
        // A header line that only some stores have would be text if it stood first (docs/SEMANTICS.md, S138). An
        // empty subject is none.
        head.push_str("Subject:\n");
    }
    // A name that resembles a known one is noticed only if it stands in the draft's name alone.
    if args.new || sole_recipient(args).is_none() {
        let _ = writeln!(head, "To: {}", args.to.0.join(", "));
    }
    let key = key.cloned();
    let cc = args.cc.as_ref().map(|cc| cc.0.join(", "));
    let further = [
        ("Cc", &cc),
        ("Subject", &args.subject),
        ("Thread", &args.thread),
        ("In-Reply-To", &args.re),
        ("Priority", &args.priority),
        ("Type", &args.kind),
        ("Task", &args.task),
        ("Via", &args.via),
        ("Idempotency-Key", &key),
    ];
    for (name, value) in further {
        if let Some(value) = value {
            // Writing to a String cannot fail.
            let _ = writeln!(head, "{name}: {value}");
        }
    }
    for path in &args.attach {
        let _ = writeln!(head, "Attach: {path}");
    }
    head.push('\n');
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &[&str]) -> Result<Args, clap::Error> {
        Line::try_parse_from(line).map(|l| l.args)
    }

    #[test]
    fn options_become_header_lines() {
        let line = "send bob,carol --subject plan --re <ab@samp> --key k --thread t hi there";
        let args = args(&line.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!(
            render_headers(&args, args.key.as_ref()),
            "To: bob, carol\nSubject: plan\nThread: t\nIn-Reply-To: <ab@samp>\n\
             Idempotency-Key: k\n\n"
        );
        assert_eq!(args.text, ["hi", "there"]);
    }

    #[test]
    fn a_task_is_never_the_first_line_and_a_refusal_names_the_option() {
        let headers = |line: &str| {
            let args = args(&line.split(' ').collect::<Vec<_>>()).unwrap();
            render_headers(&args, None)
        };
        assert_eq!(headers("send bob --task T hi"), "Subject:\nTask: T\n\n");
        assert_eq!(headers("send bob --task T --subject s hi"), "Subject: s\nTask: T\n\n");
        assert_eq!(
            name_option("outbox/bar: Priority: a SAMP record has no place for it; remove the line"),
            "outbox/bar: Priority: a SAMP record has no place for it; leave out --priority"
        );
        assert_eq!(name_option("outbox/bar: remove the line"), "outbox/bar: remove the line");
    }

    #[test]
    fn files_and_further_lines_are_written_in_full() {
        let line = "send,bob@acme.crabmail.ai,--cc,carol;dave,--attach,/a b/plan.pdf,--attach,\
                    notes,--priority,high,--type,request,hi";
        let line = line.split(',').map(|word| word.replace(';', ","));
        let args = Line::parse_from(line).args;
        let here = std::env::current_dir().unwrap();
        assert_eq!(
            render_headers(&args, args.key.as_ref()),
            format!(
                "Cc: carol, dave\nPriority: high\nType: request\n\
                 Attach: /a b/plan.pdf\nAttach: {}/notes\n\n",
                here.display()
            )
        );
        assert!(file("/a\nTo: eve").is_err() && file("/a ").is_err() && file("").is_err());
    }

    #[test]
    fn one_recipient_is_the_name_of_the_draft_unless_he_is_new() {
        let named = |line: &[&str]| {
            let args = args(line).unwrap();
            (sole_recipient(&args).map(str::to_owned), render_headers(&args, args.key.as_ref()))
        };
        assert_eq!(named(&["send", "bob", "hi"]), (Some("bob".into()), "\n".into()));
        let new = named(&["send", "bob", "--new", "hi"]);
        assert_eq!(new, (Some("bob".into()), "To: bob\n\n".into()));
        for (line, to) in [
            (&["send", "bob,carol", "hi"][..], "bob, carol"),
            (&["send", "bob.new", "hi"], "bob.new"),
            (&["send", "bob.md", "hi"], "bob.md"),
            (&["send", "a/b", "hi"], "a/b"),
        ] {
            assert_eq!(named(line), (None, format!("To: {to}\n\n")));
        }
    }

    #[test]
    fn an_option_cannot_smuggle_a_header() {
        assert!(args(&["send", "bob", "--subject", "x\nTo: eve", "hi"]).is_err());
        assert!(args(&["send", "bob\nVia: y", "hi"]).is_err());
        assert!(args(&["send", "bob,", "hi"]).is_err());
    }
}
