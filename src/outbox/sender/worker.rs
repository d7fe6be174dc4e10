//! What the sending thread does: appends what was promised, waits for the disks, has stores deliver.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::busy::Busy;
use super::super::named;
use super::super::spool::Parcel;
use super::{Job, Order, Shared, Stuck, Tools};
use crate::index::{Entry, Index};
use crate::model::Timestamp;
use crate::store::{Deliveries, Durability, Facets, Outgoing, StoreError};

/// How long a message that could not be appended, or delivered, waits before it is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// The same for one the store will not have: only a person can mend that.
const REFUSED: Duration = Duration::from_secs(300);

/// What was appended waits so long for its disk: what is appended meanwhile shares the trip. The spool has
/// it, so nothing is lost.
const GATHER: Duration = Duration::from_millis(5);

/// While many messages are sent one after the other, the thread rests so long after each append: their sender
/// has the cores meanwhile, and what comes is appended, seen and told together. Who wants to see it done ends the
/// rest.
const REST: Duration = Duration::from_millis(1);
/// So many are many. Fewer are in their stores at once.
const MANY: usize = 16;

/// A job that could not be done, and when it is tried again.
struct Failed {
    job: Job,
    due: Instant,
}

/// Messages that were sent one after the other.
struct Row {
    count: usize,
    last: Instant,
}

impl Row {
    /// So many more are appended; until when the thread rests.
    fn add(&mut self, more: usize) -> Option<Instant> {
        let now = Instant::now();
        if now.duration_since(self.last) > 2 * REST {
            self.count = 0;
        }
        (self.count, self.last) = (self.count + more, now);
        (self.count >= MANY).then_some(now + REST)
    }
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

pub(super) struct Worker {
    pub tools: Arc<Tools>,
    pub shared: Arc<Shared>,
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

    /// Works until it is told to end.
    pub fn run(&self) {
        let mut failed: Vec<Failed> = Vec::new();
        let mut undelivered: BTreeMap<usize, Instant> = BTreeMap::new();
        let (mut busy, mut behind) = (Busy::default(), Behind::default());
        let mut row = Row { count: 0, last: Instant::now() };
        loop {
            let due = failed.iter().map(|f| f.due).chain(undelivered.values().copied());
            let (orders, stop) = self.orders(due.chain(behind.due).min());
            let now = Instant::now();
            let all = orders.iter().any(|order| matches!(order, Order::TryAgain));
            let mut jobs: Vec<Job> =
                failed.extract_if(.., |f| all || f.due <= now).map(|f| f.job).collect();
            let due = undelivered.iter().filter(|(_, due)| **due <= now);
            let mut deliver: BTreeSet<usize> = due.map(|(n, _)| *n).collect();
            let again = jobs.len();
            for order in orders {
                match order {
                    Order::Send(job) => jobs.push(job),
                    Order::Deliver(number) => drop(deliver.insert(number)),
                    Order::TryAgain => {}
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
            under.rests = if fresh > 0 { row.add(fresh) } else { None };
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
        // Lost messages come back before the store is looked at, so that none of them is appended again.
        let seen = |n: usize| self.recover(n).is_ok() && self.refresh(n);
        asked.filter(|(n, _)| !seen(*n)).map(|(_, s)| s.name().to_owned()).collect()
    }

    /// Brings back what other programs took out of a store. Returns true if there was something.
    fn recover(&self, number: usize) -> Result<bool, StoreError> {
        let store = self.tools.index.stores().get(number);
        let there = store.filter(|store| store.missed().is_none());
        let recovery = there.and_then(|store| store.facets().recovery);
        let mine = self.tools.index.my_key(number);
        recovery.map_or(Ok(false), |recovery| recovery.recover(mine.as_ref()))
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
            self.tools.end(n, true);
            let mut under = self.shared.under.lock();
            under.stuck.remove(&n);
            under.handed.remove(&n);
        }
        self.tools.trim();
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
                tracing::info!(%to, %reason, "a message waits until its thread is free");
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
            let text =
                format!("the store {:?} is left out, or not configured any more", parcel.store);
            return Err(Trouble::new(text, REFUSED));
        };
        if doubtful && is_in_store(&self.tools.index, parcel) {
            // What another process wrote, or the disk failed to take, need not be on disk yet.
            touched.insert(number);
            if let Some(recovery) = store.facets().recovery {
                recovery.note_appended(&[&parcel.message])?;
            }
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
        let Facets { deliveries, .. } = store.facets();
        let recovered = self.recover(number);
        let delivered = deliveries.map_or(Ok(false), Deliveries::deliver);
        match recovered.and_then(|recovered| Ok(recovered | delivered?)) {
            Ok(done) => {
                self.shared.under.lock().undelivered.remove(&number);
                if done {
                    self.refresh(number);
                }
                deliveries.is_some_and(Deliveries::has_more).then_some(Duration::ZERO)
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
pub(in crate::outbox) fn is_in_store(index: &Index, parcel: &Parcel) -> bool {
    let found = named(index, &parcel.store).filter(|(_, s)| !s.about().repeats);
    let Some((number, store)) = found else { return false };
    let core = index.read();
    let found = core.find(number, store.me(), &parcel.message.id);
    found.and_then(|ix| core.entry(ix)).is_some_and(Entry::is_live)
}
