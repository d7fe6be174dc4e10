//! The links of a store that are not open here, because this process only reads or because they are stopped: their
//! journals give the fates. Nothing is written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::board::{self, HealthBoard, LinkHealth};
use super::engine::LinkEngine;
use super::journal::{self, Journal};
use super::links::CarryCheck;
use super::message_link;
use crate::model::Timestamp;
use crate::model::locks::Mutex;
use crate::store::fs::Stamp;
use crate::store::{DeliveryFate, LinkRouter, OutboundMail};

/// A reader of a journal, which reads it again when the file changed.
#[derive(Debug)]
struct JournalReader {
    folder: PathBuf,
    /// The journal that was read at this stamp.
    cached: Mutex<Option<(Stamp, Journal)>>,
}

impl JournalReader {
    fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), cached: Mutex::new(None) }
    }

    /// Queries the journal as it is now. Returns `None` if there is no journal.
    fn query<T>(&self, what: impl FnOnce(&Journal) -> Option<T>) -> Option<T> {
        let stamp = Stamp::from_path(&self.folder.join(journal::FILE)).ok().flatten()?;
        let mut read = self.cached.lock();
        if read.as_ref().is_none_or(|(of, _)| *of != stamp) {
            let journal = Journal::open_read_only(&self.folder, Timestamp::now().millis()).ok()?;
            *read = Some((stamp, journal));
        }
        read.as_ref().and_then(|(_, journal)| what(journal))
    }

    fn find_given_id(&self, message: &str, to: &str) -> Option<String> {
        self.query(|journal| journal.find_entry(message, to)?.given_id.clone())
    }
}

/// A link that is only read.
#[derive(Debug)]
pub(super) struct ReadOnlyLink {
    name: String,
    engine: Box<dyn LinkEngine>,
    journal: JournalReader,
}

/// A link of a store that is switched off or cannot be opened. It reaches no address, and reports the fate of the
/// messages in its journal.
#[derive(Debug)]
pub(super) struct StoppedLink {
    board: Arc<HealthBoard>,
    journal: JournalReader,
}

/// The read-only links of a store.
#[derive(Debug)]
pub(super) struct ReadOnlyRoutes {
    pub open: Vec<ReadOnlyLink>,
    pub stopped: Vec<StoppedLink>,
    pub carry_check: CarryCheck,
}

impl ReadOnlyLink {
    /// Makes a link that is only read from its folder and its engine.
    pub fn new(name: String, folder: &Path, engine: Box<dyn LinkEngine>) -> Self {
        Self { name, engine, journal: JournalReader::new(folder) }
    }
}

impl StoppedLink {
    /// Makes a stopped link. `why` is the reason that its board shows.
    pub fn new(name: &str, folder: &Path, engine: &str, why: &str) -> Self {
        let board = Arc::new(HealthBoard::new_stopped(name, folder, engine, why));
        Self { board, journal: JournalReader::new(folder) }
    }

    /// Returns the board of the link.
    pub fn board(&self) -> &Arc<HealthBoard> {
        &self.board
    }

    /// Returns the fate of a message for a recipient, as the journal has it.
    pub fn find_fate(&self, message: &str, to: &str) -> Option<DeliveryFate> {
        let LinkHealth { engine, state, .. } = self.board.health();
        self.journal.query(|journal| {
            let entry = journal.find_entry(message, to)?;
            Some(message_link::describe_fate(entry, self.board.name(), &engine, Some(&state)))
        })
    }

    /// Returns the id that the engine gave a message for a recipient.
    pub fn find_given_id(&self, message: &str, to: &str) -> Option<String> {
        self.journal.find_given_id(message, to)
    }
}

impl ReadOnlyRoutes {
    fn find_link(&self, link: &str) -> Option<&ReadOnlyLink> {
        self.open.iter().find(|look| look.name == link)
    }
}

impl LinkRouter for ReadOnlyRoutes {
    fn find_link(&self, address: &str) -> Result<Option<String>, String> {
        let ranked =
            |look: &ReadOnlyLink| Some((look.engine.rank_address(address)?, look.name.clone()));
        super::links::choose_best_link(self.open.iter().filter_map(ranked).collect())
    }

    fn link_names(&self) -> Vec<String> {
        self.open.iter().map(|look| look.name.clone()).collect()
    }

    fn can_reach(&self, link: &str, address: &str) -> bool {
        self.find_link(link).is_some_and(|look| look.engine.rank_address(address).is_some())
    }

    fn find_link_as(&self, mine: &str, address: &str) -> Option<String> {
        let all = self.open.iter().map(|look| (look.name.as_str(), look.engine.as_ref()));
        super::links::find_link_from_address(all, (mine, address))
    }

    fn own_address(&self, link: &str) -> Option<String> {
        self.find_link(link)?.engine.own_address().map(str::to_owned)
    }

    fn check_file_sizes(&self, link: &str, files: &[u64]) -> Result<(), String> {
        self.find_link(link)
            .map_or(Ok(()), |look| look.engine.check_attachment_sizes(&look.journal.folder, files))
    }

    fn accept_mail(&self, link: &str, _: &OutboundMail) -> io::Result<()> {
        let why = format!("this process only reads, so it gives nothing to the link {link}");
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, why))
    }

    fn delivery_fate(&self, message: &str, to: &str) -> Option<DeliveryFate> {
        let fate = |look: &ReadOnlyLink| {
            look.journal.query(|journal| {
                let entry = journal.find_entry(message, to)?;
                let saved = || board::read_saved_health(&look.journal.folder).unwrap_or_default();
                let state = (self.carry_check.0)().then(|| saved().state);
                let place = look.engine.describe_engine();
                Some(message_link::describe_fate(entry, &look.name, &place, state.as_ref()))
            })
        };
        let stopped = || self.stopped.iter().find_map(|link| link.find_fate(message, to));
        self.open.iter().find_map(fate).or_else(stopped)
    }

    fn engine_id(&self, message: &str, to: &str) -> Option<String> {
        let stopped = || self.stopped.iter().find_map(|link| link.find_given_id(message, to));
        self.open.iter().find_map(|look| look.journal.find_given_id(message, to)).or_else(stopped)
    }
}
