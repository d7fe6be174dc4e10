//! The hits of a search: read, cut around their match, and printed as lines or as data.

use std::cmp::Ordering;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Tree, names};
use crate::index::{IndexTables, MsgIx};
use crate::model::short_id::short_id;
use crate::model::{Timestamp, plain_id, plain_thread_id, sanitize_line};
use crate::search::MatchFinder;

/// The longest line of `hits.txt`, in characters.
pub(super) const LINE: usize = 80;
/// The longest name of a sender and the longest subject in it, in characters.
const FROM: usize = 16;
const SUBJECT: usize = 20;
/// The longest line of a message in a report, in characters.
pub(super) const REPORT_LINE: usize = 200;
/// Messages of a report that are read together.
pub(super) const READ_TOGETHER: usize = 64;

/// A message that a search found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchHit {
    /// Its short id.
    pub id: String,
    /// Its id.
    pub message_id: String,
    /// The name of its file.
    pub name: String,
    /// Its store.
    pub store: String,
    /// Its thread.
    pub thread: String,
    /// The sender.
    pub from: String,
    /// The recipients.
    pub to: Vec<String>,
    /// Its time, in RFC 3339.
    pub time: String,
    /// Its day, as the folders of `archive/` have it.
    pub day: String,
    /// Its subject, if it has one.
    pub subject: Option<String>,
    /// The beginning of its text, cut.
    pub first_words: String,
    /// The line that matches, cut around the match; or else its first line.
    pub line: String,
    /// The place of the match in the line, in characters: begin and end.
    pub place: Option<(usize, usize)>,
}

/// The newest hits of a query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchReport {
    /// The number of all hits.
    pub total: usize,
    /// The newest ones, newest first.
    pub hits: Vec<SearchHit>,
}

/// A hit, and the texts from which it was made.
pub(super) struct ReadHit {
    pub hit: SearchHit,
    pub whole_subject: String,
    pub body: String,
}

/// Reads messages, each with its matching line cut to `most` characters. Messages that cannot be read are left out.
pub(super) fn describe_hits(
    tree: &Tree,
    finder: &MatchFinder,
    hits: &[MsgIx],
    most: usize,
) -> Vec<(MsgIx, ReadHit)> {
    let mut described = Vec::with_capacity(hits.len());
    for some in hits.chunks(READ_TOGETHER) {
        tree.texts.render_uncached(some.iter().copied());
        let read = some.iter().filter_map(|ix| Some((*ix, describe_hit(tree, finder, *ix, most)?)));
        described.extend(read);
    }
    described
}

/// Returns the subject and the body of a message file.
pub(super) fn split_file(text: &str) -> (Option<&str>, &str) {
    let (header, body) = text.split_once("\n\n").unwrap_or((text, ""));
    (header.lines().find_map(|line| line.strip_prefix("Subject: ")), body)
}

/// Returns the parts of a hit that come from the text of its message.
pub(super) fn describe_text(
    finder: &MatchFinder,
    subject: Option<&str>,
    body: &str,
    most: usize,
) -> SearchHit {
    let (line, place) = match finder.find_in_body(body) {
        Some(place) => cut_around(body, place, most),
        None => match finder.find_in_subject(subject.unwrap_or_default()) {
            Some(place) => cut_around(subject.unwrap_or_default(), place, most),
            None => (names::cut_line(first_line(body), most), None),
        },
    };
    SearchHit {
        subject: subject.map(|subject| names::cut_line(subject, REPORT_LINE)),
        first_words: names::cut_line(first_line(body), SUBJECT),
        line,
        place,
        ..SearchHit::default()
    }
}

fn describe_hit(tree: &Tree, finder: &MatchFinder, ix: MsgIx, most: usize) -> Option<ReadHit> {
    let text = tree.texts.rendered_text(ix).ok()?;
    let text = String::from_utf8_lossy(&text);
    let (subject, body) = split_file(&text);
    let described = describe_text(finder, subject, body, most);
    let tables = tree.index.read();
    let entry = tables.messages.entry(ix);
    let (thread, _) = tables.threads.thread_id(&tables.messages, entry.thread());
    let id = tables.messages.shown_id(ix);
    let recipients = tables.messages.recipient_list(entry).split(", ").filter(|to| !to.is_empty());
    let hit = SearchHit {
        id: short_id(&id),
        message_id: plain_id(&id).to_owned(),
        name: format!("{}.txt", tree.names.unique_stem(&tables, ix)),
        store: tree.store_name(entry.store()).to_owned(),
        thread: plain_thread_id(thread).to_owned(),
        from: tables.messages.sender(entry).to_owned(),
        to: recipients.map(str::to_owned).collect(),
        time: entry.time().rfc3339(),
        day: tables.messages.name_time(entry).day().to_string(),
        ..described
    };
    let whole_subject = subject.unwrap_or_default().to_owned();
    Some(ReadHit { hit, whole_subject, body: body.to_owned() })
}

fn first_line(body: &str) -> &str {
    body.lines().find(|line| !line.trim().is_empty()).unwrap_or_default()
}

/// Returns the line around a place in a text, cut to `most` characters, and the place in that line.
fn cut_around(text: &str, place: Range<usize>, most: usize) -> (String, Option<(usize, usize)>) {
    let (before, after) = (text.get(..place.start), text.get(place.end..));
    let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
    let before = before.rsplit('\n').next().unwrap_or_default().trim_start();
    let found = text.get(place).unwrap_or_default();
    let after = if found.contains('\n') { "" } else { after.lines().next().unwrap_or_default() };
    let found: String = found.lines().next().unwrap_or_default().chars().take(most).collect();
    let room = most - found.chars().count();
    // Only so many characters are counted, however long the line is.
    let count = |text: &str, cut: &mut dyn Iterator<Item = char>| {
        (text.is_empty(), cut.take(most + 1).count())
    };
    let (_, left) = count(before, &mut before.chars().rev());
    let (_, right) = count(after, &mut after.trim_end().chars());
    let keep_left = left.min((room / 3).max(room.saturating_sub(right)));
    let keep_right = right.min(room - keep_left);
    let mut begin: Vec<char> = before.chars().rev().take(keep_left).collect();
    begin.reverse();
    let mut end: Vec<char> = after.trim_end().chars().take(keep_right).collect();
    if keep_left < left
        && let Some(first) = begin.first_mut()
    {
        *first = '\u{2026}';
    }
    if keep_right < right
        && let Some(last) = end.last_mut()
    {
        *last = '\u{2026}';
    }
    let from = begin.len();
    let to = from + found.chars().count();
    let line: String = begin.into_iter().chain(found.chars()).chain(end).collect();
    (sanitize_line(&line.replace('\t', " ")).into_owned(), Some((from, to)))
}

/// Returns the text of `hits.txt` for these hits; `total` is the number of all hits.
pub fn format_hits<'a>(total: usize, hits: impl Iterator<Item = &'a SearchHit>) -> String {
    let lines: String = hits.map(|hit| format_hit(hit) + "\n").collect();
    match total {
        0 => "0 hits: no message matches\n".to_owned(),
        1 => format!("{lines}1 hit\n"),
        _ => format!("{lines}{total} hits\n"),
    }
}

/// Returns the line of a hit, with tabs between its fields.
fn format_hit(hit: &SearchHit) -> String {
    let SearchHit { id, day, line, place, .. } = hit;
    let from = names::cut_line(&hit.from.replace('\t', " "), FROM);
    let room = LINE.saturating_sub(
        4 + [id, &from, day].map(|field| field.chars().count()).iter().sum::<usize>(),
    );
    let about = hit.subject.as_deref().unwrap_or(&hit.first_words).replace('\t', " ");
    let about = names::cut_line(&about, SUBJECT.min(room / 2));
    let about = if about.is_empty() { "-".to_owned() } else { about };
    let room = room.saturating_sub(about.chars().count());
    let line = match *place {
        Some((from, to)) => {
            let byte = |at| line.char_indices().nth(at).map_or(line.len(), |(byte, _)| byte);
            cut_around(line, byte(from)..byte(to), room).0
        }
        None => names::cut_line(&line.replace('\t', " "), room),
    };
    [id, &from, day, &about, &line].map(String::as_str).join("\t")
}

/// Returns a report as one line of JSON.
pub(super) fn format_report(report: &SearchReport) -> String {
    match serde_json::to_string(report) {
        Ok(text) => text + "\n",
        Err(e) => panic!("a report is texts and numbers only, but it cannot be printed: {e}"),
    }
}

/// A hit with the time in its name.
type TimedHit = (Timestamp, MsgIx);

fn time_hits(tables: &IndexTables, hits: &[MsgIx]) -> Vec<TimedHit> {
    hits.iter().map(|ix| (tables.messages.name_time(tables.messages.entry(*ix)), *ix)).collect()
}

/// Compares hits in listing order.
fn compare_timed(tables: &IndexTables, a: &TimedHit, b: &TimedHit) -> Ordering {
    a.0.cmp(&b.0).then_with(|| tables.messages.compare_order(a.1, b.1))
}

/// Returns hits in listing order.
pub(super) fn sort_hits(tables: &IndexTables, hits: &[MsgIx]) -> Vec<MsgIx> {
    sort_timed(tables, time_hits(tables, hits))
}

fn sort_timed(tables: &IndexTables, mut hits: Vec<TimedHit>) -> Vec<MsgIx> {
    hits.sort_by(|a, b| compare_timed(tables, a, b));
    hits.into_iter().map(|(_, ix)| ix).collect()
}

/// Returns the newest of some hits, newest first.
pub(super) fn newest_hits(tables: &IndexTables, hits: &[MsgIx], most: usize) -> Vec<MsgIx> {
    let mut hits = time_hits(tables, hits);
    if let Some(older) = hits.len().checked_sub(most).filter(|older| *older > 0) {
        hits.select_nth_unstable_by(older, |a, b| compare_timed(tables, a, b));
        hits.drain(..older);
    }
    let mut newest = sort_timed(tables, hits);
    newest.reverse();
    newest
}
