//! Pending stores: those that could not be opened with the mailbox, and those that may come to a default place.
//!
//! The folder of each is watched, or the nearest existing folder above it. The store is opened as soon as
//! possible: its key is pinned, it is added to the index, its links are opened, and what waits for it is sent.
//! Until then a store that somebody asked for is among the warnings, with the reason. It is tried again every
//! half minute at least, because not every reason ends with an event.

use std::fs;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::base::{collect_store_keys, gather_link_inputs, label_default_store, open_store};
use super::{scan_and_deliver, sweep_store};
use crate::config::{AbsentStore, Config, Env, Paths};
use crate::index::Index;
use crate::link::LinkSet;
use crate::model::locks::{Mutex, RwLock};
use crate::model::sanitize_line;
use crate::outbox::{Outbox, SigningKeys};
use crate::store::{Store, StoreError, StoreSpec, probe};
use crate::watch::{Waker, WatchTarget};

/// Most folders below that of the store in which a change is looked for, at each depth.
const FOLDERS: usize = 256;
/// The depth of these folders.
const DEPTH: usize = 2;

/// A store that is not open, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnopenedStore {
    /// Its name.
    pub name: String,
    /// True if the configuration asks for it.
    pub is_configured: bool,
    /// The warning about it, which says why it is not open.
    pub warning: String,
}

/// A store that may come.
#[derive(Debug)]
pub(super) struct PendingStore {
    spec: StoreSpec,
    /// The label of the store in warnings.
    label: String,
    /// The configuration asks for the store.
    is_configured: bool,
    /// The empty default place. Nobody asked for the store, unless there is something at that place.
    vacant: Option<AbsentStore>,
    /// The warning about it.
    warning: Mutex<Option<String>>,
    /// The store is to be tried without an event.
    is_due: AtomicBool,
    /// The store is open.
    is_open: AtomicBool,
}

impl PendingStore {
    fn new(spec: StoreSpec, called: String) -> Self {
        let (is_due, is_here) = (true.into(), false.into());
        Self {
            spec,
            label: called,
            is_configured: false,
            vacant: None,
            warning: Mutex::default(),
            is_due,
            is_open: is_here,
        }
    }

    /// Returns a configured store that cannot be opened.
    pub(super) fn from_configured(spec: StoreSpec, why: &StoreError) -> Self {
        let called = format!("the store {}", spec.name);
        Self { is_configured: true, ..Self::from_open_error(spec, called, why) }
    }

    /// Returns a store that exists and cannot be opened.
    pub(super) fn from_open_error(spec: StoreSpec, called: String, why: &StoreError) -> Self {
        let late = Self::new(spec, called);
        *late.warning.lock() = Some(late.format_warning(why));
        late
    }

    /// Returns a store that is not at its default place.
    pub(super) fn from_vacant(vacant: AbsentStore, env: &Env) -> Self {
        let called = label_default_store(&vacant.spec, env);
        let said = Mutex::new(vacant.explain_variable());
        let late = Self::new(vacant.spec.clone(), called);
        Self { warning: said, vacant: Some(vacant), ..late }
    }

    /// Returns the warning about it, as long as it is not open.
    pub(super) fn warning(&self) -> Option<String> {
        self.warning.lock().clone()
    }

    /// Returns the store for a person, if there is a warning about it.
    pub(super) fn describe(&self) -> Option<UnopenedStore> {
        let (name, is_configured) = (self.spec.name.clone(), self.is_configured);
        Some(UnopenedStore { name, is_configured, warning: self.warning()? })
    }

    fn format_warning(&self, error: &impl std::fmt::Display) -> String {
        format!("{} is left out: {error}", self.label)
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Returns true if the store is tried again even if nothing happens.
    fn should_retry(&self) -> bool {
        let dir = &self.spec.dir;
        // The target of a symlink may appear without an event at the symlink.
        let dangles = || fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_symlink());
        let is_due =
            || self.is_due.load(Ordering::Relaxed) || self.warning().is_some() || dangles();
        !self.is_open() && is_due()
    }

    /// Returns the folders in which something must change before the store can be opened.
    fn watched_folders(&self) -> Vec<PathBuf> {
        if self.is_open() || probe::require_response(&self.spec.dir).is_err() {
            return Vec::new();
        }
        let nearest = self.spec.dir.ancestors().find(|folder| folder.is_dir());
        let mut out: Vec<PathBuf> = nearest.map(Path::to_owned).into_iter().collect();
        let mut level = out.clone();
        level.retain(|found| *found == self.spec.dir);
        for _ in 0..DEPTH {
            let inside = |folder: &PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
            let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
            let below = level.iter().flat_map(inside).filter(is_dir).map(|entry| entry.path());
            level = below.take(FOLDERS).collect();
            out.extend(level.iter().cloned());
        }
        out
    }
}

/// The means to open pending stores and to add them.
pub(super) struct PendingStoreOpener {
    pub(super) index: Arc<Index>,
    pub(super) outbox: Option<Arc<Outbox>>,
    pub(super) links: Arc<LinkSet>,
    pub(super) keys: Arc<SigningKeys>,
    pub(super) config: Config,
    pub(super) paths: Paths,
    pub(super) mountpoint: Option<PathBuf>,
    pub(super) read_only: bool,
    /// The lines of `status.txt`.
    pub(super) warnings: Arc<RwLock<Vec<String>>>,
    /// Wakes the watcher for the folders of a new store. It is set once the mailbox is open; no store is added
    /// before.
    pub(super) waker: OnceLock<Waker>,
}

impl PendingStoreOpener {
    /// Opens and adds a pending store if that is possible now.
    fn try_open(&self, late: &PendingStore) {
        let Some(waker) = self.waker.get().filter(|_| !late.is_open()) else { return };
        late.is_due.store(false, Ordering::Relaxed);
        if let Some(vacant) = late.vacant.as_ref().filter(|vacant| vacant.is_absent()) {
            return self.set_warning(late, vacant.explain_variable());
        }
        match self.open_pending_store(late) {
            Err(why) => self.set_warning(late, Some(late.format_warning(&why))),
            Ok(store) => {
                if let Err(why) = self.add_store(late, &store) {
                    return self.set_warning(late, Some(late.format_warning(&why)));
                }
                waker.refresh_folders();
            }
        }
    }

    /// Replaces the warning about a store, also in `status.txt`.
    fn set_warning(&self, late: &PendingStore, what: Option<String>) {
        let before = std::mem::replace(&mut *late.warning.lock(), what.clone());
        if before == what {
            return;
        }
        if let Some(text) = &what {
            tracing::info!("{}", sanitize_line(text));
        }
        let mut warnings = self.warnings.write();
        let place = warnings.iter().position(|line| Some(line) == before.as_ref());
        let place = place.inspect(|place| drop(warnings.remove(*place)));
        let place = place.unwrap_or(warnings.len());
        warnings.splice(place..place, what);
    }

    fn open_pending_store(&self, late: &PendingStore) -> Result<Arc<dyn Store>, String> {
        let store = open_store(&late.spec, (&self.paths.state, !self.read_only))
            .map_err(|e| e.to_string())?;
        let dir = fs::canonicalize(store.dir()).unwrap_or_else(|_| store.dir().to_owned());
        let holds = |mount: &PathBuf| mount.starts_with(&dir) || dir.starts_with(mount);
        if let Some(mount) = self.mountpoint.as_ref().filter(|mount| holds(mount)) {
            return Err(format!(
                "of {} and the mount point {}, one lies inside the other; mount on another folder",
                sanitize_line(&dir.to_string_lossy()),
                sanitize_line(&mount.to_string_lossy())
            ));
        }
        Ok(store)
    }

    /// Adds a store like one that was there from the start.
    fn add_store(&self, late: &PendingStore, store: &Arc<dyn Store>) -> Result<(), String> {
        // The pin comes before anything is read: a forged message from me must not be the first to pin a key.
        let key =
            collect_store_keys(slice::from_ref(store), &self.keys, self.read_only).pop().flatten();
        let added = self.index.add_store(Arc::clone(store), key);
        let number = added.map_err(|e| e.to_string())?;
        late.is_open.store(true, Ordering::Relaxed);
        tracing::info!(
            store = late.spec.name,
            "a store that was left out can be opened now, and its messages are shown"
        );
        self.set_warning(late, None);
        self.add_links(number, store);
        if !self.read_only {
            sweep_store(store.as_ref());
        }
        scan_and_deliver(&self.index, self.outbox.as_ref(), number, true);
        self.outbox.iter().for_each(|outbox| outbox.add_store(number));
        Ok(())
    }

    fn add_links(&self, number: usize, store: &Arc<dyn Store>) {
        let linked = self.config.linked_stores();
        let wanted = gather_link_inputs(&self.config, &linked, self.index.stores(), &self.paths);
        let Some(wanted) = wanted else { return };
        if self.read_only {
            return self.links.join_store_read_only(&wanted, number);
        }
        self.change_warnings(|warnings| {
            if let Err(error) = self.links.add_store(&wanted, number, warnings) {
                tracing::error!(%error, store = store.name(), "the links of this store cannot start");
            }
        });
    }

    /// Opens the links that could not be opened and can be now.
    fn reopen_links(&self) {
        let linked = self.config.linked_stores();
        let wanted = gather_link_inputs(&self.config, &linked, self.index.stores(), &self.paths);
        let Some(wanted) = wanted.filter(|_| !self.read_only) else { return };
        self.change_warnings(|warnings| {
            if let Err(error) = self.links.reopen_left_out(&wanted, warnings) {
                tracing::error!(%error, "a link that can be opened now cannot start");
            }
        });
    }

    /// Changes the lines of `status.txt`.
    fn change_warnings(&self, change: impl FnOnce(&mut Vec<String>)) {
        // The lock is not held here, because links take other locks.
        let mut warnings = self.warnings.read().clone();
        change(&mut warnings);
        *self.warnings.write() = warnings;
    }
}

/// Returns the watch target by which links are opened once the files are mended that describe them.
pub(super) fn build_link_target(doorway: &Arc<PendingStoreOpener>) -> WatchTarget {
    let [listed, asked, changed, tried] = [(); 4].map(|()| Arc::clone(doorway));
    WatchTarget {
        dirs: Box::new(move || {
            let files = listed.links.left_out_files();
            files.iter().filter_map(|file| file.parent()).map(Path::to_owned).collect()
        }),
        is_relevant: Box::new(move |folder, name| {
            asked.links.left_out_files().contains(&folder.join(name))
        }),
        on_close_only: true,
        on_change: Box::new(move |_| changed.reopen_links()),
        is_failing: Box::new(move || !tried.links.left_out_files().is_empty()),
        due_time: Box::new(|| None),
    }
}

/// Returns the watch target by which a pending store is opened when it appears.
pub(super) fn build_watch_target(
    late: &Arc<PendingStore>,
    doorway: &Arc<PendingStoreOpener>,
) -> WatchTarget {
    let [listed, asked, tried, looked] = [(); 4].map(|()| Arc::clone(late));
    let doorway = Arc::clone(doorway);
    WatchTarget {
        dirs: Box::new(move || listed.watched_folders()),
        is_relevant: Box::new(move |folder, name| {
            let (path, dir) = (folder.join(name), &asked.spec.dir);
            dir.starts_with(&path) || path.starts_with(dir)
        }),
        on_close_only: true,
        on_change: Box::new(move |_| doorway.try_open(&looked)),
        is_failing: Box::new(move || tried.should_retry()),
        due_time: Box::new(|| None),
    }
}
