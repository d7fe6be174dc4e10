//! Unique names for messages with the same time (docs/SEMANTICS.md, S191). Such names differ only by sender and id,
//! so two may be equal. Then each of them has a longer name, which follows from ids and contents alone.
//!
//! A message has the same name in every folder. The name of a message from or to me depends only on such messages.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

use super::folder_scope::FolderScope;
use super::generation_cache::GenerationCache;
use super::names;
use super::ordered_messages::OrderedMessages;
use super::short_names::ShortIdIndex;
use crate::index::{Index, IndexEntry, IndexTables, MsgIx, ThreadIx, stable_hash};
use crate::model::{Timestamp, encode_hex, id_qualifier, short_id};

/// Groups that are cached: programs walk one folder after the other.
const GROUPS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(3);

/// The messages among which a name has to be unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum NameScope {
    /// The messages from and to me.
    Mine,
    /// The messages from and to me, and those of a thread.
    Thread(ThreadIx),
    /// All messages.
    All,
}

/// The messages of one time.
#[derive(Debug, Default)]
struct SameTimeGroup {
    /// The messages by the hash of their name.
    by_name: Vec<(u64, MsgIx)>,
    /// The names of the messages that share their short name.
    long_names: BTreeMap<MsgIx, String>,
    /// The messages that had a short name before others shared it, by its hash.
    by_old_name: Vec<(u64, MsgIx)>,
}

impl SameTimeGroup {
    fn stem(&self, tables: &IndexTables, ix: MsgIx) -> String {
        let long = self.long_names.get(&ix).cloned();
        long.unwrap_or_else(|| names::short_stem(tables, ix))
    }
}

/// The form of a message's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameForm {
    /// The first digits of the id are enough.
    Short,
    /// Other messages share the short name.
    Long,
}

/// Finds the messages with a hash in a sorted list.
fn with_hash(list: &[(u64, MsgIx)], hash: u64) -> impl Iterator<Item = MsgIx> + '_ {
    let from = list.partition_point(|(h, _)| *h < hash);
    list.iter().skip(from).take_while(move |(h, _)| *h == hash).map(|(_, ix)| *ix)
}

/// Returns the time in a message's name.
pub(super) fn message_name_time(tables: &IndexTables, ix: MsgIx) -> Timestamp {
    tables.messages.name_time(tables.messages.entry(ix)).clamp_to_calendar()
}

/// Returns the part of a list in listing order with this time, gone messages included.
fn messages_at_time<'a>(tables: &IndexTables, list: &'a [MsgIx], time: Timestamp) -> &'a [MsgIx] {
    let from = list.partition_point(|ix| message_name_time(tables, *ix) < time);
    let rest = list.get(from..).unwrap_or_default();
    // Most times have one message.
    let len = rest.iter().take(8).take_while(|ix| message_name_time(tables, **ix) == time).count();
    let len = if len < 8 {
        len
    } else {
        rest.partition_point(|ix| message_name_time(tables, *ix) == time)
    };
    rest.get(..len).unwrap_or_default()
}

/// Largest number of messages of one time that are compared one by one, without a group.
const FEW: usize = 16;

/// Returns the last part of a short name as a number; `None` if it is a hash. Names with different last parts
/// differ.
fn short_id_digits(tables: &IndexTables, ix: MsgIx) -> Option<u32> {
    tables.messages.shown_hex_id(ix).map(|id| (id >> 32) as u32)
}

/// Returns true if a folder may show a message under a name of its own: it is live, and no other record replaces it.
fn has_own_name(tables: &IndexTables, ix: MsgIx) -> bool {
    tables.messages.entry(ix).is_live() && !tables.messages.is_copy(ix)
}

/// A cursor in a list in listing order, for one walk through another list.
struct TimeSeeker<'a>(&'a [MsgIx]);

impl<'a> TimeSeeker<'a> {
    /// Returns the rest of the list from a time on, which must not be before that of the last call.
    fn seek_to(&mut self, tables: &IndexTables, time: Timestamp) -> &'a [MsgIx] {
        let earlier = |ix: &MsgIx| message_name_time(tables, *ix) < time;
        let mut step = 1;
        // The next message is mostly near, so the steps begin small and double.
        while self.0.get(step - 1).is_some_and(earlier) {
            self.0 = self.0.get(step..).unwrap_or_default();
            step *= 2;
            if self.0.get(step - 1).is_none_or(|ix| !earlier(ix)) {
                let near = self.0.get(..step).unwrap_or(self.0);
                let at = near.partition_point(earlier);
                self.0 = self.0.get(at..).unwrap_or_default();
                break;
            }
        }
        self.0
    }
}

/// Finds a message of mine by its short name, if few messages have its time and each name ends differently.
fn find_unambiguous(tables: &IndexTables, time: Timestamp, stem: &str) -> Option<MsgIx> {
    let asked = u32::from_str_radix(stem.get(stem.len().checked_sub(8)?..)?, 16).ok()?;
    let lists = [tables.messages.lists().sorted_to_me(), tables.messages.lists().sorted_from_me()]
        .map(|l| messages_at_time(tables, l, time));
    if lists.iter().any(|list| list.len() > FEW) {
        return None;
    }
    let mut found = None;
    for ix in lists.into_iter().flatten().copied() {
        if has_own_name(tables, ix)
            && short_id_digits(tables, ix)? == asked
            && found.replace(ix).is_some_and(|f| f != ix)
        {
            return None;
        }
    }
    found.filter(|ix| names::short_stem(tables, *ix) == stem)
}

/// The names of the messages of one tree.
pub(super) struct MessageNames {
    index: Arc<Index>,
    lists: Arc<OrderedMessages>,
    /// Number of messages when the tree was made.
    messages_at_start: usize,
    /// The groups that were used last, each for a generation of the names.
    same_time_groups: GenerationCache<(Timestamp, NameScope), Arc<SameTimeGroup>>,
    short_ids: ShortIdIndex,
}

impl MessageNames {
    /// Makes the value for the messages of an index.
    pub fn new(index: Arc<Index>, lists: Arc<OrderedMessages>) -> Self {
        let messages_at_start = index.read().messages.messages_so_far();
        let same_time_groups = GenerationCache::new(GROUPS);
        Self {
            index,
            lists,
            messages_at_start,
            same_time_groups,
            short_ids: ShortIdIndex::default(),
        }
    }

    /// Returns the messages among which the name of a message is unique. It depends on the message alone, not
    /// on the folder.
    fn name_scope(&self, tables: &IndexTables, entry: &IndexEntry) -> NameScope {
        if tables.messages.is_listed_to_me(entry) || entry.is_from_me() {
            NameScope::Mine
        } else if self.lists.is_scope_all() {
            NameScope::All
        } else {
            NameScope::Thread(entry.thread())
        }
    }

    /// Returns the forms of the names of messages in listing order.
    pub fn name_forms<'a>(
        &'a self,
        tables: &'a IndexTables,
        list: impl IntoIterator<Item = MsgIx> + 'a,
    ) -> impl Iterator<Item = (MsgIx, NameForm)> + 'a {
        let mut mine = [
            TimeSeeker(tables.messages.lists().sorted_to_me()),
            TimeSeeker(tables.messages.lists().sorted_from_me()),
        ];
        list.into_iter().map(move |ix| {
            let entry = tables.messages.entry(ix);
            let time = message_name_time(tables, ix);
            let peers = self.name_scope(tables, entry);
            let apart = peers == NameScope::Mine && {
                let same = |c: &mut TimeSeeker<'a>| {
                    let near = c.seek_to(tables, time).iter().copied();
                    near.take_while(move |ix| message_name_time(tables, *ix) == time)
                };
                let named = |other: &MsgIx| *other != ix && has_own_name(tables, *other);
                let mut others = mine.iter_mut().flat_map(same).filter(named);
                let own = short_id_digits(tables, ix);
                let differs = |other| {
                    own.is_some() && short_id_digits(tables, other).is_some_and(|d| Some(d) != own)
                };
                others.by_ref().take(FEW).all(differs) && others.next().is_none()
            };
            let is_long =
                !apart && self.same_time_group(tables, time, peers).long_names.contains_key(&ix);
            (ix, if is_long { NameForm::Long } else { NameForm::Short })
        })
    }

    /// Returns the name of a message without its ending, the same in every folder.
    pub fn unique_stem(&self, tables: &IndexTables, ix: MsgIx) -> String {
        let mut stem = String::with_capacity(64);
        for (ix, form) in self.name_forms(tables, [ix]) {
            self.push_stem(&mut stem, tables, ix, form);
        }
        stem
    }

    /// Appends the name of a message without its ending. The form is that of [`MessageNames::name_forms`].
    pub fn push_stem(&self, out: &mut String, tables: &IndexTables, ix: MsgIx, form: NameForm) {
        let entry = tables.messages.entry(ix);
        match form {
            NameForm::Short => names::push_short_stem(out, tables, ix),
            NameForm::Long => {
                let time = message_name_time(tables, ix);
                let group = self.same_time_group(tables, time, self.name_scope(tables, entry));
                out.push_str(&group.stem(tables, ix));
            }
        }
    }

    /// Returns the file name of a message.
    pub fn message_name(&self, ix: MsgIx) -> String {
        format!("{}.txt", self.unique_stem(&self.index.read(), ix))
    }

    /// Finds the message of a file name without its ending in a folder. The name is the one in listings, or a short
    /// one.
    pub fn find_message_by_stem(&self, folder: FolderScope, stem: &str) -> Option<MsgIx> {
        let tables = self.index.read();
        if names::has_time_prefix(stem) {
            self.find_by_stem(&tables, folder, stem)
        } else {
            self.find_by_short_id(&tables, folder, stem)
        }
    }

    /// Finds the message of a folder by a short name. Returns `None` if it fits several.
    pub fn find_by_short_id(
        &self,
        tables: &IndexTables,
        folder: FolderScope,
        name: &str,
    ) -> Option<MsgIx> {
        self.short_ids.find(&self.index, tables, name, |ix| self.is_in_folder(tables, *ix, folder))
    }

    /// Finds a message by its id, whole or short, among those that `lies` chooses. Returns `None` if it fits several.
    pub fn find_by_id(
        &self,
        tables: &IndexTables,
        id: &str,
        is_in_folder: impl Fn(&MsgIx) -> bool,
    ) -> Option<MsgIx> {
        self.short_ids.find(&self.index, tables, id, is_in_folder)
    }

    /// Finds the message that a folder shows under a name of its own without ending.
    pub fn find_by_stem(
        &self,
        tables: &IndexTables,
        folder: FolderScope,
        stem: &str,
    ) -> Option<MsgIx> {
        let time = Timestamp::from_iso8601_basic(stem.get(..names::STAMP)?)?;
        let others = match (folder, self.lists.is_scope_all()) {
            (FolderScope::Thread(thread), false) => Some(NameScope::Thread(thread)),
            (FolderScope::Thread(_) | FolderScope::ArchiveDay(_), true) => Some(NameScope::All),
            _ => None,
        };
        let is_here = |ix: &MsgIx| self.is_in_folder(tables, *ix, folder);
        if let Some(ix) = find_unambiguous(tables, time, stem).filter(is_here) {
            return Some(ix);
        }
        [Some(NameScope::Mine), others].into_iter().flatten().find_map(|peers| {
            let group = self.same_time_group(tables, time, peers);
            let hash = stable_hash(0, &[stem]);
            let named = |ix: &MsgIx| group.stem(tables, *ix) == stem;
            let was_named = |ix: &MsgIx| names::short_stem(tables, *ix) == stem;
            let mut now = with_hash(&group.by_name, hash).filter(is_here);
            let mut before = with_hash(&group.by_old_name, hash).filter(is_here);
            now.find(named).or_else(|| before.find(was_named))
        })
    }

    fn is_in_folder(&self, tables: &IndexTables, ix: MsgIx, folder: FolderScope) -> bool {
        folder.contains(tables, tables.messages.entry(ix), self.lists.is_scope_all())
    }

    /// Returns true if a file name is a short one of this message.
    pub fn is_short_name(&self, folder: FolderScope, name: &str, ix: MsgIx) -> bool {
        let stem = name.strip_suffix(".txt").unwrap_or(name);
        !names::has_time_prefix(stem) && self.find_message_by_stem(folder, stem) == Some(ix)
    }

    /// Returns messages that came last in a folder, at most `limit`, each with its id and its name.
    pub fn recent_names(&self, folder: FolderScope, limit: usize) -> Vec<(String, String)> {
        let near: Vec<MsgIx> = {
            let tables = self.index.read();
            let of_day = |list: &[MsgIx], day| -> Vec<MsgIx> {
                let of_day = tables.messages.slice_of_day(list, day).iter().copied();
                of_day.filter(|ix| self.is_in_folder(&tables, *ix, folder)).collect()
            };
            let lists = tables.messages.lists();
            match folder {
                // `inbox/` finds read messages, too.
                FolderScope::Inbox => lists.messages_to_me().rev().take(limit).collect(),
                FolderScope::Thread(thread) => self.lists.thread_messages(&tables, thread).to_vec(),
                FolderScope::ArchiveDay(day) if self.lists.is_scope_all() => {
                    of_day(&self.lists.all_messages(&tables), day)
                }
                FolderScope::ArchiveDay(day) => of_day(lists.sorted_to_me(), day),
                FolderScope::SentDay(day) => of_day(lists.sorted_from_me(), day),
            }
        };
        self.ids_and_names(near.into_iter().rev().take(limit))
    }

    /// Returns for each message its id and its name.
    pub fn ids_and_names(&self, list: impl IntoIterator<Item = MsgIx>) -> Vec<(String, String)> {
        let id = |ix| self.index.read().messages.shown_id(ix);
        list.into_iter().map(|ix| (id(ix), self.message_name(ix))).collect()
    }

    /// Returns the messages of one time and their names.
    fn same_time_group(
        &self,
        tables: &IndexTables,
        time: Timestamp,
        peers: NameScope,
    ) -> Arc<SameTimeGroup> {
        let make = || Arc::new(self.make_group(tables, time, peers));
        self.same_time_groups.get((time, peers), tables.name_generation(), make)
    }

    fn make_group(&self, tables: &IndexTables, time: Timestamp, peers: NameScope) -> SameTimeGroup {
        let live = |ix: &MsgIx| has_own_name(tables, *ix);
        let mine =
            [tables.messages.lists().sorted_to_me(), tables.messages.lists().sorted_from_me()]
                .map(|l| messages_at_time(tables, l, time))
                .concat();
        let mut mine: Vec<MsgIx> = mine.into_iter().filter(live).collect();
        mine.sort_by(|a, b| tables.messages.compare_order(*a, *b));
        mine.dedup();
        let list = match peers {
            NameScope::Mine => None,
            NameScope::Thread(thread) => Some(self.lists.thread_messages(tables, thread)),
            NameScope::All => Some(self.lists.all_messages(tables)),
        };
        let others = list.as_deref().map_or(&[][..], |l| messages_at_time(tables, l, time));
        let known: HashSet<MsgIx> = mine.iter().copied().collect();
        let others = others.iter().copied().filter(|ix| live(ix) && !known.contains(ix));
        let all: Vec<MsgIx> = mine.iter().copied().chain(others).collect();
        self.assign_names(tables, &all)
    }

    /// Assigns a name to each message of one time.
    fn assign_names(&self, tables: &IndexTables, all: &[MsgIx]) -> SameTimeGroup {
        let short = |ix: &MsgIx| (names::short_stem(tables, *ix), *ix);
        let mut by_short: Vec<(String, MsgIx)> = all.iter().map(short).collect();
        by_short.sort_unstable();
        let mut group = SameTimeGroup::default();
        for same in by_short.chunk_by(|a, b| a.0 == b.0) {
            match same {
                [(stem, ix)] => group.by_name.push((stable_hash(0, &[stem]), *ix)),
                [(stem, _), ..] => {
                    let members: Vec<MsgIx> = same.iter().map(|(_, ix)| *ix).collect();
                    let old = self.find_first_shown(&members);
                    group.by_old_name.extend(old.map(|ix| (stable_hash(0, &[stem]), ix)));
                    group.long_names.extend(self.make_long_names(tables, members));
                }
                [] => {}
            }
        }
        let long = group.long_names.iter().map(|(ix, stem)| (stable_hash(0, &[stem]), *ix));
        group.by_name.extend(long);
        group.by_name.sort_unstable();
        group.by_old_name.sort_unstable();
        group
    }

    /// Returns the message that alone had the short name before the others came, in this mount.
    fn find_first_shown(&self, members: &[MsgIx]) -> Option<MsgIx> {
        let at_start = |ix: &&MsgIx| ix.is_among_first(self.messages_at_start);
        match members.iter().filter(at_start).count() {
            0 | 1 => members.iter().min().copied(),
            _ => None,
        }
    }

    /// Returns the names of messages that share their short name. Each has its full id. Those of one id have the
    /// digest of their content, and copies with one content in several stores have the hash of their key.
    fn make_long_names(&self, tables: &IndexTables, members: Vec<MsgIx>) -> Vec<(MsgIx, String)> {
        let entry = |ix| tables.messages.entry(ix);
        let full_id = |ix| Some(short_id::full_id(&tables.messages.shown_id(ix)));
        let content = |ix| self.content_digest(tables, entry(ix));
        let key = |ix| Some(names::message_digest(tables, entry(ix)));
        let forms: [&dyn Fn(MsgIx) -> Option<String>; 3] = [&full_id, &content, &key];
        let mut named = Vec::with_capacity(members.len());
        let mut rest = members;
        for form in forms {
            let mut by_id: BTreeMap<Option<String>, Vec<MsgIx>> = BTreeMap::new();
            for ix in rest.drain(..) {
                by_id.entry(form(ix)).or_default().push(ix);
            }
            for (id, same) in by_id {
                match (id, &same[..]) {
                    (Some(id), [ix]) => {
                        named.push((*ix, names::long_stem(tables, entry(*ix), &id)));
                    }
                    _ => rest.extend(same),
                }
            }
        }
        named
    }

    /// Returns the hash of a message's content: the one that its id carries because another message has the id, or
    /// that of the bytes in its store. Returns `None` if they cannot be read now.
    fn content_digest(&self, tables: &IndexTables, entry: &IndexEntry) -> Option<String> {
        if let Some(hash) = id_qualifier(&tables.messages.id(entry)) {
            return Some(hash.to_owned());
        }
        let store = self.index.stores().get(entry.store())?;
        match store.content_digest(&entry.location()) {
            Ok(hash) => Some(encode_hex(&hash)),
            Err(error) => {
                tracing::warn!(store = store.name(), %error, "a message that shares its id with \
                    another cannot be read; its name is made of its key until it can");
                None
            }
        }
    }
}
