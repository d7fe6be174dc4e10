//! The marks *read*, shared by all machines of one identity.
//!
//! The file of marks is the log of this machine. Its marks are published in the bucket of the space, and marks from
//! there are noted in the file. Each machine writes only values of its own. Each time a machine connects, it publishes
//! what it knows and the bucket lacks. So no further state is kept, and lost or broken values are published again by
//! any machine that knows them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::time;

use super::failure::NatsError;
use super::feed::StreamFeed;
use super::publish::DENIED;
use super::read_counts::{MarkReplica, NOBODY};
use super::server::NatsConnection;
use super::{
    FIRST, LONGEST, NatsLink, NatsWakeup, block_on_runtime, make_consumer_name, mark_session,
};
use crate::link::marks::SharedMarkLog;
use crate::link::{HealthBoard, NatsConfig};
use crate::model::MachineId;
use crate::store::{atomic_file, fs};

/// The time for publishing the last marks when the link ends.
const LAST: Duration = Duration::from_secs(1);
/// The file in the state folder of an identity that holds the id of the machine.
const HOST: &str = "host";

/// The identity whose marks are shared.
#[derive(Clone, Debug)]
pub struct MarkOwner {
    /// The name.
    pub me: String,
    /// The folder of its state.
    pub state: PathBuf,
}

/// Starts a thread that shares marks.
///
/// # Errors
/// Returns the system's error, if no thread can be started.
pub fn start_mark_sync(
    spec: &NatsConfig,
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

/// Checks without sending that marks of an identity can be shared, and returns the obstacle if there is one.
pub fn check_mark_sync(spec: &NatsConfig, me: &str) -> Option<String> {
    let checked = async {
        let mut server = NatsConnection::connect(spec).await?.with_mark_bucket();
        let Some(info) = server.query_mark_bucket().await? else {
            let why = "it was not made yet; a link makes it if the server permits it".to_owned();
            return Err(NatsError::NoStream(server.stream, why));
        };
        let all = server.space.identity_subjects(me);
        let next = info.state.last_seq + 1;
        StreamFeed::start(&mut server, &make_consumer_name(), next, Some(&all)).await?;
        let mine = server.space.part_subject(me, MachineId(0), 0);
        let may = server.may_publish(&mine).await;
        Ok((!may).then(|| describe_not_permitted(&all)))
    };
    match block_on_runtime(checked) {
        Ok(Ok(problem)) => problem,
        Ok(Err(failure)) => Some(describe_not_shared(&failure, spec)),
        Err(error) => Some(error.to_string()),
    }
}

/// Returns the note for people on a machine that may read marks but not publish them.
pub fn describe_not_permitted(subjects: &str) -> String {
    format!(
        "my other machines do not learn what I read here: this machine may not publish \
         {subjects}; permit it as docs/links/nats.md says, or set marks = false"
    )
}

fn describe_not_shared(failure: &NatsError, spec: &NatsConfig) -> String {
    format!(
        "this machine and my other machines do not share what I have read: {}; see \
         docs/links/nats.md, or set marks = false",
        failure.describe_redacted(spec)
    )
}

/// Returns the id of this machine, and makes one at the first use.
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
    atomic_file::write_atomic(&path, format!("{host}\n").as_bytes(), 0o600)?;
    Ok(host)
}

/// The state of the thread that shares marks.
#[derive(Debug)]
pub struct MarkSyncWorker {
    /// The configuration of the link.
    pub spec: NatsConfig,
    /// The identity whose marks are shared.
    pub identity: MarkOwner,
    /// The marks of this machine.
    pub marks: Arc<dyn SharedMarkLog>,
    board: Arc<HealthBoard>,
    /// The signals that wake the thread.
    pub wake: Arc<NatsWakeup>,
    /// True if the last marks can go over the current connection.
    pub is_connected: AtomicBool,
}

/// The knowledge that outlives a connection.
#[derive(Debug, Default)]
pub struct MarkSyncState {
    /// The id of this machine.
    pub host: MachineId,
    /// The counts of all machines.
    pub replica: MarkReplica,
    /// The length of the file of marks up to which the replica has all.
    pub file_length: u64,
    /// The sequence number of the last value that was read.
    pub last_seq: u64,
    /// The number of connections in a row that were lost before all was read. A value may break each of them.
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
            // A missing stream may be made at any moment, and costs only one request.
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

    /// Returns when the link must end and the last marks had time to be published.
    async fn wait_for_end(&self) {
        self.wake.wait_for_stop().await;
        if self.is_connected.load(Ordering::Relaxed) {
            time::sleep(LAST).await;
        }
    }

    /// Shows people why marks are not shared. A failure that stops the lines too is shown by them; then this note is
    /// removed.
    fn report_failure(&self, failure: &NatsError) {
        use NatsError::{Connect, Lost, OldServer, Secret, Settings};
        let is_link =
            matches!(failure, Connect(_) | Lost(_) | OldServer(_) | Secret(_) | Settings(_));
        self.report_status((!is_link).then(|| describe_not_shared(failure, &self.spec)));
    }

    /// Sets or removes the note for people about marks.
    pub fn report_status(&self, text: Option<String>) {
        self.board.update_health(|health| health.marks = text);
    }

    /// Runs one connection, until it or the link ends.
    async fn run_connection(&self, known: &mut Option<MarkSyncState>) -> Result<(), NatsError> {
        if known.is_none() {
            let host =
                load_host(&self.identity.state).map_err(NatsError::disk("the state of me"))?;
            *known = Some(MarkSyncState { host, ..MarkSyncState::default() });
        }
        let Some(known) = known else { return Ok(()) };
        known.last_seq = 0;
        let ended = mark_session::run(self, known).await;
        let at_first = !self.is_connected.load(Ordering::Relaxed);
        // The number of values that arrived before the loss is chance, so it does not count.
        let again = at_first && matches!(ended, Err(NatsError::Lost(_)));
        known.strikes = if again { known.strikes + 1 } else { 0 };
        ended
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::Mark;

    /// The marks of a machine that nobody uses.
    #[derive(Debug)]
    struct NoMarks;

    impl SharedMarkLog for NoMarks {
        fn read_since(&self, at: u64) -> io::Result<(Vec<Mark>, u64)> {
            Ok((Vec::new(), at))
        }

        fn append_heard(&self, at: u64, _: &[Mark]) -> io::Result<Option<u64>> {
            Ok(Some(at))
        }
    }

    /// Returns the worker of such a machine for `alice`.
    pub fn worker(dir: &Path) -> MarkSyncWorker {
        MarkSyncWorker {
            spec: NatsConfig::default(),
            identity: MarkOwner { me: "alice".into(), state: dir.to_owned() },
            marks: Arc::new(NoMarks),
            board: Arc::new(HealthBoard::new("nats", dir, "")),
            wake: Arc::default(),
            is_connected: AtomicBool::new(false),
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
