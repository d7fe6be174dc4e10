//! A whole thread as one text: the message files, each under a separator line.
//!
//! A separator is sixteen `=`, a space and the file's name. In a transcript, a blank precedes each line of a
//! message that begins so, so no body can forge a separator. Only positions are cached; the text is made as it
//! is read.

use std::borrow::Cow;
use std::sync::Arc;

use crate::model::locks::{LockLevel, Mutex};

use super::file::{OpenFile, OpenRequest};
use super::generation_cache::GenerationCache;
use super::listing::{Listing, ListingEntry};
use super::node::{Ino, InodeTag, Node, NodeProperty, make_inode};
use super::table::{NodeAttributes, TreeChanges, View, ViewKey};
use super::{CachePolicy, Error, Tree};
use crate::index::{MsgIx, ThreadIx};
use crate::model::{RULE, Timestamp};

/// The positions of the messages in a transcript.
#[derive(Debug)]
pub struct TranscriptPlan {
    parts: Vec<TranscriptPart>,
    len: u64,
    time: Timestamp,
    /// True if a message in it has no text now.
    has_gaps: bool,
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

/// A node of `transcripts/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TranscriptKey {
    /// `transcripts/`
    Folder,
    /// The text of a thread.
    Text(ThreadIx),
}

/// The view `transcripts/`.
#[derive(Debug, Default)]
pub(super) struct TranscriptView {
    plans: GenerationCache<ThreadIx, Arc<TranscriptPlan>>,
}

impl View for TranscriptView {
    type Key = TranscriptKey;

    fn node_properties(key: &TranscriptKey) -> &'static [NodeProperty] {
        use NodeProperty::{Folder, LastingListing, ShowsSent};
        match key {
            TranscriptKey::Folder => &[Folder, LastingListing, ShowsSent],
            TranscriptKey::Text(_) => &[],
        }
    }

    fn inode_number(&self, tree: &Tree, key: &TranscriptKey) -> Option<Ino> {
        let TranscriptKey::Text(thread) = key else { return None };
        let tables = tree.index.read();
        let identity = tables.threads.thread_identity(&tables.messages, *thread);
        Some(make_inode(InodeTag::Transcript, identity))
    }

    fn find_by_inode(&self, tree: &Tree, tag: u64, low: u64) -> Option<TranscriptKey> {
        if tag != InodeTag::Transcript as u64 {
            return None;
        }
        let tables = tree.index.read();
        tables.threads.find_thread_by_identity(&tables.messages, low).map(TranscriptKey::Text)
    }

    fn stat(&self, tree: &Tree, key: &TranscriptKey) -> Result<NodeAttributes, Error> {
        let TranscriptKey::Text(thread) = key else {
            return Ok(NodeAttributes::of_folder(self.newest_time(tree, key), CachePolicy::Folder));
        };
        tree.note_thread_exposed(*thread);
        let plan = self.plan(tree, *thread)?;
        let caching = if plan.has_gaps { CachePolicy::Volatile } else { CachePolicy::PerLookup };
        Ok(NodeAttributes::of_file(plan.len(), plan.time(), caching))
    }

    /// Returns the threads that have messages; the others have no transcript.
    fn list(&self, tree: &Tree, folder: &TranscriptKey) -> Result<Listing, Error> {
        if *folder != TranscriptKey::Folder {
            return Err(Error::NotDir);
        }
        let tables = tree.index.read();
        let threads = tables.threads.visible_threads(tree.is_scope_all());
        Ok(Listing::from_threads(&tables, threads, ListingEntry::Transcript))
    }

    fn find(&self, tree: &Tree, folder: &TranscriptKey, name: &str) -> Result<Option<Node>, Error> {
        if *folder != TranscriptKey::Folder {
            return Err(Error::NotDir);
        }
        // The text must have the messages that were just sent, also in an old thread.
        tree.settle_sent_messages();
        let thread = name.strip_suffix(".txt").and_then(|name| tree.find_thread(name));
        let all = tree.is_scope_all();
        let shown = |t: &ThreadIx| tree.index.read().threads.is_thread_visible(*t, all);
        Ok(thread.filter(shown).map(transcript_node))
    }

    fn open(
        &self,
        tree: &Tree,
        key: &TranscriptKey,
        _access: &OpenRequest,
    ) -> Result<OpenFile, Error> {
        let TranscriptKey::Text(thread) = key else { return Err(Error::IsDir) };
        let plan = Mutex::with_level(LockLevel::File, self.plan(tree, *thread)?);
        Ok(OpenFile::Transcript { thread: *thread, plan })
    }

    fn newest_time(&self, tree: &Tree, _key: &TranscriptKey) -> Option<Timestamp> {
        tree.lists.newest_time(&tree.index.read())
    }

    fn stale_keys(&self, changes: &TreeChanges<'_>) -> Vec<TranscriptKey> {
        let folder = changes.changes_listings().then_some(TranscriptKey::Folder);
        let texts = changes.threads.iter().copied().map(TranscriptKey::Text);
        folder.into_iter().chain(texts).collect()
    }
}

/// Returns the node of a thread's transcript.
pub(super) fn transcript_node(thread: ThreadIx) -> Node {
    ViewKey::Transcripts(TranscriptKey::Text(thread)).into()
}

impl TranscriptView {
    /// Returns the present plan of a thread's transcript.
    fn plan(&self, tree: &Tree, thread: ThreadIx) -> Result<Arc<TranscriptPlan>, Error> {
        // No text of a message depends on marks.
        let generation = tree.index.read().name_generation();
        let plan =
            self.plans.try_get(thread, generation, || make_plan(tree, thread).map(Arc::new))?;
        if plan.has_gaps {
            // A text that comes back does not change the generation.
            self.plans.remove(&thread);
        }
        Ok(plan)
    }

    /// Returns the plan for a read up to `end`: that of the open file, or a newer one that only adds to it. So
    /// `tail -f` follows, and the text never changes under a reader.
    fn refresh_plan(
        &self,
        tree: &Tree,
        thread: ThreadIx,
        plan: &Mutex<Arc<TranscriptPlan>>,
        end: u64,
    ) -> Arc<TranscriptPlan> {
        let mut plan = plan.lock();
        if end > plan.len
            && let Ok(newer) = self.plan(tree, thread)
            && newer.is_extension_of(&plan)
        {
            *plan = newer;
        }
        Arc::clone(&plan)
    }

    /// Reads from an open transcript.
    pub fn read(
        &self,
        tree: &Tree,
        (thread, plan): (ThreadIx, &Mutex<Arc<TranscriptPlan>>),
        offset: u64,
        size: usize,
    ) -> Result<Vec<u8>, Error> {
        let plan = self.refresh_plan(tree, thread, plan, offset.saturating_add(size as u64));
        read_plan(tree, &plan, offset, size)
    }
}

fn make_plan(tree: &Tree, thread: ThreadIx) -> Result<TranscriptPlan, Error> {
    let messages = tree.lists.thread_messages(&tree.index.read(), thread);
    let mut parts = Vec::with_capacity(messages.len());
    let (mut len, mut time) = (0, Timestamp::from_millis(i64::MIN));
    let mut has_gaps = false;
    tree.texts.render_unsized(messages.iter().copied());
    for ix in messages.iter() {
        let own = match length_in_transcript(tree, *ix) {
            Ok(own) => own,
            Err(Error::NoText) => {
                has_gaps = true;
                tree.texts.shown_text(*ix)?.len() as u64
            }
            // The message went after the list was made.
            Err(Error::NotFound | Error::Store(crate::store::StoreError::Moved)) => continue,
            Err(e) => return Err(e),
        };
        let tables = tree.index.read();
        let entry = tables.messages.entry(*ix);
        time = time.max(entry.time());
        let title = format!("{}.txt", tree.names.unique_stem(&tables, *ix));
        let start = len;
        len += format_separator(&title).len() as u64 + own;
        parts.push(TranscriptPart { start, message: *ix, title });
    }
    if parts.is_empty() {
        return Err(Error::NotFound);
    }
    Ok(TranscriptPlan { parts, len, time, has_gaps })
}

/// Returns the length of the text of a message in a transcript.
fn length_in_transcript(tree: &Tree, ix: MsgIx) -> Result<u64, Error> {
    let is_known = tree.texts.known_size(ix)?.is_some();
    let known = || tree.index.read().messages.length_in_transcript(ix);
    if let Some(known) = is_known.then(known).flatten() {
        return Ok(known);
    }
    let text = tree.texts.rendered_text(ix)?;
    Ok((text.len() + find_rules(&text).count()) as u64)
}

fn read_plan(
    tree: &Tree,
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
        let (title, text) = (format_separator(&part.title), tree.texts.shown_text(part.message)?);
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
