//! The index between two runs: its tables are written into the snapshot, and restored from it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::mark_log::{MarkChange, MarkCheckpoint, MarkFile};
use super::messages::StoreInfo;
use super::trust::{LostSignatures, PriorMessages};
use super::{Index, IndexError, IndexSettings, IndexTables, snapshot};
use crate::identity::Keyring;
use crate::model::locks::Mutex;
use crate::store::append_log::read_log;
use crate::store::{Store, ThreadScheme, process};

/// A size that the file of messages from before keys were pinned never reaches.
const PRIOR_LIMIT: u64 = 1 << 30;

impl Index {
    /// Writes the snapshot if anything changed since the last one, and then uses its tables. Values that came
    /// since the last snapshot then need no memory any more.
    pub fn save_snapshot(&self) {
        let Some(changes) = self.write_snapshot().filter(|_| self.settings.map) else { return };
        let Some(saved) = load_snapshot(&self.stores, &self.settings) else { return };
        let mut tables = self.tables.write();
        let old = (tables.change_count() == changes).then(|| tables.adopt_tables(saved.tables));
        drop(tables);
        drop(old);
        process::trim_heap();
    }

    /// Writes the snapshot if anything changed since the last one. Returns the change count of its tables.
    pub(super) fn write_snapshot(&self) -> Option<u64> {
        let unsaved = self.unsaved.swap(false, Ordering::Relaxed);
        if !unsaved || self.settings.read_only {
            return None;
        }
        self.sync_marks();
        let _turns: Vec<_> = self.scanning.iter().map(Mutex::lock).collect();
        let mut marks = self.marks.lock();
        _ = self.save_marks(&mut marks);
        let stores: Vec<Vec<u8>> = self.stores.iter().map(|s| s.save_cursors()).collect();
        let tables = self.tables.read();
        let result = snapshot::save(
            &self.settings.snapshot,
            &snapshot_fingerprint(&self.stores, &self.settings),
            &tables,
            &stores,
            marks.checkpoint(),
            self.keyring.reviewed_hashes(tables.trust.unreviewed_senders(&tables.messages)),
        );
        if let Err(e) = &result {
            tracing::warn!(path = %self.settings.snapshot.display(), error = %e, "the index was not saved");
        }
        result.ok().map(|()| tables.change_count())
    }
}

/// Returns the tables of the snapshot, or empty ones if it cannot be used, and the marks made since.
pub(super) fn restore_tables(
    stores: &[Arc<dyn Store>],
    keyring: &Keyring,
    settings: &IndexSettings,
) -> Result<(IndexTables, MarkFile, Vec<MarkChange>), IndexError> {
    let infos: Vec<StoreInfo> = stores.iter().map(|s| store_info(s.as_ref())).collect();
    let prior = settings.prior_path();
    let prior = read_log(&prior, PRIOR_LIMIT).map_err(|error| IndexError::Marks(prior, error))?;
    let notes = (PriorMessages::load(&prior), LostSignatures::load(&prior));
    let saved = load_snapshot(stores, settings);
    let before = saved.as_ref().map(|saved| saved.marks.clone()).unwrap_or_default();
    let replayed = before.len > 0;
    let open = |before| {
        MarkFile::open(&settings.marks, before, settings.read_only)
            .map_err(|error| IndexError::Marks(settings.marks.clone(), error))
    };
    let (marks, changes, usable) = open(before)?;
    // Marks that the file lost cannot be distinguished from the marks of the stores.
    let saved = saved.filter(|_| usable);
    let had = saved.is_some();
    if let Some(saved) = saved {
        // The first message pins a key again, so all are judged in their order.
        let fits = saved.stores.len() == stores.len()
            && !saved.tables.has_lost_pins(stores, keyring, &saved.trust)
            && stores.iter().zip(&saved.stores).all(|(store, saved)| store.restore_cursors(saved));
        if fits {
            keyring.note_changes_since(&saved.trust);
            let mut tables = saved.tables;
            tables.complete(infos, notes);
            (0..stores.len()).for_each(|number| tables.messages.note_scanned(number, true));
            return Ok((tables, marks, changes));
        }
        // Cursors without their tables would hide messages.
        for store in stores {
            store.reset_cursors();
        }
    }
    let mut empty = IndexTables::default();
    empty.complete(infos, notes);
    empty.messages.begin_bulk_load();
    if !had || !replayed {
        return Ok((empty, marks, changes));
    }
    drop(marks);
    let (marks, changes, _) = open(MarkCheckpoint::default())?;
    Ok((empty, marks, changes))
}

fn load_snapshot(
    stores: &[Arc<dyn Store>],
    settings: &IndexSettings,
) -> Option<snapshot::LoadedSnapshot> {
    let print = snapshot_fingerprint(stores, settings);
    snapshot::load(&settings.snapshot, &print, settings.map, snapshot::CHECKED_AT_ONCE)
}

/// Returns the data of a store that the tables need.
pub(super) fn store_info(store: &dyn Store) -> StoreInfo {
    StoreInfo {
        whole_seconds: store.properties().whole_seconds,
        links: store.properties().has_indexed_threads(),
        joins: store.properties().threads == ThreadScheme::Joined,
        roles: store.properties().uses_roles,
        log: store.kind().row().has_logs,
        kind: store.kind(),
        transcripts: store.properties().holds_transcripts,
        ..StoreInfo::with_name(store.name())
    }
}

/// Returns a text of everything besides the stores' contents that the tables depend on.
fn snapshot_fingerprint(stores: &[Arc<dyn Store>], settings: &IndexSettings) -> String {
    let mut text = settings.unsigned.to_string();
    for s in stores {
        let (roles, dir) = (s.properties().uses_roles, s.dir().display());
        let links = s.properties().has_indexed_threads();
        let mine = s.properties().my_addresses().collect::<Vec<_>>().join(",");
        let _ = write!(text, "|{}|{}|{dir}|{mine}|{roles}|{links}", s.kind(), s.name());
    }
    text
}
