//! A server of the tree for commands that reach no mount, while this process acts for me.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use msgfs::view::{AskQuery, Tree};

use super::super::failure::Failure;
use super::TreeAccess;
use super::wire::{self, TreeRequest, TreeResponse};

/// The time for current requests at the end. A longer one waits for mail and changes nothing.
const ENDS_WITHIN: Duration = Duration::from_secs(3);

/// A command that is served.
struct CommandConnection {
    stream: UnixStream,
    /// The connection outlives the server, because a mount that takes over from this process holds it.
    outlives_server: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// A server of the tree for commands.
pub(crate) struct TreeServer {
    state: PathBuf,
    stopping: Arc<AtomicBool>,
    listening: Option<JoinHandle<Vec<CommandConnection>>>,
}

impl TreeServer {
    /// Serves the tree in a state folder whose lock this process holds. `places` gets the connections of mounts
    /// that ask to take over from this process.
    ///
    /// # Errors
    /// Returns an error if the socket or the thread cannot be made.
    pub(crate) fn start(
        state: &Path,
        tree: &Arc<Tree>,
        places: Option<Sender<UnixStream>>,
    ) -> io::Result<Self> {
        let listener = wire::listen(state)?;
        let stopping = Arc::<AtomicBool>::default();
        let (stopped, tree) = (Arc::clone(&stopping), Arc::clone(tree));
        let listen = move || accept_connections(&listener, &stopped, &tree, places.as_ref());
        let listening = thread::Builder::new().name("msgfs-serve".to_owned()).spawn(listen)?;
        Ok(Self { state: state.to_owned(), stopping, listening: Some(listening) })
    }

    /// Ends the server. Requests that have arrived whole are done and answered; no others are taken.
    pub(crate) fn stop(&mut self) {
        let Some(listening) = self.listening.take() else { return };
        self.stopping.store(true, Ordering::SeqCst);
        // This wakes the listening thread.
        let _ = wire::connect(&self.state);
        let served = listening.join().unwrap_or_default();
        let _ = std::fs::remove_file(wire::socket_path(&self.state));
        for one in served.iter().filter(|one| !one.outlives_server.load(Ordering::SeqCst)) {
            let _ = one.stream.shutdown(Shutdown::Read);
        }
        let deadline = Instant::now() + ENDS_WITHIN;
        while served.iter().any(|one| !one.thread.is_finished()) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for TreeServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Accepts commands until it must stop. Returns the connections that are open then.
fn accept_connections(
    listener: &UnixListener,
    stopping: &AtomicBool,
    tree: &Arc<Tree>,
    places: Option<&Sender<UnixStream>>,
) -> Vec<CommandConnection> {
    let mut served: Vec<CommandConnection> = Vec::new();
    loop {
        let accepted = listener.accept();
        if stopping.load(Ordering::SeqCst) {
            return served;
        }
        served.retain(|one| !one.thread.is_finished());
        match accepted.and_then(|(stream, _)| spawn_connection(stream, tree, places)) {
            Ok(one) => served.push(one),
            Err(error) => {
                tracing::warn!(%error, "a command is not served");
                // There may be no descriptors left.
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn spawn_connection(
    stream: UnixStream,
    tree: &Arc<Tree>,
    places: Option<&Sender<UnixStream>>,
) -> io::Result<CommandConnection> {
    if !wire::is_same_user(&stream) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let kept = stream.try_clone()?;
    let stays = Arc::<AtomicBool>::default();
    let (tree, places, given) = (Arc::clone(tree), places.cloned(), Arc::clone(&stays));
    let serve = move || {
        if let Err(error) = serve_connection(&stream, &tree, places.as_ref(), &given) {
            tracing::debug!(%error, "a command has gone");
        }
        if !given.load(Ordering::SeqCst) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    };
    let thread = thread::Builder::new().name("msgfs-served".to_owned()).spawn(serve)?;
    Ok(CommandConnection { stream: kept, outlives_server: stays, thread })
}

/// Answers one command until it has no more requests.
fn serve_connection(
    stream: &UnixStream,
    tree: &Tree,
    places: Option<&Sender<UnixStream>>,
    stays: &AtomicBool,
) -> io::Result<()> {
    wire::send(stream, &TreeResponse::Done)?;
    loop {
        let request = match wire::receive(stream) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            request => request?,
        };
        if let (TreeRequest::Place, Some(places)) = (&request, places) {
            let stream = stream.try_clone()?;
            stays.store(true, Ordering::SeqCst);
            // The answer comes once this process has ended all its work.
            let _ = places.send(stream);
            return Ok(());
        }
        let answer = answer_request(stream, tree, request)?;
        wire::send(stream, &answer)?;
    }
}

/// Does what the request asks and returns the answer.
///
/// # Errors
/// Returns an error if the command has gone before its request arrived whole.
fn answer_request(
    stream: &UnixStream,
    tree: &Tree,
    request: TreeRequest,
) -> io::Result<TreeResponse> {
    let tree: &dyn TreeAccess = tree;
    let done = |()| TreeResponse::Done;
    let outcome = match request {
        TreeRequest::Ls(path) => tree
            .ls(&path)
            .map(|listed| TreeResponse::Listed(listed.into_iter().map(Into::into).collect())),
        TreeRequest::Cat(path) => tree.cat(&path, &mut FilePartWriter(stream)).map(done),
        TreeRequest::Has(path) => Ok(TreeResponse::Has(tree.has_path(&path))),
        TreeRequest::Write(path) => tree.write(&path, &wire::receive_frame(stream)?).map(done),
        TreeRequest::Rm(path) => tree.rm(&path).map(done),
        TreeRequest::MarkAll => tree.mark_all_read().map(TreeResponse::Marked),
        TreeRequest::Mv(from, to) => tree.mv(&from, &to).map(TreeResponse::MovedTo),
        TreeRequest::Answer(key, printed, within) => {
            let query = AskQuery { key: &key, printed: &printed };
            let within = Duration::from_millis(within);
            tree.next_answer(query, within, &mut FilePartWriter(stream))
                .map(|progress| TreeResponse::Asked(progress.into()))
        }
        TreeRequest::Place => Err(Failure::refused("this mount stays")),
    };
    Ok(outcome.unwrap_or_else(|failure| match failure {
        Failure::Errno(errno, text) => TreeResponse::Failed { errno: Some(errno), text },
        other => TreeResponse::Failed { errno: None, text: other.to_string() },
    }))
}

/// A writer that sends a file to the command. The command confirms each part that it printed.
struct FilePartWriter<'a>(&'a UnixStream);

impl Write for FilePartWriter<'_> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        wire::send(self.0, &TreeResponse::Part)?;
        wire::send_frame(self.0, part)?;
        wire::receive_frame(self.0)?;
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
