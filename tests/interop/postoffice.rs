//! A private Dovecot and a private Postfix in a folder, on ports of the loopback, with TLS of a private authority.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::authority::certify;
use crate::common::proc::Running;
use crate::common::{need_root, run, wait_for};
use crate::ports::free_port;

/// The password of every account.
pub(crate) const PASSWORD: &str = "s3cret-of-the-post-office";
/// The domain of the accounts.
pub(crate) const DOMAIN: &str = "far.example";

/// The servers, which end when this is dropped.
pub(crate) struct PostOffice {
    _running: [Running; 2],
    dir: tempfile::TempDir,
    /// The certificate of the authority.
    pub(crate) ca: PathBuf,
    /// SMTP with STARTTLS; `smtps` has TLS from the first byte.
    pub(crate) smtp: u16,
    pub(crate) smtps: u16,
    pub(crate) imaps: u16,
    pub(crate) pop3s: u16,
}

/// Returns the number of a system user.
#[track_caller]
fn user(name: &str) -> u32 {
    let mut c = Command::new("id");
    c.args(["-u", name]);
    let out = run(c, None);
    assert!(
        out.ok()
            && Path::new("/usr/sbin/dovecot").exists()
            && Path::new("/usr/sbin/postfix").exists(),
        "this test needs Dovecot and Postfix; install them with:\n\n    DEBIAN_FRONTEND=noninteractive apt-get install \
         -y dovecot-imapd dovecot-pop3d postfix\n\n{out:?}"
    );
    out.stdout.trim().parse().unwrap()
}

impl PostOffice {
    /// Starts the servers with these accounts, named by the part of their addresses before the `@`.
    #[track_caller]
    pub(crate) fn open(people: &[&str]) -> Self {
        need_root();
        let (mail, postfix) = (user("mail"), user("postfix"));
        let dir = tempfile::Builder::new().prefix("msgfs-post-").tempdir().unwrap();
        let at = dir.path().to_owned();
        for (below, mode) in [
            ("", 0o755),
            ("dov", 0o755),
            ("etc", 0o755),
            ("queue", 0o755),
            ("data", 0o700),
            ("mail", 0o755),
        ] {
            fs::create_dir_all(at.join(below)).unwrap();
            fs::set_permissions(at.join(below), fs::Permissions::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::chown(at.join("mail"), Some(mail), Some(mail)).unwrap();
        std::os::unix::fs::chown(at.join("data"), Some(postfix), None).unwrap();
        let ca = certify(&at);
        let [smtp, smtps, imaps, pop3s, auth] = [(); 5].map(|()| free_port());
        let running = [
            self::postfix(&at, [smtp, smtps, auth], mail, people),
            dovecot(&at, [imaps, pop3s, auth], mail),
        ];
        for port in [smtp, smtps, imaps, pop3s] {
            wait_for(Duration::from_secs(30), "the post office opens", || {
                TcpStream::connect(("127.0.0.1", port)).is_ok()
            });
        }
        Self { _running: running, dir, ca, smtp, smtps, imaps, pop3s }
    }

    /// Returns the mails of an account in the folders of the servers.
    pub(crate) fn mails(&self, name: &str) -> Vec<PathBuf> {
        let mut all = Vec::new();
        for folder in ["new", "cur"] {
            let folder = self.dir.path().join(format!("mail/{name}@{DOMAIN}/{folder}"));
            all.extend(fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()));
        }
        all.sort();
        all
    }

    /// Returns the logs of the servers.
    pub(crate) fn log(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        read("dov.log") + &read("postfix.log")
    }
}

fn dovecot(at: &Path, [imaps, pop3s, auth]: [u16; 3], mail: u32) -> Running {
    let dir = at.display();
    let text = format!(
        "base_dir = {dir}/dov\nstate_dir = {dir}/dov\nlog_path = {dir}/dov.log\nprotocols = imap pop3\nlisten = 127.0.0.1\n\
         ssl = required\nssl_cert = <{dir}/cert.pem\nssl_key = <{dir}/key.pem\ndisable_plaintext_auth = yes\n\
         mail_location = maildir:{dir}/mail/%u\nfirst_valid_uid = 1\nmail_uid = {mail}\nmail_gid = {mail}\n\
         auth_mechanisms = plain login\nmail_max_userip_connections = 100\n\
         passdb {{\n driver = static\n args = password={PASSWORD}\n}}\n\
         userdb {{\n driver = static\n args = uid={mail} gid={mail} home={dir}/mail/%u\n}}\n\
         service imap-login {{\n inet_listener imap {{\n port = 0\n }}\n inet_listener imaps {{\n port = {imaps}\n ssl = yes\n }}\n}}\n\
         service pop3-login {{\n inet_listener pop3 {{\n port = 0\n }}\n inet_listener pop3s {{\n port = {pop3s}\n ssl = yes\n }}\n}}\n\
         service auth {{\n inet_listener {{\n address = 127.0.0.1\n port = {auth}\n }}\n}}\n"
    );
    fs::write(at.join("dovecot.conf"), text).unwrap();
    let mut c = Command::new("/usr/sbin/dovecot");
    c.arg("-F").arg("-c").arg(at.join("dovecot.conf"));
    Running::start(c, None).unwrap()
}

fn postfix(at: &Path, [smtp, smtps, auth]: [u16; 3], mail: u32, people: &[&str]) -> Running {
    let dir = at.display();
    let main = format!(
        "compatibility_level = 3.6\nqueue_directory = {dir}/queue\ndata_directory = {dir}/data\nmaillog_file = {dir}/postfix.log\n\
         maillog_file_prefixes = {dir}\nmail_owner = postfix\nsetgid_group = postdrop\nmyhostname = mail.{DOMAIN}\nmydestination =\n\
         inet_interfaces = 127.0.0.1\ninet_protocols = ipv4\nalias_maps =\nalias_database =\nvirtual_mailbox_domains = {DOMAIN}\n\
         virtual_mailbox_base = {dir}/mail\nvirtual_mailbox_maps = texthash:{dir}/etc/boxes\nvirtual_minimum_uid = 1\n\
         virtual_uid_maps = static:{mail}\nvirtual_gid_maps = static:{mail}\nsmtpd_tls_cert_file = {dir}/cert.pem\n\
         smtpd_tls_key_file = {dir}/key.pem\nsmtpd_tls_security_level = encrypt\nsmtpd_sasl_auth_enable = yes\n\
         smtpd_sasl_type = dovecot\nsmtpd_sasl_path = inet:127.0.0.1:{auth}\nsmtpd_tls_auth_only = yes\n\
         smtpd_recipient_restrictions = permit_sasl_authenticated, reject\nsmtpd_client_connection_rate_limit = 0\n\
         smtpd_client_connection_count_limit = 0\n"
    );
    let mut master = format!(
        "{smtp} inet n - n - - smtpd\n{smtps} inet n - n - - smtpd -o smtpd_tls_wrappermode=yes\n"
    );
    for (service, kind, wakeup, limit, program) in [
        ("pickup", "unix n", "60", "1", "pickup"),
        ("cleanup", "unix n", "-", "0", "cleanup"),
        ("qmgr", "unix n", "300", "1", "qmgr"),
        ("tlsmgr", "unix -", "1000?", "1", "tlsmgr"),
        ("rewrite", "unix -", "-", "-", "trivial-rewrite"),
        ("bounce", "unix -", "-", "0", "bounce"),
        ("defer", "unix -", "-", "0", "bounce"),
        ("trace", "unix -", "-", "0", "bounce"),
        ("verify", "unix -", "-", "1", "verify"),
        ("proxymap", "unix -", "-", "-", "proxymap"),
        ("smtp", "unix -", "-", "-", "smtp"),
        ("showq", "unix n", "-", "-", "showq"),
        ("error", "unix -", "-", "-", "error"),
        ("retry", "unix -", "-", "-", "error"),
        ("virtual", "unix -", "-", "-", "virtual"),
        ("anvil", "unix -", "-", "1", "anvil"),
        ("postlog", "unix-dgram n", "-", "1", "postlogd"),
    ] {
        let unprivileged = if program == "virtual" { "n" } else { "-" };
        let words = [service, kind, unprivileged, "n", wakeup, limit, program].join(" ");
        master = master + &words + "\n";
    }
    let boxes: Vec<String> =
        people.iter().map(|name| format!("{name}@{DOMAIN} {name}@{DOMAIN}/\n")).collect();
    let boxes = boxes.concat();
    for (name, text) in [("main.cf", main), ("master.cf", master), ("boxes", boxes)] {
        fs::write(at.join("etc").join(name), text).unwrap();
    }
    let mut check = Command::new("/usr/sbin/postfix");
    check.arg("-c").arg(at.join("etc")).arg("check");
    let out = run(check, None);
    assert!(out.ok(), "{out:?}");
    let mut c = Command::new("/usr/lib/postfix/sbin/master");
    c.arg("-c").arg(at.join("etc")).arg("-d");
    Running::start(c, None).unwrap()
}
