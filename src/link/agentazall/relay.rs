//! The relay of `AgentAZAll` over HTTP, `AgentTalk` (docs/links/agenttalk.md).
//!
//! It takes one message a recipient and gives out all that waits at once, which is then gone there: so an
//! answer is on disk before it is looked at.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::letter::{self, header_value, usable};
use crate::link::engine::{Engine, Item, Outcome, Settings};
use crate::link::http::{Answer, Http, Trouble};
use crate::link::{elements, job, room, secret};
use crate::model::{Timestamp, hex, one_line};
use crate::store::agentazall::{date, text};
use crate::store::{Parcel, fs};

/// The subject of what has none, as other readers of relays show it.
const NO_SUBJECT: &str = "(AgentTalk message)";
/// What a fetch writes.
const ANSWER: &str = "messages";
/// No answer is larger: what waits at a public relay is 5 MiB at most.
const MAX_ANSWER: u64 = if cfg!(test) { 4 << 20 } else { 256 << 20 };
/// What is said of an answer that another server gave, in between or in its place.
const NO_RELAY: &str = "its answer is not that of a relay";
/// Where the relay of this machine is, if the configuration does not say where.
const LOCAL: &str = "http://127.0.0.1:8484";

/// A relay.
#[derive(Debug)]
pub struct Relay {
    settings: Settings,
    server: String,
}

/// Whom to ask, and by what right.
struct Login {
    http: Http,
    token: Zeroizing<String>,
}

impl Relay {
    /// The relay that a part of a configuration describes.
    pub fn open(settings: &Settings) -> Self {
        let config = super::read(&settings.file);
        let server = config.and_then(|c| Some(c.pointer(&settings.part)?.get("server")?.clone()));
        let server = server.and_then(|s| s.as_str().map(str::to_owned));
        Self { settings: settings.clone(), server: address(server.as_deref().unwrap_or_default()) }
    }

    /// Where it is, and the token.
    fn described(&self) -> Result<(String, Zeroizing<String>), String> {
        let text = secret::read(&self.settings.file).map_err(|e| e.to_string())?;
        let config: Value = serde_json::from_str(&text)
            .map_err(|_| format!("{} is not JSON", self.settings.file.display()))?;
        let part = config.pointer(&self.settings.part).cloned().unwrap_or_default();
        let get = |key| part.get(key).and_then(Value::as_str).unwrap_or_default();
        let token = Zeroizing::new(get("token").trim().to_owned());
        if token.is_empty() || token.chars().any(char::is_control) {
            let file = self.settings.file.display();
            return Err(format!("{file} has no token for the relay; run `agentazall register`"));
        }
        Ok((address(get("server")), token))
    }

    /// Reads what is secret.
    fn login(&self) -> Result<Login, String> {
        let (server, token) = self.described()?;
        let http = Http::new(&server, self.settings.insecure, self.settings.ca.as_deref())?;
        Ok(Login { http, token })
    }
}

/// The address of a relay as the configuration has it.
fn address(server: &str) -> String {
    match server.trim() {
        "" => LOCAL.to_owned(),
        server if server.contains("://") => server.trim_end_matches('/').to_owned(),
        server => format!("https://{}", server.trim_end_matches('/')),
    }
}

impl Engine for Relay {
    fn place(&self) -> String {
        format!("the relay {}", one_line(&self.server))
    }

    fn reaches(&self, address: &str) -> Option<u8> {
        let is_bare = !address.is_empty() && !address.contains('@');
        let rank = if address.ends_with(".agenttalk") { Some(4) } else { is_bare.then_some(2) };
        // Of several relays the first one sends.
        let is_first = super::is_first(&self.settings.part);
        rank.map(|rank| rank + u8::from(is_first))
    }

    fn wire(&self, parcel: &Parcel) -> Result<Vec<u8>, String> {
        let letter = text::parse(&parcel.bytes);
        let mut payload = Map::new();
        let mut put = |key: &str, value: Value| drop(payload.insert(key.to_owned(), value));
        put("subject", json!(letter.get("Subject").unwrap_or_default()));
        put("body", json!(letter.body));
        put("from", json!(letter.get("From").unwrap_or_default()));
        let mut attachments = Vec::new();
        for (name, path) in &parcel.parts {
            let bytes = std::fs::read(path).map_err(|e| letter::cannot_read(name, &e))?;
            attachments.push(json!({"name": name, "data": STANDARD.encode(bytes)}));
        }
        if !attachments.is_empty() {
            put("attachments", Value::Array(attachments));
        }
        let payload = Value::Object(payload).to_string();
        Ok(json!({"to": parcel.to, "payload": payload}).to_string().into_bytes())
    }

    fn unpack(&self, raw: &Path) -> Vec<io::Result<Item>> {
        let bytes = match fs::or_nothing(std::fs::read(raw.join(ANSWER))) {
            Ok(bytes) => bytes,
            Err(e) => return vec![Err(e)],
        };
        let text = String::from_utf8_lossy(&bytes);
        let all = messages(&text).unwrap_or_default().into_iter().enumerate();
        let folder = |n: usize| raw.join(format!("parts-{n}"));
        all.map(|(n, message)| self.item(message, &folder(n))).collect()
    }

    fn other_carrier(&self) -> Option<String> {
        super::other_carrier(&self.settings.file)
    }

    fn poll(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn destroys(&self) -> bool {
        true
    }

    fn send(&self, wire: &Path) -> Outcome {
        let (login, wire) = match (self.login(), std::fs::read(wire)) {
            (Ok(login), Ok(wire)) => (login, wire),
            (Err(why), _) => return Outcome::away(why),
            (_, Err(e)) => return Outcome::away(e),
        };
        match login.http.post("/send", Some(&login.token), &wire) {
            Ok(answer) if answer.is_good() && !says_sent(&answer) => {
                Outcome::Unknown { why: NO_RELAY.to_owned() }
            }
            other => outcome(other),
        }
    }

    fn fetch(&self, raw: &Path, _: &HashSet<String>) -> Outcome {
        let login = match self.login() {
            Ok(login) => login,
            Err(why) => return Outcome::away(why),
        };
        if let Err(e) = job::note_asked(raw) {
            return Outcome::away(e);
        }
        let token = Some(login.token.as_str());
        let got = login.http.get_into("/messages", token, &raw.join(ANSWER), MAX_ANSWER);
        match got {
            // What was refused is still there.
            Ok(answer) if !answer.is_good() && answer.status < 500 => {
                Outcome::Away { why: refusal(&answer), after: answer.after }
            }
            Ok(_) if !is_list(&raw.join(ANSWER)) => Outcome::Unknown { why: NO_RELAY.to_owned() },
            other => outcome(other),
        }
    }

    fn stays(&self) -> bool {
        true
    }

    fn has_brought(&self, raw: &Path) -> bool {
        !self.unpack(raw).is_empty()
    }

    fn acknowledge(&self, _: &[String]) -> Outcome {
        Outcome::Done
    }

    fn check(&self) -> Vec<String> {
        let login = match self.login() {
            Ok(login) => login,
            Err(why) => return vec![why],
        };
        // A good token is told that nobody is named, a bad one that it is bad; nothing is done.
        match login.http.post("/send", Some(&login.token), b"{}") {
            Ok(answer) if answer.status == 400 => Vec::new(),
            Ok(answer) => vec![refusal(&answer)],
            Err(e) => vec![e.to_string()],
        }
    }

    fn secrets(&self) -> Vec<Zeroizing<String>> {
        self.described().into_iter().map(|(_, token)| token).collect()
    }
}

/// What an answer to a message means.
fn outcome(answer: Result<Answer, Trouble>) -> Outcome {
    match answer {
        Ok(answer) if answer.is_good() => Outcome::Done,
        Ok(answer) => {
            let (why, after) = (refusal(&answer), answer.after);
            match answer.status {
                400 | 404 | 413 => Outcome::Refused { why },
                // The recipient has no room; others may have.
                507 => Outcome::Later { why, after },
                500.. => Outcome::Unknown { why },
                _ => Outcome::Away { why, after },
            }
        }
        Err(Trouble::NotAsked(why)) => Outcome::away(why),
        Err(Trouble::Lost(why)) => Outcome::Unknown { why },
    }
}

fn refusal(answer: &Answer) -> String {
    let words = answer.words(&["error"]);
    match answer.status {
        401 => format!("the relay refuses the token ({words}); run `agentazall register` again"),
        _ => words,
    }
}

/// Whether a file holds an answer with a list of messages.
fn is_list(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| messages(&String::from_utf8_lossy(&bytes)).is_some())
}

/// Whether an answer of success is one of a relay.
fn says_sent(answer: &Answer) -> bool {
    let json: Option<Value> = serde_json::from_slice(&answer.body).ok();
    json.is_some_and(|json| json.get("status").or(json.get("message_id")).is_some())
}

/// The texts of what an answer lists, whatever they are; the last one of an answer that was cut off is not whole.
/// `None` if it is no list.
fn messages(answer: &str) -> Option<Vec<&str>> {
    let (_, rest) = answer.split_once("\"messages\"")?;
    let list = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('[')?;
    Some(elements::split(list).0)
}

impl Relay {
    /// One message; its attachments go to a folder.
    fn item(&self, whole: &str, folder: &Path) -> io::Result<Item> {
        let message = match serde_json::from_str::<Value>(whole) {
            Ok(message) if message.is_object() => message,
            Ok(_) => return Ok(unreadable(whole, "it is not a JSON object")),
            Err(why) => return Ok(unreadable(whole, &format!("it is not JSON ({why})"))),
        };
        let get = |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default();
        let given = header_value(get("id"));
        let key = if given.is_empty() { whole } else { given.as_str() };
        let digest = Sha256::digest(format!("agenttalk|{}|{}|{key}", self.server, get("to")));
        let digest = hex(&digest);
        let hashed = digest.get(..12).unwrap_or_default().to_owned();
        let payload = message.get("payload").cloned().unwrap_or_default();
        let payload = match payload {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let (subject, body, attachments) = take_apart(&payload);
        let parts = parts(&attachments, folder)?;
        let id = if given.is_empty() { hashed.clone() } else { given.clone() };
        let lines = vec![
            ("From", get("from").to_owned()),
            ("To", get("to").to_owned()),
            ("Subject", subject),
            ("Date", get("timestamp").to_owned()),
            ("Message-ID", id.clone()),
            ("Status", "new".to_owned()),
        ];
        let day = date::parse_date(get("timestamp"), &TimeZone::system()).map(|(time, _)| time);
        let day = day.unwrap_or_else(Timestamp::now);
        let day = date::local_day(day, &TimeZone::system());
        let key = key_of(&id, &hashed);
        let arrived = letter::arrived(lines, &body, parts, hashed, day);
        Ok(Item { id: key, acknowledge: None, arrived })
    }
}

/// Makes the file for something that is no message.
fn unreadable(came: &str, why: &str) -> Item {
    let id = hex(&Sha256::digest(came));
    let name = id.get(..12).unwrap_or_default().to_owned();
    let day = date::local_day(Timestamp::now(), &TimeZone::system());
    Item { id, arrived: letter::unreadable(came.as_bytes(), why, name, &day), acknowledge: None }
}

/// What tells a message from all others: ids of a relay may come again with another text.
fn key_of(id: &str, hashed: &str) -> String {
    if id.len() <= 200 { id.to_owned() } else { hashed.to_owned() }
}

/// Subject, text and attachments of a payload: a JSON object, other JSON, or any text.
fn take_apart(payload: &str) -> (String, String, Vec<Value>) {
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

/// Writes attachments to a folder, under names that can be used; what cannot be decoded is left out.
fn parts(attachments: &[Value], folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut out: Vec<(String, PathBuf)> = Vec::new();
    for (n, attachment) in attachments.iter().enumerate() {
        let get = |key: &str| attachment.get(key).and_then(Value::as_str);
        let Some(bytes) = get("data").and_then(|data| STANDARD.decode(data.trim()).ok()) else {
            tracing::warn!(n, "an attachment of a message of the relay is not base64");
            continue;
        };
        let name = usable(get("name").unwrap_or_default(), n, &out);
        let path = folder.join(n.to_string());
        fs::make_dirs(folder, 0o700)?;
        room::write(&path, &bytes)?;
        out.push((name, path));
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
