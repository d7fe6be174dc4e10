//! Marks: the read state in a message file (docs/formats/amp.md, section 5).
//!
//! Other programs re-print the whole file and so break signatures. Here only the bytes of the status
//! members change; the rest, numbers and white space included, stays as it is.

use std::borrow::Cow;
use std::ops::Range;

use super::envelope;
use crate::model::Timestamp;
use crate::store::text::json::Value;
use crate::store::text::strict::{self as json, Member};
use crate::store::text::time::format_time;

/// The file with its read mark changed: `local.status`, `metadata.status` if there is one, and when
/// it was read. `None` if nothing is to change or the file is not a message that can be marked.
pub fn set_status(bytes: &[u8], read: bool, now: Timestamp) -> Option<Vec<u8>> {
    envelope::parse(bytes).ok()?;
    let text = std::str::from_utf8(bytes).ok()?;
    let members = json::members(text).ok()?;
    // Of equal keys the last counts, as for every reader.
    let find = |name: &str| members.iter().rev().find(|m| m.key == name);
    let mut edits = Edits { text, list: Vec::new() };
    match find("local") {
        Some(local) if matches!(local.value, Value::Null) => {
            edits.replace(&local.value_at, new_local(read, now));
        }
        Some(local) => edits.local(local, read, now)?,
        None if !read => {}
        None => edits.append(0..text.len(), &members, "local", &new_local(read, now)),
    }
    if let Some(metadata) = find("metadata") {
        edits.metadata(metadata, read)?;
    }
    edits.apply()
}

/// The file as it was before msgfs marked it, so that a print of it does not depend on marks. One that
/// was never marked is returned as it is, unless it came with a `read_at` or as read: then the same
/// text is returned for every mark.
pub fn unmarked(bytes: &[u8]) -> Cow<'_, [u8]> {
    without_marks(bytes).map_or(Cow::Borrowed(bytes), Cow::Owned)
}

fn without_marks(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let members = json::members(text).ok()?;
    let last = |name: &str| members.iter().rposition(|m| m.key == name);
    let mut edits = Edits { text, list: Vec::new() };
    if let Some(n) = last("local") {
        edits.unmark_local(&members, n);
    }
    let metadata = last("metadata").and_then(|n| edits.inside(members.get(n)?));
    if let Some(status) = metadata.iter().flatten().rev().find(|m| m.key == "status")
        && says(status, true)
    {
        edits.replace(&status.value_at, word(false).to_owned());
    }
    edits.apply()
}

/// Whether an object is one that [`set_status`] made where there was none.
fn is_new_local(text: &str) -> bool {
    let rest = text.strip_prefix("{\"status\": \"");
    let rest =
        rest.and_then(|rest| rest.strip_prefix("read\"").or_else(|| rest.strip_prefix("unread\"")));
    let time = rest
        .and_then(|rest| rest.strip_prefix(", \"read_at\": \""))
        .and_then(|rest| rest.strip_suffix("\"}"));
    time.is_some_and(|time| crate::store::text::time::parse_time(time).is_some())
}

fn new_local(read: bool, now: Timestamp) -> String {
    if read {
        format!("{{\"status\": \"read\", \"read_at\": \"{}\"}}", format_time(now))
    } else {
        "{\"status\": \"unread\"}".to_owned()
    }
}

const fn word(read: bool) -> &'static str {
    if read { "\"read\"" } else { "\"unread\"" }
}

/// Replacements of ranges of a text.
struct Edits<'a> {
    text: &'a str,
    list: Vec<(Range<usize>, String)>,
}

impl<'a> Edits<'a> {
    fn replace(&mut self, at: &Range<usize>, with: String) {
        self.list.push((at.clone(), with));
    }

    fn local(&mut self, local: &Member<'a>, read: bool, now: Timestamp) -> Option<()> {
        let members = self.inside(local)?;
        let status = members.iter().rev().find(|m| m.key == "status");
        let stands = |m: &Member<'_>| says(m, read);
        if status.is_some_and(stands) || (status.is_none() && !read) {
            return Some(());
        }
        if let Some(status) = status {
            self.replace(&status.value_at, word(read).to_owned());
        }
        if read {
            let when = format!("\"{}\"", format_time(now));
            match members.iter().rev().find(|m| m.key == "read_at") {
                Some(read_at) => self.replace(&read_at.value_at, when),
                None => self.append(local.value_at.clone(), &members, "read_at", &when),
            }
        }
        // Behind `read_at`, which tells it from a status that was there before.
        if status.is_none() {
            self.append(local.value_at.clone(), &members, "status", word(read));
        }
        Some(())
    }

    /// Takes back what [`Edits::local`] did.
    fn unmark_local(&mut self, members: &[Member<'a>], n: usize) {
        let Some(local) = members.get(n) else { return };
        let text = self.text.get(local.value_at.clone()).unwrap_or_default();
        if matches!(local.value, Value::Null) || is_new_local(text) {
            return self.remove(members, n, n);
        }
        let Some(inner) = self.inside(local) else { return };
        let last = |key: &str| inner.iter().rposition(|m| m.key == key);
        let (read_at, status) = (last("read_at"), last("status"));
        if let (Some(r), Some(s)) = (read_at, status)
            && s == r + 1
            && s + 1 == inner.len()
        {
            return self.remove(&inner, r, s);
        }
        if let Some(status) = status.and_then(|s| inner.get(s)).filter(|s| says(s, true)) {
            self.replace(&status.value_at, word(false).to_owned());
        }
        if let Some(r) = read_at {
            self.remove(&inner, r, r);
        }
    }

    /// Removes members of an object, from one to another, as [`Edits::append`] would have added them.
    fn remove(&mut self, members: &[Member<'a>], from: usize, to: usize) {
        let (Some(first), Some(last)) = (members.get(from), members.get(to)) else { return };
        let before = from.checked_sub(1).and_then(|n| members.get(n));
        let at = match (before, members.get(to + 1)) {
            (Some(before), _) => before.value_at.end..last.value_at.end,
            (None, Some(next)) => first.key_at.start..next.key_at.start,
            (None, None) => first.key_at.start..last.value_at.end,
        };
        self.replace(&at, String::new());
    }

    fn metadata(&mut self, metadata: &Member<'a>, read: bool) -> Option<()> {
        if !matches!(metadata.value, Value::Compound(text) if text.starts_with('{')) {
            return Some(());
        }
        let members = self.inside(metadata)?;
        if let Some(status) = members.iter().rev().find(|m| m.key == "status")
            && !says(status, read)
        {
            self.replace(&status.value_at, word(read).to_owned());
        }
        Some(())
    }

    /// The members of an object that is a value, with their places in the whole text; `None` if the
    /// value is something else.
    fn inside(&self, outer: &Member<'a>) -> Option<Vec<Member<'a>>> {
        let text = self.text.get(outer.value_at.clone()).filter(|text| text.starts_with('{'))?;
        let mut members = json::members(text).ok()?;
        let moved =
            |at: &Range<usize>| at.start + outer.value_at.start..at.end + outer.value_at.start;
        for m in &mut members {
            m.key_at = moved(&m.key_at);
            m.value_at = moved(&m.value_at);
        }
        Some(members)
    }

    /// Adds a member at the end of an object, spaced like the last one there.
    fn append(&mut self, object: Range<usize>, members: &[Member<'a>], key: &str, value: &str) {
        let Some(last) = members.last() else {
            let open = self.text.get(object.clone()).and_then(|text| text.find('{')).unwrap_or(0);
            let comma = if self.list.iter().any(|(at, _)| at.start == object.start + open + 1) {
                ", "
            } else {
                ""
            };
            let at = object.start + open + 1;
            return self.replace(&(at..at), format!("{comma}\"{key}\": {value}"));
        };
        let before = self.text.get(..last.key_at.start).unwrap_or_default();
        let space = before.get(before.trim_end().len()..).unwrap_or_default();
        let colon = self.text.get(last.key_at.end..last.value_at.start).unwrap_or(":");
        let end = last.value_at.end;
        self.replace(&(end..end), format!(",{space}\"{key}\"{colon}{value}"));
    }

    fn apply(mut self) -> Option<Vec<u8>> {
        if self.list.is_empty() {
            return None;
        }
        // Stable: what is added at one place stays in order.
        self.list.sort_by_key(|(at, _)| (at.start, at.end));
        let mut out = String::with_capacity(self.text.len() + 128);
        let mut done = 0;
        for (at, with) in &self.list {
            out.push_str(self.text.get(done..at.start)?);
            out.push_str(with);
            done = at.end;
        }
        out.push_str(self.text.get(done..)?);
        Some(out.into_bytes())
    }
}

/// Whether a status says this already. What is archived was read.
fn says(status: &Member<'_>, read: bool) -> bool {
    match status.value {
        Value::String(text) if read => matches!(&*text.to_text(), "read" | "archived"),
        Value::String(text) => text.to_text() == "unread",
        _ => false,
    }
}

#[cfg(test)]
mod tests;
