//! The real `agentazall` program.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::agz::Tree;
use crate::common::proc::Running;
use crate::common::{Bed, run_for, wait_for};
use crate::ports::free_port;

/// The version that the descriptions of the formats come from.
const VERSION: &str = "1.0.24";

/// Returns the path of a program of the virtual environment.
#[track_caller]
pub(crate) fn program(name: &str) -> PathBuf {
    let venv = std::env::var_os("MSGFS_TEST_VENV").map_or_else(
        || PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("ci-venv"),
        PathBuf::from,
    );
    let path = venv.join("bin").join(name);
    assert!(
        venv.join("bin/agentazall").exists(),
        "the tests need the real AgentAZAll; install it with:\n\n    \
         python3 -m venv {0} && {0}/bin/pip install 'agentazall[ftp]=={VERSION}'\n\n\
         or set MSGFS_TEST_VENV to a virtual environment that has it",
        venv.display()
    );
    path
}

/// Returns the configuration of an agent whose transports reach nobody.
pub(crate) fn nowhere() -> Value {
    json!({"transport": "ftp", "ftp": {"host": "127.0.0.1", "port": 9}, "log_file": ""})
}

/// Returns a command of the program for the agent of a project.
#[track_caller]
pub(crate) fn command(bed: &Bed, tree: &Tree, args: &[&str]) -> Command {
    let mut c = bed.command(program("agentazall"));
    c.env("AGENTAZALL_CONFIG", tree.root.join("config.json")).args(args);
    c
}

/// Runs a command of the program, which must succeed, and returns its output.
#[track_caller]
pub(crate) fn ok(bed: &Bed, tree: &Tree, args: &[&str]) -> String {
    let out = run_for(command(bed, tree, args), Some(b""), Duration::from_secs(40));
    assert!(out.ok(), "agentazall {args:?}: {out:?}");
    out.stdout
}

/// Returns the id that `send` or `reply` printed.
#[track_caller]
pub(crate) fn id(printed: &str) -> String {
    printed
        .lines()
        .find_map(|l| l.trim().strip_prefix("ID: "))
        .unwrap_or_else(|| panic!("no id in {printed}"))
        .to_owned()
}

/// Returns the verdicts of the program's own functions on message files, one object for each.
#[track_caller]
pub(crate) fn verify(bed: &Bed, files: &[PathBuf]) -> Vec<Value> {
    let mut c = bed.command(program("python3"));
    c.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/verify_agentazall.py")).args(files);
    let out = run_for(c, None, Duration::from_secs(40));
    assert!(out.ok(), "{out:?}");
    let all: Vec<Value> =
        out.stdout.lines().map(|l| serde_json::from_str(l).expect("JSON line")).collect();
    assert_eq!(all.len(), files.len());
    all
}

/// A server of `AgentAZAll` on the loopback, which ends when this is dropped.
pub(crate) struct Server {
    _running: Running,
    /// The port on which it listens.
    pub(crate) port: u16,
}

/// Starts a server and waits until it listens. A server that ends before, for example because another program took its
/// port, fails the test with its own words.
#[track_caller]
fn serve(command: Command, port: u16) -> Server {
    let mut running = Running::start(command, None).expect("start");
    wait_for(Duration::from_secs(60), "the server listens", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok() || !running.running()
    });
    let is_there = running.running();
    assert!(is_there, "the server ended: {:?}", running.finish(Duration::from_secs(1)));
    Server { _running: running, port }
}

/// Starts the FTP server over the folder `ftp` of the bed.
#[track_caller]
pub(crate) fn ftp_server(bed: &Bed) -> Server {
    let port = free_port();
    let config = bed.path("ftp-server.json");
    let text = json!({"ftp": {"host": "127.0.0.1", "port": port, "root": bed.path("ftp"),
        "user": "agentoftp", "password": "agentoftp_pass"}});
    std::fs::write(&config, text.to_string()).expect("config");
    let mut c = bed.command(program("python3"));
    c.env("AGENTAZALL_CONFIG", &config).args(["-m", "agentazall.ftp_server", "--port"]);
    c.arg(port.to_string());
    serve(c, port)
}

/// Starts an FTP server with TLS, also for data, over the folder `ftp` of the bed, for the user `team`.
#[track_caller]
pub(crate) fn ftps_server(bed: &Bed, cert: &Path, key: &Path) -> Server {
    let port = free_port();
    std::fs::create_dir_all(bed.path("ftp")).expect("folder");
    let mut c = bed.command(program("python3"));
    c.arg("-c").arg(
        "import sys\n\
         try: from pyftpdlib.handlers import TLS_FTPHandler as H\n\
         except ImportError: sys.exit('FTP with TLS needs pyOpenSSL in the virtual environment: pip install pyOpenSSL')\n\
         from pyftpdlib.authorizers import DummyAuthorizer as A\n\
         from pyftpdlib.servers import FTPServer\n\
         a=A(); a.add_user('team',sys.argv[5],sys.argv[2],perm='elradfmwMT')\n\
         H.authorizer=a; H.certfile=sys.argv[3]; H.keyfile=sys.argv[4]\n\
         H.tls_control_required=H.tls_data_required=True\n\
         FTPServer(('127.0.0.1',int(sys.argv[1])),H).serve_forever()",
    );
    c.arg(port.to_string())
        .arg(bed.path("ftp"))
        .arg(cert)
        .arg(key)
        .arg(crate::postoffice::PASSWORD);
    serve(c, port)
}

/// Starts the relay, with its accounts in the folder `relay` of the bed.
#[track_caller]
pub(crate) fn relay(bed: &Bed) -> Server {
    let port = free_port();
    let mut c = bed.command(program("python3"));
    c.args(["-m", "agentazall.agenttalk_server", "--host", "127.0.0.1", "--create-accounts", "0"]);
    c.arg("--port").arg(port.to_string()).arg("--data-dir").arg(bed.path("relay"));
    serve(c, port)
}

/// Registers a name at the relay, and returns the part of a configuration that uses it.
#[track_caller]
pub(crate) fn register(bed: &Bed, relay: &Server, name: &str) -> Value {
    let url = format!("http://127.0.0.1:{}", relay.port);
    let mut c = bed.command(program("python3"));
    c.arg("-c").arg(
        "import json,sys,urllib.request as u\n\
         r=u.Request(sys.argv[1]+'/register',json.dumps({'agent_name':sys.argv[2]}).encode(),{'Content-Type':'application/json'})\n\
         print(json.load(u.urlopen(r))['api_token'])",
    );
    c.args([&url, name]);
    let out = run_for(c, None, Duration::from_secs(20));
    assert!(out.ok(), "{out:?}");
    json!({"transport": "agenttalk", "log_file": "", "agenttalk": {"server": url, "token": out.stdout.trim()}})
}

/// The e-mail server of `AgentAZAll`, with its accounts in the folder `mail` of the bed.
pub(crate) struct MailServer {
    _running: Server,
    pub(crate) smtp: u16,
    pub(crate) imap: u16,
    pub(crate) pop3: u16,
}

/// Starts the e-mail server with accounts of these addresses and one password.
#[track_caller]
pub(crate) fn mail_server(bed: &Bed, accounts: &[&str], password: &str) -> MailServer {
    let all: serde_json::Map<String, Value> =
        accounts.iter().map(|a| ((*a).to_owned(), json!({"password": password}))).collect();
    std::fs::create_dir_all(bed.path("mail")).expect("folder");
    std::fs::write(bed.path("mail/accounts.json"), json!(all).to_string()).expect("accounts");
    mail_server_again(bed)
}

/// Starts the e-mail server with its old data on other ports: the ports of a killed server may be busy for a while. The
/// server takes ports of its own choice in place of busy ones, and writes into a file which ones it has.
#[track_caller]
pub(crate) fn mail_server_again(bed: &Bed) -> MailServer {
    let ports = [(); 3].map(|()| free_port());
    let info = bed.path("mail/server_info.json");
    let _ = std::fs::remove_file(&info);
    let mut c = bed.command(program("python3"));
    c.args(["-m", "agentazall.email_server", "--host", "127.0.0.1", "--create-accounts", "0"]);
    for (name, port) in ["--smtp-port", "--imap-port", "--pop3-port"].iter().zip(ports) {
        c.arg(name).arg(port.to_string());
    }
    c.arg("--data-dir").arg(bed.path("mail"));
    let mut running = Running::start(c, None).expect("start");
    let read_info = || serde_json::from_slice::<Value>(&std::fs::read(&info).ok()?).ok();
    wait_for(Duration::from_secs(60), "the server listens", || {
        read_info().is_some() || !running.running()
    });
    let Some(listens) = read_info() else {
        panic!("the server ended: {:?}", running.finish(Duration::from_secs(1)));
    };
    let port = |name: &str| {
        listens[name].as_u64().and_then(|port| u16::try_from(port).ok()).expect("a port")
    };
    let (smtp, imap, pop3) = (port("smtp_port"), port("imap_port"), port("pop3_port"));
    let running = Server { _running: running, port: imap };
    MailServer { _running: running, smtp, imap, pop3 }
}

/// Runs a Python program of the virtual environment, which must succeed, and returns its output.
#[track_caller]
pub(crate) fn python(bed: &Bed, code: &str, args: &[&str]) -> String {
    let mut c = bed.command(program("python3"));
    c.arg("-c").arg(code).args(args);
    let out = run_for(c, None, Duration::from_secs(40));
    assert!(out.ok(), "{out:?}");
    out.stdout
}
