//! Random histories on a real mount, compared with a model after every step.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::common::samp::{self, Rec, T0};
use crate::common::{Bed, Mount, run, soon};

const WRITERS: [&str; 3] = ["foo", "zed", "foo-bar"];

/// One event of a history. Its numbers choose among the things that exist, modulo their count.
#[derive(Clone, Debug)]
enum Op {
    /// Another program appends a message: sender, to me or not, thread, second, text.
    Append(usize, bool, u8, i64, u8),
    /// Another program appends a record that its log already has.
    Repeat(usize),
    /// `cat` of an unread message.
    Read(usize),
    /// `rm` of an unread message.
    Remove(usize),
    /// `mv` of a message back to inbox/.
    Unread(usize),
    /// A walk that must change nothing.
    Walk,
    /// A message of mine.
    Send(u8),
    /// Another program compacts a log.
    Compact(usize),
    /// A proper remount.
    Remount,
    /// `kill -9` and a remount.
    Kill,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..3usize, any::<bool>(), 0..3u8, 0..4i64, 0..20u8)
            .prop_map(|(w, me, t, s, b)| Op::Append(w, me, t, s, b)),
        1 => any::<usize>().prop_map(Op::Repeat),
        4 => any::<usize>().prop_map(Op::Read),
        2 => any::<usize>().prop_map(Op::Remove),
        2 => any::<usize>().prop_map(Op::Unread),
        1 => Just(Op::Walk),
        2 => any::<u8>().prop_map(Op::Send),
        1 => (0..3usize).prop_map(Op::Compact),
        1 => Just(Op::Remount),
        1 => Just(Op::Kill),
    ]
}

/// The store and the marks as they should be.
#[derive(Default)]
struct Model {
    /// The distinct messages of each sender in log order.
    logs: BTreeMap<String, Vec<Rec>>,
    /// Names of messages that are read.
    read: BTreeSet<String>,
    /// The number of messages that I sent.
    sent: usize,
}

impl Model {
    /// Returns the messages to me as (name, record), sorted by name.
    fn mine(&self) -> BTreeMap<String, Rec> {
        let mut all = BTreeMap::new();
        for log in self.logs.values() {
            for (i, r) in log.iter().enumerate() {
                let earlier = log[..i].iter().filter(|e| e.ts == r.ts).count();
                if r.to == "bar" {
                    all.insert(r.name(earlier), r.clone());
                }
            }
        }
        all
    }

    fn unread(&self) -> Vec<String> {
        self.mine().into_keys().filter(|n| !self.read.contains(n)).collect()
    }

    /// Adds a record to its log. A record that is there already changes nothing.
    fn add(&mut self, r: &Rec) {
        let log = self.logs.entry(r.from.clone()).or_default();
        if !log.iter().any(|e| e.id == r.id) {
            log.push(r.clone());
        }
    }
}

fn pick<T: Clone>(all: &[T], n: usize) -> Option<T> {
    (!all.is_empty()).then(|| all[n % all.len()].clone())
}

fn step(bed: &Bed, mount: Mount, model: &mut Model, op: &Op) -> Mount {
    match op {
        Op::Append(writer, to_me, thread, second, text) => {
            let (from, to) = (WRITERS[*writer], if *to_me { "bar" } else { "carol" });
            let body = format!("text {text}");
            let r = samp::append(&bed.store, from, to, &format!("t{thread}"), &body, T0 + second);
            model.add(&r);
        }
        Op::Repeat(n) => {
            let all: Vec<Rec> = model.logs.values().flatten().cloned().collect();
            if let Some(r) = pick(&all, *n) {
                samp::append_raw(&samp::log(&bed.store, &r.from), r.line());
            }
        }
        Op::Read(n) => {
            if let Some(name) = pick(&model.unread(), *n) {
                let text = mount.cat(&format!("inbox/{name}"));
                assert_eq!(text, model.mine()[&name].file("none"));
                model.read.insert(name);
            }
        }
        Op::Remove(n) => {
            if let Some(name) = pick(&model.unread(), *n) {
                mount.ok(&format!("rm -f 'inbox/{name}'"));
                model.read.insert(name);
            }
        }
        Op::Unread(n) => {
            let read: Vec<String> = model.read.iter().cloned().collect();
            if let Some(name) = pick(&read, *n) {
                let r = &model.mine()[&name];
                mount.ok(&format!("mv 'archive/{}/{name}' inbox/", r.day()));
                model.read.remove(&name);
            }
        }
        Op::Walk => {
            mount.ok("grep -r text . > /dev/null; tar c . > /dev/null");
        }
        Op::Send(n) => {
            mount.ok(&format!("echo 'mine {n}' > outbox/foo"));
            model.sent += 1;
        }
        Op::Compact(writer) => {
            if model.logs.contains_key(WRITERS[*writer]) {
                let mut c = bed.command("python3");
                c.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/samp_reference.py"));
                c.arg(&bed.store).args(["compact", WRITERS[*writer]]);
                assert!(run(c, None).ok());
            }
        }
        Op::Remount => {
            mount.umount();
            return bed.mount("bar");
        }
        Op::Kill => {
            mount.kill9();
            return bed.mount("bar");
        }
    }
    mount
}

#[track_caller]
fn agrees(bed: &Bed, mount: &Mount, model: &Model, after: &Op) {
    let inbox = model.unread();
    soon(&format!("inbox/ lists {inbox:#?} after {after:?}"), || mount.ls("inbox") == inbox);
    let archive: Vec<String> = model.mine().into_keys().collect();
    let listed = mount.ok("ls archive/* 2>/dev/null | grep txt || :");
    assert_eq!(listed.lines().collect::<Vec<_>>(), archive, "archive/ after {after:?}");
    assert_eq!(samp::read_log(&bed.store, "bar").len(), model.sent, "sent after {after:?}");
    assert_eq!(mount.ls("outbox"), [""; 0]);
}

/// S4, S5, S25, S33, S34, S35, S40, S55, S77: the mount equals the model after random histories of other senders,
/// reads, removals, sends, compactions, remounts and kills.
#[test]
fn s35_random_histories() {
    let config =
        Config { cases: 8, max_shrink_iters: 30, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let result = runner.run(&prop::collection::vec(op(), 5..25), |ops| {
        let bed = Bed::new();
        let mut model = Model::default();
        let mut mount = bed.mount("bar");
        for op in &ops {
            mount = step(&bed, mount, &mut model, op);
            agrees(&bed, &mount, &model, op);
        }
        // In the end everything is the same without any cache.
        mount.umount();
        let _ = std::fs::remove_dir_all(bed.path("cache"));
        let mount = bed.mount("bar");
        agrees(&bed, &mount, &model, &Op::Remount);
        Ok(())
    });
    if let Err(e) = result {
        panic!("{e}");
    }
}
