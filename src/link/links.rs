//! All links of a mount.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::board::{self, Board};
use super::engine::{Engine, Settings};
use super::job::Carrier;
use super::logs::Logs;
use super::look::{Look, Looks};
use super::marks::MarksOf;
use super::post::Post;
use super::spec::{Kind, Spec};
use crate::model::locks::{Mutex, RwLock};
use crate::model::one_line;
use crate::store::{self, Arrived, Fate, Parcel, Store, Ways};

/// The links of a mount, open; they carry once they are [started](Links::start).
#[derive(Debug, Default)]
pub struct Links {
    posts: RwLock<Vec<(usize, Arc<Post>)>>,
    logs: RwLock<Vec<(usize, Arc<Logs>)>>,
    boards: Boards,
    /// Who hears of it, once they carry.
    started: Mutex<Option<Hearers>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Where each link stands; there may be more of them later.
pub type Boards = Arc<RwLock<Vec<Arc<Board>>>>;

/// Who hears of what links carry, and knows what was read.
#[derive(Clone)]
struct Hearers {
    changed: Changed,
    marks: MarksOf,
}

/// What links are made from.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The stores.
    pub stores: &'a [Arc<dyn Store>],
    /// What the configuration says of links.
    pub specs: &'a [Spec],
    /// The stores whose own configuration counts, by name.
    pub by_their_own: &'a [String],
    /// The folder of my state.
    pub state: &'a Path,
    /// Who carries.
    pub carrier: Carrier,
}

/// Hears that a store, by number, should be looked at again.
pub type Changed = Arc<dyn Fn(usize) + Send + Sync>;

/// The links that carry the lines of one store.
#[derive(Debug)]
struct Lines(Vec<Arc<Logs>>);

/// The ways from one store.
#[derive(Debug)]
struct From(Vec<Arc<Post>>);

impl Links {
    /// Opens the links that are wanted, and tells the stores of them. One that cannot be opened keeps no
    /// other from being used: why is among the warnings.
    pub fn open(wanted: &Wanted<'_>, warnings: &mut Vec<String>) -> Self {
        let links = Self::default();
        for number in 0..wanted.stores.len() {
            links.open_posts(wanted, number, warnings);
        }
        let has_store = |spec: &&Spec| wanted.stores.iter().any(|store| store.name() == spec.store);
        let without = wanted.specs.iter().filter(|spec| carries_logs(spec) && !has_store(spec));
        let left_out = |spec: &Spec| Some(left_out(spec, &Logs::open(wanted, spec).err()?));
        warnings.extend(without.filter_map(left_out));
        for number in 0..wanted.stores.len() {
            links.open_logs(wanted, number, warnings);
        }
        links
    }

    /// Opens the links of one more store, by number, and has them carry if the others do. What was said of them
    /// while there was no such store is taken from the warnings.
    ///
    /// # Errors
    /// As [`Links::start`].
    pub fn add(
        &self,
        wanted: &Wanted<'_>,
        number: usize,
        warnings: &mut Vec<String>,
    ) -> std::io::Result<()> {
        let name = wanted.stores.get(number).map_or("", |store| store.name());
        for spec in wanted.specs.iter().filter(|spec| carries_logs(spec) && spec.store == name) {
            warnings.retain(|warning| !warning.starts_with(&left_out(spec, "")));
        }
        let posts = self.posts.read().len();
        let logs = self.logs.read().len();
        self.open_posts(wanted, number, warnings);
        self.open_logs(wanted, number, warnings);
        let started = self.started.lock().clone();
        started.map_or(Ok(()), |hearers| self.start_from(posts, logs, &hearers))
    }

    /// Opens the links that carry whole messages of a store.
    fn open_posts(&self, wanted: &Wanted<'_>, number: usize, warnings: &mut Vec<String>) {
        let Some(store) = wanted.stores.get(number) else { return };
        let mut of_store = Vec::new();
        for (name, settings) in settings(store.as_ref(), wanted.specs, wanted.by_their_own) {
            match open(wanted, store, &name, settings) {
                Ok(post) => of_store.push(Arc::new(post)),
                Err(why) => {
                    // The state that an earlier mount wrote holds no longer.
                    let folder = folder(wanted, store.as_ref(), &name);
                    if let Some(before) = board::kept(&folder) {
                        Board::new(&name, &folder, before.engine)
                            .stopped(&format!("it is left out: {why}"));
                    }
                    warnings.push(format!(
                        "the link {name} of the store {} is left out: {why}",
                        store.name()
                    ));
                }
            }
        }
        if let Some(remote) = store.facets().remote.filter(|_| !of_store.is_empty()) {
            remote.join(Arc::new(From(of_store.clone())));
        }
        self.boards.write().extend(of_store.iter().map(|post| Arc::clone(post.board())));
        self.posts.write().extend(of_store.into_iter().map(|post| (number, post)));
    }

    /// Opens the links that carry the lines of a store.
    fn open_logs(&self, wanted: &Wanted<'_>, number: usize, warnings: &mut Vec<String>) {
        let Some(store) = wanted.stores.get(number) else { return };
        let mut of_store = Vec::new();
        let is_of_it = |spec: &&Spec| carries_logs(spec) && spec.store == store.name();
        for spec in wanted.specs.iter().filter(is_of_it) {
            match Logs::open(wanted, spec) {
                // Another store of the same name.
                Ok((of, _)) if of != number => {}
                Ok((_, logs)) => of_store.push(Arc::new(logs)),
                Err(why) => warnings.push(left_out(spec, &why)),
            }
        }
        if let Some(remote) = store.facets().remote.filter(|_| !of_store.is_empty()) {
            remote.join(Arc::new(Lines(of_store.clone())));
        }
        self.boards.write().extend(of_store.iter().map(|logs| Arc::clone(&logs.board)));
        self.logs.write().extend(of_store.into_iter().map(|logs| (number, logs)));
    }

    /// Tells the stores what became of what waits, for whoever only looks: no link is opened, and nothing is
    /// written. Why one cannot be told of is said by whoever carries.
    pub fn look(wanted: &Wanted<'_>) {
        wanted.stores.iter().for_each(|store| Self::look_in(wanted, store.as_ref()));
    }

    /// Tells one store.
    pub fn look_in(wanted: &Wanted<'_>, store: &dyn Store) {
        let Some(remote) = store.facets().remote else { return };
        let settings = settings(store, wanted.specs, wanted.by_their_own);
        let look = |(name, settings): (String, Settings)| {
            let folder = folder(wanted, store, &name);
            Some(Look::new(name, &folder, engine(&settings).ok()?))
        };
        let looks: Vec<Look> = settings.into_iter().filter_map(look).collect();
        if !looks.is_empty() {
            remote.join(Arc::new(Looks(looks)));
        }
    }

    /// Has them carry, a thread each.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(&self, changed: &Changed, marks: &MarksOf) -> std::io::Result<()> {
        let hearers = Hearers { changed: Arc::clone(changed), marks: Arc::clone(marks) };
        *self.started.lock() = Some(hearers.clone());
        self.start_from(0, 0, &hearers)
    }

    /// Has those carry that come behind so many others of their sort.
    fn start_from(&self, posts: usize, logs: usize, hearers: &Hearers) -> std::io::Result<()> {
        let all = self.posts.read().clone();
        for (number, post) in all.into_iter().skip(posts) {
            let changed = Arc::clone(&hearers.changed);
            let name = format!("msgfs-link-{}", post.name());
            let thread = std::thread::Builder::new().name(name);
            let thread = thread.spawn(move || post.run(&|| changed(number)))?;
            self.threads.lock().push(thread);
        }
        let mut logs = self.logs().into_iter().skip(logs);
        logs.try_for_each(|(number, logs)| logs.start((hearers.marks)(number)))
    }

    /// The links that carry lines, and the numbers of their stores.
    fn logs(&self) -> Vec<(usize, Arc<Logs>)> {
        self.logs.read().clone()
    }

    /// A mark may have changed.
    pub fn marked(&self) {
        self.logs().iter().for_each(|(_, logs)| logs.marked());
    }

    /// A store, by number, has changed: in these files, or anywhere.
    pub fn changed(&self, number: usize, files: Option<&[PathBuf]>) {
        for (_, logs) in self.logs().iter().filter(|(store, _)| *store == number) {
            logs.changed(files);
        }
    }

    /// Where each stands.
    pub fn boards(&self) -> &Boards {
        &self.boards
    }

    /// The links that carry whole messages.
    pub fn posts(&self) -> Vec<Arc<Post>> {
        self.posts.read().iter().map(|(_, post)| Arc::clone(post)).collect()
    }

    /// The folders in which requests are left.
    pub fn folders(&self) -> Vec<PathBuf> {
        self.posts().iter().map(|post| post.folder().to_owned()).collect()
    }

    /// Does what commands asked for.
    pub fn hear(&self) {
        for post in self.posts() {
            if let Err(error) = post.hear() {
                tracing::warn!(link = post.name(), %error, "a request to this link failed");
            }
        }
    }

    /// Ends the threads. Carriers that work go on, and are adopted at the next start.
    pub fn stop(&self) {
        self.posts().iter().for_each(|post| post.stop());
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            let _ = thread.join();
        }
        self.logs().iter().for_each(|(_, logs)| logs.stop());
    }
}

impl fmt::Debug for Hearers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hearers").finish_non_exhaustive()
    }
}

/// What is said of a link that is not opened.
fn left_out(spec: &Spec, why: &str) -> String {
    format!("the link {} is left out: {why}", spec.name)
}

/// Tells of a link whether it carries the lines of logs, and is not switched off.
fn carries_logs(spec: &Spec) -> bool {
    spec.kind == Kind::Nats && !spec.off
}

impl Drop for Links {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What describes the links of a store, by name.
#[cfg_attr(not(feature = "http"), allow(unused_variables))] // Then there are none.
pub fn settings(
    store: &dyn Store,
    specs: &[Spec],
    by_their_own: &[String],
) -> Vec<(String, Settings)> {
    let described = store.facets().remote.and_then(store::Remote::described_in);
    let Some(file) = described else { return Vec::new() };
    let is_wanted = by_their_own.iter().any(|name| name == store.name());
    let mut found: Vec<(String, Settings)> = match store.kind() {
        #[cfg(any(feature = "http", feature = "ftp", feature = "mail"))]
        store::Kind::AgentAzall if is_wanted => super::agentazall::found(&file, store.me()),
        #[cfg(feature = "http")]
        store::Kind::Amp => super::amp::found(&file, store.me()),
        _ => Vec::new(),
    };
    let said = |kind: &str| {
        let mut specs = specs.iter().filter(|spec| spec.store == store.name());
        specs.find(|spec| spec.kind.as_str() == kind)
    };
    found.retain(|(_, settings)| said(&settings.kind).is_none_or(|spec| !spec.off));
    for (_, settings) in &mut found {
        let spec = said(&settings.kind);
        settings.insecure |= spec.is_some_and(|spec| spec.insecure);
        settings.self_copy |= spec.is_some_and(|spec| spec.self_copy);
        settings.ca = spec.and_then(|spec| spec.ca.clone()).or(settings.ca.take());
    }
    found
}

/// The folder of a link.
fn folder(wanted: &Wanted<'_>, store: &dyn Store, name: &str) -> PathBuf {
    wanted.state.join("links").join(store.name()).join(name)
}

fn open(
    wanted: &Wanted<'_>,
    store: &Arc<dyn Store>,
    name: &str,
    settings: Settings,
) -> Result<Post, String> {
    let engine = engine(&settings)?;
    let folder = folder(wanted, store.as_ref(), name);
    let into = Arc::clone(store);
    let file = move |arrived: &Arrived| match into.facets().remote {
        Some(remote) => remote.file(arrived).map_err(std::io::Error::other),
        None => Ok(()),
    };
    let carrier = wanted.carrier.clone();
    Post::open(name, &folder, settings, engine, Box::new(file), carrier).map_err(|e| e.to_string())
}

/// The engine that settings describe.
///
/// # Errors
/// If this msgfs has none of that kind.
pub fn engine(settings: &Settings) -> Result<Box<dyn Engine>, String> {
    let kind = Kind::ALL.iter().find(|(name, _)| *name == settings.kind).map(|(_, kind)| *kind);
    match kind {
        #[cfg(feature = "http")]
        Some(Kind::AgentTalk) => Ok(Box::new(super::agentazall::relay::Relay::open(settings))),
        #[cfg(feature = "http")]
        Some(Kind::Amp) => super::amp::open(settings),
        #[cfg(feature = "ftp")]
        Some(Kind::Ftp) => Ok(Box::new(super::agentazall::ftp::Ftp::open(settings))),
        #[cfg(feature = "mail")]
        Some(Kind::Mail) => Ok(Box::new(super::agentazall::mail::Mail::open(settings)?)),
        _ => Err(kind.and_then(Kind::explain_absence).unwrap_or_else(|| {
            format!("this msgfs has no links of kind {}", one_line(&settings.kind))
        })),
    }
}

/// The first of several links, in their order, that reaches an address as mine.
pub(super) fn with_mine<'a>(
    mut all: impl Iterator<Item = (&'a str, &'a dyn Engine)>,
    (mine, address): (&str, &str),
) -> Option<String> {
    let fits = |engine: &dyn Engine| {
        engine.mine().is_some_and(|own| own.eq_ignore_ascii_case(mine))
            && engine.reaches(address).is_some()
    };
    all.find(|(_, engine)| fits(*engine)).map(|(name, _)| name.to_owned())
}

/// The one link that reaches an address best, of those that do.
pub(super) fn best(all: Vec<(u8, String)>) -> Result<Option<String>, String> {
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

impl Ways for Lines {
    fn reach(&self, _: &str) -> Result<Option<String>, String> {
        Ok(None)
    }

    fn has(&self, _: &str) -> bool {
        false
    }

    fn reaches(&self, _: &str, _: &str) -> bool {
        false
    }

    fn take(&self, link: &str, _: &Parcel) -> std::io::Result<()> {
        Err(std::io::Error::other(format!(
            "the link {link} carries whole logs, not single messages"
        )))
    }

    fn fate(&self, _: &str, _: &str) -> Option<Fate> {
        None
    }

    fn longest(&self) -> Option<(u64, String)> {
        self.0.iter().filter_map(|logs| logs.longest()).min()
    }
}

impl From {
    fn named(&self, link: &str) -> Option<&Arc<Post>> {
        self.0.iter().find(|post| post.name() == link)
    }
}

impl Ways for From {
    fn reach(&self, address: &str) -> Result<Option<String>, String> {
        let ranked =
            |post: &Arc<Post>| Some((post.engine().reaches(address)?, post.name().to_owned()));
        best(self.0.iter().filter_map(ranked).collect())
    }

    fn has(&self, link: &str) -> bool {
        self.named(link).is_some()
    }

    fn reaches(&self, link: &str, address: &str) -> bool {
        self.named(link).is_some_and(|post| post.engine().reaches(address).is_some())
    }

    fn reach_as(&self, mine: &str, address: &str) -> Option<String> {
        with_mine(self.0.iter().map(|post| (post.name(), post.engine())), (mine, address))
    }

    fn mine(&self, link: &str) -> Option<String> {
        self.named(link)?.engine().mine().map(str::to_owned)
    }

    fn takes(&self, link: &str, files: &[u64]) -> Result<(), String> {
        self.named(link).map_or(Ok(()), |post| post.engine().takes(post.folder(), files))
    }

    fn take(&self, link: &str, parcel: &Parcel) -> std::io::Result<()> {
        match self.named(link) {
            Some(post) => post.take(parcel),
            None => Err(std::io::Error::other(format!("there is no link {link} any more"))),
        }
    }

    fn fate(&self, message: &str, to: &str) -> Option<Fate> {
        self.0.iter().find_map(|post| post.fate(message, to))
    }

    fn known_as(&self, message: &str, to: &str) -> Option<String> {
        self.0.iter().find_map(|post| post.known_as(message, to))
    }
}
