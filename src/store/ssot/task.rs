//! One task as it is on disk now, for all checks that must not trust an index: sending, locks, `tasks/`.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;

use rustix::fs::FileType;

use super::Ssot;
use super::envelope::{FILE_BYTES, SsotMessage};
use super::folder::{self, MESSAGES, TASKS};
use super::format::SsotFileFacts;
use super::json_node::quote_json;
use super::rules::REFS;
use super::state::{TaskMessage, TaskMessageFacts, TaskState, derive_state, hash_id};
use super::vocabulary::{SsotMessageType, is_task_id, split_message_id};
use crate::model::verify;
use crate::store::engine::files::StoreFile;
use crate::store::{StoreError, digest, fs};

/// The tasks of messages that were looked up, by the hashes of their ids. `None` for a message that does not count.
pub(super) type LookedUpTasks = HashMap<u64, Option<String>>;

/// Derives the state of a task from its messages on disk. Messages that break a hard rule, do not lie where they
/// belong, or are refused do not count. No message of another task is read, so a reference to one counts as unreadable.
///
/// # Errors
/// If its folders cannot be listed: then the state is unknown.
pub(super) fn load_state(store: &Ssot, task: &str) -> Result<TaskState, StoreError> {
    derive_disk_state(store, task, None)
}

/// Derives the state of a task as [`load_state`] does, and reads the messages of other tasks that are not in `tasks`
/// yet. Its breaches name these tasks.
///
/// # Errors
/// As [`load_state`].
pub(super) fn load_checked_state(
    store: &Ssot,
    task: &str,
    tasks: &mut LookedUpTasks,
) -> Result<TaskState, StoreError> {
    derive_disk_state(store, task, Some(tasks))
}

fn derive_disk_state(
    store: &Ssot,
    task: &str,
    mut foreign: Option<&mut LookedUpTasks>,
) -> Result<TaskState, StoreError> {
    let base = store.properties.dir.as_path();
    let here = || base.join(MESSAGES).join(task);
    let failed = |e: io::Error| StoreError::io(&here(), e);
    let mut items = Vec::new();
    for stem in folder::list_stems(base, &[MESSAGES, task]).map_err(failed)? {
        let Ok(bytes) = read_message_bytes(base, task, &stem) else { continue };
        let Ok(message) = SsotMessage::parse(&bytes) else { continue };
        if message.id != stem || message.task != task || !is_trusted(store, &message, &bytes) {
            continue;
        }
        if let Some(foreign) = &mut foreign {
            look_up_foreign_references(store, &message, foreign);
        }
        let facts = TaskMessageFacts::from_message(&message);
        let acked = folder::read_ack(base, task, &stem).ok().filter(|(by, _)| *by == message.to);
        items.push(TaskMessage { id: message.id, facts, acked_at: acked.map(|(_, time)| time) });
    }
    let resumes = folder::read_resumes(base, task, &mut |_, _| {}).map_err(failed)?;
    let here: Vec<u64> = items.iter().map(|i| hash_id(&i.id)).collect();
    let find_task = |id: u64| {
        let elsewhere = || foreign.as_ref()?.get(&id).cloned().flatten();
        if here.contains(&id) { Some(task.to_owned()) } else { elsewhere() }
    };
    Ok(derive_state(items, &resumes, &find_task))
}

/// Returns the bytes of a message's file.
///
/// # Errors
/// The error of the system.
pub(super) fn read_message_bytes(base: &Path, task: &str, id: &str) -> io::Result<Vec<u8>> {
    let name = format!("{id}.json");
    Ok(folder::read_file(base, &[MESSAGES, task, &name], FILE_BYTES + 1)?.1)
}

/// Returns the task of the message of this id, if that is in the SSOT, can be read and counts.
pub(super) fn find_message_task<'a>(store: &Ssot, id: &'a str) -> Option<&'a str> {
    let (_, task, _) = split_message_id(id)?;
    let bytes = read_message_bytes(&store.properties.dir, task, id).ok()?;
    let message = SsotMessage::parse(&bytes).ok()?;
    (message.id == id && is_trusted(store, &message, &bytes)).then_some(task)
}

/// Adds the tasks of the messages of other tasks that a review request names. Each id is looked up once: its file may
/// be large, and many requests may name it.
fn look_up_foreign_references(store: &Ssot, message: &SsotMessage<'_>, tasks: &mut LookedUpTasks) {
    if message.kind != SsotMessageType::ReviewRequest {
        return;
    }
    let foreign = |id: &&str| split_message_id(id).is_some_and(|(_, task, _)| task != message.task);
    for id in REFS.iter().filter_map(|(name, _)| message.payload().text(name)).filter(foreign) {
        let look_up = || find_message_task(store, id).map(str::to_owned);
        tasks.entry(hash_id(id)).or_insert_with(look_up);
    }
}

/// Returns true if a message is not refused. The decision counts; without one, the earlier content of the file and the
/// key that its signature names.
fn is_trusted(store: &Ssot, message: &SsotMessage<'_>, bytes: &[u8]) -> bool {
    let file = find_message_file(store, message);
    let kept = file.as_ref().and_then(StoreFile::message_facts);
    let known = kept.filter(|kept| kept.has_digest_of(bytes)).and_then(SsotFileFacts::is_refused);
    let wrong = || {
        let folder = format!("{MESSAGES}/{}", message.task);
        let claim = store.read_claim(&folder, &message.id, bytes);
        is_tampered(store, message, bytes)
            || claim.is_some_and(|claim| verify::find_claim_fault(&claim).is_some())
    };
    !known.unwrap_or_else(wrong)
}

/// Returns true if the file of a message held a verified message under its id, and these bytes are not that message.
pub(super) fn is_tampered(store: &Ssot, message: &SsotMessage<'_>, bytes: &[u8]) -> bool {
    let facts = SsotFileFacts::from_message(message, digest::secure_hash64(bytes));
    find_message_file(store, message).is_some_and(|file| store.is_tampered(&file, &facts))
}

/// Returns the file in which a message belongs, if a scan has seen it.
fn find_message_file(store: &Ssot, message: &SsotMessage<'_>) -> Option<StoreFile<SsotFileFacts>> {
    let table = store.table.read();
    let path = format!("{MESSAGES}/{}/{}.json", message.task, message.id);
    StoreFile::from_table(&table, table.find_path(&path)?)
}

/// Returns the text of `tasks/<task>.json` for a task with messages.
pub(super) fn render_task_file(base: &Path, task: &str, state: &TaskState) -> String {
    let bytes = state.dispatch.as_deref().and_then(|id| read_message_bytes(base, task, id).ok());
    let dispatch = bytes.as_deref().and_then(|bytes| SsotMessage::parse(bytes).ok());
    let or_null = |text: Option<&str>| text.map_or_else(|| "null".to_owned(), quote_json);
    let said = |name: &str| or_null(dispatch.as_ref().and_then(|d| d.payload().text(name)));
    format!(
        "{{\n  \"task_id\": {},\n  \"status\": \"{}\",\n  \"reject_count\": {},\n  \
         \"risk_level\": {},\n  \"repo\": {},\n  \"branch\": {},\n  \
         \"last_successful_msg_id\": {},\n  \"locked\": {},\n  \"updated_at\": \"{}\"\n}}\n",
        quote_json(task),
        state.status,
        state.reject_count,
        said("risk_level"),
        said("repo"),
        said("branch"),
        or_null(state.last_successful.as_deref()),
        state.lock.is_some(),
        state.updated.rfc3339()
    )
}

/// Brings `tasks/<task>.json` up to date with the state of the task: a task without messages has no file. Returns true
/// if anything changed.
///
/// # Errors
/// The error of the system, or [`StoreError::Busy`].
pub(super) fn write_task_file(
    base: &Path,
    task: &str,
    state: &TaskState,
) -> Result<bool, StoreError> {
    let (name, text) = (format!("{task}.json"), render_task_file(base, task, state));
    // Messages that cannot be listed now may still count.
    let is_unknown =
        state.message_count == 0 && folder::list_stems(base, &[MESSAGES, task]).is_err();
    if is_unknown || has_same_text(base, &name, state, &text) {
        return Ok(false);
    }
    let _lock = folder::lock_task(base, task)?;
    let dir = folder::make_folder(base, &[TASKS])?;
    let done = if state.message_count > 0 {
        folder::overwrite_file(&dir, &name, 0o666, text.as_bytes())
    } else {
        folder::remove_file(&dir, &name)
    };
    done.map_err(|e| StoreError::io(&base.join(TASKS).join(&name), e))?;
    Ok(true)
}

/// Returns true if `tasks/<task>.json` has the state of the task.
pub(super) fn is_task_file_current(base: &Path, task: &str, state: &TaskState) -> bool {
    has_same_text(base, &format!("{task}.json"), state, &render_task_file(base, task, state))
}

fn has_same_text(base: &Path, name: &str, state: &TaskState, text: &str) -> bool {
    match folder::read_file(base, &[TASKS, name], text.len() + 1) {
        Ok((_, bytes)) => state.message_count > 0 && bytes == text.as_bytes(),
        Err(e) => state.message_count == 0 && fs::is_absent(&e),
    }
}

/// Returns every task that has a folder of messages, or a file in `tasks/`.
///
/// # Errors
/// The error of the system.
pub(super) fn list_tasks(base: &Path) -> Result<BTreeSet<String>, StoreError> {
    let list = |folder: &str| {
        folder::list_names(base, &[folder]).map_err(|e| StoreError::io(&base.join(folder), e))
    };
    let folders = list(MESSAGES)?.into_iter().filter(|(_, kind)| *kind == FileType::Directory);
    let files = list(TASKS)?.into_iter().filter(|(_, kind)| *kind == FileType::RegularFile);
    let files = files.filter_map(|(name, _)| Some(name.strip_suffix(".json")?.to_owned()));
    Ok(folders.map(|(name, _)| name).chain(files).filter(|name| is_task_id(name)).collect())
}
