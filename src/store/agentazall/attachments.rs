//! Attachments: flat files in the folder `<stem>/` beside the message (docs/formats/agentazall.md,
//! section 2), checked against the hashes that a Signature-V2 covers.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType};

use super::block::LetterContent;
use super::letter::ParsedLetter;
use super::names;
use crate::model::{Attachment, list_distinct};
use crate::store::atomic_file::TEMP_END;
use crate::store::confined;
use crate::store::digest::DigestCache;
use crate::store::engine::files::{self, DirCache};
use crate::store::fs::{self, Stamp};

/// Reason why an attachment is withheld.
const CHANGED: &str = "does not match its signed hash";
const MISSING: &str = "is missing";
const UNSIGNED: &str = "is not among the signed attachments";
const TOO_LARGE: &str = "is too large to be checked";

/// The size of the largest attachment whose signed hash is checked. A reader waits while a file is hashed.
pub(super) const MAX_ATTACHMENT: u64 = 1 << 30;

/// The bit of [`hash_dir_state`] for a file that can be shown.
pub(super) const SHOWN: u64 = 1;

/// Returns true if a name can be that of an attachment.
pub(super) fn is_usable_name(name: &str) -> bool {
    names::is_attachment_name(name) && !name.ends_with(TEMP_END)
}

/// Opens the folder with a message's attachments; returns `None` if there is none.
///
/// # Errors
/// The error of the system.
pub(super) fn open_attachments_dir(base: &Path, path: &str) -> io::Result<Option<OwnedFd>> {
    match confined::open_dir(base, &files::path_parts(path)) {
        Err(e) if fs::is_absent(&e) => Ok(None),
        dir => dir.map(Some),
    }
}

/// Returns the attachments on disk, by name: regular files under usable names with their sizes. All other entries are
/// withheld, with the reason.
fn list_on_disk(folder: Option<&OwnedFd>) -> io::Result<Vec<Attachment>> {
    let mut out: Vec<Attachment> = Vec::new();
    let Some(folder) = folder else { return Ok(out) };
    for one in Dir::read_from(folder)? {
        let one = one?;
        let shown = one.file_name().to_string_lossy().into_owned();
        if matches!(&*shown, "." | "..") || shown.ends_with(TEMP_END) {
            continue;
        }
        let name = one.file_name().to_str().ok().filter(|name| is_usable_name(name));
        let (size, withheld) = match name.map(|name| confined::stat(folder, name)) {
            None => (0, Some("its name cannot be used".to_owned())),
            Some(Err(e)) if fs::is_absent(&e) => continue,
            Some(found) => match found? {
                (FileType::RegularFile, stamp) => (stamp.size, None),
                (kind, _) => {
                    (0, Some(format!("it is {}, not a file", confined::describe_type(kind))))
                }
            },
        };
        out.push(Attachment { name: shown, size, withheld });
    }
    out.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(out)
}

/// Returns a number that changes with a message's folder of attachments; 0 if there is none. It has the bit [`SHOWN`]
/// if a file in it can be shown.
///
/// # Errors
/// The error of the system; then the state of the folder is unknown.
pub(super) fn hash_dir_state(dirs: &mut DirCache<'_>, folder: &str, stem: &str) -> io::Result<u64> {
    let Some((FileType::Directory, stamp)) = dirs.stat(folder, stem)? else { return Ok(0) };
    let dir = match dirs.open_uncached(folder, stem) {
        Err(e) if fs::is_absent(&e) => return Ok(0),
        dir => dir?,
    };
    let list = list_on_disk(Some(&dir))?;
    let Stamp { ino, mtime, .. } = stamp;
    let sizes = list.iter().fold(ino, |n, a| n.rotate_left(7) ^ a.size.wrapping_add(1));
    let shown = u64::from(list.iter().any(|a| a.withheld.is_none()));
    // The second bit tells any folder from none, which is 0.
    Ok(((sizes ^ mtime as u64) << 2) | 2 | shown)
}

/// Returns the attachments of a message: in the order in which it names them, then the rest by name.
///
/// # Errors
/// The error of the system; a message is never shown as if it had no attachments.
pub(super) fn list_attachments(
    folder: Option<&OwnedFd>,
    parsed: &ParsedLetter,
    digests: &DigestCache,
) -> io::Result<Vec<Attachment>> {
    let mut there = list_on_disk(folder)?;
    let mut out = Vec::new();
    for name in list_stated_names(parsed, &there) {
        let position = there.iter().position(|a| a.name == name);
        out.push(match position {
            Some(i) => there.remove(i),
            None => Attachment { name, size: 0, withheld: Some(MISSING.to_owned()) },
        });
    }
    out.append(&mut there);
    for a in &mut out {
        if let (None, Some(folder)) = (&a.withheld, folder) {
            let file = confined::open_file(folder, &a.name);
            a.withheld = find_withhold_reason(file.as_ref(), &a.name, &parsed.content, digests);
        }
    }
    Ok(out)
}

/// Returns the names that a message gives, signed or not.
fn list_stated_names(parsed: &ParsedLetter, there: &[Attachment]) -> Vec<String> {
    if let Some(files) = &parsed.content.signed_attachments {
        return list_distinct(files.iter().map(|file| file.name.clone()));
    }
    let mut names: Vec<String> = Vec::new();
    // Names are joined with commas and not quoted. The names on disk tell which commas are part of a name.
    let mut line = parsed.letter.get("Attachments").unwrap_or_default().to_owned();
    for a in there.iter().filter(|a| a.name.contains(',')) {
        if line.contains(&a.name) {
            line = line.replace(&a.name, "");
            names.push(a.name.clone());
        }
    }
    names.extend(line.split(',').map(|name| name.trim().to_owned()));
    list_distinct(names.into_iter().filter(|name| !name.is_empty()))
}

/// Returns the reason why a file that is there is withheld all the same.
fn find_withhold_reason(
    file: Result<&File, &io::Error>,
    name: &str,
    reading: &LetterContent,
    digests: &DigestCache,
) -> Option<String> {
    let signed = reading.signed_attachments.as_ref()?;
    let mut of_name = signed.iter().filter(|f| f.name == name).peekable();
    if of_name.peek().is_none() {
        return Some(UNSIGNED.to_owned());
    }
    let size = file.ok().and_then(|file| file.metadata().ok()).map_or(0, |meta| meta.len());
    if size > MAX_ATTACHMENT {
        return Some(TOO_LARGE.to_owned());
    }
    let digest = file.map_err(ToString::to_string);
    match digest.and_then(|file| digests.file_digest(file).map_err(|e| e.to_string())) {
        Ok(digest) if of_name.any(|f| f.sha256.eq_ignore_ascii_case(&digest)) => None,
        Ok(_) => Some(CHANGED.to_owned()),
        Err(e) => Some(format!("cannot be read: {e}")),
    }
}

/// Opens an attachment that is not withheld.
///
/// # Errors
/// `NotFound` if there is none of this name or it is withheld, else the error of the system.
pub(super) fn open_attachment(
    folder: Option<&OwnedFd>,
    name: &str,
    parsed: &ParsedLetter,
    digests: &DigestCache,
) -> io::Result<File> {
    let folder = folder.filter(|_| is_usable_name(name)).ok_or(io::ErrorKind::NotFound)?;
    let file = confined::open_file(folder, name).map_err(|e| match e.kind() {
        _ if fs::is_absent(&e) => io::ErrorKind::NotFound.into(),
        _ => e,
    })?;
    // The checked file is the one that is returned.
    match find_withhold_reason(Ok(&file), name, &parsed.content, digests) {
        None => Ok(file),
        Some(_) => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Returns the attachments of a message that can be copied, with their paths.
///
/// # Errors
/// The error of the system.
pub(super) fn list_attachment_paths(base: &Path, path: &str) -> io::Result<Vec<(String, PathBuf)>> {
    let there = list_on_disk(open_attachments_dir(base, path)?.as_ref())?;
    let usable = there.into_iter().filter(|a| a.withheld.is_none());
    Ok(usable.map(|a| (a.name.clone(), base.join(path).join(a.name))).collect())
}
