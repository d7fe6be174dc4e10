//! The agent for whom a command acts, and what the command says of it.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::amq::{Queue, mail};
use crate::common::agz::{Letter, Tree, put};
use crate::common::samp::{self, T0, member, read_log};
use crate::common::{Bed, Out, binary, run};

/// Runs a command in a folder below the bed, which it makes.
fn in_folder(bed: &Bed, folder: &Path, args: &[&str]) -> Out {
    fs::create_dir_all(folder).unwrap();
    let mut c = bed.msgfs(args);
    c.current_dir(folder);
    run(c, None)
}

/// S720: if nobody chose the name that a command takes, the command says once which name it is and why. With a
/// chosen name it says nothing.
#[test]
fn s720_a_name_that_nobody_chose_is_told() {
    let bed = Bed::new();
    let shop = bed.path("work/shop");
    let m = bed.mount("anna");
    let out = in_folder(&bed, &shop, &["send", "bob", "hi"]);
    assert_eq!(out.stderr, "sent to bob as shop (the name of this folder)\n", "{out:?}");
    let out = in_folder(&bed, &shop, &["send", "bob@@", "hi"]);
    assert!(!out.ok() && out.stderr.contains("as shop (the name of this folder)"), "{out:?}");
    samp::append(&bed.store, "bob", "shop", "t", "to the shop", T0);
    for command in ["status", "inbox", "ls", "agents", "check", "reply"] {
        let args = if command == "reply" { vec!["reply", "fine"] } else { vec![command] };
        let out = in_folder(&bed, &shop, &args);
        let said = out.stderr.matches("as shop (the name of this folder)").count();
        assert_eq!(said, 1, "{command}: {out:?}");
    }
    fs::write(shop.join(".agent-message"), "till\n").unwrap();
    let out = in_folder(&bed, &shop, &["send", "bob", "hi"]);
    assert_eq!(out.stderr, "sent to bob as till (from ./.agent-message)\n");
    let config = bed.path("me.toml");
    fs::write(&config, "me = \"conf\"\n").unwrap();
    let config = config.to_str().unwrap();
    for args in
        [&["send", "bob", "hi", "--me", "anna"][..], &["send", "bob", "hi", "--config", config]]
    {
        assert_eq!(in_folder(&bed, &shop, args).stderr, "sent to bob\n", "{args:?}");
    }
    m.umount();
}

/// S720: in a mount the name of the mount counts before the configuration, also in a read-only mount.
#[test]
fn s720_in_a_mount_its_name_counts() {
    let bed = Bed::new();
    bed.config("me = \"conf\"\n");
    let (m, look) = (bed.mount("anna"), bed.mount_at(&bed.path("look"), "eve", &["--read-only"]));
    samp::append(&bed.store, "bob", "eve", "t", "to eve", T0);
    for folder in [m.path(""), m.path("threads"), m.path("outbox")] {
        let out = in_folder(&bed, &folder, &["send", "bob", "hi"]);
        assert_eq!(out.stderr, "sent to bob\n", "{out:?}");
    }
    m.ls("sent");
    assert_eq!(read_log(&bed.store, "anna").len(), 3);
    let out = in_folder(&bed, &look.path("inbox"), &["status"]);
    assert!(out.stdout.starts_with("me: eve\n") && out.stderr.is_empty(), "{out:?}");
    // Outside the mounts the configuration counts. The note comes first everywhere.
    let out = in_folder(&bed, &bed.path("beside"), &["status"]);
    assert!(out.stdout.starts_with("me: conf\n") && out.stderr.is_empty(), "{out:?}");
    let out = in_folder(&bed, &m.path(""), &["status", "--me", "zoe"]);
    assert!(out.stdout.starts_with("me: zoe\n"), "{out:?}");
    let mut c = bed.msgfs(["status"]);
    c.current_dir(m.path("")).env("MSGFS_ME", "var");
    assert!(run(c, None).stdout.starts_with("me: var\n"));
}

/// S356: `msgfs init --me` changes only me in an existing configuration.
#[test]
fn s356_init_changes_me() {
    let bed = Bed::new();
    let file = bed.path("there.toml");
    let path = file.to_str().unwrap();
    let text = "# mine\nme = 'old' # who\nmark_read = \"on-remove\"\n";
    fs::write(&file, text).unwrap();
    let out = run(bed.msgfs(["init", "--me", "anna", "--config", path]), None);
    assert!(out.ok() && out.stdout.contains("me was old"), "{out:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text.replace("'old'", "\"anna\""));
    let out = run(bed.msgfs(["status", "--config", path]), None);
    assert!(out.stdout.starts_with("me: anna\n"), "{out:?}");
    let out = run(bed.msgfs(["init", "--me", "anna", "--config", path]), None);
    assert!(out.stdout.contains("exists, unchanged"), "{out:?}");
    // The same holds if no line names me. Without a name, me does not change.
    fs::write(&file, "# empty\n").unwrap();
    let out = run(bed.msgfs(["init", "--config", path]), None);
    assert!(out.ok() && fs::read_to_string(&file).unwrap() == "# empty\n", "{out:?}");
    let out = run(bed.msgfs(["init", "--me", "anna", "--config", path]), None);
    assert!(out.ok() && member_of(&file) == "anna", "{out:?}");
    // A folder that another program makes is not said to be made.
    let dir = bed.path("queue");
    let store = format!("me = \"anna\"\n[[store]]\nkind = \"amq\"\ndir = \"{}\"\n", dir.display());
    fs::write(&file, store).unwrap();
    let out = run(bed.msgfs(["init", "--config", path]), None);
    assert!(out.stdout.contains("(missing") && !dir.exists(), "{out:?}");
}

/// Returns the name that a configuration gives me.
fn member_of(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("me = ")).unwrap_or_default();
    line.trim_matches('"').to_owned()
}

const QUICKSTART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/mount-scripts/quickstart.sh");

/// S721: `mount-scripts/quickstart.sh` writes me into the configuration, so that commands in any folder act for
/// the mount's name.
#[test]
fn s721_quickstart_writes_me() {
    let bed = Bed::new();
    let dir = bed.path("mail");
    let mut c = bed.command(QUICKSTART);
    c.args(["--me", "anna", "--bin"]).arg(binary()).arg("--dir").arg(&dir);
    let m = bed.mount_by(c, &dir, "anna");
    let out = in_folder(&bed, &bed.path("work/shop"), &["send", "bob", "hi"]);
    assert_eq!(out.stderr, "sent to bob\n", "{out:?}");
    m.ls("sent");
    assert_eq!(member(&read_log(&bed.store, "anna")[0], "to"), "bob");
}

/// S1266: it writes it, too, if only a store of the configuration has a `me`.
#[test]
fn s1266_quickstart_and_a_store_with_a_me() {
    let bed = Bed::new();
    bed.config("[[store]]\nkind = \"samp\"\n  me = \"bob\"\n");
    let dir = bed.path("mail");
    let mut c = bed.command(QUICKSTART);
    c.args(["--me", "anna", "--bin"]).arg(binary()).arg("--dir").arg(&dir);
    let _m = bed.mount_by(c, &dir, "anna");
    assert_eq!(member_of(&bed.path("config/msgfs/config.toml")), "anna");
}

/// S1260: the demonstration of the quick start neither shows nor marks mail of mine, though variables name stores that
/// have mail to its agents.
#[test]
fn s1260_the_demonstration_touches_no_mail_of_mine() {
    let mut bed = Bed::new();
    let queue = Queue::new(&bed, &["alice", "codex"]);
    let (place, text) = mail(1);
    let unread = queue.root.join(place.replace("bob", "codex"));
    put(&unread, text.replace("bob", "codex"));
    let tree = Tree::with(&bed, "codex@localhost", &json!({}));
    let letter = Letter::new("alice@localhost", "s", "a letter of mine", 1);
    tree.receive(&letter.set("To", "codex@localhost"));
    bed.env.push(("AM_ROOT".into(), queue.root.clone().into()));
    bed.env.push(("AGENTAZALL_ROOT".into(), tree.root.clone().into()));
    let mut c = bed.command(QUICKSTART);
    c.args(["--demo", "--bin"]).arg(binary());
    let out = run(c, None);
    assert!(out.ok() && out.stdout.contains("The demo worked"), "{out:?}");
    assert!(!out.stdout.contains("mail 1") && !out.stdout.contains("a letter of mine"), "{out:?}");
    assert!(unread.exists(), "it is still unread");
}
