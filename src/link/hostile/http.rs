//! Hostile HTTP servers: AMP providers and relays.

use std::sync::Arc;

use super::server::{HostileProtocol, HostileServer, ServerAction};
use super::*;

/// Returns a successful answer with this body.
fn ok_response(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn build_response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}\r\n{body}").into_bytes()
}

/// Returns all answers that are invalid.
fn list_faults() -> Vec<(&'static str, ServerAction)> {
    use ServerAction::{Close, Drip, Endless, Hang};
    let begun = |text: &str| build_response("200 OK", "", text);
    let deep = |n: usize| "[".repeat(n) + &"]".repeat(n);
    vec![
        ("hangs", Hang),
        ("goes at once", Close(Vec::new())),
        ("is no HTTP", Close(b"220 smtp ready\r\n".to_vec())),
        ("is noise", Endless(b"\0\xff".to_vec(), b"\x16\x03\x01\0".to_vec())),
        ("has a header without end", Endless(b"HTTP/1.1 200 OK\r\nX: ".to_vec(), b"a".to_vec())),
        ("has headers without end", Endless(b"HTTP/1.1 200 OK\r\n".to_vec(), b"X: y\r\n".to_vec())),
        ("goes on for ever", Endless(Vec::new(), b"HTTP/1.1 100 Continue\r\n\r\n".to_vec())),
        ("has a body without end", Endless(begun(""), b"x".to_vec())),
        (
            "has a list without end",
            Endless(begun("{\"messages\":["), b"{\"id\":\"msg_1_a\"},".to_vec()),
        ),
        (
            "has a message without end",
            Endless(begun("{\"messages\":[{\"id\":\"msg_1_a\",\"payload\":\""), b"a".to_vec()),
        ),
        ("has an id without end", Endless(begun("{\"id\":\""), b"a".to_vec())),
        ("says a byte at a time", Drip(b"HTTP/1.1 200 OK\r\nX: a\r\n".to_vec())),
        ("says its body a byte at a time", Drip(ok_response(&" ".repeat(5000)))),
        (
            "is shorter than it says",
            Close(build_response("200 OK", "Content-Length: 99\r\n", "{\"id\":")),
        ),
        (
            "is shorter than it can be",
            Close(build_response("200 OK", "Content-Length: 18446744073709551615\r\n", "{}")),
        ),
        (
            "has a negative length",
            Close(build_response("200 OK", "Content-Length: -1\r\n", "{\"status\":\"sent\"}")),
        ),
        (
            "has two lengths",
            Close(build_response(
                "200 OK",
                "Content-Length: 3\r\nContent-Length: 17\r\n",
                "{\"status\":\"sent\"}",
            )),
        ),
        (
            "has a chunk without end",
            Close(build_response(
                "200 OK",
                "Transfer-Encoding: chunked\r\n",
                "ffffffffffffffff\r\n{\"id\":",
            )),
        ),
        (
            "has chunks that are none",
            Close(build_response(
                "200 OK",
                "Transfer-Encoding: chunked\r\n",
                "-1\r\n{}\r\n0\r\n\r\n",
            )),
        ),
        ("has no such status", Close(b"HTTP/1.1 99999 X\r\n\r\n{}".to_vec())),
        (
            "is another protocol",
            Close(build_response("101 Switching Protocols", "Upgrade: x\r\n", "{}")),
        ),
        ("is the page of a hotel", Close(ok_response("<html>\"messages\" log in</html>"))),
        (
            "has a list that is cut off",
            Close(ok_response("{\"messages\":[{\"id\":\"msg_1_a\"},{\"id\":\"msg")),
        ),
        ("is empty", Close(ok_response(""))),
        ("is nested", Close(ok_response(&deep(200)))),
        ("is nested deeply", Close(ok_response(&deep(1_000_000)))),
        (
            "repeats the secret",
            Close(build_response(
                "400 no",
                "",
                &format!("{{\"error\":\"{SECRET} {}\"}}", SECRET.to_uppercase()),
            )),
        ),
        (
            "has a refusal without end",
            Endless(build_response("500 no", "", "{\"error\":\""), b"a\\n".to_vec()),
        ),
        (
            "refuses slowly",
            Drip(build_response("429 no", "Content-Length: 99999\r\n", &" ".repeat(9999))),
        ),
    ]
}

/// No fault of a server counts as a delivery, lasts for ever, or fills the disk.
#[test]
fn whatever_a_server_answers() {
    let mut all = Vec::new();
    for (what, act) in list_faults() {
        for kind in ["amp", "relay"] {
            all.push((kind, what, act.clone()));
        }
    }
    run_each(all, |(kind, what, act)| {
        let what = format!("{kind}: a server that {what}");
        let server = HostileServer::start(HostileProtocol::Http, Arc::new(move |_| act.clone()));
        let url = format!("http://127.0.0.1:{}", server.port);
        let machine =
            if kind == "amp" { LinkTestMachine::amp(&url) } else { LinkTestMachine::relay(&url) };
        let outcome = machine.send(&what);
        assert!(!is_taken(&outcome), "{what}: {outcome:?}");
        let ended = machine.fetch(&what);
        assert!(
            !is_taken(&ended.outcome) || ended.brought.is_empty(),
            "{what}: {:?}",
            ended.outcome
        );
        assert!(
            machine.count_written_bytes() < 140 << 20,
            "{what}: {}",
            machine.count_written_bytes()
        );
        machine.check(&what);
        assert!(server.has_connections());
    });
}

/// A redirect is not followed: neither the key nor the mail goes to another host.
#[test]
fn redirects_lead_nowhere() {
    let elsewhere = HostileServer::start(
        HostileProtocol::Http,
        Arc::new(|_| {
            ServerAction::Close(ok_response(
                "{\"status\":\"sent\",\"id\":\"msg_1_a\",\"messages\":[]}",
            ))
        }),
    );
    let mut all = Vec::new();
    for status in ["300 x", "301 x", "302 x", "303 x", "307 x", "308 x"] {
        for to in ["http://127.0.0.1:PORT/", "//127.0.0.1:PORT/", "http://u@127.0.0.1:PORT/x"] {
            for kind in ["amp", "relay"] {
                let to = to.replace("PORT", &elsewhere.port.to_string());
                all.push((
                    kind,
                    build_response(status, &format!("Location: {to}\r\nContent-Length: 0\r\n"), ""),
                ));
            }
        }
    }
    run_each(all, |(kind, answer)| {
        let server = HostileServer::start(
            HostileProtocol::Http,
            Arc::new(move |_| ServerAction::Close(answer.clone())),
        );
        let url = format!("http://127.0.0.1:{}", server.port);
        let machine =
            if kind == "amp" { LinkTestMachine::amp(&url) } else { LinkTestMachine::relay(&url) };
        let outcome = machine.send("redirect");
        assert!(matches!(outcome, ExchangeOutcome::Away { .. }), "{kind}: {outcome:?}");
        let outcome = machine.fetch("redirect").outcome;
        assert!(matches!(outcome, ExchangeOutcome::Away { .. }), "{kind}: {outcome:?}");
    });
    assert!(!elsewhere.has_connections());
}

/// A link is tried again within a day, even if a server asks for a longer pause.
#[test]
fn clocks_of_other_times_stop_no_link_for_ever() {
    let reset = |at: &str| format!("X-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: {at}\r\n");
    for headers in [
        "Retry-After: 0\r\n".to_owned(),
        "Retry-After: -5\r\n".to_owned(),
        "Retry-After: 4294967295\r\n".to_owned(),
        "Retry-After: 99999999999999999999999\r\n".to_owned(),
        "Retry-After: Thu, 01 Jan 1970 00:00:00 GMT\r\n".to_owned(),
        "Retry-After: Sun, 07 Feb 2106 06:28:15 GMT\r\n".to_owned(),
        "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n".to_owned(),
        reset("0"),
        reset("4294967295"),
        reset("18446744073709551615"),
    ] {
        let answer = build_response("429 slower", &headers, "{\"error\":\"rate_limited\"}");
        let server = HostileServer::start(
            HostileProtocol::Http,
            Arc::new(move |_| ServerAction::Close(answer.clone())),
        );
        let url = format!("http://127.0.0.1:{}", server.port);
        for machine in [LinkTestMachine::amp(&url), LinkTestMachine::relay(&url)] {
            for outcome in [machine.send(&headers), machine.fetch(&headers).outcome] {
                let ExchangeOutcome::Away { after, .. } = outcome else {
                    panic!("{headers}: {outcome:?}")
                };
                assert!(after.unwrap_or(0) <= 24 * 3600, "{headers}: {after:?}");
            }
        }
    }
}

/// A message in a list is filed even if another one cannot be read; names, ids and times lead nowhere.
#[test]
fn one_bad_message_costs_no_other() {
    let deep = format!("{{\"id\":\"msg_2_b\",\"payload\":{}{}}}", "[".repeat(200), "]".repeat(200));
    let good = |id: &str, time: &str| {
        json!({
            "id": id, "from": "al.agenttalk", "to": "bob.agenttalk", "timestamp": time,
            "payload": "{\"subject\":\"s\\r\\nX-Evil: 1\",\"body\":\"b\"}",
            "envelope": {"id": id, "from": "al@far.x.ai", "to": "bob@far.x.ai", "timestamp": time, "subject": "s"},
        })
        .to_string()
    };
    let times = [
        "1970-01-01T00:00:00",
        "2106-02-07T06:28:16",
        "9999-12-31T23:59:59.999999",
        "-9999-01-01T00:00:00Z",
        "0000-00-00T99:99:99",
        "2026-13-45T00:00:00",
        "../../../../etc",
        "",
    ];
    let mut list = vec![deep, good("../../../etc/passwd", "2026-01-01T00:00:00")];
    list.extend(times.iter().enumerate().map(|(n, time)| good(&format!("msg_1_{n}"), time)));
    list.insert(
        5,
        "{\"id\":7,\"from\":[],\"payload\":{\"attachments\":[{\"name\":\"../x\",\"data\":\"!\"}]}}"
            .into(),
    );
    let count = list.len();
    let answer = ok_response(&format!("{{\"messages\":[{}],\"remaining\":0}}", list.join(",")));
    let server = HostileServer::start(
        HostileProtocol::Http,
        Arc::new(move |request| {
            let is_key = request.contains("/resolve/");
            let none = || build_response("404 none", "Content-Length: 0\r\n", "");
            ServerAction::Close(if is_key { none() } else { answer.clone() })
        }),
    );
    let url = format!("http://127.0.0.1:{}", server.port);
    for machine in [LinkTestMachine::amp(&url), LinkTestMachine::relay(&url)] {
        let ended = machine.fetch("a list");
        assert_eq!(
            (&ended.outcome, ended.brought.len()),
            (&ExchangeOutcome::Done, count),
            "{ended:?}"
        );
        for (name, bytes) in &ended.brought {
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
            assert!(name.bytes().all(is_plain) && !name.starts_with('.'), "{name}");
            assert!(!bytes.windows(7).any(|w| w == b"\nX-Evil"));
        }
    }
}
