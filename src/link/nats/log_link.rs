//! The link over NATS as part of a mount's links: the connections for lines and for marks.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{
    MarkOwner, NatsLink, NatsTakenLog, check_link, check_mark_sync, create_streams, start,
    start_mark_sync, state,
};
use crate::link::NatsConfig;
use crate::link::board::{HealthBoard, HealthReader};
use crate::link::lifecycle::{Link, LinkCallbacks, LinkEvent};
use crate::link::links::TakenLogProof;
use crate::link::logs::{LogEngine, LogLink, LogLinkPlace};
use crate::model::locks::Mutex;
use crate::store::Store;

/// A link that carries the logs of a store.
#[derive(Debug)]
struct NatsLogLink {
    spec: NatsConfig,
    /// The folder of the logs.
    logs: PathBuf,
    /// The folder in which the link saves its state.
    state: PathBuf,
    board: Arc<HealthBoard>,
    identity: MarkOwner,
    running: Mutex<Option<Arc<NatsConnections>>>,
}

/// The connections for lines and for marks. A failure of one does not stop the other.
#[derive(Debug)]
struct NatsConnections {
    lines: NatsLink,
    marks: Option<NatsLink>,
}

impl LogEngine for NatsConfig {
    fn make_link(&self, place: LogLinkPlace<'_>) -> Arc<dyn LogLink> {
        let identity = MarkOwner { me: place.store.me().to_owned(), state: place.me_state };
        Arc::new(NatsLogLink {
            spec: self.clone(),
            logs: place.store.dir().to_owned(),
            state: place.folder,
            board: place.board,
            identity,
            running: Mutex::default(),
        })
    }

    fn prove_taken_log(&self, store: &dyn Store, state: &Path) -> Arc<dyn TakenLogProof> {
        Arc::new(NatsTakenLog::new(store.dir(), store.me(), state))
    }

    fn read_health(&self, store: &dyn Store, state: &Path) -> Box<dyn HealthReader> {
        Box::new(NatsTakenLog::new(store.dir(), store.me(), state))
    }

    fn prepare_server(&self) -> Result<(), String> {
        create_streams(self)
    }

    fn check_connection(&self) -> Vec<String> {
        check_link(self)
    }

    fn check_marks(&self, me: &str) -> Option<String> {
        self.settings.marks.then(|| check_mark_sync(self, me)).flatten()
    }
}

impl NatsLogLink {
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
        if let Some(NatsConnections { lines, .. }) = running.as_deref() {
            match files {
                Some(files) => lines.notify_changed_files(files),
                None => lines.notify_all_changed(),
            }
        }
    }
}

impl LogLink for NatsLogLink {
    fn longest_line(&self) -> Option<(u64, String)> {
        Some((state::longest_line(&self.state)?, self.spec.name.clone()))
    }
}

impl Link for NatsLogLink {
    fn board(&self) -> &Arc<HealthBoard> {
        &self.board
    }

    fn start(self: Arc<Self>, store: usize, callbacks: &LinkCallbacks) -> io::Result<()> {
        let lines = start(&self.spec, &self.logs, &self.state, Arc::clone(&self.board))?;
        let log = || (callbacks.mark_logs)(store);
        let share = || start_mark_sync(&self.spec, &self.identity, log(), Arc::clone(&self.board));
        let marks = self.spec.settings.marks.then(share).transpose()?;
        *self.running.lock() = Some(Arc::new(NatsConnections { lines, marks }));
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
