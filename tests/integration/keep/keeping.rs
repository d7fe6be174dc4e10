//! What `keep` writes, and what it refuses.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::common::proc::Running;
use crate::common::{PATIENCE, atsf_reader, run};

/// S1020, S1031: a session and that of its sub-agent become threads of the project in which it ran. `msgfs check`
/// finds nothing wrong, and only their owner can read them.
#[test]
fn s1020_threads() {
    let bed = bed();
    let mut session = Session::new(&bed, ONE, 0);
    session.turn(1);
    session.sub_agent();
    let said = kept(&bed, &[ONE]);
    assert!(
        said.contains("2 messages added") && said.contains("2 sessions kept, 4 messages added"),
        "{said}"
    );
    let lines = log(&bed, ONE);
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["id"], &lines[0]["role"]), (&json!(uuid(1)), &json!("user")));
    let kinds: Vec<&str> = lines[1]["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| b["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["thinking", "tool_call_ref", "tool_call_ref", "text", "resource"]);
    let call = &lines[1]["toolCalls"][0];
    assert_eq!(
        (&call["toolCallId"], &call["name"], &call["status"]),
        (&json!("t1"), &json!("Bash"), &json!("completed"))
    );
    assert_eq!(call["input"], r#"{"command":"tail log"}"#);
    assert_eq!(call["output"], "a\tb\n\u{1b}[31mred\n");
    let meta = meta(&bed, ONE);
    assert_eq!(meta["agent"]["id"], "claude-code");
    assert_eq!(meta["agent"]["version"], "2.1.332");
    assert_eq!(meta["context"]["workingDir"], json!(bed.path("shop")));
    assert_eq!(meta["context"]["gitBranch"], "main");
    assert_eq!(meta["metadata"]["msgfs"]["source"], "claude");
    let sub = super::meta(&bed, &format!("{ONE}.{SUB}"));
    assert_eq!(sub["parentThreadId"], ONE);
    let shop = bed.path("shop");
    assert_eq!(atsf_reader::texts(&bed, &shop, ONE), ["prompt 1", "answer 1\nwith two lines"]);
    let threads = atsf_reader::try_read(&bed, &shop).expect("threads");
    let calls = json!({"t1": ["Bash", "completed"], "long1": ["Bash", "completed"]});
    assert_eq!(threads[ONE]["messages"][1]["calls"], calls);
    let parent = &threads[format!("{ONE}.{SUB}")]["parent"];
    assert_eq!((&threads[ONE]["title"], parent), (&json!("prompt 1"), &json!(ONE)));
    let out = bed.msgfs_out(&["--me", "anna", "check"]);
    assert!(out.ok(), "{out:?}");
    let asset = lines[0]["content"][1]["assetRef"].as_str().unwrap();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let thread = folder(&bed, ONE);
    assert_eq!([thread.clone(), thread.join("assets")].map(mode), [0o700; 2]);
    let files = ["messages.jsonl", "thread.json", &format!("assets/{asset}")];
    assert_eq!(files.map(|file| mode(thread.join(file))), [0o600; 3]);
}

/// S1021: a second keep changes no byte. When the session goes on, lines are added. An edited log gets the messages
/// that it lost.
#[test]
fn s1021_again() {
    let bed = bed();
    let mut session = Session::new(&bed, ONE, 0);
    session.turn(1);
    kept(&bed, &["--all"]);
    let before = tree(&bed.path("shop"));
    let said = kept(&bed, &["--all"]);
    assert!(said.contains("1 session kept, 0 messages added"), "{said}");
    assert_eq!(tree(&bed.path("shop")), before);
    session.turn(2);
    kept(&bed, &["--all"]);
    let path = folder(&bed, ONE).join("messages.jsonl");
    let whole = fs::read(&path).unwrap();
    let old = &before.iter().find(|(name, _)| name.ends_with("messages.jsonl")).unwrap().1;
    assert!(whole.starts_with(old) && log(&bed, ONE).len() == 4);
    assert_eq!(atsf_reader::texts(&bed, &bed.path("shop"), ONE).len(), 4);
    assert_eq!(meta(&bed, ONE)["stats"]["messageCount"], 4);
    let text = String::from_utf8(whole).unwrap();
    let rest: String = text.lines().skip(1).map(|line| format!("{line}\n")).collect();
    fs::write(&path, format!("no JSON\n{rest}")).unwrap();
    kept(&bed, &["--all"]);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with(&format!("no JSON\n{rest}")) && text.contains(&uuid(1)), "{text}");
    kept(&bed, &["--all"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

/// S1020: the project is the innermost one that holds the working directory, also by a worktree of git.
#[test]
fn s1020_projects() {
    let bed = bed();
    let inner = bed.path("shop/inner");
    fs::create_dir_all(inner.join("src")).unwrap();
    let more = format!("[[store]]\nkind = \"atsf\"\nname = \"inner\"\ndir = {inner:?}\n");
    bed.config(&format!("{}{more}", stores(&bed, &["claude", "atsf"])));
    let script = "set -e; cd ../shop; git init -q; echo .agent/ > .gitignore; git -c user.name=t -c user.email=t@t \
                  commit -q --allow-empty -m x; git worktree add -q ../fix";
    assert!(bed.sh(script).ok());
    let ids = ["00000000-1", "00000000-2", "00000000-3"];
    for (n, (id, cwd)) in (0u32..).zip(ids.iter().zip(["shop/inner/src", "shop/gone/away", "fix"]))
    {
        let mut session = Session::new(&bed, id, n * 100);
        session.cwd = bed.path(cwd).to_str().unwrap().to_owned();
        session.turn(n);
    }
    kept(&bed, &["--all"]);
    assert!(inner.join(".agent/threads").join(ids[0]).is_dir());
    assert!(folder(&bed, ids[1]).is_dir() && folder(&bed, ids[2]).is_dir());
}

/// S1020: Claude Code puts the sessions of different projects into one folder, and the working directory in their lines
/// tells them apart.
#[test]
fn s1020_two_projects_in_one_folder() {
    let bed = bed();
    let projects = ["shop/b-c", "shop/b/c"].map(|name| bed.path(name));
    let mut config = stores(&bed, &["claude", "atsf"]);
    for (n, (project, id)) in (0u32..).zip(projects.iter().zip([ONE, TWO])) {
        fs::create_dir_all(project).unwrap();
        config
            .push_str(&format!("[[store]]\nkind = \"atsf\"\nname = \"p{n}\"\ndir = {project:?}\n"));
        let mut session = Session::new(&bed, id, n * 100);
        session.file = bed.path(format!("home/.claude/projects/-shop-b-c/{id}.jsonl"));
        session.cwd = project.to_str().unwrap().to_owned();
        session.turn(n);
    }
    bed.config(&config);
    kept(&bed, &["--all"]);
    for (n, (project, id)) in projects.iter().zip([ONE, TWO]).enumerate() {
        let threads = atsf_reader::try_read(&bed, project).expect("threads");
        let ids: Vec<&String> = threads.as_object().unwrap().keys().collect();
        assert_eq!(ids, [id]);
        assert_eq!(threads[id]["title"], format!("prompt {n}"));
    }
}

/// S1026: threads that git does not ignore are refused with the line for .gitignore. With the line, or with --tracked,
/// they are written.
#[test]
fn s1026_git() {
    let bed = bed();
    Session::new(&bed, ONE, 0).turn(1);
    let git = |script: &str| {
        let out = bed.sh(&format!("set -e; cd ../shop; {script}"));
        assert!(out.ok(), "{out:?}");
    };
    git("git init -q");
    let out = keep(&bed, &[ONE]);
    assert_eq!(out.code(), Some(1), "{out:?}");
    let line = out.stderr.lines().find(|line| line.starts_with('/')).expect("the line").to_owned();
    assert!(!bed.path("shop/.agent").exists());
    // Some of the files are not enough.
    git("printf 'messages.jsonl\\nassets/\\n' > .gitignore");
    assert_eq!(keep(&bed, &[ONE]).code(), Some(1));
    git(&format!("printf '%s\\n' '{line}' > .gitignore"));
    kept(&bed, &[ONE]);
    git("git add -A; test -z \"$(git ls-files .agent/threads)\"");
    // A tracked file is not ignored.
    git("git add -f .agent/threads");
    assert_eq!(keep(&bed, &[ONE]).code(), Some(1));
    kept(&bed, &["--tracked", ONE]);
    // Without git nobody can tell.
    git("git rm -rq --cached .agent/threads");
    let mut without = bed.msgfs(["--me", "anna", "keep", ONE]);
    without.env("PATH", bed.path("cwd"));
    let out = run(without, None);
    assert!(out.code() == Some(1) && out.stderr.contains("git is not installed"), "{out:?}");
}

/// S1027: whenever keep is killed, the next one completes the thread. Several at once write each message once.
#[test]
fn s1027_kills() {
    let bed = bed();
    let mut session = Session::new(&bed, ONE, 0);
    for n in 0..60 {
        session.turn(n);
    }
    let start =
        || Running::start(bed.msgfs(["--me", "anna", "keep", "--all"]), None).expect("start");
    for round in 0..12 {
        let running = start();
        std::thread::sleep(Duration::from_millis(10 + round * 12));
        running.signal(rustix::process::Signal::KILL);
        let _ = running.finish(PATIENCE);
        if round % 4 == 3 {
            let _ = fs::remove_dir_all(folder(&bed, ONE));
        }
    }
    let several: Vec<Running> = (0..4).map(|_| start()).collect();
    for running in several {
        let out = running.finish(PATIENCE).expect("end");
        assert!(out.ok(), "{out:?}");
    }
    let ids: Vec<String> =
        log(&bed, ONE).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
    let mut sorted = ids.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!((ids.len(), sorted.len()), (120, 120));
    assert_eq!(meta(&bed, ONE)["stats"]["messageCount"], 120);
    let left = tree(&folder(&bed, ONE)).into_iter().map(|(name, _)| name);
    let odd: Vec<String> =
        left.filter(|name| name.contains("/.")).filter(|name| !name.contains("/.agent/")).collect();
    assert!(odd.is_empty(), "{odd:?}");
    assert_eq!(atsf_reader::texts(&bed, &bed.path("shop"), ONE).len(), 120);
    let out = bed.msgfs_out(&["--me", "anna", "check"]);
    assert!(out.ok(), "{out:?}");
}

/// S1028: a full disk leaves no half line, and the next keep completes the thread.
#[test]
fn s1028_full_disk() {
    let bed = bed();
    let mut session = Session::new(&bed, ONE, 0);
    for n in 0..3 {
        session.turn(n);
        session.text(&"long ".repeat(20_000));
    }
    let mut mount = bed.command("mount");
    mount.args(["-t", "tmpfs", "-o", "size=192k", "msgfs-test"]).arg(bed.path("shop"));
    assert!(run(mount, None).ok());
    let out = keep(&bed, &[ONE]);
    assert!(out.code() == Some(1) && out.stderr.contains("No space left"), "{out:?}");
    if let Ok(text) = fs::read_to_string(folder(&bed, ONE).join("messages.jsonl")) {
        assert!(text.is_empty() || text.ends_with('\n'), "a half line");
    }
    let mut larger = bed.command("mount");
    larger.args(["-o", "remount,size=8m"]).arg(bed.path("shop"));
    assert!(run(larger, None).ok());
    kept(&bed, &[ONE]);
    assert_eq!(log(&bed, ONE).len(), 9);
    assert_eq!(atsf_reader::texts(&bed, &bed.path("shop"), ONE).len(), 9);
}

/// S1029: what fails is reported, the others are kept, and the exit code is 1. Without a store of sessions, the lines
/// for it are printed.
#[test]
fn s1029_failures() {
    let bed = bed();
    Session::new(&bed, ONE, 0).turn(1);
    let mut elsewhere = Session::new(&bed, TWO, 100);
    elsewhere.cwd = "/srv/other".into();
    elsewhere.turn(2);
    let out = keep(&bed, &["--all"]);
    assert!(out.code() == Some(1) && out.stderr.contains("/srv/other"), "{out:?}");
    assert!(out.stderr.contains("1 session kept, 2 messages added, 1 failed"), "{out:?}");
    assert!(folder(&bed, ONE).exists() && !folder(&bed, TWO).exists());
    kept(&bed, &["--all", "--store", "atsf"]);
    assert_eq!(log(&bed, TWO).len(), 2);
    let out = keep(&bed, &["--store", "nowhere", ONE]);
    assert!(out.code() == Some(2) && out.stderr.contains("there is: atsf"), "{out:?}");
    bed.config(&stores(&bed, &["atsf"]));
    let out = keep(&bed, &["--all"]);
    assert!(out.code() == Some(1) && out.stderr.contains("kind = \"claude\""), "{out:?}");
    assert_eq!(keep(&bed, &[]).code(), Some(2));
}

/// S1030: eight characters name a session if no other begins so.
#[test]
fn s1030_prefix() {
    let bed = bed();
    let other = ONE.replace("-9a35-", "-9a36-");
    Session::new(&bed, ONE, 0).turn(1);
    Session::new(&bed, &other, 100).turn(2);
    let out = keep(&bed, &["5f0c2f0a"]);
    assert!(
        out.code() == Some(1) && out.stderr.contains(ONE) && out.stderr.contains(&other),
        "{out:?}"
    );
    for (name, words) in [("5f0c", "8 characters"), ("5f0c2f0b", "no session")] {
        let out = keep(&bed, &[name]);
        assert!(out.code() == Some(1) && out.stderr.contains(words), "{out:?}");
    }
    kept(&bed, &["5f0c2f0a-9a35"]);
    assert!(folder(&bed, ONE).exists() && !folder(&bed, &other).exists());
}
