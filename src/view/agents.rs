//! `agents.txt`: all known agents, the time when each last wrote, and the number of messages that it has not
//! read; and the groups of the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::generation_cache::GenerationCache;
use super::node::{NodeProperty, PagePolicy};
use super::table::View;
use super::{Error, ONE, Tree, names};
use crate::index::{Correspondent, StoreAddress};
use crate::model::Timestamp;
use crate::store::{PeerUnread, Store};

/// Shortest time between two questions to the stores about read positions.
const MAX_AGE: Duration = Duration::from_secs(1);

/// An agent that a store knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AgentStatus {
    /// The address, as the stores have it.
    pub name: String,
    /// The names of the stores that know it.
    pub stores: Vec<String>,
    /// The time when it last wrote, in RFC 3339.
    pub last_wrote: Option<String>,
    /// Number of messages to it that it has not read, if a store knows that.
    pub unread: Option<u64>,
    /// Fingerprint of its key.
    pub key: Option<String>,
    /// True if that key is pinned to the address.
    pub pinned: bool,
    /// True if it is another identity of this user that has a mount on this machine now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mounted: bool,
}

/// The first line of the file, which names the words of the other lines.
const HEADING: &str = "# name stores last-wrote unread key pinned mounted (-: not known)\n";

/// All agents at one moment.
#[derive(Clone, Debug, Default)]
struct AgentDirectory {
    agents: Vec<AgentStatus>,
    /// The text of the file.
    text: String,
    /// Its time.
    time: Timestamp,
}

/// Facts of each store about an address, and the number of messages that it has not read.
type AgentTable = BTreeMap<StoreAddress, (Correspondent, Option<u64>)>;

/// The addresses of others who have a mount now.
type MountedAgents = BTreeSet<StoreAddress>;

/// The view `agents.txt`.
#[derive(Debug)]
pub(super) struct AgentsView {
    cache: GenerationCache<(), Arc<AgentDirectory>>,
}

impl Default for AgentsView {
    fn default() -> Self {
        Self { cache: GenerationCache::with_max_age(ONE, MAX_AGE) }
    }
}

impl AgentsView {
    fn directory(&self, tree: &Tree) -> Arc<AgentDirectory> {
        self.cache.get((), tree.generation(), || Arc::new(collect_agents(tree)))
    }
}

impl View for AgentsView {
    type Key = ();

    fn node_properties((): &()) -> &'static [NodeProperty] {
        &[NodeProperty::Pages(PagePolicy::Bypass)]
    }

    fn text(&self, tree: &Tree, (): &()) -> Result<(String, Timestamp), Error> {
        let agents = self.directory(tree);
        Ok((agents.text.clone(), agents.time))
    }
}

impl Tree {
    /// Returns all agents, by name.
    pub fn agent_statuses(&self) -> Vec<AgentStatus> {
        self.views.agents.directory(self).agents.clone()
    }
}

fn collect_agents(tree: &Tree) -> AgentDirectory {
    let mut seen = AgentTable::new();
    let people = tree.index.read().list_correspondents();
    let newest = people.values().filter_map(|person| person.wrote).max();
    for ((number, address), person) in people {
        let Some(store) = tree.index.stores().get(number) else { continue };
        // One address may be written in several ways.
        let (known, _) = seen.entry((number, store.canonical_address(&address))).or_default();
        if known.wrote <= person.wrote {
            *known = person;
        }
    }
    for (number, store) in tree.index.stores().iter().enumerate() {
        for address in list_store_agents(store.as_ref()) {
            seen.entry((number, address)).or_default();
        }
    }
    let mounted = list_mounted_agents(tree);
    for whom in &mounted {
        seen.entry(whom.clone()).or_default();
    }
    let read = count_unread(tree, &mut seen);
    let mut by_name: BTreeMap<&str, AgentStatus> = BTreeMap::new();
    for (whom, (person, unread)) in &seen {
        let agent = by_name.entry(&whom.1).or_default();
        merge_agent(tree, agent, whom, person, *unread);
        agent.mounted |= mounted.contains(whom);
    }
    let mut all: Vec<AgentStatus> = by_name.into_values().collect();
    all.sort_by_cached_key(|agent| names::thread_name(&agent.name));
    let time = newest.max(tree.index.marks_time()).max(read).unwrap_or_default();
    let lines = all.iter().map(format_agent_line);
    let groups = tree.settings.groups.iter().map(format_group_line);
    let text = std::iter::once(HEADING.to_owned()).chain(lines).chain(groups).collect();
    AgentDirectory { text, agents: all, time }
}

/// Adds the unread counts: for others from the stores, for me from `inbox/`. Returns the time when another
/// agent last read something.
fn count_unread(tree: &Tree, seen: &mut AgentTable) -> Option<Timestamp> {
    let (mut newest, mut marks) = (None, BTreeMap::new());
    let mine = tree.index.read().count_unread_by_store();
    for (number, store) in tree.index.stores().iter().enumerate() {
        let here = seen.iter_mut().filter(|(whom, _)| whom.0 == number);
        let (me, others): (Vec<_>, Vec<_>) = here.partition(|(whom, _)| whom.1 == store.me());
        for (_, (_, unread)) in me {
            *unread = mine.get(number).map(|n| *n as u64);
        }
        let Some(directory) = store.facets().directory else { continue };
        let names: Vec<&str> = others.iter().map(|(whom, _)| whom.1.as_str()).collect();
        let told = directory.peer_read_states(&names);
        for ((whom, (_, unread)), told) in others.into_iter().zip(told) {
            let Some(told) = told else { continue };
            newest = newest.max(told.since);
            match told.unread {
                PeerUnread::Count(count) => *unread = Some(count),
                PeerUnread::Position(mark) => drop(marks.insert(whom.clone(), mark)),
            }
        }
    }
    let behind = if marks.is_empty() { Vec::new() } else { tree.index.read().count_behind(&marks) };
    for (whom, behind) in behind {
        if let Some((_, unread)) = seen.get_mut(&whom) {
            *unread = Some(behind);
        }
    }
    newest
}

/// Adds the facts that one store has about an agent.
fn merge_agent(
    tree: &Tree,
    agent: &mut AgentStatus,
    whom: &StoreAddress,
    person: &Correspondent,
    unread: Option<u64>,
) {
    let Some(store) = tree.index.stores().get(whom.0) else { return };
    agent.name.clone_from(&whom.1);
    agent.stores.push(store.name().to_owned());
    agent.stores.sort_unstable();
    agent.last_wrote = agent.last_wrote.take().max(person.wrote.map(Timestamp::rfc3339));
    agent.unread = agent.unread.map_or(unread, |sum| Some(sum + unread.unwrap_or(0)));
    if let Some(key) = tree.index.keyring().pinned_keys(&whom.1).last() {
        (agent.key, agent.pinned) = (Some(key.fingerprint().to_string()), true);
    } else if store.properties().uses_roles && agent.key.is_none() {
        // Many may fill a role; this is the key of the one that did.
        agent.key = person.key.map(|key| key.fingerprint().to_string());
    }
}

/// Returns the other identities of this user that have a mount now, in stores that show them.
fn list_mounted_agents(tree: &Tree) -> MountedAgents {
    let mut all = MountedAgents::new();
    for (number, store) in tree.index.stores().iter().enumerate() {
        if store.properties().shows_mounted {
            let found = (tree.settings.find_mounted.0)(store.dir());
            all.extend(found.iter().map(|address| (number, store.canonical_address(address))));
        }
    }
    all
}

/// Returns the agents that have a mailbox of their own in a store.
fn list_store_agents(store: &dyn Store) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    if let Some(directory) = store.facets().directory {
        all.extend(directory.list_peers());
    }
    all.insert(store.me().to_owned());
    all.extend(store.properties().default_recipient.map(str::to_owned));
    all
}

/// Formats the line of a group: its name with a colon, which no name of an agent has here, and its members.
fn format_group_line((name, members): (&String, &Vec<String>)) -> String {
    let members: Vec<String> = members.iter().map(|one| names::thread_name(one)).collect();
    format!("{}: {}\n", names::thread_name(name), members.join(" "))
}

/// Formats the line of an agent: words with one blank between them.
fn format_agent_line(agent: &AgentStatus) -> String {
    let stores: Vec<String> = agent.stores.iter().map(|name| names::thread_name(name)).collect();
    let mut line = format!("{} {}", names::thread_name(&agent.name), stores.join(","));
    let unread = agent.unread.map(|n| n.to_string());
    let pinned = agent.pinned.then_some("pinned");
    for word in [agent.last_wrote.as_deref(), unread.as_deref(), agent.key.as_deref(), pinned] {
        // Writing to a String cannot fail.
        let _ = write!(line, " {}", word.unwrap_or("-"));
    }
    if agent.mounted {
        line.push_str(" mounted");
    }
    line + "\n"
}
