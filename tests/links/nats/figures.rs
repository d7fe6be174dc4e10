//! Speed and cost: `cargo test --release --test links -- --ignored --nocapture figures`.

use std::fs;
use std::time::{Duration, Instant};

use super::machine::{Machine, record, records};
use super::server::Server;

/// Returns the processor time of the threads of links, in hundredths of a second.
fn spent() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let stat = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("stat")).ok()?;
        let numbers = text.split_once("(msgfs-link) ")?.1.split(' ').skip(11).take(2);
        Some(numbers.map(|n| n.parse::<u64>().unwrap()).sum::<u64>())
    };
    tasks.filter_map(stat).sum()
}

#[test]
#[ignore = "figures, for people"]
fn figures() {
    const LINES: u32 = 200_000;
    let server = Server::start();
    let a = Machine::new(&server.url());
    let all = records("a", 0..LINES);
    a.write("a", &all);
    let b = Machine::of(&server);
    b.connected();
    let mut a = a;
    let start = Instant::now();
    a.start();
    let arrived = |machine: &Machine| {
        let len = || fs::metadata(machine.log("a")).map_or(0, |meta| meta.len());
        while len() < all.len() as u64 {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    arrived(&b);
    println!("{LINES} waiting lines from one machine to another: {:?}", start.elapsed());
    assert!(b.read("a") == all);
    let late = Machine::of(&server);
    let start = Instant::now();
    arrived(&late);
    println!("the same to a new machine: {:?}", start.elapsed());
    b.write("b", &record("b", 0));
    a.has("b", &record("b", 0));
    let mut times: Vec<Duration> = (1..300)
        .map(|n| {
            let start = Instant::now();
            b.write("b", &record("b", n));
            let len = records("b", 0..n + 1).len() as u64;
            while fs::metadata(a.log("b")).unwrap().len() < len {
                std::thread::sleep(Duration::from_micros(100));
            }
            start.elapsed()
        })
        .collect();
    times.sort();
    println!("append to append: median {:?}, 99th {:?}", times[150], times[296]);
    let restart = Instant::now();
    a.restart();
    a.connected();
    println!("a restarted link is live after {:?}", restart.elapsed());
    std::thread::sleep(Duration::from_secs(2));
    let before = spent();
    std::thread::sleep(Duration::from_secs(20));
    println!("three links at rest, 20 s: {} ms of processor time", (spent() - before) * 10);
}
