//! Attachments: flat files in the folder `<stem>/` beside the message (docs/formats/agentazall.md,
//! section 2), checked against the hashes that a Signature-V2 covers.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType};

use super::block::Reading;
use super::letter::Parsed;
use super::names;
use crate::model::Attachment;
use crate::store::below;
use crate::store::digest::Digests;
use crate::store::engine::files::{self, Dirs};
use crate::store::fs::{self, Stamp};
use crate::store::place::TEMP_END;

/// Why an attachment is withheld.
const CHANGED: &str = "does not match its signed hash";
const MISSING: &str = "is missing";
const UNSIGNED: &str = "is not among the signed attachments";

/// The bit of [`state`] that says that there is a file to show.
pub(super) const SHOWN: u64 = 1;

/// Whether a name can be that of an attachment.
pub(super) fn is_part(name: &str) -> bool {
    names::is_attachment_name(name) && !name.ends_with(TEMP_END)
}

/// The folder with a message's attachments; `None` if there is none.
///
/// # Errors
/// As the system gave it.
pub(super) fn open_folder(base: &Path, path: &str) -> io::Result<Option<OwnedFd>> {
    match below::open_dir(base, &files::parts(path)) {
        Err(e) if fs::is_absent(&e) => Ok(None),
        dir => dir.map(Some),
    }
}

/// The attachments on disk, by name: regular files under usable names with their sizes, and what else
/// is there with the reason why it is withheld.
fn on_disk(folder: Option<&OwnedFd>) -> io::Result<Vec<Attachment>> {
    let mut out: Vec<Attachment> = Vec::new();
    let Some(folder) = folder else { return Ok(out) };
    for one in Dir::read_from(folder)? {
        let one = one?;
        let shown = one.file_name().to_string_lossy().into_owned();
        if matches!(&*shown, "." | "..") || shown.ends_with(TEMP_END) {
            continue;
        }
        let name = one.file_name().to_str().ok().filter(|name| is_part(name));
        let (size, withheld) = match name.map(|name| below::look(folder, name)) {
            None => (0, Some("its name cannot be used".to_owned())),
            Some(Err(e)) if fs::is_absent(&e) => continue,
            Some(found) => match found? {
                (FileType::RegularFile, stamp) => (stamp.size, None),
                (kind, _) => (0, Some(format!("it is {}, not a file", below::describe_type(kind)))),
            },
        };
        out.push(Attachment { name: shown, size, withheld });
    }
    out.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(out)
}

/// A number that changes with the folder of the attachments of a message, 0 if there is none; with
/// [`SHOWN`] if there is a file in it to show.
///
/// # Errors
/// As the system gave it; then nothing is known of it.
pub(super) fn state(dirs: &mut Dirs<'_>, folder: &str, stem: &str) -> io::Result<u64> {
    let Some((FileType::Directory, stamp)) = dirs.look(folder, stem)? else { return Ok(0) };
    let dir = match dirs.open_new(folder, stem) {
        Err(e) if fs::is_absent(&e) => return Ok(0),
        dir => dir?,
    };
    let list = on_disk(Some(&dir))?;
    let Stamp { ino, mtime, .. } = stamp;
    let sizes = list.iter().fold(ino, |n, a| n.rotate_left(7) ^ a.size.wrapping_add(1));
    let shown = u64::from(list.iter().any(|a| a.withheld.is_none()));
    // A second bit, because 0 is for no folder.
    Ok(((sizes ^ mtime as u64) << 2) | 2 | shown)
}

/// What comes with a message: in the order in which it names them, then the rest by name.
///
/// # Errors
/// As the system gave it; a message is never shown as if nothing came with it.
pub(super) fn list(
    folder: Option<&OwnedFd>,
    parsed: &Parsed,
    digests: &Digests,
) -> io::Result<Vec<Attachment>> {
    let mut there = on_disk(folder)?;
    let mut out = Vec::new();
    for name in named(parsed, &there) {
        let position = there.iter().position(|a| a.name == name);
        out.push(match position {
            Some(i) => there.remove(i),
            None => Attachment { name, size: 0, withheld: Some(MISSING.to_owned()) },
        });
    }
    out.append(&mut there);
    for a in &mut out {
        if let (None, Some(folder)) = (&a.withheld, folder) {
            let file = below::open_file(folder, &a.name);
            a.withheld = fault(file.as_ref(), &a.name, &parsed.reading, digests);
        }
    }
    Ok(out)
}

/// The names a message gives, signed or not.
fn named(parsed: &Parsed, there: &[Attachment]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut add = |name: String| {
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    };
    if let Some(files) = &parsed.reading.files {
        for file in files {
            add(file.name.clone());
        }
        return names;
    }
    // Names are joined with commas and not quoted: what lies there tells which commas belong to one.
    let mut line = parsed.letter.get("Attachments").unwrap_or_default().to_owned();
    for a in there.iter().filter(|a| a.name.contains(',')) {
        if line.contains(&a.name) {
            line = line.replace(&a.name, "");
            add(a.name.clone());
        }
    }
    line.split(',').for_each(|name| add(name.trim().to_owned()));
    names
}

/// Why a file that is there is withheld all the same.
fn fault(
    file: Result<&File, &io::Error>,
    name: &str,
    reading: &Reading,
    digests: &Digests,
) -> Option<String> {
    let signed = reading.files.as_ref()?;
    let mut of_name = signed.iter().filter(|f| f.name == name).peekable();
    if of_name.peek().is_none() {
        return Some(UNSIGNED.to_owned());
    }
    let digest = file.map_err(ToString::to_string);
    match digest.and_then(|file| digests.of(file).map_err(|e| e.to_string())) {
        Ok(digest) if of_name.any(|f| f.sha256.eq_ignore_ascii_case(&digest)) => None,
        Ok(_) => Some(CHANGED.to_owned()),
        Err(e) => Some(format!("cannot be read: {e}")),
    }
}

/// Opens an attachment that is not withheld.
///
/// # Errors
/// `NotFound` if there is none of this name or it is withheld, else as the system gave it.
pub(super) fn open(
    folder: Option<&OwnedFd>,
    name: &str,
    parsed: &Parsed,
    digests: &Digests,
) -> io::Result<File> {
    let folder = folder.filter(|_| is_part(name)).ok_or(io::ErrorKind::NotFound)?;
    let file = below::open_file(folder, name).map_err(|e| match e.kind() {
        _ if fs::is_absent(&e) => io::ErrorKind::NotFound.into(),
        _ => e,
    })?;
    // What is checked is what is handed out.
    match fault(Ok(&file), name, &parsed.reading, digests) {
        None => Ok(file),
        Some(_) => Err(io::ErrorKind::NotFound.into()),
    }
}

/// The files of a message's folder that can be copied, with their paths.
///
/// # Errors
/// As the system gave it.
pub(super) fn paths(base: &Path, path: &str) -> io::Result<Vec<(String, PathBuf)>> {
    let there = on_disk(open_folder(base, path)?.as_ref())?;
    let usable = there.into_iter().filter(|a| a.withheld.is_none());
    Ok(usable.map(|a| (a.name.clone(), base.join(path).join(a.name))).collect())
}
