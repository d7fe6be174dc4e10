//! Hostile thread ids, which are ordinary folders.

use std::time::Duration;

use crate::common::samp::{self, T0};
use crate::common::{Bed, bytes_read, wait_for};

const HOSTILE: &[&str] = &[
    "../../etc",
    "a/b",
    "",
    ".",
    "..",
    "/",
    "-rf *",
    "nul\0inside",
    "line\nbreak\r\n",
    "\x1b]0;owned\x07",
    "\u{202e}txt.exe\u{2066}",
    "caf\u{e9} \u{1f600}",
    "%2F%00",
    "~e3b0c442",
    "$(touch /tmp/x)`id`'\"",
    "CON",
    "{}%s%n",
];

/// S24: each hostile id lists, reads, has a transcript, and takes a reply with the id unchanged.
#[test]
fn s24_hostile_threads() {
    let bed = Bed::new();
    let long = "long ".repeat(2048);
    let ids: Vec<&str> = HOSTILE.iter().copied().chain([long.as_str()]).collect();
    let recs: Vec<_> = ids
        .iter()
        .enumerate()
        .map(|(i, id)| {
            samp::append(&bed.store, "foo", "bar", id, &format!("mail {i}"), T0 + i as i64)
        })
        .collect();
    let m = bed.mount("bar");
    let mut folders: Vec<String> = ids.iter().map(|id| samp::thread_dir(id)).collect();
    for (rec, folder) in recs.iter().zip(&folders) {
        assert_eq!(m.ls(&format!("threads/{folder}")), [rec.name(0)], "{:?}", rec.thread);
        let text = m.cat(&format!("threads/{folder}/{}", rec.name(0)));
        assert!(text.ends_with(&format!("\n\n{}\n", rec.body)), "{text}");
        assert!(m.cat(&format!("transcripts/{folder}.txt")).contains(&text));
        m.ok(&format!("echo 'answer to {}' > 'threads/{folder}/answer'", rec.body));
    }
    folders.sort();
    assert_eq!(m.ls("threads"), folders);
    let sent = samp::read_log(&bed.store, "bar");
    assert_eq!(sent.len(), ids.len(), "one reply in each thread");
    for id in ids {
        assert!(sent.iter().any(|r| r["thread"] == id && r["to"] == "foo"), "no reply in {id:?}");
    }
}

/// S24: the whole tree can still be copied, searched and archived.
#[test]
fn s24_tools_survive_hostile_threads() {
    let bed = Bed::new();
    for (i, id) in HOSTILE.iter().enumerate() {
        samp::append(&bed.store, "foo", "bar", id, &format!("needle {i}"), T0 + i as i64);
    }
    let m = bed.mount("bar");
    let out = bed.path("copy");
    let hits = m.ok("grep -rl needle threads | wc -l");
    assert_eq!(hits.trim(), HOSTILE.len().to_string());
    m.ok(&format!(
        "mkdir {0} && cp -a threads transcripts {0} && diff -r threads {0}/threads",
        out.display()
    ));
    m.ok("tar c threads | tar t > /dev/null");
}

/// The beginning of a body whose size is known only once it is read: it begins like a line of transcripts.
const ODD: &str = "================ ";

/// A program that walks through all threads. It looks at sizes in each folder that `wants` selects. It prints what
/// it found, with the sizes that it asked for.
const WALK: &str = r"
import os, sys
folders = sorted(os.listdir('threads'))
for number, folder in enumerate(folders):
    names = sorted(os.listdir(f'threads/{folder}'))
    wants = sys.argv[1][number % len(sys.argv[1])] == 's'
    for name in names:
        path = f'threads/{folder}/{name}'
        print(path, os.stat(path).st_size if wants else '-')
        assert not wants or os.stat(path).st_size == len(open(path, 'rb').read()), path
";

/// S13, S23: a program that walks through many threads for the first time finds each message once, with its size,
/// however often it asks for sizes on the way.
#[test]
fn s13_first_walk_through_threads() {
    const THREADS: i64 = 12;
    let bed = Bed::new();
    let mut expected: Vec<String> = Vec::new();
    for thread in 0..THREADS {
        // The numbers go from less than is rendered together to more than the kernel asks for at once.
        for number in 0..=thread * 25 {
            let body = format!("{ODD}{}", "long ".repeat((number % 7 * 300) as usize));
            let name = format!("thread-{thread:02}");
            let at = T0 + thread * 1000 + number;
            let rec = samp::append(&bed.store, "foo", "bar", &name, &body, at);
            expected.push(format!("threads/{name}/{}", rec.name(0)));
        }
    }
    expected.sort();
    let names = |walk: &str| -> Vec<String> {
        let lines = walk.lines().map(|line| line.rsplit_once(' ').unwrap().0.to_owned());
        let mut found: Vec<String> = lines.collect();
        found.sort();
        found
    };
    for wants in ["-", "s", "--s", "---s----", "s-"] {
        let m = bed.mount("bar");
        assert_eq!(names(&m.py(WALK, &[wants])), expected, "{wants}");
        m.umount();
        // The next mount must not use remembered sizes.
        std::fs::remove_dir_all(bed.path("cache")).unwrap();
    }
    let m = bed.mount("bar");
    let found = m.ok("find threads -type f | sort");
    assert_eq!(found.lines().collect::<Vec<_>>(), expected);
    let sizes = m
        .ok("find threads -type f -printf '%s %p\n' | sort -k2 | while read -r size path; do
        echo \"$size $(wc -c < \"$path\")\"; done | awk '$1 != $2' ");
    assert_eq!(sizes, "");
}

/// S13: a program that lists the names of one thread after the other has no message read for its size, except in
/// the first thread.
#[test]
fn s13_names_alone_are_listed_without_reading() {
    const THREADS: i64 = 20;
    let bed = Bed::new();
    for number in 0..THREADS * 30 {
        let thread = format!("thread-{:02}", number % THREADS);
        let body = format!("{ODD}{}", "long ".repeat(200));
        samp::append(&bed.store, "foo", "bar", &thread, &body, T0 + number);
    }
    let log = std::fs::metadata(bed.store.join("log-foo.jsonl")).unwrap().len();
    let m = bed.mount("bar");
    let read = || bytes_read(m.pid());
    let before = read();
    assert_eq!(m.ok("ls -R threads | grep -c foo").trim(), (THREADS * 30).to_string());
    let names = read() - before;
    assert!(names < log / 4, "{names} of {log} bytes were read");
    m.ok("ls -lR threads");
    assert!(read() - before > log / 2, "sizes are read");
}

/// S13: if a message is shown as it is written, its size is known from the first index on, and is right.
#[test]
fn s13_sizes_of_plain_messages_are_known_without_reading() {
    let bed = Bed::new();
    let long = "long ".repeat(200);
    let bodies =
        ["", "\n", "a \"b\" \\ c\td\n", "Gr\u{f6}\u{df}e\n\nend", "- Signature:\n -\n", &long];
    let odd = [
        "Signature: valid",
        "a\nSignature: x\n",
        "================ x",
        "\u{7}",
        "\u{a3}",
        "a\r\nb",
    ];
    for (number, body) in (0..).zip(bodies.repeat(20)) {
        samp::append(
            &bed.store,
            "foo",
            "bar",
            &format!("thread-{}", number % 7),
            body,
            T0 + number,
        );
    }
    let m = bed.mount("bar");
    let before = bytes_read(m.pid());
    let sizes = "find threads archive -name '*foo*' -printf '%s %p\\n' | sort";
    let told = m.ok(sizes);
    assert_eq!(told.lines().count(), 2 * 120);
    let names = bytes_read(m.pid()) - before;
    assert!(names < 20 * long.len() as u64, "{names} bytes were read");
    for (number, body) in (1000..).zip(odd) {
        samp::append(&bed.store, "foo", "bar", "thread-odd", body, T0 + number);
    }
    let all = || m.ok(sizes).lines().count() == 2 * 126;
    wait_for(Duration::from_secs(10), "all of them to be there", all);
    for line in m.ok(sizes).lines() {
        let (size, path) = line.split_once(' ').unwrap();
        assert_eq!(m.ok(&format!("wc -c < '{path}'")).trim(), size, "{path}");
        assert_eq!(m.ok(&format!("cat '{path}' | tail -c 1 | wc -l")).trim(), "1", "{path}");
    }
}
