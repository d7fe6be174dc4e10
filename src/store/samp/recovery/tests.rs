//! Changes that other programs make to my log, and their repair.

use std::path::Path;

use super::*;
use crate::model::{Draft, Timestamp};
use crate::store::testing::{Book, Key};
use crate::store::{Kind, MessageAppender as _, PrepareContext, Signer as _, StoreSpec};

/// A folder with my log, and one for my state.
struct Machine {
    dir: tempfile::TempDir,
    key: Key,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("samp")).unwrap();
        Self { dir, key: Key::new(7) }
    }

    fn open(&self) -> SampStore {
        SampStore::open(&StoreSpec {
            name: "samp".into(),
            kind: Kind::Samp,
            dir: self.dir.path().join("samp"),
            me: "me".into(),
            state: Some(self.state()),
            may_create: true,
            ..StoreSpec::default()
        })
        .unwrap()
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("samp").join(name)
    }

    fn log(&self) -> PathBuf {
        self.path("log-me.jsonl")
    }

    fn send(&self, store: &SampStore, body: &str) {
        store.append_record(&message(body, &self.key)).unwrap();
    }

    fn send_all(&self, store: &SampStore, bodies: &[&str]) {
        for body in bodies {
            self.send(store, body);
        }
    }

    /// Returns the bodies in the log, in order.
    fn bodies(&self) -> Vec<String> {
        bodies(&self.log())
    }

    fn lines(&self, range: std::ops::Range<usize>) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap();
        text.split_inclusive('\n').skip(range.start).take(range.len()).collect()
    }

    /// Replaces a file by this text, as another program would.
    fn replace(&self, text: &str) {
        let temp = self.path(".syncthing.tmp");
        std::fs::write(&temp, text).unwrap();
        std::fs::rename(temp, self.log()).unwrap();
    }

    fn recover(&self, store: &SampStore) -> bool {
        Book::scanned(store);
        store.recover_lines(Some(&self.key.public_key())).unwrap()
    }
}

fn message(body: &str, key: &Key) -> PreparedRecord {
    message_at(body, key, Timestamp::now())
}

fn message_at(body: &str, key: &Key, time: Timestamp) -> PreparedRecord {
    let draft = Draft { to: vec!["you".into()], body: body.into(), ..Draft::default() };
    append::prepare_records("me", &draft, &PrepareContext::new(time, key)).unwrap().remove(0)
}

fn bodies(log: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for_each_record(&File::open(log).unwrap(), |parsed, _| {
        all.push(parsed.body_text().into_owned());
    })
    .unwrap();
    all
}

#[test]
fn an_end_that_was_lost_comes_back_before_anything_else() {
    for reopened in [false, true] {
        for replaced in [false, true] {
            let machine = Machine::new();
            let mut store = machine.open();
            machine.send_all(&store, &["a", "b", "c"]);
            let cut = machine.lines(0..1);
            if replaced {
                machine.replace(&(cut + "{\"ts\":1,\"from\":\"me\",\"to\":\"x\",\"thread\":\"t\",\"body\":\"other\"}\n"));
            } else {
                std::fs::write(machine.log(), cut).unwrap();
            }
            if reopened {
                store = machine.open();
            }
            machine.send(&store, "d");
            let all =
                if replaced { vec!["a", "other", "b", "c", "d"] } else { vec!["a", "b", "c", "d"] };
            assert_eq!(machine.bodies(), all);
            assert!(!machine.recover(&store), "nothing is missing");
            assert_eq!(machine.bodies(), all);
            let told = machine.open().incidents(&machine.state()).concat();
            assert!(told.contains("msgfs appended 2 missing messages again"), "{told}");
        }
    }
}

#[test]
fn a_version_with_nothing_of_mine_gets_all_of_it() {
    let machine = Machine::new();
    let store = machine.open();
    machine.send_all(&store, &["a", "b"]);
    assert!(!store.is_recovery_due() || !machine.recover(&store));
    assert!(!store.is_recovery_due());
    machine.replace("{\"ts\":1,\"from\":\"me\",\"to\":\"x\",\"thread\":\"t\",\"body\":\"other\"}");
    assert!(store.is_recovery_due());
    assert!(machine.recover(&store));
    assert_eq!(machine.bodies(), ["other", "a", "b"]);
    assert!(!store.is_recovery_due() || !machine.recover(&store));
    assert_eq!(machine.bodies(), ["other", "a", "b"]);
}

#[test]
fn what_was_taken_out_on_purpose_stays_out() {
    let machine = Machine::new();
    let store = machine.open();
    machine.send_all(&store, &["a", "b", "c"]);
    machine.replace(&machine.lines(2..3));
    assert!(!machine.recover(&store));
    machine.send(&store, "d");
    assert_eq!(machine.bodies(), ["c", "d"]);
    assert!(machine.open().incidents(&machine.state()).is_empty());
}

#[test]
fn an_empty_log_ends_the_keeping() {
    for gone in [false, true] {
        let machine = Machine::new();
        let store = machine.open();
        machine.send_all(&store, &["a", "b"]);
        if gone {
            std::fs::remove_file(machine.log()).unwrap();
        } else {
            std::fs::write(machine.log(), "").unwrap();
        }
        machine.send(&store, "c");
        assert_eq!(machine.bodies(), ["c"]);
        let told = store.incidents(&machine.state()).concat();
        assert!(told.contains("2 messages of the last 7 days"), "{told}");
        machine.replace(&message("other", &machine.key).bytes);
        assert!(machine.recover(&store));
        assert_eq!(machine.bodies(), ["other", "c"]);
    }
}

#[test]
fn a_log_that_is_away_for_a_moment_is_waited_for() {
    let machine = Machine::new();
    let store = machine.open();
    machine.send(&store, "a");
    let text = machine.lines(0..1);
    std::fs::remove_file(machine.log()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(GRACE / 4);
            machine.replace(&text);
        });
        machine.send(&store, "b");
    });
    assert_eq!(machine.bodies(), ["a", "b"]);
    assert!(store.incidents(&machine.state()).is_empty());
}

#[test]
fn what_is_older_than_a_week_is_told_and_stays_away() {
    let machine = Machine::new();
    let store = machine.open();
    let long_ago = Timestamp::now().plus_millis(-WEEK_MS - 60_000);
    store.append_record(&message_at("a", &machine.key, long_ago)).unwrap();
    machine.send(&store, "b");
    machine.replace(&message("other", &machine.key).bytes);
    assert!(machine.recover(&store));
    assert_eq!(machine.bodies(), ["other", "b"]);
    let told = store.incidents(&machine.state()).concat();
    let expected = "appended 1 missing message again, without those that are older than 7 days (1)";
    assert!(told.contains(expected), "{told}");
}

#[test]
fn of_a_conflict_copy_only_what_i_signed_is_appended_and_once() {
    let machine = Machine::new();
    let store = machine.open();
    machine.send(&store, "a");
    let mine = message("mine", &machine.key).bytes;
    let copy = [
        machine.lines(0..1),
        mine.clone() + "\n",
        // These records were changed after they were signed: the id no longer fits, or the signature.
        mine.replace("mine", "nine") + "\n",
        mine.replace("\"ms\": ", "\"ms\": 1") + "\n",
        message("another key", &Key::new(8)).bytes + "\n",
        "{\"ts\":1,\"from\":\"me\",\"to\":\"x\",\"thread\":\"t\",\"body\":\"unsigned\"}\n"
            .to_owned(),
        message("last", &machine.key).bytes,
    ];
    let name = "log-me.sync-conflict-20260413-091523-K3X2R2T.jsonl";
    std::fs::write(machine.path(name), copy.concat()).unwrap();
    let others = machine.path("log-you.sync-conflict-20260413-091523-K3X2R2T.jsonl");
    std::fs::write(&others, message("of another log", &machine.key).bytes).unwrap();
    store.note_change(&machine.path(name));
    assert!(store.is_recovery_due());
    assert!(machine.recover(&store));
    assert_eq!(machine.bodies(), ["a", "mine", "last"]);
    assert_eq!(std::fs::read(machine.path(name)).unwrap(), copy.concat().into_bytes());
    assert!(
        store
            .incidents(&machine.state())
            .concat()
            .contains("2 messages of mine, which msgfs appended")
    );
    for store in [store, machine.open()] {
        assert!(!machine.recover(&store));
        assert_eq!(machine.bodies(), ["a", "mine", "last"]);
    }
    // The log is replaced, and the copy is still there.
    machine.replace(&machine.lines(0..1));
    let store = machine.open();
    assert!(machine.recover(&store));
    assert_eq!(machine.bodies(), ["a", "mine", "last"]);
}

#[test]
fn what_an_earlier_process_appended_is_kept_too() {
    let machine = Machine::new();
    let store = machine.open();
    machine.send(&store, "a");
    // This is as if msgfs had been killed, or had lost its power, before the line was kept.
    std::fs::remove_dir_all(machine.state()).unwrap();
    let (a, b) = (machine.lines(0..1), message("b", &machine.key));
    let appended = PreparedRecord { bytes: a.trim_end().to_owned(), ..b.clone() };
    let store = machine.open();
    for _ in 0..2 {
        store.note_appended(&[&appended, &b]).unwrap();
    }
    machine.replace(&message("other", &machine.key).bytes);
    assert!(machine.recover(&store));
    assert_eq!(machine.bodies(), ["other", "a", "b"]);
}

#[test]
fn a_later_process_keeps_nothing_of_an_emptied_log() {
    for killed in [false, true] {
        let machine = Machine::new();
        let store = machine.open();
        let sent = ["a", "b", "c"].map(|body| message(body, &machine.key));
        for message in &sent {
            store.append_record(message).unwrap();
        }
        let segments = || -> Vec<PathBuf> {
            let entries = std::fs::read_dir(machine.state().join("kept")).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path());
            paths.filter(|path| path.to_str().unwrap().contains("/kept/0")).collect()
        };
        let [segment] = &segments()[..] else { panic!("one segment") };
        let text = std::fs::read(segment).unwrap();
        std::fs::write(machine.log(), "").unwrap();
        assert!(!machine.recover(&store));
        assert!(segments().is_empty());
        if killed {
            std::fs::write(segment, text).unwrap();
        }
        let other = message("other", &machine.key).bytes;
        machine.replace(&other);
        let store = machine.open();
        // The spool has the messages until it is cut back.
        store.note_appended(&sent.each_ref()).unwrap();
        assert!(!machine.recover(&store));
        assert_eq!(machine.bodies(), ["other"]);
        machine.send(&store, "d");
        assert!(!segments().contains(segment));
        machine.replace(&other);
        assert!(machine.recover(&store));
        assert_eq!(machine.bodies(), ["other", "d"]);
    }
}

#[test]
fn a_message_that_is_restored_is_not_appended_again() {
    let machine = Machine::new();
    let store = machine.open();
    machine.send(&store, "a");
    let b = message("b", &machine.key);
    store.append_record(&b).unwrap();
    machine.replace(&machine.lines(0..1));
    // The sender of this message did not learn that it was appended.
    store.append_record(&b).unwrap();
    assert_eq!(machine.bodies(), ["a", "b"]);
}

#[test]
fn two_processes_keep_in_one_order() {
    let machine = Machine::new();
    let (one, two) = (machine.open(), machine.open());
    for n in 0..6 {
        machine.send(if n % 2 == 0 { &one } else { &two }, &format!("text {n}"));
    }
    machine.replace(&machine.lines(0..2));
    machine.send(&one, "text 6");
    let all: Vec<String> = (0..7).map(|n| format!("text {n}")).collect();
    assert_eq!(machine.bodies(), all);
    assert!(!machine.recover(&two));
    assert_eq!(machine.bodies(), all);
}
