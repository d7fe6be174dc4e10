//! One agent of this host: its config, registrations and public key (docs/formats/amp.md, sections 2 and 3).

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::address::{self, AmpAddress, DEFAULT_TENANT};
use super::{pem, registration};
use crate::model::{PublicKey, sanitize_line};
use crate::store::confined;
use crate::store::engine::files;
use crate::store::fs::{FaultFlag, Stamp, read_small_file};

/// The largest config, registration or key file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// An agent as its own files describe it. All addresses and names are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AmpAgent {
    /// The folder.
    pub dir: PathBuf,
    /// The folder's name.
    pub folder: String,
    /// `agent.name`.
    pub name: String,
    pub tenant: String,
    pub provider: String,
    /// The address in its config.
    pub address: String,
    /// The addresses in its registrations; the one of its config may be among them.
    pub registered: Vec<String>,
    /// The key in `keys/public.pem`, if it is usable.
    pub key: Option<PublicKey>,
}

impl AmpAgent {
    /// Returns all its addresses, the one of its config first.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        let others = self.registered.iter().filter(|a| **a != self.address);
        std::iter::once(self.address.as_str()).chain(others.map(String::as_str))
    }

    /// Returns true if this (lower-case) text is one of its addresses.
    pub fn has_address(&self, text: &str) -> bool {
        self.addresses().any(|a| a == text)
    }

    /// Returns true if the agent has this (lower-case) name.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.address.split_once('@').is_some_and(|(local, _)| local == name)
    }
}

/// Returns the name if an address selects its agent whatever the tenant; `None` if the whole address must match.
/// `address` is in lower case.
pub(super) fn short_form_name(address: &str) -> Option<&str> {
    match address.split_once('@') {
        None => Some(address),
        Some((name, "local" | "default.local")) => Some(name),
        Some(_) => None,
    }
}

/// The contents of one folder as read, and the stamps of all files that were examined.
#[derive(Debug)]
pub(super) struct AgentFolderRecord {
    /// The agent; `None` if the folder holds none.
    pub agent: Option<AmpAgent>,
    /// True if the config is unreadable and never was readable. Another program may still be writing it.
    pub is_broken: bool,
    /// The fault of its files, for people.
    pub fault_text: Option<String>,
    /// Set if a file could not be read for a reason that may pass.
    pub fault: FaultFlag,
    file_stamps: Vec<(PathBuf, Option<Stamp>)>,
}

impl AgentFolderRecord {
    /// Returns true if nothing has changed since the read.
    pub fn is_fresh(&self) -> bool {
        !self.fault.is_set()
            && self.file_stamps.iter().all(|(path, stamp)| read_stamp(path) == *stamp)
    }
}

fn read_stamp(path: &Path) -> Option<Stamp> {
    std::fs::symlink_metadata(path).ok().map(|m| Stamp::from(&m))
}

/// Reads an agent's folder. An agent whose config was readable before, and is not now, stays as it was: another program
/// may be rewriting the config.
pub(super) fn read_agent(
    dir: &Path,
    default_provider: &str,
    before: Option<&AgentFolderRecord>,
) -> AgentFolderRecord {
    let config = dir.join("config.json");
    let registrations = dir.join("registrations");
    let key = dir.join("keys/public.pem");
    let mut seen: Vec<(PathBuf, Option<Stamp>)> =
        [&config, &registrations, &key].map(|p| (p.clone(), read_stamp(p))).into();
    let folder = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let (mut trouble, fault) = (None, FaultFlag::default());
    let mut agent = match read_json_object(&config) {
        Ok(value) => Some(agent_from_config(&value, dir, &folder, default_provider)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => {
            fault.note_error(&e);
            trouble = Some(format!(
                "{}: the config of this agent cannot be read: {}",
                sanitize_line(&config.to_string_lossy()),
                sanitize_line(&e.to_string())
            ));
            before.and_then(|b| b.agent.clone())
        }
    };
    if let Some(agent) = &mut agent {
        agent.key = read_public_key(dir, &fault);
        agent.registered = read_registered_addresses(dir, default_provider, &mut seen, &fault);
    }
    AgentFolderRecord {
        is_broken: agent.is_none() && trouble.is_some(),
        agent,
        fault_text: trouble,
        fault,
        file_stamps: seen,
    }
}

fn read_json_object(path: &Path) -> io::Result<Value> {
    let bytes = read_small_file(path, MAX_FILE)?;
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("not JSON: {e}")))?;
    if value.is_object() {
        return Ok(value);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "not a JSON object"))
}

fn read_public_key(dir: &Path, fault: &FaultFlag) -> Option<PublicKey> {
    let read = confined::open_path(dir, &["keys", "public.pem"])
        .and_then(|file| confined::read_whole(&file, MAX_FILE as usize));
    let (_, bytes) = read.inspect_err(|e| fault.note_error(e)).ok()?;
    pem::parse_public_key(std::str::from_utf8(&bytes).ok()?).ok()
}

/// Returns the member `path` of nested objects in lower case, if it is a text that is not empty.
pub(super) fn lowercase_text(value: &Value, path: &[&str]) -> Option<String> {
    let found = path.iter().try_fold(value, |v, key| v.get(key))?.as_str()?.trim();
    (!found.is_empty()).then(|| found.to_ascii_lowercase())
}

fn agent_from_config(config: &Value, dir: &Path, folder: &str, default_provider: &str) -> AmpAgent {
    let own =
        |key| lowercase_text(config, &["agent", key]).or_else(|| lowercase_text(config, &[key]));
    let written = own("address");
    let parsed = written.as_deref().and_then(|a| {
        address::parse(a, DEFAULT_TENANT, default_provider).ok().filter(|_| a.contains('@'))
    });
    let part = |part: fn(&AmpAddress) -> &String| parsed.as_ref().map(|a| part(a).clone());
    let name = own("name").or_else(|| part(|a| &a.name));
    let name = name.unwrap_or_else(|| folder.to_ascii_lowercase());
    let tenant = own("tenant").or_else(|| part(|a| &a.tenant));
    let tenant = tenant.unwrap_or_else(|| DEFAULT_TENANT.to_owned());
    let provider =
        lowercase_text(config, &["provider", "domain"]).or_else(|| part(|a| &a.provider));
    let provider = provider.unwrap_or_else(|| default_provider.to_ascii_lowercase());
    let address = match (written, parsed) {
        (Some(written), Some(_)) => written,
        _ => format!("{name}@{tenant}.{provider}"),
    };
    AmpAgent {
        dir: dir.to_owned(),
        folder: folder.to_owned(),
        name,
        tenant,
        provider,
        address,
        registered: Vec::new(),
        key: None,
    }
}

/// Reads the addresses under which an agent is registered with providers.
fn read_registered_addresses(
    dir: &Path,
    default_provider: &str,
    seen: &mut Vec<(PathBuf, Option<Stamp>)>,
    fault: &FaultFlag,
) -> Vec<String> {
    let names = confined::open_dir(dir, &["registrations"]).and_then(|dir| files::list_names(&dir));
    let names = names.inspect_err(|e| fault.note_error(e)).unwrap_or_default();
    let mut out = Vec::new();
    let paths = names.into_iter().flat_map(|(name, _)| name);
    let paths = paths.map(|name| dir.join("registrations").join(name));
    for path in paths.filter(|p| p.extension().is_some_and(|e| e == "json")) {
        seen.push((path.clone(), read_stamp(&path)));
        let read = read_json_object(&path).inspect_err(|e| fault.note_error(e));
        let Ok(value) = read else { continue };
        out.extend(registration::parse_registered_address(&value, default_provider));
    }
    out
}
