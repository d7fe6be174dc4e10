//! All links of a mount.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::board::{self, HealthBoard};
use super::carrier::CarrierProgram;
use super::engine::{EngineSettings, LinkEngine, NamedSettings};
use super::kind::{LinkConfig, LinkKind, open_engine};
use super::lifecycle::{Link, LinkCallbacks, LinkEvent, RescanCallback};
use super::logs::{self, LogLink};
use super::marks::MarkLogProvider;
use super::message_link::{self, MessageLink};
use super::read_only::{
    ReadOnlyLink, ReadOnlyRoutes, StopCause, StoppedLink, list_stop_reasons, make_read_only_board,
};
use crate::model::locks::{Mutex, RwLock};
use crate::store::{self, DeliveryFate, InboundMail, LinkRouter, OutboundMail, Store};

/// The reason for which a link is stopped that the configuration switches off.
pub const SWITCHED_OFF: &str =
    "it is switched off in the configuration; what it has to carry waits";

/// The reason for which a link is stopped that is gone from the settings.
pub const REMOVED: &str = "it is not in the settings any more; what it has to carry waits";

/// The open links of a mount. They carry once they are [started](LinkSet::start).
#[derive(Debug, Default)]
pub struct LinkSet {
    /// The links, with the numbers of their stores. Later stores add more.
    links: RwLock<Vec<(usize, Arc<dyn Link>)>>,
    /// The links of messages, by the numbers of their stores.
    message_routes: RwLock<BTreeMap<usize, Arc<MessageLinkRoutes>>>,
    boards: HealthBoards,
    taken_logs: TakenLogs,
    /// The callbacks, once the links carry.
    started: Mutex<Option<LinkCallbacks>>,
}

/// The boards of all links. Later stores add more.
pub type HealthBoards = Arc<RwLock<Vec<Arc<HealthBoard>>>>;

/// The numbers of the stores whose lines links carry, each with the proof about my log there. Later stores add more.
pub type TakenLogs = Arc<RwLock<Vec<(usize, Arc<dyn TakenLogProof>)>>>;

/// The proof that the server of a link has taken lines of a log.
pub trait TakenLogProof: std::fmt::Debug + Send + Sync {
    /// Returns the ranges of the log as it is now whose lines the server has taken, as far as that is proven.
    fn taken_ranges(&self) -> Vec<(u64, u64)>;
}

/// The parameters for opening links.
#[derive(Debug)]
pub struct LinkSetOptions<'a> {
    /// The stores.
    pub stores: &'a [Arc<dyn Store>],
    /// The configuration of links.
    pub specs: &'a [LinkConfig],
    /// The names of the stores whose own configuration counts.
    pub self_described: &'a [String],
    /// The folder of my state.
    pub state: &'a Path,
    /// The process that carries.
    pub carrier: CarrierProgram,
    /// For a process that only reads: the check whether another one carries.
    pub carry_check: CarryCheck,
}

/// A check whether a process acts for me now. One that acts for long carries.
#[derive(Clone)]
pub struct CarryCheck(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl std::fmt::Debug for CarryCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CarryCheck")
    }
}

/// The links that carry the lines of one store.
#[derive(Debug)]
struct LogLinkRoutes(Vec<Arc<dyn LogLink>>);

/// The links that carry whole messages of one store.
#[derive(Debug)]
struct MessageLinkRoutes {
    open: RwLock<Vec<Arc<MessageLink>>>,
    stopped: RwLock<Vec<Arc<StoppedLink>>>,
}

impl LinkSet {
    /// Opens the configured links and gives them to the stores. A link that cannot be opened does not stop the others;
    /// its reason is added to the warnings.
    pub fn open(wanted: &LinkSetOptions<'_>, warnings: &mut Vec<String>) -> Self {
        let links = Self::default();
        for number in 0..wanted.stores.len() {
            links.open_message_links(wanted, number, warnings);
        }
        for (spec, why) in list_storeless_log_links(wanted) {
            links.leave_out(wanted, spec, &why, warnings);
        }
        for number in 0..wanted.stores.len() {
            links.open_log_links(wanted, number, warnings);
        }
        links
    }

    /// Opens the links of one more store, by number, and starts them if the others are started. Removes the warnings
    /// that such a store was missing.
    ///
    /// # Errors
    /// Fails like [`LinkSet::start`].
    pub fn add_store(
        &self,
        wanted: &LinkSetOptions<'_>,
        number: usize,
        warnings: &mut Vec<String>,
    ) -> std::io::Result<()> {
        let name = wanted.stores.get(number).map_or("", |store| store.name());
        for spec in log_links_of(wanted.specs, name) {
            warnings.retain(|warning| !warning.starts_with(&describe_left_out(spec, "")));
        }
        self.remove_log_boards(wanted, name);
        let before = self.links.read().len();
        self.open_message_links(wanted, number, warnings);
        self.open_log_links(wanted, number, warnings);
        let started = self.started.lock().clone();
        started.map_or(Ok(()), |callbacks| self.start_behind(before, &callbacks))
    }

    /// Removes the boards of the links of logs that were left out because this store was missing.
    fn remove_log_boards(&self, wanted: &LinkSetOptions<'_>, store: &str) {
        for spec in log_links_of(wanted.specs, store) {
            self.boards.write().retain(|board| board.name() != spec.name);
        }
    }

    /// Opens the links that carry whole messages of a store. Those that are switched off or cannot be opened are shown
    /// as stopped.
    fn open_message_links(
        &self,
        wanted: &LinkSetOptions<'_>,
        number: usize,
        warnings: &mut Vec<String>,
    ) {
        let Some(store) = wanted.stores.get(number) else { return };
        let open =
            |name: &str, settings| open_message_link(wanted, store, name, settings).map(Arc::new);
        let (open, stopped) = open_each_link(wanted, store.as_ref(), warnings, open);
        self.add_links(number, open.iter().map(|link| Arc::clone(link) as Arc<dyn Link>));
        for link in &stopped {
            // The health that an earlier mount saved is out of date.
            link.board().save_now();
        }
        self.show_stopped(&stopped);
        let is_linked = !open.is_empty() || !stopped.is_empty();
        if let Some(remote) = store.facets().remote.filter(|_| is_linked) {
            let routes =
                MessageLinkRoutes { open: RwLock::new(open), stopped: RwLock::new(stopped) };
            let routes = Arc::new(routes);
            self.message_routes.write().insert(number, Arc::clone(&routes));
            remote.set_router(routes);
        }
    }

    /// Shows the boards of stopped links that people should know of.
    fn show_stopped(&self, stopped: &[Arc<StoppedLink>]) {
        let shown = stopped.iter().filter(|link| link.is_shown());
        let shown: Vec<_> = shown.map(|link| Arc::clone(link.board())).collect();
        self.boards.write().extend(shown);
    }

    /// Returns the stopped links of messages, with the numbers of their stores.
    fn list_stopped(&self) -> Vec<(usize, Arc<StoppedLink>)> {
        let routes: Vec<_> =
            self.message_routes.read().iter().map(|(n, all)| (*n, Arc::clone(all))).collect();
        let stopped = routes.into_iter().map(|(number, routes)| (number, routes.list_stopped()));
        stopped.flat_map(|(n, all)| all.into_iter().map(move |link| (n, link))).collect()
    }

    /// Returns the files of the links that could not be opened. A person may mend them at any time.
    pub fn left_out_files(&self) -> Vec<PathBuf> {
        let file = |(_, link): (usize, Arc<StoppedLink>)| match link.cause() {
            StopCause::LeftOut(file) => Some(file.clone()),
            StopCause::SwitchedOff | StopCause::Removed => None,
        };
        self.list_stopped().into_iter().filter_map(file).collect()
    }

    /// Opens the links of messages that could not be opened and can be now, and starts them if the others are started.
    /// Replaces the warnings about them.
    ///
    /// # Errors
    /// Fails like [`LinkSet::start`].
    pub fn reopen_left_out(
        &self,
        wanted: &LinkSetOptions<'_>,
        warnings: &mut Vec<String>,
    ) -> std::io::Result<()> {
        for (number, link) in self.list_stopped() {
            let (Some(store), StopCause::LeftOut(_)) = (wanted.stores.get(number), link.cause())
            else {
                continue;
            };
            let on = engine_settings(store.as_ref(), wanted.specs, wanted.self_described);
            let name = link.board().name();
            let Some((_, settings)) = on.into_iter().find(|(on, _)| on == name) else { continue };
            let warning = |why: &str| describe_left_out_message_link(store.as_ref(), name, why);
            let is_about_it = |line: &String| line.starts_with(&warning(""));
            match open_message_link(wanted, store, name, settings) {
                Ok(opened) => {
                    warnings.retain(|line| !is_about_it(line));
                    self.replace_stopped(store.as_ref(), (number, &link), opened)?;
                }
                Err(why) => {
                    let lines = warnings.iter_mut().filter(|line| is_about_it(line));
                    lines.for_each(|line| *line = warning(&why));
                    link.board().report_stopped(&format!("it is left out: {why}"));
                }
            }
        }
        Ok(())
    }

    /// Puts an open link in the place of a stopped one of this store.
    fn replace_stopped(
        &self,
        store: &dyn Store,
        (number, stopped): (usize, &Arc<StoppedLink>),
        opened: MessageLink,
    ) -> std::io::Result<()> {
        let routes = self.message_routes.read().get(&number).cloned();
        let (Some(routes), Some(remote)) = (routes, store.facets().remote) else { return Ok(()) };
        let opened = Arc::new(opened);
        // At each moment one of the two answers for the waiting messages.
        routes.open.write().push(Arc::clone(&opened));
        routes.stopped.write().retain(|link| !Arc::ptr_eq(link, stopped));
        self.boards.write().retain(|board| !Arc::ptr_eq(board, stopped.board()));
        let before = self.links.read().len();
        self.add_links(number, std::iter::once(opened as Arc<dyn Link>));
        // The store asks again about the messages that wait.
        remote.set_router(routes);
        let started = self.started.lock().clone();
        started.map_or(Ok(()), |callbacks| self.start_behind(before, &callbacks))
    }

    fn add_links(&self, number: usize, links: impl Iterator<Item = Arc<dyn Link>>) {
        for link in links {
            self.boards.write().push(Arc::clone(link.board()));
            self.links.write().push((number, link));
        }
    }

    /// Opens the links that carry the lines of a store.
    fn open_log_links(
        &self,
        wanted: &LinkSetOptions<'_>,
        number: usize,
        warnings: &mut Vec<String>,
    ) {
        let Some(store) = wanted.stores.get(number) else { return };
        self.add_taken_logs(wanted, number);
        let mut of_store = Vec::new();
        self.stop_switched_off_log_links(wanted, store.as_ref());
        for spec in log_links_of(wanted.specs, store.name()) {
            match logs::open(wanted, spec) {
                // The configuration means another store of the same name.
                Ok((of, _)) if of != number => {}
                Ok((_, logs)) => of_store.push(logs),
                Err(why) => self.leave_out(wanted, spec, &why, warnings),
            }
        }
        // Also a link that is switched off may have taken lines.
        let has_log_link = configured_log_links(wanted.specs, store.name()).next().is_some();
        if let Some(remote) = store.facets().remote.filter(|_| has_log_link) {
            remote.set_router(Arc::new(LogLinkRoutes(of_store.clone())));
        }
        self.add_links(number, of_store.into_iter().map(|link| link as Arc<dyn Link>));
    }

    /// Warns that a link that carries lines cannot be opened, and shows it as stopped.
    fn leave_out(
        &self,
        wanted: &LinkSetOptions<'_>,
        spec: &LinkConfig,
        why: &str,
        warnings: &mut Vec<String>,
    ) {
        warnings.push(describe_left_out(spec, why));
        self.stop_log_link(wanted, spec, &format!("it is left out: {why}"));
    }

    /// Shows the links as stopped that carry lines of a store and are switched off.
    fn stop_switched_off_log_links(&self, wanted: &LinkSetOptions<'_>, store: &dyn Store) {
        let all = configured_log_links(wanted.specs, store.name());
        let off = all.filter(|spec| spec.off);
        off.for_each(|spec| self.stop_log_link(wanted, spec, SWITCHED_OFF));
    }

    /// Shows a link that carries lines as stopped, for this reason.
    fn stop_log_link(&self, wanted: &LinkSetOptions<'_>, spec: &LinkConfig, why: &str) {
        // Another name of this user may carry for the link, so the copy stays as it is.
        let board = logs::make_stopped_board(wanted, spec, why);
        self.boards.write().push(Arc::new(board));
    }

    /// Returns a set without links, which gives readers the fates of waiting messages and the lines that wait in logs.
    /// Writes nothing. A link whose fates cannot be read is reported by the process that carries.
    pub fn open_read_only(wanted: &LinkSetOptions<'_>) -> Self {
        let links = Self::default();
        for (spec, why) in list_storeless_log_links(wanted) {
            links.stop_log_link(wanted, spec, &format!("it is left out: {why}"));
        }
        (0..wanted.stores.len()).for_each(|number| links.join_store_read_only(wanted, number));
        links
    }

    /// Adds one more store, by number, as [`LinkSet::open_read_only`] does for the first ones.
    pub fn join_store_read_only(&self, wanted: &LinkSetOptions<'_>, number: usize) {
        self.add_taken_logs(wanted, number);
        let Some(store) = wanted.stores.get(number) else { return };
        let Some(remote) = store.facets().remote else { return };
        let store = store.as_ref();
        self.remove_log_boards(wanted, store.name());
        let boards = log_links_of(wanted.specs, store.name())
            .filter_map(|spec| logs::open_read_only_board(wanted, spec, store));
        self.boards.write().extend(boards.map(Arc::new));
        self.stop_switched_off_log_links(wanted, store);
        let open = |name: &str, settings: EngineSettings| {
            let folder = link_state_folder(wanted, store, name);
            let engine = open_engine(&settings)?;
            let place = message_link::describe_place(engine.as_ref(), &settings);
            let board = make_read_only_board(name, &folder, &place, &wanted.carry_check);
            self.boards.write().push(Arc::new(board));
            Ok(ReadOnlyLink::new(name.to_owned(), &folder, engine))
        };
        let (open, stopped) = open_each_link(wanted, store, &mut Vec::new(), open);
        self.show_stopped(&stopped);
        // A link of logs has no journal, but its store must know that something takes its lines.
        let has_log_link = configured_log_links(wanted.specs, store.name()).next().is_some();
        if !open.is_empty() || !stopped.is_empty() || has_log_link {
            let carry_check = wanted.carry_check.clone();
            remote.set_router(Arc::new(ReadOnlyRoutes { open, stopped, carry_check }));
        }
    }

    /// Adds the proofs about what the servers of a store's links have taken of my log.
    fn add_taken_logs(&self, wanted: &LinkSetOptions<'_>, number: usize) {
        let Some(store) = wanted.stores.get(number) else { return };
        let specs = configured_log_links(wanted.specs, store.name());
        let proofs = specs.filter_map(|spec| logs::find_taken_log(wanted, spec, store.as_ref()));
        self.taken_logs.write().extend(proofs.map(|proof| (number, proof)));
    }

    /// Starts all links.
    ///
    /// # Errors
    /// Returns the system's error, if no thread can be started.
    pub fn start(&self, changed: &RescanCallback, marks: &MarkLogProvider) -> std::io::Result<()> {
        let callbacks =
            LinkCallbacks { on_change: Arc::clone(changed), mark_logs: Arc::clone(marks) };
        *self.started.lock() = Some(callbacks.clone());
        self.start_behind(0, &callbacks)
    }

    /// Starts the links behind the first ones.
    fn start_behind(&self, first: usize, callbacks: &LinkCallbacks) -> std::io::Result<()> {
        let mut links = self.list_links().into_iter().skip(first);
        links.try_for_each(|(number, link)| link.start(number, callbacks))
    }

    /// Returns the links, with the numbers of their stores.
    fn list_links(&self) -> Vec<(usize, Arc<dyn Link>)> {
        self.links.read().clone()
    }

    fn wake_all(&self, event: &LinkEvent<'_>) {
        self.list_links().iter().for_each(|(_, link)| link.wake(event));
    }

    /// Tells the links that a mark may have changed.
    pub fn notify_mark_change(&self) {
        self.wake_all(&LinkEvent::MarkChange);
    }

    /// Tells the links that a store, by number, has changed: in these files, or anywhere.
    pub fn notify_store_change(&self, number: usize, files: Option<&[PathBuf]>) {
        for (_, link) in self.list_links().iter().filter(|(store, _)| *store == number) {
            link.wake(&LinkEvent::StoreChange(files));
        }
    }

    /// Returns the boards of the links that are open.
    pub fn list_open_boards(&self) -> Vec<Arc<HealthBoard>> {
        self.list_links().iter().map(|(_, link)| Arc::clone(link.board())).collect()
    }

    /// Returns the boards of all links, also of stopped ones.
    pub fn boards(&self) -> &HealthBoards {
        &self.boards
    }

    /// Returns the proofs about what servers have taken of my logs.
    pub fn taken_logs(&self) -> &TakenLogs {
        &self.taken_logs
    }

    /// Returns the folders in which commands leave requests.
    pub fn request_folders(&self) -> Vec<PathBuf> {
        let links = self.list_links();
        let open = links.iter().filter_map(|(_, link)| link.request_folder()).map(Path::to_owned);
        let stopped = self.list_stopped().into_iter().map(|(_, link)| link.folder().to_owned());
        // A link that never ran has no folder.
        open.chain(stopped.filter(|folder| folder.is_dir())).collect()
    }

    /// Runs the requests of commands.
    pub fn run_requests(&self) {
        self.wake_all(&LinkEvent::Request);
        let started = self.started.lock().clone();
        for (number, link) in self.list_stopped() {
            match link.run_request() {
                Ok(true) => started.iter().for_each(|callbacks| (callbacks.on_change)(number)),
                Ok(false) => {}
                Err(error) => {
                    let name = link.board().name();
                    tracing::warn!(link = name, %error, "a request to this link failed");
                }
            }
        }
    }

    /// Ends the links. A running carrier ends after its current exchange, and the next start takes up the rest.
    pub fn stop(&self) {
        let links = self.list_links();
        for (_, link) in &links {
            link.stop();
        }
        for (_, link) in &links {
            link.join();
        }
    }
}

/// Returns the warning for a link that is not opened.
fn describe_left_out(spec: &LinkConfig, why: &str) -> String {
    format!("the link {} is left out: {why}", spec.name)
}

/// Returns the links of logs that are on and whose store is missing, each with the reason why it is left out.
fn list_storeless_log_links<'a>(wanted: &LinkSetOptions<'a>) -> Vec<(&'a LinkConfig, String)> {
    let has_store = |spec: &LinkConfig| wanted.stores.iter().any(|of| of.name() == spec.store);
    let without = wanted.specs.iter().filter(|spec| is_log_link(spec) && !has_store(spec));
    without.filter_map(|spec| Some((spec, logs::open(wanted, spec).err()?))).collect()
}

/// Returns the warning for a link of messages that is not opened.
fn describe_left_out_message_link(store: &dyn Store, name: &str, why: &str) -> String {
    format!("the link {name} of the store {} is left out: {why}", store.name())
}

/// Returns true if a link carries the lines of logs and is not switched off.
fn is_log_link(spec: &LinkConfig) -> bool {
    spec.kind().carries_logs() && !spec.off
}

/// Returns the links that carry the lines of the store of this name, also those that are switched off.
fn configured_log_links<'a>(
    specs: &'a [LinkConfig],
    store: &'a str,
) -> impl Iterator<Item = &'a LinkConfig> {
    specs.iter().filter(move |spec| spec.kind().carries_logs() && spec.store == store)
}

/// Returns the links that carry the lines of the store of this name.
fn log_links_of<'a>(
    specs: &'a [LinkConfig],
    store: &'a str,
) -> impl Iterator<Item = &'a LinkConfig> {
    configured_log_links(specs, store).filter(|spec| !spec.off)
}

impl Drop for LinkSet {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the settings of the links of a store that are not switched off, with their names.
pub fn engine_settings(
    store: &dyn Store,
    specs: &[LinkConfig],
    by_their_own: &[String],
) -> NamedSettings {
    find_engine_settings(store, specs, by_their_own).0
}

/// Returns the settings of the links of a store, with their names: of those that are on, and of those that are off.
fn find_engine_settings(
    store: &dyn Store,
    specs: &[LinkConfig],
    by_their_own: &[String],
) -> (NamedSettings, NamedSettings) {
    let described = store.facets().remote.and_then(store::RemoteMail::description_path);
    let Some(file) = described else { return Default::default() };
    let has_consent = by_their_own.iter().any(|name| name == store.name());
    let (mut on, mut off) = (NamedSettings::new(), NamedSettings::new());
    let kinds = LinkKind::ALL.iter().filter(|kind| kind.store_kind == store.kind());
    for kind in kinds.filter(|kind| has_consent || !kind.needs_consent) {
        let mut specs = specs.iter().filter(|spec| spec.store == store.name());
        let spec = specs.find(|spec| spec.kind() == *kind);
        let found = kind.find_accounts.map(|find| find(&file, store.me())).unwrap_or_default();
        for (name, mut settings) in found {
            if let Some(spec) = spec {
                spec.add_to(&mut settings);
            }
            let links = if spec.is_some_and(|spec| spec.off) { &mut off } else { &mut on };
            links.push((name, settings));
        }
    }
    (on, off)
}

/// Returns why a link of messages of a store does not carry, by the settings as they are now; `None` if they have it and
/// do not switch it off.
pub fn explain_stopped_link(
    store: &dyn Store,
    specs: &[LinkConfig],
    by_their_own: &[String],
    name: &str,
) -> Option<&'static str> {
    let (on, off) = find_engine_settings(store, specs, by_their_own);
    let is_in = |links: &NamedSettings| links.iter().any(|(found, _)| found == name);
    match (is_in(&on), is_in(&off)) {
        (true, _) => None,
        (false, true) => Some(SWITCHED_OFF),
        (false, false) => Some(REMOVED),
    }
}

/// Opens the links that carry whole messages of a store. Returns them, and as stopped those that are switched off,
/// removed, or cannot be opened. The reasons of the latter are added to the warnings.
fn open_each_link<L>(
    wanted: &LinkSetOptions<'_>,
    store: &dyn Store,
    warnings: &mut Vec<String>,
    open: impl Fn(&str, EngineSettings) -> Result<L, String>,
) -> (Vec<L>, Vec<Arc<StoppedLink>>) {
    let (on, off) = find_engine_settings(store, wanted.specs, wanted.self_described);
    let folder = |name: &str| link_state_folder(wanted, store, name);
    let stop = |name: &str, settings: &EngineSettings, cause, why: &str| {
        let engine = open_engine(settings).map(|engine| engine.describe_engine());
        let engine = engine.unwrap_or_else(|_| settings.kind.clone());
        Arc::new(StoppedLink::new(name, &folder(name), &engine, cause, why))
    };
    let mut stopped: Vec<Arc<StoppedLink>> = off
        .iter()
        .map(|(name, settings)| stop(name, settings, StopCause::SwitchedOff, SWITCHED_OFF))
        .collect();
    for (name, engine) in list_saved_links(&folder("")) {
        if !on.iter().chain(&off).any(|(configured, _)| *configured == name) {
            let (folder, cause) = (folder(&name), StopCause::Removed);
            stopped.push(Arc::new(StoppedLink::new(&name, &folder, &engine, cause, REMOVED)));
        }
    }
    let mut opened = Vec::new();
    for (name, settings) in on {
        match open(&name, settings.clone()) {
            Ok(link) => opened.push(link),
            Err(why) => {
                warnings.push(describe_left_out_message_link(store, &name, &why));
                let cause = StopCause::LeftOut(settings.file.clone());
                stopped.push(stop(&name, &settings, cause, &format!("it is left out: {why}")));
            }
        }
    }
    (opened, stopped)
}

/// Returns the names of the links that saved their health in a folder, with their engines.
fn list_saved_links(folder: &Path) -> Vec<(String, String)> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let saved = |name: String| {
        let engine = board::read_saved_health(&folder.join(&name))?.engine;
        Some((name, engine))
    };
    let mut found: Vec<_> = names.filter_map(saved).collect();
    found.sort_unstable();
    found
}

/// Returns the folder of a link.
fn link_state_folder(wanted: &LinkSetOptions<'_>, store: &dyn Store, name: &str) -> PathBuf {
    wanted.state.join("links").join(store.name()).join(name)
}

fn open_message_link(
    wanted: &LinkSetOptions<'_>,
    store: &Arc<dyn Store>,
    name: &str,
    settings: EngineSettings,
) -> Result<MessageLink, String> {
    let engine = open_engine(&settings)?;
    let folder = link_state_folder(wanted, store.as_ref(), name);
    let into = Arc::clone(store);
    let file = move |arrived: &InboundMail| match into.facets().remote {
        Some(remote) => remote.file_mail(arrived).map_err(std::io::Error::other),
        None => Ok(()),
    };
    let carrier = wanted.carrier.clone();
    MessageLink::open(name, &folder, settings, engine, Box::new(file), carrier)
        .map_err(|e| e.to_string())
}

/// Returns the first of several links that reaches an address under my address `mine`.
pub(super) fn find_link_from_address<'a>(
    mut all: impl Iterator<Item = (&'a str, &'a dyn LinkEngine)>,
    (mine, address): (&str, &str),
) -> Option<String> {
    let fits = |engine: &dyn LinkEngine| {
        engine.own_address().is_some_and(|own| own.eq_ignore_ascii_case(mine))
            && engine.rank_address(address).is_some()
    };
    all.find(|(_, engine)| fits(*engine)).map(|(name, _)| name.to_owned())
}

/// Returns the link that reaches an address best; fails if several are equally good.
pub(super) fn choose_best_link(all: Vec<(u8, String)>) -> Result<Option<String>, String> {
    let best = all.iter().map(|(rank, _)| *rank).max();
    let names: Vec<&str> =
        all.iter().filter(|(rank, _)| Some(*rank) == best).map(|(_, name)| name.as_str()).collect();
    match names[..] {
        [] => Ok(None),
        [name] => Ok(Some(name.to_owned())),
        [first, ..] => Err(format!(
            "several links reach it: {}; choose one with a line `Via: {first}`",
            names.join(", ")
        )),
    }
}

impl LinkRouter for LogLinkRoutes {
    fn find_link(&self, _: &str) -> Result<Option<String>, String> {
        Ok(None)
    }

    fn link_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn can_reach(&self, _: &str, _: &str) -> bool {
        false
    }

    fn accept_mail(&self, link: &str, _: &OutboundMail) -> std::io::Result<()> {
        Err(std::io::Error::other(format!(
            "the link {link} carries whole logs, not single messages"
        )))
    }

    fn delivery_fate(&self, _: &str, _: &str) -> Option<DeliveryFate> {
        None
    }

    fn length_limit(&self) -> Option<(u64, String)> {
        self.0.iter().filter_map(|logs| logs.longest_line()).min()
    }
}

impl MessageLinkRoutes {
    /// Returns the open links. No lock is held while they are asked, because links take other locks.
    fn list_open(&self) -> Vec<Arc<MessageLink>> {
        self.open.read().clone()
    }

    fn list_stopped(&self) -> Vec<Arc<StoppedLink>> {
        self.stopped.read().clone()
    }

    fn find_link(&self, link: &str) -> Option<Arc<MessageLink>> {
        self.open.read().iter().find(|post| post.name() == link).cloned()
    }
}

impl LinkRouter for MessageLinkRoutes {
    fn find_link(&self, address: &str) -> Result<Option<String>, String> {
        let ranked = |post: &Arc<MessageLink>| {
            Some((post.engine().rank_address(address)?, post.name().to_owned()))
        };
        choose_best_link(self.list_open().iter().filter_map(ranked).collect())
    }

    fn link_names(&self) -> Vec<String> {
        self.list_open().iter().map(|post| post.name().to_owned()).collect()
    }

    fn can_reach(&self, link: &str, address: &str) -> bool {
        self.find_link(link).is_some_and(|post| post.engine().rank_address(address).is_some())
    }

    fn find_link_as(&self, mine: &str, address: &str) -> Option<String> {
        let open = self.list_open();
        let all = open.iter().map(|post| (post.name(), post.engine()));
        find_link_from_address(all, (mine, address))
    }

    fn own_address(&self, link: &str) -> Option<String> {
        self.find_link(link)?.engine().own_address().map(str::to_owned)
    }

    fn check_file_sizes(&self, link: &str, files: &[u64]) -> Result<(), String> {
        self.find_link(link)
            .map_or(Ok(()), |post| post.engine().check_attachment_sizes(post.folder(), files))
    }

    fn accept_mail(&self, link: &str, parcel: &OutboundMail) -> std::io::Result<()> {
        match self.find_link(link) {
            Some(post) => post.accept_parcel(parcel),
            None => Err(std::io::Error::other(format!("there is no link {link} any more"))),
        }
    }

    fn sync_accepted(&self) -> std::io::Result<()> {
        // Each link is synced, also behind one that fails.
        self.list_open().iter().map(|post| post.sync_accepted()).fold(Ok(()), std::io::Result::and)
    }

    fn delivery_fate(&self, message: &str, to: &str) -> Option<DeliveryFate> {
        let open = self.list_open().iter().find_map(|post| post.find_fate(message, to));
        let stopped = || self.list_stopped().iter().find_map(|link| link.find_fate(message, to));
        open.or_else(stopped)
    }

    fn is_underway(&self, message: &str, to: &str) -> bool {
        let open = self.list_open().iter().find_map(|post| post.is_underway(message, to));
        let stopped = || self.list_stopped().iter().find_map(|link| link.find_fate(message, to));
        open.unwrap_or_else(|| stopped().is_some_and(|fate| fate != DeliveryFate::Taken))
    }

    fn stopped_links(&self) -> Vec<(String, String)> {
        list_stop_reasons(&self.list_stopped())
    }

    fn engine_id(&self, message: &str, to: &str) -> Option<String> {
        let open = self.list_open().iter().find_map(|post| post.find_given_id(message, to));
        let stopped =
            || self.list_stopped().iter().find_map(|link| link.find_given_id(message, to));
        open.or_else(stopped)
    }
}
