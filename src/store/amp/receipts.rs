//! The proofs that a message of mine has arrived: the file in the mailbox of an agent of this host, and what a link
//! says.

use serde_json::Value;

use super::envelope::{self, AmpMessage, ReadState};
use super::facts::{self, AmpFacts};
use super::limits::FILE_BYTES;
use super::multicast::AmpMulticast;
use super::roster::{AmpRecipient, Roster};
use super::{AmpStore, address};
use crate::model::{DeliveryState, Timestamp};
use crate::store::text::time::parse_time;
use crate::store::{DeliveryFate, Receipt, SentMessage, StoreError, confined};

impl AmpStore {
    /// Returns the states that can be proven for a message to this recipient.
    pub(super) fn list_provable_states(&self, to: &str) -> Vec<DeliveryState> {
        use DeliveryState::{Answered, Delivered, Read, Refused, Stored, Told, Waiting};
        let roster = self.format.home.recent_roster();
        let is_here = roster.is_ok_and(|roster| {
            matches!(roster.resolve_recipient(to), Ok(AmpRecipient::Local(..)))
        });
        if is_here {
            vec![Waiting, Stored, Delivered, Told, Read, Answered]
        } else {
            vec![Waiting, Stored, Delivered, Answered, Refused]
        }
    }

    /// Returns what is proven of each of these messages.
    pub(super) fn find_message_receipts(&self, sent: &[SentMessage<'_>]) -> Vec<Receipt> {
        let Ok(roster) = self.format.home.recent_roster() else {
            return sent.iter().map(|_| Receipt::default()).collect();
        };
        let receipt = |one: &SentMessage<'_>| {
            let found = self.with_stored_message(one.at.source, |stored, facts| {
                Ok(self.find_message_receipt(&roster, one, stored, facts))
            });
            found.unwrap_or_default()
        };
        sent.iter().map(receipt).collect()
    }

    fn with_stored_message<T>(
        &self,
        source: u32,
        use_it: impl Fn(&AmpMessage<'_>, &AmpFacts) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.with_message(source, |stored, _, stamp, _| {
            use_it(stored, &facts::collect_facts(stored, stamp, Timestamp::now()))
        })
    }

    fn find_message_receipt(
        &self,
        roster: &Roster,
        one: &SentMessage<'_>,
        stored: &AmpMessage<'_>,
        facts: &AmpFacts,
    ) -> Receipt {
        let several = AmpMulticast::from_stored(stored, facts);
        let id = several.map_or_else(|| stored.id.to_string(), |all| all.message_id_for(one.to));
        let record_id = one.has_others.then(|| id.clone());
        let here = find_local_copy(roster, one.to, stored, facts, &id);
        let fate = || self.format.router.delivery_fate(&id, one.to);
        // The id that a provider gave it lies in the file when the link has forgotten the message.
        let is_taken = stored.id == id && stored.relayed_id.is_some();
        let taken = || is_taken.then_some(DeliveryFate::Taken);
        let proof = here.or_else(|| fate().or_else(taken).map(Receipt::of_fate));
        Receipt { record_id, ..proof.unwrap_or_default() }
    }
}

/// Returns the proof in the mailbox of a recipient on this host. A file counts only if it holds the same message.
fn find_local_copy(
    roster: &Roster,
    to: &str,
    stored: &AmpMessage<'_>,
    facts: &AmpFacts,
    id: &str,
) -> Option<Receipt> {
    let Ok(AmpRecipient::Local(agent, _)) = roster.resolve_recipient(to) else { return None };
    let (sender, name) = (address::correspondent_folder(&stored.from), format!("{id}.json"));
    let file = confined::open_path(&agent.dir, &["messages", "inbox", &sender, &name]).ok()?;
    let (stamp, bytes) = confined::read_whole(&file, FILE_BYTES + 1).ok()?;
    let theirs = envelope::parse(&bytes).ok()?;
    let their_facts = facts::collect_facts(&theirs, &stamp, Timestamp::now());
    let is_same = if stored.id == id {
        their_facts.table_facts.is_same_message(&facts.table_facts)
    } else {
        // The id of a message to several follows from its text.
        theirs.id == id && AmpMulticast::from_stored(&theirs, &their_facts).is_some()
    };
    if !is_same {
        return None;
    }
    let written = stamp.modified();
    Some(if theirs.status.is_some_and(ReadState::is_read) {
        Receipt::of_state(DeliveryState::Read, Some(read_time(&bytes).unwrap_or(written)))
    } else {
        let received = theirs.received_at.as_deref().and_then(parse_time);
        Receipt::of_state(DeliveryState::Delivered, Some(received.unwrap_or(written)))
    })
}

/// Returns the time in `local.read_at`.
fn read_time(bytes: &[u8]) -> Option<Timestamp> {
    let all: Value = serde_json::from_slice(bytes).ok()?;
    parse_time(all.get("local")?.get("read_at")?.as_str()?)
}
