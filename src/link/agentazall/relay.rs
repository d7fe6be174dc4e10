//! The relay of `AgentAZAll` over HTTP, `AgentTalk` (docs/links/agenttalk.md).
//!
//! It takes one message for each recipient. It hands out all waiting messages at once and deletes them, so an answer is
//! on disk before it is parsed.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::letter::{self, AttachmentFaults, MAX_PARTS, make_usable_name};
use crate::link::engine::{
    EncodeError, EngineSettings, ExchangeOutcome, FetchedItem, LinkEngine, LinkSession,
};
use crate::link::http::{HttpAnswer, HttpClient, HttpError};
use crate::link::json_lists::{self, SplitList};
use crate::link::{disk_space, job, secret};
use crate::mime::compose::clean_header_value;
use crate::model::{Timestamp, encode_hex, sanitize_line};
use crate::store::agentazall::{date, text};
use crate::store::{OutboundMail, fs};

/// The subject of a message that has none, as other readers of relays show it.
const NO_SUBJECT: &str = "(AgentTalk message)";
/// The limit on the length of an id by which a relay's messages are known.
const LONGEST_ID: usize = 200;
/// The file that a fetch writes.
const ANSWER: &str = "messages";
/// The limit on the size of an answer: at most 5 MiB wait at a public relay.
const MAX_ANSWER: u64 = if cfg!(test) { 4 << 20 } else { 256 << 20 };
/// The number of messages of an answer that are unpacked; the 5 MiB of a public relay hold fewer.
const MAX_MESSAGES: usize = if cfg!(test) { 1000 } else { 50_000 };
/// The reason given for an answer from some other server.
const NO_RELAY: &str = "its answer is not that of a relay";
/// The address of this machine's relay, which is used if the configuration has no address.
const LOCAL: &str = "http://127.0.0.1:8484";

/// Base64 as other programs write and read it.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A relay.
#[derive(Debug)]
pub struct RelayEngine {
    settings: EngineSettings,
    server: String,
}

/// The server and the token.
struct RelayLogin {
    http: HttpClient,
    token: Zeroizing<String>,
}

impl RelayEngine {
    /// Opens the relay that a part of a configuration describes.
    pub fn open(settings: &EngineSettings) -> Self {
        let config = super::read_config(&settings.file);
        let server = config.and_then(|c| Some(c.pointer(&settings.part)?.get("server")?.clone()));
        let server = server.and_then(|s| s.as_str().map(str::to_owned));
        Self {
            settings: settings.clone(),
            server: normalize_address(server.as_deref().unwrap_or_default()),
        }
    }

    /// Reads the address and the token.
    fn read_credentials(&self) -> Result<(String, Zeroizing<String>), String> {
        let part = super::read_secret_part(&self.settings)?;
        let get = |key| part.get(key).and_then(Value::as_str).unwrap_or_default();
        let token = Zeroizing::new(get("token").trim().to_owned());
        if token.is_empty() || token.chars().any(char::is_control) {
            let file = self.settings.file.display();
            return Err(format!("{file} has no token for the relay; run `agentazall register`"));
        }
        Ok((normalize_address(get("server")), token))
    }

    /// Reads the token and makes an HTTP client.
    fn log_in(&self) -> Result<RelayLogin, String> {
        let (server, token) = self.read_credentials()?;
        let http = HttpClient::new(&server, self.settings.insecure, self.settings.ca.as_deref())?;
        Ok(RelayLogin { http, token })
    }
}

/// Returns the address of a relay as a URL.
fn normalize_address(server: &str) -> String {
    match server.trim() {
        "" => LOCAL.to_owned(),
        server if server.contains("://") => server.trim_end_matches('/').to_owned(),
        server => format!("https://{}", server.trim_end_matches('/')),
    }
}

impl LinkEngine for RelayEngine {
    fn describe_engine(&self) -> String {
        format!("the relay {}", sanitize_line(&secret::strip_login(&self.server)))
    }

    fn rank_address(&self, address: &str) -> Option<u8> {
        let is_bare = !address.is_empty() && !address.contains('@');
        let rank = if address.ends_with(".agenttalk") { Some(4) } else { is_bare.then_some(2) };
        // Of several relays the first one sends.
        let is_first = super::is_first_part(&self.settings.part);
        rank.map(|rank| rank + u8::from(is_first))
    }

    fn encode_parcel(&self, parcel: &OutboundMail) -> Result<Vec<u8>, EncodeError> {
        let letter = text::parse(&parcel.bytes);
        let mut payload = Map::new();
        let mut put = |key: &str, value: Value| drop(payload.insert(key.to_owned(), value));
        put("subject", json!(letter.get("Subject").unwrap_or_default()));
        put("body", json!(letter.body));
        put("from", json!(letter.get("From").unwrap_or_default()));
        let mut attachments = Vec::new();
        for (name, path) in &parcel.parts {
            let bytes = std::fs::read(path).map_err(|e| super::attachment_error(name, &e))?;
            attachments.push(json!({"name": name, "data": STANDARD.encode(bytes)}));
        }
        if !attachments.is_empty() {
            put("attachments", Value::Array(attachments));
        }
        let payload = Value::Object(payload).to_string();
        Ok(json!({"to": parcel.to, "payload": payload}).to_string().into_bytes())
    }

    fn unpack_items(&self, raw: &Path) -> Vec<io::Result<FetchedItem>> {
        let bytes = match read_fetched(raw) {
            Ok(bytes) => bytes,
            Err(e) => return vec![Err(e)],
        };
        let text = String::from_utf8_lossy(&bytes);
        let list = split_messages(&text).unwrap_or_default();
        let all = list.elements.iter().enumerate();
        let folder = |n: usize| raw.join(format!("parts-{n}"));
        let mut items: Vec<_> =
            all.map(|(n, message)| self.build_item(message, &folder(n))).collect();
        if list.more > 0 {
            let why = format!(
                "it is {} more messages of an answer, of which at most {MAX_MESSAGES} are read",
                list.more
            );
            items.push(Ok(build_unreadable_item(list.rest, &why)));
        }
        items
    }

    fn find_other_carrier(&self) -> Option<String> {
        super::find_daemon_carrier(&self.settings.file)
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn is_fetch_destructive(&self) -> bool {
        true
    }

    fn open_session(&self) -> Box<dyn LinkSession + '_> {
        Box::new(RelaySession { engine: self, login: None })
    }

    fn can_keep_polling(&self) -> bool {
        true
    }

    fn has_fetched(&self, raw: &Path) -> bool {
        // An answer that cannot be read is not gone.
        read_fetched(raw).map_or(true, |bytes| {
            let text = String::from_utf8_lossy(&bytes);
            let list = find_messages(&text).unwrap_or_default();
            let first = list.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            !first.is_empty() && !first.starts_with(']')
        })
    }

    fn check_connection(&self) -> Vec<String> {
        let login = match self.log_in() {
            Ok(login) => login,
            Err(why) => return vec![why],
        };
        // A good token gets the answer that a recipient is missing, a bad one that it is bad. Nothing is sent.
        match login.http.post_json("/send", Some(&login.token), b"{}") {
            Ok(answer) if answer.status == 400 => Vec::new(),
            Ok(answer) => vec![describe_refusal(&answer)],
            Err(e) => vec![e.to_string()],
        }
    }

    fn load_secrets(&self) -> Vec<Zeroizing<String>> {
        self.read_credentials().into_iter().map(|(_, token)| token).collect()
    }
}

/// The use of a relay by a carrier.
struct RelaySession<'a> {
    engine: &'a RelayEngine,
    /// The login, which counts as long as exchanges follow each other.
    login: Option<RelayLogin>,
}

impl RelaySession<'_> {
    fn login(&mut self) -> Result<&RelayLogin, String> {
        match &mut self.login {
            Some(login) => Ok(login),
            none => Ok(none.insert(self.engine.log_in()?)),
        }
    }
}

impl LinkSession for RelaySession<'_> {
    fn send(&mut self, wire: &Path) -> ExchangeOutcome {
        let (login, wire) = match (self.login(), std::fs::read(wire)) {
            (Ok(login), Ok(wire)) => (login, wire),
            (Err(why), _) => return ExchangeOutcome::away(why),
            (_, Err(e)) => return ExchangeOutcome::away(e),
        };
        match login.http.post_json("/send", Some(&login.token), &wire) {
            Ok(answer) if answer.is_success() && !is_sent_answer(&answer) => {
                ExchangeOutcome::Unknown { why: NO_RELAY.to_owned() }
            }
            other => classify_answer(other),
        }
    }

    fn fetch(&mut self, raw: &Path, _: &HashSet<String>) -> ExchangeOutcome {
        let login = match self.login() {
            Ok(login) => login,
            Err(why) => return ExchangeOutcome::away(why),
        };
        if let Err(e) = job::note_asked(raw) {
            return ExchangeOutcome::away(e);
        }
        let token = Some(login.token.as_str());
        let got = login.http.get_to_file("/messages", token, &raw.join(ANSWER), MAX_ANSWER);
        match got {
            Ok(answer) if answer.is_success() => classify_fetched(raw),
            // A refused request leaves the messages at the relay.
            Ok(answer) if answer.status < 500 => {
                ExchangeOutcome::Away { why: describe_refusal(&answer), after: answer.retry_after }
            }
            Ok(answer) => ExchangeOutcome::Unknown { why: describe_refusal(&answer) },
            Err(e) => e.into(),
        }
    }

    fn acknowledge(&mut self, _: &[String]) -> ExchangeOutcome {
        ExchangeOutcome::Done
    }

    fn disconnect(&mut self) {
        self.login = None;
    }
}

/// Returns the outcome that an answer to a message means.
fn classify_answer(answer: Result<HttpAnswer, HttpError>) -> ExchangeOutcome {
    match answer {
        Ok(answer) if answer.is_success() => ExchangeOutcome::Done,
        Ok(answer) => {
            let (why, after) = (describe_refusal(&answer), answer.retry_after);
            let not_relay = format!("{NO_RELAY} ({why})");
            match answer.status {
                400 | 404 | 413 if is_relay_refusal(&answer) => ExchangeOutcome::Refused { why },
                400 | 404 => ExchangeOutcome::Away { why: not_relay, after },
                // Some server in between refuses this size; other letters may be smaller.
                413 => ExchangeOutcome::Later { why: not_relay, after },
                // The recipient's mailbox is full; others may have room.
                507 => ExchangeOutcome::Later { why, after },
                500.. => ExchangeOutcome::Unknown { why },
                _ => ExchangeOutcome::Away { why, after },
            }
        }
        Err(e) => e.into(),
    }
}

/// Returns true if a refusal comes from a relay itself.
fn is_relay_refusal(answer: &HttpAnswer) -> bool {
    let json: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    json.get("error").is_some_and(Value::is_string)
}

fn describe_refusal(answer: &HttpAnswer) -> String {
    let words = answer.describe_error(&["error"]);
    match answer.status {
        401 => format!("the relay refuses the token ({words}); run `agentazall register` again"),
        _ => words,
    }
}

/// Reads what a fetch wrote to a folder.
fn read_fetched(raw: &Path) -> io::Result<Vec<u8>> {
    fs::empty_if_absent(std::fs::read(raw.join(ANSWER)))
}

/// Returns the outcome that a fetched answer means. The relay has deleted what an incomplete one lacks.
fn classify_fetched(raw: &Path) -> ExchangeOutcome {
    let bytes = read_fetched(raw).unwrap_or_default();
    let why = match split_messages(&String::from_utf8_lossy(&bytes)) {
        Some(list) if list.is_ended => return ExchangeOutcome::Done,
        Some(_) => "its list of messages was cut off",
        None => NO_RELAY,
    };
    ExchangeOutcome::Unknown { why: why.to_owned() }
}

/// Returns true if a successful answer is that of a relay which took the message.
fn is_sent_answer(answer: &HttpAnswer) -> bool {
    let json: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let text = |key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default();
    text("status") == "sent" || !text("message_id").is_empty()
}

/// Returns the list in an answer, from behind its `[` on; `None` if there is none.
fn find_messages(answer: &str) -> Option<&str> {
    let (_, rest) = answer.split_once("\"messages\"")?;
    rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('[')
}

/// Returns the elements of an answer, of any type; `None` if it is no list.
fn split_messages(answer: &str) -> Option<SplitList<'_>> {
    find_messages(answer).map(|list| json_lists::split_elements(list, MAX_MESSAGES))
}

impl RelayEngine {
    /// Builds the item of one message, and writes its attachments to a folder.
    fn build_item(&self, whole: &str, folder: &Path) -> io::Result<FetchedItem> {
        let message = match serde_json::from_str::<Value>(whole) {
            Ok(message) if message.is_object() => message,
            Ok(_) => return Ok(build_unreadable_item(whole, "it is not a JSON object")),
            Err(why) => {
                return Ok(build_unreadable_item(whole, &format!("it is not JSON ({why})")));
            }
        };
        let get = |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default();
        let given = clean_header_value(get("id"));
        let key = if given.is_empty() { whole } else { given.as_str() };
        let digest = Sha256::digest(format!("agenttalk|{}|{}|{key}", self.server, get("to")));
        let digest = encode_hex(&digest);
        let hashed = digest.get(..12).unwrap_or_default().to_owned();
        let payload = message.get("payload").cloned().unwrap_or_default();
        let payload = match payload {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let (subject, body, attachments) = parse_payload(&payload);
        let mut faults = AttachmentFaults::default();
        let parts = write_attachments(&attachments, folder, &mut faults)?;
        let lines = vec![
            ("From", get("from").to_owned()),
            ("To", get("to").to_owned()),
            ("Subject", subject),
            ("Date", get("timestamp").to_owned()),
            ("Message-ID", String::new()),
            ("Status", "new".to_owned()),
        ];
        let day = date::parse_date(get("timestamp"), &TimeZone::system()).map(|(time, _)| time);
        let day = day.unwrap_or_else(Timestamp::now);
        let day = date::format_local_day(day, &TimeZone::system());
        let is_short = !given.is_empty() && given.len() <= LONGEST_ID;
        // Ids of a relay may come again with another text.
        let key = if is_short { given } else { hashed.clone() };
        let arrived = letter::build_arrived_letter(lines, body, parts, &faults, hashed, day);
        Ok(FetchedItem { id: key, ack_id: None, arrived })
    }
}

/// Builds the item for something that is no message.
fn build_unreadable_item(came: &str, why: &str) -> FetchedItem {
    let id = encode_hex(&Sha256::digest(came));
    let name = id.get(..12).unwrap_or_default().to_owned();
    let day = date::format_local_day(Timestamp::now(), &TimeZone::system());
    FetchedItem {
        id,
        arrived: letter::build_unreadable_letter(came.as_bytes(), why, name, &day),
        ack_id: None,
    }
}

/// Returns subject, body and attachments of a payload: a JSON object, other JSON, or any text.
fn parse_payload(payload: &str) -> (String, String, Vec<Value>) {
    let plain = |body: String| (NO_SUBJECT.to_owned(), body, Vec::new());
    match serde_json::from_str::<Value>(payload) {
        Ok(Value::Object(mut members)) => {
            let mut text = |key: &str| match members.remove(key) {
                Some(Value::String(text)) => text,
                Some(Value::Null) | None => String::new(),
                Some(other) => other.to_string(),
            };
            let (subject, body) = (text("subject"), text("body"));
            let attachments = match members.remove("attachments") {
                Some(Value::Array(all)) => all,
                _ => Vec::new(),
            };
            let subject = Some(subject).filter(|s| !s.trim().is_empty());
            (subject.unwrap_or_else(|| NO_SUBJECT.to_owned()), body, attachments)
        }
        Ok(Value::String(text)) => plain(text),
        Ok(_) | Err(_) => plain(payload.to_owned()),
    }
}

/// Writes attachments to a folder under usable names. An attachment that cannot be decoded is kept as it came and named
/// in the letter, because the relay has deleted it.
fn write_attachments(
    attachments: &[Value],
    folder: &Path,
    faults: &mut AttachmentFaults,
) -> io::Result<Vec<(String, PathBuf)>> {
    let mut out: Vec<(String, PathBuf)> = Vec::new();
    for (n, attachment) in attachments.iter().enumerate() {
        if n >= MAX_PARTS {
            faults.add_left_out();
            break;
        }
        let get = |key: &str| attachment.get(key).and_then(Value::as_str);
        let name = make_usable_name(get("name").unwrap_or_default(), n, &out);
        let bytes = get("data").and_then(decode_data).unwrap_or_else(|| {
            faults.add_undecoded(&name);
            get("data").map_or_else(|| attachment.to_string(), str::to_owned).into_bytes()
        });
        let path = folder.join(n.to_string());
        fs::make_dirs(folder, 0o700)?;
        disk_space::write_file(&path, &bytes)?;
        out.push((name, path));
    }
    Ok(out)
}

/// Decodes base64 with line breaks, and without its padding.
fn decode_data(data: &str) -> Option<Vec<u8>> {
    LENIENT.decode(data.split_ascii_whitespace().collect::<String>()).ok()
}

#[cfg(test)]
mod tests;
