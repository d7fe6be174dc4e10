//! Tests of messages with attachments.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::model::encode_hex;
use sha2::{Digest as _, Sha256};

const TEXT: &[u8] = b"a plan\x00\xff\r\n";

impl Bench {
    fn with_files() -> Self {
        let bench = Self::new(Manner::Paper);
        bench.fake.state().takes = Some(1 << 20);
        bench
    }

    /// Returns the kept bytes of a message of alice's to bob with these files.
    fn wire_with(&self, id: &str, names: &[&str]) -> PathBuf {
        let mut parcel = self.message(id, "bob");
        let mut message: Value = serde_json::from_slice(&parcel.bytes).unwrap();
        let attachment = |(n, name): (usize, &&str)| {
            json!({"id": format!("att_1_{n}"), "filename": name, "content_type": "text/plain",
                "size": TEXT.len(), "digest": format!("sha256:{}", encode_hex(&Sha256::digest(TEXT))),
                "scan_status": "unscanned"})
        };
        let all: Vec<Value> = names.iter().enumerate().map(attachment).collect();
        message["payload"]["attachments"] = all.into();
        parcel.bytes = message.to_string().into_bytes();
        for name in names {
            let path = self.dir.path().join(name);
            std::fs::write(&path, TEXT).unwrap();
            parcel.parts.push(((*name).to_owned(), path));
        }
        let path = self.dir.path().join(format!("out-{id}"));
        std::fs::write(&path, self.engine().encode_parcel(&parcel).unwrap()).unwrap();
        path
    }

    /// Tries until it is over. Returns the outcome and the number of tries.
    fn tried(&self, wire: &Path) -> (ExchangeOutcome, usize) {
        for tries in 1..40 {
            match self.engine().send(wire) {
                ExchangeOutcome::Away { .. }
                | ExchangeOutcome::Later { .. }
                | ExchangeOutcome::Unknown { .. } => {}
                outcome => return (outcome, tries),
            }
        }
        panic!("it never ends: {:?}", self.engine().send(wire));
    }

    /// Returns the messages for bob, with their lists of files.
    fn got(&self) -> Vec<Value> {
        let state = self.fake.state();
        let waiting = state.waiting.get(&format!("bob@acme.{}", self.fake.name));
        let parsed = |(_, text): &(String, String)| serde_json::from_str(text).unwrap();
        waiting.into_iter().flatten().map(parsed).collect()
    }

    /// Checks that bob has one message, whose files are those that the provider keeps.
    #[track_caller]
    fn got_once(&self, names: &[&str]) {
        let got = self.got();
        assert_eq!(got.len(), 1);
        let files = got[0]["payload"]["attachments"].as_array().unwrap();
        assert_eq!(files.len(), names.len());
        let state = self.fake.state();
        for (file, name) in files.iter().zip(names) {
            let kept = &state.kept[file["id"].as_str().unwrap()];
            assert_eq!((kept.bytes.as_deref(), kept.name.as_str()), (Some(TEXT), *name));
            assert_eq!(file["scan_status"], "clean");
            let url = file["url"].as_str().unwrap();
            assert!(url.ends_with("/download") && url.starts_with("http://127.0.0.1:"), "{url}");
        }
    }

    fn begun(&self) -> usize {
        let is_begun = |r: &&(String, String, String)| r.1.ends_with("/attachments/upload");
        self.fake.state().log.iter().filter(is_begun).count()
    }
}

#[test]
fn files_are_uploaded_and_then_the_message_is_signed() {
    let bench = Bench::with_files();
    let wire = bench.wire_with("msg_1_a", &["plan.txt", "b.bin"]);
    let (outcome, tries) = bench.tried(&wire);
    assert!(matches!(outcome, ExchangeOutcome::Named { .. }), "{outcome:?}");
    assert_eq!((tries, bench.begun()), (1, 2));
    bench.got_once(&["plan.txt", "b.bin"]);
    assert_eq!(bench.got()[0]["payload"]["context"]["msgfs"]["id"], "msg_1_a");
    // A second send is the same request.
    assert!(matches!(bench.engine().send(&wire), ExchangeOutcome::Named { .. }));
    bench.got_once(&["plan.txt", "b.bin"]);
    assert_eq!(bench.begun(), 2);
}

/// The carrier dies after each write, and before it could record an answer.
#[test]
fn killed_at_each_step_it_goes_once_and_no_upload_is_done_twice() {
    let mut steps = 0;
    loop {
        let bench = Bench::with_files();
        let wire = bench.wire_with("msg_1_a", &["plan.txt", "b.bin"]);
        LIVES.set(Some(steps));
        let killed = catch_unwind(AssertUnwindSafe(|| bench.engine().send(&wire))).is_err();
        LIVES.set(None);
        let (outcome, _) = bench.tried(&wire);
        assert!(matches!(outcome, ExchangeOutcome::Named { .. }), "{steps}: {outcome:?}");
        bench.got_once(&["plan.txt", "b.bin"]);
        // An upload that only began cannot be used again.
        let whole = bench.fake.state().kept.values().filter(|kept| kept.bytes.is_some()).count();
        assert_eq!(whole, 2, "{steps}");
        if !killed {
            break;
        }
        steps += 1;
    }
    assert!(steps >= 7, "{steps}");
}

/// Each request fails in each way, and yet the message goes once.
#[test]
fn whatever_fails_at_whatever_request_it_goes_once() {
    let paths = ["/attachments/upload", "/uploads/", "/confirm", "/attachments/att_", "/route"];
    for path in paths {
        for fault in &faults() {
            let bench = Bench::with_files();
            let wire = bench.wire_with("msg_1_a", &["plan.txt"]);
            bench.fake.fail(path, fault.clone());
            let (outcome, tries) = bench.tried(&wire);
            assert!(
                matches!(outcome, ExchangeOutcome::Named { .. }),
                "{path} {fault:?}: {outcome:?}"
            );
            assert!(tries <= 3, "{path} {fault:?}");
            bench.got_once(&["plan.txt"]);
            assert!(bench.begun() <= 2, "{path} {fault:?}");
        }
    }
}

#[test]
fn a_file_is_waited_for_while_it_is_examined() {
    let bench = Bench::with_files();
    bench.fake.state().examines = 8;
    let wire = bench.wire_with("msg_1_a", &["plan.txt"]);
    let outcome = bench.engine().send(&wire);
    assert!(
        matches!(&outcome, ExchangeOutcome::Later { why, .. } if why.contains("examining plan.txt"))
    );
    let (outcome, tries) = bench.tried(&wire);
    assert!(matches!(outcome, ExchangeOutcome::Named { .. }), "{outcome:?}");
    assert_eq!((tries, bench.begun()), (2, 1));
    bench.got_once(&["plan.txt"]);
}

#[test]
fn a_provider_that_forgets_files_gets_them_again_but_not_for_ever() {
    for code in
        ["410 attachment_expired", "409 attachment_already_used", "404 attachment_not_found"]
    {
        let (status, code) = code.split_once(' ').unwrap();
        let says: &'static str = Box::leak(format!("{{\"error\":\"{code}\"}}").into_boxed_str());
        let status = status.parse().unwrap();
        let bench = Bench::with_files();
        let wire = bench.wire_with("msg_1_a", &["plan.txt"]);
        bench.fake.fail("/route", Fault::Says(status, "", says));
        assert!(matches!(bench.tried(&wire), (ExchangeOutcome::Named { .. }, 2)), "{code}");
        assert_eq!(bench.begun(), 2);
        bench.got_once(&["plan.txt"]);
    }
    let bench = Bench::with_files();
    let wire = bench.wire_with("msg_1_a", &["plan.txt"]);
    let expired = Fault::Says(410, "", r#"{"error":"attachment_expired"}"#);
    (0..20).for_each(|_| bench.fake.fail("/route", expired.clone()));
    let (outcome, tries) = bench.tried(&wire);
    assert!(why(&outcome).contains("does not keep its files"), "{outcome:?}");
    assert_eq!((tries, bench.begun()), (6, 6));
}

#[test]
fn what_cannot_go_says_why() {
    let refused = |change: &dyn Fn(&Bench, &Path)| {
        let bench = Bench::with_files();
        let wire = bench.wire_with("msg_1_a", &["plan.txt"]);
        change(&bench, &wire);
        let (outcome, _) = bench.tried(&wire);
        assert!(bench.got().is_empty());
        let ExchangeOutcome::Refused { why } = outcome else { panic!("{outcome:?}") };
        why
    };
    for word in ["suspicious", "rejected"] {
        let why = refused(&|bench, _| {
            bench.fake.state().finds.insert("plan.txt".into(), word);
        });
        assert!(why.contains(&format!("finds plan.txt {word}")), "{why}");
    }
    let path = |bench: &Bench| bench.dir.path().join("plan.txt");
    let why = refused(&|bench, _| std::fs::write(path(bench), "another").unwrap());
    assert!(why.contains("plan.txt was changed or removed"), "{why}");
    let why = refused(&|bench, _| std::fs::remove_file(path(bench)).unwrap());
    assert!(why.contains("send it again"), "{why}");
    let why = refused(&|bench, _| bench.fake.state().takes = None);
    assert!(why.contains("test.example does not take plan.txt: 404"), "{why}");
    let why = refused(&|bench, _| bench.fake.state().takes = Some(3));
    assert!(why.contains("413 attachment_too_large"), "{why}");
}

/// The upload URL is foreign text.
#[test]
fn a_place_that_is_elsewhere_or_odd_gets_nothing() {
    for (member, value) in [
        ("upload_url", json!("http://169.254.169.254/latest")),
        ("upload_url", json!("file:///etc/passwd")),
        ("upload_url", json!(null)),
        ("attachment_id", json!("../../x")),
        ("upload_method", json!("DELETE")),
        ("upload_headers", json!({"Host": "evil.example"})),
        ("upload_headers", json!({"X": "a\r\nAuthorization: b"})),
    ] {
        let bench = Bench::with_files();
        let wire = bench.wire_with("msg_1_a", &["plan.txt"]);
        let mut says = json!({
            "attachment_id": "att_1_a", "upload_method": "PUT",
            "upload_url": format!("{}/v1/uploads/att_1_a", bench.fake.api_url()),
        });
        says[member] = value;
        let says: &'static str = Box::leak(says.to_string().into_boxed_str());
        bench.fake.fail("/attachments/upload", Fault::Says(201, "", says));
        let outcome = bench.engine().send(&wire);
        assert!(matches!(outcome, ExchangeOutcome::Later { .. }), "{says}: {outcome:?}");
        let log = bench.fake.state().log.clone();
        assert!(log.iter().all(|(_, path, _)| path.ends_with("/attachments/upload")), "{log:?}");
        let (outcome, _) = bench.tried(&wire);
        assert!(matches!(outcome, ExchangeOutcome::Named { .. }), "{outcome:?}");
    }
}

#[test]
fn what_a_provider_takes_is_learnt_with_its_mail() {
    for (manner, takes, says) in [
        (Manner::Paper, Some(7), "at most 7 bytes"),
        (Manner::Paper, None, "takes no attachments"),
        (Manner::Deployed, None, "takes no attachments"),
    ] {
        let bench = Bench::new(manner);
        bench.fake.state().takes = takes;
        let post = bench.post();
        let takes =
            || post.engine().check_attachment_sizes(post.folder(), &[8]).err().unwrap_or_default();
        assert!(takes().contains("not known yet"), "{}", takes());
        Bench::carry_until(&post, || takes().contains(says));
    }
}
