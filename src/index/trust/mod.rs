//! Trust in the messages of the index: their signatures, the keys of their writers, and what is rejected.
//!
//! `judge`: the decision on a message. `missing`: unsigned messages of writers who sign. `lost_signatures`: verified
//! messages that lost their signatures. `rejects`: rejections.

mod judge;
mod lost_signatures;
mod missing;
mod rejects;

pub(super) use judge::{TrustDecision, TrustJudge, TrustQuery};
pub(super) use lost_signatures::LostSignatures;
pub(super) use missing::{ExpectedKey, PriorMessages};
pub use rejects::{IndexedRejection, RejectionKey};

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::column::{at, at_mut};
use super::messages::{IndexEntry, MANY_KEYS, MessageTable, SignatureKind};
use super::position::MsgIx;
use super::snapshot::SnapshotHeader;
use crate::model::{PublicKey, SignatureState};
use missing::SigningChanges;

/// The keys of a writer, and the key with which its unsigned messages should have been signed.
#[derive(Clone, Debug, Default)]
struct WriterTrust {
    /// The keys that validly signed a message of this writer, oldest first.
    keys: Vec<[u8; 32]>,
    /// The writer's first validly signed message, in listing order or in the order of its log.
    first_signed: Option<MsgIx>,
    /// The key that the writer's unsigned messages should have been signed with.
    expected_key: Option<ExpectedKey>,
}

/// The trust in all messages and writers.
#[derive(Debug, Default)]
pub struct TrustTable {
    /// By the number of the writer.
    signers: Vec<WriterTrust>,
    /// Numbers of a writer's keys that do not fit into an entry. Roles have so many, because several agents may
    /// fill one.
    many_keys: HashMap<MsgIx, u32>,
    /// Signed messages whose signature does not count until somebody vouches for the key.
    unvouched: BTreeSet<MsgIx>,
    /// Verified messages that lost their signatures, with the numbers of the keys.
    stripped: HashMap<MsgIx, u32>,
    /// Hashes of the text of verified messages, in logs that may be rewritten.
    texts: HashMap<MsgIx, u64>,
    /// Messages that a review could not read. They are judged after the next scan of their store.
    unreviewed: BTreeSet<MsgIx>,
    /// The one of these that failed last. The next retry begins behind it.
    failed_retry: Option<MsgIx>,
    /// Changes that may concern missing signatures.
    signing_changes: SigningChanges,
    /// The unsigned messages that were there before keys were pinned.
    prior_messages: PriorMessages,
    lost_signatures: LostSignatures,
    rejects: BTreeMap<RejectionKey, IndexedRejection>,
    reject_of: HashMap<u64, RejectionKey>,
    /// A number that grows with each change of the rejections.
    generation: u64,
}

impl TrustTable {
    /// Returns a number that grows with each change of the rejections.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    #[track_caller]
    fn signer(&self, writer: u32) -> &WriterTrust {
        at(&self.signers, writer as usize)
    }

    #[track_caller]
    fn signer_mut(&mut self, writer: u32) -> &mut WriterTrust {
        at_mut(&mut self.signers, writer as usize)
    }

    /// Adds a new writer, whose number is the next one.
    pub(super) fn add_writer(&mut self, writer: u32) {
        self.signers.push(WriterTrust::default());
        self.signing_changes.fresh.push(writer);
    }

    // --- the signature of a message ---

    /// Returns the value of the message's `Signature:` line.
    pub fn signature(&self, messages: &MessageTable, entry: &IndexEntry) -> SignatureState {
        let (sig, key) = self.signature_kind(messages, entry);
        let fingerprint = || PublicKey(*at(&self.signer(entry.writer()).keys, key)).fingerprint();
        match sig {
            SignatureKind::None => SignatureState::None,
            SignatureKind::Valid => SignatureState::Valid(fingerprint()),
            SignatureKind::Unknown => SignatureState::Unknown,
            SignatureKind::Missing => SignatureState::Missing(fingerprint()),
        }
    }

    /// Returns the kind of a message's signature and the number of the writer's key.
    fn signature_kind(
        &self,
        messages: &MessageTable,
        entry: &IndexEntry,
    ) -> (SignatureKind, usize) {
        match entry.signature() {
            (sig, MANY_KEYS) => {
                let ix = messages.position_of(entry);
                let Some(key) = self.many_keys.get(&ix) else {
                    panic!("the index is broken: it has no key for the message at {ix:?}")
                };
                (sig, *key as usize)
            }
            few => few,
        }
    }

    /// Returns the newest of the keys that validly signed a message of a writer.
    pub(super) fn newest_key(&self, writer: u32) -> Option<PublicKey> {
        self.signer(writer).keys.last().copied().map(PublicKey)
    }

    /// Returns the number of a key among the keys of a writer.
    fn key_number(&mut self, writer: u32, key: PublicKey) -> usize {
        let keys = &mut self.signer_mut(writer).keys;
        // Search from the end: a key that signed a moment ago probably signs again.
        keys.iter().rposition(|k| *k == key.0).unwrap_or_else(|| {
            keys.push(key.0);
            keys.len() - 1
        })
    }

    /// Records the verdict on a message's signature.
    pub(super) fn note_signature(
        &mut self,
        messages: &mut MessageTable,
        ix: MsgIx,
        sig: SignatureKind,
        key: Option<PublicKey>,
    ) {
        if sig == SignatureKind::None {
            self.note_unsigned(messages, ix);
        } else {
            // A signature that does not count has no key.
            let number = key.map_or(0, |key| self.key_number(messages.entry(ix).writer(), key));
            self.set_signature(messages, ix, sig, number);
        }
        self.queue_signer_review(messages, ix);
    }

    /// Records a new verdict on a message's signature. Returns true if it differs from the one before.
    pub(super) fn replace_signature(
        &mut self,
        messages: &mut MessageTable,
        ix: MsgIx,
        sig: SignatureKind,
        key: Option<PublicKey>,
    ) -> bool {
        let before = self.signature_kind(messages, messages.entry(ix));
        self.note_signature(messages, ix, sig, key);
        self.signature_kind(messages, messages.entry(ix)) != before
    }

    fn set_signature(
        &mut self,
        messages: &mut MessageTable,
        ix: MsgIx,
        sig: SignatureKind,
        number: usize,
    ) {
        messages.entry_mut(ix).set_signature(sig, number);
        if number >= MANY_KEYS {
            self.many_keys.insert(ix, number as u32);
        } else if !self.many_keys.is_empty() {
            self.many_keys.remove(&ix);
        }
    }

    /// Sets whether a signature would count if somebody vouched for its key.
    pub(super) fn note_unvouched(&mut self, ix: MsgIx, unvouched: bool) {
        if unvouched {
            self.unvouched.insert(ix);
        } else {
            self.unvouched.remove(&ix);
        }
    }

    /// Sets whether a review could not read a message.
    fn note_unreviewed(&mut self, ix: MsgIx, unreviewed: bool) {
        if unreviewed {
            self.unreviewed.insert(ix);
        } else {
            self.unreviewed.remove(&ix);
        }
    }

    /// Returns the messages that a review could not read, in the order in which a retry reads them.
    fn list_unreviewed(&self) -> impl Iterator<Item = MsgIx> + '_ {
        let last = self.failed_retry;
        let is_behind = move |ix: &&MsgIx| Some(**ix) > last;
        let others = self.unreviewed.iter().filter(move |ix| !is_behind(ix));
        self.unreviewed.iter().filter(is_behind).chain(others).copied()
    }

    /// Records the message that failed last in a retry.
    fn note_failed_retry(&mut self, ix: Option<MsgIx>) {
        self.failed_retry = ix;
    }

    /// Returns the senders of the messages that a review could not read.
    pub(super) fn unreviewed_senders(&self, messages: &MessageTable) -> BTreeSet<String> {
        let entries = self.unreviewed.iter().map(|ix| messages.entry(*ix));
        entries.map(|entry| messages.sender(entry).to_owned()).collect()
    }

    /// Stores the hash of the text of a verified message.
    pub(super) fn note_verified_text(&mut self, ix: MsgIx, text: u64) {
        self.texts.insert(ix, text);
    }

    /// Returns the hash of the text of a verified message.
    pub(super) fn verified_text(&self, ix: MsgIx) -> Option<u64> {
        self.texts.get(&ix).copied()
    }

    /// Takes over what the state folder has: the prior messages, and the lost signatures.
    pub(super) fn set_trust_notes(&mut self, prior: PriorMessages, lost: LostSignatures) {
        (self.prior_messages, self.lost_signatures) = (prior, lost);
    }

    /// Takes the lines that must be appended to the file of these notes.
    pub(super) fn take_note_lines(&mut self) -> Vec<u8> {
        [self.prior_messages.take_lines(), self.lost_signatures.take_lines()].concat()
    }

    // --- the snapshot ---

    /// Creates the table of a snapshot; returns `None` if a position in it leads nowhere.
    pub(super) fn from_snapshot(
        messages: &MessageTable,
        header: &mut SnapshotHeader,
    ) -> Option<Self> {
        let signers = header.writers.iter_mut().map(|saved| WriterTrust {
            keys: std::mem::take(&mut saved.keys),
            first_signed: saved.first_signed,
            expected_key: saved.expected_key,
        });
        let signers = signers.collect();
        let rejects: BTreeMap<RejectionKey, IndexedRejection> = header.rejects.drain(..).collect();
        let table = Self {
            signers,
            many_keys: std::mem::take(&mut header.many_keys),
            unvouched: std::mem::take(&mut header.unvouched),
            stripped: std::mem::take(&mut header.stripped),
            texts: std::mem::take(&mut header.texts),
            reject_of: rejects.iter().map(|(key, r)| (r.identity, *key)).collect(),
            rejects,
            ..Self::default()
        };
        let first = table.signers.iter().filter_map(|signer| signer.first_signed.as_ref());
        let rejected = table.rejects.values().filter_map(|reject| reject.message.as_ref());
        let maps = table.many_keys.keys().chain(table.stripped.keys()).chain(table.texts.keys());
        let all = first.chain(rejected).chain(maps).chain(&table.unvouched);
        messages.has_all(all).then_some(table)
    }

    /// Fills in the values that the header of a snapshot has. The header has the writers already.
    pub(super) fn save_into(&self, header: &mut SnapshotHeader) {
        for (saved, signer) in header.writers.iter_mut().zip(&self.signers) {
            saved.keys.clone_from(&signer.keys);
            (saved.first_signed, saved.expected_key) = (signer.first_signed, signer.expected_key);
        }
        header.many_keys.clone_from(&self.many_keys);
        header.unvouched.clone_from(&self.unvouched);
        header.stripped.clone_from(&self.stripped);
        header.texts.clone_from(&self.texts);
        header.rejects = self.rejects.iter().map(|(k, r)| (*k, r.clone())).collect();
    }
}
