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
use super::brought;
use super::{port_of, says, seen, text_of};
use crate::link::engine::{Engine, Item, Outcome, Settings};
use crate::link::journal::note_beside;
use crate::link::reach;
use crate::link::room::Roomy;
use crate::link::wire::{self, Host, Patience, Tls};
use crate::model::{Timestamp, hex, one_line};
use crate::store::agentazall::{block, names, public_key, text};
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
/// No more mails are read in search of a copy, where a server does not search: the last ones.
const FEW: usize = 100;
/// How often a copy is looked for, a second apart: some servers say that they have a mail before it lies in an inbox.
const LOOKS: usize = if cfg!(test) { 2 } else { 5 };

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
    self_copy: bool,
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
    /// Who gets a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    copy: Option<String>,
}

impl Mail {
    /// The account that a part of a configuration describes.
    ///
    /// # Errors
    /// If it cannot do what is wanted of it.
    pub fn open(settings: &Settings) -> Result<Self, String> {
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
        let self_copy = settings.self_copy && super::is_first(&settings.part);
        if self_copy && (is_pop || text_of(&part, "imap_server", "").trim().is_empty()) {
            let what = if is_pop { "says \"use_pop3\": true" } else { "names no \"imap_server\"" };
            return Err(format!(
                "self_copy needs IMAP to look for the copies, but {} {what}; change that, or \
                 remove self_copy from the [[link]]",
                settings.file.display()
            ));
        }
        let smtp_tls = match (says(&part, "smtp_ssl"), says(&part, "smtp_starttls")) {
            (true, _) => Security::Tls,
            (false, true) => Security::Starttls,
            (false, false) => Security::None,
        };
        Ok(Self {
            settings: settings.clone(),
            smtp: host("smtp_server", "smtp_port", 2525),
            smtp_tls,
            inbox,
            inbox_tls,
            is_pop,
            folder: text_of(&part, "imap_folder", "INBOX").to_owned(),
            user: text_of(&part, "username", &settings.me).to_owned(),
            self_copy,
        })
    }

    /// My address there: a server wants to know where to tell of what went wrong.
    fn own(&self) -> &str {
        let me = &self.settings.me;
        if me.contains('@') { me } else { &self.user }
    }

    fn password(&self) -> Result<Zeroizing<String>, Outcome> {
        super::password(&self.settings, "password").map_err(Outcome::away)
    }

    fn tls(&self) -> Result<Tls, Outcome> {
        Tls::new(self.settings.ca.as_deref()).map_err(Outcome::away)
    }

    fn smtp(&self) -> Result<Smtp, Outcome> {
        let mut tls = (None, None);
        match self.smtp_tls {
            Security::None => {
                let instead = "\"smtp_starttls\": true";
                wire::may_be_plain(&self.smtp, self.settings.insecure, instead)
                    .map_err(Outcome::away)?;
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
        wire::may_be_plain(&self.inbox, self.settings.insecure, instead).map_err(Outcome::away)?;
        Ok(None)
    }

    fn imap(&self) -> Result<Imap, Outcome> {
        self.imap_in(&self.folder)
    }

    fn imap_in(&self, folder: &str) -> Result<Imap, Outcome> {
        let (tls, password) = (self.inbox_tls()?, self.password()?);
        let login = (self.user.as_str(), password.as_str());
        Imap::open(&self.inbox, tls.as_ref(), login, folder, Patience::default())
            .map_err(Outcome::away)
    }

    /// Whether the copy of a mail came, so that its recipient was served.
    fn has_copy(&self, message: &[u8]) -> Result<bool, Outcome> {
        let Some(wanted) = mime::marks(message) else { return Ok(false) };
        let mut folders = vec!["INBOX", &self.folder];
        folders.dedup_by(|a, b| a.eq_ignore_ascii_case(b));
        for look in 0..LOOKS {
            if look > 0 {
                std::thread::sleep(Duration::from_secs(1));
            }
            for folder in &folders {
                if self.has_copy_in(folder, &wanted)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn has_copy_in(&self, folder: &str, wanted: &(String, String)) -> Result<bool, Outcome> {
        let mut imap = self.imap_in(folder)?;
        for uid in imap.with_id(&wanted.0).map_err(Outcome::away)?.into_iter().rev().take(FEW) {
            let mut mail = Vec::new();
            match imap.get(uid, MAX_MAIL, &mut mail).map_err(Outcome::away)? {
                Got::Whole if mime::marks(&mail).as_ref() == Some(wanted) => return Ok(true),
                Got::Whole | Got::Nothing => {}
                Got::TooLarge(_) => imap = self.imap_in(folder)?,
            }
        }
        imap.quit();
        Ok(false)
    }

    /// Whether a mail is but the copy of one that I sent to others.
    fn is_own_copy(&self, raw: &[u8], arrived: &Arrived) -> bool {
        let reading = block::read(&text::parse(&arrived.bytes));
        let key = super::mailbox(&self.settings).and_then(|mailbox| public_key(&mailbox));
        if key.is_none() || key.as_ref() != reading.signer() {
            return false;
        }
        let own = [self.settings.me.as_str(), self.own(), &self.user];
        match mime::marks(raw) {
            Some((_, to)) => !own.iter().any(|me| mime::is_for(&to, me)),
            None => !reading.to.iter().chain(&reading.cc).any(|to| {
                let to = names::bare_address(to);
                own.iter().any(|me| to.eq_ignore_ascii_case(me))
            }),
        }
    }

    fn pop(&self) -> Result<Pop, Outcome> {
        let (tls, password) = (self.inbox_tls()?, self.password()?);
        let login = (self.user.as_str(), password.as_str());
        Pop::open(&self.inbox, tls.as_ref(), login, Patience::default()).map_err(Outcome::away)
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
        if self.is_own_copy(bytes, &arrived) {
            // The reference is not to show it either.
            return Ok(Item { acknowledge: Some(brought.seen), ..Item::known(brought.id) });
        }
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
            for (number, uidl) in pop.all().map_err(Outcome::away)? {
                let Some(brought) = new.wants(format!("pop:{scope}:{uidl}"), &uidl) else {
                    continue;
                };
                let mut file = new.file().map_err(Outcome::away)?;
                if pop.get(number, MAX_MAIL, &mut file).map_err(Outcome::away)? {
                    new.keep(brought, &file).map_err(Outcome::away)?;
                } else {
                    file.file().set_len(BEGIN).map_err(Outcome::away)?;
                    new.keep(Brought { size: Some(MAX_MAIL), ..brought }, &file)
                        .map_err(Outcome::away)?;
                    pop = self.pop()?;
                }
            }
            pop.quit();
            return Ok(());
        }
        let mut imap = self.imap()?;
        for uid in imap.all().map_err(Outcome::away)? {
            let id = format!("imap:{scope}:{}:{uid}", imap.validity);
            let Some(brought) = new.wants(id, &uid.to_string()) else { continue };
            let mut file = new.file().map_err(Outcome::away)?;
            match imap.get(uid, MAX_MAIL, &mut file).map_err(Outcome::away)? {
                Got::Whole => new.keep(brought, &file).map_err(Outcome::away)?,
                Got::Nothing => {}
                Got::TooLarge(size) => {
                    imap.begin(size.min(BEGIN), &mut file).map_err(Outcome::away)?;
                    new.keep(Brought { size: Some(size), ..brought }, &file)
                        .map_err(Outcome::away)?;
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
        let from = self.own();
        for address in [from, &parcel.to] {
            let is_bad = |c: char| c.is_whitespace() || c.is_control() || "<>,;\"\\".contains(c);
            if address.is_empty() || address.contains(is_bad) {
                return Err(format!("{} cannot be the address of a mail", one_line(address)));
            }
        }
        let copy = self.self_copy.then(|| from.to_owned());
        let envelope = Envelope { from: from.to_owned(), to: parcel.to.clone(), copy };
        let mut wire = serde_json::to_vec(&envelope).map_err(|e| e.to_string())?;
        wire.push(b'\n');
        wire.extend(mime::compose(parcel, self.self_copy, MAX_MESSAGE)?);
        Ok(wire)
    }

    fn unpack(&self, raw: &Path) -> Vec<io::Result<Item>> {
        let letter =
            |n, brought, bytes: Vec<u8>| self.item(brought, &bytes, &raw.join(format!("{n}.d")));
        brought::unpack(raw, "eml", letter, |brought: Brought, bytes| Item {
            id: brought.id,
            arrived: mime::unreadable(bytes, brought::DEADLY),
            acknowledge: Some(brought.seen),
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
            Err(e) => return Outcome::away(e),
        };
        let copy = envelope.copy.as_deref().filter(|_| self.self_copy);
        // There from when the server may have it, and a copy with it.
        let note = note_beside(wire);
        if copy.is_some() && note.exists() {
            match self.has_copy(&message) {
                Ok(true) => return Outcome::Done,
                Ok(false) => {}
                Err(outcome) => {
                    let why = outcome.why().unwrap_or_default();
                    return Outcome::away(format!(
                        "the server may have it already, and the inbox cannot be searched for it: \
                         {why}"
                    ));
                }
            }
        }
        let mut smtp = match self.smtp() {
            Ok(smtp) => smtp,
            // Without a session nothing says anything about this message.
            Err(Outcome::Refused { why } | Outcome::Later { why, .. }) => {
                return Outcome::away(why);
            }
            Err(outcome) => return outcome,
        };
        let outcome = match smtp.envelope(&envelope.from, &envelope.to, copy) {
            Ok(true) => place::write_atomic(&note, b"", 0o600).map_err(Outcome::away),
            other => other.map(drop),
        };
        let outcome = outcome.map_or_else(|why| why, |()| smtp.text(&message));
        smtp.quit();
        outcome
    }

    fn fetch(&self, raw: &Path, known: &HashSet<String>) -> Outcome {
        let theirs = seen::theirs(&self.settings);
        let mut new = New { raw, known, theirs, listed: Vec::new(), number: 0, bytes: 0 };
        let result = self.fetch_all(&mut new);
        match (result, brought::list(raw, &new.listed)) {
            (Err(outcome), _) => outcome,
            (Ok(()), Err(e)) => Outcome::away(e),
            (Ok(()), Ok(())) => Outcome::Done,
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
