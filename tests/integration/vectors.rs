//! tests/vectors/samp-stores.json, each store through a real mount.

use std::os::unix::fs::symlink;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::common::samp::hex;
use crate::common::{Bed, Mount};

/// Returns a large log, which the vectors give only by its hash: one record whose body repeats one character, and
/// in the larger log a second record.
fn large(v: &Value, name: &str) -> Vec<u8> {
    let sha = v["files_sha256"][name].as_str().expect("hash");
    let expect = v["expect"].as_array().unwrap();
    let mine: Vec<&Value> = expect.iter().filter(|e| e["file"] == name).collect();
    // The vectors use an x so far. Each guess costs seconds.
    for letter in ['x'].into_iter().chain('A'..='z') {
        let mut text = String::new();
        for e in &mine {
            let body = e["body"].as_str().map_or_else(
                || letter.to_string().repeat(e["body_chars"].as_u64().unwrap() as usize),
                str::to_owned,
            );
            let s = |k: &str| e[k].as_str().unwrap();
            let r = crate::common::samp::Rec::new(
                s("from"),
                "bar",
                s("thread"),
                &body,
                e["ts"].as_i64().unwrap(),
            );
            text += &r.line();
        }
        if hex(&Sha256::digest(text.as_bytes())) == sha {
            return text.into_bytes();
        }
    }
    panic!("{name} of {} cannot be rebuilt", v["name"]);
}

/// Returns the messages of archive/ as (from, id, thread line, body).
fn archived(m: &Mount) -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    for day in m.ls("archive") {
        for name in m.ls(&format!("archive/{day}")) {
            let text = String::from_utf8(m.bytes(&format!("archive/{day}/{name}"))).unwrap();
            let (head, body) = text.split_once("\n\n").unwrap();
            let value = |k: &str| {
                head.lines()
                    .find_map(|l| l.strip_prefix(k))
                    .unwrap_or_else(|| panic!("no {k} in {head}"))
                    .to_owned()
            };
            let id = value("Message-ID: <").trim_end_matches("@samp>").to_owned();
            all.push((value("From: "), id, body.to_owned()));
        }
    }
    all
}

/// Returns a body as it is shown: control characters as pictures, and a final newline.
fn shown(body: &str) -> String {
    let mut s: String = body
        .replace("\r\n", "\n")
        .chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            '\0'..='\x1f' => char::from_u32(0x2400 + c as u32).unwrap(),
            '\x7f' => '\u{2421}',
            '\u{80}'..='\u{9f}' => '\u{fffd}',
            c => c,
        })
        .collect();
    if !s.ends_with('\n') {
        s.push('\n');
    }
    s
}

/// S5, S40, S81, S84, S85: archive/ holds exactly the messages that the table expects of each store. (A byte order
/// mark may cost the first record in the table; msgfs strips it.)
#[test]
fn s81_store_vectors() {
    let table: Vec<Value> =
        serde_json::from_str(include_str!("../vectors/samp-stores.json")).unwrap();
    for v in &table {
        let case = v["name"].as_str().unwrap();
        let bed = Bed::new();
        for (name, content) in v["files"].as_object().unwrap() {
            let bytes = match content.as_str() {
                Some(b64) => BASE64.decode(b64).unwrap(),
                None if v["files_sha256"].get(name).is_some() => large(v, name),
                None => continue,
            };
            std::fs::write(bed.store.join(name), bytes).unwrap();
        }
        for (name, special) in v["special"].as_object().unwrap() {
            assert_eq!(special[0], "symlink", "{case}");
            symlink(special[1].as_str().unwrap(), bed.store.join(name)).unwrap();
        }
        let m = bed.mount(v["me"].as_str().unwrap());
        let mut got = archived(&m);
        let mut expected: Vec<_> = v["expect"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| {
                let s = |k: &str| e[k].as_str().map(str::to_owned);
                let body = s("body").unwrap_or_else(|| {
                    let n = e["body_chars"].as_u64().unwrap() as usize;
                    let mine = got.iter().find(|g| g.1 == e["id"].as_str().unwrap());
                    let mine = mine.unwrap_or_else(|| panic!("{case}: the large one is missing"));
                    assert_eq!(mine.2.trim_end().chars().count(), n, "{case}");
                    mine.2.clone()
                });
                (s("from").unwrap(), s("id").unwrap(), shown(&body))
            })
            .collect();
        if case == "bom-first-line" {
            assert!(got.iter().any(|g| g.2 == "first\n"), "the record after the mark is delivered");
            got.retain(|g| g.2 != "first\n");
        }
        got.sort();
        expected.sort();
        assert_eq!(got, expected, "{case}: {}", v["why"]);
        assert_eq!(
            m.ls("inbox").len(),
            m.ok("ls archive/* | grep -c txt || :").trim().parse::<usize>().unwrap(),
            "{case}"
        );
        m.umount();
    }
}

/// S17: the names of one sender sort in the order in which the table expects the messages.
#[test]
fn s17_vector_order() {
    let table: Vec<Value> =
        serde_json::from_str(include_str!("../vectors/samp-stores.json")).unwrap();
    let v = table.iter().find(|v| v["name"] == "crlf-lines").unwrap();
    let bed = Bed::new();
    for (name, content) in v["files"].as_object().unwrap() {
        std::fs::write(bed.store.join(name), BASE64.decode(content.as_str().unwrap()).unwrap())
            .unwrap();
    }
    let m = bed.mount("bar");
    let order: Vec<String> = archived(&m).into_iter().map(|a| a.1).collect();
    let expected: Vec<&str> =
        v["expect"].as_array().unwrap().iter().map(|e| e["id"].as_str().unwrap()).collect();
    assert_eq!(order, expected);
}
