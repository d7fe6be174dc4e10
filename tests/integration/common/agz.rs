//! AgentAZAll mailboxes as the reference program writes them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde_json::{Value, json};

use super::samp::{self, hex};
use super::{Bed, soon};

/// The address of me in most tests.
pub(crate) const ME: &str = "bar@localhost";
/// A day of the past, in the zone of the beds (14 hours ahead of UTC).
pub(crate) const DAY: &str = "2026-04-25";
/// 2026-04-25 12:00:00 in the beds' zone.
pub(crate) const NOON: i64 = 1_777_068_000;
/// The seconds by which the beds' zone is ahead of UTC.
pub(crate) const AHEAD: i64 = 14 * 3600;

const BEGIN: &str = "---BEGIN AGENTAZALL SIGNED MESSAGE---";
const END: &str = "---END AGENTAZALL SIGNED MESSAGE---";
const SIG_BEGIN: &str = "---BEGIN AGENTAZALL SIGNATURE---";
const SIG_END: &str = "---END AGENTAZALL SIGNATURE---";

/// Returns a time as the reference program writes it: local, without a zone.
pub(crate) fn local(ts: i64) -> String {
    samp::strftime(ts + AHEAD, "%Y-%m-%d %H:%M:%S")
}

/// Returns the name of today's day folder.
pub(crate) fn today() -> String {
    samp::strftime(samp::now() + AHEAD, "%Y-%m-%d")
}

/// A project with a configuration, and the mailboxes below it.
pub(crate) struct Tree {
    /// The folder of config.json.
    pub(crate) root: PathBuf,
    /// The agent of the configuration.
    pub(crate) agent: String,
}

impl Tree {
    /// Makes the project of [`ME`] in the bed, with an empty mailbox.
    pub(crate) fn new(bed: &Bed) -> Self {
        Self::with(bed, ME, &json!({}))
    }

    /// Makes a project whose configuration has further members.
    pub(crate) fn with(bed: &Bed, agent: &str, more: &Value) -> Self {
        let tree = Self { root: bed.path("agz"), agent: agent.to_owned() };
        fs::create_dir_all(tree.base()).expect("mkdir");
        tree.configure(more);
        tree
    }

    /// Makes another agent's project over the same mailboxes, with a folder of its own beside this one.
    pub(crate) fn beside(&self, agent: &str, more: &Value) -> Self {
        let folder = agent.split('@').next().unwrap_or(agent);
        let other = Self {
            root: self.root.with_file_name(format!("agz-{folder}")),
            agent: agent.to_owned(),
        };
        fs::create_dir_all(&other.root).expect("mkdir");
        fs::create_dir_all(self.mailbox(agent)).expect("mkdir");
        let mut config = json!({"mailbox_dir": self.mailboxes().to_str()});
        merge(&mut config, more);
        other.configure(&config);
        other
    }

    /// Writes config.json anew.
    pub(crate) fn configure(&self, more: &Value) {
        let mut config = json!({
            "agent_name": self.agent,
            "mailbox_dir": "./data/mailboxes",
            "transport": "ftp",
        });
        merge(&mut config, more);
        let text = serde_json::to_string_pretty(&config).expect("JSON");
        let tmp = self.root.join("config.json.new");
        fs::write(&tmp, text).expect("config");
        fs::rename(tmp, self.root.join("config.json")).expect("config");
    }

    /// Returns the lines that make it a store of the mount.
    pub(crate) fn store(&self) -> String {
        format!(
            "[[store]]\nkind = \"agentazall\"\ndir = {:?}\n",
            self.root.to_str().expect("UTF-8")
        )
    }

    /// Returns the folder of all mailboxes.
    pub(crate) fn mailboxes(&self) -> PathBuf {
        let text = fs::read_to_string(self.root.join("config.json")).expect("config.json");
        let config: Value = serde_json::from_str(&text).expect("config.json");
        self.root.join(config["mailbox_dir"].as_str().expect("mailbox_dir"))
    }

    /// Returns the mailbox of an address.
    pub(crate) fn mailbox(&self, address: &str) -> PathBuf {
        self.mailboxes().join(address)
    }

    /// Returns my mailbox.
    pub(crate) fn base(&self) -> PathBuf {
        self.root.join("data/mailboxes").join(&self.agent)
    }

    /// Returns the path of a file of my mailbox.
    pub(crate) fn file(&self, day: &str, folder: &str, name: &str) -> PathBuf {
        self.base().join(day).join(folder).join(name)
    }

    /// Puts a message file into a folder of my mailbox, as a whole.
    pub(crate) fn put(
        &self,
        day: &str,
        folder: &str,
        stem: &str,
        text: impl AsRef<[u8]>,
    ) -> PathBuf {
        let file = self.file(day, folder, &format!("{stem}.txt"));
        put(&file, text);
        file
    }

    /// Puts a letter into my inbox of [`DAY`] under its own id.
    pub(crate) fn receive(&self, letter: &Letter) -> PathBuf {
        self.put(DAY, "inbox", letter.id(), letter.text())
    }

    /// Writes the key in the reference program's own form and with its mode.
    pub(crate) fn identity(&self, key: &SigningKey) -> PathBuf {
        identity(&self.base(), key)
    }

    /// Returns every message file of a folder of any mailbox, over all days, as (day, name).
    pub(crate) fn list(&self, address: &str, folder: &str) -> Vec<(String, String)> {
        let mut all = Vec::new();
        for day in names(&self.mailbox(address)) {
            for name in names(&self.mailbox(address).join(&day).join(folder)) {
                if Path::new(&name).extension().is_some_and(|e| e == "txt") {
                    all.push((day.clone(), name));
                }
            }
        }
        all
    }

    /// Returns the path and text of the only message file of such a folder.
    #[track_caller]
    pub(crate) fn only(&self, address: &str, folder: &str) -> (PathBuf, String) {
        let all = self.list(address, folder);
        assert_eq!(all.len(), 1, "messages in {folder} of {address}: {all:?}");
        let file = self.mailbox(address).join(&all[0].0).join(folder).join(&all[0].1);
        let text = fs::read_to_string(&file).expect("message");
        (file, text)
    }
}

fn merge(config: &mut Value, more: &Value) {
    for (k, v) in more.as_object().expect("object") {
        config[k] = v.clone();
    }
}

/// Returns the sorted names in a folder; none if there is no such folder.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut all: Vec<String> = fs::read_dir(folder)
        .map(|d| d.map(|e| e.expect("entry").file_name().into_string().expect("UTF-8")).collect())
        .unwrap_or_default();
    all.sort();
    all
}

/// Writes a file as a whole, and makes its folders.
pub(crate) fn put(file: &Path, text: impl AsRef<[u8]>) {
    fs::create_dir_all(file.parent().expect("parent")).expect("mkdir");
    let tmp = file.with_extension("tmp");
    fs::write(&tmp, text).expect("write");
    fs::rename(tmp, file).expect("rename");
}

/// Writes the reference program's key file into a mailbox.
pub(crate) fn identity(base: &Path, key: &SigningKey) -> PathBuf {
    let public = key.verifying_key();
    let text = json!({
        "private_key_hex": hex(&key.to_bytes()),
        "public_key_hex": hex(public.as_bytes()),
        "public_key_b64": BASE64.encode(public.as_bytes()),
        "fingerprint": samp::fingerprint(key),
        "created": "2026-04-01T10:00:00.123456",
    });
    let file = base.join(".identity_key");
    put(&file, serde_json::to_string_pretty(&text).expect("JSON"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("chmod");
    file
}

/// A letter in the reference program's grammar.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    /// Header lines in file order.
    pub(crate) head: Vec<(String, String)>,
    /// The text.
    pub(crate) body: String,
}

impl Letter {
    /// Returns an unsigned letter to [`ME`]. `n` makes its id and moves its time by as many minutes.
    pub(crate) fn new(from: &str, subject: &str, body: &str, n: i64) -> Self {
        let id = samp::sha_hex(format!("{from}|{subject}|{body}|{n}").as_bytes(), 12);
        let head = [
            ("From", from),
            ("To", ME),
            ("Subject", subject),
            ("Date", &local(NOON + 60 * n)),
            ("Message-ID", &id),
            ("Status", "new"),
        ];
        Self {
            head: head.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            body: body.to_owned(),
        }
    }

    /// Sets this header line, in its place or at the end.
    pub(crate) fn set(mut self, key: &str, value: &str) -> Self {
        match self.head.iter_mut().find(|(k, _)| k == key) {
            Some((_, v)) => value.clone_into(v),
            None => self.head.push((key.to_owned(), value.to_owned())),
        }
        self
    }

    /// Removes this header line.
    pub(crate) fn unset(mut self, key: &str) -> Self {
        self.head.retain(|(k, _)| k != key);
        self
    }

    /// Replaces the text.
    pub(crate) fn body(mut self, text: &str) -> Self {
        text.clone_into(&mut self.body);
        self
    }

    /// Returns a header value.
    #[track_caller]
    pub(crate) fn get(&self, key: &str) -> &str {
        self.head.iter().find(|(k, _)| k == key).map_or_else(|| panic!("no {key}"), |(_, v)| v)
    }

    /// Returns the Message-ID.
    #[track_caller]
    pub(crate) fn id(&self) -> &str {
        self.get("Message-ID")
    }

    /// Signs the text as the reference program does.
    pub(crate) fn signed(self, key: &SigningKey) -> Self {
        let block = block(&self.body, key, &[]);
        self.body(&block)
    }

    /// Signs text and envelope: the block repeats the header lines and adds further ones.
    pub(crate) fn sealed(self, key: &SigningKey, more: &[(&str, &str)]) -> Self {
        let mut meta = Vec::new();
        for k in ["From", "To", "Cc", "Subject", "Date", "Message-ID"] {
            if let Some((_, v)) = self.head.iter().find(|(name, _)| name == k) {
                meta.push(format!("{k}: {v}"));
            }
        }
        meta.extend(more.iter().map(|(k, v)| format!("{k}: {v}")));
        let block = sealed_block(&self.body, key, &meta);
        self.body(&block)
    }

    /// Returns the file.
    pub(crate) fn text(&self) -> String {
        let head: String = self.head.iter().map(|(k, v)| format!("{k}: {v}\n")).collect();
        format!("{head}\n---\n{}", self.body)
    }

    /// Returns the name of the message in the mount, for a letter whose Date is a whole local second.
    #[track_caller]
    pub(crate) fn name(&self, n: i64) -> String {
        super::shown::name(NOON + 60 * n, 0, self.get("From"), self.id())
    }
}

/// Returns a signed block around a text, with further metadata lines.
pub(crate) fn block(body: &str, key: &SigningKey, meta: &[String]) -> String {
    let sig = BASE64.encode(key.sign(body.as_bytes()).to_bytes());
    around(body, key, meta, &sig)
}

/// Returns a block around a text with a given signature.
pub(crate) fn around(body: &str, key: &SigningKey, meta: &[String], sig: &str) -> String {
    let mut lines = vec![
        format!("Fingerprint: {}", samp::fingerprint(key)),
        format!("Public-Key: {}", BASE64.encode(key.verifying_key().as_bytes())),
    ];
    lines.extend(meta.iter().cloned());
    format!("{BEGIN}\n{}\n\n{body}\n{END}\n{SIG_BEGIN}\n{sig}\n{SIG_END}", lines.join("\n"))
}

/// Returns a block whose metadata lines are signed as well.
pub(crate) fn sealed_block(body: &str, key: &SigningKey, meta: &[String]) -> String {
    let mut covered = format!(
        "Fingerprint: {}\nPublic-Key: {}\n",
        samp::fingerprint(key),
        BASE64.encode(key.verifying_key().as_bytes())
    );
    for line in meta {
        covered += line;
        covered.push('\n');
    }
    covered.push('\n');
    covered += body;
    let v2 = BASE64.encode(key.sign(covered.as_bytes()).to_bytes());
    let mut meta = meta.to_vec();
    meta.push(format!("Signature-V2: {v2}"));
    block(body, key, &meta)
}

/// Signs in the legacy form: the signature is a header line and covers all other lines and the text.
pub(crate) fn legacy(letter: Letter, key: &SigningKey) -> Letter {
    let letter = letter.set("Public-Key", &BASE64.encode(key.verifying_key().as_bytes()));
    let lines: Vec<String> = letter.head.iter().map(|(k, v)| format!("{k}: {v}")).collect();
    let covered = format!("{}\n---\n{}", lines.join("\n"), letter.body);
    let sig = BASE64.encode(key.sign(covered.as_bytes()).to_bytes());
    letter.set("Signature", &sig)
}

/// A message file that msgfs wrote, taken apart by the reference program's own rules.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Header lines in order.
    pub(crate) head: Vec<(String, String)>,
    /// Metadata lines of the block in order.
    pub(crate) meta: Vec<(String, String)>,
    /// The signed text.
    pub(crate) body: String,
    /// The public key of the signature.
    pub(crate) public: VerifyingKey,
}

impl Sent {
    /// Returns a header value.
    #[track_caller]
    pub(crate) fn get(&self, key: &str) -> &str {
        find(&self.head, key)
    }

    /// Returns a metadata value.
    #[track_caller]
    pub(crate) fn meta(&self, key: &str) -> &str {
        find(&self.meta, key)
    }
}

#[track_caller]
fn find<'a>(lines: &'a [(String, String)], key: &str) -> &'a str {
    lines
        .iter()
        .find(|(k, _)| k == key)
        .map_or_else(|| panic!("no {key} in {lines:#?}"), |(_, v)| v)
}

fn line(l: &str) -> (String, String) {
    let (k, v) = l.split_once(':').unwrap_or_else(|| panic!("no header line: {l:?}"));
    (k.to_owned(), v.trim().to_owned())
}

/// Takes such a file apart and checks both signatures. Panics where the reference program would not verify.
#[track_caller]
pub(crate) fn verify(text: &str) -> Sent {
    let (head, rest) = text.split_once("\n\n---\n").unwrap_or_else(|| panic!("no header: {text}"));
    let inner =
        rest.strip_prefix(&format!("{BEGIN}\n")).unwrap_or_else(|| panic!("no block: {text}"));
    let (covered, after) = inner.split_once(&format!("\n{END}\n{SIG_BEGIN}\n")).expect("END");
    let sig = after
        .strip_suffix(&format!("\n{SIG_END}"))
        .unwrap_or_else(|| panic!("ends after the block: {text}"));
    let (block, body) = covered.split_once("\n\n").expect("empty line after the metadata");
    assert_eq!(body, body.trim_end(), "the reference strips what it verifies");
    let meta: Vec<_> = block.lines().map(line).collect();
    let raw = BASE64.decode(find(&meta, "Public-Key")).expect("base64");
    let public = VerifyingKey::from_bytes(&raw.clone().try_into().expect("32 bytes")).expect("key");
    let check = |sig: &str, covered: &[u8], what: &str| {
        let bytes: [u8; 64] = BASE64.decode(sig).expect("base64").try_into().expect("64 bytes");
        public
            .verify_strict(covered, &Signature::from_bytes(&bytes))
            .unwrap_or_else(|e| panic!("{what}: {e}\n{text}"));
    };
    check(sig, body.as_bytes(), "signature");
    let lines: String = block
        .lines()
        .filter(|l| !l.starts_with("Signature-V2:"))
        .map(|l| format!("{l}\n"))
        .collect();
    check(find(&meta, "Signature-V2"), format!("{lines}\n{body}").as_bytes(), "Signature-V2");
    assert_eq!(find(&meta, "Fingerprint"), samp::sha_hex(&raw, 16));
    Sent { head: head.lines().map(line).collect(), meta, body: body.to_owned(), public }
}

/// Waits until a file contains a text. A mark may be written to the file some seconds later, because msgfs must not
/// write while another program is still writing the file.
#[track_caller]
pub(crate) fn says(file: &Path, text: &str) {
    soon(&format!("{} says {text:?}", file.display()), || {
        fs::read_to_string(file).is_ok_and(|t| t.contains(text))
    });
}

#[test]
fn the_harness_computes_the_published_blocks() {
    let seed: Vec<u8> = (0..32).collect();
    let key = SigningKey::from_bytes(&seed.try_into().expect("32 bytes"));
    let meta = [
        "From: alice@localhost",
        "To: bob@localhost",
        "Subject: Vector",
        "Date: 2026-03-11 14:23:55",
        "Message-ID: a1b2c3d4e5f6",
        "Attachment: sha256=2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881; name=x.bin",
    ];
    let text = sealed_block("Hello v2", &key, &meta.map(str::to_owned));
    for part in [
        "Fingerprint: 56475aa75463474c",
        "Public-Key: A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=",
        "Signature-V2: L6Pg5rEWcFu1Upnu4WtJL5XBMT3/91QoWB7Nb2APqkaHwBXvuSPOh2Ls+nIsBxN1JqiOMr7M1br4OdnIKYtbAg==",
        "3SRqnbS8RCS3+/Q13lRvD6Rq4b0HwT3WKITTx1nJh6AhjE39W9pDJkx2bUNydGZpE2qZoPicoMhPGj/5/8N4CQ==",
    ] {
        assert!(text.lines().any(|l| l == part), "{part} missing in\n{text}");
    }
    let sent = verify(&format!("From: alice@localhost\n\n---\n{text}"));
    assert_eq!((sent.body.as_str(), sent.meta("To")), ("Hello v2", "bob@localhost"));
}
