//! The messages that answer a message of mine (docs/SEMANTICS.md, S950 and S951).
//!
//! An answer is to me and from a recipient of the message. It is validly signed, or unsigned from a sender whose key is
//! not pinned. It names the id of the message, in whatever thread it stands. Some formats also have answers that name
//! no id ([`NextAnswerRule`]).

use std::collections::BTreeSet;

use super::{Error, Tree};
use crate::index::{IndexEntry, IndexTables, MsgIx};
use crate::model::{SignatureState, Timestamp};
use crate::store::{AnswerScheme, NextAnswerRule, Store};

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
pub(super) fn list_recipients(core: &IndexTables, ix: MsgIx) -> Vec<String> {
    let list = core.messages.recipient_list(core.messages.entry(ix));
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
            let core = tree.index.read();
            let original = core.messages.find_original(ix).filter(|_| core.messages.is_copy(ix));
            let ix = original.unwrap_or(ix);
            let entry = *core.messages.entry(ix);
            let mut ids = vec![core.messages.id(&entry)];
            ids.extend(core.messages.shared_id(ix));
            (ix, entry, core.messages.name_time(&entry), ids, list_recipients(&core, ix))
        };
        if !entry.is_from_me() {
            return Err(Error::NotFound);
        }
        // One record to several recipients has more ids than that of the index.
        if to.len() > 1 {
            ids.extend(tree.texts.read_record(ix, &entry)?.further_ids);
        }
        Ok(Self { ix, store: entry.store(), time, ids, to })
    }

    /// Returns the name of its store if the store does not tell which messages answer it.
    pub(super) fn untold_store<'a>(&self, tree: &'a Tree) -> Option<&'a str> {
        let store = self.store_in(tree);
        matches!(store.properties().answers, AnswerScheme::Untold).then(|| store.name())
    }

    fn store_in<'a>(&self, tree: &'a Tree) -> &'a dyn Store {
        let entry = *tree.index.read().messages.entry(self.ix);
        tree.index.store_of(&entry).as_ref()
    }

    /// Returns the recipients of whom none of these answers is. I count only if nobody else is a recipient.
    pub(super) fn list_missing(&self, tree: &Tree, answers: &[Answer]) -> Vec<String> {
        let me = self.store_in(tree).me();
        let others = self.to.iter().filter(|to| !is_same_address(to, me));
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
        let core = tree.index.read();
        if !core.messages.entry(self.ix).is_from_me() {
            return Err(Error::NotFound);
        }
        let mut found = match store.properties().answers {
            AnswerScheme::Untold => return Ok(Vec::new()),
            AnswerScheme::Named => BTreeSet::new(),
            AnswerScheme::NamedOrNext(rule) => find_next_answers(tree, &core, store, (self, &rule)),
        };
        found.extend(find_named_answers(&core, self));
        found.retain(|ix| is_accepted(tree, &core, store, self, *ix));
        let mut found: Vec<MsgIx> = found.into_iter().collect();
        found.sort_by(|a, b| core.messages.compare_order(*a, *b));
        let to_answer = |ix: MsgIx| {
            let entry = core.messages.entry(ix);
            Answer { ix, from: core.messages.sender(entry).to_owned(), time: entry.time() }
        };
        Ok(found.into_iter().map(to_answer).collect())
    }
}

/// Returns the messages that name an id of the question.
fn find_named_answers(core: &IndexTables, question: &Question) -> BTreeSet<MsgIx> {
    let store = question.store;
    let mut found = BTreeSet::new();
    for id in &question.ids {
        for ix in core.messages.messages_answering(store, id) {
            if core.messages.find_original(ix) == Some(question.ix) {
                // Another record of the question itself: its recipient names that one.
                let copy = core.messages.id(core.messages.entry(ix));
                found.extend(core.messages.messages_answering(store, &copy));
            } else {
                found.insert(ix);
            }
        }
    }
    found
}

/// A later message of mine in the thread of a question: its position, its time, and its recipients.
type LaterQuestion = (MsgIx, Timestamp, Vec<String>);

/// Returns the messages of the thread that name no id and answer the question because it is the newest one to their
/// writers before them.
fn find_next_answers(
    tree: &Tree,
    core: &IndexTables,
    store: &dyn Store,
    (question, rule): (&Question, &NextAnswerRule),
) -> BTreeSet<MsgIx> {
    let (candidates, later) = walk_thread(tree, core, question);
    let fits = |asked: MsgIx, answer: MsgIx| {
        let id = |ix| core.messages.id(core.messages.entry(ix));
        (rule.fits)(&id(asked), &id(answer))
    };
    let is_answer = |ix: &MsgIx| {
        let entry = core.messages.entry(*ix);
        let (from, latest) = (core.messages.sender(entry), latest_time(store, entry));
        let is_unsigned = || core.trust.signature(&core.messages, entry) == SignatureState::None;
        let answers_later = |(asked, time, to): &LaterQuestion| {
            *time <= latest && is_among(to, from) && fits(*asked, *ix)
        };
        question.time <= latest
            && fits(question.ix, *ix)
            && (!rule.unsigned_only || is_unsigned())
            && !later.iter().any(answers_later)
    };
    candidates.into_iter().filter(is_answer).collect()
}

/// Returns the messages of a question's recipients that name no id, and my later questions, from the thread behind the
/// question. It goes on until each recipient was asked again.
fn walk_thread(
    tree: &Tree,
    core: &IndexTables,
    question: &Question,
) -> (Vec<MsgIx>, Vec<LaterQuestion>) {
    // A message that tells only the second of its time may stand before a question of the same second.
    let begin = Timestamp::from_secs(question.time.secs());
    let thread = core.messages.entry(question.ix).thread();
    let (thread, before) = tree.lists.thread_messages_since(core, thread, begin);
    let (mut candidates, mut later) = (Vec::new(), Vec::new());
    let mut waiting = question.to.clone();
    for ix in thread.iter().skip(before).copied() {
        let entry = core.messages.entry(ix);
        if is_among(&question.to, core.messages.sender(entry))
            && !core.messages.names_answered_id(ix)
        {
            candidates.push(ix);
        }
        if entry.is_from_me() && core.messages.compare_order(question.ix, ix).is_lt() {
            let to = list_recipients(core, ix);
            waiting.retain(|one| !is_among(&to, one));
            later.push((ix, core.messages.name_time(entry), to));
            if waiting.is_empty() {
                break;
            }
        }
    }
    (candidates, later)
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
    core: &IndexTables,
    store: &dyn Store,
    question: &Question,
    ix: MsgIx,
) -> bool {
    let entry = core.messages.entry(ix);
    let from = core.messages.sender(entry);
    let is_trusted = || match core.trust.signature(&core.messages, entry) {
        SignatureState::Valid(_) => true,
        SignatureState::None => {
            store.properties().uses_roles || !tree.index.keyring().is_pinned(from)
        }
        SignatureState::Unknown | SignatureState::Missing(_) => false,
    };
    ix != question.ix
        && entry.is_to_me()
        && !core.messages.is_copy(ix)
        && is_among(&question.to, from)
        && is_trusted()
}

/// Returns true if an address is among others of its store.
fn is_among(addresses: &[String], address: &str) -> bool {
    addresses.iter().any(|one| is_same_address(one, address))
}
