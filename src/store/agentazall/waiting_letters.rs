//! The letters that wait in `outbox/` or `carrying/`: the state of each recipient, and what people are told about it.

use std::collections::BTreeMap;
use std::path::Path;

use super::block::LetterContent;
use super::deliver::{is_same_but_status, to_outbox_path};
use super::layout::LetterPath;
use super::letter::MAX_FILE;
use super::{AgentAzall, block, config, layout, letter, names, new_files, text, write};
use crate::model::{Seed, Timestamp, sanitize_line};
use crate::store::{DeliveryFate, fs};

/// The reasons of failed deliveries, by the path in `outbox/` and the recipient. The reason under an empty address is
/// that of a failed move to `sent/`.
pub(super) type DeliveryFailures = BTreeMap<(String, String), String>;

/// The state of one recipient of a waiting message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecipientState {
    /// A recipient who has it.
    Delivered,
    /// A recipient whose mailbox is here and does not have it yet.
    Undelivered,
    /// A recipient whom this link reaches; the link does not have it yet.
    Link(String),
    /// A recipient to whom no link carries it any more.
    Ended(DeliveryFate),
    /// A recipient who cannot be reached from here, with the reason.
    Waiting(String),
}

/// A message in `outbox/` or `carrying/` and the states of its recipients.
pub(super) struct WaitingLetter {
    pub(super) path: String,
    pub(super) id: String,
    pub(super) is_mine: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) recipients: Vec<(String, RecipientState)>,
}

impl AgentAzall {
    /// Returns a waiting file with the states of its recipients; `None` if it is not there (any more).
    pub(super) fn read_waiting_letter(&self, path: &str) -> Option<WaitingLetter> {
        let place = LetterPath::parse(path).filter(|p| p.folder.is_waiting())?;
        let bytes = fs::read_small_file(&self.mailbox_dir().join(path), MAX_FILE as u64).ok()?;
        let letter = text::parse(&bytes);
        let via = letter.get(write::VIA).filter(|via| !via.is_empty());
        let reading = block::read(&letter);
        let mine = self.is_signed_by_me(&reading);
        let known =
            self.format.delivered.lock().get(&to_outbox_path(path)).cloned().unwrap_or_default();
        let to = letter::merge_recipients(&reading.to, &reading.cc);
        let id = reading.id.clone().filter(|id| !id.is_empty());
        let id = id.unwrap_or_else(|| place.stem.to_owned());
        let state = |to: &String| {
            if !mine {
                return RecipientState::Waiting(
                    "the program that wrote it must deliver it".to_owned(),
                );
            }
            match via.filter(|_| *to != self.format.me) {
                _ if known.contains(to) => RecipientState::Delivered,
                Some(link) => self.find_link_state_of(to, &id, Some(link)),
                None => self.find_state_of(to, &id, &place, &bytes),
            }
        };
        let to = to.iter().map(|to| (to.clone(), state(to))).collect();
        Some(WaitingLetter { path: path.to_owned(), id, is_mine: mine, bytes, recipients: to })
    }

    /// Returns true if msgfs wrote this under my key.
    fn is_signed_by_me(&self, reading: &LetterContent) -> bool {
        let Some(signer) = reading.signer() else { return false };
        let later = || self.format.key_for_later.lock().as_ref().map(Seed::public_key);
        super::key::read_public_key(self.mailbox_dir()).or_else(later).as_ref() == Some(signer)
    }

    fn find_state_of(
        &self,
        to: &str,
        id: &str,
        place: &LetterPath<'_>,
        bytes: &[u8],
    ) -> RecipientState {
        if to != self.format.me && !self.has_mailbox(to) {
            return self.find_link_state_of(to, id, None);
        }
        let day = self.format.mailboxes.join(to).join(place.day);
        let inbox = day.join("inbox");
        // If a folder is something else, the attempt to deliver reports it.
        let is_odd =
            new_files::require_dir(&day).and_then(|()| new_files::require_dir(&inbox)).is_err();
        let target = inbox.join(format!("{}.txt", place.stem));
        match if is_odd { RecipientState::Undelivered } else { check_target(&target, bytes) } {
            RecipientState::Undelivered => self
                .find_refusal_by(to)
                .map_or(RecipientState::Undelivered, RecipientState::Waiting),
            other => other,
        }
    }

    /// Returns the state of a recipient who has no mailbox here, or for whom the sender named a link.
    fn find_link_state_of(&self, to: &str, id: &str, via: Option<&str>) -> RecipientState {
        let Some(router) = self.format.router.get() else {
            return RecipientState::Waiting(
                "no mailbox of this name here; a transport must carry it".to_owned(),
            );
        };
        let reached = match via {
            Some(link) if router.can_reach(link, to) => Ok(Some(link.to_owned())),
            Some(link) => Err(format!("Via: no link {} reaches it", sanitize_line(link))),
            None => router.find_link(to),
        };
        match (router.delivery_fate(id, to), reached) {
            (Some(DeliveryFate::Taken), _) => RecipientState::Delivered,
            (Some(fate @ (DeliveryFate::Refused(_) | DeliveryFate::Uncertain(_))), _) => {
                RecipientState::Ended(fate)
            }
            (Some(DeliveryFate::Waits(why)), _) | (None, Err(why)) => RecipientState::Waiting(why),
            (None, Ok(Some(link))) => RecipientState::Link(link),
            (None, Ok(None)) => RecipientState::Waiting(
                "no mailbox of this name here, and no link reaches it".to_owned(),
            ),
        }
    }

    /// Returns true if there is a mailbox of this name: a folder, not a symbolic link.
    pub(super) fn has_mailbox(&self, address: &str) -> bool {
        names::is_mailbox_name(address) && layout::is_real_dir(&self.format.mailboxes.join(address))
    }

    /// Returns the reason why a recipient does not accept my mail, as far as that configuration can be read here.
    pub(super) fn find_refusal_by(&self, to: &str) -> Option<String> {
        if to == self.format.me {
            return None;
        }
        let files =
            config::list_neighbour_configs(&self.format.config_file, &self.format.mailboxes, to);
        let own = self.format.mailboxes.join(to).join("config.json");
        files.into_iter().find_map(|file| {
            let theirs = config::read_config(&file).ok()?;
            let his = theirs.agent.as_deref() == Some(to)
                && (file == own
                    || config::is_same_folder(&theirs.mailboxes, &self.format.mailboxes));
            let why = his.then(|| theirs.filters.find_refusal(&self.format.me))??;
            Some(format!("{to} does not accept mail from {}: {why}", self.format.me))
        })
    }

    /// Returns the recipients for whom a message in `outbox/` waits since this time, with reasons, a line each; `None` if
    /// none waits.
    pub(super) fn describe_waiting(&self, path: &str, since: Timestamp) -> Option<String> {
        let waiting = self.read_waiting_letter(path)?;
        let since = since.rfc3339();
        let line = |(to, state): &(String, RecipientState)| match state {
            RecipientState::Ended(fate) => fate.describe_end(to),
            _ => self.find_wait_reason(path, to, state).map(|why| {
                format!("waits for {to} since {since} and is tried again by itself: {why}\n")
            }),
        };
        let lines: String = waiting.recipients.iter().filter_map(line).collect();
        let moved = self
            .find_failure(path, "")
            .map(|why| format!("every recipient has it; it stays in outbox: {why}\n"));
        Some(lines + &moved.unwrap_or_default()).filter(|text| !text.is_empty())
    }

    /// Returns the reason for which a letter waits for a recipient; `None` if it does not.
    pub(super) fn explain_wait(&self, path: &str, to: &str) -> Option<String> {
        let waiting = self.read_waiting_letter(path)?;
        let (_, state) = waiting.recipients.into_iter().find(|(name, _)| name == to)?;
        self.find_wait_reason(path, to, &state)
    }

    /// Returns one line for people for each waiting message and recipient.
    pub(super) fn render_waiting_lines(&self) -> Vec<String> {
        let paths = self.list_outbox_paths();
        let letters = paths.iter().filter_map(|path| self.read_waiting_letter(path));
        let lines = letters.flat_map(|letter| self.render_waiting_letter(&letter));
        lines.map(|line| sanitize_line(&line).into_owned()).collect()
    }

    fn render_waiting_letter(&self, letter: &WaitingLetter) -> Vec<String> {
        let WaitingLetter { path, id, recipients, .. } = letter;
        if recipients.is_empty() {
            return vec![format!("waiting in outbox: {path} names no recipient")];
        }
        let has_it = recipients.iter().filter(|(_, state)| *state == RecipientState::Delivered);
        let has_it: Vec<&str> = has_it.map(|(to, _)| to.as_str()).collect();
        let has_it = match has_it.join(", ") {
            names if names.is_empty() => names,
            names => format!("; delivered to {names}"),
        };
        let line = |(to, state): &(String, RecipientState)| {
            let why = self.find_wait_reason(path, to, state)?;
            Some(format!("waiting in outbox: {id} to {to} ({why}{has_it})"))
        };
        let lines: Vec<String> = recipients.iter().filter_map(line).collect();
        if lines.is_empty() {
            let why = self.find_failure(path, "");
            let why = why.unwrap_or_else(|| "sent/ has another file of its name".to_owned());
            return vec![format!("{path} is delivered and stays in outbox: {why}")];
        }
        lines
    }

    /// Returns the reason for which a letter waits for a recipient in this state; `None` if it does not.
    fn find_wait_reason(&self, path: &str, to: &str, state: &RecipientState) -> Option<String> {
        match state {
            RecipientState::Delivered | RecipientState::Ended(_) => None,
            RecipientState::Waiting(why) => Some(why.clone()),
            RecipientState::Undelivered | RecipientState::Link(_) => {
                let why = self.find_failure(path, to);
                Some(why.unwrap_or_else(|| "it is being delivered".to_owned()))
            }
        }
    }

    /// Returns the reason why the last attempt to deliver failed, if it did.
    fn find_failure(&self, path: &str, to: &str) -> Option<String> {
        let failed = self.format.delivery_failures.lock();
        failed.get(&(path.to_owned(), to.to_owned())).cloned()
    }
}

/// Returns the state of a recipient by the file at which the letter must arrive.
pub(super) fn check_target(target: &Path, bytes: &[u8]) -> RecipientState {
    match std::fs::symlink_metadata(target) {
        Err(_) => RecipientState::Undelivered,
        Ok(_) if is_same_but_status(target, bytes) => RecipientState::Delivered,
        Ok(_) => {
            RecipientState::Waiting("another file has its name in the recipient's inbox".to_owned())
        }
    }
}
