//! Tests of the engine against a provider that follows docs/links/amp.md in both variants and fails in every way.

#[path = "../../../tests/links/provider.rs"]
mod provider;

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use ed25519_dalek::pkcs8::EncodePrivateKey as _;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Value, json};

use provider::{Fault, Manner, Provider as Fake};

use super::*;
use crate::link::carrier::CarrierProgram;
use crate::link::carrier_worker::{ExchangeLimit, run_carrier};
use crate::link::lifecycle::Link as _;
use crate::link::message_link::MessageLink;
use crate::model::Timestamp;
use crate::model::locks::Mutex;
use crate::store::amp::verify::{AmpSignedFields, signed_bytes};
use crate::store::{DeliveryFate, InboundMail};

const NAME: &str = "test.example";

fn key(name: &str) -> SigningKey {
    let mut seed = [7; 32];
    seed.iter_mut().zip(name.bytes()).for_each(|(s, b)| *s = b);
    SigningKey::from_bytes(&seed)
}

/// A provider with alice and bob, and alice's link to it.
struct Bench {
    dir: tempfile::TempDir,
    fake: Fake,
    token: String,
    filed: Arc<Mutex<Vec<InboundMail>>>,
}

impl Bench {
    fn new(manner: Manner) -> Self {
        let name = if manner == Manner::Paper { NAME } else { "acme.aimaestro.local" };
        let fake = Fake::start(name, manner);
        fake.add("bob", &key("bob").verifying_key().to_bytes());
        let (address, token) = fake.add("alice", &key("alice").verifying_key().to_bytes());
        let dir = tempfile::tempdir().unwrap();
        let json = json!({
            "provider": name, "apiUrl": fake.api_url(), "apiKey": token, "address": address,
        });
        let bench = Self { dir, fake, token, filed: Arc::default() };
        for folder in ["registrations", "keys"] {
            std::fs::create_dir_all(bench.agent().join(folder)).unwrap();
        }
        let pem = key("alice").to_pkcs8_pem(LineEnding::LF).unwrap();
        let private = bench.agent().join("keys/private.pem");
        atomic_file::write_atomic(&private, pem.as_bytes(), 0o600).unwrap();
        atomic_file::write_atomic(&bench.file(), json.to_string().as_bytes(), 0o600).unwrap();
        bench
    }

    fn agent(&self) -> PathBuf {
        self.dir.path().join("agent")
    }

    fn file(&self) -> PathBuf {
        self.agent().join("registrations/link.json")
    }

    fn settings(&self) -> EngineSettings {
        find_links(&self.agent().join("registrations"), "alice").remove(0).1
    }

    fn engine(&self) -> AmpEngine {
        AmpEngine::open(&self.settings()).unwrap()
    }

    fn address(&self, name: &str) -> String {
        format!("{name}@acme.{}", self.fake.name)
    }

    /// Returns a message of alice's, as it lies in her store.
    fn message(&self, id: &str, to: &str) -> OutboundMail {
        let payload = format!(
            "{{\"context\":{{\"msgfs\":{{\"id\":\"{id}\"}}}},\"message\":\"h\u{e9}llo\",\"type\":\"request\"}}"
        );
        let (from, to) = (self.address("alice"), self.address(to));
        let fields = AmpSignedFields {
            from: &from,
            to: &to,
            subject: "s",
            priority: "normal",
            in_reply_to: "",
        };
        let signature = key("alice").sign(&signed_bytes(&fields, &payload)).to_bytes();
        let signature = base64::engine::general_purpose::STANDARD.encode(signature);
        let text = json!({
            "envelope": {"version": "amp/0.1", "id": id, "from": from, "to": to, "subject": "s",
                "priority": "normal", "signature": signature, "thread_id": id,
                "timestamp": Timestamp::now().rfc3339()},
            "payload": serde_json::from_str::<Value>(&payload).unwrap(),
        });
        OutboundMail {
            message_id: id.into(),
            to,
            bytes: text.to_string().into_bytes(),
            parts: Vec::new(),
        }
    }

    fn wire(&self, id: &str, to: &str) -> PathBuf {
        let path = self.dir.path().join(format!("{id}.wire"));
        let bytes = self.engine().encode_parcel(&self.message(id, to)).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn send(&self, id: &str) -> ExchangeOutcome {
        self.engine().send(&self.wire(id, "bob"))
    }

    fn post(&self) -> MessageLink {
        let filed = Arc::clone(&self.filed);
        let file = move |arrived: &InboundMail| {
            let mut filed = filed.lock();
            if !filed.contains(arrived) {
                filed.push(arrived.clone());
            }
            Ok(())
        };
        let here = |socket: &std::os::unix::net::UnixStream, folder: &Path| {
            run_carrier(socket, folder, &open, &ExchangeLimit::default()).unwrap();
        };
        let folder = self.dir.path().join("state");
        let engine = open(&self.settings()).unwrap();
        let carrier = CarrierProgram::Here(Arc::new(here));
        MessageLink::open("x", &folder, self.settings(), engine, Box::new(file), carrier).unwrap()
    }

    /// Carries until the condition is true.
    fn carry_until(post: &MessageLink, is_so: impl Fn() -> bool + Sync) {
        std::thread::scope(|scope| {
            scope.spawn(|| post.run(&|| {}));
            for _ in 0..1500 {
                if is_so() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            post.stop();
        });
        assert!(is_so());
    }

    fn delivered(&self, name: &str) -> Vec<(String, String)> {
        self.fake.state().delivered.get(&self.address(name)).cloned().unwrap_or_default()
    }

    fn waits(&self, name: &str) -> usize {
        self.fake.state().waiting.get(&self.address(name)).map_or(0, Vec::len)
    }
}

fn why(outcome: &ExchangeOutcome) -> &str {
    outcome.reason().unwrap_or_default()
}

#[test]
fn both_manners_take_a_message_in_their_form() {
    for (manner, form) in [(Manner::Paper, "\"envelope\""), (Manner::Deployed, "\"to\"")] {
        let bench = Bench::new(manner);
        let ExchangeOutcome::Named { id } = bench.send("msg_1_a") else { panic!("{manner:?}") };
        assert_eq!(bench.delivered("bob")[0].0, id);
        let log = bench.fake.state().log.clone();
        let [(method, path, body)] = &log[..] else { panic!("{log:?}") };
        assert_eq!(method, "POST");
        assert!(
            path.ends_with("/v1/route") && body.starts_with(&format!("{{{form}")),
            "{path} {body}"
        );
        assert!(bench.engine().describe_engine().contains(NAME) || manner == Manner::Deployed);
        assert_eq!(bench.engine().check_connection(), [""; 0], "{manner:?}");
    }
}

#[test]
fn the_other_form_is_tried_once() {
    let bench = Bench::new(Manner::Paper);
    let missing = r#"{"error":"missing_field","message":"to","field":"to"}"#;
    bench.fake.fail("/route", Fault::Says(400, "", missing));
    assert!(matches!(bench.send("msg_1_a"), ExchangeOutcome::Named { .. }));
    let forms: Vec<bool> =
        bench.fake.state().log.iter().map(|r| r.2.contains("\"envelope\"")).collect();
    assert_eq!(forms, [true, false]);
    for _ in 0..2 {
        bench.fake.fail("/route", Fault::Says(400, "", missing));
    }
    assert!(matches!(bench.send("msg_1_b"), ExchangeOutcome::Refused { .. }));
}

/// Tests the outcome of each answer, and the number of messages at the provider.
#[test]
fn outcomes() {
    let says = |status, body| Fault::Says(status, "", body);
    let rate = "X-RateLimit-Remaining: 0\r\nRetry-After: 42\r\n";
    let table: Vec<(Fault, &str, &str)> = vec![
        (Fault::CutBefore, "unknown", ""),
        (Fault::CutAfter, "unknown", ""),
        (Fault::Half, "unknown", ""),
        (Fault::Lies, "unknown", "500 internal_error"),
        (Fault::WrongLength(7), "unknown", ""),
        (says(500, "{}"), "unknown", "500"),
        (says(502, "<html>bad gateway"), "unknown", "502"),
        (says(408, ""), "unknown", "408"),
        (
            says(404, r#"{"error":"not_found","message":"nobody"}"#),
            "refused",
            "404 not_found: nobody",
        ),
        (says(413, "<html>"), "refused", "413"),
        (says(422, r#"{"error":"external_provider"}"#), "refused", "422 external_provider"),
        (says(404, r#"{"error":"Not found"}"#), "away", "apiUrl"),
        (says(404, "<html>nginx"), "away", "apiUrl"),
        (says(403, "<html>firewall"), "later", "403"),
        (says(401, r#"{"error":"unauthorized"}"#), "away", "msgfs amp register"),
        (Fault::Says(429, rate, r#"{"error":"rate_limited"}"#), "away", "slower"),
        (Fault::Says(302, "Location: http://evil.example/\r\n", ""), "away", "redirect"),
        (says(200, "<html>log in"), "unknown", "not that of an AMP provider"),
        (says(200, r#"{"id":"../../x","status":"queued"}"#), "done", ""),
        (says(202, r#"{"status":"quarantined"}"#), "done", ""),
        (Fault::Slow(Duration::from_millis(1)), "named", ""),
    ];
    for (n, (fault, expected, words)) in table.into_iter().enumerate() {
        let bench = Bench::new(Manner::Paper);
        bench.fake.fail("/route", fault.clone());
        let outcome = bench.send(&format!("msg_1_{n}"));
        let kind = match &outcome {
            ExchangeOutcome::Done => "done",
            ExchangeOutcome::Named { .. } => "named",
            ExchangeOutcome::Refused { .. } => "refused",
            ExchangeOutcome::Later { .. } => "later",
            ExchangeOutcome::Away { .. } => "away",
            ExchangeOutcome::Unknown { .. } => "unknown",
        };
        assert_eq!(kind, expected, "{fault:?} {outcome:?}");
        assert!(why(&outcome).contains(words), "{fault:?} {outcome:?}");
        if let ExchangeOutcome::Away { after, .. } = &outcome
            && words == "slower"
        {
            assert_eq!(*after, Some(42));
        }
    }
    let bench = Bench::new(Manner::Paper);
    let outcome = bench.engine().send(&bench.wire("msg_1_a", "nobody"));
    assert_eq!(
        why(&outcome),
        format!("404 not_found: nobody is called {}", bench.address("nobody"))
    );
}

#[test]
fn nothing_listens_there() {
    let bench = Bench::new(Manner::Paper);
    let text = std::fs::read_to_string(bench.file()).unwrap();
    let text = text.replace(&format!(":{}", bench.fake.port), ":1");
    atomic_file::write_atomic(&bench.file(), text.as_bytes(), 0o600).unwrap();
    assert!(matches!(bench.send("msg_1_a"), ExchangeOutcome::Away { .. }));
    assert!(matches!(
        bench.engine().fetch(bench.dir.path(), &HashSet::new()),
        ExchangeOutcome::Away { .. }
    ));
}

/// The key is in no text of this link, even if the provider repeats it.
#[test]
fn the_key_is_nowhere() {
    let bench = Bench::new(Manner::Paper);
    bench.fake.state().agents.iter_mut().for_each(|agent| agent.tokens.clear());
    let engine = bench.engine();
    let mut texts = vec![format!("{engine:?}"), engine.describe_engine()];
    texts.extend(crate::link::check_engine(&engine));
    for outcome in [
        engine.send(&bench.wire("msg_1_a", "bob")),
        engine.fetch(bench.dir.path(), &HashSet::new()),
        engine.acknowledge(&["msg_1_a".into()]),
        engine.acknowledge(&["msg_1_a".into(), "msg_1_b".into()]),
    ] {
        assert!(matches!(outcome, ExchangeOutcome::Away { .. }), "{outcome:?}");
        texts.push(format!("{:?}", outcome.redact_secrets(&engine.load_secrets())));
    }
    let post = bench.post();
    post.accept_parcel(&bench.message("msg_1_c", "bob")).unwrap();
    Bench::carry_until(
        &post,
        || matches!(post.find_fate("msg_1_c", &bench.address("bob")), Some(DeliveryFate::Waits(why)) if why.contains("tried")),
    );
    texts.push(format!(
        "{:?} {:?}",
        post.board().health(),
        post.find_fate("msg_1_c", &bench.address("bob"))
    ));
    for text in &texts {
        assert!(!text.contains(&bench.token), "{text}");
    }
    assert!(texts.iter().any(|text| text.contains("(hidden)")), "{texts:?}");
    let mut left = vec![bench.dir.path().join("state")];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains(&bench.token), "{path:?}");
        }
    }
}

/// Returns the ways in which a request fails.
fn faults() -> [Fault; 7] {
    [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::Half,
        Fault::Lies,
        Fault::WrongLength(9),
        Fault::Says(503, "", ""),
        Fault::Says(429, "Retry-After: 1\r\n", ""),
    ]
}

/// After any fault a message reaches its recipient: once at a provider that recognizes repeats, and elsewhere as often
/// as its fate is unknown, with one signature.
#[test]
fn every_fault_of_a_send_ends_well() {
    for manner in [Manner::Paper, Manner::Deployed] {
        for fault in faults() {
            let bench = Bench::new(manner);
            let post = bench.post();
            bench.fake.fail("/route", fault.clone());
            let bob = bench.address("bob");
            post.accept_parcel(&bench.message("msg_1_a", "bob")).unwrap();
            Bench::carry_until(&post, || {
                post.find_fate("msg_1_a", &bob) == Some(DeliveryFate::Taken)
            });
            let delivered = bench.delivered("bob");
            let lost = matches!(
                fault,
                Fault::CutAfter | Fault::Half | Fault::Lies | Fault::WrongLength(_)
            );
            let twice = lost && manner == Manner::Deployed;
            assert_eq!(delivered.len(), if twice { 2 } else { 1 }, "{manner:?} {fault:?}");
            assert!(delivered.iter().all(|(_, signature)| *signature == delivered[0].1));
            let last = delivered.last().map(|(id, _)| id.clone());
            assert_eq!(post.find_given_id("msg_1_a", &bob), last, "{manner:?} {fault:?}");
            drop(post);
            assert_eq!(bench.post().find_given_id("msg_1_a", &bob), last, "kept");
        }
    }
}

fn waiting(id: &str, from: &str, to: &str) -> String {
    json!({
        "id": id, "envelope": {"version": "amp/0.1", "id": id, "from": from, "to": to, "subject": "s",
            "priority": "normal", "timestamp": "2026-11-23T08:00:00Z"},
        "payload": {"type": "request", "message": id}, "queued_at": "2026-11-23T08:00:00Z",
    })
    .to_string()
}

#[test]
fn what_waits_is_filed_and_acknowledged_and_keys_come_first() {
    for manner in [Manner::Paper, Manner::Deployed] {
        let bench = Bench::new(manner);
        let (alice, bob) = (bench.address("alice"), bench.address("bob"));
        for n in 0..130 {
            let id = format!("msg_1_{n:03}");
            bench.fake.wait_for(&alice, &id, &waiting(&id, &bob, &alice));
        }
        let post = bench.post();
        Bench::carry_until(&post, || bench.waits("alice") == 0);
        let filed = bench.filed.lock().clone();
        assert_eq!(filed.len(), 131, "{manner:?}");
        assert_eq!(
            filed[0].keys,
            [(bob.clone(), PublicKey(key("bob").verifying_key().to_bytes()))]
        );
        let names: HashSet<&str> = filed[1..].iter().map(|a| a.name.as_str()).collect();
        assert_eq!(names.len(), 130);
        let log = bench.fake.state().log.clone();
        let resolved = log.iter().filter(|(_, path, _)| path.contains("/resolve/")).count();
        assert_eq!(resolved, 1, "a key that was brought is not asked for again");
    }
}

#[test]
fn every_fault_of_a_fetch_ends_well() {
    for (at, fault) in [
        ("pending?", Fault::CutBefore),
        ("pending?", Fault::CutAfter),
        ("pending?", Fault::Half),
        ("pending?", Fault::WrongLength(5)),
        ("pending?", Fault::Says(500, "", "")),
        ("pending?", Fault::Says(200, "", "<html>log in")),
        ("pending?", Fault::Says(302, "Location: http://evil.example/\r\n", "")),
        ("pending/", Fault::CutBefore),
        ("pending/", Fault::CutAfter),
        ("pending/", Fault::Says(500, "", "")),
        ("/resolve/", Fault::CutBefore),
    ] {
        let bench = Bench::new(Manner::Paper);
        let (alice, bob) = (bench.address("alice"), bench.address("bob"));
        bench.fake.fail(at, fault.clone());
        bench.fake.wait_for(&alice, "msg_1_a", &waiting("msg_1_a", &bob, &alice));
        // A start asks at once; a failed request waits for a while.
        Bench::carry_until(&bench.post(), || bench.fake.state().faults.is_empty());
        Bench::carry_until(&bench.post(), || bench.waits("alice") == 0);
        let filed = bench.filed.lock().clone();
        let messages: Vec<&InboundMail> = filed.iter().filter(|a| !a.bytes.is_empty()).collect();
        assert_eq!(messages.len(), 1, "{at} {fault:?}");
        assert_eq!(filed.len(), 2, "{at} {fault:?}: the key of bob");
    }
}

#[test]
fn an_id_that_is_a_path_is_filed_aside_and_never_said() {
    let bench = Bench::new(Manner::Deployed);
    let (alice, bob) = (bench.address("alice"), bench.address("bob"));
    for id in ["../../x", "..", "a b", "msg_1_a/../b", "%2e%2e%2fx"] {
        bench.fake.wait_for(&alice, id, &waiting(id, &bob, &alice));
    }
    bench.fake.wait_for(&alice, "msg_1_ok", &waiting("msg_1_ok", &bob, &alice));
    let deep =
        format!("{{\"id\":\"msg_1_deep\",\"payload\":{}{}}}", "[".repeat(200), "]".repeat(200));
    bench.fake.wait_for(&alice, "msg_1_deep", &deep);
    let post = bench.post();
    Bench::carry_until(&post, || bench.waits("alice") == 5);
    drop(post);
    Bench::carry_until(&bench.post(), || bench.fake.state().log.len() > 5);
    let removed = bench.fake.state().removed.clone();
    assert!(removed.iter().all(|id| is_message_id(id)), "{removed:?}");
    let filed = bench.filed.lock().clone();
    assert_eq!(filed.iter().filter(|a| !a.bytes.is_empty()).count(), 7, "once each");
    assert!(filed.iter().all(|a| a.name.is_empty() || is_message_id(&a.name)));
}

#[test]
fn an_endless_answer_ends() {
    let bench = Bench::new(Manner::Paper);
    for _ in LIST_LIMITS {
        bench.fake.fail("pending?", Fault::Endless);
    }
    let raw = tempfile::tempdir().unwrap();
    let outcome = bench.engine().fetch(raw.path(), &HashSet::new());
    assert!(matches!(outcome, ExchangeOutcome::Unknown { .. }), "{outcome:?}");
    assert!(bench.engine().unpack_items(raw.path()).is_empty());
    let asked: Vec<String> =
        bench.fake.state().log.iter().map(|(_, path, _)| path.clone()).collect();
    assert_eq!(asked.len(), 3, "with fewer each time: {asked:?}");
}

#[test]
fn keys_are_only_taken_for_the_address_that_was_asked() {
    let hex = "11".repeat(32);
    let weak = format!("01{}", "00".repeat(31));
    let good = PublicKey(key("bob").verifying_key().to_bytes());
    let good_hex: String = crate::model::encode_hex(&good.0);
    for (answer, expected) in [
        (json!({"address": "bob@acme.x.ai", "public_key": good_hex}), Some(good)),
        (
            json!({"address": "b@y", "short_address": "BOB@acme.x.ai", "public_key": good_hex}),
            Some(good),
        ),
        (json!({"address": "team-bob@acme.x.ai", "public_key": good_hex}), None),
        (json!({"public_key": good_hex}), None),
        (json!({"address": "bob@acme.x.ai", "public_key": weak}), None),
        (json!({"address": "bob@acme.x.ai", "public_key": &hex[1..]}), None),
        (json!({"address": "bob@acme.x.ai", "public_key": "-----BEGIN PUBLIC KEY-----"}), None),
        (json!([]), None),
    ] {
        assert_eq!(
            parse_resolved_key(answer.to_string().as_bytes(), "bob@acme.x.ai"),
            expected,
            "{answer}"
        );
    }
}

#[test]
fn polls_grow_seldom_while_nothing_comes() {
    let bench = Bench::new(Manner::Paper);
    let engine = bench.engine();
    let raw = tempfile::tempdir().unwrap();
    let mut polls = Vec::new();
    let none = r#"{"messages":[]}"#;
    let (more, one) = (r#"{"messages":[{}],"remaining":3}"#, r#"{"messages":[{}]}"#);
    for page in [none, none, none, "<html>", more, one, none, ""] {
        std::fs::write(raw.path().join(PAGE), page).unwrap();
        engine.unpack_items(raw.path());
        polls.push(engine.poll_interval().as_secs());
    }
    assert_eq!(polls, [20, 40, 60, 60, 2, 10, 20, 20]);
}

mod registering {
    use super::*;
    use ed25519_dalek::pkcs8::spki::EncodePublicKey as _;
    use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
    use std::os::unix::fs::PermissionsExt as _;

    fn agent(tenant: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("keys")).unwrap();
        let public = key("carol").verifying_key().to_public_key_pem(LineEnding::LF).unwrap();
        std::fs::write(dir.path().join("keys/public.pem"), public).unwrap();
        let config = json!({"agent": {"name": "Carol", "tenant": tenant}});
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        dir
    }

    fn request(bench: &Bench, agent: &tempfile::TempDir) -> AmpRegisterRequest {
        AmpRegisterRequest {
            agent: agent.path().to_owned(),
            provider: bench.fake.name.into(),
            api_url: Some(bench.fake.api_url()),
            ..AmpRegisterRequest::default()
        }
    }

    #[test]
    fn it_makes_a_link_that_works() {
        for manner in [Manner::Paper, Manner::Deployed] {
            let (bench, agent) = (Bench::new(manner), agent("acme"));
            let made = register_agent(&request(&bench, &agent), None).unwrap();
            assert_eq!(made.address, bench.address("carol"));
            let mode = std::fs::metadata(&made.file).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let links = find_links(&agent.path().join("registrations"), "carol");
            assert_eq!((links.len(), links[0].0.as_str()), (1, bench.fake.name));
            assert_eq!(open(&links[0].1).unwrap().check_connection(), [""; 0], "{manner:?}");
            // The bash clients add the version themselves.
            let file: Value = serde_json::from_slice(&std::fs::read(&made.file).unwrap()).unwrap();
            assert_eq!(file["apiUrl"], bench.fake.api_url());
            let again = register_agent(&request(&bench, &agent), None).unwrap();
            assert_eq!(again.file, made.file);
        }
    }

    #[test]
    fn a_refusal_says_what_to_do_and_never_the_user_key() {
        let bench = Bench::new(Manner::Paper);
        let other = agent("globex");
        let error = register_agent(&request(&bench, &other), None).unwrap_err();
        assert!(error.contains("the organisation is: acme"), "{error}");
        assert!(register_agent(&request(&bench, &other), Some("uk_secretsecret")).is_ok());
        bench.fake.add("dave", &[9; 32]);
        let taken =
            AmpRegisterRequest { name: Some("dave".into()), ..request(&bench, &agent("acme")) };
        let taken = AmpRegisterRequest {
            agent: other.path().to_owned(),
            tenant: Some("acme".into()),
            ..taken
        };
        let error = register_agent(&taken, None).unwrap_err();
        assert!(error.contains("name_taken") && error.contains("dave-2, dave-3"), "{error}");
        let says = r#"{"error":"unauthorized","message":"bad key uk_secretsecret"}"#;
        bench.fake.fail("/register", Fault::Says(401, "", says));
        let error = register_agent(&request(&bench, &other), Some("uk_secretsecret")).unwrap_err();
        assert!(error.contains("(hidden)") && !error.contains("secretsecret"), "{error}");
        for (provider, url) in [("../x", None), ("x", None), ("a.b", Some("http://example.com"))] {
            let odd = AmpRegisterRequest {
                provider: provider.into(),
                api_url: url.map(str::to_owned),
                ..request(&bench, &other)
            };
            assert!(register_agent(&odd, None).is_err(), "{provider}");
        }
    }

    #[test]
    fn an_answer_that_is_none_changes_nothing() {
        for body in ["<html>", "{}", r#"{"api_key":"k"}"#, r#"{"api_key":"k","address":"../x"}"#] {
            let (bench, agent) = (Bench::new(Manner::Paper), agent("acme"));
            bench.fake.fail("/register", Fault::Says(200, "", body));
            assert!(register_agent(&request(&bench, &agent), None).is_err(), "{body}");
            assert!(!agent.path().join("registrations").exists());
        }
        for (name, address, is_right) in [
            ("test.example", "carol@acme.test.example", true),
            ("Eu.Test.Example", "carol@acme.eu.test.example", true),
            ("test.example", "carol@repo.acme.TEST.example", true),
            ("crabmail.ai", "carol@acme.test.example", false),
            ("eviltest.example", "carol@acme.test.example", false),
            ("test.example", "carol@acme.crabmail.ai", false),
            ("test.example", "carol@eviltest.example", false),
        ] {
            let (bench, agent) = (Bench::new(Manner::Paper), agent("acme"));
            let body = json!({"api_key": "k", "address": address, "provider": {"name": name}});
            let body = body.to_string().leak();
            bench.fake.fail("/register", Fault::Says(201, "", body));
            let made = register_agent(&request(&bench, &agent), None);
            assert_eq!(made.is_ok(), is_right, "{body} {made:?}");
            assert_eq!(agent.path().join("registrations").exists(), is_right, "{body}");
        }
        let (bench, agent) = (Bench::new(Manner::Paper), agent("acme"));
        let elsewhere = r#"{"api_key":"kkkkkkkkk","address":"carol@acme.test.example",
            "provider":{"name":"../../evil","route_url":"https://evil.example/route"}}"#;
        bench.fake.fail("/register", Fault::Says(201, "", elsewhere));
        let made = register_agent(&request(&bench, &agent), None).unwrap();
        assert_eq!(made.file, agent.path().join("registrations/test.example.json"));
        assert_eq!(made.notes.len(), 1);
        assert!(!std::fs::read_to_string(&made.file).unwrap().contains("evil"));
    }
}

mod uploads;

thread_local! {
    /// The number of steps after which this thread is killed.
    static LIVES: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) };
}

/// Kills a carrier if its steps are used up.
pub(super) fn step() {
    if let Some(left) = LIVES.get() {
        LIVES.set(left.checked_sub(1));
        assert!(left > 0, "killed");
    }
}
