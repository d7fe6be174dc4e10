//! `msgfs reply`: answers the message that was read last, or a named one.

use std::borrow::Cow;

use msgfs::model::{find_nearest, sanitize_line};
use msgfs::view::{RecentRead, load_recent_reads};

use super::access::{self, AccessPurpose, TreeAccess, split_path};
use super::context::{self, CommandContext};
use super::failure::{Failure, refuse};
use super::message;
use super::{GlobalOptions, output};

/// The length of `20260424T174203.000Z-` in a message's name.
const STAMP: usize = 21;
/// The milliseconds within which two read messages may both be meant.
const TOGETHER: i64 = 10 * 60 * 1000;
/// The most messages that are listed to choose from.
const CHOICES: usize = 5;
/// The number of the newest messages with which a mistyped name is compared.
const SIMILAR: usize = 1000;

/// Answer a message: the one with this name, or the one that I read last
///
/// NAME is the name of a message file, with or without its folder and .txt, or the id in that name.
/// The answer goes to the sender, in the thread of the message. The command prints the sender and the
/// message. Without NAME it answers the message that I read last. It sends nothing, and lists the
/// newest messages, if I have read none yet, or if I read the last two within ten minutes and they
/// came from different senders. It also sends nothing if the first word looks like a NAME but no
/// message has it. Words after -- are always text.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "msgfs reply [OPTIONS] [NAME] [TEXT]...",
    after_help = "Examples:\n  msgfs reply ab12cd34 'looks good to me'\n  \
        msgfs reply 'looks good to me'   # answers what was read last\n  msgfs reply < answer.txt"
)]
pub(crate) struct Args {
    /// The message to answer, if you name one; then the text. No text, or -, means standard input
    #[arg(value_name = "WORD")]
    words: Vec<String>,
    /// The text, if its first word looks like a name: msgfs reply -- TEXT
    #[arg(value_name = "TEXT", last = true)]
    text: Vec<String>,
}

/// Runs `msgfs reply`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let read = load_recent_reads(&CommandContext::find(global)?.paths.read_last_file());
    let sent = access::with_tree(global, AccessPurpose::ACT, |tree| {
        let (stem, words) = match resolve_named_message(tree, &args.words)? {
            Some(named) => named,
            None => (find_last_read(tree, &read)?, &args.words[..]),
        };
        let words = [words, &args.text].concat();
        let text = message::require_text(message::read_text(&words)?)?;
        let (from, headline) = read_summary(tree, &stem);
        // The first line is empty, so the text has no header, whatever it looks like (docs/SEMANTICS.md, S45).
        tree.write(&format!("inbox/{stem}.reply"), &[b"\n", text.as_slice()].concat())?;
        Ok(format!("replied to {from} ({stem}: {headline})"))
    });
    let sent = sent.inspect_err(|_| context::announce_identity(global))?;
    let remark =
        CommandContext::find(global)?.me.explain_default().map(|remark| format!(" {remark}"));
    output::print_notice(&format!("{sent}{}", remark.unwrap_or_default()));
    Ok(())
}

/// Returns the message that the first word names, without its ending, and the other words; `None` if it names
/// none.
fn resolve_named_message<'w>(
    tree: &dyn TreeAccess,
    words: &'w [String],
) -> Result<Option<(String, &'w [String])>, Failure> {
    let Some((first, rest)) = words.split_first() else { return Ok(None) };
    let stem = message_stem(first);
    let is_meant = is_message_word(first);
    if !is_meant && !may_be_id(&stem) {
        return Ok(None);
    }
    if tree.has_path(&format!("inbox/{stem}.reply")) {
        return Ok(Some((stem.into_owned(), rest)));
    }
    if !is_meant {
        return Ok(None);
    }
    let shown = sanitize_line(&stem);
    let what = if has_time_prefix(&stem) { "the name" } else { "the id or name" };
    let known = list_newest(tree, SIMILAR)?;
    let hint = match find_nearest_message(&stem, &known) {
        Some(near) => format!("the nearest is {near}"),
        None => "`msgfs ls archive` lists the days".to_owned(),
    };
    refuse!(
        "nothing was sent: no message to you has {what} {shown}; {hint}. To send the word as text: \
         msgfs reply -- TEXT"
    )
}

/// Returns true if a word has the form of an id, of a message's name or of a path in the tree, so that it is hardly
/// the first word of a text.
fn is_message_word(word: &str) -> bool {
    let is_bracketed = word.starts_with('<') && word.ends_with('>') && word.contains('@');
    if is_bracketed || word.contains(char::is_whitespace) {
        return is_bracketed;
    }
    let path = word.strip_prefix("./").unwrap_or(word);
    // A word like `@bob` is text.
    word.contains('@') && !word.starts_with('@')
        || has_folder(word)
        || [".txt", ".reply"]
            .iter()
            .any(|end| path.strip_suffix(end).is_some_and(|p| !p.is_empty()))
        || has_time_prefix(&message_stem(word))
        || is_id(&message_stem(word))
}

/// Returns true for the forms of ids: eight hex digits and then only hex digits, `-` and `_`; `msg_` and eight digits;
/// a date, `T` and more. A date alone is none.
fn is_id(word: &str) -> bool {
    let count = |word: &str, is: fn(&u8) -> bool| word.bytes().take_while(is).count();
    let is_hex = count(word, u8::is_ascii_hexdigit) >= 8
        && word.bytes().all(|b| b.is_ascii_hexdigit() || matches!(b, b'-' | b'_'));
    let is_numbered =
        word.strip_prefix("msg_").is_some_and(|rest| count(rest, u8::is_ascii_digit) >= 8);
    let date = word.get(..11).and_then(|start| start.strip_suffix('T')).unwrap_or_default();
    let is_dated = !date.is_empty()
        && date
            .bytes()
            .enumerate()
            .all(|(at, b)| if matches!(at, 4 | 7) { b == b'-' } else { b.is_ascii_digit() });
    is_hex || is_numbered || is_dated
}

/// Returns the message whose name, or the id at the end of its name, is nearest to a word.
fn find_nearest_message<'n>(word: &str, known: &'n [String]) -> Option<&'n str> {
    let id = |name: &'n str| name.rsplit_once('-').map_or(name, |(_, id)| id);
    let by_id = || {
        let word = word.trim_start_matches('<').split('@').next()?;
        let near = find_nearest(word, known.iter().map(|name| id(name)))?;
        known.iter().map(String::as_str).find(|name| id(name) == near)
    };
    by_id().or_else(|| find_nearest(word, known.iter().map(String::as_str)))
}

/// Returns a name without its folder and its ending. An id stays, with `/` as in names.
fn message_stem(word: &str) -> Cow<'_, str> {
    let is_id = word.contains('@') && !has_folder(word) && !has_time_prefix(split_path(word).1);
    if is_id && word.contains('/') {
        return Cow::Owned(word.replace('/', "%2F"));
    }
    let name = split_path(word).1;
    let stem = [".txt", ".reply"].iter().find_map(|end| name.strip_suffix(end));
    Cow::Borrowed(stem.unwrap_or(name))
}

/// Returns true if a word is a path of a folder with messages, or in one.
fn has_folder(word: &str) -> bool {
    let path = word.strip_prefix("./").unwrap_or(word);
    ["inbox/", "archive/", "threads/", "sent/"].iter().any(|folder| path.starts_with(folder))
}

/// Returns true if a word begins like the names of message files.
fn has_time_prefix(word: &str) -> bool {
    let digit = |at: usize| word.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    (0..8).all(digit) && word.get(8..9) == Some("T") && word.get(STAMP - 2..STAMP) == Some("Z-")
}

/// Returns true if a word may be an id. Ordinary words of a text are not looked up.
fn may_be_id(word: &str) -> bool {
    word.len() >= 8
        && word.bytes().any(|b| b.is_ascii_digit() || word.len() == 8 && b.is_ascii_hexdigit())
        && !word.contains(|c: char| c.is_whitespace() || c == '/')
}

/// Returns the message that was read last, without its ending, unless others may be meant.
fn find_last_read(tree: &dyn TreeAccess, read: &[RecentRead]) -> Result<String, Failure> {
    let why = match read {
        [] => "you have read no message yet".to_owned(),
        [last, before, ..] if last.from != before.from && last.time - before.time <= TOGETHER => {
            format!("the last messages you read are from {} and {}", before.from, last.from)
        }
        [last, ..] => {
            let stem = message_stem(&last.name).into_owned();
            if tree.has_path(&format!("inbox/{stem}.reply")) {
                return Ok(stem);
            }
            format!("the message that you read last ({stem}) is gone")
        }
    };
    let newest = list_newest(tree, CHOICES)?;
    let lines: Vec<String> = newest
        .iter()
        .map(|stem| {
            let (from, headline) = read_summary(tree, stem);
            format!("  {stem}   {from}: {headline}")
        })
        .collect();
    let choices = match lines.len() {
        0 => "; there is no message to answer".to_owned(),
        _ => {
            format!(
                "; name the message that you answer: msgfs reply NAME TEXT\n{}",
                lines.join("\n")
            )
        }
    };
    refuse!("nothing was sent: {why}{choices}")
}

/// Returns the newest messages to me, without their endings, the newest first.
fn list_newest(tree: &dyn TreeAccess, limit: usize) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for day in tree.ls("archive")?.iter().rev().filter(|entry| entry.is_dir) {
        let listed = tree.ls(&format!("archive/{}", day.name))?;
        let names = listed.iter().rev().filter(|entry| !entry.is_dir);
        found.extend(names.filter_map(|entry| Some(entry.name.strip_suffix(".txt")?.to_owned())));
        if found.len() >= limit {
            break;
        }
    }
    found.truncate(limit);
    Ok(found)
}

/// Returns the sender of a message to me, and its subject or first line. Marks nothing.
fn read_summary(tree: &dyn TreeAccess, stem: &str) -> (String, String) {
    let path = |day: &str| format!("archive/{day}/{stem}.txt");
    let day =
        |date: &str| Some(format!("{}-{}-{}", date.get(..4)?, date.get(4..6)?, date.get(6..8)?));
    let path = if has_time_prefix(stem) {
        day(stem).map(|day| path(&day))
    } else {
        let days = tree.ls("archive").unwrap_or_default();
        days.iter().rev().map(|day| path(&day.name)).find(|path| tree.has_path(path))
    };
    let mut text = Vec::new();
    let read = path.and_then(|path| tree.cat(&path, &mut text).ok());
    let text = String::from_utf8_lossy(if read.is_some() { &text } else { b"" });
    let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    let line = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let first = body.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let headline: String = line("Subject: ").unwrap_or(first).chars().take(72).collect();
    (line("From: ").unwrap_or("its sender").to_owned(), headline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_name_messages() {
        let name = "20260424T174203.000Z-a-b-22222222";
        for word in [
            name.to_owned(),
            format!("{name}.txt"),
            format!("./archive/2026-04-24/{name}.txt"),
            format!("inbox/{name}.reply"),
        ] {
            assert_eq!(message_stem(&word), name);
            assert!(has_time_prefix(&message_stem(&word)));
        }
        for (word, stem) in [
            ("<ab12cd34ef567890@samp>", "<ab12cd34ef567890@samp>"),
            ("<a/b+c@x.org@maildir>", "<a%2Fb+c@x.org@maildir>"),
            ("inbox/a+b@x.org.reply", "a+b@x.org"),
        ] {
            assert_eq!(message_stem(word), stem);
        }
        for id in ["ab12cd34", "deadbeef", "msg_1777052523_x", "2026-04-24T17-42-03.000Z_pid1_x"] {
            assert!(may_be_id(id) && !has_time_prefix(id), "{id}");
        }
        for text in [
            "",
            "x",
            "looks",
            "agreed.",
            "looks good to me 2",
            "wonderful",
            "\u{e9}\u{e9}\u{e9}\u{e9}",
        ] {
            assert!(!may_be_id(text) && !has_time_prefix(text), "{text}");
        }
    }

    #[test]
    fn a_word_of_the_form_of_a_name_is_told_from_text() {
        for name in [
            "deadbeef",
            "ab12cd34",
            "ab12cd34ef567890@samp",
            "<x1@samp>",
            "<x 1@samp>",
            "plain.1@x.org@maildir",
            "a+b=c@x.org",
            "550e8400-e29b-41d4-a716-446655440000",
            "msg_1777052523_x",
            "2026-04-24T17-42-03.000Z_pid1_x",
            "20260424T174203.000Z-a-b-22222222",
            "inbox/nope",
            "./archive/2026-04-24/x",
            "threads/plan/x.txt",
            "sent/x",
            "nope.txt",
            "nope.reply",
        ] {
            assert!(is_message_word(name), "{name}");
        }
        for text in [
            "",
            "looks",
            "decade",
            "@bob",
            "beautiful",
            "2026-11-26",
            "msg_queue",
            "deadbeef is wrong",
            "see inbox/x.txt",
            "inbox/ is full",
            ".txt",
            "inboxes",
            "release-2026",
        ] {
            assert!(!is_message_word(text), "{text}");
        }
    }

    #[test]
    fn the_nearest_message_is_found_by_its_id_and_by_its_name() {
        let known =
            ["20260424T174203.000Z-bar-plan-ab12cd34", "20260424T174204.000Z-baz-x-99999999"]
                .map(str::to_owned);
        let near = |word| find_nearest_message(word, &known);
        for word in ["ab12cd35", "ab12cd35@samp", "<ab12cd35@samp>"] {
            assert_eq!(near(word), Some(known[0].as_str()));
        }
        assert_eq!(near("20260424T174203.000Z-bar-plan-ab12cd43"), Some(known[0].as_str()));
        assert_eq!(near("00000000"), None);
    }
}
