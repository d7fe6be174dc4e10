//! The way of my messages to their recipients, as stores and links prove it at this moment. Nothing is remembered: a
//! state goes back when its proof is gone.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::answered::{Answer, is_same_address, list_answers, list_recipients};
use super::message_texts::read_headline;
use super::pending_sent::HeldMessage;
use super::{Tree, names};
use crate::index::{IndexEntry, IndexTables, MsgIx};
use crate::model::short_id::short_id;
use crate::model::{DeliveryState, SignatureState, Timestamp, plain_id, sanitize_line};
use crate::outbox::{IDEMPOTENCY_WINDOW_MS, PendingMessage};
use crate::store::{Receipt, SentMessage, Store};

/// The number of newest lines that `sent.txt` has.
pub(super) const LINES: usize = 200;
/// Characters of a subject or of first words.
const WORDS: usize = 40;

/// The record of the messages for which bells of this user have rung.
pub trait BellRecord: Send + Sync + fmt::Debug {
    /// Returns the keys of these messages ([`UnreadMail::key`](super::UnreadMail::key)).
    fn rung_keys(&self) -> HashSet<String>;
}

/// The state of one message of mine for one recipient.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentReceipt {
    /// The time of the message, in RFC 3339.
    pub time: String,
    /// The short id, as in names.
    pub id: String,
    /// The whole id, as in the line `Message-ID`.
    pub message_id: String,
    /// The name of the store.
    pub store: String,
    /// The recipient; `None` if the message names nobody.
    pub recipient: Option<String>,
    /// The state.
    pub state: DeliveryState,
    /// The time of the state, in RFC 3339, as far as it is known.
    pub since: Option<String>,
    /// The subject or the first words, cut.
    pub subject: Option<String>,
    /// The reason of a wait or a refusal.
    pub reason: Option<String>,
    /// The times as numbers, for order and for the time of the file.
    #[serde(skip)]
    pub(super) times: (Timestamp, Option<Timestamp>),
}

/// The newest accepted message of mine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastSent {
    /// Its short id.
    pub id: String,
    /// Its recipients.
    pub to: Vec<String>,
    /// Its time, in RFC 3339.
    pub time: String,
}

/// The messages whose receipts are wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SentSelection {
    /// The newest lines.
    Recent,
    /// All messages.
    All,
    /// The message with this id, short or whole.
    Id(String),
    /// The recent messages with this idempotency key.
    Key(String),
}

/// A message of mine in the index.
struct SentEntry {
    ix: MsgIx,
    entry: IndexEntry,
    /// The id that it is shown under.
    id: String,
    /// The id of its own record.
    record_id: String,
    from: String,
    to: Vec<String>,
    /// True if it has more than one recipient.
    has_others: bool,
    name_time: Timestamp,
    is_signed: bool,
}

/// The reasons for which messages of mine in the index wait, by message. A message that is merely on its way has no
/// reason.
type HeldReasons = HashMap<MsgIx, Option<String>>;

/// The facts that all receipts of one collection share.
struct ReceiptCollector<'a> {
    tree: &'a Tree,
    held: HeldReasons,
    /// True if lines of mine may wait for a link.
    may_wait_for_link: bool,
    /// The ranges of my logs that servers have taken, by store.
    taken: HashMap<usize, Vec<(u64, u64)>>,
    /// The keys of the rung messages, once they were needed.
    rung: Option<HashSet<String>>,
}

/// Returns the receipts of the chosen messages, newest first.
pub(super) fn collect_receipts(tree: &Tree, selection: &SentSelection) -> Vec<SentReceipt> {
    tree.settle_pending_messages();
    let held = tree.pending.held_messages();
    let entries = select_entries(tree, selection);
    let mut all = ReceiptCollector::new(tree, &held).collect_all(&entries);
    let waiting = tree.pending.list_unappended(&held);
    let waiting = waiting.iter().filter(|held| match selection {
        SentSelection::Key(key) => held.key.as_ref() == Some(key),
        _ => true,
    });
    let waiting = waiting.flat_map(|held| format_waiting(tree, held));
    let waiting: Vec<SentReceipt> = waiting.filter(|one| is_selected(selection, one)).collect();
    let key = |one: &SentReceipt| (one.message_id.clone(), one.recipient.clone());
    // A message of which a store has the record for one recipient may wait for another.
    let held: HashSet<_> = waiting.iter().map(key).collect();
    all.retain(|one| one.state != DeliveryState::Waiting || !held.contains(&key(one)));
    let known: HashSet<_> = all.iter().map(key).collect();
    all.extend(waiting.into_iter().filter(|one| !known.contains(&key(one))));
    all.sort_by_key(|one| std::cmp::Reverse(one.times.0));
    if *selection == SentSelection::Recent {
        all.truncate(LINES);
    }
    all
}

/// Returns the recipients who never get a message of mine, as far as that is proven now, with the reasons.
pub(super) fn find_refusals(tree: &Tree, ix: MsgIx) -> HashMap<String, String> {
    let entry = read_entry(&tree.index.read(), ix);
    let receipts = ReceiptCollector::new(tree, &tree.pending.held_messages()).collect_all(&[entry]);
    let refused = receipts.into_iter().filter(|one| one.state == DeliveryState::Refused);
    refused.filter_map(|one| Some((one.recipient?, one.reason.unwrap_or_default()))).collect()
}

/// Returns the ranges of my logs that servers have taken, by the number of the store.
fn find_taken_ranges(tree: &Tree) -> HashMap<usize, Vec<(u64, u64)>> {
    // The lock is not held, because a proof takes another one.
    let logs = tree.settings.taken_logs.read().clone();
    let mut ranges: HashMap<usize, Vec<(u64, u64)>> = HashMap::new();
    for (store, log) in logs {
        ranges.entry(store).or_default().extend(log.taken_ranges());
    }
    ranges
}

/// Returns my newest accepted message.
pub(super) fn find_last_sent(tree: &Tree) -> Option<LastSent> {
    tree.settle_sent_messages();
    // The time of a message may be ahead of the clock, and then says nothing about the order in which messages were
    // accepted. The index knows that order.
    let now = Timestamp::now();
    let newest = list_newest(tree, |entry, _| entry.time() > now).into_iter().max();
    let newest = newest.map(|ix| read_entry(&tree.index.read(), ix));
    let held = tree.pending.held_messages();
    let waiting = tree.pending.list_unappended(&held);
    let waiting = waiting.iter().max_by_key(|one| one.time);
    let time = newest.as_ref().map(|one| one.name_time);
    let (id, to, time) = match (newest, waiting) {
        (_, Some(one)) if time.is_none_or(|time| time < one.time) => {
            (one.id.clone(), one.everybody.clone(), one.time)
        }
        (Some(one), _) => (one.id, one.to, one.entry.time()),
        (None, _) => return None,
    };
    let to = to.iter().map(|one| sanitize_line(one).into_owned()).collect();
    Some(LastSent { id: short_id(&id), to, time: time.rfc3339() })
}

impl Tree {
    /// Returns the recipients to whom a text would go as a draft of this name in `outbox/`, each with the states that
    /// can ever be shown for it. A text that would be refused goes to nobody.
    pub fn route_text(&self, name: &str, text: &[u8]) -> Vec<(String, Vec<DeliveryState>)> {
        let routes = self.outbox.as_ref().map(|outbox| outbox.route_text(name, text));
        let routes = routes.and_then(Result::ok).unwrap_or_default();
        let states = |(store, to): (usize, String)| {
            let states = self.index.stores().get(store).map(|s| list_provable(s.as_ref(), &to));
            (to, states.unwrap_or_default())
        };
        routes.into_iter().map(states).collect()
    }
}

/// Returns the states that can ever be shown for a message to a recipient in a store.
fn list_provable(store: &dyn Store, to: &str) -> Vec<DeliveryState> {
    match store.facets().directory {
        Some(directory) => directory.provable_states(to),
        None => vec![DeliveryState::Waiting, DeliveryState::Stored],
    }
}

/// Returns the records of my sent messages, the latest first. What I said in a transcript was not sent, nor was a message
/// that is only kept.
pub(super) fn sent_records<'t>(
    tree: &Tree,
    tables: &'t IndexTables,
) -> impl Iterator<Item = MsgIx> + 't {
    let stores = tree.index.stores().iter();
    let sends: Vec<bool> = stores.map(|store| store.facets().appender.is_some()).collect();
    tables.messages.lists().messages_from_me().rev().filter(move |ix| {
        let entry = tables.messages.entry(*ix);
        sends.get(entry.store()) == Some(&true) && !tables.messages.is_kept(entry)
    })
}

/// Returns my sent messages, newest first, with one entry for all records of a message. Stops after the first message
/// for which `wants` returns false; `wants` gets the entry and the number of recipients.
fn list_newest(tree: &Tree, mut wants: impl FnMut(&IndexEntry, usize) -> bool) -> Vec<MsgIx> {
    let tables = tree.index.read();
    let mut found = Vec::new();
    for ix in sent_records(tree, &tables) {
        if tables.messages.is_copy(ix) {
            continue;
        }
        let entry = tables.messages.entry(ix);
        found.push(ix);
        let lines = tables.messages.recipient_list(entry).split(", ").count();
        if !wants(entry, lines) {
            break;
        }
    }
    found
}

fn select_entries(tree: &Tree, selection: &SentSelection) -> Vec<SentEntry> {
    let mut lines = 0;
    let found = match selection {
        SentSelection::Recent => list_newest(tree, |_, more| {
            lines += more;
            lines < LINES
        }),
        _ => list_newest(tree, |_, _| true),
    };
    let tables = tree.index.read();
    let keyed: HashSet<MsgIx> = match selection {
        SentSelection::Key(key) => {
            let since = Timestamp::now().plus_millis(-IDEMPOTENCY_WINDOW_MS);
            let all = tables.messages.find_by_idempotency_key(key).iter().copied();
            all.filter(|ix| tables.messages.entry(*ix).time() >= since).collect()
        }
        _ => HashSet::new(),
    };
    let is_wanted = |ix: &MsgIx| match selection {
        SentSelection::Recent | SentSelection::All => true,
        SentSelection::Id(id) => {
            let kind = kind_name(tree, tables.messages.entry(*ix).store());
            // A recipient who sees only one of the records names the id of that record.
            let records = tables.messages.records_of_message(*ix).into_iter();
            let own = records.map(|ix| tables.messages.id(tables.messages.entry(ix)));
            std::iter::once(tables.messages.shown_id(*ix))
                .chain(own)
                .any(|known| is_named(id, &known, kind))
        }
        SentSelection::Key(_) => keyed.contains(ix),
    };
    let mut found: Vec<SentEntry> =
        found.into_iter().filter(is_wanted).map(|ix| read_entry(&tables, ix)).collect();
    if *selection == SentSelection::Recent {
        // Lines beyond the limit are cut off anyway, so their recipients are left out before the stores are asked: a
        // message may have thousands.
        let mut left = LINES;
        for one in &mut found {
            one.to.truncate(left.max(1));
            left = left.saturating_sub(one.to.len().max(1));
        }
    }
    found
}

fn read_entry(tables: &IndexTables, ix: MsgIx) -> SentEntry {
    let entry = *tables.messages.entry(ix);
    let signature = tables.trust.signature(&tables.messages, &entry);
    let to = list_recipients(tables, ix);
    SentEntry {
        ix,
        entry,
        id: tables.messages.shown_id(ix),
        record_id: tables.messages.id(&entry),
        from: tables.messages.sender(&entry).to_owned(),
        has_others: to.len() > 1,
        to,
        name_time: tables.messages.name_time(&entry),
        is_signed: matches!(signature, SignatureState::Valid(_)),
    }
}

fn kind_name(tree: &Tree, store: usize) -> &'static str {
    tree.index.store(store).kind().as_str()
}

/// Returns true if a text names an id: by its short form, the whole id, the id with the store's kind, or the name of a
/// message file.
fn is_named(text: &str, id: &str, kind: &str) -> bool {
    let text = text.trim();
    let named = text.strip_suffix(".txt").unwrap_or(text).rsplit_once('-');
    let named = named.filter(|_| names::has_time_prefix(text));
    let text = named.map_or(text, |(_, id)| id);
    names::ids_of_name(text)
        .any(|named| named.kind.is_none_or(|named| named.as_str() == kind) && named.stands_for(id))
}

/// Returns true if a selection includes this receipt. Only a selection by id may leave out receipts of the messages
/// that were found for it.
fn is_selected(selection: &SentSelection, one: &SentReceipt) -> bool {
    match selection {
        SentSelection::Recent | SentSelection::All | SentSelection::Key(_) => true,
        SentSelection::Id(id) => {
            let (whole, kind) = one.message_id.rsplit_once('@').unwrap_or((&one.message_id, ""));
            is_named(id, whole, kind)
        }
    }
}

impl<'a> ReceiptCollector<'a> {
    fn new(tree: &'a Tree, held: &[PendingMessage]) -> Self {
        let (held, taken) = (tree.pending.held_reasons(held), find_taken_ranges(tree));
        let may_wait_for_link = tree.pending.may_wait_for_link();
        Self { tree, held, may_wait_for_link, taken, rung: None }
    }

    fn collect_all(&mut self, entries: &[SentEntry]) -> Vec<SentReceipt> {
        let mut by_store: BTreeMap<usize, Vec<&SentEntry>> = BTreeMap::new();
        for one in entries {
            by_store.entry(one.entry.store()).or_default().push(one);
        }
        if entries.len() <= LINES {
            self.tree.texts.render_uncached(entries.iter().map(|one| one.ix));
        }
        let mut found: HashMap<MsgIx, Vec<SentReceipt>> = HashMap::new();
        for (number, entries) in by_store {
            let Some(store) = self.tree.index.stores().get(number) else { continue };
            let mut receipts = ask_store(store.as_ref(), &entries).into_iter();
            for one in entries {
                let own = receipts.by_ref().take(one.to.len().max(1)).collect();
                found.insert(one.ix, self.describe_message(store.as_ref(), one, own));
            }
        }
        // The receipts are in the order of the entries.
        entries.iter().flat_map(|one| found.remove(&one.ix).unwrap_or_default()).collect()
    }

    /// Returns a line for each recipient of a message.
    fn describe_message(
        &mut self,
        store: &dyn Store,
        one: &SentEntry,
        receipts: Vec<Receipt>,
    ) -> Vec<SentReceipt> {
        let answers = list_answers(self.tree, one.ix).unwrap_or_default();
        let subject = read_subject(self.tree, one.ix);
        let nobody = [String::new()];
        let to = if one.to.is_empty() { &nobody[..] } else { &one.to };
        let lines = to.iter().zip(receipts).map(|(to, receipt)| {
            let found = self.find_proven_state(store, one, to, receipt, &answers);
            SentReceipt {
                time: one.entry.time().rfc3339(),
                id: short_id(&one.id),
                message_id: format!("{}@{}", sanitize_line(plain_id(&one.id)), store.kind()),
                store: store.name().to_owned(),
                recipient: Some(sanitize_line(to).into_owned()).filter(|to| !to.is_empty()),
                state: found.state,
                since: found.since.map(Timestamp::rfc3339),
                subject: subject.clone(),
                reason: found.reason.map(|why| sanitize_line(why.trim()).into_owned()),
                times: (one.name_time, found.since),
            }
        });
        lines.collect()
    }

    /// Returns the highest state that is proven now for one recipient.
    fn find_proven_state(
        &mut self,
        store: &dyn Store,
        one: &SentEntry,
        to: &str,
        receipt: Receipt,
        answers: &[Answer],
    ) -> ProvenState {
        let record = receipt.record_id.as_deref().unwrap_or(&one.record_id).to_owned();
        let Some((ix, entry)) = self.find_record(one, &record) else {
            let held = self.held.get(&one.ix).cloned().flatten();
            let reason = Some(held.unwrap_or_else(|| "the store has no record for it".to_owned()));
            let since = Some(one.entry.time());
            return ProvenState { state: DeliveryState::Waiting, since, reason };
        };
        let held = self.held.get(&ix).or_else(|| self.held.get(&one.ix));
        let since = Some(one.entry.time());
        let mut found = ProvenState { state: DeliveryState::Stored, since, reason: None };
        let waits = || self.tree.pending.link_wait_warning(&entry);
        let kept_by_link = self.may_wait_for_link.then(waits).flatten();
        if let Some(reason) = held.cloned().flatten().or(kept_by_link) {
            found = ProvenState { state: DeliveryState::Waiting, since, reason: Some(reason) };
        }
        let is_proven = !receipt.is_tentative || one.is_signed && held.is_none();
        match receipt.state.filter(|_| is_proven) {
            Some(state) => {
                let proven = receipt.since.map(|since| finish_second(since, one.entry.time()));
                // A message waits since it was written.
                let since = proven.or(since.filter(|_| state == DeliveryState::Waiting));
                found = ProvenState { state, since, reason: receipt.reason };
            }
            None => found.reason = found.reason.or(receipt.reason),
        }
        if self.is_taken_by_server(store, &entry) {
            found.raise(DeliveryState::Delivered, None);
        }
        let provable = list_provable(store, to);
        let can_show = |state| provable.contains(&state);
        if found.state < DeliveryState::Told
            && can_show(DeliveryState::Told)
            && self.has_rung(store, one, to, &record)
        {
            found.raise(DeliveryState::Told, None);
        }
        let answer = answers.iter().find(|answer| {
            is_same_address(&store.canonical_address(&answer.from), &store.canonical_address(to))
        });
        if let Some(answer) = answer.filter(|_| can_show(DeliveryState::Answered)) {
            found.raise(DeliveryState::Answered, Some(answer.time));
        }
        found
    }

    /// Returns the record of a message for one recipient, if the index has it.
    fn find_record(&self, one: &SentEntry, record: &str) -> Option<(MsgIx, IndexEntry)> {
        if record == one.record_id {
            return Some((one.ix, one.entry));
        }
        let tables = self.tree.index.read();
        let ix = tables.messages.find_message(one.entry.store(), &one.from, record)?;
        let entry = *tables.messages.entry(ix);
        entry.is_live().then_some((ix, entry))
    }

    /// Returns true if the server of a link has taken this line of my log.
    fn is_taken_by_server(&self, store: &dyn Store, entry: &IndexEntry) -> bool {
        let at = entry.location();
        let end = at.offset.saturating_add(at.len.into());
        let has_line = |range: &(u64, u64)| range.0 <= at.offset && end <= range.1;
        self.taken.get(&entry.store()).is_some_and(|taken| taken.iter().any(has_line))
            && store.is_my_log(at.source)
    }

    /// Returns true if a bell of a session of this recipient has rung for a record.
    fn has_rung(&mut self, store: &dyn Store, one: &SentEntry, to: &str, record: &str) -> bool {
        let Some(bells) = &self.tree.settings.bell_record else { return false };
        let rung = self.rung.get_or_insert_with(|| bells.rung_keys());
        !rung.is_empty() && rung.contains(&names::bell_key(store, &one.from, record, to))
    }
}

/// A state with its time and its reason.
struct ProvenState {
    state: DeliveryState,
    since: Option<Timestamp>,
    reason: Option<String>,
}

impl ProvenState {
    fn raise(&mut self, state: DeliveryState, since: Option<Timestamp>) {
        if self.state < state {
            *self = Self { state, since, reason: None };
        }
    }
}

/// Returns the time of a state. A proof in whole seconds may look older than the message of that second, so it gets the
/// message's time then.
fn finish_second(since: Timestamp, sent: Timestamp) -> Timestamp {
    if since.secs() == sent.secs() { since.max(sent) } else { since }
}

/// Asks a store once about all these messages. The receipts are in the order of the recipients; a message without
/// recipients has one receipt.
fn ask_store(store: &dyn Store, entries: &[&SentEntry]) -> Vec<Receipt> {
    let mut asked = Vec::new();
    for one in entries {
        let question = |to| SentMessage {
            at: one.entry.location(),
            id: &one.record_id,
            time: one.entry.time(),
            to,
            has_others: one.has_others,
        };
        asked.extend(one.to.iter().map(|to| question(to.as_str())));
        if one.to.is_empty() {
            asked.push(question(""));
        }
    }
    match store.facets().directory {
        Some(directory) => directory.find_receipts(&asked),
        None => asked.iter().map(|_| Receipt::default()).collect(),
    }
}

/// Returns the subject of a message, else the first words of its text.
fn read_subject(tree: &Tree, ix: MsgIx) -> Option<String> {
    let (subject, first_line) = read_headline(&tree.texts, ix, WORDS);
    subject.or(Some(first_line)).filter(|text| !text.is_empty())
}

/// Returns a line for each recipient of a message that is in no store yet.
fn format_waiting(tree: &Tree, held: &HeldMessage) -> Vec<SentReceipt> {
    let subject = names::cut_line(&held.headline, WORDS);
    let line = |to: &String| SentReceipt {
        time: held.time.rfc3339(),
        id: short_id(&held.id),
        message_id: format!(
            "{}@{}",
            sanitize_line(plain_id(&held.id)),
            kind_name(tree, held.store)
        ),
        store: tree.store_name(held.store).to_owned(),
        recipient: Some(sanitize_line(to).into_owned()).filter(|to| !to.is_empty()),
        state: DeliveryState::Waiting,
        since: Some(held.time.rfc3339()),
        subject: Some(subject.clone()).filter(|text| !text.is_empty()),
        reason: held.waits.as_ref().map(|why| sanitize_line(why.trim()).into_owned()),
        times: (held.time, Some(held.time)),
    };
    held.to.iter().map(line).collect()
}
