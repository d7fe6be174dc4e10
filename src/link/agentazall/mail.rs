//! E-mail: SMTP out, IMAP or POP3 in (docs/links/mail.md).
//!
//! Nothing is flagged or deleted on the server. Every try of a message sends the same bytes with the same
//! Message-ID.

mod fetch;
mod imap;
mod mime;
mod pop;
mod session;
mod smtp;

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use self::imap::ImapClient;
use self::pop::PopClient;
use self::session::MailSession;
use self::smtp::{SmtpClient, SmtpServer};
use super::fetch_folder;
use super::{is_enabled, port_member, text_member};
use crate::link::connection::{self, ConnectionTimeouts, HostPort, TlsClient};
use crate::link::engine::{
    EncodeError, EngineSettings, ExchangeOutcome, FetchedItem, LinkEngine, LinkSession,
};
use crate::link::private_hosts;
use crate::model::{Timestamp, encode_hex, sanitize_line};
use crate::store::agentazall::{block, names, public_key, text};
use crate::store::{InboundMail, OutboundMail, fs};

/// The limit on the size of a mail that is read whole.
const MAX_MAIL: u64 = 64 << 20;
/// The limit on the size of a sent message: base64 adds a third, and servers take 50 MB or less.
const MAX_MESSAGE: u64 = 36 << 20;
/// The number of mails, counted from the last one, that are read in search of a copy.
const FEW: usize = 100;
/// The number of searches for a copy, a second apart: some servers accept a mail before it lies in an inbox.
const LOOKS: usize = if cfg!(test) { 2 } else { 5 };

/// A mail account.
#[derive(Debug)]
pub struct MailEngine {
    settings: EngineSettings,
    smtp: HostPort,
    smtp_tls: SmtpSecurity,
    inbox: HostPort,
    inbox_tls: bool,
    is_pop: bool,
    folder: String,
    user: String,
    self_copy: bool,
}

/// The way in which TLS begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SmtpSecurity {
    None,
    Starttls,
    Tls,
}

/// The result of asking a server for a mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MailFetchResult {
    /// A whole mail.
    Whole,
    /// A mail that does not exist any more.
    Missing,
    /// A mail of at least this size, which is not read to its end. The session is unusable afterwards.
    TooLarge(u64),
    /// A mail that the server refuses to hand out, for this reason.
    Refused(String),
}

/// The data that a fetch writes beside a mail.
#[derive(Debug, Default, Serialize, Deserialize)]
struct FetchedMailMeta {
    id: String,
    /// The id by which the reference program knows it.
    seen: String,
    /// True if the reference may have filed it.
    maybe: bool,
    /// The size of a mail of which only the beginning is here.
    size: Option<u64>,
}

/// The sender and recipients of a mail, which stand before the mail itself.
#[derive(Debug, Serialize, Deserialize)]
struct SmtpEnvelope {
    from: String,
    to: String,
    /// The recipient of a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    copy: Option<String>,
}

impl MailEngine {
    /// Opens the account that a part of a configuration describes.
    ///
    /// # Errors
    /// Returns a sentence that says why the account cannot do what the link needs.
    pub fn open(settings: &EngineSettings) -> Result<Self, String> {
        let part = super::read_part(settings);
        let host = |name: &str, port: &str, default| HostPort {
            name: text_member(&part, name, "127.0.0.1").trim().to_owned(),
            port: port_member(&part, port, default),
        };
        let is_pop = is_enabled(&part, "use_pop3");
        let (inbox, inbox_tls) = if is_pop {
            (host("pop3_server", "pop3_port", 1110), is_enabled(&part, "pop3_ssl"))
        } else {
            (host("imap_server", "imap_port", 1143), is_enabled(&part, "imap_ssl"))
        };
        let self_copy = settings.self_copy && super::is_first_part(&settings.part);
        if self_copy && (is_pop || text_member(&part, "imap_server", "").trim().is_empty()) {
            let what = if is_pop { "says \"use_pop3\": true" } else { "names no \"imap_server\"" };
            return Err(format!(
                "self_copy needs IMAP to look for the copies, but {} {what}; change that, or \
                 remove self_copy from the [[link]]",
                settings.file.display()
            ));
        }
        let smtp_tls = match (is_enabled(&part, "smtp_ssl"), is_enabled(&part, "smtp_starttls")) {
            (true, _) => SmtpSecurity::Tls,
            (false, true) => SmtpSecurity::Starttls,
            (false, false) => SmtpSecurity::None,
        };
        Ok(Self {
            settings: settings.clone(),
            smtp: host("smtp_server", "smtp_port", 2525),
            smtp_tls,
            inbox,
            inbox_tls,
            is_pop,
            folder: text_member(&part, "imap_folder", "INBOX").to_owned(),
            user: text_member(&part, "username", &settings.me).to_owned(),
            self_copy,
        })
    }

    /// Returns my address there. The server needs it to report failed deliveries.
    fn sender_address(&self) -> &str {
        let me = &self.settings.me;
        if me.contains('@') { me } else { &self.user }
    }

    fn read_password(&self) -> Result<Zeroizing<String>, ExchangeOutcome> {
        super::read_password(&self.settings, "password").map_err(ExchangeOutcome::away)
    }

    fn make_tls_client(&self) -> Result<TlsClient, ExchangeOutcome> {
        TlsClient::new(self.settings.ca.as_deref()).map_err(ExchangeOutcome::away)
    }

    fn connect_smtp(&self) -> Result<SmtpClient, ExchangeOutcome> {
        let mut tls = (None, None);
        match self.smtp_tls {
            SmtpSecurity::None => {
                let instead = "\"smtp_starttls\": true";
                connection::check_plain_allowed(&self.smtp, self.settings.insecure, instead)
                    .map_err(ExchangeOutcome::away)?;
            }
            SmtpSecurity::Starttls => tls.1 = Some(self.make_tls_client()?),
            SmtpSecurity::Tls => tls.0 = Some(self.make_tls_client()?),
        }
        let password = self.read_password()?;
        let server = SmtpServer {
            host: &self.smtp,
            tls: tls.0.as_ref(),
            starttls: tls.1.as_ref(),
            user: &self.user,
            password: &password,
        };
        SmtpClient::open(&server, ConnectionTimeouts::default())
    }

    /// Returns the TLS client for the inbox, or `None` if its password may go in plain text.
    fn make_inbox_tls(&self) -> Result<Option<TlsClient>, ExchangeOutcome> {
        if self.inbox_tls {
            return self.make_tls_client().map(Some);
        }
        let instead = if self.is_pop { "\"pop3_ssl\": true" } else { "\"imap_ssl\": true" };
        connection::check_plain_allowed(&self.inbox, self.settings.insecure, instead)
            .map_err(ExchangeOutcome::away)?;
        Ok(None)
    }

    fn connect_imap(&self) -> Result<ImapClient, ExchangeOutcome> {
        self.connect_imap_folder(&self.folder)
    }

    fn connect_imap_folder(&self, folder: &str) -> Result<ImapClient, ExchangeOutcome> {
        let (tls, password) = (self.make_inbox_tls()?, self.read_password()?);
        let login = (self.user.as_str(), password.as_str());
        ImapClient::open(&self.inbox, tls.as_ref(), login, folder, ConnectionTimeouts::default())
            .map_err(ExchangeOutcome::away)
    }

    /// Returns true if the copy of a mail came, so that its recipient was served.
    fn has_self_copy(&self, message: &[u8]) -> Result<bool, ExchangeOutcome> {
        let Some(wanted) = mime::parse_copy_recipient(message) else { return Ok(false) };
        let mut folders = vec!["INBOX", &self.folder];
        folders.dedup_by(|a, b| a.eq_ignore_ascii_case(b));
        for look in 0..LOOKS {
            if look > 0 {
                std::thread::sleep(Duration::from_secs(1));
            }
            for folder in &folders {
                if self.has_self_copy_in(folder, &wanted)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn has_self_copy_in(
        &self,
        folder: &str,
        wanted: &(String, String),
    ) -> Result<bool, ExchangeOutcome> {
        let mut imap = self.connect_imap_folder(folder)?;
        for uid in imap.search_message_id(&wanted.0)?.into_iter().rev().take(FEW) {
            let mut mail = Vec::new();
            match imap.fetch_mail(uid, MAX_MAIL, &mut mail)? {
                MailFetchResult::Whole
                    if mime::parse_copy_recipient(&mail).as_ref() == Some(wanted) =>
                {
                    return Ok(true);
                }
                MailFetchResult::Whole | MailFetchResult::Missing => {}
                MailFetchResult::TooLarge(_) => imap = self.connect_imap_folder(folder)?,
                MailFetchResult::Refused(why) => return Err(ExchangeOutcome::away(why)),
            }
        }
        imap.quit();
        Ok(false)
    }

    /// Returns true if a mail is only the copy of one that I sent to others.
    fn is_own_copy(&self, raw: &[u8], arrived: &InboundMail) -> bool {
        let reading = block::read(&text::parse(&arrived.bytes));
        let key = super::find_mailbox(&self.settings).and_then(|mailbox| public_key(&mailbox));
        if key.is_none() || key.as_ref() != reading.signer() {
            return false;
        }
        let own = [self.settings.me.as_str(), self.sender_address(), &self.user];
        match mime::parse_copy_recipient(raw) {
            Some((_, to)) => !own.iter().any(|me| mime::is_copy_for(&to, me)),
            None => !reading.to.iter().chain(&reading.cc).any(|to| {
                let to = names::bare_address(to);
                own.iter().any(|me| to.eq_ignore_ascii_case(me))
            }),
        }
    }

    fn connect_pop(&self) -> Result<PopClient, ExchangeOutcome> {
        let (tls, password) = (self.make_inbox_tls()?, self.read_password()?);
        let login = (self.user.as_str(), password.as_str());
        PopClient::open(&self.inbox, tls.as_ref(), login, ConnectionTimeouts::default())
            .map_err(ExchangeOutcome::away)
    }

    /// Returns a prefix that distinguishes ids of this account and folder from those of others.
    fn account_scope(&self) -> String {
        let folder = if self.is_pop { "" } else { &self.folder };
        let digest = encode_hex(&Sha256::digest(format!("{}|{}|{folder}", self.inbox, self.user)));
        digest.get(..12).unwrap_or_default().to_owned()
    }

    /// Builds the item of a fetched mail, with its attachments in a folder.
    fn build_item(
        &self,
        brought: FetchedMailMeta,
        bytes: &[u8],
        folder: &Path,
    ) -> io::Result<FetchedItem> {
        let arrived = match brought.size {
            Some(size) => mime::describe_large_mail(bytes, size, MAX_MAIL, folder)?,
            None => mime::mail_to_letter(bytes, folder)?,
        };
        if self.is_own_copy(bytes, &arrived) {
            // The reference program should not show this mail either.
            return Ok(FetchedItem {
                ack_id: Some(brought.seen),
                ..FetchedItem::from_known_id(brought.id)
            });
        }
        if brought.maybe && self.is_filed_by_reference(&arrived) {
            return Ok(FetchedItem::from_known_id(brought.id));
        }
        Ok(FetchedItem { id: brought.id, arrived, ack_id: Some(brought.seen) })
    }

    /// Returns true if the reference has filed a letter: a letter with the same content lies in the inbox of a day near
    /// to it. Its list of ids alone says only that some account had a mail of this number.
    fn is_filed_by_reference(&self, arrived: &InboundMail) -> bool {
        let Some(mailbox) = super::find_mailbox(&self.settings) else { return false };
        let day = arrived.day.as_deref().and_then(|day| day.parse::<jiff::civil::Date>().ok());
        let Some(day) = day else { return false };
        let print = mail_content_key(&arrived.bytes);
        (-1..=1).any(|n| {
            let Ok(day) = day.checked_add(jiff::Span::new().days(n)) else { return false };
            let files = std::fs::read_dir(mailbox.join(day.to_string()).join("inbox"));
            let files = files.into_iter().flatten().flatten().map(|entry| entry.path());
            let mut texts = files.filter(|path| path.extension().is_some_and(|e| e == "txt"));
            texts.any(|path| {
                fs::read_small_file(&path, MAX_MAIL)
                    .is_ok_and(|bytes| self::mail_content_key(&bytes) == print)
            })
        })
    }
}

/// Returns the fields that identify two files of one mail as the same.
fn mail_content_key(bytes: &[u8]) -> (Option<i64>, String, String) {
    let letter = text::parse(bytes);
    let from = names::bare_address(letter.get("From").unwrap_or_default());
    let at = mime::parse_mail_date(letter.get("Date").unwrap_or_default());
    (at.map(Timestamp::millis), from, letter.body.trim().to_owned())
}

impl LinkEngine for MailEngine {
    fn describe_engine(&self) -> String {
        let inbox = if self.is_pop { "pop3" } else { "imap" };
        format!("mail by smtp://{} and {inbox}://{}", self.smtp, self.inbox)
    }

    fn rank_address(&self, address: &str) -> Option<u8> {
        let fits = names::is_address(address) && address.contains('@');
        // Of several accounts only the first one sends.
        (fits && super::is_first_part(&self.settings.part)).then_some(3)
    }

    fn encode_parcel(&self, parcel: &OutboundMail) -> Result<Vec<u8>, EncodeError> {
        let from = self.sender_address();
        for address in [from, &parcel.to] {
            let is_bad = |c: char| c.is_whitespace() || c.is_control() || "<>,;\"\\".contains(c);
            if address.is_empty() || address.contains(is_bad) {
                let address = sanitize_line(address);
                return Err(format!("{address} cannot be the address of a mail").into());
            }
        }
        let copy = self.self_copy.then(|| from.to_owned());
        let envelope = SmtpEnvelope { from: from.to_owned(), to: parcel.to.clone(), copy };
        let mut wire = serde_json::to_vec(&envelope).map_err(|e| e.to_string())?;
        wire.push(b'\n');
        wire.extend(mime::compose_mail(parcel, self.self_copy, MAX_MESSAGE)?);
        Ok(wire)
    }

    fn unpack_items(&self, raw: &Path) -> Vec<io::Result<FetchedItem>> {
        let letter = |n, brought, bytes: Vec<u8>| {
            self.build_item(brought, &bytes, &raw.join(format!("{n}.d")))
        };
        fetch_folder::unpack_letters(raw, "eml", letter, |brought: FetchedMailMeta, bytes| {
            FetchedItem {
                id: brought.id,
                arrived: mime::build_unreadable_mail(bytes, fetch_folder::DEADLY),
                ack_id: Some(brought.seen),
            }
        })
    }

    fn find_other_carrier(&self) -> Option<String> {
        super::find_daemon_carrier(&self.settings.file)
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_secs(if private_hosts::is_private_host(&self.inbox.name) { 5 } else { 30 })
    }

    fn is_fetch_destructive(&self) -> bool {
        false
    }

    fn open_session(&self) -> Box<dyn LinkSession + '_> {
        Box::new(MailSession::new(self))
    }

    fn can_keep_polling(&self) -> bool {
        true
    }

    fn has_fetched(&self, raw: &Path) -> bool {
        fetch_folder::has_letters(raw)
    }

    fn check_connection(&self) -> Vec<String> {
        let smtp = self.connect_smtp().map(SmtpClient::quit);
        let inbox = if self.is_pop {
            self.connect_pop().map(PopClient::quit)
        } else {
            self.connect_imap().map(ImapClient::quit)
        };
        let why = |what: &str, result: Result<(), ExchangeOutcome>| {
            result.err().map(|outcome| format!("{what}: {}", outcome.reason().unwrap_or_default()))
        };
        let smtp = why(&format!("smtp://{}", self.smtp), smtp);
        smtp.into_iter().chain(why(&format!("the inbox at {}", self.inbox), inbox)).collect()
    }

    fn load_secrets(&self) -> Vec<Zeroizing<String>> {
        let Ok(password) = self.read_password() else { return Vec::new() };
        vec![smtp::encode_auth_plain(&self.user, &password), password]
    }
}

#[cfg(test)]
mod tests;
