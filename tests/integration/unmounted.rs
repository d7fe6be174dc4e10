//! The command line without a mount and beside one: drafts, marks, and output.

use serde_json::{Value, json};

use crate::common::fixtures::three;
use crate::common::samp::{Rec, append_raw, bodies, log, today};
use crate::common::{Bed, Out, binary, quote, run, soon};

/// Parses lines of JSON.
#[track_caller]
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the sorted names of an object's members.
#[track_caller]
fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// Runs `msgfs ... --me bar` with a text on standard input.
#[track_caller]
fn bar(bed: &Bed, args: &[&str], input: &str) -> Out {
    let mut c = bed.msgfs(args);
    c.args(["--me", "bar"]);
    run(c, Some(input.as_bytes()))
}

/// Returns the output of a command that must exit with 0 and print nothing on standard error.
#[track_caller]
fn quiet(bed: &Bed, args: &[&str]) -> String {
    let out = bar(bed, args, "");
    assert!(out.ok() && out.stderr.is_empty(), "{args:?}: {out:?}");
    out.stdout
}

/// S350: drafts and their `.error` files are listed, read, removed and sent without a mount. `status` reports the
/// refusal, and does not report a read-only mailbox.
#[test]
fn s350_drafts_without_a_mount() {
    let bed = Bed::new();
    let refused = bar(&bed, &["write", "outbox/z"], "Via: nowhere\n\nhi");
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    assert_eq!(quiet(&bed, &["ls", "outbox"]), "z\nz.error\n");
    assert!(quiet(&bed, &["cat", "outbox/z.error"]).contains("nowhere"));
    assert_eq!(quiet(&bed, &["cat", "outbox/z"]), "Via: nowhere\n\nhi");
    let status = quiet(&bed, &["status"]);
    assert!(!status.contains("read-only") && status.contains("Z z: Via: there is no"), "{status}");
    quiet(&bed, &["rm", "outbox/z", "outbox/z.error"]);
    assert_eq!(quiet(&bed, &["ls", "outbox"]), "");
    assert!(bar(&bed, &["write", "outbox/.d"], "in the making").ok());
    assert!(!log(&bed.store, "bar").exists());
    quiet(&bed, &["mv", "outbox/.d", "outbox/foo"]);
    assert_eq!(bodies(&bed.store, "bar"), ["in the making"]);
    assert_eq!(quiet(&bed, &["ls", "outbox"]), "");
    assert_eq!(bar(&bed, &["rm", "archive"], "").code(), Some(1));
}

/// S350: the same holds beside a mount.
#[test]
fn s350_drafts_beside_a_mount() {
    let bed = Bed::new();
    let recs = three(&bed);
    let m = bed.mount("bar");
    assert!(bar(&bed, &["write", "outbox/.d"], "in the making").ok());
    assert_eq!(quiet(&bed, &["ls", "outbox"]), ".d\n");
    quiet(&bed, &["mv", "outbox/.d", "threads/plan/"]);
    quiet(&bed, &["mv", "threads/plan/.d", "threads/plan/answer"]);
    soon("the draft is sent", || bodies(&bed.store, "bar") == ["in the making"]);
    quiet(&bed, &["rm", &format!("inbox/{}", recs[0].name(0))]);
    m.inbox_becomes(&[&recs[1].name(0), &recs[2].name(0)]);
    quiet(&bed, &["mv", &recs[0].archived(0), "inbox"]);
    assert_eq!(m.ls("inbox").len(), 3);
}

/// S35, S351: `mark --all` marks everything in `inbox/`, with and without a mount, and no `kill -9` undoes it.
#[test]
fn s351_mark_all() {
    for mounted in [false, true] {
        let bed = Bed::new();
        let recs = three(&bed);
        let mut m = mounted.then(|| bed.mount("bar"));
        assert_eq!(bar(&bed, &["mark"], "").code(), Some(2));
        let out = bar(&bed, &["mark", "--all"], "");
        assert!(out.ok() && out.stderr == "3 messages marked as read\n", "{out:?}");
        assert_eq!(quiet(&bed, &["ls", "inbox"]), "");
        if let Some(mount) = m.take() {
            mount.kill9();
            m = Some(bed.mount("bar"));
            assert_eq!(quiet(&bed, &["ls", "inbox"]), "");
            let again = bar(&bed, &["mark", "--all"], "");
            assert!(again.ok() && again.stderr == "no unread messages\n", "{again:?}");
        }
        quiet(&bed, &["mv", &recs[1].archived(0), "inbox/"]);
        assert_eq!(quiet(&bed, &["ls", "inbox"]), recs[1].name(0) + "\n");
        drop(m);
    }
}

/// S352: rejected messages are in `rejected/` and `status.txt`, and no command reports them again.
#[test]
fn s352_garbage_is_not_told_by_every_command() {
    let bed = Bed::new();
    three(&bed);
    append_raw(&log(&bed.store, "eve"), "garbage\n");
    assert_eq!(quiet(&bed, &["ls", "rejected"]).lines().count(), 1);
    assert!(quiet(&bed, &["status"]).contains("1 rejected"));
    quiet(&bed, &["inbox"]);
    // A refused command does not say its reason in two ways either.
    let refused = bar(&bed, &["write", "outbox/foo"], "To: a b\n\nx");
    assert_eq!((refused.code(), refused.stderr.lines().count()), (Some(1), 1), "{refused:?}");
}

/// S353: the last refusal has its time, and goes when that draft was sent or removed.
#[test]
fn s353_the_last_refusal_has_a_time_and_goes() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let last = || m.last_refusal();
    assert_eq!(last(), "none");
    for (draft, ends) in [
        ("foo", "echo hi > outbox/foo"),
        ("foo", "rm outbox/foo"),
        ("foo", "mv outbox/foo outbox/z.tmp; echo hi > outbox/z.tmp; mv outbox/z.tmp outbox/zed"),
    ] {
        m.sh(&format!("printf 'Via: nowhere\\n\\nhi' > outbox/{draft}"));
        let said = last();
        let (time, rest) = said.split_once(' ').unwrap();
        let day = today();
        assert!(time.starts_with(&day) && time.len() == 24 && time.ends_with('Z'), "{said}");
        assert!(rest.starts_with("foo: Via:"), "{said}");
        m.ok(ends);
        assert_eq!(last(), "none", "{ends}");
    }
    // The success of another draft says nothing of this one.
    m.sh("printf 'Via: nowhere\\n\\nhi' > outbox/foo");
    m.ok("echo hi > outbox/carol");
    assert!(last().contains("foo: Via:"));
}

/// S354: `rm outbox/*` exits with 0 if drafts have their `.error` files beside them.
#[test]
fn s354_rm_of_everything_in_the_outbox() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    m.sh("for n in a b c; do printf 'Via: nowhere\\n\\nhi' > outbox/$n; done");
    assert_eq!(m.ls("outbox").len(), 6);
    m.ok("rm outbox/*");
    assert!(m.ls("outbox").is_empty());
    // A new refusal writes its `.error` file as before.
    m.sh("printf 'Via: nowhere\\n\\nhi' > outbox/a");
    assert_eq!(m.ls("outbox"), ["a", "a.error"]);
    m.ok("rm outbox/a.error && test -e outbox/a && rm outbox/a");
    assert!(!m.sh("rm outbox/a.error").ok(), "nobody has asked for both");
    // No old one stays beside a new draft that was sent either.
    m.sh("printf 'Via: nowhere\\n\\nhi' > outbox/a; rm outbox/a");
    m.ok("echo good > outbox/a && test ! -e outbox/a.error");
}

/// S355: `umount` of a mount that is in use names the programs that use it, and not itself.
#[test]
fn s355_umount_does_not_name_itself() {
    let bed = Bed::new();
    let m = bed.mount("bar");
    let script = format!(
        "cd {dir} && exec 9< README.txt && {msgfs} umount . 2>&1; echo $?; exec 9<&-; cd / && {msgfs} umount {dir}",
        dir = quote(&m.path("")),
        msgfs = quote(&binary()),
    );
    let out = bed.sh(&script);
    assert!(out.stdout.contains(" is in use by ") && out.stdout.contains("\n1\n"), "{out:?}");
    assert!(!out.stdout.contains("msgfs ("), "{out:?}");
    assert!(out.ok(), "{out:?}");
    // It does not block itself either.
    let m = bed.mount("bar");
    let (dir, msgfs) = (quote(&m.path("")), quote(&binary()));
    let out = bed.sh(&format!("cd {dir} && exec {msgfs} umount ."));
    assert!(out.ok(), "{out:?}");
}

/// S356: `init` writes me and every key of the configuration.
#[test]
fn s356_init_writes_me_and_every_key() {
    let bed = Bed::new();
    let file = bed.path("made.toml");
    let path = file.to_str().unwrap();
    let out = run(bed.msgfs(["init", "--me", "x", "--config", path]), None);
    assert!(out.ok(), "{out:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.lines().any(|line| line == "me = \"x\""), "{text}");
    for key in ["max_message", "watch", "unknown_recipient", "wait_timeout", "roles"] {
        assert!(text.contains(&format!("\n# {key} = ")), "{key}: {text}");
    }
    let out = run(bed.msgfs(["status", "--config", path]), None);
    assert!(out.ok() && out.stdout.starts_with("me: x\n"), "{out:?}");
    let other = bed.path("other.toml");
    let out = run(bed.msgfs(["init", "--me", "a b", "--config", other.to_str().unwrap()]), None);
    assert!(out.code() == Some(2) && !other.exists(), "{out:?}");
}

/// S357: `doctor` notices that FUSE cannot mount although everything for it is there.
#[test]
fn s357_doctor_tries_to_mount() {
    let bed = Bed::new();
    let told = |out: &Out| out.stdout.contains("FUSE cannot mount here");
    let out = bar(&bed, &["doctor"], "");
    assert!(!told(&out), "{out:?}");
    // The sandbox has all capabilities, and none over the folders that are mounted here.
    let mut sandbox = bed.command("unshare");
    sandbox.arg("-Ur").arg(binary()).args(["doctor", "--json", "--me", "bar"]);
    let out = run(sandbox, None);
    assert!(out.code() == Some(1) && told(&out), "{out:?}");
    let told: Vec<Value> = lines(&out.stdout);
    let mount = told.iter().find(|p| p["problem"].as_str().unwrap().contains("cannot mount here"));
    let mount = mount.unwrap();
    assert_eq!(keys(mount), ["command", "problem", "severity"]);
    assert_eq!(mount["severity"], "error");
    assert!(mount["command"].as_str().unwrap().starts_with("docker run --device /dev/fuse"));
}

/// S358: an AgentAZAll mailbox that does not exist is not called healthy.
#[test]
fn s358_a_missing_mailbox_is_not_healthy() {
    let bed = Bed::new();
    std::fs::create_dir(bed.path("a")).unwrap();
    let text = r#"{"agent_name": "bob.x", "mailbox_dir": "./data/mailboxes"}"#;
    std::fs::write(bed.path("a/config.json"), text).unwrap();
    bed.config(&format!("[[store]]\nkind = \"agentazall\"\ndir = {:?}\n", bed.path("a")));
    let status = quiet(&bed, &["status"]);
    assert!(status.contains("needs a look") && status.contains("there is no mailbox"), "{status}");
    std::fs::create_dir_all(bed.path("a/data/mailboxes/bob.x")).unwrap();
    assert!(!quiet(&bed, &["status"]).contains("there is no mailbox"));
}

/// S1159: beside a mount, `status --json` has what only the mount knows: the last refusal, unknown id and bad query.
#[test]
fn s1159_json_has_what_the_mount_knows() {
    let bed = Bed::new();
    let [Rec { id, .. }, ..] = three(&bed);
    let wrong = format!("{}{}", &id[..7], if id[..8].ends_with('0') { "1" } else { "0" });
    let m = bed.mount("bar");
    m.sh("printf 'Via: nowhere\\n\\nhi' > outbox/z; ls search/from:");
    m.sh(&format!("cat inbox/{wrong}"));
    let status = || lines(&quiet(&bed, &["status", "--json"])).remove(0);
    let told = status();
    assert_eq!(told["last_refusal"]["name"], "z", "{told}");
    assert_eq!(told["last_unknown_id"]["id"], wrong.as_str(), "{told}");
    assert_eq!(told["last_bad_query"]["query"], "from:", "{told}");
    assert!(!m.ok("ls -a").contains(".status\n"), "its file is not listed");
    m.umount();
    let told = status();
    assert_eq!([&told["last_unknown_id"], &told["last_bad_query"]], [&Value::Null; 2], "{told}");
}

/// S359: `--json` prints one object a line, with these members, for `inbox`, `status`, `key list`, `doctor` and
/// `check`.
#[test]
fn s359_json() {
    let bed = Bed::new();
    let recs = three(&bed);
    append_raw(&log(&bed.store, "eve"), "garbage\n");
    let status = lines(&quiet(&bed, &["status", "--json"]));
    assert_eq!(
        keys(&status[0]),
        [
            "key",
            "last_bad_query",
            "last_refusal",
            "last_sent",
            "last_unknown_id",
            "links",
            "me",
            "messages",
            "notes",
            "read_only",
            "stores",
            "unread"
        ]
    );
    assert_eq!((&status[0]["me"], &status[0]["unread"]), (&json!("bar"), &json!(3)));
    assert_eq!(status[0]["read_only"], false);
    assert_eq!(status[0]["last_refusal"], Value::Null);
    assert_eq!(status[0]["messages"][0]["name"], recs[0].name(0));
    assert_eq!(keys(&status[0]["messages"][0]), ["first_line", "name", "subject"]);
    let store = &status[0]["stores"][0];
    let members = [
        "from_me", "health", "healthy", "key", "kind", "me", "messages", "name", "rejected",
        "remarks", "to_me",
    ];
    assert_eq!(keys(store), members);
    assert_eq!((&store["to_me"], &store["rejected"]), (&json!(3), &json!(1)));
    bar(&bed, &["write", "outbox/z"], "Via: nowhere\n\nhi");
    let status = lines(&quiet(&bed, &["status", "--json"]));
    assert_eq!(keys(&status[0]["last_refusal"]), ["name", "reason", "time"]);
    let out = bar(&bed, &["check", "--json"], "");
    assert_eq!(keys(&lines(&out.stdout)[0]), ["detail", "file", "line", "rule", "store"]);
    for m in [None, Some(bed.mount("bar"))] {
        let messages = lines(&quiet(&bed, &["inbox", "--json"]));
        let bodies: Vec<&str> = messages.iter().map(|m| m["body"].as_str().unwrap()).collect();
        let told: Vec<String> = recs.iter().map(|r| format!("{}\n", r.body)).collect();
        assert_eq!(bodies, told);
        assert_eq!(
            keys(&messages[0]),
            ["body", "date", "from", "message_id", "name", "signature", "thread", "to"]
        );
        assert_eq!(
            (&messages[0]["from"], &messages[0]["signature"]),
            (&json!(recs[0].from), &json!("none"))
        );
        let again = bar(&bed, &["inbox", "--json"], "");
        assert!(again.ok() && again.stdout.is_empty(), "{again:?}");
        for (i, r) in recs.iter().enumerate().filter(|_| m.is_none()) {
            assert!(i < 3);
            quiet(&bed, &["mv", &r.archived(0), "inbox"]);
        }
    }
    bar(&bed, &["write", "outbox/foo"], "hi");
    let pins = lines(&quiet(&bed, &["key", "list", "--json"]));
    assert_eq!(keys(&pins[0]), ["address", "by_hand", "fingerprint", "key", "since"]);
}

/// S360: words are completed to paths of the tree, recipients, stores and mount points.
#[test]
fn s360_completions() {
    let bed = Bed::new();
    let recs = three(&bed);
    let completed = |words: &[&str]| {
        let mut c = bed.msgfs(["--", "msgfs", "--me", "bar"]);
        c.args(words).env("MSGFS_COMPLETE", "bash").env("_CLAP_IFS", "\n");
        c.env("_CLAP_COMPLETE_INDEX", (2 + words.len()).to_string());
        let out = run(c, None);
        assert!(out.ok() && out.stderr.is_empty(), "{words:?}: {out:?}");
        out.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed(&["cat", "inb"]), ["inbox/"]);
    assert_eq!(completed(&["cat", "inbox/"]).len(), 3);
    assert_eq!(completed(&["cat", "/threads/pl"]), ["/threads/plan/"]);
    assert_eq!(completed(&["send", "ca"]), ["carol"]);
    assert_eq!(completed(&["send", "foo,ca"]), ["foo,carol"]);
    assert_eq!(completed(&["check", "sa"]), ["samp"]);
    let m = bed.mount("bar");
    assert_eq!(completed(&["rm", "inbox/"]).len(), 3, "beside a mount, too");
    let dir = m.path("").to_str().unwrap().trim_end_matches('/').to_owned();
    assert_eq!(completed(&["umount", &dir]), [dir.as_str()]);
    assert_eq!(m.ls("inbox").len(), recs.len(), "nothing is marked");
    for shell in ["bash", "zsh", "fish"] {
        assert!(quiet(&bed, &["completions", shell]).contains("MSGFS_COMPLETE"), "{shell}");
    }
}

/// S361: the manual page names the values of options.
#[test]
fn s361_the_manual_page_names_values() {
    let bed = Bed::new();
    let page = run(bed.msgfs(["man"]), None).stdout;
    assert!(page.contains(r"[\fB\-\-me\fR \fINAME\fR] [\fB\-\-config\fR \fIFILE\fR]"), "{page}");
    assert!(page.contains(r"\fBmsgfs wait\fR [\fB\-\-timeout\fR \fITIME\fR]"));
    assert!(page.contains(r"\fBmsgfs cat\fR \fIPATH\fR..."));
}

/// S391: a project without `.agent` and a folder without task records say what is missing, until it is there.
#[test]
fn s391_nothing_there_yet() {
    for (kind, me, makes) in [("atsf", "user", ".agent"), ("ssot", "executor", "messages")] {
        let bed = Bed::new();
        std::fs::create_dir(bed.path("a")).unwrap();
        let dir = bed.path("a");
        bed.config(&format!("[[store]]\nkind = \"{kind}\"\nme = \"{me}\"\ndir = {dir:?}\n"));
        let missing = format!("there is no {}", dir.join(makes).display());
        let status = quiet(&bed, &["status"]);
        assert!(status.contains("needs a look") && status.contains(&missing), "{status}");
        let doctor = bar(&bed, &["doctor"], "");
        assert!(doctor.stdout.contains(&missing), "{doctor:?}");
        std::fs::create_dir(dir.join(makes)).unwrap();
        assert!(!quiet(&bed, &["status"]).contains(&missing));
        assert!(!bar(&bed, &["doctor"], "").stdout.contains(&missing));
    }
}
