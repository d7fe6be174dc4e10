//! AMP 0.1 agents and messages as the real clients write them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{EncodePrivateKey as _, EncodePublicKey as _};
use ed25519_dalek::{Signature, Signer as _, SigningKey, Verifier as _};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Bed;
use super::agz::{names, put};
use super::samp;

/// My address in most tests. My name is the `--me` of the mount.
pub(crate) const BAR: &str = "bar@acme.aimaestro.local";
/// Another agent of this machine.
pub(crate) const ALICE: &str = "alice@acme.aimaestro.local";
/// The time of the first message. Sat, 21 Nov 2026 20:07:12 UTC lies in the future of some clocks; this time does
/// not.
pub(crate) const T0: i64 = samp::T0;

/// A folder with `agents/`, as under `~/.agent-messaging`.
pub(crate) struct Home {
    /// The folder that holds `agents/`.
    pub(crate) root: PathBuf,
}

impl Home {
    /// Makes bar (key 1) and alice (key 2), both of tenant acme.
    pub(crate) fn new(bed: &Bed) -> Self {
        let home = Self { root: bed.path("amp") };
        fs::create_dir_all(home.root.join("agents")).expect("mkdir");
        home.agent("bar", "acme", 1);
        home.agent("alice", "acme", 2);
        home
    }

    /// Returns the lines that make it a store of the mount.
    pub(crate) fn store(&self) -> String {
        format!("[[store]]\nkind = \"amp\"\ndir = {:?}\n", self.root.to_str().expect("UTF-8"))
    }

    /// Makes an agent in a folder named by a UUID, with its line in `.index.json`.
    pub(crate) fn agent(&self, name: &str, tenant: &str, seed: u8) -> PathBuf {
        let uuid = format!("{seed:08x}-0000-4000-8000-{seed:012x}");
        let dir = self.agent_in(&uuid, name, tenant, seed);
        let index = self.root.join("agents/.index.json");
        let mut all: Value = fs::read_to_string(&index)
            .map_or_else(|_| json!({}), |t| serde_json::from_str(&t).expect("index"));
        all[name] = json!(uuid);
        put(&index, serde_json::to_string_pretty(&all).expect("JSON"));
        dir
    }

    /// Makes an agent in this folder, without a line in the index.
    pub(crate) fn agent_in(&self, folder: &str, name: &str, tenant: &str, seed: u8) -> PathBuf {
        let dir = self.root.join("agents").join(folder);
        for sub in ["keys", "registrations", "messages/inbox", "messages/sent", "attachments"] {
            fs::create_dir_all(dir.join(sub)).expect("mkdir");
        }
        let key = samp::key(seed);
        let config = json!({
            "version": "1.1",
            "agent": {
                "name": name,
                "tenant": tenant,
                "address": format!("{name}@{tenant}.aimaestro.local"),
                "fingerprint": fingerprint(&key),
                "createdAt": "2026-04-01T00:00:00Z",
                "id": folder,
            },
            "provider": {"domain": "aimaestro.local", "maestro_url": "http://localhost:23000"},
        });
        put(&dir.join("config.json"), serde_json::to_string_pretty(&config).expect("JSON"));
        let private = key.to_pkcs8_pem(LineEnding::LF).expect("PEM");
        let public = key.verifying_key().to_public_key_pem(LineEnding::LF).expect("PEM");
        put(&dir.join("keys/private.pem"), private.as_bytes());
        put(&dir.join("keys/public.pem"), public);
        for (file, mode) in [("keys", 0o700), ("keys/private.pem", 0o600), ("attachments", 0o700)] {
            fs::set_permissions(dir.join(file), fs::Permissions::from_mode(mode)).expect("chmod");
        }
        dir
    }

    /// Returns the folder of an agent, by its configured name.
    #[track_caller]
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let agents = self.root.join("agents");
        names(&agents)
            .iter()
            .map(|n| agents.join(n))
            .find(|d| {
                let text = fs::read_to_string(d.join("config.json")).unwrap_or_default();
                let config: Value = serde_json::from_str(&text).unwrap_or_default();
                config["agent"]["name"] == name && d.symlink_metadata().is_ok_and(|m| m.is_dir())
            })
            .unwrap_or_else(|| panic!("there is no agent {name}"))
    }

    /// Puts a message into an agent's inbox, in the folder of its sender.
    pub(crate) fn deliver(&self, agent: &str, msg: &Msg) -> PathBuf {
        let file = self.place(agent, "inbox", &msg.from, &msg.id);
        put(&file, msg.text());
        file
    }

    /// Puts a message into my inbox.
    pub(crate) fn receive(&self, msg: &Msg) -> PathBuf {
        self.deliver("bar", msg)
    }

    /// Returns the path of an agent's message.
    pub(crate) fn place(&self, agent: &str, folder: &str, other: &str, id: &str) -> PathBuf {
        self.dir(agent).join("messages").join(folder).join(bucket(other)).join(format!("{id}.json"))
    }

    /// Returns every message file below `inbox` or `sent` of an agent.
    pub(crate) fn list(&self, agent: &str, folder: &str) -> Vec<PathBuf> {
        let top = self.dir(agent).join("messages").join(folder);
        let mut all = Vec::new();
        for name in names(&top) {
            let path = top.join(&name);
            if path.is_dir() {
                all.extend(names(&path).iter().map(|n| path.join(n)));
            } else {
                all.push(path);
            }
        }
        all.retain(|p| p.extension().is_some_and(|e| e == "json"));
        all
    }

    /// Returns the path and content of the only message file there.
    #[track_caller]
    pub(crate) fn only(&self, agent: &str, folder: &str) -> (PathBuf, Value) {
        let mut all = self.list(agent, folder);
        assert_eq!(all.len(), 1, "messages in {folder} of {agent}: {all:?}");
        let value = read(&all[0]);
        (all.remove(0), value)
    }
}

/// Returns the folder name of an address.
pub(crate) fn bucket(address: &str) -> String {
    address
        .chars()
        .filter_map(|c| match c {
            '@' | '.' => Some('_'),
            c if c.is_ascii_alphanumeric() || c == '_' || c == '-' => Some(c),
            _ => None,
        })
        .collect()
}

/// Returns a message file's JSON.
#[track_caller]
pub(crate) fn read(file: &Path) -> Value {
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}: {text}", file.display()))
}

/// Returns the fingerprint in the plugin's configuration, over the 44 bytes of the public key's DER form.
pub(crate) fn fingerprint(key: &SigningKey) -> String {
    let der = key.verifying_key().to_public_key_der().expect("DER");
    format!("SHA256:{}", BASE64.encode(Sha256::digest(der.as_bytes())))
}

/// Returns JSON with sorted keys and without blanks. The objects of the tests have ASCII keys.
pub(crate) fn canonical(value: &Value) -> String {
    match value {
        Value::Object(o) => {
            let mut keys: Vec<&String> = o.keys().collect();
            keys.sort();
            let members: Vec<String> = keys
                .iter()
                .map(|k| format!("{}:{}", json!(k), canonical(&o[k.as_str()])))
                .collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(a) => {
            format!("[{}]", a.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// Returns the bytes that a signature covers.
pub(crate) fn covered(
    from: &str,
    to: &str,
    subject: &str,
    priority: &str,
    parent: &str,
    payload: &str,
) -> String {
    let hash = BASE64.encode(Sha256::digest(payload.as_bytes()));
    format!("{from}|{to}|{subject}|{priority}|{parent}|{hash}")
}

/// A message.
#[derive(Clone, Debug)]
pub(crate) struct Msg {
    /// Its id.
    pub(crate) id: String,
    /// The sender.
    pub(crate) from: String,
    /// The recipient.
    pub(crate) to: String,
    /// The subject.
    pub(crate) subject: String,
    /// The priority: urgent, high, normal or low.
    pub(crate) priority: String,
    /// The timestamp as it is written.
    pub(crate) timestamp: String,
    /// The id of the answered message.
    pub(crate) parent: Option<String>,
    /// The payload as it is in the file.
    pub(crate) payload: String,
    /// The signature.
    pub(crate) signature: String,
    /// Further members of the envelope, which replace those above.
    pub(crate) envelope: Value,
    /// The `local` object; it is left out if null.
    pub(crate) local: Value,
    /// Further members of the file.
    pub(crate) rest: Value,
}

impl Msg {
    /// Returns an unsigned notification from alice to me. `n` makes its id and moves its time by as many minutes.
    pub(crate) fn new(subject: &str, text: &str, n: i64) -> Self {
        Self {
            id: format!("msg_{}_{:016x}", T0 + 60 * n, 0xa000_0000_0000_0000_u64 + n as u64),
            from: ALICE.into(),
            to: BAR.into(),
            subject: subject.into(),
            priority: "normal".into(),
            timestamp: samp::strftime(T0 + 60 * n, "%Y-%m-%dT%H:%M:%SZ"),
            parent: None,
            payload: canonical(&json!({"type": "notification", "message": text})),
            signature: String::new(),
            envelope: json!({}),
            local: json!({"received_at": "2026-11-01T00:00:00Z", "status": "unread"}),
            rest: json!({}),
        }
    }

    /// Sets sender and recipient.
    pub(crate) fn between(mut self, from: &str, to: &str) -> Self {
        (self.from, self.to) = (from.into(), to.into());
        self
    }

    /// Sets the payload.
    pub(crate) fn payload(mut self, payload: &Value) -> Self {
        self.payload = canonical(payload);
        self
    }

    /// Makes it an answer to this id.
    pub(crate) fn answering(mut self, id: &str) -> Self {
        self.parent = Some(id.into());
        self
    }

    /// Adds these members to the envelope.
    pub(crate) fn envelope(mut self, more: Value) -> Self {
        self.envelope = more;
        self
    }

    /// Signs it over the payload as it is; the payload's keys are sorted.
    pub(crate) fn signed(mut self, seed: u8) -> Self {
        let parent = self.parent.clone().unwrap_or_default();
        let bytes =
            covered(&self.from, &self.to, &self.subject, &self.priority, &parent, &self.payload);
        self.signature = BASE64.encode(samp::key(seed).sign(bytes.as_bytes()).to_bytes());
        self
    }

    /// Returns its time.
    pub(crate) fn ts(&self) -> i64 {
        self.timestamp.parse::<jiff::Timestamp>().expect("timestamp").as_second()
    }

    /// Returns the name of the message in the mount.
    pub(crate) fn name(&self) -> String {
        super::shown::name(self.ts(), 0, &self.from, &self.id)
    }

    /// Returns its path in `archive/`.
    pub(crate) fn archived(&self) -> String {
        format!("archive/{}/{}", samp::strftime(self.ts(), "%Y-%m-%d"), self.name())
    }

    /// Returns the file.
    pub(crate) fn text(&self) -> String {
        let mut envelope = json!({
            "version": "amp/0.1",
            "id": self.id,
            "from": self.from,
            "to": self.to,
            "subject": self.subject,
            "priority": self.priority,
            "timestamp": self.timestamp,
            "thread_id": self.id,
            "in_reply_to": self.parent,
            "expires_at": null,
            "signature": self.signature,
        });
        for (k, v) in self.envelope.as_object().expect("object") {
            envelope[k] = v.clone();
        }
        let mut text = format!("{{\n  \"envelope\": {envelope},\n  \"payload\": {}", self.payload);
        let mut more = self.rest.clone();
        if !self.local.is_null() {
            more["local"] = self.local.clone();
        }
        for (k, v) in more.as_object().expect("object") {
            text += &format!(",\n  {}: {v}", json!(k));
        }
        text + "\n}\n"
    }
}

/// Checks the signature of a message file with a key, over the payload as the jq client writes it.
#[track_caller]
pub(crate) fn verify(value: &Value, key: &SigningKey) {
    let e = &value["envelope"];
    let s = |k: &str| e[k].as_str().unwrap_or_default();
    let bytes = covered(
        s("from"),
        s("to"),
        s("subject"),
        s("priority"),
        s("in_reply_to"),
        &canonical(&value["payload"]),
    );
    let raw: [u8; 64] =
        BASE64.decode(s("signature")).expect("base64").try_into().expect("64 bytes");
    key.verifying_key()
        .verify(bytes.as_bytes(), &Signature::from_bytes(&raw))
        .unwrap_or_else(|_| panic!("the signature does not cover {bytes}\n{value:#}"));
}

#[test]
fn the_harness_computes_the_published_signatures() {
    let hex = "fc55054ef42e2521f378672b1113bee18ae643b7225260144a868ea83ecc8938";
    let seed: Vec<u8> =
        (0..32).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex")).collect();
    let key = SigningKey::from_bytes(&seed.try_into().expect("32 bytes"));
    let payload = canonical(&json!({"type": "response", "message": "ok"}));
    let text = covered(
        "alice@acme.aimaestro.local",
        "bob@acme.aimaestro.local",
        "Re: Hello",
        "normal",
        "msg_1795291632305_e025e81e",
        &payload,
    );
    assert!(text.ends_with("|DGK8dbSTOD7/lP34813RfYJJCHqI9pSUxaYXACtF/4E="), "{text}");
    assert_eq!(
        BASE64.encode(key.sign(text.as_bytes()).to_bytes()),
        "Znd61G7yMz7H3aeq48z9QZoM2gBNDU8Uv7V9LnPcA5DoBEw9jB9+nA/FWjdB4lXuGdnG0pJqoe+X2GYd8CTiCA=="
    );
}
