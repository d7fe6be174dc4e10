//! A Maildir as a store, with the mail programs that share it.

mod mine;
mod others;
mod programs;
mod sending;

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::agz::{names, put};
use crate::common::shown::{self, Shown};
use crate::common::{Bed, Mount, soon};

/// The header of mail number `n`, up to its own lines.
fn head(n: u32) -> String {
    format!(
        "From: Bob <bob@example.org>\nTo: anna@example.org\nMessage-ID: <m{n}@example.org>\n\
         Date: Fri, 24 Apr 2026 17:42:{n:02} +0000\nSubject: mail {n}\n"
    )
}

/// Returns mail number `n`.
fn mail(n: u32, lines: &str) -> String {
    format!("{}{lines}\ntext {n}\n", head(n))
}

/// Makes a mail folder.
fn make(folder: &Path) {
    for leaf in ["new", "cur", "tmp"] {
        fs::create_dir_all(folder.join(leaf)).expect("mkdir");
    }
}

/// Anna's Maildir and Bob's.
struct Place {
    root: PathBuf,
}

impl Place {
    /// Makes both, and a configuration with these further lines for the store.
    fn new(bed: &Bed, more: &str) -> Self {
        let place = Self { root: bed.path("mail") };
        make(&place.root.join("anna"));
        make(&place.root.join("bob"));
        let root = place.root.display();
        bed.config(&format!(
            "[[store]]\nkind = \"maildir\"\ndir = \"{root}/anna\"\n\
             me = [\"anna@example.org\", \"anna@localhost\"]\n{more}\n[store.local]\n\
             \"bob@localhost\" = \"{root}/bob\"\n"
        ));
        place
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn names(&self, path: &str) -> Vec<String> {
        names(&self.at(path))
    }

    /// Delivers a mail as its writer would.
    fn deliver(&self, path: &str, text: &str) {
        put(&self.at("being-written"), text);
        fs::rename(self.at("being-written"), self.at(path)).expect("rename");
    }
}

/// Makes a bed with a Maildir that `fill` fills, and mounts it for anna.
#[track_caller]
fn with(more: &str, fill: impl FnOnce(&Place)) -> (Bed, Place, Mount) {
    let bed = Bed::new();
    let place = Place::new(&bed, more);
    fill(&place);
    let m = bed.mount("anna");
    (bed, place, m)
}

/// Returns the texts of the messages in a folder of the mount.
fn texts(m: &Mount, folder: &str) -> Vec<String> {
    shown::all(m, folder).iter().map(|one: &Shown| one.body.trim_end().to_owned()).collect()
}

/// S801, S802: reading moves a mail to `cur/` with `S` and every other flag. A mail that another program marked counts
/// as read, too.
#[test]
fn s801_marks() {
    let (_bed, place, m) = with("", |place| {
        for n in 1..=3 {
            place.deliver(&format!("anna/new/{n}.h"), &mail(n, ""));
        }
        place.deliver("anna/cur/4.h:2,F", &mail(4, ""));
    });
    assert_eq!(m.ls("inbox").len(), 4);
    m.ok("cat inbox/*174201*");
    soon("S is set", || place.names("anna/cur") == ["1.h:2,S", "4.h:2,F"]);
    m.ok("cat inbox/*174204*");
    soon("S is added", || place.names("anna/cur") == ["1.h:2,S", "4.h:2,FS"]);
    fs::rename(place.at("anna/new/2.h"), place.at("anna/cur/2.h:2,")).unwrap();
    fs::rename(place.at("anna/new/3.h"), place.at("anna/new/3.h:2,FS")).unwrap();
    soon("the mark of another program", || m.ls("inbox").len() == 1);
    assert_eq!(texts(&m, "inbox"), ["text 2"]);
    for n in 0..10 {
        let (from, to) = (format!("anna/cur/{}", name(n)), format!("anna/cur/{}", name(n + 1)));
        fs::rename(place.at(&from), place.at(&to)).unwrap();
    }
    soon("it is read", || m.ls("inbox").is_empty());
    assert_eq!(m.ls("archive/2026-04-24").len(), 4);
}

/// S213: a mail whose flag cannot be set, because another file has that name or the name would be too long, is reported
/// with the reason. It keeps no other mail from its flag, and gets it when the name is free.
#[test]
fn s213_a_flag_that_cannot_be_set() {
    let long = "7".repeat(252);
    let (_bed, place, m) = with("", |place| {
        for n in 1..=17 {
            place.deliver(&format!("anna/new/{n}.h"), &mail(n, ""));
            place.deliver(&format!("anna/cur/{n}.h:2,S"), &mail(n + 30, ""));
        }
        place.deliver("anna/new/18.h", &mail(18, ""));
    });
    m.ok("cat inbox/*");
    soon("the others are marked", || place.names("anna/cur").contains(&"18.h:2,S".to_owned()));
    let told = |why: &str| m.cat("status.txt").contains(why);
    soon("it is reported", || told(".h cannot have the flag S: another file in cur/ has the name"));
    // The mount moves files into the folder as soon as a name is free.
    fs::rename(place.at("anna/cur"), place.at("away")).unwrap();
    fs::create_dir(place.at("anna/cur")).unwrap();
    soon("they are marked", || place.names("anna/cur").len() == 17);
    soon("the report is gone", || !told("cannot have the flag"));
    place.deliver(&format!("anna/new/{long}"), &mail(19, ""));
    soon("it arrives", || m.ls("inbox").len() == 1);
    m.ok("cat inbox/*");
    soon("it is reported", || told("7 cannot have the flag S: its name would be too long"));
    m.inbox_stays(&[]);
}

/// Returns the n-th name of a file that is renamed again and again; the last one is read.
fn name(n: u32) -> String {
    match n {
        0 => "2.h:2,".to_owned(),
        10 => "2.h:2,RS".to_owned(),
        n => format!("2.h.{n}:2,R"),
    }
}

/// S1094: capital letters in the sender's address change nothing: the mail is read, marked and answered, and shows the
/// address as it was written.
#[test]
fn s1094_capital_letters_in_the_sender() {
    let (_bed, place, m) = with("", |place| {
        let text = mail(1, "").replace("Bob <bob@example.org>", "Bob <Bob@Localhost>");
        place.deliver("anna/new/1.h", &text);
    });
    assert_eq!(texts(&m, "inbox"), ["text 1"]);
    let shown = shown::all(&m, "inbox").remove(0);
    assert_eq!(shown.must("From"), "Bob@Localhost");
    m.ok("cat inbox/* > /dev/null");
    soon("S is set", || place.names("anna/cur") == ["1.h:2,S"]);
    m.ok("n=$(ls archive/2026-04-24); echo fine > archive/2026-04-24/${n%.txt}.reply");
    soon("the answer is delivered", || place.names("bob/new").len() == 1);
}

/// S803: mail in the inbox and in folders is for me, that in Sent is mine, and that of other well-known folders is
/// not shown. Names of folders may be in modified UTF-7.
#[test]
fn s803_folders() {
    let (_bed, _place, m) = with("", |place| {
        let folders = ["", ".W&APY-rk &- co/", "lists/deep/", ".Sent/", ".Trash/", "Junk/"];
        for (n, folder) in (1..).zip(folders) {
            make(&place.at(&format!("anna/{folder}")));
            place.deliver(&format!("anna/{folder}cur/{n}.h:2,"), &mail(n, ""));
        }
        place.deliver("anna/cur/9.h:2,ST", &mail(9, ""));
    });
    assert_eq!(texts(&m, "inbox"), ["text 1", "text 2", "text 3"]);
    assert_eq!(texts(&m, "sent/2026-04-24"), ["text 4"]);
    assert!(m.ls("rejected").is_empty(), "{:?}", m.ls("rejected"));
    let shown = shown::all(&m, "inbox").remove(0);
    assert_eq!((shown.must("From"), shown.must("Subject")), ("bob@example.org", "mail 1"));
    assert_eq!(
        (shown.must("Signature"), shown.must("Message-ID")),
        ("none", "<m1@example.org@maildir>")
    );
}

/// S804: equal mails are one message, whatever lies around them. The same id with another text is another message.
#[test]
fn s804_copies() {
    let (_bed, place, m) = with("", |place| {
        make(&place.at("anna/.list"));
        place.deliver("anna/new/1.h", &mail(1, ""));
        place.deliver("anna/.list/new/1.l", &mail(1, "Received: from a by b\n"));
        place.deliver("anna/new/1.h.sync-conflict", &mail(1, ""));
        place.deliver("anna/cur/1.h:2,", &mail(1, "").replace("text 1", "another text"));
    });
    assert_eq!(texts(&m, "inbox").len(), 2);
    m.ok("for f in inbox/*; do grep -l 'text 1' \"$f\" || true; done | xargs -d '\\n' cat");
    soon("every copy is marked", || {
        place.names("anna/new").is_empty() && place.names("anna/.list/cur") == ["1.l:2,S"]
    });
    soon("one is left", || texts(&m, "inbox") == ["another text"]);
}

/// S805: a mail that disappears for a moment is no new one when it comes back. One that stays away is gone.
#[test]
fn s805_gone_for_a_moment() {
    let (_bed, place, m) = with("", |place| {
        place.deliver("anna/new/1.h", &mail(1, ""));
        place.deliver("anna/new/2.h", &mail(2, ""));
    });
    let names = m.ls("inbox");
    fs::rename(place.at("anna/new/1.h"), place.at("away")).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(m.ls("inbox"), names);
    fs::rename(place.at("away"), place.at("anna/cur/7.other:2,F")).unwrap();
    soon("it is read at its new place", || m.sh("cat inbox/*174201*").stdout.contains("text 1"));
    fs::remove_file(place.at("anna/new/2.h")).unwrap();
    soon("it is gone", || m.ls("archive/2026-04-24").len() == 1);
}

/// S805, S1440: a mail that nobody has read stays in every folder while it is away. One line stands for its text, and
/// reading that marks nothing.
#[test]
fn s1440_gone_before_it_was_read() {
    let (_bed, place, m) = with("", |place| {
        place.deliver("anna/new/1.h", &mail(1, ""));
        place.deliver("anna/new/2.h", &mail(2, ""));
    });
    fs::rename(place.at("anna/new/1.h"), place.at("away")).unwrap();
    let line = "\nThe text of this message cannot be read now.\n";
    for folder in ["inbox", "archive/2026-04-24", "threads/m1@example.org"] {
        assert_eq!(m.ok(&format!("cat {folder}/*174201*")), line, "{folder}");
        let size = m.ok(&format!("ls {folder} >&2; stat -c %s {folder}/*174201*"));
        assert_eq!(size.trim(), line.len().to_string(), "{folder}");
    }
    assert!(m.ok("cat transcripts/m1@*").ends_with(line));
    m.ok("tar cf /dev/null inbox archive threads transcripts .maildir");
    assert_eq!(m.ls("inbox").len(), 2);
    assert!(m.ok("cat .next").ends_with("\n\ntext 2\n"));
    fs::rename(place.at("away"), place.at("anna/cur/7.other:2,F")).unwrap();
    for file in ["inbox/*174201*", "archive/*/*174201*", "transcripts/m1@*"] {
        soon("its text is back", || m.sh(&format!("cat {file}")).stdout.ends_with("\n\ntext 1\n"));
    }
}

/// S810: a file that is no mail, is signed wrongly, or is no regular file is rejected. Nothing is read through a link.
#[test]
fn s810_rejected() {
    let (_bed, _place, m) = with("", |place| {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../vectors/maildir.json")).unwrap();
        let signed = vectors["valid"][0]["text"].as_str().unwrap();
        let wrong = vectors["wrong"][0]["text"].as_str().unwrap();
        place.deliver("anna/new/1.good", signed);
        place.deliver("anna/new/2.wrong", wrong);
        place.deliver("anna/new/3.text", "no header at all\n");
        put(&place.at("secret"), mail(5, "").replace("text 5", "secret"));
        std::os::unix::fs::symlink(place.at("secret"), place.at("anna/new/4.link")).unwrap();
    });
    let shown = shown::all(&m, "inbox");
    assert_eq!(shown.len(), 1, "{shown:#?}");
    assert_eq!(shown[0].must("Signature"), "valid 56475aa75463474c");
    assert_eq!(shown[0].must("Date"), "Fri, 24 Apr 2026 17:42:03 +0000");
    assert!(m.ls("inbox")[0].starts_with("20260424T174203.250Z-bob@example.org-ab12cd34"));
    let rejected = shown::rejected(&m);
    assert_eq!(rejected.len(), 3, "{rejected:#?}");
    for why in ["a symbolic link", "cannot be read as a mail", "the signature is wrong"] {
        assert_eq!(
            rejected.iter().filter(|text| text.contains(why)).count(),
            1,
            "{why}: {rejected:#?}"
        );
    }
    assert!(!m.ok("grep -rh . .").contains("secret"));
}

/// S811: threads follow `References`, and an answer joins when its parent comes.
#[test]
fn s811_threads() {
    let (_bed, place, m) = with("", |place| {
        let refers = "References: <m8@example.org> <m2@example.org>\n";
        place.deliver("anna/new/1.h", &mail(1, refers));
        place.deliver("anna/new/3.h", &mail(3, "In-Reply-To: <m2@example.org>\n"));
    });
    assert_eq!(m.ls("threads").len(), 2);
    place.deliver("anna/new/2.h", &mail(2, "References: <m8@example.org>\n"));
    soon("one thread", || m.ls("threads") == ["m8@example.org"]);
    m.ok("cat threads/*/*");
}

/// S812: nothing but a `[[store]]` makes a Maildir a store. Its place has a default, and wrong keys are reported.
#[test]
fn s812_configuration() {
    let mut bed = Bed::new();
    make(&bed.path("home/Maildir"));
    put(&bed.path("home/Maildir/new/1.h"), mail(1, ""));
    let m = bed.mount("anna");
    assert!(m.ls("inbox").is_empty() && !m.cat("status.txt").contains("Maildir"));
    m.umount();
    bed.config("[[store]]\nkind = \"maildir\"\nme = \"anna@example.org\"\nmarks = \"off\"\n");
    let m = bed.mount("anna");
    m.ok("cat inbox/*");
    m.inbox_stays(&[]);
    assert_eq!(names(&bed.path("home/Maildir/new")), ["1.h"], "marks are off");
    m.umount();
    make(&bed.path("other"));
    put(&bed.path("other/new/2.h"), mail(2, ""));
    bed.env.push(("MAILDIR".into(), bed.path("other").into()));
    let m = bed.mount("anna");
    assert_eq!(texts(&m, "inbox"), ["text 2"]);
    m.umount();
    for (lines, why) in [
        ("sent = 1", "config.toml:3"),
        ("sent = \"../other\"", "do not begin with a dot"),
        ("sent = \"\"", "a folder needs a name"),
        ("folders = [\"Work\", \"/lists\"]", "without a slash before it"),
        ("marks = \"maybe\"", "maybe"),
        ("local = \"bob\"", "config.toml:3"),
        ("me = 7", "a text in quotes, or a list of them"),
        ("colour = \"red\"", "unknown key \"colour\""),
    ] {
        bed.config(&format!("[[store]]\nkind = \"maildir\"\n{lines}\n"));
        let out = bed.msgfs_out(&["status", "--me", "anna"]);
        assert!(!out.ok() && out.stderr.contains(why), "{lines}: {out:?}");
    }
    bed.config("[[store]]\nkind = \"amq\"\nsendmail = \"/x\"\n");
    let out = bed.msgfs_out(&["status", "--me", "anna"]);
    assert!(!out.ok() && out.stderr.contains("unknown key \"sendmail\""), "{out:?}");
}
