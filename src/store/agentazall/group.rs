//! Which files are one message (docs/formats/agentazall.md, section 8).
//!
//! 1. The same id, From and text, or the same signed Message-ID (by the same key): one. Files of equal
//!    text that verify by different keys stay apart, so that nobody can hide another's message
//!    behind a signature of his own.
//! 2. Without a signed Message-ID, copies that came by other transports: the same signature, From and
//!    Subject (and text), Dates of different form within 48 hours, paired in time order.
//! 3. Different messages of one From and id: one has the id, the others the id with the hash of their
//!    file. Who has it once keeps it ([`held`](super::held)).

use std::collections::{BTreeMap, HashMap};

use super::letter::{Form, Kept, Print};
use super::place::Folder;
use crate::store::engine::files;

/// Copies that are further apart are not copies.
const WINDOW_MS: i64 = 48 * 60 * 60 * 1000;

/// What was settled about a file's id when it was looked at before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Held {
    /// Nothing: it is new, or its message is known by the id of another copy.
    #[default]
    No,
    /// Its id is that of its message.
    Plain,
    /// Its id with this hash is that of its message.
    Twin([u8; 32]),
}

/// One file that may be a copy of others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    /// Its source number.
    pub source: u32,
    /// Its folder's path, and its name there.
    pub path: (&'a str, &'a str),
    /// The folder it lies in.
    pub folder: Folder,
    /// What it says.
    pub kept: &'a Kept,
    /// What was settled before.
    pub held: Held,
    /// Its id without a hash is known to be another message's.
    pub taken: bool,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Its files, by number.
    pub members: Vec<u32>,
    /// The file that shows it.
    pub best: u32,
    /// The file whose id it has.
    pub leader: u32,
    /// What is settled about that id.
    pub held: Held,
    /// What its copies in `inbox/` say about having been read; `None` without one.
    pub read: Option<bool>,
    /// A print of the copies in `inbox/` that could say so and do not.
    pub unmarked: u64,
    /// A copy lies in `inbox/`.
    pub to_me: bool,
    /// A copy lies in `sent/`, or in `outbox/` and I am its writer or nobody is. What lies in my `sent/` I
    /// sent, whatever it calls me (an agent may have been renamed); what waits in `outbox/` may be another's
    /// that a program will carry, and counts as mine only if it says so.
    pub from_me: bool,
}

/// Sorts the files that share anything into messages.
pub(super) fn messages(items: &[Item<'_>]) -> Vec<Message> {
    let mut sets = Sets::new(items.len());
    join_equal(items, &mut sets);
    join_copies(items, &mut sets);
    name(sets.groups(), items)
}

/// Rule 1.
fn join_equal(items: &[Item<'_>], sets: &mut Sets) {
    let mut texts: HashMap<Print, Vec<usize>> = HashMap::new();
    let mut links: HashMap<Print, usize> = HashMap::new();
    for (i, item) in items.iter().enumerate() {
        texts.entry(item.kept.text).or_default().push(i);
        if let Some(link) = item.kept.link() {
            sets.join(*links.entry(link).or_insert(i), i);
        }
    }
    for mut same in texts.into_values() {
        same.sort_by_key(|i| items.get(*i).map(|item| rank(item)));
        let Some(first) = same.first().copied() else { continue };
        let mut keys: HashMap<Print, usize> = HashMap::new();
        for i in same {
            let kept = items.get(i).map(|item| item.kept);
            let key = kept.filter(|kept| kept.is_signed()).map(|kept| kept.key);
            let with = key.map_or(first, |key| *keys.entry(key).or_insert(i));
            sets.join(with, i);
        }
    }
}

/// Rule 2.
fn join_copies(items: &[Item<'_>], sets: &mut Sets) {
    struct Group<'a> {
        first: usize,
        time: i64,
        path: (&'a str, &'a str),
        forms: u8,
    }
    let mut same: BTreeMap<Print, Vec<Group<'_>>> = BTreeMap::new();
    for group in sets.groups() {
        let heads = || group.iter().filter_map(|i| items.get(*i));
        if heads().any(|item| item.kept.link().is_some()) {
            continue;
        }
        let Some(copy) = heads().find_map(|item| item.kept.copy()) else { continue };
        let forms = heads().fold(0, |forms, item| forms | bit(item.kept.form()));
        let Some(oldest) = heads().min_by_key(|item| (item.kept.time, item.path)) else { continue };
        let Some(first) = group.first().copied() else { continue };
        let time = oldest.kept.time;
        same.entry(copy).or_default().push(Group { first, time, path: oldest.path, forms });
    }
    for mut groups in same.into_values() {
        groups.sort_by_key(|g| (g.time, g.path));
        let mut open: Vec<Group<'_>> = Vec::new();
        for group in groups {
            open.retain(|o| group.time.saturating_sub(o.time) <= WINDOW_MS);
            match open.iter_mut().find(|o| o.forms & group.forms == 0) {
                Some(other) => {
                    sets.join(other.first, group.first);
                    other.forms |= group.forms;
                }
                None => open.push(group),
            }
        }
    }
}

/// A form as a bit of a set; that of no form at all is in none.
const fn bit(form: Form) -> u8 {
    if matches!(form, Form::None) { 0 } else { 1 << form as u8 }
}

/// What the files of one message make, once it is settled whose id it has.
pub(super) fn message(members: &[Item<'_>], leader: u32, held: Held) -> Option<Message> {
    let best = members.iter().min_by_key(|i| rank(i))?;
    let inbox = || members.iter().filter(|i| i.folder == Folder::Inbox);
    let mine = |i: &Item<'_>| match i.folder {
        Folder::Inbox => false,
        Folder::Sent => true,
        Folder::Outbox | Folder::Carrying => i.kept.has(Kept::MINE),
    };
    let mut sources: Vec<u32> = members.iter().map(|i| i.source).collect();
    sources.sort_unstable();
    Some(Message {
        best: best.source,
        leader,
        held,
        to_me: inbox().next().is_some(),
        read: inbox().next().is_some().then(|| inbox().any(|i| i.kept.has(Kept::READ))),
        unmarked: files::unmarked(inbox().filter(|i| i.kept.has(Kept::NEW)).map(|i| i.source)),
        from_me: members.iter().any(mine),
        members: sources,
    })
}

/// Rule 3, and which file shows the message.
fn name(groups: Vec<Vec<usize>>, items: &[Item<'_>]) -> Vec<Message> {
    let mut out = Vec::with_capacity(groups.len());
    let mut by_name: HashMap<Print, Vec<(usize, Item<'_>)>> = HashMap::new();
    for group in groups {
        let members: Vec<Item<'_>> = group.iter().filter_map(|i| items.get(*i)).copied().collect();
        let Some(leader) = members.iter().min_by_key(|i| leading(i)) else { continue };
        by_name.entry(leader.kept.name).or_default().push((out.len(), *leader));
        out.extend(message(&members, leader.source, Held::Plain));
    }
    for mut twins in by_name.into_values() {
        twins.sort_by_key(|(_, i)| {
            let kept = i.kept;
            let held = i.held != Held::Plain || i.taken;
            (held, !kept.is_signed(), kept.time, kept.file, i.path)
        });
        let mut used: Vec<[u8; 32]> = Vec::new();
        for (n, (ix, leader)) in twins.iter().enumerate() {
            let hash = match leader.held {
                Held::Twin(hash) if !used.contains(&hash) => hash,
                Held::No | Held::Plain if n == 0 && !leader.taken => continue,
                _ => leader.kept.file,
            };
            used.push(hash);
            if let Some(message) = out.get_mut(*ix) {
                message.held = Held::Twin(hash);
            }
        }
    }
    out
}

/// Which file's id a message has: what verifies first, then who had it, then the writer's own.
fn leading<'a>(i: &Item<'a>) -> impl Ord + use<'a> {
    let kept = i.kept;
    let signed = (!kept.is_signed(), !kept.has(Kept::WHOLE));
    (signed, i.held == Held::No, kept.form(), i.folder, kept.time, i.path)
}

/// Which file shows a message: what verifies first, then what carries files.
fn rank<'a>(i: &Item<'a>) -> impl Ord + use<'a> {
    let kept = i.kept;
    let signed = (!kept.is_signed(), !kept.has(Kept::WHOLE), kept.link().is_none());
    (signed, !kept.has(Kept::PARTS), i.held == Held::No, kept.form(), i.folder, kept.time, i.path)
}

/// Disjoint sets of positions.
struct Sets(Vec<usize>);

impl Sets {
    fn new(len: usize) -> Self {
        Self((0..len).collect())
    }

    fn root(&mut self, mut i: usize) -> usize {
        while let Some(above) = self.0.get(i).copied()
            && above != i
        {
            let top = self.0.get(above).copied().unwrap_or(above);
            if let Some(slot) = self.0.get_mut(i) {
                *slot = top;
            }
            i = above;
        }
        i
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        if let Some(slot) = self.0.get_mut(a.max(b)) {
            *slot = a.min(b);
        }
    }

    fn groups(&mut self) -> Vec<Vec<usize>> {
        let mut out: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for i in 0..self.0.len() {
            out.entry(self.root(i)).or_default().push(i);
        }
        out.into_values().collect()
    }
}

#[cfg(test)]
pub(super) mod tests;
