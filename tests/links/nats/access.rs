//! Permissions and logins, and the messages about them.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use msgfs::link::LinkState;
use msgfs::link::nats;
use serde_json::json;

use super::keys::{self, Keys};
use super::machine::{Machine, record, records, spec};
use super::raw::Raw;
use super::server::Server;
use crate::soon;

/// Returns settings with two hosts and an admin in one account; `may` lists what host 1 may publish.
fn users(may: &str) -> String {
    let api = "\"$JS.API.STREAM.INFO.MSGFS_team\", \"$JS.API.DIRECT.GET.MSGFS_team\", \
               \"$JS.API.CONSUMER.CREATE.MSGFS_team.*\", \"$JS.API.CONSUMER.MSG.NEXT.MSGFS_team.*\", \
               \"$SYS.REQ.USER.INFO\"";
    format!(
        "authorization {{ users: [\n {{user: admin, password: root}},\n {{user: host1, password: one, \
         permissions: {{publish: [{may}, {api}], subscribe: [\"_INBOX_host1.>\"]}}}},\n {{user: host2, \
         password: two, permissions: {{publish: [\"msgfs.team.b\", {api}], subscribe: [\"_INBOX_host2.>\"]}}}}\n]}}"
    )
}

fn secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Makes a machine that logs in by user and password.
fn host(server: &Server, user: &str, password: &str) -> Machine {
    let mut machine = Machine::new(&server.url());
    secret(&machine.root.path().join("password"), &format!("{password}\n"));
    machine.spec.settings.user = Some(user.into());
    machine.spec.settings.password_file = Some(machine.root.path().join("password"));
    machine.spec.settings.inbox = Some(format!("_INBOX_{user}"));
    machine
}

fn admin(server: &Server) -> Raw {
    Raw::connect(server.port, r#"{"user":"admin","pass":"root"}"#)
}

#[test]
fn no_permission_for_a_writer_is_told_at_once_and_granted_later() {
    let server = Server::with(&users("\"msgfs.team.a\""));
    let mut one = host(&server, "host1", "one");
    let mut two = host(&server, "host2", "two");
    one.start();
    // Nobody made the stream, and neither host may make it.
    one.tells("the stream MSGFS_team does not exist");
    one.tells("msgfs link create");
    let mut by_admin = spec(&server.url());
    by_admin.settings.user = Some("admin".into());
    let password = one.root.path().join("root");
    secret(&password, "root");
    by_admin.settings.password_file = Some(password);
    assert!(!nats::check_link(&by_admin).is_empty());
    nats::create_streams(&by_admin).unwrap();
    nats::create_streams(&by_admin).unwrap();
    assert_eq!(nats::check_link(&by_admin), [""; 0]);
    assert_eq!(nats::check_link(&one.spec), [""; 0]);
    two.start();
    one.connected();
    let start = Instant::now();
    one.write("c", &records("c", 0..600));
    one.write("a", &record("a", 0));
    one.tells("may not publish as c");
    assert!(start.elapsed() < Duration::from_secs(4), "not after a timeout");
    two.has("a", &record("a", 0));
    two.write("b", &record("b", 0));
    one.has("b", &record("b", 0));
    soon("they wait", || one.health().waiting == 600);
    server.configure(&users("\"msgfs.team.a\", \"msgfs.team.c\""));
    server.reload();
    two.write("b", &record("b", 1));
    two.has("c", &records("c", 0..600));
    soon("it is told no more", || !one.told("may not publish"));
}

/// S1313: a permission for all spaces is one for this space.
#[test]
fn s1313_each_form_of_a_permission_to_publish_counts() {
    for (may, is_one) in
        [("\"msgfs.*.*\"", true), ("\"*.team.anna\"", true), ("\"msgfs.other.*\"", false)]
    {
        let server = Server::with(&users(may));
        admin(&server).make_stream(&json!({}));
        let one = host(&server, "host1", "one");
        let told = nats::check_link(&one.spec);
        assert_eq!(told.is_empty(), is_one, "{may}: {told:?}");
    }
}

#[test]
fn what_the_server_refuses_is_not_told_while_it_is_away() {
    let mut server = Server::with(&users("\"msgfs.team.a\""));
    admin(&server).make_stream(&json!({}));
    let mut one = host(&server, "host1", "one");
    one.start();
    one.connected();
    one.write("c", &record("c", 0));
    one.tells("may not publish as c");
    server.kill();
    soon("it is not connected", || matches!(one.health().state, LinkState::Waiting { .. }));
    soon("only that is told", || !one.told("may not publish"));
    assert_eq!(one.health().waiting, 1);
    server.run();
    one.tells("may not publish as c");
}

#[test]
fn wrong_credentials_and_new_ones() {
    let server = Server::with(&users("\"msgfs.team.a\""));
    admin(&server).make_stream(&json!({}));
    let mut one = host(&server, "host1", "wrong");
    let other = host(&server, "host2", "two");
    one.start();
    one.tells("authorization violation");
    assert!(nats::check_link(&one.spec)[0].contains("user and password_file"));
    one.write("a", &record("a", 0));
    let file = one.root.path().join("password");
    // The link does not use a password file that others can read.
    fs::write(&file, "one").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    one.tells("others can read it");
    secret(&file, "one");
    let mut two = other;
    two.start();
    two.has("a", &record("a", 0));
    one.connected();
    // No message and no saved state holds a password.
    let kept = fs::read_to_string(one.kept().join("standing.json")).unwrap();
    assert!(!kept.contains("wrong"), "{kept}");
    // The link also reports an inbox that the server does not permit.
    let mut lost = host(&server, "host1", "one");
    lost.spec.settings.inbox = None;
    lost.start();
    lost.tells("ermissions Violation for Subscription");
    let mut url = spec("nats://me:hunter2@127.0.0.1:4222");
    assert!(!nats::check_link(&url)[0].contains("hunter2"));
    url.settings.url = vec!["http://127.0.0.1".into()];
    assert!(nats::check_link(&url)[0].contains("nats://"));
    url.settings.space = "a.b".into();
    assert!(nats::check_link(&url)[0].starts_with("space"));
}

#[test]
fn a_server_that_is_too_old() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let info =
                r#"{"server_id":"x","version":"2.10.26","headers":true,"max_payload":1048576}"#;
            write!(stream, "INFO {info}\r\n").unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|n| n > 0) && !line.starts_with("PING") {
                line.clear();
            }
            let _ = stream.write_all(b"PONG\r\n");
        }
    });
    let mut a = Machine::new(&format!("nats://127.0.0.1:{port}"));
    a.start();
    a.tells("2.10.26, and 2.11 or newer is needed");
    assert!(nats::check_link(&a.spec)[0].contains("2.11"));
}

#[test]
fn a_stream_that_cannot_be_used() {
    let server = Server::start();
    let mut raw = server.raw();
    raw.make_stream(&json!({ "allow_direct": false }));
    let mut a = Machine::of(&server);
    a.tells("allow_direct is false");
    raw.admin("STREAM.DELETE.MSGFS_team", &json!({}));
    a.connected();
    // Links make a stream that nobody can purge.
    let config = raw.admin("STREAM.INFO.MSGFS_team", &json!({}))["config"].clone();
    assert_eq!((&config["deny_purge"], &config["max_consumers"]), (&json!(true), &json!(10_000)));
    // A stream without atomic batches is only slower. A running link would make its own stream meanwhile.
    a.stop();
    raw.admin("STREAM.DELETE.MSGFS_team", &json!({}));
    raw.make_stream(&json!({ "allow_atomic": false }));
    a.start();
    a.write("a", &records("a", 0..200));
    let b = Machine::of(&server);
    b.has("a", &records("a", 0..200));
    assert_eq!(raw.messages(), 200);
}

/// A stream that drops or changes lines by itself is used neither at the first connection nor after an update.
#[test]
fn a_stream_that_drops_or_changes_lines() {
    let server = Server::start();
    let mut raw = server.raw();
    raw.admin("STREAM.CREATE.other", &json!({ "name": "other", "subjects": ["other.*"] }));
    let lossy = [
        ("max_age", json!({ "max_age": 600_000_000_000_u64 })),
        ("max_msgs ", json!({ "max_msgs": 2, "discard": "old" })),
        ("max_bytes", json!({ "max_bytes": 1_000_000, "discard": "old" })),
        ("max_msgs_per_subject", json!({ "max_msgs_per_subject": 2, "discard": "old" })),
        // The server removes the oldest message of the subject also with this policy.
        ("max_msgs_per_subject", json!({ "max_msgs_per_subject": 2, "discard": "new" })),
        (
            "subject_transform",
            json!({ "subject_transform": { "src": "msgfs.team.a", "dest": "msgfs.team.b" } }),
        ),
        ("sources", json!({ "sources": [{ "name": "other" }] })),
    ];
    for (member, change) in &lossy {
        raw.make_stream(change);
        let mut a = Machine::of(&server);
        a.write("a", &records("a", 0..5));
        a.tells(&format!("cannot be used: its {member}"));
        a.stop();
        assert_eq!(raw.messages(), 0, "{change}");
        raw.admin("STREAM.DELETE.MSGFS_team", &json!({}));
    }
    // A limit that refuses new messages drops none, and a stream may send copies elsewhere.
    let fine = json!({
        "max_msgs": 1000, "max_bytes": 10_000_000, "max_msgs_per_subject": 1000, "discard_new_per_subject": true,
        "republish": { "src": "msgfs.team.*", "dest": "copies.{{wildcard(1)}}" },
    });
    raw.make_stream(&fine);
    let a = Machine::of(&server);
    a.write("a", &records("a", 0..5));
    a.has_published("a");
    // An admin changes the stream while the link runs.
    let mut config = raw.admin("STREAM.INFO.MSGFS_team", &json!({}))["config"].clone();
    config["max_age"] = json!(600_000_000_000_u64);
    raw.admin("STREAM.UPDATE.MSGFS_team", &config);
    a.tells("cannot be used: its max_age");
    config["max_age"] = json!(0);
    raw.admin("STREAM.UPDATE.MSGFS_team", &config);
    a.connected();
}

#[test]
fn tls_with_an_authority_of_ones_own() {
    let dir = tempfile::tempdir().unwrap();
    keys::certificates(dir.path());
    let at = dir.path().display();
    let server = Server::with(&format!(
        "tls {{ cert_file: \"{at}/server.pem\", key_file: \"{at}/server.key\" }}"
    ));
    let mut a = Machine::new(&format!("tls://127.0.0.1:{}", server.port));
    a.start();
    a.tells("name the file with its certificate by ca");
    a.stop();
    a.spec.ca = Some(dir.path().join("ca.pem"));
    a.start();
    let mut b = Machine::new(&server.url());
    b.spec.ca = a.spec.ca.clone();
    b.start();
    a.write("a", &records("a", 0..3));
    b.has("a", &records("a", 0..3));
}

#[test]
fn two_accounts_keep_writers_apart() {
    let [root, one, two] = [1, 2, 3].map(Keys::user);
    let services = [
        ("STREAM.INFO.MSGFS_team", ""),
        ("DIRECT.GET.MSGFS_team", "response_type: stream, "),
        ("DIRECT.GET.MSGFS_team.>", ""),
        ("STREAM.MSG.GET.MSGFS_team", ""),
        ("CONSUMER.CREATE.MSGFS_team.*", ""),
        ("CONSUMER.INFO.MSGFS_team.*", ""),
        ("CONSUMER.DELETE.MSGFS_team.*", ""),
        ("CONSUMER.MSG.NEXT.MSGFS_team.*", "response_type: stream, "),
    ];
    let exports = services
        .map(|(api, more)| format!("{{service: \"$JS.API.{api}\", {more}accounts: [HOSTS]}}\n"));
    let exports = exports.concat();
    let imports = services.map(|(api, _)| {
        let from = format!("{{account: HUB, subject: \"$JS.API.{api}\"}}");
        format!("{{service: {from}, to: \"JS.team.{api}\"}}\n")
    });
    let imports = imports.concat();
    let user = |key: &Keys, n: u32, writers: &str| {
        format!(
            "{{nkey: {}, permissions: {{publish: {{allow: [{writers}, \"JS.team.>\", \
             \"$SYS.REQ.USER.INFO\"]}}, subscribe: {{allow: [\"_INBOX_host{n}.>\"]}}}}}}\n",
            key.public
        )
    };
    let settings = format!(
        "accounts {{ HUB: {{ jetstream: enabled, users: [ {{nkey: {}}} ], exports: [\n{{service: \
         \"msgfs.team.*\", accounts: [HOSTS]}}\n{exports}] }}\nHOSTS: {{ users: [\n{}{}], imports: [\n\
         {{service: {{account: HUB, subject: \"msgfs.team.*\"}}}}\n{imports}] }} }}",
        root.public,
        user(&one, 1, "\"msgfs.team.a\""),
        user(&two, 2, "\"msgfs.team.b\", \"msgfs.team.c%2Ed\""),
    );
    let server = Server::with(&settings);
    let machine = |key: &Keys, n: u32| {
        let mut machine = Machine::new(&server.url());
        let file = machine.root.path().join("seed");
        secret(&file, &format!("{}\n", key.seed));
        machine.spec.settings.creds = Some(file);
        machine.spec.settings.api = "JS.team".into();
        machine.spec.settings.inbox = Some(format!("_INBOX_host{n}"));
        machine
    };
    let (mut a, mut b) = (machine(&one, 1), machine(&two, 2));
    a.start();
    a.tells("msgfs link create");
    let mut by_admin = spec(&server.url());
    let file = a.root.path().join("admin");
    secret(&file, &root.seed);
    by_admin.settings.creds = Some(file);
    nats::create_streams(&by_admin).unwrap();
    b.start();
    assert_eq!(nats::check_link(&a.spec), [""; 0]);
    // Many lines at once go as batches.
    a.write("a", &records("a", 0..1200));
    b.write("b", &records("b", 0..30));
    b.write("c.d", &record("c.d", 0));
    b.has("a", &records("a", 0..1200));
    a.has("b", &records("b", 0..30));
    a.has("c.d", &record("c.d", 0));
    a.write("b", &record("b", 30));
    a.tells("may not publish as b");
    // The link restores logs, for which it asks for subjects out of order.
    b.stop();
    fs::remove_file(b.log("a")).unwrap();
    b.start();
    b.has("a", &records("a", 0..1200));
    a.stop();
    fs::remove_dir_all(a.kept()).unwrap();
    a.start();
    a.write("a", &record("a", 1200));
    b.has("a", &records("a", 0..1201));
}

#[test]
fn credentials_of_an_operator_that_expire_and_are_renewed() {
    let (operator, account, user) = (Keys::new(b'O', 1), Keys::new(b'A', 2), Keys::user(3));
    let by_operator = operator.jwt(&operator, "operator", None, &json!({}));
    let limits = json!({ "limits": {
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
        "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1
    } });
    let by_account = operator.jwt(&account, "account", None, &limits);
    let system = Keys::new(b'A', 4);
    let mut small = limits.clone();
    small["limits"]["mem_storage"] = json!(0);
    small["limits"]["disk_storage"] = json!(0);
    let by_system = operator.jwt(&system, "account", None, &small);
    let server = Server::with(&format!(
        "operator: {by_operator}\nresolver: MEMORY\nsystem_account: {}\nresolver_preload: {{ {}: \
         {by_account}, {}: {by_system} }}",
        system.public, account.public, system.public
    ));
    let creds = |seconds: i64| {
        let until = keys::now() + seconds;
        let limits = json!({ "subs": -1, "data": -1, "payload": -1 });
        let jwt = account.jwt(&user, "user", Some(until), &limits);
        format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed
        )
    };
    let mut a = Machine::new(&server.url());
    let file = a.root.path().join("a.creds");
    secret(&file, &creds(4));
    a.spec.settings.creds = Some(file.clone());
    a.start();
    a.write("a", &record("a", 0));
    a.connected();
    soon("they expire", || !matches!(a.health().state, msgfs::link::LinkState::Connected { .. }));
    a.tells("expired");
    a.write("a", &record("a", 1));
    secret(&file, &creds(3600));
    a.connected();
    let mut b = Machine::new(&server.url());
    b.spec.settings.creds = Some(file);
    b.start();
    b.has("a", &records("a", 0..2));
    secret(b.spec.settings.creds.as_ref().unwrap(), "nonsense");
    assert!(nats::check_link(&b.spec)[0].contains("neither a file of credentials"));
}

#[test]
fn nothing_goes_in_the_clear_to_a_public_address() {
    // No server is there, so the login cannot have been sent before TLS.
    let mut public = spec("nats://192.0.2.1:4222");
    public.settings.url.push(format!("nats://127.0.0.1:{}", crate::ports::free_port()));
    assert_eq!(nats::check_link(&public).len(), 1);
    let server = Server::start();
    public.settings.url = vec![server.url(), "nats://192.0.2.1:4222".into()];
    let told = nats::check_link(&public);
    assert_eq!(told.len(), 1, "{told:?}");
    public.insecure = true;
    public.settings.url.truncate(1);
    nats::create_streams(&public).unwrap();
    assert_eq!(nats::check_link(&public), [""; 0]);
}
