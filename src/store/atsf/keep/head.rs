//! The `thread.json` of a kept session.

use serde::{Deserialize, Serialize};

use super::super::edit;
use super::super::line::AtsfThreadStats;
use super::super::thread::VERSION;
use crate::model::Timestamp;
use crate::store::Kind;
use crate::store::sessions::message::SessionHead;
use crate::store::text::edit::JsonEdits;
use crate::store::text::json::JsonValue;
use crate::store::text::json_values::{as_object, as_text, pick_members};
use crate::store::text::strict_json::{JsonMember, find_last};

/// The session from which a thread was kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSource {
    /// The kind of store that has the session.
    #[serde(rename = "source")]
    pub kind: Kind,
    /// The type of the sub-agent whose session it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

impl KeptSource {
    /// Parses an object with the members of a source; `None` if it names no kind that has sessions.
    pub(in crate::store::atsf) fn parse(object: &str) -> Option<Self> {
        let [source, agent] = pick_members(object, ["source", "agent"])?;
        let kind: Kind = as_text(source.as_ref())?.parse().ok()?;
        let agent = as_text(agent.as_ref()).map(std::borrow::Cow::into_owned);
        kind.has_sessions().then_some(Self { kind, agent })
    }

    /// Parses the metadata of a `thread.json`.
    pub(in crate::store::atsf) fn from_metadata(metadata: Option<&JsonValue<'_>>) -> Option<Self> {
        let [own] = pick_members(as_object(metadata)?, ["msgfs"])?;
        Self::parse(as_object(own.as_ref())?)
    }
}

/// The facts of a kept session that its `thread.json` has.
pub(super) struct KeptHead<'a> {
    pub head: &'a SessionHead,
    pub source: &'a KeptSource,
    /// The id of the last message of the log.
    pub last_id: &'a str,
    /// The time of the first message.
    pub created: Timestamp,
}

/// The member of `metadata` that is msgfs's own.
#[derive(Debug, Serialize)]
struct KeptMetadata<'a> {
    #[serde(flatten)]
    source: &'a KeptSource,
    version: &'static str,
    key: &'a str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct KeptThreadFile<'a> {
    spec_version: &'static str,
    thread_id: &'a str,
    title: &'a str,
    created_at: String,
    updated_at: String,
    agent: KeptAgent<'a>,
    context: KeptContext<'a>,
    stats: KeptStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_thread_id: Option<&'a str>,
    metadata: KeptThreadMetadata<'a>,
}

#[derive(Debug, Serialize)]
struct KeptAgent<'a> {
    id: &'static str,
    name: &'static str,
    version: &'a str,
    protocol: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct KeptContext<'a> {
    working_dir: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    git_branch: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    git_commit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worktree: Option<KeptWorktree<'a>>,
}

#[derive(Debug, Serialize)]
struct KeptWorktree<'a> {
    path: &'a str,
    branch: &'a str,
}

#[derive(Debug, Serialize)]
struct KeptStats {
    #[serde(rename = "messageCount")]
    messages: u64,
    #[serde(rename = "userMessageCount")]
    user: u64,
    #[serde(rename = "agentMessageCount")]
    agent: u64,
    #[serde(rename = "toolCallCount")]
    calls: u64,
}

#[derive(Debug, Serialize)]
struct KeptThreadMetadata<'a> {
    msgfs: KeptMetadata<'a>,
}

/// Returns the id and the name of the program that writes sessions of a kind.
fn harness_of(kind: Kind) -> (&'static str, &'static str) {
    if kind == Kind::Codex { ("codex", "Codex CLI") } else { ("claude-code", "Claude Code") }
}

fn to_json(value: &impl Serialize) -> String {
    match serde_json::to_string(value) {
        Ok(text) => text,
        Err(e) => panic!("texts and numbers are always JSON: {e}"),
    }
}

impl KeptHead<'_> {
    fn metadata(&self) -> KeptMetadata<'_> {
        let version = env!("CARGO_PKG_VERSION");
        KeptMetadata { source: self.source, version, key: self.last_id }
    }

    /// Returns the file of a new thread.
    pub fn render(&self, stats: &AtsfThreadStats, updated: Option<Timestamp>) -> Vec<u8> {
        let Self { head, created, .. } = self;
        let (id, name) = harness_of(head.kind);
        let branch = head.git_branch.as_deref();
        let worktree = head.worktree.as_deref();
        let file = KeptThreadFile {
            spec_version: VERSION,
            thread_id: &head.id,
            title: &head.title,
            created_at: created.rfc3339(),
            updated_at: updated.unwrap_or(*created).rfc3339(),
            agent: KeptAgent { id, name, version: &head.version, protocol: "custom" },
            context: KeptContext {
                working_dir: &head.cwd,
                git_branch: branch,
                git_commit: head.git_commit.as_deref(),
                worktree: worktree
                    .map(|path| KeptWorktree { path, branch: branch.unwrap_or_default() }),
            },
            stats: KeptStats {
                messages: stats.messages,
                user: stats.user,
                agent: stats.agent,
                calls: stats.calls,
            },
            parent_thread_id: head.parent.as_deref(),
            metadata: KeptThreadMetadata { msgfs: self.metadata() },
        };
        match serde_json::to_string_pretty(&file) {
            Ok(text) => (text + "\n").into_bytes(),
            Err(e) => panic!("texts and numbers are always JSON: {e}"),
        }
    }

    /// Returns an existing file with the present values; `None` if it has them. All other bytes stay.
    ///
    /// # Errors
    /// The reason why the file cannot be changed, in a sentence.
    pub fn update(
        &self,
        bytes: &[u8],
        stats: &AtsfThreadStats,
        updated: Option<Timestamp>,
    ) -> Result<Option<Vec<u8>>, String> {
        let edited = edit::edit_object(bytes, |edits, outer| {
            replace_text(edits, outer, "title", Some(&self.head.title));
            for (object, name, value) in [
                ("agent", "version", Some(&self.head.version)),
                ("context", "gitBranch", self.head.git_branch.as_ref()),
            ] {
                let inner =
                    find_last(outer, object).and_then(|member| edits.nested_members(member));
                replace_text(edits, &inner.unwrap_or_default(), name, value);
            }
            self.update_metadata(edits, outer);
        })?;
        let derived = edit::set_derived(edited.as_deref().unwrap_or(bytes), stats, updated)?;
        Ok(derived.or(edited))
    }

    /// Sets the member of `metadata` that is msgfs's own. The version alone is no reason to change it.
    fn update_metadata(&self, edits: &mut JsonEdits<'_>, outer: &[JsonMember<'_>]) {
        let own = to_json(&self.metadata());
        let Some(metadata) = find_last(outer, "metadata") else {
            return insert_member(edits, 0, "metadata", &format!("{{\"msgfs\":{own}}}"));
        };
        let Some(inner) = edits.nested_members(metadata) else {
            let value = format!("{{\"msgfs\":{own}}}");
            return edits.replace_range(&metadata.value_at, value);
        };
        let Some(member) = find_last(&inner, "msgfs") else {
            return insert_member(edits, metadata.value_at.start, "msgfs", &own);
        };
        let old = edits.text.get(member.value_at.clone()).unwrap_or_default();
        let [key] = pick_members(old, ["key"]).unwrap_or_default();
        let same = KeptSource::parse(old).as_ref() == Some(self.source)
            && as_text(key.as_ref()).as_deref() == Some(self.last_id);
        if !same {
            edits.replace_range(&member.value_at, own);
        }
    }
}

/// Replaces the value of a member that is another text.
fn replace_text(
    edits: &mut JsonEdits<'_>,
    members: &[JsonMember<'_>],
    name: &str,
    value: Option<&String>,
) {
    let (Some(member), Some(value)) = (find_last(members, name), value) else { return };
    if as_text(Some(&member.value)).as_deref() != Some(value) {
        edits.replace_range(&member.value_at, to_json(value));
    }
}

/// Inserts a member at the beginning of the first object from an offset on.
fn insert_member(edits: &mut JsonEdits<'_>, from: usize, name: &str, value: &str) {
    let rest = edits.text.get(from..).unwrap_or_default();
    let Some(at) = rest.find('{').map(|brace| from + brace + 1) else { return };
    let is_empty = edits.text.get(at..).is_some_and(|rest| rest.trim_start().starts_with('}'));
    let comma = if is_empty { "" } else { "," };
    edits.replace_range(&(at..at), format!("\"{name}\":{value}{comma}"));
}
