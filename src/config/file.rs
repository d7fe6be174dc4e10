//! The configuration file (docs/USING.md, "Configuration").
//!
//! Every key is optional. All problems are reported at once, so that mending a file takes one round. Each has
//! its file and line, and for an unknown word the nearest known one.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::env::Env;
use super::me::{ALIAS_RULE, is_alias};
use super::paths::default_config_file;
use super::values::{check_size, parse_duration, parse_size};
use crate::link;
use crate::model::{
    Choice, MarkRead, Roles, Scope, UnknownRecipient, Unsigned, Watch, display_path, find_nearest,
    sanitize_line,
};
use crate::store::{Durability, Kind, probe};

/// The keys at the top of the file.
pub(super) const KEYS: &str = "me mark_read scope unsigned durability wait_timeout unknown_recipient \
                    max_message watch groups trust store link";

/// The keys of `[trust]`.
const TRUST_KEYS: &str = "roles";

/// The keys of a `[[store]]`.
const STORE_KEYS: &str = "name kind dir me links";

/// The largest configuration file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The longest name of a store, in bytes; it becomes part of names in the mount.
const MAX_STORE_NAME: usize = 64;

/// The content of the configuration file, with defaults for missing keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file that this was read from; `None` if there was none.
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
    pub wait_timeout: Duration,
    /// The treatment of drafts for a recipient who has never been seen.
    pub unknown_recipient: UnknownRecipient,
    /// The largest draft in bytes.
    pub max_message: u64,
    /// The means to notice changes of the stores.
    pub watch: Watch,
    /// The `[groups]`: names that stand for several recipients.
    pub groups: BTreeMap<String, Vec<String>>,
    /// The trust rule for signatures of roles.
    pub roles: Roles,
    /// The `[[store]]` entries, in order; [`Config::stores`] gives the effective ones.
    pub entries: Vec<StoreConfig>,
    /// The `[[link]]` entries, in order.
    pub links: Vec<link::LinkConfig>,
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
            groups: BTreeMap::new(),
            roles: Roles::default(),
            entries: Vec::new(),
            links: Vec::new(),
        }
    }
}

/// A `[[store]]` as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The store's name in the mount; the kind if none is given.
    pub name: String,
    /// The store's kind.
    pub kind: Kind,
    /// The store's folder, absolute and expanded; `None` for the default place of the kind.
    pub dir: Option<PathBuf>,
    /// My address in the store; `None` for the mount's me.
    pub me: Option<String>,
    /// The links that its own configuration describes carry its mail.
    pub links: bool,
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
    #[error("{}: there is no such configuration file", display_path(.0))]
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
        let mut reader = ConfigReader { text, path, env, problems: Vec::new() };
        let mut config = Self { path: Some(path.to_owned()), ..Self::default() };
        match DeTable::parse(text) {
            Ok(table) => reader.read_top_level(table.get_ref(), &mut config),
            Err(e) => {
                let span = e.span().unwrap_or_default();
                let hint = if is_bare_text(text, &span) {
                    ": a text needs quotes, as in me = \"foo\""
                } else {
                    ""
                };
                reader.report_problem(&span, format!("{}{hint}", e.message()));
            }
        }
        if reader.problems.is_empty() {
            return Ok(config);
        }
        reader.problems.sort();
        Err(ConfigError::Invalid { path: path.to_owned(), problems: reader.problems })
    }
}

/// A key and its value.
pub(super) type KeyValue<'a> = (&'a Spanned<Cow<'a, str>>, &'a Spanned<DeValue<'a>>);

/// A reader of values that collects their problems.
pub(super) struct ConfigReader<'a> {
    text: &'a str,
    pub(super) path: &'a Path,
    pub(super) env: &'a Env,
    pub(super) problems: Vec<ConfigProblem>,
}

impl ConfigReader<'_> {
    fn line_of(&self, span: &Range<usize>) -> usize {
        line_number_at(self.text.as_bytes().get(..span.start).unwrap_or_default())
    }

    pub(super) fn report_problem(&mut self, span: &Range<usize>, text: String) {
        let line = self.line_of(span);
        self.problems.push(ConfigProblem { line, text: sanitize_line(&text).into_owned() });
    }

    fn read_top_level(&mut self, table: &DeTable<'_>, config: &mut Config) {
        for member in table {
            match member.0.get_ref().as_ref() {
                "me" => config.me = self.read_parsed(member, parse_alias),
                "mark_read" => config.mark_read = self.read_choice(member),
                "scope" => config.scope = self.read_choice(member),
                "unsigned" => config.unsigned = self.read_choice(member),
                "durability" => config.durability = self.read_choice(member),
                "unknown_recipient" => config.unknown_recipient = self.read_choice(member),
                "watch" => config.watch = self.read_choice(member),
                "wait_timeout" => {
                    let parsed = self.read_parsed(member, parse_duration);
                    config.wait_timeout = parsed.unwrap_or(config.wait_timeout);
                }
                "max_message" => {
                    let parsed = match member.1.get_ref() {
                        // A plain number is a number of bytes.
                        DeValue::Integer(n) => {
                            let bytes = u64::from_str_radix(n.as_str(), n.radix()).unwrap_or(0);
                            self.accept_or_report(member, check_size(bytes))
                        }
                        _ => self.read_parsed(member, parse_size),
                    };
                    config.max_message = parsed.unwrap_or(config.max_message);
                }
                "groups" => self.read_groups(member, config),
                "trust" => self.read_trust(member, config),
                "store" => self.read_stores(member, config),
                "link" => self.read_links(member, config),
                other => {
                    let hint = format!("{other:?} is a key of [[store]]");
                    self.report_unknown_key(
                        member,
                        KEYS,
                        is_word(other, STORE_KEYS).then_some(hint),
                    );
                }
            }
        }
    }

    fn read_trust(&mut self, (key, value): KeyValue<'_>, config: &mut Config) {
        let Some(table) = value.get_ref().as_table() else {
            let text = "trust is written as [trust] with its keys below".to_owned();
            return self.report_problem(&key.span(), text);
        };
        for member in table {
            match member.0.get_ref().as_ref() {
                "roles" => config.roles = self.read_choice(member),
                other => {
                    let hint = format!("{other:?} belongs above [trust]");
                    self.report_unknown_key(
                        member,
                        TRUST_KEYS,
                        is_word(other, KEYS).then_some(hint),
                    );
                }
            }
        }
    }

    fn read_groups(&mut self, (key, value): KeyValue<'_>, config: &mut Config) {
        let Some(table) = value.get_ref().as_table() else {
            let text = "groups are written below a line [groups], one a line".to_owned();
            return self.report_problem(&key.span(), text);
        };
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            if !is_alias(name) {
                self.report_problem(
                    &key.span(),
                    format!("the name of a group, {name:?}: {ALIAS_RULE}"),
                );
            }
            let members = value.get_ref().as_array().into_iter().flatten();
            let members: Vec<String> =
                members.filter_map(|item| self.read_parsed((key, item), parse_address)).collect();
            if let Some(group) = members.iter().find(|m| table.contains_key(m.as_str())) {
                let text = format!("{name} has the group {group:?} in it: write its members here");
                self.report_problem(&value.span(), text);
            }
            if members.is_empty() {
                let text =
                    format!("{name} must be a list of addresses, as in [\"bob\", \"carol\"]");
                self.report_problem(&value.span(), text);
            }
            config.groups.insert(name.to_owned(), members);
        }
    }

    fn read_stores(&mut self, (key, value): KeyValue<'_>, config: &mut Config) {
        let Some(array) = value.get_ref().as_array() else {
            let text = "a store is written as [[store]], with two brackets".to_owned();
            return self.report_problem(&key.span(), text);
        };
        let mut named: HashMap<String, usize> = HashMap::new();
        for item in array {
            let Some(table) = item.get_ref().as_table() else {
                let text = "a store is written as [[store]] with its keys below".to_owned();
                self.report_problem(&item.span(), text);
                continue;
            };
            let Some((entry, span)) = self.read_store(item, table) else { continue };
            let line = self.line_of(&span);
            if let Some(first) = named.insert(entry.name.clone(), line) {
                let text = format!(
                    "there is already a store named {:?} (line {first}); give this one another \
                     name = \"…\"",
                    entry.name
                );
                self.report_problem(&span, text);
            }
            config.entries.push(entry);
        }
    }

    /// Reads one store. Also returns the span of its name, or of the whole entry if it has none.
    fn read_store(
        &mut self,
        item: &Spanned<DeValue<'_>>,
        table: &DeTable<'_>,
    ) -> Option<(StoreConfig, Range<usize>)> {
        let before = self.problems.len();
        let (mut name, mut kind, mut dir, mut me, mut links) = (None, None, None, None, None);
        let mut span = item.span();
        for member in table {
            match member.0.get_ref().as_ref() {
                "name" => {
                    name = self.read_parsed(member, parse_store_name);
                    span = member.0.span();
                }
                "kind" => kind = self.read_word(member, &kind_words()),
                "dir" => {
                    let (env, base) = (self.env, self.path.parent().unwrap_or(Path::new("")));
                    dir = self.read_parsed(member, |text| parse_folder(text, env, base));
                }
                "me" => me = Some(member),
                "links" => links = self.read_flag(member),
                other => {
                    let hint = format!("{other:?} belongs above the first [[store]]");
                    self.report_unknown_key(
                        member,
                        STORE_KEYS,
                        is_word(other, KEYS).then_some(hint),
                    );
                }
            }
        }
        if !table.contains_key("kind") {
            let kinds = quote_words(kind_words().into_iter().map(|(word, _)| word));
            self.report_problem(
                &item.span(),
                format!("this [[store]] needs kind = \"…\", one of {kinds}"),
            );
        }
        let rule = if kind == Some(Kind::Samp) { parse_alias } else { parse_address };
        let me = me.and_then(|member| self.read_parsed(member, rule));
        let kind = kind?;
        if kind == Kind::Amq
            && let Some((_, value)) = table.iter().find(|(key, _)| key.get_ref() == "dir")
            && value.get_ref().as_str().is_some_and(|dir| !dir.starts_with(['/', '~', '$']))
        {
            // AMQ's own programs look for such a root in the current folder and in all folders above it.
            let text =
                "dir of an amq store must be an absolute path, or begin with ~/ or a variable";
            self.report_problem(&value.span(), text.to_owned());
        }
        let name = name.unwrap_or_else(|| kind.to_string());
        let links = links.unwrap_or_default();
        (self.problems.len() == before)
            .then_some((StoreConfig { name, kind, dir, me, links }, span))
    }

    pub(super) fn read_string<'v>(&mut self, member: KeyValue<'v>) -> Option<&'v str> {
        self.read_typed(member, DeValue::as_str, "a text in quotes")
    }

    /// Returns a value of one type, or reports that it has another.
    fn read_typed<'v, T>(
        &mut self,
        (key, value): KeyValue<'v>,
        get: impl FnOnce(&'v DeValue<'v>) -> Option<T>,
        wanted: &str,
    ) -> Option<T> {
        let got = get(value.get_ref());
        if got.is_none() {
            let found = describe_type(value.get_ref());
            let text = format!("{} must be {wanted}, not {found}", key.get_ref());
            self.report_problem(&value.span(), text);
        }
        got
    }

    /// Returns `true` or `false`.
    pub(super) fn read_flag(&mut self, member: KeyValue<'_>) -> Option<bool> {
        self.read_typed(member, DeValue::as_bool, "true or false")
    }

    /// Returns the value of one of a few words, or the default for any other word.
    fn read_choice<T: Choice + Default>(&mut self, member: KeyValue<'_>) -> T {
        self.read_word(member, T::ALL).unwrap_or_default()
    }

    /// Returns the value of a word.
    pub(super) fn read_word<T: Copy>(
        &mut self,
        member: KeyValue<'_>,
        known: &[(&str, T)],
    ) -> Option<T> {
        self.read_word_or_synonym(member, known, &[])
    }

    /// Does the same; `others` maps some other words to known ones for the hint.
    pub(super) fn read_word_or_synonym<T: Copy>(
        &mut self,
        member: KeyValue<'_>,
        known: &[(&str, T)],
        others: &[(&str, &str)],
    ) -> Option<T> {
        let word = self.read_string(member)?;
        let found = known.iter().find(|(known, _)| *known == word);
        if found.is_none() {
            let words = || known.iter().map(|(word, _)| *word);
            let lower = word.to_lowercase();
            let meant = others.iter().find(|(other, _)| *other == lower).map(|(_, meant)| *meant);
            let hint = meant
                .or_else(|| find_nearest(word, words()))
                .map(|near| format!("; did you mean {near:?}?"));
            let (key, value) = member;
            let text = format!(
                "{} = {word:?}: must be one of {}{}",
                key.get_ref(),
                quote_words(words()),
                hint.unwrap_or_default()
            );
            self.report_problem(&value.span(), text);
        }
        found.map(|(_, meaning)| *meaning)
    }

    /// Returns the parsed value of a text in quotes.
    pub(super) fn read_parsed<T>(
        &mut self,
        member: KeyValue<'_>,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.read_string(member)?;
        self.accept_or_report(member, parse(text))
    }

    /// Returns the value, or reports why it is none.
    fn accept_or_report<T>(
        &mut self,
        (key, value): KeyValue<'_>,
        parsed: Result<T, String>,
    ) -> Option<T> {
        let note = |problem: &String| {
            let written = self.text.get(value.span()).unwrap_or_default();
            self.report_problem(&value.span(), format!("{} = {written}: {problem}", key.get_ref()));
        };
        parsed.inspect_err(note).ok()
    }

    pub(super) fn report_unknown_key(
        &mut self,
        (key, _): KeyValue<'_>,
        known: &str,
        hint: Option<String>,
    ) {
        let word = key.get_ref();
        let hint = hint.unwrap_or_else(|| match find_nearest(word, known.split(' ')) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("known are {}", quote_words(known.split(' '))),
        });
        self.report_problem(&key.span(), format!("unknown key {word:?}; {hint}"));
    }
}

/// Returns true if the wrong span is in a line whose value is a word without quotes.
fn is_bare_text(text: &str, wrong: &Range<usize>) -> bool {
    let start =
        text.get(..wrong.start).and_then(|before| before.rfind('\n')).map_or(0, |at| at + 1);
    let line = text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
    let value = line.split_once('=').map_or("", |(_, value)| value.trim());
    value.starts_with(|c: char| c.is_alphabetic() || matches!(c, '/' | '~' | '$' | '_'))
        && !matches!(value, "true" | "false")
}

/// Returns the number of the line after these bytes, counted from 1.
fn line_number_at(before: &[u8]) -> usize {
    1 + memchr::memchr_iter(b'\n', before).count()
}

fn kind_words() -> Vec<(&'static str, Kind)> {
    Kind::ALL.iter().map(|kind| (kind.as_str(), *kind)).collect()
}

pub(super) fn is_word(word: &str, known: &str) -> bool {
    known.split(' ').any(|other| other == word)
}

/// Returns the words as `"a", "b"`.
pub(super) fn quote_words<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
}

fn describe_type(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Returns a name that can be mine.
///
/// # Errors
/// Returns the rule for names.
pub fn parse_alias(name: &str) -> Result<String, String> {
    if is_alias(name) { Ok(name.to_owned()) } else { Err(ALIAS_RULE.to_owned()) }
}

/// Returns an address; only its store knows the form.
fn parse_address(name: &str) -> Result<String, String> {
    check_rules(&[
        (name.trim().is_empty(), "an address cannot be empty"),
        (sanitize_line(name) != name, "an address cannot hold control characters"),
    ])?;
    Ok(name.to_owned())
}

/// Returns the name of a store. Names become folders below `raw/`.
pub(super) fn parse_store_name(name: &str) -> Result<String, String> {
    check_rules(&[
        (name.is_empty(), "a name cannot be empty"),
        (name.starts_with('.'), "a name cannot begin with a dot"),
        (name.contains('/'), "a name cannot hold a slash"),
        (sanitize_line(name) != name, "a name cannot hold control characters"),
        (name.len() > MAX_STORE_NAME, "a name has at most 64 bytes"),
    ])?;
    Ok(name.to_owned())
}

/// Returns an absolute folder. Relative ones start at `base` and not at the current folder, because a file must
/// mean the same wherever it is read.
pub(super) fn parse_folder(text: &str, env: &Env, base: &Path) -> Result<PathBuf, String> {
    check_rules(&[
        (text.is_empty(), "a folder cannot be empty"),
        (text.contains('\0'), "a path cannot hold a NUL character"),
    ])?;
    Ok(env.make_absolute(&base.join(env.expand(text)?)))
}

/// Returns the first error whose condition is true.
fn check_rules(reasons: &[(bool, &str)]) -> Result<(), String> {
    reasons.iter().find(|(is_there, _)| *is_there).map_or(Ok(()), |(_, why)| Err((*why).to_owned()))
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
