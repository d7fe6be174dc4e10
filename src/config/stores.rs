//! The stores that a mount opens: configured ones, or those found at default places.

use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::env::Env;
use super::file::Config;
use super::paths::{PathError, default_dir, find_default_store};
use super::reader::{ConfigReader, SpannedValue};
use super::values::{parse_address, parse_alias, parse_entry_name, parse_folder};
use crate::model::find_word;
use crate::store::maildir::{self, MaildirSettings};
use crate::store::{Kind, StoreSpec, probe};

/// A `[[store]]` as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// The store's name in the mount; the kind if none is given.
    pub name: String,
    /// The store's kind.
    #[serde(deserialize_with = "read_kind")]
    pub kind: Kind,
    /// The store's folder, absolute and expanded; `None` for the default place of the kind.
    pub dir: Option<PathBuf>,
    /// My address in the store; `None` for the mount's me.
    pub me: Option<String>,
    /// The links that its own configuration describes carry its mail.
    pub links: bool,
    /// The settings of a store of kind `maildir`.
    pub maildir: MaildirSettings,
}

/// The table of the settings that only a store of kind `maildir` has.
pub(super) const MAILDIR: &str = "maildir";

impl<'a> ConfigReader<'a> {
    /// Moves the settings that only a Maildir has into a table of their own, as serde reads them.
    pub(super) fn nest_maildir(&mut self, store: &mut SpannedValue<'a>) {
        let span = store.span();
        let DeValue::Table(table) = store.get_mut() else { return };
        if let Some((key, _)) = table.remove_entry(MAILDIR) {
            let text = format!("unknown key {MAILDIR:?}; write its keys into [[store]] itself");
            self.report_problem(&key.span(), text);
        }
        if table.get("kind").and_then(|kind| kind.get_ref().as_str()) != Some(MAILDIR) {
            return;
        }
        let is_own = |key: &str| maildir::KEYS.split(' ').any(|own| own == key);
        let all = std::mem::take(table).into_iter();
        let (own, mut common): (DeTable<'_>, DeTable<'_>) =
            all.partition(|(key, _)| is_own(key.get_ref().as_ref()));
        let own = Spanned::new(span.clone(), DeValue::Table(own));
        common.insert(Spanned::new(span, MAILDIR.into()), own);
        *table = common;
    }

    /// Checks a `[[store]]`, gives it its default name, and makes its folder absolute.
    pub(super) fn check_store(&mut self, table: &SpannedValue<'_>, store: &mut StoreConfig) {
        let kind = table.get_ref().get("kind").map(|kind| kind.get_ref().as_str());
        if kind.is_none() {
            self.report_missing_kind(
                "store",
                &table.span(),
                Kind::ALL.iter().map(|kind| kind.as_str()),
            );
        }
        let is_samp = kind == Some(Some(Kind::Samp.as_str()));
        self.check_texts(table, "me", if is_samp { parse_alias } else { parse_address });
        self.check_texts(table, "name", parse_entry_name);
        self.resolve_path(table, "dir", &mut store.dir);
        if store.kind == Kind::Amq {
            self.check_texts(table, "dir", check_amq_root);
        }
        if let Some(own) = table.get_ref().get(MAILDIR) {
            self.check_maildir(own, &mut store.maildir);
        }
        if store.name.is_empty() {
            store.name = store.kind.to_string();
        }
    }

    fn check_maildir(&mut self, table: &SpannedValue<'_>, own: &mut MaildirSettings) {
        self.check_texts(table, "me", parse_address);
        self.check_texts(table, "sent", parse_folder);
        self.check_texts(table, "folders", parse_folder);
        self.resolve_path(table, "sendmail", &mut own.sendmail);
        let Some(local) = table.get_ref().get("local") else { return };
        for (address, dir) in &mut own.local {
            let mut path = Some(std::mem::take(dir));
            self.resolve_path(local, address, &mut path);
            *dir = path.unwrap_or_default();
        }
    }
}

fn read_kind<'de, D: Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
    let kinds: Vec<_> = Kind::ALL.iter().map(|kind| (kind.as_str(), *kind)).collect();
    find_word(&String::deserialize(from)?, &kinds, &[]).map_err(D::Error::custom)
}

/// Checks that a root means one folder. AMQ's own programs look for a relative one in the current folder and in all
/// folders above it.
fn check_amq_root(dir: &str) -> Result<(), String> {
    if dir.starts_with(['/', '~', '$']) {
        return Ok(());
    }
    Err("dir of an amq store must be an absolute path, or begin with ~/ or a variable".to_owned())
}

impl Config {
    /// Returns the stores to open for this me: the `[[store]]` entries, or SAMP at its default place if there
    /// are none.
    ///
    /// # Errors
    /// Returns a [`PathError`] if a store uses its default place and that is unknown.
    pub fn stores(&self, env: &Env, me: &str) -> Result<Vec<StoreSpec>, PathError> {
        let default = [StoreConfig::with_defaults(Kind::Samp)];
        let entries = if self.entries.is_empty() { &default[..] } else { &self.entries };
        let spec = |entry: &StoreConfig| {
            let dir = match &entry.dir {
                Some(dir) => Some(dir.clone()),
                None => default_dir(entry.kind, env)?,
            };
            let no_place = || PathError::NoPlace(entry.name.clone(), entry.kind);
            Ok(entry.to_spec(dir.ok_or_else(no_place)?, env, me, self))
        };
        entries.iter().map(spec).collect()
    }

    /// Returns true if a message of some store may have a priority.
    pub(super) fn may_have_priorities(&self, env: &Env) -> bool {
        if self.entries.is_empty() {
            let mut kinds = Kind::ALL.iter().filter(|kind| kind.row().has_priorities);
            return kinds.any(|kind| find_default_store(*kind, env).is_some());
        }
        self.entries.iter().any(|entry| entry.kind.row().has_priorities)
    }

    /// Returns the names of the stores whose own configuration describes the links that carry their mail.
    pub fn linked_stores(&self) -> Vec<String> {
        self.entries.iter().filter(|e| e.links).map(|e| e.name.clone()).collect()
    }

    /// Returns further stores at their default places on this machine, which nobody asked for. None if there is
    /// any `[[store]]`. A failure to open one of them is no error: it may be somebody else's.
    pub fn find_default_stores(&self, env: &Env, me: &str) -> Vec<StoreSpec> {
        let kinds = if self.entries.is_empty() { Kind::ALL } else { &[] };
        let spec = |kind: &Kind| {
            Some(StoreConfig::with_defaults(*kind).to_spec(
                find_default_store(*kind, env)?,
                env,
                me,
                self,
            ))
        };
        kinds.iter().filter_map(spec).collect()
    }

    /// Returns the Maildir at its default place, if there is one that no `[[store]]` has: mail is read only where a
    /// person says so.
    pub fn find_unused_maildir(&self, env: &Env) -> Option<PathBuf> {
        let dir = default_dir(Kind::Maildir, env).ok().flatten()?;
        probe::require_response(&dir).ok()?;
        let real = dir.canonicalize().ok()?;
        let is_it = |entry: &StoreConfig| {
            let own = entry.dir.as_deref().unwrap_or(&dir);
            entry.kind == Kind::Maildir
                && (*own == *dir || own.canonicalize().ok().as_ref() == Some(&real))
        };
        let is_used = self.entries.iter().any(is_it);
        let is_maildir = ["new", "cur"].iter().all(|leaf| dir.join(leaf).is_dir());
        (is_maildir && !is_used).then_some(dir)
    }

    /// Returns the default places without a store now. None if there is any `[[store]]`.
    pub fn absent_stores(&self, env: &Env, me: &str) -> Vec<AbsentStore> {
        let kinds = if self.entries.is_empty() { Kind::ALL } else { &[] };
        let vacant = |kind: &Kind| {
            let dir = default_dir(*kind, env).ok().flatten()?;
            let is_vacant =
                kind.row().is_store.is_some() && find_default_store(*kind, env).is_none();
            let spec = || StoreConfig::with_defaults(*kind).to_spec(dir, env, me, self);
            is_vacant.then(|| AbsentStore { spec: spec(), env: env.clone() })
        };
        kinds.iter().filter_map(vacant).collect()
    }
}

/// A default place that had no store.
#[derive(Clone, Debug)]
pub struct AbsentStore {
    /// The store that may come there.
    pub spec: StoreSpec,
    env: Env,
}

impl AbsentStore {
    /// Returns true if there is still no store.
    pub fn is_absent(&self) -> bool {
        find_default_store(self.spec.kind, &self.env).is_none()
    }

    /// Returns a sentence about the variable that leads to nothing, if one is set: its user expects a store.
    pub fn explain_variable(&self) -> Option<String> {
        let mut names = self.spec.kind.row().dir_variables.iter();
        let name = names.find(|name| self.env.var(name).is_some())?;
        let kind = self.spec.kind;
        Some(format!(
            "${name} is set, but there is no {kind} store where it points; correct it or unset it"
        ))
    }
}

impl StoreConfig {
    /// Returns a store that is named after its kind and lies at its default place.
    fn with_defaults(kind: Kind) -> Self {
        Self { name: kind.to_string(), kind, ..Self::default() }
    }

    fn to_spec(&self, dir: PathBuf, env: &Env, me: &str, config: &Config) -> StoreSpec {
        let own = self.kind.row().me_variable.and_then(|variable| env.var(variable));
        StoreSpec {
            name: self.name.clone(),
            kind: self.kind,
            may_create: self.dir.is_none()
                || default_dir(self.kind, env).ok().flatten().as_ref() == Some(&dir),
            dir,
            me: me.to_owned(),
            own_address: self.me.clone().or_else(|| Some(own?.to_string_lossy().into_owned())),
            state: None,
            home: env.home().map(Path::to_owned),
            roles: config.trust.roles,
            durability: config.durability,
            maildir: self.maildir.clone(),
        }
    }
}
