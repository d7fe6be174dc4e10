//! Marks: the read state in a message file (docs/formats/amp.md, section 5).
//!
//! Other programs re-print the whole file and so break signatures. Here only the bytes of the status members change;
//! everything else, numbers and white space included, stays as it is.

use std::borrow::Cow;
use std::ops::Range;

use super::envelope;
use super::id::is_message_id;
use crate::model::Timestamp;
use crate::store::text::edit::JsonEdits;
use crate::store::text::json::JsonValue;
use crate::store::text::strict_json::{self as json, JsonMember, find_last};
use crate::store::text::time::{format_time, parse_time};

/// Returns the file with its read mark changed: `local.status`, `metadata.status` if present, and the time of reading.
/// Returns `None` if nothing changes or the file is no message that can be marked.
pub fn set_status(bytes: &[u8], read: bool, now: Timestamp) -> Option<Vec<u8>> {
    envelope::parse(bytes).ok()?;
    let text = std::str::from_utf8(bytes).ok()?;
    let members = json::parse_members(text).ok()?;
    let mut edits = JsonEdits::new(text);
    match find_last(&members, "local") {
        Some(local) if matches!(local.value, JsonValue::Null) => {
            edits.replace_range(&local.value_at, render_new_local(read, now));
        }
        Some(local) => edits.mark_local(local, read, now)?,
        None if !read => {}
        None => edits.append_member(0..text.len(), &members, "local", &render_new_local(read, now)),
    }
    if let Some(metadata) = find_last(&members, "metadata") {
        edits.mark_metadata(metadata, read)?;
    }
    edits.apply()
}

/// Returns my file with the id that a provider elsewhere assigned, as `local.relayed_id`. Returns `None` if it has one,
/// or if the file is no message with a `local`.
pub fn set_relayed_id(bytes: &[u8], id: &str) -> Option<Vec<u8>> {
    let stored = envelope::parse(bytes).ok()?;
    if stored.relayed_id.is_some() || !is_message_id(id) {
        return None;
    }
    let text = std::str::from_utf8(bytes).ok()?;
    let members = json::parse_members(text).ok()?;
    let mut edits = JsonEdits::new(text);
    let local = find_last(&members, "local")?;
    let inner = edits.nested_members(local)?;
    edits.append_member(local.value_at.clone(), &inner, "relayed_id", &format!("\"{id}\""));
    edits.apply()
}

/// Returns the file as it was before msgfs marked it, so that its hash does not depend on marks. An unmarked file is
/// returned as it is, unless it came with a `read_at` or as read: then every mark leads to the same text.
pub fn strip_marks(bytes: &[u8]) -> Cow<'_, [u8]> {
    try_strip_marks(bytes).map_or(Cow::Borrowed(bytes), Cow::Owned)
}

fn try_strip_marks(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let members = json::parse_members(text).ok()?;
    let mut edits = JsonEdits::new(text);
    if let Some(n) = members.iter().rposition(|m| m.key == "local") {
        edits.unmark_local(&members, n);
    }
    let metadata =
        find_last(&members, "metadata").and_then(|metadata| edits.nested_members(metadata));
    if let Some(status) = metadata.iter().find_map(|members| find_last(members, "status"))
        && has_status(status, true)
    {
        edits.replace_range(&status.value_at, status_word(false));
    }
    edits.apply()
}

/// Returns true if [`set_status`] made this object.
fn is_new_local(text: &str) -> bool {
    let rest = text.strip_prefix("{\"status\": \"");
    let rest =
        rest.and_then(|rest| rest.strip_prefix("read\"").or_else(|| rest.strip_prefix("unread\"")));
    let time = rest
        .and_then(|rest| rest.strip_prefix(", \"read_at\": \""))
        .and_then(|rest| rest.strip_suffix("\"}"));
    time.and_then(parse_time).is_some()
}

fn render_new_local(read: bool, now: Timestamp) -> String {
    if read {
        format!("{{\"status\": \"read\", \"read_at\": \"{}\"}}", format_time(now))
    } else {
        "{\"status\": \"unread\"}".to_owned()
    }
}

const fn status_word(read: bool) -> &'static str {
    if read { "\"read\"" } else { "\"unread\"" }
}

impl<'a> JsonEdits<'a> {
    fn mark_local(&mut self, local: &JsonMember<'a>, read: bool, now: Timestamp) -> Option<()> {
        let members = self.nested_members(local)?;
        let status = find_last(&members, "status");
        if status.map_or(!read, |status| has_status(status, read)) {
            return Some(());
        }
        if let Some(status) = status {
            self.replace_range(&status.value_at, status_word(read));
        }
        if read {
            let when = format!("\"{}\"", format_time(now));
            match find_last(&members, "read_at") {
                Some(read_at) => self.replace_range(&read_at.value_at, when),
                None => self.append_member(local.value_at.clone(), &members, "read_at", &when),
            }
        }
        // It stands after `read_at`; this distinguishes it from a status that was there before.
        if status.is_none() {
            self.append_member(local.value_at.clone(), &members, "status", status_word(read));
        }
        Some(())
    }

    /// Undoes [`JsonEdits::mark_local`].
    fn unmark_local(&mut self, members: &[JsonMember<'a>], n: usize) {
        let Some(local) = members.get(n) else { return };
        let text = self.text.get(local.value_at.clone()).unwrap_or_default();
        if matches!(local.value, JsonValue::Null) || is_new_local(text) {
            return self.remove_members(members, n, n);
        }
        let Some(inner) = self.nested_members(local) else { return };
        let place = |key: &str| inner.iter().rposition(|m| m.key == key);
        let (read_at, status) = (place("read_at"), place("status"));
        if let (Some(r), Some(s)) = (read_at, status)
            && s == r + 1
            && s + 1 == inner.len()
        {
            return self.remove_members(&inner, r, s);
        }
        if let Some(status) = status.and_then(|s| inner.get(s)).filter(|s| has_status(s, true)) {
            self.replace_range(&status.value_at, status_word(false));
        }
        if let Some(r) = read_at {
            self.remove_members(&inner, r, r);
        }
    }

    /// Removes a range of members of an object; undoes [`JsonEdits::append_member`].
    fn remove_members(&mut self, members: &[JsonMember<'a>], from: usize, to: usize) {
        let (Some(first), Some(last)) = (members.get(from), members.get(to)) else { return };
        let before = from.checked_sub(1).and_then(|n| members.get(n));
        let at = match (before, members.get(to + 1)) {
            (Some(before), _) => before.value_at.end..last.value_at.end,
            (None, Some(next)) => first.key_at.start..next.key_at.start,
            (None, None) => first.key_at.start..last.value_at.end,
        };
        self.replace_range(&at, "");
    }

    fn mark_metadata(&mut self, metadata: &JsonMember<'a>, read: bool) -> Option<()> {
        if !matches!(metadata.value, JsonValue::Compound(text) if text.starts_with('{')) {
            return Some(());
        }
        let members = self.nested_members(metadata)?;
        if let Some(status) = find_last(&members, "status")
            && !has_status(status, read)
        {
            self.replace_range(&status.value_at, status_word(read));
        }
        Some(())
    }

    /// Adds a member at the end of an object, with the spacing of the last member.
    fn append_member(
        &mut self,
        object: Range<usize>,
        members: &[JsonMember<'a>],
        key: &str,
        value: &str,
    ) {
        let Some(last) = members.last() else {
            let open = self.text.get(object.clone()).and_then(|text| text.find('{')).unwrap_or(0);
            let at = object.start + open + 1;
            let is_first = self.list.iter().all(|(earlier, _)| earlier.start != at);
            let comma = if is_first { "" } else { ", " };
            return self.replace_range(&(at..at), format!("{comma}\"{key}\": {value}"));
        };
        let before = self.text.get(..last.key_at.start).unwrap_or_default();
        let space = before.get(before.trim_end().len()..).unwrap_or_default();
        let colon = self.text.get(last.key_at.end..last.value_at.start).unwrap_or(":");
        let end = last.value_at.end;
        self.replace_range(&(end..end), format!(",{space}\"{key}\"{colon}{value}"));
    }
}

/// Returns true if a status has this value already. An archived message counts as read.
fn has_status(status: &JsonMember<'_>, read: bool) -> bool {
    match status.value {
        JsonValue::String(text) if read => matches!(&*text.to_text(), "read" | "archived"),
        JsonValue::String(text) => text.to_text() == "unread",
        _ => false,
    }
}

#[cfg(test)]
mod tests;
