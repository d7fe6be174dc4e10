//! The one thread that appends to stores and has them deliver what waits in them ([`worker`]), as those see it
//! who ask it for something, or wait for that.

mod worker;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::attachments::AttachmentSpool;
use super::reserved::Reservations;
use super::spool::{Spool, SpoolParcel};
use super::{CLOSING, PendingMessage};
use crate::index::Index;
use crate::model::Timestamp;
use crate::model::locks::{Condvar, Mutex};
use crate::store::Durability;
use worker::SendWorker;

pub(super) use worker::is_in_store;

/// A flush this long ago was the last close, or nobody can tell yet.
const AT_ONCE: Duration = Duration::from_micros(300);

struct SendJob {
    number: u64,
    parcels: Vec<SpoolParcel>,
    /// Some of them may be in their stores already.
    doubtful: bool,
}

/// What the thread is asked to do.
enum SenderCommand {
    Send(SendJob),
    /// Have the store of this number deliver what waits in it.
    Deliver(usize),
    /// Try again what could not be appended.
    RetryFailed,
}

/// What is under way, for those who must see it finished.
#[derive(Default)]
struct SenderState {
    /// What the thread has not taken yet.
    commands: Vec<SenderCommand>,
    /// The thread shall end, or there is none: what is sent stays in the spool for the next process.
    stopped: bool,
    /// Until when the thread takes no orders, and needs no waking for them.
    resting_until: Option<Instant>,
    /// How many were handed to the thread, in order.
    sent: u64,
    /// How many of them are in the index, or wait for a reason that is known.
    done: u64,
    /// Flushed drafts whose release is expected before the instant.
    closing: HashMap<u64, Instant>,
    /// The same for drafts whose flush was refused: what is said of them appears with the release.
    refused: HashMap<u64, Instant>,
    /// Handed to the thread, now or earlier, and not appended whole or not on disk yet.
    handed: BTreeSet<u64>,
    /// What could not be appended.
    stuck: HashMap<u64, StuckJob>,
    /// Stores that were asked to deliver and have not begun.
    delivery_requested: BTreeSet<usize>,
    /// Stores that could not deliver, with the reason.
    undelivered: BTreeMap<usize, String>,
}

/// Parcels that could not be appended.
#[derive(Clone)]
struct StuckJob {
    /// Whom the first of them is for, and why it waits.
    summary: (String, String),
    since: Timestamp,
    /// The ids of all of them.
    ids: Vec<String>,
}

/// What the thread and those who write drafts work with.
pub(super) struct SendContext {
    pub index: Arc<Index>,
    pub spool: Spool,
    /// Ids promised to drafts that are not in the index yet, by store.
    pub reservations: Mutex<Reservations>,
    pub attachments: AttachmentSpool,
    pub durability: Durability,
}

impl SendContext {
    /// Ends an entry of the spool: it was `sent`, or will not be.
    pub fn end_entry(&self, n: u64, sent: bool) {
        self.release_parcels(&self.spool.end_entry(n, sent));
    }

    /// Cuts a long spool back, once the stores have on disk what they keep of what was sent.
    pub fn trim_spool(&self) {
        if !self.spool.is_long() {
            return;
        }
        let stores = self.index.stores().iter().filter(|_| self.durability == Durability::Fsync);
        for recovery in stores.filter_map(|store| store.facets().recovery) {
            if let Err(error) = recovery.sync_backup() {
                tracing::warn!(%error, "the list of sent messages cannot be saved; the messages \
                    stay in the spool");
                return;
            }
        }
        self.spool.trim_if_long();
    }

    /// Gives back the ids and the copies of parcels.
    pub fn release_parcels(&self, parcels: &[SpoolParcel]) {
        self.attachments.remove_copies(parcels);
        self.reservations.lock().remove_all(parcels);
    }
}

/// What the thread and those who ask it for something have in common.
#[derive(Default)]
struct SenderShared {
    state: Mutex<SenderState>,
    /// There are orders, or their end: for the thread.
    work_ready: Condvar,
    /// Something is finished: for all others.
    progress: Condvar,
}

/// Handle to the thread.
pub(super) struct SenderThread {
    shared: Arc<SenderShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SenderThread {
    /// Starts the thread.
    pub fn start(tools: Arc<SendContext>) -> io::Result<Self> {
        let shared = Arc::<SenderShared>::default();
        let worker = SendWorker { context: tools, shared: Arc::clone(&shared) };
        let thread =
            std::thread::Builder::new().name("msgfs-send".into()).spawn(move || worker.run())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Without the thread: nothing is sent.
    pub fn without_thread() -> Self {
        let shared = Arc::<SenderShared>::default();
        shared.state.lock().stopped = true;
        Self { shared, thread: Mutex::default() }
    }

    /// Sends what was promised; `doubtful`: by an earlier process, which may have sent it.
    pub fn send(&self, n: u64, parcels: Vec<SpoolParcel>, doubtful: bool) {
        let mut under = self.shared.state.lock();
        under.handed.insert(n);
        if under.stopped {
            return;
        }
        under.sent += 1;
        under.commands.push(SenderCommand::Send(SendJob { number: n, parcels, doubtful }));
        let rests = under.resting_until.is_some();
        drop(under);
        if !rests {
            self.shared.work_ready.notify_all();
        }
    }

    /// Has a store deliver what waits in it; asking twice before it begins is asking once.
    pub fn request_delivery(&self, number: usize) {
        let mut under = self.shared.state.lock();
        // Stopped: the next process begins with it.
        if !under.stopped && under.delivery_requested.insert(number) {
            under.commands.push(SenderCommand::Deliver(number));
            drop(under);
            self.shared.work_ready.notify_all();
        }
    }

    /// Has everything tried again that could not be appended.
    pub fn retry_failed(&self) {
        let mut under = self.shared.state.lock();
        if !under.stopped {
            under.commands.push(SenderCommand::RetryFailed);
            drop(under);
            self.shared.work_ready.notify_all();
        }
    }

    pub fn note_refused(&self, draft: u64, until: Instant) {
        self.shared.state.lock().refused.insert(draft, until);
    }

    pub fn note_closing(&self, draft: u64, until: Instant) {
        self.shared.state.lock().closing.insert(draft, until);
    }

    pub fn note_released(&self, draft: u64) {
        let mut under = self.shared.state.lock();
        under.closing.remove(&draft);
        under.refused.remove(&draft);
        drop(under);
        self.shared.progress.notify_all();
    }

    /// Whether a draft is sent as far as others are concerned: it was flushed a moment ago, or is
    /// released within the time a release can take.
    pub fn is_leaving(&self, draft: u64) -> bool {
        let SenderShared { state: under, progress: changed, .. } = &*self.shared;
        let mut under = under.lock();
        let Some(until) = under.closing.get(&draft).copied() else { return false };
        if until.saturating_duration_since(Instant::now()) > CLOSING.saturating_sub(AT_ONCE) {
            return true;
        }
        while under.closing.contains_key(&draft) {
            if changed.wait_until(&mut under, until) {
                return false;
            }
        }
        true
    }

    /// Waits until what is under way now is finished; what others begin meanwhile is not waited for.
    pub fn wait_until_appended(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let SenderShared { state: under, progress: changed, work_ready: ordered } = &*self.shared;
        let mut under = under.lock();
        let now = Instant::now();
        under.closing.retain(|_, until| *until > now);
        under.refused.retain(|_, until| *until > now);
        let mut drafts: Vec<(u64, Instant)> =
            under.closing.iter().chain(&under.refused).map(|(id, until)| (*id, *until)).collect();
        loop {
            let now = Instant::now();
            let is_open =
                |id: &u64| under.closing.contains_key(id) || under.refused.contains_key(id);
            drafts.retain(|(id, until)| *until > now && is_open(id));
            let Some(until) = drafts.iter().map(|(_, until)| *until).max() else { break };
            if now >= deadline {
                return;
            }
            changed.wait_until(&mut under, until.min(deadline));
        }
        let last = under.sent;
        if under.done < last && under.resting_until.take().is_some() {
            ordered.notify_all();
        }
        while under.done < last && !changed.wait_until(&mut under, deadline) {}
    }

    pub fn stuck_messages(&self) -> Vec<(String, String)> {
        self.shared.state.lock().stuck.values().map(|stuck| stuck.summary.clone()).collect()
    }

    /// Whether something was handed to the thread and is not appended whole, or perhaps not on disk.
    pub fn has_pending(&self) -> bool {
        !self.shared.state.lock().handed.is_empty()
    }

    /// What was handed to the thread and is not appended whole, or perhaps not on disk, oldest first.
    pub fn pending_messages(&self, spool: &Spool) -> Vec<PendingMessage> {
        let (handed, stuck) = {
            let under = self.shared.state.lock();
            if under.handed.is_empty() {
                return Vec::new();
            }
            (under.handed.clone(), under.stuck.clone())
        };
        let of = |n: u64| {
            let stuck = stuck.get(&n);
            spool.get(n).into_iter().map(move |SpoolParcel { store, message }| {
                let stuck = stuck.filter(|stuck| stuck.ids.contains(&message.id));
                let waits = stuck.map(|stuck| (stuck.summary.1.clone(), stuck.since));
                PendingMessage { store, message, waits }
            })
        };
        handed.into_iter().flat_map(of).collect()
    }

    /// Numbers of stores that could not deliver, with the reason.
    pub fn undelivered_stores(&self) -> Vec<(usize, String)> {
        self.shared.state.lock().undelivered.iter().map(|(n, why)| (*n, why.clone())).collect()
    }

    pub fn stop(&self) {
        self.shared.state.lock().stopped = true;
        self.shared.work_ready.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}
