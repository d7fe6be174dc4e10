//! Changes of logs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::machine::{Machine, append, record, records};
use super::server::Server;
use crate::soon;

#[test]
fn lines_arrive_byte_for_byte_in_both_directions_and_at_a_late_joiner() {
    let server = Server::start();
    let a = Machine::new(&server.url());
    // The log is written before any link runs.
    a.write("a.x", &records("a.x", 0..700));
    let mut a = a;
    a.start();
    let b = Machine::of(&server);
    b.has("a.x", &records("a.x", 0..700));
    for n in 0..20 {
        b.write("b", &record("b", n));
        a.write("a.x", &record("a.x", 700 + n));
    }
    a.has("b", &records("b", 0..20));
    b.has("a.x", &records("a.x", 0..720));
    // Odd spellings stay as they are.
    let odd = " {\"body\": \"\\u00e9\u{2028}\", \"thread\":\"\", \"to\":\"\",\"from\":\"c\",\"ts\":-1.5}\t\n";
    a.write("c", odd);
    let late = Machine::of(&server);
    late.has("c", odd);
    late.has("a.x", &records("a.x", 0..720));
    late.has("b", &records("b", 0..20));
    b.has("c", odd);
    assert_eq!(server.raw().messages(), 741);
    assert_eq!(a.health().refused + b.health().refused + late.health().refused, 0);
    soon("nothing waits", || a.health().waiting == 0);
}

/// S453: a log is cut, compacted or written anew here, also while its lines are on their way back from the server. The
/// missing lines come back at its end, behind the new ones.
#[test]
fn a_local_log_that_is_truncated_compacted_or_written_anew() {
    let server = Server::start();
    let (mut a, b) = (Machine::of(&server), Machine::of(&server));
    a.write("a", &records("a", 0..6));
    b.has("a", &records("a", 0..6));
    // The log is cut and gets a new line: the new line is published, and the missing ones come back at the end.
    fs::write(a.log("a"), records("a", 0..2)).unwrap();
    a.write("a", &record("a", 6));
    b.has("a", &records("a", 0..7));
    let cut = records("a", 0..2) + &record("a", 6) + &records("a", 2..6);
    a.has("a", &cut);
    // A new file takes its name, in another order and spelling.
    let spelled = records("a", 0..4).replace("\":", "\": ");
    fs::write(a.folder().join("tmp"), record("a", 7) + &spelled).unwrap();
    fs::rename(a.folder().join("tmp"), a.log("a")).unwrap();
    b.has("a", &records("a", 0..8));
    a.has("a", &(record("a", 7) + &spelled + &records("a", 4..7)));
    // The same happens while no link runs.
    a.stop();
    let most = record("a", 3) + &record("a", 1);
    fs::write(a.log("a"), &most).unwrap();
    a.write("a", &record("a", 8));
    a.start();
    b.has("a", &records("a", 0..9));
    soon("all are here again", || a.read("a").lines().count() == 9);
    assert!(a.read("a").starts_with(&(most + &record("a", 8))));
    for n in 9..12 {
        a.write("a", &record("a", n));
    }
    b.has("a", &records("a", 0..12));
    a.restart();
    a.write("a", &record("a", 12));
    b.has("a", &records("a", 0..13));
    assert_eq!(a.read("a").lines().count(), 13);
    assert_eq!(server.raw().messages(), 13);
    assert_eq!(copies(&a), [""; 0], "nobody else wrote here");
}

/// Returns the conflict copies beside the logs of a machine.
fn copies(machine: &Machine) -> Vec<String> {
    let entries = fs::read_dir(machine.folder()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("sync-conflict")).collect()
}

/// S453: the log is cut, and a line is added, as soon as the server has its lines. This is repeated, so that some lines
/// come back before the cut and some after.
#[test]
fn s453_a_log_that_is_cut_while_its_lines_come_back() {
    let server = Server::start();
    let (a, b) = (Machine::of(&server), Machine::of(&server));
    for round in 0..4 {
        let name = format!("w{round}");
        let all = records(&name, 0..30);
        a.write(&name, &all);
        let mut raw = server.raw();
        while raw.messages() < 31 * round + 30 {}
        // The log changes in one step, as a program that compacts it does.
        let cut = records(&name, 0..2) + &record(&name, 30);
        let other = a.folder().join("tmp");
        fs::write(&other, &cut).unwrap();
        fs::rename(&other, a.log(&name)).unwrap();
        soon("all are here again", || a.read(&name).lines().count() == 31);
        assert!(a.read(&name).starts_with(&cut), "{}", a.read(&name));
        soon("all are there", || b.read(&name).lines().count() == 31);
        assert_eq!(raw.messages(), 31 * (round + 1));
        assert_eq!(copies(&a), [""; 0], "nobody else wrote as {name}");
    }
}

#[test]
fn a_log_of_another_host_that_is_deleted_cut_or_compacted_here() {
    let server = Server::start();
    let (a, mut b) = (Machine::of(&server), Machine::of(&server));
    let all = records("a", 0..5);
    a.write("a", &all);
    b.has("a", &all);
    // The log changes while no link runs: it is the same byte for byte after the start.
    let half = all.len() - 30;
    for cut in ["", &all[..half], &records("a", 0..3)] {
        b.stop();
        if cut.is_empty() {
            fs::remove_file(b.log("a")).unwrap();
        } else {
            fs::write(b.log("a"), cut).unwrap();
        }
        b.start();
        b.has("a", &all);
    }
    // The log changes while the link runs.
    for cut in ["", &all[..half], &records("a", 0..3)] {
        if cut.is_empty() {
            fs::remove_file(b.log("a")).unwrap();
        } else {
            fs::write(b.log("a"), cut).unwrap();
        }
        b.has("a", &all);
    }
    // The log is compacted, and the next line comes at once: lines are compared by id.
    fs::write(b.folder().join("tmp"), record("a", 4) + &record("a", 2)).unwrap();
    fs::rename(b.folder().join("tmp"), b.log("a")).unwrap();
    a.write("a", &record("a", 5));
    soon("all are there", || {
        let text = b.read("a");
        (0..6).all(|n| text.contains(&record("a", n))) && text.lines().count() == 6
    });
    a.write("a", &records("a", 6..9));
    soon("the next ones follow", || b.read("a").ends_with(&records("a", 6..9)));
    assert_eq!(b.read("a").lines().count(), 9);
    assert_eq!(a.read("a"), records("a", 0..9));
    assert_eq!(server.raw().messages(), 9);
}

#[test]
fn a_torn_or_unterminated_last_line() {
    let server = Server::start();
    let (mut a, mut b) = (Machine::of(&server), Machine::of(&server));
    let two = record("a", 1);
    a.write("a", &(record("a", 0) + &two[..20]));
    b.has("a", &record("a", 0));
    a.restart();
    a.connected();
    assert_eq!(server.raw().messages(), 1);
    a.write("a", &two[20..]);
    b.has("a", &records("a", 0..2));
    // A line that the link took from the stream and did not finish is finished in place.
    b.stop();
    a.write("a", &record("a", 2));
    append(&b.log("a"), &record("a", 2)[..10]);
    b.start();
    b.has("a", &records("a", 0..3));
}

#[test]
fn the_same_writer_on_two_machines() {
    let server = Server::start();
    let machines = [Machine::of(&server), Machine::of(&server), Machine::of(&server)];
    let [one, two, third] = &machines;
    for n in 0..100 {
        let text = record("w", n);
        let writer = if n % 2 == 0 { one } else { two };
        writer.write("w", &text);
        if n % 10 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(7));
        }
    }
    soon("all are on the stream", || server.raw().messages() >= 100);
    soon("all are at the third", || third.read("w").lines().count() >= 100);
    let stream = server.raw().subject("msgfs.team.w");
    assert_eq!(stream.concat(), third.read("w").into_bytes());
    for machine in [one, two] {
        let all = || -> String {
            let files = fs::read_dir(machine.folder()).unwrap();
            files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect()
        };
        soon("all are on each, in its log or beside", || {
            (0..100).all(|n| all().contains(&record("w", n)))
        });
        for file in fs::read_dir(machine.folder()).unwrap() {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            let mut lines: Vec<&str> = text.lines().collect();
            let count = lines.len();
            lines.sort_unstable();
            lines.dedup();
            assert_eq!(lines.len(), count, "none twice in one file");
        }
    }
    // Each line is exactly once on the stream.
    let mut stream = stream;
    stream.sort();
    stream.dedup();
    assert_eq!(stream.len(), 100);
    assert_eq!(server.raw().messages(), 100);
}

#[test]
fn the_state_of_the_link_is_lost_or_older() {
    let server = Server::start();
    let (mut a, b) = (Machine::of(&server), Machine::of(&server));
    a.write("a", &records("a", 0..5));
    b.write("b", &records("b", 0..5));
    a.has("b", &records("b", 0..5));
    b.has("a", &records("a", 0..5));
    a.stop();
    let older = fs::read(a.kept().join("journal.jsonl")).unwrap();
    a.start();
    a.write("a", &records("a", 5..9));
    b.write("b", &records("b", 5..9));
    a.has("b", &records("b", 0..9));
    b.has("a", &records("a", 0..9));
    for lost in [true, false] {
        a.stop();
        if lost {
            fs::remove_dir_all(a.kept()).unwrap();
        } else {
            fs::write(a.kept().join("journal.jsonl"), &older).unwrap();
        }
        a.write("a", &record("a", if lost { 9 } else { 10 }));
        b.write("b", &record("b", if lost { 9 } else { 10 }));
        a.start();
        let end = if lost { 10 } else { 11 };
        b.has("a", &records("a", 0..end));
        a.has("b", &records("b", 0..end));
    }
    assert_eq!(a.read("a"), records("a", 0..11));
    assert_eq!(server.raw().messages(), 22);
}

#[test]
fn what_is_too_long_junk_or_not_the_writers_stays_here() {
    let server = Server::with("max_payload: 4096");
    let (mut a, b) = (Machine::of(&server), Machine::of(&server));
    let long = record("a", "long").replace("number", &"x".repeat(4000));
    let junk =
        ["[]\n", "\n", "nonsense\n", &record("x", 1), &long, "{\"from\":\"a\"}\r\n"].concat();
    a.write("a", &(record("a", 0) + &junk + &records("a", 1..3)));
    b.has("a", &records("a", 0..3));
    a.tells("stays on this machine");
    assert_eq!(a.health().refused, 5, "{:?}", a.health());
    a.write("a", &(junk.clone() + &record("a", 3)));
    b.has("a", &records("a", 0..4));
    a.restart();
    a.write("a", &record("a", 4));
    b.has("a", &records("a", 0..5));
    assert_eq!(server.raw().messages(), 5);
    let kept = record("a", 0) + &junk + &records("a", 1..3) + &junk + &records("a", 3..5);
    assert_eq!(a.read("a"), kept);
    let most = msgfs::link::nats::longest_line(&a.kept());
    assert_eq!(most, Some(4096 - 1024));
}

#[test]
fn a_log_that_is_a_symlink_a_fifo_or_a_folder() {
    let server = Server::start();
    let a = Machine::of(&server);
    let mut b = Machine::new(&server.url());
    let secret = b.root.path().join("secret");
    fs::write(&secret, record("x", 0)).unwrap();
    std::os::unix::fs::symlink(&secret, b.log("x")).unwrap();
    fs::create_dir(b.log("y")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(b.log("z")).status().unwrap().success());
    b.start();
    for writer in ["x", "y", "z", "ok"] {
        a.write(writer, &record(writer, 1));
    }
    b.has("ok", &record("ok", 1));
    soon("three are refused", || b.health().refused == 3);
    b.tells("log-x.jsonl");
    b.write("own", &record("own", 1));
    a.has("own", &record("own", 1));
    assert_eq!(fs::read_to_string(&secret).unwrap(), record("x", 0));
    assert_eq!(server.raw().messages(), 5);
    // When the log is a file again, all of it arrives.
    b.stop();
    fs::remove_file(b.log("x")).unwrap();
    b.start();
    b.has("x", &record("x", 1));
}

/// Takes the right to read every file from this thread and the threads that it starts, in case it is root's.
fn obey_modes() {
    let mut sets = capabilities(None).unwrap();
    sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    set_capabilities(None, sets).unwrap();
}

/// S1310: a log that may not be read does not stop the writers behind it, and travels once it may be read.
#[test]
fn s1310_a_log_that_cannot_be_read_stops_no_other() {
    obey_modes();
    let server = Server::start();
    let (mut a, b) = (Machine::new(&server.url()), Machine::of(&server));
    a.write("a", &record("a", 0));
    let log = a.log("a");
    let mode = |mode| fs::set_permissions(&log, fs::Permissions::from_mode(mode)).unwrap();
    mode(0);
    a.start();
    a.write("b", &record("b", 0));
    b.has("b", &record("b", 0));
    a.tells("log-a.jsonl Permission denied");
    a.connected();
    mode(0o600);
    a.restart();
    b.has("a", &record("a", 0));
}

#[test]
fn many_writers_and_long_lines() {
    let server = Server::start();
    let (a, mut b) = (Machine::of(&server), Machine::of(&server));
    for n in 0..1300 {
        let writer = format!("w{n}");
        a.write(&writer, &record(&writer, 1));
    }
    let long = |writer: &str| record(writer, 1).replace("number", &"x".repeat(700_000));
    let long_ones: Vec<String> = (0..16).map(|n| format!("long.{n}")).collect();
    for writer in &long_ones {
        a.write(writer, &long(writer));
    }
    b.has("w1299", &record("w1299", 1));
    for writer in &long_ones {
        b.has(writer, &long(writer));
    }
    soon("all are there", || fs::read_dir(b.folder()).unwrap().count() == 1316);
    b.stop();
    for writer in ["w0", "w700", "w1299", "long.0", "long.15"] {
        fs::remove_file(b.log(writer)).unwrap();
    }
    b.start();
    b.has("w0", &record("w0", 1));
    b.has("w700", &record("w700", 1));
    b.has("w1299", &record("w1299", 1));
    b.has("long.0", &long("long.0"));
    b.has("long.15", &long("long.15"));
    assert_eq!(server.raw().messages(), 1316);
}
