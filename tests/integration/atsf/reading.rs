//! The view of a thread.

use std::fs;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::{ONE, TWO, folder, lines, log, manifest, message, thread, two, with};
use crate::common::agz::put;
use crate::common::{Mount, shown, soon};

/// S150: every thread is a folder and a transcript. Its title is the subject, and its messages are in the order of
/// the lines.
#[test]
fn s150_threads() {
    let mut later = two();
    // The agent began to write before the user's line was stored.
    later.push(message(3, "agent", "2026-04-24T17:42:01.000Z", "Retry three times."));
    let (_bed, project, m) = with(|p| {
        thread(p, ONE, "upload fails", &later);
        thread(p, TWO, "empty", &[]);
        put(&p.join(".agent/threads/notes.md"), "not a thread");
        put(&p.join(".agent/threads/other/file"), "nor this");
    });
    assert_eq!(m.ls("threads"), [TWO, ONE]);
    let all = shown::all(&m, &format!("threads/{ONE}"));
    let bodies: Vec<&str> = all.iter().map(|s| s.body.trim()).collect();
    assert_eq!(
        bodies,
        ["Why does the upload fail?", "The connection is cut.", "Retry three times."]
    );
    for s in &all {
        assert_eq!(s.must("Subject"), "upload fails");
        assert_eq!(s.must("Thread"), ONE);
    }
    assert_eq!((all[0].must("From"), all[0].must("To")), ("user", "agent"));
    assert_eq!((all[1].must("From"), all[1].must("To")), ("agent", "user"));
    let names = m.ls(&format!("threads/{ONE}"));
    assert!(names[1].starts_with("20260424T174209.250Z-agent-"), "{names:?}");
    assert!(names[2].starts_with("20260424T174209.251Z-agent-"), "order is line order: {names:?}");
    // The Date stays the message's own.
    assert_eq!(all[2].must("Date"), "Fri, 24 Apr 2026 17:42:01 +0000");
    assert_eq!(m.ls("inbox").len(), 2, "what the agent said is to the user");
    let text = m.cat(&format!("transcripts/{ONE}.txt"));
    assert!(text.contains("Why does the upload fail?") && text.contains("Retry three times."));
    let raw = m.ok(&format!("find raw/atsf -path '*{ONE}/thread.json' -exec cat {{}} +"));
    assert_eq!(raw, fs::read_to_string(folder(&project, ONE).join("thread.json")).unwrap());
}

/// S1330: a line whose time cannot be read has that of the line before, in `Date` as in the name and the mtime.
#[test]
fn s1330_a_time_that_cannot_be_read() {
    let mut messages = two();
    messages[1]["timestamp"] = json!("yesterday");
    let (_bed, _project, m) = with(|p| thread(p, ONE, "t", &messages));
    let all = shown::all(&m, &format!("threads/{ONE}"));
    let dates: Vec<&str> = all.iter().map(|s| s.must("Date")).collect();
    assert_eq!(dates, ["Fri, 24 Apr 2026 17:42:03 +0000"; 2]);
    let names = m.ls(&format!("threads/{ONE}"));
    assert!(names[1].starts_with("20260424T174203.101Z-agent-"), "{names:?}");
    let times = m.ok(&format!("stat -c %Y threads/{ONE}/*.txt | uniq"));
    assert_eq!(times.lines().count(), 1, "{times}");
}

/// S151: thinking, tool calls, unknown blocks and images are one marked line each, and whole files beside the
/// message.
#[test]
fn s151_blocks() {
    let png = b"\x89PNG\r\n\x1a\nnot much of a picture";
    let hash: String = Sha256::digest(png).iter().map(|b| format!("{b:02x}")).collect();
    let name = format!("sha256-{}.png", &hash[..16]);
    let mut rich = message(1, "agent", "2026-04-24T17:42:03.100Z", "Look:");
    rich["content"] = json!([
        {"type": "text", "text": "Look:"},
        {"type": "thinking", "thinking": "secret", "text": "first thought\nsecond thought \u{1b}[31m"},
        {"type": "tool_call_ref", "toolCallId": "c1"},
        {"type": "hologram", "data": [1, 2, 3]},
        {"type": "image", "assetRef": name, "mimeType": "image/png"},
        {"type": "image", "assetRef": "../../../../etc/passwd", "mimeType": "image/png"},
        {"type": "text", "text": "Done."}
    ]);
    rich["toolCalls"] = json!([
        {"toolCallId": "c1", "name": "Bash", "status": "completed", "input": "ls", "output": "a\nb\n"}
    ]);
    let (_bed, _project, m) = with(|p| {
        thread(p, ONE, "rich", &[rich]);
        put(&folder(p, ONE).join("assets").join(&name), png);
    });
    let s = &shown::Shown::parse(&m.ok(&format!("cat threads/{ONE}/*.txt")));
    let body: Vec<&str> = s.body.trim().lines().collect();
    assert_eq!((body[0], body[body.len() - 1]), ("Look:", "Done."));
    let marked =
        |word: &str| body.iter().filter(|l| l.starts_with('[') && l.contains(word)).count();
    for word in ["thinking", "Bash", "hologram"] {
        assert_eq!(marked(word), 1, "{word}: {body:#?}");
    }
    assert_eq!(marked("image"), 2, "{body:#?}");
    assert!(!s.body.contains("second thought"), "{body:#?}");
    let found = m.ok(&format!(
        "cd threads/{ONE}/*.d && grep -rl 'second thought' . && grep -rl hologram . && \
        grep -rl completed ."
    ));
    assert_eq!(found.lines().count(), 3, "{found}");
    let thought = m.ok(&format!("cat threads/{ONE}/*.d/*-thinking.txt"));
    assert_eq!(thought, "first thought\nsecond thought \u{241b}[31m", "no part drives a terminal");
    assert_eq!(m.bytes(m.ok(&format!("ls -d threads/{ONE}/*.d/*{name}")).trim()), png);
    assert!(!m.ok(&format!("cat threads/{ONE}/*.d/*")).contains("root:"), "no path leads outside");
}

/// S152: a higher major version, a foreign folder name and broken lines hide nothing else, and msgfs reports them.
#[test]
fn s152_odd_threads() {
    let mut higher = manifest(TWO, "from the future", &two());
    higher["specVersion"] = json!("2.0");
    let (_bed, project, m) = with(|p| {
        put(&folder(p, TWO).join("thread.json"), format!("{higher:#}\n"));
        put(&folder(p, TWO).join("messages.jsonl"), lines(&two()));
        put(&folder(p, ONE).join("thread.json"), format!("{:#}\n", manifest(ONE, "odd", &two())));
        let log = lines(&two()).replacen('\n', "\n{\"id\": broken\n\n", 1);
        put(&folder(p, ONE).join("messages.jsonl"), log + "{\"id\":\"half");
    });
    assert_eq!(shown::all(&m, &format!("threads/{ONE}")).len(), 2);
    let rejected = m.ok("head -qn 2 rejected/*");
    assert!(rejected.contains("messages.jsonl"), "{rejected}");
    let told = format!("{rejected}{}", m.cat("status.txt"));
    assert!(told.contains("2.0"), "{told}");
    let before = fs::read(folder(&project, TWO).join("messages.jsonl")).unwrap();
    m.sh(&format!("echo hi > threads/{TWO}/answer"));
    m.sh(&format!("printf 'Via: atsf\\nThread: {TWO}\\n\\nhi' > outbox/agent"));
    assert_eq!(fs::read(folder(&project, TWO).join("messages.jsonl")).unwrap(), before);
}

/// S153: a thread whose log is elsewhere is listed without messages and takes none.
#[test]
fn s153_metadata_only() {
    let text = format!("{:#}\n", manifest(ONE, "log ignored by git", &two()));
    let (_bed, project, m) = with(|p| put(&folder(p, ONE).join("thread.json"), &text));
    assert_eq!(m.ls("threads"), [ONE]);
    assert_eq!(m.ls(&format!("threads/{ONE}")), [] as [&str; 0]);
    let out = m.py(
        "try:\n f=open('threads/'+sys.argv[1]+'/answer','w'); f.write('To: agent\\n\\nhi'); f.close()\n\
         except OSError as e: print(e.errno)",
        &[ONE],
    );
    assert_eq!(out.trim(), "1", "EPERM");
    assert_eq!(fs::read_to_string(folder(&project, ONE).join("thread.json")).unwrap(), text);
    assert!(!folder(&project, ONE).join("messages.jsonl").exists());
}

/// S150: a new line is shown as soon as it is there, and not before it is whole.
#[test]
fn s150_arrival() {
    let (_bed, project, m) = with(|p| thread(p, ONE, "t", &two()));
    let path = folder(&project, ONE).join("messages.jsonl");
    let line = format!("{}\n", message(3, "agent", "2026-04-24T17:50:00.000Z", "more"));
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str(&line[..40]);
    fs::write(&path, &text).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(m.ls(&format!("threads/{ONE}")).len(), 2);
    text.push_str(&line[40..]);
    fs::write(&path, &text).unwrap();
    soon("the whole line", || m.ls(&format!("threads/{ONE}")).len() == 3);
    assert_eq!(log(&project, ONE).len(), 3);
}

/// S1370: messages that two threads have keep their names in a mount without the cache, which reads the threads in
/// another order.
#[test]
fn s1370_names_depend_on_no_order_of_arrival() {
    let (bed, project, m) = with(|p| thread(p, ONE, "t", &two()));
    thread(&project, TWO, "fork", &two());
    soon("the fork", || m.ls("threads").len() == 2);
    let names = |m: &Mount| [ONE, TWO].map(|id| m.ls(&format!("threads/{id}")));
    soon("its messages", || names(&m)[1].len() == 2);
    let before = names(&m);
    assert!(before[0] != before[1] && before[0][0].len() > 64, "{before:?}");
    m.umount();
    fs::remove_dir_all(bed.path("cache")).unwrap();
    assert_eq!(names(&bed.mount("bar")), before);
}
