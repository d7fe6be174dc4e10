//! Messages that are reported again: duplicates, rescans, and stores whose last word counts.

use super::core::{Core, Inserted, Restated};
use super::entry::{Entry, Flags, MsgIx};
use super::source::Source;
use crate::store::{Again, Found};

impl Core {
    /// The same key again: a duplicate, or the message after a rescan.
    pub(super) fn meet_again(&mut self, ix: MsgIx, store: usize, found: &Found<'_>) -> Inserted {
        let verified = match found.again {
            Again::Restated | Again::Rewritten => return self.restate(ix, store, found),
            Again::Same => true,
            Again::Claimed => false,
        };
        let source = Source::new(store, found.at.source);
        let to = self.strings.intern(&found.to);
        let thread = self.find_thread(store, &found.thread);
        let begins = self.links.own(ix);
        let Some(entry) = self.entries.get_mut(ix as usize) else { return Inserted::Known };
        let same_place = entry.source == source && entry.offset == found.at.offset;
        let lost = entry.flags.has(Flags::STALE) || entry.flags.has(Flags::GONE);
        let same_text = entry.time_ms == found.time.millis()
            && entry.to == to
            && Some(begins.unwrap_or(entry.thread)) == thread
            && (entry.len == found.at.len || verified);
        if !lost && !same_place {
            return if same_text || verified { Inserted::Known } else { Inserted::IdTaken };
        }
        let came_back = entry.flags.has(Flags::GONE);
        entry.source = source;
        entry.offset = found.at.offset;
        if entry.len != found.at.len {
            entry.len = found.at.len;
            entry.size = 0;
        }
        entry.flags.set(Flags::STALE, false);
        entry.flags.set(Flags::GONE, false);
        if came_back { Inserted::New(ix) } else { Inserted::Again(ix, Restated::default()) }
    }

    /// The same message again, as its store vouches: place, thread, link, mark, recipients and time
    /// are now what it says (see [`Store::scan`](crate::store::Store::scan)).
    fn restate(&mut self, ix: MsgIx, store: usize, found: &Found<'_>) -> Inserted {
        let marked = self.hear_mark(ix, found);
        let Some(before) = self.entry(ix).copied() else { return Inserted::Known };
        // While the old time still says where it stands.
        let moves = found.time != before.time()
            || found.name_time.is_some_and(|name| name != self.name_time(&before));
        if moves {
            self.delist(ix);
        }
        let after = self.restated(ix, &before, store, found);
        let noted = self.note(ix, found.noted);
        self.note_copy(ix, found);
        let shown = moves
            || noted
            || found.again == Again::Rewritten
            || after.to != before.to
            // What lies beside it decides what is said of it.
            || after.flags.has(Flags::PARTS)
            || SHOWN.iter().any(|bit| after.flags.has(*bit) != before.flags.has(*bit));
        let was_unread = before.is_to_me() && !before.is_read();
        if moves {
            self.link_may_differ(ix);
            // Its place before or behind what its writer signed is another.
            self.resigned.writers.insert(after.writer);
        }
        if let Some(entry) = self.entries.get_mut(ix as usize) {
            *entry = after;
        }
        let own = self.thread(store, &found.thread);
        self.link_again(store, ix, own, found);
        if let Some(key) = &found.idempotency_key {
            let known = self.idempotency.entry(key.to_string()).or_default();
            if !known.contains(&ix) {
                known.push(ix);
            }
        }
        if before.flags.has(Flags::GONE) {
            return Inserted::New(ix);
        }
        if shown {
            self.generation += 1;
            let is_unread = after.is_to_me() && !after.is_read();
            self.unread =
                (self.unread + usize::from(is_unread)).saturating_sub(usize::from(was_unread));
            self.list(ix, !self.unsorted);
            self.weigh(after.thread);
        }
        Inserted::Again(ix, Restated { marked, shown })
    }

    /// The entry as the store describes it now.
    fn restated(&mut self, ix: MsgIx, before: &Entry, store: usize, found: &Found<'_>) -> Entry {
        let mut after = *before;
        after.source = Source::new(store, found.at.source);
        after.offset = found.at.offset;
        after.len = found.at.len;
        after.time_ms = found.time.millis();
        after.to = self.recipients(store, &found.to);
        if found.name_time.is_some() || after.time().secs() != before.time().secs() {
            after.seq = self.name_offset(store, before.writer, ix, found);
        }
        after.flags.set(Flags::TO_ME, found.to_me);
        after.flags.set(Flags::FROM_ME, found.from_me);
        after.flags.set(Flags::PARTS, found.parts);
        after.flags.set(Flags::STALE, false);
        after.flags.set(Flags::GONE, false);
        after.size = 0;
        after
    }

    /// Takes over whether there is a note about a message. Whether that is new.
    pub(super) fn note(&mut self, ix: MsgIx, noted: bool) -> bool {
        if noted { self.noted.insert(ix) } else { self.noted.remove(&ix) }
    }

    /// Takes a message out of the lists, under the time it still has.
    fn delist(&mut self, ix: MsgIx) {
        if self.unsorted {
            return;
        }
        for mine in [true, false] {
            let list = if mine { &self.to_me } else { &self.from_me };
            let at = list
                .binary_search_by(|other| self.order(*other, ix))
                .ok()
                .or_else(|| list.iter().position(|other| *other == ix));
            let list = if mine { &mut self.to_me } else { &mut self.from_me };
            if let Some(at) = at {
                list.remove(at);
            }
        }
    }
}

/// Flags that say where a message is shown, and with what.
const SHOWN: [Flags; 3] = [Flags::TO_ME, Flags::FROM_ME, Flags::PARTS];

#[cfg(test)]
mod tests;
