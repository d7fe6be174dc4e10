//! A link that carries whole messages: its waiting messages, its running job, its fetched messages.
//!
//! Each link has one thread and at most one carrier, which stays while there is work. The journal and the remaining
//! jobs record what a killed thread was doing, and the next thread continues there.
//!
//! Messages go in jobs of many. All of a job are recorded as tried, with one sync, before the carrier gets it. Their
//! outcomes are taken over as they come: all that came meanwhile with one sync.

pub(super) mod delivery;
mod fetch;
mod jobs;
mod schedule;

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::schedule::{ExchangeSort, RetrySchedule};
use super::board::{HealthBoard, LinkState};
use super::carrier::{CarrierProcess, CarrierProgram};
use super::engine::{EncodeError, EngineSettings, ExchangeOutcome, LinkEngine};
use super::job::CarrierJob;
use super::journal::{self, DeliveryStage, EntryChange, Journal, JournalEntry};
use super::kind;
use super::lifecycle::{Link, LinkCallbacks, LinkEvent};
use super::request::LinkRequest;
use crate::model::locks::{Condvar, LockLevel, Mutex};
use crate::model::{Timestamp, sanitize_line};
use crate::store::{DeliveryFate, InboundMail, OutboundMail};

/// The time after which a carrier without work is ended.
const IDLE: Duration = Duration::from_secs(2);
/// The delay after the disk refuses a write.
const DISK_WAIT: Duration = Duration::from_secs(5);
/// The pause between checks that another program still carries.
const OTHER_WAIT: Duration = Duration::from_secs(5);

/// The reason of a try whose carrier died.
const KILLED: &str = "the carrier was killed";
/// The reason for refusing what a person gave up.
const GIVEN_UP: &str = "given up by msgfs link drop";
/// The reason for which a message waits while nothing carries.
const NOT_CARRIED: &str = "it goes once msgfs is mounted or `msgfs carry --all` runs";
/// The number of interrupted fetches that are reported.
const TOLD_CUTS: usize = 10;

/// A function that files a fetched message, and does nothing the second time.
pub type ArrivalFiler = Box<dyn Fn(&InboundMail) -> io::Result<()> + Send + Sync>;

/// A link that carries whole messages.
pub struct MessageLink {
    name: String,
    settings: EngineSettings,
    folder: PathBuf,
    engine: Box<dyn LinkEngine>,
    filer: ArrivalFiler,
    program: CarrierProgram,
    carrier: Mutex<Option<CarrierProcess>>,
    journal: Mutex<Journal>,
    /// The reason why accepted messages could not be synced and are forgotten, until a store learns of it. One thread
    /// syncs at a time.
    lost_acceptance: Mutex<Option<(io::ErrorKind, String)>>,
    board: Arc<HealthBoard>,
    wakeup: Arc<LinkWakeup>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: AtomicBool,
    /// The reason why not all mail of the last fetch is in the store, for people.
    withheld: Mutex<Option<String>>,
    /// True if a person asked that nothing waits.
    is_urgent: AtomicBool,
    next_job: AtomicU64,
}

impl std::fmt::Debug for MessageLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageLink").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The signals that wake the thread.
#[derive(Debug, Default)]
struct LinkWakeup {
    counts: Mutex<WakeupCounts>,
    condvar: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WakeupCounts {
    /// The number of calls that may have given the thread something to do.
    calls: u64,
    /// The number of reports of carriers.
    reports: u64,
}

impl LinkWakeup {
    fn current_counts(&self) -> WakeupCounts {
        *self.counts.lock()
    }

    fn update_counts(&self, change: impl FnOnce(&mut WakeupCounts)) {
        change(&mut self.counts.lock());
        self.condvar.notify_all();
    }
}

impl MessageLink {
    /// Opens a link's folder.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn open(
        name: &str,
        folder: &Path,
        settings: EngineSettings,
        engine: Box<dyn LinkEngine>,
        file: ArrivalFiler,
        program: CarrierProgram,
    ) -> io::Result<Self> {
        let journal = open_journal(folder)?;
        let place = describe_place(engine.as_ref(), &settings);
        let board = Arc::new(HealthBoard::new(name, folder, &place));
        let link = Self {
            name: name.to_owned(),
            settings,
            folder: folder.to_owned(),
            engine,
            filer: file,
            program,
            carrier: Mutex::default(),
            journal: Mutex::new(journal),
            lost_acceptance: Mutex::with_level(LockLevel::Spool, None),
            board,
            wakeup: Arc::default(),
            thread: Mutex::default(),
            stop: AtomicBool::new(false),
            withheld: Mutex::default(),
            is_urgent: AtomicBool::new(false),
            next_job: AtomicU64::new(0),
        };
        link.board.save_first();
        link.update_board();
        Ok(link)
    }

    /// Returns the link's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the link's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs the request of a command, if there is one.
    fn run_request(&self) -> io::Result<()> {
        match LinkRequest::read(&self.folder) {
            Some(LinkRequest::Retry) => self.retry_waiting()?,
            Some(LinkRequest::Drop) => self.drop_waiting()?,
            None => return Ok(()),
        };
        // The command reads the copy when its request is gone.
        self.board.save_now();
        LinkRequest::remove(&self.folder)
    }

    /// Returns the engine.
    pub fn engine(&self) -> &dyn LinkEngine {
        self.engine.as_ref()
    }

    /// Accepts a message for one recipient. It is on disk once [`Self::sync_accepted`] has returned, and before a
    /// carrier gets it. Does nothing if the message is known.
    ///
    /// # Errors
    /// Returns the system's error; then the message was not accepted.
    pub fn accept_parcel(&self, parcel: &OutboundMail) -> io::Result<()> {
        let (message, to) = (&parcel.message_id, &parcel.to);
        if self.journal.lock().find_entry(message, to).is_some() {
            return Ok(());
        }
        match self.engine.encode_parcel(parcel) {
            Ok(wire) => {
                // The journal is not locked meanwhile, because a disk is slow, and other threads only want to read the
                // journal.
                let (no, path) = self.journal.lock().reserve_number();
                let written = journal::write_wire_file(&path, &wire);
                let is_added =
                    written.is_ok() && self.journal.lock().add_unsynced(no, message, to, now());
                if !is_added {
                    journal::remove_wire_files(&[path]);
                }
                written?;
            }
            Err(EncodeError::Final(why)) => {
                self.journal.lock().refuse_at_once(message, to, &why, now())?;
                self.update_board();
            }
            // The store hands the message over again.
            Err(EncodeError::Passing(error)) => return Err(error),
        }
        self.wake_thread();
        Ok(())
    }

    /// Waits until all accepted messages are on disk.
    ///
    /// # Errors
    /// Returns the system's error. Then some messages that were accepted since the last call are forgotten, and the
    /// store hands them over again.
    pub fn sync_accepted(&self) -> io::Result<()> {
        let mut lost = self.lost_acceptance.lock();
        let is_new = self.record_accepted(&mut lost).is_ok_and(|is_new| is_new);
        if let Some((kind, why)) = lost.take() {
            return Err(io::Error::new(kind, why));
        }
        drop(lost);
        if is_new {
            self.wake_thread();
        }
        Ok(())
    }

    /// Records the accepted messages: first their bytes reach the disk, then their lines. Returns true if there were
    /// any. If that fails, it forgets them and notes the reason.
    fn record_accepted(&self, lost: &mut Option<(io::ErrorKind, String)>) -> io::Result<bool> {
        let (numbers, paths) = self.journal.lock().list_unsynced();
        if numbers.is_empty() {
            return Ok(false);
        }
        crash_point();
        let synced = journal::sync_wire_files(&paths);
        crash_point();
        let recorded = synced.and_then(|()| self.journal.lock().record_accepted(&numbers));
        if let Err(error) = &recorded {
            self.journal.lock().forget_unsynced(&numbers);
            journal::remove_wire_files(&paths);
            *lost = Some((error.kind(), error.to_string()));
        }
        self.update_board();
        recorded.map(|()| true)
    }

    /// Returns the fate of a message for a recipient.
    pub fn find_fate(&self, message: &str, to: &str) -> Option<DeliveryFate> {
        let is_carried = self.thread.lock().is_some();
        let state = is_carried.then(|| self.board.health().state);
        let journal = self.journal.lock();
        let entry = journal.find_entry(message, to)?;
        Some(describe_fate(entry, &self.name, &self.engine.describe_engine(), state.as_ref()))
    }

    /// Returns true if the engine does not have a message that the link took for a recipient; `None` if the link did
    /// not take it.
    pub fn is_underway(&self, message: &str, to: &str) -> Option<bool> {
        let journal = self.journal.lock();
        journal.find_entry(message, to).map(|entry| entry.stage != DeliveryStage::Taken)
    }

    /// Returns the id that the engine gave a message for a recipient.
    pub fn find_given_id(&self, message: &str, to: &str) -> Option<String> {
        self.journal.lock().find_entry(message, to)?.given_id.clone()
    }

    /// Makes all waiting messages due now. Returns their number.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn retry_waiting(&self) -> io::Result<usize> {
        let why = "asked to be tried again".to_owned();
        self.settle_waiting(&EntryChange::Later { why, until: now(), is_unanswered: false })
    }

    /// Gives up all waiting messages. Returns their number. A message that a carrier has is given up after its try,
    /// unless the engine has it or may have it.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn drop_waiting(&self) -> io::Result<usize> {
        self.settle_waiting(&delivery::give_up())
    }

    /// Records a [change](Journal::change_waiting) of every waiting message. Then ends the backoff and wakes the thread, so that the store moves the
    /// finished messages.
    fn settle_waiting(&self, change: &EntryChange) -> io::Result<usize> {
        self.record_accepted(&mut self.lost_acceptance.lock())?;
        let (waiting, over) = self.journal.lock().change_waiting(change, now())?;
        journal::remove_wire_files(&over);
        self.update_board();
        self.is_urgent.store(true, Ordering::Relaxed);
        self.wake_thread();
        Ok(waiting)
    }

    /// Wakes the thread, since there may be something to do.
    fn wake_thread(&self) {
        self.wakeup.update_counts(|counts| counts.calls += 1);
    }

    /// Carries until the link is asked to end. Calls `changed` when the store should scan: before the thread
    /// rests, and at most a tenth of the time while it is busy, since the store may examine everything that waits.
    pub(super) fn run(&self, changed: &dyn Fn()) {
        let mut schedule = RetrySchedule::default();
        let (has_news, mut next_scan) = (Cell::new(false), Instant::now());
        while !self.is_stopped() {
            let seen = self.wakeup.current_counts();
            self.board.save_if_due();
            if self.is_urgent.swap(false, Ordering::Relaxed) {
                schedule = RetrySchedule::default();
                changed();
            }
            let turn = self.run_turn(&mut schedule, &|| has_news.set(true));
            if has_news.get() && (!matches!(turn, Ok(true)) || next_scan <= Instant::now()) {
                let began = Instant::now();
                has_news.set(false);
                changed();
                next_scan = Instant::now() + began.elapsed() * 9;
            }
            let until = match turn {
                Ok(true) => continue,
                Ok(false) => self.next_due_time(&schedule),
                Err(error) => {
                    let why = format!("the mail of this link cannot be saved here: {error}");
                    tracing::warn!(link = self.name, why = %sanitize_line(&why), "the link waits \
                        before it tries again");
                    self.board.report_failure(&why);
                    now().saturating_add(DISK_WAIT.as_millis() as i64)
                }
            };
            let wait = until.saturating_sub(now()).clamp(1, 3_600_000);
            let mut wait = Duration::from_millis(wait as u64);
            wait = wait.min(self.board.save_if_due().unwrap_or(wait));
            if wait > IDLE && self.carrier.lock().is_some() {
                wait -= IDLE;
                if self.wait_for_call(seen, IDLE) {
                    continue;
                }
                self.release_carrier();
            }
            self.wait_for_call(seen, wait);
        }
        self.release_carrier();
        self.board.save_now();
    }

    /// Ends the carrier, after its current exchange.
    fn release_carrier(&self) {
        let carrier = self.carrier.lock().take();
        drop(carrier);
    }

    /// Does one thing. Returns false if there was none.
    fn run_turn(&self, schedule: &mut RetrySchedule, changed: &dyn Fn()) -> io::Result<bool> {
        let called = self.wakeup.current_counts().calls;
        let is_held = |name: &OsStr| schedule.held.get(name).is_some_and(|until| now() < *until);
        if let Some(job) = CarrierJob::find_left(&self.folder, &is_held)? {
            self.wait_for_job(job, called, schedule, changed)?;
            return Ok(true);
        }
        let now = now();
        if now < schedule.paused_until() {
            return Ok(false);
        }
        if let Some(why) = self.engine.find_other_carrier() {
            if self.board.health().state
                != (LinkState::Stopped { why: sanitize_line(&why).into_owned() })
            {
                self.board.report_stopped(&why);
                changed();
            }
            schedule.pause_all(now.saturating_add(OTHER_WAIT.as_millis() as i64));
            return Ok(false);
        }
        let may_fetch = schedule.is_fetch_due(now);
        if !(may_fetch && schedule.is_fetch_first) && schedule.sending.paused_until <= now {
            let due = self.list_due_messages(schedule)?;
            if !due.is_empty() {
                schedule.is_fetch_first = true;
                self.deliver_messages(due, called, schedule, changed)?;
                return Ok(true);
            }
        }
        if may_fetch {
            schedule.is_fetch_first = false;
            self.fetch_mail(called, schedule, changed)?;
        }
        Ok(may_fetch)
    }

    /// Returns the time at which something is due by itself.
    fn next_due_time(&self, schedule: &RetrySchedule) -> i64 {
        let first = self.journal.lock().next_due_time().unwrap_or(i64::MAX);
        first.max(schedule.sending.paused_until).min(schedule.next_fetch_time())
    }

    /// Applies an outcome to the link's health and backoff.
    fn apply_outcome(
        &self,
        sort: ExchangeSort,
        outcome: Option<&ExchangeOutcome>,
        schedule: &mut RetrySchedule,
    ) {
        let asked = match outcome {
            Some(
                ExchangeOutcome::Done
                | ExchangeOutcome::Named { .. }
                | ExchangeOutcome::Refused { .. }
                | ExchangeOutcome::Later { .. },
            ) => {
                if sort == ExchangeSort::Fetch && self.journal.lock().open_count() == 0 {
                    // Nothing waits any more that could fail.
                    schedule.sending.failures = 0;
                }
                match schedule.note_success(sort) {
                    None => self.board.report_contact(),
                    Some(why) => self.board.report_failure(why),
                }
                return;
            }
            Some(ExchangeOutcome::Away { after, .. }) => Some(after.unwrap_or_default()),
            Some(ExchangeOutcome::Unknown { .. }) => Some(0),
            None => None,
        };
        let why = outcome.and_then(ExchangeOutcome::reason).unwrap_or(KILLED);
        self.board.report_failure(why);
        match asked {
            Some(asked) => schedule.note_failure(sort, why, Duration::from_secs(asked), now()),
            None => schedule.note_kill(now()),
        }
    }

    /// Updates the counts and the notes on interrupted fetches.
    fn update_board(&self) {
        let (waiting, refused, cuts) = {
            let journal = self.journal.lock();
            let (open, refused) = (journal.open_count() as u64, journal.refused_count() as u64);
            (open, refused, journal.cuts().to_vec())
        };
        let withheld = self.withheld.lock().clone();
        let cut = |at: &i64| {
            let at = Timestamp::from_millis(*at).rfc3339_short();
            format!("a fetch was cut off at {at}: mail that the server gave then may be lost")
        };
        self.board.update_counts(|health| {
            health.waiting = waiting;
            health.refused = refused;
            // The latest ones matter most.
            let cuts = cuts.iter().rev().take(TOLD_CUTS).map(cut);
            health.notes = withheld.into_iter().chain(cuts).collect();
        });
        if self.thread.lock().is_none() {
            self.board.save_now();
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits for a call or a report. Returns false if none came within the limit.
    fn wait_for_call(&self, seen: WakeupCounts, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut counts = self.wakeup.counts.lock();
        while *counts == seen && !self.is_stopped() {
            if self.wakeup.condvar.wait_until(&mut counts, until) {
                return false;
            }
        }
        true
    }
}

impl Link for MessageLink {
    fn board(&self) -> &Arc<HealthBoard> {
        &self.board
    }

    fn request_folder(&self) -> Option<&Path> {
        Some(&self.folder)
    }

    fn start(self: Arc<Self>, store: usize, callbacks: &LinkCallbacks) -> io::Result<()> {
        let (link, changed) = (Arc::clone(&self), Arc::clone(&callbacks.on_change));
        let thread = std::thread::Builder::new().name(format!("msgfs-link-{}", self.name));
        let thread = thread.spawn(move || link.run(&|| changed(store)))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    fn wake(&self, event: &LinkEvent<'_>) {
        match event {
            LinkEvent::Request => {
                if let Err(error) = self.run_request() {
                    tracing::warn!(link = self.name, %error, "a request to this link failed");
                }
            }
            // The store hands over each message when it delivers.
            LinkEvent::StoreChange(_) | LinkEvent::MarkChange => {}
        }
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake_thread();
    }

    fn join(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A thread that panicked has logged why.
            let _ = thread.join();
        }
    }
}

/// Describes the fate of a message by its entry in the journal and by the state of the link; `None` if nothing carries
/// for the link.
pub(super) fn describe_fate(
    entry: &JournalEntry,
    link: &str,
    place: &str,
    state: Option<&LinkState>,
) -> DeliveryFate {
    let waits = |why: Option<&str>| {
        let since = Timestamp::from_millis(entry.since).rfc3339_short();
        let own = why.map(|why| format!("{}, tried {} times", sanitize_line(why), entry.tries));
        let why = match (own, state) {
            (own, None) => {
                own.map_or(NOT_CARRIED.to_owned(), |own| format!("{own}; {NOT_CARRIED}"))
            }
            // A message without a reason of its own was not tried yet.
            (_, Some(LinkState::Stopped { why }))
            | (None, Some(LinkState::Waiting { why, .. })) => sanitize_line(why).into_owned(),
            (Some(own), _) => own,
            (None, _) => "it is on its way".to_owned(),
        };
        DeliveryFate::Waits(format!("link {link} to {place}, since {since}: {why}"))
    };
    match &entry.stage {
        DeliveryStage::Taken => DeliveryFate::Taken,
        DeliveryStage::Refused(why) if entry.has_unanswered_try => DeliveryFate::Uncertain(
            format!("{why}; {place} did not answer a try, so the message may have arrived"),
        ),
        DeliveryStage::Refused(why) => DeliveryFate::Refused(format!("refused by {place}: {why}")),
        DeliveryStage::Unsynced | DeliveryStage::Trying => waits(None),
        DeliveryStage::Waits { why, .. } => waits(why.as_deref()),
    }
}

/// Describes the engine of a link, for people.
pub(super) fn describe_place(engine: &dyn LinkEngine, settings: &EngineSettings) -> String {
    kind::note_insecure(engine.describe_engine(), settings.insecure)
}

/// Opens the journal of a link for which nothing carries. Tries whose job is gone are over.
pub(super) fn open_journal(folder: &Path) -> io::Result<Journal> {
    let mut journal = Journal::open(folder, now())?;
    if matches!(CarrierJob::find_left(folder, &|_| false), Ok(None)) {
        journal.release_tried(now());
    }
    Ok(journal)
}

fn now() -> i64 {
    Timestamp::now().millis()
}

/// Marks a place at which the tests kill this process.
fn crash_point() {
    #[cfg(test)]
    tests::step();
}

#[cfg(test)]
mod tests;
