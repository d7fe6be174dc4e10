//! Mounts of one identity on several machines, which share their read marks over NATS.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Bed, Mount, run, samp};
use crate::mounted::machine;
use crate::nats::server::Server;
use crate::soon;

const LOG: &str = "bob";

/// Writes messages of bob to alice on a machine.
fn mail(bed: &Bed, range: std::ops::Range<usize>) {
    for n in range {
        samp::append(&bed.store, LOG, "alice", "t", &format!("text {n}"), samp::T0 + n as i64);
    }
}

/// Returns the path in `archive/` of each message to me, by its number. Reading there marks nothing.
fn archived(m: &Mount) -> BTreeMap<usize, String> {
    let names = m.ok("find archive -name '*.txt' -type f");
    let number = |name: &str| {
        let text = String::from_utf8(m.bytes_quietly(name)).unwrap();
        text.lines().find_map(|line| line.strip_prefix("text ")?.parse().ok())
    };
    names.lines().filter_map(|name| Some((number(name)?, name.to_owned()))).collect()
}

fn unread(m: &Mount) -> BTreeSet<usize> {
    let names = m.ls("inbox");
    let is = |path: &String| names.iter().any(|name| path.ends_with(&format!("/{name}")));
    archived(m).into_iter().filter(|(_, path)| is(path)).map(|(number, _)| number).collect()
}

/// Waits until exactly these messages are unread.
#[track_caller]
fn becomes(m: &Mount, expected: impl IntoIterator<Item = usize>) {
    let expected: BTreeSet<usize> = expected.into_iter().collect();
    soon(&format!("unread: {expected:?}"), || unread(m) == expected);
}

/// Reads a message by its name in `inbox/`.
fn read(m: &Mount, number: usize) {
    let path = &archived(m)[&number];
    m.ok(&format!("cat inbox/{}", path.rsplit('/').next().unwrap()));
}

/// Makes a message unread.
fn unread_again(m: &Mount, number: usize) {
    m.ok(&format!("mv {} inbox/", archived(m)[&number]));
}

/// Waits until a machine has noted that another one has read a message.
#[track_caller]
fn heard(bed: &Bed, rec: &samp::Rec) {
    soon("the mark is noted", || {
        let marks = fs::read_to_string(bed.state("alice").join("marks")).unwrap_or_default();
        let of = |line: &&str| line.starts_with("[\"r\"") && line.contains(&rec.id);
        marks.lines().any(|line| of(&line) && line.split(',').count() == 6)
    });
}

/// Returns the subjects of the bucket.
fn subjects(server: &Server) -> BTreeSet<String> {
    let question = json!({ "subjects_filter": ">" });
    let info = server.raw().api("STREAM.INFO.MSGFSM_team", &question);
    let subjects = info.pointer("/state/subjects").and_then(Value::as_object);
    subjects.into_iter().flat_map(|all| all.keys().cloned()).collect()
}

/// S430: a message that is read on one machine is read on the others, in both directions and with three machines; a
/// message that is made unread is unread on all.
#[test]
fn s430_read_here_is_read_there() {
    let server = Server::start();
    let beds = [(); 3].map(|()| machine(&server, ""));
    mail(&beds[0], 0..6);
    let [a, b, c] = beds.each_ref().map(|bed| bed.mount("alice"));
    for m in [&a, &b, &c] {
        becomes(m, 0..6);
    }
    read(&a, 0);
    read(&b, 1);
    let third = archived(&c)[&2].rsplit('/').next().unwrap().to_owned();
    c.ok(&format!("rm inbox/{third}"));
    for m in [&a, &b, &c] {
        becomes(m, 3..6);
    }
    unread_again(&b, 0);
    unread_again(&a, 2);
    for m in [&a, &b, &c] {
        becomes(m, [0, 2, 3, 4, 5]);
    }
    read(&c, 0);
    for m in [&a, &b, &c] {
        becomes(m, [2, 3, 4, 5]);
    }
    let out = beds[0].msgfs_out(&["--me", "alice", "mark", "--all"]);
    assert!(out.ok(), "{out:?}");
    for m in [&a, &b, &c] {
        becomes(m, []);
    }
    // Another program moves its position.
    mail(&beds[1], 6..8);
    for m in [&a, &b, &c] {
        becomes(m, 6..8);
    }
    let seen = |ts: i64| format!("{{\"ts\":{ts},\"ids\":[]}}");
    fs::write(beds[2].store.join(".seen-alice"), seen(samp::T0 + 8)).unwrap();
    for m in [&a, &b, &c] {
        becomes(m, []);
    }
    // Several hundred marks do not fit into one value.
    mail(&beds[1], 8..608);
    soon("all are there", || a.ls("inbox").len() == 600 && c.ls("inbox").len() == 600);
    let out = beds[2].msgfs_out(&["--me", "alice", "mark", "--all"]);
    assert!(out.ok(), "{out:?}");
    soon("all are read", || a.ls("inbox").is_empty() && b.ls("inbox").is_empty());
    assert!(!a.cat("status.txt").contains("my other machines do not"));
}

/// S431: a machine that was off, a new machine, and a message that arrives after its mark.
#[test]
fn s431_a_machine_that_was_off_catches_up() {
    let server = Server::start();
    let (one, two) = (machine(&server, ""), machine(&server, ""));
    mail(&one, 0..4);
    let (a, b) = (one.mount("alice"), two.mount("alice"));
    becomes(&b, 0..4);
    b.umount();
    becomes(&a, 0..4);
    read(&a, 0);
    read(&a, 1);
    // The link also publishes the mark that was set last before the end.
    a.umount();
    let b = two.mount("alice");
    becomes(&b, 2..4);
    let new = machine(&server, "");
    let c = new.mount("alice");
    becomes(&c, 2..4);
    // A conflict copy of a log that another machine wrote does not travel by the link.
    let a = one.mount("alice");
    let copy = "log-carl.sync-conflict-20260413-091523-K3X2R2T.jsonl";
    let early = samp::Rec::new("carl", "alice", "u", "text 7", samp::T0 + 7);
    let later = samp::Rec::new("carl", "alice", "u", "text 8", samp::T0 + 8);
    samp::append_raw(&one.store.join(copy), early.line() + &later.line());
    becomes(&a, [2, 3, 7, 8]);
    read(&a, 7);
    read(&a, 8);
    heard(&two, &early);
    heard(&two, &later);
    samp::append_raw(&two.store.join(copy), early.line());
    soon("it is there", || archived(&b).contains_key(&7));
    assert_eq!(unread(&b), BTreeSet::from([2, 3]));
    b.kill9();
    drop(a);
    drop(server);
    let b = two.mount("alice");
    samp::append_raw(&two.store.join(copy), later.line());
    soon("it is there", || archived(&b).contains_key(&8));
    assert_eq!(unread(&b), BTreeSet::from([2, 3]), "nobody could say so now");
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

/// S432: machines with fewer messages, without state or with an older copy of the state, and a machine that clears its
/// own mark and does not know the mark of another one.
#[test]
fn s432_who_knows_less_makes_nothing_unread() {
    let mut server = Server::start();
    let (one, two) = (machine(&server, ""), machine(&server, ""));
    mail(&one, 0..8);
    let (a, b) = (one.mount("alice"), two.mount("alice"));
    becomes(&b, 0..8);
    becomes(&a, 0..8);
    read(&b, 0);
    becomes(&a, 1..8);
    b.umount();
    copy(&two.path("state"), &two.path("older"));
    let b = two.mount("alice");
    read(&b, 1);
    read(&a, 2);
    becomes(&a, 3..8);
    becomes(&b, 3..8);
    // The machine gets an older copy of its state, then no state and no messages.
    b.kill9();
    copy(&two.path("older"), &two.path("state"));
    let b = two.mount("alice");
    becomes(&b, 3..8);
    b.kill9();
    for folder in ["state", "cache", "store"] {
        fs::remove_dir_all(two.path(folder)).unwrap();
        fs::create_dir(two.path(folder)).unwrap();
    }
    let b = two.mount("alice");
    becomes(&b, 3..8);
    becomes(&a, 3..8);
    // The machine has no state, but messages and a position that names no message.
    b.kill9();
    for folder in ["state", "cache"] {
        fs::remove_dir_all(two.path(folder)).unwrap();
        fs::create_dir(two.path(folder)).unwrap();
    }
    let seen = format!("{{\"ts\":{},\"ids\":[]}}", samp::T0 + 8);
    fs::write(two.store.join(".seen-alice"), &seen).unwrap();
    let b = two.mount("alice");
    becomes(&b, []);
    read(&a, 7);
    heard(&two, &samp::Rec::new(LOG, "alice", "t", "text 7", samp::T0 + 7));
    becomes(&a, 3..7);
    b.kill9();
    for folder in ["state", "cache", "store"] {
        fs::remove_dir_all(two.path(folder)).unwrap();
        fs::create_dir(two.path(folder)).unwrap();
    }
    let b = two.mount("alice");
    becomes(&b, 3..7);
    // The machines are apart: both read one message, and one of them makes it unread and does not know of the other.
    server.kill();
    read(&a, 3);
    read(&b, 3);
    unread_again(&b, 3);
    unread_again(&b, 0);
    becomes(&b, [0, 3, 4, 5, 6]);
    server.run();
    becomes(&a, [0, 4, 5, 6]);
    becomes(&b, [0, 4, 5, 6]);
}

/// S433: mounts and the server are killed at any moment, while each machine reads.
#[test]
fn s433_marks_survive_kills() {
    let mut server = Server::start();
    let beds = [(); 2].map(|()| machine(&server, ""));
    let count = 48;
    mail(&beds[0], 0..count);
    let mut left: BTreeSet<usize> = (0..count).collect();
    let mounts = beds.each_ref().map(|bed| bed.mount("alice"));
    for m in &mounts {
        becomes(m, left.clone());
    }
    let mut mounts = mounts.map(Some);
    for round in 0..10_usize {
        for (n, m) in mounts.iter().enumerate() {
            let m = m.as_ref().unwrap();
            for number in [4 * round + 2 * n, 4 * round + 2 * n + 1] {
                read(m, number);
                left.remove(&number);
            }
        }
        std::thread::sleep(std::time::Duration::from_millis([0, 3, 11, 40][round % 4]));
        if round % 3 == 2 {
            server.again();
        }
        let victim = round % 2;
        mounts[victim].take().unwrap().kill9();
        mounts[victim] = Some(beds[victim].mount("alice"));
        soon("what was read here", || {
            let unread = unread(mounts[victim].as_ref().unwrap());
            unread.iter().all(|n| *n >= 4 * (round + 1) || n % 4 / 2 != victim)
        });
    }
    for m in mounts.iter().flatten() {
        becomes(m, left.clone());
    }
}

/// S434: hostile values in the bucket change no mark.
#[test]
fn s434_hostile_values_change_nothing() {
    let server = Server::start();
    let mut raw = server.raw();
    // Somebody made the bucket without limits.
    raw.admin(
        "STREAM.CREATE.MSGFSM_team",
        &json!({
            "name": "MSGFSM_team", "subjects": ["msgfs-marks.team.*.*"], "storage": "file",
            "retention": "limits", "max_msgs_per_subject": 1, "num_replicas": 1,
        }),
    );
    let (one, two) = (machine(&server, ""), machine(&server, ""));
    mail(&one, 0..6);
    let (a, b) = (one.mount("alice"), two.mount("alice"));
    becomes(&a, 0..6);
    becomes(&b, 0..6);
    read(&a, 0);
    becomes(&b, 1..6);
    let host = fs::read_to_string(one.state("alice").join("host")).unwrap().trim().to_owned();
    let id = samp::Rec::new(LOG, "alice", "t", "text 1", samp::T0 + 1).id;
    let deep = format!("{{\"v\":1,\"said\":{}", "[".repeat(100_000));
    let good = format!("{{\"v\":1,\"said\":[[\"bob\",\"{id}\"]]}}");
    let values: Vec<Vec<u8>> = vec![
        b"garbage \xff\x00".to_vec(),
        vec![b'x'; 1_000_000],
        [good.as_bytes(), &b" ".repeat(1_000_000)[..]].concat(),
        deep.into_bytes(),
        b"".to_vec(),
        format!("{{\"v\":\"1\",\"said\":[[\"bob\",\"{id}\"]]}}").into_bytes(),
        format!("{{\"v\":1,\"said\":[[\"bob\",\"{id}\"],7]}}").into_bytes(),
        format!("{{\"v\":1,\"said\":[[\"bob\",\"{id}\",\"../../x\",1]]}}").into_bytes(),
        format!("{{\"v\":2,\"said\":[[\"bob\",\"{id}\"]]}}").into_bytes(),
        b"{\"v\":1,\"said\":[[\"../../../x\",\"../../../tmp/x\"],[\"bob\",\"/etc/passwd\\u0000\"]]}".to_vec(),
    ];
    for (n, value) in values.iter().enumerate() {
        let subject = format!("msgfs-marks.team.alice.00000000000000ff-{n}");
        raw.publish(subject.as_bytes(), "", b"", value);
    }
    // These subjects belong to no machine.
    for subject in ["x", "00000000000000ff", "00000000000000FF-0", "00000000000000ff-00", "-1"] {
        let subject = format!("msgfs-marks.team.alice.{subject}");
        raw.publish(subject.as_bytes(), "", b"", good.as_bytes());
    }
    soon("it is told", || a.cat("status.txt").contains("are ignored"));
    // A foreign value takes the place of a machine's own one; the machine publishes its own again.
    let mine = format!("msgfs-marks.team.alice.{host}-0");
    let told = |raw: &mut crate::nats::raw::Raw| {
        let question = json!({ "last_by_subj": mine });
        let answer = raw.api("STREAM.MSG.GET.MSGFSM_team", &question);
        answer.pointer("/message/data").and_then(Value::as_str).map(str::to_owned)
    };
    let before = told(&mut raw);
    raw.publish(mine.as_bytes(), "", b"", b"garbage");
    soon("it is told again", || told(&mut raw) == before);
    // These headers break the connection of every client that reads them.
    raw.publish(
        b"msgfs-marks.team.alice.00000000000000ff-99",
        "",
        b"NATS/1.0\r\nbroken \xff header\r\n\r\n",
        b"garbage",
    );
    read(&b, 2);
    becomes(&a, [1, 3, 4, 5]);
    let c = machine(&server, "");
    let c = c.mount("alice");
    becomes(&c, [1, 3, 4, 5]);
    read(&c, 3);
    becomes(&a, [1, 4, 5]);
    becomes(&b, [1, 4, 5]);
    mail(&two, 6..7);
    becomes(&a, [1, 4, 5, 6]);
}

/// S435: two identities on one machine, and values of one identity that name messages of the other.
#[test]
fn s435_marks_of_another_identity() {
    let server = Server::start();
    let (one, two) = (machine(&server, ""), machine(&server, ""));
    mail(&one, 0..3);
    let at = samp::T0 + 9;
    let rec = samp::append(&one.store, LOG, "carol", "t", "text 9", at);
    let (a, b) = (one.mount("alice"), two.mount("alice"));
    let carol = two.mount("carol");
    becomes(&a, 0..3);
    becomes(&b, 0..3);
    becomes(&carol, [9]);
    let ids: Vec<String> = (0..3)
        .map(|n| samp::Rec::new(LOG, "alice", "t", &format!("text {n}"), samp::T0 + n).id)
        .collect();
    let value = json!({ "v": 1, "said": ids.iter().map(|id| [LOG, id]).collect::<Vec<_>>() });
    let mut raw = server.raw();
    for subject in ["carol.00000000000000ff-0", "bob.00000000000000ff-0"] {
        let subject = format!("msgfs-marks.team.{subject}");
        raw.publish(subject.as_bytes(), "", b"", value.to_string().as_bytes());
    }
    read(&carol, 9);
    read(&a, 0);
    becomes(&b, 1..3);
    assert_eq!(unread(&a), BTreeSet::from([1, 2]));
    let told = |me: &str| {
        let of = format!("msgfs-marks.team.{me}.");
        subjects(&server).into_iter().filter(|s| s.starts_with(&of)).count()
    };
    soon("carol's are hers", || told("carol") == 2);
    assert_eq!(told("alice"), 1);
    assert_eq!(told("bob"), 1);
    let marks = fs::read_to_string(one.state("alice").join("marks")).unwrap();
    assert!(!marks.contains(&rec.id), "{marks}");
}

/// Returns the server settings of docs/links/nats.md for a fleet.
fn fleet() -> String {
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/links/nats.md")).unwrap();
    let (_, page) = page.split_once("## A fleet").unwrap();
    let (_, conf) = page.split_once("<<END\n").unwrap();
    let (conf, _) = conf.split_once("\nEND\n").unwrap();
    let theirs = ["host:", "port:", "jetstream {"];
    let ours = |line: &&str| !theirs.iter().any(|start| line.starts_with(start));
    let mut conf = conf.lines().filter(ours).collect::<Vec<_>>().join("\n").replace("\\$", "$");
    for who in ["admin", "host1", "host2"] {
        conf = conf.replace(&format!("$(cat {who}.password)"), &format!("{who}-secret"));
    }
    conf
}

/// Makes a machine of that fleet.
fn host(server: &Server, who: &str) -> Bed {
    let prefixes = format!("api = \"JS.team\"\ninbox = \"_INBOX_{who}\"\n");
    let prefixes = if who == "admin" { "" } else { &prefixes };
    let bed =
        machine(server, &format!("user = {who:?}\npassword_file = \"{who}.password\"\n{prefixes}"));
    let file = bed.path(format!("config/msgfs/{who}.password"));
    fs::write(&file, format!("{who}-secret")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    bed
}

fn doctor(bed: &Bed) -> String {
    run(bed.msgfs(["--me", "alice", "doctor"]), None).said()
}

/// S436: with the server of the page, the bucket is missing, then not permitted, then permitted; and one machine wants
/// no marks.
#[test]
fn s436_without_a_bucket_mail_travels() {
    let server = Server::with(&fleet());
    let (one, two, admin) =
        (host(&server, "host1"), host(&server, "host2"), host(&server, "admin"));
    let mut raw =
        crate::nats::raw::Raw::connect(server.port, r#"{"user":"admin","pass":"admin-secret"}"#);
    raw.make_stream(&json!({}));
    let (a, b) = (one.mount("alice"), two.mount("alice"));
    let write = |range: std::ops::Range<usize>| {
        for n in range {
            samp::append(&two.store, LOG, "alice", "t", &format!("text {n}"), samp::T0 + n as i64);
        }
    };
    write(0..3);
    becomes(&a, 0..3);
    becomes(&b, 0..3);
    let create = "an admin runs `msgfs link create nats`";
    soon("it is told", || a.cat("status.txt").contains(create));
    let out = one.msgfs_out(&["--me", "alice", "link"]);
    assert!(out.stdout.contains("MSGFSM_team") && out.stdout.contains("marks = false"), "{out:?}");
    let json = one.msgfs_out(&["--me", "alice", "link", "--json"]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert!(json["marks"].as_str().unwrap().contains("MSGFSM_team"), "{json}");
    assert!(doctor(&one).contains("MSGFSM_team"), "{}", doctor(&one));
    read(&a, 0);
    let out = admin.msgfs_out(&["--me", "root", "link", "create", "nats"]);
    assert!(out.ok(), "{out:?}");
    // The page has other names.
    soon("it may not be written", || a.cat("status.txt").contains("my other machines do not"));
    assert_eq!(unread(&b), BTreeSet::from([0, 1, 2]));
    write(3..4);
    becomes(&a, [1, 2, 3]);
    server.configure(&fleet().replace(".anna.*", ".alice.*"));
    server.reload();
    becomes(&b, 1..4);
    read(&b, 1);
    becomes(&a, 2..4);
    soon("nothing is told any more", || {
        let said = [&a, &b].map(|m| m.cat("status.txt"));
        said.iter().all(|text| !text.contains("my other machines do not"))
    });
    for bed in [&one, &two] {
        assert!(!doctor(bed).contains("the link nats"), "{}", doctor(bed));
    }
    // One machine wants no marks.
    let config = fs::read_to_string(two.path("config/msgfs/config.toml")).unwrap();
    b.umount();
    two.config(&(config + "marks = false\n"));
    let b = two.mount("alice");
    read(&a, 2);
    write(4..5);
    becomes(&b, [2, 3, 4]);
    becomes(&a, [3, 4]);
    read(&b, 3);
    write(5..6);
    becomes(&a, [3, 4, 5]);
    becomes(&b, [2, 4, 5]);
    assert!(!b.cat("status.txt").contains("my other machines do not"));
}

/// S437: an admin deletes the bucket while machines are connected, and while they are not.
#[test]
fn s437_a_bucket_that_was_lost() {
    let server = Server::start();
    let (one, two) = (machine(&server, ""), machine(&server, ""));
    mail(&one, 0..5);
    let (a, b) = (one.mount("alice"), two.mount("alice"));
    becomes(&a, 0..5);
    becomes(&b, 0..5);
    read(&a, 0);
    read(&b, 1);
    becomes(&a, 2..5);
    becomes(&b, 2..5);
    a.umount();
    server.raw().admin("STREAM.DELETE.MSGFSM_team", &json!({}));
    // The machine that is left also publishes the marks of the other one.
    let new = machine(&server, "");
    let c = new.mount("alice");
    becomes(&c, 2..5);
    b.umount();
    c.umount();
    server.raw().admin("STREAM.DELETE.MSGFSM_team", &json!({}));
    let a = one.mount("alice");
    read(&a, 2);
    let last = machine(&server, "");
    let d = last.mount("alice");
    becomes(&d, 3..5);
    unread_again(&d, 1);
    becomes(&a, [1, 3, 4]);
}
