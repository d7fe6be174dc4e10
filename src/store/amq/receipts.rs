//! The proofs that a message of mine has arrived: the folder of the recipient's mailbox in which it lies, and the
//! receipt of its claim (docs/formats/amq.md, section 5).

use serde_json::Value;

use super::{AmqStore, message};
use crate::model::{DeliveryState, Timestamp, plain_id};
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
    /// Returns what is proven of a message for one recipient. Files count by their content, which the table knows.
    pub(super) fn find_message_receipt(&self, one: &SentMessage<'_>) -> Receipt {
        if !message::is_handle(one.to) {
            return Receipt::default();
        }
        let (mut new, mut cur) = (None, None);
        {
            let table = self.table.read();
            let inbox = format!("agents/{}/inbox/", one.to);
            for (_, n) in self.format.find_copies(&table, one.at.source) {
                match table.folder(n).strip_prefix(&inbox) {
                    Some("new") => new = Some(table.name(n).to_owned()),
                    Some("cur") => cur = Some(table.name(n).to_owned()),
                    _ => {}
                }
            }
        }
        // A program that claims a file leaves the name in `new/` free.
        if cur.is_some() || new.is_none() {
            let claim = self.read_claim(one.id, one.to);
            if cur.is_some() || claim.is_some() {
                let since = claim.and_then(|claim| claim.time);
                return Receipt::of_state(DeliveryState::Read, since);
            }
        }
        let Some(name) = new else { return Receipt::default() };
        let folder = self.open_mailbox_folder(one.to, "inbox/new").ok();
        let since = folder.and_then(|folder| folder.modified_time(&name));
        Receipt::of_state(DeliveryState::Delivered, since)
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
