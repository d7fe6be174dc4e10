//! Tests with invalid, foreign and expired certificates, and with servers that remove TLS.

use std::process::Command;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::server::{HostileProtocol, HostileServer, ServerAction};
use super::*;

/// An authority for a test, and the certificates that it signed.
struct TestAuthority {
    dir: tempfile::TempDir,
}

impl TestAuthority {
    fn new() -> Self {
        let authority = Self { dir: tempfile::tempdir().unwrap() };
        authority.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -subj /CN=us -days 30",
        );
        for (name, alt, days) in [
            ("good", "IP:127.0.0.1,DNS:localhost", "-days 30"),
            ("other", "IP:10.9.8.7,DNS:example.org", "-days 30"),
            ("old", "IP:127.0.0.1", "-not_before 20200101000000Z -not_after 20200201000000Z"),
        ] {
            let ext = format!("subjectAltName={alt}\nbasicConstraints=CA:FALSE\n");
            std::fs::write(authority.dir.path().join("ext"), ext).unwrap();
            authority.openssl(&format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"
            ));
            if name == "old" {
                // Not every openssl can set the beginning of a certificate, but all can make one that expired.
                let days = "-days -1";
                authority.openssl(&format!("x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile ext -out {name}.pem {days}"));
                continue;
            }
            authority.openssl(&format!("x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile ext -out {name}.pem {days}"));
        }
        authority
    }

    fn openssl(&self, args: &str) {
        let out = Command::new("openssl")
            .args(args.split(' '))
            .current_dir(self.dir.path())
            .output()
            .unwrap();
        assert!(out.status.success(), "{args}: {}", String::from_utf8_lossy(&out.stderr));
    }

    fn file_path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn server_config(&self, name: &str) -> Arc<ServerConfig> {
        let certs: Vec<_> = CertificateDer::pem_file_iter(self.file_path(&format!("{name}.pem")))
            .unwrap()
            .flatten()
            .collect();
        let key = PrivateKeyDer::from_pem_file(self.file_path(&format!("{name}.key"))).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        Arc::new(config.with_no_client_auth().with_single_cert(certs, key).unwrap())
    }
}

/// All ways in which a link speaks TLS.
const WAYS: [&str; 7] = ["amp", "relay", "ftp", "smtp", "starttls", "imap", "pop"];

/// Returns a server that speaks TLS in one of the ways, and a machine whose link leads to it.
fn start_pair(way: &'static str, config: Arc<ServerConfig>) -> (HostileServer, LinkTestMachine) {
    let manner =
        if matches!(way, "amp" | "relay") { HostileProtocol::Http } else { HostileProtocol::Lines };
    let at_once = !matches!(way, "ftp" | "starttls");
    let plan = move |line: &str| {
        let say = |text: &str| ServerAction::Say(text.as_bytes().to_vec());
        let verb = line.split([' ', '\r']).next().unwrap_or_default();
        let imap = line.split([' ', '\r']).nth(1).unwrap_or_default();
        match (way, verb) {
            ("amp" | "relay", _) => {
                let body = "{\"messages\":[],\"remaining\":0}";
                say(&format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
            }
            ("ftp", "AUTH") => ServerAction::Tls(b"234 go\r\n".to_vec()),
            ("ftp", "") => say("220 hi\r\n"),
            ("ftp", "USER") => say("331 and?\r\n"),
            ("ftp", "PASS") => say("230 in\r\n"),
            ("ftp", "CWD") => say("550 none\r\n"),
            ("ftp", _) => say("200 ok\r\n"),
            ("starttls", "STARTTLS") => ServerAction::Tls(b"220 go\r\n".to_vec()),
            ("smtp" | "starttls", "") => say("220 hi\r\n"),
            ("smtp" | "starttls", "EHLO") => say("250-x\r\n250-STARTTLS\r\n250 AUTH PLAIN\r\n"),
            ("smtp" | "starttls", "DATA") => say("354 go\r\n"),
            ("smtp" | "starttls", "AUTH") => say("235 in\r\n"),
            ("smtp" | "starttls", "MAIL" | "RCPT" | ".") => say("250 ok\r\n"),
            ("smtp" | "starttls", _) => say(""),
            ("imap", "") => say("* OK hi\r\n"),
            ("imap", tag) if imap == "UID" => say(&format!("* SEARCH\r\n{tag} OK\r\n")),
            ("imap", tag) => say(&format!("{tag} OK\r\n")),
            ("pop", "UIDL") => say("+OK\r\n.\r\n"),
            _ => say("+OK\r\n"),
        }
    };
    let server = HostileServer::start_with(manner, Arc::new(plan), Some(config), at_once);
    let port = server.port;
    let machine = match way {
        "amp" => LinkTestMachine::amp(&format!("https://127.0.0.1:{port}")),
        "relay" => LinkTestMachine::relay(&format!("https://127.0.0.1:{port}")),
        "ftp" => LinkTestMachine::ftp(port, &json!({"ftp_ssl": true})),
        "smtp" => LinkTestMachine::mail(port, &json!({"smtp_ssl": true})),
        "starttls" => LinkTestMachine::mail(port, &json!({"smtp_starttls": true})),
        "imap" => LinkTestMachine::mail(port, &json!({"imap_ssl": true})),
        _ => LinkTestMachine::mail(port, &json!({"use_pop3": true, "pop3_ssl": true})),
    };
    (server, machine)
}

fn run_exchange(way: &str, machine: &LinkTestMachine) -> ExchangeOutcome {
    match way {
        "smtp" | "starttls" => machine.send(way),
        _ => machine.fetch(way).outcome,
    }
}

/// Every kind of link works with the certificate of a private authority. Without it nothing is sent to the server, and
/// the error has a remedy. The same holds for a wrong name, an expired certificate and an authority's own certificate.
#[test]
fn certificates_are_believed_or_told() {
    let authority = TestAuthority::new();
    for way in WAYS {
        let (server, mut machine) = start_pair(way, authority.server_config("good"));
        let outcome = run_exchange(way, &machine);
        let ExchangeOutcome::Away { why, .. } = &outcome else { panic!("{way}: {outcome:?}") };
        assert!(why.contains("UnknownIssuer") && why.contains("ca = "), "{way}: {why}");
        assert!(!server.has_heard(SECRET), "{way}");
        assert!(machine.check(way).iter().any(|line| line.contains("ca = ")), "{way}");
        machine.settings.ca = Some(authority.file_path("ca.pem"));
        assert_eq!(run_exchange(way, &machine), ExchangeOutcome::Done, "{way}");
        machine.settings.ca = Some(authority.file_path("ca.key"));
        let why = match open_engine(&machine.settings) {
            Err(why) => why,
            Ok(_) => run_exchange(way, &machine).reason().unwrap().to_owned(),
        };
        assert!(why.contains("holds no certificate"), "{way}: {why}");
        for (cert, help) in
            [("other", "another name"), ("old", "new certificate"), ("ca", "CA:FALSE")]
        {
            let (server, mut machine) = start_pair(way, authority.server_config(cert));
            machine.settings.ca = Some(authority.file_path("ca.pem"));
            let outcome = run_exchange(way, &machine);
            let ExchangeOutcome::Away { why, .. } = &outcome else {
                panic!("{way}, {cert}: {outcome:?}")
            };
            assert!(why.contains(help) && !server.has_heard(SECRET), "{way}, {cert}: {why}");
        }
    }
}

/// An attacker in between cannot get the password in the clear by removing TLS.
#[test]
fn nobody_takes_tls_away() {
    for (way, no) in [
        ("ftp", "500 no TLS here\r\n"),
        ("starttls", "502 no TLS here\r\n"),
        ("ftp", "234 go\r\n220 injected\r\n"),
        ("starttls", "220 go\r\n250 injected\r\n"),
    ] {
        let plan = move |line: &str| match line.split([' ', '\r']).next().unwrap_or_default() {
            "" => ServerAction::Say(b"220 hi\r\n".to_vec()),
            "EHLO" => ServerAction::Say(b"250 AUTH PLAIN\r\n".to_vec()),
            "AUTH" if line.contains("PLAIN") => ServerAction::Say(b"235 in\r\n".to_vec()),
            "AUTH" | "STARTTLS" => ServerAction::Say(no.as_bytes().to_vec()),
            _ => ServerAction::Say(b"230 in\r\n".to_vec()),
        };
        let server = HostileServer::start(HostileProtocol::Lines, Arc::new(plan));
        let machine = match way {
            "ftp" => LinkTestMachine::ftp(server.port, &json!({"ftp_ssl": true})),
            _ => LinkTestMachine::mail(server.port, &json!({"smtp_starttls": true})),
        };
        let outcome = machine.send(way);
        assert!(matches!(outcome, ExchangeOutcome::Away { .. }), "{way}: {outcome:?}");
        let heard = String::from_utf8_lossy(&server.heard.lock().unwrap()).into_owned();
        assert!(!heard.contains("USER") && !heard.contains("AUTH PLAIN"), "{way}: {heard}");
    }
    // An answer without TLS does not count for a link with TLS either.
    for way in WAYS.into_iter().filter(|way| !matches!(*way, "ftp" | "starttls")) {
        let server = HostileServer::start(
            HostileProtocol::Http,
            Arc::new(|_| ServerAction::Close(b"HTTP/1.1 200 OK\r\n\r\n{}".to_vec())),
        );
        let url = format!("https://127.0.0.1:{}", server.port);
        let machine = match way {
            "amp" => LinkTestMachine::amp(&url),
            "relay" => LinkTestMachine::relay(&url),
            "smtp" => LinkTestMachine::mail(server.port, &json!({"smtp_ssl": true})),
            "imap" => LinkTestMachine::mail(server.port, &json!({"imap_ssl": true})),
            _ => LinkTestMachine::mail(server.port, &json!({"use_pop3": true, "pop3_ssl": true})),
        };
        assert!(!is_taken(&run_exchange(way, &machine)), "{way}");
        assert!(!server.has_heard(SECRET), "{way}");
    }
}
