//! Unsigned messages of writers who sign: `Signature: missing`.
//!
//! A message counts as one whose signature is missing if its writer validly signed one that stands
//! before it in the order of the store, whenever either of them came. So it is the same after the
//! snapshot is lost. What has to be known for that is one message a writer: the first it signed.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::core::Core;
use super::entry::{MsgIx, Sig};
use super::source::Bits;

impl Core {
    /// Notes that a message is not signed.
    pub(super) fn note_unsigned(&mut self, ix: MsgIx) {
        let Some(writer) = self.entry(ix).map(|e| e.writer) else { return };
        let (sig, key) = self.unsigned_after(self.first_signed(writer), ix);
        self.set_signature(ix, sig, key);
    }

    /// Notes that what decides about the unsigned messages of its writer may be different, because
    /// this one's signature, place or presence is.
    pub(super) fn first_may_differ(&mut self, ix: MsgIx) {
        let Some(entry) = self.entry(ix) else { return };
        let first = self.first_signed(entry.writer);
        let counts = entry.is_live() && entry.flags.signature().0 == Sig::Valid;
        let before = || first.is_none_or(|first| self.order(ix, first) == Ordering::Less);
        if first == Some(ix) || counts && before() {
            let writer = entry.writer;
            self.resigned.insert(writer);
        }
    }

    /// Draws the consequences of [`Core::first_may_differ`], after a bulk load for every writer. The
    /// messages that are shown differently.
    pub(super) fn find_missing(&mut self, everybody: bool) -> Vec<MsgIx> {
        if everybody {
            self.resigned = (0u32..).zip(&self.writers).map(|(number, _)| number).collect();
        }
        let writers = std::mem::take(&mut self.resigned);
        if writers.is_empty() {
            return Vec::new();
        }
        let firsts = self.find_first(&writers.iter().collect());
        let mut sign = Vec::new();
        for number in &writers {
            if let Some(writer) = self.writers.get_mut(*number as usize) {
                let first = firsts.get(number).copied();
                let before = std::mem::replace(&mut writer.first_signed, first);
                sign.extend(before.or(first).map(|_| number));
            }
        }
        // Of who never signed nothing is missing.
        if sign.is_empty() {
            return Vec::new();
        }
        let among: Bits = sign.into_iter().collect();
        let mut redrawn = Vec::new();
        for ix in 0..self.entries.len() as MsgIx {
            let Some(entry) = self.entry(ix).filter(|e| e.is_live()) else { continue };
            let unsigned = matches!(entry.flags.signature().0, Sig::None | Sig::Missing);
            if !unsigned || !among.has(entry.writer) {
                continue;
            }
            let after = self.unsigned_after(firsts.get(&entry.writer).copied(), ix);
            let before = self.signed_by(ix);
            if before != after {
                self.set_signature(ix, after.0, after.1);
                self.redraw(ix);
                redrawn.push(ix);
            }
        }
        redrawn
    }

    /// The first message that each of these writers validly signed.
    fn find_first(&self, writers: &Bits) -> HashMap<u32, MsgIx> {
        let mut firsts: HashMap<u32, MsgIx> = HashMap::new();
        for (ix, entry) in (0u32..).zip(&self.entries) {
            let counts = entry.is_live() && entry.flags.signature().0 == Sig::Valid;
            if !counts || !writers.has(entry.writer) {
                continue;
            }
            let first = firsts.entry(entry.writer).or_insert(ix);
            if self.order(ix, *first) == Ordering::Less {
                *first = ix;
            }
        }
        firsts
    }

    fn first_signed(&self, writer: u32) -> Option<MsgIx> {
        self.writers.get(writer as usize)?.first_signed
    }

    /// What an unsigned message is called, and the key that its writer signs with.
    fn unsigned_after(&self, first: Option<MsgIx>, ix: MsgIx) -> (Sig, usize) {
        let roles = |ix| {
            let store = self.entry(ix).and_then(|e| self.stores.get(e.store()));
            store.is_some_and(|store| store.roles)
        };
        match first {
            Some(first) if self.order(first, ix) == Ordering::Less && !roles(ix) => {
                (Sig::Missing, self.signed_by(first).1)
            }
            _ => (Sig::None, 0),
        }
    }
}
