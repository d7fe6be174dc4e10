//! The one thread that appends to stores.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use parking_lot::{Condvar, Mutex};

use super::spool::{Parcel, Spool};
use crate::index::Index;
use crate::store::Durability;

/// How long a message that could not be appended waits before it is tried again.
const RETRY: Duration = Duration::from_secs(5);

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
        reserved: Arc<Mutex<HashSet<(String, String)>>>,
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

    /// Whether the release of a draft is expected at any moment.
    pub fn is_closing(&self, draft: u64) -> bool {
        self.under.0.lock().closing.get(&draft).is_some_and(|until| *until > Instant::now())
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
    reserved: Arc<Mutex<HashSet<(String, String)>>>,
    durability: Durability,
    under: Arc<(Mutex<Under>, Condvar)>,
}

impl Worker {
    fn run(&self, inbox: &Receiver<Option<Job>>) {
        let mut failed: Vec<Job> = Vec::new();
        loop {
            let first = if failed.is_empty() {
                inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                inbox.recv_timeout(RETRY)
            };
            let mut jobs = match first {
                Ok(Some(job)) => vec![job],
                Err(RecvTimeoutError::Timeout) => std::mem::take(&mut failed),
                Ok(None) | Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut stop = false;
            while let Ok(next) = inbox.try_recv() {
                match next {
                    Some(job) => jobs.push(job),
                    None => stop = true,
                }
            }
            failed.extend(self.deliver(jobs));
            if stop {
                return;
            }
        }
    }

    /// Appends a batch, with one wait for the disk per store; what could not be appended.
    fn deliver(&self, mut jobs: Vec<Job>) -> Vec<Job> {
        let mut touched: Vec<usize> = Vec::new();
        let mut done: Vec<u64> = Vec::new();
        let mut failed = Vec::new();
        let last_of: HashMap<String, (u64, usize)> = jobs
            .iter()
            .flat_map(|j| j.parcels.iter().enumerate().map(|(i, p)| (p.store.clone(), (j.n, i))))
            .collect();
        let count = jobs.len();
        for mut job in jobs.drain(..) {
            let mut left = Vec::new();
            let mut reason = None;
            for (i, parcel) in job.parcels.drain(..).enumerate() {
                let last = last_of.get(&parcel.store) == Some(&(job.n, i));
                match self.append(&parcel, last, &mut touched) {
                    Ok(()) => {}
                    Err(e) => {
                        reason = Some((parcel.message.to.clone(), e));
                        left.push(parcel);
                    }
                }
            }
            match reason {
                None => done.push(job.n),
                Some((to, why)) => {
                    tracing::error!(to = %to, reason = %why, "a message waits in the spool");
                    self.under.0.lock().stuck.insert(job.n, (to, why));
                    failed.push(Job { n: job.n, parcels: left });
                }
            }
        }
        for number in touched {
            if let Err(e) = self.index.refresh(number) {
                tracing::error!(error = %e, "the store could not be read after an append");
            }
        }
        self.finish(count, &done);
        failed
    }

    fn append(&self, parcel: &Parcel, last: bool, touched: &mut Vec<usize>) -> Result<(), String> {
        let stores = self.index.stores();
        let Some(number) = stores.iter().position(|s| s.name() == parcel.store) else {
            return Err(format!("the store {:?} is not configured any more", parcel.store));
        };
        let Some(store) = stores.get(number) else { return Ok(()) };
        let durability = if last { self.durability } else { Durability::None };
        store.append(&parcel.message, durability).map_err(|e| e.to_string())?;
        if !touched.contains(&number) {
            touched.push(number);
        }
        Ok(())
    }

    fn finish(&self, count: usize, done: &[u64]) {
        for n in done {
            let parcels = self.spool.take(*n);
            let mut reserved = self.reserved.lock();
            for p in parcels {
                reserved.remove(&(p.store, p.message.id));
            }
        }
        let mut under = self.under.0.lock();
        under.committing = under.committing.saturating_sub(count);
        for n in done {
            under.stuck.remove(n);
        }
        drop(under);
        self.under.1.notify_all();
    }
}
