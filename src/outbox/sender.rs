//! The one thread that appends to stores, and has them deliver what waits in them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::attachments::Attachments;
use super::busy::Busy;
use super::reserved::Reserved;
use super::spool::{Parcel, Spool};
use super::{CLOSING, Held, named};
use crate::index::{Entry, Index};
use crate::model::Timestamp;
use crate::model::locks::{Condvar, Mutex};
use crate::store::{Durability, Outgoing, StoreError};

/// How long a message that could not be appended, or delivered, waits before it is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// The same for one the store will not have: only a person can mend that.
const REFUSED: Duration = Duration::from_secs(300);

/// What was appended waits so long for its disk: what is appended meanwhile shares the trip. The spool has
/// it, so nothing is lost.
const GATHER: Duration = Duration::from_millis(20);

/// Who has appended rests so long: who sends one message after the other has the cores meanwhile, and what
/// comes is appended, seen and told together. Who wants to see it done ends the rest.
const REST: Duration = Duration::from_millis(2);

/// A flush this long ago was the last close, or nobody can tell yet.
const AT_ONCE: Duration = Duration::from_micros(300);

struct Job {
    n: u64,
    parcels: Vec<Parcel>,
    /// Some of them may be in their stores already.
    doubtful: bool,
}

/// What the thread is asked to do.
enum Order {
    Send(Job),
    /// Have the store of this number deliver what waits in it.
    Deliver(usize),
}

/// What is under way, for those who must see it finished.
#[derive(Default)]
struct Under {
    /// What the thread has not taken yet.
    orders: Vec<Order>,
    /// The thread shall end, or there is none: what is sent stays in the spool for the next process.
    stopped: bool,
    /// Until when the thread takes no orders, and needs no waking for them.
    rests: Option<Instant>,
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
    stuck: HashMap<u64, Stuck>,
    /// Stores that were asked to deliver and have not begun.
    asked: BTreeSet<usize>,
    /// Stores that could not deliver, with the reason.
    undelivered: BTreeMap<usize, String>,
}

/// Parcels that could not be appended.
#[derive(Clone)]
struct Stuck {
    /// Whom the first of them is for, and why it waits.
    said: (String, String),
    since: Timestamp,
    /// The ids of all of them.
    ids: Vec<String>,
}

/// What the thread and those who write drafts work with.
pub(super) struct Tools {
    pub index: Arc<Index>,
    pub spool: Spool,
    /// Ids promised to drafts that are not in the index yet, by store.
    pub reserved: Mutex<Reserved>,
    pub attachments: Attachments,
    pub durability: Durability,
}

impl Tools {
    /// What is under a number in the spool was sent, or will not be.
    pub fn end(&self, n: u64) {
        self.let_go(&self.spool.end(n));
    }

    /// Gives back the ids and the copies of parcels.
    pub fn let_go(&self, parcels: &[Parcel]) {
        self.attachments.release(parcels);
        self.reserved.lock().forget(parcels);
    }
}

/// What the thread and those who ask it for something have in common.
#[derive(Default)]
struct Shared {
    under: Mutex<Under>,
    /// There are orders, or their end: for the thread.
    ordered: Condvar,
    /// Something is finished: for all others.
    changed: Condvar,
}

/// Handle to the thread.
pub(super) struct Sender {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Sender {
    /// Starts the thread.
    pub fn start(tools: Arc<Tools>) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let worker = Worker { tools, shared: Arc::clone(&shared) };
        let thread =
            std::thread::Builder::new().name("msgfs-send".into()).spawn(move || worker.run())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Without the thread: nothing is sent.
    pub fn idle() -> Self {
        let shared = Arc::<Shared>::default();
        shared.under.lock().stopped = true;
        Self { shared, thread: Mutex::default() }
    }

    /// Sends what was promised; `doubtful`: by an earlier process, which may have sent it.
    pub fn send(&self, n: u64, parcels: Vec<Parcel>, doubtful: bool) {
        let mut under = self.shared.under.lock();
        under.handed.insert(n);
        if under.stopped {
            return;
        }
        under.sent += 1;
        under.orders.push(Order::Send(Job { n, parcels, doubtful }));
        let rests = under.rests.is_some();
        drop(under);
        if !rests {
            self.shared.ordered.notify_all();
        }
    }

    /// Has a store deliver what waits in it; asking twice before it begins is asking once.
    pub fn deliver(&self, number: usize) {
        let mut under = self.shared.under.lock();
        // Stopped: the next process begins with it.
        if !under.stopped && under.asked.insert(number) {
            under.orders.push(Order::Deliver(number));
            drop(under);
            self.shared.ordered.notify_all();
        }
    }

    pub fn refused(&self, draft: u64, until: Instant) {
        self.shared.under.lock().refused.insert(draft, until);
    }

    pub fn closing(&self, draft: u64, until: Instant) {
        self.shared.under.lock().closing.insert(draft, until);
    }

    pub fn released(&self, draft: u64) {
        let mut under = self.shared.under.lock();
        under.closing.remove(&draft);
        under.refused.remove(&draft);
        drop(under);
        self.shared.changed.notify_all();
    }

    /// Whether a draft is sent as far as others are concerned: it was flushed a moment ago, or is
    /// released within the time a release can take.
    pub fn leaves(&self, draft: u64) -> bool {
        let Shared { under, changed, .. } = &*self.shared;
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
    pub fn settle(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let Shared { under, changed, ordered } = &*self.shared;
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
        if under.done < last && under.rests.take().is_some() {
            ordered.notify_all();
        }
        while under.done < last && !changed.wait_until(&mut under, deadline) {}
    }

    pub fn stuck(&self) -> Vec<(String, String)> {
        self.shared.under.lock().stuck.values().map(|stuck| stuck.said.clone()).collect()
    }

    /// Whether something was handed to the thread and is not appended whole, or perhaps not on disk.
    pub fn holds(&self) -> bool {
        !self.shared.under.lock().handed.is_empty()
    }

    /// What was handed to the thread and is not appended whole, or perhaps not on disk, oldest first.
    pub fn held(&self, spool: &Spool) -> Vec<Held> {
        let (handed, stuck) = {
            let under = self.shared.under.lock();
            if under.handed.is_empty() {
                return Vec::new();
            }
            (under.handed.clone(), under.stuck.clone())
        };
        let of = |n: u64| {
            let stuck = stuck.get(&n);
            spool.get(n).into_iter().map(move |Parcel { store, message }| {
                let stuck = stuck.filter(|stuck| stuck.ids.contains(&message.id));
                let waits = stuck.map(|stuck| (stuck.said.1.clone(), stuck.since));
                Held { store, message, waits }
            })
        };
        handed.into_iter().flat_map(of).collect()
    }

    /// Numbers of stores that could not deliver, with the reason.
    pub fn undelivered(&self) -> Vec<(usize, String)> {
        self.shared.under.lock().undelivered.iter().map(|(n, why)| (*n, why.clone())).collect()
    }

    pub fn stop(&self) {
        self.shared.under.lock().stopped = true;
        self.shared.ordered.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

/// A job that could not be done, and when it is tried again.
struct Failed {
    job: Job,
    due: Instant,
}

/// What is in the stores and perhaps not on their disks.
#[derive(Default)]
struct Behind {
    /// Numbers in the spool, of what was appended whole.
    appended: Vec<u64>,
    stores: BTreeSet<usize>,
    /// When the disks are waited for.
    due: Option<Instant>,
}

struct Worker {
    tools: Arc<Tools>,
    shared: Arc<Shared>,
}

impl Worker {
    /// Waits for orders, or until something is due. What was ordered, and whether to end after it.
    fn orders(&self, due: Option<Instant>) -> (Vec<Order>, bool) {
        let mut under = self.shared.under.lock();
        let ordered = &self.shared.ordered;
        loop {
            let now = Instant::now();
            under.rests = under.rests.filter(|until| *until > now);
            let asked = under.rests.is_none() && !under.orders.is_empty();
            if asked || under.stopped || due.is_some_and(|due| due <= now) {
                return (std::mem::take(&mut under.orders), under.stopped);
            }
            match due.into_iter().chain(under.rests).min() {
                Some(next) => drop(ordered.wait_until(&mut under, next)),
                None => ordered.wait(&mut under),
            }
        }
    }

    fn run(&self) {
        let mut failed: Vec<Failed> = Vec::new();
        let mut undelivered: BTreeMap<usize, Instant> = BTreeMap::new();
        let (mut busy, mut behind) = (Busy::default(), Behind::default());
        loop {
            let due = failed.iter().map(|f| f.due).chain(undelivered.values().copied());
            let (orders, stop) = self.orders(due.chain(behind.due).min());
            let now = Instant::now();
            let mut jobs: Vec<Job> =
                failed.extract_if(.., |f| f.due <= now).map(|f| f.job).collect();
            let due = undelivered.iter().filter(|(_, due)| **due <= now);
            let mut deliver: BTreeSet<usize> = due.map(|(n, _)| *n).collect();
            let again = jobs.len();
            for order in orders {
                match order {
                    Order::Send(job) => jobs.push(job),
                    Order::Deliver(number) => drop(deliver.insert(number)),
                }
            }
            let fresh = jobs.len() - again;
            let sent = self.guarded(&mut failed, |failed| {
                self.append_all(jobs, &mut busy, &mut behind, failed)
            });
            // What is derived from messages is behind now.
            deliver.extend(sent.unwrap_or_default());
            let mut under = self.shared.under.lock();
            under.done += fresh as u64;
            under.rests = (fresh > 0).then(|| Instant::now() + REST);
            drop(under);
            self.shared.changed.notify_all();
            if stop || behind.due.is_some_and(|due| due <= Instant::now()) {
                let behind = std::mem::take(&mut behind);
                self.guarded(&mut failed, |failed| self.sync_all(behind, failed));
            }
            for number in deliver {
                undelivered.remove(&number);
                let done = catch_unwind(AssertUnwindSafe(|| self.deliver(number)));
                if let Some(wait) = done.unwrap_or(Some(RETRY)) {
                    undelivered.insert(number, Instant::now() + wait);
                }
            }
            if stop {
                return;
            }
        }
    }

    /// Brings the index up to date on the stores of doubtful jobs; those that cannot be read now.
    fn look_at_stores(&self, jobs: &[Job]) -> BTreeSet<String> {
        let doubtful = || jobs.iter().filter(|j| j.doubtful).flat_map(|j| &j.parcels);
        let stores = self.tools.index.stores().iter().enumerate();
        let asked = stores.filter(|(_, s)| doubtful().any(|p| p.store == s.name()));
        asked.filter(|(n, _)| !self.refresh(*n)).map(|(_, s)| s.name().to_owned()).collect()
    }

    /// Takes in what is new in a store; whether that could be done.
    fn refresh(&self, number: usize) -> bool {
        let done = self.tools.index.refresh(number, false);
        if let Err(e) = &done {
            tracing::error!(error = %e, "the store could not be read after an append");
        }
        done.is_ok()
    }

    /// Appends a batch, and notes what could not be appended; the stores that have something to deliver now.
    fn append_all(
        &self,
        jobs: Vec<Job>,
        busy: &mut Busy,
        behind: &mut Behind,
        failed: &mut Vec<Failed>,
    ) -> Vec<usize> {
        let unseen = self.look_at_stores(&jobs);
        let doubtful = jobs.iter().any(|job| job.doubtful);
        let mut touched: BTreeSet<usize> = BTreeSet::new();
        let mut appended: Vec<u64> = Vec::new();
        for mut job in jobs {
            let mut left = Vec::new();
            let mut reason: Option<Trouble> = None;
            for parcel in job.parcels.drain(..) {
                let done = if job.doubtful && unseen.contains(&parcel.store) {
                    // Appended blindly, it could be there twice.
                    Err(Trouble::new(format!("the store {} cannot be read", parcel.store), RETRY))
                } else {
                    self.append(&parcel, job.doubtful, &mut touched, busy)
                };
                if let Err(e) = done {
                    // The one that is tried again soonest.
                    reason = reason.filter(|r| r.due <= e.due).or(Some(e));
                    left.push(parcel);
                }
            }
            match reason {
                None => appended.push(job.n),
                Some(why) => failed.push(self.set_aside(job.n, left, &why)),
            }
        }
        for number in touched.iter().copied() {
            if let Err(e) = self.tools.index.catch_up(number) {
                tracing::error!(error = %e, "the store could not be read after an append");
            }
        }
        let stores = self.tools.index.stores();
        let delivers = |number: &usize| {
            stores.get(*number).is_some_and(|store| store.facets().deliveries.is_some())
        };
        let deliver: Vec<usize> = touched.iter().copied().filter(delivers).collect();
        behind.stores.extend(touched);
        behind.appended.extend(appended);
        // A delivery begins with what is on disk, and of what may be there already nobody is told before.
        if doubtful || !deliver.is_empty() || self.tools.durability == Durability::None {
            self.sync_all(std::mem::take(behind), failed);
        } else if !behind.stores.is_empty() {
            behind.due.get_or_insert_with(|| Instant::now() + GATHER);
        }
        deliver
    }

    /// Has the spool forget what is in the stores, after one wait for the disk of each.
    fn sync_all(&self, mut behind: Behind, failed: &mut Vec<Failed>) {
        for number in behind.stores {
            if let Err(why) = self.sync(number) {
                // Nobody knows which of them the disk has: all are looked for again.
                for n in behind.appended.drain(..) {
                    failed.push(self.set_aside(n, self.tools.spool.get(n), &why));
                }
                self.doubt(number, failed);
            }
        }
        for n in behind.appended {
            self.tools.end(n);
            let mut under = self.shared.under.lock();
            under.stuck.remove(&n);
            under.handed.remove(&n);
        }
    }

    /// Waits until what a store has is on disk, if that is asked for.
    fn sync(&self, number: usize) -> Result<(), Trouble> {
        match (self.tools.durability, self.tools.index.stores().get(number)) {
            (Durability::Fsync, Some(store)) => store
                .outgoing()
                .and_then(Outgoing::sync)
                .map_err(|e| Trouble::new(e.to_string(), RETRY)),
            _ => Ok(()),
        }
    }

    /// The disk of a store failed: what jobs that wait for other stores have put there is looked for
    /// again, too.
    fn doubt(&self, number: usize, failed: &mut [Failed]) {
        let Some(store) = self.tools.index.stores().get(number) else { return };
        for Failed { job, .. } in failed {
            for parcel in self.tools.spool.get(job.n) {
                if parcel.store == store.name() && !job.parcels.contains(&parcel) {
                    job.parcels.push(parcel);
                }
            }
        }
    }

    /// Does `work`. What is under way when it panics stays in the spool, for the next process; which disks are
    /// behind is not known any more then, so all that waits is looked for again, and synced.
    fn guarded<T>(
        &self,
        failed: &mut Vec<Failed>,
        work: impl FnOnce(&mut Vec<Failed>) -> T,
    ) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(|| work(failed)));
        if done.is_err() {
            tracing::error!("sending panicked; the messages stay in the spool");
            for Failed { job, .. } in failed {
                job.parcels = self.tools.spool.get(job.n);
            }
        }
        done.ok()
    }

    fn set_aside(&self, n: u64, parcels: Vec<Parcel>, why: &Trouble) -> Failed {
        let job = Job { n, parcels, doubtful: true };
        let to = job.parcels.first().map(|p| p.message.to.clone()).unwrap_or_default();
        let said = (to, why.text.clone());
        let ids = job.parcels.iter().map(|p| p.message.id.clone()).collect();
        let mut under = self.shared.under.lock();
        let before = under.stuck.remove(&job.n);
        let since = before.as_ref().map_or_else(Timestamp::now, |before| before.since);
        under.stuck.insert(job.n, Stuck { said: said.clone(), since, ids });
        drop(under);
        if before.is_none_or(|before| before.said != said) {
            let (to, reason) = (crate::model::one_line(&said.0), crate::model::one_line(&said.1));
            if why.busy {
                tracing::info!(%to, %reason, "a message waits for its thread");
            } else {
                tracing::error!(%to, %reason, "a message waits in the spool");
            }
        }
        Failed { job, due: why.due }
    }

    fn append(
        &self,
        parcel: &Parcel,
        doubtful: bool,
        touched: &mut BTreeSet<usize>,
        busy: &mut Busy,
    ) -> Result<(), Trouble> {
        let Some((number, store)) = named(&self.tools.index, &parcel.store) else {
            let text = format!("the store {:?} is not configured any more", parcel.store);
            return Err(Trouble::new(text, REFUSED));
        };
        if doubtful && is_in_store(&self.tools.index, parcel) {
            // What another process wrote, or the disk failed to take, need not be on disk yet.
            touched.insert(number);
            return Ok(());
        }
        if let Some((due, why)) = busy.waits(parcel, Instant::now()) {
            return Err(Trouble { text: why.to_owned(), due, busy: true });
        }
        let outgoing = store.require_there().and_then(|()| store.outgoing());
        match outgoing.and_then(|store| store.append(&parcel.message)) {
            Err(StoreError::Busy(text)) => {
                let due = busy.found(parcel, Instant::now(), &text);
                Err(Trouble { text, due, busy: true })
            }
            done => {
                busy.over(parcel);
                done?;
                touched.insert(number);
                Ok(())
            }
        }
    }

    /// Has a store deliver what waits in it; how long until it is asked again, if it must be.
    fn deliver(&self, number: usize) -> Option<Duration> {
        self.shared.under.lock().asked.remove(&number);
        let store = self.tools.index.stores().get(number)?;
        let deliveries = store.facets().deliveries?;
        match deliveries.deliver() {
            Ok(done) => {
                self.shared.under.lock().undelivered.remove(&number);
                if done {
                    self.refresh(number);
                }
                deliveries.has_more().then_some(Duration::ZERO)
            }
            Err(e) => {
                let why = e.to_string();
                let before = self.shared.under.lock().undelivered.insert(number, why.clone());
                if before.as_ref() != Some(&why) {
                    let why = crate::model::one_line(&why);
                    tracing::error!(store = store.name(), reason = %why, "mail waits for delivery");
                }
                // The rest has been tried.
                self.refresh(number);
                Some(RETRY)
            }
        }
    }
}

/// Why a message could not be appended, and until when it waits.
struct Trouble {
    text: String,
    due: Instant,
    /// Its thread is locked by somebody else: that happens.
    busy: bool,
}

impl Trouble {
    fn new(text: String, wait: Duration) -> Self {
        Self { text, due: Instant::now() + wait, busy: false }
    }
}

impl From<StoreError> for Trouble {
    fn from(e: StoreError) -> Self {
        use StoreError::{Busy, Io, Moved, NoKey};
        let may_pass = matches!(e, Io { .. } | Moved | NoKey(_) | Busy(_));
        Self::new(e.to_string(), if may_pass { RETRY } else { REFUSED })
    }
}

/// Whether a message of mine need not be appended: the index knows it, in a store where an append
/// cannot be made again. Elsewhere the append itself finds out what is missing.
pub(super) fn is_in_store(index: &Index, parcel: &Parcel) -> bool {
    let found = named(index, &parcel.store).filter(|(_, s)| !s.about().repeats);
    let Some((number, store)) = found else { return false };
    let core = index.read();
    let found = core.find(number, store.me(), &parcel.message.id);
    found.and_then(|ix| core.entry(ix)).is_some_and(Entry::is_live)
}
