//! `msgfs ask`: sends a message and prints the answer to it.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use clap_complete::engine::ArgValueCompleter;
use msgfs::model::encode_hex;
use msgfs::view::{AskProgress, AskQuery};

use super::access::{self, PAUSE};
use super::failure::Failure;
use super::output::{self, StdoutWriter};
use super::send::{self, Recipients};
use super::{GlobalOptions, complete, message, wait};

/// The time within which a store usually has an accepted message.
const STORED_WITHIN: Duration = Duration::from_secs(2);
/// The exit code when an answer is missing.
const NO_ANSWER: u8 = 3;

/// Send a message, wait for the answer, and print it
///
/// Prints only the text of the answer, and marks it as read. With several recipients it ends with the
/// first answer, or with --all when each of them has answered. Exit code 3 means that an answer is
/// missing when the time is over: the message stays sent, and the command prints how to wait on. With
/// exit code 1 nothing is sent, unless the reason says otherwise. If nobody is left who could answer, because the
/// message was refused for good, it ends at once with exit code 3 and the reason.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs ask bob 'which port does the server use?'\n  \
    msgfs ask bob,carol --all --timeout 1h 'is Tuesday at ten fine?'\n  \
    msgfs ask bob --key port-1 'which port?'   # a second run asks nothing twice")]
pub(crate) struct Args {
    /// The recipients, separated by commas
    #[arg(value_name = "RECIPIENT[,RECIPIENT...]", value_parser = send::recipients,
        add = ArgValueCompleter::new(complete::recipients))]
    to: Recipients,
    /// The text. No text, or -, means standard input
    #[arg(value_name = "TEXT")]
    text: Vec<String>,
    /// Wait at most this long: 60s, 5m, 1h. A bare number means seconds. 0 looks once and does not wait
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = wait::timeout)]
    timeout: Duration,
    /// Wait until every recipient has answered, and print all answers
    #[arg(long)]
    all: bool,
    /// The subject line
    #[arg(long, value_name = "LINE", value_parser = message::header_value)]
    subject: Option<String>,
    /// Send this file with the message, if the store carries files. You can repeat this option
    #[arg(long, value_name = "FILE", value_parser = send::file)]
    attach: Vec<String>,
    /// Send to a new name, even if it resembles a known name
    #[arg(long)]
    new: bool,
    /// Continue the thread with this id, or begin it
    #[arg(long, value_name = "ID", value_parser = message::header_value)]
    thread: Option<String>,
    /// Answer the message with this id (from its Message-ID line, with or without <> and @store)
    #[arg(long, value_name = "ID", value_parser = message::header_value)]
    re: Option<String>,
    /// The priority, in the words of the store (AMP: urgent, high, normal, low)
    #[arg(long, value_name = "WORD", value_parser = message::header_value)]
    priority: Option<String>,
    /// The type, in the words of the store (AMP: request, response, notification, ...)
    #[arg(long = "type", value_name = "WORD", value_parser = message::header_value)]
    kind: Option<String>,
    /// The task of the message, in stores that have tasks (SSOT)
    #[arg(long, value_name = "ID", value_parser = message::header_value)]
    task: Option<String>,
    /// A word of your own (idempotency key). Within a week, a second run with the same word sends nothing and
    /// waits for the answer to the first message
    #[arg(long, value_name = "IDEMPOTENCY-KEY", value_parser = message::header_value)]
    key: Option<String>,
    /// Send through this store, if several stores reach the recipient
    #[arg(long, value_name = "STORE", value_parser = message::header_value,
        add = ArgValueCompleter::new(complete::stores))]
    via: Option<String>,
}

impl Args {
    /// Returns the message to send. The answers to it are found by its key.
    fn message(&self, key: &str) -> send::Args {
        let mut message = send::Args::default();
        message.to = self.to.clone();
        message.text.clone_from(&self.text);
        message.subject.clone_from(&self.subject);
        message.attach.clone_from(&self.attach);
        message.new = self.new;
        message.thread.clone_from(&self.thread);
        message.re.clone_from(&self.re);
        message.priority.clone_from(&self.priority);
        message.kind.clone_from(&self.kind);
        message.task.clone_from(&self.task);
        message.key = Some(key.to_owned());
        message.via.clone_from(&self.via);
        message
    }
}

/// Runs `msgfs ask`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let key = args.key.clone().map_or_else(make_key, Ok)?;
    send::send_message(global, &args.message(&key))?;
    wait_for_answers(global, args, &key).map_err(describe_end)
}

/// Prints the answers to a message that is sent.
fn wait_for_answers(global: &GlobalOptions, args: &Args, key: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + args.timeout;
    let stored_by = Instant::now() + STORED_WITHIN;
    let (mut printed, mut unmarked) = (Vec::new(), Vec::new());
    let mut last = AskProgress::default();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Answers that came together are printed one after the other.
        let is_complete =
            args.all && !printed.is_empty() && last.missing.is_empty() && last.refused.is_empty();
        let within = if is_complete { Duration::ZERO } else { left };
        let mut out = BodyWriter { unmarked: &unmarked, ..BodyWriter::default() };
        let query = AskQuery { key, printed: &printed };
        let outcome = access::wait_for_answer(global, query, within, &mut out);
        let BodyWriter { out, header, has_begun, .. } = out;
        match out.finish(outcome) {
            Ok(progress) => last = progress,
            // The answer was printed, and only its mark is missing.
            Err(Failure::ServerGone) if has_begun && !args.all => return Ok(()),
            Err(Failure::ServerGone) => {
                unmarked.extend(has_begun.then_some(header));
                if deadline.max(stored_by) <= Instant::now() {
                    return if is_complete {
                        Ok(())
                    } else {
                        Err(describe_missing(global, args, &last, true))
                    };
                }
                thread::sleep(PAUSE);
                continue;
            }
            Err(failure) => return Err(failure),
        }
        match &last.printed {
            Some((identity, from)) => {
                printed.push(*identity);
                if !args.all {
                    return Ok(());
                }
                output::print_notice(&format!("answered by {from}"));
            }
            None if last.is_hopeless() => return Err(describe_refused(&last)),
            None if is_complete => return Ok(()),
            None if left.is_zero() && (!last.paths.is_empty() || stored_by <= Instant::now()) => {
                return Err(describe_missing(global, args, &last, false));
            }
            None => thread::sleep(PAUSE),
        }
    }
}

/// Returns a failure of the wait as it ends the command: the message is sent, and no answer was printed.
fn describe_end(failure: Failure) -> Failure {
    match failure {
        Failure::OutputClosed | Failure::Code(..) => failure,
        Failure::Errno(libc::EPERM, why) => {
            let why = format!("the message is sent, but nothing can be waited for: {why}");
            Failure::Code(NO_ANSWER, why)
        }
        failure => Failure::Code(NO_ANSWER, format!("the message is sent, but {failure}")),
    }
}

/// Returns a key that no other message has.
fn make_key() -> Result<String, Failure> {
    let mut random = [0; 12];
    getrandom::fill(&mut random)
        .map_err(|e| Failure::refused(format!("the system gives no random bytes: {e}")))?;
    Ok(format!("ask-{}", encode_hex(&random)))
}

/// Returns the failure that names those who have not answered, and says how to wait on. `is_gone`: the process that acts
/// for me did not answer at the end.
fn describe_missing(
    global: &GlobalOptions,
    args: &Args,
    last: &AskProgress,
    is_gone: bool,
) -> Failure {
    let missing = if last.missing.is_empty() { &args.to.0 } else { &last.missing };
    let msgfs = global.render_command();
    let wait_on = match last.paths.as_slice() {
        [] if is_gone => {
            format!("the msgfs that acts for this name does not answer; `{msgfs} status` tells why")
        }
        [] => format!("it is not in its store yet; `{msgfs} status` tells why"),
        paths => {
            let commands = paths.iter().map(|path| format!("{msgfs} cat {path}"));
            format!("wait on with: {}", commands.collect::<Vec<_>>().join("; "))
        }
    };
    let names = missing.join(", ");
    let why = format!("no answer from {names} yet; the message stays sent; {wait_on}");
    Failure::Code(NO_ANSWER, why)
}

/// Returns the failure that names those who can never answer, since they do not get the message.
fn describe_refused(last: &AskProgress) -> Failure {
    let refused = last.refused.iter().map(|(to, why)| format!("{to} does not get it: {why}"));
    let refused = refused.collect::<Vec<_>>().join("; ");
    Failure::Code(NO_ANSWER, format!("the message is sent, but no answer can come: {refused}"))
}

/// A writer that prints the body of a message and drops its header.
#[derive(Default)]
struct BodyWriter<'a> {
    out: StdoutWriter,
    /// The headers of messages that were printed already, and perhaps not marked as read.
    unmarked: &'a [Vec<u8>],
    /// The header, with the empty line that ends it.
    header: Vec<u8>,
    /// True once the header has ended.
    is_in_body: bool,
    /// True once something was printed.
    has_begun: bool,
}

impl Write for BodyWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut body = bytes;
        while !self.is_in_body {
            let Some((first, rest)) = body.split_first() else { break };
            self.is_in_body = self.header.last() == Some(&b'\n') && *first == b'\n';
            self.header.push(*first);
            body = rest;
        }
        if !body.is_empty() && !self.unmarked.contains(&self.header) {
            self.out.write_all(body)?;
            self.has_begun = true;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S956: an answer whose mark is missing is not printed again, and another one is.
    #[test]
    fn an_answer_is_printed_once() {
        let unmarked = [b"From: bob\nMessage-ID: <1@samp>\n\n".to_vec()];
        for (id, is_printed) in [(1, false), (2, true)] {
            let mut out = BodyWriter { unmarked: &unmarked, ..BodyWriter::default() };
            let text = format!("From: bob\nMessage-ID: <{id}@samp>\n\nport 80\n");
            out.write_all(text.as_bytes()).unwrap();
            assert_eq!(out.has_begun, is_printed, "{id}");
            assert_eq!(out.header, text.as_bytes()[..text.len() - "port 80\n".len()]);
        }
    }

    /// S1230: after the message is sent, each failure but a closed output ends with code 3 and says that it is sent.
    #[test]
    fn a_failure_after_the_message_is_sent() {
        for failure in
            [Failure::refused("the disk is full"), Failure::Errno(libc::EPERM, "x".into())]
        {
            let Failure::Code(NO_ANSWER, why) = describe_end(failure) else {
                panic!("another code")
            };
            assert!(why.starts_with("the message is sent, but "), "{why}");
        }
        assert!(matches!(describe_end(Failure::OutputClosed), Failure::OutputClosed));
    }
}
