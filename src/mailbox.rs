//! Puts it all together: configuration, key, stores, index, outbox, tree, watch.

mod base;
mod late;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::{
    Config, ConfigError, Env, LockError, Me, MeError, PathError, Paths, StateLock,
};
use crate::identity::{KeyringError, Print};
use crate::index::{Index, IndexError};
use crate::link::{self, Links};
use crate::model::locks::RwLock;
use crate::model::{Fingerprint, Mark, PublicKey};
use crate::outbox::{self, Keys, Outbox, OutboxError};
use crate::store::{Deliveries, Store, StoreError, place};
use crate::view::{self, Tree};
use crate::watch::{Changed, Target, Watcher};
pub use base::Glance;
use base::{Base, shown};
use late::{Doorway, Late};

/// Marks of one burst are told to the stores together.
const TELL_AFTER: Duration = Duration::from_millis(30);
/// The same while they take much of the time.
const TELL_AT_LEAST: Duration = Duration::from_millis(300);
/// How often the snapshot is written while things change.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// What to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The configuration file, if not the default one.
    pub config: Option<PathBuf>,
    /// Who to act for, if named.
    pub me: Option<String>,
    /// The mount that the current folder is in, if that counts: whom it acts for, and where it is.
    pub here: Option<(String, PathBuf)>,
    /// Nothing is written, and the state is not locked.
    pub read_only: bool,
    /// Where the tree will be mounted, for those who look for it.
    pub mountpoint: Option<PathBuf>,
    /// The tree will be shown to every user.
    pub allow_other: bool,
    /// Links carry as long as the mailbox is open.
    pub carry: bool,
    /// It is for what can be done at once: what happens in the stores afterwards is not followed.
    pub once: bool,
}

/// Why a mailbox cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The state: another process acts for this me, or the lock file.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Who I am cannot be told.
    #[error(transparent)]
    Me(#[from] MeError),
    /// There is no place for state.
    #[error(transparent)]
    Paths(#[from] PathError),
    /// The keyring cannot be used.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// A store, named here, cannot be opened.
    #[error("store {0}: {1}")]
    Store(String, StoreError),
    /// The index.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The outbox.
    #[error(transparent)]
    Outbox(#[from] OutboxError),
    /// A thread or watch cannot be started.
    #[error("changes of the stores cannot be followed: {0}")]
    Watch(std::io::Error),
}

/// An open mailbox.
pub struct Mailbox {
    me: Me,
    key: Option<PublicKey>,
    index: Arc<Index>,
    outbox: Option<Arc<Outbox>>,
    tree: Arc<Tree>,
    watcher: Option<Watcher>,
    keeper: Option<Keeper>,
    links: Arc<Links>,
    warnings: Vec<String>,
    late: Vec<Arc<Late>>,
    lock: Option<StateLock>,
}

impl Mailbox {
    /// Finds out who and where, locks the state, opens the stores and brings the index up to date.
    /// `progress` gets bytes done and bytes in all.
    ///
    /// # Errors
    /// Whatever stands in the way, in words that say what to do.
    pub fn open(
        options: &Options,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, OpenError> {
        Self::open_in(options, &Env::from_process().in_mount(options.here.clone()), progress)
    }

    /// The same in another environment.
    ///
    /// # Errors
    /// As [`Mailbox::open`].
    pub fn open_in(
        options: &Options,
        env: &Env,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, OpenError> {
        let base = Base::open(options, env, !options.once, progress)?;
        let Base { ahead, config, me, paths, lock, key, links, index, .. } = base;
        let (keys, problem, mut warnings) = (Arc::new(base.keys), base.problem, base.warnings);
        let outbox = open_outbox(&paths, &config, &index, Arc::clone(&keys), options)?;
        // Where there is an outbox, it knows what is wrong with the key now.
        let now = problem.iter().filter(|_| outbox.is_none()).chain(&warnings);
        let now: Arc<RwLock<Vec<String>>> = Arc::new(RwLock::new(now.cloned().collect()));
        warnings.splice(0..0, problem);
        let settings = view::Settings {
            warnings: Arc::clone(&now),
            links: Arc::clone(links.boards()),
            ..shown(&config, &me, &paths, key, options)
        };
        let tree = Arc::new(Tree::new(Arc::clone(&index), outbox.clone(), settings));
        let late: Vec<Arc<Late>> = base.late.into_iter().map(Arc::new).collect();
        let swept = if options.read_only {
            Vec::new()
        } else {
            vec![paths.state.clone(), paths.cache.clone()]
        };
        let doorway = Arc::new(Doorway {
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
            let mut targets = targets(&index, outbox.as_ref(), &links, &doorway.paths, late.len());
            targets.extend(late.iter().map(|late| late::target(late, &doorway)));
            let (watcher, others) = ahead.start(targets).map_err(OpenError::Watch)?;
            (Some(watcher), others)
        };
        for number in 0..index.stores().len() {
            if others.contains(&number) {
                // What came after they were listed and before they were watched.
                look(&index, outbox.as_ref(), number, true);
            } else if let Some(outbox) = &outbox {
                outbox.changed(number);
            }
        }
        let keeper = Keeper::start(Arc::clone(&index), swept).map_err(OpenError::Watch)?;
        let keeper = Some(keeper);
        if options.carry {
            let marked = Arc::downgrade(&links);
            index.subscribe(move |_| marked.upgrade().iter().for_each(|links| links.marked()));
            let carried = carried(&index, outbox.as_ref());
            links.start(&carried, &shared_marks(&index)).map_err(OpenError::Watch)?;
        }
        if let Some(watcher) = &watcher {
            // From now on stores that come are taken in.
            doorway.waker.get_or_init(|| watcher.waker().clone()).ask_again();
        }
        Ok(Self { me, key, index, outbox, tree, watcher, keeper, links, warnings, late, lock })
    }

    /// Who I am, and how it was found out.
    pub fn me(&self) -> &Me {
        &self.me
    }

    /// The tree.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Fingerprint of my key; `None` if it cannot be used.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.key.map(|key| key.fingerprint())
    }

    /// What is wrong and did not stand in the way, one line each.
    pub fn warnings(&self) -> Vec<String> {
        let mut all = self.warnings.clone();
        all.extend(self.index.others_as_me());
        all
    }

    /// Number of unread messages.
    pub fn unread(&self) -> usize {
        self.index.read().unread()
    }

    /// The messages of an address that the stores hold, for
    /// [`Keyring::forget`](crate::identity::Keyring::forget).
    pub fn prints_of(&self, address: &str) -> BTreeSet<Print> {
        self.index.prints_of(address)
    }

    /// The links.
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// The stores.
    pub fn stores(&self) -> &[Arc<dyn Store>] {
        self.index.stores()
    }

    /// Returns whether a store that somebody asked for is left out as yet.
    pub fn awaits_store(&self) -> bool {
        self.late.iter().any(|late| late.said().is_some())
    }

    /// Ends: what was promised is sent, marks and index are on disk, the stores are told. Another process may act
    /// for me once the lock that this gives back is dropped.
    pub fn close(mut self) -> Option<StateLock> {
        if let Some(outbox) = &self.outbox {
            outbox.close();
        }
        self.links.stop();
        drop(self.watcher.take());
        drop(self.keeper.take());
        self.index.close();
        self.lock
    }
}

fn open_outbox(
    paths: &Paths,
    config: &Config,
    index: &Arc<Index>,
    keys: Arc<Keys>,
    options: &Options,
) -> Result<Option<Arc<Outbox>>, OpenError> {
    let look = options.read_only;
    if look && options.mountpoint.is_some() {
        // What a mount shows as long as it lasts would not follow the drafts of whoever writes them.
        return Ok(None);
    }
    let settings = outbox::Settings {
        durability: config.durability,
        max_message: config.max_message,
        unknown_recipient: config.unknown_recipient,
        groups: config.groups.clone(),
    };
    let open = if look { Outbox::look } else { Outbox::open };
    let outbox = open(&paths.state, Arc::clone(index), keys, settings)?;
    let outbox = Arc::new(outbox);
    if !look {
        outbox.resume();
    }
    Ok(Some(outbox))
}

/// What happens when a link has carried something: the store is looked at, and delivers.
fn carried(index: &Arc<Index>, outbox: Option<&Arc<Outbox>>) -> link::Changed {
    let (index, outbox) = (Arc::clone(index), outbox.cloned());
    Arc::new(move |number| look(&index, outbox.as_ref(), number, false))
}

/// The marks of a store.
struct MarksOfStore(Arc<Index>, usize);

impl std::fmt::Debug for MarksOfStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MarksOfStore").field(&self.1).finish_non_exhaustive()
    }
}

impl link::Marks for MarksOfStore {
    fn since(&self, at: u64) -> std::io::Result<(Vec<Mark>, u64)> {
        self.0.marks_since(self.1, at)
    }

    fn hear(&self, at: u64, heard: &[Mark]) -> std::io::Result<Option<u64>> {
        self.0.hear_marks(self.1, at, heard)
    }
}

/// What links tell my other machines of.
fn shared_marks(index: &Arc<Index>) -> link::MarksOf {
    let index = Arc::clone(index);
    Arc::new(move |number| Arc::new(MarksOfStore(Arc::clone(&index), number)))
}

/// Has a store looked at, and what waits in it delivered. What cannot be read now is told in status.txt and
/// tried again.
fn look(index: &Index, outbox: Option<&Arc<Outbox>>, number: usize, full: bool) {
    let recovery = index.stores().get(number).and_then(|store| store.facets().recovery);
    if let Some(recovery) = recovery.filter(|_| full) {
        recovery.suspect();
    }
    let looked = if full { index.refresh(number, true) } else { index.catch_up(number) };
    if let Err(e) = looked {
        tracing::warn!(error = %e, "the store cannot be read now");
    }
    if let Some(outbox) = outbox {
        outbox.changed(number);
    }
}

/// What is watched: the stores, by their numbers, also `more` that may come later, and then the keyring, for
/// `msgfs key trust` while mounted, and what is asked of links.
fn targets(
    index: &Arc<Index>,
    outbox: Option<&Arc<Outbox>>,
    links: &Arc<Links>,
    paths: &Paths,
    more: usize,
) -> Vec<Target> {
    let mut targets = Vec::new();
    for number in 0..index.stores().len() + more {
        let [listed, asked, read, index] = [(); 4].map(|()| Arc::clone(index));
        let (links, outbox) = (Arc::clone(links), outbox.cloned());
        targets.push(Target {
            dirs: Box::new(move || {
                listed.stores().get(number).map_or_else(Vec::new, |store| store.watched())
            }),
            concerns: Box::new(move |folder, name| {
                asked.stores().get(number).is_some_and(|store| store.concerns(folder, name))
            }),
            closed: false,
            changed: Box::new(move |what| {
                let paths = match what {
                    Changed::Paths(paths) => Some(paths.as_slice()),
                    Changed::Unknown => None,
                };
                let Some(store) = index.stores().get(number) else { return };
                paths.into_iter().flatten().for_each(|path| store.note(path));
                links.changed(number, paths);
                look(&index, outbox.as_ref(), number, paths.is_none());
            }),
            failing: Box::new(move || read.is_failing(number)),
        });
    }
    let keyring = paths.keyring_file();
    let name = keyring.file_name().unwrap_or_default().to_owned();
    let (state, index, outbox) = (paths.state.clone(), Arc::clone(index), outbox.cloned());
    targets.push(Target {
        dirs: Box::new(move || vec![state.clone()]),
        concerns: Box::new(move |_, changed| changed == name),
        // Spool and marks lie there, too.
        closed: true,
        changed: Box::new(move |_| {
            if index.keyring().reload_if_changed() {
                index.judge_again();
                // What is derived from messages that count may be another now.
                let stores = 0..index.stores().len();
                stores.for_each(|n| outbox.iter().for_each(|outbox| outbox.changed(n)));
            }
        }),
        failing: Box::new(|| false),
    });
    let (asked, hears) = (Arc::clone(links), Arc::clone(links));
    targets.push(Target {
        dirs: Box::new(move || asked.folders()),
        concerns: Box::new(|_, name| name == link::request::FILE),
        closed: true,
        changed: Box::new(move |_| hears.hear()),
        failing: Box::new(|| false),
    });
    targets
}

/// The thread that tells stores what was read and writes the snapshot. Sleeps while nothing changes.
struct Keeper {
    index: Arc<Index>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// `own`: msgfs's folders, if anything may be written.
    fn start(index: Arc<Index>, own: Vec<PathBuf>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (of_thread, stopped) = (Arc::clone(&index), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("msgfs-keep".into()).spawn(move || {
            sweep(&of_thread, &own);
            keep(&of_thread, &stopped);
        })?;
        Ok(Self { index, stop, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.index.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Removes what a killed msgfs left in its own folders and in those of the stores. In folders of
/// others that is done before something is delivered there.
fn sweep(index: &Index, own: &[PathBuf]) {
    for folder in own {
        place::sweep(folder, Path::new(""));
    }
    index.stores().iter().filter(|_| !own.is_empty()).for_each(|store| sweep_store(store.as_ref()));
}

fn sweep_store(store: &dyn Store) {
    let written = store.facets().deliveries.map(Deliveries::written);
    let folders = store.watched().into_iter().chain(written.into_iter().flatten());
    for folder in folders.chain([store.dir().to_owned()]) {
        if let Ok(below) = folder.strip_prefix(store.dir()) {
            place::sweep(store.dir(), below);
        }
    }
}

fn keep(index: &Index, stop: &AtomicBool) {
    let mut saved = Instant::now();
    let mut unsaved = true;
    // What a killed one, or one that found the store read-only, could not tell.
    let mut again = index.tell_stores();
    // After a first index, which is not in memory any more then.
    index.save();
    let (mut seen, mut pause) = (0, TELL_AFTER);
    loop {
        let idle = if unsaved { SAVE_EVERY } else { Duration::from_secs(24 * 3600) };
        let limit = again.unwrap_or(idle);
        let now = index.wait(seen, Instant::now() + limit);
        if stop.load(Ordering::Relaxed) {
            return;
        }
        unsaved |= now != seen;
        seen = now;
        std::thread::sleep(pause);
        // Of many messages the read position takes long to find. While they are read it is told with a tenth
        // of the time.
        let start = Instant::now();
        again = index.tell_stores();
        pause = (start.elapsed() * 9).clamp(TELL_AFTER, TELL_AT_LEAST);
        if unsaved && saved.elapsed() >= SAVE_EVERY {
            index.save();
            saved = Instant::now();
            unsaved = false;
        }
    }
}
