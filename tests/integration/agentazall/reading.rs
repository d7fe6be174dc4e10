//! The place of the mailbox, and the meaning of its files.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use crate::agentazall::with;
use crate::common::agz::{AHEAD, DAY, Letter, ME, NOON, Tree, local, put};
use crate::common::shown::{self, Shown, message, path};
use crate::common::{Bed, samp, soon};

/// S96: the store is found by its folder, by its file and by the reference program's two variables. Me is its
/// agent, whatever `--me` says.
#[test]
fn s96_places() {
    for way in ["dir", "file", "config", "root"] {
        let mut bed = Bed::new();
        let tree = Tree::new(&bed);
        let letter = Letter::new("alice@localhost", "hello", "text", 1);
        tree.receive(&letter);
        let config = tree.root.join("config.json");
        match way {
            "dir" => bed.config(&tree.store()),
            "file" => {
                let other = bed.path("agz/elsewhere.json");
                fs::rename(&config, &other).unwrap();
                bed.config(&tree.store().replace("/agz\"", "/agz/elsewhere.json\""));
            }
            "config" => {
                let other = bed.path("agz/elsewhere.json");
                fs::rename(&config, &other).unwrap();
                bed.env.push(("AGENTAZALL_CONFIG".into(), other.into()));
            }
            _ => bed.env.push(("AGENTAZALL_ROOT".into(), tree.root.clone().into())),
        }
        let m = bed.mount("somebody");
        assert_eq!(m.ls("inbox"), [letter.name(1)], "{way}");
        let stores: &[&str] = if ["config", "root"].contains(&way) {
            &["agentazall", "samp"]
        } else {
            &["agentazall"]
        };
        assert_eq!(m.ls("raw"), stores, "{way}");
        assert!(m.cat("status.txt").contains(ME), "{way}: status.txt says who I am there");
    }
}

/// S96: `$AGENTAZALL_AGENT`, and `me` of the store, name another agent of the same mailboxes.
#[test]
fn s96_agent() {
    for way in ["variable", "me"] {
        let mut bed = Bed::new();
        let tree = Tree::new(&bed);
        let letter = Letter::new("alice@localhost", "for carol", "text", 1);
        put(&tree.mailbox("carol@localhost").join(DAY).join("inbox/x.txt"), letter.text());
        tree.receive(&Letter::new("alice@localhost", "for bar", "text", 2));
        if way == "variable" {
            bed.env.push(("AGENTAZALL_AGENT".into(), "carol@localhost".into()));
            bed.config(&tree.store());
        } else {
            bed.config(&(tree.store() + "me = \"carol@localhost\"\n"));
        }
        let m = bed.mount("bar");
        assert_eq!(m.ls("inbox"), [letter.name(1)], "{way}");
    }
}

/// S96: a missing configuration is an error that says so. msgfs makes none, and no folder either.
#[test]
fn s96_never_created() {
    let mut bed = Bed::new();
    let root = bed.path("nothing");
    bed.config(&format!("[[store]]\nkind = \"agentazall\"\ndir = {:?}\n", root.to_str().unwrap()));
    let out = bed.msgfs_out(&["status", "--me", "bar"]);
    assert!(!out.ok() && out.stderr.contains("config.json"), "{out:?}");
    assert!(!root.exists());
    fs::create_dir(&root).unwrap();
    let out = bed.msgfs_out(&["status", "--me", "bar"]);
    assert!(!out.ok() && out.stderr.contains("config.json"), "{out:?}");
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    // If only a variable names it, it costs the other stores nothing.
    let bed = {
        fs::remove_file(bed.path("config/msgfs/config.toml")).unwrap();
        bed.env.push(("AGENTAZALL_ROOT".into(), root.clone().into()));
        bed
    };
    let mail = samp::append(&bed.store, "foo", "bar", "t", "still delivered", samp::T0);
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [mail.name(0)]);
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
}

/// S97: mail in my inbox is to me, whatever To says. Mail in sent and outbox is from me. Everything else is no
/// mail.
#[test]
fn s97_folders() {
    let mine = |n| Letter::new(ME, "mine", "from me", n).set("To", "alice@localhost");
    let (bed, tree, m) = with(|_, tree| {
        tree.receive(&Letter::new("alice@localhost", "a", "to me", 1));
        tree.receive(
            &Letter::new("alice@localhost", "b", "to another", 2).set("To", "zed@nowhere"),
        );
        tree.receive(&Letter::new("alice@localhost", "c", "to nobody", 3).unset("To"));
        tree.put(
            "2025-12-31",
            "inbox",
            "old",
            Letter::new("alice@localhost", "d", "an old folder", 4).text(),
        );
        tree.put(DAY, "sent", "s", mine(5).text());
        tree.put(DAY, "outbox", "o", mine(6).text());
        for (day, folder, file) in [
            (DAY, "notes", "note.txt"),
            (DAY, "inbox", "letter.md"),
            (DAY, "inbox", "letter.tmp"),
            (DAY, ".", "index.txt"),
            ("2026-4-25", "inbox", "x.txt"),
            ("backup", "inbox", "x.txt"),
        ] {
            put(&tree.file(day, folder, file), Letter::new("eve@x", "no", "not mail", 7).text());
        }
        put(&tree.mailbox("carol@localhost").join(DAY).join("inbox/x.txt"), mine(8).text());
    });
    let texts: Vec<String> = shown::all(&m, "archive").into_iter().map(|s| s.body).collect();
    assert_eq!(texts, ["to me\n", "to another\n", "to nobody\n", "an old folder\n"]);
    assert_eq!(m.ls("inbox").len(), 4);
    assert_eq!(m.ls("sent"), ["2026-04-24"], "view folders are UTC days");
    // Mail in the outbox waits for the program that wrote it, and its warning says so.
    let note = mine(6).name(6).replace(".txt", ".warning");
    assert_eq!(m.ls("sent/2026-04-24"), [mine(5).name(5), mine(6).name(6), note]);
    let day = message(&m, Letter::new("alice@localhost", "c", "to nobody", 3).id());
    assert_eq!(day.get("To"), None, "a line without a value is left out");
    // A folder of a new day appears while the tree is mounted.
    let late = Letter::new("alice@localhost", "late", "a new day", 9);
    tree.put("2026-04-27", "inbox", late.id(), late.text());
    m.appears(&format!("inbox/{}", late.name(9)));
    drop(bed);
}

/// S97: the message file is exact, byte for byte.
#[test]
fn s97_file() {
    let letter = Letter::new("alice@localhost", "schema change", "first line\n\nthird\n", 1)
        .set("To", "bar@localhost, carol@localhost")
        .set("Cc", "dave@localhost");
    let (_bed, _tree, m) = with(|_, tree| {
        tree.receive(&letter);
    });
    let file = format!("archive/2026-04-24/{}", letter.name(1));
    assert_eq!(m.ls("archive"), ["2026-04-24"]);
    assert_eq!(m.ls("archive/2026-04-24"), [letter.name(1)]);
    let got = Shown::parse(&m.cat(&file));
    assert_eq!(
        got.without("Thread"),
        format!(
            "From: alice@localhost\nTo: bar@localhost, carol@localhost\nCc: dave@localhost\nDate: {}\n\
             Subject: schema change\nMessage-ID: <{}@agentazall>\nSignature: none\n\nfirst line\n\nthird\n",
            shown::date(NOON + 60),
            letter.id()
        )
    );
    assert_eq!(got.keys()[5], "Thread", "{got:?}");
    let thread = samp::thread_dir(got.must("Thread"));
    assert_eq!(m.ls(&format!("threads/{thread}")), [letter.name(1)]);
    assert_eq!(m.bytes(&format!("threads/{thread}/{}", letter.name(1))), m.bytes(&file));
    let meta = fs::metadata(m.path(&file)).unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (NOON + 60, 0));
}

/// S98: header and body are told apart as the reference program does it.
#[test]
fn s98_grammar() {
    let head = |id: &str| {
        format!(
            "From: alice@localhost\nTo: {ME}\nSubject: s\nDate: {}\nMessage-ID: {id}\nStatus: new\n",
            local(NOON)
        )
    };
    let table: Vec<(&str, Vec<u8>, &str, &str)> = vec![
        (
            "aa0000000001",
            (head("aa0000000001") + "\n---\nl1\nl2\n").replace('\n', "\r\n").into(),
            "s",
            "l1\nl2\n",
        ),
        (
            "aa0000000002",
            (head("aa0000000002") + "\n---\nl1\nl2").replace('\n', "\r").into(),
            "s",
            "l1\nl2\n",
        ),
        (
            "aa0000000003",
            (head("aa0000000003") + " \t---  \nabove\n---\nKey: below").into(),
            "s",
            "above\n---\nKey: below\n",
        ),
        (
            "aa0000000004",
            (head("aa0000000004") + "Subject: the last counts\n\n---\nx").into(),
            "the last counts",
            "x\n",
        ),
        (
            "aa0000000005",
            (head("aa0000000005") + "subject: keys have case\nno colon here\n\n---\nx").into(),
            "s",
            "x\n",
        ),
        (
            "aa0000000006",
            (head("aa0000000006") + "   Subject  :  blanks go  \n---\nx").into(),
            "blanks go",
            "x\n",
        ),
        (
            "aa0000000007",
            ("\u{feff}".to_owned() + &head("aa0000000007") + "\n---\nx").into(),
            "s",
            "x\n",
        ),
        (
            "aa0000000008",
            [head("aa0000000008").as_bytes(), b"\n---\ncaf\xe9 \xff!"].concat(),
            "s",
            "caf\u{fffd} \u{fffd}!\n",
        ),
        (
            "aa0000000009",
            head("aa0000000009")
                .replace("Subject: s", "Subject: a: b: c")
                .into_bytes()
                .into_iter()
                .chain(*b"\n---\nx")
                .collect(),
            "a: b: c",
            "x\n",
        ),
        (
            "aa000000000a",
            (head("aa000000000a") + "\n---\nesc \u{1b}[31m nul \0 end").into(),
            "s",
            "esc \u{241b}[31m nul \u{2400} end\n",
        ),
    ];
    let (_bed, _tree, m) = with(|_, tree| {
        for (id, text, ..) in &table {
            tree.put(DAY, "inbox", id, text);
        }
    });
    for (id, _, subject, body) in &table {
        let got = message(&m, id);
        assert_eq!(got.get("From"), Some("alice@localhost"), "{id}");
        assert_eq!((got.must("Subject"), got.body.as_str()), (*subject, *body), "{id}");
    }
    assert_eq!(m.ls("rejected"), [""; 0]);
}

/// S98: a message without headers is shown without From, and hides nothing.
#[test]
fn s98_no_headers() {
    let good = Letter::new("alice@localhost", "good", "good", 1);
    let (_bed, tree, m) = with(|_, tree| {
        tree.put(DAY, "inbox", "bare", "---\nonly a text\n");
        tree.put(DAY, "inbox", "plain", "a text without anything\n");
        tree.put(DAY, "inbox", "empty", "");
        tree.receive(&good);
    });
    let bare = message(&m, "bare");
    assert_eq!((bare.get("From"), bare.body.as_str()), (None, "only a text\n"));
    let plain = m.ok("grep -rl 'a text without anything' archive rejected");
    assert_eq!(plain.lines().count(), 1, "{plain}");
    assert!(m.ls("inbox").contains(&good.name(1)));
    // It names no sender to answer.
    let file = path(&m, "archive", "bare").replace(".txt", ".reply");
    let out = m.sh(&format!("echo hi | tee '{file}'"));
    assert!(!out.ok(), "{out:?}");
    assert_eq!(tree.list(ME, "outbox"), []);
}

/// S98: a file that is not regular is reported and skipped, and never opened. One unreadable file hides no other.
#[test]
fn s98_not_files() {
    let good = Letter::new("alice@localhost", "good", "good", 1);
    let (bed, _tree, m) = with(|bed, tree| {
        tree.receive(&good);
        let inbox = tree.file(DAY, "inbox", "");
        let fifo = bed.sh(&format!("mkfifo {0}/fifo.txt; mkdir {0}/dir.txt", inbox.display()));
        assert!(fifo.ok());
        fs::write(bed.path("secret"), Letter::new("eve@x", "s", "through a link", 2).text())
            .unwrap();
        symlink(bed.path("secret"), inbox.join("link.txt")).unwrap();
        // A day folder and an inbox that are links do not count.
        fs::create_dir_all(bed.path("far/inbox")).unwrap();
        fs::copy(bed.path("secret"), bed.path("far/inbox/x.txt")).unwrap();
        symlink(bed.path("far"), tree.base().join("2026-04-20")).unwrap();
        fs::create_dir(tree.base().join("2026-04-21")).unwrap();
        symlink(bed.path("far/inbox"), tree.base().join("2026-04-21/inbox")).unwrap();
    });
    assert_eq!(m.ls("inbox"), [good.name(1)]);
    assert!(!m.sh("grep -r 'through a link' .").ok());
    let said = m.cat("status.txt") + &shown::rejected(&m).concat();
    for name in ["fifo.txt", "link.txt", "dir.txt"] {
        assert!(said.contains(name), "{name} is reported in\n{said}");
    }
    drop(bed);
}

/// S99: the id is the Message-ID without angle brackets, else the file's stem. The digits of the name are the
/// fraction of Date.
#[test]
fn s99_ids() {
    let (_bed, _tree, m) = with(|_, tree| {
        let l = |n| Letter::new("alice@localhost", "s", "x", n);
        tree.put(DAY, "inbox", "one", l(1).set("Message-ID", "<a1b2c3d4e5f6>").text());
        tree.put(DAY, "inbox", "0123456789ab", l(2).unset("Message-ID").text());
        tree.put(
            DAY,
            "inbox",
            "three",
            l(3).set("Message-ID", "1777_alice_x").set("Date", "2026-04-24T22:03:00.579619").text(),
        );
    });
    assert_eq!(
        m.ls("inbox"),
        [
            shown::name(NOON + 60, 0, "alice@localhost", "a1b2c3d4e5f6"),
            shown::name(NOON + 120, 0, "alice@localhost", "0123456789ab"),
            shown::name(NOON + 180, 579, "alice@localhost", "1777_alice_x"),
        ]
    );
    for id in ["a1b2c3d4e5f6", "0123456789ab", "1777_alice_x"] {
        assert_eq!(message(&m, id).must("Message-ID"), format!("<{id}@agentazall>"));
    }
}

/// S99: if two messages have one name and one id, each takes the SHA-256 of its file as it came. Both keep their names
/// when more mail arrives, when one is read and in another mount.
#[test]
fn s99_equal_names() {
    let a = Letter::new("alice@localhost", "s", "the one", 1).set("Message-ID", "abcdef012345");
    let b = a.clone().body("the other");
    let (bed, tree, m) = with(|_, tree| {
        tree.put(DAY, "inbox", "a", a.text());
        tree.put(DAY, "inbox", "b", b.text());
    });
    let names = m.ls("inbox");
    assert_eq!(names.len(), 2);
    let full = |l: &Letter| a.name(1).replace("abcdef01", &samp::sha_hex(l.text().as_bytes(), 64));
    let mut both = [full(&a), full(&b)];
    both.sort();
    assert_eq!(names, both);
    let texts = m.ok("grep -rh '^the o' inbox | sort");
    assert_eq!(texts, "the one\nthe other\n");
    let more = Letter::new("alice@localhost", "s", "more", 2);
    tree.receive(&more);
    m.appears(&format!("inbox/{}", more.name(2)));
    let mut expected = names.clone();
    expected.push(more.name(2));
    assert_eq!(m.ls("inbox"), expected);
    m.ok(&format!("cat inbox/{}", full(&a)));
    crate::common::agz::says(&tree.file(DAY, "inbox", "a.txt"), "Status: read");
    assert_eq!(m.ls("archive/2026-04-24"), expected);
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    fs::remove_dir_all(bed.path("state")).unwrap();
    assert_eq!(bed.mount("bar").ls("archive/2026-04-24"), expected);
}

/// S100: every form of Date is read, and so is a message without one.
#[test]
fn s100_dates() {
    let midnight = NOON - 12 * 3600;
    let table = [
        ("bb0000000001", Some("2026-03-11 14:23:55"), 1_773_239_035 - AHEAD, 0),
        ("bb0000000002", Some("2026-03-11T14:23:55.579619"), 1_773_239_035, 579),
        ("bb0000000003", Some("2026-03-11T14:23:55.250+02:00"), 1_773_239_035 - 7200, 250),
        ("bb0000000004", Some("2026-03-11T14:23:55Z"), 1_773_239_035, 0),
        ("bb0000000005", Some("Wed, 11 Mar 2026 14:23:55 -0500"), 1_773_239_035 + 5 * 3600, 0),
        ("bb0000000006", Some("2026-03-11"), 1_773_187_200 - AHEAD, 0),
        ("bb0000000007", None, midnight, 0),
    ];
    let (_bed, _tree, m) = with(|_, tree| {
        for (id, date, ..) in table {
            let l = Letter::new("alice@localhost", "s", "x", 1).set("Message-ID", id);
            let l = date.map_or_else(|| l.clone().unset("Date"), |d| l.clone().set("Date", d));
            tree.put(DAY, "inbox", id, l.text());
        }
    });
    for (id, date, ts, millis) in table {
        let file = path(&m, "archive", id);
        let name = shown::name(ts, millis, "alice@localhost", id);
        assert_eq!(file, format!("archive/{}/{name}", samp::strftime(ts, "%Y-%m-%d")), "{date:?}");
        let got = Shown::parse(&m.cat(&file));
        assert_eq!(got.must("Date"), shown::date(ts), "{date:?}");
        let meta = fs::metadata(m.path(&file)).unwrap();
        assert_eq!(
            (meta.mtime(), meta.mtime_nsec()),
            (ts, i64::from(millis) * 1_000_000),
            "{date:?}"
        );
    }
}

/// S116: raw/ has message files and attachments by day, and has neither keys nor state.
#[test]
fn s116_raw() {
    let letter = Letter::new("alice@localhost", "s", "x", 1).set("Attachments", "a.bin");
    let (_bed, tree, m) = with(|_, tree| {
        tree.receive(&letter);
        put(&tree.file(DAY, "inbox", letter.id()).join("a.bin"), b"\0\xffbytes");
        tree.identity(&samp::key(1));
        for state in [".keyring.json", ".seen_ids", ".agent_key", "remember_index.txt"] {
            put(&tree.base().join(state), "{}");
        }
        put(&tree.file(DAY, ".", "index.txt"), "# index");
    });
    let bytes = fs::read(tree.file(DAY, "inbox", &format!("{}.txt", letter.id()))).unwrap();
    let raw = format!("raw/agentazall/{DAY}/inbox/{}", letter.id());
    assert_eq!(m.bytes(&format!("{raw}.txt")), bytes);
    assert_eq!(m.bytes(&format!("{raw}/a.bin")), b"\0\xffbytes");
    let all = m.ok("find raw -type f -printf '%P\\n' | sort");
    assert_eq!(all.lines().count(), 2, "{all}");
    for secret in [".identity_key", ".keyring.json", ".seen_ids", "config.json"] {
        assert!(!m.sh(&format!("cat raw/agentazall/{secret}")).ok(), "{secret}");
    }
    // A file that another program changes is shown at once, with its exact size.
    let longer = letter.clone().body("a longer text than before");
    tree.receive(&longer);
    soon("the new bytes are shown", || m.bytes(&format!("{raw}.txt")) == longer.text().as_bytes());
}

/// S640, S641: a file that a link could not read as a letter is in `rejected/`, with the reason and its bytes. The
/// other messages are not delayed.
#[test]
fn s640_what_a_link_could_not_read_is_rejected() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    let came = "{\"id\": \"\\q\"}\n---\nFrom: root";
    let odd =
        Letter::new("", "(cannot be read)", came, 1).set("X-Msgfs-Unreadable", "it is no JSON");
    let good = Letter::new("alice@localhost", "s", "fine", 2);
    for letter in [&odd, &good] {
        tree.put(DAY, "inbox", letter.id(), letter.text());
    }
    let m = bed.mount("bar");
    let refused = shown::rejected(&m);
    assert_eq!((m.ls("inbox").len(), refused.len()), (1, 1), "{refused:?}");
    assert!(
        refused[0].starts_with("Reason: ") && refused[0].contains("it is no JSON"),
        "{refused:?}"
    );
    assert!(refused[0].contains(came), "{refused:?}");
}
