//! AMP 0.1 over HTTP, for mail between me and agents that are registered with a provider elsewhere (docs/links/amp.md).
//!
//! A link is one registration file (`settings`). `request_bodies` encodes messages, and `upload` those with
//! attachments. `page` parses fetched messages, `attachments` fetches their attachments, and `info` remembers the
//! limits of the provider. [`register_agent`] makes registration files. This file has the engine that speaks to the
//! provider.

mod attachments;
mod info;
mod page;
mod register;
mod request_bodies;
mod settings;
mod upload;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use zeroize::Zeroizing;

use super::engine::{
    EncodeError, EngineSettings, ExchangeOutcome, FetchedItem, LinkEngine, LinkSession,
};
use super::http::{HttpAnswer, HttpClient, HttpError};
use super::journal::progress_note_path;
use super::secret;
use crate::model::{PublicKey, sanitize_line, verify};
use crate::store::amp::{id::is_message_id, pem, registration};
use crate::store::{OutboundMail, atomic_file, fs};

pub use self::register::{AmpRegisterRequest, NewAmpRegistration, register_agent};
use self::request_bodies::{AmpRequestBodies, AmpRouteAnswer};
use self::settings::AmpRegistration;
pub use self::settings::find_links;
use self::upload::AmpUpload;

/// The limit on the size of a list of pending messages.
const MAX_PAGE: u64 = 128 << 20;
/// The number of messages in a request; smaller ones follow if the answer is too large.
const LIST_LIMITS: [u32; 3] = [100, 10, 1];
/// The pause between fetches while mail flows, and the longest pause, in seconds.
const POLL: (u64, u64) = (10, 60);
/// The pause while the provider has more, unless all that came was new.
const SOON: Duration = Duration::from_secs(2);
/// The number of requests for a writer's key before the message is filed without it.
const KEY_TRIES: u32 = 3;
/// The backoff after the provider refuses the key, in seconds: a person must register anew.
const REFUSED_REST: u64 = 15 * 60;
/// The file with the fetched list.
const PAGE: &str = "page.json";
/// The file with the keys of writers.
const KEYS: &str = "keys.json";

/// A provider, by the registration with it.
#[derive(Debug)]
pub struct AmpEngine {
    registration: AmpRegistration,
    route: HttpClient,
    fetch: HttpClient,
    base: HttpClient,
    /// The pause before the next fetch, in seconds.
    poll: AtomicU64,
}

/// Opens the link that a registration describes.
///
/// # Errors
/// Returns the reason why it cannot be used, and the remedy.
pub fn open(settings: &EngineSettings) -> Result<Box<dyn LinkEngine>, String> {
    Ok(Box::new(AmpEngine::open(settings)?))
}

impl AmpEngine {
    fn open(settings: &EngineSettings) -> Result<Self, String> {
        let (at, _) = settings::read_registration(&settings.file)?;
        let base = HttpClient::new(&at.base, settings.insecure, settings.ca.as_deref())?;
        Ok(Self {
            route: base.with_base(&at.route),
            fetch: base.with_base(&at.fetch),
            base,
            poll: AtomicU64::new(POLL.0),
            registration: at,
        })
    }

    /// Reads the current key from the registration file.
    fn read_key(&self) -> Result<settings::AmpApiKey, ExchangeOutcome> {
        match settings::read_registration(&self.registration.file) {
            Ok((_, key)) => Ok(key),
            Err(why) => Err(ExchangeOutcome::away(why)),
        }
    }

    /// Returns the outcome of an answer that does not concern the message itself, if it is one.
    fn detect_fault(&self, answer: &HttpAnswer) -> Option<ExchangeOutcome> {
        let words = describe_answer(answer);
        let away = |why: String, after| Some(ExchangeOutcome::Away { why, after });
        match answer.status {
            300..=399 => away(
                format!(
                    "it answers with a redirect ({words}), which is not followed; correct apiUrl in {}",
                    self.registration.display_path
                ),
                None,
            ),
            401 => away(
                format!(
                    "it refuses the key in {} ({words}); make a new one with: msgfs amp register {}",
                    self.registration.display_path, self.registration.provider
                ),
                Some(REFUSED_REST),
            ),
            429 => away(format!("it asks to go slower ({words})"), answer.retry_after),
            404 | 405 if !is_amp_refusal(answer) => away(
                format!(
                    "no AMP provider answers there ({words}); correct apiUrl in {}",
                    self.registration.display_path
                ),
                None,
            ),
            407 => away(format!("a proxy on the way refuses it ({words})"), answer.retry_after),
            408 | 425 | 500.. => Some(ExchangeOutcome::Unknown { why: words }),
            _ => None,
        }
    }

    /// Returns the outcome that an answer to a message means.
    fn classify_answer(&self, answer: &HttpAnswer) -> ExchangeOutcome {
        if let Some(outcome) = self.detect_fault(answer) {
            return outcome;
        }
        let why = describe_answer(answer);
        match answer.status {
            200..=299 => match request_bodies::parse_answer(&answer.body) {
                AmpRouteAnswer::Named(id) => ExchangeOutcome::Named { id },
                AmpRouteAnswer::Accepted => ExchangeOutcome::Done,
                AmpRouteAnswer::Unrecognized => ExchangeOutcome::Unknown {
                    why: "its answer is not that of an AMP provider".into(),
                },
            },
            413 => ExchangeOutcome::Refused { why },
            _ if request_bodies::parse_error_code(&answer.body).is_some() => {
                ExchangeOutcome::Refused { why }
            }
            // Some server in between refused, and may accept later.
            _ => ExchangeOutcome::Later { why, after: None },
        }
    }

    /// Fetches one list of pending messages into a file, which gets its name once it is complete.
    fn fetch_page(&self, raw: &Path, key: &settings::AmpApiKey) -> ExchangeOutcome {
        let part = raw.join(".page");
        for limit in LIST_LIMITS {
            let got = self.fetch.get_to_file(
                &format!("?limit={limit}"),
                Some(key.as_str()),
                &part,
                MAX_PAGE,
            );
            match got {
                Ok(answer) if answer.is_success() => {
                    return match std::fs::rename(&part, raw.join(PAGE)) {
                        Ok(()) => ExchangeOutcome::Done,
                        Err(e) => ExchangeOutcome::away(e.to_string()),
                    };
                }
                Ok(answer) => {
                    let outcome = self.detect_fault(&answer);
                    return outcome
                        .unwrap_or_else(|| ExchangeOutcome::away(describe_answer(&answer)));
                }
                Err(error) => {
                    let is_large = matches!(error, HttpError::Lost(_))
                        && part.metadata().is_ok_and(|m| m.len() > MAX_PAGE);
                    if !is_large || limit == 1 {
                        return error.into();
                    }
                }
            }
        }
        ExchangeOutcome::away("the list is too large")
    }

    /// Returns the key of a writer, as the provider of his address reports it.
    fn resolve_key(&self, address: &str, key: &settings::AmpApiKey) -> Option<PublicKey> {
        for _ in 0..KEY_TRIES {
            let path = format!("/agents/resolve/{address}");
            match self.base.get(&path, Some(key.as_str())) {
                Ok(answer) if answer.is_success() => {
                    return parse_resolved_key(&answer.body, address);
                }
                Ok(answer) if matches!(answer.status, 400..=499) => return None,
                Ok(_) | Err(_) => {}
            }
        }
        None
    }

    /// Hands over a message in one of its two forms.
    fn route_message(
        &self,
        forms: &AmpRequestBodies,
        key: &settings::AmpApiKey,
    ) -> ExchangeOutcome {
        // The program with `.local` names takes only the flat form.
        let order = if registration::is_local_network(&self.registration.provider) {
            [&forms.flat, &forms.stored]
        } else {
            [&forms.stored, &forms.flat]
        };
        let mut outcome = ExchangeOutcome::away("nothing was sent");
        for form in order {
            outcome = match self.route.post_json("", Some(key.as_str()), form.as_bytes()) {
                Err(e) => return e.into(),
                Ok(answer) => self.classify_answer(&answer),
            };
            let is_other_form = matches!(&outcome, ExchangeOutcome::Refused { why }
                if why.starts_with("400 missing_field") || why.starts_with("400 invalid_field"));
            if !is_other_form {
                break;
            }
        }
        outcome
    }

    /// Tells the provider that one message is here.
    fn acknowledge_one(&self, id: &str, key: &settings::AmpApiKey) -> ExchangeOutcome {
        match self.fetch.delete(&format!("/{id}"), Some(key.as_str())) {
            Err(HttpError::NotSent(why) | HttpError::Lost(why)) => ExchangeOutcome::away(why),
            Ok(answer) if answer.is_success() || answer.status == 404 => ExchangeOutcome::Done,
            Ok(answer) => {
                let words = describe_answer(&answer);
                self.detect_fault(&answer).unwrap_or_else(|| ExchangeOutcome::away(words))
            }
        }
    }
}

impl AmpEngine {
    /// Hands over the bytes of one message.
    fn send(&self, wire: &Path) -> ExchangeOutcome {
        let key = match self.read_key() {
            Ok(key) => key,
            Err(outcome) => return outcome,
        };
        let bytes = std::fs::read(wire).unwrap_or_default();
        if let Some(forms) = request_bodies::decode_bodies(&bytes) {
            return self.route_message(&forms, &key);
        }
        let Some(message) = upload::decode_unsigned(&bytes) else {
            return ExchangeOutcome::away("the message to send cannot be read");
        };
        let note = progress_note_path(wire);
        let mut underway = match AmpUpload::new(self, &key, message, note) {
            Ok(underway) => underway,
            Err(error) => return error.into(),
        };
        match underway.prepare_bodies() {
            Ok(forms) => underway.revise_outcome(self.route_message(&forms, &key)),
            Err(outcome) => outcome,
        }
    }

    /// Fetches the messages that wait, the keys of their writers and their attachments.
    fn fetch(&self, raw: &Path, known: &HashSet<String>) -> ExchangeOutcome {
        let key = match self.read_key() {
            Ok(key) => key,
            Err(outcome) => return outcome,
        };
        let outcome = self.fetch_page(raw, &key);
        if outcome != ExchangeOutcome::Done {
            return outcome;
        }
        info::refresh_info(raw, &self.base, &key);
        let page = std::fs::read(raw.join(PAGE)).unwrap_or_default();
        let Some(list) = page::parse_list(&page) else {
            return ExchangeOutcome::away(
                "its list of waiting messages is not that of an AMP provider",
            );
        };
        let writers = page::list_writers(&list);
        let wanted = |address: &&String| {
            !known.contains(&page::key_id(address))
                && self.rank_address(address).is_some()
                && !address.eq_ignore_ascii_case(&self.registration.address)
        };
        let resolve = |address: &String| Some((address.clone(), self.resolve_key(address, &key)?));
        let keys: BTreeMap<String, PublicKey> =
            writers.iter().filter(wanted).filter_map(resolve).collect();
        let kept = write_keys(raw, &keys).and_then(|()| {
            attachments::fetch_attachments(
                &list,
                &self.registration.provider,
                &self.base,
                &self.registration.base,
                raw,
            )
        });
        match kept {
            Ok(()) => ExchangeOutcome::Done,
            Err(e) => ExchangeOutcome::away(e.to_string()),
        }
    }

    /// Tells the provider that messages are here.
    fn acknowledge(&self, ids: &[String]) -> ExchangeOutcome {
        let key = match self.read_key() {
            Ok(key) => key,
            Err(outcome) => return outcome,
        };
        // An id that is a path would delete something else.
        let ids: Vec<&String> = ids.iter().filter(|id| is_message_id(id)).collect();
        if ids.len() > 1 {
            let body = serde_json::json!({ "ids": ids }).to_string();
            let answer = self.fetch.post_json("/ack", Some(key.as_str()), body.as_bytes());
            match answer {
                Ok(answer) if answer.is_success() => return ExchangeOutcome::Done,
                Ok(answer) if answer.status == 429 || answer.status == 401 => {
                    return self.classify_answer(&answer);
                }
                // Not every provider takes many ids at once.
                Ok(_) | Err(HttpError::Lost(_)) => {}
                Err(HttpError::NotSent(why)) => return ExchangeOutcome::away(why),
            }
        }
        let ends = ids.iter().map(|id| self.acknowledge_one(id, &key));
        ends.into_iter().find(|end| *end != ExchangeOutcome::Done).unwrap_or(ExchangeOutcome::Done)
    }
}

/// The use of a provider by a carrier. The HTTP client keeps the connections.
struct AmpSession<'a>(&'a AmpEngine);

impl LinkSession for AmpSession<'_> {
    fn send(&mut self, wire: &Path) -> ExchangeOutcome {
        self.0.send(wire)
    }

    fn fetch(&mut self, raw: &Path, known: &HashSet<String>) -> ExchangeOutcome {
        self.0.fetch(raw, known)
    }

    fn acknowledge(&mut self, ids: &[String]) -> ExchangeOutcome {
        self.0.acknowledge(ids)
    }

    fn disconnect(&mut self) {
        self.0.base.disconnect();
    }
}

/// Returns the words of an answer, for people.
fn describe_answer(answer: &HttpAnswer) -> String {
    answer.describe_error(&["error", "message"])
}

/// Returns true if a refusal comes from the provider itself. Other servers give a sentence instead of a code.
fn is_amp_refusal(answer: &HttpAnswer) -> bool {
    request_bodies::parse_error_code(&answer.body).is_some_and(|code| !code.contains(' '))
}

/// Returns the key in an answer about an address, if the answer concerns that address.
fn parse_resolved_key(body: &[u8], address: &str) -> Option<PublicKey> {
    let answer: serde_json::Value = serde_json::from_slice(body).ok()?;
    let text = |name: &str| answer.get(name).and_then(|value| value.as_str());
    let addresses = ["address", "short_address"].into_iter().filter_map(text);
    if !addresses.into_iter().any(|a| a.eq_ignore_ascii_case(address)) {
        return None;
    }
    let given = ["public_key", "public_key_hex", "publicKey"].into_iter().find_map(text)?;
    if given.contains("BEGIN") {
        return pem::parse_public_key(given).ok();
    }
    let digit = |at: usize| u8::from_str_radix(given.get(at..at + 2)?, 16).ok();
    let is_hex = given.len() == 64 && given.bytes().all(|b| b.is_ascii_hexdigit());
    let bytes: Option<Vec<u8>> = (0..32).map(|n| digit(2 * n)).collect();
    let key = PublicKey(bytes.filter(|_| is_hex)?.try_into().ok()?);
    verify::check_key(&key).ok().map(|()| key)
}

impl LinkEngine for AmpEngine {
    fn describe_engine(&self) -> String {
        format!(
            "{} ({})",
            self.registration.provider,
            sanitize_line(&secret::strip_login(&self.registration.base))
        )
    }

    fn rank_address(&self, address: &str) -> Option<u8> {
        registration::score_reach(&self.registration.address, address)
    }

    fn encode_parcel(&self, parcel: &OutboundMail) -> Result<Vec<u8>, EncodeError> {
        let encoded = if parcel.parts.is_empty() {
            request_bodies::encode_message(&parcel.bytes, &self.registration.address)
        } else {
            upload::encode_unsigned(parcel, &self.registration.address)
        };
        Ok(encoded?)
    }

    fn own_address(&self) -> Option<&str> {
        Some(&self.registration.address)
    }

    fn check_attachment_sizes(&self, folder: &Path, files: &[u64]) -> Result<(), String> {
        info::check_sizes(folder, &self.registration.provider, files)
    }

    fn unpack_items(&self, raw: &Path) -> Vec<io::Result<FetchedItem>> {
        let read = |name| fs::empty_if_absent(std::fs::read(raw.join(name)));
        let (keys, page) = match (read(KEYS), read(PAGE)) {
            (Ok(keys), Ok(page)) => (keys, page),
            (Err(e), _) | (_, Err(e)) => return vec![Err(e)],
        };
        let mut items = page::parse_key_items(&keys);
        let list = page::parse_list(&page);
        let poll = self.poll.load(Ordering::Relaxed);
        let next = match &list {
            Some(list) if list.remaining > 0 && !list.messages.is_empty() => SOON.as_secs(),
            Some(list) if !list.messages.is_empty() => POLL.0,
            Some(_) => (poll.max(POLL.0 / 2) * 2).min(POLL.1),
            // The number of pending messages is unknown.
            None => poll,
        };
        self.poll.store(next, Ordering::Relaxed);
        let messages = list.map(|list| list.messages).unwrap_or_default();
        let mut brought = attachments::AmpFetchedFiles::read(raw);
        let item =
            |text: &&str| brought.attach_to(page::build_item(text, &self.registration.provider));
        items.extend(messages.iter().filter_map(item));
        items.into_iter().map(Ok).collect()
    }

    fn is_needed_by_fetch(&self, id: &str) -> bool {
        page::is_key_id(id)
    }

    fn find_other_carrier(&self) -> Option<String> {
        None
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_secs(self.poll.load(Ordering::Relaxed))
    }

    fn is_fetch_destructive(&self) -> bool {
        false
    }

    fn open_session(&self) -> Box<dyn LinkSession + '_> {
        Box::new(AmpSession(self))
    }

    fn check_connection(&self) -> Vec<String> {
        let key = match self.read_key() {
            Ok(key) => key,
            Err(outcome) => return outcome.reason().map(str::to_owned).into_iter().collect(),
        };
        let problem = match self.fetch.get("?limit=1", Some(key.as_str())) {
            Err(HttpError::NotSent(why) | HttpError::Lost(why)) => {
                format!("{} cannot be reached: {why}", self.describe_engine())
            }
            Ok(answer) if !answer.is_success() => {
                let outcome = self.classify_answer(&answer);
                format!("{}: {}", self.describe_engine(), outcome.reason().unwrap_or("it answers"))
            }
            Ok(answer) if page::parse_list(&answer.body).is_none() => {
                format!(
                    "{}: its list of waiting messages is not that of an AMP provider",
                    self.describe_engine()
                )
            }
            Ok(_) => return Vec::new(),
        };
        vec![problem]
    }

    fn load_secrets(&self) -> Vec<Zeroizing<String>> {
        self.read_key().into_iter().map(settings::AmpApiKey::into_secret).collect()
    }
}

fn write_keys(raw: &Path, keys: &BTreeMap<String, PublicKey>) -> io::Result<()> {
    let text: BTreeMap<&String, String> =
        keys.iter().map(|(address, key)| (address, key.to_base64())).collect();
    atomic_file::write_atomic(&raw.join(KEYS), &serde_json::to_vec(&text)?, 0o600)
}
