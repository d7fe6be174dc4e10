//! The folders of an SSOT and their files (docs/formats/ssot.md, section 5), read without following any link.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::envelope::VERSION;
use super::json_node::{JsonNode, quote_json};
use super::state::TaskResume;
use super::vocabulary::Role;
use crate::model::Timestamp;
use crate::store::atomic_file::FileSlot;
use crate::store::confined;
use crate::store::engine::files;
use crate::store::fs::Stamp;
use crate::store::text::time::parse_time;
use crate::store::{StoreError, fs};

pub(super) const MESSAGES: &str = "messages";
pub(super) const ACKS: &str = "acks";
pub(super) const RESUMES: &str = "resumes";
pub(super) const TASKS: &str = "tasks";
pub(super) const LOCKS: &str = ".locks";
pub(super) const ERRORS: &str = "errors.log";

/// Mode of folders that are made here, less the umask: several users may fill the roles.
const DIR_MODE: u32 = 0o777;
/// Mode of files that never change.
pub(super) const IMMUTABLE: u32 = 0o444;
/// Longest wait for a lock.
const LOCK_WAIT: Duration = Duration::from_secs(3);
/// Largest acknowledgement, resume or signature that is read, in bytes.
pub(super) const SMALL: usize = 64 << 10;

/// Returns the names in a folder that are not skipped, with their types; none if it is not there.
///
/// # Errors
/// The error of the system; then the content of the folder is unknown.
pub(super) fn list_names(base: &Path, parts: &[&str]) -> io::Result<Vec<(String, FileType)>> {
    let names = match confined::open_dir(base, parts) {
        Ok(dir) => files::list_names(&dir)?,
        Err(e) if fs::is_absent(&e) => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let shown = |(name, kind): (Result<String, String>, FileType)| Some((name.ok()?, kind));
    Ok(names.into_iter().filter_map(shown).filter(|(name, _)| !is_skipped_name(name)).collect())
}

/// Returns the names of the `.json` files in a folder, without the ending.
///
/// # Errors
/// The same as [`list_names`].
pub(super) fn list_stems(base: &Path, parts: &[&str]) -> io::Result<Vec<String>> {
    let files =
        list_names(base, parts)?.into_iter().filter(|(_, kind)| *kind == FileType::RegularFile);
    Ok(files.filter_map(|(name, _)| json_stem(&name).map(str::to_owned)).collect())
}

/// Returns true if a name is hidden, or one that programs give to unfinished files.
pub(super) fn is_skipped_name(name: &str) -> bool {
    let end = |end: &str| name.len() > end.len() && name.ends_with(end);
    let temporary = end(".tmp") || end(".part") || end("~") || name.starts_with("~syncthing~");
    temporary || name.starts_with('.')
}

/// Returns the name of a `.json` file without the ending.
pub(super) fn json_stem(name: &str) -> Option<&str> {
    name.strip_suffix(".json").filter(|stem| !stem.is_empty())
}

/// Returns the name of the message that a signature file belongs to, without the ending.
pub(super) fn signature_stem(name: &str) -> Option<&str> {
    name.strip_suffix(".sig").filter(|stem| !stem.is_empty())
}

/// Reads at most `limit` bytes of a file.
///
/// # Errors
/// The error of the system; `InvalidInput` for anything but a regular file.
pub(super) fn read_file(base: &Path, parts: &[&str], limit: usize) -> io::Result<(Stamp, Vec<u8>)> {
    confined::read_whole(&confined::open_path(base, parts)?, limit)
}

/// Reads an acknowledgement or a signature.
///
/// # Errors
/// The same as [`read_file`].
pub(super) fn read_small_file(dir: &OwnedFd, name: &str) -> io::Result<Vec<u8>> {
    Ok(confined::read_whole(&confined::open_file(dir, name)?, SMALL)?.1)
}

/// Makes the SSOT's folder, if it is missing, and the settings for git in it.
///
/// # Errors
/// The error of the system.
pub(super) fn ensure_base(base: &Path) -> Result<(), StoreError> {
    fs::make_dirs(base, 0o777).map_err(|e| StoreError::io(base, e))?;
    write_git_settings(base)
}

/// Puts the settings for git beside the messages, if they are missing.
///
/// # Errors
/// The error of the system, if no message is there yet. In an SSOT that others began, I may lack the right to add
/// files.
pub(super) fn write_git_settings(base: &Path) -> Result<(), StoreError> {
    let dir = confined::open_dir(base, &[]).map_err(|e| StoreError::io(base, e))?;
    let files =
        [(".gitignore", ".locks/\n.*.tmp\n"), (".gitattributes", "errors.log merge=union\n")];
    for (name, text) in files {
        if confined::stat(&dir, name).is_ok() {
            continue;
        }
        match create_file(&dir, name, 0o666, text.as_bytes()) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) if confined::stat(&dir, MESSAGES).is_ok() => {
                tracing::debug!(%name, error = %e, "the settings for git cannot be saved");
            }
            done => done.map_err(|e| StoreError::io(&base.join(name), e))?,
        }
    }
    Ok(())
}

/// Opens a folder, and makes it if it is missing.
///
/// # Errors
/// The error of the system.
pub(super) fn make_folder(base: &Path, parts: &[&str]) -> Result<OwnedFd, StoreError> {
    ensure_base(base)?;
    confined::make_dir(base, parts, DIR_MODE)
        .map_err(|e| StoreError::io(&base.join(parts.join("/")), e))
}

/// Puts a new file into a folder. The file and its name are on disk when this returns.
///
/// # Errors
/// `AlreadyExists` if the name is taken, else the error of the system.
pub(super) fn create_file(dir: &OwnedFd, name: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
    FileSlot::for_component(dir, name)?.create_with(mode, |file| file.write_all(bytes))?;
    fs::fsync(dir)
}

/// Writes a file with these bytes, and replaces an older one of this name.
///
/// # Errors
/// The error of the system.
pub(super) fn overwrite_file(dir: &OwnedFd, name: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
    FileSlot::for_component(dir, name)?.overwrite(mode, bytes)?;
    fs::fsync(dir)
}

/// Removes a file.
///
/// # Errors
/// The error of the system.
pub(super) fn remove_file(dir: &OwnedFd, name: &str) -> io::Result<()> {
    rustix::fs::unlinkat(dir, confined::require_component(name)?, AtFlags::empty())?;
    fs::fsync(dir)
}

/// A lock that is held as long as this value lives.
#[derive(Debug)]
pub(super) struct SsotLock(File);

impl SsotLock {
    /// Returns the locked file.
    pub fn file(&self) -> &File {
        &self.0
    }
}

/// Takes an exclusive lock of an open file.
///
/// # Errors
/// [`StoreError::Busy`] if another program holds it for long.
pub(super) fn acquire_lock(file: File, path: &Path) -> Result<SsotLock, StoreError> {
    if fs::lock_with_timeout(&file, LOCK_WAIT).map_err(|e| StoreError::io(path, e))? {
        return Ok(SsotLock(file));
    }
    Err(StoreError::Busy(format!("{}: another program holds the lock", path.display())))
}

/// Takes the lock of a task: one program at a time writes into it.
///
/// # Errors
/// [`StoreError::Busy`], else the error of the system.
pub(super) fn lock_task(base: &Path, task: &str) -> Result<SsotLock, StoreError> {
    let dir = make_folder(base, &[LOCKS])?;
    let name = format!("{task}.lock");
    let path = base.join(LOCKS).join(&name);
    let open = || -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let name = confined::require_component(&name)?;
        let mode = Mode::from_raw_mode(0o666);
        let file = File::from(rustix::fs::openat(&dir, name, flags | OFlags::CLOEXEC, mode)?);
        fs::require_regular(&file)?;
        Ok(file)
    };
    acquire_lock(open().map_err(|e| StoreError::io(&path, e))?, &path)
}

/// Parses the acknowledgement of a message. Returns the role and the time.
///
/// # Errors
/// The reason why it is no acknowledgement, in a sentence.
pub(super) fn parse_ack(bytes: &[u8], task: &str, id: &str) -> Result<(Role, Timestamp), String> {
    let node = JsonNode::parse(bytes).map_err(|e| format!("it is not a JSON object: {}", e.why))?;
    if node.text("ack_for") != Some(id) {
        return Err("its ack_for is not the name of the file".into());
    }
    if node.text("task_id").is_some_and(|named| named != task) {
        return Err("its task_id is not the name of the folder".into());
    }
    if node.text("protocol_version").is_some_and(|version| version != VERSION) {
        return Err(format!("its protocol_version is not {VERSION:?}"));
    }
    let by = node.text("from").and_then(Role::from_name).ok_or("its from is not a role")?;
    let time = node.text("timestamp").and_then(parse_time).ok_or("its timestamp is not a time")?;
    Ok((by, time))
}

/// Returns the text of an acknowledgement.
pub(super) fn render_ack(id: &str, from: Role, task: &str, now: Timestamp) -> String {
    format!(
        "{{\n  \"ack_for\": {},\n  \"from\": \"{}\",\n  \"task_id\": {},\n  \"timestamp\": \"{}\",\n  \
         \"protocol_version\": \"{VERSION}\"\n}}\n",
        quote_json(id),
        from.as_str(),
        quote_json(task),
        now.rfc3339()
    )
}

/// Parses a resume. Its time is in the name of its file.
///
/// # Errors
/// The reason why it is no resume, in a sentence.
pub(super) fn parse_resume(bytes: &[u8], task: &str, stem: &str) -> Result<TaskResume, String> {
    let node = JsonNode::parse(bytes).map_err(|e| format!("it is not a JSON object: {}", e.why))?;
    let digits = stem.bytes().all(|b| b.is_ascii_digit());
    let ms = if digits { stem.parse().ok() } else { None };
    let time = Timestamp::from_millis(ms.ok_or("its name is not milliseconds since 1970")?);
    if node.text("task_id") != Some(task) {
        return Err("its task_id is not the name of the folder".into());
    }
    if node.text("from") != Some(Role::Admin.as_str()) {
        return Err("only the admin resumes a task".into());
    }
    let escalations = node.items("escalations").iter().filter_map(JsonNode::as_text);
    let escalations = escalations.map(str::to_owned).collect();
    Ok(TaskResume { time, lock: node.text("lock").map(str::to_owned), escalations })
}

/// Returns the text of a resume.
pub(super) fn render_resume(task: &str, resume: &TaskResume) -> String {
    let list: Vec<String> =
        resume.escalations.iter().map(|id| format!("\n    {}", quote_json(id))).collect();
    let end = if list.is_empty() { "" } else { "\n  " };
    format!(
        "{{\n  \"task_id\": {},\n  \"from\": \"admin\",\n  \"timestamp\": \"{}\",\n  \
         \"protocol_version\": \"{VERSION}\",\n  \"lock\": {},\n  \"escalations\": [{}{end}]\n}}\n",
        quote_json(task),
        resume.time.rfc3339(),
        resume.lock.as_deref().map_or_else(|| "null".to_owned(), quote_json),
        list.join(",")
    )
}

/// Returns true if there may be any resume at all.
pub(super) fn may_have_resumes(base: &Path) -> bool {
    let found = confined::open_dir(base, &[]).and_then(|dir| confined::stat(&dir, RESUMES));
    !found.is_err_and(|e| fs::is_absent(&e))
}

/// Reads every resume of a task. `told` is called for each file with the reason why it is no resume, if any.
///
/// # Errors
/// If the folder cannot be listed.
pub(super) fn read_resumes(
    base: &Path,
    task: &str,
    told: &mut dyn FnMut(&str, Option<String>),
) -> io::Result<Vec<TaskResume>> {
    let mut out = Vec::new();
    for stem in list_stems(base, &[RESUMES, task])? {
        match read_resume(base, task, &stem) {
            Ok(resume) => {
                told(&stem, None);
                out.push(resume);
            }
            Err(why) => told(&stem, Some(why)),
        }
    }
    Ok(out)
}

/// Reads one resume file.
///
/// # Errors
/// The same as [`parse_resume`], or the reason why the file cannot be read.
pub(super) fn read_resume(base: &Path, task: &str, stem: &str) -> Result<TaskResume, String> {
    let name = format!("{stem}.json");
    let (_, bytes) = read_file(base, &[RESUMES, task, &name], SMALL).map_err(|e| e.to_string())?;
    parse_resume(&bytes, task, stem)
}

/// Reads one acknowledgement file.
///
/// # Errors
/// The same as [`parse_ack`], or the reason why the file cannot be read.
pub(super) fn read_ack(base: &Path, task: &str, id: &str) -> Result<(Role, Timestamp), String> {
    let name = format!("{id}.json");
    let (_, bytes) = read_file(base, &[ACKS, task, &name], SMALL).map_err(|e| e.to_string())?;
    parse_ack(&bytes, task, id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_and_resumes_are_read_as_they_are_written() {
        let now = Timestamp::from_millis(1_772_116_327_001);
        assert_eq!(now.rfc3339(), "2026-02-26T14:32:07.001Z");
        let text = render_ack("x-1", Role::Executor, "T-2026-007", now);
        let ack = |task, id| parse_ack(text.as_bytes(), task, id);
        assert_eq!(ack("T-2026-007", "x-1"), Ok((Role::Executor, now)));
        assert!(ack("T-2026-007", "x-2").is_err() && ack("T-2026-008", "x-1").is_err());
        for escalations in [vec![], vec!["e-1".to_owned(), "e-2".into()]] {
            let resume = TaskResume { time: now, lock: Some("v-1".into()), escalations };
            let text = render_resume("T-2026-007", &resume);
            let back = parse_resume(text.as_bytes(), "T-2026-007", "1772116327001");
            assert_eq!(back.as_ref(), Ok(&resume));
            assert!(parse_resume(text.as_bytes(), "T-2026-007", "+1").is_err());
            let other = text.replace("admin", "executor");
            assert!(parse_resume(other.as_bytes(), "T-2026-007", "1").is_err());
        }
    }
}
