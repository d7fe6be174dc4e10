//! `<name>.d/` beside a message: its attachments (docs/SEMANTICS.md, S115 and S151).

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::Error;
use super::file::OpenFile;
use super::folder_scope::MessageFolder;
use super::generation_cache::GenerationCache;
use super::listing::Listing;
use super::message_texts::MessageTexts;
use super::messages::file_node;
use super::sidecars::MessageFile;
use crate::index::{Index, MsgIx};
use crate::model::{Attachment, Timestamp};
use crate::store::PartContent;

/// Messages whose attachments are cached.
const MESSAGES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);
/// Time for which attachments are cached: as long as in the kernel's own cache. A copy or `ls -l` of a folder then
/// reads the message once, and a file that changed in the store is seen soon.
const MAX_AGE: Duration = Duration::from_secs(1);
/// The reason why attachments cannot be changed.
pub(super) const FIXED_PARTS: &str =
    "the files of a message cannot be changed; copy them to where you want to work on them";
/// The longest possible file name.
const MAX_NAME: usize = 255;

/// Returns the attachments that are shown: those that are not withheld and whose name is one path component, each name
/// once. Stores ensure that; a mistake there must not become a strange tree here.
fn filter_safe(attachments: Vec<Attachment>) -> Arc<[Attachment]> {
    let mut names = HashSet::new();
    let is_component = |name: &str| {
        !matches!(name, "" | "." | "..") && name.len() <= MAX_NAME && !name.contains(['/', '\0'])
    };
    attachments
        .into_iter()
        .filter(|a| a.withheld.is_none() && is_component(&a.name) && names.insert(a.name.clone()))
        .collect()
}

/// The attachments of the messages of one tree.
pub(super) struct MessageParts {
    index: Arc<Index>,
    texts: Arc<MessageTexts>,
    /// The attachments that were read a moment ago.
    cache: GenerationCache<MsgIx, Arc<[Attachment]>>,
}

impl MessageParts {
    /// Makes the value for the messages of an index.
    pub fn new(index: Arc<Index>, texts: Arc<MessageTexts>) -> Self {
        Self { index, texts, cache: GenerationCache::with_max_age(MESSAGES, MAX_AGE) }
    }

    /// Drops the cached attachments of a message.
    pub fn forget(&self, ix: MsgIx) {
        self.cache.remove(&ix);
    }

    /// Returns the attachments of a message that are not withheld.
    pub fn of_message(&self, ix: MsgIx) -> Result<Arc<[Attachment]>, Error> {
        let (entry, generation) = {
            let tables = self.index.read();
            let entry = *tables.messages.entry(ix);
            if !entry.is_live() || !entry.has_parts() {
                return Err(Error::NotFound);
            }
            (entry, tables.generation())
        };
        self.cache.try_get(ix, generation, || {
            let record = self.texts.read_record(ix, &entry)?;
            Ok(filter_safe(record.message.attachments.into_iter().chain(record.parts).collect()))
        })
    }

    /// Returns an attachment of a message by its name.
    pub fn find(&self, ix: MsgIx, name: &str) -> Result<Attachment, Error> {
        self.of_message(ix)?.iter().find(|a| a.name == name).cloned().ok_or(Error::NotFound)
    }

    /// Returns the size of an attachment, and its time, which is that of the message.
    pub fn size(&self, ix: MsgIx, name: &str) -> Result<(u64, Timestamp), Error> {
        Ok((self.find(ix, name)?.size, self.texts.live_entry(ix)?.time()))
    }

    /// Returns the entries of the attachment folder of a message.
    pub fn list(&self, place: MessageFolder, ix: MsgIx) -> Result<Listing, Error> {
        let parts = match self.of_message(ix) {
            Err(Error::NoText) => Arc::default(),
            parts => parts?,
        };
        let node = |a: &Attachment| {
            (a.name.clone(), file_node(place, ix, MessageFile::Part(a.name.clone())))
        };
        Ok(Listing::from_named(parts.iter().map(node)))
    }

    /// Opens an attachment. Reading it marks nothing.
    pub fn open(&self, ix: MsgIx, name: &str) -> Result<OpenFile, Error> {
        Ok(match self.open_content(ix, name)? {
            PartContent::File(file) => OpenFile::Raw(file),
            PartContent::Bytes(bytes) => OpenFile::from_bytes(bytes),
        })
    }

    /// Returns the content of an attachment.
    pub fn open_content(&self, ix: MsgIx, name: &str) -> Result<PartContent, Error> {
        let listed = self.find(ix, name)?;
        let entry = self.texts.live_entry(ix)?;
        let store = self.index.store_of(&entry);
        let parts = store.facets().parts.ok_or(Error::NotFound)?;
        let content = parts.open_part(&entry.location(), name)?;
        let len = match &content {
            PartContent::File(file) => file.metadata()?.len(),
            PartContent::Bytes(bytes) => bytes.len() as u64,
        };
        if len != listed.size {
            // The attachment changed in the store, so the next listing has to read the message again.
            self.cache.remove(&ix);
        }
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_safe_names_are_shown_and_each_once() {
        let part = |name: &str, withheld: Option<&str>| Attachment {
            name: name.to_owned(),
            size: name.len() as u64,
            withheld: withheld.map(str::to_owned),
        };
        let long = "x".repeat(256);
        let list = [
            part("a.txt", None),
            part("../etc", None),
            part("..", None),
            part("", None),
            part("nul\0", None),
            part(&long, None),
            part("bad.txt", Some("withheld: digest does not match")),
            part("a.txt", None),
            part("b", None),
        ];
        let names: Vec<String> =
            filter_safe(list.to_vec()).iter().map(|a| a.name.clone()).collect();
        assert_eq!(names, ["a.txt", "b"]);
    }
}
