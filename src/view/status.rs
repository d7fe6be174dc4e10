//! `status.txt`: me, unread mail, the stores and their health, the last refusal. Nothing in it changes
//! while nothing happens.

use std::collections::BTreeSet;

use super::Tree;
use crate::index::{Entry, MsgIx};
use crate::model::{Fingerprint, SignatureState, Timestamp, one_line};

/// Unread messages listed with their first line.
const LISTED: usize = 50;
/// Characters of a first line.
const FIRST_LINE: usize = 72;
/// Sent messages looked at for recipients who have never written.
const RECENT: usize = 200;

impl Tree {
    /// The text and its time.
    pub(super) fn status(&self) -> (String, Timestamp) {
        let key = self.settings.fingerprint.map_or("none".to_owned(), |f| f.to_string());
        let me = one_line(&self.settings.me);
        let mut lines = vec![format!("me: {me}"), format!("key: {key}")];
        if self.only_shows() {
            lines.push("mode: read-only".to_owned());
        }
        let unread = self.index.read().unread();
        lines.push(format!("unread: {unread}"));
        for (ix, name) in self.unread_files(LISTED) {
            lines.push(format!("  {name}  {}", self.first_line(ix)));
        }
        if unread > LISTED {
            lines.push(format!("  and {} more", unread - LISTED));
        }
        lines.push("stores:".to_owned());
        lines.extend(self.store_lines());
        let refusal = self.outbox.as_ref().and_then(|o| o.last_refusal());
        let refusal = refusal.map_or("none".to_owned(), |r| {
            let (time, reason) = (r.time.rfc3339(), one_paragraph(&r.reason));
            format!("{time} {}: {reason}", one_line(&r.name))
        });
        lines.push(format!("last refusal: {refusal}"));
        lines.extend(self.notes().iter().map(|text| format!("note: {}", one_line(text))));
        (lines.join("\n") + "\n", self.status_time())
    }

    /// When anything that `status.txt` tells last changed.
    pub(super) fn status_time(&self) -> Timestamp {
        let refusal = self.outbox.as_ref().and_then(|o| o.last_refusal()).map(|r| r.time);
        let newest = self.index.read().newest();
        let time = [newest, self.index.marks_time(), refusal, self.unsaved_time()];
        time.into_iter().flatten().max().unwrap_or_default()
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
                let rejected = core.rejects().filter(|(k, _)| k.0.store() == number).count();
                format!("{to_me} to me, {from_me} from me, {rejected} rejected")
            };
            let mut health = store.health();
            if let Some(e) = self.index.failure(number).filter(|_| health.is_empty()) {
                health.push(format!("cannot be read now and is tried again: {e}"));
            }
            health.extend(self.index.not_noted(number).map(|why| {
                format!("what was read could not be noted there, and is tried again: {why}")
            }));
            let key = self.index.my_key(number).map(|key| key.fingerprint());
            let other_key = key.filter(|_| key != self.settings.fingerprint);
            let me = one_line(store.me());
            let known = match (store.me() != self.settings.me, other_key) {
                (true, Some(key)) => format!(" (known there as {me}, key {key})"),
                (true, None) => format!(" (known there as {me})"),
                (false, Some(key)) => format!(" (key there {key})"),
                (false, None) => String::new(),
            };
            let (name, kind) = (one_line(store.name()), store.kind());
            let state = if health.is_empty() { "healthy" } else { "needs a look:" };
            out.push(format!("  {name} ({kind}): {counts}; {state}{known}"));
            let more = health.into_iter().chain(store.remarks());
            out.extend(more.map(|line| format!("    {}", one_line(&line))));
        }
        out
    }

    /// What else a person should know.
    fn notes(&self) -> Vec<String> {
        let mut out = self.settings.warnings.clone();
        out.extend(self.index.keyring().trouble());
        if let Some(outbox) = &self.outbox {
            for (to, why) in outbox.stuck() {
                out.push(format!("a message to {to} waits in the spool and is tried again: {why}"));
            }
            out.extend(outbox.troubles());
        }
        out.extend(self.unsaved_lines());
        out.extend(self.index.others_as_me());
        out.extend(self.shared_keys());
        let unheard = |name| format!("nobody called {name} has written yet");
        out.extend(self.strangers().into_iter().map(unheard));
        out
    }

    /// Keys of recent messages to me that are pinned to somebody else too.
    fn shared_keys(&self) -> Vec<String> {
        let writers: BTreeSet<(String, Fingerprint)> = {
            let core = self.index.read();
            let recent = core.to_me().rev().take(RECENT).filter_map(|ix| core.entry(ix));
            let pinned =
                |e: &&Entry| self.index.store_of(e).is_some_and(|store| !store.about().roles);
            let others = recent.filter(|e| !e.is_from_me()).filter(pinned);
            let signed = others.filter_map(|e| match core.signature(e) {
                SignatureState::Valid(key) => Some((core.from(e).to_owned(), key)),
                _ => None,
            });
            signed.collect()
        };
        let keyring = self.index.keyring();
        let line = |(from, fingerprint): &(String, Fingerprint)| {
            let pinned = keyring.pinned(from);
            let key = pinned.iter().find(|key| key.fingerprint() == *fingerprint)?;
            let other = keyring.other_owner(key, from)?;
            Some(format!("the key {fingerprint} of {from} is also pinned to {other}"))
        };
        writers.iter().filter_map(line).collect()
    }

    /// Recipients of recent messages who have never written anything, and have no mailbox that we
    /// could see.
    fn strangers(&self) -> BTreeSet<String> {
        let stores = self.index.stores();
        let named: BTreeSet<(usize, String)> = {
            let core = self.index.read();
            let recent = core.from_me().rev().take(RECENT).filter_map(|ix| core.entry(ix));
            let to = |e: &Entry| {
                let store = e.store();
                let all = core.to(e).split(", ").filter(|to| !to.is_empty());
                all.map(|to| (store, to.to_owned())).collect::<Vec<_>>()
            };
            recent.flat_map(to).collect()
        };
        let unheard = |(number, to): &(usize, String)| {
            let Some(store) = stores.get(*number) else { return false };
            let written = {
                let core = self.index.read();
                core.has_written(*number, to) || core.has_written(*number, &store.canonical(to))
            };
            !written && !store.registered(to)
        };
        named.into_iter().filter(unheard).map(|(_, to)| to).collect()
    }
}

/// The lines of a text as one, for a place where each line is one thing.
fn one_paragraph(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    one_line(&lines.join(" ")).into_owned()
}
