//! Random histories of a SAMP folder against a reference model, without a mount.
//!
//! Everything below the kernel is real: store, index, outbox, tree, and the files they keep. The model ([`state`]) is
//! so small that reading it shows that it is right. After every step the whole tree must match the model, under the
//! same names and inode numbers as before. `PROPTEST_CASES` sets the number of histories.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

mod bed;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

use msgfs::view::{self, Ino};
use proptest::prelude::*;

use bed::{Bed, Mailbox, read_seen};
use state::{Key, Line, ME, Model, Rec};

const OTHERS: [&str; 3] = ["foo", "foo-bar", "zed"];
const PEOPLE: [&str; 4] = ["foo", "foo-bar", "zed", ME];
/// Fri, 24 Apr 2026 23:59:58 UTC: the histories cross midnight.
const T0: i64 = 1_777_075_198;

/// An event. A number chooses among the possible objects, modulo their count.
#[derive(Clone, Debug)]
enum Op {
    /// Another program appends a record, at a time before or after the others.
    Append {
        writer: usize,
        to: usize,
        thread: u8,
        body: u8,
        skew: i64,
    },
    /// Another program appends a record that its log has already.
    Repeat(usize),
    /// Another program appends a record that carries the id of another and does not hash to it.
    Forge(usize),
    /// Another program appends a line that is no record.
    Garbage(usize),
    Blank(usize),
    /// Another program appends some of four parts of a record; after all four only the newline is missing.
    Tear {
        writer: usize,
        body: u8,
        quarters: usize,
    },
    /// The rest of it arrives.
    Mend(usize),
    /// The torn tail is cut off.
    TruncateTornTail(usize),
    /// A log is rewritten by rename with its messages only, as `compact` does.
    Compact(usize),
    /// A log is replaced by rename with the same bytes, as a sync program does.
    Replace(usize),
    /// A log vanishes.
    Vanish(usize),
    /// The log comes back.
    Return(usize),
    /// I send a message, also to myself.
    Send {
        to: usize,
        body: u8,
    },
    /// I send a message under an idempotency key, which sends it once.
    SendOnce {
        to: usize,
        key: u8,
    },
    /// I answer by the `.reply` file of a message in `archive/`.
    ReplyTo(usize),
    Read(usize),
    Remove(usize),
    MoveBack(usize),
    /// Another reader of the folder shows its new messages and moves `.seen-<me>`.
    ReferenceReads,
    /// The mailbox ends properly or at once, while other programs continue.
    Close,
    Crash,
    /// The mailbox opens again with its cache or without.
    Open {
        cache: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let n = any::<usize>;
    let b = || 0..6u8;
    prop_oneof![
        9 => (n(), n(), 0..3u8, b(), -2..5i64).prop_map(|(writer, to, thread, body, skew)| {
            Op::Append { writer, to, thread, body, skew }
        }),
        1 => n().prop_map(Op::Repeat),
        1 => n().prop_map(Op::Forge),
        1 => n().prop_map(Op::Garbage),
        1 => n().prop_map(Op::Blank),
        2 => (n(), b(), 1..=4usize)
            .prop_map(|(writer, body, quarters)| Op::Tear { writer, body, quarters }),
        1 => n().prop_map(Op::Mend),
        1 => n().prop_map(Op::TruncateTornTail),
        1 => n().prop_map(Op::Compact),
        1 => n().prop_map(Op::Replace),
        1 => n().prop_map(Op::Vanish),
        1 => n().prop_map(Op::Return),
        2 => (n(), b()).prop_map(|(to, body)| Op::Send { to, body }),
        1 => (n(), 0..2u8).prop_map(|(to, key)| Op::SendOnce { to, key }),
        1 => n().prop_map(Op::ReplyTo),
        4 => n().prop_map(Op::Read),
        2 => n().prop_map(Op::Remove),
        2 => n().prop_map(Op::MoveBack),
        2 => Just(Op::ReferenceReads),
        1 => Just(Op::Close),
        1 => Just(Op::Crash),
        3 => any::<bool>().prop_map(|cache| Op::Open { cache }),
    ]
}

fn pick<T: Clone>(all: &[T], n: usize) -> Option<T> {
    (!all.is_empty()).then(|| all[n % all.len()].clone())
}

/// A history under way.
struct History {
    bed: Bed,
    mailbox: Option<Mailbox>,
    model: Model,
    /// The inode number of every path seen so far.
    inos: BTreeMap<String, Ino>,
    /// Recipients and keys of idempotent sends.
    once: BTreeSet<(String, u8)>,
}

impl History {
    fn new() -> Self {
        let bed = Bed::new();
        let mailbox = Some(bed.open());
        let (model, inos, once) = (Model::default(), BTreeMap::new(), BTreeSet::new());
        Self { bed, mailbox, model, inos, once }
    }

    fn run(ops: &[Op]) {
        let mut history = Self::new();
        for op in ops {
            history.step(op);
            history.check(op);
        }
        // In the end the tree is the same without any cache.
        let end = [Op::Close, Op::Open { cache: false }];
        for op in &end {
            history.step(op);
            history.check(op);
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Append { writer, to, thread, body, skew } => {
                let from = OTHERS[writer % 3];
                let (to, thread) = (PEOPLE[to % 4], format!("t{thread}"));
                let rec = Rec::new(from, to, &thread, &format!("text {body}"), T0 + skew);
                self.add(from, rec);
            }
            Op::Repeat(n) => self.with_message(n, |rec| Line::Again(rec.line())),
            Op::Forge(n) => self.with_message(n, |rec| {
                let forged = Rec::new(&rec.from, ME, &rec.thread, "forged", rec.ts + 1);
                Line::Refused(Rec { id: rec.id.clone(), ..forged }.line())
            }),
            Op::Garbage(n) => self.append(OTHERS[n % 3], Line::Refused("{\"id\": 7, oops".into())),
            Op::Blank(n) => self.append(OTHERS[n % 3], Line::Blank),
            Op::Tear { writer, body, quarters } => self.tear(OTHERS[writer % 3], body, quarters),
            Op::Mend(n) => self.mend(OTHERS[n % 3]),
            // This cuts only a tail that was never shown. No document says which digits a message keeps when its
            // neighbour of the same second is cut out of the log.
            Op::TruncateTornTail(n) => self.rewrite(OTHERS[n % 3], false, |log| {
                log.torn = log.torn.take().filter(|(rec, len)| *len == rec.line().len());
            }),
            Op::Compact(n) => self.rewrite(PEOPLE[n % 4], true, |log| {
                log.lines.retain(|l| matches!(l, Line::Message(_)));
            }),
            Op::Replace(n) => self.rewrite(PEOPLE[n % 4], true, |_| {}),
            Op::Vanish(n) => self.vanish(OTHERS[n % 3]),
            Op::Return(n) => self.bring_back(OTHERS[n % 3]),
            Op::ReferenceReads if self.mailbox.is_some() => self.reference_reads(),
            Op::Close | Op::Crash => {
                if let Some(mailbox) = self.mailbox.take() {
                    // In one process a crash can only mean that no mark is synced and nothing is saved.
                    if matches!(op, Op::Close) { mailbox.close() } else { drop(mailbox) }
                }
            }
            Op::Open { cache } => {
                if self.mailbox.is_none() {
                    if !cache {
                        self.bed.drop_cache();
                    }
                    self.mailbox = Some(self.bed.open());
                }
            }
            _ => self.act(op),
        }
        if let Some(mailbox) = &self.mailbox {
            mailbox.index.refresh_store(0, true).unwrap();
        }
    }

    /// Does an act of me through the tree; does nothing while the mailbox is closed.
    fn act(&mut self, op: &Op) {
        let Some(mailbox) = self.mailbox.take() else { return };
        let unread = self.model.to_me(false);
        match *op {
            Op::Read(n) => {
                if let Some((name, rec)) = pick(&unread, n) {
                    mailbox.cat(&format!("inbox/{name}"));
                    self.model.read.insert(rec.key());
                }
            }
            Op::Remove(n) => {
                if let Some((name, rec)) = pick(&unread, n) {
                    let (inbox, name) = mailbox.parent(&format!("inbox/{name}"));
                    mailbox.tree.writer().unlink(&inbox, &name).unwrap();
                    self.model.read.insert(rec.key());
                }
            }
            Op::MoveBack(n) => {
                if let Some((name, rec)) = pick(&self.model.to_me(true), n) {
                    let (day, name) = mailbox.parent(&format!("archive/{}/{name}", rec.day()));
                    let inbox = mailbox.tree.resolve_path("inbox").unwrap();
                    mailbox.tree.writer().rename(&day, &name, &inbox, &name, true).unwrap();
                    self.model.read.remove(&rec.key());
                }
            }
            Op::Send { to, body } => {
                let (to, text) = (PEOPLE[to % 4], format!("mine {body}"));
                view::write_path(&mailbox.tree, &format!("outbox/{to}"), text.as_bytes()).unwrap();
                self.sent(&[(to, &text, None)]);
            }
            Op::SendOnce { to, key } => {
                let (to, text) = (PEOPLE[to % 4], format!("once {key}"));
                let draft = format!("To: {to}\nIdempotency-Key: k{key}\n\n{text}\n");
                view::write_path(&mailbox.tree, "outbox/draft", draft.as_bytes()).unwrap();
                let first = self.once.insert((to.to_owned(), key));
                let expected = [(to, text.as_str(), None)];
                self.sent(expected.get(..usize::from(first)).unwrap_or_default());
            }
            Op::ReplyTo(n) => {
                let mut mine = self.model.to_me(false);
                mine.extend(self.model.to_me(true));
                if let Some((name, rec)) = pick(&mine, n) {
                    let stem = name.trim_end_matches(".txt");
                    let path = format!("archive/{}/{stem}.reply", rec.day());
                    view::write_path(&mailbox.tree, &path, b"agreed\n").unwrap();
                    self.sent(&[(&rec.from.clone(), "agreed", Some(&rec))]);
                }
            }
            _ => {}
        }
        self.mailbox = Some(mailbox);
    }

    /// Appends a record to a log; a record that the log has already changes nothing.
    fn add(&mut self, writer: &str, rec: Rec) {
        self.bring_back(writer);
        self.mend(writer);
        let known = self.log(writer).has(&rec.id);
        let line = if known { Line::Again(rec.line()) } else { Line::Message(rec) };
        self.append(writer, line);
    }

    fn log(&mut self, writer: &str) -> &mut state::Log {
        self.model.logs.entry(writer.to_owned()).or_default()
    }

    fn append(&mut self, writer: &str, line: Line) {
        self.bring_back(writer);
        self.mend(writer);
        self.grow(writer, |log| log.lines.push(line));
    }

    /// Changes a log in the model, and appends the additional bytes to the file.
    fn grow(&mut self, writer: &str, change: impl FnOnce(&mut state::Log)) {
        let path = self.bed.log(writer);
        let log = self.log(writer);
        let before = log.text().len();
        change(log);
        let text = log.text();
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
        file.write_all(&text.as_bytes()[before..]).unwrap();
        self.age(writer);
    }

    /// Makes the file older: a torn line is reported a second after its writer stopped.
    fn age(&mut self, writer: &str) {
        let path = self.bed.log(writer);
        if self.log(writer).torn.is_some() && path.exists() {
            let then = std::time::SystemTime::now() - std::time::Duration::from_secs(2);
            let file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
            file.set_modified(then).unwrap();
        }
    }

    /// Changes a log in the model, and the file by rename or by truncation.
    fn rewrite(&mut self, writer: &str, rename: bool, change: impl FnOnce(&mut state::Log)) {
        let path = self.bed.log(writer);
        if !path.exists() {
            return;
        }
        let log = self.log(writer);
        change(log);
        let text = log.text();
        if rename {
            let temp = path.with_extension("tmp");
            std::fs::write(&temp, text).unwrap();
            std::fs::rename(temp, path).unwrap();
        } else {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(text.len() as u64).unwrap();
        }
        self.age(writer);
    }

    fn with_message(&mut self, n: usize, line: impl FnOnce(&Rec) -> Line) {
        let all: Vec<Rec> = self.model.all().into_iter().map(|(_, r)| r.clone()).collect();
        let others: Vec<Rec> = all.into_iter().filter(|r| r.from != ME).collect();
        if let Some(rec) = pick(&others, n) {
            self.append(&rec.from, line(&rec));
        }
    }

    fn tear(&mut self, writer: &str, body: u8, quarters: usize) {
        let rec = Rec::new(writer, ME, "t0", &format!("torn {body}"), T0 + 1);
        self.bring_back(writer);
        self.mend(writer);
        if !self.log(writer).has(&rec.id) {
            let len = rec.line().len() * quarters / 4;
            self.grow(writer, |log| log.torn = Some((rec, len)));
        }
    }

    fn mend(&mut self, writer: &str) {
        if self.log(writer).torn.is_some() && !self.log(writer).gone {
            self.grow(writer, |log| {
                let (rec, _) = log.torn.take().unwrap();
                log.lines.push(Line::Message(rec));
            });
        }
    }

    fn vanish(&mut self, writer: &str) {
        if std::fs::remove_file(self.bed.log(writer)).is_ok() {
            self.log(writer).gone = true;
        }
    }

    fn bring_back(&mut self, writer: &str) {
        let path = self.bed.log(writer);
        let log = self.log(writer);
        if std::mem::take(&mut log.gone) {
            std::fs::write(path, log.text()).unwrap();
            self.age(writer);
        }
    }

    /// Adds the records that msgfs appended to the model: exactly these, in this order.
    fn sent(&mut self, expected: &[(&str, &str, Option<&Rec>)]) {
        let text = std::fs::read_to_string(self.bed.log(ME)).unwrap_or_default();
        let before = self.log(ME).text();
        let added = text.strip_prefix(before.as_str()).expect("my log only grows");
        let recs: Vec<Rec> = added.lines().map(Rec::parse).collect();
        assert_eq!(recs.len(), expected.len(), "records appended: {added:?}");
        for (rec, (to, body, original)) in recs.into_iter().zip(expected) {
            assert_eq!((rec.from.as_str(), rec.to.as_str(), rec.body.as_str()), (ME, *to, *body));
            if let Some(original) = original {
                assert_eq!(rec.thread, original.thread);
            }
            assert_eq!(rec.re, original.map(|o| o.id.clone()));
            assert!(!self.log(ME).has(&rec.id), "an id is used twice");
            self.log(ME).lines.push(Line::Message(rec));
        }
    }

    /// Acts as the reader of the reference (docs/formats/samp.md, section 7): shows the messages at or after the
    /// watermark that it does not name, then moves the watermark, never beyond the clock.
    fn reference_reads(&mut self) {
        let (ts, ids) = read_seen(&self.bed.seen());
        let named = |r: &Rec| format!("{}:{}", r.from, r.id);
        let to_me: Vec<Rec> =
            self.model.all().into_iter().map(|(_, r)| r.clone()).filter(|r| r.to == ME).collect();
        let known = |r: &Rec| r.ts < ts || ids.contains(&named(r));
        let shown: Vec<&Rec> = to_me.iter().filter(|r| !known(r)).collect();
        let Some(newest) = shown.iter().map(|r| r.ts).max() else { return };
        let new = newest.min(jiff::Timestamp::now().as_second()).max(ts);
        let kept = to_me.iter().filter(|r| r.ts >= new && (known(r) || shown.contains(r)));
        let kept: Vec<String> = kept.map(named).collect();
        let text = serde_json::json!({"ts": new, "ids": kept}).to_string();
        let temp = self.bed.seen().with_extension("tmp");
        std::fs::write(&temp, text).unwrap();
        std::fs::rename(temp, self.bed.seen()).unwrap();
        self.model.read.extend(shown.into_iter().map(Rec::key));
    }

    fn check(&mut self, after: &Op) {
        let Some(mailbox) = &self.mailbox else { return };
        let expected = self.model.paths();
        let walked = mailbox.walk();
        let (real, wanted): (Vec<_>, Vec<_>) = (walked.keys().collect(), expected.keys().collect());
        assert_eq!(real, wanted, "the tree after {after:?}");
        for (path, (ino, time)) in &walked {
            let known = *self.inos.entry(path.clone()).or_insert(*ino);
            assert_eq!(*ino, known, "inode number of {path} after {after:?}");
            assert_eq!(time.secs(), expected[path].ts, "time of {path}");
        }
        let distinct: BTreeSet<Ino> = self.inos.values().copied().collect();
        assert_eq!(distinct.len(), self.inos.len(), "an inode number stands for two paths");
        assert_eq!(
            mailbox.index.read().marks.unread_count(),
            self.model.to_me(false).len(),
            "{after:?}"
        );
        assert_eq!(mailbox.refused(), self.model.refused(), "rejected/ after {after:?}");
        for (path, rec) in expected.iter().filter(|(path, _)| path.starts_with("threads/")) {
            let signature = match rec.from.as_str() {
                ME => format!("valid {}", mailbox.fingerprint),
                _ => "none".into(),
            };
            assert_eq!(mailbox.cat(path), rec.file(&signature), "{path} after {after:?}");
        }
        self.check_watermark(after);
    }

    /// Checks that `.seen-<me>` moves only over the contiguous prefix of messages that are read, and never moves back.
    fn check_watermark(&self, after: &Op) {
        let Some(mailbox) = &self.mailbox else { return };
        let (before, known) = read_seen(&self.bed.seen());
        mailbox.index.sync_marks_to_stores();
        let (now, ids) = read_seen(&self.bed.seen());
        assert!(now >= before, "the watermark moved back after {after:?}");
        for (name, rec) in self.model.to_me(false) {
            let key: Key = rec.key();
            let spelled = format!("{}:{}", key.0, key.1);
            let was = rec.ts < before || known.contains(&spelled);
            let is = rec.ts < now || ids.contains(&spelled);
            assert!(was || !is, "the watermark covers {name}, which is unread, after {after:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(64),
        failure_persistence: None,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_history_is_what_the_model_says(ops in prop::collection::vec(op(), 1..40)) {
        History::run(&ops);
    }
}

/// A message that arrives late after a crash is unread. The position of the other reader was noted in memory only, so
/// that after a crash the message looked as if that reader had shown it.
#[test]
fn what_arrives_late_after_a_crash_is_unread() {
    let append = |skew| Op::Append { writer: 0, to: 3, thread: 0, body: 0, skew };
    History::run(&[append(0), Op::ReferenceReads, Op::Crash, append(-1)]);
}

/// A refused draft gives its text to everyone who opens its name again. It does not give its recipient to an answer in
/// another folder that has the same name, and an answer that is sent does not delete it.
#[test]
fn an_answer_goes_to_its_thread_whatever_drafts_are_kept() {
    let mut history = History::new();
    let thread = "t0".to_owned();
    history.add("foo", Rec::new("foo", ME, &thread, "hello", T0));
    let mailbox = history.mailbox.take().unwrap();
    mailbox.index.refresh_store(0, true).unwrap();
    let refused = view::write_path(&mailbox.tree, "outbox/zed", b"Priority: \xff\n\nto zed\n");
    assert!(refused.is_err(), "not UTF-8");
    view::write_path(&mailbox.tree, "threads/t0/zed", b"to foo\n").unwrap();
    let original = history.model.all()[0].1.clone();
    history.sent(&[("foo", "to foo", Some(&original))]);
    mailbox.tree.resolve_path("outbox/zed").expect("the refused draft is still there");
}

/// A length that no message can have is refused before memory is allocated for it.
#[test]
fn the_length_of_an_attachment_is_limited() {
    use msgfs::view::OpenRequest;
    let bed = Bed::new();
    let mailbox = bed.open();
    let folder =
        mailbox.tree.writer().mkdir(&mailbox.tree.resolve_path("outbox").unwrap(), "zed").unwrap();
    let access = OpenRequest { write: true, ..OpenRequest::default() };
    let (node, file) = mailbox.tree.writer().create(&folder, "plan", &access).unwrap();
    let error = mailbox.tree.writer().set_len(&node, Some(&file), 1 << 62).unwrap_err();
    assert_eq!(error.errno(), 27, "EFBIG: {error}");
    mailbox.tree.writer().set_len(&node, Some(&file), 10).unwrap();
}

/// Readers, writers, marks, scans and saves run at once, and all of them end.
#[test]
fn nobody_waits_for_ever() {
    let bed = Bed::new();
    let mailbox = bed.open();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
    let (done, finished) = std::sync::mpsc::channel();
    let jobs: Vec<Box<dyn Fn(usize) + Send + Sync>> = vec![
        Box::new(|n| {
            let rec = Rec::new("foo", ME, "t0", &format!("text {n}"), T0 + n as i64 % 50);
            let log = bed.log("foo");
            let log = std::fs::OpenOptions::new().create(true).append(true).open(log);
            log.unwrap().write_all(format!("{}\n", rec.line()).as_bytes()).unwrap();
            mailbox.index.refresh_store(0, true).unwrap();
        }),
        Box::new(|n| {
            view::write_path(&mailbox.tree, "outbox/bar", format!("mine {n}").as_bytes()).unwrap();
        }),
        Box::new(|_| assert!(mailbox.walk_loosely() > 0)),
        Box::new(|_| {
            mailbox.index.sync_marks_to_stores();
            mailbox.index.save_snapshot();
            mailbox.index.rejudge_changed();
        }),
        Box::new(|n| {
            let unread: Vec<_> = mailbox.index.read().messages.lists().unread().take(3).collect();
            for ix in unread {
                mailbox.index.mark_message(ix, n % 2 == 0, true).unwrap();
            }
        }),
    ];
    std::thread::scope(|scope| {
        for job in &jobs {
            let done = done.clone();
            scope.spawn(move || {
                let mut n = 0;
                while std::time::Instant::now() < until {
                    job(n);
                    n += 1;
                }
                done.send(()).unwrap();
            });
        }
        for _ in &jobs {
            if finished.recv_timeout(std::time::Duration::from_secs(30)).is_err() {
                eprintln!("a thread is stuck");
                std::process::abort();
            }
        }
    });
    let unread = mailbox.index.read().messages.lists().unread().count();
    assert_eq!(mailbox.index.read().marks.unread_count(), unread, "the count of unread messages");
}
