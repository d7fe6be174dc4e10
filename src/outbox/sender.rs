//! The thread that appends to stores and has them deliver what waits in them ([`worker`]), as its callers see it.

mod worker;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::attachments::AttachmentSpool;
use super::reservations::Reservations;
use super::spool::{Spool, SpoolParcel};
use super::{CLOSING, PendingMessage};
use crate::index::Index;
use crate::model::locks::{Condvar, Mutex};
use crate::store::Durability;
use worker::SendWorker;

pub(super) use worker::is_in_store;

/// The time after a flush in which the draft counts as sent, because nobody can tell yet if that close was the last.
const AT_ONCE: Duration = Duration::from_micros(300);

/// An accepted draft of the spool, with the parcels that are still to be appended.
struct SendJob {
    number: u64,
    parcels: Vec<SpoolParcel>,
    /// True if some of the parcels may be in their stores already.
    doubtful: bool,
}

/// An order to the thread.
enum SenderCommand {
    Send(SendJob),
    /// A delivery of what waits in the store of this number.
    Deliver(usize),
    /// A new attempt at what could not be appended.
    RetryFailed,
}

/// Work that is under way, for callers that wait for its end.
#[derive(Default)]
struct SenderState {
    /// Commands that the thread has not taken yet.
    commands: Vec<SenderCommand>,
    /// True if the thread must end or does not exist. Drafts sent now stay in the spool for the next process.
    stopped: bool,
    /// The number of jobs handed to the thread.
    sent: u64,
    /// The number of those jobs that are in the index, or wait for a known reason.
    done: u64,
    /// Flushed drafts, each with the instant before which its release is expected.
    closing: HashMap<u64, Instant>,
    /// Drafts whose flush was refused, each with the instant before which its release is expected. The note of such a
    /// draft appears with its release.
    refused: HashMap<u64, Instant>,
    /// Spool numbers handed to the thread, now or earlier, that are not appended whole or not on disk yet.
    handed: BTreeSet<u64>,
    /// Jobs that could not be appended.
    stuck: HashMap<u64, StuckJob>,
    /// Stores that were asked to deliver and have not begun.
    delivery_requested: BTreeSet<usize>,
    /// Stores that could not deliver, each with the reason.
    undelivered: BTreeMap<usize, String>,
}

/// Parcels that could not be appended.
#[derive(Clone)]
struct StuckJob {
    /// The recipient of the first parcel, and the reason why it waits.
    summary: (String, String),
    /// The ids of all the parcels.
    ids: Vec<String>,
}

/// The tools shared by the thread and the writers of drafts.
pub(super) struct SendContext {
    pub index: Arc<Index>,
    pub spool: Spool,
    /// Ids reserved for drafts that are not in the index yet, by store.
    pub reservations: Mutex<Reservations>,
    pub attachments: AttachmentSpool,
    pub durability: Durability,
}

impl SendContext {
    /// Ends an entry of the spool. `sent` is false for an entry that will not be sent.
    pub fn end_entry(&self, n: u64, sent: bool) {
        self.release_parcels(&self.spool.end_entry(n, sent));
    }

    /// Cuts a long spool back after the stores have synced their own record of what was sent.
    pub fn trim_spool(&self) {
        if !self.spool.is_long() {
            return;
        }
        let stores = self.index.stores().iter().filter(|_| self.durability == Durability::Fsync);
        for upkeep in stores.filter_map(|store| store.facets().upkeep) {
            if let Err(error) = upkeep.sync_backup() {
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

/// The state that the thread and its callers share.
#[derive(Default)]
struct SenderShared {
    state: Mutex<SenderState>,
    /// The signal to the thread that commands arrived, or that it must end.
    work_ready: Condvar,
    /// The signal to all others that something is finished.
    progress: Condvar,
}

/// A handle to the thread.
pub struct SenderThread {
    context: Arc<SendContext>,
    shared: Arc<SenderShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SenderThread {
    /// Starts the thread.
    pub(super) fn start(context: Arc<SendContext>) -> io::Result<Self> {
        let shared = Arc::<SenderShared>::default();
        let worker = SendWorker { context: Arc::clone(&context), shared: Arc::clone(&shared) };
        let thread =
            std::thread::Builder::new().name("msgfs-send".into()).spawn(move || worker.run())?;
        Ok(Self { context, shared, thread: Mutex::new(Some(thread)) })
    }

    /// Returns a handle without a thread, which sends nothing. These entries of the spool wait for another process.
    pub(super) fn without_thread(context: Arc<SendContext>, waiting: BTreeSet<u64>) -> Self {
        let shared = Arc::<SenderShared>::default();
        let mut state = shared.state.lock();
        (state.stopped, state.handed) = (true, waiting);
        drop(state);
        Self { context, shared, thread: Mutex::default() }
    }

    /// Hands accepted parcels to the thread. `doubtful` is true if an earlier process may have sent them.
    pub(super) fn send(&self, n: u64, parcels: Vec<SpoolParcel>, doubtful: bool) {
        let mut state = self.shared.state.lock();
        state.handed.insert(n);
        if state.stopped {
            return;
        }
        state.sent += 1;
        state.commands.push(SenderCommand::Send(SendJob { number: n, parcels, doubtful }));
        drop(state);
        self.shared.work_ready.notify_all();
    }

    /// Has a store deliver what waits in it. A second request before it begins changes nothing.
    pub(super) fn request_delivery(&self, number: usize) {
        let mut state = self.shared.state.lock();
        // After a stop, the next process begins with the delivery.
        if !state.stopped && state.delivery_requested.insert(number) {
            state.commands.push(SenderCommand::Deliver(number));
            drop(state);
            self.shared.work_ready.notify_all();
        }
    }

    /// Has the thread try again everything that it could not append.
    pub(super) fn retry_failed(&self) {
        let mut state = self.shared.state.lock();
        if !state.stopped {
            state.commands.push(SenderCommand::RetryFailed);
            drop(state);
            self.shared.work_ready.notify_all();
        }
    }

    /// Notes that the flush of a draft was refused, and the time before which its release is expected.
    pub(super) fn note_refused(&self, draft: u64, until: Instant) {
        self.shared.state.lock().refused.insert(draft, until);
    }

    /// Notes that a draft was flushed, and the time before which its release is expected.
    pub(super) fn note_closing(&self, draft: u64, until: Instant) {
        self.shared.state.lock().closing.insert(draft, until);
    }

    /// Notes that a draft was released, and wakes the threads that wait for that.
    pub(super) fn note_released(&self, draft: u64) {
        let mut state = self.shared.state.lock();
        state.closing.remove(&draft);
        state.refused.remove(&draft);
        drop(state);
        self.shared.progress.notify_all();
    }

    /// Returns true if others see the draft as sent: it was flushed a moment ago, or is released within the time that
    /// a release can take.
    pub(super) fn is_leaving(&self, draft: u64) -> bool {
        let SenderShared { state, progress: changed, .. } = &*self.shared;
        let mut state = state.lock();
        let Some(until) = state.closing.get(&draft).copied() else { return false };
        if until.saturating_duration_since(Instant::now()) > CLOSING.saturating_sub(AT_ONCE) {
            return true;
        }
        while state.closing.contains_key(&draft) {
            if changed.wait_until(&mut state, until) {
                return false;
            }
        }
        true
    }

    /// Waits at most `limit`, until every message whose `close` has returned is in its store and in the index. It does
    /// not wait for work that others begin meanwhile.
    pub fn wait_until_appended(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let SenderShared { state, progress: changed, .. } = &*self.shared;
        let mut state = state.lock();
        let now = Instant::now();
        state.closing.retain(|_, until| *until > now);
        state.refused.retain(|_, until| *until > now);
        let mut drafts: Vec<(u64, Instant)> =
            state.closing.iter().chain(&state.refused).map(|(id, until)| (*id, *until)).collect();
        loop {
            let now = Instant::now();
            let is_open =
                |id: &u64| state.closing.contains_key(id) || state.refused.contains_key(id);
            drafts.retain(|(id, until)| *until > now && is_open(id));
            let Some(until) = drafts.iter().map(|(_, until)| *until).max() else { break };
            if now >= deadline {
                return;
            }
            changed.wait_until(&mut state, until.min(deadline));
        }
        let last = state.sent;
        while state.done < last && !changed.wait_until(&mut state, deadline) {}
    }

    /// Returns the recipient and the reason of each message that could not be appended and is tried again.
    pub fn stuck_messages(&self) -> Vec<(String, String)> {
        self.shared.state.lock().stuck.values().map(|stuck| stuck.summary.clone()).collect()
    }

    /// Returns true if [`Self::pending_messages`] may have something to return.
    pub fn has_pending(&self) -> bool {
        !self.shared.state.lock().handed.is_empty()
    }

    /// Returns the messages whose `close` has returned and that some recipient still lacks, oldest first.
    pub fn pending_messages(&self) -> Vec<PendingMessage> {
        let (handed, stuck) = {
            let state = self.shared.state.lock();
            if state.handed.is_empty() {
                return Vec::new();
            }
            (state.handed.clone(), state.stuck.clone())
        };
        let of = |n: u64| {
            let stuck = stuck.get(&n);
            self.context.spool.get(n).into_iter().map(
                move |SpoolParcel { store, message, keyed }| {
                    let stuck = stuck.filter(|stuck| stuck.ids.contains(&message.id));
                    let waits = stuck.map(|stuck| stuck.summary.1.clone());
                    PendingMessage { store, message, key: keyed.map(|used| used.key), waits }
                },
            )
        };
        handed.into_iter().flat_map(of).collect()
    }

    /// Returns the numbers of stores that could not deliver, each with the reason.
    pub(super) fn undelivered_stores(&self) -> Vec<(usize, String)> {
        self.shared.state.lock().undelivered.iter().map(|(n, why)| (*n, why.clone())).collect()
    }

    /// Stops the thread, and waits for its end.
    pub(super) fn stop(&self) {
        self.shared.state.lock().stopped = true;
        self.shared.work_ready.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}
