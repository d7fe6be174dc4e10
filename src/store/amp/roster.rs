//! The agents at one moment: their addresses and keys.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::agent::{AmpAgent, short_form_name};
use super::facts::hash_texts;
use super::{address, registration};
use crate::model::{PublicKey, sanitize_line};
use crate::store::StoreError;

/// The most of my addresses that are tried for a signature.
const MAX_ALSO: usize = 16;

/// Keys by address, in lower case.
pub(super) type AmpPeerKeys = BTreeMap<String, PublicKey>;

/// The agents at one moment.
#[derive(Clone, Debug)]
pub(super) struct Roster {
    pub me: AmpAgent,
    /// All agents, me included, by folder name.
    pub agents: Vec<AmpAgent>,
    /// Folders of agents with unreadable configs, and the names of these agents.
    pub broken_agents: Vec<BrokenAgent>,
    /// The faults of the agents' files.
    pub faults: Vec<String>,
    /// True if something could not be read for a reason that may pass.
    pub unsure: bool,
    pub default_provider: String,
    /// The agent of each address; `None` if several have it.
    pub by_address: HashMap<String, Option<usize>>,
    /// The addresses under which I am or was registered. Mail under them stays mine while a registration is missing
    /// or half-written, and after it is gone.
    pub registered: Arc<BTreeSet<String>>,
    pub peer_keys: Arc<AmpPeerKeys>,
    /// A hash of all addresses and keys. If it changes, messages whose sender's key was missing are judged again.
    pub key_hash: u64,
}

/// An agent whose config cannot be read.
#[derive(Clone, Debug)]
pub(super) struct BrokenAgent {
    /// Its names in lower case: from `.index.json`, and the folder's name.
    pub names: Vec<String>,
    /// The fault, which names the file.
    pub fault: String,
}

/// The target of a recipient's address.
pub(super) enum AmpRecipient<'a> {
    /// This agent, under this address.
    Local(&'a AmpAgent, String),
    /// Several agents; a sentence names them.
    Ambiguous(String),
    /// An agent whose config cannot be read now; a sentence names the file.
    Broken(String),
    /// No agent on this host; a sentence says why.
    Unknown(String),
}

impl Roster {
    /// Returns true if this (lower-case) text is or was one of my addresses.
    fn is_my_address(&self, text: &str) -> bool {
        self.me.has_address(text) || self.registered.contains(text)
    }

    /// Returns true if a message to this address, in any spelling, is for me.
    pub fn is_mine(&self, to: &str) -> bool {
        let to = to.trim().to_ascii_lowercase();
        self.is_my_address(&to) || short_form_name(&to).is_some_and(|n| self.me.is_called(n))
    }

    /// Returns true if mail in my `sent/` may have this address as its sender: one of mine, or my name at a local
    /// provider. Some clients write another tenant than the config has.
    pub fn may_write_as(&self, from: &str) -> bool {
        self.is_my_address(from)
            || address::parse(from, &self.me.tenant, &self.default_provider).is_ok_and(|a| {
                self.me.is_called(&a.name) && address::is_local(&a.provider, &self.default_provider)
            })
    }

    /// Returns my addresses if `to` is a short form or another spelling of one of them; else nothing. The sender may
    /// have signed any of them.
    pub fn alternate_addresses(&self, to: &str) -> Vec<&str> {
        let to = to.trim().to_ascii_lowercase();
        let name = to.split_once('@').map_or(to.as_str(), |(name, _)| name);
        if self.is_my_address(&to) || !self.me.is_called(name) {
            return Vec::new();
        }
        self.me.addresses().take(MAX_ALSO).collect()
    }

    /// Returns true if a message from a provider of this name is for me. Some providers write my name with another
    /// tenant.
    pub fn is_mine_at_provider(&self, to: &str, provider: &str) -> bool {
        let Ok(to) = address::parse(to, &self.me.tenant, &self.default_provider) else {
            return false;
        };
        let there = |mine: &String| {
            let domain = mine.split_once('@').map_or("", |(_, domain)| domain);
            domain == provider
                || domain.strip_suffix(provider).is_some_and(|rest| rest.ends_with('.'))
        };
        registration::is_local_network(provider)
            && to.provider == address::LOCAL_PROVIDER
            && self.me.is_called(&to.name)
            && self.registered.iter().any(there)
    }

    /// Returns the key of the one agent with exactly this address (lower case), or of the sender elsewhere.
    pub fn find_key(&self, address: &str) -> Option<PublicKey> {
        if self.me.has_address(address) {
            return self.me.key;
        }
        match self.by_address.get(address) {
            Some(agent) => self.agents.get((*agent)?)?.key,
            None if self.registered.contains(address) => self.me.key,
            None => self.peer_keys.get(address).copied(),
        }
    }

    /// Returns the one agent with exactly this address (lower case).
    pub fn find_agent(&self, address: &str) -> Option<&AmpAgent> {
        self.agents.get((*self.by_address.get(address)?)?)
    }

    /// Returns true if an agent has exactly this address (lower case).
    pub fn has_address(&self, address: &str) -> bool {
        self.by_address.contains_key(address)
    }

    /// Returns the agent of this name whose config cannot be read.
    pub fn find_broken_agent(&self, name: &str) -> Option<&BrokenAgent> {
        self.broken_agents.iter().find(|b| b.names.iter().any(|n| n == name))
    }

    fn find_agents_called(&self, name: &str) -> Vec<&AmpAgent> {
        self.agents.iter().filter(|a| a.is_called(name)).collect()
    }

    /// Returns my names and addresses. If they change, messages must be judged again.
    pub fn my_names(&self) -> Vec<&str> {
        let addresses: BTreeSet<&str> =
            self.me.addresses().chain(self.registered.iter().map(String::as_str)).collect();
        std::iter::once(self.me.name.as_str()).chain(addresses).collect()
    }

    /// Returns the same agents with these keys of senders elsewhere.
    pub fn with_peer_keys(self, peer_keys: Arc<AmpPeerKeys>) -> Self {
        let mut texts: Vec<String> = Vec::new();
        for agent in &self.agents {
            texts.extend(agent.addresses().map(str::to_owned));
            texts.extend(agent.key.map(|key| key.to_base64()));
        }
        texts.extend(self.registered.iter().cloned());
        texts.extend(peer_keys.iter().flat_map(|(to, key)| [to.clone(), key.to_base64()]));
        let key_hash = hash_texts(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        Self { peer_keys, key_hash, ..self }
    }

    /// Returns an address in the form that messages of this store use.
    pub fn canonical_address(&self, text: &str) -> String {
        let text = text.trim().to_ascii_lowercase();
        if let Some(name) = short_form_name(&text) {
            if let [only] = self.find_agents_called(name)[..] {
                return only.address.clone();
            }
            let (tenant, provider) = (&self.me.tenant, &self.default_provider);
            if address::is_name(name) {
                return format!("{name}@{tenant}.{provider}");
            }
        }
        text
    }

    /// Finds the recipient of a message.
    ///
    /// # Errors
    /// If the text is no address.
    pub fn resolve_recipient(&self, text: &str) -> Result<AmpRecipient<'_>, StoreError> {
        let parsed = address::parse(text, &self.me.tenant, &self.default_provider)
            .map_err(StoreError::Invalid)?;
        let lower = text.trim().to_ascii_lowercase();
        if let Some(name) = short_form_name(&lower) {
            let found = self.find_agents_called(name);
            return Ok(match found[..] {
                [only] => AmpRecipient::Local(only, only.address.clone()),
                [] => self.explain_missing(name, || self.explain_unknown_name(name)),
                _ => AmpRecipient::Ambiguous(explain_ambiguity(&lower, &found)),
            });
        }
        if let Some(agent) = self.find_agent(&lower) {
            return Ok(AmpRecipient::Local(agent, lower));
        }
        let same: Vec<&AmpAgent> = self.agents.iter().filter(|a| a.has_address(&lower)).collect();
        if same.len() > 1 {
            return Ok(AmpRecipient::Ambiguous(explain_ambiguity(&lower, &same)));
        }
        if address::is_local(&parsed.provider, &self.default_provider) {
            return Ok(self.explain_missing(&parsed.name, || {
                self.explain_unknown_address(&lower, &parsed.name)
            }));
        }
        Ok(AmpRecipient::Unknown(format!(
            "{lower} is at the provider {}, which is not on this machine, and no link reaches it: \
             register with it by msgfs amp register, or write to an agent of this machine ({})",
            parsed.provider,
            self.describe_known_agents()
        )))
    }

    fn explain_missing(&self, name: &str, why: impl FnOnce() -> String) -> AmpRecipient<'_> {
        match self.find_broken_agent(name).filter(|_| self.find_agents_called(name).is_empty()) {
            Some(broken) => AmpRecipient::Broken(format!(
                "{}; mend it, or send again when the program that writes it is done",
                broken.fault
            )),
            None => AmpRecipient::Unknown(why()),
        }
    }

    fn explain_unknown_name(&self, name: &str) -> String {
        format!(
            "no agent of this machine is called {name} and has a config.json; {}",
            self.describe_known_agents()
        )
    }

    fn explain_unknown_address(&self, address: &str, name: &str) -> String {
        let like: Vec<&str> =
            self.find_agents_called(name).iter().map(|a| a.address.as_str()).collect();
        if like.is_empty() {
            return format!(
                "no agent of this machine has the address {address} and a config.json; {}",
                self.describe_known_agents()
            );
        }
        format!(
            "no agent of this machine has the address {address}; the address of {name} is {}",
            like.join(" or ")
        )
    }

    /// Lists the agents for people.
    fn describe_known_agents(&self) -> String {
        let mut known: Vec<&str> = self.agents.iter().map(|a| a.address.as_str()).collect();
        let more = known.len().saturating_sub(10);
        known.truncate(10);
        let list = sanitize_line(&known.join(", ")).into_owned();
        if more > 0 {
            format!("there are {list} and {more} more")
        } else {
            format!("there is {list}")
        }
    }

    /// Finds pairs of agents that cannot be told apart. Returns them with the address or name that they share.
    pub fn find_clashes(&self) -> Vec<(&AmpAgent, &AmpAgent, &str)> {
        let mut out = Vec::new();
        for (n, a) in self.agents.iter().enumerate() {
            for b in self.agents.iter().skip(n + 1) {
                if let Some(address) = a.addresses().find(|x| b.has_address(x)) {
                    out.push((a, b, address));
                } else if a.name == b.name {
                    out.push((a, b, a.name.as_str()));
                }
            }
        }
        out
    }
}

/// Explains that a text means several agents, and names them.
pub(super) fn explain_ambiguity(text: &str, found: &[&AmpAgent]) -> String {
    let list: Vec<String> = found
        .iter()
        .map(|a| format!("{} (folder {})", sanitize_line(&a.address), sanitize_line(&a.folder)))
        .collect();
    format!(
        "{} is more than one agent of this machine: {}",
        sanitize_line(text),
        list.join(" and ")
    )
}
