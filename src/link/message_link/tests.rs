//! A fake engine that dies, cuts off, repeats, delays and lies at every step.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use proptest::prelude::*;

use super::super::carrier_worker::{ExchangeLimit, run_carrier};
use super::super::engine::{FetchedItem, LinkSession};
use super::super::job::{CarrierTask, MessageOrder, note_asked};
use super::*;
use crate::model::locks::Mutex as Locked;

mod turns;

thread_local! {
    /// The number of steps until this thread is killed.
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Kills the thread if its steps are used up.
pub(super) fn step() {
    LEFT.with(|left| match left.get() {
        Some(0) => {
            left.set(None);
            std::panic::panic_any("killed");
        }
        Some(n) => left.set(Some(n - 1)),
        None => {}
    });
}

/// The fault of one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A death of the carrier before the engine gets anything.
    DieBefore,
    /// A death of the carrier after the engine has done its part.
    DieAfter,
    /// A lost answer.
    LoseAnswer,
    /// An engine that cannot be reached.
    Away,
    /// An engine without room for this message.
    Later,
    /// A false report of failure, after the engine did its part.
    Lie,
}

/// The state of the engine.
#[derive(Debug, Default)]
struct Server {
    got: Vec<Vec<u8>>,
    mail: BTreeMap<String, String>,
    faults: VecDeque<Fault>,
    /// The faults of the next exchanges, one by one, before all others.
    scripted: VecDeque<Option<Fault>>,
    destroys: bool,
    doubles: bool,
    acknowledges: bool,
    /// True if it refuses to hand over one message more than it has.
    withholds: bool,
    other: bool,
    /// The number of times that there is no room for the first fetched message.
    full: u32,
    /// The number of sessions so far.
    sessions: usize,
}

#[derive(Clone, Debug, Default)]
struct Fake(Arc<Locked<Server>>);

impl Fake {
    fn fault(&self) -> Option<Fault> {
        let mut server = self.0.lock();
        let scripted = server.scripted.pop_front();
        scripted.unwrap_or_else(|| server.faults.pop_front())
    }
}

/// Kills a carrier: its thread ends without an outcome.
fn die() -> ! {
    std::panic::panic_any("killed")
}

impl LinkEngine for Fake {
    fn describe_engine(&self) -> String {
        "fake".into()
    }

    fn rank_address(&self, _: &str) -> Option<u8> {
        Some(1)
    }

    fn encode_parcel(&self, parcel: &OutboundMail) -> Result<Vec<u8>, EncodeError> {
        match parcel.bytes.as_slice() {
            b"" => Err("empty".to_owned().into()),
            b"unread" => Err(EncodeError::Passing(io::ErrorKind::StaleNetworkFileHandle.into())),
            bytes => Ok(bytes.to_vec()),
        }
    }

    fn unpack_items(&self, raw: &Path) -> Vec<io::Result<FetchedItem>> {
        let Ok(bytes) = std::fs::read(raw.join("mail")) else { return Vec::new() };
        let mail: BTreeMap<String, String> = serde_json::from_slice(&bytes).unwrap_or_default();
        let item = |(id, text): (String, String)| FetchedItem {
            arrived: InboundMail {
                name: id.clone(),
                bytes: text.into_bytes(),
                ..InboundMail::default()
            },
            ack_id: Some(id.clone()),
            id,
        };
        let mut items: Vec<io::Result<FetchedItem>> = mail.into_iter().map(item).map(Ok).collect();
        let mut server = self.0.lock();
        if let (Some(first), true) = (items.first_mut(), server.full > 0) {
            server.full -= 1;
            *first = Err(io::ErrorKind::StorageFull.into());
        }
        items
    }

    fn find_other_carrier(&self) -> Option<String> {
        self.0.lock().other.then(|| "another one carries".into())
    }

    fn poll_interval(&self) -> Duration {
        Duration::ZERO
    }

    fn is_fetch_destructive(&self) -> bool {
        self.0.lock().destroys
    }

    fn open_session(&self) -> Box<dyn LinkSession + '_> {
        self.0.lock().sessions += 1;
        Box::new(FakeSession(self))
    }

    fn check_connection(&self) -> Vec<String> {
        Vec::new()
    }

    fn load_secrets(&self) -> Vec<zeroize::Zeroizing<String>> {
        Vec::new()
    }
}

struct FakeSession<'a>(&'a Fake);

impl LinkSession for FakeSession<'_> {
    fn send(&mut self, wire: &Path) -> ExchangeOutcome {
        let fault = self.0.fault();
        match fault {
            Some(Fault::DieBefore) => die(),
            Some(Fault::Away) => return ExchangeOutcome::Away { why: "down".into(), after: None },
            Some(Fault::Later) => {
                return ExchangeOutcome::Later { why: "full".into(), after: Some(0) };
            }
            _ => {}
        }
        let bytes = std::fs::read(wire).unwrap();
        if bytes == b"bad" {
            return ExchangeOutcome::Refused { why: "404 not found".into() };
        }
        if bytes == b"breaks" {
            return ExchangeOutcome::Unknown { why: "reset".into() };
        }
        {
            let mut server = self.0.0.lock();
            server.got.push(bytes.clone());
            if server.doubles {
                server.got.push(bytes);
            }
        }
        match fault {
            Some(Fault::DieAfter) => die(),
            Some(Fault::LoseAnswer) => ExchangeOutcome::Unknown { why: "reset".into() },
            Some(Fault::Lie) => ExchangeOutcome::Away { why: "500".into(), after: None },
            _ => ExchangeOutcome::Done,
        }
    }

    fn fetch(&mut self, raw: &Path, known: &HashSet<String>) -> ExchangeOutcome {
        let fault = self.0.fault();
        match fault {
            Some(Fault::DieBefore) => die(),
            Some(Fault::Away | Fault::Later) => {
                return ExchangeOutcome::Away { why: "down".into(), after: None };
            }
            _ => {}
        }
        note_asked(raw).unwrap();
        let mail = {
            let mut server = self.0.0.lock();
            let mail = server.mail.clone();
            if server.destroys {
                server.mail.clear();
            }
            mail
        };
        if matches!(fault, Some(Fault::LoseAnswer)) {
            return ExchangeOutcome::Unknown { why: "reset".into() };
        }
        let doubles = self.0.0.lock().doubles;
        let new = mail.into_iter().filter(|(id, _)| doubles || !known.contains(id));
        let new: BTreeMap<String, String> = new.collect();
        std::fs::write(raw.join("mail"), serde_json::to_vec(&new).unwrap()).unwrap();
        if matches!(fault, Some(Fault::DieAfter)) {
            die();
        }
        if self.0.0.lock().withholds {
            return ExchangeOutcome::Later { why: "it refuses y".into(), after: None };
        }
        ExchangeOutcome::Done
    }

    fn acknowledge(&mut self, ids: &[String]) -> ExchangeOutcome {
        let fault = self.0.fault();
        if matches!(fault, Some(Fault::DieBefore)) {
            die();
        }
        let mut server = self.0.0.lock();
        if server.acknowledges {
            server.mail.retain(|id, _| !ids.contains(id));
        }
        ExchangeOutcome::Done
    }

    fn disconnect(&mut self) {}
}

/// A filed message: name and bytes.
type Filed = (String, Vec<u8>);

/// A link to the fake engine, with a list of filed messages.
struct Bench {
    dir: tempfile::TempDir,
    fake: Fake,
    filed: Arc<Locked<Vec<Filed>>>,
    insecure: bool,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, fake: Fake::default(), filed: Arc::default(), insecure: false }
    }

    fn post(&self) -> MessageLink {
        let settings = EngineSettings {
            kind: "fake".into(),
            file: PathBuf::new(),
            part: String::new(),
            me: "me".into(),
            insecure: self.insecure,
            ca: None,
            self_copy: false,
        };
        let filed = Arc::clone(&self.filed);
        let file = move |arrived: &InboundMail| {
            let one = (arrived.name.clone(), arrived.bytes.clone());
            let mut filed = filed.lock();
            if !filed.contains(&one) {
                filed.push(one);
            }
            Ok(())
        };
        let fake = self.fake.clone();
        let carry = move |socket: &std::os::unix::net::UnixStream, folder: &Path| {
            let open = |_: &EngineSettings| -> Result<Box<dyn LinkEngine>, String> {
                Ok(Box::new(fake.clone()))
            };
            let limit = ExchangeLimit::default();
            let carry = AssertUnwindSafe(|| run_carrier(socket, folder, &open, &limit));
            let _ = catch_unwind(carry);
        };
        let engine = Box::new(self.fake.clone());
        let carrier = CarrierProgram::Here(Arc::new(carry));
        let folder = self.dir.path();
        let post = MessageLink::open("fake", folder, settings, engine, Box::new(file), carrier);
        let post = post.unwrap();
        // The tests run its turns themselves, in place of this thread.
        *post.thread.lock() = Some(std::thread::spawn(|| ()));
        post
    }

    /// Runs turns until nothing is left to do, without waiting for backoffs.
    fn settle(post: &MessageLink) {
        let mut schedule = RetrySchedule::default();
        for _ in 0..200 {
            schedule.pause_all(0);
            schedule.held.clear();
            let is_idle = post.journal.lock().open_entries().next().is_none()
                && schedule.next_fetch > 0
                && (schedule.sending.failures, schedule.fetching.failures) == (0, 0)
                && schedule.kills == 0
                // A message that went after a fetch was killed says nothing about the fetch.
                && !schedule.is_fetch_first
                && CarrierJob::find_left(&post.folder, &|_| false).unwrap().is_none();
            if is_idle {
                return;
            }
            post.retry_waiting().unwrap();
            post.run_turn(&mut schedule, &|| {}).unwrap();
        }
        panic!("never at rest");
    }

    /// Does the same, but kills the thread after some steps. Returns true if it was killed.
    fn killed_after(&self, steps: u32) -> bool {
        self.killed_in(steps, Self::settle)
    }

    /// Works with the link, and kills the thread after some steps. Returns true if it was killed.
    fn killed_in(&self, steps: u32, work: impl FnOnce(&MessageLink)) -> bool {
        let post = self.post();
        LEFT.with(|left| left.set(Some(steps)));
        let end = catch_unwind(AssertUnwindSafe(|| work(&post)));
        let killed = LEFT.with(|left| left.replace(None).is_none());
        assert_eq!(end.is_err(), killed);
        killed
    }
}

fn parcel(message: &str, to: &str, text: &str) -> OutboundMail {
    let bytes = text.as_bytes().to_vec();
    OutboundMail { message_id: message.into(), to: to.into(), bytes, parts: Vec::new() }
}

/// Has a link accept a message durably, as stores do.
fn accept(post: &MessageLink, parcel: &OutboundMail) {
    post.accept_parcel(parcel).unwrap();
    post.sync_accepted().unwrap();
}

fn quiet<T>(f: impl FnOnce() -> T) -> T {
    // Kills are panics whose messages are of no use.
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&"killed") {
                hook(info);
            }
        }));
    });
    f()
}

#[test]
fn what_finds_no_room_is_not_lost_to_an_engine_that_destroys() {
    let bench = Bench::new();
    {
        let mut server = bench.fake.0.lock();
        server.destroys = true;
        server.full = 2;
        server.mail = ["a", "b"].map(|id| (id.to_owned(), format!("text of {id}"))).into();
    }
    let post = bench.post();
    let mut schedule = RetrySchedule::default();
    let names = || bench.filed.lock().iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    for _ in 0..2 {
        schedule.held.clear();
        assert!(post.run_turn(&mut schedule, &|| {}).unwrap());
        assert_eq!(names(), ["b"]);
    }
    Bench::settle(&post);
    assert_eq!(names(), ["b", "a"]);
}

/// Fetched mail that cannot be saved is kept, told and tried again, and delays no message that is to be sent.
#[test]
fn mail_that_cannot_be_saved_delays_no_message() {
    let bench = Bench::new();
    {
        let mut server = bench.fake.0.lock();
        server.full = 2;
        server.mail = [("x".to_owned(), "hi".to_owned())].into();
    }
    let post = bench.post();
    let mut schedule = RetrySchedule::default();
    assert!(post.run_turn(&mut schedule, &|| {}).unwrap());
    schedule.held.values_mut().for_each(|until| *until = i64::MAX);
    accept(&post, &parcel("a", "bob", "one"));
    assert!(post.run_turn(&mut schedule, &|| {}).unwrap());
    assert_eq!(bench.fake.0.lock().got, [b"one"]);
    assert!(!post.run_turn(&mut schedule, &|| {}).unwrap(), "nothing is fetched meanwhile");
    assert!(bench.filed.lock().is_empty());
    let notes = post.board().health().notes;
    assert!(notes.iter().any(|note| note.contains("cannot be saved here")), "{notes:?}");
    Bench::settle(&post);
    assert_eq!(bench.filed.lock().len(), 1);
    assert_eq!(post.board().health().notes, [""; 0]);
}

#[test]
fn what_is_taken_goes_once_and_what_is_refused_says_why() {
    let bench = Bench::new();
    let post = bench.post();
    for (message, text) in [("a", "one"), ("a", "one"), ("b", "bad"), ("c", "")] {
        accept(&post, &parcel(message, "bob", text));
    }
    assert!(matches!(post.find_fate("a", "bob"), Some(DeliveryFate::Waits(_))));
    assert_eq!(post.find_fate("a", "carol"), None);
    assert_eq!(post.board().health().waiting, 2);
    Bench::settle(&post);
    assert_eq!(bench.fake.0.lock().got, [b"one".to_vec()]);
    assert_eq!(post.find_fate("a", "bob"), Some(DeliveryFate::Taken));
    let refused = |id, why| {
        assert_eq!(
            post.find_fate(id, "bob"),
            Some(DeliveryFate::Refused(format!("refused by fake: {why}")))
        );
    };
    refused("b", "404 not found");
    refused("c", "empty");
    let health = post.board().health();
    assert_eq!((health.waiting, health.refused), (0, 2));
    assert!(matches!(health.state, crate::link::LinkState::Connected { .. }));
}

/// A kill at any step of the daemon, in both directions, loses nothing and files nothing twice. Only messages that the
/// engine may not have got go out twice.
#[test]
fn killed_at_each_step() {
    quiet(|| {
        for (destroys, acknowledges) in [(false, false), (true, false), (false, true)] {
            for steps in 0.. {
                let bench = Bench::new();
                {
                    let mut server = bench.fake.0.lock();
                    (server.destroys, server.acknowledges) = (destroys, acknowledges);
                    server.mail =
                        [("x", "hi"), ("y", "ho")].map(|(k, v)| (k.into(), v.into())).into();
                }
                let post = bench.post();
                accept(&post, &parcel("a", "bob", "one"));
                accept(&post, &parcel("b", "bob", "two"));
                drop(post);
                let killed = bench.killed_after(steps);
                Bench::settle(&bench.post());
                assert_eq!(bench.fake.0.lock().got, [b"one", b"two"], "{steps}");
                let mut filed = bench.filed.lock().clone();
                filed.sort();
                let both = [("x".to_owned(), b"hi".to_vec()), ("y".to_owned(), b"ho".to_vec())];
                assert_eq!(filed, both, "{steps}");
                assert_eq!(bench.fake.0.lock().mail.is_empty(), destroys || acknowledges);
                if !killed {
                    assert!(steps > 10, "{steps}");
                    break;
                }
            }
        }
    });
}

/// A kill at any step while a store hands messages over loses and doubles nothing: the store hands them over again
/// unless their sync has returned. Nothing of those that were not recorded is left.
#[test]
fn killed_while_messages_are_accepted() {
    quiet(|| {
        for steps in 0.. {
            let bench = Bench::new();
            let hand_over = |post: &MessageLink| {
                for (message, text) in [("a", "one"), ("b", "two")] {
                    post.accept_parcel(&parcel(message, "bob", text)).unwrap();
                }
                assert_eq!(post.board().health().waiting, 0, "no carrier may get them yet");
                post.sync_accepted().unwrap();
            };
            let killed = bench.killed_in(steps, hand_over);
            let post = bench.post();
            assert_eq!(post.find_fate("a", "bob").is_none(), killed, "{steps}");
            let wires = std::fs::read_dir(bench.dir.path().join("out")).unwrap().count();
            assert_eq!(wires, if killed { 0 } else { 2 }, "{steps}");
            hand_over_again(&post);
            Bench::settle(&post);
            assert_eq!(bench.fake.0.lock().got, [b"one", b"two"], "{steps}");
            if !killed {
                assert_eq!(steps, 2);
                break;
            }
        }
    });
}

fn hand_over_again(post: &MessageLink) {
    accept(post, &parcel("a", "bob", "one"));
    accept(post, &parcel("b", "bob", "two"));
}

/// Messages whose bytes did not reach the disk are forgotten, and the store learns of it, also if the link's own thread
/// was the one that failed.
#[test]
fn what_cannot_be_synced_is_handed_over_again() {
    for by_thread in [false, true] {
        let bench = Bench::new();
        let post = bench.post();
        accept(&post, &parcel("a", "bob", "one"));
        post.accept_parcel(&parcel("b", "bob", "two")).unwrap();
        std::fs::remove_file(bench.dir.path().join("out/1")).unwrap();
        let mut schedule = RetrySchedule { next_fetch: i64::MAX, ..RetrySchedule::default() };
        if by_thread {
            post.run_turn(&mut schedule, &|| {}).unwrap_err();
            post.run_turn(&mut schedule, &|| {}).unwrap();
        }
        post.sync_accepted().unwrap_err();
        post.sync_accepted().unwrap();
        assert_eq!(post.find_fate("b", "bob"), None);
        hand_over_again(&post);
        Bench::settle(&post);
        assert_eq!(bench.fake.0.lock().got, [b"one", b"two"]);
    }
}

#[test]
fn a_fetch_that_was_cut_off_is_told() {
    quiet(|| {
        for (fault, told) in [
            (Fault::DieBefore, false),
            (Fault::Away, false),
            (Fault::LoseAnswer, true),
            (Fault::DieAfter, true),
        ] {
            let bench = Bench::new();
            {
                let mut server = bench.fake.0.lock();
                server.destroys = true;
                server.mail = [("x".to_owned(), "hi".to_owned())].into();
                server.faults = [fault].into();
            }
            let post = bench.post();
            Bench::settle(&post);
            let notes = post.board().health().notes;
            assert_eq!(
                notes.iter().any(|n| n.contains("may be lost")),
                told,
                "{fault:?} {notes:?}"
            );
            let lost = fault == Fault::LoseAnswer;
            assert_eq!(bench.filed.lock().is_empty(), lost, "{fault:?}");
            assert_eq!(bench.post().board().health().notes, notes, "told after a restart");
        }
    });
}

/// A message that the engine refuses to hand over is told as long as it does, and delays no other.
#[test]
fn a_message_that_is_not_handed_over_is_told() {
    let bench = Bench::new();
    {
        let mut server = bench.fake.0.lock();
        server.withholds = true;
        server.mail = [("x".to_owned(), "hi".to_owned())].into();
    }
    let post = bench.post();
    Bench::settle(&post);
    assert_eq!(bench.filed.lock().len(), 1);
    let health = post.board().health();
    assert_eq!(health.notes, ["it refuses y; it is asked for again"]);
    assert!(matches!(health.state, crate::link::LinkState::Connected { .. }), "{health:?}");
    bench.fake.0.lock().withholds = false;
    Bench::settle(&post);
    assert_eq!(post.board().health().notes, [""; 0]);
}

/// The line of a link that may send plain text to any host says so.
#[test]
fn the_line_of_an_insecure_link_says_so() {
    for insecure in [false, true] {
        let bench = Bench { insecure, ..Bench::new() };
        let lines = bench.post().board().health().render_lines("fake");
        assert_eq!(lines[0].starts_with("fake: fake, insecure = true;"), insecure, "{lines:?}");
    }
}

#[test]
fn a_link_that_is_away_rests_longer_and_longer() {
    let bench = Bench::new();
    bench.fake.0.lock().faults = [Fault::Away; 4].into();
    let post = bench.post();
    accept(&post, &parcel("a", "bob", "one"));
    let mut schedule = RetrySchedule::default();
    let mut waits = Vec::new();
    for _ in 0..4 {
        schedule.pause_all(0);
        assert!(post.run_turn(&mut schedule, &|| {}).unwrap());
        waits.push((schedule.paused_until() - now() + 500) / 1000);
        assert!(!post.run_turn(&mut schedule, &|| {}).unwrap(), "nothing is tried meanwhile");
    }
    assert_eq!(waits, [1, 5, 30, 60]);
    let Some(DeliveryFate::Waits(why)) = post.find_fate("a", "bob") else { panic!("it waits") };
    assert!(why.contains("down, tried 2 times"), "{why}");
    assert!(matches!(post.board().health().state, crate::link::LinkState::Waiting { .. }));
}

#[test]
fn killed_carriers_do_not_make_the_link_rest_for_long() {
    quiet(|| {
        let bench = Bench::new();
        bench.fake.0.lock().faults = [Fault::DieBefore; 7].into();
        let post = bench.post();
        accept(&post, &parcel("a", "bob", "one"));
        let mut schedule = RetrySchedule::default();
        let mut waits = Vec::new();
        for _ in 0..7 {
            schedule.pause_all(0);
            assert!(post.run_turn(&mut schedule, &|| {}).unwrap());
            waits.push((schedule.paused_until() - now() + 500) / 1000);
        }
        assert_eq!(waits, [1, 5, 5, 5, 5, 5, 5]);
        Bench::settle(&post);
        assert_eq!(bench.fake.0.lock().got, [b"one"]);
    });
}

#[test]
fn as_long_as_another_one_carries_nothing_is_done() {
    let bench = Bench::new();
    bench.fake.0.lock().other = true;
    let post = bench.post();
    accept(&post, &parcel("a", "bob", "one"));
    let mut schedule = RetrySchedule::default();
    assert!(!post.run_turn(&mut schedule, &|| {}).unwrap());
    assert!(schedule.paused_until() > now() && bench.fake.0.lock().got.is_empty());
    let stopped = crate::link::LinkState::Stopped { why: "another one carries".into() };
    assert_eq!(post.board().health().state, stopped);
    bench.fake.0.lock().other = false;
    Bench::settle(&post);
    assert_eq!(bench.fake.0.lock().got, [b"one"]);
    assert!(matches!(post.board().health().state, crate::link::LinkState::Connected { .. }));
}

#[test]
fn given_up_and_tried_again() {
    let bench = Bench::new();
    let post = bench.post();
    accept(&post, &parcel("a", "bob", "one"));
    assert_eq!(post.drop_waiting().unwrap(), 1);
    assert!(matches!(post.find_fate("a", "bob"), Some(DeliveryFate::Refused(_))));
    accept(&post, &parcel("b", "bob", "two"));
    assert_eq!(post.retry_waiting().unwrap(), 1);
    Bench::settle(&post);
    assert_eq!(bench.fake.0.lock().got, [b"two"]);
}

/// A message that is given up after a try without an answer may have arrived, whatever later tries said. One that is
/// given up before each try, or after tries that the engine did not take, has not.
#[test]
fn what_is_given_up_after_a_lost_answer_may_have_arrived() {
    quiet(|| {
        for (faults, may_have_arrived) in [
            (vec![], false),
            (vec![Fault::Away], false),
            (vec![Fault::Later], false),
            (vec![Fault::LoseAnswer], true),
            (vec![Fault::DieAfter], true),
            (vec![Fault::LoseAnswer, Fault::Away], true),
        ] {
            let bench = Bench::new();
            let post = bench.post();
            accept(&post, &parcel("a", "bob", "one"));
            let mut schedule = RetrySchedule { next_fetch: i64::MAX, ..RetrySchedule::default() };
            for fault in &faults {
                bench.fake.0.lock().scripted = [Some(*fault)].into();
                schedule.pause_all(0);
                post.retry_waiting().unwrap();
                post.run_turn(&mut schedule, &|| {}).unwrap();
            }
            assert_eq!(post.drop_waiting().unwrap(), 1, "{faults:?}");
            for post in [post, bench.post()] {
                let fate = post.find_fate("a", "bob").unwrap();
                let (why, is_uncertain) = match &fate {
                    DeliveryFate::Uncertain(why) => (why, true),
                    DeliveryFate::Refused(why) => (why, false),
                    _ => panic!("{faults:?} {fate:?}"),
                };
                assert_eq!(is_uncertain, may_have_arrived, "{faults:?}");
                assert!(why.contains(GIVEN_UP), "{why}");
            }
        }
    });
}

/// Accepts so many messages and runs turns until all went. Returns the number of turns.
fn deliver_all(bench: &Bench, post: &MessageLink, count: usize) -> usize {
    for n in 0..count {
        accept(post, &parcel(&format!("m{n:03}"), "bob", &format!("text {n:03}")));
    }
    let mut schedule = RetrySchedule { next_fetch: i64::MAX, ..RetrySchedule::default() };
    let mut turns = 0;
    while post.journal.lock().open_count() > 0 {
        schedule.pause_all(0);
        post.run_turn(&mut schedule, &|| {}).unwrap();
        turns += 1;
        assert!(turns < 2 * count, "{:?}", bench.fake.0.lock().got.len());
    }
    turns
}

fn texts(numbers: impl Iterator<Item = usize>) -> Vec<Vec<u8>> {
    numbers.map(|n| format!("text {n:03}").into_bytes()).collect()
}

#[test]
fn many_messages_go_in_one_session() {
    let bench = Bench::new();
    let post = bench.post();
    let turns = deliver_all(&bench, &post, 300);
    let server = bench.fake.0.lock();
    assert_eq!(server.got, texts(0..300), "in their order");
    assert_eq!(server.sessions, 1);
    assert!(turns <= 12, "{turns} jobs");
}

/// The carrier dies at any message of a job, before or after the engine has it. All messages go, in their order, and
/// only the one that the engine may not have got goes twice.
#[test]
fn a_carrier_that_dies_between_messages_loses_and_doubles_nothing() {
    quiet(|| {
        for (fault, before) in [
            (Fault::DieBefore, 0),
            (Fault::DieBefore, 3),
            (Fault::DieBefore, 7),
            (Fault::DieAfter, 0),
            (Fault::DieAfter, 4),
            (Fault::DieAfter, 7),
        ] {
            let bench = Bench::new();
            let post = bench.post();
            let fine = std::iter::repeat_n(None, before);
            bench.fake.0.lock().scripted = fine.chain([Some(fault)]).collect();
            deliver_all(&bench, &post, 12);
            let doubled = usize::from(fault == Fault::DieAfter);
            let expected =
                texts((0..12).flat_map(|n| {
                    std::iter::repeat_n(n, if n == before { 1 + doubled } else { 1 })
                }));
            {
                let server = bench.fake.0.lock();
                assert_eq!(server.got, expected, "{fault:?} at {before}");
                assert_eq!(server.sessions, 2);
            }
            let tries = |n| {
                let journal = post.journal.lock();
                journal.find_entry(&format!("m{n:03}"), "bob").unwrap().tries
            };
            for n in 0..12 {
                assert_eq!(tries(n), if n == before { 2 } else { 1 }, "{fault:?} at {before}: {n}");
            }
        }
    });
}

/// A refusal, a wait or a lost answer in the middle of a job stops no other message.
#[test]
fn a_refused_message_does_not_stop_those_behind_it() {
    let bench = Bench::new();
    let post = bench.post();
    for (message, text) in [("a", "one"), ("b", "bad"), ("c", "two"), ("d", "bad"), ("e", "three")]
    {
        accept(&post, &parcel(message, "bob", text));
    }
    let mut schedule = RetrySchedule::default();
    assert!(post.run_turn(&mut schedule, &|| {}).unwrap());
    assert_eq!(bench.fake.0.lock().got, [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]);
    let health = post.board().health();
    assert_eq!((health.waiting, health.refused), (0, 2));
    assert_eq!(bench.fake.0.lock().sessions, 1);
}

/// When the engine goes away in the middle of a job, the messages behind were not tried, and go as soon as it is back.
#[test]
fn messages_behind_a_broken_connection_were_not_tried() {
    let bench = Bench::new();
    let post = bench.post();
    bench.fake.0.lock().scripted = [None, Some(Fault::Away)].into();
    for n in 0..4 {
        accept(&post, &parcel(&format!("m{n:03}"), "bob", &format!("text {n:03}")));
    }
    let mut schedule = RetrySchedule::default();
    assert!(post.run_turn(&mut schedule, &|| {}).unwrap());
    assert_eq!(bench.fake.0.lock().got, texts(0..1));
    let waits = |n: usize| match post.find_fate(&format!("m{n:03}"), "bob") {
        Some(DeliveryFate::Waits(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(waits(1).ends_with("down, tried 1 times"), "{}", waits(1));
    assert!(waits(2).ends_with(": down") && waits(3).ends_with(": down"), "{}", waits(2));
    Bench::settle(&post);
    assert_eq!(bench.fake.0.lock().got, texts(0..4));
}

/// Has a carrier deliver messages that a person gives up as soon as they are ordered.
fn deliver_given_up(post: &MessageLink, all: Vec<u64>) {
    let message = |no: &u64| MessageOrder { no: *no, wire: post.journal.lock().wire_path(*no) };
    let messages = all.iter().map(message).collect();
    let job = post.create_job(CarrierTask::Deliver { messages }).unwrap();
    post.journal.lock().record_tries(all).unwrap();
    assert_eq!(post.drop_waiting().unwrap(), 0);
    let called = post.wakeup.current_counts().calls;
    post.run_job(job, called, &mut RetrySchedule::default(), &|| {}).unwrap();
}

/// The carrier does not begin a message that a person gives up while its job runs.
#[test]
fn messages_of_a_running_job_can_be_given_up() {
    let bench = Bench::new();
    let post = bench.post();
    for n in 0..4 {
        accept(&post, &parcel(&format!("m{n:03}"), "bob", &format!("text {n:03}")));
    }
    bench.fake.0.lock().scripted = [None, Some(Fault::Away)].into();
    deliver_given_up(&post, vec![0, 1, 2, 3]);
    assert!(matches!(post.find_fate("m000", "bob"), Some(DeliveryFate::Taken)));
    for n in 1..4 {
        let fate = post.find_fate(&format!("m{n:03}"), "bob");
        assert!(matches!(fate, Some(DeliveryFate::Refused(_))), "{n}: {fate:?}");
    }
}

/// A message that a person gives up while it is tried is given up after the try, unless the engine may have it.
#[test]
fn a_tried_message_is_given_up_unless_the_engine_may_have_it() {
    quiet(|| {
        for (fault, dropped) in [
            (Fault::Away, true),
            (Fault::Later, true),
            (Fault::LoseAnswer, false),
            (Fault::DieAfter, false),
        ] {
            let bench = Bench::new();
            let post = bench.post();
            accept(&post, &parcel("a", "bob", "one"));
            bench.fake.0.lock().scripted = [Some(fault)].into();
            deliver_given_up(&post, vec![0]);
            let fate = post.find_fate("a", "bob");
            assert_eq!(
                matches!(&fate, Some(DeliveryFate::Refused(why)) if why.contains(GIVEN_UP)),
                dropped,
                "{fault:?} {fate:?}"
            );
            Bench::settle(&post);
            let taken = if dropped { 0 } else { 2 };
            assert_eq!(bench.fake.0.lock().got.len(), taken, "{fault:?}");
        }
    });
}

fn faults() -> impl Strategy<Value = Vec<Option<Fault>>> {
    let fault = prop_oneof![
        Just(None),
        Just(Some(Fault::DieBefore)),
        Just(Some(Fault::DieAfter)),
        Just(Some(Fault::LoseAnswer)),
        Just(Some(Fault::Away)),
        Just(Some(Fault::Later)),
        Just(Some(Fault::Lie)),
    ];
    proptest::collection::vec(fault, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// After any faults of the engine, every message is there at the end, and filed once.
    #[test]
    fn nothing_is_lost(faults in faults(), kill in 0u32..40, doubles: bool, count in 1usize..6) {
        quiet(|| {
            let bench = Bench::new();
            {
                let mut server = bench.fake.0.lock();
                server.faults = faults.iter().flatten().copied().collect();
                server.doubles = doubles;
                server.mail = (0..count).map(|n| (format!("m{n}"), format!("in {n}"))).collect();
            }
            let post = bench.post();
            for n in 0..count {
                accept(&post, &parcel(&n.to_string(), "bob", &format!("out {n}")));
            }
            drop(post);
            bench.killed_after(kill);
            Bench::settle(&bench.post());
            let mut got = bench.fake.0.lock().got.clone();
            got.sort();
            got.dedup();
            assert_eq!(got.len(), count);
            let mut filed = bench.filed.lock().clone();
            filed.sort();
            let all: Vec<_> =
                (0..count).map(|n| (format!("m{n}"), format!("in {n}").into_bytes())).collect();
            assert_eq!(filed, all);
        });
    }
}

/// While many messages wait, the store scans only now and then, but it scans after the last one.
#[test]
fn the_store_hears_at_the_end_of_all_that_was_sent() {
    let bench = Bench::new();
    let post = bench.post();
    for n in 0..40 {
        accept(&post, &parcel(&format!("m{n:02}"), "bob", &format!("text {n:02}")));
    }
    let heard = Locked::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            post.run(&|| {
                let left = post.journal.lock().open_count();
                heard.lock().push(left);
                std::thread::sleep(Duration::from_millis(20));
                if left == 0 {
                    post.stop();
                }
            });
        });
    });
    assert_eq!(heard.lock().last(), Some(&0));
    let expected: Vec<Vec<u8>> = (0..40).map(|n| format!("text {n:02}").into_bytes()).collect();
    assert_eq!(bench.fake.0.lock().got, expected, "in their order");
}
