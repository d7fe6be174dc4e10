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

use super::failure::NatsError;
use super::feed::StreamFeed;
use super::publish::DENIED;
use super::said::{MarkReplica, NOBODY};
use super::server::NatsConnection;
use super::{FIRST, LONGEST, NatsLink, NatsWakeup, block_on_runtime, make_consumer_name, round};
use crate::link::marks::SharedMarkLog;
use crate::link::{HealthBoard, LinkConfig};
use crate::model::MachineId;
use crate::store::{fs, place};

/// How long the last marks may take to be told when the link is to end.
const LAST: Duration = Duration::from_secs(1);
/// The file in the state folder of an identity that holds the number of the machine.
const HOST: &str = "host";

/// Whose marks are shared.
#[derive(Clone, Debug)]
pub struct MarkOwner {
    /// The name.
    pub me: String,
    /// The folder of its state.
    pub state: PathBuf,
}

/// Starts to share what was read, in a thread of its own.
///
/// # Errors
/// If there can be no thread.
pub fn start_mark_sync(
    spec: &LinkConfig,
    identity: &MarkOwner,
    marks: Arc<dyn SharedMarkLog>,
    board: Arc<HealthBoard>,
) -> io::Result<NatsLink> {
    let wake = Arc::new(NatsWakeup::default());
    let share = MarkSyncWorker {
        spec: spec.clone(),
        identity: identity.clone(),
        marks,
        board,
        wake: Arc::clone(&wake),
        is_connected: AtomicBool::new(false),
    };
    let thread =
        std::thread::Builder::new().name("msgfs-marks".into()).spawn(move || share.run())?;
    Ok(NatsLink { wake, thread: Some(thread) })
}

/// What keeps marks of an identity from being shared, as far as can be told without sending.
pub fn check_mark_sync(spec: &LinkConfig, me: &str) -> Option<String> {
    let checked = async {
        let mut server = NatsConnection::connect(spec).await?.with_mark_bucket();
        let Some(info) = server.query_mark_bucket().await? else {
            let why = "it was not made yet; a link makes it if the server permits it".to_owned();
            return Err(NatsError::NoStream(server.stream, why));
        };
        let all = server.space.identity_subjects(me);
        let next = info.state.last_seq + 1;
        StreamFeed::start(&mut server, &make_consumer_name(), next, Some(&all)).await?;
        let permissions = server.query_permissions().await;
        let allowed = permissions.as_ref().and_then(|p| p.pointer("/publish/allow"));
        let mine = server.space.part_subject(me, MachineId(0), 0);
        let may = allowed.and_then(|allowed| allowed.as_array()).is_none_or(|allowed| {
            let subjects = allowed.iter().filter_map(|subject| subject.as_str());
            subjects.into_iter().any(|pattern| is_subject_match(pattern, &mine))
        });
        Ok((!may).then(|| describe_not_permitted(&all)))
    };
    match block_on_runtime(checked) {
        Ok(Ok(problem)) => problem,
        Ok(Err(failure)) => Some(describe_not_shared(&failure, spec)),
        Err(error) => Some(error.to_string()),
    }
}

/// Whether a subject is one of those that a pattern of the server names.
fn is_subject_match(pattern: &str, subject: &str) -> bool {
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
pub fn describe_not_permitted(subjects: &str) -> String {
    format!(
        "my other machines do not learn what I read here: this machine may not publish \
         {subjects}; permit it as docs/links/nats.md says, or set marks = false"
    )
}

fn describe_not_shared(failure: &NatsError, spec: &LinkConfig) -> String {
    format!(
        "this machine and my other machines do not share what I have read: {}; see \
         docs/links/nats.md, or set marks = false",
        failure.describe_redacted(spec)
    )
}

/// The number of this machine, made at the first use.
fn load_host(state: &Path) -> io::Result<MachineId> {
    let path = state.join(HOST);
    let known = fs::empty_if_absent(fs::read_small_file(&path, 64))?;
    let known = std::str::from_utf8(&known).ok().and_then(|text| MachineId::parse(text.trim_end()));
    if let Some(host) = known.filter(|host| *host != NOBODY) {
        return Ok(host);
    }
    let mut chance = [0; 8];
    getrandom::fill(&mut chance).map_err(io::Error::other)?;
    let host = MachineId(u64::from_le_bytes(chance));
    place::write_atomic(&path, format!("{host}\n").as_bytes(), 0o600)?;
    Ok(host)
}

/// What the thread has.
#[derive(Debug)]
pub struct MarkSyncWorker {
    /// The link.
    pub spec: LinkConfig,
    /// Whose marks.
    pub identity: MarkOwner,
    /// The marks of this machine.
    pub marks: Arc<dyn SharedMarkLog>,
    board: Arc<HealthBoard>,
    /// What the thread is woken for.
    pub wake: Arc<NatsWakeup>,
    /// There is a connection on which the last marks can go.
    pub is_connected: AtomicBool,
}

/// What is known, from one connection to the next.
#[derive(Debug, Default)]
pub struct MarkSyncState {
    /// This machine.
    pub host: MachineId,
    /// What was said, by any machine.
    pub replica: MarkReplica,
    /// The length of the file of marks up to which all is in the replica.
    pub file_length: u64,
    /// The last value that was read.
    pub last_seq: u64,
    /// How many connections in a row ended behind the same one, before all was read.
    pub strikes: u32,
}

impl MarkSyncWorker {
    fn run(self) {
        let (mut known, mut wait) = (None, FIRST);
        while !self.wake.is_stopped() {
            let began = Instant::now();
            let ended = block_on_runtime(async {
                tokio::select! {
                    ended = self.run_connection(&mut known) => ended,
                    () = self.wait_for_end() => Ok(()),
                }
            });
            self.is_connected.store(false, Ordering::Relaxed);
            let failure = match ended {
                Ok(Ok(())) => return,
                Ok(Err(failure)) => failure,
                Err(error) => NatsError::Disk("the link".into(), error),
            };
            let why = failure.describe_redacted(&self.spec);
            tracing::debug!(link = self.spec.name, why, "marks are shared again later");
            self.report_failure(&failure);
            if began.elapsed() > LONGEST {
                wait = FIRST;
            }
            // A stream that is missing may be made at any moment, and costs one question.
            let refused = matches!(failure, NatsError::Stream(..) | NatsError::Refused(..));
            let pause = if refused { DENIED } else { wait };
            let waited = block_on_runtime(async {
                tokio::select! {
                    () = self.wake.wait_for_stop() => {}
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
    async fn wait_for_end(&self) {
        self.wake.wait_for_stop().await;
        if self.is_connected.load(Ordering::Relaxed) {
            time::sleep(LAST).await;
        }
    }

    /// Tells people why marks are not shared; what stops the lines too is told by them, and nothing else is known
    /// meanwhile.
    fn report_failure(&self, failure: &NatsError) {
        use NatsError::{Connect, Lost, OldServer, Secret, Settings};
        let is_link =
            matches!(failure, Connect(_) | Lost(_) | OldServer(_) | Secret(_) | Settings(_));
        self.report_status((!is_link).then(|| describe_not_shared(failure, &self.spec)));
    }

    /// Tells people this, or no more.
    pub fn report_status(&self, text: Option<String>) {
        self.board.update_health(|standing| standing.marks = text);
    }

    /// One connection, to its end or that of the link.
    async fn run_connection(&self, known: &mut Option<MarkSyncState>) -> Result<(), NatsError> {
        if known.is_none() {
            let host =
                load_host(&self.identity.state).map_err(NatsError::disk("the state of me"))?;
            *known = Some(MarkSyncState { host, ..MarkSyncState::default() });
        }
        let Some(known) = known else { return Ok(()) };
        let before = std::mem::take(&mut known.last_seq);
        let ended = round::run(self, known).await;
        let at_first = !self.is_connected.load(Ordering::Relaxed);
        let again =
            at_first && matches!(ended, Err(NatsError::Lost(_))) && known.last_seq == before;
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
            assert_eq!(is_subject_match(pattern, subject), is, "{pattern} {subject}");
        }
    }

    #[test]
    fn a_machine_keeps_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let one = load_host(dir.path()).unwrap();
        assert_eq!(load_host(dir.path()).unwrap(), one);
        std::fs::write(dir.path().join(HOST), "garbage\n").unwrap();
        let other = load_host(dir.path()).unwrap();
        assert_ne!(other, one);
        assert_eq!(load_host(dir.path()).unwrap(), other);
    }
}
