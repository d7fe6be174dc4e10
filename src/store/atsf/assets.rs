//! The files in `assets/` that messages refer to, named by their content.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::model::{DraftAttachment, encode_hex};
use crate::store::atomic_file::FileSlot;
use crate::store::digest::{self, DigestCache};
use crate::store::{StoreError, confined, fs};

/// The folder of assets in a thread's folder.
pub(super) const FOLDER: &str = "assets";
const FILE_MODE: u32 = 0o644;
/// The largest file that is verified, in bytes; no `max_message` is larger.
pub(super) const MAX_BYTES: u64 = 512 << 20;
/// The number of bytes that decide the type of a file.
const HEAD: usize = 1024;

/// Returns the 16 hex digits of the content's hash in an `assetRef`. Returns `None` if the text is no `assetRef`: it
/// could be any path.
pub fn parse_asset_digest(reference: &str) -> Option<&str> {
    let (digest, extension) = reference.strip_prefix("sha256-")?.split_once('.')?;
    let digits = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    let sound = digest.len() == 16
        && digest.bytes().all(digits)
        && (1..=10).contains(&extension.len())
        && extension.bytes().all(|b| b.is_ascii_alphanumeric());
    sound.then_some(digest)
}

/// Opens a file of a thread if it exists and its content fits its name.
///
/// # Errors
/// The reason why it is withheld, in a few words.
pub(super) fn open_asset(
    digests: &DigestCache,
    base: &Path,
    thread: &[&str],
    reference: &str,
) -> Result<File, String> {
    let meant = parse_asset_digest(reference).ok_or("not the name of an asset")?;
    let parts = [thread, &[FOLDER, reference]].concat();
    let file = confined::open_path(base, &parts).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => "the file is not here".to_owned(),
        _ => "the file cannot be opened".to_owned(),
    })?;
    let unreadable = |_| "the file cannot be read".to_owned();
    if file.metadata().map_err(unreadable)?.len() > MAX_BYTES {
        return Err("too large to be verified".to_owned());
    }
    let digest = digests.file_digest(&file).map_err(unreadable)?;
    if digest.starts_with(meant) {
        return Ok(file);
    }
    Err("digest does not match".to_owned())
}

/// An attachment in the form in which the message refers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtsfAssetRef {
    /// The file's name in `assets/`.
    pub reference: String,
    /// The media type.
    pub mime: &'static str,
    /// True if it is an image; the format has a block for images.
    pub is_image: bool,
}

/// Names an attachment by its content. An image gets the extension of its real type; for other files the name gives the
/// extension.
///
/// # Errors
/// The error of the system.
pub fn name_asset(file: &DraftAttachment) -> io::Result<AtsfAssetRef> {
    let mut head = Vec::new();
    File::open(&file.path)?.take(HEAD as u64).read_to_end(&mut head)?;
    let (extension, mime, image) = detect_media_type(&file.name, &head);
    let digest = file.sha256.get(..16).unwrap_or_default();
    Ok(AtsfAssetRef { reference: format!("sha256-{digest}.{extension}"), mime, is_image: image })
}

/// Returns the extension, the media type and whether it is an image, from the name and the first bytes.
fn detect_media_type(name: &str, head: &[u8]) -> (String, &'static str, bool) {
    let images: [(&str, &str, bool); 5] = [
        ("png", "image/png", head.starts_with(b"\x89PNG\r\n\x1a\n")),
        ("jpg", "image/jpeg", head.starts_with(b"\xff\xd8\xff")),
        ("gif", "image/gif", head.starts_with(b"GIF87a") || head.starts_with(b"GIF89a")),
        ("webp", "image/webp", head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP")),
        ("svg", "image/svg+xml", memchr::memmem::find(head, b"<svg").is_some()),
    ];
    let extension = name.rsplit_once('.').map(|(_, ext)| ext.to_ascii_lowercase());
    let extension = extension.as_deref().unwrap_or_default();
    for (image, mime, fits) in images {
        // Other texts hold `<svg` too.
        if fits && (image != "svg" || extension == "svg") {
            return (image.to_owned(), mime, true);
        }
    }
    let sound =
        (1..=10).contains(&extension.len()) && extension.bytes().all(|b| b.is_ascii_alphanumeric());
    let mime = match extension {
        "txt" | "md" | "log" => "text/plain",
        "json" => "application/json",
        "pdf" => "application/pdf",
        _ => "application/octet-stream",
    };
    (if sound { extension.to_owned() } else { "bin".to_owned() }, mime, false)
}

/// Checks that no other file has the same name, and so the same first 16 digits.
///
/// # Errors
/// `AlreadyExists`, with the path.
pub(super) fn check_clash(
    base: &Path,
    thread: &[&str],
    reference: &str,
    sha256: &str,
) -> Result<(), StoreError> {
    let parts = [thread, &[FOLDER, reference]].concat();
    match confined::open_path(base, &parts)
        .and_then(|file| digest::hash_file(&file))
        .map(|d| encode_hex(&d))
    {
        Ok(digest) if digest == sha256 => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) => {
            let why = "another file has this name, so nothing was sent";
            let taken = io::Error::new(io::ErrorKind::AlreadyExists, why);
            Err(StoreError::io(&join_parts(base, &parts), taken))
        }
        Err(e) => Err(StoreError::io(&join_parts(base, &parts), e)),
    }
}

fn join_parts(base: &Path, parts: &[&str]) -> PathBuf {
    parts.iter().fold(base.to_owned(), |path, part| path.join(part))
}

/// Writes a file into a thread's folder, unless it exists.
///
/// # Errors
/// `AlreadyExists` if another file has the name; else the error of the system.
pub(super) fn store_asset(
    base: &Path,
    thread: &[&str],
    reference: &str,
    file: &DraftAttachment,
) -> Result<(), StoreError> {
    check_clash(base, thread, reference, &file.sha256)?;
    let folder = [thread, &[FOLDER]].concat();
    let path = join_parts(base, &folder).join(reference);
    let io = |e| StoreError::io(&path, e);
    let dir: OwnedFd = confined::make_dir(base, &folder, 0o755).map_err(io)?;
    if confined::stat(&dir, reference).is_ok() {
        return Ok(());
    }
    let slot = FileSlot::new(&dir, reference);
    let placed = slot.create_with(FILE_MODE, |out| {
        let mut from = File::open(&file.path)?;
        io::copy(&mut from, out)?;
        out.flush()
    });
    match placed {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            check_clash(base, thread, reference, &file.sha256)
        }
        other => {
            other.map_err(io)?;
            fs::fsync(&dir).map_err(io)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_names_of_assets_are_followed() {
        for (name, ok) in [
            ("sha256-0123456789abcdef.png", true),
            ("sha256-0123456789abcdef.JPEG", true),
            ("sha256-a1b2c3d4e5f6g7h8.png", false),
            ("sha256-0123456789ABCDEF.png", false),
            ("sha256-0123456789abcdef", false),
            ("sha256-0123456789abcdef.", false),
            ("sha256-0123456789abcdef.tar.gz", false),
            ("sha256-0123456789abcdef.abcdefghijk", false),
            ("../sha256-0123456789abcdef.png", false),
            ("sha256-0123456789abcdef.p/g", false),
            ("/etc/passwd", false),
            ("", false),
        ] {
            assert_eq!(parse_asset_digest(name).is_some(), ok, "{name}");
        }
    }

    #[test]
    fn content_says_what_a_file_is() {
        for (name, head, is) in [
            ("a.jpeg", &b"\xff\xd8\xff\xe0"[..], ("jpg", true)),
            ("a.txt", b"\x89PNG\r\n\x1a\n...", ("png", true)),
            ("a.png", b"hello", ("png", false)),
            ("a.svg", b"<?xml?><svg>", ("svg", true)),
            ("a.html", b"<svg>", ("html", false)),
            ("plan.PDF", b"%PDF", ("pdf", false)),
            ("noext", b"", ("bin", false)),
            ("a.b/c", b"", ("bin", false)),
            ("a.webp", b"RIFF\0\0\0\0WEBPVP8 ", ("webp", true)),
        ] {
            let (extension, _, image) = detect_media_type(name, head);
            assert_eq!((extension.as_str(), image), is, "{name}");
        }
    }

    proptest! {
        #[test]
        fn what_is_named_can_be_referred_to(name in any::<String>(), head in any::<Vec<u8>>()) {
            let (extension, _, _) = detect_media_type(&name, &head);
            let reference = format!("sha256-0123456789abcdef.{extension}");
            prop_assert!(parse_asset_digest(&reference).is_some());
        }
    }
}
