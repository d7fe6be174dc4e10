//! The letters at which the connection broke while they were fetched, and the time that a fetch has.
//!
//! A letter may break the connection each time, or last too long. The next fetch takes it last. If the connection
//! breaks there again, the letter rests for some time, so that others are fetched meanwhile. The rest grows with each
//! break, because the first ones may be chance, and it is at least as long as the attempt took.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::fetch_folder;
use crate::link::engine::ExchangeOutcome;
use crate::link::job;
use crate::model::{Timestamp, to_json};
use crate::store::fs;

/// The file with the letters in the link's folder. Its loss costs nothing but time.
const FILE: &str = "broken.json";
/// The limit on the size of the file.
const MAX_FILE: u64 = 1 << 20;
/// The time for which a letter rests after the second break, in milliseconds. Each further break makes it four times as
/// long.
const FIRST_REST: i64 = 5_000;
/// The longest time for which a letter rests, in milliseconds.
const LONGEST_REST: i64 = 15 * 60_000;
/// The time for which a letter is remembered that did not break the connection again, in milliseconds.
const REMEMBERED: i64 = 24 * 3_600_000;
/// The time after which a fetch begins no further letter. With the longest exchange of a connection, a fetch lasts less
/// than a carrier may.
const BEGIN_WITHIN: Duration = Duration::from_secs(4 * 60);

/// A letter at which the connection broke.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct BrokenFetch {
    /// The number of breaks in a row.
    breaks: u32,
    /// The moment before which it is not fetched, in milliseconds since the epoch.
    until: i64,
}

/// The state of a fetch with regard to letters that break the connection.
#[derive(Debug)]
pub struct BrokenFetches {
    path: Option<PathBuf>,
    /// The letters at which earlier fetches broke off, by id.
    letters: BTreeMap<String, BrokenFetch>,
    /// The letter that is being fetched, and the moment at which it was asked for.
    current: Option<(String, Instant)>,
    /// The begin of the fetch, before it connects.
    began: Instant,
    now: i64,
}

impl BrokenFetches {
    /// Reads the letters at which earlier fetches of the link broke off.
    pub fn read(raw: &Path) -> Self {
        let path = job::link_folder(raw).map(|folder| folder.join(FILE));
        let bytes = path.as_ref().and_then(|path| fs::read_small_file(path, MAX_FILE).ok());
        let noted = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut letters: BTreeMap<String, BrokenFetch> = noted.unwrap_or_default();
        let now = Timestamp::now().millis();
        // The clock may have been set.
        letters.retain(|_, one| (now - REMEMBERED..=now + LONGEST_REST).contains(&one.until));
        Self { path, letters, current: None, began: Instant::now(), now }
    }

    /// Returns true as long as the fetch may begin letters, and a letter may have the whole time of an exchange.
    pub fn has_time(&self) -> bool {
        self.began.elapsed() < BEGIN_WITHIN
    }

    /// Ends the time in which the fetch may begin letters.
    #[cfg(test)]
    pub fn end_time(&mut self) {
        self.began = self.began.checked_sub(BEGIN_WITHIN).unwrap();
    }

    /// Returns true if an earlier fetch broke off at a letter.
    pub fn is_noted(&self, id: &str) -> bool {
        self.letters.contains_key(id)
    }

    /// Returns the reason why a letter is not fetched now, if it rests.
    pub fn describe_rest(&self, id: &str) -> Option<String> {
        let one = self.letters.get(id).filter(|one| one.until > self.now)?;
        Some(format!("the connection broke {} times while a letter was fetched", one.breaks))
    }

    /// Puts letters behind all others at which an earlier fetch broke off.
    pub fn put_last<T>(&self, list: &mut [T], id: impl Fn(&T) -> String) {
        if !self.letters.is_empty() {
            list.sort_by_cached_key(|one| self.letters.get(&id(one)).map(|one| one.until));
        }
    }

    /// Notes that a letter is asked for.
    pub fn begin_letter(&mut self, id: &str) {
        self.current = Some((id.to_owned(), Instant::now()));
    }

    /// Notes that the connection did not break at the letter that was asked for last.
    pub fn end_letter(&mut self) {
        if let Some((id, _)) = self.current.take() {
            self.letters.remove(&id);
        }
    }

    /// Notes that the letter that was asked for last could not be saved here, which says nothing about the letter.
    pub fn leave_letter(&mut self) {
        self.current = None;
    }

    /// Notes that the connection broke, for this reason. Returns the reason why a letter is missing, if an earlier
    /// fetch broke off there, too: then this fetch has all others.
    pub fn note_break(&mut self, why: &str) -> Option<String> {
        let (id, asked) = self.current.take()?;
        let is_first = !self.is_noted(&id);
        let letter = self.letters.entry(id).or_insert(BrokenFetch { breaks: 0, until: self.now });
        letter.breaks = letter.breaks.saturating_add(1);
        if is_first {
            return None;
        }
        let rest = FIRST_REST.saturating_mul(4i64.saturating_pow(letter.breaks.saturating_sub(2)));
        let took = i64::try_from(asked.elapsed().as_millis()).unwrap_or(LONGEST_REST);
        letter.until = Timestamp::now().millis() + rest.max(took).min(LONGEST_REST);
        Some(format!("the connection broke again while a letter was fetched: {why}"))
    }

    /// Ends a fetch that ended so, with these known ids and these reasons for refused letters. Returns its outcome,
    /// after it has written the notes for the next one.
    pub fn end_fetch(
        mut self,
        raw: &Path,
        listed: &[String],
        mut refusals: Vec<String>,
        result: Result<(), ExchangeOutcome>,
    ) -> ExchangeOutcome {
        let missing = match &result {
            Ok(()) => None,
            Err(outcome) => self.note_break(outcome.reason().unwrap_or_default()),
        };
        let noted = fetch_folder::write_known_ids(raw, listed).and_then(|()| self.save());
        match (result, noted) {
            (Err(outcome), _) if missing.is_none() => outcome,
            (_, Err(e)) => fetch_folder::unsaved_outcome(e),
            (_, Ok(())) => {
                refusals.extend(missing);
                fetch_folder::outcome_after(&refusals)
            }
        }
    }

    /// Writes the letters for the next fetch.
    fn save(&self) -> io::Result<()> {
        match &self.path {
            Some(path) if !self.letters.is_empty() => {
                fetch_folder::write_if_changed(path, &to_json(&self.letters))
            }
            Some(path) => match std::fs::remove_file(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            },
            None => Ok(()),
        }
    }
}
