//! The protocol by hand, to send bytes that no library sends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

pub(crate) struct Raw {
    reader: BufReader<TcpStream>,
    asked: u32,
}

/// A message as it came.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) headers: String,
    pub(crate) payload: Vec<u8>,
}

impl Raw {
    /// Connects, with members of the CONNECT message such as user and pass.
    pub(crate) fn connect(port: u16, with: &str) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut raw = Self { reader: BufReader::new(stream), asked: 0 };
        assert!(raw.line().starts_with("INFO "));
        let mut connect: Value = serde_json::from_str(with).unwrap();
        connect["headers"] = json!(true);
        connect["no_responders"] = json!(true);
        connect["verbose"] = json!(false);
        raw.send(format!("CONNECT {connect}\r\nPING\r\n").as_bytes());
        raw.pong();
        raw
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line).unwrap();
        assert!(!line.is_empty(), "the server has closed");
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).unwrap();
    }

    fn pong(&mut self) {
        while self.line() != "PONG" {}
    }

    /// Publishes a message with these bytes as headers (or none) and a subject for the answer.
    pub(crate) fn publish(&mut self, subject: &[u8], reply: &str, headers: &[u8], payload: &[u8]) {
        let mut bytes = Vec::new();
        let reply = if reply.is_empty() { String::new() } else { format!(" {reply}") };
        if headers.is_empty() {
            bytes.extend([b"PUB ", subject, reply.as_bytes()].concat());
            bytes.extend(format!(" {}\r\n", payload.len()).bytes());
        } else {
            bytes.extend([b"HPUB ", subject, reply.as_bytes()].concat());
            let all = headers.len() + payload.len();
            bytes.extend(format!(" {} {all}\r\n", headers.len()).bytes());
            bytes.extend(headers);
        }
        bytes.extend(payload);
        bytes.extend(b"\r\nPING\r\n");
        self.send(&bytes);
        self.pong();
    }

    /// Publishes a line with its offset, as a link does.
    pub(crate) fn line_at(&mut self, subject: &str, at: u64, payload: &[u8]) {
        let headers = format!("NATS/1.0\r\nMsgfs-At: {at}\r\n\r\n");
        self.publish(subject.as_bytes(), "", headers.as_bytes(), payload);
    }

    /// Asks, and returns the first answer.
    pub(crate) fn ask(&mut self, subject: &str, payload: &str) -> Got {
        self.asked += 1;
        let (sid, inbox) = (self.asked, format!("_INBOX.raw.{}", self.asked));
        let len = payload.len();
        let text = format!(
            "SUB {inbox} {sid}\r\nUNSUB {sid} 1\r\nPUB {subject} {inbox} {len}\r\n{payload}\r\n"
        );
        self.send(text.as_bytes());
        loop {
            let line = self.line();
            let words: Vec<&str> = line.split(' ').collect();
            let (headers, all): (usize, usize) = match words.as_slice() {
                ["MSG", .., all] => (0, all.parse().unwrap()),
                ["HMSG", .., headers, all] => (headers.parse().unwrap(), all.parse().unwrap()),
                ["-ERR", ..] => panic!("{line}"),
                _ => continue,
            };
            let mut bytes = vec![0; all + 2];
            self.reader.read_exact(&mut bytes).unwrap();
            bytes.truncate(all);
            let payload = bytes.split_off(headers);
            return Got { headers: String::from_utf8_lossy(&bytes).into_owned(), payload };
        }
    }

    /// Asks the JetStream API.
    pub(crate) fn api(&mut self, what: &str, payload: &Value) -> Value {
        let got = self.ask(&format!("$JS.API.{what}"), &payload.to_string());
        serde_json::from_slice(&got.payload).unwrap_or(json!({ "status": got.headers }))
    }

    /// Asks the JetStream API and asserts that it did what was asked.
    pub(crate) fn admin(&mut self, what: &str, payload: &Value) -> Value {
        let answer = self.api(what, payload);
        assert!(answer.get("error").is_none() && answer.get("status").is_none(), "{answer}");
        answer
    }

    /// Makes the stream as a link would, with some settings changed.
    pub(crate) fn make_stream(&mut self, change: &Value) {
        let mut config = json!({
            "name": "MSGFS_team", "subjects": ["msgfs.team.*"], "storage": "file",
            "retention": "limits", "discard": "new", "allow_direct": true, "allow_atomic": true,
            "max_consumers": 1000, "num_replicas": 1,
        });
        for (key, value) in change.as_object().unwrap() {
            config[key] = value.clone();
        }
        self.admin("STREAM.CREATE.MSGFS_team", &config);
    }

    /// Returns every message of a subject, in order, read one by one.
    pub(crate) fn subject(&mut self, subject: &str) -> Vec<Vec<u8>> {
        let (mut all, mut seq) = (Vec::new(), 1u64);
        loop {
            let question = json!({ "seq": seq, "next_by_subj": subject });
            let got = self.ask("$JS.API.DIRECT.GET.MSGFS_team", &question.to_string());
            let number = got.headers.lines().rev().find_map(|l| l.strip_prefix("Nats-Sequence: "));
            let Some(number) = number else { return all };
            seq = number.trim().parse::<u64>().unwrap() + 1;
            all.push(got.payload);
        }
    }

    /// Returns the number of messages in the stream.
    pub(crate) fn messages(&mut self) -> u64 {
        let info = self.api("STREAM.INFO.MSGFS_team", &json!({}));
        info.pointer("/state/messages").and_then(Value::as_u64).unwrap_or(0)
    }
}
