//! A whole thread as one text: the message files, each under a separator line.
//!
//! A separator is sixteen `=`, a space and the file's name. In a transcript, a blank precedes each line of a
//! message that begins so, so no body can forge a separator. Only positions are cached; the text is made as it
//! is read.

use std::borrow::Cow;
use std::sync::Arc;

use crate::model::locks::Mutex;

use super::{Error, Tree};
use crate::index::{MsgIx, ThreadIx};
use crate::model::{RULE, Timestamp};

/// The positions of the messages in a transcript.
#[derive(Debug)]
pub struct TranscriptPlan {
    parts: Vec<TranscriptPart>,
    len: u64,
    time: Timestamp,
}

#[derive(Debug)]
struct TranscriptPart {
    start: u64,
    message: MsgIx,
    title: String,
}

impl TranscriptPlan {
    /// Returns the length of the transcript in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the time of its newest message.
    pub fn time(&self) -> Timestamp {
        self.time
    }

    fn is_extension_of(&self, older: &Self) -> bool {
        let same = |(a, b): (&TranscriptPart, &TranscriptPart)| {
            a.message == b.message && a.start == b.start
        };
        self.parts.len() > older.parts.len() && self.parts.iter().zip(&older.parts).all(same)
    }
}

fn format_separator(title: &str) -> String {
    format!("{RULE} {title}\n")
}

/// Returns the positions of the lines that begin like a separator.
pub(super) fn find_rules(text: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let starts = move |at: &usize| *at == 0 || text.get(at - 1) == Some(&b'\n');
    memchr::memmem::find_iter(text, RULE).filter(starts)
}

/// Returns the text of a message in a transcript.
fn indent_rules(text: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let mut from = 0;
    for at in find_rules(text) {
        out.extend_from_slice(text.get(from..at).unwrap_or_default());
        out.push(b' ');
        from = at;
    }
    if out.is_empty() {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(text.get(from..).unwrap_or_default());
    Cow::Owned(out)
}

impl Tree {
    /// Returns the present plan of a thread's transcript.
    pub(super) fn transcript_plan(&self, thread: ThreadIx) -> Result<Arc<TranscriptPlan>, Error> {
        let make = || self.make_plan(thread).map(Arc::new);
        self.transcripts.try_get(thread, self.generation(), make)
    }

    /// Returns the plan for a read up to `end`: that of the open file, or a newer one that only adds to it. So
    /// `tail -f` follows, and the text never changes under a reader.
    pub(super) fn refresh_plan(
        &self,
        thread: ThreadIx,
        plan: &Mutex<Arc<TranscriptPlan>>,
        end: u64,
    ) -> Arc<TranscriptPlan> {
        let mut plan = plan.lock();
        if end > plan.len
            && let Ok(newer) = self.transcript_plan(thread)
            && newer.is_extension_of(&plan)
        {
            *plan = newer;
        }
        Arc::clone(&plan)
    }

    fn make_plan(&self, thread: ThreadIx) -> Result<TranscriptPlan, Error> {
        let messages = self.thread_messages(&self.index.read(), thread);
        let mut parts = Vec::with_capacity(messages.len());
        let (mut len, mut time) = (0, Timestamp::from_millis(i64::MIN));
        self.render_ahead(messages.iter().copied());
        for ix in messages.iter() {
            let known = self.index.read().messages.length_in_transcript(*ix);
            let length =
                || self.rendered_text(*ix).map(|t| (t.len() + find_rules(&t).count()) as u64);
            let own = match known.map_or_else(length, Ok) {
                Ok(own) => own,
                // The message went after the list was made.
                Err(Error::NotFound | Error::Store(crate::store::StoreError::Moved)) => continue,
                Err(e) => return Err(e),
            };
            let core = self.index.read();
            let entry = core.messages.entry(*ix);
            time = time.max(entry.time());
            let title = format!("{}.txt", self.unique_stem(&core, *ix));
            let start = len;
            len += format_separator(&title).len() as u64 + own;
            parts.push(TranscriptPart { start, message: *ix, title });
        }
        if parts.is_empty() {
            return Err(Error::NotFound);
        }
        Ok(TranscriptPlan { parts, len, time })
    }

    pub(super) fn read_transcript(
        &self,
        plan: &TranscriptPlan,
        offset: u64,
        size: usize,
    ) -> Result<Vec<u8>, Error> {
        let mut out = Vec::with_capacity(size.min(plan.len.saturating_sub(offset) as usize));
        let first = plan.parts.partition_point(|p| p.start <= offset).saturating_sub(1);
        let ends = plan.parts.iter().skip(first + 1).map(|p| p.start).chain([plan.len]);
        for (part, end) in plan.parts.get(first..).unwrap_or_default().iter().zip(ends) {
            if out.len() >= size {
                break;
            }
            let (title, text) = (format_separator(&part.title), self.rendered_text(part.message)?);
            let text = indent_rules(&text);
            let body = part.start + title.len() as u64;
            if body + text.len() as u64 != end {
                // The text differs from the one whose positions were computed.
                return Err(crate::store::StoreError::Moved.into());
            }
            for (start, bytes) in [(part.start, title.as_bytes()), (body, &*text)] {
                let skip = (offset + out.len() as u64).saturating_sub(start);
                out.extend_from_slice(super::file::slice_range(bytes, skip, size - out.len()));
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_begin_like_a_separator_are_indented() {
        let text = format!("{RULE} a\nx {RULE}\n{RULE}{RULE}\n===\n{RULE}");
        assert_eq!(find_rules(text.as_bytes()).count(), 3);
        assert_eq!(
            String::from_utf8_lossy(&indent_rules(text.as_bytes())),
            format!(" {RULE} a\nx {RULE}\n {RULE}{RULE}\n===\n {RULE}")
        );
        assert!(matches!(indent_rules(b"===\n"), Cow::Borrowed(_)));
    }
}
