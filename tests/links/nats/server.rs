//! A `nats-server` for one test, ended with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use super::raw::Raw;
use crate::ports::free_port;
use crate::soon;

/// Returns the path of the program; fails if there is none, or if it is too old.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = std::env::var_os("NATS_SERVER").unwrap_or_else(|| "nats-server".into());
        let said = Command::new(&program).arg("--version").output();
        let said = said.unwrap_or_else(|e| panic!("{}: {e}; set NATS_SERVER", program.display()));
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        let version = text.trim().rsplit(['v', ' ']).next().unwrap_or_default();
        let mut numbers = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        assert!(version >= (2, 11), "{text}: 2.11 or newer is needed");
        program.into()
    })
}

pub(crate) struct Server {
    child: Option<Child>,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) port: u16,
}

impl Server {
    /// Starts a server without users.
    pub(crate) fn start() -> Self {
        Self::with("")
    }

    /// Starts a server with more settings.
    pub(crate) fn with(settings: &str) -> Self {
        let mut server = Self::stopped(settings);
        server.run();
        server
    }

    /// Makes a server that does not run yet.
    pub(crate) fn stopped(settings: &str) -> Self {
        let server = Self { child: None, dir: tempfile::tempdir().unwrap(), port: free_port() };
        server.configure(settings);
        server
    }

    /// Writes other settings, in which `@DIR@` stands for its folder. A running server takes them by `reload`.
    pub(crate) fn configure(&self, settings: &str) {
        let dir = self.dir.path().display().to_string();
        let port = self.port;
        let settings = settings.replace("@DIR@", &dir);
        let text = format!(
            "host: 127.0.0.1\nport: {port}\nserver_name: t\nlog_file: \"{dir}/log\"\n\
             jetstream {{ store_dir: \"{dir}/js\" }}\n{settings}\n"
        );
        fs::write(self.conf(), text).unwrap();
    }

    fn conf(&self) -> PathBuf {
        self.dir.path().join("nats.conf")
    }

    pub(crate) fn run(&mut self) {
        assert!(self.child.is_none());
        let mut command = Command::new(program());
        command.arg("-c").arg(self.conf()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        let port = self.port;
        soon("the server listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    /// Ends it with `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn again(&mut self) {
        self.kill();
        self.run();
    }

    /// Makes it read its settings again.
    pub(crate) fn reload(&self) {
        self.signal("-HUP");
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn raw(&self) -> Raw {
        Raw::connect(self.port, "{}")
    }

    /// Copies the data of the server, which must not run.
    pub(crate) fn copy(&self, to: &Path) {
        assert!(self.child.is_none());
        let from = self.dir.path().join("js");
        assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    }

    /// Restores a copy of the data of the server, which must not run.
    pub(crate) fn restore(&self, from: &Path) {
        assert!(self.child.is_none());
        let js = self.dir.path().join("js");
        fs::remove_dir_all(&js).unwrap();
        assert!(Command::new("cp").arg("-a").arg(from).arg(js).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
