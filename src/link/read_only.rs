//! The links of a store that are not open here, because this process only reads or because they are stopped: their
//! journals give the fates. Nothing is written, unless a person gives up what waits for a stopped link.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::board::{self, HealthBoard, HealthReader, LinkHealth, LinkState, NOT_CARRIED};
use super::engine::LinkEngine;
use super::journal::{self, Journal};
use super::links::CarryCheck;
use super::message_link::{self, delivery};
use super::request::LinkRequest;
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

/// A link of a store that is switched off, removed, or cannot be opened. It reaches no address, reports the fate of the
/// messages in its journal, and gives them up if a person asks for it.
#[derive(Debug)]
pub(super) struct StoppedLink {
    board: Arc<HealthBoard>,
    journal: JournalReader,
    cause: StopCause,
}

/// The cause for which a link of a store is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StopCause {
    /// The configuration switches it off.
    SwitchedOff,
    /// The settings do not have it any more.
    Removed,
    /// It cannot be opened now. The file describes it.
    LeftOut(PathBuf),
}

/// The read-only links of a store.
#[derive(Debug)]
pub(super) struct ReadOnlyRoutes {
    pub open: Vec<ReadOnlyLink>,
    pub stopped: Vec<Arc<StoppedLink>>,
    pub carry_check: CarryCheck,
}

/// Returns the names of stopped links that are in the settings, each with the reason.
pub(super) fn list_stop_reasons(all: &[Arc<StoppedLink>]) -> Vec<(String, String)> {
    let configured = all.iter().filter(|link| *link.cause() != StopCause::Removed);
    let reason = |link: &Arc<StoppedLink>| match link.board.health().state {
        LinkState::Stopped { why } => Some((link.board.name().to_owned(), why)),
        LinkState::Starting | LinkState::Connected { .. } | LinkState::Waiting { .. } => None,
    };
    configured.filter_map(reason).collect()
}

impl ReadOnlyLink {
    /// Makes a link that is only read from its folder and its engine.
    pub fn new(name: String, folder: &Path, engine: Box<dyn LinkEngine>) -> Self {
        Self { name, engine, journal: JournalReader::new(folder) }
    }
}

impl StoppedLink {
    /// Makes a stopped link. `why` is the reason that its board shows.
    pub fn new(name: &str, folder: &Path, engine: &str, cause: StopCause, why: &str) -> Self {
        let board = Arc::new(HealthBoard::new_stopped(name, folder, engine, why));
        Self { board, journal: JournalReader::new(folder), cause }
    }

    /// Returns the cause for which it is stopped.
    pub fn cause(&self) -> &StopCause {
        &self.cause
    }

    /// Returns the folder of the link.
    pub fn folder(&self) -> &Path {
        &self.journal.folder
    }

    /// Returns true if people should know of it: a removed link without waiting mail is over.
    pub fn is_shown(&self) -> bool {
        self.cause != StopCause::Removed || self.board.health().waiting > 0
    }

    /// Runs the request of a command, if there is one. Returns true if the fates of messages changed.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn run_request(&self) -> io::Result<bool> {
        let Some(request) = LinkRequest::read(self.folder()) else { return Ok(false) };
        let gives_up = request == LinkRequest::Drop;
        if gives_up {
            let mut journal = message_link::open_journal(self.folder())?;
            let now = Timestamp::now().millis();
            let (_, over) = journal.change_waiting(&delivery::give_up(), now)?;
            journal::remove_wire_files(&over);
            let counts = (journal.open_count() as u64, journal.refused_count() as u64);
            self.board.update_counts(|health| (health.waiting, health.refused) = counts);
            self.board.save_now();
        }
        LinkRequest::remove(self.folder())?;
        Ok(gives_up)
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

/// A reader of the health that the process saved that carries for a link.
#[derive(Debug)]
struct SavedHealthReader {
    folder: PathBuf,
    carry_check: CarryCheck,
}

impl HealthReader for SavedHealthReader {
    fn read_health(&self) -> LinkHealth {
        let saved = board::read_saved_health(&self.folder).unwrap_or_default();
        if (self.carry_check.0)() {
            return LinkHealth { by_another: true, ..saved };
        }
        LinkHealth { state: LinkState::Stopped { why: NOT_CARRIED.to_owned() }, ..saved }
    }
}

/// Returns the board of a link of messages for a process that does not carry for it.
pub(super) fn make_read_only_board(
    name: &str,
    folder: &Path,
    place: &str,
    carry_check: &CarryCheck,
) -> HealthBoard {
    let (folder, carry_check) = (folder.to_owned(), carry_check.clone());
    let board = HealthBoard::new(name, &folder, place);
    board.with_reader(Box::new(SavedHealthReader { folder, carry_check }))
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

    fn stopped_links(&self) -> Vec<(String, String)> {
        list_stop_reasons(&self.stopped)
    }

    fn engine_id(&self, message: &str, to: &str) -> Option<String> {
        let stopped = || self.stopped.iter().find_map(|link| link.find_given_id(message, to));
        self.open.iter().find_map(|look| look.journal.find_given_id(message, to)).or_else(stopped)
    }
}
