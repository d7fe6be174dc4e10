//! Messages and threads that are made through the mount.

use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Verifier as _, VerifyingKey};
use serde_json::{Value, json};

use super::{ONE, TWO, folder, lines, log, manifest, message, thread, two, with};
use crate::common::agz::put;
use crate::common::{Bed, atsf_reader, samp, shown, soon};

/// S154: a reply appends one signed line and updates the four stats and `updatedAt`. It changes no other byte.
#[test]
fn s154_reply() {
    // The file has numbers, spacing, line ends and members that a library would spell in another way.
    let odd = format!("{:#}\n", manifest(ONE, "odd", &two()))
        .replace("\"specVersion\"", "\"x\" :  [1e2, 1.50,-0],\r\n \"specVersion\"")
        .replace("\"workingDir\"", "\"é\\u00e9\": null,   \"workingDir\"");
    let (bed, project, m) = with(|p| {
        put(&folder(p, ONE).join("thread.json"), &odd);
        put(&folder(p, ONE).join("messages.jsonl"), lines(&two()));
    });
    let before = fs::read_to_string(folder(&project, ONE).join("messages.jsonl")).unwrap();
    m.ok(&format!("echo 'And with a proxy?' > threads/{ONE}/answer"));
    let after = fs::read_to_string(folder(&project, ONE).join("messages.jsonl")).unwrap();
    assert!(after.starts_with(&before), "stored lines are never written again");
    let all = log(&project, ONE);
    let [_, _, mine] = &all[..] else { panic!("{all:#?}") };
    assert_eq!(
        (&mine["role"], &mine["content"]),
        (&json!("user"), &json!([{"type": "text", "text": "And with a proxy?"}]))
    );
    let now = fs::read_to_string(folder(&project, ONE).join("thread.json")).unwrap();
    let expected = odd
        .replace("\"messageCount\": 2", "\"messageCount\": 3")
        .replace("\"userMessageCount\": 1", "\"userMessageCount\": 2")
        .replace("2026-04-24T17:42:09.250Z", mine["timestamp"].as_str().unwrap());
    assert_eq!(now, expected);
    assert_eq!(atsf_reader::texts(&bed, &project, ONE)[2], "And with a proxy?");
    let raw = |name: &str| BASE64.decode(mine["signature"][name].as_str().unwrap()).unwrap();
    let mut unsigned = mine.clone();
    unsigned.as_object_mut().unwrap().remove("signature");
    // Sorted keys and no spaces: serde_json prints a map without preserved order in this way.
    let covered = format!("atsf-sig-v1\n{unsigned}");
    VerifyingKey::from_bytes(&raw("pub").try_into().unwrap())
        .unwrap()
        .verify(covered.as_bytes(), &Signature::from_bytes(&raw("sig").try_into().unwrap()))
        .expect("the signature fits");
    let s = shown::all(&m, &format!("threads/{ONE}")).pop().unwrap();
    assert!(s.must("Signature").starts_with("valid "));
    assert!(m.ok("cat sent/*/*.txt").contains("And with a proxy?"));
}

/// S53: of two messages of one moment, the one in the later line is the newest. So a reply to the thread is no tie.
#[test]
fn s53_the_order_of_lines_decides() {
    for roles in [["system", "agent"], ["agent", "system"]] {
        let messages: Vec<Value> = (1..)
            .zip(roles)
            .map(|(n, role)| message(n, role, "2026-04-24T17:42:03.100Z", role))
            .collect();
        let (_bed, project, m) = with(|p| thread(p, ONE, "t", &messages));
        m.ok(&format!("echo 'And now?' > threads/{ONE}/answer"));
        assert_eq!(log(&project, ONE).len(), 3);
        let mine = shown::all(&m, &format!("threads/{ONE}")).pop().unwrap();
        assert_eq!((mine.must("To"), mine.body.trim()), ("agent", "And now?"));
    }
}

/// S155: `Via: atsf` and a Subject make a new thread each time. An image in a composing folder becomes an asset.
#[test]
fn s155_new_threads() {
    let (bed, project, m) = with(|p| {
        put(
            &p.join(".agent/config.json"),
            r#"{"specVersion":"1.1","defaults":{"agentId":"codex"}}"#,
        );
        put(&p.join(".agent/.gitignore"), "mine\n");
    });
    m.ok("printf 'Via: atsf\\nSubject: first\\n\\nhello\\n' > outbox/agent");
    m.ok("mkdir outbox/agent && printf '\\x89PNG\\r\\n\\x1a\\nx' > outbox/agent/shot.png && \
          printf 'Via: atsf\\nSubject: second\\n\\nsee\\n' > outbox/agent/body");
    soon("both threads", || m.ls("threads").len() == 2);
    let mut titles = Vec::new();
    for id in m.ls("threads") {
        let text = fs::read_to_string(folder(&project, &id).join("thread.json")).unwrap();
        let t: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&t["threadId"], &t["specVersion"]), (&json!(id), &json!("1.1")));
        assert_eq!(t["agent"]["id"], "codex");
        assert_eq!(t["context"]["workingDir"], json!(project.to_str().unwrap()));
        assert_eq!(t["stats"]["messageCount"], 1);
        assert!(text.starts_with("{\n  \"specVersion\"") && text.ends_with("}\n"), "{text}");
        titles.push(t["title"].as_str().unwrap().to_owned());
        if t["title"] == "second" {
            let [line] = &log(&project, &id)[..] else { panic!("one line") };
            let image =
                line["content"].as_array().unwrap().iter().find(|b| b["type"] == "image").unwrap();
            assert_eq!(image["mimeType"], "image/png");
            let asset =
                folder(&project, &id).join("assets").join(image["assetRef"].as_str().unwrap());
            assert_eq!(fs::read(asset).unwrap(), b"\x89PNG\r\n\x1a\nx");
        }
    }
    titles.sort();
    assert_eq!(titles, ["first", "second"]);
    is_read_by_others(&bed, &project);
    assert_eq!(fs::read_to_string(project.join(".agent/.gitignore")).unwrap(), "mine\n");
    let out = m.sh("printf 'Via: atsf\\n\\nno subject\\n' > outbox/agent");
    assert!(m.cat("outbox/agent.error").contains("Subject"), "{out:?}");
    for line in ["Cc: dave", "Priority: high", "Type: x", "To: bob, carol"] {
        let out =
            m.sh(&format!("printf 'Via: atsf\\nSubject: third\\n{line}\\n\\nhi\\n' > outbox/q"));
        let name = line.split(':').next().unwrap();
        assert!(m.cat("outbox/q.error").contains(name), "{line}: {out:?}");
        m.ok("rm outbox/q");
    }
    assert_eq!(m.ls("threads").len(), 2);
}

/// Checks that another program reads the threads, and that it is strict.
#[track_caller]
fn is_read_by_others(bed: &Bed, project: &Path) {
    let threads = atsf_reader::try_read(bed, project).expect("threads");
    assert_eq!(threads.as_object().unwrap().len(), 2);
    for id in threads.as_object().unwrap().keys() {
        assert_eq!(threads[id]["messages"].as_array().unwrap().len(), 1, "{threads}");
    }
    let is_refused = |path: &Path, bytes: &[u8]| {
        let before = fs::read(path).unwrap();
        fs::write(path, bytes).unwrap();
        let read = atsf_reader::try_read(bed, project);
        assert!(read.is_err(), "{}: {}", path.display(), String::from_utf8_lossy(bytes));
        fs::write(path, before).unwrap();
    };
    let thread = threads.as_object().unwrap().keys().find(|id| threads[*id]["title"] == "second");
    let thread = folder(project, thread.unwrap());
    for (file, from, to) in [
        ("messages.jsonl", "{\"", "{ \"id\":7,\""),
        ("messages.jsonl", "\"role\":\"user\"", "\"role\":\"person\""),
        ("messages.jsonl", "\"role\":\"user\"", "\"role\":\"agent\""),
        ("messages.jsonl", "Z\"", "+00:00\""),
        ("messages.jsonl", "\"mimeType\"", "\"kind\""),
        ("messages.jsonl", "image/png", "image/gif"),
        ("messages.jsonl", "}\n", "}"),
        ("messages.jsonl", "}\n", "}\n\n"),
        ("messages.jsonl", "}\n", "}\r\n"),
        ("thread.json", "\"messageCount\": 1", "\"messageCount\": 2"),
        ("thread.json", "\"messageCount\": 1", "\"messageCount\": 1.0"),
        ("thread.json", "\"1.1\"", "\"2.0\""),
        ("thread.json", "\"threadId\": \"", "\"threadId\": \"x"),
        ("thread.json", "\"workingDir\": \"/", "\"workingDir\": \""),
        ("thread.json", "\"updatedAt\"", "\"updated\""),
    ] {
        let path = thread.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from} is not in {text}");
        is_refused(&path, text.replacen(from, to, 1).as_bytes());
    }
    let log = fs::read_to_string(thread.join("messages.jsonl")).unwrap();
    is_refused(&thread.join("messages.jsonl"), log.repeat(2).as_bytes());
    is_refused(&thread.join("messages.jsonl"), format!("\u{feff}{log}").as_bytes());
    let asset = fs::read_dir(thread.join("assets")).unwrap().next().unwrap().unwrap().path();
    is_refused(&asset, b"other bytes");
}

/// S156: a torn last line is repaired before the next one is written.
#[test]
fn s156_torn_tail() {
    for (tail, kept) in [
        ("{\"id\":\"half", 2),
        (r#"{"id":"w","role":"agent","timestamp":"2026-04-24T18:00:00.000Z","content":[]}"#, 3),
    ] {
        let (bed, project, m) = with(|p| {
            thread(p, ONE, "torn", &two());
            put(&folder(p, ONE).join("messages.jsonl"), lines(&two()) + tail);
        });
        m.ok(&format!("echo next > threads/{ONE}/answer"));
        assert_eq!(log(&project, ONE).len(), kept + 1);
        assert_eq!(atsf_reader::texts(&bed, &project, ONE).len(), kept + 1);
    }
}

/// S157: a thread that another program locks delays nobody else, and takes the message when it is free.
#[test]
fn s157_locked() {
    let (bed, project, m) = with(|p| {
        thread(p, ONE, "locked", &two());
        thread(p, TWO, "free", &two());
    });
    let mut lock = Command::new("flock");
    lock.arg(folder(&project, ONE).join("messages.jsonl")).args(["sleep", "3"]).process_group(0);
    let mut lock = lock.spawn().expect("flock");
    std::thread::sleep(std::time::Duration::from_millis(200));
    m.ok(&format!("echo waits > threads/{ONE}/a"));
    m.ok(&format!("echo at once > threads/{TWO}/a"));
    soon("the free thread", || log(&project, TWO).len() == 3);
    assert_eq!(log(&project, ONE).len(), 2);
    lock.wait().expect("flock ends");
    crate::common::wait_for(std::time::Duration::from_secs(10), "the locked thread", || {
        log(&project, ONE).len() == 3
    });
    drop(bed);
}

/// Locks a thread, as another program does, until the standard input of the result is dropped.
fn lock_thread(project: &Path, id: &str) -> Child {
    let mut lock = Command::new("flock");
    lock.arg(folder(project, id).join("messages.jsonl")).args(["sh", "-c", "echo; read x"]);
    let mut lock = lock.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("flock");
    let mut told = [0];
    lock.stdout.take().unwrap().read_exact(&mut told).expect("the lock is held");
    lock
}

/// S288, S157: a message that waits for a locked thread is in `sent/` as soon as its close has returned, with a
/// note about the lock beside it. It is the same file when it is in the thread. S942: a search finds it at once.
#[test]
fn s288_what_waits_for_a_locked_thread_is_in_sent() {
    let (bed, project, m) = with(|p| thread(p, ONE, "locked", &two()));
    let mut lock = lock_thread(&project, ONE);
    m.ok(&format!("echo waits > threads/{ONE}/a"));
    let day = format!("sent/{}", samp::today());
    let [name, note] = &m.ls(&day)[..] else { panic!("{:?}", m.ls(&day)) };
    assert_eq!(note, &name.replace(".txt", ".warning"));
    assert!(m.ls("sent").contains(&samp::today()));
    let (shown, why) = (m.cat(&format!("{day}/{name}")), m.cat(&format!("{day}/{note}")));
    assert!(shown.contains("Subject: locked\n") && shown.ends_with("\n\nwaits\n"), "{shown}");
    assert!(shown.contains("\nSignature: valid "), "{shown}");
    assert!(why.starts_with("waits for agent since ") && why.contains("lock"), "{why}");
    let exact = format!("test $(stat -c %s {day}/{name}) = {}", shown.len());
    m.ok(&format!("{exact} && test $(stat -c %s {day}/{note}) = {}", why.len()));
    assert_eq!(log(&project, ONE).len(), 2);
    let query = "search/waits store:atsf to:agent -is:unread";
    assert_eq!(m.ls(query), [name.clone(), note.clone(), "hits.txt".to_owned()]);
    assert_eq!(m.cat(&format!("{query}/{name}")), shown);
    let hits = m.cat(&format!("{query}/hits.txt"));
    assert!(hits.contains("\tlocked\twaits\n1 hit\n"), "{hits}");
    assert_eq!(m.ls("search/waits -locked"), ["hits.txt"]);
    drop(lock.stdin.take());
    lock.wait().expect("flock ends");
    soon("it is in the thread", || log(&project, ONE).len() == 3);
    soon("it is found once", || m.ls(query) == [name.clone(), "hits.txt".to_owned()]);
    soon("nothing is said of it", || m.ls(&day) == [name.clone()]);
    assert_eq!(m.cat(&format!("{day}/{name}")), shown);
    drop(bed);
}

/// S1401: a message waits since it was accepted, also after a remount.
#[test]
fn s1401_a_message_waits_since_it_was_accepted() {
    let (bed, project, m) = with(|p| thread(p, ONE, "locked", &two()));
    let mut lock = lock_thread(&project, ONE);
    m.ok(&format!("echo waits > threads/{ONE}/a"));
    let since = |m: &crate::common::Mount| m.ok("cut -d' ' -f1-5 sent/*/*.warning");
    let before = since(&m);
    m.kill9();
    let m = bed.mount("bar");
    soon("it waits again", || m.sh("cat sent/*/*.warning").ok());
    assert_eq!(since(&m), before);
    drop(lock.stdin.take());
    lock.wait().expect("flock ends");
}

/// S1191, S1154: a retry of a message that waits for a locked thread is no second message, also after a remount.
/// Another text under its key is refused.
#[test]
fn s1191_a_retry_of_what_waits() {
    let (bed, project, m) = with(|p| thread(p, ONE, "locked", &two()));
    let mut lock = lock_thread(&project, ONE);
    let send = |text: &str| {
        let to = format!("threads/{ONE}/{text}");
        format!("printf 'Idempotency-Key: k1\\n\\n{text}\\n' | tee {to} > /dev/null")
    };
    m.ok(&send("waits"));
    m.umount();
    let m = bed.mount("bar");
    m.ok(&send("waits"));
    assert!(!m.sh(&send("other")).ok());
    assert_eq!(log(&project, ONE).len(), 2);
    drop(lock.stdin.take());
    lock.wait().expect("flock ends");
    soon("it is in the thread", || log(&project, ONE).len() == 3);
    m.ok(&send("waits"));
    m.ok(&format!("echo last > threads/{ONE}/b"));
    soon("the next one is in the thread", || log(&project, ONE).len() >= 4);
    let said: Vec<Value> =
        log(&project, ONE).drain(2..).map(|line| line["content"].clone()).collect();
    assert!(said.len() == 2 && said[1].to_string().contains("last"), "{said:?}");
}

/// S158: check names wrong stats, and missing and wrong assets. Repair makes the stats right.
#[test]
fn s158_check() {
    let mut with_image = message(3, "user", "2026-04-24T17:43:00.000Z", "see");
    with_image["content"] = json!([{"type": "image", "assetRef": "sha256-0123456789abcdef.png", "mimeType": "image/png"}]);
    let (bed, project, m) = with(|p| {
        let mut all = two();
        all.push(with_image);
        let mut t = manifest(ONE, "t", &all);
        t["stats"]["messageCount"] = json!(7);
        put(&folder(p, ONE).join("thread.json"), format!("{t:#}\n"));
        put(&folder(p, ONE).join("messages.jsonl"), lines(&all));
    });
    drop(m);
    let out = bed.msgfs_out(&["--me", "bar", "check"]);
    let said = out.said();
    assert!(!out.ok() && said.contains("thread.json") && said.contains("messageCount"), "{said}");
    assert!(said.contains("sha256-0123456789abcdef.png"), "{said}");
    bed.msgfs_out(&["--me", "bar", "check", "--repair"]);
    let text = fs::read_to_string(folder(&project, ONE).join("thread.json")).unwrap();
    assert!(text.contains("\"messageCount\": 3"), "{text}");
}

/// S1152: an answer to an id that several threads have is refused unless it names the thread. A thread that was forked
/// has the ids of its original.
#[test]
fn s1152_an_id_in_several_threads() {
    let (_bed, project, m) = with(|p| {
        thread(p, ONE, "plan", &two());
        thread(p, TWO, "fork of plan", &two());
    });
    let id = two()[1]["id"].as_str().expect("id").to_owned();
    let answer = |more: &str| {
        m.sh(&format!("printf 'In-Reply-To: <{id}@atsf>\\nVia: atsf\\n{more}\\nanswer\\n' | tee outbox/agent > /dev/null"))
    };
    assert!(!answer("").ok());
    let why = m.cat("outbox/agent.error");
    assert!(why.contains(ONE) && why.contains(TWO) && why.contains("Thread: ID"), "{why}");
    assert!(answer(&format!("Thread: {TWO}\\n")).ok());
    soon("it is there", || log(&project, TWO).len() == 3);
    assert_eq!(log(&project, ONE).len(), 2);
    // The place names the thread, too.
    m.ok(&format!("printf 'In-Reply-To: <{id}@atsf>\\n\\nhere\\n' | tee threads/{ONE}/new"));
    soon("it is there, too", || log(&project, ONE).len() == 3);
}

/// S1153: the counts of a thread are those of its lines, also where two lines are one message.
#[test]
fn s1153_repeated_lines_count() {
    let all = [two(), two()[..1].to_vec()].concat();
    let (_bed, project, m) = with(|p| thread(p, ONE, "merged", &all));
    m.ok(&format!("echo mine > threads/{ONE}/new"));
    soon("it is there", || log(&project, ONE).len() == 4);
    let meta = folder(&project, ONE).join("thread.json");
    let meta: Value =
        serde_json::from_str(&fs::read_to_string(meta).expect("thread.json")).expect("JSON");
    assert_eq!(meta["stats"]["messageCount"], 4);
}
