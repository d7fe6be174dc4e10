//! `status.txt`: me, unread mail, the stores and their health, the last refusal. The text stays equal as long as
//! nothing changes in the mailbox.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use serde::Serialize;

use super::message_texts::read_headline;
use super::node::{NodeProperty, PagePolicy};
use super::receipts::{LastSent, find_last_sent, sent_records};
use super::search::BadQuery;
use super::table::View;
use super::{Error, Tree, UnknownId};
use crate::index::{IndexEntry, MsgIx};
use crate::link::{HealthBoard, LinkHealth};
use crate::model::{Fingerprint, SignatureState, Timestamp, sanitize_line};
use crate::outbox::{MyPublicKeys, Refusal};

/// Unread messages listed with their first line.
const LISTED: usize = 50;
/// Characters of a first line, without the sign that it was cut.
const FIRST_LINE: usize = 72;
/// Recent messages that are examined for unknown recipients and shared keys.
const RECENT: usize = 200;

/// The status of a mailbox, as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MailboxStatus {
    /// My name.
    pub me: String,
    /// Fingerprint of my key, if it can be used.
    pub key: Option<String>,
    /// True if nothing can be sent from here.
    pub read_only: bool,
    /// Number of unread messages.
    pub unread: usize,
    /// The first of them, oldest first.
    pub messages: Vec<UnreadHeadline>,
    /// The stores.
    pub stores: Vec<StoreStatus>,
    /// The links.
    pub links: Vec<LinkStatus>,
    /// The newest accepted message of mine.
    pub last_sent: Option<LastSent>,
    /// The last draft that was refused and neither sent nor removed since.
    pub last_refusal: Option<LastRefusal>,
    /// The last requested id that does not stand for exactly one message.
    pub last_unknown_id: Option<UnknownId>,
    /// The last query of `search/` that could not be parsed.
    pub last_bad_query: Option<BadQuery>,
    /// Further notes for a person.
    pub notes: Vec<String>,
}

/// An unread message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnreadHeadline {
    /// Its name in `inbox/`.
    pub name: String,
    /// Its subject, cut, if it has one.
    pub subject: Option<String>,
    /// The first line of its text, cut.
    pub first_line: String,
}

/// A store and its health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoreStatus {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// My name there.
    pub me: String,
    /// Fingerprint of my key there.
    pub key: Option<String>,
    /// Number of all messages, if the messages between others are shown.
    pub messages: Option<usize>,
    /// Messages to me.
    pub to_me: usize,
    /// Messages from me.
    pub from_me: usize,
    /// Number of files in `rejected/`.
    pub rejected: usize,
    /// True if nothing is wrong.
    pub healthy: bool,
    /// Lines about what is wrong.
    pub health: Vec<String>,
    /// Lines about other facts that a person should know.
    pub remarks: Vec<String>,
}

/// A link and its health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkStatus {
    /// Its name.
    pub name: String,
    /// Its health.
    #[serde(flatten)]
    pub health: LinkHealth,
}

/// The last refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastRefusal {
    /// Its time, in RFC 3339.
    pub time: String,
    /// Name of the draft.
    pub name: String,
    /// The reason.
    pub reason: String,
}

/// A node of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum StatusKey {
    /// `status.txt`
    Text,
    /// `.status`: one line of JSON for `msgfs status --json`.
    Report,
}

/// The view `status.txt`.
#[derive(Debug, Default)]
pub(super) struct StatusView;

impl View for StatusView {
    type Key = StatusKey;

    const CHANGES_WITHOUT_INDEX: bool = true;

    fn node_properties(_: &StatusKey) -> &'static [NodeProperty] {
        &[NodeProperty::Pages(PagePolicy::Bypass)]
    }

    fn text(&self, tree: &Tree, key: &StatusKey) -> Result<(String, Timestamp), Error> {
        let status = tree.collect_status();
        let text = match key {
            StatusKey::Text => format_status(status),
            StatusKey::Report => serde_json::to_string(&status).map_err(io::Error::from)? + "\n",
        };
        Ok((text, status_time(tree)))
    }

    fn newest_time(&self, tree: &Tree, _: &StatusKey) -> Option<Timestamp> {
        Some(status_time(tree))
    }
}

impl Tree {
    /// Returns the content of `status.txt` as data.
    pub fn collect_status(&self) -> MailboxStatus {
        let unread = self.index.read().marks.unread_count();
        let message = |(ix, name)| {
            let (subject, first_line) = read_headline(&self.texts, ix, FIRST_LINE + 1);
            UnreadHeadline { name, subject, first_line }
        };
        let refusal = self.outbox.as_ref().and_then(|o| o.last_refusal());
        let keys = my_keys(self);
        MailboxStatus {
            me: self.settings.me.clone(),
            key: keys.shown.map(|key| key.fingerprint().to_string()),
            read_only: self.is_view_only(),
            unread,
            messages: self.unread_files(LISTED).into_iter().map(message).collect(),
            stores: collect_store_statuses(self, &keys),
            links: self.link_boards().iter().map(link_status).collect(),
            last_sent: find_last_sent(self),
            last_refusal: refusal.map(|Refusal { name, reason, time }| LastRefusal {
                time: time.rfc3339(),
                name,
                reason,
            }),
            last_unknown_id: self.last_unknown_id.get(),
            last_bad_query: self.views.search.last_bad_query(),
            notes: collect_notes(self, keys.own_fault),
        }
    }
}

/// Returns the text of `status.txt`.
fn format_status(status: MailboxStatus) -> String {
    let key = status.key.as_deref().unwrap_or("none");
    let mut lines = vec![format!("me: {}", sanitize_line(&status.me)), format!("key: {key}")];
    if status.read_only {
        lines.push("mode: read-only".to_owned());
    }
    lines.push(format!("unread: {}", status.unread));
    for UnreadHeadline { name, subject, first_line } in &status.messages {
        lines.push(format!("  {name}  {}", subject.as_ref().unwrap_or(first_line)));
    }
    if status.unread > LISTED {
        lines.push(format!("  and {} more", status.unread - LISTED));
    }
    lines.push("stores:".to_owned());
    lines.extend(status.stores.iter().flat_map(|store| format_store(&status, store)));
    if !status.links.is_empty() {
        lines.push("links:".to_owned());
    }
    for LinkStatus { name, health } in &status.links {
        lines.extend(health.render_lines(name).into_iter().map(|line| format!("  {line}")));
    }
    let sent = status.last_sent.map_or("none".to_owned(), |LastSent { id, to, time }| {
        format!("{id} to {} at {time}", to.join(", "))
    });
    lines.push(format!("last sent: {sent}"));
    let refusal = status.last_refusal.map_or("none".to_owned(), |r| {
        format!("{} {}: {}", r.time, sanitize_line(&r.name), join_lines(&r.reason))
    });
    lines.push(format!("last refusal: {refusal}"));
    lines.extend(status.last_unknown_id.map(|UnknownId { id, meaning, .. }| {
        format!("last unknown id: {} ({})", sanitize_line(&id), sanitize_line(&meaning))
    }));
    lines.extend(status.last_bad_query.map(|BadQuery { query, reason, .. }| {
        format!("last bad query: {} ({})", sanitize_line(&query), sanitize_line(&reason))
    }));
    lines.extend(status.notes.iter().map(|text| format!("note: {}", sanitize_line(text))));
    lines.join("\n") + "\n"
}

/// Returns the time of the last change of anything that `status.txt` shows.
fn status_time(tree: &Tree) -> Timestamp {
    let refusal = tree.outbox.as_ref().and_then(|o| o.last_refusal()).map(|r| r.time);
    let newest = tree.index.read().messages.lists().newest_time();
    let unknown = tree.last_unknown_id.get().map(|unknown| unknown.time);
    let bad = tree.views.search.last_bad_query().map(|bad| bad.time);
    let unsaved = tree.views.me.unsaved_time();
    let time = [newest, tree.index.marks_time(), refusal, unknown, bad, unsaved];
    let links = tree.link_boards();
    let links = links.iter().map(|board| Some(board.changed_at()));
    time.into_iter().chain(links).flatten().max().unwrap_or_default()
}

/// Returns my present keys. A mount that sends nothing returns those of its start.
fn my_keys(tree: &Tree) -> MyPublicKeys {
    let fixed = || MyPublicKeys {
        shown: tree.settings.key,
        by_store: (0..tree.index.stores().len()).map(|n| tree.index.my_key(n)).collect(),
        own_fault: None,
    };
    tree.outbox.as_ref().map_or_else(fixed, |outbox| outbox.my_keys())
}

fn collect_store_statuses(tree: &Tree, keys: &MyPublicKeys) -> Vec<StoreStatus> {
    let mut out = Vec::new();
    let all = tree.is_scope_all().then(|| tree.index.read().count_messages_by_store());
    for (number, store) in tree.index.stores().iter().enumerate() {
        let (to_me, from_me, rejected) = {
            let tables = tree.index.read();
            let of = |e: &&IndexEntry| e.store() == number;
            let to_me = tables
                .messages
                .lists()
                .messages_to_me()
                .map(|ix| tables.messages.entry(ix))
                .filter(of)
                .count();
            let mine = |ix: MsgIx| Some(tables.messages.entry(ix)).filter(|e| e.is_from_me());
            let copies = tables.messages.copies().filter_map(mine).filter(of).count();
            let from_me =
                tables.messages.lists().messages_from_me().filter_map(mine).filter(of).count();
            let from_me = from_me.saturating_sub(copies);
            let rejected = tables.trust.rejects().filter(|(k, _)| k.0.store() == number).count();
            (to_me, from_me, rejected)
        };
        let mut health = store.health();
        if let Some(e) = tree.index.store_failure(number).filter(|_| health.is_empty()) {
            health.push(format!("msgfs cannot read it now, and tries again: {e}"));
        }
        health.extend(tree.index.mark_fault(number));
        out.push(StoreStatus {
            name: store.name().to_owned(),
            kind: store.kind().to_string(),
            me: store.me().to_owned(),
            key: keys.by_store.get(number).copied().flatten().map(|k| k.fingerprint().to_string()),
            messages: all.as_ref().and_then(|all| all.get(number).copied()),
            to_me,
            from_me,
            rejected,
            healthy: health.is_empty(),
            health,
            remarks: store.remarks(),
        });
    }
    out
}

/// Collects further notes for a person.
fn collect_notes(tree: &Tree, own_key: Option<String>) -> Vec<String> {
    let mut out: Vec<String> = own_key.into_iter().collect();
    out.extend(tree.settings.warnings.read().clone());
    out.extend(tree.index.keyring().fault());
    out.extend(tree.index.unsaved_marks_fault());
    if let Some(outbox) = &tree.outbox {
        for (to, why) in outbox.sender().stuck_messages() {
            out.push(format!("a message to {to} waits, and msgfs tries again to send it: {why}"));
        }
        out.extend(outbox.list_faults());
    }
    out.extend(tree.views.search.fault());
    out.extend(tree.views.me.unsaved_lines(tree));
    out.extend(tree.index.describe_others_as_me());
    out.extend(find_shared_keys(tree));
    let unheard = |name| format!("nobody called {name} has written yet");
    out.extend(find_unheard_recipients(tree).into_iter().map(unheard));
    out
}

/// Returns lines about keys of recent messages to me that are pinned to another sender too.
fn find_shared_keys(tree: &Tree) -> Vec<String> {
    let writers: BTreeSet<(String, Fingerprint)> = {
        let tables = tree.index.read();
        let recent = tables
            .messages
            .lists()
            .messages_to_me()
            .rev()
            .take(RECENT)
            .map(|ix| tables.messages.entry(ix));
        let pinned = |e: &&IndexEntry| !tree.index.store_of(e).properties().uses_roles;
        let others = recent.filter(|e| !e.is_from_me()).filter(pinned);
        let signed = others.filter_map(|e| match tables.trust.signature(&tables.messages, e) {
            SignatureState::Valid(key) => Some((tables.messages.sender(e).to_owned(), key)),
            _ => None,
        });
        signed.collect()
    };
    let keyring = tree.index.keyring();
    let line = |(from, fingerprint): &(String, Fingerprint)| {
        let pinned = keyring.pinned_keys(from);
        let key = pinned.iter().find(|key| key.fingerprint() == *fingerprint)?;
        let other = keyring.find_other_owner(key, from)?;
        Some(format!("the key {fingerprint} of {from} is also pinned to {other}"))
    };
    writers.iter().filter_map(line).collect()
}

/// Returns the recipients of recent messages who have never written and have no mailbox that msgfs can see.
fn find_unheard_recipients(tree: &Tree) -> BTreeSet<String> {
    let stores = tree.index.stores();
    let named: BTreeSet<(usize, String)> = {
        let tables = tree.index.read();
        let recent = sent_records(tree, &tables).take(RECENT).map(|ix| tables.messages.entry(ix));
        let to = |e: &IndexEntry| {
            let store = e.store();
            let all = tables.messages.recipient_list(e).split(", ").filter(|to| !to.is_empty());
            all.map(|to| (store, to.to_owned())).collect::<Vec<_>>()
        };
        recent.flat_map(to).collect()
    };
    let unheard = |(number, to): &(usize, String)| {
        let Some(store) = stores.get(*number) else { return false };
        let written = {
            let tables = tree.index.read();
            tables.messages.names().has_written(*number, to)
                || tables.messages.names().has_written(*number, &store.canonical_address(to))
        };
        !written && !store.is_registered(to)
    };
    named.into_iter().filter(unheard).map(|(_, to)| to).collect()
}

fn link_status(board: &Arc<HealthBoard>) -> LinkStatus {
    LinkStatus { name: board.name().to_owned(), health: board.health() }
}

/// Formats a store as lines of the text.
fn format_store(status: &MailboxStatus, store: &StoreStatus) -> Vec<String> {
    let (name, kind, me) = (sanitize_line(&store.name), &store.kind, sanitize_line(&store.me));
    let other_key = store.key.as_ref().filter(|_| store.key != status.key);
    let known = match (store.me != status.me, other_key) {
        (true, Some(key)) => format!(" (my name there is {me}, my key there is {key})"),
        (true, None) => format!(" (my name there is {me})"),
        (false, Some(key)) => format!(" (my key there is {key})"),
        (false, None) => String::new(),
    };
    let state = if store.healthy { "healthy" } else { "needs a look:" };
    let StoreStatus { to_me, from_me, rejected, .. } = store;
    let mine = format!("{to_me} to me, {from_me} from me");
    let counts = match store.messages {
        Some(all) => format!("{all} messages ({mine}), {rejected} rejected"),
        None => format!("{mine}, {rejected} rejected"),
    };
    let first = format!("  {name} ({kind}): {counts}; {state}{known}");
    let more = store.health.iter().chain(&store.remarks);
    std::iter::once(first).chain(more.map(|line| format!("    {}", sanitize_line(line)))).collect()
}

/// Joins the lines of a text into one, for places where each line is one fact.
fn join_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    sanitize_line(&lines.join(" ")).into_owned()
}
