//! The one thread that appends to stores.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use parking_lot::{Condvar, Mutex};

use super::CLOSING;
use super::reserved::Reserved;
use super::spool::{Parcel, Spool};
use crate::index::Index;
use crate::store::Durability;

/// How long a message that could not be appended waits before it is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// A flush this long ago was the last close, or nobody can tell yet.
const AT_ONCE: Duration = Duration::from_micros(300);

struct Job {
    n: u64,
    parcels: Vec<Parcel>,
}

/// What is under way, for those who must see it finished.
#[derive(Default)]
struct Under {
    /// Handed to the thread and not yet in the index.
    committing: usize,
    /// Flushed drafts whose release is expected before the instant.
    closing: HashMap<u64, Instant>,
    /// Parcels that could not be appended, with the reason.
    stuck: HashMap<u64, (String, String)>,
}

/// Handle to the thread.
pub(super) struct Sender {
    jobs: crossbeam_channel::Sender<Option<Job>>,
    under: Arc<(Mutex<Under>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Sender {
    /// Starts the thread.
    ///
    /// # Errors
    /// As the system gave it.
    pub fn start(
        index: Arc<Index>,
        spool: Arc<Spool>,
        reserved: Arc<Mutex<Reserved>>,
        durability: Durability,
    ) -> io::Result<Self> {
        let (jobs, inbox) = unbounded();
        let under = Arc::new((Mutex::new(Under::default()), Condvar::new()));
        let worker = Worker { index, spool, reserved, durability, under: Arc::clone(&under) };
        let thread = std::thread::Builder::new()
            .name("msgfs-send".into())
            .spawn(move || worker.run(&inbox))?;
        Ok(Self { jobs, under, thread: Mutex::new(Some(thread)) })
    }

    pub fn send(&self, n: u64, parcels: Vec<Parcel>) {
        self.under.0.lock().committing += 1;
        if self.jobs.send(Some(Job { n, parcels })).is_err() {
            // Stopped: it stays in the spool for the next process.
            self.under.0.lock().committing -= 1;
        }
    }

    pub fn closing(&self, draft: u64, until: Instant) {
        self.under.0.lock().closing.insert(draft, until);
    }

    pub fn released(&self, draft: u64) {
        self.under.0.lock().closing.remove(&draft);
        self.under.1.notify_all();
    }

    /// Whether a draft is sent as far as others are concerned: it was flushed a moment ago, or is
    /// released within the time a release can take.
    pub fn leaves(&self, draft: u64) -> bool {
        let (under, changed) = &*self.under;
        let mut under = under.lock();
        let Some(until) = under.closing.get(&draft).copied() else { return false };
        if until.saturating_duration_since(Instant::now()) > CLOSING.saturating_sub(AT_ONCE) {
            return true;
        }
        while under.closing.contains_key(&draft) {
            if changed.wait_until(&mut under, until).timed_out() {
                return false;
            }
        }
        true
    }

    pub fn settle(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let (under, changed) = &*self.under;
        let mut under = under.lock();
        loop {
            let now = Instant::now();
            under.closing.retain(|_, until| *until > now);
            let wake = if under.committing > 0 {
                deadline
            } else {
                match under.closing.values().max() {
                    Some(until) => deadline.min(*until),
                    None => return,
                }
            };
            if now >= deadline {
                return;
            }
            changed.wait_until(&mut under, wake);
        }
    }

    pub fn stuck(&self) -> Vec<(String, String)> {
        self.under.0.lock().stuck.values().cloned().collect()
    }

    pub fn stop(&self) {
        let _ = self.jobs.send(None);
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    index: Arc<Index>,
    spool: Arc<Spool>,
    reserved: Arc<Mutex<Reserved>>,
    durability: Durability,
    under: Arc<(Mutex<Under>, Condvar)>,
}

impl Worker {
    fn run(&self, inbox: &Receiver<Option<Job>>) {
        let mut failed: Vec<Job> = Vec::new();
        let mut retry = Instant::now();
        loop {
            let first = if failed.is_empty() {
                inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                inbox.recv_deadline(retry)
            };
            let mut jobs = match first {
                Ok(Some(job)) => vec![job],
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Ok(None) | Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut stop = false;
            while let Ok(next) = inbox.try_recv() {
                match next {
                    Some(job) => jobs.push(job),
                    None => stop = true,
                }
            }
            let fresh = jobs.len();
            if Instant::now() >= retry {
                jobs.splice(0..0, self.still_missing(std::mem::take(&mut failed)));
                retry = Instant::now() + RETRY;
            }
            // What is under way when this panics stays in the spool, for the next process.
            let delivered = catch_unwind(AssertUnwindSafe(|| self.deliver(jobs)));
            if let Ok(again) = delivered {
                failed.extend(again);
            } else {
                tracing::error!("sending panicked; the messages stay in the spool");
            }
            let mut under = self.under.0.lock();
            under.committing = under.committing.saturating_sub(fresh);
            drop(under);
            self.under.1.notify_all();
            if stop {
                return;
            }
        }
    }

    /// Jobs that failed, without what has reached its store all the same: an append whose `fsync`
    /// failed.
    fn still_missing(&self, mut jobs: Vec<Job>) -> Vec<Job> {
        for (number, store) in self.index.stores().iter().enumerate() {
            if jobs.iter().any(|j| j.parcels.iter().any(|p| p.store == store.name())) {
                self.refresh(number);
            }
        }
        for job in &mut jobs {
            job.parcels.retain(|p| !is_in_store(&self.index, p));
        }
        jobs
    }

    fn refresh(&self, number: usize) {
        if let Err(e) = self.index.refresh(number) {
            tracing::error!(error = %e, "the store could not be read after an append");
        }
    }

    /// Appends a batch, with one wait for the disk per store; what could not be appended.
    fn deliver(&self, jobs: Vec<Job>) -> Vec<Job> {
        let mut touched: Vec<usize> = Vec::new();
        let mut appended: Vec<Job> = Vec::new();
        let mut failed = Vec::new();
        for mut job in jobs {
            let mut left = Vec::new();
            let mut reason = None;
            for parcel in job.parcels.drain(..) {
                if let Err(e) = self.append(&parcel, &mut touched) {
                    reason = Some(e);
                    left.push(parcel);
                }
            }
            match reason {
                None => appended.push(job),
                Some(why) => failed.push(self.set_aside(Job { n: job.n, parcels: left }, &why)),
            }
        }
        for number in touched {
            let synced = match (self.durability, self.index.stores().get(number)) {
                (Durability::Fsync, Some(store)) => store.sync().map_err(|e| e.to_string()),
                _ => Ok(()),
            };
            if let Err(why) = synced {
                // Nobody knows which of them the disk has: all are looked for again.
                for job in appended.drain(..) {
                    let parcels = self.spool.get(job.n);
                    failed.push(self.set_aside(Job { n: job.n, parcels }, &why));
                }
            }
            self.refresh(number);
        }
        self.finish(&appended);
        failed
    }

    fn set_aside(&self, job: Job, why: &str) -> Job {
        let to = job.parcels.first().map(|p| p.message.to.clone()).unwrap_or_default();
        tracing::error!(to = %to, reason = %why, "a message waits in the spool");
        self.under.0.lock().stuck.insert(job.n, (to, why.to_owned()));
        job
    }

    fn append(&self, parcel: &Parcel, touched: &mut Vec<usize>) -> Result<(), String> {
        let stores = self.index.stores();
        let Some(number) = stores.iter().position(|s| s.name() == parcel.store) else {
            return Err(format!("the store {:?} is not configured any more", parcel.store));
        };
        let Some(store) = stores.get(number) else { return Ok(()) };
        store.append(&parcel.message).map_err(|e| e.to_string())?;
        if !touched.contains(&number) {
            touched.push(number);
        }
        Ok(())
    }

    fn finish(&self, done: &[Job]) {
        for job in done {
            let parcels = self.spool.take(job.n);
            let mut reserved = self.reserved.lock();
            for p in &parcels {
                reserved.remove(p);
            }
            drop(reserved);
            self.under.0.lock().stuck.remove(&job.n);
        }
    }
}

/// Whether the index knows a message of mine.
pub(super) fn is_in_store(index: &Index, parcel: &Parcel) -> bool {
    let stores = index.stores();
    let number = stores.iter().position(|s| s.name() == parcel.store);
    let found = number.and_then(|n| {
        let core = index.read();
        let ix = core.find(n, stores.get(n)?.me(), &parcel.message.id)?;
        core.entry(ix).copied()
    });
    found.is_some_and(|e| e.is_live())
}
