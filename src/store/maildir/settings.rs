//! The settings of a store of kind `maildir`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::model::{
    SettingsFiles, TextRule, accept_text, check_address, check_rules, find_word, sanitize_line,
};

/// The keys of a `[[store]]` that only this kind has, and `me`, which may be a list here.
pub(super) const KEYS: &[(&str, TextRule)] = &[
    ("me", check_address),
    ("folders", check_folder),
    ("sent", check_folder),
    ("sendmail", accept_text),
    ("local", accept_text),
    ("marks", accept_text),
];

/// The settings, as they are written in a `[[store]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MaildirSettings {
    /// My addresses. The first is that of a sender.
    #[serde(deserialize_with = "crate::model::read_one_or_many")]
    pub me: Vec<String>,
    /// The folders whose mail is for me, besides the inbox; `None` for all but the well-known ones.
    pub folders: Option<Vec<String>>,
    /// The folder for copies of sent mail.
    pub sent: Option<String>,
    /// The program that sends mail to other machines.
    pub sendmail: Option<PathBuf>,
    /// The Maildirs of other addresses on this machine.
    pub local: BTreeMap<String, PathBuf>,
    /// The rule for read marks.
    pub marks: MaildirMarks,
}

/// The rule for read marks in the names of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaildirMarks {
    /// They are read and written.
    #[default]
    On,
    /// They are read only.
    Off,
}

impl<'de> Deserialize<'de> for MaildirMarks {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let known = [("on", Self::On), ("off", Self::Off)];
        find_word(&String::deserialize(from)?, &known, &[]).map_err(D::Error::custom)
    }
}

impl MaildirSettings {
    /// Returns the files and folders among the settings, with their keys.
    pub fn files_mut(&mut self) -> SettingsFiles<'_> {
        let sendmail = self.sendmail.iter_mut().map(|file| (vec!["sendmail"], file));
        let local = self.local.iter_mut().map(|(to, dir)| (vec!["local", to.as_str()], dir));
        sendmail.chain(local).collect()
    }
}

/// Checks the name of a mail folder, whose parts are separated by slashes.
fn check_folder(name: &str) -> Result<(), String> {
    check_rules(&[
        (name.is_empty(), "a folder needs a name"),
        (
            name.starts_with('/'),
            "the folder is named from the Maildir on, without a slash before it",
        ),
        (
            name.split('/').any(|part| part.starts_with('.')),
            "a folder and its parts do not begin with a dot",
        ),
        (name.contains("//") || name.ends_with('/'), "a part of the folder's name is empty"),
        (sanitize_line(name) != name, "a folder's name cannot hold control characters"),
    ])
}
