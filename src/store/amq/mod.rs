//! AMQ (Agent Message Queue): a Maildir per agent below one root, with a header of JSON on each message
//! (docs/formats/amq.md).
//!
//! - [`message`]: one file. [`queue`]: a root as files of the engine.
//! - `send`: new messages. `claim`: telling that one was read. `check`: `msgfs check`.

mod check;
mod claim;
mod created;
pub mod message;
pub mod queue;
mod send;

#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::engine::files::{File as Known, Files, Folder, Row};
use super::{
    About, Agents, Behind, Kind, Location, Part, Parts, Spec, Store, StoreError, Told, digest,
};
use crate::model::locks::{Level, Mutex};
use crate::model::one_line;
use message::{FILE_BYTES, Message};
use queue::{Kept, Queue};

/// The folders that make a mailbox.
const LEAVES: &str = "inbox/tmp inbox/new inbox/cur outbox/sent receipts dlq/tmp dlq/new dlq/cur";

/// A queue, read and written as one agent.
type Amq = Files<Queue>;

/// Opens a queue root. Nothing is made.
///
/// # Errors
/// If my name cannot be a handle.
pub fn open(spec: &Spec) -> Result<Arc<dyn Store>, StoreError> {
    Ok(Arc::new(Amq::open(spec)?))
}

impl Amq {
    fn open(spec: &Spec) -> Result<Self, StoreError> {
        let me = spec.as_me.clone().unwrap_or_else(|| spec.me.to_ascii_lowercase());
        if !message::is_handle(&me) {
            let (me, grammar) = (one_line(&me), Kind::Amq.grammar());
            let why = format!("{me:?} is not a handle: {grammar}; set me in its [[store]]");
            return Err(StoreError::Invalid(why));
        }
        let about = About {
            // The file has the header besides.
            max_body: (FILE_BYTES - (64 << 10)) as u64,
            ..About::new(spec, &me, &spec.dir)
        };
        Self::new(about, Queue { me, claiming: Mutex::at(Level::Store, ()) })
    }

    /// The message in a file, if it still is what it was.
    fn message_in(&self, file: &Known<Kept>) -> Result<Message, StoreError> {
        let (_, bytes) = self.bytes(file, FILE_BYTES)?;
        let known = file.message().is_none_or(|kept| kept.content == digest::print(&bytes));
        message::parse(&bytes).ok().filter(|_| known).ok_or(StoreError::Moved)
    }

    /// Opens a folder of a mailbox.
    fn leaf(&self, agent: &str, leaf: &str) -> Result<Folder<'_, Queue>, StoreError> {
        self.folder(&format!("agents/{agent}/{leaf}"))
    }

    /// Folders of my mailbox that are missing.
    fn missing(&self) -> impl Iterator<Item = String> {
        let missing = LEAVES.split(' ').filter(|leaf| self.leaf(self.me(), leaf).is_err());
        missing.map(|leaf| format!("agents/{}/{leaf}", self.me()))
    }
}

impl Agents for Amq {
    fn agents(&self) -> Vec<String> {
        let table = self.table.read();
        let agent = |path: &str| {
            path.strip_prefix("agents/")?.strip_suffix("/inbox/new").map(str::to_owned)
        };
        table.listed().filter_map(|(_, folder)| agent(&folder.path)).collect()
    }

    /// What lies in `new/` was not read.
    fn told(&self, addresses: &[&str]) -> Vec<Option<Told>> {
        let table = self.table.read();
        let told = |address: &&str| {
            let path = format!("agents/{address}/inbox/new");
            let new = table.find_folder(&path)?;
            table.folders().get(new as usize).filter(|folder| folder.is_listed)?;
            let is_message = |n: &u32| table.row(*n).is_some_and(Row::is_message);
            let behind = Behind::Count(table.files_in(new).filter(is_message).count() as u64);
            let since = std::fs::symlink_metadata(self.about.dir.join(path)).ok();
            Some(Told { behind, since: since.and_then(|m| m.modified().ok()).map(Into::into) })
        };
        addresses.iter().map(told).collect()
    }
}

impl Parts for Amq {
    fn open_part(&self, at: &Location, name: &str) -> Result<Part, StoreError> {
        let read = self.message_in(&self.file(at.source)?)?;
        let part = read.parts.into_iter().find(|(part, _)| *part == name);
        let missing = || StoreError::io(Path::new(name), io::ErrorKind::NotFound.into());
        part.map(|(_, text)| Part::Bytes(text.into_bytes().into())).ok_or_else(missing)
    }
}
