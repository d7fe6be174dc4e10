//! Claiming what was read: from `new/` to `cur/`, and the receipt for which its sender may be waiting
//! (docs/formats/amq.md, section 5).
//!
//! The receipt is written first where only msgfs looks, and gets its name once the message is claimed.
//! So a process that is killed between the two leaves what the next one needs to do the rest.

use std::path::PathBuf;

use serde_json::json;

use super::AmqStore;
use super::message::{self, AmqJsonFields};
use super::queue::AmqFolderKind;
use crate::model::Timestamp;
use crate::store::digest::secure_hash64;
use crate::store::engine::files::PlaceOutcome;
use crate::store::{DeliveryQueue, Location, ReadMarks, Store as _, StoreError};

/// The folder of receipts whose messages are about to be claimed.
const CLAIMS: &str = "extensions/msgfs";
/// A claim takes less than this.
const UNDER_WAY_MS: i64 = 60_000;

impl ReadMarks for AmqStore {
    fn should_write_first(&self) -> bool {
        true
    }

    /// Claims a message of mine that was read, in every file that holds it, and tells its sender;
    /// whether it is claimed now.
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
        let receipt: AmqJsonFields<'_> = vec![
            ("schema", json!(1)),
            ("msg_id", json!(shown.id)),
            ("thread", json!(shown.thread)),
            ("sender", json!(shown.from)),
            ("consumer", json!(me)),
            ("stage", json!("drained")),
            ("emitted_at", json!(Timestamp::now().rfc3339_short())),
        ];
        let text = message::print_json(&receipt) + "\n";
        let receipt = format!("{}__{me}__drained.json", shown.id);
        // One that is there is from a claim that could not be made, or from one under way elsewhere.
        let begun = claims.create_file(&receipt, text.as_bytes())?;
        // A name that is in both is left alone: every later reader stops there anyway, and a person
        // must look at it. One that is gone was claimed by somebody else.
        let moved: Result<Vec<PlaceOutcome>, _> =
            names.iter().map(|name| cur.move_from(&new, name)).collect();
        let moved = moved?;
        let claimed = moved.contains(&PlaceOutcome::Done);
        if claimed && receipts.move_from(&claims, &receipt)? == PlaceOutcome::Gone {
            // Another process that was slower took away what it had begun.
            receipts.create_file(&receipt, text.as_bytes())?;
        }
        if claimed || begun == PlaceOutcome::Done {
            claims.remove_file(&receipt)?;
        }
        if moved == [PlaceOutcome::Gone] {
            Err(StoreError::Moved)
        } else {
            Ok(claimed || is_claimed)
        }
    }
}

impl DeliveryQueue for AmqStore {
    /// Does the rest for claims that were begun by a process that was killed; whether there were any.
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
            // Another process may be just about to claim it.
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
