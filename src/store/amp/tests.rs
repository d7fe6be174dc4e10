//! The store over real folders: a host with agents, and a sink that keeps the books like an index.

mod home;
mod limits;
mod marks;
mod order;
mod reading;
mod remote;
mod scanning;
mod sending;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::EncodePrivateKey as _;
use ed25519_dalek::pkcs8::spki::EncodePublicKey as _;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;

use super::*;
use crate::model::verify::verify_claim;
use crate::model::{Draft, SignatureClaim, Timestamp};
use crate::store::testing::traits::*;
use crate::store::testing::{Book, Kept, Key};
use crate::store::{AddressFit, Kind, PartContent, PrepareContext, PreparedRecord, Signer};

/// A host with agents of the tenant `acme`.
struct Host {
    dir: tempfile::TempDir,
}

fn key_of(name: &str) -> SigningKey {
    let mut seed = [0; 32];
    seed.iter_mut().zip(name.bytes()).for_each(|(s, b)| *s = b);
    SigningKey::from_bytes(&seed)
}

fn address(name: &str) -> String {
    format!("{name}@acme.aimaestro.local")
}

impl Host {
    fn new(names: &[&str]) -> Self {
        let host = Self { dir: tempfile::tempdir().unwrap() };
        for name in names {
            host.add(name, name, &address(name));
        }
        host
    }

    fn agents(&self) -> PathBuf {
        self.dir.path().join("agents")
    }

    /// Makes an agent in its own folder.
    fn add(&self, folder: &str, name: &str, address: &str) {
        let dir = self.agents().join(folder);
        std::fs::create_dir_all(dir.join("keys")).unwrap();
        let config = serde_json::json!({
            "version": "1.1",
            "agent": {"name": name, "tenant": "acme", "address": address},
            "provider": {"domain": "aimaestro.local"},
        });
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
        let key = key_of(name);
        let private = dir.join("keys/private.pem");
        std::fs::write(&private, key.to_pkcs8_pem(LineEnding::LF).unwrap()).unwrap();
        std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o600)).unwrap();
        let public = key.verifying_key().to_public_key_pem(LineEnding::LF).unwrap();
        std::fs::write(dir.join("keys/public.pem"), public).unwrap();
    }

    fn spec(&self, me: &str) -> StoreSpec {
        StoreSpec {
            may_create: true,
            name: "amp".into(),
            kind: Kind::Amp,
            dir: self.dir.path().to_owned(),
            me: me.into(),
            home: Some(self.dir.path().to_owned()),
            ..StoreSpec::default()
        }
    }

    fn open(&self, me: &str) -> AmpStore {
        AmpStore::open(&self.spec(me)).unwrap()
    }

    /// Writes a file into an agent's box, as another client would.
    fn put(&self, agent: &str, path: &str, bytes: &[u8]) -> PathBuf {
        let path = self.agents().join(agent).join("messages").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Writes a message into an agent's inbox.
    fn deliver(&self, agent: &str, message: &Mail<'_>) -> PathBuf {
        let path = format!("inbox/x/{}.json", message.id);
        self.put(agent, &path, message.json().as_bytes())
    }
}

/// A message as a client writes it.
#[derive(Clone)]
struct Mail<'a> {
    id: &'a str,
    from: String,
    to: String,
    subject: &'a str,
    body: &'a str,
    time: &'a str,
    re: Option<&'a str>,
    expires: Option<&'a str>,
    status: &'a str,
    /// The agent whose key signs it.
    signer: Option<&'a str>,
    attachments: Vec<serde_json::Value>,
    context: Option<serde_json::Value>,
}

fn mail<'a>(id: &'a str, from: &str, to: &str) -> Mail<'a> {
    Mail {
        id,
        from: address(from),
        to: address(to),
        subject: "hello",
        body: "how are you",
        time: "2026-04-24T17:42:03Z",
        re: None,
        expires: None,
        status: "unread",
        signer: None,
        attachments: Vec::new(),
        context: None,
    }
}

impl Mail<'_> {
    fn json(&self) -> String {
        let mut payload = serde_json::json!({"message": self.body, "type": "request"});
        if !self.attachments.is_empty() {
            payload["attachments"] = self.attachments.clone().into();
        }
        if let Some(context) = &self.context {
            payload["context"] = context.clone();
        }
        let hash = base64(&sha2::Sha256::digest(payload.to_string().as_bytes()));
        let re = self.re.unwrap_or_default();
        let signed = format!("{}|{}|{}|normal|{re}|{hash}", self.from, self.to, self.subject);
        let signature =
            self.signer.map(|name| base64(&Key::from(key_of(name)).sign(signed.as_bytes())));
        let value = serde_json::json!({
            "envelope": {
                "version": "amp/0.1", "id": self.id, "from": self.from, "to": self.to,
                "subject": self.subject, "priority": "normal", "timestamp": self.time,
                "thread_id": self.id, "in_reply_to": self.re, "expires_at": self.expires,
                "signature": signature,
            },
            "payload": payload,
            "metadata": {"status": self.status},
            "local": {"received_at": "2026-04-24T17:42:05Z", "status": self.status},
        });
        format!("{value:#}\n")
    }
}

use sha2::Digest as _;

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Returns the ids of all messages without hashes.
fn ids(books: &Book) -> Vec<&str> {
    books.messages.keys().map(|(_, id)| crate::model::plain_id(id)).collect()
}

/// Makes a file look as if it was written more than a second ago.
fn age(path: &Path) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(10);
    file.set_modified(then).unwrap();
}
