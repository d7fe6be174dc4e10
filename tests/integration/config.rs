//! The configuration file, and the identity of me.

use std::fs;

use crate::common::samp::{self, T0, append, bodies};
use crate::common::{Bed, run};

/// S94: an error in the configuration gives file, line and the nearest valid word.
#[test]
fn s94_mistakes() {
    for (text, line, word) in [
        ("me = \"bar\"\nmark_raed = \"on-read\"\n", 2, "mark_read"),
        ("\n\nscope = \"al\"\n", 3, "all"),
        ("mark_read = \"on-removal\"\n", 1, "on-remove"),
        ("unsigned = \"accpet\"\n", 1, "accept"),
        ("durability = \"fsnc\"\n", 1, "fsync"),
        ("[[store]]\nkind = \"smap\"\n", 2, "samp"),
        ("[[store]]\nkind = \"samp\"\ndri = \"x\"\n", 3, "dir"),
        ("wait_timeout = \"soon\"\n", 1, "wait_timeout"),
        ("me = [\n", 1, "array"),
        ("unknown_recipient = 5\n", 1, "text"),
        ("me = \"not an alias!\"\n", 1, "me"),
    ] {
        let bed = Bed::new();
        bed.config(text);
        let dir = bed.path("m");
        let out = bed.msgfs_out(&["mount", dir.to_str().unwrap()]);
        crate::common::detach(&dir);
        assert!(matches!(out.code(), Some(1 | 2)), "{text:?}: {out:?}");
        let place = format!("config.toml:{line}");
        assert!(out.stderr.contains(&place), "{text:?}: wanted {place} in {out:?}");
        assert!(out.stderr.contains(word), "{text:?}: wanted {word} in {out:?}");
    }
}

/// S94: `--config` names another file. A missing file is an error.
#[test]
fn s94_other_file() {
    let bed = Bed::new();
    let other = bed.path("store-two");
    fs::create_dir(&other).unwrap();
    let r = append(&other, "foo", "zed", "t", "in the other store", T0);
    let file = bed.path("other.toml");
    fs::write(
        &file,
        format!("me = \"zed\"\n[[store]]\nname = \"work\"\nkind = \"samp\"\ndir = {other:?}\n"),
    )
    .unwrap();
    let mut c = bed.msgfs(["mount", "--config"]);
    c.arg(&file).arg(bed.path("m"));
    let m = bed.mount_by(c, &bed.path("m"), "zed");
    assert_eq!(m.ls("inbox"), [r.name(0)]);
    assert_eq!(m.ls("raw"), ["work"], "the entries replace the default store");
    m.ok("echo hi > outbox/foo");
    assert_eq!(bodies(&other, "zed"), ["hi"]);
    let out = bed.msgfs_out(&["ls", "inbox", "--config", "/nonexistent/x.toml"]);
    assert!(!out.ok() && out.stderr.contains("x.toml"), "{out:?}");
}

/// S94, S48: two stores in one mount have one inbox. `Via` chooses, and a recipient that one store knows is
/// reached there.
#[test]
fn s94_two_stores() {
    let bed = Bed::new();
    let (one, two) = (bed.path("one"), bed.path("two"));
    for d in [&one, &two] {
        fs::create_dir(d).unwrap();
    }
    bed.config(&format!(
        "[[store]]\nname = \"one\"\nkind = \"samp\"\ndir = {one:?}\n[[store]]\nname = \"two\"\nkind = \"samp\"\ndir = {two:?}\n"
    ));
    let a = append(&one, "foo", "bar", "same", "from one", T0);
    let b = append(&two, "zed", "bar", "same", "from two", T0 + 1);
    let m = bed.mount("bar");
    assert_eq!(m.ls("inbox"), [a.name(0), b.name(0)]);
    assert_eq!(m.ls("raw"), ["one", "two"]);
    let folders = m.ls("threads");
    assert!(folders.len() == 2 && folders.iter().all(|f| f.starts_with("same")), "{folders:?}");
    assert!(folders.iter().any(|f| f == "same~one" || f == "same~two"), "{folders:?}");
    m.ok("echo hi > outbox/zed");
    assert_eq!((bodies(&one, "bar").len(), bodies(&two, "bar").len()), (0, 1));
    m.ok("printf 'Via: one\\n\\nchosen\\n' > outbox/zed");
    assert_eq!(bodies(&one, "bar"), ["chosen"]);
    let out = m.sh("echo hi | tee outbox/stranger");
    assert!(!out.ok() && out.stderr.contains("No route to host"), "{out:?}");
    let why = m.cat("outbox/stranger.error");
    assert!(why.contains("one") && why.contains("two"), "the choices are listed: {why}");
}

/// S95: each source of me has precedence over the ones after it, and the mount names the source.
#[test]
fn s95_me() {
    let bed = Bed::new();
    let folder = bed.path("cwd/folder-name");
    fs::create_dir(&folder).unwrap();
    let who = |flag: bool, env: bool| {
        let mut c = bed.msgfs(["status"]);
        c.current_dir(&folder);
        if flag {
            c.args(["--me", "by-flag"]);
        }
        if env {
            c.env("MSGFS_ME", "by-env");
        }
        let out = run(c, None);
        assert!(out.ok(), "{out:?}");
        out.said()
    };
    assert!(who(false, false).contains("folder-name"));
    fs::write(folder.join(".agent-message"), "# comment\n  by-file \nsecond\n").unwrap();
    assert!(who(false, false).contains("by-file"), "the first valid line counts");
    bed.config("me = \"by-config\"\n");
    assert!(who(false, false).contains("by-config"));
    assert!(who(false, true).contains("by-env"));
    assert!(who(true, true).contains("by-flag"));
    let mut c = bed.msgfs(["mount"]);
    c.arg(bed.path("m")).current_dir(&folder).env("MSGFS_ME", "by-env");
    let m = bed.mount_by(c, &bed.path("m"), "by-env");
    assert!(m.said.contains("by-env") && m.said.contains("MSGFS_ME"), "{}", m.said);
}

/// S95: a folder whose name is no alias is not turned into one.
#[test]
fn s95_no_alias() {
    let bed = Bed::new();
    let folder = bed.path("cwd/no alias!");
    fs::create_dir(&folder).unwrap();
    let mut c = bed.msgfs(["mount"]);
    c.arg(bed.path("m")).current_dir(&folder);
    let out = run(c, None);
    crate::common::detach(&bed.path("m"));
    assert!(!out.ok() && out.stderr.contains("--me"), "{out:?}");
    assert!(!samp::log(&bed.store, "unknown").exists());
}

/// S443: a link over NATS through a WebSocket is refused when the configuration is read, and the error says what
/// to write.
#[test]
fn s443_links_through_web_sockets_are_refused_at_once() {
    let bed = Bed::new();
    for url in ["ws://127.0.0.1:8080", "wss://nats.example"] {
        bed.config(&format!("[[link]]\nkind = \"nats\"\nurl = \"{url}\"\n"));
        let out = bed.msgfs_out(&["--me", "alice", "ls"]);
        assert!(!out.ok() && out.stderr.contains("config.toml:3: "), "{out:?}");
        assert!(out.stderr.contains("nats://HOST:4222"), "{out:?}");
    }
}
