//! Mounts whose links lead to hostile servers.

use std::sync::Arc;

use serde_json::json;

use crate::common::shown::has_ending;
use crate::common::{Bed, Mount, need_root, run, soon};
use crate::machine::Machine;
use crate::peer;
use crate::relay::{bodies, sent};
use crate::secrets::Secrets;

// This is the server of the unit tests of links; this target uses a part of it.
#[path = "../../src/link/hostile/server.rs"]
#[allow(dead_code)]
mod server;

use server::{HostileProtocol, HostileServer, ServerAction};

const SECRET: &str = "s3cret-of-all-of-them";
const ZED: &str = "zed.agenttalk";

/// S440, S441: hostile servers of some links stop neither the mount nor messages of this machine nor other links. The
/// status says what is wrong, and no answer of a server shows a secret there.
#[test]
fn s440_servers_that_mean_harm_stop_nothing_else() {
    let echo = |before: &str| {
        ServerAction::Say(format!("{before} {SECRET} is wrong, says the server\r\n").into_bytes())
    };
    let plan = move |line: &str| match line.split([' ', '\r', ':']).next().unwrap_or_default() {
        "" if line.is_empty() => ServerAction::Say(b"220 hello\r\n".to_vec()),
        "EHLO" => ServerAction::Say(b"250 AUTH PLAIN\r\n".to_vec()),
        "USER" => ServerAction::Say(b"331 and?\r\n".to_vec()),
        "AUTH" | "PASS" => echo("535"),
        _ => ServerAction::Say(b"250 ok\r\n".to_vec()),
    };
    let lines = HostileServer::start(HostileProtocol::Lines, Arc::new(plan));
    let rounds: [(&str, ServerAction); 4] = [
        ("repeats", ServerAction::Close(format!("* BYE {SECRET}\r\n").into_bytes())),
        ("hangs", ServerAction::Hang),
        ("drips", ServerAction::Drip(b"* OK and so on".to_vec())),
        ("floods", ServerAction::Endless(b"* OK ".to_vec(), b"x".repeat(1000))),
    ];
    let at = Bed::new();
    let relay = peer::relay(&at);
    let zed = Machine::new(ZED, &peer::register(&at, &relay, "zed"));
    let z = zed.mount();
    let at = (&at, &relay, &z, lines.port);
    std::thread::scope(|all| {
        for (n, (what, act)) in rounds.into_iter().enumerate() {
            all.spawn(move || round(at, &format!("bar{n}"), what, act));
        }
    });
}

/// Runs one machine with links to all hostile servers and to one that is good.
fn round(
    (at, relay, z, lines): (&Bed, &peer::Server, &Mount, u16),
    name: &str,
    what: &str,
    act: ServerAction,
) {
    let inbox = HostileServer::start(HostileProtocol::Lines, Arc::new(move |_| act.clone()));
    let mut config = peer::register(at, relay, name);
    let token = config["agenttalk"]["token"].as_str().unwrap().to_owned();
    config["relays"] = json!([config["agenttalk"]]);
    config["transport"] = json!("both");
    config["email"] = json!({"smtp_server": "127.0.0.1", "smtp_port": lines, "imap_server": "127.0.0.1",
        "imap_port": inbox.port, "username": "u", "password": SECRET});
    config["ftp"] = json!({"host": "127.0.0.1", "port": lines, "user": "u", "password": SECRET});
    let address: &'static str = Box::leak(format!("{name}.agenttalk").into_boxed_str());
    let mut bar = Machine::new(address, &config);
    let before = bar.bed.path("config/msgfs/config.toml");
    let text = std::fs::read_to_string(&before).unwrap();
    let nats = format!(
        "[[link]]\nkind = \"nats\"\nurl = \"nats://127.0.0.1:{}\"\nuser = \"u\"\npassword_file = \"pw\"\n",
        inbox.port
    );
    let password = bar.file("config/msgfs/pw", SECRET.as_bytes());
    let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&password, own).unwrap();
    bar.bed.config(&format!(
        "{text}[[store]]\nkind = \"samp\"\ndir = \"{}\"\n{nats}",
        bar.bed.store.display()
    ));
    let secrets = Secrets::watch(&mut bar.bed, &[SECRET, &token]);
    let m = bar.mount();
    m.ok(&format!(
        "printf 'Via: agentazall\\n\\n{what}\\n' > outbox/{ZED}; \
         printf 'Via: agentazall\\n\\nme\\n' > outbox/{address}; \
         printf 'Via: email\\n\\nno\\n' > outbox/al@far.example; printf 'Via: ftp\\n\\nno\\n' > outbox/al@far.example"
    ));
    soon("mail of this machine", || m.ls("inbox").iter().any(|name| has_ending(name, "txt")));
    soon("another link goes on", || bodies(z).contains_key(what));
    soon("both are told", || {
        let told = m.ok("cat sent/*/*.warning 2>/dev/null; true");
        told.contains("link email") && told.contains("link ftp")
    });
    // In the other cases the links still wait for the server.
    let ends = matches!(what, "repeats" | "floods");
    soon("what the servers say is told, without the secret", || {
        let status = m.cat("status.txt");
        let told = |link: &str| {
            status.lines().any(|line| line.contains(link) && line.contains("(hidden) is wrong"))
        };
        !ends || told("email: ") && told("ftp: ")
    });
    assert_eq!(sent(&m, "warning").len(), 2, "{what}");
    let config = bar.tree.root.join("config.json");
    secrets.are_nowhere_but(&bar.bed, &m, address, &[config, password]);
    m.umount();
}

/// A small disk of its own, which is unmounted when this is dropped.
struct Disk(std::path::PathBuf);

impl Disk {
    fn at(path: std::path::PathBuf, size: &str) -> Self {
        need_root();
        let mut c = std::process::Command::new("mount");
        c.args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(&path);
        let out = run(c, None);
        assert!(out.ok(), "{out:?}");
        Self(path)
    }

    /// Returns the number of free bytes.
    fn free(&self) -> u64 {
        let fs = rustix::fs::statvfs(&self.0).unwrap();
        fs.f_bfree * fs.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// S440: a server whose answers have no end does not fill the disk: msgfs stops reading it while 64 MiB are free, and
/// reports that.
#[test]
fn s440_no_server_fills_the_disk() {
    let answer = b"HTTP/1.1 200 OK\r\n\r\n{\"messages\":[{\"id\":\"1\",\"payload\":\"".to_vec();
    let http = HostileServer::start(
        HostileProtocol::Http,
        Arc::new(move |_| ServerAction::Endless(answer.clone(), b"x".repeat(1000))),
    );
    let url = format!("http://127.0.0.1:{}", http.port);
    let config = json!({"transport": "agenttalk", "log_file": "", "agenttalk": {"server": url, "token": SECRET}});
    let bar = Machine::new("bar.agenttalk", &config);
    let disk = Disk::at(bar.bed.path("state"), "100m");
    let m = bar.mount();
    let mut least = u64::MAX;
    soon("it is told", || {
        least = least.min(disk.free());
        let told = m.cat("status.txt");
        ["links leave 64 MiB free", "a fetch was cut off at"].iter().all(|part| told.contains(part))
    });
    assert!(least > 50 << 20, "{least}");
    m.ok("echo me > outbox/bar.agenttalk");
    soon("mail of this machine", || m.ls("inbox").iter().any(|name| has_ending(name, "txt")));
    soon("nothing of it stays", || disk.free() > 90 << 20);
    m.umount();
}
