//! The index on disk. With it, the cost of a mount depends on new messages, not on all.
//!
//! A snapshot is only a cache, and is discarded at any doubt. It has a head and then the tables as they are in
//! memory, each at a multiple of [`ALIGN`]. The last tables are the cursors of the stores. The head has the
//! magic, its checksum, the lengths of its parts, a JSON header, and the checksums of the pieces of all tables.
//!
//! Opening a snapshot reads and checks the head and the tables that are small or needed as a whole. The large
//! tables are mapped, and a piece is checked at its first use: see [`Column`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use bytemuck::Pod;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::column::{AnyTable, Column, SnapshotFile};
use super::intern::{Interner, StrId};
use super::mark_log::MarkCheckpoint;
use super::marks::{MailLabel, MarkQueue, MarkTable, OwnMark};
use super::messages::{IndexEntry, MessageColumns, MessageTable};
use super::position::{MsgIx, ThreadIx};
use super::slots::SlotTable;
use super::source::BitSet;
use super::tables::IndexTables;
use super::threads::ThreadTable;
use super::trust::{ExpectedKey, IndexedRejection, RejectionKey, TrustTable};
use crate::store::{Kind, atomic_file, fs};

/// Magic bytes. They change with every change of the layout, of a table or of rendering.
#[cfg(target_endian = "little")]
const MAGIC: &[u8; 16] = b"msgfs-index-0024";
#[cfg(target_endian = "big")]
const MAGIC: &[u8; 16] = b"msgfs-xedni-0024";
/// Length of magic, checksum of the rest of the head, and the lengths of its two parts.
const START: usize = 40;
/// Alignment of tables.
const ALIGN: u64 = 64;
/// Size up to which a snapshot is checked as a whole when it is opened.
pub(super) const CHECKED_AT_ONCE: u64 = 4 << 20;
/// Mode of the file. Nobody writes into it, not even I by mistake: a new file replaces it.
const MODE: u32 = 0o400;

/// One writer, as a snapshot has it: the name and counters of [`MessageTable`], and the keys of [`TrustTable`].
#[derive(Default, Serialize, Deserialize)]
pub(super) struct SavedWriter {
    pub store: usize,
    pub name: StrId,
    pub salt: u64,
    pub origin: Option<Kind>,
    pub newest: (i64, u32),
    pub counts: Option<HashMap<i64, u32>>,
    pub keys: Vec<[u8; 32]>,
    pub first_signed: Option<MsgIx>,
    pub expected_key: Option<ExpectedKey>,
}

/// The header: the values that the tables depend on, and the small tables. Each part of the index fills in and
/// takes out its own.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct SnapshotHeader {
    /// A text of everything that the tables depend on besides the stores' contents.
    fingerprint: String,
    /// The lengths of the tables in bytes.
    tables: Vec<u64>,
    pub unread: usize,
    /// The part of the file of marks that is applied to the entries.
    marks: MarkCheckpoint,
    /// The trust at the time of the decisions
    /// ([`Keyring::reviewed_hashes`](crate::identity::Keyring::reviewed_hashes)).
    trust: BTreeMap<String, u64>,
    /// A list, because JSON allows only texts as keys of a map.
    pub rejects: Vec<(RejectionKey, IndexedRejection)>,
    pub writers: Vec<SavedWriter>,
    pub addressed: Vec<BitSet>,
    pub idempotency: HashMap<String, Vec<MsgIx>>,
    pub far_names: HashMap<MsgIx, i64>,
    pub many_keys: HashMap<MsgIx, u32>,
    pub noted: BTreeSet<MsgIx>,
    pub orphan_marks: HashMap<u64, OwnMark>,
    pub labels: HashMap<u64, MailLabel>,
    pub answered: HashSet<u64>,
    pub unvouched: BTreeSet<MsgIx>,
    pub stripped: HashMap<MsgIx, u32>,
    pub texts: HashMap<MsgIx, u64>,
    pub mark_queue: MarkQueue,
    pub hex_ids: HashMap<MsgIx, u64>,
    pub odd_threads: BTreeMap<ThreadIx, u64>,
    pub ruled: BTreeMap<MsgIx, u32>,
}

/// The tables of a snapshot and its other values.
pub(super) struct LoadedSnapshot {
    pub tables: IndexTables,
    pub stores: Vec<Vec<u8>>,
    pub marks: MarkCheckpoint,
    pub trust: BTreeMap<String, u64>,
}

/// Returns the first offset for a table from here on.
fn align_offset(at: u64) -> u64 {
    at.next_multiple_of(ALIGN)
}

impl IndexTables {
    /// Returns the header for tables of these lengths.
    fn snapshot_header(
        &self,
        (fingerprint, marks): (&str, MarkCheckpoint),
        trust: BTreeMap<String, u64>,
        tables: Vec<u64>,
    ) -> SnapshotHeader {
        let fingerprint = fingerprint.to_owned();
        let empty = SnapshotHeader::default();
        let mut header = SnapshotHeader { fingerprint, tables, marks, trust, ..empty };
        self.messages.save_into(&mut header);
        self.threads.save_into(&mut header);
        self.trust.save_into(&mut header);
        self.marks.save_into(&mut header);
        header
    }
}

/// Writes a snapshot. `fingerprint` must be the same when it is read.
///
/// # Errors
/// The error of the system.
pub(super) fn save(
    path: &Path,
    fingerprint: &str,
    tables: &IndexTables,
    stores: &[Vec<u8>],
    marks: MarkCheckpoint,
    trust: BTreeMap<String, u64>,
) -> io::Result<()> {
    let (first, last) = tables.messages.snapshot_tables();
    let threads = tables.threads.snapshot_tables();
    let cursors = stores.iter().map(|store| Box::new(store) as AnyTable<'_>);
    let saved: Vec<AnyTable<'_>> =
        first.into_iter().chain(threads).chain(last).chain(cursors).collect();
    let lengths = saved.iter().map(|table| table.byte_len()).collect();
    let header = serde_json::to_vec(&tables.snapshot_header((fingerprint, marks), trust, lengths))?;
    let count: usize = saved.iter().map(|table| table.piece_count()).sum();
    atomic_file::write_atomic_with(path, MODE, |file| {
        let mut at = (START + header.len() + count * 8) as u64;
        file.seek(SeekFrom::Start(at))?;
        let mut out = BufWriter::with_capacity(1 << 20, &mut *file);
        let mut sums = Vec::with_capacity(count);
        for table in &saved {
            let start = align_offset(at);
            let gap = [0; ALIGN as usize];
            out.write_all(gap.split_at((start - at) as usize).0)?;
            table.write_to(&mut out, &mut sums)?;
            at = start + table.byte_len();
        }
        out.flush()?;
        drop(out);
        let lengths = [header.len() as u64, count as u64].map(u64::to_le_bytes);
        let head = [lengths.as_flattened(), &header, bytemuck::cast_slice(&sums)].concat();
        let sum = XxHash3_64::oneshot(&head).to_le_bytes();
        file.write_all_at(&[MAGIC.as_slice(), &sum, &head].concat(), 0)
    })
}

/// The head of a snapshot.
struct SnapshotHead {
    header: SnapshotHeader,
    sums: Vec<u64>,
    /// The offset of its end.
    end: u64,
}

impl SnapshotHead {
    fn read(file: &File, len: u64) -> Option<Self> {
        let mut start = [0; START];
        file.read_exact_at(&mut start, 0).ok()?;
        let (magic, rest) = start.split_first_chunk::<16>()?;
        let (sum, lengths) = rest.split_first_chunk::<8>()?;
        let (header, count) = lengths.split_first_chunk::<8>()?;
        let header = u64::from_le_bytes(*header);
        let sums = u64::from_le_bytes(*count.first_chunk::<8>()?).checked_mul(8)?;
        let end = header.checked_add(sums)?.checked_add(START as u64)?;
        if magic != MAGIC || end > len {
            return None;
        }
        let mut head = vec![0; usize::try_from(end).ok()?.checked_sub(16 + 8)?];
        file.read_exact_at(&mut head, 16 + 8).ok()?;
        if XxHash3_64::oneshot(&head).to_le_bytes() != *sum {
            return None;
        }
        let parts = head.get(lengths.len()..)?;
        let (header, sums) = parts.split_at_checked(usize::try_from(header).ok()?)?;
        let sums = sums.as_chunks::<8>().0.iter().copied().map(u64::from_ne_bytes).collect();
        Some(Self { header: serde_json::from_slice(header).ok()?, sums, end })
    }
}

/// A reader of the tables of a snapshot, one after the other.
struct SnapshotReader<'a> {
    origin: Arc<SnapshotFile>,
    lengths: std::slice::Iter<'a, u64>,
    sums: &'a [u64],
    at: u64,
    /// True if everything is checked now.
    at_once: bool,
}

impl SnapshotReader<'_> {
    fn next_column<T: Pod>(&mut self) -> Option<Column<T>> {
        let (at, len) = (align_offset(self.at), *self.lengths.next()?);
        let pieces = Column::<T>::count_pieces(usize::try_from(len).ok()?);
        let (sums, rest) = self.sums.split_at_checked(pieces)?;
        (self.at, self.sums) = (at.checked_add(len)?, rest);
        let column = Column::open(&self.origin, at, len, sums).ok()?;
        (!self.at_once || column.is_sound()).then_some(column)
    }

    /// Returns the next table as a whole.
    fn next_vec<T: Pod>(&mut self) -> Option<Vec<T>> {
        let column: Column<T> = self.next_column()?;
        column.is_sound().then(|| column.slice(0..column.len()).to_vec())
    }
}

/// Opens a snapshot; returns `None` if there is none that can be trusted. `map` is true if no other machine
/// changes it. If it is larger than `at_once`, damage in the large tables is found later.
pub(super) fn load(
    path: &Path,
    fingerprint: &str,
    map: bool,
    at_once: u64,
) -> Option<LoadedSnapshot> {
    let file = fs::open_regular(path).ok()?;
    let len = file.metadata().ok()?.len();
    let SnapshotHead { mut header, sums, end } = SnapshotHead::read(&file, len)?;
    let ends = |at: u64, len: &u64| align_offset(at).checked_add(*len);
    let whole = header.tables.iter().try_fold(end, ends) == Some(len);
    if header.fingerprint != fingerprint || !whole {
        return None;
    }
    let lengths = header.tables.clone();
    let origin = Arc::new(SnapshotFile::new(path, file, map).ok()?);
    let (lengths, at_once) = (lengths.iter(), len <= at_once);
    let snapshot = Some(Arc::clone(&origin));
    let mut tables = SnapshotReader { origin, lengths, sums: &sums, at: end, at_once };
    let entries: Column<IndexEntry> = tables.next_column()?;
    let identity_slots = SlotTable::open(tables.next_column()?, entries.len())?;
    let (texts, ends): (_, Column<u32>) = (tables.next_column()?, tables.next_column()?);
    let slots = SlotTable::open(tables.next_column()?, ends.len())?;
    let texts = Interner::from_parts(texts, ends, slots);
    let (threads, thread_of) = (tables.next_column()?, tables.next_column()?);
    let columns = MessageColumns {
        entries,
        identity_slots,
        texts,
        text_ids: tables.next_column()?,
        to_me: tables.next_vec()?,
        from_me: tables.next_vec()?,
        links: tables.next_vec()?,
        answers: tables.next_vec()?,
        multicasts: tables.next_vec()?,
        kept_copies: tables.next_vec()?,
    };
    let stores = tables.lengths.len();
    let stores = (0..stores).map(|_| tables.next_vec()).collect::<Option<_>>()?;
    let messages = MessageTable::from_snapshot(columns, &mut header)?;
    let tables = IndexTables {
        threads: ThreadTable::from_snapshot(threads, thread_of, &mut header)?,
        trust: TrustTable::from_snapshot(&messages, &mut header)?,
        marks: MarkTable::from_snapshot(&messages, &mut header)?,
        messages,
        snapshot,
    };
    let SnapshotHeader { marks, trust, .. } = header;
    Some(LoadedSnapshot { tables, stores, marks, trust })
}
