//! `kill -9` of links and servers at any moment.

use std::time::Duration;

use super::helper::Helper;
use super::machine::{Machine, record, records};
use super::server::Server;
use crate::soon;

/// Returns the number of kills; `MSGFS_LINK_KILLS` sets it for long runs.
fn kills() -> u32 {
    std::env::var("MSGFS_LINK_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(36)
}

/// Pseudo-random numbers, the same each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

#[test]
fn kill_of_links_and_server_at_any_instant() {
    for sync in ["2m", "always"] {
        kill_all(
            &format!("jetstream {{ store_dir: \"@DIR@/js\", sync_interval: {sync} }}"),
            kills() / 2,
        );
    }
}

fn kill_all(settings: &str, kills: u32) {
    let mut server = Server::with(settings);
    let url = server.url();
    let machines: Vec<Machine> = (0..3).map(|_| Machine::new(&url)).collect();
    let start = |n: usize| Helper::start(machines[n].root.path(), &url);
    let mut links: Vec<Helper> = (0..3).map(start).collect();
    let writers = ["w0", "w1", "w2"];
    let mut written = [0; 3];
    let mut chance = Chance(kills.into());
    for n in 0..kills {
        for (machine, (writer, count)) in machines.iter().zip(writers.iter().zip(&mut written)) {
            let more = 1 + chance.below(40) as u32;
            for line in *count..*count + more {
                machine.write(writer, &record(writer, line));
            }
            *count += more;
        }
        std::thread::sleep(Duration::from_millis(chance.below(250)));
        if n % 5 == 4 {
            server.again();
        } else {
            let victim = chance.below(3) as usize;
            assert!(links[victim].runs());
            links[victim] = start(victim);
        }
    }
    for (writer, count) in writers.iter().zip(written) {
        for machine in &machines {
            machine_has(machine, writer, &records(writer, 0..count));
        }
        let stream = server.raw().subject(&format!("msgfs.team.{writer}"));
        assert_eq!(stream.concat(), records(writer, 0..count).into_bytes());
    }
}

#[track_caller]
fn machine_has(machine: &Machine, writer: &str, text: &str) {
    soon(writer, || machine.read(writer).len() >= text.len());
    assert!(machine.read(writer) == text, "the log of {writer} differs");
}

#[test]
fn kill_of_two_machines_that_write_as_one() {
    for seed in [33, 36, 42] {
        kill_two_writers(Chance(seed));
    }
}

fn kill_two_writers(mut chance: Chance) {
    let mut server = Server::start();
    let url = server.url();
    let machines: Vec<Machine> = (0..3).map(|_| Machine::new(&url)).collect();
    let start = |n: usize| Helper::start(machines[n].root.path(), &url);
    let mut links: Vec<Helper> = (0..3).map(start).collect();
    let mut count = 0_u32;
    for n in 0..kills() / 3 {
        for _ in 0..10 {
            machines[chance.below(2) as usize].write("w", &record("w", count));
            count += 1;
        }
        std::thread::sleep(Duration::from_millis(chance.below(250)));
        match chance.below(4) {
            0 => server.again(),
            _ => links[n as usize % 3] = start(n as usize % 3),
        }
    }
    soon("the third has all", || machines[2].read("w").lines().count() >= count as usize);
    let mut stream = server.raw().subject("msgfs.team.w");
    assert_eq!(stream.concat(), machines[2].read("w").into_bytes());
    stream.sort();
    stream.dedup();
    assert_eq!(stream.len(), count as usize, "each once");
    assert_eq!(server.raw().messages(), u64::from(count));
    for machine in &machines[..2] {
        soon("each has all in its log or beside", || {
            let files = std::fs::read_dir(machine.folder()).unwrap();
            let all: String = files
                .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap_or_default())
                .collect();
            (0..count).all(|n| all.contains(&record("w", n)))
        });
    }
}
