//! The address filter.

use std::fs;

use serde_json::{Value, json};

use crate::agentazall::with;
use crate::common::agz::{Letter, Tree};
use crate::common::shown;
use crate::common::{Bed, soon};

/// Returns those of four senders whose mail arrives under a filter. The mail of the others must be in rejected/
/// with its text.
#[track_caller]
fn arrive(config: &Value) -> Vec<&'static str> {
    let bed = Bed::new();
    let tree = Tree::new(&bed);
    tree.configure(config);
    bed.config(&tree.store());
    let who = [
        ("alice", Letter::new("alice@localhost", "s", "of alice", 1)),
        ("Bob", Letter::new("\"Bob, the\" <bob@evil.example>", "s", "of bob", 2)),
        ("svc", Letter::new("SVC.e0be@relay.agenttalk", "s", "of svc", 3)),
        ("nobody", Letter::new("", "s", "of nobody", 4).unset("From")),
    ];
    for (_, l) in &who {
        tree.put(crate::common::agz::DAY, "inbox", l.id(), l.text());
    }
    let m = bed.mount("bar");
    let kept = shown::all(&m, "archive");
    assert_eq!(m.ls("inbox").len(), kept.len());
    let refused = shown::rejected(&m);
    assert_eq!(kept.len() + refused.len(), who.len(), "{config}: {refused:#?}");
    let mut names = Vec::new();
    for (name, l) in &who {
        if kept.iter().any(|s| s.body.trim_end() == l.body) {
            names.push(*name);
        } else {
            let text = refused.iter().find(|t| t.contains(&l.body));
            let text = text.unwrap_or_else(|| panic!("{config}: {name} is lost: {refused:#?}"));
            assert!(text.starts_with("Reason: ") && text.contains("filter"), "{text}");
        }
        assert!(tree.file(crate::common::agz::DAY, "inbox", &format!("{}.txt", l.id())).exists());
    }
    names
}

/// S112: the filter handles blacklist, whitelist, globs, bare addresses, the empty whitelist, and both names of
/// the key.
#[test]
fn s112_modes() {
    let all = ["alice", "Bob", "svc", "nobody"];
    let filter = |f: Value| arrive(&json!({"address_filter": f}));
    assert_eq!(arrive(&json!({})), all);
    assert_eq!(filter(json!({"mode": "off", "blacklist": ["*"]})), all);
    assert_eq!(
        filter(json!({"mode": "blacklist", "blacklist": ["BOB@EVIL.example"]})),
        ["alice", "svc", "nobody"]
    );
    assert_eq!(
        filter(json!({"mode": "blacklist", "blacklist": ["*.agenttalk", "*@evil.*"]})),
        ["alice", "nobody"]
    );
    assert_eq!(filter(json!({"mode": "blacklist", "blacklist": ["[ab]*"]})), ["svc", "nobody"]);
    assert_eq!(
        filter(json!({"mode": "whitelist", "whitelist": ["alice@localhost", "bob@evil.example"]})),
        ["alice", "Bob"]
    );
    assert_eq!(filter(json!({"mode": "whitelist", "whitelist": []})), [""; 0]);
    assert_eq!(
        filter(json!({"mode": "whitelist", "whitelist": ["*"], "blacklist": ["svc*"]})),
        ["alice", "Bob"]
    );
    assert_eq!(
        arrive(&json!({"filter": {"mode": "whitelist", "whitelist": ["alice@*"]}})),
        ["alice"]
    );
}

/// S1392: a list of the filter that is no list is reported, at the start and when the configuration changes.
#[test]
fn s1392_a_list_that_is_none() {
    let odd = [json!("alice@*"), json!({"alice@*": true})];
    let filter = |list: &Value| json!({"address_filter": {"mode": "blacklist", "blacklist": list}});
    let (_bed, tree, m) = with(|_, tree| tree.configure(&filter(&odd[0])));
    let told = || m.cat("status.txt").contains("blacklist of the address filter in ");
    assert!(told(), "{}", m.cat("status.txt"));
    tree.configure(&filter(&json!(["alice@*"])));
    soon("the report is gone", || !told());
    tree.configure(&filter(&odd[1]));
    soon("it is reported", told);
}

/// S112: the filter is read anew when the configuration changes, and messages that it held back appear.
#[test]
fn s112_changes() {
    let a = Letter::new("alice@localhost", "s", "from alice", 1);
    let (_bed, tree, m) = with(|_, tree| {
        tree.configure(&json!({"address_filter": {"mode": "whitelist", "whitelist": []}}));
        tree.receive(&a);
    });
    assert_eq!((m.ls("inbox").len(), m.ls("rejected").len()), (0, 1));
    tree.configure(&json!({"address_filter": {"mode": "whitelist", "whitelist": ["alice@*"]}}));
    m.appears(&format!("inbox/{}", a.name(1)));
    soon("rejected/ is empty", || m.ls("rejected").is_empty());
    tree.configure(&json!({"address_filter": {"mode": "blacklist", "blacklist": ["alice@*"]}}));
    m.inbox_becomes(&[]);
    assert_eq!(m.ls("rejected").len(), 1);
}

/// S112: blocking an address hides no message that was delivered and read, with the cache and without it. A later
/// message is held back, also if it says that it was read.
#[test]
fn s112_read_mail_stays() {
    let old = Letter::new("alice@localhost", "s", "old", 1);
    let (bed, tree, m) = with(|_, tree| {
        tree.receive(&old);
    });
    let name = old.name(1);
    m.ok("cat inbox/*");
    m.inbox_becomes(&[]);
    let file = tree.file(crate::common::agz::DAY, "inbox", &format!("{}.txt", old.id()));
    crate::common::agz::says(&file, "Status: read");
    tree.configure(&json!({"address_filter": {"mode": "blacklist", "blacklist": ["alice@*"]}}));
    let new = Letter::new("alice@localhost", "s", "new", 2).set("Status", "read");
    tree.receive(&new);
    soon("the new one is held back", || m.ls("rejected").len() == 1);
    assert!(m.ok("ls archive/*").contains(&name));
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    let m = bed.mount("bar");
    assert!(m.ok("ls archive/*").contains(&name));
}

/// S112: a recipient whose filter refuses me gives EBADMSG if its configuration can be read.
#[test]
fn s112_recipient() {
    let (_bed, tree, m) = with(|_, _| {});
    let refuses = json!({"address_filter": {"mode": "blacklist", "blacklist": ["bar@*"]}});
    tree.beside("bob@localhost", &refuses);
    fs::create_dir_all(tree.mailbox("carol@localhost")).unwrap();
    let out = m.sh("echo hi | tee outbox/bob@localhost");
    assert!(!out.ok() && out.stderr.contains("Bad message"), "{out:?}");
    assert!(m.cat("outbox/bob@localhost.error").contains("bob@localhost"));
    assert_eq!(tree.list("bob@localhost", "inbox"), []);
    assert_eq!(tree.list("bar@localhost", "outbox"), []);
    m.ok("echo hi > outbox/carol@localhost");
    assert_eq!(tree.list("carol@localhost", "inbox").len(), 1);
}
