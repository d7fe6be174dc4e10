//! The agents of this host, and my own agent (docs/formats/amp.md, section 2).
//!
//! Other clients rewrite configs whenever they like, so nothing is cached for long: every use asks for a [`Roster`],
//! and files that have changed are read again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::FileType;

use crate::model::locks::Mutex;

use super::address;
use super::agent::{self, AmpAgent};
use super::roster::{AmpPeerKeys, BrokenAgent, Roster, explain_ambiguity};
use crate::model::{PublicKey, sanitize_line, to_json};
use crate::store::confined;
use crate::store::engine::files;
use crate::store::fs::read_small_file;
use crate::store::{StoreError, StoreSpec, atomic_file, fs};

/// The file with the keys of senders elsewhere, in the state folder.
const PEERS: &str = "keys.json";
/// The file with the addresses under which I am or was registered, in the state folder.
const ADDRESSES: &str = "addresses.json";
/// The largest file of keys or addresses, in bytes.
const MAX_FILE: u64 = 64 << 20;

/// The time for which a roster serves readers of messages.
const RECENT: Duration = Duration::from_millis(100);

/// The folders of the agents.
#[derive(Debug)]
pub(super) struct AmpHome {
    /// My own folder.
    pub my_dir: PathBuf,
    /// The folder that holds all agents' folders; it may not exist.
    root: Option<PathBuf>,
    default_provider: String,
    /// The folder of the state; `None` if nothing may be written.
    state_dir: Option<PathBuf>,
    state: Mutex<AmpHomeState>,
}

#[derive(Debug, Default)]
struct AmpHomeState {
    agent_records: HashMap<PathBuf, agent::AgentFolderRecord>,
    roster: Option<Arc<Roster>>,
    checked_at: Option<Instant>,
    /// The keys of senders who are no agents of this machine, by address. The first key that a provider gave stays.
    peer_keys: Arc<AmpPeerKeys>,
    /// The addresses under which I am or was registered. A registration can be missing or half-written for a moment.
    registered: Arc<BTreeSet<String>>,
}

impl AmpHomeState {
    /// Sets the addresses under which I am or was registered. The next roster knows them.
    fn set_registered(&mut self, registered: BTreeSet<String>) {
        self.registered = Arc::new(registered);
        if let Some(roster) = &mut self.roster {
            Arc::make_mut(roster).registered = Arc::clone(&self.registered);
        }
    }

    /// Sets the keys of senders elsewhere. The next roster knows them.
    fn set_peer_keys(&mut self, peers: AmpPeerKeys) {
        self.peer_keys = Arc::new(peers);
        if let Some(roster) = &mut self.roster {
            let peers = Arc::clone(&self.peer_keys);
            *roster = Arc::new(Roster::clone(roster).with_peer_keys(peers));
        }
    }
}

impl AmpHome {
    /// Finds the agents, and me among them.
    ///
    /// # Errors
    /// If there are no agents, or I am none of them or more than one.
    pub fn open(spec: &StoreSpec) -> Result<Self, StoreError> {
        let provider = std::env::var("AMP_PROVIDER_DOMAIN").ok().filter(|p| !p.trim().is_empty());
        let default_provider = provider
            .map_or_else(|| address::LOCAL_PROVIDER.to_owned(), |p| p.trim().to_ascii_lowercase());
        // AMP_DIR may name an agent's folder through a symlink beside it.
        let dir = std::fs::canonicalize(&spec.dir).map_err(|e| missing_dir_error(&spec.dir, e))?;
        let inside = dir.join("agents");
        let state_dir = spec.state.clone();
        let mut state = AmpHomeState::default();
        if let Some(saved) = &state_dir {
            state.peer_keys = Arc::new(read_peer_keys(saved)?);
            state.registered = Arc::new(read_json_file(&saved.join(ADDRESSES))?);
        }
        let state = Mutex::new(state);
        if inside.is_dir() {
            let inside = std::fs::canonicalize(&inside).map_err(|e| StoreError::io(&inside, e))?;
            let root = Some(inside.clone());
            let mut home =
                Self { my_dir: PathBuf::new(), root, default_provider, state_dir, state };
            home.my_dir =
                home.choose_agent(&inside, spec.own_address.as_deref().unwrap_or(&spec.me))?;
            // The roster so far does not know who I am.
            home.state.lock().roster = None;
            return Ok(home);
        }
        if !dir.join("config.json").is_file() {
            return Err(StoreError::Invalid(format!(
                "{}: holds neither a folder `agents` nor a `config.json`, so it is not a folder \
                 of AMP agents; give the folder that holds `agents`, or make an agent with \
                 amp-init",
                sanitize_line(&spec.dir.to_string_lossy())
            )));
        }
        let parent = dir.parent().filter(|p| p.file_name().is_some_and(|n| n == "agents"));
        let root = match parent {
            Some(parent) => Some(parent.to_owned()),
            // Every path has one spelling, so that I do not count as a second agent.
            None => spec.home.as_ref().map(|home| {
                let root = home.join(".agent-messaging/agents");
                std::fs::canonicalize(&root).unwrap_or(root)
            }),
        };
        let home = Self { my_dir: dir, root, default_provider, state_dir, state };
        if home.refresh_agents(&mut home.state.lock()).is_none() {
            return Err(home.no_config_error());
        }
        Ok(home)
    }

    fn no_config_error(&self) -> StoreError {
        let config = self.my_dir.join("config.json");
        StoreError::Invalid(format!(
            "{}: the config of this agent cannot be read; mend it or run amp-init",
            sanitize_line(&config.to_string_lossy())
        ))
    }

    /// Returns the agents now, and reads changed files again.
    ///
    /// # Errors
    /// If my own config was never readable.
    pub fn refresh_roster(&self) -> Result<Arc<Roster>, StoreError> {
        self.refresh_agents(&mut self.state.lock()).ok_or_else(|| self.no_config_error())
    }

    /// Returns the agents as they were a moment ago, for reading many messages in a row.
    ///
    /// # Errors
    /// The errors of [`AmpHome::refresh_roster`].
    pub fn recent_roster(&self) -> Result<Arc<Roster>, StoreError> {
        let mut state = self.state.lock();
        if let (Some(roster), Some(checked)) = (&state.roster, state.checked_at)
            && checked.elapsed() < RECENT
        {
            return Ok(Arc::clone(roster));
        }
        self.refresh_agents(&mut state).ok_or_else(|| self.no_config_error())
    }

    /// Pins the key of a sender elsewhere, on disk if possible. A known key is never replaced.
    ///
    /// # Errors
    /// The error of the system; then nothing is pinned.
    pub fn pin_key(&self, address: &str, key: PublicKey) -> Result<(), StoreError> {
        let address = address.to_ascii_lowercase();
        let mut state = self.state.lock();
        if let Some(known) = state.peer_keys.get(&address) {
            if *known != key {
                tracing::warn!(
                    address = %sanitize_line(&address),
                    "the provider names another key than before; msgfs trusts the first one"
                );
            }
            return Ok(());
        }
        let mut peers = AmpPeerKeys::clone(&state.peer_keys);
        peers.insert(address, key);
        let text: BTreeMap<&str, String> =
            peers.iter().map(|(address, key)| (address.as_str(), key.to_base64())).collect();
        self.save_json(PEERS, &text)?;
        state.set_peer_keys(peers);
        Ok(())
    }

    /// Remembers an address that is mine, on disk if possible.
    pub fn remember_address(&self, address: &str) {
        self.remember_addresses(&mut self.state.lock(), &[address.to_owned()]);
    }

    fn remember_addresses(&self, state: &mut AmpHomeState, mine: &[String]) {
        let mut all = BTreeSet::clone(&state.registered);
        all.extend(mine.iter().cloned());
        if all.len() == state.registered.len() {
            return;
        }
        if let Err(error) = self.save_json(ADDRESSES, &all) {
            // The registration tells it again after the next start.
            tracing::warn!(%error, "my addresses at providers cannot be saved");
        }
        state.set_registered(all);
    }

    /// Saves a value in the state folder, if there is one.
    fn save_json(&self, name: &str, value: &impl serde::Serialize) -> Result<(), StoreError> {
        let Some(dir) = &self.state_dir else { return Ok(()) };
        let path = dir.join(name);
        fs::make_dirs(dir, 0o700)
            .and_then(|()| atomic_file::write_atomic(&path, &to_json(value), 0o600))
            .map_err(|e| StoreError::io(&path, e))
    }

    /// Reads keys and addresses from a state folder that this process does not write.
    ///
    /// # Errors
    /// If a file exists and cannot be read.
    pub fn load_saved_state(&self, dir: &Path) -> Result<(), StoreError> {
        let peers = read_peer_keys(dir)?;
        let mut mine: BTreeSet<String> = read_json_file(&dir.join(ADDRESSES))?;
        let mut state = self.state.lock();
        mine.extend(state.registered.iter().cloned());
        state.set_peer_keys(peers);
        state.set_registered(mine);
        Ok(())
    }

    /// Lists the folders of agents. Only real folders count, so that a `<name>` symlink to `<uuid>` is not a second
    /// agent.
    fn list_agent_folders(&self) -> Vec<PathBuf> {
        let list = |root: &Path| files::list_names(&confined::open_dir(root, &[])?);
        let root = self.root.as_deref().unwrap_or(Path::new(""));
        let names = list(root).unwrap_or_default().into_iter();
        let mut out: Vec<PathBuf> = names
            .filter(|(_, kind)| *kind == FileType::Directory)
            .filter_map(|(name, _)| Some(root.join(name.ok()?)))
            .collect();
        if !self.my_dir.as_os_str().is_empty() && !out.contains(&self.my_dir) {
            out.push(self.my_dir.clone());
        }
        out.sort_unstable();
        out
    }

    fn refresh_agents(&self, state: &mut AmpHomeState) -> Option<Arc<Roster>> {
        let folders = self.list_agent_folders();
        let mut changed = state.roster.is_none() || state.agent_records.len() != folders.len();
        state.agent_records.retain(|dir, _| folders.binary_search(dir).is_ok());
        for dir in &folders {
            let before = state.agent_records.get(dir);
            if before.is_some_and(agent::AgentFolderRecord::is_fresh) {
                continue;
            }
            let read = agent::read_agent(dir, &self.default_provider, before);
            state.agent_records.insert(dir.clone(), read);
            changed = true;
        }
        state.checked_at = Some(Instant::now());
        if changed {
            let me = state.agent_records.get(&self.my_dir).and_then(|read| read.agent.as_ref());
            if let Some(registered) = me.map(|me| me.registered.clone()) {
                self.remember_addresses(state, &registered);
            }
            let earlier = state.roster.as_ref().map(|r| r.me.clone());
            let peers = Arc::clone(&state.peer_keys);
            let roster = self.build_roster(&folders, &state.agent_records, earlier, peers);
            let registered = Arc::clone(&state.registered);
            state.roster = roster.map(|roster| Arc::new(Roster { registered, ..roster }));
        }
        state.roster.clone()
    }

    fn build_roster(
        &self,
        folders: &[PathBuf],
        read: &HashMap<PathBuf, agent::AgentFolderRecord>,
        earlier: Option<AmpAgent>,
        peers: Arc<AmpPeerKeys>,
    ) -> Option<Roster> {
        let list = || folders.iter().filter_map(|dir| read.get(dir));
        let agents: Vec<AmpAgent> = list().filter_map(|r| r.agent.clone()).collect();
        // While my config is missing for a moment, I stay who I was.
        let me = agents.iter().find(|a| a.dir == self.my_dir).cloned().or(earlier);
        let mut by_address: HashMap<String, Option<usize>> = HashMap::new();
        for (n, agent) in agents.iter().enumerate() {
            for address in agent.addresses() {
                let slot = by_address.entry(address.to_owned()).or_insert(Some(n));
                if *slot != Some(n) {
                    *slot = None;
                }
            }
        }
        let roster = Roster {
            me: me.or_else(|| self.my_dir.as_os_str().is_empty().then(placeholder_agent))?,
            broken_agents: self.find_broken_agents(folders, read),
            faults: list().filter_map(|r| r.fault_text.clone()).collect(),
            unsure: list().any(|r| r.fault.is_set()),
            default_provider: self.default_provider.clone(),
            agents,
            by_address,
            registered: Arc::default(),
            peer_keys: Arc::default(),
            key_hash: 0,
        };
        Some(roster.with_peer_keys(peers))
    }

    fn find_broken_agents(
        &self,
        folders: &[PathBuf],
        read: &HashMap<PathBuf, agent::AgentFolderRecord>,
    ) -> Vec<BrokenAgent> {
        let broken = |dir: &&PathBuf| read.get(*dir).is_some_and(|r| r.is_broken);
        let mut known = None;
        let mut out = Vec::new();
        for dir in folders.iter().filter(broken) {
            let folder = dir.file_name().map(|n| n.to_string_lossy().into_owned());
            let folder = folder.unwrap_or_default();
            let root = self.root.as_deref().unwrap_or(dir);
            let index = known.get_or_insert_with(|| read_index(root));
            let indexed = index.iter().filter(|(_, f)| **f == folder);
            let mut names: Vec<String> = indexed.map(|(n, _)| n.to_ascii_lowercase()).collect();
            names.push(folder.to_ascii_lowercase());
            let trouble = read.get(dir).and_then(|r| r.fault_text.clone()).unwrap_or_default();
            out.push(BrokenAgent { names, fault: trouble });
        }
        out
    }

    /// Finds the folder of the agent called `name`: by its config, else by the index, else by its folder.
    fn choose_agent(&self, root: &Path, name: &str) -> Result<PathBuf, StoreError> {
        let roster = self.refresh_roster()?;
        let wanted = name.trim().to_ascii_lowercase();
        let pick = |fits: &dyn Fn(&AmpAgent) -> bool| -> Result<Option<PathBuf>, StoreError> {
            let found: Vec<&AmpAgent> = roster.agents.iter().filter(|a| fits(a)).collect();
            match found[..] {
                [] => Ok(None),
                [only] => Ok(Some(only.dir.clone())),
                _ => Err(StoreError::Invalid(format!(
                    "{}; say which one is yours {} in the [[store]] of kind \"amp\"",
                    explain_ambiguity(&wanted, &found),
                    describe_choices(root, &found)
                ))),
            }
        };
        let indexed = find_indexed_folders(root, &wanted);
        let ways: [&dyn Fn(&AmpAgent) -> bool; 4] = [
            &|a| wanted.contains('@') && a.has_address(&wanted),
            &|a| a.name == wanted,
            &|a| indexed.contains(&a.folder),
            &|a| a.folder.eq_ignore_ascii_case(&wanted),
        ];
        for fits in ways {
            if let Some(dir) = pick(fits)? {
                return Ok(dir);
            }
        }
        if let Some(broken) = roster.find_broken_agent(&wanted) {
            return Err(StoreError::Invalid(format!("{}; mend it", broken.fault)));
        }
        let names: Vec<&str> = roster.agents.iter().map(|a| a.name.as_str()).collect();
        let list = if names.is_empty() { "nobody".to_owned() } else { names.join(", ") };
        Err(StoreError::Invalid(format!(
            "{}: no agent here is called {:?}; there is {}; say which one is yours with \
             me = \"NAME\" in the [[store]] of kind \"amp\"",
            sanitize_line(&root.to_string_lossy()),
            sanitize_line(name),
            sanitize_line(&list)
        )))
    }
}

/// Explains to a person how to choose one of several agents.
fn describe_choices(root: &Path, found: &[&AmpAgent]) -> String {
    let differ =
        |(n, a): (usize, &&AmpAgent)| found.iter().skip(n + 1).all(|b| a.address != b.address);
    if found.iter().enumerate().all(differ) {
        return "by its address: me = \"ADDRESS\"".to_owned();
    }
    // If two agents share an address, only the folder tells them apart.
    let list: Vec<String> = found
        .iter()
        .map(|a| format!("dir = {:?}", sanitize_line(&root.join(&a.folder).to_string_lossy())))
        .collect();
    format!("by its folder: {}", list.join(" or "))
}

fn missing_dir_error(dir: &Path, error: io::Error) -> StoreError {
    if error.kind() != io::ErrorKind::NotFound {
        return StoreError::io(dir, error);
    }
    StoreError::Invalid(format!(
        "{}: does not exist; make an agent there with amp-init, or let `dir` in the [[store]] of kind \
         \"amp\" name the folder that holds `agents` (usually ~/.agent-messaging)",
        sanitize_line(&dir.to_string_lossy())
    ))
}

/// Reads the keys of senders elsewhere from the state folder. Without them nobody could verify a sender.
fn read_peer_keys(dir: &Path) -> Result<AmpPeerKeys, StoreError> {
    let path = dir.join(PEERS);
    let kept: BTreeMap<String, String> = read_json_file(&path)?;
    let key = |(address, key): (String, String)| {
        let missing =
            || broken_file_error(&path, format!("there is no key of {}", sanitize_line(&address)));
        let key = PublicKey::from_base64(&key).ok_or_else(missing)?;
        Ok((address, key))
    };
    kept.into_iter().map(key).collect()
}

/// Reads a file of the state folder. A missing one is empty.
fn read_json_file<T: Default + serde::de::DeserializeOwned>(path: &Path) -> Result<T, StoreError> {
    match read_small_file(path, MAX_FILE) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(e) => Err(StoreError::io(path, e)),
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|e| broken_file_error(path, e.to_string()))
        }
    }
}

fn broken_file_error(path: &Path, why: String) -> StoreError {
    StoreError::io(path, io::Error::new(io::ErrorKind::InvalidData, why))
}

/// Returns an agent that stands for me while I am being found.
fn placeholder_agent() -> AmpAgent {
    AmpAgent {
        dir: PathBuf::new(),
        folder: String::new(),
        name: String::new(),
        tenant: address::DEFAULT_TENANT.to_owned(),
        provider: address::LOCAL_PROVIDER.to_owned(),
        address: String::new(),
        registered: Vec::new(),
        key: None,
    }
}

/// Returns the folders that `.index.json` gives for a name in any case.
fn find_indexed_folders(root: &Path, name: &str) -> Vec<String> {
    let fits = |(key, _): &(String, String)| key.eq_ignore_ascii_case(name);
    let folders = read_index(root).into_iter().filter(fits).map(|(_, folder)| folder);
    folders.filter(|folder| confined::is_component(folder)).collect()
}

/// Reads `.index.json`, which maps names to folders.
fn read_index(root: &Path) -> HashMap<String, String> {
    let bytes = read_small_file(&root.join(".index.json"), 16 << 20).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}
