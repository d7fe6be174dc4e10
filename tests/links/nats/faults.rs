//! Faults of the server, of the stream and of the network between.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use msgfs::link::LinkState;
use serde_json::json;

use super::helper::Helper;
use super::machine::{Machine, record, records};
use super::server::Server;
use crate::soon;

#[test]
fn the_server_is_down_or_was_never_there() {
    let mut server = Server::stopped("");
    let (a, b) = (Machine::of(&server), Machine::of(&server));
    a.write("a", &records("a", 0..7));
    soon("it waits", || {
        let health = a.health();
        matches!(health.state, LinkState::Waiting { .. }) && health.waiting == 7
    });
    a.tells("onnection refused");
    server.run();
    b.has("a", &records("a", 0..7));
    soon("nothing waits", || a.health().waiting == 0);
    for n in 1..4 {
        server.kill();
        a.write("a", &records("a", n * 7..n * 7 + 7));
        b.write("b", &record("b", n));
        std::thread::sleep(Duration::from_millis(300));
        server.run();
        let start = std::time::Instant::now();
        b.has("a", &records("a", 0..n * 7 + 7));
        a.has("b", &records("b", 1..n + 1));
        assert!(start.elapsed() < Duration::from_secs(30));
    }
    assert_eq!(server.raw().messages(), 31);
}

#[test]
fn the_stream_is_deleted_and_made_anew() {
    let server = Server::start();
    let machines = [Machine::of(&server), Machine::of(&server), Machine::of(&server)];
    let [a, b, _] = &machines;
    a.write("a", &records("a", 0..50));
    b.write("b", &records("b", 0..50));
    for machine in &machines {
        machine.has("a", &records("a", 0..50));
        machine.has("b", &records("b", 0..50));
    }
    let mut raw = server.raw();
    raw.admin("STREAM.DELETE.MSGFS_team", &json!({}));
    raw.make_stream(&json!({}));
    soon("all are published again", || raw.messages() == 100);
    a.write("a", &record("a", 50));
    b.write("b", &record("b", 50));
    for machine in &machines {
        machine.has("a", &records("a", 0..51));
        machine.has("b", &records("b", 0..51));
    }
    assert_eq!(raw.messages(), 102);
    assert_eq!(raw.subject("msgfs.team.a").concat(), records("a", 0..51).into_bytes());
    // The stream is deleted again while nobody is connected; a link makes it.
    raw.admin("STREAM.DELETE.MSGFS_team", &json!({}));
    soon("it is there again", || raw.messages() == 102);
    let late = Machine::of(&server);
    late.has("a", &records("a", 0..51));
}

#[test]
fn the_stream_is_purged() {
    let server = Server::start();
    let mut raw = server.raw();
    raw.make_stream(&json!({}));
    let (mut a, mut b) = (Machine::of(&server), Machine::of(&server));
    a.write("a", &records("a", 0..20));
    b.write("b", &records("b", 0..20));
    a.has("b", &records("b", 0..20));
    b.has("a", &records("a", 0..20));
    // The whole stream is purged while the links run.
    raw.admin("STREAM.PURGE.MSGFS_team", &json!({}));
    a.write("a", &record("a", 20));
    b.has("a", &records("a", 0..21));
    a.has_published("a");
    // The messages of one writer are purged while the links are stopped.
    a.stop();
    b.stop();
    a.write("a", &record("a", 21));
    b.write("b", &record("b", 20));
    raw.admin("STREAM.PURGE.MSGFS_team", &json!({ "filter": "msgfs.team.a" }));
    a.start();
    b.start();
    b.has("a", &records("a", 0..22));
    a.has("b", &records("b", 0..21));
    assert_eq!(raw.messages(), 2, "nothing is published again");
    // A new host has what is left, and continues from there.
    let mut late = Machine::of(&server);
    late.has("a", &record("a", 21));
    a.write("a", &records("a", 22..25));
    late.has("a", &records("a", 21..25));
    late.restart();
    a.write("a", &records("a", 25..28));
    late.has("a", &records("a", 21..28));
    late.restart();
    late.connected();
    late.write("late", &record("late", 1));
    a.has("late", &record("late", 1));
    assert_eq!(raw.messages(), 9);
    assert_eq!(a.read("a"), records("a", 0..28));
    assert_eq!(late.read("a"), records("a", 21..28));
}

#[test]
fn the_newest_lines_are_purged_and_the_server_restarts_while_nothing_happens() {
    let mut server = Server::start();
    let mut raw = server.raw();
    raw.make_stream(&json!({}));
    let (mut a, mut b) = (Machine::of(&server), Machine::of(&server));
    b.write("b", &records("b", 0..5));
    a.has("b", &records("b", 0..5));
    a.write("a", &records("a", 0..5));
    b.has("a", &records("a", 0..5));
    b.stop();
    a.write("a", &record("a", 5));
    a.has_published("a");
    a.stop();
    assert_eq!(raw.messages(), 11);
    raw.admin("STREAM.PURGE.MSGFS_team", &json!({ "filter": "msgfs.team.a" }));
    b.start();
    let late = Machine::of(&server);
    late.has("b", &records("b", 0..5));
    late.write("late", &record("late", 0));
    b.has("late", &record("late", 0));
    b.write("b", &record("b", 5));
    late.has("b", &records("b", 0..6));
    a.start();
    a.has("late", &record("late", 0));
    for n in 6..11 {
        server.again();
        late.connected();
        soon("the link is back", || server.raw().ask("$SYS.REQ.USER.INFO", "").payload.len() > 1);
        if n == 10 {
            b.write("b", &records("b", 6..8));
            late.has("b", &records("b", 0..8));
        }
    }
    a.write("a", &record("a", 6));
    late.has("a", &record("a", 6));
    assert_eq!(server.raw().messages(), 10);
}

#[test]
fn the_server_lost_lines_it_had_taken() {
    let mut server = Server::start();
    let (mut a, b) = (Machine::of(&server), Machine::of(&server));
    a.write("a", &records("a", 0..10));
    b.has("a", &records("a", 0..10));
    let copy = tempfile::tempdir().unwrap();
    server.kill();
    server.copy(&copy.path().join("js"));
    server.run();
    a.write("a", &records("a", 10..20));
    b.write("b", &records("b", 0..10));
    b.has("a", &records("a", 0..20));
    a.has("b", &records("b", 0..10));
    // The server gets its old copy back while the links run.
    server.kill();
    server.restore(&copy.path().join("js"));
    server.run();
    a.write("a", &record("a", 20));
    b.has("a", &records("a", 0..21));
    soon("all are there again", || server.raw().messages() == 31);
    // It gets the copy back while one link is down and the other one has published as much again.
    a.stop();
    server.kill();
    server.restore(&copy.path().join("js"));
    server.run();
    b.write("b", &records("b", 10..40));
    soon("b's are there", || server.raw().subject("msgfs.team.b").len() == 40);
    a.write("a", &record("a", 21));
    a.start();
    b.has("a", &records("a", 0..22));
    a.has("b", &records("b", 0..40));
    let mut raw = server.raw();
    assert_eq!(raw.subject("msgfs.team.a").concat(), records("a", 0..22).into_bytes());
    assert_eq!(raw.messages(), 62);
}

#[test]
fn the_server_has_no_room() {
    let server = Server::start();
    let mut raw = server.raw();
    raw.make_stream(&json!({ "max_bytes": 3000 }));
    let (a, b) = (Machine::of(&server), Machine::of(&server));
    a.write("a", &records("a", 0..50));
    a.tells("is full");
    soon("it says how many wait", || a.health().waiting > 20);
    let mut config = raw.admin("STREAM.INFO.MSGFS_team", &json!({}))["config"].clone();
    config["max_bytes"] = json!(-1);
    raw.admin("STREAM.UPDATE.MSGFS_team", &config);
    b.has("a", &records("a", 0..50));
    assert_eq!(raw.subject("msgfs.team.a").concat(), records("a", 0..50).into_bytes());
    soon("it is told no more", || !a.told("is full"));
}

#[test]
fn two_daemons_on_one_folder() {
    let server = Server::start();
    let (mut a, b) = (Machine::of(&server), Machine::of(&server));
    a.connected();
    let mut second = Machine::new(&server.url());
    // The second link has the same folder and state.
    let first = std::mem::replace(&mut second.root, tempfile::tempdir().unwrap());
    drop(first);
    fs::remove_dir_all(second.root.path()).unwrap();
    std::os::unix::fs::symlink(a.root.path(), second.root.path()).unwrap();
    second.start();
    soon("the other one carries", || second.health().by_another);
    a.write("a", &records("a", 0..3));
    b.has("a", &records("a", 0..3));
    a.stop();
    a.write("a", &records("a", 3..6));
    b.has("a", &records("a", 0..6));
    second.connected();
    second.stop();
    fs::remove_file(second.root.path()).unwrap();
    fs::create_dir(second.root.path()).unwrap();
    assert_eq!(server.raw().messages(), 6);
}

/// Starts a forwarder to the server whose connections end after some bytes, and returns its port.
fn bad_way(port: u16, limit: &Arc<AtomicU64>, open: &Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap().port();
    let (limit, open) = (Arc::clone(limit), Arc::clone(open));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            if !open.load(Ordering::Relaxed) {
                return;
            }
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            let client = client.unwrap();
            for (mut from, mut to) in [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server.try_clone().unwrap(), client.try_clone().unwrap()),
            ] {
                let limit = limit.load(Ordering::Relaxed);
                std::thread::spawn(move || {
                    let (mut buffer, mut passed) = ([0; 512], 0);
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        let rest = (limit - passed).min(count as u64) as usize;
                        passed += rest as u64;
                        if to.write_all(&buffer[..rest]).is_err() || rest < count {
                            break;
                        }
                    }
                    let _ = from.shutdown(std::net::Shutdown::Both);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    here
}

#[test]
fn answers_are_lost_on_the_way() {
    let server = Server::start();
    let (limit, open) = (Arc::new(AtomicU64::new(6000)), Arc::new(AtomicBool::new(true)));
    let port = bad_way(server.port, &limit, &open);
    let a = Machine::new(&format!("nats://127.0.0.1:{port}"));
    let mut a = a;
    let b = Machine::of(&server);
    a.start();
    for n in 0..60_u32 {
        a.write("a", &record("a", n));
        b.write("b", &record("b", n));
        std::thread::sleep(Duration::from_millis(25));
        // The connection ends at another byte each time.
        limit.store(4500 + u64::from(n) * 97, Ordering::Relaxed);
    }
    limit.store(u64::MAX, Ordering::Relaxed);
    b.has("a", &records("a", 0..60));
    a.has("b", &records("b", 0..60));
    let mut raw = server.raw();
    assert_eq!(raw.subject("msgfs.team.a").concat(), records("a", 0..60).into_bytes());
    assert_eq!(raw.messages(), 120);
    open.store(false, Ordering::Relaxed);
    let _ = TcpStream::connect(("127.0.0.1", port));
}

#[test]
fn the_disk_is_full_while_appending() {
    let server = Server::start();
    let a = Machine::of(&server);
    let b = Machine::new(&server.url());
    let link = Helper::without_room(b.root.path(), &server.url(), 64);
    a.write("a", &records("a", 0..2000));
    let kept = || msgfs::link::board::read_saved_health(&b.kept());
    soon("it is told", || {
        let why = kept().map(|health| health.state);
        matches!(why, Some(LinkState::Waiting { why, .. }) if why.contains("log-a.jsonl"))
    });
    let full = b.read("a");
    assert!(records("a", 0..2000).starts_with(&full) && full.len() < 70_000, "{}", full.len());
    assert!(full.ends_with('\n'));
    link.give_room();
    b.has("a", &records("a", 0..2000));
    drop(link);
}

#[test]
fn the_server_hangs_and_answers_late() {
    let server = Server::start();
    let (a, b) = (Machine::of(&server), Machine::of(&server));
    a.write("a", &records("a", 0..3));
    b.has("a", &records("a", 0..3));
    for n in 1..4 {
        server.signal("-STOP");
        a.write("a", &records("a", n * 3..n * 3 + 3));
        b.write("b", &record("b", n));
        // The pause is longer than a link waits for an answer, so each line is sent again.
        std::thread::sleep(Duration::from_secs(3));
        server.signal("-CONT");
        b.has("a", &records("a", 0..n * 3 + 3));
        a.has("b", &records("b", 1..n + 1));
    }
    let mut raw = server.raw();
    assert_eq!(raw.subject("msgfs.team.a").concat(), records("a", 0..12).into_bytes());
    assert_eq!(raw.messages(), 15);
}
