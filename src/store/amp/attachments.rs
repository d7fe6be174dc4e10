//! Attachments of a message: the place of their bytes and the check of their content (docs/formats/amp.md, section 8).
//!
//! The bytes are in my own `attachments/<attachment id>/`, or in `attachments/<message id>/`, where one client
//! downloads them, or else in the sender's folder, where the plugin leaves them. A file counts only if its size and
//! digest are those in the message.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::envelope::{AmpMessage, AttachmentRef};
use super::filename;
use super::roster::Roster;
use crate::model::{Attachment, encode_hex};
use crate::store::confined;
use crate::store::digest::DigestCache;
use crate::store::{PartContent, StoreError};

/// The largest file that is served from memory, so that the served bytes are the checked ones.
const IN_MEMORY: u64 = 1 << 20;

/// An attachment of a message, and its bytes if they are present and correct.
pub(super) struct AmpAttachmentFile {
    pub attachment: Attachment,
    file: Option<File>,
}

/// Finds the attachments of a message and gives them different names. One entry stands for all that are too many; no
/// attachment has its name, because clean names have no blanks.
pub(super) fn resolve_attachments(
    stored: &AmpMessage<'_>,
    my_dir: &Path,
    roster: &Roster,
    digests: &DigestCache,
) -> Vec<AmpAttachmentFile> {
    let from = stored.from.to_ascii_lowercase();
    let sender = roster.find_agent(&from).map(|a| a.dir.as_path()).filter(|dir| *dir != my_dir);
    let mut taken: HashSet<String> = HashSet::new();
    let mut out = Vec::new();
    for attachment in &stored.attachments {
        let clean = filename::clean_filename(attachment.filename.as_deref().unwrap_or_default());
        let name = unused_name(clean, &mut taken);
        let size = attachment.size.unwrap_or(0);
        let found = match filename::withheld_reason(attachment) {
            Some(reason) => Err(reason),
            None => find_attachment_file(attachment, &stored.id, my_dir, sender, digests),
        };
        let (file, withheld) = match found {
            Ok(file) => (Some(file), None),
            Err(reason) => (None, Some(format!("withheld: {reason}"))),
        };
        out.push(AmpAttachmentFile { attachment: Attachment { name, size, withheld }, file });
    }
    if stored.more_attachments > 0 {
        let name = format!("{} more", stored.more_attachments);
        let withheld = Some("withheld: too many".to_owned());
        out.push(AmpAttachmentFile {
            attachment: Attachment { name, size: 0, withheld },
            file: None,
        });
    }
    out
}

/// Returns the name; if it is taken, with a number before its extension.
fn unused_name(name: String, taken: &mut HashSet<String>) -> String {
    let mut candidate = name.clone();
    let mut n = 2;
    while !taken.insert(candidate.clone()) {
        candidate = match name.rsplit_once('.') {
            Some((stem, extension)) if !stem.is_empty() => format!("{stem}~{n}.{extension}"),
            _ => format!("{name}~{n}"),
        };
        n += 1;
    }
    candidate
}

/// Finds the bytes of an attachment.
///
/// # Errors
/// The reason why it is withheld, in a few words.
fn find_attachment_file(
    attachment: &AttachmentRef<'_>,
    message: &str,
    my_dir: &Path,
    sender: Option<&Path>,
    digests: &DigestCache,
) -> Result<File, String> {
    let id = attachment.id.as_deref().unwrap_or_default();
    let written = attachment.filename.as_deref().unwrap_or_default();
    let clean = filename::clean_filename(written);
    let digest = attachment.digest.as_deref().and_then(filename::parse_sha256).unwrap_or_default();
    let mut reason = if attachment.url.as_deref().is_some_and(|url| !url.is_empty()) {
        "link".to_owned()
    } else {
        "the file is not here".to_owned()
    };
    let places = [(Some(my_dir), id), (Some(my_dir), message), (sender, id)];
    for (base, folder) in places.into_iter().filter_map(|(base, folder)| Some((base?, folder))) {
        for name in [clean.as_str(), written] {
            match confined::open_path(base, &["attachments", folder, name]) {
                Ok(file) => match check_file_content(&file, attachment.size, digest, digests) {
                    Ok(()) => return Ok(file),
                    Err(wrong) => reason = wrong,
                },
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(_) => "the file cannot be opened".clone_into(&mut reason),
            }
            if clean == written {
                break;
            }
        }
    }
    Err(reason)
}

fn check_file_content(
    file: &File,
    size: Option<u64>,
    digest: &str,
    digests: &DigestCache,
) -> Result<(), String> {
    let unreadable = |_| "the file cannot be read".to_owned();
    if size != Some(file.metadata().map_err(unreadable)?.len()) {
        return Err("size does not match".into());
    }
    if digests.file_digest(file).map_err(unreadable)? != digest {
        return Err("digest does not match".into());
    }
    Ok(())
}

/// Opens the bytes of an attachment.
///
/// # Errors
/// `NotFound` if it is withheld.
pub(super) fn open_attachment(
    piece: AmpAttachmentFile,
    stored: &AmpMessage<'_>,
) -> Result<PartContent, StoreError> {
    let path = Path::new(&piece.attachment.name);
    let Some(mut file) = piece.file else {
        return Err(StoreError::io(path, io::ErrorKind::NotFound.into()));
    };
    if piece.attachment.size > IN_MEMORY {
        return Ok(PartContent::File(file));
    }
    let mut bytes = Vec::with_capacity(piece.attachment.size as usize);
    file.by_ref()
        .take(IN_MEMORY + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| StoreError::io(path, e))?;
    let is_meant = stored.attachments.iter().any(|a| {
        let digest = a.digest.as_deref().and_then(filename::parse_sha256);
        a.size == Some(bytes.len() as u64)
            && digest == Some(encode_hex(&Sha256::digest(&bytes)).as_str())
    });
    if !is_meant {
        return Err(StoreError::Moved);
    }
    Ok(PartContent::Bytes(Arc::from(bytes)))
}
