//! Marks, and the one word of a file that tells them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::agentazall::with;
use crate::common::agz::{self, DAY, Letter};
use crate::common::samp::key;
use crate::common::wait_for;

/// S107: reading changes `new` to `read` in the header of the file and no other byte, whatever the file looks
/// like.
#[test]
fn s107_only_the_status() {
    /// The name, the text, and the part of it that changes, with its new text.
    type Row<'a> = (&'a str, String, Option<(&'a str, &'a str)>);
    let l = |n| Letter::new("alice@localhost", "s", "x", n);
    let signed = l(2).body("Status: new\nis what the file says").signed(&key(2));
    let table: Vec<Row<'_>> = vec![
        ("plain", l(1).text(), Some(("Status: new", "Status: read"))),
        ("body", signed.text(), Some(("\nStatus: new\n\n---", "\nStatus: read\n\n---"))),
        (
            "subject",
            l(3).set("Subject", "Status: new").text(),
            Some(("\nStatus: new\n", "\nStatus: read\n")),
        ),
        ("case", l(4).set("Status", "New").text(), Some(("Status: New", "Status: read"))),
        ("crlf", l(5).text().replace('\n', "\r\n"), Some(("Status: new", "Status: read"))),
        ("latin1", l(6).body("caf\u{e9}").text(), Some(("Status: new", "Status: read"))),
        ("double", l(7).text().replacen("Status: new", "Status: new\nStatus: new", 1), None),
        ("missing", l(8).unset("Status").text(), None),
        ("legacy", agz::legacy(l(9), &key(2)).text(), None),
    ];
    let (bed, tree, m) = with(|_, tree| {
        for (name, text, _) in &table {
            let file = tree.put(DAY, "inbox", name, text);
            fs::set_permissions(file, fs::Permissions::from_mode(0o640)).unwrap();
        }
    });
    let shown = m.ls("inbox");
    assert_eq!(shown.len(), table.len(), "{shown:#?} {:#?}", crate::common::shown::rejected(&m));
    m.ok("cat inbox/* > /dev/null");
    m.inbox_becomes(&[]);
    for (name, text, change) in &table {
        let file = tree.file(DAY, "inbox", &format!("{name}.txt"));
        let wanted = match change {
            Some((old, new)) => {
                let at = if *name == "subject" { text.rfind(old) } else { text.find(old) };
                let at = at.unwrap();
                format!("{}{new}{}", &text[..at], &text[at + old.len()..])
            }
            None if *name == "double" => text.replacen("Status: new\n\n", "Status: read\n\n", 1),
            None => text.clone(),
        };
        if wanted != *text {
            agz::says(&file, "Status: read");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), wanted, "{name}");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640, "{name}");
    }
    let left = agz::names(tree.file(DAY, "inbox", "").as_path());
    assert_eq!(left.len(), table.len(), "no temporary file is left: {left:?}");
    m.umount();
    bed.mount("bar").inbox_stays(&[]);
}

/// S107: a message that the store calls read is only in archive/. A message that another program marks leaves
/// inbox/.
#[test]
fn s107_told_by_the_store() {
    let read = Letter::new("alice@localhost", "s", "read", 1).set("Status", "read");
    let new = Letter::new("alice@localhost", "s", "new", 2);
    let odd = Letter::new("alice@localhost", "s", "odd", 3).set("Status", "archived?");
    let (_bed, tree, m) = with(|_, tree| {
        for l in [&read, &new, &odd] {
            tree.receive(l);
        }
    });
    m.inbox_stays(&[&new.name(2), &odd.name(3)]);
    // If there are several status lines, the last one counts.
    let text = Letter::new("alice@localhost", "s", "x", 4).text();
    tree.put(DAY, "inbox", "last-read", text.replace("Status: new", "Status: new\nStatus: read"));
    let again = Letter::new("alice@localhost", "s", "x", 5);
    let text = again.text().replace("Status: new", "Status: read\nStatus: new");
    tree.put(DAY, "inbox", "last-new", text);
    m.inbox_stays(&[&new.name(2), &odd.name(3), &again.name(5)]);
    m.ok(&format!("rm 'inbox/{}'", again.name(5)));
    assert_eq!(m.ls("archive/2026-04-24").len(), 5);
    tree.receive(&new.clone().set("Status", "read"));
    m.inbox_becomes(&[&odd.name(3)]);
}

/// S108: my own mark beats the file's word, and so does its removal. A redelivery as `new` does not make the
/// message unread. `mv` back to inbox/ lasts although the file still says `read`.
#[test]
fn s108_own_marks_win() {
    let a = Letter::new("alice@localhost", "s", "a", 1);
    let b = Letter::new("alice@localhost", "s", "b", 2).set("Status", "read");
    let (bed, tree, m) = with(|_, tree| {
        tree.receive(&a);
        tree.receive(&b);
    });
    m.cat(&format!("inbox/{}", a.name(1)));
    m.inbox_becomes(&[]);
    agz::says(&tree.file(DAY, "inbox", &format!("{}.txt", a.id())), "Status: read");
    // The reference program delivers again over the file, which makes it new.
    let file = tree.receive(&a);
    m.inbox_stays(&[]);
    agz::says(&file, "Status: read");
    m.ok(&format!("mv 'archive/2026-04-24/{}' inbox/", b.name(2)));
    m.inbox_becomes(&[&b.name(2)]);
    let file = tree.file(DAY, "inbox", &format!("{}.txt", b.id()));
    assert_eq!(fs::read_to_string(&file).unwrap(), b.text(), "never from read to new");
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    let m = bed.mount("bar");
    m.inbox_stays(&[&b.name(2)]);
    m.ok(&format!("rm 'inbox/{}'", b.name(2)));
    m.inbox_becomes(&[]);
    assert_eq!(fs::read_to_string(&file).unwrap(), b.text(), "removing deletes nothing");
}

/// A guard that makes a folder read-only as long as it lives.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn new(folder: &Path) -> Self {
        let this = Self(folder.to_owned());
        let mount = |args: &[&str]| Command::new("mount").args(args).arg(folder).status().unwrap();
        assert!(mount(&["--bind", &folder.to_string_lossy()]).success());
        assert!(mount(&["-o", "remount,ro,bind"]).success());
        this
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// S213: the store was read-only until msgfs ended or was killed, so msgfs could not tell it of marks. It tells
/// the store at the next mount, without any arrival.
#[test]
fn s213_what_was_not_told_is_told_at_the_next_mount() {
    for killed in [false, true] {
        let l = Letter::new("alice@localhost", "s", "x", 1);
        let (bed, tree, m) = with(|_, tree| {
            tree.receive(&l);
        });
        let read_only = ReadOnly::new(&tree.file(DAY, "inbox", ""));
        m.cat(&format!("inbox/{}", l.name(1)));
        m.inbox_becomes(&[]);
        if killed {
            m.kill9();
        } else {
            m.umount();
        }
        drop(read_only);
        let file = tree.file(DAY, "inbox", &format!("{}.txt", l.id()));
        assert_eq!(fs::read_to_string(&file).unwrap(), l.text());
        let m = bed.mount("bar");
        // This limit is shorter than the time after which it is told for another reason.
        wait_for(Duration::from_secs(40), "the mark is told", || {
            fs::read_to_string(&file).is_ok_and(|text| text.contains("Status: read"))
        });
        m.inbox_stays(&[]);
    }
}

/// S107, S30: looking at a mailbox changes none of its files.
#[test]
fn s107_looking_changes_nothing() {
    let l = Letter::new("alice@localhost", "s", "x", 1).signed(&key(3));
    let (bed, tree, m) = with(|_, tree| {
        tree.receive(&l);
        tree.put(DAY, "sent", "mine", Letter::new("bar@localhost", "s", "mine", 2).text());
    });
    let state = || {
        bed.sh(&format!("find {} -printf '%P %T@ %i %m %s\\n' | sort", tree.root.display())).stdout
    };
    let before = state();
    m.ok("grep -r nothing-like-that . ; tar cf - . | wc -c; cat archive/*/* threads/*/* sent/*/* > /dev/null");
    m.inbox_stays(&[&l.name(1)]);
    assert_eq!(state(), before);
}

/// S572: every copy says that the message was read, whenever the copy comes: before the reading, in the same
/// moment, after it, while nothing is mounted, and without the cache.
#[test]
fn s572_every_copy() {
    let letter = Letter::new("alice@localhost", "s", "x", 1).signed(&key(2));
    let (bed, tree, m) = with(|_, tree| {
        tree.receive(&letter);
    });
    let put = |day: &str, name: &str| tree.put(day, "inbox", name, letter.text());
    let mut copies = vec![put("2026-04-26", "early")];
    m.inbox_becomes(&[&letter.name(1)]);
    // The store has hardly seen this copy when the message is read.
    copies.push(put("2026-04-27", "same-moment"));
    m.cat(&format!("inbox/{}", letter.name(1)));
    m.inbox_becomes(&[]);
    copies.push(put("2026-04-28", "late"));
    for copy in &copies {
        agz::says(copy, "Status: read");
    }
    agz::says(&put("2026-04-29", "later"), "Status: read");
    m.umount();
    let unseen = put("2026-04-30", "unmounted");
    let m = bed.mount("bar");
    agz::says(&unseen, "Status: read");
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    let unseen = put("2026-05-01", "without-cache");
    let m = bed.mount("bar");
    agz::says(&unseen, "Status: read");
    m.inbox_stays(&[]);
    // A copy does not make it unread either.
    assert_eq!(m.ok("ls archive/*/*").lines().count(), 1);
}

/// S107, S213: a command without a mount marks a letter that came a moment ago, before it ends.
#[test]
fn s213_a_command_marks_a_fresh_letter() {
    let (bed, tree, m) = with(|_, _| {});
    m.umount();
    for (n, words) in [(1, vec!["inbox"]), (2, vec!["mark", "--all"]), (3, vec!["rm"])] {
        let letter = Letter::new("alice@localhost", "s", "x", n);
        let file = tree.put(DAY, "inbox", &n.to_string(), letter.text());
        let mut args = vec!["--me", "bar"];
        args.extend(words.iter());
        let listed = bed.msgfs_out(&["--me", "bar", "ls", "inbox"]).stdout;
        let name = format!("inbox/{}", listed.trim());
        if words == ["rm"] {
            args.push(&name);
        }
        let out = bed.msgfs_out(&args);
        assert!(out.ok(), "{out:?}");
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains("\nStatus: read\n"), "{words:?}: {text}");
    }
}
