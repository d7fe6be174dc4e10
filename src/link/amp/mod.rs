//! AMP 0.1 over HTTP: messages to agents that are registered with a provider elsewhere, and theirs
//! (docs/links/amp.md).
//!
//! A link is one registration file (`settings`). `wire` makes what is sent, and `upload` what is sent with files;
//! `page` takes apart what came, `parts` brings what comes with it, `info` is what the provider says of itself.
//! [`register()`] makes registration files; here is the engine that speaks to the provider.

mod info;
mod page;
mod parts;
mod register;
mod settings;
mod upload;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use zeroize::Zeroizing;

use super::engine::{Engine, Item, Outcome, Settings};
use super::http::{Answer, Http, Trouble};
use super::journal::note_beside;
use crate::model::{PublicKey, one_line, verify};
use crate::store::amp::{id::is_message_id, pem, registration};
use crate::store::{Parcel, fs, place};

pub use self::register::{Registered, Request, register};
use self::settings::Registration;
pub use self::settings::found;
use self::upload::Underway;
use self::wire::{Answered, Forms};

/// An answer with mail is not larger.
const MAX_PAGE: u64 = 128 << 20;
/// How many messages are asked for at once; fewer if they are too large together.
const AT_ONCE: [u32; 3] = [100, 10, 1];
/// How often a provider is asked while mail flows, and at most how seldom, in seconds.
const POLL: (u64, u64) = (10, 60);
/// How soon it is asked again while it has more.
const SOON: Duration = Duration::from_secs(2);
/// How often it is asked for the key of a writer before his mail is filed without it.
const KEY_TRIES: u32 = 3;
/// How long a key that is refused rests, in seconds: somebody must register anew.
const REFUSED_REST: u64 = 15 * 60;
/// What a fetch brought.
const PAGE: &str = "page.json";
/// The keys of writers.
const KEYS: &str = "keys.json";

/// A provider, by the registration with it.
#[derive(Debug)]
pub struct Provider {
    at: Registration,
    route: Http,
    fetch: Http,
    base: Http,
    /// When it is asked again, in seconds.
    poll: AtomicU64,
}

/// Opens the link that a registration describes.
///
/// # Errors
/// Why it cannot be used, and what to do.
pub fn open(settings: &Settings) -> Result<Box<dyn Engine>, String> {
    Ok(Box::new(Provider::open(settings)?))
}

impl Provider {
    fn open(settings: &Settings) -> Result<Self, String> {
        let (at, _) = settings::read(&settings.file)?;
        let base = Http::new(&at.base, settings.insecure, settings.ca.as_deref())?;
        Ok(Self {
            route: base.at(&at.route),
            fetch: base.at(&at.fetch),
            base,
            poll: AtomicU64::new(POLL.0),
            at,
        })
    }

    /// What an exchange needs of the file, as it is now.
    fn key(&self) -> Result<settings::Key, Outcome> {
        match settings::read(&self.at.file) {
            Ok((_, key)) => Ok(key),
            Err(why) => Err(Outcome::away(why)),
        }
    }

    /// What is the matter if an answer says nothing of the message itself.
    fn trouble(&self, answer: &Answer) -> Option<Outcome> {
        let words = words(answer);
        let away = |why: String, after| Some(Outcome::Away { why, after });
        match answer.status {
            300..=399 => away(
                format!(
                    "it answers with a redirect ({words}), which is not followed; correct apiUrl in {}",
                    self.at.shown
                ),
                None,
            ),
            401 => away(
                format!(
                    "it refuses the key in {} ({words}); make a new one with: msgfs amp register {}",
                    self.at.shown, self.at.provider
                ),
                Some(REFUSED_REST),
            ),
            429 => away(format!("it asks to go slower ({words})"), answer.after),
            404 | 405 if !knows_the_path(answer) => away(
                format!(
                    "no AMP provider answers there ({words}); correct apiUrl in {}",
                    self.at.shown
                ),
                None,
            ),
            407 => away(format!("a proxy on the way refuses it ({words})"), answer.after),
            408 | 425 | 500.. => Some(Outcome::Unknown { why: words }),
            _ => None,
        }
    }

    /// What an answer to a message means.
    fn judge(&self, answer: &Answer) -> Outcome {
        if let Some(outcome) = self.trouble(answer) {
            return outcome;
        }
        let why = words(answer);
        match answer.status {
            200..=299 => match wire::answer(&answer.body) {
                Answered::Named(id) => Outcome::Named { id },
                Answered::Taken => Outcome::Done,
                Answered::Nothing => {
                    Outcome::Unknown { why: "its answer is not that of an AMP provider".into() }
                }
            },
            413 => Outcome::Refused { why },
            _ if wire::code(&answer.body).is_some() => Outcome::Refused { why },
            // Something in between said so; it may not say so later.
            _ => Outcome::Later { why, after: None },
        }
    }

    /// Gets one list of what waits into a file of its own; the file has its name once it is whole.
    fn get_page(&self, raw: &Path, key: &settings::Key) -> Outcome {
        let part = raw.join(".page");
        for limit in AT_ONCE {
            let got = self.fetch.get_into(
                &format!("?limit={limit}"),
                Some(key.as_str()),
                &part,
                MAX_PAGE,
            );
            match got {
                Ok(answer) if answer.is_good() => {
                    return match std::fs::rename(&part, raw.join(PAGE)) {
                        Ok(()) => Outcome::Done,
                        Err(e) => Outcome::away(e.to_string()),
                    };
                }
                Ok(answer) => {
                    let outcome = self.trouble(&answer);
                    return outcome.unwrap_or_else(|| Outcome::away(words(&answer)));
                }
                Err(Trouble::NotAsked(why)) => return Outcome::away(why),
                Err(Trouble::Lost(why)) => {
                    let is_large = part.metadata().is_ok_and(|m| m.len() > MAX_PAGE);
                    if !is_large || limit == 1 {
                        return Outcome::Unknown { why };
                    }
                }
            }
        }
        Outcome::away("the list is too large")
    }

    /// The key of a writer, as the provider says that owns his address.
    fn resolve(&self, address: &str, key: &settings::Key) -> Option<PublicKey> {
        for _ in 0..KEY_TRIES {
            let path = format!("/agents/resolve/{address}");
            match self.base.get(&path, Some(key.as_str())) {
                Ok(answer) if answer.is_good() => return resolved(&answer.body, address),
                Ok(answer) if matches!(answer.status, 400..=428 | 430..=499) => return None,
                Ok(Answer { status: 429, .. }) => return None,
                Ok(_) | Err(_) => {}
            }
        }
        None
    }

    /// Hands over a message in one of its forms.
    fn route(&self, forms: &Forms, key: &settings::Key) -> Outcome {
        // Who has `.local` names is the program that takes the flat form only.
        let order = if registration::is_in_local(&self.at.provider) {
            [&forms.flat, &forms.stored]
        } else {
            [&forms.stored, &forms.flat]
        };
        let mut outcome = Outcome::away("nothing was sent");
        for form in order {
            outcome = match self.route.post("", Some(key.as_str()), form.as_bytes()) {
                Err(Trouble::NotAsked(why)) => return Outcome::away(why),
                Err(Trouble::Lost(why)) => return Outcome::Unknown { why },
                Ok(answer) => self.judge(&answer),
            };
            let is_other_form = matches!(&outcome, Outcome::Refused { why }
                if why.starts_with("400 missing_field") || why.starts_with("400 invalid_field"));
            if !is_other_form {
                break;
            }
        }
        outcome
    }

    /// Says of one message that it is here.
    fn acknowledge_one(&self, id: &str, key: &settings::Key) -> Outcome {
        match self.fetch.delete(&format!("/{id}"), Some(key.as_str())) {
            Err(Trouble::NotAsked(why) | Trouble::Lost(why)) => Outcome::away(why),
            Ok(answer) if answer.is_good() || answer.status == 404 => Outcome::Done,
            Ok(answer) => {
                let words = words(&answer);
                self.trouble(&answer).unwrap_or_else(|| Outcome::away(words))
            }
        }
    }
}

/// What an answer says, for people.
fn words(answer: &Answer) -> String {
    answer.words(&["error", "message"])
}

/// Whether a refusal is by a provider that was found: the code of one that was not is a sentence.
fn knows_the_path(answer: &Answer) -> bool {
    wire::code(&answer.body).is_some_and(|code| !code.contains(' '))
}

/// The key in an answer about an address, if the answer is about that address.
fn resolved(body: &[u8], address: &str) -> Option<PublicKey> {
    let answer: serde_json::Value = serde_json::from_slice(body).ok()?;
    let text = |name: &str| answer.get(name).and_then(|value| value.as_str());
    let addresses = ["address", "short_address"].into_iter().filter_map(text);
    if !addresses.into_iter().any(|a| a.eq_ignore_ascii_case(address)) {
        return None;
    }
    let given = ["public_key", "public_key_hex", "publicKey"].into_iter().find_map(text)?;
    if given.contains("BEGIN") {
        return pem::public(given).ok();
    }
    let digit = |at: usize| u8::from_str_radix(given.get(at..at + 2)?, 16).ok();
    let is_hex = given.len() == 64 && given.bytes().all(|b| b.is_ascii_hexdigit());
    let bytes: Option<Vec<u8>> = (0..32).map(|n| digit(2 * n)).collect();
    let key = PublicKey(bytes.filter(|_| is_hex)?.try_into().ok()?);
    verify::check_key(&key).ok().map(|()| key)
}

impl Engine for Provider {
    fn place(&self) -> String {
        format!("{} ({})", self.at.provider, one_line(&self.at.base))
    }

    fn reaches(&self, address: &str) -> Option<u8> {
        registration::rank(&self.at.address, address)
    }

    fn wire(&self, parcel: &Parcel) -> Result<Vec<u8>, String> {
        if parcel.parts.is_empty() {
            wire::make(&parcel.bytes, &self.at.address)
        } else {
            upload::make(parcel, &self.at.address)
        }
    }

    fn mine(&self) -> Option<&str> {
        Some(&self.at.address)
    }

    fn takes(&self, folder: &Path, files: &[u64]) -> Result<(), String> {
        info::check(folder, &self.at.provider, files)
    }

    fn unpack(&self, raw: &Path) -> Vec<io::Result<Item>> {
        let read = |name| fs::or_nothing(std::fs::read(raw.join(name)));
        let (keys, page) = match (read(KEYS), read(PAGE)) {
            (Ok(keys), Ok(page)) => (keys, page),
            (Err(e), _) | (_, Err(e)) => return vec![Err(e)],
        };
        let mut items = page::keys(&keys);
        let list = page::split(&page);
        let poll = self.poll.load(Ordering::Relaxed);
        let next = match &list {
            Some(list) if list.remaining > 0 && !list.messages.is_empty() => SOON.as_secs(),
            Some(list) if !list.messages.is_empty() => POLL.0,
            Some(_) => (poll.max(POLL.0 / 2) * 2).min(POLL.1),
            // Nothing is known of what waits.
            None => poll,
        };
        self.poll.store(next, Ordering::Relaxed);
        let messages = list.map(|list| list.messages).unwrap_or_default();
        let mut brought = parts::Brought::read(raw);
        let item = |text: &&str| brought.with(page::item(text, &self.at.provider));
        items.extend(messages.iter().filter_map(item));
        items.into_iter().map(Ok).collect()
    }

    fn must_know(&self, id: &str) -> bool {
        page::is_key_id(id)
    }

    fn other_carrier(&self) -> Option<String> {
        None
    }

    fn poll(&self) -> Duration {
        Duration::from_secs(self.poll.load(Ordering::Relaxed))
    }

    fn destroys(&self) -> bool {
        false
    }

    fn send(&self, wire: &Path) -> Outcome {
        let key = match self.key() {
            Ok(key) => key,
            Err(outcome) => return outcome,
        };
        let bytes = std::fs::read(wire).unwrap_or_default();
        if let Some(forms) = wire::read(&bytes) {
            return self.route(&forms, &key);
        }
        let Some(message) = upload::read(&bytes) else {
            return Outcome::away("the message to send cannot be read");
        };
        let mut underway = Underway::new(self, &key, message, note_beside(wire));
        match underway.forms() {
            Ok(forms) => underway.judge(self.route(&forms, &key)),
            Err(outcome) => outcome,
        }
    }

    fn fetch(&self, raw: &Path, known: &HashSet<String>) -> Outcome {
        let key = match self.key() {
            Ok(key) => key,
            Err(outcome) => return outcome,
        };
        let outcome = self.get_page(raw, &key);
        if outcome != Outcome::Done {
            return outcome;
        }
        info::renew(raw, &self.base, &key);
        let page = std::fs::read(raw.join(PAGE)).unwrap_or_default();
        let Some(list) = page::split(&page) else {
            return Outcome::away("its list of waiting messages is not that of an AMP provider");
        };
        let writers = page::writers(&list);
        let wanted = |address: &&String| {
            !known.contains(&page::key_id(address))
                && self.reaches(address).is_some()
                && !address.eq_ignore_ascii_case(&self.at.address)
        };
        let resolve = |address: &String| Some((address.clone(), self.resolve(address, &key)?));
        let keys: BTreeMap<String, PublicKey> =
            writers.iter().filter(wanted).filter_map(resolve).collect();
        let kept = keep_keys(raw, &keys)
            .and_then(|()| parts::fetch(&list, &self.at.provider, &self.base, &self.at.base, raw));
        match kept {
            Ok(()) => Outcome::Done,
            Err(e) => Outcome::away(e.to_string()),
        }
    }

    fn acknowledge(&self, ids: &[String]) -> Outcome {
        let key = match self.key() {
            Ok(key) => key,
            Err(outcome) => return outcome,
        };
        // An id that is a path would remove something else there.
        let ids: Vec<&String> = ids.iter().filter(|id| is_message_id(id)).collect();
        if ids.len() > 1 {
            let body = serde_json::json!({ "ids": ids }).to_string();
            let answer = self.fetch.post("/ack", Some(key.as_str()), body.as_bytes());
            match answer {
                Ok(answer) if answer.is_good() => return Outcome::Done,
                Ok(answer) if answer.status == 429 || answer.status == 401 => {
                    return self.judge(&answer);
                }
                // Not every provider takes many at once.
                Ok(_) | Err(Trouble::Lost(_)) => {}
                Err(Trouble::NotAsked(why)) => return Outcome::away(why),
            }
        }
        let ends = ids.iter().map(|id| self.acknowledge_one(id, &key));
        ends.into_iter().find(|end| *end != Outcome::Done).unwrap_or(Outcome::Done)
    }

    fn check(&self) -> Vec<String> {
        let key = match self.key() {
            Ok(key) => key,
            Err(outcome) => return outcome.why().map(str::to_owned).into_iter().collect(),
        };
        let line = match self.fetch.get("?limit=1", Some(key.as_str())) {
            Err(Trouble::NotAsked(why) | Trouble::Lost(why)) => {
                format!("{} cannot be reached: {why}", self.place())
            }
            Ok(answer) if !answer.is_good() => {
                let outcome = self.judge(&answer);
                format!("{}: {}", self.place(), outcome.why().unwrap_or("it answers"))
            }
            Ok(answer) if page::split(&answer.body).is_none() => {
                format!(
                    "{}: its list of waiting messages is not that of an AMP provider",
                    self.place()
                )
            }
            Ok(_) => format!("{} answers and knows the key of {}", self.place(), self.at.address),
        };
        vec![line]
    }

    fn secrets(&self) -> Vec<Zeroizing<String>> {
        self.key().into_iter().map(settings::Key::secret).collect()
    }
}

fn keep_keys(raw: &Path, keys: &BTreeMap<String, PublicKey>) -> io::Result<()> {
    let text: BTreeMap<&String, String> =
        keys.iter().map(|(address, key)| (address, key.base64())).collect();
    place::write_atomic(&raw.join(KEYS), &serde_json::to_vec(&text)?, 0o600)
}
