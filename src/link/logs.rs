//! One link that carries the lines of logs, as part of a mount's links.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::board::HealthBoard;
use super::lifecycle::{Link, LinkCallbacks, LinkEvent};
use super::links::{LinkSetOptions, TakenLogProof};
use super::nats::{self, MarkOwner, NatsLink, NatsTakenLog};
use super::spec::{LinkConfig, NatsConfig, describe_missing_store};
use crate::model::locks::Mutex;
use crate::store::fs;
use crate::store::{self, Store};

/// A link that carries the logs of a store.
#[derive(Debug)]
pub(super) struct LogLink {
    board: Arc<HealthBoard>,
    link: (NatsConfig, PathBuf, PathBuf),
    identity: MarkOwner,
    running: Mutex<Option<Arc<LogLinkConnections>>>,
}

/// The connections for lines and for marks. A failure of one does not stop the other.
#[derive(Debug)]
struct LogLinkConnections {
    lines: NatsLink,
    marks: Option<NatsLink>,
}

impl LogLink {
    /// Opens a configured link. Returns it with the number of its store.
    ///
    /// # Errors
    /// Returns a sentence if there is no such store, its folder cannot be made, or such links carry no logs.
    pub(super) fn open(
        wanted: &LinkSetOptions<'_>,
        spec: &LinkConfig,
    ) -> Result<(usize, Self), String> {
        let Some(spec) = spec.to_nats() else {
            return Err(format!("a link of kind {} carries no logs", spec.kind()));
        };
        let number = wanted.stores.iter().position(|store| store.name() == spec.store);
        let store = number.and_then(|number| Some((number, wanted.stores.get(number)?)));
        let Some((number, store)) = store else {
            let names: Vec<&str> = wanted.stores.iter().map(|store| store.name()).collect();
            return Err(describe_missing_store(&spec.store, &names));
        };
        if store.kind() != store::Kind::Samp {
            return Err(format!(
                "{} is a store of kind {}; NATS carries those of kind samp",
                store.name(),
                store.kind()
            ));
        }
        let states = states_folder(wanted).to_owned();
        let folder = nats::state_folder(&states, &spec.name);
        fs::make_dirs(&folder, 0o700).map_err(|e| e.to_string())?;
        let board =
            HealthBoard::new(&spec.name, &folder, &spec.describe_place()).with_store(store.name());
        let board = Arc::new(board);
        let link = (spec, store.dir().to_owned(), states);
        let identity = MarkOwner { me: store.me().to_owned(), state: wanted.state.to_owned() };
        Ok((number, Self { board, link, identity, running: Mutex::default() }))
    }

    /// Returns the longest line that the server took at the last connection.
    pub(super) fn longest_line(&self) -> Option<(u64, String)> {
        let (spec, _, states) = &self.link;
        Some((nats::longest_line(states, &spec.name)?, spec.name.clone()))
    }

    /// Tells the link that a mark may have changed.
    fn notify_mark_change(&self) {
        // The lock is held, because the woken thread may ask for this lock and must not end itself.
        if let Some(marks) = self.running.lock().as_ref().and_then(|running| running.marks.as_ref())
        {
            marks.wake();
        }
    }

    /// Tells the link that these files of the folder have changed, or any file.
    fn notify_store_change(&self, files: Option<&[PathBuf]>) {
        // The lock is not held, because the call takes other locks.
        let running = self.running.lock().clone();
        if let Some(LogLinkConnections { lines, .. }) = running.as_deref() {
            match files {
                Some(files) => lines.notify_changed_files(files),
                None => lines.notify_all_changed(),
            }
        }
    }
}

/// Returns the folder with the states of all names of this user.
fn states_folder<'a>(wanted: &LinkSetOptions<'a>) -> &'a Path {
    wanted.state.parent().unwrap_or(wanted.state)
}

/// Returns the board of a link for a process that does not carry for it.
pub(super) fn open_read_only_board(
    wanted: &LinkSetOptions<'_>,
    spec: &LinkConfig,
    store: &dyn Store,
) -> Option<HealthBoard> {
    let spec = spec.to_nats().filter(|_| store.kind() == store::Kind::Samp)?;
    let state = nats::state_folder(states_folder(wanted), &spec.name);
    let reader = Box::new(NatsTakenLog::new(store.dir(), store.me(), &state));
    let board = HealthBoard::new(&spec.name, &state, &spec.describe_place());
    Some(board.with_store(store.name()).with_reader(reader))
}

/// Returns the proof about what the server of a link has taken of my log in a store.
pub(super) fn find_taken_log(
    wanted: &LinkSetOptions<'_>,
    spec: &LinkConfig,
    store: &dyn Store,
) -> Option<Arc<dyn TakenLogProof>> {
    let spec = spec.to_nats().filter(|_| store.kind() == store::Kind::Samp)?;
    let state = nats::state_folder(states_folder(wanted), &spec.name);
    Some(Arc::new(NatsTakenLog::new(store.dir(), store.me(), &state)))
}

impl Link for LogLink {
    fn board(&self) -> &Arc<HealthBoard> {
        &self.board
    }

    fn start(self: Arc<Self>, store: usize, callbacks: &LinkCallbacks) -> io::Result<()> {
        let (spec, folder, states) = &self.link;
        let lines = nats::start(spec, folder, states, Arc::clone(&self.board))?;
        let log = || (callbacks.mark_logs)(store);
        let share = || nats::start_mark_sync(spec, &self.identity, log(), Arc::clone(&self.board));
        let marks = spec.settings.marks.then(share).transpose()?;
        *self.running.lock() = Some(Arc::new(LogLinkConnections { lines, marks }));
        Ok(())
    }

    fn wake(&self, event: &LinkEvent<'_>) {
        match event {
            LinkEvent::StoreChange(files) => self.notify_store_change(*files),
            LinkEvent::MarkChange => self.notify_mark_change(),
            LinkEvent::Request => {}
        }
    }

    fn stop(&self) {
        // The threads end with their connections.
        let running = self.running.lock().take();
        drop(running);
    }

    fn join(&self) {}
}
