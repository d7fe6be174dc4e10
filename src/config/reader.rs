//! A reader of the configuration that collects all problems.
//!
//! serde gives each value its type and stops at the first one that is wrong. So the file is read once more without
//! each value that was refused. Rules that need other keys, or the environment, are checked afterwards.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, ValueDeserializer};

use super::env::Env;
use super::file::{Config, ConfigProblem, KEYS, line_number_at};
use super::links::LINK_SETTINGS;
use super::stores::STORE_SETTINGS;
use super::values::parse_path;
use crate::link::LinkKind;
use crate::link::secret::strip_login;
use crate::model::{SettingsFiles, TextRule, find_nearest, quote_words, sanitize_line};
use crate::store::Kind;

/// A value with its place in the file.
pub(super) type SpannedValue<'a> = Spanned<DeValue<'a>>;

/// The most values that are reported because serde refused them.
const MAX_REFUSED: usize = 100;

/// The forms of the tables of the file.
const TABLES: &[(&str, &str)] = &[
    ("groups", "groups are written below a line [groups], one a line"),
    ("trust", "trust is written as [trust] with its keys below"),
    ("store", "a store is written as [[store]], with two brackets, and its keys below"),
    ("link", "a link is written as [[link]], with two brackets, and its keys below"),
];

/// The key whose texts are addresses of servers.
const URL: &str = "url";

/// The form of a group.
pub(super) const MEMBERS: &str = "a list of addresses, as in [\"bob\", \"carol\"]";

/// The form of the key `muted`.
const MUTED: &str = "a list of senders and threads, as in [\"bob\", \"builds\"]";

/// The form of the key `folders`.
const FOLDERS: &str = "a list of folders, as in [\"Work\", \"lists/rust\"]";

/// Keys, and the place where they belong.
const PLACES: &[(&str, &str)] = &[
    (KEYS, "belongs above the first line in brackets"),
    ("roles", "is a key of [trust]"),
    ("name kind dir links", "is a key of [[store]]"),
    ("ca insecure off", "is a key of [[link]]"),
];

/// A reader of one file.
pub(super) struct ConfigReader<'a> {
    pub(super) text: &'a str,
    /// The folder in which relative paths begin.
    pub(super) base: &'a Path,
    pub(super) env: &'a Env,
    pub(super) problems: Vec<ConfigProblem>,
}

impl<'a> ConfigReader<'a> {
    /// Records a problem at a place in the text.
    pub(super) fn report_problem(&mut self, span: &Range<usize>, text: impl AsRef<str>) {
        let text = sanitize_line(text.as_ref()).into_owned();
        self.problems.push(ConfigProblem { line: self.line_of(span), text });
    }

    /// Records a problem of a value, with the value as it is written but without the user and the password of an
    /// address.
    pub(super) fn report_value(&mut self, key: &str, value: &SpannedValue<'_>, why: &str) {
        let written = self.text.get(value.span()).unwrap_or_default();
        let text = match value.get_ref().as_str() {
            // The text has no escapes, which could stand for parts of a login.
            Some(address) if address.contains("://") => {
                format!("{key} = {:?}: {why}", strip_login(address))
            }
            // Without a scheme nobody can tell a host from a user with a password.
            _ if written.contains("://") || key == URL && written.contains(['"', '\'']) => {
                format!("{key}: {why}")
            }
            _ => format!("{key} = {written}: {why}"),
        };
        self.report_problem(&value.span(), text);
    }

    fn line_of(&self, span: &Range<usize>) -> usize {
        line_number_at(self.text.as_bytes().get(..span.start).unwrap_or_default())
    }

    /// Removes and reports what must be a table and is none: serde would also read a list.
    pub(super) fn remove_non_tables(&mut self, file: &mut DeTable<'_>) {
        for (word, form) in TABLES {
            let Some((key, value)) = file.get_key_value(*word) else { continue };
            let one = Some(std::slice::from_ref(value));
            let is_list = form.contains("[[");
            let tables = if is_list { value.get_ref().as_array().map(|all| &**all) } else { one };
            let wrong = tables.map(|all| all.iter().find(|table| !table.get_ref().is_table()));
            let Some(span) = wrong.map_or(Some(key.span()), |one| Some(one?.span())) else {
                continue;
            };
            self.report_problem(&span, form);
            file.remove(*word);
        }
    }

    /// Reads the file without the values that serde refuses, which are reported.
    pub(super) fn read(&mut self, file: &SpannedValue<'a>) -> Config {
        let mut rest = file.clone();
        for _ in 0..MAX_REFUSED {
            let error = match Config::deserialize(ValueDeserializer::from(rest.clone())) {
                Ok(config) => return config,
                Err(error) => error,
            };
            let span = error.span().unwrap_or_default();
            let Some((key, value)) = remove_refused(&mut rest, &span) else {
                self.report_problem(&span, error.message());
                break;
            };
            self.report_refused(&key, &value, error.message());
        }
        Config::default()
    }

    /// Reports a value that serde refused, or a key that it does not know.
    fn report_refused(
        &mut self,
        key: &Spanned<DeString<'_>>,
        value: &SpannedValue<'_>,
        message: &str,
    ) {
        let word = key.get_ref().as_ref();
        if let Some(known) = message.strip_prefix(&format!("unknown field `{word}`")) {
            let known = known.split('`').skip(1).step_by(2);
            let known: Vec<&str> = known.flat_map(list_written_keys).collect();
            return self.report_problem(&key.span(), describe_unknown_key(word, &known));
        }
        let types = message.strip_prefix("invalid type: ");
        let Some((_, wanted)) = types.and_then(|types| types.rsplit_once(", expected ")) else {
            return self.report_value(word, value, message);
        };
        let wanted = match wanted {
            "a string" | "path string" => "a text in quotes",
            "a boolean" => "true or false",
            "a sequence" if word == "muted" => MUTED,
            "a sequence" if word == "folders" => FOLDERS,
            "a sequence" => MEMBERS,
            other => other,
        };
        let found = value.get_ref().type_str();
        let text = format!("{word} must be {wanted}, not a value of type {found}");
        self.report_problem(&value.span(), text);
    }

    /// Reports a table without a kind. `entry` is its key.
    pub(super) fn report_missing_kind<'k>(
        &mut self,
        entry: &str,
        table: &Range<usize>,
        kinds: impl Iterator<Item = &'k str>,
    ) {
        let text = format!("this [[{entry}]] needs kind = \"…\", one of {}", quote_words(kinds));
        self.report_problem(table, text);
    }

    /// Reports a text, or each text of a list, that breaks a rule.
    pub(super) fn check_texts<T>(
        &mut self,
        table: &SpannedValue<'_>,
        key: &str,
        rule: impl Fn(&str) -> Result<T, String>,
    ) {
        let Some(value) = table.get_ref().get(key) else { return };
        let items = value.get_ref().as_array().map_or(std::slice::from_ref(value), |items| items);
        for item in items {
            if let Some(Err(why)) = item.get_ref().as_str().map(&rule) {
                self.report_value(key, item, &why);
            }
        }
    }

    /// Makes a path absolute, or reports why this is impossible.
    pub(super) fn resolve_path(
        &mut self,
        table: &SpannedValue<'_>,
        key: &str,
        path: &mut Option<PathBuf>,
    ) {
        let (env, base) = (self.env, self.base);
        self.check_texts(table, key, |text| parse_path(text, env, base));
        let text = path.as_deref().and_then(Path::to_str);
        *path = text.and_then(|text| parse_path(text, env, base).ok());
    }

    /// Checks the settings of one kind by the rules for their texts, and makes their files absolute.
    pub(super) fn check_settings(
        &mut self,
        own: &SpannedValue<'_>,
        rules: &[(&str, TextRule)],
        files: SettingsFiles<'_>,
    ) {
        for (key, rule) in rules {
            self.check_texts(own, key, rule);
        }
        for (keys, file) in files {
            let Some((key, tables)) = keys.split_last() else { continue };
            let table = tables.iter().try_fold(own, |table, key| table.get_ref().get(*key));
            let mut path = Some(std::mem::take(file));
            if let Some(table) = table {
                self.resolve_path(table, key, &mut path);
            }
            *file = path.unwrap_or_default();
        }
    }

    /// Reports entries of one name. `entry` is their key.
    pub(super) fn check_names<'n>(
        &mut self,
        file: &SpannedValue<'_>,
        entry: &str,
        names: impl Iterator<Item = &'n str>,
    ) {
        let mut lines = HashMap::new();
        for (name, table) in names.zip(list_entries(file, entry)) {
            let key = table.get_ref().as_table().and_then(|table| table.get_key_value("name"));
            let span = key.map_or(table.span(), |(key, _)| key.span());
            if let Some(first) = lines.insert(name, self.line_of(&span)) {
                let text = format!(
                    "there is already a {entry} named {name:?} (line {first}); give this one \
                     another name = \"…\""
                );
                self.report_problem(&span, text);
            }
        }
    }
}

/// Moves the keys that only entries of one kind have below the word of the kind, as serde reads an enum. `at` is the key
/// of that enum.
pub(super) fn nest_keys<'a>(
    table: &mut DeTable<'a>,
    span: &Range<usize>,
    (at, kind): (&'static str, &'static str),
    rules: &[(&str, TextRule)],
) {
    let all = std::mem::take(table).into_iter();
    let is_own = |key: &str| rules.iter().any(|(own, _)| *own == key);
    let (own, mut common): (DeTable<'_>, DeTable<'_>) =
        all.partition(|(key, _)| is_own(key.get_ref().as_ref()));
    let key = |word: &'static str| Spanned::new(span.clone(), word.into());
    let spanned = |value: DeTable<'a>| Spanned::new(span.clone(), DeValue::Table(value));
    common.insert(key(at), spanned([(key(kind), spanned(own))].into_iter().collect()));
    *table = common;
}

/// Returns the tables that are written as `[[key]]`.
pub(super) fn list_entries<'f, 'a>(
    file: &'f SpannedValue<'a>,
    key: &str,
) -> impl Iterator<Item = &'f SpannedValue<'a>> {
    file.get_ref().get(key).and_then(|value| value.get_ref().as_array()).into_iter().flatten()
}

/// Removes the member that has its key or value at a place, or a value of its list. Returns the key and that value.
fn remove_refused<'a>(
    value: &mut SpannedValue<'a>,
    at: &Range<usize>,
) -> Option<(Spanned<DeString<'a>>, SpannedValue<'a>)> {
    match value.get_mut() {
        DeValue::Table(table) => {
            let found = table.iter().find_map(|(key, value)| {
                let items = value.get_ref().as_array().into_iter().flatten();
                let refused = items.chain([value]).find(|value| value.span() == *at);
                let is_it = key.span() == *at || refused.is_some();
                is_it.then(|| (key.clone(), refused.unwrap_or(value).clone()))
            });
            if let Some((key, _)) = &found {
                table.remove(key.get_ref().as_ref());
                return found;
            }
            table.iter_mut().find_map(|(_, value)| remove_refused(value, at))
        }
        DeValue::Array(items) => items.iter_mut().find_map(|item| remove_refused(item, at)),
        _ => None,
    }
}

/// Returns the keys that a person writes for a key that serde knows. Those of one kind are written into `[[store]]` or
/// `[[link]]` itself.
fn list_written_keys(key: &str) -> Vec<&str> {
    match key {
        STORE_SETTINGS => {
            let own = Kind::ALL.iter().flat_map(|kind| kind.row().keys).map(|(own, _)| *own);
            own.filter(|own| *own != "me").collect()
        }
        LINK_SETTINGS => {
            let own = LinkKind::ALL.iter().flat_map(|kind| kind.keys).map(|(own, _)| *own);
            std::iter::once("kind").chain(own).collect()
        }
        _ => vec![key],
    }
}

/// Returns the text about an unknown key: its place, the nearest known key, or all known ones.
fn describe_unknown_key(word: &str, known: &[&str]) -> String {
    let place = PLACES.iter().find(|(keys, _)| keys.split(' ').any(|key| key == word));
    let place = place.map(|(_, place)| (*place).to_owned());
    let of_link = || LinkKind::from_key(word).map(describe_link_key);
    let of_store =
        || Some(format!("is a key of stores of kind {:?}", Kind::from_key(word)?.as_str()));
    let hint = match place.or_else(of_link).or_else(of_store) {
        Some(place) => format!("{word:?} {place}"),
        None => match find_nearest(word, known.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("known are {}", quote_words(known.iter().copied())),
        },
    };
    format!("unknown key {word:?}; {hint}")
}

/// Returns the place of a key that only links of this kind have.
fn describe_link_key(kind: &LinkKind) -> String {
    let others = if kind.carries_logs() {
        "; other links take their settings from the store's own files"
    } else {
        ""
    };
    format!("is a key of links of kind {:?}{others}", kind.name)
}
