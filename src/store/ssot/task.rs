//! One task as it is on disk now, for everything that must not trust an index: what may be sent, what
//! is locked, what `tasks/` says.

use std::io;
use std::path::Path;

use rustix::fs::FileType;

use super::Ssot;
use super::envelope::{FILE_BYTES, Message};
use super::folder::{self, MESSAGES, TASKS};
use super::format::Kept;
use super::state::{Facts, Item, State, derive, print};
use super::tree::quoted;
use super::words::{is_task_id, split_id};
use crate::model::verify;
use crate::store::StoreError;
use crate::store::engine::files::Row;

/// The messages of a task that break no hard rule, lie where they belong and are not refused, and what
/// they add up to.
///
/// # Errors
/// If its folders cannot be listed: then nobody knows what the task is.
pub(super) fn load(store: &Ssot, task: &str) -> Result<State, StoreError> {
    let base = store.about.dir.as_path();
    let here = || base.join(MESSAGES).join(task);
    let failed = |e: io::Error| StoreError::io(&here(), e);
    let mut items = Vec::new();
    for stem in folder::stems(base, &[MESSAGES, task]).map_err(failed)? {
        let Ok(bytes) = message_bytes(base, task, &stem) else { continue };
        let Ok(message) = Message::parse(&bytes) else { continue };
        if message.id != stem || message.task != task || !is_trusted(store, &message, &bytes) {
            continue;
        }
        let facts = Facts::of(&message);
        let acked = folder::ack(base, task, &stem).ok().filter(|(by, _)| *by == message.to);
        items.push(Item { id: message.id, facts, acked: acked.map(|(_, time)| time) });
    }
    let resumes = folder::resumes(base, task, &mut |_, _| {}).map_err(failed)?;
    let here: Vec<u64> = items.iter().map(|i| print(&i.id)).collect();
    Ok(derive(items, &resumes, &|id| here.contains(&id)))
}

/// The bytes of a message's file.
///
/// # Errors
/// As the system gave it.
pub(super) fn message_bytes(base: &Path, task: &str, id: &str) -> io::Result<Vec<u8>> {
    let name = format!("{id}.json");
    Ok(folder::read(base, &[MESSAGES, task, &name], FILE_BYTES + 1)?.1)
}

/// Whether a message of this id is in the SSOT, can be read and counts.
pub(super) fn is_readable(store: &Ssot, id: &str) -> bool {
    let Some((_, task, _)) = split_id(id) else { return false };
    let Ok(bytes) = message_bytes(&store.about.dir, task, id) else { return false };
    let message = Message::parse(&bytes);
    message.is_ok_and(|message| message.id == id && is_trusted(store, &message, &bytes))
}

/// Whether a message is not refused: by what was heard of it, or, if nothing was yet, by the key that its
/// signature names.
fn is_trusted(store: &Ssot, message: &Message<'_>, bytes: &[u8]) -> bool {
    let folder = format!("{MESSAGES}/{}", message.task);
    let known = {
        let table = store.table.read();
        let file = table.find_path(&format!("{folder}/{}.json", message.id));
        let file = file.filter(|n| table.row(*n).is_some_and(Row::is_message));
        file.and_then(|n| table.facts(n))
            .filter(|kept| kept.is_of(bytes))
            .and_then(Kept::is_refused)
    };
    let wrong = || {
        let claim = store.claim(&folder, &message.id, bytes);
        claim.is_some_and(|claim| verify::fault(&claim).is_some())
    };
    !known.unwrap_or_else(wrong)
}

/// The text of `tasks/<task>.json`.
pub(super) fn text(base: &Path, task: &str, state: &State) -> String {
    let bytes = state.dispatch.as_deref().and_then(|id| message_bytes(base, task, id).ok());
    let dispatch = bytes.as_deref().and_then(|bytes| Message::parse(bytes).ok());
    let or_null = |text: Option<&str>| text.map_or_else(|| "null".to_owned(), quoted);
    let said = |name: &str| or_null(dispatch.as_ref().and_then(|d| d.payload().text(name)));
    format!(
        "{{\n  \"task_id\": {},\n  \"status\": \"{}\",\n  \"reject_count\": {},\n  \
         \"risk_level\": {},\n  \"repo\": {},\n  \"branch\": {},\n  \
         \"last_successful_msg_id\": {},\n  \"locked\": {},\n  \"updated_at\": \"{}\"\n}}\n",
        quoted(task),
        state.status,
        state.rejects,
        said("risk_level"),
        said("repo"),
        said("branch"),
        or_null(state.last_successful.as_deref()),
        state.lock.is_some(),
        state.updated.rfc3339()
    )
}

/// Brings `tasks/<task>.json` up to date with the state of the task. Whether it was not.
///
/// # Errors
/// As the system gave it.
pub(super) fn write(base: &Path, task: &str, state: &State) -> Result<bool, StoreError> {
    let (name, text) = (format!("{task}.json"), text(base, task, state));
    if holds(base, &name, state, &text) {
        return Ok(false);
    }
    let _lock = folder::lock_task(base, task)?;
    let dir = folder::make(base, &[TASKS])?;
    folder::put(&dir, &name, 0o666, text.as_bytes())
        .map_err(|e| StoreError::io(&base.join(TASKS).join(&name), e))?;
    Ok(true)
}

/// Whether `tasks/<task>.json` says what the state of the task is.
pub(super) fn is_current(base: &Path, task: &str, state: &State) -> bool {
    holds(base, &format!("{task}.json"), state, &text(base, task, state))
}

fn holds(base: &Path, name: &str, state: &State, text: &str) -> bool {
    let old = || folder::read(base, &[TASKS, name], text.len() + 1);
    // A task without messages has no file.
    state.messages == 0 || old().is_ok_and(|(_, bytes)| bytes == text.as_bytes())
}

/// Every task that has messages.
///
/// # Errors
/// As the system gave it.
pub(super) fn all(base: &Path) -> Result<Vec<String>, StoreError> {
    let failed = |e| StoreError::io(&base.join(MESSAGES), e);
    let folders = folder::list(base, &[MESSAGES]).map_err(failed)?.into_iter();
    let folders = folders.filter(|(_, kind)| *kind == FileType::Directory).map(|(name, _)| name);
    Ok(folders.filter(|name| is_task_id(name)).collect())
}
