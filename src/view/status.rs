//! `status.txt`: me, unread mail, the stores and their health, the last refusal. Nothing in it changes
//! while nothing happens.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::{Tree, names};
use crate::index::{Core, Entry, MsgIx};
use crate::model::{Timestamp, one_line, safe_text};

/// Unread messages listed with their first line.
const LISTED: usize = 50;
/// Characters of a first line.
const FIRST_LINE: usize = 72;
/// Sent messages looked at for recipients who have never written.
const RECENT: usize = 200;

impl Tree {
    /// The text and its time.
    pub(super) fn status(&self) -> (String, Timestamp) {
        let mut out = String::new();
        let mut line = |text: String| {
            out.push_str(&text);
            out.push('\n');
        };
        let key = self.settings.fingerprint.map_or("none".to_owned(), |f| f.to_string());
        line(format!("me: {}", one_line(&self.settings.me)));
        line(format!("key: {key}"));
        if self.settings.read_only {
            line("mode: read-only".to_owned());
        }
        let unread = self.index.read().unread();
        line(format!("unread: {unread}"));
        for text in self.unread_lines() {
            line(format!("  {text}"));
        }
        if unread > LISTED {
            line(format!("  and {} more", unread - LISTED));
        }
        line("stores:".to_owned());
        for text in self.store_lines() {
            line(text);
        }
        let refusal = self.outbox.as_ref().and_then(|o| o.last_refusal());
        match &refusal {
            Some(r) => {
                line(format!("last refusal: {}: {}", one_line(&r.name), safe_text(&r.reason)));
            }
            None => line("last refusal: none".to_owned()),
        }
        for text in self.notes() {
            line(format!("note: {text}"));
        }
        (out, self.status_time())
    }

    /// When anything that `status.txt` tells last changed.
    pub(super) fn status_time(&self) -> Timestamp {
        let refusal = self.outbox.as_ref().and_then(|o| o.last_refusal()).map(|r| r.time);
        let time = [self.index.read().newest(), self.index.marks_time(), refusal];
        time.into_iter().flatten().max().unwrap_or_default()
    }

    /// Name and first line of unread messages, oldest first.
    fn unread_lines(&self) -> Vec<String> {
        let unread: Vec<(MsgIx, String)> = {
            let core = self.index.read();
            let named = |ix: MsgIx| Some((ix, names::message_file(&core, core.entry(ix)?)));
            core.inbox().filter_map(named).take(LISTED).collect()
        };
        unread.into_iter().map(|(ix, name)| format!("{name}  {}", self.first_line(ix))).collect()
    }

    fn first_line(&self, ix: MsgIx) -> String {
        let Ok(text) = self.rendered(ix) else { return String::new() };
        let text = String::from_utf8_lossy(&text);
        let body = text.split_once("\n\n").map_or("", |(_, body)| body);
        let line = body.lines().find(|l| !l.trim().is_empty()).unwrap_or_default().trim();
        let mut short: String = line.chars().take(FIRST_LINE).collect();
        if short.len() < line.len() {
            short.push('\u{2026}');
        }
        one_line(&short).into_owned()
    }

    fn store_lines(&self) -> Vec<String> {
        let mut out = Vec::new();
        for (number, store) in self.index.stores().iter().enumerate() {
            let counts = {
                let core = self.index.read();
                let of = |e: &&Entry| e.store() == number;
                let to_me = core.to_me().filter_map(|ix| core.entry(ix)).filter(of).count();
                let from_me = core.from_me().filter_map(|ix| core.entry(ix)).filter(of).count();
                let rejected =
                    core.rejects().filter(|(k, _)| (k.0 >> 24) as usize == number).count();
                (to_me, from_me, rejected)
            };
            let health = store.health();
            let mut text = format!(
                "  {} ({}): {} to me, {} from me, {} rejected; {}",
                one_line(store.name()),
                store.kind(),
                counts.0,
                counts.1,
                counts.2,
                if health.is_empty() { "healthy" } else { "needs a look:" }
            );
            if store.me() != self.settings.me {
                let _ = write!(text, " (known there as {})", one_line(store.me()));
            }
            out.push(text);
            out.extend(health.into_iter().map(|h| format!("    {}", one_line(&h))));
        }
        out
    }

    /// What else a person should know.
    fn notes(&self) -> Vec<String> {
        let mut out: Vec<String> =
            self.settings.warnings.iter().map(|w| one_line(w).into_owned()).collect();
        out.extend(self.index.keyring().trouble().map(|t| one_line(&t).into_owned()));
        if let Some(outbox) = &self.outbox {
            for (to, why) in outbox.stuck() {
                out.push(format!(
                    "a message to {} waits in the spool and is tried again: {}",
                    one_line(&to),
                    one_line(&why)
                ));
            }
        }
        let core = self.index.read();
        for name in strangers(&core) {
            out.push(format!("nobody called {} has written yet", one_line(&name)));
        }
        out
    }
}

/// Recipients of recent messages who have never written anything.
fn strangers(core: &Core) -> BTreeSet<String> {
    let recent = core.from_me().rev().take(RECENT).filter_map(|ix| core.entry(ix));
    recent
        .flat_map(|e| core.to(e).split(", ").map(move |to| (e.store(), to)))
        .filter(|(store, to)| !core.has_written(*store, to))
        .map(|(_, to)| to.to_owned())
        .collect()
}
