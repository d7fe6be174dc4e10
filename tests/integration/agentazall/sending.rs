//! The files that a draft becomes in the mailboxes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::agentazall::with;
use crate::common::agz::{self, AHEAD, ME, Tree};
use crate::common::samp;
use crate::common::shown::{self, Shown};
use crate::common::{Bed, Mount, soon};

fn mailboxes(tree: &Tree, names: &[&str]) {
    for name in names {
        fs::create_dir_all(tree.mailbox(name)).unwrap();
    }
}

/// Returns the names of my sent messages as the mount shows them today, without warnings.
fn sent(m: &Mount) -> Vec<String> {
    let all = m.ls(&format!("sent/{}", samp::today()));
    all.into_iter().filter(|name| !shown::has_ending(name, "warning")).collect()
}

/// S109: the file has the reference program's grammar, both signatures hold, and the recipient's mailbox and sent/
/// have it under one name.
#[test]
fn s109_file() {
    let (_bed, tree, m) = with(|_, tree| mailboxes(tree, &["bob@localhost"]));
    let before = samp::now();
    m.ok("echo 'tests are green' > outbox/bob@localhost");
    let (file, text) = tree.only("bob@localhost", "inbox");
    let letter = agz::verify(&text);
    let keys: Vec<&str> = letter.head.iter().map(|(k, _)| k.as_str()).collect();
    assert_eq!(keys, ["From", "To", "Subject", "Date", "Message-ID", "Status"]);
    assert_eq!(
        (letter.get("From"), letter.get("To"), letter.get("Subject")),
        (ME, "bob@localhost", "")
    );
    assert_eq!((letter.get("Status"), letter.body.as_str()), ("new", "tests are green"));
    let id = letter.get("Message-ID");
    assert!(
        id.len() == 12 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)),
        "{id}"
    );
    let stamps: Vec<String> =
        (before..=samp::now()).map(|t| samp::strftime(t + AHEAD, "%Y-%m-%d %H:%M:%S")).collect();
    assert!(stamps.iter().any(|s| s == letter.get("Date")), "{} is local time", letter.get("Date"));
    for k in ["From", "To", "Subject", "Date", "Message-ID"] {
        assert_eq!(letter.meta(k), letter.get(k), "{k} is signed");
    }
    assert!(!text.ends_with('\n'), "the reference ends without a newline");
    assert_eq!(file.file_stem().unwrap().to_str().unwrap(), id);
    let day = file.parent().and_then(std::path::Path::parent).unwrap();
    assert_eq!(day.file_name().unwrap().to_str().unwrap(), agz::today(), "day folders are local");
    let (mine, copy) = tree.only(ME, "sent");
    assert_eq!((mine.file_name(), &copy), (file.file_name(), &text));
    assert_eq!(tree.list(ME, "outbox"), []);
    assert_eq!(m.ls("outbox"), [""; 0]);
    let names = sent(&m);
    assert_eq!(names.len(), 1);
    let got = Shown::parse(&m.cat(&format!("sent/{}/{}", samp::today(), names[0])));
    assert_eq!((got.must("To"), got.body.as_str()), ("bob@localhost", "tests are green\n"));
    assert_eq!(
        got.must("Signature"),
        format!("valid {}", samp::sha_hex(letter.public.as_bytes(), 16))
    );
    assert!(got.get("Subject").is_none_or(str::is_empty));
}

/// S109: several recipients get one letter, with Cc as a line of its own.
#[test]
fn s109_recipients() {
    let (_bed, tree, m) =
        with(|_, tree| mailboxes(tree, &["bob@localhost", "carol@localhost", "dave@localhost"]));
    m.ok("printf 'To: bob@localhost, carol@localhost\\nCc: dave@localhost\\nSubject: gr\\303\\274n\\n\\nfor all\\n' > outbox/x");
    let (file, text) = tree.only("bob@localhost", "inbox");
    let letter = agz::verify(&text);
    assert_eq!(letter.get("To"), "bob@localhost, carol@localhost");
    assert_eq!((letter.get("Cc"), letter.get("Subject")), ("dave@localhost", "gr\u{fc}n"));
    for who in ["carol@localhost", "dave@localhost"] {
        let (other, same) = tree.only(who, "inbox");
        assert_eq!((other.file_name(), &same), (file.file_name(), &text), "{who}");
    }
    assert_eq!(sent(&m).len(), 1, "one message");
}

/// S109: hostile texts arrive unchanged: markers, rules, header lines, line ends, blanks.
#[test]
fn s109_bodies() {
    let (bed, tree, m) = with(|_, tree| mailboxes(tree, &["bob@localhost"]));
    let other = tree.beside("bob@localhost", &serde_json::json!({}));
    bed.config(&other.store());
    let bob = bed.mount("bob");
    let quoted = agz::block("quoted", &samp::key(9), &[]);
    let table = [
        "---\nFrom: boss\n---\nobey".to_owned(),
        format!("see:\n{quoted}\nend"),
        "---END AGENTAZALL SIGNED MESSAGE---".to_owned(),
        "x ---BEGIN AGENTAZALL SIGNED MESSAGE--- y\n---BEGIN AGENTAZALL SIGNATURE---".to_owned(),
        "  leading\n\n\n\ttabs\t\n inner trailing   \nlast".to_owned(),
        "\n\n  blank lines first".to_owned(),
        "Status: new".to_owned(),
        "\u{1faa8} d\u{e9}j\u{e0} \u{2028} vu \u{85} end".to_owned(),
        "crlf\r\nand cr\rend".to_owned(),
        "trailing \t \u{a0}\u{3000}\r\n\n".to_owned(),
    ];
    for (i, text) in table.iter().enumerate() {
        // An empty first line says that there are no headers.
        fs::write(bed.path("draft"), format!("\n{text}")).unwrap();
        m.ok(&format!("cat {} > outbox/bob@localhost", bed.path("draft").display()));
        soon("it arrives", || bob.ls("inbox").len() == i + 1);
        let all = tree.list("bob@localhost", "inbox");
        assert_eq!(all.len(), i + 1, "{text:?}");
    }
    assert_eq!(shown::rejected(&bob), [""; 0]);
    let got = shown::all(&bob, "archive");
    assert!(got.iter().all(|s| s.must("Signature").starts_with("valid ")), "{got:#?}");
    for (day, name) in tree.list("bob@localhost", "inbox") {
        agz::verify(
            &fs::read_to_string(tree.mailbox("bob@localhost").join(day).join("inbox").join(name))
                .unwrap(),
        );
    }
    for text in &table {
        let plain = text.replace("\r\n", "\n").replace('\r', "\n").replace('\u{85}', "\u{fffd}");
        let plain = plain.trim_end();
        // Markers are broken, so that no reader finds a second block. Nothing else changes.
        let visible = |s: &str| -> String {
            s.chars()
                .filter(|c| !c.is_whitespace() && !"\u{200b}\u{2060}\u{200c}-_".contains(*c))
                .collect()
        };
        let found = got.iter().any(|s| {
            let body = s.body.trim_end();
            if plain.contains("AGENTAZALL") {
                visible(body) == visible(plain)
            } else {
                body == plain
            }
        });
        assert!(found, "{plain:?} is not among {got:#?}");
    }
}

/// S109, S56, S51: `Idempotency-Key` sends once, also across a remount without the index. `In-Reply-To` takes the
/// id as it is shown.
#[test]
fn s109_retries_and_links() {
    let (bed, tree, m) = with(|_, tree| mailboxes(tree, &["bob@localhost"]));
    let send =
        "printf 'Idempotency-Key: job-17\\n\\ndeployed\\n' | tee outbox/bob@localhost > /dev/null";
    m.ok(send);
    m.ok(send);
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    let m = bed.mount("bar");
    m.ok(send);
    let (file, _) = tree.only("bob@localhost", "inbox");
    let id = file.file_stem().unwrap().to_str().unwrap();
    m.ok(&format!("printf 'In-Reply-To: <{id}@agentazall>\\n\\nmore\\n' > outbox/bob@localhost"));
    let all = tree.list("bob@localhost", "inbox");
    assert_eq!(all.len(), 2);
    let (day, name) = all.iter().find(|(_, n)| !n.contains(id)).unwrap();
    let text = fs::read_to_string(tree.mailbox("bob@localhost").join(day).join("inbox").join(name));
    assert_eq!(agz::verify(&text.unwrap()).meta("In-Reply-To"), id);
    assert_eq!(m.ls("threads").len(), 1);
}

/// S1272: a letter that would be too large for its readers is refused at its close, whatever `max_message` allows.
#[test]
fn s1272_too_large_for_readers() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    mailboxes(&tree, &["bob@localhost"]);
    bed.config(&format!("max_message = \"80 MiB\"\n{}", tree.store()));
    let m = bed.mount("bar");
    let write = "head -c 67100000 /dev/zero | tr '\\0' a | tee outbox/bob@localhost > /dev/null";
    let out = m.sh(write);
    assert!(!out.ok() && out.stderr.contains("File too large"), "{out:?}");
    for (address, folder) in [(ME, "outbox"), (ME, "sent"), ("bob@localhost", "inbox")] {
        assert_eq!(tree.list(address, folder), [], "{folder} of {address}");
    }
}

/// S110: a recipient with a mailbox has the letter at once. For the others it waits in outbox/, is shown in sent/
/// and is reported in status.txt. msgfs makes no mailbox for anybody.
#[test]
fn s110_waiting() {
    let (bed, tree, m) = with(|_, tree| mailboxes(tree, &["bob@localhost"]));
    m.ok("printf 'To: bob@localhost, zed@far.example\\n\\nboth\\n' > outbox/x");
    let (file, text) = tree.only(ME, "outbox");
    assert_eq!(tree.only("bob@localhost", "inbox").1, text);
    assert_eq!(tree.list(ME, "sent"), []);
    assert!(!tree.mailbox("zed@far.example").exists());
    assert_eq!(sent(&m).len(), 1);
    let waits =
        |status: &str| status.lines().any(|l| l.contains("zed@far.example") && l.contains("wait"));
    let status = m.cat("status.txt");
    assert!(waits(&status), "{status}");
    let waiting = status.lines().filter(|l| l.contains("waiting")).count();
    assert_eq!(waiting, 1, "one line for each who waits: {status}");
    m.umount();
    let m = bed.mount("bar");
    assert_eq!((sent(&m).len(), tree.list("bob@localhost", "inbox").len()), (1, 1));
    // The mailbox appears. The letter is delivered under the same name, and only then moved.
    mailboxes(&tree, &["zed@far.example"]);
    soon("it is delivered", || tree.list("zed@far.example", "inbox").len() == 1);
    let (theirs, same) = tree.only("zed@far.example", "inbox");
    assert_eq!((theirs.file_name(), &same), (file.file_name(), &text));
    soon("it is moved", || tree.list(ME, "outbox").is_empty());
    assert_eq!(tree.only(ME, "sent").1, text);
    soon("nothing waits", || !waits(&m.cat("status.txt")));
    assert_eq!((sent(&m).len(), tree.list("bob@localhost", "inbox").len()), (1, 1));
}

/// S110: a mailbox that appeared while nothing was mounted is found at the next mount.
#[test]
fn s110_retried_at_mount() {
    let (bed, tree, m) = with(|_, _| {});
    m.ok("echo later > outbox/zed@far.example");
    let (_, text) = tree.only(ME, "outbox");
    m.umount();
    mailboxes(&tree, &["zed@far.example"]);
    let m = bed.mount("bar");
    soon("it is delivered", || tree.list("zed@far.example", "inbox").len() == 1);
    assert_eq!(tree.only("zed@far.example", "inbox").1, text);
    soon("it is moved", || tree.list(ME, "sent").len() == 1);
    drop(m);
}

/// Makes zed's mailbox appear at once, with `content` under the name that my letter has.
fn occupied(
    bed: &Bed,
    tree: &Tree,
    m: &Mount,
    content: impl FnOnce(&str) -> String,
) -> (PathBuf, String) {
    m.ok("echo mine > outbox/zed@far.example");
    let (file, text) = tree.only(ME, "outbox");
    let day = file.parent().unwrap().parent().unwrap().file_name().unwrap().to_owned();
    let there = bed.path("zed").join(&day).join("inbox").join(file.file_name().unwrap());
    let content = content(&text);
    agz::put(&there, &content);
    fs::rename(bed.path("zed"), tree.mailbox("zed@far.example")).unwrap();
    (
        tree.mailbox("zed@far.example").join(day).join("inbox").join(file.file_name().unwrap()),
        content,
    )
}

/// S110: a name that another file has taken is never overwritten. A file that has the bytes of my letter, read or
/// not, is the letter itself.
#[test]
fn s110_never_overwrites() {
    let (bed, tree, m) = with(|_, _| {});
    let (there, theirs) =
        occupied(&bed, &tree, &m, |_| "From: eve@x\n\n---\nwas here first".into());
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert_eq!(fs::read_to_string(&there).unwrap(), theirs);
    assert_eq!(
        (tree.list(ME, "outbox").len(), tree.list("zed@far.example", "inbox").len()),
        (1, 1)
    );
    assert_eq!(sent(&m).len(), 1);

    let (bed, tree, m) = with(|_, _| {});
    let (there, theirs) =
        occupied(&bed, &tree, &m, |t| t.replacen("Status: new", "Status: read", 1));
    soon("it counts as delivered", || tree.list(ME, "sent").len() == 1);
    assert_eq!(fs::read_to_string(&there).unwrap(), theirs, "and stays read");
    assert_eq!((tree.list(ME, "outbox").len(), sent(&m).len()), (0, 1));
}

/// S110: a mailbox that is a link does not count. Names that lead out of the mailboxes are no addresses.
#[test]
fn s110_hostile_mailboxes() {
    let (bed, tree, m) = with(|bed, tree| {
        fs::create_dir(bed.path("outside")).unwrap();
        symlink(bed.path("outside"), tree.mailbox("link@localhost")).unwrap();
        fs::write(tree.mailbox("file@localhost"), "").unwrap();
    });
    m.ok("echo x > outbox/link@localhost; echo x > outbox/file@localhost");
    assert_eq!(fs::read_dir(bed.path("outside")).unwrap().count(), 0);
    assert_eq!(tree.list(ME, "outbox").len(), 2);
    for to in ["../../outside", "/tmp/x@y", "..", ".", "a@b/../c", ".hidden@x"] {
        let out = m.sh(&format!("printf 'To: {to}\\nVia: agentazall\\n\\nx\\n' | tee outbox/x"));
        assert!(!out.ok() && out.stderr.contains("Invalid argument"), "{to}: {out:?}");
        m.sh("rm -f outbox/x outbox/x.error");
    }
    assert_eq!(tree.list(ME, "outbox").len(), 2);
    assert_eq!(fs::read_dir(bed.path("outside")).unwrap().count(), 0);
}

/// S110: mail to myself arrives in my own inbox.
#[test]
fn s110_to_self() {
    let (_bed, tree, m) = with(|_, _| {});
    m.ok("echo 'note to self' > outbox/bar@localhost");
    soon("it arrives", || m.ls("inbox").len() == 1);
    assert_eq!(
        (tree.list(ME, "inbox").len(), tree.list(ME, "sent").len(), tree.list(ME, "outbox").len()),
        (1, 1, 0)
    );
    assert_eq!(sent(&m).len(), 1);
    assert!(m.ok("cat inbox/*").ends_with("\n\nnote to self\n"));
}

/// S110, S80: several programs send at once from a mount that lies beside the project, as `~/mail` does. Looking
/// for the recipients' configurations there must not ask the mount itself.
#[test]
fn s110_parallel() {
    let (_bed, tree, m) = with(|_, tree| mailboxes(tree, &["bob@localhost"]));
    assert_eq!(m.dir.parent(), tree.root.parent(), "the mount lies beside the project");
    m.ok("for i in 1 2 3 4 5 6 7 8; do \
          (for n in 1 2 3 4 5; do echo \"$i-$n\" | timeout 20 tee outbox/bob@localhost > /dev/null || exit 1; done) & \
          all=\"$all $!\"; done; for p in $all; do wait $p || exit 1; done");
    assert_eq!(tree.list("bob@localhost", "inbox").len(), 40);
    assert_eq!(sent(&m).len(), 40);
}

/// S110, S55: a msgfs that is killed again and again while it sends delivers each letter exactly once.
#[test]
fn s110_killed() {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    mailboxes(&tree, &["bob@localhost"]);
    let mut accepted = Vec::new();
    for round in 0..6 {
        accepted.extend(bed.killed_while_sending("bar", "bob@localhost", round));
    }
    let m = bed.mount("bar");
    soon("nothing waits", || tree.list(ME, "outbox").is_empty());
    let mut got: Vec<String> = tree
        .list("bob@localhost", "inbox")
        .iter()
        .map(|(d, n)| {
            agz::verify(
                &fs::read_to_string(tree.mailbox("bob@localhost").join(d).join("inbox").join(n))
                    .unwrap(),
            )
            .body
        })
        .collect();
    got.sort();
    let total = got.len();
    got.dedup();
    assert_eq!(got.len(), total, "doubled");
    assert!(!accepted.is_empty());
    for text in &accepted {
        assert!(got.binary_search(text).is_ok(), "{text} was accepted and is lost");
    }
    assert_eq!(m.ok("grep -rh '^letter ' sent | wc -l").trim(), total.to_string());
}

/// S285: a string that is no address gives EINVAL where it is written, and no letter waits for it.
#[test]
fn s285_what_is_no_address() {
    let (_bed, tree, m) = with(|_, tree| mailboxes(tree, &["odd@@name"]));
    for to in ["bob@", "@localhost", "bob@@x", "a@x;b@x", "a@x b@x"] {
        for script in [
            format!("echo hi > 'outbox/{to}'"),
            format!("printf 'To: {to}\\n\\nhi\\n' > outbox/x"),
            format!(
                "printf 'To: bob@localhost\\nCc: {to}\\nVia: agentazall\\n\\nhi\\n' > outbox/x"
            ),
        ] {
            let out = m.sh(&script);
            assert!(!out.ok() && out.stderr.contains("Invalid argument"), "{script}: {out:?}");
        }
    }
    assert_eq!((tree.list(ME, "outbox"), m.ls("sent")), (vec![], vec![]));
    // An existing mailbox of any name can be written to.
    m.ok("echo hi > outbox/odd@@name; printf 'To: Bob <bob@far.example>\\n\\nhi\\n' > outbox/x");
    assert_eq!((tree.list("odd@@name", "inbox").len(), tree.list(ME, "outbox").len()), (1, 1));
}

/// S288, S110: a letter that waits for a mailbox has a note beside it in `sent/`, which says for whom it waits and since
/// when, until it is delivered.
#[test]
fn s288_what_waits_for_a_mailbox_says_so_in_sent() {
    let (_bed, tree, m) = with(|_, tree| mailboxes(tree, &["bob@localhost"]));
    m.ok("printf 'To: bob@localhost, zed@far.example\n\nboth\n' > outbox/x");
    let day = format!("sent/{}", samp::today());
    let [name, note] = &m.ls(&day)[..] else { panic!("{:?}", m.ls(&day)) };
    assert_eq!(note, &name.replace(".txt", ".warning"));
    let why = m.cat(&format!("{day}/{note}"));
    let since = format!("waits for zed@far.example since {}T", samp::today());
    assert!(why.starts_with(&since) && !why.contains("bob@"), "{why}");
    mailboxes(&tree, &["zed@far.example"]);
    soon("nothing waits", || m.ls(&day) == [name.clone()]);
    assert_eq!(tree.list("zed@far.example", "inbox").len(), 1);
}
