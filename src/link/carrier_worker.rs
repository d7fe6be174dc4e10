//! The work of a carrier process: it takes jobs from the daemon, makes their exchanges and records the outcomes.
//!
//! The carrier touches nothing but the network, the folders of its jobs, and the files of the engine's secrets. It
//! keeps a session with the engine as long as jobs come and the engine's files stay the same.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zeroize::Zeroizing;

use super::carrier::{ENDED, OUTCOME};
use super::disk_space;
use super::engine::{EngineSettings, ExchangeOutcome, LinkEngine, LinkSession};
use super::job::{self, CarrierTask, JobOrder, MessageOrder, OutcomeLine, OutcomeLog};
use crate::model::locks::{Condvar, Mutex};
use crate::store::fs::Stamp;

/// The limit on the time of an exchange. A longer one is cut off, and its outcome is unknown.
const LONGEST: Duration = Duration::from_secs(15 * 60);
/// The time for which a fetch asks again before it ends, so that people learn that the engine answers.
const STAY: Duration = Duration::from_secs(4 * 60);
/// The time after which a job to deliver ends between two messages, so that the daemon can do something else.
const DELIVER_WITHIN: Duration = Duration::from_secs(1);
/// The time for which an unused connection is kept.
const KEEP_CONNECTION: Duration = Duration::from_secs(2);
/// The exit code of a carrier that was cut off: `EX_TEMPFAIL`.
const LATE_EXIT_CODE: i32 = 75;

/// The function that makes the engine of some settings.
pub type EngineOpener<'a> = &'a dyn Fn(&EngineSettings) -> Result<Box<dyn LinkEngine>, String>;

/// Makes this process the carrier of a link, with a session of its own and a limited time for each exchange, and
/// carries until the daemon hangs up.
///
/// # Errors
/// Returns the system's error.
pub fn run_carrier_process(link: &Path, open: EngineOpener<'_>) -> io::Result<()> {
    // A signal to the daemon's session does not reach this one.
    let _ = rustix::process::setsid();
    let limit = Arc::<ExchangeLimit>::default();
    let watched = Arc::clone(&limit);
    std::thread::Builder::new()
        .name("msgfs-longest".into())
        .spawn(move || watched.end_process_when_late())?;
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    run_carrier(&socket, link, open, &limit)
}

/// Carries for a link until the daemon hangs up.
///
/// # Errors
/// Returns the system's error, if an outcome cannot be recorded. Then the job counts as one whose carrier died.
pub(super) fn run_carrier(
    socket: &UnixStream,
    link: &Path,
    open: EngineOpener<'_>,
    limit: &ExchangeLimit,
) -> io::Result<()> {
    let mut orders = OrderStream::new(socket);
    let mut next = orders.next_job(None)?;
    while let NextJob::Job(name) = next {
        let folder = job::job_folder(link, &name);
        let Ok(Some(order)) = job::read_order(&folder) else {
            orders.report(ENDED);
            next = orders.next_job(None)?;
            continue;
        };
        match open(&order.settings) {
            Ok(engine) => {
                next = carry_with_engine(&mut orders, engine.as_ref(), (name, order), link, limit)?;
            }
            Err(why) => {
                let outcome = ExchangeOutcome::away(why);
                let mut log = OutcomeLog::open(&folder, order.task.is_delivery())?;
                log.append(&line_of(first_message(&order.task), outcome))?;
                log.append(&OutcomeLine::End)?;
                orders.report(ENDED);
                next = orders.next_job(None)?;
            }
        }
    }
    Ok(())
}

/// Runs a job and those that follow with one session, as long as they concern the same engine with the same files.
/// Returns what comes after them.
fn carry_with_engine(
    orders: &mut OrderStream<'_>,
    engine: &dyn LinkEngine,
    (name, first): (PathBuf, JobOrder),
    link: &Path,
    limit: &ExchangeLimit,
) -> io::Result<NextJob> {
    let version = EngineVersion::read(&first.settings);
    // The secrets may change while the engine is used.
    let mut worker = CarrierWorker {
        engine,
        session: engine.open_session(),
        secrets: engine.load_secrets(),
        limit,
    };
    let (mut name, mut order) = (name, first);
    loop {
        worker.run_job(orders, &job::job_folder(link, &name), &order.task)?;
        orders.report(ENDED);
        let mut next = orders.next_job(Some(KEEP_CONNECTION))?;
        if matches!(next, NextJob::None) {
            worker.session.disconnect();
            next = orders.next_job(None)?;
        }
        let NextJob::Job(following) = next else { return Ok(next) };
        match job::read_order(&job::job_folder(link, &following)) {
            Ok(Some(known)) if EngineVersion::read(&known.settings) == version => {
                (name, order) = (following, known);
            }
            _ => return Ok(NextJob::Job(following)),
        }
    }
}

/// The settings of an engine, and the stamps of the files that they name.
#[derive(PartialEq, Eq)]
struct EngineVersion {
    settings: EngineSettings,
    stamps: [Option<Stamp>; 2],
}

impl EngineVersion {
    fn read(settings: &EngineSettings) -> Self {
        let stamp = |path: &Path| Stamp::from_path(path).ok().flatten();
        let stamps = [stamp(&settings.file), settings.ca.as_deref().and_then(stamp)];
        Self { settings: settings.clone(), stamps }
    }
}

/// A carrier with a session.
struct CarrierWorker<'a> {
    engine: &'a dyn LinkEngine,
    session: Box<dyn LinkSession + 'a>,
    secrets: Vec<Zeroizing<String>>,
    limit: &'a ExchangeLimit,
}

impl Drop for CarrierWorker<'_> {
    fn drop(&mut self) {
        self.session.disconnect();
    }
}

impl CarrierWorker<'_> {
    fn run_job(
        &mut self,
        orders: &mut OrderStream<'_>,
        folder: &Path,
        task: &CarrierTask,
    ) -> io::Result<()> {
        let mut log = OutcomeLog::open(folder, task.is_delivery())?;
        match task {
            CarrierTask::Deliver { messages } => {
                self.deliver_messages(orders, folder, messages, &mut log)?;
            }
            CarrierTask::Send(message) => {
                self.deliver_messages(orders, folder, std::slice::from_ref(message), &mut log)?;
            }
            CarrierTask::Fetch { known, every } => {
                let known: HashSet<String> = known.iter().cloned().collect();
                let raw = job::raw_folder(folder);
                let outcome = match every {
                    None => self.make_exchange(folder, None, |s| s.fetch(&raw, &known)),
                    Some(every) => {
                        let every = Duration::from_millis(*every);
                        self.poll_mail(orders, folder, &known, every)
                    }
                };
                log.append(&line_of(None, outcome))?;
            }
            CarrierTask::Acknowledge { ids } => {
                let outcome = self.make_exchange(folder, None, |s| s.acknowledge(ids));
                log.append(&line_of(None, outcome))?;
            }
        }
        log.append(&OutcomeLine::End)
    }

    /// Delivers messages one after the other. Ends early when the engine cannot be reached, when the daemon wants
    /// something else, and after some time; the daemon orders the others again.
    fn deliver_messages(
        &mut self,
        orders: &mut OrderStream<'_>,
        folder: &Path,
        messages: &[MessageOrder],
        log: &mut OutcomeLog,
    ) -> io::Result<()> {
        let until = Instant::now() + DELIVER_WITHIN;
        for message in messages {
            let outcome = self.make_exchange(folder, Some(message.no), |s| s.send(&message.wire));
            let is_link_down =
                matches!(outcome, ExchangeOutcome::Away { .. } | ExchangeOutcome::Unknown { .. });
            log.append(&line_of(Some(message.no), outcome))?;
            orders.report(OUTCOME);
            if is_link_down || Instant::now() >= until || orders.should_stop()? {
                break;
            }
        }
        Ok(())
    }

    /// Asks for mail until some comes, or the daemon wants something else, or the time is over.
    fn poll_mail(
        &mut self,
        orders: &mut OrderStream<'_>,
        folder: &Path,
        known: &HashSet<String>,
        every: Duration,
    ) -> ExchangeOutcome {
        let raw = job::raw_folder(folder);
        let until = Instant::now() + STAY;
        loop {
            let outcome = self.make_exchange(folder, None, |s| s.fetch(&raw, known));
            let is_over = outcome != ExchangeOutcome::Done || self.engine.has_fetched(&raw);
            // From here to the next request nothing can be lost.
            if is_over || !job::clear_asked(&raw) {
                return outcome;
            }
            if every >= KEEP_CONNECTION {
                self.session.disconnect();
            }
            if Instant::now() > until
                || orders.wait_until_stopped(every).unwrap_or(true)
                || disk_space::check_free_space(&raw).is_err()
                || self.engine.find_other_carrier().is_some()
            {
                return outcome;
            }
        }
    }

    /// Makes one exchange within its time limit. Removes secrets from its outcome.
    fn make_exchange(
        &mut self,
        folder: &Path,
        no: Option<u64>,
        exchange: impl FnOnce(&mut dyn LinkSession) -> ExchangeOutcome,
    ) -> ExchangeOutcome {
        self.limit.begin_exchange(folder, no);
        let outcome = exchange(self.session.as_mut());
        self.limit.end_exchange();
        if outcome.reason().is_none() {
            return outcome;
        }
        let mut secrets = self.secrets.clone();
        secrets.extend(self.engine.load_secrets());
        outcome.redact_secrets(&secrets)
    }
}

/// Returns the line of an outcome: that of a message, or that of the whole job.
fn line_of(no: Option<u64>, outcome: ExchangeOutcome) -> OutcomeLine {
    match no {
        Some(no) => OutcomeLine::Message { no, outcome },
        None => OutcomeLine::Job { outcome },
    }
}

/// Returns the number of the first message of a task.
fn first_message(task: &CarrierTask) -> Option<u64> {
    match task {
        CarrierTask::Deliver { messages } => messages.first().map(|message| message.no),
        CarrierTask::Send(message) => Some(message.no),
        CarrierTask::Fetch { .. } | CarrierTask::Acknowledge { .. } => None,
    }
}

/// The next thing to do.
#[derive(Debug)]
enum NextJob {
    /// A job, by the name of its folder.
    Job(PathBuf),
    /// Nothing within the time.
    None,
    /// The end: the daemon hung up.
    HangUp,
}

/// The daemon's orders, read from the socket.
struct OrderStream<'a> {
    socket: &'a UnixStream,
    lines: VecDeque<String>,
    partial: Vec<u8>,
    has_hung_up: bool,
}

impl<'a> OrderStream<'a> {
    fn new(socket: &'a UnixStream) -> Self {
        Self { socket, lines: VecDeque::new(), partial: Vec::new(), has_hung_up: false }
    }

    /// Returns the next job, which is waited for within a time or for ever.
    fn next_job(&mut self, within: Option<Duration>) -> io::Result<NextJob> {
        let until = within.map(|within| Instant::now() + within);
        loop {
            // An empty line here concerned a job that is over.
            while let Some(line) = self.lines.pop_front() {
                if !line.is_empty() {
                    return Ok(NextJob::Job(PathBuf::from(line)));
                }
            }
            if self.has_hung_up {
                return Ok(NextJob::HangUp);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if !self.read_lines(left)? && until.is_some_and(|until| until <= Instant::now()) {
                return Ok(NextJob::None);
            }
        }
    }

    /// Returns true if the daemon asks for the end of the current job, or hung up.
    fn should_stop(&mut self) -> io::Result<bool> {
        self.wait_until_stopped(Duration::ZERO)
    }

    /// Waits, and returns true if the daemon asked meanwhile for the end of the current job, or hung up.
    fn wait_until_stopped(&mut self, within: Duration) -> io::Result<bool> {
        if self.lines.is_empty() && !self.has_hung_up {
            self.read_lines(Some(within))?;
        }
        Ok(!self.lines.is_empty() || self.has_hung_up)
    }

    /// Waits for bytes within a time or for ever, and reads them. Returns false if none came.
    fn read_lines(&mut self, within: Option<Duration>) -> io::Result<bool> {
        let mut watched = [PollFd::new(self.socket, PollFlags::IN)];
        let limit = within.map(|within| Timespec {
            tv_sec: within.as_secs() as i64,
            tv_nsec: within.subsec_nanos().into(),
        });
        match poll(&mut watched, limit.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            other => other?,
        };
        let mut bytes = [0; 4096];
        let read = match self.socket.read(&mut bytes) {
            // A daemon that died with unread reports resets the connection.
            Ok(0) | Err(_) => {
                self.has_hung_up = true;
                return Ok(true);
            }
            Ok(read) => read,
        };
        self.partial.extend_from_slice(bytes.get(..read).unwrap_or_default());
        while let Some(end) = self.partial.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            let line = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
            self.lines.push_back(line.into_owned());
        }
        Ok(true)
    }

    /// Reports to the daemon, if it is there.
    fn report(&mut self, what: u8) {
        self.has_hung_up |= self.socket.write_all(&[what]).is_err();
    }
}

/// The limit on the time of an exchange, which a thread enforces by ending the process.
#[derive(Debug, Default)]
pub(super) struct ExchangeLimit {
    state: Mutex<LimitState>,
    condvar: Condvar,
}

#[derive(Debug, Default)]
struct LimitState {
    running: Option<RunningExchange>,
    /// True if the thread waits for the next exchange.
    is_idle: bool,
}

/// An exchange with a time limit.
#[derive(Debug)]
struct RunningExchange {
    until: Instant,
    job: PathBuf,
    no: Option<u64>,
}

impl ExchangeLimit {
    fn begin_exchange(&self, job: &Path, no: Option<u64>) {
        let mut state = self.state.lock();
        let until = Instant::now() + LONGEST;
        state.running = Some(RunningExchange { until, job: job.to_owned(), no });
        if std::mem::take(&mut state.is_idle) {
            self.condvar.notify_all();
        }
    }

    fn end_exchange(&self) {
        // The thread notices this when the time is over.
        self.state.lock().running = None;
    }

    /// Waits until an exchange takes too long, records that its outcome is unknown, and ends the process.
    fn end_process_when_late(&self) {
        let mut state = self.state.lock();
        loop {
            match &state.running {
                None => {
                    state.is_idle = true;
                    self.condvar.wait(&mut state);
                }
                // The lock is held, so the exchange cannot record an outcome of its own any more.
                Some(late) if late.until <= Instant::now() => late.end_process(),
                Some(RunningExchange { until, .. }) => {
                    let until = *until;
                    self.condvar.wait_until(&mut state, until);
                }
            }
        }
    }
}

impl RunningExchange {
    /// Records that the outcome is unknown, and ends the process. Even without the record the free lock shows that the
    /// exchange is over.
    fn end_process(&self) -> ! {
        let minutes = LONGEST.as_secs() / 60;
        let why = format!("the exchange took more than {minutes} minutes and was ended");
        let _ = OutcomeLog::open(&self.job, self.no.is_some()).and_then(|mut log| {
            log.append(&line_of(self.no, ExchangeOutcome::Unknown { why }))?;
            log.append(&OutcomeLine::End)
        });
        std::process::exit(LATE_EXIT_CODE)
    }
}
