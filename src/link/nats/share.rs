//! What was read, shared by all machines of one identity.
//!
//! The file of marks is the log of this machine; what it says is told to the others in the bucket of the
//! space, and what they say there is noted in it. Each machine writes values of its own alone, and each
//! time a connection is made what is known here and not there is told: so nothing is kept besides, and
//! values that were lost or spoilt are told again by whoever knows.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::time;

use super::failure::Failure;
use super::feed::Feed;
use super::publish::DENIED;
use super::said::{NOBODY, Replica};
use super::server::Server;
use super::{FIRST, LONGEST, Nats, Wake, consumer_name, once, round};
use crate::link::marks::Marks;
use crate::link::{Board, Spec};
use crate::model::Host;
use crate::store::{fs, place};

/// How long the last marks may take to be told when the link is to end.
const LAST: Duration = Duration::from_secs(1);
/// The file in the state folder of an identity that holds the number of the machine.
const HOST: &str = "host";

/// Whose marks are shared.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The name.
    pub me: String,
    /// The folder of its state.
    pub state: PathBuf,
}

/// Starts to share what was read, in a thread of its own.
///
/// # Errors
/// If there can be no thread.
pub fn share(
    spec: &Spec,
    identity: &Identity,
    marks: Arc<dyn Marks>,
    board: Arc<Board>,
) -> io::Result<Nats> {
    let wake = Arc::new(Wake::default());
    let share = Share {
        spec: spec.clone(),
        identity: identity.clone(),
        marks,
        board,
        wake: Arc::clone(&wake),
        is_there: AtomicBool::new(false),
    };
    let thread =
        std::thread::Builder::new().name("msgfs-marks".into()).spawn(move || share.run())?;
    Ok(Nats { wake, thread: Some(thread) })
}

/// What keeps marks of an identity from being shared, as far as can be told without sending.
pub fn check_marks(spec: &Spec, me: &str) -> Option<String> {
    let checked = async {
        let mut server = Server::connect(spec).await?.for_marks();
        let Some(info) = server.bucket().await? else {
            let why = "it was not made yet; a link makes it if the server permits it".to_owned();
            return Err(Failure::NoStream(server.stream, why));
        };
        let all = server.space.marks_of(me);
        let next = info.state.last_seq + 1;
        Feed::start(&mut server, &consumer_name(), next, Some(&all)).await?;
        let permissions = server.permissions().await;
        let allowed = permissions.as_ref().and_then(|p| p.pointer("/publish/allow"));
        let mine = server.space.part(me, Host(0), 0);
        let may = allowed.and_then(|allowed| allowed.as_array()).is_none_or(|allowed| {
            let subjects = allowed.iter().filter_map(|subject| subject.as_str());
            subjects.into_iter().any(|pattern| covers(pattern, &mine))
        });
        Ok((!may).then(|| not_permitted(&all)))
    };
    match once(checked) {
        Ok(Ok(problem)) => problem,
        Ok(Err(failure)) => Some(not_shared(&failure, spec)),
        Err(error) => Some(error.to_string()),
    }
}

/// Whether a subject is one of those that a pattern of the server names.
fn covers(pattern: &str, subject: &str) -> bool {
    let mut subject = subject.split('.');
    for token in pattern.split('.') {
        match (token, subject.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (token, Some(other)) if token == other => {}
            _ => return false,
        }
    }
    subject.next().is_none()
}

/// What people are told where this machine may read and not write.
pub fn not_permitted(subjects: &str) -> String {
    format!(
        "my other machines do not learn what I read here: this machine may not publish \
         {subjects}; permit it as docs/links/nats.md says, or set marks = false"
    )
}

fn not_shared(failure: &Failure, spec: &Spec) -> String {
    format!(
        "this machine and my other machines do not share what I have read: {}; see \
         docs/links/nats.md, or set marks = false",
        failure.told(spec)
    )
}

/// The number of this machine, made at the first use.
fn host(state: &Path) -> io::Result<Host> {
    let path = state.join(HOST);
    let known = fs::or_nothing(fs::read_small(&path, 64))?;
    let known = std::str::from_utf8(&known).ok().and_then(|text| Host::parse(text.trim_end()));
    if let Some(host) = known.filter(|host| *host != NOBODY) {
        return Ok(host);
    }
    let mut chance = [0; 8];
    getrandom::fill(&mut chance).map_err(io::Error::other)?;
    let host = Host(u64::from_le_bytes(chance));
    place::write_atomic(&path, format!("{host}\n").as_bytes(), 0o600)?;
    Ok(host)
}

/// What the thread has.
#[derive(Debug)]
pub struct Share {
    /// The link.
    pub spec: Spec,
    /// Whose marks.
    pub identity: Identity,
    /// The marks of this machine.
    pub marks: Arc<dyn Marks>,
    board: Arc<Board>,
    /// What the thread is woken for.
    pub wake: Arc<Wake>,
    /// There is a connection on which the last marks can go.
    pub is_there: AtomicBool,
}

/// What is known, from one connection to the next.
#[derive(Debug, Default)]
pub struct Known {
    /// This machine.
    pub host: Host,
    /// What was said, by any machine.
    pub replica: Replica,
    /// The length of the file of marks up to which all is in the replica.
    pub at: u64,
    /// The last value that was read.
    pub last: u64,
    /// How many connections in a row ended behind the same one, before all was read.
    pub strikes: u32,
}

impl Share {
    fn run(self) {
        let (mut known, mut wait) = (None, FIRST);
        while !self.wake.stopped() {
            let began = Instant::now();
            let ended = once(async {
                tokio::select! {
                    ended = self.connection(&mut known) => ended,
                    () = self.to_end() => Ok(()),
                }
            });
            self.is_there.store(false, Ordering::Relaxed);
            let failure = match ended {
                Ok(Ok(())) => return,
                Ok(Err(failure)) => failure,
                Err(error) => Failure::Disk("the link".into(), error),
            };
            let why = failure.told(&self.spec);
            tracing::debug!(link = self.spec.name, why, "marks are shared again later");
            self.tell(&failure);
            if began.elapsed() > LONGEST {
                wait = FIRST;
            }
            // A stream that is missing may be made at any moment, and costs one question.
            let refused = matches!(failure, Failure::Stream(..) | Failure::Refused(..));
            let pause = if refused { DENIED } else { wait };
            let waited = once(async {
                tokio::select! {
                    () = self.wake.to_stop() => {}
                    () = time::sleep(pause) => {}
                }
            });
            if waited.is_err() {
                std::thread::sleep(pause);
            }
            wait = (wait * 2).min(LONGEST);
        }
    }

    /// Returns when the link is to end, and what was read last had its time to be told.
    async fn to_end(&self) {
        self.wake.to_stop().await;
        if self.is_there.load(Ordering::Relaxed) {
            time::sleep(LAST).await;
        }
    }

    /// Tells people why marks are not shared; what stops the lines too is told by them, and nothing else is known
    /// meanwhile.
    fn tell(&self, failure: &Failure) {
        use Failure::{Connect, Lost, Old, Secret, Settings};
        let is_link = matches!(failure, Connect(_) | Lost(_) | Old(_) | Secret(_) | Settings(_));
        self.say((!is_link).then(|| not_shared(failure, &self.spec)));
    }

    /// Tells people this, or no more.
    pub fn say(&self, text: Option<String>) {
        self.board.tell(|standing| standing.marks = text);
    }

    /// One connection, to its end or that of the link.
    async fn connection(&self, known: &mut Option<Known>) -> Result<(), Failure> {
        if known.is_none() {
            let host = host(&self.identity.state).map_err(Failure::disk("the state of me"))?;
            *known = Some(Known { host, ..Known::default() });
        }
        let Some(known) = known else { return Ok(()) };
        let before = std::mem::take(&mut known.last);
        let ended = round::run(self, known).await;
        let at_first = !self.is_there.load(Ordering::Relaxed);
        let again = at_first && matches!(ended, Err(Failure::Lost(_))) && known.last == before;
        known.strikes = if again { known.strikes + 1 } else { 0 };
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, subject, is) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.>", "a.b.c", true),
            (">", "a", true),
            ("*.b.>", "a.b.c", true),
            ("a", "a.b", false),
            ("a.*", "a.b.c", false),
            ("a.>", "a", false),
            ("a.b", "a.c", false),
        ] {
            assert_eq!(covers(pattern, subject), is, "{pattern} {subject}");
        }
    }

    #[test]
    fn a_machine_keeps_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let one = host(dir.path()).unwrap();
        assert_eq!(host(dir.path()).unwrap(), one);
        std::fs::write(dir.path().join(HOST), "garbage\n").unwrap();
        let other = host(dir.path()).unwrap();
        assert_ne!(other, one);
        assert_eq!(host(dir.path()).unwrap(), other);
    }
}
