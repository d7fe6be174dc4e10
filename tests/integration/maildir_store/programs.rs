//! mblaze, mutt and notmuch on the Maildir of a mount.

use std::fs;

use super::{mail, texts, with};
use crate::common::{quote, soon};

/// S802: mblaze delivers, and marks in `new/`. Neither makes a second message.
#[test]
fn s802_mblaze() {
    let (bed, place, m) = with("", |_| {});
    let anna = quote(&place.at("anna"));
    fs::write(bed.path("cwd/1"), mail(1, "")).unwrap();
    let run = |script: String| {
        let out = bed.sh(&script);
        assert!(out.ok(), "{out:?}");
    };
    run(format!("mdeliver {anna} <1"));
    soon("it is there", || texts(&m, "inbox") == ["text 1"]);
    run(format!("mflag -S {anna}/new/*"));
    soon("it is read", || m.ls("inbox").is_empty());
    run(format!("minc {anna}"));
    run(format!("mflag -sF {anna}/cur/*"));
    soon("it is unread", || m.ls("inbox").len() == 1);
    m.ok("cat inbox/*");
    soon("both flags are there", || place.names("anna/cur").iter().all(|n| n.ends_with(":2,FS")));
    assert_eq!(m.ls("archive/2026-04-24").len(), 1);
    run(format!(
        "mkdir -p {anna}/.Old/cur {anna}/.Old/new {anna}/.Old/tmp; mrefile {anna}/cur/* {anna}/.Old"
    ));
    soon("it lies elsewhere", || m.sh("cat archive/2026-04-24/*").stdout.contains("text 1"));
    assert_eq!(m.ls("archive/2026-04-24").len(), 1);
}

/// S802: mutt opens and leaves the Maildir: nothing is read. It shows a mail: that one is.
#[test]
fn s802_mutt() {
    let (bed, place, m) = with("", |place| {
        place.deliver("anna/new/1.h", &mail(1, ""));
        place.deliver("anna/new/2.h", &mail(2, ""));
    });
    let names = m.ls("inbox");
    let mutt = |keys: &str| {
        let (anna, run) = (quote(&place.at("anna")), quote(&bed.path("run")));
        let rc = format!(
            "set mbox_type=Maildir folder={anna} spoolfile={anna} tmpdir={run} wait_key=no\n\
             set move=no mark_old=yes quit=yes pager_stop=yes delete=yes copy=no\npush \"{keys}<quit>\"\n"
        );
        fs::write(bed.path("muttrc"), rc).unwrap();
        m.ok(&format!(
            "TERM=xterm script -qec 'mutt -n -F {}' /dev/null",
            quote(&bed.path("muttrc"))
        ))
    };
    mutt("");
    soon("mutt has moved all", || place.names("anna/new").is_empty());
    m.inbox_stays(&names.iter().map(String::as_str).collect::<Vec<_>>());
    mutt("<first-entry><display-message><exit>");
    soon("one is read", || texts(&m, "inbox") == ["text 2"]);
    m.ok("cat inbox/*");
    soon("mutt sees it", || place.names("anna/cur").iter().all(|name| name.ends_with('S')));
    let seen = mutt("<first-entry>");
    assert!(seen.contains("mail 1") && seen.contains("mail 2"), "{seen}");
    assert_eq!(m.ls("archive/2026-04-24").len(), 2);
}

/// S802: a tag of notmuch marks every file with the id, and notmuch sees the marks of the mount.
#[test]
fn s802_notmuch() {
    let (bed, place, m) = with("", |place| {
        super::make(&place.at("anna/.list"));
        place.deliver("anna/new/1.h", &mail(1, ""));
        place.deliver("anna/.list/new/1.l", &mail(1, ""));
        place.deliver("anna/new/2.h", &mail(2, ""));
    });
    let config = bed.path("notmuch");
    let text = format!(
        "[database]\npath={}\n[new]\ntags=unread;\n[maildir]\nsynchronize_flags=true\n",
        place.at("anna").display()
    );
    fs::write(&config, text).unwrap();
    let notmuch = |words: &str| {
        let out = bed.sh(&format!("NOTMUCH_CONFIG={} notmuch {words}", quote(&config)));
        assert!(out.ok(), "{out:?}");
        out.stdout.trim().to_owned()
    };
    notmuch("new");
    notmuch("tag -unread id:m1@example.org");
    soon("one is read", || texts(&m, "inbox") == ["text 2"]);
    assert_eq!(place.names("anna/.list/cur"), ["1.l:2,S"]);
    m.ok("cat inbox/*");
    soon("the file has S", || place.names("anna/cur") == ["1.h:2,S", "2.h:2,S"]);
    // Without this word notmuch skips a folder that changed twice in a second.
    notmuch("new --full-scan");
    assert_eq!(notmuch("count tag:unread"), "0");
    assert_eq!(m.ls("archive/2026-04-24").len(), 2);
}
