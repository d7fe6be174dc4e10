//! Foreign messages in the stream.

use serde_json::json;

use super::machine::{Machine, record, records};
use super::server::Server;
use crate::soon;

#[test]
fn messages_that_are_no_lines_are_refused_and_counted() {
    let server = Server::start();
    let (a, b) = (Machine::of(&server), Machine::of(&server));
    a.write("a", &record("a", 0));
    b.has("a", &record("a", 0));
    let at = record("a", 0).len() as u64;
    let mut raw = server.raw();
    let good = record("a", "bad");
    let deep = good
        .replace("\"body\"", &format!("\"x\":{}1{},\"body\"", "[".repeat(200), "]".repeat(200)));
    let mut sent = 0;
    for payload in [
        b"" as &[u8],
        b"\n",
        b"[]\n",
        b"nonsense\n",
        b"{}\n",
        b"\xff\xfe\n",
        record("x", 1).as_bytes(),
        good.replace('\n', "").as_bytes(),
        good.replace('\n', "\r\n").as_bytes(),
        (good.clone() + &good).as_bytes(),
        good.replace("1700000000", "1e999").as_bytes(),
        deep.as_bytes(),
    ] {
        raw.line_at("msgfs.team.a", at, payload);
        sent += 1;
    }
    for subject in [
        b"msgfs.team.%61" as &[u8],
        b"msgfs.team.a%2eb",
        b"msgfs.team.%2E%2E%2Fa",
        b"msgfs.team.%",
        "msgfs.team.\u{e9}".as_bytes(),
        b"msgfs.team.a*b",
        b"msgfs.team.a%2Esync-conflict-20260413-091523-K3X2R2T",
    ] {
        raw.publish(subject, "", b"NATS/1.0\r\nMsgfs-At: 0\r\n\r\n", good.as_bytes());
        sent += 1;
    }
    let header = |text: &str| format!("NATS/1.0\r\n{text}\r\n\r\n");
    for headers in [
        String::new(),
        header("Msgfs-At: x"),
        header("Msgfs-At: -1"),
        header("Msgfs-At: 99999999999999999999999"),
        header("Msgfs-At: 9007199254740992"),
        header("Msgfs-At: 1\r\nMsgfs-At: 1"),
        header("Msgfs-At: 1\r\nNats-Sequence: 1"),
        header("Msgfs-At: 1\r\nnats-subject: x"),
        "NATS/1.0 409 Consumer Deleted\r\n\r\n".into(),
        "NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n".into(),
        "NATS/1.0 503\r\n\r\n".into(),
    ] {
        raw.publish(b"msgfs.team.a", "", headers.as_bytes(), good.as_bytes());
        sent += 1;
    }
    soon("each is refused", || a.health().refused == sent && b.health().refused == sent);
    b.tells("is refused");
    // The writer continues, here and after a restart.
    a.write("a", &record("a", 1));
    b.has("a", &records("a", 0..2));
    let mut late = Machine::of(&server);
    late.has("a", &records("a", 0..2));
    late.restart();
    a.write("a", &record("a", 2));
    late.has("a", &records("a", 0..3));
    for machine in [&a, &b, &late] {
        let mut names: Vec<_> =
            std::fs::read_dir(machine.folder()).unwrap().map(|f| f.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["log-a.jsonl"]);
    }
}

#[test]
fn a_message_that_no_client_can_read_stops_nobody() {
    let server = Server::start();
    let (a, b) = (Machine::of(&server), Machine::of(&server));
    a.write("a", &record("a", 0));
    b.has("a", &record("a", 0));
    let mut raw = server.raw();
    let bad: [&[u8]; 4] = [
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\nX: \xff\r\n\r\n",
        b"NATS/1.0 what\r\n\r\n",
        b"NATS/1.0\r\nX: a\rb\r\n\r\n",
    ];
    for headers in bad {
        raw.publish(b"msgfs.team.evil", "", headers, record("evil", 0).as_bytes());
    }
    raw.publish(b"msgfs.team.\xff", "", b"NATS/1.0\r\nMsgfs-At: 0\r\n\r\n", b"x\n");
    raw.publish(b"msgfs.team.a", "", bad[0], record("a", 9).as_bytes());
    a.write("a", &record("a", 1));
    b.write("b", &record("b", 1));
    b.has("a", &records("a", 0..2));
    a.has("b", &record("b", 1));
    let mut late = Machine::of(&server);
    late.has("a", &records("a", 0..2));
    late.has("b", &record("b", 1));
    late.tells("is refused");
    // The bad message is the last one of its subject when a link starts.
    raw.publish(b"msgfs.team.a", "", bad[0], record("a", 9).as_bytes());
    late.restart();
    a.write("a", &record("a", 2));
    late.has("a", &records("a", 0..3));
    b.write("b", &record("b", 2));
    late.has("b", &records("b", 1..3));
}

#[test]
fn a_link_whose_last_message_no_client_can_read_connects_again() {
    let server = Server::start();
    let (a, mut b) = (Machine::of(&server), Machine::of(&server));
    a.write("a", &record("a", 0));
    b.has("a", &record("a", 0));
    let headers = b"NATS/1.0\r\nno colon\r\n\r\n";
    server.raw().publish(b"msgfs.team.evil", "", headers, record("evil", 0).as_bytes());
    b.tells("is refused");
    // Now the cursor stands on the bad message.
    b.restart();
    a.write("a", &record("a", 1));
    b.has("a", &records("a", 0..2));
    b.write("b", &record("b", 0));
    a.has("b", &record("b", 0));
}

#[test]
fn a_line_forged_under_another_writers_subject() {
    let server = Server::start();
    let (mut a, b) = (Machine::of(&server), Machine::of(&server));
    a.write("a", &record("a", 0));
    b.write("b", &record("b", 0));
    a.has("b", &record("b", 0));
    b.has("a", &record("a", 0));
    // A client that may publish as x stores a line of a there, and makes the server answer with it on the subject of a.
    let mut raw = server.raw();
    let forged = record("a", "forged");
    let at = record("a", 0).len() as u64;
    raw.line_at("msgfs.team.x", at, forged.as_bytes());
    soon("x has a line", || server.raw().subject("msgfs.team.x").len() == 1);
    let ask = json!({ "last_by_subj": "msgfs.team.x" }).to_string();
    raw.publish(b"$JS.API.DIRECT.GET.MSGFS_team", "msgfs.team.a", b"", ask.as_bytes());
    soon("it is stored", || server.raw().subject("msgfs.team.a").len() == 2);
    b.tells("answer of the server");
    a.write("a", &record("a", 1));
    b.has("a", &records("a", 0..2));
    // The forged line is the newest message of the subject when a link starts.
    raw.publish(b"$JS.API.DIRECT.GET.MSGFS_team", "msgfs.team.a", b"", ask.as_bytes());
    soon("it is stored again", || server.raw().subject("msgfs.team.a").len() == 4);
    a.restart();
    a.write("a", &record("a", 2));
    b.has("a", &records("a", 0..3));
    let late = Machine::of(&server);
    late.has("a", &records("a", 0..3));
    assert!(!late.log("x").exists());
}
