//! The reference model: the meaning of a folder of logs and a history of reading, in the plainest terms.
//!
//! Rules, from docs/SEMANTICS.md (S4 to S7, S17, S40, S81) and docs/DETAILS.md:
//!
//! - `inbox/` lists the unmarked messages to me.
//! - `archive/YYYY-MM-DD/` holds all messages to me, read or not, by UTC day; `sent/` all messages from me;
//!   `threads/<thread>/` the threads that I take part in.
//! - The digits are the milliseconds of the message, which every message of msgfs has. A message without them has the
//!   number of the writer's earlier messages of that second.
//! - A record in two logs is one message. A key is `from` and `id`.
//! - `rejected/` holds everything that is refused on the way in.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// The agent of the mailbox.
pub(crate) const ME: &str = "bar";

/// One record as the model knows it. All texts are ASCII.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rec {
    pub(crate) id: String,
    pub(crate) ts: i64,
    /// The milliseconds after that second, if the record has them.
    pub(crate) ms: Option<usize>,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) thread: String,
    pub(crate) re: Option<String>,
    pub(crate) body: String,
    /// The line as msgfs wrote it, with a signature that the model does not make.
    pub(crate) signed: Option<String>,
}

/// Writer and id, which are equal in all records of one message.
pub(crate) type Key = (String, String);

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

pub(crate) fn strftime(ts: i64, format: &str) -> String {
    let at = jiff::Timestamp::from_second(ts).unwrap().to_zoned(jiff::tz::TimeZone::UTC);
    at.strftime(format).to_string()
}

impl Rec {
    pub(crate) fn new(from: &str, to: &str, thread: &str, body: &str, ts: i64) -> Self {
        let canonical = format!(
            r#"{{"body":{},"from":{},"thread":{},"to":{},"ts":{ts}}}"#,
            quoted(body),
            quoted(from),
            quoted(thread),
            quoted(to)
        );
        let mut id = String::new();
        for byte in &Sha256::digest(canonical.as_bytes())[..8] {
            let _ = write!(id, "{byte:02x}");
        }
        let [from, to, thread, body] = [from, to, thread, body].map(str::to_owned);
        Self { id, ts, ms: None, from, to, thread, re: None, body, signed: None }
    }

    pub(crate) fn key(&self) -> Key {
        (self.from.clone(), self.id.clone())
    }

    /// Returns the line of the log, without its newline.
    pub(crate) fn line(&self) -> String {
        if let Some(signed) = &self.signed {
            return signed.clone();
        }
        format!(
            r#"{{"id": {}, "ts": {}, "from": {}, "to": {}, "thread": {}, "body": {}}}"#,
            quoted(&self.id),
            self.ts,
            quoted(&self.from),
            quoted(&self.to),
            quoted(&self.thread),
            quoted(&self.body)
        )
    }

    /// Parses a line that msgfs wrote; its id must be the hash of its text.
    pub(crate) fn parse(line: &str) -> Self {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| value[name].as_str().unwrap();
        let ts = value["ts"].as_i64().unwrap();
        let mut rec = Self::new(text("from"), text("to"), text("thread"), text("body"), ts);
        assert_eq!(rec.id, text("id"), "the id is not that of {line}");
        rec.ms = value["ms"].as_u64().map(|ms| ms as usize);
        rec.re = value["re"].as_str().map(str::to_owned);
        rec.signed = Some(line.to_owned());
        rec
    }

    pub(crate) fn day(&self) -> String {
        strftime(self.ts, "%Y-%m-%d")
    }

    fn name(&self, earlier: usize) -> String {
        let time = strftime(self.ts, "%Y%m%dT%H%M%S");
        let digits = self.ms.unwrap_or(earlier);
        format!("{time}.{digits:03}Z-{}-{}.txt", self.from, &self.id[..8])
    }

    /// Returns the message file.
    pub(crate) fn file(&self, signature: &str) -> String {
        let re = self.re.as_ref().map_or(String::new(), |re| format!("In-Reply-To: <{re}@samp>\n"));
        format!(
            "From: {}\nTo: {}\nDate: {}\nThread: {}\n{re}Message-ID: <{}@samp>\n\
             Signature: {signature}\n\n{}\n",
            self.from,
            self.to,
            strftime(self.ts, "%a, %d %b %Y %H:%M:%S +0000"),
            self.thread,
            self.id,
            self.body
        )
    }
}

/// One line of a log.
#[derive(Clone, Debug)]
pub(crate) enum Line {
    /// A record, for the first time.
    Message(Rec),
    /// The same record once more.
    Again(String),
    /// No record, or a record with the id of another; it is rejected.
    Refused(String),
    Blank,
}

impl Line {
    fn text(&self) -> String {
        match self {
            Self::Message(rec) => rec.line(),
            Self::Again(text) | Self::Refused(text) => text.clone(),
            Self::Blank => String::new(),
        }
    }
}

/// One writer's log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) lines: Vec<Line>,
    /// An unterminated last line: the record that it will be, and the number of bytes that are there.
    pub(crate) torn: Option<(Rec, usize)>,
    /// True while the file is not there.
    pub(crate) gone: bool,
}

impl Log {
    /// Returns the bytes of the file.
    pub(crate) fn text(&self) -> String {
        let mut text: String = self.lines.iter().map(|l| l.text() + "\n").collect();
        if let Some((rec, len)) = &self.torn {
            text.push_str(&rec.line()[..*len]);
        }
        text
    }

    /// Returns the record of the torn line if only its newline is missing: it counts.
    fn whole_tail(&self) -> Option<&Rec> {
        let (rec, len) = self.torn.as_ref()?;
        (*len == rec.line().len()).then_some(rec)
    }

    /// Returns the messages of the log in its order, each once.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &Rec> {
        let lines = self.lines.iter().filter_map(|l| match l {
            Line::Message(rec) => Some(rec),
            _ => None,
        });
        lines.chain(self.whole_tail()).filter(|_| !self.gone)
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.messages().any(|r| r.id == id)
    }

    /// Returns the number of entries that `rejected/` has for this log.
    fn refused(&self) -> usize {
        let lines = self.lines.iter().filter(|l| matches!(l, Line::Refused(_))).count();
        let torn = self.torn.is_some() && self.whole_tail().is_none();
        if self.gone { 0 } else { lines + usize::from(torn) }
    }
}

/// All logs and marks.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) logs: BTreeMap<String, Log>,
    /// The messages that I have read.
    pub(crate) read: BTreeSet<Key>,
}

impl Model {
    /// Returns every message that is in a log now, with its name.
    pub(crate) fn all(&self) -> Vec<(String, &Rec)> {
        let mut all = Vec::new();
        for log in self.logs.values() {
            let mut in_second: BTreeMap<i64, usize> = BTreeMap::new();
            for rec in log.messages() {
                let earlier = in_second.entry(rec.ts).or_default();
                all.push((rec.name(*earlier), rec));
                *earlier += 1;
            }
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    pub(crate) fn is_read(&self, rec: &Rec) -> bool {
        self.read.contains(&rec.key())
    }

    /// Returns the messages to me that are read, or are unread, by name.
    pub(crate) fn to_me(&self, read: bool) -> Vec<(String, Rec)> {
        let mine = |rec: &Rec| rec.to == ME && self.is_read(rec) == read;
        self.all().into_iter().filter(|(_, r)| mine(r)).map(|(n, r)| (n, r.clone())).collect()
    }

    /// Returns the path of every message file that must be listed, with its message.
    pub(crate) fn paths(&self) -> BTreeMap<String, Rec> {
        let all = self.all();
        let of_me = |r: &Rec| r.to == ME || r.from == ME;
        let threads: BTreeSet<&str> =
            all.iter().filter(|(_, r)| of_me(r)).map(|(_, r)| r.thread.as_str()).collect();
        let mut paths = BTreeMap::new();
        for (name, rec) in &all {
            let mut add = |folder: String| paths.insert(format!("{folder}/{name}"), (*rec).clone());
            if rec.to == ME {
                add(format!("archive/{}", rec.day()));
                if !self.is_read(rec) {
                    add("inbox".into());
                }
            }
            if rec.from == ME {
                add(format!("sent/{}", rec.day()));
            }
            if threads.contains(rec.thread.as_str()) {
                add(format!("threads/{}", rec.thread));
            }
        }
        paths
    }

    pub(crate) fn refused(&self) -> usize {
        self.logs.values().map(Log::refused).sum()
    }
}
