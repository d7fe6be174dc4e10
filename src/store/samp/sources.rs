//! The log files of a folder and how far each was read.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::locks::RwLock;
use serde::{Deserialize, Serialize};

use crate::model::Timestamp;
use crate::store::fs::Stamp;

/// One log file and how far it was read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Source {
    pub file_name: String,
    pub alias: String,
    pub conflict: bool,
    pub stamp: Stamp,
    /// Next byte to read; always at the start of a line.
    pub offset: u64,
    /// Lines before `offset`.
    pub lines: u64,
    pub print: [u8; 32],
    pub last_time: i64,
    /// The unterminated last line was a message and was delivered.
    pub tail_delivered: bool,
    pub present: bool,
}

impl Source {
    fn known(&self) -> Known {
        Known {
            file_name: self.file_name.clone(),
            alias: self.alias.clone(),
            stamp: self.stamp,
            last_time: (self.last_time != 0).then_some(Timestamp::from_secs(self.last_time)),
        }
    }
}

/// What readers need to know of a file while a scan is under way.
#[derive(Clone, Debug)]
pub struct Known {
    pub file_name: String,
    pub alias: String,
    /// The file as it was when last examined.
    pub stamp: Stamp,
    /// The time of its last record, if it has any.
    pub last_time: Option<Timestamp>,
}

/// The files by source number, apart from the positions: a scan holds those for as long as it takes.
pub type Directory = Arc<RwLock<Vec<Known>>>;

/// All log files ever seen in this folder; their index is their source number.
#[derive(Debug, Default)]
pub struct Sources {
    pub list: Vec<Source>,
    pub by_name: HashMap<String, u32>,
    /// What is wrong in the folder right now, one line each.
    pub trouble: Vec<String>,
    /// Kept in step with the list.
    pub directory: Directory,
}

impl Sources {
    pub fn get(&self, source: u32) -> Option<&Source> {
        self.list.get(source as usize)
    }

    pub fn find(&self, file_name: &str) -> Option<u32> {
        self.by_name.get(file_name).copied()
    }

    /// Notes how far a file was read.
    pub fn put(&mut self, n: u32, source: Source) {
        if let Some(known) = self.directory.write().get_mut(n as usize) {
            *known = source.known();
        }
        if let Some(slot) = self.list.get_mut(n as usize) {
            *slot = source;
        }
    }

    pub fn save(&self) -> Vec<u8> {
        serde_json::to_vec(&self.list).unwrap_or_default()
    }

    /// Takes over what [`Sources::save`] gave; `false` if it cannot be used.
    pub fn restore(&mut self, saved: &[u8]) -> bool {
        let Ok(list) = serde_json::from_slice::<Vec<Source>>(saved) else { return false };
        let number = |(i, s): (usize, &Source)| (s.file_name.clone(), i as u32);
        self.by_name = list.iter().enumerate().map(number).collect();
        *self.directory.write() = list.iter().map(Source::known).collect();
        self.list = list;
        true
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.list.clear();
        self.by_name.clear();
        self.directory.write().clear();
    }

    /// Notes that a file is not there.
    pub fn gone(&mut self, n: u32) {
        let Some(source) = self.get(n).cloned() else { return };
        let stamp = Stamp::default();
        self.put(n, Source { stamp, offset: 0, lines: 0, present: false, ..source });
    }

    pub fn number(&mut self, file_name: &str, alias: &str, conflict: bool) -> u32 {
        if let Some(n) = self.find(file_name) {
            return n;
        }
        let n = self.list.len() as u32;
        self.list.push(Source {
            file_name: file_name.to_owned(),
            alias: alias.to_owned(),
            conflict,
            stamp: Stamp::default(),
            offset: 0,
            lines: 0,
            print: [0; 32],
            last_time: 0,
            tail_delivered: false,
            present: true,
        });
        self.directory.write().extend(self.list.last().map(Source::known));
        self.by_name.insert(file_name.to_owned(), n);
        n
    }

    /// The numbers of all files of one writer, main log first.
    pub fn group(&self, alias: &str) -> Vec<u32> {
        let mut group: Vec<u32> =
            (0u32..).zip(&self.list).filter(|(_, s)| s.alias == alias).map(|(n, _)| n).collect();
        group.sort_by_key(|n| self.get(*n).map(|s| (s.conflict, s.file_name.clone())));
        group
    }
}
