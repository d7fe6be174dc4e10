//! The common start of every mailbox, and a read-only glance at one.

use std::path::Path;
use std::sync::Arc;

use super::pending_stores::PendingStore;
use super::{MailboxOpenError, MailboxOptions};
use crate::config::{
    Config, Env, Me, MountedAddress, Paths, StateLock, find_lock_holder, list_mounted_addresses,
};
use crate::identity::{KeyError, Keyring, OwnKey, SignerRegistry};
use crate::index::{self, Index};
use crate::link::carrier::CarrierProgram;
use crate::link::{CarryCheck, LinkSet, LinkSetOptions};
use crate::model::{PublicKey, Watch, sanitize_line};
use crate::outbox::{OutboxError, REPLY_WARNINGS_LOG, SigningKeys};
use crate::search::SearchSettings;
use crate::store::{self, FolderListener, Signer as _, Store, StoreError};
use crate::view::{self, Tree};
use crate::watch::WatcherBuilder;

/// The parts that every mailbox has, whatever it is for.
pub(super) struct MailboxBase {
    /// Watches the folders that were listed.
    pub(super) ahead: Arc<WatcherBuilder>,
    pub(super) config: Config,
    pub(super) me: Me,
    pub(super) paths: Paths,
    pub(super) lock: Option<StateLock>,
    pub(super) key: Option<PublicKey>,
    /// The fault of my key.
    pub(super) key_fault: Option<String>,
    pub(super) keys: SigningKeys,
    pub(super) links: Arc<LinkSet>,
    pub(super) index: Arc<Index>,
    pub(super) warnings: Vec<String>,
    /// The stores that may come later.
    pub(super) pending_stores: Vec<PendingStore>,
}

impl MailboxBase {
    /// Opens the parts. `follows`: later changes in the stores are followed.
    pub(super) fn open(
        options: &MailboxOptions,
        env: &Env,
        follows: bool,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Self, MailboxOpenError> {
        let config = Config::load(options.config.as_deref(), env)?;
        let me = Me::resolve(options.me.as_deref(), env, &config)?;
        let paths = Paths::new(env, &me.name)?;
        let mut warnings: Vec<String> = Vec::new();
        let lock = if options.read_only {
            // A read-only mailbox makes no folders.
            if paths.state.exists() {
                paths.check_state()?;
            }
            None
        } else {
            paths.create_state()?;
            if let Err(error) = paths.create_cache() {
                warnings.push(format!("{error}; without it each start reads the stores anew"));
            }
            Some(StateLock::acquire(&paths.state, options.mountpoint.as_deref())?)
        };
        let used = SignerRegistry::open(&paths.signers_file(), options.read_only);
        let own = OwnKey::new(paths.key_file(), !options.read_only);
        let (mine, problem) = load_own_key(&own, &used, options.read_only);
        let state = (paths.state.as_path(), !options.read_only);
        let (stores, late) = open_stores(&config, env, &me, state, &mut warnings)?;
        let links = Arc::new(open_links(&config, &stores, &paths, options, &mut warnings));
        let keyring = open_keyring(&paths, &me, mine, options.read_only)?;
        let keys = SigningKeys::new(move |used| own.load_current(used), Arc::clone(&keyring), used);
        let my_keys = collect_store_keys(&stores, &keys, options.read_only);
        let key = keys.public_keys(&stores).shown;
        let settings = index::IndexSettings {
            marks: paths.state.join("marks"),
            snapshot: paths.cache.join("index"),
            map: store::fs::is_local(&paths.cache),
            unsigned: config.unsigned,
            read_only: options.read_only,
            my_keys,
        };
        let ahead = Arc::new(WatcherBuilder::new(if follows { config.watch } else { Watch::Poll }));
        for store in stores.iter().filter(|_| follows) {
            store.folders_to_watch().iter().for_each(|folder| ahead.watch_folder(folder));
            store.set_folder_listener(Arc::clone(&ahead) as _);
        }
        let index = Arc::new(Index::open(stores, keyring, settings, progress)?);
        Ok(Self {
            ahead,
            config,
            me,
            paths,
            lock,
            key,
            key_fault: problem,
            keys,
            links,
            index,
            warnings,
            pending_stores: late,
        })
    }
}

impl FolderListener for WatcherBuilder {
    fn note_listing(&self, folder: &Path) {
        self.watch_folder(folder);
    }
}

/// Notes my addresses, so that other identities of this user see that I have a mount.
pub(super) fn announce_mount(
    lock: &StateLock,
    options: &MailboxOptions,
    index: &Index,
) -> Result<(), MailboxOpenError> {
    let stores = index.stores().iter().filter(|store| store.properties().shows_mounted);
    let addresses: Vec<MountedAddress> =
        stores.map(|store| MountedAddress::new(store.me(), store.dir())).collect();
    Ok(lock.write_holder(options.mountpoint.as_deref(), &addresses)?)
}

/// Returns the settings of the tree, without warnings and what links tell.
pub(super) fn build_view_settings(
    config: &Config,
    me: &Me,
    paths: &Paths,
    key: Option<PublicKey>,
    options: &MailboxOptions,
) -> view::TreeSettings {
    let state = paths.state.clone();
    view::TreeSettings {
        me: me.name.clone(),
        key,
        mark_read: config.mark_read,
        scope: config.scope,
        wait_timeout: config.wait_timeout,
        read_only: options.read_only,
        allow_other: options.allow_other,
        warnings: Arc::default(),
        recent_reads_file: paths.read_last_file(),
        reply_warnings_file: paths.state.join(REPLY_WARNINGS_LOG),
        link_boards: Arc::default(),
        taken_logs: Arc::default(),
        bell_record: None,
        groups: config.groups.clone(),
        find_mounted: view::MountedFinder(Arc::new(move |dir| list_mounted_addresses(&state, dir))),
        search: config.search.then(|| SearchSettings {
            file: paths.search_file(),
            may_write: !options.read_only || options.may_index,
        }),
    }
}

/// A mailbox as it is at one moment. It makes, writes, locks, follows and carries nothing.
pub struct MailboxGlance {
    config: Config,
    me: Me,
    paths: Paths,
    tree: Tree,
}

impl MailboxGlance {
    /// Opens a glance at a mailbox.
    ///
    /// # Errors
    /// Returns the errors of [`Mailbox::open`](super::Mailbox::open).
    pub fn open(options: &MailboxOptions, env: &Env) -> Result<Self, MailboxOpenError> {
        let options = MailboxOptions { read_only: true, ..options.clone() };
        let MailboxBase { config, me, paths, key, index, .. } =
            MailboxBase::open(&options, env, false, &mut |_, _| {})?;
        let tree = Tree::new(index, None, build_view_settings(&config, &me, &paths, key, &options));
        Ok(Self { config, me, paths, tree })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns me, and how it was determined.
    pub fn me(&self) -> &Me {
        &self.me
    }

    /// Returns the paths of this identity's state, if there is any.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Returns the tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }
}

/// Returns my own key, made at first use, or the reason why it cannot sign. A read-only mailbox makes no key.
fn load_own_key(
    own: &OwnKey,
    used: &SignerRegistry,
    read_only: bool,
) -> (Option<PublicKey>, Option<String>) {
    match own.load_current(used) {
        Ok(seed) => (Some(seed.public_key()), None),
        Err(KeyError::Missing { .. }) if read_only => (None, None),
        Err(e) => (None, Some(e.to_string())),
    }
}

/// The stores that are open, and those that may come later.
type OpenedStores = (Vec<Arc<dyn Store>>, Vec<PendingStore>);

/// Opens the configured stores and those found at their default places. A store that cannot be opened does not
/// hide the others; it is returned among the pending stores.
///
/// # Errors
/// Returns the first error if no store can be opened.
fn open_stores(
    config: &Config,
    env: &Env,
    me: &Me,
    state: (&Path, bool),
    warnings: &mut Vec<String>,
) -> Result<OpenedStores, MailboxOpenError> {
    let (mut stores, mut late) = (Vec::new(), Vec::new());
    let (mut failed, mut told) = (None, Vec::new());
    for spec in config.stores(env, &me.name)? {
        match open_store(&spec, state) {
            Ok(store) => stores.push(store),
            Err(error) => {
                let left = PendingStore::from_configured(spec.clone(), &error);
                told.extend(left.warning());
                late.push(left);
                failed = failed.or(Some(MailboxOpenError::Store(spec.name, error)));
            }
        }
    }
    late.extend(
        config
            .absent_stores(env, &me.name)
            .into_iter()
            .map(|vacant| PendingStore::from_vacant(vacant, env)),
    );
    for spec in config.find_default_stores(env, &me.name) {
        match open_store(&spec, state) {
            Ok(store) => stores.push(store),
            Err(error) => {
                let called = label_default_store(&spec, env);
                let left = PendingStore::from_open_error(spec, called, &error);
                left.warning().iter().for_each(|text| tracing::info!("{}", sanitize_line(text)));
                late.push(left);
            }
        }
    }
    warnings.extend(late.iter().filter_map(PendingStore::warning));
    let is_fatal = failed.is_some() && stores.is_empty();
    // The error tells of the first one.
    for text in told.iter().skip(usize::from(is_fatal)) {
        tracing::warn!("{}", sanitize_line(text));
    }
    failed.filter(|_| is_fatal).map_or(Ok((stores, late)), Err)
}

/// Returns the label of a store at its default place.
pub(super) fn label_default_store(spec: &store::StoreSpec, env: &Env) -> String {
    format!("the {} store at {}", spec.kind, env.display_home(&spec.dir))
}

/// Opens one store, with its state in the folder of all state, which may be written or not.
///
/// # Errors
/// If the store cannot be opened, or its state cannot be read.
pub fn open_store(
    spec: &store::StoreSpec,
    (state, may_write): (&Path, bool),
) -> Result<Arc<dyn Store>, StoreError> {
    let dir = state.join("stores").join(&spec.name);
    let state = may_write.then(|| dir.clone());
    let opened = store::open(&store::StoreSpec { state, ..spec.clone() })?;
    if !may_write {
        opened.read_state(&dir)?;
    }
    Ok(opened)
}

fn open_keyring(
    paths: &Paths,
    me: &Me,
    mine: Option<PublicKey>,
    read_only: bool,
) -> Result<Arc<Keyring>, MailboxOpenError> {
    let file = paths.keyring_file();
    let open = if read_only { Keyring::open_read_only } else { Keyring::open };
    let keyring = open(&file)?;
    if let Some(key) = mine {
        // The pin comes before anything is read: a forged message from me must not be the first to pin a key.
        if !read_only {
            keyring.trust_key(&me.name, Some(key))?;
        }
        keyring.keep_own_key(&me.name, key);
    }
    Ok(Arc::new(keyring))
}

/// Returns my public key in each store. Each key is pinned to my addresses there before anything is read; a read-only
/// mailbox does so in memory, and only where no key is pinned. A store without a usable key can still be read, and
/// sending to it reports the reason.
pub(super) fn collect_store_keys(
    stores: &[Arc<dyn Store>],
    keys: &SigningKeys,
    read_only: bool,
) -> Vec<Option<PublicKey>> {
    if read_only {
        let known = keys.public_keys(stores).by_store;
        for (store, key) in stores.iter().zip(&known) {
            if let Some(key) = key {
                keys.keep_key_for_store(store.as_ref(), *key);
            }
        }
        return known;
    }
    let key = |store: &Arc<dyn Store>| {
        let identity = keys.pin_key_for_store(store.as_ref());
        let told = |e: &OutboxError| {
            let why = e.to_string();
            tracing::info!(store = store.name(), why = %sanitize_line(&why), "no key");
        };
        identity.inspect_err(told).ok().map(|identity| identity.public_key())
    };
    stores.iter().map(key).collect()
}

/// Opens the links of the stores. A read-only mailbox has none, and learns only what became of waiting messages.
fn open_links(
    config: &Config,
    stores: &[Arc<dyn Store>],
    paths: &Paths,
    options: &MailboxOptions,
    warnings: &mut Vec<String>,
) -> LinkSet {
    let linked = config.linked_stores();
    let Some(wanted) = gather_link_inputs(config, &linked, stores, paths) else {
        return LinkSet::default();
    };
    if options.read_only {
        return LinkSet::open_read_only(&wanted);
    }
    LinkSet::open(&wanted, warnings)
}

/// Returns the inputs for the links of these stores; `linked` comes from [`Config::linked_stores`].
pub(super) fn gather_link_inputs<'a>(
    config: &'a Config,
    linked: &'a [String],
    stores: &'a [Arc<dyn Store>],
    paths: &'a Paths,
) -> Option<LinkSetOptions<'a>> {
    let carrier = CarrierProgram::Program(std::env::current_exe().ok()?);
    let (specs, state) = (&config.links, &paths.state);
    let held = state.clone();
    let carry_check = CarryCheck(Arc::new(move || find_lock_holder(&held).is_some()));
    Some(LinkSetOptions { stores, specs, self_described: linked, state, carrier, carry_check })
}
