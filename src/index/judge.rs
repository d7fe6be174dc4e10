//! Trust: what the signature of a message is worth.

use std::collections::HashSet;

use super::apply::log_reject;
use super::core::Core;
use super::entry::{Entry, Flags, MsgIx, Sig};
use super::{Changes, Index};
use crate::identity::{Keyring, Verdict};
use crate::model::{Claim, ClaimScope, PublicKey, Unsigned, verify};
use crate::store::{Rejected, Store};

/// Trust decisions for one store.
pub(super) struct Judge<'a> {
    pub keyring: &'a Keyring,
    pub unsigned: Unsigned,
    pub store: &'a str,
    /// Who I am in the store.
    pub me: &'a str,
    /// The key that signs what I send there.
    pub my_key: Option<PublicKey>,
    /// Its addresses are roles ([`Store::roles`]).
    pub roles: bool,
}

/// A message as far as trust asks for it.
#[derive(Clone, Copy)]
pub(super) struct Judged<'a> {
    pub from: &'a str,
    /// The store knows that I wrote it.
    pub from_me: bool,
    pub claim: Option<&'a Claim>,
    /// Its writer had validly signed an earlier one.
    pub signed_before: bool,
}

/// What became of a message's signature.
pub(super) enum Judgement {
    Accepted(Sig, Option<PublicKey>),
    Refused(String),
}

impl Judge<'_> {
    /// Decides about a message (contract, section 7).
    pub fn judge(&self, message: Judged<'_>) -> Judgement {
        if self.roles {
            return self.judge_role(message);
        }
        let bare = if message.signed_before { Sig::Missing } else { Sig::None };
        let Some(claim) = message.claim else { return self.unsigned(message, bare) };
        match self.keyring.judge(message.from, self.store, claim) {
            Verdict::Valid(key) => Judgement::Accepted(Sig::Valid, Some(key)),
            // My own key needs no pin: nobody else can have it.
            Verdict::Rejected(_) | Verdict::Unknown if self.is_mine(message, claim) => {
                Judgement::Accepted(Sig::Valid, self.my_key)
            }
            Verdict::Unknown if is_part(claim) => self.unsigned(message, bare),
            Verdict::Unknown => self.unsigned(message, Sig::Unknown),
            Verdict::Rejected(reason) => Judgement::Refused(reason),
        }
    }

    /// The same where several may fill a role: whoever holds the key that a signature carries wrote
    /// the message, that one key says nothing of the next message, and none is pinned.
    fn judge_role(&self, message: Judged<'_>) -> Judgement {
        let Some(claim) = message.claim.filter(|claim| !is_part(claim)) else {
            return self.unsigned_role(message, Sig::None);
        };
        match (verify::fault(claim), claim) {
            (Some(reason), _) => Judgement::Refused(reason),
            (None, Claim::Signed { key: Some(key), .. }) => {
                Judgement::Accepted(Sig::Valid, Some(*key))
            }
            (None, _) => self.unsigned_role(message, Sig::Unknown),
        }
    }

    /// Nobody has a pinned key, so that only a policy against all unsigned mail refuses any.
    fn unsigned_role(&self, message: Judged<'_>, sig: Sig) -> Judgement {
        if message.from_me || self.unsigned != Unsigned::Refuse {
            return Judgement::Accepted(sig, None);
        }
        self.refuse_unsigned(sig, false)
    }

    fn is_mine(&self, message: Judged<'_>, claim: &Claim) -> bool {
        let says_so = message.from_me || message.from == self.me;
        says_so && self.my_key.is_some_and(|key| verify::verify_claim(&key, claim))
    }

    fn unsigned(&self, message: Judged<'_>, sig: Sig) -> Judgement {
        let pinned = || message.signed_before || self.keyring.pinned_by_hand(message.from);
        let refused = !message.from_me
            && match self.unsigned {
                Unsigned::Accept => false,
                Unsigned::Known => pinned(),
                Unsigned::Refuse => true,
            };
        if !refused {
            return Judgement::Accepted(sig, None);
        }
        self.refuse_unsigned(sig, pinned())
    }

    fn refuse_unsigned(&self, sig: Sig, pinned: bool) -> Judgement {
        let what =
            if sig == Sig::Unknown { "signed by a key nobody vouches for" } else { "not signed" };
        Judgement::Refused(format!(
            "it is {what}, and the configuration says unsigned = \"{}\"{}",
            self.unsigned,
            if pinned { "; this sender has a pinned key" } else { "" }
        ))
    }
}

/// The signature speaks for a part of the text only.
fn is_part(claim: &Claim) -> bool {
    matches!(claim, Claim::Signed { scope: ClaimScope::Part, .. })
}

impl Index {
    /// Judges again, after the keyring changed, what was refused and what was signed by a key that
    /// nobody vouched for.
    pub fn judge_again(&self) {
        let refused: Vec<MsgIx> = {
            let core = self.core.read();
            core.rejects().filter_map(|(_, r)| r.message).collect()
        };
        let unvouched: Vec<MsgIx> = self.core.read().unvouched.iter().copied().collect();
        self.judge_each_again(refused.into_iter().chain(unvouched));
    }

    /// Judges again what was signed by those whose first key was pinned a moment ago, and nobody
    /// vouched for: what is said of a message must not depend on the order in which they came.
    pub(super) fn judge_first_uses(&self) {
        let pinned = self.keyring.take_first_uses();
        let theirs: Vec<MsgIx> = {
            let core = self.core.read();
            if pinned.is_empty() || core.unvouched.is_empty() {
                return;
            }
            let pinned: HashSet<&str> = pinned.iter().map(String::as_str).collect();
            let by_them =
                |ix: &MsgIx| core.entry(*ix).is_some_and(|e| pinned.contains(core.from(e)));
            core.unvouched.iter().copied().filter(by_them).collect()
        };
        if !theirs.is_empty() {
            self.judge_each_again(theirs);
        }
    }

    fn judge_each_again(&self, candidates: impl IntoIterator<Item = MsgIx>) {
        let mut changes = Changes::default();
        for ix in candidates {
            self.judge_one_again(ix, &mut changes);
        }
        let moved = self.core.write().relink();
        changes.moved.extend(moved);
        self.save_pins();
        self.publish(&changes);
    }

    fn judge_one_again(&self, ix: MsgIx, changes: &mut Changes) {
        let Some(entry) = self.core.read().entry(ix).copied() else { return };
        let Some(store) = self.store_of(&entry) else { return };
        let Ok(record) = store.read(&entry.location()) else { return };
        let mut core = self.core.write();
        let refused = entry.flags.has(Flags::REJECTED);
        // It was read without a lock: meanwhile it may have been judged, or be another file.
        let same = core.entry(ix).is_some_and(|now| {
            let state =
                |e: &Entry| (e.location(), e.flags.has(Flags::REJECTED), e.flags.signature());
            state(now) == state(&entry)
        });
        if !same || entry.flags.has(Flags::GONE) || (!refused && record.claim.is_none()) {
            return;
        }
        let judgement = self.judge(entry.store()).judge(Judged {
            from: core.from(&entry),
            from_me: entry.flags.has(Flags::FROM_ME),
            claim: record.claim.as_ref(),
            signed_before: core.has_signed(ix)
                && (refused || entry.flags.signature().0 != Sig::None),
        });
        match judgement {
            Judgement::Accepted(sig, key) => {
                core.note_unvouched(ix, record.claim.is_some() && sig != Sig::Valid);
                if refused {
                    core.accept_rejected(ix, sig, key);
                    changes.added.push(ix);
                } else {
                    let before = core.signed_by(ix);
                    core.note_signature(ix, sig, key);
                    if core.signature_changed(ix, before) {
                        changes.redrawn.push(ix);
                    }
                }
            }
            Judgement::Refused(reason) if !refused => {
                refuse_late(&mut core, store.as_ref(), ix, &entry, reason);
                changes.removed.push(ix);
                changes.other = true;
            }
            Judgement::Refused(_) => {}
        }
    }
}

/// Moves a message that was shown to `rejected/`.
fn refuse_late(core: &mut Core, store: &dyn Store, ix: MsgIx, entry: &Entry, reason: String) {
    let path = store.source_path_or_number(entry.location().source);
    log_reject(store, &path, 0, &reason);
    core.note_unvouched(ix, false);
    core.withhold(ix);
    core.link_may_differ(ix);
    let rejected =
        Rejected { at: entry.location(), line: 0, reason, time: entry.time(), incomplete: false };
    core.add_reject(entry.store(), rejected, &path, Some(ix));
}

#[cfg(test)]
mod tests;
