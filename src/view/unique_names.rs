//! Unique names for messages with the same time. Such names differ only by sender and id, so two may be equal.
//!
//! A message has the same name in every folder. Messages from or to me get their names first. Messages between
//! others, which only threads and `scope = "all"` show, take longer names if they must.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

use super::Tree;
use super::generation_cache::GenerationCache;
use super::names::{self, NameLevel, SHORT};
use super::node::Node;
use crate::index::{IndexEntry, IndexTables, MsgIx, ThreadIx, stable_hash};
use crate::model::Timestamp;

/// Groups that are cached: programs walk one folder after the other.
pub(super) const GROUPS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(3);

/// The messages among which a name has to be unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NameScope {
    /// The messages from and to me.
    Mine,
    /// Those of a thread as well.
    Thread(ThreadIx),
    /// All messages.
    All,
}

/// The messages of one time.
#[derive(Debug, Default)]
pub(super) struct SameTimeGroup {
    /// The messages by the hash of their name.
    by_name: Vec<(u64, MsgIx)>,
    /// The messages that do not have the short name, in order of their numbers.
    longer: Vec<(MsgIx, NameLevel)>,
}

impl SameTimeGroup {
    fn name_level(&self, ix: MsgIx) -> NameLevel {
        let at = self.longer.binary_search_by_key(&ix, |(ix, _)| *ix);
        at.ok().and_then(|at| self.longer.get(at)).map_or(SHORT, |(_, level)| *level)
    }
}

/// The groups that were used last, each for a generation of the names.
pub(super) type SameTimeCache = GenerationCache<(Timestamp, NameScope), Arc<SameTimeGroup>>;

/// Returns the time in a message's name.
fn message_name_time(core: &IndexTables, ix: MsgIx) -> Option<Timestamp> {
    core.entry(ix).map(|e| core.name_time(e).clamp_to_calendar())
}

/// Returns the part of a list in listing order with this time, gone messages included.
fn messages_at_time<'a>(core: &IndexTables, list: &'a [MsgIx], time: Timestamp) -> &'a [MsgIx] {
    let from = list.partition_point(|ix| message_name_time(core, *ix) < Some(time));
    let rest = list.get(from..).unwrap_or_default();
    // Most times have one message.
    let len =
        rest.iter().take(8).take_while(|ix| message_name_time(core, **ix) == Some(time)).count();
    let len = if len < 8 {
        len
    } else {
        rest.partition_point(|ix| message_name_time(core, *ix) == Some(time))
    };
    rest.get(..len).unwrap_or_default()
}

/// Largest number of messages of one time that are compared one by one, without a group.
const FEW: usize = 16;

/// Returns the last part of a short name as a number; `None` if it is a hash. Names with different last parts
/// differ.
fn short_id_digits(core: &IndexTables, ix: MsgIx) -> Option<u32> {
    core.hex_id(core.entry(ix)?).map(|id| (id >> 32) as u32)
}

/// A cursor in a list in listing order, for one walk through another list.
struct TimeSeeker<'a>(&'a [MsgIx]);

impl<'a> TimeSeeker<'a> {
    /// Returns the rest of the list from a time on, which must not be before that of the last call.
    fn seek_to(&mut self, core: &IndexTables, time: Timestamp) -> &'a [MsgIx] {
        let earlier = |ix: &MsgIx| message_name_time(core, *ix) < Some(time);
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

impl Tree {
    /// Returns the messages among which the name of a message is unique. It depends on the message alone, not
    /// on the folder.
    fn name_scope(&self, core: &IndexTables, entry: &IndexEntry) -> NameScope {
        if entry.is_to_me() || entry.is_from_me() {
            NameScope::Mine
        } else if self.is_scope_all() {
            NameScope::All
        } else {
            NameScope::Thread(core.thread_of(entry))
        }
    }

    /// Returns the levels of the names of messages in listing order.
    pub(super) fn name_levels<'a>(
        &'a self,
        core: &'a IndexTables,
        list: impl IntoIterator<Item = MsgIx> + 'a,
    ) -> impl Iterator<Item = (MsgIx, NameLevel)> + 'a {
        let mut mine = [TimeSeeker(core.to_me_list()), TimeSeeker(core.from_me_list())];
        list.into_iter().filter_map(move |ix| {
            let entry = core.entry(ix)?;
            let time = message_name_time(core, ix)?;
            let peers = self.name_scope(core, entry);
            let apart = peers == NameScope::Mine && {
                let same = |c: &mut TimeSeeker<'a>| {
                    let near = c.seek_to(core, time).iter().copied();
                    near.take_while(move |ix| message_name_time(core, *ix) == Some(time))
                };
                let live = |other: &MsgIx| core.entry(*other).is_some_and(IndexEntry::is_live);
                let mut others = mine.iter_mut().flat_map(same).filter(|o| *o != ix && live(o));
                let own = short_id_digits(core, ix);
                let differs = |other| {
                    own.is_some() && short_id_digits(core, other).is_some_and(|d| Some(d) != own)
                };
                others.by_ref().take(FEW).all(differs) && others.next().is_none()
            };
            let level = if apart && self.name_owners.is_empty() {
                SHORT
            } else {
                self.same_time_group(core, time, peers).name_level(ix)
            };
            Some((ix, level))
        })
    }

    /// Returns the name of a message without its ending, the same in every folder.
    pub(super) fn unique_stem(&self, core: &IndexTables, ix: MsgIx) -> Option<String> {
        let (_, level) = self.name_levels(core, [ix]).next()?;
        Some(names::message_stem(core, core.entry(ix)?, level))
    }

    /// Finds the message that a folder shows under a name without ending.
    pub(super) fn find_by_stem(
        &self,
        core: &IndexTables,
        folder: &Node,
        stem: &str,
    ) -> Option<MsgIx> {
        let time = Timestamp::from_iso8601_basic(stem.get(..names::STAMP)?)?;
        let all = self.is_scope_all();
        let others = match folder {
            Node::Thread(thread) if !all => Some(NameScope::Thread(*thread)),
            Node::Thread(_) | Node::ArchiveDay(_) if all => Some(NameScope::All),
            _ => None,
        };
        if let Some(ix) = self.find_unambiguous(core, time, stem)
            && core.entry(ix).is_some_and(|e| self.is_in_folder(core, e, folder))
        {
            return Some(ix);
        }
        [Some(NameScope::Mine), others].into_iter().flatten().find_map(|peers| {
            let group = self.same_time_group(core, time, peers);
            let hash = stable_hash(0, &[stem]);
            let from = group.by_name.partition_point(|(h, _)| *h < hash);
            let same = group.by_name.get(from..).unwrap_or_default();
            let same = same.iter().take_while(|(h, _)| *h == hash).map(|(_, ix)| *ix);
            same.into_iter().find(|ix| {
                let entry = core.entry(*ix).filter(|e| self.is_in_folder(core, e, folder));
                entry.is_some_and(|e| names::message_stem(core, e, group.name_level(*ix)) == stem)
            })
        })
    }

    /// Finds a message of mine by its short name, if few messages have its time and each name ends differently.
    fn find_unambiguous(&self, core: &IndexTables, time: Timestamp, stem: &str) -> Option<MsgIx> {
        let asked = u32::from_str_radix(stem.get(stem.len().checked_sub(8)?..)?, 16).ok()?;
        let lists =
            [core.to_me_list(), core.from_me_list()].map(|l| messages_at_time(core, l, time));
        if !self.name_owners.is_empty() || lists.iter().any(|list| list.len() > FEW) {
            return None;
        }
        let mut found = None;
        for ix in lists.into_iter().flatten().copied() {
            let entry = core.entry(ix)?;
            if entry.is_live()
                && short_id_digits(core, ix)? == asked
                && found.replace(ix).is_some_and(|f| f != ix)
            {
                return None;
            }
        }
        found.filter(|ix| {
            core.entry(*ix).is_some_and(|e| names::message_stem(core, e, SHORT) == stem)
        })
    }

    /// Returns true if a folder shows a message, or has shown it.
    pub(super) fn is_in_folder(
        &self,
        core: &IndexTables,
        entry: &IndexEntry,
        folder: &Node,
    ) -> bool {
        let copy = || core.find_by_identity(entry.identity()).is_some_and(|ix| core.is_copy(ix));
        let on = |day| core.name_time(entry).day() == day;
        match folder {
            Node::Inbox | Node::MailBox(_) => entry.is_to_me(),
            Node::ArchiveDay(day) => {
                on(*day) && entry.is_live() && (entry.is_to_me() || self.is_scope_all() && !copy())
            }
            Node::SentDay(day) => on(*day) && entry.is_from_me(),
            Node::Thread(thread) => entry.is_live() && core.thread_of(entry) == *thread && !copy(),
            _ => false,
        }
    }

    /// Returns the messages of one time and their names.
    fn same_time_group(
        &self,
        core: &IndexTables,
        time: Timestamp,
        peers: NameScope,
    ) -> Arc<SameTimeGroup> {
        let make = || Arc::new(self.make_group(core, time, peers));
        self.same_time_groups.get((time, peers), core.name_generation(), make)
    }

    fn make_group(&self, core: &IndexTables, time: Timestamp, peers: NameScope) -> SameTimeGroup {
        let live = |ix: &MsgIx| core.entry(*ix).is_some_and(IndexEntry::is_live);
        let mine = [core.to_me_list(), core.from_me_list()]
            .map(|l| messages_at_time(core, l, time))
            .concat();
        let mut mine: Vec<MsgIx> = mine.into_iter().filter(live).collect();
        mine.sort_by(|a, b| core.compare_order(*a, *b));
        mine.dedup();
        let list = match peers {
            NameScope::Mine => None,
            NameScope::Thread(thread) => Some(self.thread_messages(core, thread)),
            NameScope::All => Some(self.all_messages(core)),
        };
        let others = list.as_deref().map_or(&[][..], |l| messages_at_time(core, l, time));
        let known: HashSet<MsgIx> = mine.iter().copied().collect();
        let others = others.iter().copied().filter(|ix| live(ix) && !known.contains(ix));
        let all: Vec<MsgIx> = mine.iter().copied().chain(others).collect();
        self.assign_names(core, &all, mine.len())
    }

    /// Assigns a name to each message. The first `mine` of them have priority.
    fn assign_names(&self, core: &IndexTables, all: &[MsgIx], mine: usize) -> SameTimeGroup {
        let came =
            |ix: MsgIx| if (ix as usize) < self.initial_counts.messages { 0 } else { ix + 1 };
        let mut by_short: Vec<(String, (bool, MsgIx, usize), MsgIx)> = (0..)
            .zip(all)
            .filter_map(|(n, ix)| {
                let short = names::message_stem(core, core.entry(*ix)?, SHORT);
                Some((short, (n >= mine, came(*ix), n), *ix))
            })
            .collect();
        by_short.sort_unstable();
        let mut group = SameTimeGroup::default();
        let mut later = Vec::new();
        for same in by_short.chunk_by(|a, b| a.0 == b.0) {
            let keeper = self.choose_owner(core, same);
            for (short, _, ix) in same {
                if keeper == Some(*ix) {
                    group.by_name.push((stable_hash(0, &[short]), *ix));
                } else {
                    later.push(*ix);
                }
            }
        }
        if !later.is_empty() {
            let mut taken: HashSet<String> =
                by_short.into_iter().map(|(short, ..)| short).collect();
            for ix in later {
                let Some(entry) = core.entry(ix) else { continue };
                let stem = |level| (names::message_stem(core, entry, level), level);
                let free = (SHORT + 1..NameLevel::MAX).map(stem).find(|(s, _)| !taken.contains(s));
                let Some((stem, level)) = free else { continue };
                group.by_name.push((stable_hash(0, &[&stem]), ix));
                group.longer.push((ix, level));
                taken.insert(stem);
            }
        }
        group.by_name.sort_unstable();
        group.longer.sort_unstable();
        group
    }

    /// Returns the owner of a short name that several messages share.
    fn choose_owner(
        &self,
        core: &IndexTables,
        same: &[(String, (bool, MsgIx, usize), MsgIx)],
    ) -> Option<MsgIx> {
        let (short, _, first) = same.first()?;
        let digest = |ix: MsgIx| core.entry(ix).map(|e| names::message_digest(core, e));
        if let Some(noted) = self.name_owners.find_owner(short) {
            return same.iter().map(|(.., ix)| *ix).find(|ix| digest(*ix).as_ref() == Some(&noted));
        }
        if same.len() > 1 {
            self.name_owners.record_owner(short, &digest(*first)?);
        }
        Some(*first)
    }
}
