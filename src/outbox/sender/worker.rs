//! The work of the sending thread: it appends accepted messages, waits for the disks, and has stores deliver.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::find_store;
use super::super::spool::SpoolParcel;
use super::super::thread_backoff::{BackoffKey, ThreadBackoff};
use super::{SendContext, SendJob, SenderCommand, SenderShared, StuckJob};
use crate::index::Index;
use crate::store::{DeliveryQueue, Durability, Facets, MessageAppender, StoreError};

/// The time that a message that could not be appended or delivered waits before the next attempt.
const RETRY: Duration = Duration::from_secs(5);
/// The time that a message that its store refuses waits before the next attempt: only a person can remove the reason.
const REFUSED: Duration = Duration::from_secs(300);

/// The time that appended messages wait for their disk. Messages appended meanwhile share the sync. The spool has them,
/// so nothing is lost. A store that delivers waits only while more messages come.
const GATHER: Duration = Duration::from_millis(5);

/// A job that could not be done, and the time of its next attempt.
struct FailedJob {
    job: SendJob,
    due: Instant,
}

/// Appends that are in the stores and perhaps not on their disks.
#[derive(Default)]
struct UnsyncedAppends {
    /// Spool numbers of jobs that were appended whole.
    appended: Vec<u64>,
    stores: BTreeSet<usize>,
    /// The stores that deliver once they are synced.
    deliver: BTreeSet<usize>,
    /// The time at which the disks are synced.
    due: Option<Instant>,
}

/// The thread that appends accepted drafts to their stores.
pub(super) struct SendWorker {
    pub context: Arc<SendContext>,
    pub shared: Arc<SenderShared>,
}

impl SendWorker {
    /// Waits for commands, or until something is due. Returns the commands, and true if the thread ends after them.
    fn wait_for_commands(&self, due: Option<Instant>) -> (Vec<SenderCommand>, bool) {
        let mut state = self.shared.state.lock();
        let work_ready = &self.shared.work_ready;
        loop {
            let is_due = due.is_some_and(|due| due <= Instant::now());
            if !state.commands.is_empty() || state.stopped || is_due {
                return (std::mem::take(&mut state.commands), state.stopped);
            }
            match due {
                Some(next) => drop(work_ready.wait_until(&mut state, next)),
                None => work_ready.wait(&mut state),
            }
        }
    }

    /// Works until it is told to end.
    pub fn run(&self) {
        let mut failed: Vec<FailedJob> = Vec::new();
        let mut undelivered: BTreeMap<usize, Instant> = BTreeMap::new();
        let (mut busy, mut behind) = (ThreadBackoff::default(), UnsyncedAppends::default());
        loop {
            let due = failed.iter().map(|f| f.due).chain(undelivered.values().copied());
            let (orders, stop) = self.wait_for_commands(due.chain(behind.due).min());
            let now = Instant::now();
            let all = orders.iter().any(|order| matches!(order, SenderCommand::RetryFailed));
            let mut jobs: Vec<SendJob> =
                failed.extract_if(.., |f| all || f.due <= now).map(|f| f.job).collect();
            if all {
                busy = ThreadBackoff::default();
            }
            let due = undelivered.iter().filter(|(_, due)| **due <= now);
            let mut deliver: BTreeSet<usize> = due.map(|(n, _)| *n).collect();
            let again = jobs.len();
            for order in orders {
                match order {
                    SenderCommand::Send(job) => jobs.push(job),
                    SenderCommand::Deliver(number) => drop(deliver.insert(number)),
                    SenderCommand::RetryFailed => {}
                }
            }
            let fresh = jobs.len() - again;
            let is_awaited = self.catch_panic(&mut failed, |failed| {
                self.append_jobs(jobs, &mut busy, &mut behind, failed)
            });
            // A delivery begins with what is on disk.
            if is_awaited == Some(true) || !deliver.is_empty() {
                deliver.extend(self.sync_appended(&mut behind, &mut failed));
            }
            let mut state = self.shared.state.lock();
            state.done += fresh as u64;
            drop(state);
            self.shared.progress.notify_all();
            if stop || behind.due.is_some_and(|due| due <= Instant::now()) {
                deliver.extend(self.sync_appended(&mut behind, &mut failed));
            }
            for number in deliver {
                undelivered.remove(&number);
                let done = catch_unwind(AssertUnwindSafe(|| self.deliver_from_store(number)));
                if let Some(wait) = done.unwrap_or(Some(RETRY)) {
                    undelivered.insert(number, Instant::now() + wait);
                }
            }
            if stop {
                return;
            }
        }
    }

    /// Brings the index up to date on the stores of doubtful jobs. Returns the names of those that cannot be read now.
    fn refresh_doubtful_stores(&self, jobs: &[SendJob]) -> BTreeSet<String> {
        let doubtful = || jobs.iter().filter(|j| j.doubtful).flat_map(|j| &j.parcels);
        let stores = self.context.index.stores().iter().enumerate();
        let asked = stores.filter(|(_, s)| doubtful().any(|p| p.store == s.name()));
        // Lost messages come back before the store is scanned, so that none of them is appended again.
        let seen = |n: usize| self.recover_store(n).is_ok() && self.refresh_store(n);
        asked.filter(|(n, _)| !seen(*n)).map(|(_, s)| s.name().to_owned()).collect()
    }

    /// Brings back what other programs took out of a store. Returns true if there was something.
    fn recover_store(&self, number: usize) -> Result<bool, StoreError> {
        let store = self.context.index.stores().get(number);
        let there = store.filter(|store| store.describe_missing_folder().is_none());
        let upkeep = there.and_then(|store| store.facets().upkeep);
        let mine = self.context.index.my_key(number);
        upkeep.map_or(Ok(false), |upkeep| upkeep.recover_lines(mine.as_ref()))
    }

    /// Scans a store for what is new. Returns true if that succeeded.
    fn refresh_store(&self, number: usize) -> bool {
        let done = self.context.index.refresh_store(number, false);
        if let Err(e) = &done {
            tracing::error!(error = %e, "the store could not be read after an append");
        }
        done.is_ok()
    }

    /// Appends a batch, and notes what could not be appended. Returns true if the stores are to be synced at once.
    fn append_jobs(
        &self,
        jobs: Vec<SendJob>,
        busy: &mut ThreadBackoff,
        behind: &mut UnsyncedAppends,
        failed: &mut Vec<FailedJob>,
    ) -> bool {
        let unseen = self.refresh_doubtful_stores(&jobs);
        let doubtful = jobs.iter().any(|job| job.doubtful);
        let mut touched: BTreeSet<usize> = BTreeSet::new();
        let mut appended: Vec<u64> = Vec::new();
        for mut job in jobs {
            let mut left = Vec::new();
            let mut reason: Option<AppendFailure> = None;
            for parcel in job.parcels.drain(..) {
                let done = if job.doubtful && unseen.contains(&parcel.store) {
                    // A blind append could put the message there twice.
                    Err(AppendFailure::new(
                        format!("the store {} cannot be read", parcel.store),
                        RETRY,
                    ))
                } else {
                    self.append_parcel(&parcel, job.doubtful, &mut touched, busy)
                };
                if let Err(e) = done {
                    // Keep the failure with the earliest next attempt.
                    reason = reason.filter(|r| r.due <= e.due).or(Some(e));
                    left.push(parcel);
                }
            }
            match reason {
                None => appended.push(job.number),
                Some(why) => failed.push(self.defer_job(job.number, left, &why)),
            }
        }
        for number in touched.iter().copied() {
            if let Err(e) = self.context.index.refresh_if_behind(number) {
                tracing::error!(error = %e, "the store could not be read after an append");
            }
        }
        let stores = self.context.index.stores();
        let delivers = |number: &usize| {
            stores.get(*number).is_some_and(|store| store.facets().deliveries.is_some())
        };
        behind.deliver.extend(touched.iter().copied().filter(delivers));
        behind.stores.extend(touched);
        behind.appended.extend(appended);
        // No agent is told of messages that may be there already before they are synced.
        let has_more = || !self.shared.state.lock().commands.is_empty();
        if !behind.stores.is_empty() {
            behind.due.get_or_insert_with(|| Instant::now() + GATHER);
        }
        doubtful
            || !behind.deliver.is_empty() && !has_more()
            || self.context.durability == Durability::None
    }

    /// Syncs the stores of appended messages. Returns those that have something to deliver now: files that stores
    /// derive from messages are behind.
    fn sync_appended(
        &self,
        behind: &mut UnsyncedAppends,
        failed: &mut Vec<FailedJob>,
    ) -> BTreeSet<usize> {
        let mut behind = std::mem::take(behind);
        let deliver = std::mem::take(&mut behind.deliver);
        self.catch_panic(failed, |failed| self.sync_stores(behind, failed));
        deliver
    }

    /// Syncs each store once, and then ends the spool entries of the messages that the stores have.
    fn sync_stores(&self, mut behind: UnsyncedAppends, failed: &mut Vec<FailedJob>) {
        for number in behind.stores {
            if let Err(why) = self.sync_store(number) {
                // It is unknown which messages are on disk, so all are looked for again.
                for n in behind.appended.drain(..) {
                    failed.push(self.defer_job(n, self.context.spool.get(n), &why));
                }
                self.mark_doubtful(number, failed);
            }
        }
        for n in behind.appended {
            self.context.end_entry(n, true);
            let mut state = self.shared.state.lock();
            state.stuck.remove(&n);
            state.handed.remove(&n);
        }
        self.context.trim_spool();
    }

    /// Waits until the messages of a store are on disk, if the settings ask for that.
    fn sync_store(&self, number: usize) -> Result<(), AppendFailure> {
        match (self.context.durability, self.context.index.stores().get(number)) {
            (Durability::Fsync, Some(store)) => store
                .require_appender()
                .and_then(MessageAppender::sync_appends)
                .map_err(|e| AppendFailure::new(e.to_string(), RETRY)),
            _ => Ok(()),
        }
    }

    /// Adds to waiting jobs their parcels for this store that were appended already, because its disk failed: they are
    /// looked for again.
    fn mark_doubtful(&self, number: usize, failed: &mut [FailedJob]) {
        let Some(store) = self.context.index.stores().get(number) else { return };
        for FailedJob { job, .. } in failed {
            for parcel in self.context.spool.get(job.number) {
                if parcel.store == store.name() && !job.parcels.contains(&parcel) {
                    job.parcels.push(parcel);
                }
            }
        }
    }

    /// Runs `work` and catches a panic. The jobs under way then stay in the spool for the next process. It is then
    /// unknown which stores are not synced, so the parcels of all waiting jobs are looked for again, and synced.
    fn catch_panic<T>(
        &self,
        failed: &mut Vec<FailedJob>,
        work: impl FnOnce(&mut Vec<FailedJob>) -> T,
    ) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(|| work(failed)));
        if done.is_err() {
            tracing::error!("sending panicked; the messages stay in the spool");
            for FailedJob { job, .. } in failed {
                job.parcels = self.context.spool.get(job.number);
            }
        }
        done.ok()
    }

    fn defer_job(&self, n: u64, parcels: Vec<SpoolParcel>, why: &AppendFailure) -> FailedJob {
        let job = SendJob { number: n, parcels, doubtful: true };
        let to = job.parcels.first().map(|p| p.message.to.clone()).unwrap_or_default();
        let said = (to, why.text.clone());
        let ids = job.parcels.iter().map(|p| p.message.id.clone()).collect();
        let mut state = self.shared.state.lock();
        let before = state.stuck.insert(job.number, StuckJob { summary: said.clone(), ids });
        drop(state);
        if before.is_none_or(|before| before.summary != said) {
            let (to, reason) =
                (crate::model::sanitize_line(&said.0), crate::model::sanitize_line(&said.1));
            if why.busy {
                tracing::info!(%to, %reason, "a message waits until its thread is free");
            } else {
                tracing::error!(%to, %reason, "a message waits in the spool");
            }
        }
        FailedJob { job, due: why.due }
    }

    fn append_parcel(
        &self,
        parcel: &SpoolParcel,
        doubtful: bool,
        touched: &mut BTreeSet<usize>,
        busy: &mut ThreadBackoff,
    ) -> Result<(), AppendFailure> {
        let Some((number, store)) = find_store(&self.context.index, &parcel.store) else {
            let text =
                format!("the store {:?} is left out, or not configured any more", parcel.store);
            return Err(AppendFailure::new(text, REFUSED));
        };
        if doubtful && is_in_store(&self.context.index, parcel) {
            // The record may not be on disk yet if another process wrote it or the disk failed to take it.
            touched.insert(number);
            if let Some(upkeep) = store.facets().upkeep {
                upkeep.note_appended(&[&parcel.message])?;
            }
            return Ok(());
        }
        let thread = BackoffKey::new(parcel, store.properties());
        if let Some((due, why)) = busy.paused_until(&thread, Instant::now()) {
            return Err(AppendFailure { text: why.to_owned(), due, busy: true });
        }
        let outgoing = store.require_folder().and_then(|()| store.require_appender());
        match outgoing.and_then(|store| store.append_record(&parcel.message)) {
            Err(StoreError::Busy(text)) => {
                let due = busy.note_locked(thread, Instant::now(), &text);
                Err(AppendFailure { text, due, busy: true })
            }
            done => {
                busy.clear_pause(&thread);
                done?;
                touched.insert(number);
                Ok(())
            }
        }
    }

    /// Has a store deliver what waits in it. Returns the time until the next request, if one is needed.
    fn deliver_from_store(&self, number: usize) -> Option<Duration> {
        self.shared.state.lock().delivery_requested.remove(&number);
        let store = self.context.index.stores().get(number)?;
        let Facets { deliveries, .. } = store.facets();
        let recovered = self.recover_store(number);
        let delivered = deliveries.map_or(Ok(false), DeliveryQueue::deliver_waiting);
        match recovered.and_then(|recovered| Ok(recovered | delivered?)) {
            Ok(done) => {
                self.shared.state.lock().undelivered.remove(&number);
                if done {
                    self.refresh_store(number);
                }
                deliveries.is_some_and(DeliveryQueue::has_more).then_some(Duration::ZERO)
            }
            Err(e) => {
                let why = e.to_string();
                let before = self.shared.state.lock().undelivered.insert(number, why.clone());
                if before.as_ref() != Some(&why) {
                    let why = crate::model::sanitize_line(&why);
                    tracing::error!(store = store.name(), reason = %why, "mail waits for delivery");
                }
                // The store has tried the rest.
                self.refresh_store(number);
                Some(RETRY)
            }
        }
    }
}

/// A failure to append a message, with the time until which it waits.
struct AppendFailure {
    text: String,
    due: Instant,
    /// True if another program keeps the message's thread locked, which is normal.
    busy: bool,
}

impl AppendFailure {
    fn new(text: String, wait: Duration) -> Self {
        Self { text, due: Instant::now() + wait, busy: false }
    }
}

impl From<StoreError> for AppendFailure {
    fn from(e: StoreError) -> Self {
        use StoreError::{Busy, Io, Moved, NoKey};
        let may_pass = matches!(e, Io { .. } | Moved | NoKey(_) | Busy(_));
        Self::new(e.to_string(), if may_pass { RETRY } else { REFUSED })
    }
}

/// Returns true if a message of mine need not be appended: the index knows it, in a store where an append cannot be
/// made again. In other stores the append itself finds out what is missing.
pub(in crate::outbox) fn is_in_store(index: &Index, parcel: &SpoolParcel) -> bool {
    let found =
        find_store(index, &parcel.store).filter(|(_, s)| !s.properties().can_repeat_appends);
    let Some((number, store)) = found else { return false };
    let tables = index.read();
    let found = tables.messages.find_message(number, store.me(), &parcel.message.id);
    found.is_some_and(|ix| tables.messages.entry(ix).is_live())
}
