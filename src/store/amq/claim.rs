//! Claiming what was read: from `new/` to `cur/`, and the receipt for which its sender may be waiting
//! (docs/formats/amq.md, section 5).
//!
//! The receipt is written first where only msgfs looks, and gets its name once the message is claimed.
//! So a process that is killed between the two leaves what the next one needs to do the rest.

use std::path::PathBuf;

use serde_json::json;

use super::Amq;
use super::message::{self, Printed};
use super::queue::Place;
use crate::model::Timestamp;
use crate::store::digest::print;
use crate::store::engine::files::Put;
use crate::store::{Deliveries, Location, Marks, Store as _, StoreError};

/// The folder of receipts whose messages are about to be claimed.
const CLAIMS: &str = "extensions/msgfs";
/// A claim takes less than this.
const UNDER_WAY_MS: i64 = 60_000;

impl Marks for Amq {
    fn comes_first(&self) -> bool {
        true
    }

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
            ("emitted_at", json!(Timestamp::now().rfc3339_short())),
        ];
        let text = message::print(&receipt) + "\n";
        let receipt = format!("{}__{me}__drained.json", shown.id);
        // One that is there is from a claim that could not be made, or from one under way elsewhere.
        let begun = claims.put(&receipt, text.as_bytes())?;
        // A name that is in both is left alone: every later reader stops there anyway, and a person
        // must look at it. One that is gone was claimed by somebody else.
        let moved: Result<Vec<Put>, _> = names.iter().map(|name| cur.take(&new, name)).collect();
        let moved = moved?;
        let claimed = moved.contains(&Put::Done);
        if claimed && receipts.take(&claims, &receipt)? == Put::Gone {
            // Another process that was slower took away what it had begun.
            receipts.put(&receipt, text.as_bytes())?;
        }
        if claimed || begun == Put::Done {
            claims.remove(&receipt)?;
        }
        if moved == [Put::Gone] { Err(StoreError::Moved) } else { Ok(claimed || is_claimed) }
    }
}

impl Deliveries for Amq {
    /// Does the rest for claims that were begun by a process that was killed; whether there were any.
    fn deliver(&self) -> Result<bool, StoreError> {
        let _one = self.format.claiming.lock();
        let Ok(claims) = self.leaf(self.me(), CLAIMS) else { return Ok(false) };
        let (mut done, end) = (false, format!("__{}__drained.json", self.me()));
        for name in claims.names()? {
            let Some(id) = name.strip_suffix(&end) else { continue };
            let claimed = {
                let table = self.table.read();
                let found = table.with_key(0, print(id.as_bytes()));
                let copies = found.iter().flat_map(|n| self.format.copies(&table, *n));
                copies.map(|(place, _)| place).any(|place| place == Place::Cur)
            };
            // Another process may be just about to claim it.
            let young = |at: Timestamp| at.plus_millis(UNDER_WAY_MS) > Timestamp::now();
            if claimed {
                self.leaf(self.me(), "receipts")?.take(&claims, &name)?;
            } else if claims.modified(&name).is_none_or(young) {
                continue;
            }
            claims.remove(&name)?;
            done = true;
        }
        Ok(done)
    }

    fn written(&self) -> Vec<PathBuf> {
        vec![self.about.dir.join(format!("agents/{}/{CLAIMS}", self.me()))]
    }
}
