//! The settings of a store of kind `maildir`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::model::find_word;

/// The keys of a `[[store]]` that only this kind has, and `me`, which may be a list here.
pub const KEYS: &str = "me folders sent sendmail local marks";

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
    /// Returns the paths among the settings, to be made absolute.
    pub fn paths_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.sendmail.iter_mut().chain(self.local.values_mut())
    }
}
