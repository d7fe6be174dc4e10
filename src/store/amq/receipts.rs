//! The proofs that a message of mine has arrived: the folder of the recipient's mailbox in which it lies, and the
//! receipt of its claim (docs/formats/amq.md, section 5).

use std::collections::BTreeSet;

use serde_json::Value;

use super::AmqStore;
use super::message::{self, FILE_BYTES};
use crate::model::{DeliveryState, Timestamp, plain_id};
use crate::store::digest::secure_hash64;
use crate::store::text::time::parse_time;
use crate::store::{Receipt, SentMessage};

/// The largest receipt that is read, in bytes.
const LARGEST: usize = 64 << 10;

/// A receipt for a claimed message.
struct AmqClaim {
    /// The time of the claim, if the receipt tells it.
    time: Option<Timestamp>,
}

impl AmqStore {
    /// Returns what is proven of a message for one recipient, by the files that its mailbox has now.
    pub(super) fn find_message_receipt(&self, one: &SentMessage<'_>) -> Receipt {
        if !message::is_handle(one.to) {
            return Receipt::default();
        }
        let copies = self.list_copies(one.at.source);
        let look = |leaf| self.find_copy_time(one.to, leaf, copies.as_ref()?);
        // This is the order in which a claim moves a file.
        let [new, cur] = ["inbox/new", "inbox/cur"].map(look);
        // A program that claims a file leaves the name in `new/` free.
        if cur.is_some() || new.is_none() {
            let claim = self.read_claim(one.id, one.to);
            if cur.is_some() || claim.is_some() {
                let since = claim.and_then(|claim| claim.time);
                return Receipt::of_state(DeliveryState::Read, since);
            }
        }
        let delivered = |since| Receipt::of_state(DeliveryState::Delivered, Some(since));
        new.map_or_else(Receipt::default, delivered)
    }

    /// Returns the hash of the bytes of a message, and the names of its copies. The table does not know whether a file
    /// has changed since the last scan.
    fn list_copies(&self, source: u32) -> Option<(u64, BTreeSet<String>)> {
        let table = self.table.read();
        let copies = self.format.find_copies(&table, source).into_iter();
        let names = copies.map(|(_, n)| table.name(n).to_owned()).collect();
        Some((table.facts(source)?.content, names))
    }

    /// Returns the time of the file in a folder of a recipient that has one of these names and the bytes of this hash,
    /// if there is one.
    fn find_copy_time(
        &self,
        to: &str,
        leaf: &str,
        (content, names): &(u64, BTreeSet<String>),
    ) -> Option<Timestamp> {
        let folder = self.open_mailbox_folder(to, leaf).ok()?;
        names.iter().find_map(|name| {
            let bytes = folder.read_file(name, FILE_BYTES + 1).ok().flatten()?;
            (secure_hash64(&bytes) == *content).then(|| folder.modified_time(name)).flatten()
        })
    }

    /// Returns what the receipt of a recipient for a message says; `None` if there is no such receipt.
    fn read_claim(&self, id: &str, to: &str) -> Option<AmqClaim> {
        // A receipt does not tell messages of one id apart.
        let plain = Some(plain_id(id)).filter(|plain| *plain == id)?;
        let receipts = self.open_mailbox_folder(to, "receipts").ok()?;
        let name = format!("{plain}__{to}__drained.json");
        let bytes = receipts.read_file(&name, LARGEST).ok().flatten()?;
        let receipt: Value = serde_json::from_slice(&bytes).ok()?;
        let says = |member: &str| receipt.get(member).and_then(Value::as_str);
        let is_it = says("msg_id") == Some(plain)
            && says("consumer") == Some(to)
            && says("stage") == Some("drained");
        is_it.then(|| AmqClaim { time: says("emitted_at").and_then(parse_time) })
    }
}
