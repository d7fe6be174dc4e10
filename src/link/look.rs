//! The ways of a store for whoever only looks: what the journals of its links say. Nothing is written.

use std::io;
use std::path::{Path, PathBuf};

use super::board;
use super::engine::Engine;
use super::journal::{self, Journal};
use super::post;
use crate::model::Timestamp;
use crate::model::locks::Mutex;
use crate::store::fs::Stamp;
use crate::store::{Fate, Parcel, Ways};

/// A link as it can be seen from outside.
#[derive(Debug)]
pub(super) struct Look {
    name: String,
    engine: Box<dyn Engine>,
    folder: PathBuf,
    /// The journal as it was when it had this stamp.
    read: Mutex<Option<(Stamp, Journal)>>,
}

/// The links of a store.
#[derive(Debug)]
pub(super) struct Looks(pub Vec<Look>);

impl Look {
    pub fn new(name: String, folder: &Path, engine: Box<dyn Engine>) -> Self {
        Self { name, engine, folder: folder.to_owned(), read: Mutex::new(None) }
    }

    /// Asks the journal as it is now; `None` if there is none.
    fn ask<T>(&self, what: impl FnOnce(&Journal) -> Option<T>) -> Option<T> {
        let stamp = Stamp::at(&self.folder.join(journal::FILE)).ok().flatten()?;
        let mut read = self.read.lock();
        if read.as_ref().is_none_or(|(of, _)| *of != stamp) {
            let journal = Journal::look(&self.folder, Timestamp::now().millis()).ok()?;
            *read = Some((stamp, journal));
        }
        read.as_ref().and_then(|(_, journal)| what(journal))
    }
}

impl Looks {
    fn named(&self, link: &str) -> Option<&Look> {
        self.0.iter().find(|look| look.name == link)
    }
}

impl Ways for Looks {
    fn reach(&self, address: &str) -> Result<Option<String>, String> {
        let ranked = |look: &Look| Some((look.engine.reaches(address)?, look.name.clone()));
        super::links::best(self.0.iter().filter_map(ranked).collect())
    }

    fn has(&self, link: &str) -> bool {
        self.named(link).is_some()
    }

    fn reaches(&self, link: &str, address: &str) -> bool {
        self.named(link).is_some_and(|look| look.engine.reaches(address).is_some())
    }

    fn reach_as(&self, mine: &str, address: &str) -> Option<String> {
        let all = self.0.iter().map(|look| (look.name.as_str(), look.engine.as_ref()));
        super::links::with_mine(all, (mine, address))
    }

    fn mine(&self, link: &str) -> Option<String> {
        self.named(link)?.engine.mine().map(str::to_owned)
    }

    fn takes(&self, link: &str, files: &[u64]) -> Result<(), String> {
        self.named(link).map_or(Ok(()), |look| look.engine.takes(&look.folder, files))
    }

    fn take(&self, link: &str, _: &Parcel) -> io::Result<()> {
        let why = format!("this process only reads, so it gives nothing to the link {link}");
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, why))
    }

    fn fate(&self, message: &str, to: &str) -> Option<Fate> {
        self.0.iter().find_map(|look| {
            look.ask(|journal| {
                let entry = journal.find(message, to)?;
                let state = board::kept(&look.folder).unwrap_or_default().state;
                Some(post::fate_of(entry, &look.name, &look.engine.place(), &state))
            })
        })
    }

    fn known_as(&self, message: &str, to: &str) -> Option<String> {
        self.0.iter().find_map(|look| look.ask(|journal| journal.find(message, to)?.given.clone()))
    }
}
