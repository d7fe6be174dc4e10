//! Mail that arrives while the tree is mounted.

use std::fs;
use std::time::Duration;

use rustix::fs::Dir;

use crate::common::samp::{self, T0};
use crate::common::{Bed, Mount, soon};

/// Checks that the message is listed within a second, although nothing in the mount was touched in between.
#[track_caller]
fn arrives(m: &Mount, name: &str) {
    soon("the message is listed", || m.ls("inbox").contains(&name.to_owned()));
    m.ok(&format!("test -s 'inbox/{name}'"));
}

fn scenario(bed: &Bed, m: &Mount) {
    assert_eq!(m.ls("inbox"), [""; 0]);
    // It comes in a new log.
    let a = samp::append(&bed.store, "foo", "bar", "t", "first ever", T0);
    arrives(m, &a.name(0));
    // It comes in an old log.
    let b = samp::append(&bed.store, "foo", "bar", "t", "second", T0 + 1);
    arrives(m, &b.name(0));
    // It comes by a rename.
    let c = samp::Rec::new("zed", "bar", "other", "by rename", T0 + 2);
    fs::write(bed.store.join(".tmp"), c.line()).unwrap();
    fs::rename(bed.store.join(".tmp"), samp::log(&bed.store, "zed")).unwrap();
    arrives(m, &c.name(0));
    // All views agree, with sizes and times.
    assert_eq!(m.ls("threads"), ["other", "t"]);
    assert_eq!(m.ls("threads/t"), [a.name(0), b.name(0)]);
    assert_eq!(m.ls("archive/2026-04-24").len(), 3);
    let text = m.cat("transcripts/t.txt");
    assert!(text.contains(&a.file("none")) && text.contains(&b.file("none")));
    assert_eq!(m.ok("stat -c %Y threads/t inbox"), format!("{}\n{}\n", T0 + 1, T0 + 2));
    // An unfinished record becomes visible with its end.
    let d = samp::Rec::new("foo", "bar", "t", "in two writes", T0 + 3);
    let (x, y) = (d.line()[..40].to_owned(), d.line()[40..].to_owned());
    samp::append_raw(&samp::log(&bed.store, "foo"), x);
    std::thread::sleep(Duration::from_millis(200));
    samp::append_raw(&samp::log(&bed.store, "foo"), y);
    arrives(m, &d.name(0));
}

/// S76: mail arrives by inotify.
#[test]
fn s76_inotify() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    scenario(&bed, &m);
}

/// S76: mail arrives by polling.
#[test]
fn s76_polling() {
    let bed = Bed::new();
    bed.config("watch = \"poll\"\n");
    let m = bed.mount("bar");
    scenario(&bed, &m);
}

/// S76: a name that was asked for before it existed is found once it exists.
#[test]
fn s76_negative_names() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let r = samp::Rec::new("foo", "bar", "t", "awaited", T0);
    for file in [r.archived(0), format!("threads/t/{}", r.name(0)), format!("inbox/{}", r.name(0))]
    {
        assert!(!m.sh(&format!("cat '{file}'")).ok());
    }
    samp::append_raw(&samp::log(&bed.store, "foo"), r.line());
    for file in [r.archived(0), format!("threads/t/{}", r.name(0)), format!("inbox/{}", r.name(0))]
    {
        soon("the name is found", || m.sh(&format!("cat '{file}'")).ok());
    }
}

/// S76: the store folder may appear, or be replaced, while mounted.
#[test]
fn s76_store_appears() {
    let bed = Bed::new();
    fs::remove_dir(&bed.store).unwrap();
    let m = bed.mount("bar");
    let _ = fs::create_dir(&bed.store);
    let r = samp::append(&bed.store, "foo", "bar", "t", "first", T0);
    soon("it is listed", || m.ls("inbox") == [r.name(0)]);
}

/// S76: a hundred lines in one write and a hundred writes of one line arrive.
#[test]
fn s76_bursts() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let lines: String = (0..100)
        .map(|i| samp::Rec::new("foo", "bar", "t", &format!("a{i}"), T0 + i).line())
        .collect();
    samp::append_raw(&samp::log(&bed.store, "foo"), lines);
    for i in 100..200 {
        samp::append(&bed.store, "foo", "bar", "t", &format!("a{i}"), T0 + i);
    }
    soon("all are listed", || m.ls("inbox").len() == 200);
    assert_eq!(m.ls("threads/t").len(), 200);
}

fn open(m: &Mount, folder: &str) -> Dir {
    Dir::new(fs::File::open(m.path(folder)).unwrap()).unwrap()
}

/// Returns the sorted names in an open folder, from the beginning on.
fn names_from_start(dir: &mut Dir) -> Vec<String> {
    dir.rewind();
    let names = dir.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
    let mut names: Vec<String> = names.filter(|name| name != "." && name != "..").collect();
    names.sort();
    names
}

/// S1345: a program that lists a folder again through one descriptor sees what came and what left meanwhile.
#[test]
fn s1345_back_to_the_beginning() {
    let bed = Bed::new();
    let a = samp::append(&bed.store, "foo", "bar", "t", "first", T0);
    let m = bed.mount("bar");
    let folders = ["inbox".to_owned(), "threads/t".to_owned(), format!("archive/{}", a.day())];
    let mut open_dirs: Vec<Dir> = folders.iter().map(|folder| open(&m, folder)).collect();
    for dir in &mut open_dirs {
        assert_eq!(names_from_start(dir), [a.name(0)]);
    }
    let b = samp::append(&bed.store, "foo", "bar", "t", "second", T0 + 1);
    for (dir, folder) in open_dirs.iter_mut().zip(&folders) {
        let both = [a.name(0), b.name(0)];
        soon("it is listed again", || names_from_start(dir) == both);
        assert_eq!(m.ls(folder), both);
    }
    m.ok(&format!("rm inbox/{}", a.name(0)));
    soon("it is gone", || names_from_start(&mut open_dirs[0]) == [b.name(0)]);
    let mut drafts = open(&m, "outbox");
    assert_eq!(names_from_start(&mut drafts), [""; 0]);
    m.ok("echo draft > outbox/.draft");
    soon("the draft is listed", || names_from_start(&mut drafts) == [".draft"]);
}

/// S1345: a folder that was opened before mail came leaves no old listing to those who open it later.
#[test]
fn s1345_an_old_descriptor_spoils_no_listing() {
    let bed = Bed::new();
    let a = samp::append(&bed.store, "foo", "bar", "t", "first", T0);
    let m = bed.mount("bar");
    let folders = ["threads/t".to_owned(), format!("archive/{}", a.day())];
    // One is read again, and the other for the first time.
    let mut old: Vec<(Dir, Dir)> = folders.iter().map(|f| (open(&m, f), open(&m, f))).collect();
    for (read, _) in &mut old {
        assert_eq!(names_from_start(read), [a.name(0)]);
    }
    let b = samp::append(&bed.store, "foo", "bar", "t", "second", T0 + 1);
    arrives(&m, &b.name(0));
    let both = [a.name(0), b.name(0)];
    for (folder, (read, unread)) in folders.iter().zip(&mut old) {
        // After this open, the kernel may use the next copy of the listing for all later ones.
        let _new = open(&m, folder);
        assert_eq!(names_from_start(unread), both);
        assert_eq!(names_from_start(read), both);
        assert_eq!(m.ls(folder), both);
    }
}
