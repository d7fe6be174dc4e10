//! NATS JetStream: keeps the logs of a SAMP folder equal on all machines of a space.
//!
//! The folder stays what it is; the stream carries its lines. Each log and its subject are, as in git,
//! beginnings of one another: the longer one gives the rest. Nothing is marked as mine or theirs, so a
//! folder may be copied, restored or shared by other means at the same time.
//!
//! - [`subject`]: whose lines a subject carries. `line`: what may travel.
//! - `log`: the logs. `state`: what is kept between two runs. `carrier`: what is known meanwhile.
//! - `receive`: from the stream into the logs. `publish`: from the logs into the stream.
//! - `share`: what was read, on all machines of one identity. `round`: the same, for one connection. `said`: what
//!   each of them said. `value`: how that is told.
//! - `server`, `feed`, `direct`, `login`: the requests. `failure`: what people are told.

mod carrier;
mod direct;
mod failure;
mod feed;
mod line;
mod log;
mod login;
mod publish;
mod receive;
mod round;
mod said;
mod server;
mod share;
mod state;
pub mod subject;
mod value;

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

use self::carrier::{Carrier, Risk};
use self::failure::Failure;
use self::feed::{Came, Feed};
use self::server::Server;
pub use self::share::{Identity, check_marks, share};
use self::state::State;
use super::{Board, Spec};
use crate::model::locks::Mutex;

/// How long nothing is tried after the first failure; each next one doubles it, up to the second.
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(3);
/// How often the lock is asked for that another process holds.
const LOCKED: Duration = Duration::from_secs(1);
/// Lines, and the time, after which they are brought to disk although more come.
const LINES: usize = 2000;
const WHILE: Duration = Duration::from_millis(200);
/// More files that changed are not told apart.
const MANY: usize = 1000;
/// Logs that are looked at before it is seen what came.
const LOGS: usize = 64;

/// A running link. Dropping it ends it.
#[derive(Debug)]
pub struct Nats {
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is woken for.
#[derive(Debug, Default)]
struct Wake {
    something: Notify,
    /// It is to end.
    end: Notify,
    stop: AtomicBool,
    /// Which files changed; `None` if any may have.
    changed: Mutex<Option<Vec<PathBuf>>>,
}

impl Wake {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Returns when the link is to end.
    async fn to_stop(&self) {
        while !self.stopped() {
            self.end.notified().await;
        }
    }
}

impl Nats {
    /// There may be something to do. Takes no lock.
    pub fn wake(&self) {
        self.wake.something.notify_one();
    }

    /// Anything in the folder may have changed.
    pub fn changed(&self) {
        *self.wake.changed.lock() = None;
        self.wake.something.notify_one();
    }

    /// These files have changed.
    pub fn changed_files(&self, paths: &[PathBuf]) {
        {
            let mut changed = self.wake.changed.lock();
            // Nobody takes them while there is no connection.
            *changed = changed.take().filter(|all| all.len() < MANY);
            if let Some(changed) = &mut *changed {
                changed.extend_from_slice(paths);
            }
        }
        self.wake.something.notify_one();
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.wake.stop.store(true, Ordering::Release);
        self.wake.end.notify_one();
        self.wake.something.notify_one();
        if let Some(thread) = self.thread.take() {
            // It ends between two lines.
            let _ = thread.join();
        }
    }
}

/// The folder in which a link keeps its state.
pub fn state_folder(me_state: &Path, name: &str) -> PathBuf {
    super::shared(me_state).join(name)
}

/// The longest line that the server of a link takes, as far as it is known.
pub fn longest_line(me_state: &Path, name: &str) -> Option<u64> {
    state::longest_line(&state_folder(me_state, name))
}

/// Starts to carry for the logs in a folder, in a thread of its own.
///
/// # Errors
/// If there can be no thread.
pub fn start(spec: &Spec, folder: &Path, me_state: &Path, board: Arc<Board>) -> io::Result<Nats> {
    let wake = Arc::new(Wake::default());
    let life = Life {
        spec: spec.clone(),
        folder: folder.to_owned(),
        state: state_folder(me_state, &spec.name),
        board,
        wake: Arc::clone(&wake),
    };
    let thread = std::thread::Builder::new().name("msgfs-link".into()).spawn(move || life.run())?;
    Ok(Nats { wake, thread: Some(thread) })
}

/// Makes the streams of a space, for lines and for marks, as an admin does once. One that is there and can be
/// used is left as it is.
///
/// # Errors
/// In words, why they were not made.
pub fn create(spec: &Spec) -> Result<(), String> {
    let made = async {
        let mut server = Server::connect(spec).await?;
        if server.info().await?.is_none() {
            server.create().await?;
        }
        let mut server = server.for_marks();
        match server.bucket().await? {
            Some(info) => Ok(info),
            None => server.create_bucket().await,
        }
    };
    once(made).map_err(|e| e.to_string())?.map(drop).map_err(|e| e.told(spec))
}

/// What keeps a link from working, as far as can be told without sending: a line each.
pub fn check(spec: &Spec) -> Vec<String> {
    let checked = async {
        let mut server = Server::connect(spec).await?;
        let Some(info) = server.info().await? else {
            let why = "it was not made yet; a link makes it if the server permits it".to_owned();
            return Err(Failure::NoStream(server.space.stream(), why));
        };
        let name = consumer_name();
        Feed::start(&mut server, &name, info.state.last_seq + 1, None).await?;
        if info.state.last_seq > 0 {
            server.one(info.state.last_seq).await?;
        }
        let permissions = server.permissions().await;
        let allowed = permissions.as_ref().and_then(|p| p.pointer("/publish/allow"));
        let mine = allowed.and_then(|allowed| allowed.as_array()).is_none_or(|allowed| {
            let subjects = allowed.iter().filter_map(|subject| subject.as_str());
            subjects.into_iter().any(|subject| {
                server.space.writer(subject).is_some()
                    || subject == server.space.subjects()
                    || subject.ends_with('>')
                        && format!("{}.", server.space.subjects())
                            .starts_with(subject.trim_end_matches('>'))
            })
        });
        Ok(mine)
    };
    match once(checked) {
        Ok(Ok(true)) => Vec::new(),
        Ok(Ok(false)) => {
            vec![
                "this machine may read the space, but it may not publish for any name in it"
                    .to_owned(),
            ]
        }
        Ok(Err(failure)) => vec![failure.told(spec)],
        Err(error) => vec![error.to_string()],
    }
}

/// Runs something to its end in a runtime of its own.
fn once<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    // Not waiting for names that are being looked up.
    runtime.shutdown_background();
    Ok(done)
}

/// A name of a consumer that nobody has.
fn consumer_name() -> String {
    let mut nonce = [0; 8];
    // Without chance the name is taken, at worst, and another is tried with the next connection.
    let _ = getrandom::fill(&mut nonce);
    format!("h-{}", crate::model::hex(&nonce))
}

/// What the thread of a link has.
#[derive(Debug)]
struct Life {
    spec: Spec,
    folder: PathBuf,
    state: PathBuf,
    board: Arc<Board>,
    wake: Arc<Wake>,
}

impl Life {
    fn run(self) {
        let (mut carrier, mut wait) = (None, FIRST);
        while !self.wake.stopped() {
            let began = Instant::now();
            let ended = once(async {
                tokio::select! {
                    ended = self.connection(&mut carrier) => Some(ended),
                    () = self.wake.to_stop() => None,
                }
            });
            let failure = match ended {
                Ok(None) => return,
                Ok(Some(failure)) => failure,
                Err(error) => Failure::Disk("the link".into(), error),
            };
            let why = failure.told(&self.spec);
            tracing::debug!(link = self.spec.name, why, "the link is tried again");
            self.board.failed(&why);
            let differs = carrier.as_mut().is_some_and(Carrier::struck);
            if differs || began.elapsed() > LONGEST {
                wait = FIRST;
            }
            if once(self.pause(carrier.as_mut(), wait)).is_err() {
                std::thread::sleep(wait);
            }
            wait = (wait * 2).min(LONGEST);
        }
    }

    /// Waits before the next try, and counts meanwhile what waits.
    async fn pause(&self, carrier: Option<&mut Carrier>, wait: Duration) {
        let end = time::Instant::now() + wait;
        if let Some(carrier) = carrier
            && carrier.logs.again().is_ok()
        {
            let (waiting, behind) = carrier.waiting();
            self.board.tell(|standing| (standing.waiting, standing.behind) = (waiting, behind));
        }
        tokio::select! {
            () = self.wake.to_stop() => {}
            () = time::sleep_until(end) => {}
        }
    }

    /// One connection, to its end.
    async fn connection(&self, carrier: &mut Option<Carrier>) -> Failure {
        let carrier = match carrier {
            Some(carrier) => carrier,
            None => match self.begin().await {
                Ok(begun) => carrier.insert(begun),
                Err(failure) => return failure,
            },
        };
        match self.carry(carrier).await {
            Err(failure) => failure,
            Ok(never) => match never {},
        }
    }

    async fn begin(&self) -> Result<Carrier, Failure> {
        let told = Failure::disk("the state of the link");
        let kept = loop {
            match State::open(&self.state) {
                Ok(Some(kept)) => break kept,
                Ok(None) => self.board.follow(),
                Err(error) => return Err(told(error)),
            }
            time::sleep(LOCKED).await;
        };
        self.board.lead();
        Carrier::new(&self.folder, kept, Arc::clone(&self.board))
            .map_err(Failure::disk("the folder of the logs"))
    }

    async fn carry(&self, carrier: &mut Carrier) -> Result<std::convert::Infallible, Failure> {
        carrier.logs.again().map_err(Failure::disk("the folder of the logs"))?;
        let mut server = Server::connect(&self.spec).await?;
        let info = match server.info().await? {
            Some(info) => info,
            None => server.create().await?,
        };
        carrier.verify(&mut server, &info).await?;
        if std::mem::take(&mut carrier.careful) {
            self.read_carefully(carrier, &mut server).await?;
        }
        let from = carrier.state.cursor.seq + 1;
        let (feed, pending) = Feed::start(&mut server, &consumer_name(), from, None).await?;
        if pending == 0 && info.state.last_seq >= from {
            // What came last was purged.
            (carrier.state.cursor.seq, carrier.state.cursor.time) = (info.state.last_seq, 0);
        }
        carrier.flush()?;
        self.board.answered();
        carrier.look_at_all()?;
        self.exchange(carrier, &mut server, (feed, pending), info.takes_batches()).await
    }

    /// Reads the next messages in the way that nothing can break.
    async fn read_carefully(
        &self,
        carrier: &mut Carrier,
        server: &mut Server,
    ) -> Result<(), Failure> {
        let (some, _) = server.from(">", carrier.state.cursor.seq + 1, true).await?;
        for stored in some {
            carrier.arrive_stored(server, &stored).await?;
        }
        carrier.flush()
    }

    async fn exchange(
        &self,
        carrier: &mut Carrier,
        server: &mut Server,
        (mut feed, mut pending): (Feed, u64),
        batches: bool,
    ) -> Result<std::convert::Infallible, Failure> {
        let client = server.client.clone();
        let mut pause = None;
        loop {
            carrier.risk = Risk::Feed(carrier.state.cursor.seq);
            // Nothing is published before all that was there is here.
            let busy = pending == 0 && !carrier.todo.is_empty();
            let wake = if busy { None } else { pause };
            tokio::select! {
                biased;
                event = server.event() => {
                    if matches!(event, None | Some(Event::Disconnected | Event::Closed)) {
                        return Err(Failure::Lost("by the server".into()));
                    }
                }
                came = feed.next(&client) => {
                    let left = self.take_in(carrier, server, &mut feed, came?).await?;
                    // Once all was here, what comes is new.
                    pending = pending.min(left);
                }
                () = self.wake.something.notified() => self.note_changes(carrier)?,
                () = time::sleep_until(wake.unwrap_or_else(time::Instant::now)), if wake.is_some() => {
                    let held = carrier.writers.iter().filter(|(_, w)| w.hold.is_some());
                    let held: Vec<String> = held.map(|(name, _)| name.clone()).collect();
                    carrier.todo.extend(held);
                }
                () = std::future::ready(()), if busy => {
                    self.give_out(carrier, server, batches).await?;
                }
            }
            if carrier.todo.is_empty() {
                let holds = carrier.writers.values().filter_map(|w| w.hold);
                pause = holds.min().map(time::Instant::from_std);
            }
        }
    }

    fn note_changes(&self, carrier: &mut Carrier) -> Result<(), Failure> {
        let changed = self.wake.changed.lock().replace(Vec::new());
        match changed {
            None => carrier.look_at_all(),
            Some(paths) => {
                carrier.look_at(&paths);
                Ok(())
            }
        }
    }

    /// Takes what came, and what comes at once behind it; then all of it is brought to disk. How many more
    /// there are.
    async fn take_in(
        &self,
        carrier: &mut Carrier,
        server: &mut Server,
        feed: &mut Feed,
        mut came: Option<Came>,
    ) -> Result<u64, Failure> {
        let client = server.client.clone();
        let (mut count, mut left, began) = (0, 0, Instant::now());
        while let Some(Came { seq, time, pending, message }) = came {
            left = pending;
            carrier.arrive(server, (seq, time), &message).await?;
            count += 1;
            if count == LINES || began.elapsed() > WHILE {
                break;
            }
            came = feed.next(&client).now_or_never().transpose()?.flatten();
        }
        if count > 0 {
            carrier.flush()?;
            return Ok(left);
        }
        // Silence: is the stream still the one that is listened to?
        let info =
            server.info().await?.ok_or_else(|| Failure::Lost("the stream is gone".into()))?;
        let cursor = &carrier.state.cursor;
        if info.created != cursor.created || info.state.last_seq != cursor.seq {
            return Err(Failure::Lost("the stream was replaced or has lost messages".into()));
        }
        self.board.answered();
        Ok(0)
    }

    /// Publishes what is to be published, for a moment.
    async fn give_out(
        &self,
        carrier: &mut Carrier,
        server: &mut Server,
        batches: bool,
    ) -> Result<(), Failure> {
        for _ in 0..LOGS {
            let Some(writer) = carrier.todo.pop_first() else { break };
            if carrier.serve(server, &writer, batches).await? {
                carrier.todo.insert(writer);
                return Ok(());
            }
        }
        if carrier.todo.is_empty() {
            let held = carrier.writers.values().any(|w| w.hold.is_some());
            let (waiting, behind) =
                if held { carrier.waiting() } else { (0, std::collections::BTreeMap::new()) };
            self.board.tell(|standing| (standing.waiting, standing.behind) = (waiting, behind));
        }
        carrier.tell();
        Ok(())
    }
}
