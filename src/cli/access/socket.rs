//! Access to the tree of a process that acts for me and is not reached as a mount: `msgfs carry --all`, or a
//! mount that cannot be seen from here.

use std::cell::Cell;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use msgfs::config;
use msgfs::view::{AskProgress, AskQuery, FolderEntry};

use super::super::failure::{Failure, format_io_error};
use super::wire::{self, TreeRequest, TreeResponse};
use super::{PATIENCE, PAUSE, TreeAccess};

/// The time within which that process must greet.
const GREETS_WITHIN: Duration = Duration::from_secs(2);
/// The time within which that process must send an answer that it has, or say that none came in time.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// The time within which a carrying process must end its work and let a mount take over.
const YIELDS_WITHIN: Duration = Duration::from_secs(60);

/// A connection to that process.
pub(super) struct SocketAccess {
    stream: UnixStream,
    /// A request was sent and answered.
    used: Cell<bool>,
    /// The connection broke.
    broken: Cell<bool>,
}

impl SocketAccess {
    /// Connects to the process that acts in a state folder.
    ///
    /// # Errors
    /// Returns the error of the system if none listens there, and a timeout if one does and does not answer.
    pub(super) fn connect(state: &Path) -> io::Result<Self> {
        let stream = connect_greeted(state)?;
        Ok(Self { stream, used: Cell::new(false), broken: Cell::new(false) })
    }

    /// Sends a request with the text that belongs to it.
    fn send_request(&self, request: &TreeRequest, text: Option<&[u8]>) -> Result<(), Failure> {
        let sent = wire::send(&self.stream, request)
            .and_then(|()| text.map_or(Ok(()), |text| wire::send_frame(&self.stream, text)));
        sent.map_err(|e| self.connection_failure(&e, false))
    }

    fn receive_response(&self) -> Result<TreeResponse, Failure> {
        let answer = wire::receive(&self.stream).map_err(|e| self.connection_failure(&e, true))?;
        self.used.set(true);
        match answer {
            TreeResponse::Failed { errno: Some(errno), text } => Err(Failure::Errno(errno, text)),
            TreeResponse::Failed { errno: None, text } => Err(Failure::Refused(text)),
            answer => Ok(answer),
        }
    }

    fn call_server(&self, request: &TreeRequest) -> Result<TreeResponse, Failure> {
        self.send_request(request, None)?;
        self.receive_response()
    }

    fn run_request(&self, request: &TreeRequest) -> Result<(), Failure> {
        self.call_server(request).map(drop)
    }

    /// Receives a file in parts, prints it to `out`, and returns the response behind it.
    fn receive_file(&self, out: &mut dyn Write) -> Result<TreeResponse, Failure> {
        loop {
            let response = self.receive_response()?;
            let TreeResponse::Part = response else { return Ok(response) };
            let part =
                wire::receive_frame(&self.stream).map_err(|e| self.connection_failure(&e, true))?;
            if let Err(e) = out.write_all(&part).and_then(|()| out.flush()) {
                // A text that was not printed was not read.
                let _ = self.stream.shutdown(std::net::Shutdown::Both);
                return Err(Failure::from_output_error(&e));
            }
            wire::send_frame(&self.stream, b"").map_err(|e| self.connection_failure(&e, true))?;
        }
    }

    /// Returns the failure for a broken connection. `asked`: a request was sent. If the process has not read
    /// the whole request, it has not begun it, and the system reports that the connection was reset.
    fn connection_failure(&self, error: &io::Error, asked: bool) -> Failure {
        self.broken.set(true);
        if !self.used.get() && (!asked || error.kind() == io::ErrorKind::ConnectionReset) {
            return Failure::ServerGone;
        }
        Failure::refused(format!(
            "the msgfs that acts for this name has ended ({}); a message that it had accepted is in sent/ soon",
            format_io_error(error)
        ))
    }
}

/// Returns a connection on which that process has greeted.
fn connect_greeted(state: &Path) -> io::Result<UnixStream> {
    let stream = wire::connect(state)?;
    if !wire::is_same_user(&stream) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(GREETS_WITHIN))?;
    let TreeResponse::Done = wire::receive(&stream)? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// Returns true if an error says that the process listens and has not greeted in time.
pub(super) fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Asks the process that carries without a mount to let a mount take over. It has ended its work when this
/// returns, and waits while the connection is open. `None` if nobody has to be asked.
pub(crate) fn request_takeover(state: &Path) -> Option<UnixStream> {
    let deadline = Instant::now() + PATIENCE;
    // A mount is not asked, because it stays.
    while config::find_lock_holder(state).is_some_and(|holder| holder.mountpoint.is_none()) {
        if let Ok(stream) = connect_greeted(state) {
            stream.set_read_timeout(Some(YIELDS_WITHIN)).ok()?;
            wire::send(&stream, &TreeRequest::Place).ok()?;
            return matches!(wire::receive(&stream), Ok(TreeResponse::Done)).then_some(stream);
        }
        if Instant::now() > deadline {
            return None;
        }
        // The holder is a command, which ends by itself, or a process that begins to carry.
        std::thread::sleep(PAUSE);
    }
    None
}

/// Tells a mount that it may take over.
pub(crate) fn grant_takeover(mount: &UnixStream) -> io::Result<()> {
    wire::send(mount, &TreeResponse::Done)
}

/// Returns the failure for an answer that does not fit the request, like that of another version.
fn version_mismatch() -> Failure {
    Failure::refused("the msgfs that acts for this name has another version; restart it")
}

impl TreeAccess for SocketAccess {
    fn ls(&self, path: &str) -> Result<Vec<FolderEntry>, Failure> {
        match self.call_server(&TreeRequest::Ls(path.to_owned()))? {
            TreeResponse::Listed(entries) => {
                Ok(entries.into_iter().map(FolderEntry::from).collect())
            }
            _ => Err(version_mismatch()),
        }
    }

    fn cat(&self, path: &str, out: &mut dyn Write) -> Result<(), Failure> {
        self.send_request(&TreeRequest::Cat(path.to_owned()), None)?;
        self.receive_file(out).map(drop)
    }

    fn has_path(&self, path: &str) -> bool {
        matches!(self.call_server(&TreeRequest::Has(path.to_owned())), Ok(TreeResponse::Has(true)))
    }

    fn write(&self, path: &str, text: &[u8]) -> Result<(), Failure> {
        self.send_request(&TreeRequest::Write(path.to_owned()), Some(text))?;
        self.receive_response().map(drop)
    }

    fn rm(&self, path: &str) -> Result<(), Failure> {
        self.run_request(&TreeRequest::Rm(path.to_owned()))
    }

    fn mark_all_read(&self) -> Result<usize, Failure> {
        match self.call_server(&TreeRequest::MarkAll)? {
            TreeResponse::Marked(count) => Ok(count),
            _ => Err(version_mismatch()),
        }
    }

    fn mv(&self, from: &str, to: &str) -> Result<Option<String>, Failure> {
        match self.call_server(&TreeRequest::Mv(from.to_owned(), to.to_owned()))? {
            TreeResponse::MovedTo(to) => Ok(to),
            _ => Err(version_mismatch()),
        }
    }

    fn wait_for_mail(&self, _: Duration) -> Result<Vec<String>, Failure> {
        // A command that only waits follows the stores by itself.
        self.list_unread()
    }

    fn next_answer(
        &self,
        query: AskQuery<'_>,
        within: Duration,
        out: &mut dyn Write,
    ) -> Result<AskProgress, Failure> {
        let millis = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let request = TreeRequest::Answer(query.key.to_owned(), query.printed.to_vec(), millis);
        // A process that is stopped says nothing.
        self.stream
            .set_read_timeout(Some(within.saturating_add(ANSWERS_WITHIN)))
            .map_err(|e| self.connection_failure(&e, false))?;
        let answered = self.send_request(&request, None).and_then(|()| self.receive_file(out));
        match answered {
            Ok(TreeResponse::Asked(progress)) => Ok(progress.into()),
            Ok(_) => Err(version_mismatch()),
            // Nothing is lost: what was not printed to its end is not marked.
            Err(_) if self.broken.get() => Err(Failure::ServerGone),
            Err(failure) => Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S1229: a process that does not answer is waited for as long as for an answer, and a little more.
    #[test]
    fn a_process_that_is_stopped_is_not_waited_for() {
        let (stream, _stopped) = UnixStream::pair().unwrap();
        let access = SocketAccess { stream, used: Cell::new(false), broken: Cell::new(false) };
        let query = AskQuery { key: "k", printed: &[] };
        let began = Instant::now();
        let outcome = access.next_answer(query, Duration::from_millis(10), &mut io::sink());
        assert!(matches!(outcome, Err(Failure::ServerGone)), "{outcome:?}");
        assert!(began.elapsed() < ANSWERS_WITHIN * 3, "{:?}", began.elapsed());
    }
}
