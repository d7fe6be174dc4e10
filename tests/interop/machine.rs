//! One machine with one agent, whose links its own configuration describes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::agz::{self, Tree};
use crate::common::shown::{self, Shown};
use crate::common::{Bed, Mount, samp, soon};
use crate::peer;
use crate::relay::{files, sent};

/// A machine with one agent.
pub(crate) struct Machine {
    pub(crate) bed: Bed,
    pub(crate) tree: Tree,
    /// The agent's address.
    pub(crate) address: &'static str,
}

impl Machine {
    /// Makes a machine whose agent's configuration has these members.
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

    /// Ends the backoff of a link.
    #[track_caller]
    pub(crate) fn hurry(&self, link: &str) {
        // A mount that has just begun may not have opened the link yet.
        soon("the link hears", || {
            self.bed.msgfs_out(&["--me", self.name(), "link", "retry", link]).ok()
        });
    }

    /// Returns the number of my messages in a folder of the mailbox.
    pub(crate) fn count(&self, folder: &str) -> usize {
        self.tree.list(self.address, folder).len()
    }

    /// Makes a file on this machine, to be attached.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.bed.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Asserts that no file of this machine holds a secret, except the mailbox's own configuration.
    #[track_caller]
    pub(crate) fn tells_no(&self, secret: &str) {
        let config = self.tree.root.join("config.json");
        for file in files(&self.bed.path("")) {
            let text = fs::read(&file).unwrap_or_default();
            let holds = text.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(file == config || !holds, "{} holds the secret", file.display());
        }
    }

    /// Asserts that the reference client here reads a message of a mount with its attachment; writes back with an
    /// attachment.
    #[track_caller]
    pub(crate) fn reads_and_writes_as_the_reference(&self, bar: &Self, m: &Mount) {
        let file = bar.file("data.bin", &[0u8, 9, 255]);
        m.ok(&format!(
            "printf 'Subject: hello\\nAttach: {}\\n\\nfrom a mount\\n' | tee outbox/{} > /dev/null",
            file.display(),
            self.address
        ));
        soon("the server has it", || bar.count("sent") == 1);
        peer::ok(&self.bed, &self.tree, &["daemon", "--once"]);
        let (file, text) = self.tree.only(self.address, "inbox");
        assert!(text.contains("from a mount"), "{text}");
        let v = peer::verify(&self.bed, &[file]).remove(0);
        assert_eq!((&v["verified"], &v["attachments"]["data.bin"]), (&json!(true), &json!(true)));
        let note = self.file("note.md", b"a note\n");
        let args = ["send", "--to", bar.address, "--subject", "back", "--body", "by the client"];
        let args = [&args[..], &["--attach", note.to_str().unwrap()]].concat();
        peer::ok(&self.bed, &self.tree, &args);
        peer::ok(&self.bed, &self.tree, &["daemon", "--once"]);
    }

    /// Asserts that the message of the reference client is in the inbox of a mount, and returns it.
    #[track_caller]
    pub(crate) fn wrote_as_the_reference(&self, m: &Mount) -> Shown {
        let got = shown::all(m, "inbox").remove(0);
        assert_eq!((got.must("Subject"), got.must("From")), ("back", self.address));
        assert!(got.body.starts_with("by the client"), "{}", got.body);
        assert_eq!(m.ok("cat inbox/*.d/note.md"), "a note\n");
        got
    }
}

/// Waits until the one message that a mount sent is in another one, under the same name, and returns the name.
#[track_caller]
pub(crate) fn arrived(m: &Mount, z: &Mount) -> String {
    soon("it arrives", || !z.ls("inbox").is_empty());
    let [mine] = &sent(m, "txt")[..] else { panic!() };
    let theirs = z.ls("inbox").into_iter().find(|n| shown::has_ending(n, "txt")).unwrap();
    assert_eq!(mine.rsplit('/').next(), Some(theirs.as_str()), "one name on both machines");
    theirs
}

/// Asserts that a message has this subject, this text and a valid signature, and that its answer comes into its thread.
#[track_caller]
pub(crate) fn answered(m: &Mount, z: &Mount, theirs: &str, wanted: (&str, &str)) {
    let got = Shown::parse(&z.cat(&format!("inbox/{theirs}")));
    assert_eq!((got.must("Subject"), got.body.as_str()), wanted);
    assert!(got.must("Signature").starts_with("valid "));
    z.ok(&format!("name={theirs}; echo 'got it' > inbox/${{name%.txt}}.reply"));
    soon("the answer arrives", || !m.ls("inbox").is_empty());
    let answer = shown::all(m, "inbox").remove(0);
    assert_eq!((answer.body.as_str(), answer.must("Thread")), ("got it\n", got.must("Thread")));
}
