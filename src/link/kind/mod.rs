//! The configuration of a link, and the kinds of links: a table with one row a kind. Each row stands in a file of this
//! folder, beside the settings of its kind. Rows are there in every build, also in those without the code of their kind.

mod agentazall;
mod amp;
mod nats;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use self::agentazall::MailSettings;
pub use self::nats::{NatsConfig, NatsSettings, is_space_name};
use super::engine::{EngineSettings, LinkEngine, NamedSettings};
use super::logs::LogEngine;
use crate::model::{SettingsFiles, TextRule, sanitize_line};
use crate::store::Kind;

/// A function that opens the engine of a link of messages. Returns the reason, if it cannot be opened.
type OpenEngineFn = fn(&EngineSettings) -> Result<Box<dyn LinkEngine>, String>;

/// A function that returns my links of this kind that a store's own file describes.
type FindAccountsFn = fn(&Path, &str) -> NamedSettings;

/// A function that opens the engine of a link of logs. Returns `None` for a link of another kind.
type OpenLogEngineFn = fn(&LinkConfig) -> Option<Box<dyn LogEngine>>;

/// The row of a kind of link: what the rest of msgfs asks of it.
#[derive(Debug)]
pub struct LinkKind {
    /// Its name in the configuration.
    pub name: &'static str,
    /// The feature of Cargo that adds links of this kind.
    cargo_feature: &'static str,
    /// The kind of store that it serves.
    pub store_kind: Kind,
    /// An example of its own keys in a `[[link]]`, in lines that are commented out.
    example: &'static str,
    /// Other words that people use for it, separated by blanks.
    pub other_words: &'static str,
    /// The keys of a `[[link]]` that only this kind has, each with the rule for its texts.
    pub keys: &'static [(&'static str, TextRule)],
    /// The key that a link cannot do without, and an example of it.
    pub needed_key: Option<(&'static str, &'static str)>,
    /// True if its links carry only for stores with `links = true`.
    pub(super) needs_consent: bool,
    /// Finds the accounts of links of messages.
    pub(super) find_accounts: Option<FindAccountsFn>,
    /// Opens the engine of a link of messages.
    pub(super) open_engine: Option<OpenEngineFn>,
    /// Describes the place of a link of logs for people, without a secret. Links of messages have none.
    describe_place: Option<fn(&LinkConfig) -> String>,
    /// Opens the engine of a link of logs.
    open_log_engine: Option<OpenLogEngineFn>,
}

/// A configured link, with the settings of its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig<S = LinkSettings> {
    /// Its name, unique among the links.
    #[serde(default)]
    pub name: String,
    /// The name of the store that it serves.
    #[serde(default)]
    pub store: String,
    /// A file with certificates of further authorities, in PEM.
    pub ca: Option<PathBuf>,
    /// True if plain text may go to any host.
    #[serde(default)]
    pub insecure: bool,
    /// True if the link is switched off.
    #[serde(default)]
    pub off: bool,
    /// The settings that only links of its kind have. A person writes them into `[[link]]` itself, beside the kind.
    #[serde(rename = "link settings")]
    pub settings: S,
}

/// The settings of one kind of link. The name of a variant in small letters is the name of the kind.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkSettings {
    /// A link over NATS.
    Nats(NatsSettings),
    /// A link to a provider of AMP. The registrations of the agent describe it.
    Amp(NoSettings),
    /// A link to AgentAZAll's relay. The store's own file describes it.
    AgentTalk(NoSettings),
    /// A link by e-mail. The store's own file describes the accounts.
    Mail(MailSettings),
    /// A link over FTP. The store's own file describes it.
    Ftp(NoSettings),
}

/// The settings of a link that other files describe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoSettings {}

impl LinkSettings {
    /// Returns the row of its kind.
    pub fn kind(&self) -> &'static LinkKind {
        match self {
            Self::Nats(_) => &nats::NATS,
            Self::Amp(_) => &amp::AMP,
            Self::AgentTalk(_) => &agentazall::AGENTTALK,
            Self::Mail(_) => &agentazall::MAIL,
            Self::Ftp(_) => &agentazall::FTP,
        }
    }

    /// Returns the files among the settings, with their keys, to be made absolute.
    pub fn files_mut(&mut self) -> SettingsFiles<'_> {
        match self {
            Self::Nats(nats) => nats.files_mut(),
            Self::Amp(_) | Self::AgentTalk(_) | Self::Mail(_) | Self::Ftp(_) => Vec::new(),
        }
    }
}

impl LinkKind {
    /// Every kind, in the order in which they are listed to people.
    pub const ALL: &[&'static Self] =
        &[&nats::NATS, &amp::AMP, &agentazall::AGENTTALK, &agentazall::MAIL, &agentazall::FTP];

    /// A kind without settings, as which a `[[link]]` of an unknown kind is read.
    pub const WITHOUT_SETTINGS: &'static Self = &agentazall::FTP;

    /// Returns a row with what every kind must have. It opens no links.
    const fn new(
        name: &'static str,
        cargo_feature: &'static str,
        store_kind: Kind,
        example: &'static str,
    ) -> Self {
        Self {
            name,
            cargo_feature,
            store_kind,
            example,
            other_words: "",
            keys: &[],
            needed_key: None,
            needs_consent: false,
            find_accounts: None,
            open_engine: None,
            describe_place: None,
            open_log_engine: None,
        }
    }

    /// Returns the kind with this name in the configuration.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|kind| kind.name == name).copied()
    }

    /// Returns the kind that alone has this key, if one has.
    pub fn from_key(key: &str) -> Option<&'static Self> {
        let has_key = |kind: &&&Self| kind.keys.iter().any(|(own, _)| *own == key);
        Self::ALL.iter().find(has_key).copied()
    }

    /// Returns true if its links carry the lines of logs, and not whole messages.
    pub fn carries_logs(&self) -> bool {
        self.describe_place.is_some()
    }

    /// Returns an example of such a link for the configuration, in lines that are commented out.
    pub fn render_example(&self) -> String {
        let Self { name, store_kind, example, .. } = self;
        format!(
            "# See docs/links/{name}.md.\n# [[link]]\n# kind = \"{name}\"\n# store = \"{store_kind}\"\n{example}"
        )
    }

    /// Returns a sentence that this msgfs has no links of this kind, with the command that adds them. `None` if it has
    /// them.
    pub fn explain_absence(&self) -> Option<String> {
        self.explain_absence_among(&FEATURES)
    }

    fn explain_absence_among(&self, features: &[(&str, bool)]) -> Option<String> {
        if features.contains(&(self.cargo_feature, true)) {
            return None;
        }
        let wanted = features.iter().filter(|(name, is_in)| *is_in || *name == self.cargo_feature);
        let wanted: Vec<&str> = wanted.map(|(name, _)| *name).collect();
        Some(format!(
            "this msgfs was built without links of kind {self}; to add them, in its source: \
             cargo install --locked --path . --features {}",
            wanted.join(",")
        ))
    }

    /// Returns why no engine was opened for a link of this kind.
    fn explain_no_engine(&self) -> String {
        let other_sort = || format!("links of kind {self} do not carry what this link carries");
        self.explain_absence().unwrap_or_else(other_sort)
    }
}

/// The features of Cargo that add links. True means that this msgfs has the feature.
pub const FEATURES: [(&str, bool); 4] = [
    ("http", cfg!(feature = "http")),
    ("ftp", cfg!(feature = "ftp")),
    ("mail", cfg!(feature = "mail")),
    ("nats", cfg!(feature = "nats")),
];

impl PartialEq for LinkKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl LinkConfig {
    /// Returns the row of its kind.
    pub fn kind(&self) -> &'static LinkKind {
        self.settings.kind()
    }

    /// Returns the place of a link of logs, for people; `None` for a link of messages.
    pub fn describe_place(&self) -> Option<String> {
        self.kind().describe_place.map(|describe| describe(self))
    }

    /// Adds what a `[[link]]` says to the settings that the store's own file gives.
    pub(super) fn add_to(&self, engine: &mut EngineSettings) {
        engine.insecure |= self.insecure;
        engine.ca = self.ca.clone().or(engine.ca.take());
        if let LinkSettings::Mail(mail) = &self.settings {
            engine.self_copy |= mail.self_copy;
        }
    }

    /// Opens the engine of a link of logs.
    ///
    /// # Errors
    /// Returns the reason why this msgfs has no such engine.
    pub(super) fn open_log_engine(&self) -> Result<Box<dyn LogEngine>, String> {
        let open = self.kind().open_log_engine;
        open.and_then(|open| open(self)).ok_or_else(|| self.kind().explain_no_engine())
    }
}

/// Opens the engine of a link of messages.
///
/// # Errors
/// Returns the reason why this msgfs has no such engine, or why it cannot be opened.
pub fn open_engine(settings: &EngineSettings) -> Result<Box<dyn LinkEngine>, String> {
    let Some(kind) = LinkKind::from_name(&settings.kind) else {
        return Err(format!("this msgfs has no links of kind {}", sanitize_line(&settings.kind)));
    };
    kind.open_engine.map_or_else(|| Err(kind.explain_no_engine()), |open| open(settings))
}

/// Adds to the description of an engine, for people, that plain text may go to any host.
pub(super) fn note_insecure(place: String, insecure: bool) -> String {
    if insecure { place + ", insecure = true" } else { place }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_built_in_is_told_with_the_command_that_adds_it() {
        let without = |out: &str| FEATURES.map(|(name, _)| (name, name != out));
        let nats = nats::NATS.explain_absence_among(&without("nats")).unwrap();
        assert!(nats.contains("without links of kind nats"), "{nats}");
        assert!(nats.ends_with("cargo install --locked --path . --features http,ftp,mail,nats"));
        let none = FEATURES.map(|(name, _)| (name, false));
        for kind in LinkKind::ALL {
            let end = format!("--features {}", kind.cargo_feature);
            assert!(kind.explain_absence_among(&none).unwrap().ends_with(&end), "{kind}");
            assert_eq!(kind.explain_absence_among(&without("")), None, "{kind}");
        }
        assert_eq!(agentazall::MAIL.explain_absence_among(&without("http")), None);
    }

    /// Each kind is one of the two sorts, in each build that has it.
    #[test]
    fn a_built_in_kind_opens_engines_of_one_sort() {
        for kind in LinkKind::ALL.iter().filter(|kind| kind.explain_absence().is_none()) {
            let of_messages = kind.open_engine.is_some() && kind.find_accounts.is_some();
            assert_ne!(of_messages, kind.open_log_engine.is_some(), "{kind}");
            assert_eq!(kind.open_log_engine.is_some(), kind.carries_logs(), "{kind}");
        }
    }

    #[test]
    fn no_two_kinds_have_one_key() {
        for kind in LinkKind::ALL {
            for (key, _) in kind.keys {
                assert_eq!(LinkKind::from_key(key), Some(*kind), "{key}");
            }
        }
    }
}
