//! The mailbox: opens and connects configuration, key, stores, index, outbox, tree and watch.

mod base;
mod pending_stores;

use std::collections::{BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::{
    self, Config, ConfigError, Env, LockError, Me, MeError, PathError, Paths, StateLock,
};
use crate::identity::{KeyringError, MessageDigest, Pin};
use crate::index::{Index, IndexError};
use crate::link::{self, LinkSet};
use crate::model::locks::RwLock;
use crate::model::{Fingerprint, Mark, PublicKey};
use crate::outbox::{self, Outbox, OutboxError, SigningKeys};
use crate::store::{DeliveryQueue, Store, StoreError, atomic_file};
use crate::view::{self, BellRecord, Tree};
use crate::watch::{FolderChanges, WatchTarget, Watcher};
use base::{MailboxBase, announce_mount, build_view_settings};
pub use base::{MailboxGlance, open_store};
pub use pending_stores::UnopenedStore;
use pending_stores::{PendingStore, PendingStoreOpener};

/// The shortest delay after a mark, so that the marks of one burst reach the stores together.
const MARK_DELAY: Duration = Duration::from_millis(30);
/// The longest such delay, while syncing marks takes much of the time.
const MAX_MARK_DELAY: Duration = Duration::from_millis(300);
/// The interval at which the snapshot is written while things change.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// Delay before the thread that syncs marks begins again after a panic.
const SYNC_AGAIN: Duration = Duration::from_secs(1);

/// Options for opening a mailbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MailboxOptions {
    /// The configuration file, if not the default one.
    pub config: Option<PathBuf>,
    /// The me to act for, if named.
    pub me: Option<String>,
    /// The mount that contains the current folder, if that counts: its me and its mount point.
    pub current_mount: Option<(String, PathBuf)>,
    /// Nothing is written, and the state is not locked.
    pub read_only: bool,
    /// The future mount point, for those who look for it.
    pub mountpoint: Option<PathBuf>,
    /// Every user will see the tree.
    pub allow_other: bool,
    /// Links carry as long as the mailbox is open.
    pub carry: bool,
    /// The mailbox may write the index of search, also if it writes nothing else and nobody acts for me.
    pub may_index: bool,
    /// The mailbox serves one command: later changes of the stores are not followed.
    pub once: bool,
}

/// A reason why a mailbox cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum MailboxOpenError {
    /// Another process acts for this me, or the lock file has a fault.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A fault of the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The me cannot be determined.
    #[error(transparent)]
    Me(#[from] MeError),
    /// There is no folder for state.
    #[error(transparent)]
    Paths(#[from] PathError),
    /// The keyring cannot be used.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// A store, named here, cannot be opened.
    #[error("store {0}: {1}")]
    Store(String, StoreError),
    /// A fault of the index.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// A fault of the outbox.
    #[error(transparent)]
    Outbox(#[from] OutboxError),
    /// A thread or watch cannot be started.
    #[error("changes of the stores cannot be followed: {0}")]
    Watch(std::io::Error),
}

/// The folders with the sessions of this user's bells.
#[derive(Debug)]
struct SessionFiles(Vec<PathBuf>);

impl BellRecord for SessionFiles {
    fn rung_keys(&self) -> HashSet<String> {
        config::read_rung_keys(&self.0)
    }
}

/// An open mailbox.
pub struct Mailbox {
    me: Me,
    key: Option<PublicKey>,
    index: Arc<Index>,
    outbox: Option<Arc<Outbox>>,
    tree: Arc<Tree>,
    watcher: Option<Watcher>,
    sync_thread: Option<SyncThread>,
    links: Arc<LinkSet>,
    warnings: Vec<String>,
    pending_stores: Vec<Arc<PendingStore>>,
    lock: Option<StateLock>,
}

impl Mailbox {
    /// Determines me and the paths, locks the state, opens the stores and brings the index up to date. `progress` gets
    /// how much is done, and how much it is in all.
    ///
    /// # Errors
    /// Returns the first obstacle, in words that say what to do.
    pub fn open(
        options: &MailboxOptions,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, MailboxOpenError> {
        Self::open_with_env(
            options,
            &Env::from_process().with_mount(options.current_mount.clone()),
            progress,
        )
    }

    /// Opens a mailbox as [`Mailbox::open`] does, with these environment variables.
    ///
    /// # Errors
    /// Returns the errors of [`Mailbox::open`].
    pub fn open_with_env(
        options: &MailboxOptions,
        env: &Env,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, MailboxOpenError> {
        let base = MailboxBase::open(options, env, !options.once, progress)?;
        let MailboxBase { ahead, config, me, paths, lock, key, links, index, .. } = base;
        if let Some(lock) = lock.as_ref().filter(|_| options.mountpoint.is_some()) {
            announce_mount(lock, options, &index)?;
        }
        let (keys, problem, mut warnings) = (Arc::new(base.keys), base.key_fault, base.warnings);
        let outbox = open_outbox(&paths, &config, &index, Arc::clone(&keys), options)?;
        // If there is an outbox, it reports the fault of the key itself.
        let now = problem.iter().filter(|_| outbox.is_none()).chain(&warnings);
        let now: Arc<RwLock<Vec<String>>> = Arc::new(RwLock::new(now.cloned().collect()));
        warnings.splice(0..0, problem);
        let settings = view::TreeSettings {
            warnings: Arc::clone(&now),
            link_boards: Arc::clone(links.boards()),
            taken_logs: Arc::clone(links.taken_logs()),
            bell_record: Some(Arc::new(SessionFiles(config::locate_session_folders(env)))),
            ..build_view_settings(&config, &me, &paths, key, options)
        };
        let tree = Arc::new(Tree::new(Arc::clone(&index), outbox.clone(), settings));
        let late: Vec<Arc<PendingStore>> = base.pending_stores.into_iter().map(Arc::new).collect();
        let folders_to_sweep = if options.read_only {
            Vec::new()
        } else {
            vec![paths.state.clone(), paths.cache.clone()]
        };
        let opener = Arc::new(PendingStoreOpener {
            mountpoint: options.mountpoint.clone(),
            read_only: options.read_only,
            warnings: now,
            index: Arc::clone(&index),
            outbox: outbox.clone(),
            links: Arc::clone(&links),
            waker: OnceLock::new(),
            config,
            paths,
            keys,
        });
        let (watcher, others) = if options.once {
            (None, Vec::new())
        } else {
            index.set_watched();
            let mut targets =
                build_watch_targets(&index, outbox.as_ref(), &links, &opener.paths, late.len());
            targets
                .extend(late.iter().map(|late| pending_stores::build_watch_target(late, &opener)));
            targets.push(pending_stores::build_link_target(&opener));
            let (watcher, others) = ahead.start(targets).map_err(MailboxOpenError::Watch)?;
            (Some(watcher), others)
        };
        for number in 0..index.stores().len() {
            if others.contains(&number) {
                // This finds messages that came after the listing and before the watch.
                scan_and_deliver(&index, outbox.as_ref(), number, true);
            } else if let Some(outbox) = &outbox {
                outbox.handle_store_change(number);
            }
        }
        let sync_thread = SyncThread::start(Arc::clone(&index), folders_to_sweep)
            .map_err(MailboxOpenError::Watch)?;
        let sync_thread = Some(sync_thread);
        if options.carry {
            let marked = Arc::downgrade(&links);
            index.subscribe(move |_| {
                marked.upgrade().iter().for_each(|links| links.notify_mark_change());
            });
            let carried = make_change_callback(&index, outbox.as_ref());
            links.start(&carried, &make_marks_provider(&index)).map_err(MailboxOpenError::Watch)?;
        }
        if let Some(watcher) = &watcher {
            // From now on pending stores are added when they appear.
            opener.waker.get_or_init(|| watcher.waker().clone()).refresh_folders();
        }
        Ok(Self {
            me,
            key,
            index,
            outbox,
            tree,
            watcher,
            sync_thread,
            links,
            warnings,
            pending_stores: late,
            lock,
        })
    }

    /// Returns me, and how it was determined.
    pub fn me(&self) -> &Me {
        &self.me
    }

    /// Returns the tree.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Returns the fingerprint of my key, or `None` if the key cannot be used.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.key.map(|key| key.fingerprint())
    }

    /// Returns the faults that did not stop the mailbox from opening, one line each.
    pub fn warnings(&self) -> Vec<String> {
        let mut all = self.warnings.clone();
        all.extend(self.index.describe_others_as_me());
        all
    }

    /// Returns the number of unread messages.
    pub fn unread_count(&self) -> usize {
        self.index.read().marks.unread_count()
    }

    /// Returns the messages of an address that the stores hold, for
    /// [`Keyring::forget_address`](crate::identity::Keyring::forget_address).
    pub fn messages_of_address(&self, address: &str) -> BTreeSet<MessageDigest> {
        self.index.keyring_digests(address)
    }

    /// Returns the trusted keys of all addresses.
    pub fn list_pins(&self) -> Vec<Pin> {
        self.index.keyring().list_pins()
    }

    /// Returns the links.
    pub fn links(&self) -> &LinkSet {
        &self.links
    }

    /// Returns the stores.
    pub fn stores(&self) -> &[Arc<dyn Store>] {
        self.index.stores()
    }

    /// Returns the stores with a warning that are not open yet.
    pub fn unopened_stores(&self) -> Vec<UnopenedStore> {
        self.pending_stores.iter().filter_map(|late| late.describe()).collect()
    }

    /// Returns true if a store with a warning is not open yet.
    pub fn has_missing_store(&self) -> bool {
        self.pending_stores.iter().any(|late| late.warning().is_some())
    }

    /// Notes the device of my mount in my lock (see [`StateLock::write_device`]). A read-only mailbox has no lock.
    ///
    /// # Errors
    /// Returns [`LockError::Io`].
    pub fn note_device(&self, device: Option<&str>) -> Result<(), LockError> {
        self.lock.as_ref().map_or(Ok(()), |lock| lock.write_device(device))
    }

    /// Closes the mailbox: sends what was accepted, writes marks and index, and syncs marks to the stores.
    /// Another process may act for me once the returned lock is dropped.
    pub fn close(mut self) -> Option<StateLock> {
        if let Some(outbox) = &self.outbox {
            outbox.close();
        }
        self.tree.stop_search();
        self.links.stop();
        drop(self.watcher.take());
        drop(self.sync_thread.take());
        self.index.close();
        self.lock
    }
}

fn open_outbox(
    paths: &Paths,
    config: &Config,
    index: &Arc<Index>,
    keys: Arc<SigningKeys>,
    options: &MailboxOptions,
) -> Result<Option<Arc<Outbox>>, MailboxOpenError> {
    let look = options.read_only;
    if look && options.mountpoint.is_some() {
        // A mount that writes nothing would not follow the drafts that another process writes.
        return Ok(None);
    }
    let settings = outbox::OutboxSettings {
        durability: config.durability,
        max_message: config.max_message,
        unknown_recipient: config.unknown_recipient,
        groups: config.groups.clone(),
    };
    let open = if look { Outbox::open_read_only } else { Outbox::open };
    let outbox = open(&paths.state, Arc::clone(index), keys, settings)?;
    if !look {
        outbox.composer().resume_folders();
    }
    Ok(Some(outbox))
}

/// Returns the callback for a link that carried something: it scans the store and delivers what waits there.
fn make_change_callback(index: &Arc<Index>, outbox: Option<&Arc<Outbox>>) -> link::RescanCallback {
    let (index, outbox) = (Arc::clone(index), outbox.cloned());
    Arc::new(move |number| scan_and_deliver(&index, outbox.as_ref(), number, false))
}

/// The marks of a store.
struct MarksOfStore(Arc<Index>, usize);

impl std::fmt::Debug for MarksOfStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MarksOfStore").field(&self.1).finish_non_exhaustive()
    }
}

impl link::SharedMarkLog for MarksOfStore {
    fn read_since(&self, at: u64) -> std::io::Result<(Vec<Mark>, u64)> {
        self.0.read_marks_since(self.1, at)
    }

    fn append_heard(&self, at: u64, heard: &[Mark]) -> std::io::Result<Option<u64>> {
        self.0.import_marks(self.1, at, heard)
    }
}

/// Returns the source of the marks that links share with my other machines.
fn make_marks_provider(index: &Arc<Index>) -> link::MarkLogProvider {
    let index = Arc::clone(index);
    Arc::new(move |number| Arc::new(MarksOfStore(Arc::clone(&index), number)))
}

/// Scans a store and delivers what waits in it. A store that cannot be read now is reported in status.txt and
/// tried again.
fn scan_and_deliver(index: &Index, outbox: Option<&Arc<Outbox>>, number: usize, full: bool) {
    let upkeep = index.stores().get(number).and_then(|store| store.facets().upkeep);
    if let Some(upkeep) = upkeep.filter(|_| full) {
        upkeep.suspect_loss();
    }
    let looked =
        if full { index.refresh_store(number, true) } else { index.refresh_if_behind(number) };
    if let Err(e) = looked {
        tracing::warn!(error = %e, "the store cannot be read now");
    }
    if let Some(outbox) = outbox {
        outbox.handle_store_change(number);
    }
}

/// Returns the targets to watch: the stores by number, `more` numbers for stores that may come later, the
/// keyring (for `msgfs key trust` while mounted), and the requests to links.
fn build_watch_targets(
    index: &Arc<Index>,
    outbox: Option<&Arc<Outbox>>,
    links: &Arc<LinkSet>,
    paths: &Paths,
    more: usize,
) -> Vec<WatchTarget> {
    let mut targets = Vec::new();
    for number in 0..index.stores().len() + more {
        let [listed, asked, read, due, index] = [(); 5].map(|()| Arc::clone(index));
        let (links, outbox) = (Arc::clone(links), outbox.cloned());
        targets.push(WatchTarget {
            dirs: Box::new(move || {
                listed.stores().get(number).map_or_else(Vec::new, |store| store.folders_to_watch())
            }),
            is_relevant: Box::new(move |folder, name| {
                asked.stores().get(number).is_some_and(|store| store.is_relevant(folder, name))
            }),
            on_close_only: false,
            on_change: Box::new(move |what| {
                let paths = match what {
                    FolderChanges::Paths(paths) => Some(paths.as_slice()),
                    FolderChanges::Unknown => None,
                };
                let Some(store) = index.stores().get(number) else { return };
                paths.into_iter().flatten().for_each(|path| store.note_change(path));
                links.notify_store_change(number, paths);
                scan_and_deliver(&index, outbox.as_ref(), number, paths.is_none());
            }),
            is_failing: Box::new(move || read.is_failing(number)),
            due_time: Box::new(move || due.stores().get(number)?.due_time()),
        });
    }
    let keyring = paths.keyring_file();
    let name = keyring.file_name().unwrap_or_default().to_owned();
    let (state, index, outbox) = (paths.state.clone(), Arc::clone(index), outbox.cloned());
    targets.push(WatchTarget {
        dirs: Box::new(move || vec![state.clone()]),
        is_relevant: Box::new(move |_, changed| changed == name),
        // Spool and marks lie there, too.
        on_close_only: true,
        on_change: Box::new(move |_| {
            if index.keyring().reload_if_changed() {
                index.rejudge_changed();
                // Files that are derived from the messages that count may change.
                let stores = 0..index.stores().len();
                stores.for_each(|n| outbox.iter().for_each(|outbox| outbox.handle_store_change(n)));
            }
        }),
        is_failing: Box::new(|| false),
        due_time: Box::new(|| None),
    });
    let (asked, hears) = (Arc::clone(links), Arc::clone(links));
    targets.push(WatchTarget {
        dirs: Box::new(move || asked.request_folders()),
        is_relevant: Box::new(|_, name| name == link::request::FILE),
        on_close_only: true,
        on_change: Box::new(move |_| hears.run_requests()),
        is_failing: Box::new(|| false),
        due_time: Box::new(|| None),
    });
    targets
}

/// The thread that syncs marks to the stores and writes the snapshot. It sleeps while nothing changes.
struct SyncThread {
    index: Arc<Index>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SyncThread {
    /// Starts the thread. `own`: the folders of msgfs, if anything may be written.
    fn start(index: Arc<Index>, own: Vec<PathBuf>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (of_thread, stopped) = (Arc::clone(&index), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("msgfs-keep".into()).spawn(move || {
            sweep_folders(&of_thread, &own);
            let run = || run_sync_loop(&of_thread, &stopped);
            // A panic must not end the thread: marks would not reach the stores any more.
            while catch_unwind(AssertUnwindSafe(run)).is_err() && !stopped.load(Ordering::Relaxed) {
                tracing::error!("a bug in msgfs: syncing marks panicked; it is tried again");
                std::thread::sleep(SYNC_AGAIN);
            }
        })?;
        Ok(Self { index, stop, thread: Some(thread) })
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.index.change_signal().notify();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Removes the temporary files that a killed msgfs left in its own folders and in those of the stores. Folders
/// of others are swept before something is delivered there.
fn sweep_folders(index: &Index, own: &[PathBuf]) {
    for folder in own {
        atomic_file::sweep_temp_files(folder, Path::new(""));
    }
    index.stores().iter().filter(|_| !own.is_empty()).for_each(|store| sweep_store(store.as_ref()));
}

fn sweep_store(store: &dyn Store) {
    let written = store.facets().deliveries.map(DeliveryQueue::folders_to_sweep);
    let folders = store.folders_to_watch().into_iter().chain(written.into_iter().flatten());
    for folder in folders.chain([store.dir().to_owned()]) {
        if let Ok(below) = folder.strip_prefix(store.dir()) {
            atomic_file::sweep_temp_files(store.dir(), below);
        }
    }
}

fn run_sync_loop(index: &Index, stop: &AtomicBool) {
    let mut saved = Instant::now();
    let mut unsaved = true;
    // These are marks that an earlier process could not sync, because it was killed or the store was read-only.
    let mut again = index.sync_marks_to_stores();
    // The save moves a first index out of memory.
    index.save_snapshot();
    let (mut seen, mut pause) = (0, MARK_DELAY);
    loop {
        let idle = if unsaved { SAVE_EVERY } else { Duration::from_secs(24 * 3600) };
        let limit = again.unwrap_or(idle);
        let now = index.change_signal().wait(seen, Instant::now() + limit);
        if stop.load(Ordering::Relaxed) {
            return;
        }
        unsaved |= now != seen;
        seen = now;
        std::thread::sleep(pause);
        // The read position of many messages takes long to find. The pause grows with that time, to leave most
        // of it to the reader.
        let start = Instant::now();
        again = index.sync_marks_to_stores();
        pause = (start.elapsed() * 9).clamp(MARK_DELAY, MAX_MARK_DELAY);
        if unsaved && saved.elapsed() >= SAVE_EVERY {
            index.save_snapshot();
            saved = Instant::now();
            unsaved = false;
        }
    }
}
