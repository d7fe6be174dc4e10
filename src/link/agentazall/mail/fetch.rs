//! Fetching of mails by IMAP or POP3.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use super::imap::ImapFetchResult;
use super::pop::PopFetchResult;
use super::{FetchedMailMeta, MAX_MAIL, MailEngine};
use crate::link::agentazall::broken_fetches::BrokenFetches;
use crate::link::agentazall::fetch_folder;
use crate::link::disk_space::SpaceCheckedFile;
use crate::link::engine::ExchangeOutcome;
use crate::store::atomic_file;

/// The number of bytes that are read of a larger mail.
const BEGIN: u64 = 64 << 10;
/// The limit on the number of mails in one fetch.
const AT_ONCE: usize = 256;
/// The number of bytes after which a fetch begins no further mail.
const BYTES_AT_ONCE: u64 = 256 << 20;

impl MailEngine {
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
            let Some(brought) = new.accept_mail(id(&uidl), &uidl) else { continue };
            let mut file = new.create_mail_file()?;
            if new.broken.has_time() {
                pop.begin_exchange();
            }
            match pop.fetch_mail(number, MAX_MAIL, &mut file)? {
                PopFetchResult::Whole => {
                    new.finish_mail(brought, &file)?;
                }
                PopFetchResult::Refused(why) => new.refusals.push(why),
                PopFetchResult::TooLarge => {
                    file.file().set_len(BEGIN)?;
                    new.finish_mail(FetchedMailMeta { size: Some(MAX_MAIL), ..brought }, &file)?;
                    pop = self.connect_pop()?;
                }
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
            let Some(brought) = new.accept_mail(id, &uid.to_string()) else { continue };
            let mut file = new.create_mail_file()?;
            if new.broken.has_time() {
                imap.begin_exchange();
            }
            match imap.fetch_mail(uid, MAX_MAIL, &mut file)? {
                ImapFetchResult::Whole => {
                    new.finish_mail(brought, &file)?;
                }
                ImapFetchResult::Missing => {}
                ImapFetchResult::Refused(why) => new.refusals.push(why),
                ImapFetchResult::TooLarge(size) => {
                    imap.read_beginning(size.min(BEGIN), &mut file)?;
                    new.finish_mail(FetchedMailMeta { size: Some(size), ..brought }, &file)?;
                    imap = self.connect_imap()?;
                }
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
    pub(super) fn finish(mut self, result: Result<(), ExchangeOutcome>) -> ExchangeOutcome {
        let missing = match &result {
            Ok(()) => {
                self.broken.end_letter();
                None
            }
            Err(outcome) => self.broken.note_break(outcome.reason().unwrap_or_default()),
        };
        let is_told = missing.is_some();
        self.refusals.extend(missing);
        let noted = fetch_folder::write_known_ids(self.raw, &self.listed_ids)
            .and_then(|()| self.broken.save());
        match (result, noted) {
            (Err(outcome), _) if !is_told => outcome,
            (_, Err(e)) => ExchangeOutcome::away(e),
            (_, Ok(())) => fetch_folder::outcome_after(&self.refusals),
        }
    }

    /// Returns the data to write beside a mail, unless the mail is known or the fetch has enough.
    fn accept_mail(&mut self, id: String, seen: &str) -> Option<FetchedMailMeta> {
        self.broken.end_letter();
        if self.known.contains(&id) {
            self.listed_ids.push(id);
            return None;
        }
        let is_late = self.number > 0 && !self.broken.has_time();
        if is_late || self.number >= AT_ONCE || self.bytes > BYTES_AT_ONCE {
            return None;
        }
        if let Some(why) = self.broken.describe_rest(&id) {
            self.refusals.push(why);
            return None;
        }
        self.broken.begin_letter(&id);
        Some(FetchedMailMeta {
            id,
            seen: seen.to_owned(),
            maybe: self.reference_ids.contains(seen),
            size: None,
        })
    }

    fn create_mail_file(&self) -> io::Result<SpaceCheckedFile> {
        SpaceCheckedFile::create(&self.raw.join(format!("{}.eml", self.number)))
    }

    /// Finishes a mail; its last file marks it as complete.
    fn finish_mail(&mut self, brought: FetchedMailMeta, file: &SpaceCheckedFile) -> io::Result<()> {
        file.file().sync_all()?;
        self.bytes += file.file().metadata()?.len();
        let path = self.raw.join(format!("{}.json", self.number));
        atomic_file::write_atomic(&path, &serde_json::to_vec(&brought)?, 0o600)?;
        self.number += 1;
        self.broken.end_letter();
        Ok(())
    }
}
