//! The cost of reading transcripts, and the traces that it leaves at their program.

use std::collections::HashMap;

use super::*;
use crate::common::{PATIENCE, binary, run};

/// Runs a command, and prints the most memory that it had, in KiB.
const PEAK: &str = "import resource, subprocess, sys\n\
                    subprocess.run(sys.argv[1:], check=True)\n\
                    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";

/// Returns the number of bytes that the daemon has read so far.
fn bytes_read(m: &Mount) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", m.pid())).expect("proc");
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: ")).expect("a line");
    read.parse().expect("a number")
}

/// S1015: the memory for a session does not grow with its bytes, and what is appended costs itself.
#[test]
fn s1015_long_lines() {
    const TURNS: u32 = 16;
    let line = 5 << 20;
    let result = |id: &str, block: Value| json!([{"type": "tool_result", "tool_use_id": id, "content": [block]}]);
    let image = json!({"type": "image", "source":
        {"type": "base64", "media_type": "image/png", "data": "QUJD".repeat(line / 4)}});
    let text = json!({"type": "text", "text": "lines of a log\n".repeat(line / 15)});
    let turn = |s: &Sessions, n: u32| {
        let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "Bash", "input": {}});
        let id = |part: &str| format!("{part}{n}");
        [
            s.user(A, &id("a"), json!("please look")),
            s.assistant(A, &id("b"), &id("m"), call(&id("t"))),
            s.user(A, &id("c"), result(&id("t"), text.clone())),
            s.assistant(A, &id("d"), &id("m"), call(&id("u"))),
            s.user(A, &id("e"), result(&id("u"), image.clone())),
            s.text(A, &id("f"), &id("n"), "seen"),
        ]
        .concat()
    };
    let bed = Bed::new();
    let sessions = Sessions::new(&bed);
    bed.config(CONFIG);
    let path = sessions.at(&format!("{A}.jsonl"));
    put(&path, "");
    (0..TURNS).for_each(|n| append(&path, &turn(&sessions, n)));
    let size = fs::metadata(&path).expect("stat").len();
    // Nothing of it is known yet, so the command reads all of it.
    let mut reader = bed.command("python3");
    reader.args(["-c", PEAK]).arg(binary()).args(["--me", "bob", "ls", "threads"]);
    let out = run(reader, None);
    let peak = out.stdout.strip_prefix(&format!("{A}\n")).expect("the thread").trim();
    let peak = peak.parse::<u64>().expect("KiB") << 10;
    assert!(size > 160 << 20 && peak < 100 << 20, "{peak} bytes of memory for {size}");
    let m = bed.mount("bob");
    let count = || m.ls(&format!("threads/{A}")).iter().filter(|n| has_ending(n, "txt")).count();
    soon("all are read", || count() == TURNS as usize * 2);
    // A listing reads the messages whose sizes are not known.
    m.ok(&format!("ls -l threads/{A}"));
    let before = bytes_read(&m);
    let more = turn(&sessions, TURNS);
    append(&path, &more);
    soon("the new ones are read", || count() == TURNS as usize * 2 + 2);
    let (read, more) = (bytes_read(&m) - before, more.len() as u64);
    assert!(more < size / 15 && read < more * 3, "{read} bytes were read for {more}");
}

/// The calls that change a file, lock it, or open it.
const CALLS: &str = "openat,open,openat2,creat,flock,fcntl,ftruncate,truncate,fallocate,unlink,unlinkat,rename,\
                     renameat,renameat2,link,linkat,symlinkat,mkdir,mkdirat,rmdir,chmod,fchmod,fchmodat,\
                     utimensat,setxattr,fsetxattr,write,pwrite64";

/// Returns the calls of a trace, each on one line. A call that another thread interrupts has two lines there.
fn join_calls(notes: &str) -> Vec<String> {
    let mut begun: HashMap<&str, &str> = HashMap::new();
    let mut calls = Vec::new();
    for line in notes.lines() {
        let (thread, call) = line.split_once(' ').expect("a thread");
        if let Some(start) = call.strip_suffix("<unfinished ...>") {
            begun.insert(thread, start);
        } else if let Some((_, end)) = call.split_once(" resumed>") {
            calls.push(format!("{}{end}", begun.remove(thread).unwrap_or_default()));
        } else {
            calls.push(call.to_owned());
        }
    }
    calls
}

/// Returns the calls of a trace on files below a folder: those that only read them, and all others.
fn split_calls(notes: &str, folder: &str) -> (Vec<String>, Vec<String>) {
    let asks = ["F_GETFD", "F_GETFL", "F_SETFD", "F_DUPFD"];
    let counts =
        |call: &String| call.contains(folder) && !asks.iter().any(|word| call.contains(word));
    join_calls(notes).into_iter().filter(counts).partition(|call| {
        let writes = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"];
        // Of a folder, and of what is missing, nobody misses the time of access.
        let leaves_time = ["O_NOATIME", "O_DIRECTORY", "O_PATH", "= -1 E"];
        call.trim_start().starts_with("open")
            && !writes.iter().any(|flag| call.contains(flag))
            && leaves_time.iter().any(|flag| call.contains(flag))
    })
}

/// S1016: no file of the program is opened for writing, locked, changed, or marked as accessed.
#[test]
fn s1016_no_trace() {
    let long = |s: &Sessions, uuid: &str| {
        let text = "saved to /x/tool-results/long.txt";
        s.user(A, uuid, json!([{"type": "tool_result", "tool_use_id": "t1", "content": text}]))
    };
    let (bed, sessions, m) = with(|s| {
        put(&s.at(&format!("{A}.jsonl")), s.conversation(A));
        put(&s.at(&format!("{A}/tool-results/long.txt")), "the whole result\n");
        put(&s.at(&format!("{A}/subagents/agent-0.meta.json")), r#"{"agentType":"Explore"}"#);
        put(&s.at(&format!("{A}/subagents/agent-0.jsonl")), s.user(A, "x", json!("look")));
        let codex = s.base.with_file_name(".codex");
        let head = json!({"id": B, "cwd": "/home/anna/p", "cli_version": "0.169.0"});
        let line = |kind: &str, payload: &Value| {
            let time = "2026-11-25T23:00:00.000Z";
            format!("{}\n", json!({"timestamp": time, "type": kind, "payload": payload}))
        };
        let lines = line("session_meta", &head)
            + &line("event_msg", &json!({"type": "user_message", "message": "hi"}));
        put(
            &codex.join(format!("sessions/2026/11/25/rollout-2026-11-25T23-00-00-{B}.jsonl")),
            lines,
        );
        put(
            &codex.join("session_index.jsonl"),
            format!("{{\"id\":\"{B}\",\"thread_name\":\"x\"}}\n"),
        );
    });
    let shop = bed.path("shop");
    fs::create_dir(&shop).expect("mkdir");
    let more =
        format!("\n[[store]]\nkind = \"codex\"\n\n[[store]]\nkind = \"atsf\"\ndir = {shop:?}\n");
    bed.config(&format!("{CONFIG}{more}"));
    let (live, kept) = (bed.path("live"), bed.path("kept"));
    let tracer = m.trace(CALLS, "delay_exit=1", &live);
    let rest = long(&sessions, "g") + &sessions.text(A, "h", "m3", "read");
    append(&sessions.at(&format!("{A}.jsonl")), &rest);
    soon("the answer", || bodies(&m, &format!("threads/{A}")).len() == 4);
    m.ok(&format!("cat threads/{A}/*.d/* threads/*/*.txt raw/claude/*/*.jsonl > /dev/null"));
    tracer.signal(rustix::process::Signal::INT);
    tracer.finish(PATIENCE).expect("strace");
    let mut keep = bed.command("strace");
    keep.args(["-f", "-qq", "-y", "-e", &format!("trace={CALLS}"), "-o"]).arg(&kept);
    keep.arg(binary()).args(["--me", "bob", "keep", "--all", "--store", "atsf"]);
    let out = run(keep, None);
    assert!(out.ok() && out.said().contains("3 sessions kept"), "{out:?}");
    let of = |notes: &PathBuf, folder: &str| {
        let notes = fs::read_to_string(notes).expect("notes");
        let (reads, others) = split_calls(&notes, &bed.path(folder).display().to_string());
        assert!(others.is_empty(), "{others:#?}");
        reads.concat()
    };
    let (lived, claude, codex) =
        (of(&live, "home/.claude"), of(&kept, "home/.claude"), of(&kept, "home/.codex"));
    for (calls, files) in [
        (lived, &[".jsonl", "long.txt"][..]),
        (claude, &[".jsonl", "long.txt", "agent-0.meta.json"]),
        (codex, &[".jsonl", "session_index.jsonl"]),
    ] {
        for file in files {
            assert!(calls.contains(file), "{file} was not opened: {calls}");
        }
    }
}
