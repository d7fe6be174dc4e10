//! AgentAZAll's folders on an FTP server (docs/links/ftp.md).
//!
//! The server has the mailboxes of all agents, as folders, and one account for all of them.

mod client;
mod fetch;
mod history;
mod send;

use std::collections::HashSet;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::tz::TimeZone;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use self::client::{FtpClient, FtpError, FtpLogin};
use self::fetch::{FtpFetch, FtpMessageMeta};
use self::send::{FtpKnownFolders, FtpSendError, FtpUpload, FtpUploadHeader};
use super::broken_fetches::BrokenFetches;
use super::fetch_folder;
use super::letter::{build_unreadable_letter, is_file_stem, make_usable_name};
use super::{is_enabled, port_member, seen_ids, text_member};
use crate::link::connection::{self, ConnectionTimeouts, HostPort, TlsClient};
use crate::link::engine::{
    EncodeError, EngineSettings, ExchangeOutcome, FetchedItem, LinkEngine, LinkSession,
};
use crate::link::private_hosts;
use crate::model::{Timestamp, encode_hex, sanitize_line};
use crate::store::agentazall::{date, names, text};
use crate::store::{InboundMail, OutboundMail, fs};

/// The limit on the size of a message with its attachments.
const MAX_MESSAGE: u64 = 256 << 20;

/// An FTP server.
#[derive(Debug)]
pub struct FtpEngine {
    settings: EngineSettings,
    host: HostPort,
    user: String,
    is_tls: bool,
}

impl FtpEngine {
    /// Returns the engine for a part of a configuration.
    pub fn open(settings: &EngineSettings) -> Self {
        let part = super::read_part(settings);
        let name = text_member(&part, "host", "127.0.0.1").trim().to_owned();
        Self {
            settings: settings.clone(),
            host: HostPort { name, port: port_member(&part, "port", 2121) },
            user: text_member(&part, "user", "agentoftp").to_owned(),
            is_tls: is_enabled(&part, "ftp_ssl"),
        }
    }

    fn read_password(&self) -> Result<Zeroizing<String>, String> {
        super::read_password(&self.settings, "agentoftp_pass")
    }

    /// Connects and logs in.
    fn connect_client(&self) -> Result<FtpClient, ExchangeOutcome> {
        if !self.is_tls {
            connection::check_plain_allowed(
                &self.host,
                self.settings.insecure,
                "\"ftp_ssl\": true",
            )
            .map_err(ExchangeOutcome::away)?;
        }
        let password = self.read_password().map_err(ExchangeOutcome::away)?;
        let tls = self.is_tls.then(|| TlsClient::new(self.settings.ca.as_deref())).transpose();
        let login = FtpLogin {
            user: &self.user,
            password: &password,
            tls: tls.map_err(ExchangeOutcome::away)?,
        };
        FtpClient::open(&self.host, &login, ConnectionTimeouts::default())
            .map_err(|fault| self.classify_error(&fault).before_message())
    }

    /// Returns the outcome that an error means for a message.
    fn classify_error(&self, fault: &FtpError) -> ExchangeOutcome {
        let why = fault.to_string();
        match fault.code() {
            Some(530 | 532 | 331 | 332) => {
                let file = self.settings.file.display();
                ExchangeOutcome::away(format!(
                    "the server refuses the user or the password in {file} ({why})"
                ))
            }
            None | Some(421 | 425 | 426) => ExchangeOutcome::away(why),
            // The recipient's folder is full or cannot be written now; others may work.
            Some(_) => ExchangeOutcome::Later { why, after: None },
        }
    }
}

impl LinkEngine for FtpEngine {
    fn describe_engine(&self) -> String {
        let scheme = if self.is_tls { "ftps" } else { "ftp" };
        format!("{scheme}://{}", self.host)
    }

    fn rank_address(&self, address: &str) -> Option<u8> {
        let fits = names::is_mailbox_name(address) && address.contains('@');
        // Of several servers only the first one is used for sending.
        (fits && super::is_first_part(&self.settings.part)).then_some(2)
    }

    fn encode_parcel(&self, parcel: &OutboundMail) -> Result<Vec<u8>, EncodeError> {
        for (name, what) in [(&parcel.to, "recipient"), (&self.settings.me, "agent_name")] {
            if !names::is_mailbox_name(name) {
                let name = sanitize_line(name);
                return Err(format!("the {what} {name} cannot be the name of a folder").into());
            }
        }
        let letter = text::parse(&parcel.bytes);
        let day = letter.get("Date").and_then(|date| date.get(..10)).filter(|d| date::is_day(d));
        let today = || date::format_local_day(Timestamp::now(), &TimeZone::system());
        let stem = if is_file_stem(&parcel.message_id) {
            parcel.message_id.clone()
        } else {
            encode_hex(&Sha256::digest(&parcel.message_id)).get(..12).unwrap_or_default().to_owned()
        };
        let mut parts = Vec::new();
        let mut total = parcel.bytes.len() as u64;
        for (name, path) in &parcel.parts {
            let length =
                std::fs::metadata(path).map_err(|e| super::attachment_error(name, &e))?.len();
            total += length;
            parts.push((name.clone(), length));
        }
        if total > MAX_MESSAGE {
            return Err(format!(
                "it has {total} bytes with its attachments; a link by FTP carries at most \
                 {MAX_MESSAGE}"
            )
            .into());
        }
        let head = FtpUploadHeader {
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
            let why = |e: io::Error| super::attachment_error(name, &e);
            let file = fs::open_regular(path).map_err(why)?;
            let copied = file.take(*length).read_to_end(&mut wire).map_err(why)?;
            if copied as u64 != *length {
                // Its program may not be done with it.
                let name = sanitize_line(name);
                let why = format!("the attachment {name} became shorter while it was sent");
                return Err(EncodeError::Passing(io::Error::other(why)));
            }
        }
        Ok(wire)
    }

    fn unpack_items(&self, raw: &Path) -> Vec<io::Result<FetchedItem>> {
        let unread = |brought: FtpMessageMeta, bytes: &[u8], why: &str| {
            let [_, name] = brought.names;
            let arrived = build_unreadable_letter(bytes, why, name, &brought.day);
            let acknowledge = Some(brought.seen).filter(|seen| !seen.is_empty());
            FetchedItem { id: brought.id, arrived, ack_id: acknowledge }
        };
        let letter = |n: usize, mut brought: FtpMessageMeta, bytes: Vec<u8>| {
            if let Some(why) = brought.fault.take() {
                return Ok(unread(brought, &bytes, &why));
            }
            let mut parts: Vec<(String, PathBuf)> = Vec::new();
            for (k, name) in brought.parts.iter().enumerate() {
                let fits = names::is_attachment_name(name) && !parts.iter().any(|(n, _)| n == name);
                let name = if fits { name.clone() } else { make_usable_name(name, k, &parts) };
                parts.push((name, raw.join(n.to_string()).join(k.to_string())));
            }
            let [name, other_name] = brought.names;
            let name =
                Some(name).filter(|name| is_file_stem(name)).unwrap_or_else(|| other_name.clone());
            let day = Some(brought.day);
            let keys = Vec::new();
            let arrived = InboundMail { name, other_name, day, bytes, parts, keys };
            Ok(FetchedItem { id: brought.id, arrived, ack_id: Some(brought.seen) })
        };
        fetch_folder::unpack_letters(raw, "txt", letter, |brought, bytes| {
            unread(brought, bytes, fetch_folder::DEADLY)
        })
    }

    fn find_other_carrier(&self) -> Option<String> {
        super::find_daemon_carrier(&self.settings.file)
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_secs(if private_hosts::is_private_host(&self.host.name) { 5 } else { 20 })
    }

    fn is_fetch_destructive(&self) -> bool {
        false
    }

    fn open_session(&self) -> Box<dyn LinkSession + '_> {
        Box::new(FtpSession { engine: self, client: None, folders: FtpKnownFolders::default() })
    }

    fn can_keep_polling(&self) -> bool {
        true
    }

    fn has_fetched(&self, raw: &Path) -> bool {
        fetch_folder::has_letters(raw)
    }

    fn check_connection(&self) -> Vec<String> {
        match self.connect_client() {
            Ok(client) => {
                client.quit();
                Vec::new()
            }
            Err(outcome) => outcome.reason().map(str::to_owned).into_iter().collect(),
        }
    }

    fn load_secrets(&self) -> Vec<Zeroizing<String>> {
        self.read_password().into_iter().collect()
    }
}

/// The use of a server by a carrier.
struct FtpSession<'a> {
    engine: &'a FtpEngine,
    /// The connection of the last exchange.
    client: Option<FtpClient>,
    folders: FtpKnownFolders,
}

impl FtpSession<'_> {
    /// Delivers a message on this connection, which is kept unless something failed.
    fn deliver(
        &mut self,
        mut client: FtpClient,
        waiting: &mut FtpUpload,
    ) -> Result<(), FtpSendError> {
        client.begin_exchange();
        let (me, folders) = (&self.engine.settings.me, &mut self.folders);
        let delivered = send::deliver_upload(&mut client, waiting, me, folders);
        match delivered {
            Ok(()) | Err(FtpSendError::Refused(_)) => self.client = Some(client),
            Err(FtpSendError::Fault(_)) => {}
        }
        delivered
    }

    /// Returns the connection of the last exchange if the server still answers there, or a new one.
    fn take_client(&mut self) -> Result<FtpClient, ExchangeOutcome> {
        if let Some(mut client) = self.client.take() {
            client.begin_exchange();
            if client.is_alive() {
                return Ok(client);
            }
        }
        self.engine.connect_client()
    }
}

impl LinkSession for FtpSession<'_> {
    fn send(&mut self, wire: &Path) -> ExchangeOutcome {
        let waiting = fs::open_regular(wire).and_then(FtpUpload::open);
        let mut waiting = match waiting {
            Ok(waiting) => waiting,
            Err(e) => return ExchangeOutcome::away(e),
        };
        if let Some(client) = self.client.take()
            && self.deliver(client, &mut waiting).is_ok()
        {
            return ExchangeOutcome::Done;
        }
        // The connection may have been dead, or a folder gone. The next try repeats no finished step.
        self.disconnect();
        let client = match self.engine.connect_client() {
            Ok(client) => client,
            Err(outcome) => return outcome,
        };
        match self.deliver(client, &mut waiting) {
            Ok(()) => ExchangeOutcome::Done,
            Err(FtpSendError::Refused(why)) => ExchangeOutcome::Refused { why },
            Err(FtpSendError::Fault(fault)) => self.engine.classify_error(&fault),
        }
    }

    fn fetch(&mut self, raw: &Path, known: &HashSet<String>) -> ExchangeOutcome {
        let settings = &self.engine.settings;
        let mut known = known.clone();
        if super::is_first_part(&settings.part) {
            match seen_ids::read_reference_ids(settings) {
                Ok(ids) => known.extend(ids),
                Err(e) => return ExchangeOutcome::away(e),
            }
        }
        // The time to connect counts.
        let broken = BrokenFetches::read(raw);
        let client = match self.take_client() {
            Ok(client) => client,
            Err(outcome) => return outcome,
        };
        let fetch = FtpFetch::new(client, broken, raw, &known, &settings.me);
        let (client, outcome) = fetch.run(|fault| self.engine.classify_error(fault));
        self.client = client;
        outcome
    }

    fn acknowledge(&mut self, ids: &[String]) -> ExchangeOutcome {
        seen_ids::report_filed(&self.engine.settings, ids)
    }

    fn disconnect(&mut self) {
        self.folders = FtpKnownFolders::default();
        if let Some(client) = self.client.take() {
            client.quit();
        }
    }
}

#[cfg(test)]
mod tests;
