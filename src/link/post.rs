//! One link that carries whole messages: what waits for it, what is being carried, what came.
//!
//! One thread a link, one carrier at a time. Whatever this thread was doing when it was killed is told by
//! the journal and by the jobs that are left; the next one goes on there.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::backoff;
use super::board::{Board, State};
use super::engine::{Engine, Outcome, Settings};
use super::job::{Carrier, Job, Task};
use super::journal::{Entry, Journal, Stage};
use super::request::Request;
use super::room;
use crate::model::locks::{Condvar, Mutex};
use crate::model::{Timestamp, one_line};
use crate::store::{Arrived, Fate, Parcel};

/// How often it is looked whether a carrier has ended that says so itself.
const WATCHED: Duration = Duration::from_secs(5);
/// How often a carrier that an earlier process started is asked whether it has ended: at first, and later.
const ASK: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// How long is waited when the disk refuses what must be on it.
const DISK_WAIT: Duration = Duration::from_secs(5);
/// How often it is looked whether another program still carries.
const OTHER_WAIT: Duration = Duration::from_secs(5);
/// How long a link rests at most after its carrier was killed: that says nothing of the engine.
const KILLED_WAIT: Duration = Duration::from_secs(5);
/// No more is acknowledged at once.
const ACKNOWLEDGED_AT_ONCE: usize = 100;

/// No more cuts are told.
const TOLD_CUTS: usize = 10;

/// Files what came; again changes nothing.
pub type Filing = Box<dyn Fn(&Arrived) -> io::Result<()> + Send + Sync>;

/// A link that carries whole messages.
pub struct Post {
    name: String,
    settings: Settings,
    folder: PathBuf,
    engine: Box<dyn Engine>,
    file: Filing,
    carrier: Carrier,
    journal: Mutex<Journal>,
    board: Arc<Board>,
    calls: Arc<Calls>,
    stop: AtomicBool,
    /// Somebody asked that nothing waits.
    hurry: AtomicBool,
    jobs: AtomicU64,
}

impl std::fmt::Debug for Post {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Post").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The signals that wake the thread.
#[derive(Debug, Default)]
struct Calls {
    counts: Mutex<Counts>,
    called: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Calls that may have given the thread something to do.
    calls: u64,
    /// Carriers that ended.
    ends: u64,
}

impl Calls {
    fn now(&self) -> Counts {
        *self.counts.lock()
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock());
        self.called.notify_all();
    }
}

/// When the link goes on.
#[derive(Debug, Default)]
struct Rest {
    /// Exchanges in a row that could not be made.
    failures: u32,
    /// Carriers in a row that were killed.
    kills: u32,
    /// Nothing is sent or fetched before this moment, in milliseconds since the epoch.
    until: i64,
    /// The next time to ask for mail.
    fetch: i64,
}

impl Post {
    /// Opens a link's folder.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn open(
        name: &str,
        folder: &Path,
        settings: Settings,
        engine: Box<dyn Engine>,
        file: Filing,
        carrier: Carrier,
    ) -> io::Result<Self> {
        let journal = Journal::open(folder, now())?;
        let board = Arc::new(Board::new(name, folder, engine.place()));
        let post = Self {
            name: name.to_owned(),
            settings,
            folder: folder.to_owned(),
            engine,
            file,
            carrier,
            journal: Mutex::new(journal),
            board,
            calls: Arc::default(),
            stop: AtomicBool::new(false),
            hurry: AtomicBool::new(false),
            jobs: AtomicU64::new(0),
        };
        post.count();
        Ok(post)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it stands.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Does what a command asked for, if any did.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn hear(&self) -> io::Result<()> {
        match Request::read(&self.folder) {
            Some(Request::Retry) => self.retry()?,
            Some(Request::Drop) => self.give_up()?,
            None => return Ok(()),
        };
        Request::done(&self.folder)
    }

    /// The engine.
    pub fn engine(&self) -> &dyn Engine {
        self.engine.as_ref()
    }

    /// Takes a message for one recipient. On disk when it returns; again changes nothing.
    ///
    /// # Errors
    /// As the system gave it; then it was not taken.
    pub fn take(&self, parcel: &Parcel) -> io::Result<()> {
        let (message, to) = (&parcel.message, &parcel.to);
        if self.journal.lock().find(message, to).is_some() {
            return Ok(());
        }
        let wire = self.engine.wire(parcel);
        {
            let mut journal = self.journal.lock();
            match &wire {
                Ok(wire) => journal.spool(message, to, wire, now())?,
                Err(why) => journal.refuse_at_once(message, to, why, now())?,
            }
        }
        self.count();
        self.call();
        Ok(())
    }

    /// What became of a message for a recipient.
    pub fn fate(&self, message: &str, to: &str) -> Option<Fate> {
        let state = self.board.standing().state;
        let journal = self.journal.lock();
        let entry = journal.find(message, to)?;
        Some(fate_of(entry, &self.name, &self.engine.place(), &state))
    }

    /// The id that the engine gave a message for a recipient.
    pub fn known_as(&self, message: &str, to: &str) -> Option<String> {
        self.journal.lock().find(message, to)?.given.clone()
    }

    /// Has what waits tried now. How many that are.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn retry(&self) -> io::Result<usize> {
        self.settle_waiting(|journal, no| journal.later(no, "asked to be tried again", now()))
    }

    /// Gives up what waits. How many that were.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn give_up(&self) -> io::Result<usize> {
        self.settle_waiting(|journal, no| journal.refused(no, "given up by msgfs link drop", now()))
    }

    /// Says of everything that waits, and that no carrier has, what becomes of it; then the thread does not
    /// rest, and the store moves what nobody waits for any more.
    fn settle_waiting(
        &self,
        say: impl Fn(&mut Journal, u64) -> io::Result<()>,
    ) -> io::Result<usize> {
        let waiting = {
            let mut journal = self.journal.lock();
            let open = journal.open_entries().filter(|(_, e)| e.stage != Stage::Trying);
            let waiting: Vec<u64> = open.map(|(no, _)| no).collect();
            waiting.iter().try_for_each(|no| say(&mut journal, *no))?;
            waiting.len()
        };
        self.count();
        self.hurry.store(true, Ordering::Relaxed);
        self.call();
        Ok(waiting)
    }

    /// There may be something to do.
    pub fn call(&self) {
        self.calls.count(|counts| counts.calls += 1);
    }

    /// Has [`Post::run`] return soon. A carrier that works goes on.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.call();
    }

    /// Carries until it is told to stop. `changed` is called when the store should look again: before the thread rests,
    /// and while it is busy as often as that costs a tenth of its time, since the store may look at all that waits.
    pub fn run(&self, changed: &dyn Fn()) {
        let mut rest = Rest::default();
        let (untold, mut quiet) = (Cell::new(false), Instant::now());
        while !self.is_stopped() {
            let seen = self.calls.now();
            if self.hurry.swap(false, Ordering::Relaxed) {
                rest = Rest::default();
                changed();
            }
            let turn = self.turn(&mut rest, &|| untold.set(true));
            if untold.get() && (!matches!(turn, Ok(true)) || quiet <= Instant::now()) {
                let began = Instant::now();
                untold.set(false);
                changed();
                quiet = Instant::now() + began.elapsed() * 9;
            }
            let until = match turn {
                Ok(true) => continue,
                Ok(false) => self.next(&rest),
                Err(error) => {
                    let why = format!("the mail of this link cannot be saved here: {error}");
                    tracing::warn!(link = self.name, why = %one_line(&why), "the link waits \
                        before it tries again");
                    self.board.failed(&why);
                    now().saturating_add(DISK_WAIT.as_millis() as i64)
                }
            };
            let wait = until.saturating_sub(now()).clamp(1, 3_600_000);
            self.sleep(seen, Duration::from_millis(wait as u64));
        }
    }

    /// Does one thing; whether there was one.
    fn turn(&self, rest: &mut Rest, changed: &dyn Fn()) -> io::Result<bool> {
        let called = self.calls.now().calls;
        if let Some(job) = self.left()? {
            self.wait_for(job, called, rest, changed)?;
            return Ok(true);
        }
        let now = now();
        if now < rest.until {
            return Ok(false);
        }
        if let Some(why) = self.engine.other_carrier() {
            if self.board.standing().state != (State::Stopped { why: one_line(&why).into_owned() })
            {
                self.board.stopped(&why);
                changed();
            }
            rest.until = now.saturating_add(OTHER_WAIT.as_millis() as i64);
            return Ok(false);
        }
        let due = self.journal.lock().due(now);
        if let Some(no) = due {
            let job = self.order(Task::Send { no, wire: self.journal.lock().wire(no) })?;
            self.journal.lock().trying(no)?;
            self.carry(job, called, rest, changed)?;
            return Ok(true);
        }
        if now < rest.fetch {
            return Ok(false);
        }
        room::left(&self.folder)?;
        let known = {
            let journal = self.journal.lock();
            let known = journal.all_seen().filter(|id| self.engine.must_know(id));
            known.map(str::to_owned).collect()
        };
        // Until it has answered once, people are to hear of each try.
        let is_connected = matches!(self.board.standing().state, State::Connected { .. });
        let every = (is_connected && self.engine.stays()).then(|| self.engine.poll());
        let every = every.map(|every| every.as_millis() as u64);
        let job = self.order(Task::Fetch { known, every })?;
        self.carry(job, called, rest, changed)?;
        rest.fetch = self::now() + self.engine.poll().as_millis() as i64;
        Ok(true)
    }

    /// When there is something to do by itself.
    fn next(&self, rest: &Rest) -> i64 {
        let first = self.journal.lock().next_due();
        first.unwrap_or(i64::MAX).min(rest.fetch).max(rest.until)
    }

    fn order(&self, task: Task) -> io::Result<Job> {
        let no = self.jobs.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{}-{no}", now(), std::process::id());
        let job = Job::new(&self.folder.join("jobs").join(name), &self.settings, task);
        step();
        job
    }

    /// A job of this link that is there.
    fn left(&self) -> io::Result<Option<Job>> {
        let entries = match std::fs::read_dir(self.folder.join("jobs")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        folders.sort_unstable();
        for folder in folders {
            match Job::left(&folder)? {
                Some(job) => return Ok(Some(job)),
                // It was never started.
                None => std::fs::remove_dir_all(&folder)?,
            }
        }
        Ok(None)
    }

    /// Has a carrier do a job to its end.
    fn carry(
        &self,
        mut job: Job,
        called: u64,
        rest: &mut Rest,
        changed: &dyn Fn(),
    ) -> io::Result<()> {
        step();
        let calls = Arc::clone(&self.calls);
        job.start(&self.carrier, move || calls.count(|counts| counts.ends += 1))?;
        step();
        self.wait_for(job, called, rest, changed)
    }

    /// Waits until a job's carrier has ended, and does what follows from it. One that stays is to end as soon as
    /// there was another call than those that were `called` before.
    fn wait_for(
        &self,
        mut job: Job,
        called: u64,
        rest: &mut Rest,
        changed: &dyn Fn(),
    ) -> io::Result<()> {
        let mut pause = ASK.0;
        loop {
            let seen = self.calls.now();
            if job.has_ended()? {
                break;
            }
            if self.is_stopped() {
                return Ok(());
            }
            if seen.calls != called {
                job.hang_up();
            }
            if job.is_watched() {
                self.sleep(seen, WATCHED);
            } else {
                std::thread::sleep(pause);
                pause = (pause * 2).min(ASK.1);
            }
        }
        let outcome = job.outcome();
        match job.task().clone() {
            Task::Send { no, .. } => self.sent(no, outcome.as_ref(), rest)?,
            Task::Fetch { .. } => self.fetched(&job, outcome.as_ref(), rest)?,
            Task::Acknowledge { .. } => self.note(outcome.as_ref(), rest),
        }
        step();
        job.remove()?;
        step();
        self.count();
        changed();
        Ok(())
    }

    fn sent(&self, no: u64, outcome: Option<&Outcome>, rest: &mut Rest) -> io::Result<()> {
        self.note(outcome, rest);
        let mut journal = self.journal.lock();
        let Some(entry) = journal.entry(no).cloned() else { return Ok(()) };
        if matches!(entry.stage, Stage::Taken | Stage::Refused(_)) {
            return Ok(());
        }
        let (why, after) = match outcome {
            Some(Outcome::Done) => return journal.taken(no, None, now()),
            Some(Outcome::Named { id }) => return journal.taken(no, Some(id), now()),
            Some(Outcome::Refused { why }) => return journal.refused(no, why, now()),
            Some(Outcome::Later { why, after }) => (why.as_str(), *after),
            // The link rests; the message goes as soon as it does not.
            Some(Outcome::Away { why, .. } | Outcome::Unknown { why }) => (why.as_str(), Some(0)),
            None => ("the carrier was killed", Some(0)),
        };
        let is_link = !matches!(outcome, Some(Outcome::Later { .. }));
        let next = entry.next_try(now(), after.map(Duration::from_secs));
        match next {
            Some(until) => journal.later(no, why, if is_link { now() } else { until }),
            None => journal.refused(no, &format!("not taken for a week: {why}"), now()),
        }
    }

    /// What an outcome says of the link.
    fn note(&self, outcome: Option<&Outcome>, rest: &mut Rest) {
        let asked = match outcome {
            Some(
                Outcome::Done
                | Outcome::Named { .. }
                | Outcome::Refused { .. }
                | Outcome::Later { .. },
            ) => {
                self.board.answered();
                *rest = Rest { fetch: rest.fetch, ..Rest::default() };
                return;
            }
            Some(Outcome::Away { after, .. }) => Some(*after),
            Some(Outcome::Unknown { .. }) => Some(None),
            None => None,
        };
        let why = outcome.and_then(Outcome::why).unwrap_or("the carrier was killed");
        self.board.failed(why);
        let wait = if let Some(after) = asked {
            (rest.failures, rest.kills) = (rest.failures.saturating_add(1), 0);
            backoff::wait(rest.failures).max(Duration::from_secs(after.unwrap_or_default()))
        } else {
            rest.kills = rest.kills.saturating_add(1);
            backoff::wait(rest.kills).min(KILLED_WAIT)
        };
        rest.until = now().saturating_add(wait.as_millis() as i64);
    }

    /// Files what a fetch brought; then says so.
    fn fetched(&self, job: &Job, outcome: Option<&Outcome>, rest: &mut Rest) -> io::Result<()> {
        let mut seen = Vec::new();
        let mut acknowledged = Vec::new();
        let mut failed = None;
        for item in self.engine.unpack(&job.raw()) {
            let filed = item.and_then(|item| {
                let is_seen = item.is_only_known() || self.journal.lock().is_seen(&item.id);
                if !is_seen {
                    (self.file)(&item.arrived)?;
                }
                Ok(item)
            });
            match filed {
                Ok(item) => {
                    step();
                    seen.push(item.id);
                    acknowledged.extend(item.acknowledge);
                }
                Err(e) => failed = Some(e),
            }
        }
        self.journal.lock().seen(&seen, now())?;
        step();
        for ids in acknowledged.chunks(ACKNOWLEDGED_AT_ONCE) {
            let said = self.order(Task::Acknowledge { ids: ids.to_vec() })?;
            self.carry(said, self.calls.now().calls, rest, &|| {})?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let is_whole = matches!(outcome, Some(Outcome::Done | Outcome::Away { .. }));
        if !is_whole && self.engine.destroys() && job.was_asked() {
            self.journal.lock().cut(now())?;
        }
        self.note(outcome, rest);
        Ok(())
    }

    /// Tells how much waits, and what may be lost.
    fn count(&self) {
        let (waiting, refused, cuts) = {
            let journal = self.journal.lock();
            let (open, refused) = (journal.open_count() as u64, journal.refused_count() as u64);
            (open, refused, journal.cuts().to_vec())
        };
        let cut = |at: &i64| {
            let at = Timestamp::from_millis(*at).rfc3339_short();
            format!("a fetch was cut off at {at}: mail that the server gave then may be lost")
        };
        self.board.tell(|standing| {
            standing.waiting = waiting;
            standing.refused = refused;
            // The last ones say most.
            standing.notes = cuts.iter().rev().take(TOLD_CUTS).map(cut).collect();
        });
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn sleep(&self, seen: Counts, limit: Duration) {
        let until = Instant::now() + limit;
        let mut counts = self.calls.counts.lock();
        while *counts == seen && !self.is_stopped() {
            if self.calls.called.wait_until(&mut counts, until) {
                return;
            }
        }
    }
}

/// Tells the fate of a message by its entry in the journal and by the state of the link.
pub(super) fn fate_of(entry: &Entry, link: &str, place: &str, state: &State) -> Fate {
    let waits = |why: Option<&str>| {
        let since = Timestamp::from_millis(entry.since).rfc3339_short();
        let why = match (why, state) {
            // Without a reason of its own it was not its turn.
            (_, State::Stopped { why }) | (None, State::Waiting { why, .. }) => {
                one_line(why).into_owned()
            }
            (Some(why), _) => format!("{}, tried {} times", one_line(why), entry.tries),
            (None, _) => "it is on its way".to_owned(),
        };
        Fate::Waits(format!("link {link} to {place}, since {since}: {why}"))
    };
    match &entry.stage {
        Stage::Taken => Fate::Taken,
        Stage::Refused(why) => Fate::Refused(format!("refused by {place}: {why}")),
        Stage::Trying => waits(None),
        Stage::Waits { why, .. } => waits(why.as_deref()),
    }
}

fn now() -> i64 {
    Timestamp::now().millis()
}

/// A place at which the tests kill this process.
fn step() {
    #[cfg(test)]
    tests::step();
}

#[cfg(test)]
mod tests;
