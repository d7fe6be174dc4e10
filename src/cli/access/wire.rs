//! The protocol between a command and the process that acts for me, over a socket in the state folder.
//!
//! Both sides send frames: a length of four bytes, and so many bytes. The process greets with an answer. Then
//! the command sends one request after the other and gets an answer to each. The text of a draft is a frame of
//! its own behind its request. A printed file comes in parts, and the command confirms each part that it
//! printed. An unconfirmed message is not marked as read.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use msgfs::model::Timestamp;
use msgfs::view::{AskProgress, FolderEntry};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The name of the socket in the state folder.
const NAME: &str = "socket";
/// The longest path of a socket, in bytes.
const LONGEST: usize = 107;

/// A request of a command. Paths are relative to the root of the tree.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum TreeRequest {
    Ls(String),
    Cat(String),
    Has(String),
    /// The text is in the next frame.
    Write(String),
    Rm(String),
    MarkAll,
    Mv(String, String),
    /// The next answer to a question: its key, the answers that were printed, and the milliseconds to wait.
    Answer(String, Vec<u64>, u64),
    /// A mount asks the carrying process to let it take over.
    Place,
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum TreeResponse {
    Done,
    /// A part of a file is in the next frame.
    Part,
    Listed(Vec<WireEntry>),
    /// The flag is true if something exists under the path.
    Has(bool),
    Marked(usize),
    MovedTo(Option<String>),
    /// The state of a question.
    Asked(WireAsk),
    Failed {
        errno: Option<i32>,
        text: String,
    },
}

/// A [`FolderEntry`] in transit.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireEntry(String, bool, u64, i64, u16);

impl From<FolderEntry> for WireEntry {
    fn from(FolderEntry { name, is_dir, size, time, mode }: FolderEntry) -> Self {
        Self(name, is_dir, size, time.millis(), mode)
    }
}

impl From<WireEntry> for FolderEntry {
    fn from(WireEntry(name, is_dir, size, time, mode): WireEntry) -> Self {
        Self { name, is_dir, size, time: Timestamp::from_millis(time), mode }
    }
}

/// An [`AskProgress`] in transit.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireAsk(
    Option<(u64, String)>,
    Vec<String>,
    Vec<String>,
    // Older builds did not tell who was refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")] Vec<(String, String)>,
);

impl From<AskProgress> for WireAsk {
    fn from(AskProgress { printed, missing, paths, refused }: AskProgress) -> Self {
        Self(printed, missing, paths, refused)
    }
}

impl From<WireAsk> for AskProgress {
    fn from(WireAsk(printed, missing, paths, refused): WireAsk) -> Self {
        Self { printed, missing, paths, refused }
    }
}

/// Sends one frame.
pub(super) fn send_frame(mut to: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    to.write_all(&len.to_le_bytes())?;
    to.write_all(bytes)
}

/// Receives one frame.
pub(super) fn receive_frame(mut from: &UnixStream) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u64::from(u32::from_le_bytes(len));
    let mut bytes = Vec::new();
    from.take(len).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// Sends a request or an answer.
pub(super) fn send(to: &UnixStream, what: &impl Serialize) -> io::Result<()> {
    send_frame(to, &serde_json::to_vec(what)?)
}

/// Receives a request or an answer.
pub(super) fn receive<T: DeserializeOwned>(from: &UnixStream) -> io::Result<T> {
    Ok(serde_json::from_slice(&receive_frame(from)?)?)
}

/// Returns the path of the socket of a state folder.
pub(super) fn socket_path(state: &Path) -> PathBuf {
    state.join(NAME)
}

/// Calls `work` with a path that leads to the socket and is short enough for one.
fn with_short_path<T>(state: &Path, work: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let path = socket_path(state);
    if path.as_os_str().as_bytes().len() <= LONGEST {
        return work(&path);
    }
    let folder = std::fs::File::open(state)?;
    work(&PathBuf::from(format!("/proc/self/fd/{}/{NAME}", folder.as_raw_fd())))
}

/// Listens in a state folder whose lock this process holds. So nobody uses the socket of an earlier process.
pub(super) fn listen(state: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(socket_path(state)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    with_short_path(state, |path| UnixListener::bind(path))
}

/// Connects to the process that listens in a state folder.
pub(super) fn connect(state: &Path) -> io::Result<UnixStream> {
    with_short_path(state, |path| UnixStream::connect(path))
}

/// Returns true if the other side runs as the same user as this process.
pub(super) fn is_same_user(stream: &UnixStream) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let Ok(mut len) = libc::socklen_t::try_from(size_of::<libc::ucred>()) else { return false };
    let fd = stream.as_fd().as_raw_fd();
    let (to, room) = (std::ptr::from_mut(&mut peer).cast(), std::ptr::from_mut(&mut len));
    // SAFETY: the descriptor is open as long as `stream` is, and `to` has room for the `len` bytes that may be
    // written.
    let told = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, to, room) };
    told == 0 && peer.uid == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_whole_or_not_at_all() {
        let (here, there) = UnixStream::pair().unwrap();
        send(&here, &TreeRequest::Mv("a".into(), "b".into())).unwrap();
        send_frame(&here, b"text").unwrap();
        assert!(
            matches!(receive(&there).unwrap(), TreeRequest::Mv(from, to) if from == "a" && to == "b")
        );
        assert_eq!(receive_frame(&there).unwrap(), b"text");
        (&here).write_all(&[9, 0, 0, 0, 1]).unwrap();
        drop(here);
        assert_eq!(receive_frame(&there).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_socket_in_a_deep_folder_is_reached() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("x".repeat(200));
        std::fs::create_dir(&deep).unwrap();
        for state in [dir.path(), &deep] {
            assert!(connect(state).is_err());
            drop(listen(state).unwrap());
            assert!(connect(state).is_err(), "nobody listens any more");
            let listener = listen(state).unwrap();
            let stream = connect(state).unwrap();
            assert!(is_same_user(&stream) && is_same_user(&listener.accept().unwrap().0));
        }
    }
}
