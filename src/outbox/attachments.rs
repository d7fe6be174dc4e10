//! Attachments, copied into the state folder, where nobody changes them, until the message is in its store.
//!
//! - One folder below `<state>/attachments/` for each version of a draft, `0700`, its files `0600` and named by number.
//!   The parcels in the spool name the files. A folder that no parcel names is removed, also when the process that made
//!   it died.
//! - A file is checked by `stat` before it is opened, and opened so that it cannot block: a FIFO or a device is
//!   refused. A symbolic link is followed, because the path is the user's own.
//! - A path that leads into a mount of msgfs is refused before anything there is opened: that mount may be the one that
//!   waits for us, or wait for it (`mount_check`).
//! - All of this happens on a thread of its own. The caller gives up when nothing moves any more: the path may lead to
//!   a server that is gone.

use std::collections::BTreeSet;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use super::spool::SpoolParcel;
use super::{OutboxError, mount_check};
use crate::model::{DraftAttachment, encode_hex, sanitize_line};
use crate::store::{Durability, StoreError, fs};

/// The time without progress after which a caller gives up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes copied at a time.
const CHUNK: usize = 256 << 10;

/// A file to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttachmentSource {
    /// The file at this path.
    Path(PathBuf),
    /// A file of a composing folder: its name, and its path on the disk of the copies. Nobody writes to it once the
    /// folder is being sent.
    FolderFile(String, PathBuf),
}

/// An attachment's name and its size in bytes.
pub(super) type NamedSize = (String, u64);

/// The folder of the copies.
#[derive(Debug)]
pub(super) struct AttachmentSpool {
    dir: PathBuf,
    durability: Durability,
    next: AtomicU64,
}

/// The copies for one version of a draft. They are removed when dropped, unless they were persisted.
#[derive(Debug)]
pub(super) struct AttachmentCopies {
    /// The folder; empty if there is nothing to remove.
    dir: PathBuf,
    pub files: Vec<DraftAttachment>,
}

impl AttachmentCopies {
    /// Leaves the files to the parcels that name them.
    pub fn persist(mut self) {
        self.dir = PathBuf::new();
    }
}

impl Drop for AttachmentCopies {
    fn drop(&mut self) {
        if !self.dir.as_os_str().is_empty() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

impl AttachmentSpool {
    /// Opens the copies' folder in a state folder and removes the copies that no pending parcel names.
    pub fn open<'a>(
        state: &Path,
        durability: Durability,
        pending: impl Iterator<Item = &'a SpoolParcel>,
    ) -> io::Result<Self> {
        let dir = state.join("attachments");
        let named: BTreeSet<PathBuf> = pending.flat_map(|p| copy_folders(&dir, p)).collect();
        let mut last = 0;
        let entries = match std::fs::read_dir(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            other => Some(other?),
        };
        for entry in entries.into_iter().flatten().flatten() {
            let number = entry.file_name().to_str().and_then(|n| n.parse::<u64>().ok());
            last = number.unwrap_or(0).max(last);
            if number.is_some() && !named.contains(&entry.path()) {
                std::fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(Self { dir, durability, next: AtomicU64::new(last + 1) })
    }

    /// Opens the folder to look at only.
    pub fn open_read_only(state: &Path) -> Self {
        let dir = state.join("attachments");
        Self { dir, durability: Durability::None, next: AtomicU64::new(1) }
    }

    /// Copies files of these sizes.
    ///
    /// # Errors
    /// [`OutboxError::Invalid`] if one of them changed since it was measured; I/O errors.
    pub fn copy_files(
        &self,
        sources: &[AttachmentSource],
        sizes: &[NamedSize],
    ) -> Result<AttachmentCopies, OutboxError> {
        let dir = self.dir.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        let (sources, sizes) = (sources.to_vec(), sizes.to_vec());
        let durability = self.durability;
        run_with_stall_timeout(move |moved| copy_sources(&dir, &sources, &sizes, durability, moved))
    }

    /// Removes the copies of parcels that are in their stores or will not be sent.
    pub fn remove_copies(&self, parcels: &[SpoolParcel]) {
        let done: BTreeSet<PathBuf> =
            parcels.iter().flat_map(|p| copy_folders(&self.dir, p)).collect();
        for folder in done {
            if let Err(e) = std::fs::remove_dir_all(&folder)
                && e.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(folder = %folder.display(), error = %e, "copies of attachments \
                    cannot be removed");
            }
        }
    }
}

/// Returns the folders of copies below `dir` that a parcel names.
fn copy_folders<'a>(dir: &'a Path, parcel: &'a SpoolParcel) -> impl Iterator<Item = PathBuf> + 'a {
    let of_file =
        |file: &'a DraftAttachment| file.path.parent().filter(|f| f.parent() == Some(dir));
    parcel.message.files.iter().filter_map(of_file).map(Path::to_owned)
}

/// Returns names and sizes of the files to attach.
///
/// # Errors
/// [`OutboxError::Invalid`] for anything but a readable file, and for two files of one name; I/O errors.
pub(super) fn measure_files(sources: &[AttachmentSource]) -> Result<Vec<NamedSize>, OutboxError> {
    let mut seen: Vec<(String, &AttachmentSource)> = Vec::new();
    for source in sources {
        let name = source.name()?;
        if let Some((_, first)) = seen.iter().find(|(known, _)| *known == name) {
            return Err(OutboxError::Invalid(format!(
                "Attach: {} and {} have the same name; rename one of them",
                first.display_name(),
                source.display_name()
            )));
        }
        seen.push((name, source));
    }
    let sources = sources.to_vec();
    run_with_stall_timeout(move |moved| {
        let sized = |source: &AttachmentSource| {
            moved.fetch_add(1, Ordering::Relaxed);
            source.measure_file()
        };
        sources.iter().map(sized).collect()
    })
}

impl AttachmentSource {
    /// Returns the name of the attachment.
    fn name(&self) -> Result<String, OutboxError> {
        match self {
            Self::FolderFile(name, _) => Ok(name.clone()),
            Self::Path(path) => {
                let name = path.file_name().and_then(|n| n.to_str()).map(str::to_owned);
                name.ok_or_else(|| self.refuse("does not end in the name of a file"))
            }
        }
    }

    /// Hard-links the file of a composing folder instead of copying it. Returns true if that succeeded.
    fn hard_link(&self, to: &Path) -> bool {
        matches!(self, Self::FolderFile(_, path) if std::fs::hard_link(path, to).is_ok())
    }

    fn display_name(&self) -> String {
        match self {
            Self::FolderFile(name, _) => format!("the file {}", sanitize_line(name)),
            Self::Path(path) => sanitize_line(&path.to_string_lossy()).into_owned(),
        }
    }

    fn refuse(&self, why: &str) -> OutboxError {
        OutboxError::Invalid(format!("Attach: {} {why}", self.display_name()))
    }

    fn measure_file(&self) -> Result<NamedSize, OutboxError> {
        Ok((self.name()?, self.open()?.1))
    }

    fn path(&self) -> &Path {
        match self {
            Self::FolderFile(_, path) | Self::Path(path) => path,
        }
    }

    /// Opens the file and returns its size too.
    fn open(&self) -> Result<(File, u64), OutboxError> {
        let path = self.path();
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                self.refuse("does not exist; an attachment is named by its absolute path")
            }
            _ => StoreError::io(path, e).into(),
        };
        let is_file = |meta: &Metadata| {
            let what = || self.refuse(&format!("is {}, not a file", fs::describe_file_type(meta)));
            meta.is_file().then_some(()).ok_or_else(what)
        };
        if matches!(self, Self::Path(path) if mount_check::is_in_msgfs(path).map_err(failed)?) {
            let why = "lies in a mount of msgfs, which cannot be read while a message is taken; copy the file to \
                       another folder and attach the copy";
            return Err(self.refuse(why));
        }
        // The check comes before the open: opening a device can do something.
        is_file(&std::fs::metadata(path).map_err(failed)?)?;
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags.bits() as i32);
        let file = options.open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        is_file(&meta)?;
        Ok((file, meta.len()))
    }
}

fn copy_sources(
    dir: &Path,
    sources: &[AttachmentSource],
    sizes: &[NamedSize],
    durability: Durability,
    moved: &AtomicU64,
) -> Result<AttachmentCopies, OutboxError> {
    let failed = |error| OutboxError::Io { what: "the attachments could not be saved", error };
    fs::make_dirs(dir, 0o700).map_err(failed)?;
    let mut copies = AttachmentCopies { dir: dir.to_owned(), files: Vec::new() };
    for (number, (source, (name, size))) in sources.iter().zip(sizes).enumerate() {
        let path = dir.join(number.to_string());
        let linked = source.hard_link(&path);
        let mut options = OpenOptions::new();
        options.write(true).create_new(!linked).mode(0o600);
        let file = options.open(&path).map_err(failed)?;
        let sha256 = copy_source(source, *size, (!linked).then_some(&file), moved)?;
        if durability == Durability::Fsync {
            file.sync_all().map_err(failed)?;
        }
        copies.files.push(DraftAttachment { name: name.clone(), path, size: *size, sha256 });
    }
    if durability == Durability::Fsync {
        fs::sync_dir(dir).map_err(failed)?;
    }
    Ok(copies)
}

/// Reads one file of this size, and copies it to `to` if given. Returns the SHA-256 of its bytes in hex.
fn copy_source(
    source: &AttachmentSource,
    size: u64,
    to: Option<&File>,
    moved: &AtomicU64,
) -> Result<String, OutboxError> {
    let failed = |error| OutboxError::Io { what: "the attachments could not be copied", error };
    let mut from = source.open()?.0.take(size.saturating_add(1));
    let (mut buffer, mut hash, mut copied) = (vec![0; CHUNK], Sha256::new(), 0);
    loop {
        let part = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => buffer.get(..n).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(failed(e)),
        };
        to.map_or(Ok(()), |mut to| to.write_all(part)).map_err(failed)?;
        hash.update(part);
        copied += part.len() as u64;
        moved.fetch_add(1, Ordering::Relaxed);
    }
    if copied != size {
        return Err(source.refuse("changed while it was copied; write the draft again"));
    }
    Ok(encode_hex(&hash.finalize()))
}

/// Runs work on a thread of its own for as long as it makes progress.
fn run_with_stall_timeout<T: Send + 'static>(
    work: impl FnOnce(&AtomicU64) -> Result<T, OutboxError> + Send + 'static,
) -> Result<T, OutboxError> {
    let failed = |error| OutboxError::Io { what: "the files to attach cannot be read", error };
    let moved = Arc::new(AtomicU64::new(0));
    let (done, outcome) = bounded(1);
    let counter = Arc::clone(&moved);
    let run = move || drop(done.send(work(&counter)));
    std::thread::Builder::new().name("msgfs-attach".into()).spawn(run).map_err(failed)?;
    let mut last = 0;
    loop {
        match outcome.recv_timeout(PATIENCE) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Timeout) if moved.load(Ordering::Relaxed) != last => {
                last = moved.load(Ordering::Relaxed);
            }
            Err(RecvTimeoutError::Timeout) => {
                return Err(failed(io::Error::from_raw_os_error(libc::ETIMEDOUT)));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(failed(io::Error::other("reading them panicked")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spool::tests::parcel;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn path(dir: &Path, name: &str, bytes: &[u8]) -> AttachmentSource {
        std::fs::write(dir.join(name), bytes).unwrap();
        AttachmentSource::Path(dir.join(name))
    }

    fn none() -> std::iter::Empty<&'static SpoolParcel> {
        std::iter::empty()
    }

    fn folders_in(state: &Path) -> usize {
        std::fs::read_dir(state.join("attachments")).map_or(0, Iterator::count)
    }

    #[test]
    fn copies_are_private_exact_and_removed_with_their_parcels() {
        let (state, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let kept = AttachmentSpool::open(state.path(), Durability::Fsync, none()).unwrap();
        let b = state.path().join("b");
        std::fs::write(&b, vec![7; 600_000]).unwrap();
        std::fs::set_permissions(&b, std::fs::Permissions::from_mode(0o600)).unwrap();
        let sources =
            [path(home.path(), "a", b"hello"), AttachmentSource::FolderFile("b".into(), b)];
        let sized = measure_files(&sources).unwrap();
        assert_eq!(sized, [("a".to_owned(), 5), ("b".to_owned(), 600_000)]);
        let copies = kept.copy_files(&sources, &sized).unwrap();
        let files = copies.files.clone();
        assert_eq!(
            files[0].sha256,
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
        );
        assert_eq!(std::fs::read(&files[1].path).unwrap(), vec![7; 600_000]);
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&files[0].path), 0o600);
        assert_eq!(mode(files[0].path.parent().unwrap()), 0o700);
        copies.persist();
        let mut parcel = parcel("s", "1", "");
        parcel.message.files = files;
        // The next process keeps copies that a parcel names, and gives no number twice.
        let kept =
            AttachmentSpool::open(state.path(), Durability::None, [&parcel].into_iter()).unwrap();
        assert_eq!(folders_in(state.path()), 1);
        drop(kept.copy_files(&sources, &sized).unwrap());
        assert_eq!(folders_in(state.path()), 1, "copies nobody keeps are removed");
        kept.remove_copies(&[parcel]);
        assert_eq!(folders_in(state.path()), 0);
    }

    #[test]
    fn leftovers_are_removed() {
        let state = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(state.path().join("attachments/7")).unwrap();
        std::fs::write(state.path().join("attachments/7/0"), "x").unwrap();
        let kept = AttachmentSpool::open(state.path(), Durability::None, none()).unwrap();
        assert_eq!(folders_in(state.path()), 0);
        std::fs::write(state.path().join("n"), "x").unwrap();
        let source = [AttachmentSource::FolderFile("n".into(), state.path().join("n"))];
        let copies = kept.copy_files(&source, &measure_files(&source).unwrap()).unwrap();
        assert!(copies.files[0].path.ends_with("attachments/8/0"));
    }

    #[test]
    fn only_files_go_along() {
        let home = tempfile::tempdir().unwrap();
        let fifo = home.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for (path, words) in [
            (fifo, "is a FIFO"),
            ("/dev/null".into(), "is a device"),
            (home.path().to_owned(), "is a folder"),
            (home.path().join("none"), "does not exist"),
            ("/etc/passwd/x".into(), "does not exist"),
            ("/".into(), "name of a file"),
            ("/tmp/..".into(), "name of a file"),
        ] {
            let e = measure_files(&[AttachmentSource::Path(path)]).unwrap_err();
            assert!(matches!(e, OutboxError::Invalid(_)) && e.to_string().contains(words), "{e}");
        }
        let file = path(home.path(), "a", b"x");
        let link = home.path().join("link");
        std::os::unix::fs::symlink("a", &link).unwrap();
        assert_eq!(
            measure_files(&[file, AttachmentSource::Path(link)]).unwrap()[1],
            ("link".to_owned(), 1)
        );
    }

    #[test]
    fn two_files_of_one_name_are_both_named() {
        let home = tempfile::tempdir().unwrap();
        let file = path(home.path(), "a", b"x");
        let e =
            measure_files(&[file, AttachmentSource::FolderFile("a".into(), home.path().join("b"))])
                .unwrap_err();
        let text = e.to_string();
        assert!(
            text.contains(home.path().to_str().unwrap()) && text.contains("the file a"),
            "{text}"
        );
    }

    #[test]
    fn a_file_that_changes_is_refused_and_leaves_nothing() {
        let (state, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let kept = AttachmentSpool::open(state.path(), Durability::None, none()).unwrap();
        let sources = [path(home.path(), "a", b"hello")];
        for size in [4, 6] {
            let e = kept.copy_files(&sources, &[("a".to_owned(), size)]).unwrap_err();
            assert!(e.to_string().contains("changed while"), "{e}");
        }
        assert_eq!(folders_in(state.path()), 0);
    }
}
