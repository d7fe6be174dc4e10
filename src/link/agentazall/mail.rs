//! E-mail: SMTP out, IMAP or POP3 in (docs/links/mail.md).
//!
//! Nothing is flagged or deleted on the server. Every try of a message sends the same bytes with the same
//! Message-ID.

mod imap;
mod mime;
mod pop;
mod smtp;

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use self::imap::{Got, Imap};
use self::pop::Pop;
use self::smtp::{Server, Smtp};
use super::brought::{self, LISTED};
use super::{port_of, says, seen, text_of};
use crate::link::engine::{Engine, Item, Outcome, Settings};
use crate::link::reach;
use crate::link::room::Roomy;
use crate::link::wire::{self, Host, Patience, Tls};
use crate::model::{Timestamp, hex, one_line};
use crate::store::agentazall::{names, text};
use crate::store::{Arrived, Parcel, fs, place};

/// A larger mail is not read.
const MAX_MAIL: u64 = 64 << 20;
/// Of such a mail this much is read.
const BEGIN: u64 = 64 << 10;
/// A larger message is not sent: base64 makes a third more of it, and servers take 50 MB or less.
const MAX_MESSAGE: u64 = 36 << 20;
/// No more comes at once.
const AT_ONCE: usize = 256;
/// Nor is it larger, once it is more than one.
const BYTES_AT_ONCE: u64 = 256 << 20;

/// An account.
#[derive(Debug)]
pub struct Mail {
    settings: Settings,
    smtp: Host,
    smtp_tls: Security,
    inbox: Host,
    inbox_tls: bool,
    is_pop: bool,
    folder: String,
    user: String,
}

/// How TLS begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Security {
    None,
    Starttls,
    Tls,
}

/// What a fetch writes beside a mail.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Brought {
    id: String,
    /// Under which name the reference knows it.
    seen: String,
    /// The reference may have filed it.
    maybe: bool,
    /// It has so many bytes, and only its beginning is here.
    size: Option<u64>,
}

/// Who is to be sent what, before the mail itself.
#[derive(Debug, Serialize, Deserialize)]
struct Envelope {
    from: String,
    to: String,
}

fn away(why: impl std::fmt::Display) -> Outcome {
    Outcome::Away { why: one_line(&why.to_string()).into_owned(), after: None }
}

impl Mail {
    /// The account that a part of a configuration describes.
    pub fn open(settings: &Settings) -> Self {
        let part = super::part_of(settings);
        let host = |name: &str, port: &str, default| Host {
            name: text_of(&part, name, "127.0.0.1").trim().to_owned(),
            port: port_of(&part, port, default),
        };
        let is_pop = says(&part, "use_pop3");
        let (inbox, inbox_tls) = if is_pop {
            (host("pop3_server", "pop3_port", 1110), says(&part, "pop3_ssl"))
        } else {
            (host("imap_server", "imap_port", 1143), says(&part, "imap_ssl"))
        };
        let smtp_tls = match (says(&part, "smtp_ssl"), says(&part, "smtp_starttls")) {
            (true, _) => Security::Tls,
            (false, true) => Security::Starttls,
            (false, false) => Security::None,
        };
        Self {
            settings: settings.clone(),
            smtp: host("smtp_server", "smtp_port", 2525),
            smtp_tls,
            inbox,
            inbox_tls,
            is_pop,
            folder: text_of(&part, "imap_folder", "INBOX").to_owned(),
            user: text_of(&part, "username", &settings.me).to_owned(),
        }
    }

    fn password(&self) -> Result<Zeroizing<String>, Outcome> {
        super::password(&self.settings, "password").map_err(away)
    }

    fn tls(&self) -> Result<Tls, Outcome> {
        Tls::new(self.settings.ca.as_deref()).map_err(away)
    }

    fn smtp(&self) -> Result<Smtp, Outcome> {
        let mut tls = (None, None);
        match self.smtp_tls {
            Security::None => {
                let instead = "\"smtp_starttls\": true";
                wire::may_be_plain(&self.smtp, self.settings.insecure, instead).map_err(away)?;
            }
            Security::Starttls => tls.1 = Some(self.tls()?),
            Security::Tls => tls.0 = Some(self.tls()?),
        }
        let password = self.password()?;
        let server = Server {
            host: &self.smtp,
            tls: tls.0.as_ref(),
            starttls: tls.1.as_ref(),
            user: &self.user,
            password: &password,
        };
        Smtp::open(&server, Patience::default())
    }

    /// What the password of the inbox may be said over.
    fn inbox_tls(&self) -> Result<Option<Tls>, Outcome> {
        if self.inbox_tls {
            return self.tls().map(Some);
        }
        let instead = if self.is_pop { "\"pop3_ssl\": true" } else { "\"imap_ssl\": true" };
        wire::may_be_plain(&self.inbox, self.settings.insecure, instead).map_err(away)?;
        Ok(None)
    }

    fn imap(&self) -> Result<Imap, Outcome> {
        let (tls, password) = (self.inbox_tls()?, self.password()?);
        let login = (self.user.as_str(), password.as_str());
        Imap::open(&self.inbox, tls.as_ref(), login, &self.folder, Patience::default())
            .map_err(away)
    }

    fn pop(&self) -> Result<Pop, Outcome> {
        let (tls, password) = (self.inbox_tls()?, self.password()?);
        let login = (self.user.as_str(), password.as_str());
        Pop::open(&self.inbox, tls.as_ref(), login, Patience::default()).map_err(away)
    }

    /// What tells ids of this account and folder from those of others.
    fn scope(&self) -> String {
        let folder = if self.is_pop { "" } else { &self.folder };
        let digest = hex(&Sha256::digest(format!("{}|{}|{folder}", self.inbox, self.user)));
        digest.get(..12).unwrap_or_default().to_owned()
    }

    /// What was brought, with its attachments in a folder.
    fn item(&self, brought: Brought, bytes: &[u8], folder: &Path) -> io::Result<Item> {
        let arrived = match brought.size {
            Some(size) => mime::too_large(bytes, size, MAX_MAIL, folder)?,
            None => mime::letter(bytes, folder)?,
        };
        if brought.maybe && self.is_filed(&arrived) {
            return Ok(Item::known(brought.id));
        }
        Ok(Item { id: brought.id, arrived, acknowledge: Some(brought.seen) })
    }

    /// Whether the reference has filed a letter: one that says the same lies in the inbox of a day near
    /// to it. Its list alone says only that some account had a mail of this number.
    fn is_filed(&self, arrived: &Arrived) -> bool {
        let Some(mailbox) = super::mailbox(&self.settings) else { return false };
        let day = arrived.day.as_deref().and_then(|day| day.parse::<jiff::civil::Date>().ok());
        let Some(day) = day else { return false };
        let print = print(&arrived.bytes);
        (-1..=1).any(|n| {
            let Ok(day) = day.checked_add(jiff::Span::new().days(n)) else { return false };
            let files = std::fs::read_dir(mailbox.join(day.to_string()).join("inbox"));
            let files = files.into_iter().flatten().flatten().map(|entry| entry.path());
            let mut texts = files.filter(|path| path.extension().is_some_and(|e| e == "txt"));
            texts.any(|path| {
                fs::read_small(&path, MAX_MAIL).is_ok_and(|bytes| self::print(&bytes) == print)
            })
        })
    }

    fn fetch_all(&self, new: &mut New<'_>) -> Result<(), Outcome> {
        let scope = self.scope();
        if self.is_pop {
            let mut pop = self.pop()?;
            for (number, uidl) in pop.all().map_err(away)? {
                let Some(brought) = new.wants(format!("pop:{scope}:{uidl}"), &uidl) else {
                    continue;
                };
                let mut file = new.file().map_err(away)?;
                if pop.get(number, MAX_MAIL, &mut file).map_err(away)? {
                    new.keep(brought, &file).map_err(away)?;
                } else {
                    file.file().set_len(BEGIN).map_err(away)?;
                    new.keep(Brought { size: Some(MAX_MAIL), ..brought }, &file).map_err(away)?;
                    pop = self.pop()?;
                }
            }
            pop.quit();
            return Ok(());
        }
        let mut imap = self.imap()?;
        for uid in imap.all().map_err(away)? {
            let id = format!("imap:{scope}:{}:{uid}", imap.validity);
            let Some(brought) = new.wants(id, &uid.to_string()) else { continue };
            let mut file = new.file().map_err(away)?;
            match imap.get(uid, MAX_MAIL, &mut file).map_err(away)? {
                Got::Whole => new.keep(brought, &file).map_err(away)?,
                Got::Nothing => {}
                Got::TooLarge(size) => {
                    imap.begin(size.min(BEGIN), &mut file).map_err(away)?;
                    new.keep(Brought { size: Some(size), ..brought }, &file).map_err(away)?;
                    imap = self.imap()?;
                }
            }
        }
        imap.quit();
        Ok(())
    }
}

/// What makes two files of one mail the same.
fn print(bytes: &[u8]) -> (Option<i64>, String, String) {
    let letter = text::parse(bytes);
    let from = names::bare_address(letter.get("From").unwrap_or_default());
    let at = mime::moment(letter.get("Date").unwrap_or_default());
    (at.map(Timestamp::millis), from, letter.body.trim().to_owned())
}

/// What a fetch writes.
struct New<'a> {
    raw: &'a Path,
    known: &'a HashSet<String>,
    theirs: HashSet<String>,
    listed: Vec<String>,
    number: usize,
    bytes: u64,
}

impl New<'_> {
    /// What is to be written of a mail, unless it is known or enough was brought.
    fn wants(&mut self, id: String, seen: &str) -> Option<Brought> {
        if self.known.contains(&id) {
            self.listed.push(id);
            return None;
        }
        if self.number >= AT_ONCE || self.bytes > BYTES_AT_ONCE {
            return None;
        }
        Some(Brought { id, seen: seen.to_owned(), maybe: self.theirs.contains(seen), size: None })
    }

    fn file(&self) -> io::Result<Roomy> {
        Roomy::create(&self.raw.join(format!("{}.eml", self.number)))
    }

    /// The mail is there; the last file says so.
    fn keep(&mut self, brought: Brought, file: &Roomy) -> io::Result<()> {
        file.file().sync_all()?;
        self.bytes += file.file().metadata()?.len();
        let path = self.raw.join(format!("{}.json", self.number));
        place::write_atomic(&path, &serde_json::to_vec(&brought)?, 0o600)?;
        self.number += 1;
        Ok(())
    }
}

impl Engine for Mail {
    fn place(&self) -> String {
        let inbox = if self.is_pop { "pop3" } else { "imap" };
        format!("mail by smtp://{} and {inbox}://{}", self.smtp, self.inbox)
    }

    fn reaches(&self, address: &str) -> Option<u8> {
        let fits = names::is_address(address) && address.contains('@');
        // Of several accounts only the first one sends.
        (fits && super::is_first(&self.settings.part)).then_some(3)
    }

    fn wire(&self, parcel: &Parcel) -> Result<Vec<u8>, String> {
        let me = &self.settings.me;
        // A server wants to know where to tell of what went wrong.
        let from = if me.contains('@') { me } else { &self.user };
        for address in [from, &parcel.to] {
            let is_bad = |c: char| c.is_whitespace() || c.is_control() || "<>,;\"\\".contains(c);
            if address.is_empty() || address.contains(is_bad) {
                return Err(format!("{} cannot be the address of a mail", one_line(address)));
            }
        }
        let envelope = Envelope { from: from.clone(), to: parcel.to.clone() };
        let mut wire = serde_json::to_vec(&envelope).map_err(|e| e.to_string())?;
        wire.push(b'\n');
        wire.extend(mime::compose(parcel, MAX_MESSAGE)?);
        Ok(wire)
    }

    fn unpack(&self, raw: &Path) -> Vec<io::Result<Item>> {
        brought::unpack(raw, "eml", |n, brought: Brought, bytes| {
            self.item(brought, &bytes, &raw.join(format!("{n}.d")))
        })
    }

    fn other_carrier(&self) -> Option<String> {
        super::other_carrier(&self.settings.file)
    }

    fn poll(&self) -> Duration {
        Duration::from_secs(if reach::is_private(&self.inbox.name) { 5 } else { 30 })
    }

    fn destroys(&self) -> bool {
        false
    }

    fn send(&self, wire: &Path) -> Outcome {
        let read = fs::read_small(wire, MAX_MESSAGE * 3).and_then(|bytes| {
            let at = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
            let (line, rest) = bytes.split_at(at);
            let envelope: Envelope = serde_json::from_slice(line)?;
            Ok((envelope, rest.get(1..).unwrap_or_default().to_owned()))
        });
        let (envelope, message) = match read {
            Ok(read) => read,
            Err(e) => return away(e),
        };
        let mut smtp = match self.smtp() {
            Ok(smtp) => smtp,
            // Without a session nothing says anything about this message.
            Err(Outcome::Refused { why } | Outcome::Later { why, .. }) => return away(why),
            Err(outcome) => return outcome,
        };
        let outcome = smtp.send(&envelope.from, &envelope.to, &message);
        smtp.quit();
        outcome
    }

    fn fetch(&self, raw: &Path, known: &HashSet<String>) -> Outcome {
        let theirs = match super::mailbox(&self.settings) {
            Some(mailbox) => seen::read(&mailbox),
            None => HashSet::new(),
        };
        let mut new = New { raw, known, theirs, listed: Vec::new(), number: 0, bytes: 0 };
        let result = self.fetch_all(&mut new);
        let listed = serde_json::to_vec(&new.listed).unwrap_or_default();
        let kept = place::write_atomic(&raw.join(LISTED), &listed, 0o600);
        match (result, kept) {
            (Err(outcome), _) => outcome,
            (Ok(()), Err(e)) => away(e),
            (Ok(()), Ok(())) => Outcome::Done,
        }
    }

    fn acknowledge(&self, ids: &[String]) -> Outcome {
        let added = super::mailbox(&self.settings).map_or(Ok(()), |path| seen::add(&path, ids));
        added.map_or_else(away, |()| Outcome::Done)
    }

    fn check(&self) -> Vec<String> {
        let smtp = self.smtp().map(Smtp::quit);
        let inbox =
            if self.is_pop { self.pop().map(Pop::quit) } else { self.imap().map(Imap::quit) };
        let why = |what: &str, result: Result<(), Outcome>| {
            result.err().map(|outcome| format!("{what}: {}", outcome.why().unwrap_or_default()))
        };
        let smtp = why(&format!("smtp://{}", self.smtp), smtp);
        smtp.into_iter().chain(why(&format!("the inbox at {}", self.inbox), inbox)).collect()
    }

    fn secrets(&self) -> Vec<Zeroizing<String>> {
        let Ok(password) = self.password() else { return Vec::new() };
        vec![smtp::plain(&self.user, &password), password]
    }
}

#[cfg(test)]
mod tests;
