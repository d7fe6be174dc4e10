//! `msgfs sendmail`: a replacement of `/usr/sbin/sendmail` for mail programs, cron and git.
//!
//! `mail` turns a mail into the text of a draft. `folder` holds the files that come with it until they are
//! sent.

mod folder;
mod mail;

use std::ffi::OsString;
use std::io::IsTerminal as _;

use msgfs::mailbox::MailboxOpenError;
use msgfs::outbox::names;

use super::access::{self, AccessPurpose};
use super::context::CommandContext;
use super::failure::Failure;
use super::{GlobalOptions, message};
use folder::SubmissionFolder;
use mail::{SubmissionEnvelope, SubmittedMail};

/// Exit codes of `sysexits.h`.
mod exit {
    /// A fault of the command line.
    pub const USAGE: u8 = 64;
    /// A fault of the mail.
    pub const DATAERR: u8 = 65;
    /// A fault of a recipient.
    pub const NOUSER: u8 = 67;
    /// A fault of a recipient's domain.
    pub const NOHOST: u8 = 68;
    /// A recipient or a store does not take the mail.
    pub const UNAVAILABLE: u8 = 69;
    /// A fault that may pass: try again.
    pub const TEMPFAIL: u8 = 75;
    /// A fault of permission.
    pub const NOPERM: u8 = 77;
    /// A fault of the configuration.
    pub const CONFIG: u8 = 78;
}

/// Send a mail as /usr/sbin/sendmail does
///
/// Reads a mail (RFC 5322) from standard input and sends it to agents. Mail programs, git send-email
/// and cron can call this command to send. An address is a name that the stores know, or NAME@STORE.
/// For git, write NAME@STORE.msgfs. If one recipient is refused, the mail goes to none. The sender
/// is always me; From and -f do not change that.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    echo 'set sendmail = \"msgfs sendmail\"' >> ~/.muttrc\n  \
    git config sendemail.sendmailCmd 'msgfs sendmail'\n  \
    printf 'To: bob\\nSubject: hi\\n\\ntests are green\\n' | msgfs sendmail -t\n\n\
    Exit codes are those of sysexits.h: 0 sent, 64 wrong command line, 65 wrong mail,\n\
    67 unknown recipient, 68 unknown place of a recipient, 69 a recipient or a store does not take\n\
    the mail, 75 try again, 77 not allowed, 78 wrong configuration.")]
pub(crate) struct Args {
    /// Also send to the recipients in the lines To, Cc and Bcc of the mail
    #[arg(short = 't')]
    from_header: bool,
    /// Keep a line that has only a dot. Without -i it ends what you type, and is removed at the end of any other mail
    #[arg(short = 'i')]
    ignore_dots: bool,
    /// The sender; ignored, because it is always me
    #[arg(short = 'f', visible_short_alias = 'r', value_name = "FROM")]
    from: Option<String>,
    /// The name of the sender; ignored
    #[arg(short = 'F', value_name = "NAME")]
    name: Option<String>,
    /// -oi does the same as -i; other values are ignored
    #[arg(short = 'o', value_name = "OPTION", allow_hyphen_values = true)]
    option: Vec<String>,
    /// -bm sends the mail; other modes are refused
    #[arg(short = 'b', value_name = "MODE")]
    mode: Option<String>,
    /// Ignored, as are -R, -V, -B, -C, -D, -M, -O, -L, -X, -A, -h and -p with their values
    #[arg(short = 'N', short_aliases = ['R', 'V', 'B', 'C', 'D', 'M', 'O', 'L', 'X', 'A', 'h', 'p'], value_name = "WORD")]
    unused: Vec<String>,
    /// Ignored, as are -n, -m, -U and -G
    #[arg(short = 'v', short_aliases = ['n', 'm', 'U', 'G'], action = clap::ArgAction::Count)]
    flags: u8,
    /// The recipients
    #[arg(value_name = "RECIPIENT")]
    to: Vec<String>,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Returns the command line; a program called `sendmail` is `msgfs sendmail`.
pub(crate) fn effective_command_line() -> Vec<OsString> {
    let mut line: Vec<OsString> = std::env::args_os().collect();
    let program = line.first().map(std::path::Path::new).and_then(|path| path.file_name());
    if program.is_some_and(|name| name == "sendmail") {
        line.splice(..1, ["msgfs".into(), "sendmail".into()]);
    }
    line
}

/// Returns the exit code for a wrong command line of this command.
pub(crate) fn usage_exit_code(line: &[OsString]) -> Option<u8> {
    let mut words = line.iter().skip(1);
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--me" | "--config") => drop(words.next()),
            Some(word) if word.starts_with("--") => {}
            word => return (word == Some("sendmail")).then_some(exit::USAGE),
        }
    }
    None
}

/// Runs `msgfs sendmail`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let code = |code| move |failure: Failure| Failure::Code(code, failure.to_string());
    if let Some(mode) = args.mode.as_deref().filter(|mode| *mode != "m") {
        let why =
            format!("-b{mode} is not supported: msgfs only sends the mail on standard input (-bm)");
        return Err(Failure::Code(exit::USAGE, why));
    }
    let is_typed = std::io::stdin().is_terminal();
    let text = message::read_stdin().map_err(code(exit::DATAERR))?;
    let dots = args.ignore_dots || args.option.iter().any(|option| option == "i");
    let text = if dots { &text[..] } else { mail::cut_at_dot(&text, is_typed) };
    let mail = SubmittedMail::parse(text).map_err(|why| Failure::Code(exit::DATAERR, why))?;
    let envelope = SubmissionEnvelope::from_mail(&mail, &args.to, args.from_header)
        .map_err(|why| Failure::Code(exit::NOUSER, why))?;
    if envelope.is_empty() {
        let hint = if args.from_header {
            " in To, Cc and Bcc"
        } else {
            "; name them, or take those of the mail with -t"
        };
        return Err(Failure::Code(exit::USAGE, format!("there are no recipients{hint}")));
    }
    let context = CommandContext::find(global).map_err(code(exit::CONFIG))?;
    let folder = SubmissionFolder::new(&context.paths.cache);
    let files = mail.attachments();
    let paths = folder.write_files(&files).map_err(|e| {
        let what = format!("{}: the attachments cannot be put there", folder.above().display());
        Failure::Code(exit::TEMPFAIL, Failure::from_io(what, &e).to_string())
    })?;
    let draft =
        mail.render_draft(&envelope, &paths).map_err(|why| Failure::Code(exit::DATAERR, why))?;
    let name = format!("outbox/{}", names::command_draft_name("sendmail"));
    let sent = access::with_tree(global, AccessPurpose::ACT, |tree| {
        if mail.in_reply_to().is_some() {
            // This mail may answer one that was sent a moment ago; the listing waits for that one.
            tree.ls("sent")?;
        }
        tree.write(&name, draft.as_bytes()).inspect_err(|_| {
            // The caller keeps the mail.
            let _ = tree.rm(&name);
        })
    });
    sent.map_err(|failure| Failure::Code(exit_code(&failure, &envelope), failure.to_string()))
}

/// Returns the code of `sysexits.h` for a failure.
fn exit_code(failure: &Failure, envelope: &SubmissionEnvelope) -> u8 {
    match failure {
        Failure::Errno(errno, text) => match *errno {
            libc::EINVAL if text.contains("Attach: ") => exit::UNAVAILABLE,
            libc::EHOSTUNREACH if envelope.has_domain() => exit::NOHOST,
            libc::EHOSTUNREACH | libc::EDESTADDRREQ => exit::NOUSER,
            libc::EINVAL if text.contains("is not an address") => exit::NOUSER,
            libc::EINVAL | libc::EFBIG | libc::EILSEQ => exit::DATAERR,
            libc::EBADMSG => exit::UNAVAILABLE,
            libc::EPERM | libc::EACCES | libc::EROFS => exit::NOPERM,
            libc::ENOKEY => exit::CONFIG,
            _ => exit::TEMPFAIL,
        },
        Failure::Open(
            MailboxOpenError::Config(_)
            | MailboxOpenError::Me(_)
            | MailboxOpenError::Paths(_)
            | MailboxOpenError::Keyring(_),
        ) => exit::CONFIG,
        _ => exit::TEMPFAIL,
    }
}
