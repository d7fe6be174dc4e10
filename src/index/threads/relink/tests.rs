//! Tests of threads made from links, against a model that knows everything at once.

use std::borrow::Cow;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::index::mark_log::MarkCheckpoint;
use crate::index::messages::{ReplyLink, SignatureKind, StoreInfo};
use crate::index::tables::InsertOutcome;
use crate::index::testing::{message, tables_of, with_stores};
use crate::index::{IndexTables, snapshot};
use crate::model::{PublicKey, QUALIFIER, Timestamp};

/// A message of the model.
#[derive(Clone, Debug)]
struct Plan {
    /// The number that its plain id is made of. Messages with equal numbers have the same id.
    number: u8,
    answers: Option<u8>,
    subject: Option<u8>,
    secs: u8,
}

#[derive(Clone, Debug)]
enum Step {
    /// The message arrives, or is reported again.
    Come(usize),
    Judge(usize, bool),
    Refuse(usize),
    Go(usize),
    /// Its store changes the id that it answers.
    Answer(usize, Option<u8>),
    /// Its store changes its time.
    Date(usize, u8),
    /// A batch ends.
    Relink,
    /// The process ends and another continues from the snapshot.
    Reload,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    valid: bool,
    refused: bool,
}

const KEY: PublicKey = PublicKey([7; 32]);

fn new_tables() -> IndexTables {
    let info = |name: &str, links| StoreInfo { links, ..StoreInfo::with_name(name) };
    tables_of(vec![info("plain", false), info("linked", true)])
}

/// Returns an id. The order of ids is not that of the numbers.
fn plain(number: u8) -> String {
    format!("m{:02x}", number.wrapping_mul(37) % 64)
}

struct World {
    tables: IndexTables,
    plans: Vec<Plan>,
    /// The state of each message that has arrived.
    states: BTreeMap<usize, State>,
    at: BTreeMap<usize, MsgIx>,
    dir: tempfile::TempDir,
}

impl World {
    fn found(&self, n: usize) -> FoundMessage<'static> {
        let plan = &self.plans[n];
        let first = self.plans.iter().position(|p| p.number == plan.number) == Some(n);
        let namesake = if first { String::new() } else { format!("{QUALIFIER}{n}") };
        let id = plain(plan.number) + &namesake;
        let own = plan.subject.map_or_else(|| id.clone(), |s| format!("subject {s}"));
        let mut found = message(["foo", "bar"][n % 2], &id, i64::from(plan.secs));
        found.thread = own.into();
        found.at.source = n as u32;
        found.in_reply_to = plan.answers.map(|number| Cow::Owned(plain(number)));
        found
    }

    fn come(&mut self, n: usize) {
        let found = self.found(n);
        match self.tables.insert_message(1, &found) {
            InsertOutcome::New(ix) => {
                self.at.insert(n, ix);
                self.states.entry(n).or_default();
                self.tables.admit_message(ix);
            }
            InsertOutcome::Updated(..) => {}
            other => panic!("{other:?}"),
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Come(n) => self.come(*n),
            Step::Judge(n, valid) => self.judge(*n, *valid),
            Step::Refuse(n) => {
                let Some(state) = self.states.get_mut(n) else { return };
                *state = State { refused: true, ..*state };
                self.tables.withhold_message(self.at[n]);
                let tables = &mut self.tables;
                tables.threads.queue_relink(&tables.messages, self.at[n]);
            }
            Step::Go(n) => {
                if let Some(ix) = self.at.get(n) {
                    self.tables.dismiss_gone(&mut vec![*ix]);
                }
            }
            Step::Answer(n, answers) => {
                self.plans[*n].answers = *answers;
                self.states.contains_key(n).then(|| self.come(*n));
            }
            Step::Date(n, secs) => {
                self.plans[*n].secs = *secs;
                self.states.contains_key(n).then(|| self.come(*n));
            }
            Step::Relink => self.relink(),
            Step::Reload => self.reload(),
        }
    }

    fn judge(&mut self, n: usize, valid: bool) {
        let Some(state) = self.states.get_mut(&n) else { return };
        *state = State { valid, refused: false };
        let ix = self.at[&n];
        let (sig, key) =
            if valid { (SignatureKind::Valid, Some(KEY)) } else { (SignatureKind::None, None) };
        self.tables.accept_signature(ix, sig, key, valid);
    }

    /// Relinks, and asserts that it returns every message that a view may have shown in another thread.
    fn relink(&mut self) {
        let before: Vec<ThreadIx> =
            self.tables.messages.all_entries().map(|(_, e)| e.thread()).collect();
        let moved = self.tables.relink_threads();
        let mut expected = Vec::new();
        for (ix, old) in self.tables.messages.messages_since(0).zip(before) {
            let entry = self.tables.messages.entry(ix);
            if entry.thread() != old && entry.is_live() {
                expected.push((ix, old));
            }
        }
        let mut moved = moved;
        moved.sort_unstable();
        assert_eq!(moved, expected);
    }

    fn reload(&mut self) {
        self.relink();
        let path = self.dir.path().join("index");
        snapshot::save(&path, "", &self.tables, &[], MarkCheckpoint::default(), BTreeMap::new())
            .unwrap();
        let stores = self.tables.messages.names().stores().to_vec();
        self.tables = with_stores(snapshot::load(&path, "", true, 0).unwrap().tables, stores);
    }

    // --- the model ---

    /// Returns the message that an id means.
    fn meant(&self, number: u8) -> Option<usize> {
        let same =
            self.states.iter().filter(|(n, _)| plain(self.plans[**n].number) == plain(number));
        let rank = |n: usize| {
            let found = self.found(n);
            (self.states[&n].refused, found.time, found.id.to_string(), found.from.to_string())
        };
        same.map(|(n, _)| *n).min_by_key(|n| rank(*n))
    }

    fn parent(&self, n: usize) -> Option<usize> {
        let state = self.states[&n];
        let answers = self.plans[n].answers.filter(|_| state.valid && !state.refused)?;
        self.meant(answers).filter(|parent| *parent != n)
    }

    /// Returns the message whose thread this one belongs to.
    fn root(&self, n: usize) -> usize {
        let mut path = vec![n];
        while let Some(parent) = self.parent(path[path.len() - 1]) {
            if let Some(from) = path.iter().position(|n| *n == parent) {
                let cycle = path[from..].iter().copied();
                return cycle.min_by_key(|n| plain(self.plans[*n].number)).unwrap();
            }
            path.push(parent);
        }
        path[path.len() - 1]
    }

    fn check(&self) {
        let tables = &self.tables;
        for (n, ix) in &self.at {
            let entry = tables.messages.entry(*ix);
            let (thread, store) = tables.threads.thread_id(&tables.messages, entry.thread());
            assert_eq!((thread, store), (&*self.found(self.root(*n)).thread, 1), "message {n}");
            assert_eq!(self.tables.find_id(1, &plain(self.plans[*n].number)), {
                self.meant(self.plans[*n].number).map(|n| self.at[&n])
            });
            let answers = tables.messages.links().get(*ix).and_then(ReplyLink::answers);
            let answers = answers.map(|id| tables.messages.names().text(id).to_owned());
            assert_eq!(answers, self.plans[*n].answers.map(plain));
        }
        for thread in self.tables.threads.threads_since(0) {
            let entries = self.tables.messages.all_entries();
            let members: BTreeSet<MsgIx> =
                entries.filter(|(_, e)| e.thread() == thread).map(|(ix, _)| ix).collect();
            let chain: Vec<MsgIx> = tables.threads.thread_chain(&tables.messages, thread).collect();
            assert_eq!(chain.len(), members.len());
            assert_eq!(chain.into_iter().collect::<BTreeSet<_>>(), members);
            let live = members.iter().any(|ix| self.tables.messages.entry(*ix).is_live());
            assert_eq!(self.tables.threads.is_thread_visible(thread, true), live);
            assert_eq!(self.tables.threads.is_thread_visible(thread, false), live);
        }
        let live = self.tables.messages.live_messages().count();
        assert_eq!(self.tables.marks.unread_count(), live);
        assert_eq!(self.tables.messages.lists().messages_to_me().count(), live);
        let list = tables.messages.lists().sorted_to_me();
        assert!(list.is_sorted_by(|a, b| tables.messages.compare_order(*a, *b).is_lt()));
    }
}

fn steps(messages: usize) -> impl Strategy<Value = Vec<Step>> {
    let n = || 0..messages;
    let step = prop_oneof![
        6 => n().prop_map(Step::Come),
        6 => (n(), prop::bool::weighted(0.8)).prop_map(|(n, valid)| Step::Judge(n, valid)),
        1 => n().prop_map(Step::Refuse),
        1 => n().prop_map(Step::Go),
        1 => (n(), prop::option::of(0..10u8)).prop_map(|(n, a)| Step::Answer(n, a)),
        1 => (n(), 0..4u8).prop_map(|(n, secs)| Step::Date(n, secs)),
        3 => Just(Step::Relink),
        1 => Just(Step::Reload),
    ];
    prop::collection::vec(step, 0..80)
}

fn plan() -> impl Strategy<Value = Plan> {
    let subject = prop::option::weighted(0.2, 0..2u8);
    (0..10u8, prop::option::weighted(0.8, 0..12u8), subject, 0..4u8)
        .prop_map(|(number, answers, subject, secs)| Plan { number, answers, subject, secs })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn threads_do_not_depend_on_what_came_first(
        plans in prop::collection::vec(plan(), 12),
        steps in steps(12),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (states, at) = (BTreeMap::new(), BTreeMap::new());
        let mut world = World { tables: new_tables(), plans, states, at, dir };
        for step in &steps {
            world.step(step);
            if matches!(step, Step::Relink | Step::Reload) {
                world.check();
            }
        }
        world.relink();
        world.check();
    }
}

#[test]
fn a_long_chain_is_followed_to_its_end_whichever_end_comes_first() {
    for backwards in [false, true] {
        let mut tables = new_tables();
        let numbers: Vec<u32> =
            if backwards { (0..5000).rev().collect() } else { (0..5000).collect() };
        for (count, n) in numbers.into_iter().enumerate() {
            let mut found = message("foo", &format!("m{n:05}"), i64::from(n));
            found.in_reply_to = n.checked_sub(1).map(|p| Cow::Owned(format!("m{p:05}")));
            let InsertOutcome::New(ix) = tables.insert_message(1, &found) else {
                panic!("{n} is known")
            };
            tables.trust.note_signature(&mut tables.messages, ix, SignatureKind::Valid, Some(KEY));
            tables.admit_message(ix);
            if count % 1000 == 0 {
                tables.relink_threads();
            }
        }
        tables.relink_threads();
        let root = tables.threads.find_thread(&tables.messages, 1, "m00000").unwrap();
        assert_eq!(tables.threads.thread_messages(&tables.messages, root).len(), 5000);
        assert_eq!(tables.threads.visible_threads(true).collect::<Vec<_>>(), [root]);
    }
}

#[test]
fn a_store_with_thread_ids_may_name_another_thread() {
    let mut tables = new_tables();
    let mut found = message("foo", "a", 5);
    let InsertOutcome::New(ix) = tables.insert_message(0, &found) else { panic!("it is known") };
    tables.admit_message(ix);
    assert!(tables.relink_threads().is_empty());
    let old = tables.messages.entry(ix).thread();
    found.thread = "b".into();
    assert!(matches!(tables.insert_message(0, &found), InsertOutcome::Updated(..)));
    assert_eq!(tables.relink_threads(), [(ix, old)]);
    let new = tables.threads.find_thread(&tables.messages, 0, "b").unwrap();
    assert_eq!(
        (
            tables.threads.thread_messages(&tables.messages, old),
            tables.threads.thread_messages(&tables.messages, new)
        ),
        (vec![], vec![ix])
    );
    assert!(
        !tables.threads.is_thread_visible(old, true)
            && tables.threads.is_thread_visible(new, false)
    );
    assert_eq!(tables.find_id(0, "a"), Some(ix));
    assert_eq!(tables.messages.entry(ix).time(), Timestamp::from_secs(5));
}

/// S1321: in a store that joins threads, an unsigned message joins that of its parent whichever comes first. If several
/// messages have the id of the parent, none of them decides, whichever comes first.
#[test]
fn an_id_of_several_messages_joins_no_thread() {
    let info = StoreInfo { links: true, joins: true, ..StoreInfo::with_name("joined") };
    let of = |id: &str, thread: &str, parent: Option<&'static str>| {
        let mut found = message("foo", id, 5);
        (found.thread, found.parent) = (thread.to_owned().into(), parent.map(Cow::from));
        found
    };
    let plain = [of("a", "plan", None), of("b", "a", Some("a")), of("c", "b", Some("b"))];
    let forged = of(&format!("a{QUALIFIER}1"), "of eve", None);
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        for at in 0..=3 {
            let mut tables = tables_of(vec![info.clone()]);
            let mut all: Vec<_> = order.iter().map(|n| plain[*n].clone()).collect();
            let threads = |tables: &mut IndexTables, all: &[FoundMessage<'static>]| {
                for found in all {
                    if let InsertOutcome::New(ix) = tables.insert_message(0, found) {
                        tables.admit_message(ix);
                    }
                }
                tables.relink_threads();
                ["a", "b", "c"].map(|id| {
                    let ix = tables.messages.find_message(0, "foo", id).unwrap();
                    let thread = tables.messages.entry(ix).thread();
                    tables.threads.thread_id(&tables.messages, thread).0.to_owned()
                })
            };
            assert_eq!(threads(&mut tables, &all), ["plan"; 3]);
            all.insert(at, forged.clone());
            let mut later = tables_of(vec![info.clone()]);
            for tables in [&mut tables, &mut later] {
                assert_eq!(threads(tables, &all), ["plan", "a", "a"], "{order:?} {at}");
            }
            // When one of them is gone, the other one decides, until the first is back.
            let ix = later.messages.find_message(0, "foo", &forged.id).unwrap();
            later.dismiss_gone(&mut vec![ix]);
            assert_eq!(threads(&mut later, &[]), ["plan"; 3]);
            assert_eq!(threads(&mut later, std::slice::from_ref(&forged)), ["plan", "a", "a"]);
        }
    }
}
