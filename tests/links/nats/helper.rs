//! A link in a process of its own, to be killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use msgfs::link::{Board, nats};

use super::machine::spec;

const ROOT: &str = "MSGFS_LINK_HELPER";
const URL: &str = "MSGFS_LINK_URL";

/// Not a test: what the processes run.
#[test]
fn helper_process() {
    let (Some(root), Ok(url)) = (std::env::var_os(ROOT), std::env::var(URL)) else { return };
    let root = Path::new(&root);
    let state = root.join("state");
    let board = Arc::new(Board::new("nats", &nats::state_folder(&state, "nats"), "nats".into()));
    let link = nats::start(&spec(&url), &root.join("samp"), &state, board).unwrap();
    loop {
        link.changed();
        std::thread::sleep(std::time::Duration::from_millis(3));
        // Whoever started it has gone.
        if rustix_parent() == 1 {
            return;
        }
    }
}

fn rustix_parent() -> u32 {
    std::os::unix::process::parent_id()
}

/// Such a process, killed with this.
pub(crate) struct Helper(Child);

impl Helper {
    pub(crate) fn start(root: &Path, url: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "nats::helper::helper_process", "--nocapture"]);
        command.env(ROOT, root).env(URL, url).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
