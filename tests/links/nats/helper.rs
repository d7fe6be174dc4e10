//! A link in a process of its own, so that a test can kill it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use msgfs::link::{HealthBoard, nats};

use super::machine::spec;

const ROOT: &str = "MSGFS_LINK_HELPER";
const URL: &str = "MSGFS_LINK_URL";

/// Runs the link in a helper process. It is not a test.
#[test]
fn helper_process() {
    let (Some(root), Ok(url)) = (std::env::var_os(ROOT), std::env::var(URL)) else { return };
    let root = Path::new(&root);
    let state = msgfs::link::shared_links_folder(&root.join("state")).join("nats");
    let board = Arc::new(HealthBoard::new("nats", &state, "nats"));
    let link = nats::start(&spec(&url), &root.join("samp"), &state, board).unwrap();
    loop {
        link.notify_all_changed();
        std::thread::sleep(std::time::Duration::from_millis(3));
        // The test that started this process has ended.
        if std::os::unix::process::parent_id() == 1 {
            return;
        }
    }
}

/// A helper process, which is killed when this is dropped.
pub(crate) struct Helper(Child);

impl Helper {
    pub(crate) fn start(root: &Path, url: &str) -> Self {
        Self::by(Command::new(std::env::current_exe().unwrap()), root, url)
    }

    /// Starts one whose files cannot grow beyond some blocks until it gets room.
    pub(crate) fn without_room(root: &Path, url: &str, blocks: u32) -> Self {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("trap '' XFSZ; ulimit -S -f {blocks}; exec \"$0\" \"$@\""));
        command.arg(std::env::current_exe().unwrap());
        Self::by(command, root, url)
    }

    pub(crate) fn give_room(&self) {
        let pid = self.0.id().to_string();
        let done = Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited"]).status();
        assert!(done.unwrap().success());
    }

    fn by(mut command: Command, root: &Path, url: &str) -> Self {
        command.args(["--exact", "nats::helper::helper_process", "--nocapture"]);
        command.env(ROOT, root).env(URL, url).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Returns true if it still runs.
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
