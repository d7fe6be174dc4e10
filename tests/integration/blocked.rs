//! Accepted messages that their stores cannot take yet.

use std::fs;
use std::path::Path;

use crate::common::agz::{self, Tree};
use crate::common::amp::{ALICE, Home};
use crate::common::{Bed, Mount, soon};
use crate::receipts::{becomes, make_maildirs};

/// Checks that an accepted message is in `sent/` while a file in the place of a folder keeps its store from taking it,
/// and that it has the same name and text afterwards.
#[track_caller]
fn is_in_sent_while_blocked(m: &Mount, to: &str, blocked: &Path) {
    fs::create_dir_all(blocked.parent().unwrap()).unwrap();
    fs::write(blocked, "").unwrap();
    m.ok(&format!("printf 'To: {to}\\nSubject: plan\\n\\nhello\\n' > outbox/x"));
    let before = m.ok("cd sent/*; ls; cat *.txt");
    assert!(before.ends_with("\n\nhello\n"), "{before}");
    let stem = before.split_once(".txt").unwrap().0.to_owned();
    becomes(m, to, "waiting");
    let why = m.ok(&format!("cat sent/*/{stem}.warning"));
    assert!(why.contains(&format!("waits for {to}")), "{why}");
    fs::remove_file(blocked).unwrap();
    becomes(m, to, "delivered");
    soon("nothing is to be said", || m.sh("ls sent/*/*.warning").stdout.is_empty());
    assert_eq!(m.ok("cd sent/*; ls; cat *.txt"), before.replace(&format!("{stem}.warning\n"), ""));
}

/// S1140: an accepted message that its store cannot take yet is in `sent/` at once, in stores of files, too.
#[test]
fn s1140_what_the_store_cannot_take_yet_is_in_sent() {
    let bed = Bed::new();
    let home = Home::new(&bed);
    home.agent("carol", "acme", 3);
    bed.config(&home.store());
    let m = bed.mount("bar");
    let sent = home.dir("bar").join("messages/sent");
    is_in_sent_while_blocked(&m, ALICE, &sent.join(ALICE.replace(['@', '.'], "_")));
    // A message of which one recipient's part waits is one entry, and its note says for whom.
    let carol = ALICE.replace("alice", "carol");
    let blocked = sent.join(carol.replace(['@', '.'], "_"));
    fs::write(&blocked, "").unwrap();
    m.ok("printf 'To: alice, carol\\nSubject: both\\n\\nto two\\n' > outbox/x");
    becomes(&m, &carol, "waiting");
    becomes(&m, ALICE, "delivered");
    assert_eq!(m.ok("grep -l 'to two' sent/*/*.txt").lines().count(), 1);
    let note = m.ok("cat sent/*/*.warning");
    assert!(note.starts_with(&format!("waits for {carol}")), "{note}");
    fs::remove_file(&blocked).unwrap();
    becomes(&m, &carol, "delivered");
    assert_eq!(m.sh("ls sent/*/*.warning").stdout, "");
    drop(m);
    let tree = Tree::new(&bed);
    bed.config(&tree.store());
    let dave = "dave@localhost";
    fs::create_dir(tree.mailbox(dave)).unwrap();
    let m = bed.mount("bar");
    is_in_sent_while_blocked(&m, dave, &tree.base().join(agz::today()).join("inbox"));
    drop(m);
    let root = make_maildirs(&bed, &["anna", "bob"]);
    let m = bed.mount("anna");
    is_in_sent_while_blocked(&m, "bob@localhost", &root.join("anna/.Sent/tmp"));
}
