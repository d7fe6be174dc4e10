//! The links of a store for a process that only reads: their journals give the fates. Nothing is written.

use std::io;
use std::path::{Path, PathBuf};

use super::board;
use super::engine::LinkEngine;
use super::journal::{self, Journal};
use super::message_link;
use crate::model::Timestamp;
use crate::model::locks::Mutex;
use crate::store::fs::Stamp;
use crate::store::{DeliveryFate, LinkRouter, OutboundMail};

/// A link that is only read.
#[derive(Debug)]
pub(super) struct ReadOnlyLink {
    name: String,
    engine: Box<dyn LinkEngine>,
    folder: PathBuf,
    /// The journal that was read at this stamp.
    cached_journal: Mutex<Option<(Stamp, Journal)>>,
}

/// The read-only links of a store.
#[derive(Debug)]
pub(super) struct ReadOnlyRoutes(pub Vec<ReadOnlyLink>);

impl ReadOnlyLink {
    pub fn new(name: String, folder: &Path, engine: Box<dyn LinkEngine>) -> Self {
        Self { name, engine, folder: folder.to_owned(), cached_journal: Mutex::new(None) }
    }

    /// Asks the current journal; `None` if there is none.
    fn query_journal<T>(&self, what: impl FnOnce(&Journal) -> Option<T>) -> Option<T> {
        let stamp = Stamp::from_path(&self.folder.join(journal::FILE)).ok().flatten()?;
        let mut read = self.cached_journal.lock();
        if read.as_ref().is_none_or(|(of, _)| *of != stamp) {
            let journal = Journal::open_read_only(&self.folder, Timestamp::now().millis()).ok()?;
            *read = Some((stamp, journal));
        }
        read.as_ref().and_then(|(_, journal)| what(journal))
    }
}

impl ReadOnlyRoutes {
    fn find_link(&self, link: &str) -> Option<&ReadOnlyLink> {
        self.0.iter().find(|look| look.name == link)
    }
}

impl LinkRouter for ReadOnlyRoutes {
    fn find_link(&self, address: &str) -> Result<Option<String>, String> {
        let ranked =
            |look: &ReadOnlyLink| Some((look.engine.rank_address(address)?, look.name.clone()));
        super::links::choose_best_link(self.0.iter().filter_map(ranked).collect())
    }

    fn link_names(&self) -> Vec<String> {
        self.0.iter().map(|look| look.name.clone()).collect()
    }

    fn can_reach(&self, link: &str, address: &str) -> bool {
        self.find_link(link).is_some_and(|look| look.engine.rank_address(address).is_some())
    }

    fn find_link_as(&self, mine: &str, address: &str) -> Option<String> {
        let all = self.0.iter().map(|look| (look.name.as_str(), look.engine.as_ref()));
        super::links::find_link_from_address(all, (mine, address))
    }

    fn own_address(&self, link: &str) -> Option<String> {
        self.find_link(link)?.engine.own_address().map(str::to_owned)
    }

    fn check_file_sizes(&self, link: &str, files: &[u64]) -> Result<(), String> {
        self.find_link(link)
            .map_or(Ok(()), |look| look.engine.check_attachment_sizes(&look.folder, files))
    }

    fn accept_mail(&self, link: &str, _: &OutboundMail) -> io::Result<()> {
        let why = format!("this process only reads, so it gives nothing to the link {link}");
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, why))
    }

    fn delivery_fate(&self, message: &str, to: &str) -> Option<DeliveryFate> {
        self.0.iter().find_map(|look| {
            look.query_journal(|journal| {
                let entry = journal.find_entry(message, to)?;
                let state = board::read_saved_health(&look.folder).unwrap_or_default().state;
                Some(message_link::describe_fate(
                    entry,
                    &look.name,
                    &look.engine.describe_engine(),
                    &state,
                ))
            })
        })
    }

    fn engine_id(&self, message: &str, to: &str) -> Option<String> {
        self.0.iter().find_map(|look| {
            look.query_journal(|journal| journal.find_entry(message, to)?.given_id.clone())
        })
    }
}
