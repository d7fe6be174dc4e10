//! The claim of a read message: the move from `new/` to `cur/`, and the receipt for which its sender may wait
//! (docs/formats/amq.md, section 5).
//!
//! The receipt is first written where only msgfs looks, and gets its name after the claim. If a process is killed
//! between the two, the next one can finish the work.

use std::path::PathBuf;

use serde_json::json;

use super::AmqStore;
use super::format::AmqFolderKind;
use super::message::{self, AmqJsonFields};
use crate::model::{Message, Timestamp, sanitize_line};
use crate::store::digest::secure_hash64;
use crate::store::engine::files::PlaceOutcome;
use crate::store::{DeliveryQueue, Location, Store as _, StoreError, StoreMarks, confined};

/// The folder of receipts whose messages are about to be claimed.
const CLAIMS: &str = "extensions/msgfs";
/// The longest time of a claim, in milliseconds.
const UNDER_WAY_MS: i64 = 60_000;

impl StoreMarks for AmqStore {
    fn should_write_first(&self) -> bool {
        true
    }

    /// Claims a read message of mine in every file that holds it, and writes a receipt for its sender. Returns true if
    /// it is claimed now. There is no receipt if its name would be too long for a file.
    fn write_mark(&self, at: &Location, read: bool) -> Result<bool, StoreError> {
        if !read {
            return Ok(false);
        }
        let _one = self.format.claim_lock.lock();
        let shown = self.read_message_in(&self.find_file(at.source)?)?.message;
        let (names, is_claimed) = {
            let table = self.table.read();
            let copies = self.format.find_copies(&table, at.source);
            let is_claimed = copies.iter().any(|(place, _)| *place == AmqFolderKind::Cur);
            let new = copies.iter().filter(|(place, _)| *place == AmqFolderKind::New);
            (new.map(|(_, n)| table.name(*n).to_owned()).collect::<Vec<_>>(), is_claimed)
        };
        if names.is_empty() {
            return Ok(is_claimed);
        }
        let me = self.me();
        let (new, cur) = (
            self.open_mailbox_folder(me, "inbox/new")?,
            self.open_mailbox_folder(me, "inbox/cur")?,
        );
        let receipts = self.open_mailbox_folder(me, "receipts")?;
        let claims = self.make_folder(&format!("agents/{me}/{CLAIMS}"))?;
        let text = self.compose_receipt(&shown);
        let receipt = format!("{}__{me}__drained.json", shown.id);
        let receipt = Some(receipt).filter(|name| confined::is_component(name));
        // An existing receipt comes from a failed claim, or from one under way elsewhere.
        let begin = |name: &String| claims.create_file(name, text.as_bytes());
        let begun = receipt.as_ref().map(begin).transpose()?;
        // A name that is in both folders is left alone: every later reader stops there anyway, and a person must look
        // at it. If the file is gone, another process claimed it.
        let moved: Result<Vec<PlaceOutcome>, _> =
            names.iter().map(|name| cur.move_from(&new, name)).collect();
        let moved = moved?;
        let claimed = moved.contains(&PlaceOutcome::Done);
        if let Some(receipt) = &receipt {
            if claimed && receipts.move_from(&claims, receipt)? == PlaceOutcome::Gone {
                // A slower process removed its own receipt.
                receipts.create_file(receipt, text.as_bytes())?;
            }
            if claimed || begun == Some(PlaceOutcome::Done) {
                claims.remove_file(receipt)?;
            }
        } else if claimed {
            let id = sanitize_line(&shown.id);
            tracing::warn!(%id, "its sender gets no receipt: the name of the file would be too long");
        }
        if claimed || is_claimed {
            return Ok(true);
        }
        let clash = names.iter().zip(&moved).find(|(_, moved)| **moved == PlaceOutcome::NameTaken);
        Err(clash.map_or(StoreError::Moved, |(name, _)| {
            StoreError::Invalid(self.format.describe_name_clash(name))
        }))
    }
}

impl AmqStore {
    /// Returns the content of the receipt for a message that is claimed now.
    fn compose_receipt(&self, shown: &Message) -> String {
        let receipt: AmqJsonFields<'_> = vec![
            ("schema", json!(1)),
            ("msg_id", json!(shown.id)),
            ("thread", json!(shown.thread)),
            ("sender", json!(shown.from)),
            ("consumer", json!(self.me())),
            ("stage", json!("drained")),
            ("emitted_at", json!(Timestamp::now().rfc3339_short())),
        ];
        message::print_json(&receipt) + "\n"
    }
}

impl DeliveryQueue for AmqStore {
    /// Finishes the claims of killed processes. Returns true if there were any.
    fn deliver_waiting(&self) -> Result<bool, StoreError> {
        let _one = self.format.claim_lock.lock();
        let Ok(claims) = self.open_mailbox_folder(self.me(), CLAIMS) else { return Ok(false) };
        let (mut done, end) = (false, format!("__{}__drained.json", self.me()));
        for name in claims.list_names()? {
            let Some(id) = name.strip_suffix(&end) else { continue };
            let claimed = {
                let table = self.table.read();
                let found = table.files_with_key(0, secure_hash64(id.as_bytes()));
                let copies = found.iter().flat_map(|n| self.format.find_copies(&table, *n));
                copies.map(|(place, _)| place).any(|place| place == AmqFolderKind::Cur)
            };
            // Another process may be about to claim it.
            let young = |at: Timestamp| at.plus_millis(UNDER_WAY_MS) > Timestamp::now();
            if claimed {
                self.open_mailbox_folder(self.me(), "receipts")?.move_from(&claims, &name)?;
            } else if claims.modified_time(&name).is_none_or(young) {
                continue;
            }
            claims.remove_file(&name)?;
            done = true;
        }
        Ok(done)
    }

    fn folders_to_sweep(&self) -> Vec<PathBuf> {
        vec![self.properties.dir.join(format!("agents/{}/{CLAIMS}", self.me()))]
    }
}
