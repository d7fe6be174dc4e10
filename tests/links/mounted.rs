//! Mounts whose SAMP folders are kept equal over NATS.

use std::fs;
use std::time::Duration;

use crate::common::{Bed, Mount, binary, quote, samp};
use crate::nats::keys::Keys;
use crate::nats::server::Server;
use crate::secrets::Secrets;
use crate::{pair, soon};

/// Makes a machine whose link leads to a server.
pub(crate) fn machine(server: &Server, more: &str) -> Bed {
    let bed = Bed::new();
    bed.config(&format!("[[link]]\nkind = \"nats\"\nurl = {:?}\n{more}", server.url()));
    bed
}

/// Returns the texts of all messages to me, sorted.
fn texts(m: &Mount) -> Vec<String> {
    pair::texts(m, "archive")
}

fn expected(name: &str, count: usize) -> Vec<String> {
    pair::expected(&[name], count)
}

fn write(first: usize, last: usize, me: &str, to: &str) -> String {
    format!("for i in $(seq {first} {last}); do echo text {me} $i > outbox/{to}; done")
}

/// S420: each message that one machine writes is on the other one once, and both show the same threads byte for byte,
/// although mounts, the server and the network between were killed.
#[test]
fn s420_two_machines_over_nats() {
    let mut server = Server::start();
    let (one, two) = (machine(&server, ""), machine(&server, ""));
    let count = 60;
    for round in 0..4 {
        let (m, w) = (one.mount("alice"), two.mount("bob"));
        let (first, last) = (round * count / 4, (round + 1) * count / 4 - 1);
        m.ok(&write(first, last, "alice", "bob"));
        if round % 2 == 1 {
            server.again();
        }
        w.ok(&write(first, last, "bob", "alice"));
        std::thread::sleep(Duration::from_millis(40 * round as u64));
        m.kill9();
        w.kill9();
    }
    let (m, w) = (one.mount("alice"), two.mount("bob"));
    soon("bob has all", || texts(&w) == expected("alice", count));
    soon("alice has all", || texts(&m) == expected("bob", count));
    for log in ["log-alice.jsonl", "log-bob.jsonl"] {
        let read = |bed: &Bed| fs::read(bed.store.join(log)).unwrap();
        assert_eq!(read(&one), read(&two), "{log}");
    }
    pair::same_trees(&m, &w, &["threads", "transcripts"]);
}

/// S452: a thousand messages over NATS, while the server is killed or hangs and both mounts are killed.
#[test]
fn s452_thousands_over_nats() {
    let mut server = Server::start();
    let (mut one, mut two) = (machine(&server, ""), machine(&server, ""));
    (one.limit, two.limit) = (pair::LONG, pair::LONG);
    pair::thousands(&one, &two, |round| {
        std::thread::sleep(Duration::from_millis(300 * (round as u64 % 5)));
        if round % 2 == 0 {
            server.again();
        } else {
            server.signal("-STOP");
            std::thread::sleep(Duration::from_secs(3));
            server.signal("-CONT");
        }
    });
    for log in ["log-alice.jsonl", "log-bob.jsonl"] {
        let read = |bed: &Bed| fs::read(bed.store.join(log)).unwrap();
        assert_eq!(read(&one), read(&two), "{log}");
    }
}

/// S421, S1095: while the server is away, messages of this machine and of other SAMP programs still arrive.
/// `status.txt` and `msgfs link` say since when it is away and how much waits. All of it is sent once the server is
/// back, without a restart.
#[test]
fn s421_a_server_that_is_away_delays_nothing_else() {
    let mut server = Server::stopped("");
    let (one, two) = (machine(&server, ""), machine(&server, ""));
    let (m, w) = (one.mount("alice"), two.mount("bob"));
    m.ok(&write(0, 4, "alice", "bob"));
    m.ok("echo note > outbox/alice");
    soon("mail to myself", || m.ls("inbox").len() == 1);
    samp::append(&one.store, "carol", "alice", "t", "by another program", samp::now());
    soon("mail of another program", || m.ls("inbox").len() == 2);
    let waiting = || m.cat("status.txt").contains("not connected since");
    soon("it is told", waiting);
    let doctor = one.msgfs_out(&["--me", "alice", "doctor"]);
    assert!(doctor.stdout.contains("no server listens there: start it, or correct"), "{doctor:?}");
    soon("how much waits", || m.cat("status.txt").contains("7 waiting"));
    let out = one.msgfs_out(&["--me", "alice", "link"]);
    assert!(out.ok() && out.stdout.contains("not connected since"), "{out:?}");
    let sent = "cat sent/*/*.warning";
    soon("its letters say so", || m.sh(sent).stdout.contains("waits for the link nats"));
    assert_eq!(m.sh("ls sent/*/*.warning | wc -l").stdout.trim(), "6");
    let states = |state: &str| m.sh(&format!("cut -f 4 sent.txt | grep -c '^{state}$'"));
    assert_eq!(states("waiting").stdout.trim(), "6");
    server.run();
    soon("all are there", || texts(&w) == expected("alice", 5));
    soon("nothing waits", || {
        let status = m.cat("status.txt");
        status.contains("connected since") && !status.contains("waiting")
    });
    soon("the server has taken them", || states("delivered").stdout.trim() == "6");
    // S1095: a command can wait until the server has taken a line.
    let wait = ["--wait-for", "delivered", "--timeout", "60s", "one more"];
    let out = one.msgfs_out(&[&["--me", "alice", "send", "bob"], &wait[..]].concat());
    assert!(out.ok(), "{out:?}");
    soon("the notes are gone", || m.sh("ls sent/*").stdout.lines().all(|l| !l.contains("warning")));
    let doctor = one.msgfs_out(&["--me", "alice", "doctor"]);
    assert!(!doctor.stdout.contains("the link nats"), "{doctor:?}");
}

/// S1141: what the server has taken is known without a mount, at the first look of a new one, and while the server is
/// away. Another log in the place of that one proves nothing.
#[test]
fn s1141_what_the_server_has_taken_stays_known() {
    let mut server = Server::start();
    let one = machine(&server, "");
    let m = one.mount("alice");
    m.ok(&write(0, 4, "alice", "bob"));
    let delivered = |text: &str| text.matches("\tdelivered\t").count();
    soon("the server has taken them", || delivered(&m.cat("sent.txt")) == 5);
    drop(m);
    let sent = || one.msgfs_out(&["--me", "alice", "sent"]).stdout;
    assert_eq!(delivered(&sent()), 5, "without a mount");
    server.kill();
    let m = one.mount("alice");
    assert_eq!(delivered(&m.cat("sent.txt")), 5, "at the first look");
    m.ok("echo later > outbox/bob");
    assert_eq!(delivered(&m.cat("sent.txt")), 5);
    drop(m);
    let log = one.store.join("log-alice.jsonl");
    let lines = fs::read_to_string(&log).unwrap();
    fs::write(&log, lines.split_once('\n').unwrap().1).unwrap();
    assert_eq!(delivered(&sent()), 0, "the log is another one");
    fs::write(&log, lines).unwrap();
    assert_eq!(delivered(&sent()), 5);
}

/// S1141: a line that is no record stays here, and says nothing about the lines before and behind it.
#[test]
fn s1141_an_odd_line_hides_no_receipt() {
    let server = Server::start();
    let one = machine(&server, "");
    let m = one.mount("alice");
    m.ok(&write(0, 1, "alice", "bob"));
    let delivered = |text: &str| text.matches("\tdelivered\t").count();
    soon("the server has taken them", || delivered(&m.cat("sent.txt")) == 2);
    let log = one.store.join("log-alice.jsonl");
    // Readers take a line that ends with CR, and the link does not.
    let odd = samp::Rec::new("alice", "bob", "t", "this line stays", samp::now()).line();
    samp::append_raw(&log, format!("no record\n{}\r\n", odd.trim_end()));
    m.ok(&write(2, 3, "alice", "bob"));
    soon("the server has taken the others", || delivered(&m.cat("sent.txt")) == 4);
    assert!(m.cat("sent.txt").contains("\tstored\t"), "{}", m.cat("sent.txt"));
    drop(m);
    let sent = || one.msgfs_out(&["--me", "alice", "sent"]).stdout;
    assert_eq!(delivered(&sent()), 4, "without a mount");
    let m = one.mount("alice");
    m.ok(&write(4, 4, "alice", "bob"));
    soon("the server has taken the last one", || delivered(&m.cat("sent.txt")) == 5);
}

/// S1365: a message that was written while nothing carries waits, and says so. Another process that carries tells its
/// state.
#[test]
fn s1365_without_a_mount_a_message_waits_for_its_link() {
    let server = Server::start();
    let one = machine(&server, "");
    let alice = |args: &[&str]| one.msgfs_out(&[&["--me", "alice"], args].concat());
    let states = |state: &str| alice(&["sent"]).stdout.matches(&format!("\t{state}\t")).count();
    let m = one.mount("alice");
    m.ok("echo taken > outbox/bob");
    soon("the server has taken it", || states("delivered") == 1);
    drop(m);
    assert!(alice(&["send", "bob", "later"]).ok());
    assert_eq!((states("delivered"), states("waiting")), (1, 1));
    let told = alice(&["sent", "--json"]).stdout;
    let why = "which is stopped: neither a mount nor `msgfs carry --all` is running";
    assert!(
        told.contains(&format!("(nats://{}, space team), {why}", &server.url()[7..])),
        "{told}"
    );
    let status = alice(&["status"]).stdout;
    assert!(
        status.contains("stopped: neither a mount") && status.contains("; 1 waiting"),
        "{status}"
    );
    let day = alice(&["ls", "sent"]).stdout.trim().to_owned();
    let listed = alice(&["ls", &format!("sent/{day}")]).stdout;
    let warnings: Vec<&str> = listed.lines().filter(|name| name.ends_with(".warning")).collect();
    assert_eq!(warnings.len(), 1, "{listed}");
    let warning = alice(&["cat", &format!("sent/{day}/{}", warnings[0])]).stdout;
    assert!(warning.contains(why), "{warning}");
    // S1363: the same while the link is switched off, beside a mount and without one.
    let file = one.path("config/msgfs/config.toml");
    let on = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{on}off = true\n")).unwrap();
    let waits = || {
        assert_eq!((states("delivered"), states("waiting")), (1, 1));
        let told = alice(&["sent", "--json"]).stdout;
        assert!(told.contains("which is stopped: it is switched off"), "{told}");
        let warning = alice(&["cat", &format!("sent/{day}/{}", warnings[0])]).stdout;
        assert!(warning.contains("which is stopped: it is switched off"), "{warning}");
        let status = alice(&["status"]).stdout;
        assert!(status.contains("stopped: it is switched off"), "{status}");
        assert!(status.contains("; 1 waiting"), "{status}");
    };
    waits();
    let m = one.mount("alice");
    waits();
    m.umount();
    fs::write(&file, on).unwrap();
    // The link of another name carries the lines of all.
    let w = one.mount("bob");
    soon("the server has taken both", || states("delivered") == 2);
    assert!(alice(&["status"]).stdout.contains("carried by another process"));
    w.umount();
}

/// S422: where machines may not make the stream, the link says what an admin must do, and `msgfs link create` does it.
#[test]
fn s422_an_admin_makes_the_stream() {
    let server = Server::with(
        "authorization { users: [\n\
           {user: host, password: pw, permissions: {publish: {allow: [\"msgfs.team.*\", \
             \"$JS.API.STREAM.INFO.MSGFS_team\", \"$JS.API.STREAM.MSG.GET.MSGFS_team\", \
             \"$JS.API.DIRECT.GET.MSGFS_team\", \"$JS.API.CONSUMER.CREATE.MSGFS_team.*\", \
             \"$JS.API.CONSUMER.MSG.NEXT.MSGFS_team.*\", \"$SYS.REQ.USER.INFO\"]}}}\n\
           {user: admin, password: root}\n] }",
    );
    let login = |user: &str| format!("user = \"{user}\"\npassword_file = \"{user}.password\"\n");
    let host = machine(&server, &login("host"));
    let admin = machine(&server, &login("admin"));
    for (bed, user, password) in [(&host, "host", "pw"), (&admin, "admin", "root")] {
        let file = bed.path(format!("config/msgfs/{user}.password"));
        fs::write(&file, password).unwrap();
        fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }
    let none = host.msgfs_out(&["--me", "zoe", "link", "retry", "foo"]);
    assert!(
        !none.ok() && none.stderr.contains("there is no link \"foo\"; there is nats"),
        "{none:?}"
    );
    let m = host.mount("alice");
    soon("it is told", || m.cat("status.txt").contains("msgfs link create nats"));
    let out = admin.msgfs_out(&["--me", "root", "link", "create"]);
    assert!(out.ok(), "{out:?}");
    soon("it is connected", || m.cat("status.txt").contains("; connected since"));
    m.ok("echo hi > outbox/bob");
    soon("nothing waits", || !m.cat("status.txt").contains("waiting"));
    let secrets = m.sh("cat status.txt; cat ../state/msgfs/alice/log ../state/msgfs/link/nats/*");
    assert!(!secrets.said().contains("\"pw\""), "{secrets:?}");
}

/// S744, S745: two agents are on one machine, and the server permits one of them. The one process that carries for both
/// reports its state to both, and the message of the other agent says why it waits.
#[test]
fn s745_a_writer_who_is_not_permitted_is_told() {
    let server = Server::with(
        "authorization { users: [\n\
           {user: host, password: pw, permissions: {publish: {allow: [\"msgfs.team.alice\", \"$JS.>\", \
             \"$SYS.REQ.USER.INFO\"]}}}\n\
           {user: admin, password: root}\n] }",
    );
    let host =
        machine(&server, "user = \"host\"\npassword_file = \"host.password\"\nmarks = false\n");
    let file = host.path("config/msgfs/host.password");
    fs::write(&file, "pw").unwrap();
    fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let m = host.mount("alice");
    soon("it is connected", || m.cat("status.txt").contains("; connected since"));
    let w = host.mount("bob");
    soon("the second one tells the same", || {
        let status = w.cat("status.txt");
        status.contains("; connected since") && status.contains("carried by another process")
    });
    m.ok("echo hi > outbox/bob");
    w.ok("echo hi > outbox/alice");
    let why = "this machine may not publish as bob";
    for mount in [&m, &w] {
        soon("both are told", || mount.cat("status.txt").contains(why));
    }
    soon("the letter says why", || w.sh("cat sent/*/*.warning").stdout.contains(why));
    assert_eq!(m.sh("ls sent/*").stdout.lines().filter(|l| l.contains("warning")).count(), 0);
}

/// S444: a draft whose line is longer than the server takes is refused with EFBIG once the link has been connected. The
/// error says how long it may be. Shorter drafts are sent.
#[test]
fn s444_what_the_server_does_not_take_is_refused_when_it_is_written() {
    let server = Server::with("max_payload: 8192");
    let (one, two) = (machine(&server, ""), machine(&server, ""));
    let (m, w) = (one.mount("alice"), two.mount("bob"));
    m.ok("echo text alice 0 > outbox/bob");
    soon("the link was there", || texts(&w) == expected("alice", 1));
    let long = "python3 -c \"f = open('outbox/bob', 'w'); f.write('x' * 9000); f.close()\"";
    soon("the limit is known", || {
        let out = m.sh(long);
        !out.ok() && out.stderr.contains("File too large")
    });
    let told = m.ok("cat outbox/*.error");
    assert!(told.contains("the link nats takes 7168 at most"), "{told}");
    m.ok("rm outbox/*; echo text alice 1 > outbox/bob");
    soon("others go", || texts(&w).contains(&"text alice 1".to_owned()));
    // Without a mount, and while the server is away, the limit is known as well.
    m.umount();
    drop(server);
    let write = format!(
        "head -c 9000 /dev/zero | tr '\\0' x | {} --me alice write outbox/bob",
        quote(&binary())
    );
    let out = one.sh(&write);
    assert!(!out.ok() && out.stderr.contains("7168"), "{out:?}");
}

/// S910: files go over NATS, up to the longest record, also to a recipient whose record has the list alone.
#[test]
fn s910_files_go_over_nats() {
    let server = Server::start();
    let (one, two) = (machine(&server, ""), machine(&server, ""));
    let (m, w) = (one.mount("alice"), two.mount("bob"));
    let bytes: Vec<u8> = (0..784_500u32).map(|n| (n % 251) as u8).collect();
    fs::write(one.path("big"), &bytes).unwrap();
    let attach = quote(&one.path("big"));
    m.ok("echo first > outbox/bob");
    soon("the link is there", || w.ls("inbox").len() == 1);
    m.ok(&format!("printf 'To: carol, bob\\nAttach: %s\\n\\nsee there\\n' {attach} > outbox/x"));
    soon("the file is there", || w.sh("cat archive/*/*.d/big | wc -c").stdout.trim() == "784500");
    let copy = w.ok("ls archive/*/*.d/big");
    assert_eq!(w.bytes(copy.trim()), bytes);
    assert!(!w.sh("cat archive/*/*.txt").stdout.contains("data missing"));
}

/// S441: the password and the seed of the key by which a link over NATS logs in are in their files only, also while the
/// server refuses them.
#[test]
fn s441_secrets_of_nats_are_in_their_files_only() {
    let key = Keys::user(7);
    let password = "s3cret-of-the-fleet";
    let users = |password: &str| {
        format!(
            "authorization {{ users: [ {{user: host, password: \"{password}\"}}, {{nkey: {}}} ] }}",
            key.public
        )
    };
    let server = Server::with(&users(password));
    let other = Server::with(&users("another one"));
    let ways = [
        (password, "user = \"host\"\npassword_file = \"secret\"\n", &server),
        (&key.seed, "creds = \"secret\"\n", &server),
        (password, "user = \"host\"\npassword_file = \"secret\"\n", &other),
    ];
    for (secret, login, server) in ways {
        let mut bed = machine(server, login);
        let file = bed.path("config/msgfs/secret");
        fs::write(&file, secret).unwrap();
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let secrets = Secrets::watch(&mut bed, &[secret]);
        let m = bed.mount("alice");
        m.ok("echo hi > outbox/bob");
        soon("the server has answered", || {
            let status = m.cat("status.txt");
            status.contains("; connected since") || status.contains("authorization violation")
        });
        secrets.are_nowhere_but(&bed, &m, "alice", &[file]);
        m.umount();
    }
}

/// S441, S1311: a user and a password in the address of a server are refused, and are in no output, log or state. A
/// message that waits for this link says so.
#[test]
fn s441_a_password_in_an_address() {
    let mut bed = Bed::new();
    bed.config("[[link]]\nkind = \"nats\"\nurl = \"nats://ursula:hunter2@127.0.0.1:4222\"\n");
    let configured = bed.path("config/msgfs/config.toml");
    let secrets = Secrets::watch(&mut bed, &["hunter2", "ursula"]);
    let m = bed.mount("alice");
    soon("it is told", || m.cat("status.txt").contains("must not hold a user or a password"));
    let out = bed.msgfs_out(&["--me", "alice", "link"]);
    assert!(
        out.stdout.contains("nats: nats://127.0.0.1:4222, space team; stopped: url"),
        "{out:?}"
    );
    m.ok("echo hi > outbox/bob");
    let warned = || m.sh("cat sent/*/*.warning").stdout.contains("which is stopped: url");
    soon("its letter says so", warned);
    let refused = bed.msgfs_out(&["--me", "alice", "link", "create"]);
    assert!(!refused.ok() && !refused.said().contains("hunter2"), "{refused:?}");
    // The state that an earlier msgfs left is shown without them.
    secrets.are_nowhere_but(&bed, &m, "alice", &[configured]);
    m.umount();
    let saved = bed.path("state/msgfs/link/nats/standing.json");
    let text = fs::read_to_string(&saved).unwrap();
    fs::write(&saved, text.replace("nats://", "nats://ursula:hunter2@")).unwrap();
    let out = bed.msgfs_out(&["--me", "alice", "link"]);
    assert!(out.stdout.contains("nats://127.0.0.1") && !out.said().contains("hunter2"), "{out:?}");
}

/// S644: `msgfs link` tells of a link to an unknown store, beside a mount and without one.
#[test]
fn s644_a_link_to_an_unknown_store() {
    let bed = Bed::new();
    bed.config("[[link]]\nkind = \"nats\"\nurl = \"nats://127.0.0.1:1\"\nstore = \"smap\"\n");
    let missing =
        "it is left out: there is no store \"smap\"; there is samp; did you mean \"samp\"?";
    let why = &format!("stopped: {missing}");
    let told = || {
        let out = bed.msgfs_out(&["--me", "alice", "link"]);
        assert!(out.ok() && out.stdout.contains(why), "{out:?}");
        assert!(!out.stderr.contains("nothing carries"), "{out:?}");
    };
    told();
    let m = bed.mount("alice");
    told();
    let status = m.cat("status.txt");
    assert!(status.contains("the link nats is left out: there is no store"), "{status}");
    // S1362
    assert!(status.contains("links:") && status.contains(why), "{status}");
    m.umount();
    let status = bed.msgfs_out(&["--me", "alice", "status"]).stdout;
    assert!(status.contains(why), "{status}");
    let out = bed.msgfs_out(&["--me", "alice", "doctor"]);
    assert!(out.stdout.contains(missing) && !out.said().contains("refused"), "{out:?}");
}

/// S1362: a link that is switched off is in `status.txt` and `msgfs link`, and `carry --all` carries nothing for it.
#[test]
fn s1362_a_link_that_is_switched_off_is_told() {
    let bed = Bed::new();
    bed.config("[[link]]\nkind = \"nats\"\nurl = \"nats://127.0.0.1:1\"\noff = true\n");
    let why = "nats: nats://127.0.0.1:1, space team; stopped: it is switched off";
    let m = bed.mount("alice");
    assert!(m.cat("status.txt").contains(why), "{}", m.cat("status.txt"));
    m.umount();
    let out = bed.msgfs_out(&["--me", "alice", "link"]);
    assert!(out.ok() && out.stdout.contains(why), "{out:?}");
    assert!(!out.stderr.contains("nothing carries"), "{out:?}");
    let status = bed.msgfs_out(&["--me", "alice", "status"]).stdout;
    assert!(status.contains(why), "{status}");
    let out = bed.msgfs_out(&["--me", "alice", "carry", "--all"]);
    assert!(out.code() == Some(1) && out.stderr.contains("there is no link; see"), "{out:?}");
}

/// `carry --all` without a link ends in the same way beside a mount and without one.
#[test]
fn carry_without_a_link_ends_beside_a_mount() {
    let bed = Bed::new();
    let ended = || {
        let out = bed.msgfs_out(&["--me", "alice", "carry", "--all"]);
        assert_eq!(out.code(), Some(1), "{out:?}");
        assert!(out.stderr.contains("there is no link; see"), "{out:?}");
        assert!(!out.stderr.contains("carries meanwhile"), "{out:?}");
    };
    ended();
    let m = bed.mount("alice");
    ended();
    let link = bed.msgfs_out(&["--me", "alice", "link"]);
    assert!(link.ok() && link.stdout.starts_with("there is no link here;"), "{link:?}");
    m.umount();
}

/// S450: the link of a space belongs to the machine: `msgfs link` shows its state to every agent, and says that no
/// process carries only if there is none.
#[test]
fn s450_a_link_is_asked_for_by_another_name() {
    let server = Server::start();
    let bed = machine(&server, "");
    let ask = |me: &str| bed.msgfs_out(&["--me", me, "link"]);
    let m = bed.mount("alice");
    soon("it is connected", || m.cat("status.txt").contains("connected since"));
    for me in ["alice", "bob"] {
        let out = ask(me);
        assert!(out.ok() && out.stdout.contains("connected since"), "{me}: {out:?}");
        assert!(!out.stderr.contains("nothing carries"), "{me}: {out:?}");
    }
    m.umount();
    for me in ["alice", "bob"] {
        let out = ask(me);
        assert!(out.stderr.contains("nothing carries now: neither a mount"), "{me}: {out:?}");
    }
}

/// S451: while a server is away or ends, the status says nothing about marks: the reason is neither a permission nor
/// the stream.
#[test]
fn s451_a_server_that_ends_is_no_missing_permission() {
    let mut server = Server::start();
    let bed = machine(&server, "");
    let m = bed.mount("alice");
    soon("it is connected", || m.cat("status.txt").contains("connected since"));
    for _ in 0..3 {
        server.signal("-TERM");
        soon("it is away", || m.cat("status.txt").contains("not connected since"));
        server.kill();
        for _ in 0..20 {
            let said = m.cat("status.txt");
            assert!(!said.contains("my other machines") && !said.contains("permit"), "{said}");
            std::thread::sleep(Duration::from_millis(20));
        }
        server.run();
        soon("it is back", || !m.cat("status.txt").contains("not connected since"));
    }
}
