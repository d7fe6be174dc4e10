//! A whole conversation as one text: the message files, each under a separator line.
//!
//! A separator is a run of `=`, a space and the file's name. The run is longer than any run of `=`
//! that begins a line of any of the messages, so no body can forge one. Only positions are kept;
//! the text is made as it is read.

use std::fmt::Write;
use std::sync::Arc;

use crate::model::locks::Mutex;

use super::{Error, Tree};
use crate::index::{MsgIx, ThreadIx};
use crate::model::Timestamp;

/// The shortest run.
const RUN: usize = 16;

/// Where each message begins in a transcript.
#[derive(Debug)]
pub struct Plan {
    parts: Vec<Part>,
    run: usize,
    len: u64,
    time: Timestamp,
}

#[derive(Debug)]
struct Part {
    start: u64,
    message: MsgIx,
    title: String,
}

impl Plan {
    /// Length of the transcript in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The time of its newest message.
    pub fn time(&self) -> Timestamp {
        self.time
    }

    fn extends(&self, older: &Self) -> bool {
        let same = |(a, b): (&Part, &Part)| a.message == b.message && a.start == b.start;
        self.run == older.run
            && self.parts.len() > older.parts.len()
            && self.parts.iter().zip(&older.parts).all(same)
    }

    fn separator(&self, title: &str) -> String {
        let mut line = "=".repeat(self.run);
        let _ = writeln!(line, " {title}");
        line
    }
}

/// The longest run of `=` at the beginning of a line.
fn longest_run(text: &[u8]) -> usize {
    let mut longest = 0;
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', text).chain([text.len()]) {
        let line = text.get(start..end).unwrap_or_default();
        longest = longest.max(line.iter().take_while(|b| **b == b'=').count());
        start = end + 1;
    }
    longest
}

impl Tree {
    /// The plan of a thread's transcript as it is now.
    pub(super) fn transcript(&self, thread: ThreadIx) -> Result<Arc<Plan>, Error> {
        let generation = self.generation();
        if let Some((at, plan)) = self.transcripts.lock().get(&thread)
            && *at == generation
        {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(self.plan(thread)?);
        self.transcripts.lock().put(thread, (generation, Arc::clone(&plan)));
        Ok(plan)
    }

    /// The plan for a read up to `end`: the one of the open file, or a newer one if it only adds to
    /// that. So `tail -f` follows, and a reader never sees the text change under it.
    pub(super) fn follow(&self, thread: ThreadIx, plan: &Mutex<Arc<Plan>>, end: u64) -> Arc<Plan> {
        let mut plan = plan.lock();
        if end > plan.len
            && let Ok(newer) = self.transcript(thread)
            && newer.extends(&plan)
        {
            *plan = newer;
        }
        Arc::clone(&plan)
    }

    fn plan(&self, thread: ThreadIx) -> Result<Plan, Error> {
        let messages = self.thread_messages(&self.index.read(), thread);
        let mut parts = Vec::with_capacity(messages.len());
        let mut lens = Vec::with_capacity(messages.len());
        let mut plan =
            Plan { parts: Vec::new(), run: RUN, len: 0, time: Timestamp::from_millis(i64::MIN) };
        for ix in messages.iter() {
            let text = match self.rendered(*ix) {
                Ok(text) => text,
                // Gone since the list was made.
                Err(Error::NotFound | Error::Store(crate::store::StoreError::Moved)) => continue,
                Err(e) => return Err(e),
            };
            plan.run = plan.run.max(longest_run(&text) + 1);
            let core = self.index.read();
            let Some(entry) = core.entry(*ix) else { continue };
            plan.time = plan.time.max(entry.time());
            let title = format!("{}.txt", self.stem(&core, *ix).unwrap_or_default());
            parts.push(Part { start: 0, message: *ix, title });
            lens.push(text.len() as u64);
        }
        if parts.is_empty() {
            return Err(Error::NotFound);
        }
        for (part, len) in parts.iter_mut().zip(lens) {
            part.start = plan.len;
            plan.len += plan.separator(&part.title).len() as u64 + len;
        }
        plan.parts = parts;
        Ok(plan)
    }

    pub(super) fn read_transcript(
        &self,
        plan: &Plan,
        offset: u64,
        size: usize,
    ) -> Result<Vec<u8>, Error> {
        let mut out = Vec::with_capacity(size.min(plan.len.saturating_sub(offset) as usize));
        let first = plan.parts.partition_point(|p| p.start <= offset).saturating_sub(1);
        for part in plan.parts.get(first..).unwrap_or_default() {
            if out.len() >= size {
                break;
            }
            let mut text = plan.separator(&part.title).into_bytes();
            text.extend_from_slice(&self.rendered(part.message)?);
            let skip = (offset + out.len() as u64).saturating_sub(part.start);
            out.extend_from_slice(super::file::part(&text, skip, size - out.len()));
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_count_only_at_the_beginning_of_a_line() {
        assert_eq!(longest_run(b""), 0);
        assert_eq!(longest_run(b"a ==== b\n== x\n=\n====="), 5);
    }
}
