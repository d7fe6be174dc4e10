//! The tree of the process that acts for me and is not reached as a mount: `msgfs carry --all`, or a mount that
//! cannot be seen from here.

use std::cell::Cell;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use msgfs::config;
use msgfs::view::Listed;

use super::super::failure::{Failure, system_text};
use super::wire::{self, Answer, Request};
use super::{Access, PATIENCE, PAUSE};

/// How long it may take until that process greets.
const GREETS_WITHIN: Duration = Duration::from_secs(2);
/// How long one that carries may take to end what it does, and give its place to a mount.
const YIELDS_WITHIN: Duration = Duration::from_secs(60);

/// A connection to that process.
pub(super) struct Served {
    stream: UnixStream,
    /// Something was asked and answered.
    used: Cell<bool>,
}

impl Served {
    /// Connects to the process that acts in a state folder; `None` if none listens there, or answers.
    pub(super) fn connect(state: &Path) -> Option<Self> {
        let stream = greeted(state)?;
        Some(Self { stream, used: Cell::new(false) })
    }

    /// Sends a request with what belongs to it.
    fn ask(&self, request: &Request, text: Option<&[u8]>) -> Result<(), Failure> {
        let sent = wire::send(&self.stream, request)
            .and_then(|()| text.map_or(Ok(()), |text| wire::send_bytes(&self.stream, text)));
        sent.map_err(|e| self.broken(&e, false))
    }

    fn answer(&self) -> Result<Answer, Failure> {
        let answer = wire::receive(&self.stream).map_err(|e| self.broken(&e, true))?;
        self.used.set(true);
        match answer {
            Answer::Failed { errno: Some(errno), text } => Err(Failure::Errno(errno, text)),
            Answer::Failed { errno: None, text } => Err(Failure::Refused(text)),
            answer => Ok(answer),
        }
    }

    fn call(&self, request: &Request) -> Result<Answer, Failure> {
        self.ask(request, None)?;
        self.answer()
    }

    fn done(&self, request: &Request) -> Result<(), Failure> {
        self.call(request).map(drop)
    }

    /// Tells what a broken connection means. `asked`: a request was sent. A request that the process has not read as a
    /// whole it has not begun, and then the system says that the connection was reset.
    fn broken(&self, error: &io::Error, asked: bool) -> Failure {
        if !self.used.get() && (!asked || error.kind() == io::ErrorKind::ConnectionReset) {
            return Failure::Gone;
        }
        Failure::refused(format!(
            "the msgfs that acts for this name has ended ({}); a message that it had accepted is in sent/ soon",
            system_text(error)
        ))
    }
}

/// A connection on which that process has greeted.
fn greeted(state: &Path) -> Option<UnixStream> {
    let stream = wire::connect(state).ok().filter(wire::is_mine)?;
    stream.set_read_timeout(Some(GREETS_WITHIN)).ok()?;
    let Ok(Answer::Done) = wire::receive(&stream) else { return None };
    stream.set_read_timeout(None).ok()?;
    Some(stream)
}

/// Asks whoever carries without a mount for its place. It has ended what it did when this returns, and waits as
/// long as the connection is open. `None` if nobody has to be asked.
pub(crate) fn ask_for_place(state: &Path) -> Option<UnixStream> {
    let deadline = Instant::now() + PATIENCE;
    // A mount is not asked: it stays.
    while config::holder(state).is_some_and(|holder| holder.mountpoint.is_none()) {
        if let Some(stream) = greeted(state) {
            stream.set_read_timeout(Some(YIELDS_WITHIN)).ok()?;
            wire::send(&stream, &Request::Place).ok()?;
            return matches!(wire::receive(&stream), Ok(Answer::Done)).then_some(stream);
        }
        if Instant::now() > deadline {
            return None;
        }
        // A command, which ends by itself, or one that begins to carry.
        std::thread::sleep(PAUSE);
    }
    None
}

/// Tells a mount that it has the place it asked for.
pub(crate) fn give_place(mount: &UnixStream) -> io::Result<()> {
    wire::send(mount, &Answer::Done)
}

/// An answer that does not fit what was asked, as of another version.
fn odd() -> Failure {
    Failure::refused("the msgfs that acts for this name has another version; restart it")
}

impl Access for Served {
    fn ls(&self, path: &str) -> Result<Vec<Listed>, Failure> {
        match self.call(&Request::Ls(path.to_owned()))? {
            Answer::Listed(entries) => Ok(entries.into_iter().map(Listed::from).collect()),
            _ => Err(odd()),
        }
    }

    fn cat(&self, path: &str, out: &mut dyn Write) -> Result<(), Failure> {
        self.ask(&Request::Cat(path.to_owned()), None)?;
        while let Answer::Part = self.answer()? {
            let part = wire::receive_bytes(&self.stream).map_err(|e| self.broken(&e, true))?;
            if let Err(e) = out.write_all(&part).and_then(|()| out.flush()) {
                // A text that was not printed was not read.
                let _ = self.stream.shutdown(std::net::Shutdown::Both);
                return Err(Failure::output(&e));
            }
            wire::send_bytes(&self.stream, b"").map_err(|e| self.broken(&e, true))?;
        }
        Ok(())
    }

    fn has(&self, path: &str) -> bool {
        matches!(self.call(&Request::Has(path.to_owned())), Ok(Answer::Has(true)))
    }

    fn write(&self, path: &str, text: &[u8]) -> Result<(), Failure> {
        self.ask(&Request::Write(path.to_owned()), Some(text))?;
        self.answer().map(drop)
    }

    fn rm(&self, path: &str) -> Result<(), Failure> {
        self.done(&Request::Rm(path.to_owned()))
    }

    fn mark_all(&self) -> Result<usize, Failure> {
        match self.call(&Request::MarkAll)? {
            Answer::Marked(count) => Ok(count),
            _ => Err(odd()),
        }
    }

    fn mv(&self, from: &str, to: &str) -> Result<Option<String>, Failure> {
        match self.call(&Request::Mv(from.to_owned(), to.to_owned()))? {
            Answer::MovedTo(to) => Ok(to),
            _ => Err(odd()),
        }
    }

    fn wait(&self, _: Duration) -> Result<Vec<String>, Failure> {
        // Whoever only waits follows the stores by itself.
        self.unread()
    }
}
