//! AgentAZAll's folders on an FTP server (docs/links/ftp.md).
//!
//! The server has the mailboxes of all agents, as folders, and one account for all of them.

mod client;
mod fetch;
mod send;

use std::collections::HashSet;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::tz::TimeZone;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use self::client::{Client, Fault, Login};
use self::fetch::{Brought, Fetch};
use self::send::{Head, Stop, Waiting};
use super::brought;
use super::letter::{cannot_read, is_stem, unreadable, usable};
use super::{port_of, says, seen, text_of};
use crate::link::engine::{Engine, Item, Outcome, Settings};
use crate::link::reach;
use crate::link::wire::{self, Host, Patience, Tls};
use crate::model::{Timestamp, hex, one_line};
use crate::store::agentazall::{date, names, text};
use crate::store::{Arrived, Parcel, fs};

/// No message with its attachments is larger.
const MAX_MESSAGE: u64 = 256 << 20;

/// An FTP server.
#[derive(Debug)]
pub struct Ftp {
    settings: Settings,
    host: Host,
    user: String,
    is_tls: bool,
}

impl Ftp {
    /// The server that a part of a configuration describes.
    pub fn open(settings: &Settings) -> Self {
        let part = super::part_of(settings);
        let name = text_of(&part, "host", "127.0.0.1").trim().to_owned();
        Self {
            settings: settings.clone(),
            host: Host { name, port: port_of(&part, "port", 2121) },
            user: text_of(&part, "user", "agentoftp").to_owned(),
            is_tls: says(&part, "ftp_ssl"),
        }
    }

    fn password(&self) -> Result<Zeroizing<String>, String> {
        super::password(&self.settings, "agentoftp_pass")
    }

    /// Logs in.
    fn client(&self) -> Result<Client, Outcome> {
        if !self.is_tls {
            wire::may_be_plain(&self.host, self.settings.insecure, "\"ftp_ssl\": true")
                .map_err(Outcome::away)?;
        }
        let password = self.password().map_err(Outcome::away)?;
        let tls = self.is_tls.then(|| Tls::new(self.settings.ca.as_deref())).transpose();
        let login =
            Login { user: &self.user, password: &password, tls: tls.map_err(Outcome::away)? };
        Client::open(&self.host, &login, Patience::default()).map_err(|fault| {
            // Without a session nothing says anything about a message.
            match self.outcome(&fault) {
                Outcome::Later { why, after } => Outcome::Away { why, after },
                other => other,
            }
        })
    }

    /// What a fault means for a message.
    fn outcome(&self, fault: &Fault) -> Outcome {
        let why = fault.to_string();
        match fault.code() {
            Some(530 | 532 | 331 | 332) => {
                let file = self.settings.file.display();
                Outcome::away(format!(
                    "the server refuses the user or the password in {file} ({why})"
                ))
            }
            None | Some(421 | 425 | 426) => Outcome::away(why),
            // The recipient's folder is full or cannot be written now; others may be.
            Some(_) => Outcome::Later { why, after: None },
        }
    }
}

impl Engine for Ftp {
    fn place(&self) -> String {
        let scheme = if self.is_tls { "ftps" } else { "ftp" };
        format!("{scheme}://{}", self.host)
    }

    fn reaches(&self, address: &str) -> Option<u8> {
        let fits = names::is_mailbox_name(address) && address.contains('@');
        // Of several servers only the first one is sent to.
        (fits && super::is_first(&self.settings.part)).then_some(2)
    }

    fn wire(&self, parcel: &Parcel) -> Result<Vec<u8>, String> {
        for (name, what) in [(&parcel.to, "recipient"), (&self.settings.me, "agent_name")] {
            if !names::is_mailbox_name(name) {
                return Err(format!(
                    "the {what} {} cannot be the name of a folder",
                    one_line(name)
                ));
            }
        }
        let letter = text::parse(&parcel.bytes);
        let day = letter.get("Date").and_then(|date| date.get(..10)).filter(|d| date::is_day(d));
        let today = || date::local_day(Timestamp::now(), &TimeZone::system());
        let stem = if is_stem(&parcel.message) {
            parcel.message.clone()
        } else {
            hex(&Sha256::digest(&parcel.message)).get(..12).unwrap_or_default().to_owned()
        };
        let mut parts = Vec::new();
        let mut total = parcel.bytes.len() as u64;
        for (name, path) in &parcel.parts {
            let length = std::fs::metadata(path).map_err(|e| cannot_read(name, &e))?.len();
            total += length;
            parts.push((name.clone(), length));
        }
        if total > MAX_MESSAGE {
            return Err(format!(
                "it has {total} bytes with its attachments; a link by FTP carries at most \
                 {MAX_MESSAGE}"
            ));
        }
        let head = Head {
            to: parcel.to.clone(),
            day: day.map_or_else(today, str::to_owned),
            stem,
            text: parcel.bytes.len() as u64,
            parts,
        };
        let mut wire = serde_json::to_vec(&head).map_err(|e| e.to_string())?;
        wire.push(b'\n');
        wire.extend_from_slice(&parcel.bytes);
        for ((name, path), (_, length)) in parcel.parts.iter().zip(&head.parts) {
            let why = |e: io::Error| cannot_read(name, &e);
            let file = fs::open_regular(path).map_err(why)?;
            let copied = file.take(*length).read_to_end(&mut wire).map_err(why)?;
            if copied as u64 != *length {
                return Err(format!(
                    "the attachment {} became shorter while it was sent",
                    one_line(name)
                ));
            }
        }
        Ok(wire)
    }

    fn unpack(&self, raw: &Path) -> Vec<io::Result<Item>> {
        let unread = |brought: Brought, bytes: &[u8], why: &str| {
            let [_, name] = brought.names;
            let arrived = unreadable(bytes, why, name, &brought.day);
            let acknowledge = Some(brought.seen).filter(|seen| !seen.is_empty());
            Item { id: brought.id, arrived, acknowledge }
        };
        let letter = |n: usize, mut brought: Brought, bytes: Vec<u8>| {
            if let Some(why) = brought.fault.take() {
                return Ok(unread(brought, &bytes, &why));
            }
            let mut parts: Vec<(String, PathBuf)> = Vec::new();
            for (k, name) in brought.parts.iter().enumerate() {
                let fits = names::is_attachment_name(name) && !parts.iter().any(|(n, _)| n == name);
                let name = if fits { name.clone() } else { usable(name, k, &parts) };
                parts.push((name, raw.join(n.to_string()).join(k.to_string())));
            }
            let [name, other_name] = brought.names;
            let name =
                Some(name).filter(|name| is_stem(name)).unwrap_or_else(|| other_name.clone());
            let day = Some(brought.day);
            let keys = Vec::new();
            let arrived = Arrived { name, other_name, day, bytes, parts, keys };
            Ok(Item { id: brought.id, arrived, acknowledge: Some(brought.seen) })
        };
        brought::unpack(raw, "txt", letter, |brought, bytes| {
            unread(brought, bytes, brought::DEADLY)
        })
    }

    fn other_carrier(&self) -> Option<String> {
        super::other_carrier(&self.settings.file)
    }

    fn poll(&self) -> Duration {
        Duration::from_secs(if reach::is_private(&self.host.name) { 5 } else { 20 })
    }

    fn destroys(&self) -> bool {
        false
    }

    fn send(&self, wire: &Path) -> Outcome {
        let waiting = fs::open_regular(wire).and_then(Waiting::open);
        let mut waiting = match waiting {
            Ok(waiting) => waiting,
            Err(e) => return Outcome::away(e),
        };
        let mut client = match self.client() {
            Ok(client) => client,
            Err(outcome) => return outcome,
        };
        match send::hand_over(&mut client, &mut waiting, &self.settings.me) {
            Ok(()) => {
                client.quit();
                Outcome::Done
            }
            Err(Stop::Refused(why)) => Outcome::Refused { why },
            // Nothing is done twice, whatever was done.
            Err(Stop::Fault(fault)) => self.outcome(&fault),
        }
    }

    fn fetch(&self, raw: &Path, known: &HashSet<String>) -> Outcome {
        let client = match self.client() {
            Ok(client) => client,
            Err(outcome) => return outcome,
        };
        let mut known = known.clone();
        if super::is_first(&self.settings.part) {
            known.extend(seen::theirs(&self.settings));
        }
        match Fetch::new(client, raw, &known, &self.settings.me).run() {
            Ok(()) => Outcome::Done,
            Err(fault) => match self.outcome(&fault) {
                Outcome::Later { why, after } => Outcome::Away { why, after },
                other => other,
            },
        }
    }

    fn stays(&self) -> bool {
        true
    }

    fn has_brought(&self, raw: &Path) -> bool {
        brought::is_any(raw)
    }

    fn acknowledge(&self, ids: &[String]) -> Outcome {
        seen::tell(&self.settings, ids)
    }

    fn check(&self) -> Vec<String> {
        match self.client() {
            Ok(client) => {
                client.quit();
                Vec::new()
            }
            Err(outcome) => outcome.why().map(str::to_owned).into_iter().collect(),
        }
    }

    fn secrets(&self) -> Vec<Zeroizing<String>> {
        self.password().into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
