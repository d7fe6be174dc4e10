//! The stores that a mount opens: configured ones, or those found at default places.

use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _};
use toml::de::DeValue;

use super::env::Env;
use super::file::Config;
use super::paths::{PathError, default_dir, find_default_store};
use super::reader::{ConfigReader, SpannedValue, nest_keys};
use super::values::{parse_alias, parse_entry_name};
use crate::model::{check_address, find_word};
use crate::store::{Kind, KindSettings, StoreSpec, probe};

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
    /// The settings that only stores of its kind have. A person writes them into `[[store]]` itself.
    #[serde(rename = "store settings")]
    pub settings: KindSettings,
}

/// The key of [`StoreConfig::settings`].
pub(super) const STORE_SETTINGS: &str = "store settings";

/// Moves the keys that only stores of one kind have into a table of their own, as serde reads them.
pub(super) fn nest_store_settings(store: &mut SpannedValue<'_>) {
    let span = store.span();
    let DeValue::Table(table) = store.get_mut() else { return };
    let word = table.get("kind").and_then(|kind| kind.get_ref().as_str());
    if let Some(kind) = word.and_then(|word| word.parse::<Kind>().ok())
        && !kind.row().keys.is_empty()
    {
        nest_keys(table, &span, (STORE_SETTINGS, kind.as_str()), kind.row().keys);
    }
}

impl ConfigReader<'_> {
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
        if is_samp {
            self.check_texts(table, "me", parse_alias);
        } else {
            self.check_texts(table, "me", check_address);
        }
        self.check_texts(table, "name", parse_entry_name);
        self.resolve_path(table, "dir", &mut store.dir);
        if store.kind == Kind::Amq {
            self.check_texts(table, "dir", check_amq_root);
        }
        let word = store.kind.as_str();
        let own =
            table.get_ref().get(STORE_SETTINGS).and_then(|settings| settings.get_ref().get(word));
        if let Some(own) = own {
            self.check_settings(own, store.kind.row().keys, store.settings.files_mut());
        }
        if store.name.is_empty() {
            store.name = store.kind.to_string();
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

    /// Returns the stores at default places that no `[[store]]` has and that are read only where a person says so.
    pub fn find_unused_stores(&self, env: &Env) -> Vec<(Kind, PathBuf)> {
        let unused = |kind: &Kind| {
            let is_offered = kind.row().is_offered?;
            let dir = default_dir(*kind, env).ok().flatten()?;
            probe::require_response(&dir).ok()?;
            let real = dir.canonicalize().ok()?;
            let is_it = |entry: &StoreConfig| {
                let own = entry.dir.as_deref().unwrap_or(&dir);
                entry.kind == *kind
                    && (*own == *dir || own.canonicalize().ok().as_ref() == Some(&real))
            };
            let is_used = self.entries.iter().any(is_it);
            (is_offered(&dir) && !is_used).then_some((*kind, dir))
        };
        Kind::ALL.iter().filter_map(unused).collect()
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
            settings: self.settings.clone(),
        }
    }
}
