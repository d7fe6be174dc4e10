//! Mail programs of others, which read message files as mail.

use std::fs;
use std::path::PathBuf;

use crate::common::{Bed, Mount, quote, run, samp, soon};

const T0: i64 = 1_777_052_523;

/// S19: mblaze and Python's mail parser find header and body in the right places.
#[test]
fn s19_mail_programs_read_messages() {
    let bed = Bed::new();
    let rec =
        samp::append(&bed.store, "foo", "bar", "a thread", "first line\n\nFrom: nobody\n", T0);
    let m = bed.mount("bar");
    let file = format!("archive/{}/{}", rec.day(), rec.name(0));
    assert_eq!(m.ok(&format!("mhdr -h from {file}")).trim(), "foo");
    assert_eq!(m.ok(&format!("mhdr -h thread {file}")).trim(), "a thread");
    assert_eq!(m.ok(&format!("mhdr -D -h date {file}")).trim(), T0.to_string());
    let shown = m.ok(&format!("mshow -n -h from:to {file}"));
    assert!(shown.contains("first line\n\nFrom: nobody"), "{shown}");
    let body = m.py(
        "import email.parser, email.policy, sys\n\
         m = email.parser.BytesParser(policy=email.policy.default).parse(open(sys.argv[1], 'rb'))\n\
         assert not m.defects, m.defects\n\
         print(m['from'], m['to'], m['message-id'], len(m.get_content().splitlines()))",
        &[&file],
    );
    assert_eq!(body.trim(), format!("foo bar <{}@samp> 3", rec.id));
}

/// S20: text that is not ASCII is declared, so that mail programs show it.
#[test]
fn s20_mail_programs_read_unicode() {
    let bed = Bed::new();
    let rec = samp::append(&bed.store, "foo", "bar", "t", "Gr\u{fc}\u{df}e \u{1faa8}", T0);
    let m = bed.mount("bar");
    let file = format!("archive/{}/{}", rec.day(), rec.name(0));
    let shown = m.ok(&format!("LC_ALL=C.UTF-8 mshow -n {file}"));
    assert!(shown.contains("Gr\u{fc}\u{df}e \u{1faa8}"), "{shown}");
}

/// Makes `.maildir/` of bar with a question to bar and carol, carol's answer to both, and her note.
fn mailbox() -> (Bed, Mount, [String; 3]) {
    let bed = Bed::new();
    let write = |who: &str, text: &str| {
        let out = run(bed.msgfs(["--me", who, "write", "outbox/bar"]), Some(text.as_bytes()));
        assert!(out.ok(), "{out:?}");
    };
    write("foo", "To: bar, carol\nSubject: schema change\n\nneed your review\n");
    let m = bed.mount("carol");
    m.ok("for f in inbox/*; do echo 'looks good' > \"${f%.txt}.reply-all\"; done");
    m.umount();
    write("carol", "Subject: Gr\u{fc}\u{df}e\n\nsch\u{f6}nes Wochenende\n");
    let m = bed.mount("bar");
    let names = m.ls(".maildir/new").try_into().expect("three");
    (bed, m, names)
}

/// Returns the files in a folder of the Maildir.
fn mail(m: &Mount, folder: &str) -> Vec<String> {
    m.ls(&format!(".maildir/{folder}"))
}

/// Presses keys in mutt on a terminal, and returns what it showed.
fn mutt(bed: &Bed, m: &Mount, keys: &str) -> String {
    let path = |path: PathBuf| quote(&path);
    let (place, cache) = (path(m.path(".maildir")), path(bed.path("cache/mutt")));
    let rc = format!(
        "set mbox_type=Maildir folder={place} spoolfile={place} header_cache={cache}\n\
         set sort=threads delete=yes assumed_charset=utf-8 ascii_chars=yes wait_key=no\n\
         set tmpdir={}\npush \"{keys}<quit>\"\n",
        path(bed.path("run")),
    );
    fs::write(bed.path("muttrc"), rc).unwrap();
    let rc = bed.path("muttrc");
    m.ok(&format!("TERM=xterm script -qec 'mutt -n -F {}' /dev/null", rc.display()))
}

/// S562: mutt shows threads and texts, keeps the marks old, read, flagged and removed, and sees mail that comes
/// while it runs.
#[test]
fn s562_mutt() {
    let (bed, m, [question, answer, note]) = mailbox();
    let shown = mutt(&bed, &m, "");
    for text in ["schema change", "Gr\u{fc}\u{df}e", "->"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    let old = [&question, &answer, &note].map(|name| format!("{name}:2,"));
    assert_eq!((mail(&m, "new"), mail(&m, "cur")), (Vec::new(), old.to_vec()));
    assert_eq!(m.ls("inbox").len(), 3);
    let text = bed.path("text");
    let keep = format!("<pipe-message>cat > {}<enter>", text.display());
    let keys = "<display-message><exit><search>~s Gr<enter><flag-message>";
    mutt(&bed, &m, &format!("<search>~f foo<enter>{keep}{keys}"));
    assert!(fs::read_to_string(&text).unwrap().contains("need your review"));
    let kept = [format!("{question}:2,S"), format!("{answer}:2,"), format!("{note}:2,F")];
    assert_eq!(mail(&m, "cur"), kept);
    assert_eq!(m.ls("inbox"), [format!("{answer}.txt"), format!("{note}.txt")]);
    mutt(&bed, &m, "<search>~f foo<enter><toggle-new><search>~s Gr<enter><delete-message>");
    assert_eq!(m.ls("inbox"), [format!("{question}.txt"), format!("{answer}.txt")]);
    assert_eq!(mail(&m, "cur"), [format!("{question}:2,"), format!("{answer}:2,")]);
    assert_eq!(m.ok("ls archive/*").lines().count(), 3);
    // A message is written, listed, and read elsewhere, all while mutt runs.
    let late = bed.path("late");
    let script = format!(
        "cd {} && echo later | AGENT_MESSAGE_DIR={} msgfs --me foo write outbox/bar &&\n\
         while [ $(ls inbox | wc -l) -lt 3 ]; do sleep 0.05; done; cat inbox/{question}.txt\n",
        m.dir.display(),
        bed.store.display(),
    );
    let msgfs = crate::common::binary();
    fs::write(&late, script.replace("msgfs --me", &format!("{} --me", msgfs.display()))).unwrap();
    let keys = format!("<shell-escape>sh {}<enter><sync-mailbox>", late.display());
    mutt(&bed, &m, &format!("{keys}<search>~b later<enter>{keep}<display-message><exit>"));
    assert!(fs::read_to_string(&text).unwrap().contains("later"));
    assert_eq!(m.ls("inbox"), [format!("{answer}.txt")]);
    let cur = mail(&m, "cur");
    assert_eq!(cur[..2], [format!("{question}:2,S"), format!("{answer}:2,")]);
    assert!(cur.len() == 3 && cur[2].ends_with(":2,S"), "{cur:?}");
}

/// S562: mblaze lists, threads, shows and flags.
#[test]
fn s562_mblaze() {
    let (_bed, m, [question, answer, note]) = mailbox();
    let place = m.path(".maildir");
    let mlist = format!("mlist {}", place.display());
    assert_eq!(m.ok(&mlist).lines().count(), 3);
    let threads = m.ok(&format!("{mlist} | mthread | mscan -f '%i%s'"));
    assert!(threads.contains("schema change") && threads.contains("\n "), "{threads}");
    assert!(m.ok(&format!("{mlist} | grep {answer} | mshow")).contains("looks good"));
    assert_eq!(m.ls("inbox").len(), 3);
    // It flags the mail that it has incorporated.
    m.ok(&format!("minc -q {}; {mlist} | grep {question} | mflag -S", place.display()));
    let cur = [format!("{question}:2,S"), format!("{answer}:2,"), format!("{note}:2,")];
    assert_eq!((mail(&m, "new"), mail(&m, "cur")), (Vec::new(), cur.to_vec()));
    m.ok(&format!("{mlist} | grep {question} | mflag -sF; {mlist} | grep {note} | mflag -T"));
    assert_eq!(mail(&m, "cur"), [format!("{question}:2,F"), format!("{answer}:2,")]);
    assert_eq!(m.ls("inbox"), [format!("{question}.txt"), format!("{answer}.txt")]);
    let out = m.sh(&format!("echo 'Subject: x' | mdeliver {}", place.display()));
    assert!(!out.ok() && out.stderr.contains("Operation not permitted"), "{out:?}");
}

/// S562: notmuch indexes, threads and searches from outside the mount. Its tags become marks, and marks become its
/// tags.
#[test]
fn s562_notmuch() {
    let (bed, m, [question, answer, note]) = mailbox();
    let config = format!(
        "[database]\npath={}\nmail_root={}\n[user]\nprimary_email=bar\n[new]\ntags=unread\n\
         [maildir]\nsynchronize_flags=true\n",
        bed.path("data").display(),
        m.path(".maildir").display(),
    );
    fs::write(bed.path("home/.notmuch-config"), config).unwrap();
    // It leaves out changes within this second.
    let again = || {
        soon("notmuch looks again", || {
            m.ok("notmuch new --quiet");
            let files = m.ok("notmuch search --output=files '*'");
            let there = m.ok("ls -1d .maildir/new/* .maildir/cur/* 2> /dev/null || true");
            let all = files.lines().filter_map(|f| f.split_once(".maildir/")).map(|(_, f)| f);
            let mut all: Vec<String> = all.map(|f| format!(".maildir/{f}")).collect();
            all.sort();
            let mut there: Vec<&str> = there.lines().collect();
            there.sort_unstable();
            all == there
        });
    };
    again();
    let threads = m.ok("notmuch search '*'");
    assert!(threads.lines().count() == 2 && threads.contains("[2/2]"), "{threads}");
    assert_eq!(m.ok("notmuch count sch\u{f6}nes"), "1\n");
    assert_eq!((m.ls("inbox").len(), mail(&m, "new").len()), (3, 3));
    m.ok("notmuch tag -unread +flagged subject:schema and from:foo");
    assert_eq!(mail(&m, "cur"), [format!("{question}:2,FS")]);
    assert_eq!(m.ls("inbox"), [format!("{answer}.txt"), format!("{note}.txt")]);
    m.cat(&format!("inbox/{answer}.txt"));
    again();
    assert_eq!(m.ok("notmuch count tag:unread"), "1\n");
    m.ok(&format!("rm .maildir/new/{note}"));
    again();
    assert_eq!(m.ok("notmuch count '*'"), "2\n");
}

/// S562: mu indexes, threads and searches, and sees messages that were read and removed.
#[test]
fn s562_mu() {
    let (_bed, m, [question, answer, note]) = mailbox();
    m.ok(&format!("mu init --quiet --maildir={} --my-address=bar", m.path(".maildir").display()));
    let find = |query: &str| {
        m.ok("mu index --quiet");
        m.sh(&format!("mu find --nocolor --fields 'g l' {query}")).stdout
    };
    assert_eq!(find("flag:unread").lines().count(), 3);
    let threads = m.ok("mu find --nocolor --threads --fields s ''");
    assert!(threads.contains("\n\\->"), "{threads}");
    assert_eq!(find("sch\u{f6}nes").lines().count(), 1);
    assert_eq!(m.ls("inbox").len(), 3);
    m.cat(&format!("inbox/{question}.txt"));
    m.ok(&format!("cd .maildir && mv new/{answer} cur/{answer}:2,FS && rm new/{note}"));
    let all = find("''");
    assert_eq!(all.lines().count(), 2, "{all}");
    assert!(
        all.lines().all(|line| line.split(' ').next().is_some_and(|f| f.contains('S'))),
        "{all}"
    );
    assert!(find("flag:flagged").contains(&answer));
}
