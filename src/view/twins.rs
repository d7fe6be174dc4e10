//! Messages that have one time: their names differ by writer and id only, so two may be equal.
//!
//! A message has the same name in every folder. What is from or to me is named first; messages
//! between others, which only threads and `scope = "all"` show, make way for it.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

use super::Tree;
use super::dated::Dated;
use super::names::{self, Level, SHORT};
use super::node::Node;
use crate::index::{Core, Entry, MsgIx, ThreadIx, stable_hash};
use crate::model::Timestamp;

/// Groups that are remembered: programs walk one folder after the other.
pub(super) const GROUPS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(3);

/// Among which messages a name has to be the only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Peers {
    /// Those from and to me.
    Mine,
    /// Those of a thread as well.
    Thread(ThreadIx),
    /// All.
    All,
}

/// The messages of one time.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// By the hash of the name.
    by_name: Vec<(u64, MsgIx)>,
    /// Those that do not have the short name, in order of their positions.
    longer: Vec<(MsgIx, Level)>,
}

impl Group {
    fn level(&self, ix: MsgIx) -> Level {
        let at = self.longer.binary_search_by_key(&ix, |(ix, _)| *ix);
        at.ok().and_then(|at| self.longer.get(at)).map_or(SHORT, |(_, level)| *level)
    }
}

/// The groups looked at last, as of a generation of the names.
pub(super) type Seen = Dated<(Timestamp, Peers), Arc<Group>>;

/// The time in a message's name.
fn time_of(core: &Core, ix: MsgIx) -> Option<Timestamp> {
    core.entry(ix).map(|e| core.name_time(e).calendar())
}

/// The part of a list in listing order with this time, gone messages included.
fn at_time<'a>(core: &Core, list: &'a [MsgIx], time: Timestamp) -> &'a [MsgIx] {
    let from = list.partition_point(|ix| time_of(core, *ix) < Some(time));
    let rest = list.get(from..).unwrap_or_default();
    // Mostly there is one.
    let len = rest.iter().take(8).take_while(|ix| time_of(core, **ix) == Some(time)).count();
    let len =
        if len < 8 { len } else { rest.partition_point(|ix| time_of(core, *ix) == Some(time)) };
    rest.get(..len).unwrap_or_default()
}

/// So many messages of one time are told apart without looking at them all.
const FEW: usize = 16;

/// What a short name ends with, as a number; `None` if it is a hash. Names that end differently differ.
fn digits(core: &Core, ix: MsgIx) -> Option<u32> {
    core.hex_id(core.entry(ix)?).map(|id| (id >> 32) as u32)
}

/// Walks through a list in listing order beside another one.
struct Cursor<'a>(&'a [MsgIx]);

impl<'a> Cursor<'a> {
    /// What is left of the list from a time on, which is not before that of the last call.
    fn from(&mut self, core: &Core, time: Timestamp) -> &'a [MsgIx] {
        let earlier = |ix: &MsgIx| time_of(core, *ix) < Some(time);
        let mut step = 1;
        // The next one is mostly near: look there first, then farther and farther away.
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
    /// Among whom the name of a message is the only one: it says so alone, whatever folder shows it.
    fn peers(&self, core: &Core, entry: &Entry) -> Peers {
        if entry.is_to_me() || entry.is_from_me() {
            Peers::Mine
        } else if self.all_conversations() {
            Peers::All
        } else {
            Peers::Thread(core.thread_of(entry))
        }
    }

    /// The levels of the names of messages in listing order.
    pub(super) fn levels<'a>(
        &'a self,
        core: &'a Core,
        list: impl IntoIterator<Item = MsgIx> + 'a,
    ) -> impl Iterator<Item = (MsgIx, Level)> + 'a {
        let mut mine = [Cursor(core.to_me_list()), Cursor(core.from_me_list())];
        list.into_iter().filter_map(move |ix| {
            let entry = core.entry(ix)?;
            let time = time_of(core, ix)?;
            let peers = self.peers(core, entry);
            let apart = peers == Peers::Mine && {
                let same = |c: &mut Cursor<'a>| {
                    let near = c.from(core, time).iter().copied();
                    near.take_while(move |ix| time_of(core, *ix) == Some(time))
                };
                let live = |other: &MsgIx| core.entry(*other).is_some_and(Entry::is_live);
                let mut others = mine.iter_mut().flat_map(same).filter(|o| *o != ix && live(o));
                let own = digits(core, ix);
                let differs =
                    |other| own.is_some() && digits(core, other).is_some_and(|d| Some(d) != own);
                others.by_ref().take(FEW).all(differs) && others.next().is_none()
            };
            let level = if apart && self.firsts.is_empty() {
                SHORT
            } else {
                self.group(core, time, peers).level(ix)
            };
            Some((ix, level))
        })
    }

    /// The name of a message without its ending, the same in every folder.
    pub(super) fn stem(&self, core: &Core, ix: MsgIx) -> Option<String> {
        let (_, level) = self.levels(core, [ix]).next()?;
        Some(names::message_stem(core, core.entry(ix)?, level))
    }

    /// The message of a name without ending that a folder shows.
    pub(super) fn message_called(&self, core: &Core, folder: &Node, stem: &str) -> Option<MsgIx> {
        let time = Timestamp::from_stamp(stem.get(..names::STAMP)?)?;
        let all = self.all_conversations();
        let others = match folder {
            Node::Thread(thread) if !all => Some(Peers::Thread(*thread)),
            Node::Thread(_) | Node::ArchiveDay(_) if all => Some(Peers::All),
            _ => None,
        };
        if let Some(ix) = self.only_one(core, time, stem)
            && core.entry(ix).is_some_and(|e| self.lies_in(core, e, folder))
        {
            return Some(ix);
        }
        [Some(Peers::Mine), others].into_iter().flatten().find_map(|peers| {
            let group = self.group(core, time, peers);
            let hash = stable_hash(0, &[stem]);
            let from = group.by_name.partition_point(|(h, _)| *h < hash);
            let same = group.by_name.get(from..).unwrap_or_default();
            let same = same.iter().take_while(|(h, _)| *h == hash).map(|(_, ix)| *ix);
            same.into_iter().find(|ix| {
                let entry = core.entry(*ix).filter(|e| self.lies_in(core, e, folder));
                entry.is_some_and(|e| names::message_stem(core, e, group.level(*ix)) == stem)
            })
        })
    }

    /// The message of mine with a short name, where few have its time and each ends differently.
    fn only_one(&self, core: &Core, time: Timestamp, stem: &str) -> Option<MsgIx> {
        let asked = u32::from_str_radix(stem.get(stem.len().checked_sub(8)?..)?, 16).ok()?;
        let lists = [core.to_me_list(), core.from_me_list()].map(|l| at_time(core, l, time));
        if !self.firsts.is_empty() || lists.iter().any(|list| list.len() > FEW) {
            return None;
        }
        let mut found = None;
        for ix in lists.into_iter().flatten().copied() {
            let entry = core.entry(ix)?;
            if entry.is_live()
                && digits(core, ix)? == asked
                && found.replace(ix).is_some_and(|f| f != ix)
            {
                return None;
            }
        }
        found.filter(|ix| {
            core.entry(*ix).is_some_and(|e| names::message_stem(core, e, SHORT) == stem)
        })
    }

    /// Whether a folder shows a message, or has shown it.
    pub(super) fn lies_in(&self, core: &Core, entry: &Entry, folder: &Node) -> bool {
        let copy = || core.by_identity(entry.identity()).is_some_and(|ix| core.is_copy(ix));
        let on = |day| core.name_time(entry).day() == day;
        match folder {
            Node::Inbox | Node::MailBox(_) => entry.is_to_me(),
            Node::ArchiveDay(day) => {
                on(*day)
                    && entry.is_live()
                    && (entry.is_to_me() || self.all_conversations() && !copy())
            }
            Node::SentDay(day) => on(*day) && entry.is_from_me(),
            Node::Thread(thread) => entry.is_live() && core.thread_of(entry) == *thread && !copy(),
            _ => false,
        }
    }

    /// Messages of one time, and what their names are.
    fn group(&self, core: &Core, time: Timestamp, peers: Peers) -> Arc<Group> {
        let make = || Arc::new(self.make_group(core, time, peers));
        self.twins.get((time, peers), core.names_generation(), make)
    }

    fn make_group(&self, core: &Core, time: Timestamp, peers: Peers) -> Group {
        let live = |ix: &MsgIx| core.entry(*ix).is_some_and(Entry::is_live);
        let mine =
            [core.to_me_list(), core.from_me_list()].map(|l| at_time(core, l, time)).concat();
        let mut mine: Vec<MsgIx> = mine.into_iter().filter(live).collect();
        mine.sort_by(|a, b| core.order(*a, *b));
        mine.dedup();
        let list = match peers {
            Peers::Mine => None,
            Peers::Thread(thread) => Some(self.thread_messages(core, thread)),
            Peers::All => Some(self.every_message(core)),
        };
        let others = list.as_deref().map_or(&[][..], |l| at_time(core, l, time));
        let known: HashSet<MsgIx> = mine.iter().copied().collect();
        let others = others.iter().copied().filter(|ix| live(ix) && !known.contains(ix));
        let all: Vec<MsgIx> = mine.iter().copied().chain(others).collect();
        self.name_all(core, &all, mine.len())
    }

    /// Gives each message its name; the first `mine` of them come first.
    fn name_all(&self, core: &Core, all: &[MsgIx], mine: usize) -> Group {
        let came = |ix: MsgIx| if (ix as usize) < self.at_start.messages { 0 } else { ix + 1 };
        let mut by_short: Vec<(String, (bool, MsgIx, usize), MsgIx)> = (0..)
            .zip(all)
            .filter_map(|(n, ix)| {
                let short = names::message_stem(core, core.entry(*ix)?, SHORT);
                Some((short, (n >= mine, came(*ix), n), *ix))
            })
            .collect();
        by_short.sort_unstable();
        let mut group = Group::default();
        let mut later = Vec::new();
        for same in by_short.chunk_by(|a, b| a.0 == b.0) {
            let keeper = self.keeper(core, same);
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
                let free = (SHORT + 1..Level::MAX).map(stem).find(|(s, _)| !taken.contains(s));
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

    /// Which of several messages with one short name keeps it.
    fn keeper(&self, core: &Core, same: &[(String, (bool, MsgIx, usize), MsgIx)]) -> Option<MsgIx> {
        let (short, _, first) = same.first()?;
        let digest = |ix: MsgIx| core.entry(ix).map(|e| names::message_digest(core, e));
        if let Some(noted) = self.firsts.noted(short) {
            return same.iter().map(|(.., ix)| *ix).find(|ix| digest(*ix).as_ref() == Some(&noted));
        }
        if same.len() > 1 {
            self.firsts.note(short, &digest(*first)?);
        }
        Some(*first)
    }
}
