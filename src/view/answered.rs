//! The messages that answer a message of mine (docs/SEMANTICS.md, S950 and S951).
//!
//! An answer is to me and from a recipient of the message. It is validly signed, or unsigned from a sender whose key is
//! not pinned. It names the id of the message, in whatever thread it stands. Some formats also have answers that name
//! no id ([`NextAnswerRule`]).

use std::collections::{BTreeMap, BTreeSet};

use super::{Error, Tree};
use crate::index::{IndexEntry, IndexTables, MsgIx};
use crate::model::{SignatureState, Timestamp, plain_id};
use crate::store::{AnswerScheme, NextAnswerRule, Store};

/// A thread is searched as a whole if the messages that would be searched instead are at least this many times as many.
const SHORT_THREAD_DIVISOR: usize = 16;

/// A message that answers one of mine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The message.
    pub ix: MsgIx,
    /// Its sender, as the index names the address.
    pub from: String,
    /// Its time.
    pub time: Timestamp,
}

/// A message of mine, for which answers are sought.
#[derive(Debug)]
pub struct Question {
    /// The message.
    pub(super) ix: MsgIx,
    /// The number of its store.
    store: usize,
    /// Its time in the order of its thread.
    time: Timestamp,
    /// The ids by which answers name it.
    ids: Vec<String>,
    /// The addresses of its recipients.
    to: Vec<String>,
}

/// Returns the accepted messages that answer a message of mine, with the recipient who wrote each, oldest first.
///
/// # Errors
/// As [`Question::find`].
pub(super) fn list_answers(tree: &Tree, ix: MsgIx) -> Result<Vec<Answer>, Error> {
    Question::find(tree, ix)?.list_answers(tree)
}

/// Returns the addresses of the recipients of a message of mine.
pub(super) fn list_recipients(tables: &IndexTables, ix: MsgIx) -> Vec<String> {
    let list = tables.messages.recipient_list(tables.messages.entry(ix));
    list.split(", ").filter(|to| !to.is_empty()).map(str::to_owned).collect()
}

/// Returns true if two addresses of a store are the same. In those of mail the case of letters means nothing.
pub(super) fn is_same_address(a: &str, b: &str) -> bool {
    a == b || a.contains('@') && a.eq_ignore_ascii_case(b)
}

impl Question {
    /// Finds what is needed to seek the answers to a message of mine.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it is no message of mine that the store still has, and errors of the store.
    pub(super) fn find(tree: &Tree, ix: MsgIx) -> Result<Self, Error> {
        let (ix, entry, time, mut ids, to) = {
            let tables = tree.index.read();
            let original =
                tables.messages.find_original(ix).filter(|_| tables.messages.is_copy(ix));
            let ix = original.unwrap_or(ix);
            let entry = *tables.messages.entry(ix);
            let mut ids = vec![tables.messages.id(&entry)];
            ids.extend(tables.messages.shared_id(ix));
            (ix, entry, tables.messages.name_time(&entry), ids, list_recipients(&tables, ix))
        };
        if !entry.is_from_me() {
            return Err(Error::NotFound);
        }
        // A record to several recipients has more ids than the one in the index.
        if to.len() > 1 {
            ids.extend(tree.texts.further_ids(ix)?.iter().cloned());
        }
        Ok(Self { ix, store: entry.store(), time, ids, to })
    }

    /// Returns the name of its store if the store does not tell which messages answer it.
    pub(super) fn store_without_answers<'a>(&self, tree: &'a Tree) -> Option<&'a str> {
        let store = self.store_in(tree);
        matches!(store.properties().answers, AnswerScheme::Unnamed).then(|| store.name())
    }

    fn store_in<'a>(&self, tree: &'a Tree) -> &'a dyn Store {
        let entry = *tree.index.read().messages.entry(self.ix);
        tree.index.store_of(&entry).as_ref()
    }

    /// Returns the recipients who wrote none of these answers. My own addresses count only if nobody else is a
    /// recipient.
    pub(super) fn list_missing(&self, tree: &Tree, answers: &[Answer]) -> Vec<String> {
        let mine = self.store_in(tree).properties();
        let is_me = |to: &String| mine.my_addresses().any(|me| is_same_address(to, me));
        let others = self.to.iter().filter(|to| !is_me(to));
        let mut asked: Vec<&String> = others.collect();
        if asked.is_empty() {
            asked = self.to.iter().collect();
        }
        asked.retain(|to| !answers.iter().any(|answer| is_same_address(&answer.from, to)));
        asked.into_iter().cloned().collect()
    }

    /// Returns the accepted messages that answer it, oldest first.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the store does not have the question any more.
    pub(super) fn list_answers(&self, tree: &Tree) -> Result<Vec<Answer>, Error> {
        let store = self.store_in(tree);
        if !tree.index.read().messages.entry(self.ix).is_from_me() {
            return Err(Error::NotFound);
        }
        let mut found = match store.properties().answers {
            AnswerScheme::Unnamed => return Ok(Vec::new()),
            AnswerScheme::Named => BTreeSet::new(),
            AnswerScheme::NamedOrNext(rule) => find_next_answers(tree, store, (self, &rule)),
        };
        let tables = tree.index.read();
        found.extend(find_named_answers(&tables, self));
        found.retain(|ix| is_accepted(tree, &tables, store, self, *ix));
        let mut found: Vec<MsgIx> = found.into_iter().collect();
        found.sort_by(|a, b| tables.messages.compare_order(*a, *b));
        let to_answer = |ix: MsgIx| {
            let entry = tables.messages.entry(ix);
            Answer { ix, from: tables.messages.sender(entry).to_owned(), time: entry.time() }
        };
        Ok(found.into_iter().map(to_answer).collect())
    }
}

/// Returns the messages that name an id of the question.
fn find_named_answers(tables: &IndexTables, question: &Question) -> BTreeSet<MsgIx> {
    let store = question.store;
    let mut found = BTreeSet::new();
    for id in &question.ids {
        for ix in tables.messages.messages_answering(store, id) {
            if tables.messages.find_original(ix) == Some(question.ix) {
                // This is another record of the question itself. Its recipient names the id of that record.
                let copy = tables.messages.id(tables.messages.entry(ix));
                found.extend(tables.messages.messages_answering(store, &copy));
            } else {
                found.insert(ix);
            }
        }
    }
    found
}

/// The messages of a thread after a question, until each of its recipients was asked again.
struct LaterMessages {
    /// The messages of the recipients that name no answered id, in listing order.
    candidates: Vec<MsgIx>,
    /// For each recipient, my later questions and their times, in listing order.
    asked_again: Vec<Vec<(MsgIx, Timestamp)>>,
}

/// Returns the messages of the thread that name no id and answer the question because it is the newest one to their
/// writers before them.
fn find_next_answers(
    tree: &Tree,
    store: &dyn Store,
    (question, rule): (&Question, &NextAnswerRule),
) -> BTreeSet<MsgIx> {
    let later = find_later_messages(&tree.index.read(), question);
    let answered = find_answered_candidates(tree, store, (question, &later));
    let LaterMessages { candidates, asked_again } = later;
    let tables = tree.index.read();
    let is_before = |asked: MsgIx, answer: MsgIx| {
        let own = answered.get(&asked);
        own.is_none_or(|own| tables.messages.compare_order(answer, *own).is_gt())
    };
    let fits = |asked: MsgIx, answer: MsgIx| {
        let id = |ix| tables.messages.id(tables.messages.entry(ix));
        is_before(asked, answer) && rule.fits.is_none_or(|fits| fits(&id(asked), &id(answer)))
    };
    let is_answer = |ix: &MsgIx| {
        let entry = tables.messages.entry(*ix);
        let (from, latest) = (tables.messages.sender(entry), latest_time(store, entry));
        let is_unsigned =
            || tables.trust.signature(&tables.messages, entry) == SignatureState::None;
        let own = question.to.iter().position(|to| is_same_address(to, from));
        let before = own.and_then(|n| asked_again.get(n)).into_iter().flatten();
        let mut before = before.take_while(|(_, time)| *time <= latest);
        question.time <= latest
            && fits(question.ix, *ix)
            && (!rule.unsigned_only || is_unsigned())
            && !before.any(|(asked, _)| fits(*asked, *ix))
    };
    candidates.into_iter().filter(is_answer).collect()
}

/// Maps each of my messages to the candidate that it answers. Neither that candidate nor an earlier one is an answer to
/// that message. The order cannot tell which of two messages in one second came first if a candidate's time is a whole
/// second, so the record of my message is read then.
fn find_answered_candidates(
    tree: &Tree,
    store: &dyn Store,
    (question, later): (&Question, &LaterMessages),
) -> BTreeMap<MsgIx, MsgIx> {
    let candidates = &later.candidates;
    let is_doubtful = |asked: &MsgIx| {
        let tables = tree.index.read();
        let name_time = |ix: MsgIx| tables.messages.name_time(tables.messages.entry(ix));
        let time = name_time(*asked);
        let second = Timestamp::from_secs(time.secs());
        let is_before = |ix: &MsgIx| tables.messages.compare_order(*ix, *asked).is_lt();
        let before = candidates.get(..candidates.partition_point(is_before)).unwrap_or_default();
        let mut near = before.iter().rev().take_while(|ix| name_time(**ix) >= second);
        near.any(|ix| time <= latest_time(store, tables.messages.entry(*ix)))
    };
    let find_answered = |asked: MsgIx| {
        let entry = tree.texts.live_entry(asked).ok()?;
        let id = tree.texts.read_record(asked, &entry).ok()?.message.in_reply_to?;
        let tables = tree.index.read();
        let has_id = |ix: &&MsgIx| tables.messages.has_plain_id(**ix, plain_id(&id));
        Some((asked, *candidates.iter().find(has_id)?))
    };
    let again = later.asked_again.iter().flatten().map(|(ix, _)| *ix);
    let asked: BTreeSet<MsgIx> = again.chain([question.ix]).collect();
    asked.into_iter().filter(is_doubtful).filter_map(find_answered).collect()
}

/// Finds the messages of the thread after a question. In a long thread only my messages and those to me since then are
/// searched.
fn find_later_messages(tables: &IndexTables, question: &Question) -> LaterMessages {
    // A message that tells only the second of its time may stand before a question of the same second.
    let begin = Timestamp::from_secs(question.time.secs());
    let thread = tables.messages.entry(question.ix).thread();
    let lists = tables.messages.lists();
    let [to_me, from_me] = [lists.sorted_to_me(), lists.sorted_from_me()].map(|list| {
        let is_before = |ix: &MsgIx| tables.messages.name_time(tables.messages.entry(*ix)) < begin;
        list.get(list.partition_point(is_before)..).unwrap_or_default()
    });
    let few = (to_me.len() + from_me.len()) / SHORT_THREAD_DIVISOR;
    let short = tables.threads.short_thread_since(&tables.messages, thread, begin, few);
    let (to_me, from_me) = short.as_deref().map_or((to_me, from_me), |all| (all, all));
    let is_shown = |ix: &MsgIx| {
        let entry = tables.messages.entry(*ix);
        entry.thread() == thread && entry.is_live() && !tables.messages.is_copy(*ix)
    };
    let (asked_again, end) = find_later_questions(tables, question, from_me, is_shown);
    let to_me = end.map_or(to_me, |end| {
        let is_before = |ix: &MsgIx| tables.messages.compare_order(*ix, end).is_le();
        to_me.get(..to_me.partition_point(is_before)).unwrap_or_default()
    });
    let is_candidate = |ix: &MsgIx| {
        is_among(&question.to, tables.messages.sender(tables.messages.entry(*ix)))
            && !tables.messages.names_answered_id(*ix)
    };
    let candidates = to_me.iter().copied().filter(is_shown).filter(is_candidate).collect();
    LaterMessages { candidates, asked_again }
}

/// Returns my later questions to each recipient of a question, and the first one by which every recipient had been
/// asked again; `None` if some never were.
fn find_later_questions(
    tables: &IndexTables,
    question: &Question,
    from_me: &[MsgIx],
    is_shown: impl Fn(&MsgIx) -> bool,
) -> (Vec<Vec<(MsgIx, Timestamp)>>, Option<MsgIx>) {
    let mut asked_again = vec![Vec::new(); question.to.len()];
    let mut missing = question.to.len();
    let is_earlier = |ix: &&MsgIx| tables.messages.compare_order(question.ix, **ix).is_ge();
    for ix in from_me.iter().skip_while(is_earlier).copied().filter(is_shown) {
        let entry = tables.messages.entry(ix);
        let to = tables.messages.recipient_list(entry);
        for (one, again) in question.to.iter().zip(&mut asked_again) {
            if entry.is_from_me() && to.split(", ").any(|to| is_same_address(to, one)) {
                missing -= usize::from(again.is_empty());
                again.push((ix, tables.messages.name_time(entry)));
            }
        }
        if missing == 0 {
            return (asked_again, Some(ix));
        }
    }
    (asked_again, None)
}

/// Returns the latest time at which a message may have been written.
fn latest_time(store: &dyn Store, entry: &IndexEntry) -> Timestamp {
    let time = entry.time();
    let tells_second = store.properties().whole_seconds && time.millis().rem_euclid(1000) == 0;
    if tells_second { time.plus_millis(999) } else { time }
}

/// Returns true if a message may answer: it is to me from a recipient of the question, and nobody could have forged it.
fn is_accepted(
    tree: &Tree,
    tables: &IndexTables,
    store: &dyn Store,
    question: &Question,
    ix: MsgIx,
) -> bool {
    let entry = tables.messages.entry(ix);
    let from = tables.messages.sender(entry);
    let is_trusted = || match tables.trust.signature(&tables.messages, entry) {
        SignatureState::Valid(_) => true,
        SignatureState::None => {
            store.properties().uses_roles || !tree.index.keyring().is_pinned(from)
        }
        SignatureState::Unknown | SignatureState::Missing(_) => false,
    };
    ix != question.ix
        && entry.is_to_me()
        && !tables.messages.is_copy(ix)
        && is_among(&question.to, from)
        && is_trusted()
}

/// Returns true if a list of addresses of one store has an address.
fn is_among(addresses: &[String], address: &str) -> bool {
    addresses.iter().any(|one| is_same_address(one, address))
}
