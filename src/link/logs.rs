//! Links that carry the lines of logs: the trait of their engines, and their opening.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::board::{HealthBoard, HealthReader, LinkHealth, LinkState};
use super::kind::LinkConfig;
use super::lifecycle::Link;
use super::links::{LinkSetOptions, TakenLogProof};
use crate::model::find_nearest;
use crate::store::{Store, fs};

/// An engine that keeps the logs of a store equal on several machines, as a `[[link]]` describes it.
pub(super) trait LogEngine: Send + Sync + fmt::Debug {
    /// Makes a link for a store. It carries once it is started.
    fn make_link(&self, place: LogLinkPlace<'_>) -> Arc<dyn LogLink>;

    /// Returns the proof about what the server has taken of my log. The link saves its state in this folder.
    fn prove_taken_log(&self, store: &dyn Store, state: &Path) -> Arc<dyn TakenLogProof>;

    /// Returns the health of the link for a process that does not carry. The link saves its state in this folder.
    fn read_health(&self, store: &dyn Store, state: &Path) -> Box<dyn HealthReader>;

    /// Makes on the server what the link needs, as an admin does once. What is there stays as it is.
    ///
    /// # Errors
    /// Returns a sentence that says why it was not made.
    fn prepare_server(&self) -> Result<(), String>;

    /// Tries the link without sending and returns the problems for `msgfs doctor`, one a line.
    fn check_connection(&self) -> Vec<String>;

    /// Returns why the marks of this name are not shared, if the link should share them and cannot.
    fn check_marks(&self, me: &str) -> Option<String>;
}

/// A link of a mount that carries the lines of logs.
pub(super) trait LogLink: Link {
    /// Returns the longest line that the server took at the last connection, in bytes, and the name of the link.
    fn longest_line(&self) -> Option<(u64, String)>;
}

/// The place of a link of logs on this machine.
#[derive(Debug)]
#[cfg_attr(not(feature = "nats"), allow(dead_code))] // Only links of logs read it.
pub(super) struct LogLinkPlace<'a> {
    /// The store whose logs it carries.
    pub store: &'a dyn Store,
    /// The folder in which it saves its state, which all names of a user share.
    pub folder: PathBuf,
    /// The folder of my state.
    pub me_state: PathBuf,
    /// The board on which it shows its health.
    pub board: Arc<HealthBoard>,
}

/// Opens a configured link. Returns it with the number of its store.
///
/// # Errors
/// Returns a sentence if there is no such store, it is of another kind, its folder cannot be made, or this msgfs has no
/// such links.
pub(super) fn open(
    wanted: &LinkSetOptions<'_>,
    spec: &LinkConfig,
) -> Result<(usize, Arc<dyn LogLink>), String> {
    let engine = spec.open_log_engine()?;
    let number = wanted.stores.iter().position(|store| store.name() == spec.store);
    let store = number.and_then(|number| Some((number, wanted.stores.get(number)?)));
    let Some((number, store)) = store else {
        let names: Vec<&str> = wanted.stores.iter().map(|store| store.name()).collect();
        return Err(describe_missing_store(&spec.store, &names));
    };
    let kind = spec.kind();
    if store.kind() != kind.store_kind {
        return Err(format!(
            "{} is a store of kind {}; links of kind {kind} carry those of kind {}",
            store.name(),
            store.kind(),
            kind.store_kind
        ));
    }
    let folder = state_folder(wanted, spec);
    fs::make_dirs(&folder, 0o700).map_err(|e| e.to_string())?;
    let board = Arc::new(make_board(spec, &folder).with_store(store.name()));
    let (store, me_state) = (store.as_ref(), wanted.state.to_owned());
    Ok((number, engine.make_link(LogLinkPlace { store, folder, me_state, board })))
}

/// Returns the board of a link for a process that does not carry for it.
pub(super) fn open_read_only_board(
    wanted: &LinkSetOptions<'_>,
    spec: &LinkConfig,
    store: &dyn Store,
) -> Option<HealthBoard> {
    let (engine, folder) = open_for_reading(wanted, spec, store)?;
    let reader = engine.read_health(store, &folder);
    Some(make_board(spec, &folder).with_store(store.name()).with_reader(reader))
}

/// Returns the proof about what the server of a link has taken of my log in a store.
pub(super) fn find_taken_log(
    wanted: &LinkSetOptions<'_>,
    spec: &LinkConfig,
    store: &dyn Store,
) -> Option<Arc<dyn TakenLogProof>> {
    let (engine, folder) = open_for_reading(wanted, spec, store)?;
    Some(engine.prove_taken_log(store, &folder))
}

/// Opens the engine of a link that carries a store, and finds the folder of its state.
fn open_for_reading(
    wanted: &LinkSetOptions<'_>,
    spec: &LinkConfig,
    store: &dyn Store,
) -> Option<(Box<dyn LogEngine>, PathBuf)> {
    let engine = spec.open_log_engine().ok().filter(|_| store.kind() == spec.kind().store_kind)?;
    Some((engine, state_folder(wanted, spec)))
}

/// A reader of the health of a stopped link, whose lines wait.
#[derive(Debug)]
struct StoppedHealthReader {
    backlog: Box<dyn HealthReader>,
    why: String,
}

impl HealthReader for StoppedHealthReader {
    fn read_health(&self) -> LinkHealth {
        let health = self.backlog.read_health();
        // A process that read earlier settings may still carry.
        if health.by_another {
            return health;
        }
        LinkHealth { state: LinkState::Stopped { why: self.why.clone() }, ..health }
    }
}

/// Returns the board of a stopped link, with the reason.
pub(super) fn make_stopped_board(
    wanted: &LinkSetOptions<'_>,
    spec: &LinkConfig,
    why: &str,
) -> HealthBoard {
    let place = spec.describe_place().unwrap_or_default();
    let board = HealthBoard::new_stopped(&spec.name, &state_folder(wanted, spec), &place, why);
    let store = wanted.stores.iter().find(|store| store.name() == spec.store);
    match store.and_then(|store| open_for_reading(wanted, spec, store.as_ref()).zip(Some(store))) {
        Some(((engine, folder), store)) => {
            let backlog = engine.read_health(store.as_ref(), &folder);
            let why = why.to_owned();
            board
                .with_store(store.name())
                .with_reader(Box::new(StoppedHealthReader { backlog, why }))
        }
        None => board,
    }
}

fn make_board(spec: &LinkConfig, folder: &Path) -> HealthBoard {
    HealthBoard::new(&spec.name, folder, &spec.describe_place().unwrap_or_default())
}

/// Makes on the server of a link of logs what the link needs, as an admin does once. What is there stays as it is.
///
/// # Errors
/// Returns a sentence that says why it was not made.
pub fn prepare_server(spec: &LinkConfig) -> Result<(), String> {
    spec.open_log_engine()?.prepare_server()
}

/// Tries a link of logs without sending and returns the problems for `msgfs doctor`, one a line.
pub fn check_log_link(spec: &LinkConfig) -> Vec<String> {
    spec.open_log_engine().map_or_else(|why| vec![why], |engine| engine.check_connection())
}

/// Returns why the marks of this name are not shared over a link of logs, if they should be.
pub fn check_shared_marks(spec: &LinkConfig, me: &str) -> Option<String> {
    spec.open_log_engine().ok()?.check_marks(me)
}

/// Returns the folder in which a link saves its state.
fn state_folder(wanted: &LinkSetOptions<'_>, spec: &LinkConfig) -> PathBuf {
    shared_links_folder(wanted.state.parent().unwrap_or(wanted.state)).join(&spec.name)
}

/// Returns the folder of the links that all of a user's names share, in the folder of all states.
pub fn shared_links_folder(states: &Path) -> PathBuf {
    states.join("link")
}

/// Returns why a link to this store is left out, with the nearest of the stores that are there.
pub fn describe_missing_store(store: &str, stores: &[&str]) -> String {
    let near = find_nearest(store, stores.iter().copied());
    let hint = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
    format!("there is no store {store:?}; there is {}{hint}", stores.join(", "))
}
