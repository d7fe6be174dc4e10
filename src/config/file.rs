//! The configuration file (docs/USING.md, "Configuration").
//!
//! Every key is optional. All problems are reported at once, so that mending a file takes one round. Each has
//! its file and line, and for an unknown word the nearest known one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::env::Env;
use super::paths::default_config_file;
use super::reader::{ConfigReader, MEMBERS, SpannedValue, list_entries};
use super::stores::{StoreConfig, nest_store_settings};
use super::values::{parse_alias, parse_muted, read_duration, read_size};
use crate::link;
use crate::model::{
    BellVolume, Durability, MarkRead, Roles, Scope, UnknownRecipient, Unsigned, Watch,
    check_address, display_path, quote_words,
};
use crate::store::{Kind, probe};

/// The keys at the top of the file.
pub(super) const KEYS: &str = "me mark_read scope unsigned durability wait_timeout unknown_recipient \
                               max_message watch bell muted search groups trust store link";

/// The largest configuration file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The content of the configuration file, with defaults for missing keys.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The file that this was read from; `None` if there was none.
    #[serde(skip)]
    pub path: Option<PathBuf>,
    /// The me to act for; a valid alias.
    pub me: Option<String>,
    /// The action that marks a message as read.
    pub mark_read: MarkRead,
    /// The threads that are shown: mine, or also those between others.
    pub scope: Scope,
    /// The treatment of unsigned messages.
    pub unsigned: Unsigned,
    /// The sync to disk that sending waits for, if any.
    pub durability: Durability,
    /// The longest time that a read of `.wait` or `.next` blocks.
    #[serde(deserialize_with = "read_duration")]
    pub wait_timeout: Duration,
    /// The treatment of drafts for a recipient who has never been seen.
    pub unknown_recipient: UnknownRecipient,
    /// The largest draft in bytes.
    #[serde(deserialize_with = "read_size")]
    pub max_message: u64,
    /// The means to notice changes of the stores.
    pub watch: Watch,
    /// The mail that rings the bell of a coding agent.
    pub bell: BellVolume,
    /// The senders and threads whose mail never rings it.
    pub muted: Vec<String>,
    /// True if there is `search/`.
    pub search: bool,
    /// The `[groups]`: names that stand for several recipients.
    pub groups: Groups,
    /// The trust rules for signatures.
    pub trust: TrustRules,
    /// The `[[store]]` entries, in order; [`Config::stores`] gives the effective ones.
    #[serde(rename = "store")]
    pub entries: Vec<StoreConfig>,
    /// The `[[link]]` entries, in order.
    #[serde(rename = "link")]
    pub links: Vec<link::LinkConfig>,
}

/// The names that stand for several recipients.
type Groups = BTreeMap<String, Vec<String>>;

/// The rules of `[trust]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrustRules {
    /// The trust rule for signatures of roles.
    pub roles: Roles,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            path: None,
            me: None,
            mark_read: MarkRead::default(),
            scope: Scope::default(),
            unsigned: Unsigned::default(),
            durability: Durability::default(),
            wait_timeout: Duration::from_secs(60),
            unknown_recipient: UnknownRecipient::default(),
            max_message: 16 << 20,
            watch: Watch::default(),
            bell: BellVolume::default(),
            muted: Vec::new(),
            search: true,
            groups: BTreeMap::new(),
            trust: TrustRules::default(),
            entries: Vec::new(),
            links: Vec::new(),
        }
    }
}

/// One problem in the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigProblem {
    /// The line, counted from 1.
    pub line: usize,
    /// The problem, and the right form.
    pub text: String,
}

/// A reason why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file was named explicitly and is not there.
    #[error("{}: there is no such configuration file; correct the path, or leave it out", display_path(.0))]
    Missing(PathBuf),
    /// The operating system refused the file.
    #[error("{}: the configuration cannot be read: {}", display_path(.0), .1)]
    Io(PathBuf, #[source] io::Error),
    /// The file has invalid content. The text has one line for each problem, `file:line: …`, in the file's
    /// order.
    #[error("{}", in_lines(path, problems))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// At least one problem.
        problems: Vec<ConfigProblem>,
    },
}

fn in_lines(path: &Path, problems: &[ConfigProblem]) -> String {
    let line = |p: &ConfigProblem| format!("{}:{}: {}", display_path(path), p.line, p.text);
    problems.iter().map(line).collect::<Vec<_>>().join("\n")
}

impl Config {
    /// Returns the keys at the top of the file.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        KEYS.split(' ')
    }

    /// Reads the given file, or `$XDG_CONFIG_HOME/msgfs/config.toml`, which may be missing.
    ///
    /// # Errors
    /// Returns a [`ConfigError`]; every text names the file, and the lines where lines are wrong.
    pub fn load(explicit: Option<&Path>, env: &Env) -> Result<Self, ConfigError> {
        let path = match explicit {
            Some(path) => env.make_absolute(path),
            // Without a home there is no configuration. Code that needs a home reports that.
            None => match default_config_file(env) {
                Ok(path) => path,
                Err(_) => return Ok(Self::default()),
            },
        };
        let mut bytes = Vec::new();
        let opened = probe::require_response(&path).and_then(|()| File::open(&path));
        let read = opened.and_then(|f| f.take(MAX_FILE + 1).read_to_end(&mut bytes));
        match read {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return match explicit {
                    Some(_) => Err(ConfigError::Missing(path)),
                    None => Ok(Self::default()),
                };
            }
            Err(source) => return Err(ConfigError::Io(path, source)),
            Ok(_) if bytes.len() as u64 > MAX_FILE => {
                let source = io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 MiB");
                return Err(ConfigError::Io(path, source));
            }
            Ok(_) => {}
        }
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse(&text, &path, env),
            Err(e) => {
                let good = e.as_bytes().get(..e.utf8_error().valid_up_to()).unwrap_or_default();
                let line = line_number_at(good);
                let text = "this line is not UTF-8".to_owned();
                Err(ConfigError::Invalid { path, problems: vec![ConfigProblem { line, text }] })
            }
        }
    }

    /// Parses the text of a configuration that lies at `path`; relative folders in it start from there.
    ///
    /// # Errors
    /// Returns [`ConfigError::Invalid`].
    pub fn parse(text: &str, path: &Path, env: &Env) -> Result<Self, ConfigError> {
        let base = path.parent().unwrap_or(Path::new(""));
        let mut reader = ConfigReader { text, base, env, problems: Vec::new() };
        let config = match DeTable::parse(text) {
            Ok(table) => reader.read_file(table),
            Err(e) => {
                let span = e.span().unwrap_or_default();
                reader.report_problem(&span, explain_bare_text(text, &span).unwrap_or(e.message()));
                Self::default()
            }
        };
        if reader.problems.is_empty() {
            return Ok(Self { path: Some(path.to_owned()), ..config });
        }
        reader.problems.sort();
        Err(ConfigError::Invalid { path: path.to_owned(), problems: reader.problems })
    }
}

impl<'a> ConfigReader<'a> {
    fn read_file(&mut self, file: Spanned<DeTable<'a>>) -> Config {
        let (span, mut table) = (file.span(), file.into_inner());
        self.remove_non_tables(&mut table);
        if let Some(DeValue::Array(stores)) = table.get_mut("store").map(Spanned::get_mut) {
            stores.iter_mut().for_each(nest_store_settings);
        }
        if let Some(DeValue::Array(links)) = table.get_mut("link").map(Spanned::get_mut) {
            links.iter_mut().for_each(|link| self.nest_settings(link));
        }
        let file = Spanned::new(span, DeValue::Table(table));
        let mut config = self.read(&file);
        self.check_texts(&file, "me", parse_alias);
        self.check_texts(&file, "muted", parse_muted);
        if let Some(groups) = file.get_ref().get("groups") {
            self.check_groups(groups, &config.groups);
        }
        for (store, table) in config.entries.iter_mut().zip(list_entries(&file, "store")) {
            self.check_store(table, store);
        }
        for (link, table) in config.links.iter_mut().zip(list_entries(&file, "link")) {
            self.check_link(table, link);
        }
        if self.problems.is_empty() {
            self.check_names(&file, "store", config.entries.iter().map(|store| &*store.name));
            self.check_names(&file, "link", config.links.iter().map(|link| &*link.name));
            self.check_bell(&file, &config);
        }
        config
    }

    /// Reports a bell that would never ring: it waits for priorities, and no store has any.
    fn check_bell(&mut self, file: &SpannedValue<'_>, config: &Config) {
        let Some(value) = file.get_ref().get("bell") else { return };
        if config.bell == BellVolume::Urgent && !config.may_have_priorities(self.env) {
            let kinds = Kind::ALL.iter().filter(|kind| kind.row().has_priorities);
            let kinds = quote_words(kinds.map(|kind| kind.as_str()));
            self.report_value(
                "bell",
                value,
                &format!(
                    "no store here has priorities; only stores of the kinds {kinds} have them"
                ),
            );
        }
    }

    fn check_groups(&mut self, table: &SpannedValue<'_>, groups: &Groups) {
        for (key, value) in table.get_ref().as_table().into_iter().flatten() {
            let name = key.get_ref().as_ref();
            if let Err(rule) = parse_alias(name) {
                self.report_problem(&key.span(), format!("the name of a group, {name:?}: {rule}"));
            }
            self.check_texts(table, name, check_address);
            let Some(members) = groups.get(name) else { continue };
            if members.is_empty() {
                self.report_value(name, value, &format!("must be {MEMBERS}"));
            }
            if let Some(group) = members.iter().find(|member| groups.contains_key(*member)) {
                let text = format!("{name} has the group {group:?} in it: write its members here");
                self.report_problem(&value.span(), text);
            }
        }
    }
}

/// Returns the reason why the value of a line cannot be read, if it is a word without quotes.
fn explain_bare_text(text: &str, wrong: &Range<usize>) -> Option<&'static str> {
    let start =
        text.get(..wrong.start).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
    let line = text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
    let value = line.split_once('=').map_or("", |(_, value)| value.trim());
    let is_word =
        value.starts_with(|c: char| c.is_alphabetic() || matches!(c, '/' | '~' | '$' | '_'));
    match value.to_ascii_lowercase().as_str() {
        _ if !is_word || matches!(value, "true" | "false") => None,
        "true" | "false" => Some("true and false are written in small letters"),
        _ => Some("a text needs quotes, as in me = \"foo\""),
    }
}

/// Returns the number of the line after these bytes, counted from 1.
pub(super) fn line_number_at(before: &[u8]) -> usize {
    1 + memchr::memchr_iter(b'\n', before).count()
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
