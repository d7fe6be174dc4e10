//! The index on disk, so that a mount costs what is new and not what is there.
//!
//! A cache and nothing else: it is checked whole (checksum, version, configuration) and thrown away
//! on any doubt. Layout: magic, checksum, a JSON header, the tables as they stand in memory, and what
//! each store keeps; each of these preceded by its length in bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use bytemuck::allocation::pod_collect_to_vec;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::core::{Core, Reject, RejectKey, ThreadIx, Writer};
use super::entry::{Entry, MsgIx};
use super::intern::Interner;
use super::label::Label;
use super::links::Links;
use super::source::Bits;
use super::tell::Telling;
use crate::store::{CopyOf, place};

/// Changes with every change of the layout, of [`Entry`] or of how messages are rendered.
const MAGIC: &[u8; 16] = b"msgfs-index-0011";

/// Declares what is no plain table: what the tables depend on, and those of [`Core`] that are maps.
macro_rules! header {
    ($($map:ident: $type:ty,)+) => {
        #[derive(Serialize, Deserialize)]
        struct Header {
            /// Names everything the tables depend on besides the stores' contents.
            fingerprint: String,
            /// Bytes of the file of marks that are reflected in the entries.
            marks_len: u64,
            /// The trust that the signatures were judged by ([`Keyring::trust_by_address`](crate::identity::Keyring::trust_by_address)).
            trust: BTreeMap<String, u64>,
            /// JSON has texts only as the keys of a map.
            rejects: Vec<(RejectKey, Reject)>,
            $($map: $type,)+
        }

        impl Header {
            fn of(core: &Core, (fingerprint, marks_len): (&str, u64), trust: BTreeMap<String, u64>) -> Self {
                let rejects = core.rejects.iter().map(|(k, r)| (*k, r.clone())).collect();
                let fingerprint = fingerprint.to_owned();
                Self { fingerprint, marks_len, trust, rejects, $($map: core.$map.clone(),)+ }
            }

            fn put_into(self, core: &mut Core) {
                core.rejects = self.rejects.into_iter().collect();
                $(core.$map = self.$map;)+
            }
        }
    };
}

header! {
    writers: Vec<Writer>,
    addressed: Vec<Bits>,
    idempotency: HashMap<String, Vec<MsgIx>>,
    far_names: HashMap<MsgIx, i64>,
    many_keys: HashMap<MsgIx, u32>,
    noted: BTreeSet<MsgIx>,
    copies: HashMap<MsgIx, CopyOf>,
    orphan_marks: HashMap<u64, bool>,
    labels: HashMap<u64, Label>,
    answered: HashSet<u64>,
    unvouched: BTreeSet<MsgIx>,
    telling: Telling,
    hex_ids: HashMap<MsgIx, u64>,
    odd_threads: BTreeMap<ThreadIx, u64>,
    ruled: BTreeMap<MsgIx, u32>,
}

/// What a snapshot gives besides the tables.
pub(super) struct Restored {
    pub core: Core,
    pub stores: Vec<Vec<u8>>,
    pub marks_len: u64,
    pub trust: BTreeMap<String, u64>,
}

/// Writes a snapshot; `fingerprint` must be the same when it is read.
///
/// # Errors
/// As the system gave it.
pub(super) fn save(
    path: &Path,
    fingerprint: &str,
    core: &Core,
    stores: &[Vec<u8>],
    marks_len: u64,
    trust: BTreeMap<String, u64>,
) -> std::io::Result<()> {
    let header = Header::of(core, (fingerprint, marks_len), trust);
    let header = serde_json::to_vec(&header)?;
    let (texts, ends) = core.strings.parts();
    let tables: [&[u8]; 10] = [
        &header,
        bytemuck::cast_slice(&core.entries),
        texts,
        bytemuck::cast_slice(ends),
        bytemuck::cast_slice(&core.threads),
        bytemuck::cast_slice(&core.thread_of),
        bytemuck::cast_slice(&core.to_me),
        bytemuck::cast_slice(&core.from_me),
        bytemuck::cast_slice(&core.text_ids),
        bytemuck::cast_slice(core.links.table()),
    ];
    let sections = || tables.into_iter().chain(stores.iter().map(Vec::as_slice));
    let total: usize = sections().map(|s| s.len() + 8).sum();
    let mut out = Vec::with_capacity(total + 24);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[0; 8]);
    for table in sections() {
        out.extend_from_slice(&(table.len() as u64).to_le_bytes());
        out.extend_from_slice(table);
    }
    let sum = XxHash3_64::oneshot(out.get(24..).unwrap_or_default());
    if let Some(slot) = out.get_mut(16..24) {
        slot.copy_from_slice(&sum.to_le_bytes());
    }
    place::write_atomic(path, &out, 0o600)
}

/// Reads a snapshot; `None` if there is none that can be trusted.
pub(super) fn load(path: &Path, fingerprint: &str) -> Option<Restored> {
    let bytes = std::fs::read(path).ok()?;
    let (head, rest) = bytes.split_at_checked(24)?;
    let (magic, sum) = head.split_at_checked(16)?;
    if magic != MAGIC || sum != XxHash3_64::oneshot(rest).to_le_bytes() {
        return None;
    }
    let mut rest = rest;
    let mut table = || -> Option<&[u8]> {
        let (len, after) = rest.split_first_chunk::<8>()?;
        let (table, after) =
            after.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        rest = after;
        Some(table)
    };
    let header: Header = serde_json::from_slice(table()?).ok()?;
    if header.fingerprint != fingerprint {
        return None;
    }
    let entries: Vec<Entry> = pod_collect_to_vec(table()?);
    let texts = table()?.to_vec();
    let strings = Interner::from_parts(texts, pod_collect_to_vec(table()?))?;
    let mut core = Core {
        entries,
        strings,
        threads: pod_collect_to_vec(table()?),
        thread_of: pod_collect_to_vec(table()?),
        to_me: pod_collect_to_vec(table()?),
        from_me: pod_collect_to_vec(table()?),
        text_ids: pod_collect_to_vec(table()?),
        ..Core::default()
    };
    let links = pod_collect_to_vec(table()?);
    core.links = Links::from_table(links, &core.entries)?;
    core.unread = core.inbox().count();
    let (marks_len, trust) = (header.marks_len, header.trust.clone());
    header.put_into(&mut core);
    core.reindex();
    let stores = std::iter::from_fn(|| table().map(<[u8]>::to_vec)).collect();
    Some(Restored { core, stores, marks_len, trust })
}
