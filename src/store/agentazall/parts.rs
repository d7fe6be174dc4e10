//! Attachments: flat files in the folder `<stem>/` beside the message (formats/agentazall.md,
//! section 2), checked against the hashes that a Signature-V2 covers.

use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::model::locks::Mutex;
use lru::LruCache;
use sha2::{Digest, Sha256};

use super::block::Reading;
use super::letter::Parsed;
use super::names;
use crate::model::{Attachment, hex};
use crate::store::fs::{self, Stamp};
use crate::store::place::TEMP_END;

/// Hashes kept, so that looking at a message does not read its attachments each time.
const HASHES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);

/// Why an attachment is withheld.
const CHANGED: &str = "does not match its signed hash";
const MISSING: &str = "is missing";
const UNSIGNED: &str = "is not among the signed attachments";

/// Hashes of files by path, as long as the files stay what they were.
#[derive(Debug)]
pub(super) struct Hashes(Mutex<LruCache<PathBuf, (Stamp, String)>>);

impl Default for Hashes {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(HASHES)))
    }
}

impl Hashes {
    /// The SHA-256 of a file in lower-case hex, and the file's state when it was read.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn of(&self, path: &Path) -> io::Result<(Stamp, String)> {
        let mut file = fs::open_regular(path)?;
        let stamp = Stamp::of(&file)?;
        if let Some((known, hash)) = self.0.lock().get(path)
            && *known == stamp
        {
            return Ok((stamp, hash.clone()));
        }
        let mut digest = Sha256::new();
        let mut buf = vec![0; 64 << 10];
        loop {
            match file.read(&mut buf) {
                Ok(0) => break,
                Ok(n) => digest.update(buf.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let digest: [u8; 32] = digest.finalize().into();
        let hash = hex(&digest);
        self.0.lock().put(path.to_owned(), (stamp, hash.clone()));
        Ok((stamp, hash))
    }
}

/// The attachments on disk, by name: regular files under usable names with their sizes, and what else
/// is there with the reason why it is withheld.
fn on_disk(folder: &Path) -> io::Result<Vec<Attachment>> {
    let mut out: Vec<Attachment> = Vec::new();
    if real_dir(folder)?.is_some() {
        for one in std::fs::read_dir(folder)? {
            match entry(&one?) {
                Err(e) if fs::is_absent(&e) => {}
                one => out.extend(one?),
            }
        }
    }
    out.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(out)
}

fn real_dir(folder: &Path) -> io::Result<Option<std::fs::Metadata>> {
    match std::fs::symlink_metadata(folder) {
        Err(e) if fs::is_absent(&e) => Ok(None),
        meta => Ok(Some(meta?).filter(std::fs::Metadata::is_dir)),
    }
}

fn entry(entry: &std::fs::DirEntry) -> io::Result<Option<Attachment>> {
    let name = entry.file_name();
    let shown = name.to_string_lossy().into_owned();
    if shown.ends_with(TEMP_END) {
        return Ok(None);
    }
    let meta = entry.metadata()?;
    let withheld = if name.to_str().and_then(names::attachment_name).is_none_or(|n| n != shown) {
        Some("its name cannot be used".to_owned())
    } else if meta.is_file() {
        None
    } else {
        Some(format!("it is {}, not a file", fs::describe(meta.file_type())))
    };
    let size = if withheld.is_none() { meta.size() } else { 0 };
    Ok(Some(Attachment { name: shown, size, withheld }))
}

/// Whether there is a file to show in an attachments' folder, and a number that changes with the
/// folder (0 if there is none).
///
/// # Errors
/// As the system gave it; then nothing is known of it.
pub(super) fn state(folder: &Path) -> io::Result<(u64, bool)> {
    let Some(meta) = real_dir(folder)? else { return Ok((0, false)) };
    let list = on_disk(folder)?;
    let sizes = list.iter().fold(meta.ino(), |n, a| n.rotate_left(7) ^ a.size.wrapping_add(1));
    let time = (meta.mtime() as u64).rotate_left(30) ^ meta.mtime_nsec() as u64;
    Ok(((sizes ^ time).max(1), list.iter().any(|a| a.withheld.is_none())))
}

/// What comes with a message: in the order in which it names them, then the rest by name.
///
/// # Errors
/// As the system gave it; a message is never shown as if nothing came with it.
pub(super) fn list(folder: &Path, parsed: &Parsed, hashes: &Hashes) -> io::Result<Vec<Attachment>> {
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
        if a.withheld.is_none() {
            a.withheld = fault(&folder.join(&a.name), &a.name, &parsed.reading, hashes);
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
fn fault(path: &Path, name: &str, reading: &Reading, hashes: &Hashes) -> Option<String> {
    let signed = reading.files.as_ref()?;
    let mut of_name = signed.iter().filter(|f| f.name == name).peekable();
    if of_name.peek().is_none() {
        return Some(UNSIGNED.to_owned());
    }
    match hashes.of(path) {
        Ok((_, hash)) if of_name.any(|f| f.sha256.eq_ignore_ascii_case(&hash)) => None,
        Ok(_) => Some(CHANGED.to_owned()),
        Err(e) => Some(format!("cannot be read: {e}")),
    }
}

/// Opens an attachment that is not withheld.
///
/// # Errors
/// `NotFound` if there is none of this name or it is withheld, else as the system gave it.
pub(super) fn open(
    folder: &Path,
    name: &str,
    parsed: &Parsed,
    hashes: &Hashes,
) -> io::Result<std::fs::File> {
    let there = on_disk(folder)?;
    if !there.iter().any(|a| a.name == name && a.withheld.is_none()) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let path = folder.join(name);
    let file = fs::open_regular(&path)?;
    let signed = parsed.reading.files.is_some();
    let good = fault(&path, name, &parsed.reading, hashes).is_none();
    // What was checked must be what was opened.
    if !good || (signed && hashes.of(&path)?.0 != Stamp::of(&file)?) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(file)
}

/// The files of a message's folder that can be copied, with their paths.
///
/// # Errors
/// As the system gave it.
pub(super) fn paths(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let usable = on_disk(folder)?.into_iter().filter(|a| a.withheld.is_none());
    Ok(usable.map(|a| (a.name.clone(), folder.join(a.name))).collect())
}
