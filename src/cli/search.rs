//! `msgfs search`: prints the messages that contain words.

use std::ffi::OsString;

use msgfs::search::{IS_BUILT, SearchQuery};
use msgfs::view::{SHOWN_HITS, SearchHit, format_hits};
use serde::Serialize;

use super::access::{self, AccessPurpose};
use super::context::CommandContext;
use super::failure::Failure;
use super::{GlobalOptions, output};

/// The exit code of a search that could not be done; that of one without hits is 1, as for grep.
const FAILED: u8 = 2;

/// Find messages by their words
///
/// Prints the file hits.txt of the tree: one line for each message that has all words in its subject or body, the newest
/// first, and the number of all hits. The fields of a line are: short id, sender, day, subject or first words, the line that
/// matches. Capital letters and accents do not matter. Reading marks nothing.
///
/// A query is made of words, word* (words that begin so), "a phrase", -word (not this word), from:NAME, to:NAME,
/// thread:ID, subject:WORD, store:NAME, after:2026-11-01 (that day and later), before:2026-11-01 (earlier than that day)
/// and is:unread. The arguments are joined with blanks.
///
/// The first search builds an index, which is kept up to date from then on.
///
/// Exit codes: 0 there are hits, 1 there is none, 2 the search failed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  msgfs search parser bug\n  msgfs search '\"a phrase\" from:bob -draft'\n  msgfs search 'subject:release after:2026-11-01' --limit 50\n  msgfs search is:unread urgent --json"
)]
pub(crate) struct Args {
    #[arg(
        long,
        help = "Print one JSON array of objects, newest first: id, message_id, name, store, thread, from, to, \
                time, subject (null or text), line"
    )]
    json: bool,
    /// The most hits to print
    #[arg(long, value_name = "N", default_value_t = SHOWN_HITS, value_parser = parse_limit)]
    limit: usize,
    /// The words to look for, and other conditions
    #[arg(required = true, value_name = "QUERY")]
    query: Vec<String>,
}

fn parse_limit(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().filter(|limit| *limit > 0);
    limit.ok_or_else(|| "it must be a whole number, at least 1".to_owned())
}

/// A hit as `--json` prints it.
#[derive(Serialize)]
struct PrintedHit<'a> {
    id: &'a str,
    message_id: &'a str,
    name: &'a str,
    store: &'a str,
    thread: &'a str,
    from: &'a str,
    to: &'a [String],
    time: &'a str,
    subject: Option<&'a str>,
    line: &'a str,
}

impl<'a> From<&'a SearchHit> for PrintedHit<'a> {
    fn from(hit: &'a SearchHit) -> Self {
        let SearchHit {
            id, message_id, name, store, thread, from, to, time, subject, line, ..
        } = hit;
        let subject = subject.as_deref();
        Self { id, message_id, name, store, thread, from, to, time, subject, line }
    }
}

/// Moves words such as `-draft` in the arguments of this command behind a `--`, so that they are no options. The order of the
/// terms of a query does not matter.
pub(super) fn move_excluded_words(line: Vec<OsString>) -> Vec<OsString> {
    let Some(at) = find_command(&line).filter(|_| !line.iter().any(|word| word == "--")) else {
        return line;
    };
    let is_excluded = |word: &OsString| {
        let word = word.as_encoded_bytes();
        word.len() > 1 && word.starts_with(b"-") && !word.starts_with(b"--") && word != b"-h"
    };
    let mut line = line;
    let words = line.split_off(at + 1);
    let (excluded, others): (Vec<_>, Vec<_>) = words.into_iter().partition(is_excluded);
    line.extend(others);
    if !excluded.is_empty() {
        line.push("--".into());
        line.extend(excluded);
    }
    line
}

/// Returns the place of this command's name in a command line.
fn find_command(line: &[OsString]) -> Option<usize> {
    let mut at = 1;
    loop {
        match line.get(at)?.as_encoded_bytes() {
            b"--me" | b"--config" => at += 2,
            word if word.starts_with(b"-") => at += 1,
            word => return (word == b"search").then_some(at),
        }
    }
}

/// Runs `msgfs search`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    match find_and_print(global, args) {
        Ok(0) => Err(Failure::AlreadyReported),
        Ok(_) => Ok(()),
        Err(failure @ (Failure::Usage(_) | Failure::OutputClosed)) => Err(failure),
        Err(failure) => Err(Failure::Code(FAILED, failure.to_string())),
    }
}

/// Prints the hits and returns the number of all.
fn find_and_print(global: &GlobalOptions, args: &Args) -> Result<usize, Failure> {
    let query = args.query.join(" ").replace(char::is_control, " ");
    query
        .parse::<SearchQuery>()
        .map_err(|e| Failure::Usage(format!("{e}; see `msgfs search --help`")))?;
    if !IS_BUILT {
        return Err(Failure::refused("this msgfs was built without search"));
    }
    if !CommandContext::find(global)?.config.search {
        return Err(Failure::refused("search is turned off: the configuration has search = false"));
    }
    let report =
        access::with_tree(global, AccessPurpose::SEARCH, |tree| tree.search(&query, args.limit))?;
    if args.json {
        let hits: Vec<PrintedHit<'_>> = report.hits.iter().map(PrintedHit::from).collect();
        output::print_json_line(&hits)?;
    } else {
        output::print_data(&format_hits(report.total, report.hits.iter()))?;
    }
    Ok(report.total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_must_not_occur_are_no_options() {
        let moved = |line: &str| {
            let line = line.split(' ').map(OsString::from).collect();
            move_excluded_words(line).join(OsString::from(" ").as_os_str()).into_string().unwrap()
        };
        for (line, wanted) in [
            ("msgfs search a -b --json", "msgfs search a --json -- -b"),
            ("msgfs --me x search -b a", "msgfs --me x search a -- -b"),
            ("msgfs search a -- -b", "msgfs search a -- -b"),
            ("msgfs search -h", "msgfs search -h"),
            ("msgfs search - a", "msgfs search - a"),
            ("msgfs send search -b", "msgfs send search -b"),
            ("msgfs", "msgfs"),
        ] {
            assert_eq!(moved(line), wanted);
        }
    }
}
