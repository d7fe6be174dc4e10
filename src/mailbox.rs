//! Puts it all together: configuration, key, stores, index, outbox, tree, watch.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::{
    Config, ConfigError, Env, Holder, LockError, Me, MeError, PathError, Paths, StateLock,
};
use crate::identity::{Identity, Keyring, KeyringError};
use crate::index::{self, Index, IndexError};
use crate::model::Fingerprint;
use crate::outbox::{self, Outbox, OutboxError};
use crate::store::{self, Signer, Store, StoreError};
use crate::view::{self, Tree};
use crate::watch::{Target, Watcher};

/// Marks of one burst are told to the stores together.
const TELL_AFTER: Duration = Duration::from_millis(30);
/// How often the snapshot is written while things change.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// What to open.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration file, if not the default one.
    pub config: Option<PathBuf>,
    /// Who to act for, if named.
    pub me: Option<String>,
    /// Nothing is written, and the state is not locked.
    pub read_only: bool,
    /// Where the tree will be mounted, for those who look for it.
    pub mountpoint: Option<PathBuf>,
    /// The tree will be shown to every user.
    pub allow_other: bool,
}

/// Why a mailbox cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process acts for this me.
    #[error(transparent)]
    Held(#[from] HeldError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Who I am cannot be told.
    #[error(transparent)]
    Me(#[from] MeError),
    /// There is no place for state.
    #[error(transparent)]
    Paths(#[from] PathError),
    /// The lock file.
    #[error(transparent)]
    Lock(LockError),
    /// The keyring cannot be used.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// A store cannot be opened.
    #[error("store {name}: {error}")]
    Store {
        /// Its name.
        name: String,
        /// What is wrong.
        error: StoreError,
    },
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

/// Another process acts for this me; the text names it.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct HeldError {
    /// Who.
    pub holder: Holder,
    text: String,
}

impl From<LockError> for OpenError {
    fn from(e: LockError) -> Self {
        let text = e.to_string();
        match e {
            LockError::Held(holder) => Self::Held(HeldError { holder, text }),
            other @ LockError::Io { .. } => Self::Lock(other),
        }
    }
}

/// An open mailbox.
pub struct Mailbox {
    me: Me,
    config: Config,
    fingerprint: Option<Fingerprint>,
    index: Arc<Index>,
    outbox: Option<Arc<Outbox>>,
    tree: Arc<Tree>,
    watcher: Option<Watcher>,
    keeper: Option<Keeper>,
    _lock: Option<StateLock>,
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Mailbox {
    /// Finds out who and where, locks the state, opens the stores and brings the index up to date.
    /// `progress` gets bytes done and bytes in all.
    ///
    /// # Errors
    /// Whatever stands in the way, in words that say what to do.
    pub fn open(options: &Options, progress: &mut dyn FnMut(u64, u64)) -> Result<Self, OpenError> {
        let env = Env::from_process();
        let config = Config::load(options.config.as_deref(), &env)?;
        let me = Me::resolve(options.me.as_deref(), &env, &config)?;
        let paths = Paths::new(&env, &me.name)?;
        paths.create_state()?;
        paths.create_cache()?;
        let lock = if options.read_only {
            None
        } else {
            Some(StateLock::acquire(&paths.state, options.mountpoint.as_deref())?)
        };
        let (signer, problem) = signer(&paths);
        let stores = open_stores(&config, &env, &me)?;
        let keyring = open_keyring(&paths, &me, signer.as_deref(), options.read_only)?;
        let my_key = signer.as_ref().map(|s| s.public_key());
        let settings = index::Settings {
            marks: paths.state.join("marks"),
            snapshot: paths.cache.join("index"),
            unsigned: config.unsigned,
            read_only: options.read_only,
            my_key,
        };
        let index = Arc::new(Index::open(stores, keyring, settings, progress)?);
        let outbox = open_outbox(&paths, &config, &index, signer, problem.as_ref(), options)?;
        let settings = view::Settings {
            me: me.name.clone(),
            fingerprint: my_key.map(|k| k.fingerprint()),
            mark_read: config.mark_read,
            scope: config.scope,
            wait_timeout: config.wait_timeout,
            read_only: options.read_only,
            allow_other: options.allow_other,
            warnings: problem.into_iter().collect(),
        };
        let tree = Arc::new(Tree::new(Arc::clone(&index), outbox.clone(), settings));
        let watcher = Some(follow(&index, &paths, &config).map_err(OpenError::Watch)?);
        for number in 0..index.stores().len() {
            // What came after the index was opened and before the folders were watched.
            index.refresh(number)?;
        }
        let keeper = Some(Keeper::start(Arc::clone(&index)).map_err(OpenError::Watch)?);
        let fingerprint = my_key.map(|k| k.fingerprint());
        Ok(Self { me, config, fingerprint, index, outbox, tree, watcher, keeper, _lock: lock })
    }

    /// Who I am, and how it was found out.
    pub fn me(&self) -> &Me {
        &self.me
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tree.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Fingerprint of my key; `None` if it cannot be used.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    /// Number of unread messages.
    pub fn unread(&self) -> usize {
        self.index.read().unread()
    }

    /// The stores.
    pub fn stores(&self) -> &[Arc<dyn Store>] {
        self.index.stores()
    }

    /// Ends: what was promised is sent, marks and index are on disk, the stores are told.
    pub fn close(mut self) {
        if let Some(outbox) = &self.outbox {
            outbox.close();
        }
        drop(self.watcher.take());
        drop(self.keeper.take());
        self.index.close();
    }
}

/// My key, made at first use; or why nothing can be signed.
fn signer(paths: &Paths) -> (Option<Arc<dyn Signer>>, Option<String>) {
    match Identity::load_or_create(&paths.key_file()) {
        Ok(identity) => (Some(Arc::new(identity)), None),
        Err(e) => (None, Some(e.to_string())),
    }
}

fn open_stores(config: &Config, env: &Env, me: &Me) -> Result<Vec<Arc<dyn Store>>, OpenError> {
    let mut stores = Vec::new();
    for spec in config.stores(env, &me.name)? {
        let store = store::open(spec.kind, &spec.name, &spec.dir, &spec.me)
            .map_err(|error| OpenError::Store { name: spec.name.clone(), error })?;
        stores.push(store);
    }
    Ok(stores)
}

fn open_keyring(
    paths: &Paths,
    me: &Me,
    signer: Option<&dyn Signer>,
    read_only: bool,
) -> Result<Arc<Keyring>, OpenError> {
    let file = paths.keyring_file();
    if read_only {
        return Ok(Arc::new(Keyring::open_read_only(&file)?));
    }
    let keyring = Keyring::open(&file)?;
    if let Some(signer) = signer {
        // Before anything is read: a forged message from me must not be the first to pin a key.
        keyring.trust(&me.name, Some(signer.public_key()))?;
    }
    Ok(Arc::new(keyring))
}

fn open_outbox(
    paths: &Paths,
    config: &Config,
    index: &Arc<Index>,
    signer: Option<Arc<dyn Signer>>,
    problem: Option<&String>,
    options: &Options,
) -> Result<Option<Arc<Outbox>>, OpenError> {
    if options.read_only {
        return Ok(None);
    }
    let signer = signer.ok_or_else(|| problem.cloned().unwrap_or_default());
    let settings = outbox::Settings {
        durability: config.durability,
        max_message: config.max_message,
        unknown_recipient: config.unknown_recipient,
    };
    Ok(Some(Arc::new(Outbox::open(&paths.state, Arc::clone(index), signer, settings)?)))
}

/// Watches the stores, and the keyring for `msgfs key trust` while mounted.
fn follow(index: &Arc<Index>, paths: &Paths, config: &Config) -> std::io::Result<Watcher> {
    let mut targets = Vec::new();
    for (number, store) in index.stores().iter().enumerate() {
        for dir in store.watched() {
            let (watched, index) = (Arc::clone(store), Arc::clone(index));
            targets.push(Target {
                dir,
                concerns: Box::new(move |name| watched.concerns(name)),
                changed: Box::new(move || {
                    if let Err(e) = index.refresh(number) {
                        tracing::warn!(error = %e, "the store cannot be read now");
                    }
                }),
            });
        }
    }
    let keyring = paths.keyring_file();
    let name = keyring.file_name().unwrap_or_default().to_owned();
    let index = Arc::clone(index);
    targets.push(Target {
        dir: paths.state.clone(),
        concerns: Box::new(move |changed| changed == name),
        changed: Box::new(move || {
            if index.keyring().reload_if_changed() {
                index.judge_again();
            }
        }),
    });
    Watcher::start(targets, config.watch)
}

/// The thread that tells stores what was read and writes the snapshot. Sleeps while nothing changes.
struct Keeper {
    index: Arc<Index>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    fn start(index: Arc<Index>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (of_thread, stopped) = (Arc::clone(&index), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("msgfs-keep".into())
            .spawn(move || keep(&of_thread, &stopped))?;
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

fn keep(index: &Index, stop: &AtomicBool) {
    let mut saved = Instant::now();
    let mut unsaved = true;
    let mut seen = 0;
    loop {
        let limit = if unsaved { SAVE_EVERY } else { Duration::from_secs(24 * 3600) };
        let now = index.wait(seen, Instant::now() + limit);
        if stop.load(Ordering::Relaxed) {
            return;
        }
        unsaved |= now != seen;
        seen = now;
        std::thread::sleep(TELL_AFTER);
        index.tell_stores();
        if unsaved && saved.elapsed() >= SAVE_EVERY {
            index.save();
            saved = Instant::now();
            unsaved = false;
        }
    }
}
