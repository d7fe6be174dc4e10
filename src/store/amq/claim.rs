//! Claiming what was read: from `new/` to `cur/`, and the receipt for which its sender may be waiting
//! (docs/formats/amq.md, section 5).
//!
//! The receipt is written first where only msgfs looks, and gets its name once the message is claimed.
//! So a process that is killed between the two leaves what the next one needs to do the rest.

use std::path::PathBuf;

use serde_json::json;

use super::Amq;
use super::message::{self, Printed};
use super::queue::{Place, Queue};
use crate::model::Timestamp;
use crate::store::digest::print;
use crate::store::engine::files::{Folder, Put};
use crate::store::{Deliveries, Location, Marks, Store as _, StoreError};

/// The folder of receipts whose messages are about to be claimed.
const CLAIMS: &str = "extensions/msgfs";

impl Marks for Amq {
    /// Claims a message of mine that was read, in every file that holds it, and tells its sender;
    /// whether it is claimed now.
    fn tell(&self, at: &Location, read: bool) -> Result<bool, StoreError> {
        if !read {
            return Ok(false);
        }
        let _one = self.format.claiming.lock();
        let shown = self.message_in(&self.file(at.source)?)?.shown;
        let (names, is_claimed) = {
            let table = self.table.read();
            let copies = self.format.copies(&table, at.source);
            let is_claimed = copies.iter().any(|(place, _)| *place == Place::Cur);
            let new = copies.iter().filter(|(place, _)| *place == Place::New);
            (new.map(|(_, n)| table.name(*n).to_owned()).collect::<Vec<_>>(), is_claimed)
        };
        if names.is_empty() {
            return Ok(is_claimed);
        }
        let me = self.me();
        let (new, cur) = (self.leaf(me, "inbox/new")?, self.leaf(me, "inbox/cur")?);
        let receipts = self.leaf(me, "receipts")?;
        let claims = self.make_folder(&format!("agents/{me}/{CLAIMS}"))?;
        let receipt: Printed<'_> = vec![
            ("schema", json!(1)),
            ("msg_id", json!(shown.id)),
            ("thread", json!(shown.thread)),
            ("sender", json!(shown.from)),
            ("consumer", json!(me)),
            ("stage", json!("drained")),
            ("emitted_at", json!(message::time_text(Timestamp::now()))),
        ];
        let text = message::print(&receipt) + "\n";
        let receipt = format!("{}{}", shown.id, self.receipt_end());
        // One that is there is from a claim that could not be made.
        claims.put(&receipt, text.as_bytes())?;
        // A name that is in both is left alone: every later reader stops there anyway, and a person
        // must look at it. One that is gone was claimed by somebody else.
        let moved: Result<Vec<Put>, _> = names.iter().map(|name| cur.take(&new, name)).collect();
        let moved = moved?;
        let claimed = moved.contains(&Put::Done);
        settle(&claims, &receipts, &receipt, claimed)?;
        if moved == [Put::Gone] { Err(StoreError::Moved) } else { Ok(claimed || is_claimed) }
    }
}

impl Deliveries for Amq {
    /// Does the rest for claims that were begun by a process that was killed; whether there were any.
    fn deliver(&self) -> Result<bool, StoreError> {
        let _one = self.format.claiming.lock();
        let Ok(claims) = self.leaf(self.me(), CLAIMS) else { return Ok(false) };
        let mut done = false;
        for name in claims.names()? {
            let Some(id) = name.strip_suffix(&self.receipt_end()) else { continue };
            let claimed = {
                let table = self.table.read();
                let found = table.with_key(0, print(id.as_bytes()));
                let copies = found.iter().flat_map(|n| self.format.copies(&table, *n));
                copies.map(|(place, _)| place).any(|place| place == Place::Cur)
            };
            settle(&claims, &self.leaf(self.me(), "receipts")?, &name, claimed)?;
            done = true;
        }
        Ok(done)
    }

    fn written(&self) -> Vec<PathBuf> {
        vec![self.about.dir.join(format!("agents/{}/{CLAIMS}", self.me()))]
    }
}

impl Amq {
    /// How the names of my receipts end.
    fn receipt_end(&self) -> String {
        format!("__{}__drained.json", self.me())
    }
}

/// Gives a receipt its name, if its message is claimed, or forgets it.
fn settle(
    claims: &Folder<'_, Queue>,
    receipts: &Folder<'_, Queue>,
    name: &str,
    claimed: bool,
) -> Result<(), StoreError> {
    if claimed && receipts.take(claims, name)? == Put::Done {
        return Ok(());
    }
    // Either its sender was told, or there is nothing to tell.
    claims.remove(name)
}
