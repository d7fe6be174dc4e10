//! One link that carries the lines of logs, as the links of a mount hold it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::board::Board;
use super::links::Wanted;
use super::nats::{self, Nats};
use super::spec::{SPACE, Spec};
use crate::model::locks::Mutex;
use crate::store;
use crate::store::fs;

/// Where the engine is, for people.
fn place(spec: &Spec) -> String {
    let space = spec.space.as_deref().unwrap_or(SPACE);
    format!("{}, space {space}", spec.url.join(" "))
}

/// A link that carries the logs of a store.
#[derive(Debug)]
pub(super) struct Logs {
    pub(super) board: Arc<Board>,
    link: (Spec, PathBuf, PathBuf),
    running: Mutex<Option<Arc<Nats>>>,
}

impl Logs {
    /// A link as it is configured, and the number of its store.
    ///
    /// # Errors
    /// If there is no such store, or its folder cannot be made.
    pub(super) fn open(wanted: &Wanted<'_>, spec: &Spec) -> Result<(usize, Self), String> {
        let number = wanted.stores.iter().position(|store| store.name() == spec.store);
        let store = number.and_then(|number| Some((number, wanted.stores.get(number)?)));
        let Some((number, store)) = store else {
            return Err(format!("there is no store {:?}", spec.store));
        };
        if store.kind() != store::Kind::Samp {
            return Err(format!(
                "{} is a store of kind {}; NATS carries those of kind samp",
                store.name(),
                store.kind()
            ));
        }
        let states = wanted.state.parent().unwrap_or(wanted.state).to_owned();
        let folder = nats::state_folder(&states, &spec.name);
        fs::make_dirs(&folder, 0o700).map_err(|e| e.to_string())?;
        let board = Arc::new(Board::new(&spec.name, &folder, place(spec)));
        let link = (spec.clone(), store.dir().to_owned(), states);
        Ok((number, Self { board, link, running: Mutex::default() }))
    }

    /// The longest line that the server took when it was last there.
    pub(super) fn longest(&self) -> Option<(u64, String)> {
        let (spec, _, states) = &self.link;
        Some((nats::longest_line(states, &spec.name)?, spec.name.clone()))
    }

    pub(super) fn start(&self) -> io::Result<()> {
        let (spec, folder, states) = &self.link;
        let running = nats::start(spec, folder, states, Arc::clone(&self.board))?;
        *self.running.lock() = Some(Arc::new(running));
        Ok(())
    }

    /// These files of the folder have changed, or any.
    pub(super) fn changed(&self, files: Option<&[PathBuf]>) {
        // Not with the lock held: it takes others.
        let running = self.running.lock().clone();
        if let Some(running) = running {
            match files {
                Some(files) => running.changed_files(files),
                None => running.changed(),
            }
        }
    }

    pub(super) fn stop(&self) {
        let running = self.running.lock().take();
        drop(running);
    }
}
