//! One message in the index: 56 bytes of plain data, written to the snapshot as it is.

use bytemuck::{Pod, Zeroable};

use crate::index::column::Column;
use crate::index::intern::{IDENTITY_MASK, StrId, stable_hash};
use crate::index::position::{MsgIx, ThreadIx};
use crate::index::source::SourceId;
use crate::model::Timestamp;
use crate::store::Location;

/// Value of [`IndexEntry::name_offset`] if the time in the name is in a table of its own.
pub(super) const FAR: u16 = u16::MAX;

/// Key number in the [flags](EntryFlags::signature) if the number is in a table of its own.
pub(in crate::index) const MANY_KEYS: usize = 15;

/// The entry of a message. Texts are interned, and the body stays in its store.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct IndexEntry {
    /// The hash that identifies the message. With [`EntryFlags::ID_HEX`] it is the 64-bit value of the id, mixed
    /// reversibly with the writer's salt; otherwise a hash of the id. Its lower 56 bits are the identity that
    /// inode numbers are made from.
    pub(super) hash: u64,
    pub(super) time_ms: i64,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) source: SourceId,
    pub(super) writer: u32,
    pub(super) to: StrId,
    pub(super) thread: ThreadIx,
    /// The next message in the chain of the thread.
    pub(super) next: MsgIx,
    /// Length of the rendered file in bytes, or 0 while it is not known.
    pub(super) size: u32,
    /// Milliseconds from the message's time to the time in its name, which keeps the store's order; or [`FAR`].
    pub(super) name_offset: u16,
    pub(super) flags: EntryFlags,
}

/// Bits of an [`IndexEntry`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct EntryFlags(u16);

impl EntryFlags {
    /// The message counts as read.
    pub(super) const READ: Self = Self(1);
    /// The message is to me.
    pub(super) const TO_ME: Self = Self(1 << 1);
    /// The message is from me.
    pub(super) const FROM_ME: Self = Self(1 << 2);
    /// The message is no longer in the store.
    pub(super) const GONE: Self = Self(1 << 3);
    /// A rescan has not found the message again yet.
    pub(super) const STALE: Self = Self(1 << 4);
    /// The id of the message has 16 hex digits, and the hash contains it.
    pub(super) const ID_HEX: Self = Self(1 << 5);
    /// The message was marked by reading while this process runs. Its name still opens (docs/SEMANTICS.md, S27).
    /// Without [`EntryFlags::OWN`] it means that a read position passed the message, and nothing else marked it.
    pub(super) const READ_HERE: Self = Self(1 << 6);
    /// The message was rejected, and only `rejected/` shows it.
    pub(super) const REJECTED: Self = Self(1 << 7);
    const SIG_SHIFT: u32 = 8;
    /// The message has attachments.
    pub(super) const PARTS: Self = Self(1 << 10);
    /// The mark was made or cleared by msgfs. The store's mark does not count any more.
    pub(super) const OWN: Self = Self(1 << 11);
    const KEY_SHIFT: u32 = 12;

    /// Returns true if a bit is set.
    pub(super) fn has(self, bit: Self) -> bool {
        self.0 & bit.0 != 0
    }

    /// Sets or clears a bit.
    pub(super) fn set(&mut self, bit: Self, on: bool) {
        if on {
            self.0 |= bit.0;
        } else {
            self.0 &= !bit.0;
        }
    }

    /// Returns the signature kind and the number of the writer's key.
    pub(super) fn signature(self) -> (SignatureKind, usize) {
        let sig = match (self.0 >> Self::SIG_SHIFT) & 3 {
            0 => SignatureKind::None,
            1 => SignatureKind::Valid,
            2 => SignatureKind::Unknown,
            _ => SignatureKind::Missing,
        };
        (sig, usize::from(self.0 >> Self::KEY_SHIFT))
    }

    /// Sets the signature kind and the number of the writer's key. A number that does not fit becomes
    /// [`MANY_KEYS`].
    pub(super) fn set_signature(&mut self, sig: SignatureKind, key: usize) {
        let key = key.min(MANY_KEYS) as u16;
        self.0 &= !(3 << Self::SIG_SHIFT | 15 << Self::KEY_SHIFT);
        self.0 |= (sig as u16) << Self::SIG_SHIFT | key << Self::KEY_SHIFT;
    }
}

/// The kind of a signature state. The fingerprint comes from the writer's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::index) enum SignatureKind {
    None = 0,
    Valid = 1,
    Unknown = 2,
    Missing = 3,
}

impl SignatureKind {
    /// Returns the length of the rendered state ([`SignatureState`](crate::model::SignatureState)) in bytes.
    pub(super) const fn rendered_len(self) -> u32 {
        match self {
            Self::None => 4,
            Self::Valid => 22,
            Self::Unknown => 7,
            Self::Missing => 24,
        }
    }
}

/// Returns a function from numbers of messages to the hashes in the table of identities.
pub(super) fn identity_lookup(entries: &Column<IndexEntry>) -> impl Fn(u32) -> u64 + '_ {
    |number| entries.at(number as usize).identity()
}

impl IndexEntry {
    /// Returns the time of the message.
    pub fn time(&self) -> Timestamp {
        Timestamp::from_millis(self.time_ms)
    }

    /// Returns the time in the file name, unless it is too far from that of the message.
    pub(super) fn near_name_time(&self) -> Option<Timestamp> {
        (self.name_offset != FAR).then(|| self.time().plus_millis(i64::from(self.name_offset)))
    }

    #[cfg(test)]
    pub(in crate::index) fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the number of its writer.
    pub(in crate::index) fn writer(&self) -> u32 {
        self.writer
    }

    /// Returns the text with its recipients.
    pub(in crate::index) fn recipients(&self) -> StrId {
        self.to
    }

    /// Returns its file.
    pub(in crate::index) fn source(&self) -> SourceId {
        self.source
    }

    /// Returns the thread that it is in.
    pub fn thread(&self) -> ThreadIx {
        self.thread
    }

    /// Returns the message after it in the chain of its thread.
    pub(in crate::index) fn next_in_thread(&self) -> Option<MsgIx> {
        self.next.or_end()
    }

    /// Sets the message after it in the chain of its thread.
    pub(in crate::index) fn set_next_in_thread(&mut self, next: MsgIx) {
        self.next = next;
    }

    /// Puts it in front of `next` in the chain of a thread.
    pub(in crate::index) fn set_thread(&mut self, thread: ThreadIx, next: MsgIx) {
        (self.thread, self.next) = (thread, next);
        // The rendered message has a line with the thread.
        self.size = 0;
    }

    /// Returns the kind of its signature, and the number of the writer's key up to [`MANY_KEYS`].
    pub(in crate::index) fn signature(&self) -> (SignatureKind, usize) {
        self.flags.signature()
    }

    /// Sets the kind of its signature and the number of the writer's key.
    pub(in crate::index) fn set_signature(&mut self, sig: SignatureKind, key: usize) {
        if self.signature().0 != sig {
            // The rendered text says so, perhaps in fewer bytes.
            self.size = 0;
        }
        self.flags.set_signature(sig, key);
    }

    /// Returns true if it counts as written by me, also if it is not live.
    pub(in crate::index) fn is_mine(&self) -> bool {
        self.flags.has(EntryFlags::FROM_ME)
    }

    /// Returns true if its signature is valid.
    pub(in crate::index) fn is_verified(&self) -> bool {
        self.signature().0 == SignatureKind::Valid
    }

    /// Returns true if it is not signed.
    pub(in crate::index) fn is_unsigned(&self) -> bool {
        matches!(self.signature().0, SignatureKind::None | SignatureKind::Missing)
    }

    /// Returns true if only `rejected/` shows it.
    pub(in crate::index) fn is_rejected(&self) -> bool {
        self.flags.has(EntryFlags::REJECTED)
    }

    /// Sets whether only `rejected/` shows it.
    pub(in crate::index) fn set_rejected(&mut self, rejected: bool) {
        self.flags.set(EntryFlags::REJECTED, rejected);
    }

    /// Returns true if it is no longer in the store.
    pub(in crate::index) fn is_gone(&self) -> bool {
        self.flags.has(EntryFlags::GONE)
    }

    /// Notes that it is no longer in the store.
    pub(in crate::index) fn set_gone(&mut self) {
        self.flags.set(EntryFlags::GONE, true);
    }

    /// Returns true if a rescan has not found it again yet.
    pub(in crate::index) fn is_stale(&self) -> bool {
        self.flags.has(EntryFlags::STALE)
    }

    /// Sets whether a rescan has not found it again yet.
    pub(in crate::index) fn set_stale(&mut self, stale: bool) {
        self.flags.set(EntryFlags::STALE, stale);
    }

    /// Returns true if msgfs made or cleared its mark.
    pub(in crate::index) fn has_own_mark(&self) -> bool {
        self.flags.has(EntryFlags::OWN) || self.is_only_passed()
    }

    /// Returns true if it counts as read only because a read position passed it.
    pub(in crate::index) fn is_only_passed(&self) -> bool {
        self.flags.has(EntryFlags::READ_HERE) && !self.flags.has(EntryFlags::OWN)
    }

    /// Records that only a read position passed it, until another mark is made.
    pub(in crate::index) fn set_only_passed(&mut self) {
        self.flags.set(EntryFlags::OWN, false);
        self.flags.set(EntryFlags::READ_HERE, true);
    }

    /// Records that msgfs made or cleared its mark; `here` means by reading in this process.
    pub(in crate::index) fn set_own_mark(&mut self, here: bool) {
        self.flags.set(EntryFlags::OWN, true);
        self.flags.set(EntryFlags::READ_HERE, here);
    }

    /// Sets whether it counts as read.
    pub(in crate::index) fn set_read(&mut self, read: bool) {
        self.flags.set(EntryFlags::READ, read);
    }

    /// Returns true if it counts as unread mail to me.
    pub fn is_unread(&self) -> bool {
        self.is_to_me() && !self.is_read()
    }

    /// Returns the 56-bit identity that the message's inode numbers are made from.
    pub fn identity(&self) -> u64 {
        self.hash & IDENTITY_MASK
    }

    /// Returns the number of its store.
    pub fn store(&self) -> usize {
        self.source.store()
    }

    /// Returns its location in that store.
    pub fn location(&self) -> Location {
        Location { source: self.source.file(), offset: self.offset, len: self.len }
    }

    /// Returns true if it is live and addressed to me.
    pub fn is_to_me(&self) -> bool {
        self.flags.has(EntryFlags::TO_ME) && self.is_live()
    }

    /// Returns true if it is live and written by me.
    pub fn is_from_me(&self) -> bool {
        self.flags.has(EntryFlags::FROM_ME) && self.is_live()
    }

    /// Returns true if it is in the store and not rejected.
    pub fn is_live(&self) -> bool {
        !self.flags.has(EntryFlags::GONE) && !self.flags.has(EntryFlags::REJECTED)
    }

    /// Returns true if it is marked read.
    pub fn is_read(&self) -> bool {
        self.flags.has(EntryFlags::READ)
    }

    /// Returns true if it has attachments ([`PartReader`](crate::store::PartReader)).
    pub fn has_parts(&self) -> bool {
        self.flags.has(EntryFlags::PARTS)
    }

    /// Returns true if it was marked by reading while this process runs.
    pub fn is_read_here(&self) -> bool {
        self.flags.has(EntryFlags::READ_HERE) && self.flags.has(EntryFlags::OWN)
    }

    /// Returns true if the message looks in a view as it did when `seen` was copied: same location and store,
    /// same thread, same signature.
    pub fn has_same_appearance(&self, seen: &Self) -> bool {
        self.location() == seen.location()
            && self.store() == seen.store()
            && self.thread == seen.thread
            && self.flags.signature() == seen.flags.signature()
    }

    /// Returns the length of the rendered file, if its store reported it or it was rendered before.
    pub fn size(&self) -> Option<u64> {
        (self.size != 0).then_some(u64::from(self.size))
    }
}

/// An odd factor, so that multiplication by it is reversible.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// Its inverse modulo 2^64.
const UNMIX: u64 = 0xf1de_83e1_9937_733d;

/// Returns the hash of a message with a hex id. It differs for each writer, and [`unmix_id`] reverses it.
pub(in crate::index) fn mix_id(id: u64, salt: u64) -> u64 {
    (id ^ salt).wrapping_mul(MIX).rotate_left(29)
}

/// Returns the hash of a message, unless another message has it. `hex` is the value of an id of 16 hex digits.
pub(super) fn hash_message_id(salt: u64, id: &str, hex: Option<u64>) -> u64 {
    hex.map_or_else(|| stable_hash(salt, &[id]), |value| mix_id(value, salt))
}

/// Returns the id that [`mix_id`] got.
pub(in crate::index) fn unmix_id(hash: u64, salt: u64) -> u64 {
    hash.rotate_right(29).wrapping_mul(UNMIX) ^ salt
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Fingerprint, SignatureState};
    use proptest::prelude::*;

    #[test]
    fn an_entry_is_small() {
        assert_eq!(size_of::<IndexEntry>(), 56);
    }

    #[test]
    fn what_is_said_of_a_signature_has_its_length() {
        let print = Fingerprint([0; 8]);
        for (sig, state) in [
            (SignatureKind::None, SignatureState::None),
            (SignatureKind::Valid, SignatureState::Valid(print)),
            (SignatureKind::Unknown, SignatureState::Unknown),
            (SignatureKind::Missing, SignatureState::Missing(print)),
        ] {
            assert_eq!(sig.rendered_len() as usize, state.to_string().len());
        }
    }

    proptest! {
        #[test]
        fn mixing_can_be_undone(id: u64, salt: u64) {
            prop_assert_eq!(unmix_id(mix_id(id, salt), salt), id);
        }

        #[test]
        fn signature_states_are_kept(key in 0usize..40, bits: u16) {
            let mut flags = EntryFlags(bits);
            for sig in [SignatureKind::None, SignatureKind::Valid, SignatureKind::Unknown, SignatureKind::Missing] {
                flags.set_signature(sig, key);
                prop_assert_eq!(flags.signature(), (sig, key.min(MANY_KEYS)));
                prop_assert_eq!(flags.0 & 0xcff, bits & 0xcff);
            }
        }
    }
}
