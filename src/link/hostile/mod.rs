//! Tests with hostile engines of every protocol: each exchange ends, reveals no secret, fills no disk and counts
//! nothing as delivered that was not.

// Tests end by panicking. Clippy accepts that in test functions, but not in their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
// The answers of a server are listed one by one.
#![allow(clippy::match_same_arms, clippy::format_collect)]

mod http;
mod lines;
mod server;
mod tls;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use super::engine::{EngineSettings, ExchangeOutcome, LinkEngine};
use super::{check_engine, open_engine, secret};
use crate::store::OutboundMail;

/// A secret that only the servers here may get.
const SECRET: &str = "amp_live_sk_hunter2hunter2";

/// A time longer than any deadline of the tests, even on a busy machine.
const EVER: Duration = Duration::from_secs(120);

/// A machine with one link.
struct LinkTestMachine {
    dir: tempfile::TempDir,
    settings: EngineSettings,
    wire: PathBuf,
}

/// The result of an exchange.
#[derive(Debug)]
struct FetchResult {
    outcome: ExchangeOutcome,
    /// The names and bytes of the fetched items.
    brought: Vec<(String, Vec<u8>)>,
}

impl LinkTestMachine {
    /// Returns a machine whose link of a kind has this description.
    fn new(kind: &str, part: &str, described: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        std::fs::write(&file, described.to_string()).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let settings = EngineSettings {
            kind: kind.into(),
            file,
            part: part.into(),
            me: "bob@far.example".into(),
            insecure: false,
            ca: None,
            self_copy: false,
        };
        let mut machine = Self { wire: dir.path().join("wire"), dir, settings };
        machine.write_wire();
        machine
    }

    fn amp(url: &str) -> Self {
        Self::new(
            "amp",
            "",
            &json!({"provider": "x.ai", "apiUrl": url, "apiKey": SECRET, "address": "bob@far.x.ai"}),
        )
    }

    fn relay(url: &str) -> Self {
        Self::new(
            "agenttalk",
            "/agenttalk",
            &json!({"agenttalk": {"server": url, "token": SECRET}}),
        )
    }

    fn ftp(port: u16, more: &Value) -> Self {
        let part = json!({"host": "127.0.0.1", "port": port, "user": "u", "password": SECRET});
        Self::new("ftp", "/ftp", &json!({"ftp": merge_objects(part, more)}))
    }

    fn mail(port: u16, more: &Value) -> Self {
        let part = json!({
            "smtp_server": "127.0.0.1", "smtp_port": port, "imap_server": "127.0.0.1", "imap_port": port,
            "pop3_server": "127.0.0.1", "pop3_port": port, "username": "u", "password": SECRET});
        Self::new("mail", "/email", &json!({"email": merge_objects(part, more)}))
    }

    fn engine(&self) -> Box<dyn LinkEngine> {
        open_engine(&self.settings).unwrap()
    }

    fn write_wire(&mut self) {
        let to = if self.settings.kind == "agenttalk" { "al.agenttalk" } else { "al@far.example" };
        let parcel = OutboundMail {
            message_id: "m1".into(),
            to: to.into(),
            bytes: b"From: bob@far.example\nTo: al@far.example\nSubject: s\n---\nhello\n".to_vec(),
            parts: Vec::new(),
        };
        let bytes = if self.settings.kind == "amp" {
            json!({"flat": "{}", "stored": "{}"}).to_string().into_bytes()
        } else {
            self.engine().encode_parcel(&parcel).unwrap()
        };
        std::fs::write(&self.wire, bytes).unwrap();
    }

    /// Runs an action of an engine, which must end, and checks that its text holds no secret.
    #[track_caller]
    fn run<T: Send + 'static>(
        &self,
        what: &str,
        run: impl FnOnce(&dyn LinkEngine, &Path) -> T + Send + 'static,
    ) -> T {
        let (settings, wire) = (self.settings.clone(), self.wire.clone());
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let engine = open_engine(&settings).unwrap();
            let _ = tell.send(run(engine.as_ref(), &wire));
        });
        told.recv_timeout(EVER).unwrap_or_else(|_| panic!("{what} never ends"))
    }

    fn send(&self, what: &str) -> ExchangeOutcome {
        self.run(what, |engine, wire| redact_outcome(engine, engine.open_session().send(wire)))
    }

    fn fetch(&self, what: &str) -> FetchResult {
        let raw = self.dir.path().join("links/store/name/jobs/1/raw");
        std::fs::create_dir_all(&raw).unwrap();
        self.run(what, move |engine, _| {
            let outcome =
                redact_outcome(engine, engine.open_session().fetch(&raw, &HashSet::new()));
            let items = engine.unpack_items(&raw).into_iter().map(Result::unwrap);
            let items = items.filter(|item| !item.is_only_known());
            let brought = items.map(|item| (item.arrived.name, item.arrived.bytes)).collect();
            FetchResult { outcome, brought }
        })
    }

    fn check(&self, what: &str) -> Vec<String> {
        let lines = self.run(what, |engine, _| check_engine(engine));
        for line in &lines {
            holds_no_secret(line);
        }
        lines
    }

    /// Returns the number of bytes in the job's folder.
    fn count_written_bytes(&self) -> u64 {
        let files = std::fs::read_dir(self.dir.path().join("links/store/name/jobs/1/raw"));
        files.into_iter().flatten().flatten().map(|f| f.metadata().map_or(0, |m| m.len())).sum()
    }
}

fn merge_objects(mut part: Value, more: &Value) -> Value {
    part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    part
}

fn redact_outcome(engine: &dyn LinkEngine, outcome: ExchangeOutcome) -> ExchangeOutcome {
    let outcome = outcome.redact_secrets(&engine.load_secrets());
    holds_no_secret(outcome.reason().unwrap_or_default());
    outcome
}

#[track_caller]
fn holds_no_secret(text: &str) {
    assert!(!text.to_ascii_lowercase().contains("hunter2hunter2"), "{text}");
    assert!(text.chars().count() < 1000 && !text.contains(['\r', '\n']), "{text:?}");
}

fn is_taken(outcome: &ExchangeOutcome) -> bool {
    matches!(outcome, ExchangeOutcome::Done | ExchangeOutcome::Named { .. })
}

/// Runs a function on many values at the same time.
fn run_each<T: Send + 'static>(all: Vec<T>, run: impl Fn(T) + Clone + Send + 'static) {
    let threads: Vec<_> = all
        .into_iter()
        .map(|one| {
            let run = run.clone();
            std::thread::spawn(move || run(one))
        })
        .collect();
    let failed = threads.into_iter().filter_map(|thread| thread.join().err()).count();
    assert_eq!(failed, 0, "see above");
}

#[test]
fn what_is_told_has_limits() {
    holds_no_secret(&secret::redact_text(
        &format!("{}\r\n{SECRET}", "x".repeat(5000)),
        &[SECRET.to_owned().into()],
    ));
}
