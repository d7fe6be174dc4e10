//! SAMP records as another program writes them, and as the mount shows them.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use unicode_normalization::UnicodeNormalization as _;

/// A time long past that most tests count from: Fri, 24 Apr 2026 17:42:03 UTC.
pub(crate) const T0: i64 = 1_777_052_523;

/// One record of a log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rec {
    /// Its id, stored or computed.
    pub(crate) id: String,
    /// Seconds since the epoch.
    pub(crate) ts: i64,
    /// The sender.
    pub(crate) from: String,
    /// The recipient.
    pub(crate) to: String,
    /// The thread.
    pub(crate) thread: String,
    /// The text.
    pub(crate) body: String,
}

/// Returns the current time in whole seconds.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("clock").as_secs() as i64
}

/// Returns a JSON string as the reference program writes it: raw UTF-8, and escapes only where JSON needs them.
fn quoted(s: &str) -> String {
    serde_json::to_string(s).expect("string")
}

/// Returns lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// Returns the first `n` hex digits of a SHA-256.
pub(crate) fn sha_hex(bytes: &[u8], n: usize) -> String {
    let mut s = hex(&Sha256::digest(bytes));
    s.truncate(n);
    s
}

/// Returns the content address of a record.
pub(crate) fn id(from: &str, to: &str, thread: &str, body: &str, ts: i64) -> String {
    let body: String = body.nfc().collect();
    let canonical = format!(
        r#"{{"body":{},"from":{},"thread":{},"to":{},"ts":{ts}}}"#,
        quoted(&body),
        quoted(from),
        quoted(thread),
        quoted(to)
    );
    sha_hex(canonical.as_bytes(), 16)
}

impl Rec {
    /// Returns a record with its computed id.
    pub(crate) fn new(from: &str, to: &str, thread: &str, body: &str, ts: i64) -> Self {
        let s = str::to_owned;
        Self {
            id: id(from, to, thread, body, ts),
            ts,
            from: s(from),
            to: s(to),
            thread: s(thread),
            body: s(body),
        }
    }

    /// Returns the line in the reference program's own form, with its newline.
    pub(crate) fn line(&self) -> String {
        format!("{}}}\n", self.members())
    }

    fn members(&self) -> String {
        format!(
            r#"{{"id": {}, "ts": {}, "from": {}, "to": {}, "thread": {}, "body": {}"#,
            quoted(&self.id),
            self.ts,
            quoted(&self.from),
            quoted(&self.to),
            quoted(&self.thread),
            quoted(&self.body)
        )
    }

    /// Returns the line with further members after the six.
    pub(crate) fn line_with(&self, extra: &[(&str, Value)]) -> String {
        let mut line = self.members();
        for (k, v) in extra {
            let _ = write!(line, ", {}: {v}", quoted(k));
        }
        line + "}\n"
    }

    /// Returns the bytes that a signature covers: the domain line and the canonical JSON of all members.
    pub(crate) fn signed_bytes(&self, extra: &[(&str, Value)]) -> Vec<u8> {
        let body: String = self.body.nfc().collect();
        let mut all = Map::new();
        all.insert("id".into(), json!(self.id));
        all.insert("ts".into(), json!(self.ts));
        all.insert("from".into(), json!(self.from));
        all.insert("to".into(), json!(self.to));
        all.insert("thread".into(), json!(self.thread));
        all.insert("body".into(), json!(body));
        for (k, v) in extra {
            all.insert((*k).to_owned(), v.clone());
        }
        // They are sorted by code point; the names here are ASCII.
        let mut names: Vec<&String> = all.keys().collect();
        names.sort();
        let members: Vec<String> =
            names.iter().map(|k| format!("{}:{}", quoted(k), all[k.as_str()])).collect();
        format!("samp-sig-v1\n{{{}}}", members.join(",")).into_bytes()
    }

    /// Returns the line signed by `key`, with `pub` and `sig` and any further members.
    pub(crate) fn signed_line(&self, key: &SigningKey, extra: &[(&str, Value)]) -> String {
        let mut members = extra.to_vec();
        members.push(("pub", json!(BASE64.encode(key.verifying_key().as_bytes()))));
        let sig = key.sign(&self.signed_bytes(&members)).to_bytes();
        members.push(("sig", json!(BASE64.encode(sig))));
        self.line_with(&members)
    }

    /// Returns the message's file name if `earlier` messages of this sender share its second.
    pub(crate) fn name(&self, earlier: usize) -> String {
        let from: String = self
            .from
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "._@-".contains(c) { c } else { '_' })
            .collect();
        let plain = self.id.len() >= 8
            && self.id[..8].bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let id8 = if plain { self.id[..8].to_owned() } else { sha_hex(self.id.as_bytes(), 8) };
        format!("{}.{earlier:03}Z-{from}-{id8}.txt", strftime(self.ts, "%Y%m%dT%H%M%S"))
    }

    /// Returns the UTC day.
    pub(crate) fn day(&self) -> String {
        strftime(self.ts, "%Y-%m-%d")
    }

    /// Returns the path of the message in `archive/`.
    pub(crate) fn archived(&self, earlier: usize) -> String {
        format!("archive/{}/{}", self.day(), self.name(earlier))
    }

    /// Returns the message file of an ASCII record (docs/SEMANTICS.md, S19).
    pub(crate) fn file(&self, signature: &str) -> String {
        format!(
            "From: {}\nTo: {}\nDate: {}\nThread: {}\nMessage-ID: <{}@samp>\nSignature: {signature}\n\n{}\n",
            self.from,
            self.to,
            strftime(self.ts, "%a, %d %b %Y %H:%M:%S +0000"),
            self.thread,
            self.id,
            self.body
        )
    }
}

/// Returns a time in UTC.
pub(crate) fn strftime(ts: i64, format: &str) -> String {
    jiff::Timestamp::from_second(ts)
        .expect("time")
        .to_zoned(jiff::tz::TimeZone::UTC)
        .strftime(format)
        .to_string()
}

/// Returns the current UTC day.
pub(crate) fn today() -> String {
    strftime(now(), "%Y-%m-%d")
}

/// Returns the path of a writer's log.
pub(crate) fn log(dir: &Path, alias: &str) -> PathBuf {
    dir.join(format!("log-{alias}.jsonl"))
}

/// Appends raw bytes to a file in one write, and creates the file.
pub(crate) fn append_raw(path: &Path, bytes: impl AsRef<[u8]>) {
    let mut f = fs::OpenOptions::new().append(true).create(true).open(path).expect("open log");
    f.write_all(bytes.as_ref()).expect("append");
}

/// Appends one record as another program would.
pub(crate) fn append(dir: &Path, from: &str, to: &str, thread: &str, body: &str, ts: i64) -> Rec {
    let rec = Rec::new(from, to, thread, body, ts);
    append_raw(&log(dir, from), rec.line());
    rec
}

/// Appends a signed record.
pub(crate) fn append_signed(dir: &Path, key: &SigningKey, rec: &Rec) {
    append_raw(&log(dir, &rec.from), rec.signed_line(key, &[]));
}

/// Returns a key that is the same in every run.
pub(crate) fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

/// Returns the fingerprint that msgfs shows for a key.
pub(crate) fn fingerprint(key: &SigningKey) -> String {
    sha_hex(key.verifying_key().as_bytes(), 16)
}

/// Returns every record of a log as plain JSON. Panics on a line that is not an object, because msgfs wrote these
/// lines.
#[track_caller]
pub(crate) fn read_log(dir: &Path, alias: &str) -> Vec<Map<String, Value>> {
    let text = match fs::read_to_string(log(dir, alias)) {
        Ok(t) => t,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(e) => panic!("{e}"),
    };
    text.lines()
        .filter(|l| !l.trim().is_empty())
        .map(|l| match serde_json::from_str(l) {
            Ok(Value::Object(o)) => o,
            other => panic!("not a record: {l:?} {other:?}"),
        })
        .collect()
}

/// Returns the string member of a record.
#[track_caller]
pub(crate) fn member<'a>(rec: &'a Map<String, Value>, name: &str) -> &'a str {
    rec.get(name).and_then(Value::as_str).unwrap_or_else(|| panic!("no string {name} in {rec:?}"))
}

/// Returns the only record of a log.
#[track_caller]
pub(crate) fn only(dir: &Path, alias: &str) -> Map<String, Value> {
    let mut all = read_log(dir, alias);
    assert_eq!(all.len(), 1, "records in log-{alias}: {all:#?}");
    all.remove(0)
}

/// Returns the bodies in a log, in order.
#[track_caller]
pub(crate) fn bodies(dir: &Path, alias: &str) -> Vec<String> {
    read_log(dir, alias).iter().map(|r| member(r, "body").to_owned()).collect()
}

/// Returns the thread folder of a thread id (docs/SEMANTICS.md, S23).
pub(crate) fn thread_dir(id: &str) -> String {
    if id.is_empty() {
        return "~e3b0c442".into();
    }
    let mut name = String::new();
    for (i, &b) in id.as_bytes().iter().enumerate() {
        let plain = b.is_ascii_alphanumeric() || (i > 0 && b"._@-".contains(&b));
        if plain {
            name.push(char::from(b));
        } else {
            let _ = write!(name, "%{b:02X}");
        }
    }
    if name.len() > 200 {
        name.truncate(135);
        let _ = write!(name, "~{}", sha_hex(id.as_bytes(), 64));
    }
    name
}

#[test]
fn the_harness_computes_the_published_ids() {
    assert_eq!(id("alice", "bob", "t1", "hello", 1_700_000_000), "262b3c8fbec35a2d");
    assert_eq!(id("alice", "bob", "t1", "cafe\u{301}", 1_700_000_000), "5be5e1463ceca3cc");
    assert_eq!(
        Rec::new("alice", "bob", "t1", "hello", 1_700_000_000).line(),
        "{\"id\": \"262b3c8fbec35a2d\", \"ts\": 1700000000, \"from\": \"alice\", \"to\": \"bob\", \"thread\": \"t1\", \"body\": \"hello\"}\n"
    );
    assert_eq!(strftime(T0, "%a, %d %b %Y %H:%M:%S +0000"), "Fri, 24 Apr 2026 17:42:03 +0000");
    assert_eq!(thread_dir("../../etc"), "%2E.%2F..%2Fetc");
}
