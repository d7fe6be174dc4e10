//! A link over NATS JetStream, which keeps the logs of a SAMP folder equal on all machines of a space.
//!
//! The folder keeps its form; the stream carries its lines. As in git, a log and its subject are each a beginning of
//! the other, and the longer one supplies the rest. No line is marked as local or remote, so a folder may be copied,
//! restored or shared by other means at the same time.
//!
//! - [`subject`]: the writer that a subject stands for. `line`: the lines that may travel.
//! - `log_link`: the link as a mount has it. `log`: the logs. `state`: the state between two runs. `log_sync`: the state
//!   in memory.
//! - `receive`: from the stream into the logs. `publish`: from the logs into the stream.
//! - `mark_sync`: the marks *read* on all machines of one identity. `mark_session`: one connection for marks.
//!   `read_counts`: the counts of each machine. `bucket_value`: their encoding.
//! - `taken_log`: the proof of what the server has taken.
//! - `server`, `feed`, `direct_get`, `login`: the requests. `failure`: the errors, for people.

mod bucket_value;
mod direct_get;
mod failure;
mod feed;
mod line;
mod log;
mod log_link;
mod log_sync;
mod login;
mod mark_session;
mod mark_sync;
mod publish;
mod read_counts;
mod receive;
mod server;
mod state;
pub mod subject;
mod taken_log;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_nats::Event;
use futures_util::FutureExt as _;
use tokio::sync::Notify;
use tokio::time;

use self::failure::NatsError;
use self::feed::{FeedMessage, StreamFeed};
use self::log_sync::{ConnectionRisk, LogSync};
use self::mark_sync::{MarkOwner, check_mark_sync, start_mark_sync};
use self::server::NatsConnection;
use self::state::NatsState;
pub use self::state::longest_line;
use self::taken_log::NatsTakenLog;
use super::{HealthBoard, NatsConfig};
use crate::model::locks::Mutex;

/// The pause after the first failure. Each further failure doubles it, up to the second value.
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(3);
/// The pause between tries for a lock that another process holds.
const LOCKED: Duration = Duration::from_secs(1);
/// The number of lines and the time after which received lines are synced although more come.
const LINES: usize = 2000;
const BATCH_TIME: Duration = Duration::from_millis(200);
/// The number of changed files above which all files count as changed.
const MANY: usize = 1000;
/// The number of logs that are examined before the link checks the stream again.
const LOGS: usize = 64;

/// A running link. Dropping it ends the link.
#[derive(Debug)]
pub struct NatsLink {
    wake: Arc<NatsWakeup>,
    thread: Option<JoinHandle<()>>,
}

/// The signals that wake the thread.
#[derive(Debug, Default)]
struct NatsWakeup {
    work: Notify,
    /// The signal to end.
    stop_signal: Notify,
    stop: AtomicBool,
    /// The changed files; `None` if any may have changed.
    changed_paths: Mutex<Option<Vec<PathBuf>>>,
}

impl NatsWakeup {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Returns when the link must end.
    async fn wait_for_stop(&self) {
        while !self.is_stopped() {
            self.stop_signal.notified().await;
        }
    }
}

impl NatsLink {
    /// Wakes the thread, since there may be something to do. Takes no lock.
    pub fn wake(&self) {
        self.wake.work.notify_one();
    }

    /// Tells the link that anything in the folder may have changed.
    pub fn notify_all_changed(&self) {
        *self.wake.changed_paths.lock() = None;
        self.wake.work.notify_one();
    }

    /// Tells the link that these files have changed.
    pub fn notify_changed_files(&self, paths: &[PathBuf]) {
        {
            let mut changed = self.wake.changed_paths.lock();
            // Without a connection they pile up.
            *changed = changed.take().filter(|all| all.len() < MANY);
            if let Some(changed) = &mut *changed {
                changed.extend_from_slice(paths);
            }
        }
        self.wake.work.notify_one();
    }
}

impl Drop for NatsLink {
    fn drop(&mut self) {
        self.wake.stop.store(true, Ordering::Release);
        self.wake.stop_signal.notify_one();
        self.wake.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread ends between two lines.
            let _ = thread.join();
        }
    }
}

/// Starts a thread that carries for the logs in a folder. `state` is the folder of its own state.
///
/// # Errors
/// Returns the system's error, if no thread can be started.
pub fn start(
    spec: &NatsConfig,
    folder: &Path,
    state: &Path,
    board: Arc<HealthBoard>,
) -> io::Result<NatsLink> {
    let wake = Arc::new(NatsWakeup::default());
    let life = NatsWorker {
        spec: spec.clone(),
        folder: folder.to_owned(),
        state: state.to_owned(),
        board,
        wake: Arc::clone(&wake),
    };
    let thread = std::thread::Builder::new().name("msgfs-link".into()).spawn(move || life.run())?;
    Ok(NatsLink { wake, thread: Some(thread) })
}

/// Creates the streams of a space, for lines and for marks, as an admin does once. Usable streams that exist stay
/// unchanged.
///
/// # Errors
/// Returns a sentence that says why they were not created.
pub fn create_streams(spec: &NatsConfig) -> Result<(), String> {
    let made = async {
        let mut server = NatsConnection::connect(spec).await?;
        if server.query_line_stream().await?.is_none() {
            server.create_line_stream().await?;
        }
        let mut server = server.with_mark_bucket();
        match server.query_mark_bucket().await? {
            Some(info) => Ok(info),
            None => server.create_mark_bucket().await,
        }
    };
    block_on_runtime(made)
        .map_err(|e| e.to_string())?
        .map(drop)
        .map_err(|e| e.describe_redacted(spec))
}

/// Checks a link without sending, and returns the obstacles, one a line.
pub fn check_link(spec: &NatsConfig) -> Vec<String> {
    let checked = async {
        let mut server = NatsConnection::connect(spec).await?;
        let Some(info) = server.query_line_stream().await? else {
            let why = "it was not made yet; a link makes it if the server permits it".to_owned();
            return Err(NatsError::NoStream(server.space.stream_name(), why));
        };
        let name = make_consumer_name();
        StreamFeed::start(&mut server, &name, info.state.last_seq + 1, None).await?;
        if info.state.last_seq > 0 {
            server.fetch_message(info.state.last_seq).await?;
        }
        let all = server.space.all_subjects();
        Ok(server.may_publish(&all).await)
    };
    match block_on_runtime(checked) {
        Ok(Ok(true)) => Vec::new(),
        Ok(Ok(false)) => {
            vec![
                "this machine may read the space, but it may not publish for any name in it"
                    .to_owned(),
            ]
        }
        Ok(Err(failure)) => vec![failure.describe_redacted(spec)],
        Err(error) => vec![error.to_string()],
    }
}

/// Runs a future to its end in a runtime of its own.
fn block_on_runtime<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    // This does not wait for running name lookups.
    runtime.shutdown_background();
    Ok(done)
}

/// Returns a consumer name that is not in use.
fn make_consumer_name() -> String {
    let mut nonce = [0; 8];
    // Without random bytes the name may be taken; the next connection tries another.
    let _ = getrandom::fill(&mut nonce);
    format!("h-{}", crate::model::encode_hex(&nonce))
}

/// The state of a link's thread.
#[derive(Debug)]
struct NatsWorker {
    spec: NatsConfig,
    folder: PathBuf,
    state: PathBuf,
    board: Arc<HealthBoard>,
    wake: Arc<NatsWakeup>,
}

impl NatsWorker {
    fn run(self) {
        let (mut log_sync, mut wait) = (None, FIRST);
        while !self.wake.is_stopped() {
            let began = Instant::now();
            let ended = block_on_runtime(async {
                tokio::select! {
                    ended = self.run_connection(&mut log_sync) => Some(ended),
                    () = self.wake.wait_for_stop() => None,
                }
            });
            let failure = match ended {
                Ok(None) => return,
                Ok(Some(failure)) => failure,
                Err(error) => NatsError::Disk("the link".into(), error),
            };
            let why = failure.describe_redacted(&self.spec);
            tracing::debug!(link = self.spec.name, why, "the link is tried again");
            if matches!(failure, NatsError::Address(_)) {
                self.board.report_stopped(&why);
            } else {
                self.board.report_failure(&why);
            }
            let differs = log_sync.as_mut().is_some_and(LogSync::note_disconnect);
            if differs || began.elapsed() > LONGEST {
                wait = FIRST;
            }
            if block_on_runtime(self.pause_before_retry(log_sync.as_mut(), wait)).is_err() {
                std::thread::sleep(wait);
            }
            wait = (wait * 2).min(LONGEST);
        }
    }

    /// Waits before the next try, and first counts the waiting lines.
    async fn pause_before_retry(&self, log_sync: Option<&mut LogSync>, wait: Duration) {
        let end = time::Instant::now() + wait;
        if let Some(log_sync) = log_sync
            && log_sync.logs.reopen().is_ok()
        {
            let (waiting, behind) = log_sync.measure_backlog();
            self.board.update_health(|health| (health.waiting, health.behind) = (waiting, behind));
        }
        tokio::select! {
            () = self.wake.wait_for_stop() => {}
            () = time::sleep_until(end) => {}
        }
    }

    /// Runs one connection to its end.
    async fn run_connection(&self, log_sync: &mut Option<LogSync>) -> NatsError {
        let log_sync = match log_sync {
            Some(log_sync) => log_sync,
            None => match self.open_log_sync().await {
                Ok(begun) => log_sync.insert(begun),
                Err(failure) => return failure,
            },
        };
        match self.sync_logs(log_sync).await {
            Err(failure) => failure,
            Ok(never) => match never {},
        }
    }

    async fn open_log_sync(&self) -> Result<LogSync, NatsError> {
        let told = NatsError::disk("the state of the link");
        let kept = loop {
            match NatsState::open(&self.state) {
                Ok(Some(kept)) => break kept,
                Ok(None) => self.board.follow_other_process(),
                Err(error) => return Err(told(error)),
            }
            time::sleep(LOCKED).await;
        };
        self.board.report_own_state();
        LogSync::new(&self.folder, kept, Arc::clone(&self.board))
            .map_err(NatsError::disk("the folder of the logs"))
    }

    async fn sync_logs(
        &self,
        log_sync: &mut LogSync,
    ) -> Result<std::convert::Infallible, NatsError> {
        log_sync.logs.reopen().map_err(NatsError::disk("the folder of the logs"))?;
        let mut server = NatsConnection::connect(&self.spec).await?;
        let info = match server.query_line_stream().await? {
            Some(info) => info,
            None => server.create_line_stream().await?,
        };
        log_sync.verify_stream(&mut server, &info).await?;
        if std::mem::take(&mut log_sync.reads_carefully) {
            self.read_carefully(log_sync, &mut server).await?;
        }
        let from = log_sync.state.cursor.seq + 1;
        let (feed, pending) =
            StreamFeed::start(&mut server, &make_consumer_name(), from, None).await?;
        if pending == 0 && info.state.last_seq >= from {
            // The last messages were purged.
            (log_sync.state.cursor.seq, log_sync.state.cursor.time) = (info.state.last_seq, 0);
        }
        log_sync.flush()?;
        self.board.report_contact();
        log_sync.queue_all_logs()?;
        self.exchange_lines(log_sync, &mut server, (feed, pending), info.can_batch()).await
    }

    /// Reads the next messages one by one through the API, so that no message can end the connection.
    async fn read_carefully(
        &self,
        log_sync: &mut LogSync,
        server: &mut NatsConnection,
    ) -> Result<(), NatsError> {
        let (some, _) = server.fetch_from(">", log_sync.state.cursor.seq + 1, true).await?;
        for stored in some {
            log_sync.receive_stored(server, &stored).await?;
        }
        log_sync.flush()
    }

    async fn exchange_lines(
        &self,
        log_sync: &mut LogSync,
        server: &mut NatsConnection,
        (mut feed, mut pending): (StreamFeed, u64),
        batches: bool,
    ) -> Result<std::convert::Infallible, NatsError> {
        let client = server.client.clone();
        let mut pause = None;
        loop {
            log_sync.risk = ConnectionRisk::Feed(log_sync.state.cursor.seq);
            // Nothing is published before the backlog of the stream is here.
            let busy = pending == 0 && !log_sync.pending_writers.is_empty();
            let wake = if busy { None } else { pause };
            tokio::select! {
                biased;
                event = server.next_event() => {
                    if matches!(event, None | Some(Event::Disconnected | Event::Closed)) {
                        return Err(NatsError::Lost("by the server".into()));
                    }
                }
                came = feed.next(&client) => {
                    let left = self.receive_messages(log_sync, server, &mut feed, came?).await?;
                    // After the backlog is here, further messages are new.
                    pending = pending.min(left);
                }
                () = self.wake.work.notified() => self.queue_changes(log_sync)?,
                () = time::sleep_until(wake.unwrap_or_else(time::Instant::now)), if wake.is_some() => {
                    let held = log_sync.writers.iter().filter(|(_, w)| w.held_until.is_some());
                    let held: Vec<String> = held.map(|(name, _)| name.clone()).collect();
                    log_sync.pending_writers.extend(held);
                }
                () = std::future::ready(()), if busy => {
                    self.publish_pending(log_sync, server, batches).await?;
                }
            }
            if log_sync.pending_writers.is_empty() {
                let holds = log_sync.writers.values().filter_map(|w| w.held_until);
                pause = holds.min().map(time::Instant::from_std);
            }
        }
    }

    fn queue_changes(&self, log_sync: &mut LogSync) -> Result<(), NatsError> {
        let changed = self.wake.changed_paths.lock().replace(Vec::new());
        match changed {
            None => log_sync.queue_all_logs(),
            Some(paths) => {
                log_sync.queue_changed_logs(&paths);
                Ok(())
            }
        }
    }

    /// Accepts a message and those that are ready behind it, and then syncs them. Returns the number of messages that
    /// are left.
    async fn receive_messages(
        &self,
        log_sync: &mut LogSync,
        server: &mut NatsConnection,
        feed: &mut StreamFeed,
        mut came: Option<FeedMessage>,
    ) -> Result<u64, NatsError> {
        let client = server.client.clone();
        let (mut count, mut left, began) = (0, 0, Instant::now());
        while let Some(FeedMessage { seq, time, pending, message }) = came {
            left = pending;
            log_sync.receive_message(server, (seq, time), &message).await?;
            count += 1;
            if count == LINES || began.elapsed() > BATCH_TIME {
                break;
            }
            came = feed.next(&client).now_or_never().transpose()?.flatten();
        }
        if count > 0 {
            log_sync.flush()?;
            return Ok(left);
        }
        // After a silence, check that the stream is still the same.
        let info = server
            .query_line_stream()
            .await?
            .ok_or_else(|| NatsError::Lost("the stream is gone".into()))?;
        let cursor = &log_sync.state.cursor;
        if info.created != cursor.created || info.state.last_seq != cursor.seq {
            return Err(NatsError::Lost("the stream was replaced or has lost messages".into()));
        }
        self.board.report_contact();
        Ok(0)
    }

    /// Publishes pending lines for a moment.
    async fn publish_pending(
        &self,
        log_sync: &mut LogSync,
        server: &mut NatsConnection,
        batches: bool,
    ) -> Result<(), NatsError> {
        for _ in 0..LOGS {
            let Some(writer) = log_sync.pending_writers.pop_first() else { break };
            if log_sync.sync_writer(server, &writer, batches).await? {
                log_sync.pending_writers.insert(writer);
                return Ok(());
            }
        }
        if log_sync.pending_writers.is_empty() {
            let held = log_sync.writers.values().any(|w| w.held_until.is_some());
            let (waiting, behind) = if held {
                log_sync.measure_backlog()
            } else {
                (0, std::collections::BTreeMap::new())
            };
            self.board.update_health(|health| (health.waiting, health.behind) = (waiting, behind));
        }
        log_sync.report_notes();
        Ok(())
    }
}
