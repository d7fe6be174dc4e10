//! A sink that keeps its reports, by the rules of [`ScanSink`].

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::ops::Deref;

use crate::model::SignatureClaim;
use crate::model::verify::verify_claim;
use crate::store::{FoundMessage, Location, Rejection, RepeatKind, ScanSink, Store};

/// A message as it was reported last.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    found: FoundMessage<'static>,
    /// True if it is about to be reported again.
    stale: bool,
}

impl Kept {
    /// Returns true if its signature is by the key it offers; `None` if it has none.
    pub fn valid(&self) -> Option<bool> {
        self.claim.as_deref().map(|claim| match claim {
            SignatureClaim::Signed { key: Some(key), .. } => verify_claim(key, claim),
            _ => false,
        })
    }
}

impl Deref for Kept {
    type Target = FoundMessage<'static>;

    fn deref(&self) -> &Self::Target {
        &self.found
    }
}

/// The knowledge of an index after these reports.
#[derive(Debug, Default)]
pub struct Book {
    /// The messages, by sender and id.
    pub messages: BTreeMap<(String, String), Kept>,
    /// The rejections, by source and offset.
    pub rejected: BTreeMap<(u32, u64), Rejection>,
    rescanning: HashSet<u32>,
    /// Ids of messages that were missing at the end of any rescan.
    pub vanished: HashSet<String>,
    /// The location of each reported message, and its line, in the order of the reports.
    pub order: Vec<(Location, u64)>,
    /// The number of messages that were reported.
    pub reported: usize,
    /// The number of rescans that were begun.
    pub rescans: usize,
    /// True if scans wait for no unfinished file.
    pub watched: bool,
}

impl Book {
    /// Returns the reports of a first scan of a store.
    pub fn scanned(store: &dyn Store) -> Self {
        let mut book = Self::default();
        book.scan(store, true);
        book
    }

    /// Scans a store, keeps the reports, and trusts all messages.
    pub fn scan(&mut self, store: &dyn Store, full: bool) {
        store.scan(full, self).unwrap();
        assert!(self.rescanning.is_empty(), "a rescan did not end");
    }

    /// Returns the message with this id, whoever wrote it.
    #[track_caller]
    pub fn one(&self, id: &str) -> &Kept {
        let found: Vec<&Kept> = self.messages.values().filter(|kept| kept.id == id).collect();
        assert_eq!(found.len(), 1, "{id} in {:?}", self.messages.keys());
        found[0]
    }

    /// Returns the reasons of the rejections, in the order of files.
    pub fn reasons(&self) -> Vec<&str> {
        self.rejected.values().map(|rejected| rejected.reason.as_str()).collect()
    }

    fn of<'a>(&'a mut self, sources: &'a [u32]) -> impl Iterator<Item = &'a mut Kept> {
        self.messages.values_mut().filter(|kept| sources.contains(&kept.at.source))
    }

    fn end(&mut self, sources: &[u32]) {
        for source in sources {
            assert!(self.rescanning.remove(source), "no rescan to end");
        }
    }
}

fn owned(text: Cow<'_, str>) -> Cow<'static, str> {
    Cow::Owned(text.into_owned())
}

impl ScanSink for Book {
    fn report_batch(
        &mut self,
        found: &mut Vec<FoundMessage<'_>>,
        rejected: &mut Vec<Rejection>,
    ) -> Vec<(Location, bool)> {
        let accepted = found.iter().map(|f| (f.at, false)).collect();
        for f in found.drain(..) {
            assert!(f.at.source < 1 << 24 && f.at.len > 0, "{f:?}");
            // A message that is compared as a whole is a file of its own.
            let whole = f.line == 0 && f.at.offset == 0;
            assert!(whole || f.repeat_kind != RepeatKind::Restated, "{f:?}");
            self.reported += 1;
            self.order.push((f.at, f.line));
            let found = FoundMessage {
                from: owned(f.from),
                to: owned(f.to),
                thread: owned(f.thread),
                id: owned(f.id),
                in_reply_to: f.in_reply_to.map(owned),
                parent: f.parent.map(owned),
                record: "",
                ..f
            };
            let key = (found.from.to_string(), found.id.to_string());
            self.messages.insert(key, Kept { found, stale: false });
        }
        for r in rejected.drain(..) {
            self.rejected.insert((r.at.source, r.at.offset), r);
        }
        accepted
    }

    fn begin_rescan(&mut self, sources: &[u32]) {
        self.rescans += 1;
        for source in sources {
            assert!(self.rescanning.insert(*source), "a rescan within a rescan");
        }
        self.rejected.retain(|(source, _), _| !sources.contains(source));
        self.of(sources).for_each(|kept| kept.stale = true);
    }

    fn end_rescan(&mut self, sources: &[u32]) {
        self.end(sources);
        let Self { messages, vanished, .. } = self;
        messages.retain(|(_, id), kept| {
            let gone = kept.stale && sources.contains(&kept.at.source);
            if gone {
                vanished.insert(id.clone());
            }
            !gone
        });
    }

    fn abort_rescan(&mut self, sources: &[u32]) {
        self.end(sources);
        self.of(sources).for_each(|kept| kept.stale = false);
    }

    fn resume_source(&mut self, source: u32) {
        self.rejected.retain(|(of, _), rejected| *of != source || !rejected.incomplete);
    }

    fn report_progress(&mut self, done: u64, total: u64) {
        assert!(done <= total, "{done} of {total}");
    }

    fn is_watched(&self) -> bool {
        self.watched
    }
}
