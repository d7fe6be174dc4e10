//! Fetching of mails by IMAP or POP3.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use super::{FetchedMailMeta, MAX_MAIL, MailEngine, MailFetchResult};
use crate::link::agentazall::broken_fetches::BrokenFetches;
use crate::link::agentazall::fetch_folder::unsaved_outcome;
use crate::link::disk_space::SpaceCheckedFile;
use crate::link::engine::ExchangeOutcome;
use crate::store::atomic_file;

/// The number of bytes that are read of a larger mail.
const BEGIN: u64 = 64 << 10;
/// The limit on the number of mails in one fetch.
const MAX_FETCHED_AT_ONCE: usize = 256;
/// The number of bytes after which a fetch begins no further mail.
const BYTES_AT_ONCE: u64 = 256 << 20;

impl MailEngine {
    /// Fetches new mails, by POP or by IMAP.
    pub(super) fn fetch_mails(&self, new: &mut MailFetch<'_>) -> Result<(), ExchangeOutcome> {
        let scope = self.account_scope();
        if self.is_pop { self.fetch_by_pop(&scope, new) } else { self.fetch_by_imap(&scope, new) }
    }

    fn fetch_by_pop(&self, scope: &str, new: &mut MailFetch<'_>) -> Result<(), ExchangeOutcome> {
        let mut pop = self.connect_pop()?;
        let id = |uidl: &str| format!("pop:{scope}:{uidl}");
        let mut mails = pop.list_mails()?;
        new.broken.put_last(&mut mails, |(_, uidl)| id(uidl));
        for (number, uidl) in mails {
            let must_reconnect = new.fetch_mail(id(&uidl), &uidl, |has_time, file| {
                if has_time {
                    pop.begin_exchange();
                }
                pop.fetch_mail(number, MAX_MAIL, file)
            })?;
            if must_reconnect {
                pop = self.connect_pop()?;
            }
        }
        pop.quit();
        Ok(())
    }

    fn fetch_by_imap(&self, scope: &str, new: &mut MailFetch<'_>) -> Result<(), ExchangeOutcome> {
        let mut imap = self.connect_imap()?;
        let validity = imap.validity;
        let id = |validity: u64, uid: u64| format!("imap:{scope}:{validity}:{uid}");
        let mut uids = imap.search_all()?;
        new.broken.put_last(&mut uids, |uid| id(validity, *uid));
        for uid in uids {
            // A folder that is opened again may have other numbers.
            let id = id(imap.validity, uid);
            let must_reconnect = new.fetch_mail(id, &uid.to_string(), |has_time, file| {
                if has_time {
                    imap.begin_exchange();
                }
                let result = imap.fetch_mail(uid, MAX_MAIL, file)?;
                if let MailFetchResult::TooLarge(size) = result {
                    imap.read_beginning(size.min(BEGIN), file)?;
                }
                Ok(result)
            })?;
            if must_reconnect {
                imap = self.connect_imap()?;
            }
        }
        imap.quit();
        Ok(())
    }
}

/// The output of a fetch.
pub(super) struct MailFetch<'a> {
    raw: &'a Path,
    known: &'a HashSet<String>,
    reference_ids: HashSet<String>,
    listed_ids: Vec<String>,
    /// The reasons why the server refused mails. They are asked for again.
    refusals: Vec<String>,
    broken: BrokenFetches,
    number: usize,
    bytes: u64,
}

impl<'a> MailFetch<'a> {
    /// Returns a fetch into a folder.
    pub(super) fn new(
        raw: &'a Path,
        known: &'a HashSet<String>,
        reference_ids: HashSet<String>,
    ) -> Self {
        Self {
            raw,
            known,
            reference_ids,
            listed_ids: Vec::new(),
            refusals: Vec::new(),
            broken: BrokenFetches::read(raw),
            number: 0,
            bytes: 0,
        }
    }

    /// Returns the outcome of a fetch that ended so, after it has written the notes for the next one.
    pub(super) fn finish(self, result: Result<(), ExchangeOutcome>) -> ExchangeOutcome {
        self.broken.end_fetch(self.raw, &self.listed_ids, self.refusals, result)
    }

    /// Fetches a mail, unless it is known or the fetch has enough. `get` gets true if the mail may have the whole time
    /// of an exchange. Returns true if the session is unusable afterwards, and the fetch needs another.
    fn fetch_mail(
        &mut self,
        id: String,
        seen: &str,
        get: impl FnOnce(bool, &mut SpaceCheckedFile) -> io::Result<MailFetchResult>,
    ) -> Result<bool, ExchangeOutcome> {
        let Some(mut brought) = self.accept_mail(id, seen) else { return Ok(false) };
        let path = self.raw.join(format!("{}.eml", self.number));
        let mut file = SpaceCheckedFile::create(&path).map_err(unsaved_outcome)?;
        self.broken.begin_letter(&brought.id);
        let result = match get(self.broken.has_time(), &mut file) {
            Err(e) if file.has_failed() => {
                self.broken.leave_letter();
                return Err(unsaved_outcome(e));
            }
            other => other?,
        };
        self.broken.end_letter();
        match result {
            MailFetchResult::Whole => {}
            MailFetchResult::Missing => return Ok(false),
            MailFetchResult::Refused(why) => {
                self.refusals.push(why);
                return Ok(false);
            }
            MailFetchResult::TooLarge(size) => {
                file.file().set_len(BEGIN).map_err(unsaved_outcome)?;
                brought.size = Some(size);
            }
        }
        self.finish_mail(&brought, &file).map_err(unsaved_outcome)?;
        Ok(brought.size.is_some() && !self.has_enough())
    }

    /// Returns the data to write beside a mail, unless the mail is known or the fetch has enough.
    fn accept_mail(&mut self, id: String, seen: &str) -> Option<FetchedMailMeta> {
        if self.known.contains(&id) {
            self.listed_ids.push(id);
            return None;
        }
        if self.has_enough() {
            return None;
        }
        if let Some(why) = self.broken.describe_rest(&id) {
            self.refusals.push(why);
            return None;
        }
        let maybe = self.reference_ids.contains(seen);
        Some(FetchedMailMeta { id, seen: seen.to_owned(), maybe, size: None })
    }

    /// Returns true if the fetch should begin no further mail.
    fn has_enough(&self) -> bool {
        let is_late = self.number > 0 && !self.broken.has_time();
        is_late || self.number >= MAX_FETCHED_AT_ONCE || self.bytes > BYTES_AT_ONCE
    }

    /// Finishes a mail; its last file marks it as complete.
    fn finish_mail(
        &mut self,
        brought: &FetchedMailMeta,
        file: &SpaceCheckedFile,
    ) -> io::Result<()> {
        file.file().sync_all()?;
        self.bytes += file.file().metadata()?.len();
        let path = self.raw.join(format!("{}.json", self.number));
        atomic_file::write_atomic(&path, &serde_json::to_vec(brought)?, 0o600)?;
        self.number += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A full disk does not count as a connection that broke at a mail.
    #[test]
    fn a_full_disk_is_no_broken_connection() {
        let dir = tempfile::tempdir().unwrap();
        let known = HashSet::new();
        let mut new = MailFetch::new(dir.path(), &known, HashSet::new());
        let full = |_, file: &mut SpaceCheckedFile| {
            *file = SpaceCheckedFile::create(Path::new("/dev/full")).unwrap();
            file.write_all(b"mail").map(|()| MailFetchResult::Whole)
        };
        let why = new.fetch_mail("a".into(), "1", full).unwrap_err();
        assert!(why.reason().unwrap().contains("cannot be saved here"), "{why:?}");
        assert_eq!(new.broken.note_break("reset"), None);
        assert!(!new.broken.is_noted("a"));
        let broken = |_, _: &mut SpaceCheckedFile| Err(io::ErrorKind::UnexpectedEof.into());
        new.fetch_mail("a".into(), "1", broken).unwrap_err();
        assert_eq!(new.broken.note_break("reset"), None);
        assert!(new.broken.is_noted("a"));
    }

    /// A large mail needs another session only for further mails.
    #[test]
    fn a_fetch_that_is_late_connects_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let known = HashSet::new();
        let mut new = MailFetch::new(dir.path(), &known, HashSet::new());
        let large = |_, _: &mut SpaceCheckedFile| Ok(MailFetchResult::TooLarge(MAX_MAIL));
        assert_eq!(new.fetch_mail("a".into(), "1", large), Ok(true));
        new.broken.end_time();
        assert_eq!(new.fetch_mail("b".into(), "2", large), Ok(false));
        assert_eq!(new.number, 1, "it is late");
        let mut late = MailFetch::new(dir.path(), &known, HashSet::new());
        late.broken.end_time();
        assert_eq!(late.fetch_mail("a".into(), "1", large), Ok(false));
        assert_eq!(late.number, 1);
    }
}
