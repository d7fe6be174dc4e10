//! One machine with one agent, whose links its own configuration describes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::agz::{self, Tree};
use crate::common::{Bed, Mount, samp, soon};
use crate::relay::files;

/// A machine.
pub(crate) struct Machine {
    pub(crate) bed: Bed,
    pub(crate) tree: Tree,
    /// The agent's address.
    pub(crate) address: &'static str,
}

impl Machine {
    /// Of an agent whose configuration has these members.
    pub(crate) fn new(address: &'static str, config: &Value) -> Self {
        let bed = Bed::new();
        let tree = Tree::with(&bed, address, config);
        agz::identity(&tree.base(), &samp::key(address.as_bytes()[0]));
        bed.config(&format!("{}links = true\n", tree.store()));
        let machine = Self { bed, tree, address };
        machine.permit(0o600);
        machine
    }

    /// Changes who may read the configuration.
    pub(crate) fn permit(&self, mode: u32) {
        let file = self.tree.root.join("config.json");
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn name(&self) -> &'static str {
        self.address.split('@').next().unwrap()
    }

    pub(crate) fn mount(&self) -> Mount {
        self.bed.mount(self.name())
    }

    /// Has a link forget how long it wanted to wait.
    #[track_caller]
    pub(crate) fn hurry(&self, link: &str) {
        // A mount that has just begun may not have opened it yet.
        soon("the link hears", || {
            self.bed.msgfs_out(&["--me", self.name(), "link", "retry", link]).ok()
        });
    }

    /// How many of my messages lie in a folder of the mailbox.
    pub(crate) fn count(&self, folder: &str) -> usize {
        self.tree.list(self.address, folder).len()
    }

    /// A file of this machine, to be attached.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.bed.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Nothing that this machine wrote holds a secret, but the mailbox's own configuration.
    #[track_caller]
    pub(crate) fn tells_no(&self, secret: &str) {
        let config = self.tree.root.join("config.json");
        for file in files(&self.bed.path("")) {
            let text = fs::read(&file).unwrap_or_default();
            let holds = text.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(file == config || !holds, "{} holds the secret", file.display());
        }
    }
}
