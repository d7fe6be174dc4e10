//! The keyring's file: `AgentAZAll`'s `.keyring.json` with pins.
//!
//! It is a JSON object whose members are named by fingerprint. Each key has the form's members `public_key_b64`,
//! `fingerprint`, `first_seen`, `last_seen` and `addresses`. msgfs adds three members that other readers ignore:
//!
//! - `pinned`: the addresses this key vouches for, each with `since`, `by` (`first-use` or `hand`) and the `stores` it
//!   was seen in. Only this member decides; an address in `addresses` alone pins nothing.
//! - `refused`: the addresses for which this key was offered and refused, each with the time. An address has at most
//!   [`MAX_REFUSED_KEYS`] such keys.
//! - `forgotten`: the addresses it vouched for until they were forgotten, each with the time.
//!
//! One member of the object is no key: `forgotten` has for each forgotten address the [digests](MessageDigest) of the
//! messages that were there then (base64 of 8 bytes each).
//!
//! Members of any other name, here and inside an entry, are kept as they are.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::keyring::MessageDigest;
use crate::model::{Fingerprint, PublicKey, Timestamp, decode_hex_u64};

/// The most refused keys that are remembered for an address. Anybody who writes in a store can offer keys.
const MAX_REFUSED_KEYS: usize = 4;

/// The member that is no key.
const FORGOTTEN: &str = "forgotten";

/// The origin of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PinOrigin {
    /// The first validly signed message from this address.
    #[serde(rename = "first-use")]
    FirstUse,
    /// The word of a person.
    #[serde(rename = "hand")]
    Manual,
}

/// One address a key vouches for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PinRecord {
    pub(super) since: String,
    pub(super) by: PinOrigin,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) stores: Vec<String>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

impl PinRecord {
    /// Makes the record of a key that is pinned now.
    pub(super) fn new(by: PinOrigin, store: Option<&str>, now: Timestamp) -> Self {
        Self {
            since: now.rfc3339(),
            by,
            stores: store.map(str::to_owned).into_iter().collect(),
            other: Map::new(),
        }
    }
}

/// One key as the file has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct KeyRecord {
    public_key_b64: String,
    #[serde(default)]
    fingerprint: String,
    #[serde(default)]
    pub(super) first_seen: String,
    #[serde(default)]
    pub(super) last_seen: String,
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) pinned: BTreeMap<String, PinRecord>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    refused: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    forgotten: BTreeMap<String, String>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// One key with its decoded bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeyringEntry {
    pub(super) key: PublicKey,
    pub(super) form: KeyRecord,
}

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct KeyringDocument {
    entries: BTreeMap<Fingerprint, KeyringEntry>,
    /// The messages of each address that were there when its keys were forgotten.
    pub(super) forgotten_messages: BTreeMap<String, BTreeSet<MessageDigest>>,
    other: Map<String, Value>,
}

impl KeyringDocument {
    /// Parses the text of a keyring. The error is a phrase with the fault and its place.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let members: Map<String, Value> = serde_json::from_slice(bytes)
            .map_err(|e| format!("it is not a JSON object (line {}: {e})", e.line()))?;
        let mut document = Self::default();
        for (name, value) in members {
            if name == FORGOTTEN {
                document.forgotten_messages = parse_forgotten(value)
                    .map_err(|e| format!("the member {FORGOTTEN} is malformed ({e})"))?;
                continue;
            }
            let Some(fingerprint) = decode_hex_u64(&name).map(|n| Fingerprint(n.to_be_bytes()))
            else {
                document.other.insert(name, value);
                continue;
            };
            let form: KeyRecord = serde_json::from_value(value)
                .map_err(|e| format!("the entry of key {name} is malformed ({e})"))?;
            let key = PublicKey::from_base64(&form.public_key_b64).ok_or_else(|| {
                format!("public_key_b64 of key {name} is not the base64 of 32 bytes")
            })?;
            if key.fingerprint() != fingerprint {
                return Err(format!("the entry {name} holds the key {}", key.fingerprint()));
            }
            document.entries.insert(fingerprint, KeyringEntry { key, form });
        }
        Ok(document)
    }

    /// Returns the text of the file.
    pub(super) fn to_text(&self) -> serde_json::Result<String> {
        let mut members = self.other.clone();
        for (fingerprint, entry) in &self.entries {
            members.insert(fingerprint.to_string(), serde_json::to_value(&entry.form)?);
        }
        if !self.forgotten_messages.is_empty() {
            let texts = self.forgotten_messages.iter().map(|(address, prints)| {
                let bytes: Vec<u8> = prints.iter().flat_map(|p| p.0.to_be_bytes()).collect();
                (address.clone(), Value::String(STANDARD.encode(bytes)))
            });
            members.insert(FORGOTTEN.to_owned(), Value::Object(texts.collect()));
        }
        let mut text = serde_json::to_string_pretty(&members)?;
        text.push('\n');
        Ok(text)
    }

    /// Returns all entries of the keyring.
    pub(super) fn entries(&self) -> impl Iterator<Item = &KeyringEntry> {
        self.entries.values()
    }

    /// Returns the keys trusted for each address, the one trusted last at the end.
    pub(super) fn trusted_keys(&self) -> HashMap<String, Vec<PublicKey>> {
        let mut pins: Vec<_> = self
            .entries()
            .flat_map(|e| e.form.pinned.iter().map(move |(address, pin)| (address, pin, e.key)))
            .collect();
        pins.sort_by_key(|(_, pin, key)| (parse_time(&pin.since), key.fingerprint()));
        let mut trusted: HashMap<String, Vec<PublicKey>> = HashMap::new();
        for (address, _, key) in pins {
            trusted.entry(address.clone()).or_default().push(key);
        }
        trusted
    }

    /// Returns the entry of a key.
    pub(super) fn entry(&self, key: PublicKey) -> Option<&KeyringEntry> {
        self.entries.get(&key.fingerprint()).filter(|e| e.key == key)
    }

    /// Pins a key, or turns an existing pin into a manual one. Only an address without a key gets one by first use. The
    /// key is no longer refused, and if a person adds it, no other key of the address is. Returns `None` if another key
    /// has its fingerprint.
    pub(super) fn pin_key(
        &mut self,
        address: &str,
        key: PublicKey,
        mut pin: PinRecord,
    ) -> Option<()> {
        // The newest pin comes last, even if the clock did not move on or was set back. A first use has none before it,
        // and each search reads all keys.
        if pin.by == PinOrigin::Manual {
            let since = |e: &KeyringEntry| parse_time(&e.form.pinned.get(address)?.since);
            let last = self.entries().filter_map(since).max();
            if let Some(last) = last.filter(|last| parse_time(&pin.since) <= Some(*last)) {
                pin.since = last.plus_millis(1).rfc3339();
            }
        }
        let entry = self.entry_or_insert(key, &pin.since)?;
        entry.form.refused.remove(address);
        entry.form.forgotten.remove(address);
        if !entry.form.addresses.iter().any(|a| a == address) {
            entry.form.addresses.push(address.to_owned());
        }
        match entry.form.pinned.get_mut(address) {
            Some(existing) if pin.by == PinOrigin::Manual => existing.by = PinOrigin::Manual,
            Some(_) => {}
            None => {
                let by_hand = pin.by == PinOrigin::Manual;
                entry.form.pinned.insert(address.to_owned(), pin);
                if by_hand {
                    self.entries.values_mut().for_each(|e| drop(e.form.refused.remove(address)));
                    self.remove_empty_entries();
                }
            }
        }
        Some(())
    }

    /// Remembers a key refused for an address, in place of the earliest one if there are too many. Returns `None` if
    /// another key has its fingerprint.
    pub(super) fn record_refused_key(
        &mut self,
        address: &str,
        key: PublicKey,
        when: &str,
    ) -> Option<()> {
        let mut earlier = self.refused_by_time(address);
        earlier.retain(|(_, other)| *other != key);
        // The newest one comes last, even if the clock did not move on or was set back.
        let last = earlier.last().map(|(time, _)| *time);
        let when = match last.filter(|last| parse_time(when).is_none_or(|when| when <= *last)) {
            Some(last) => last.plus_millis(1).rfc3339(),
            None => when.to_owned(),
        };
        self.entry_or_insert(key, &when)?.form.refused.insert(address.to_owned(), when);
        let surplus = (earlier.len() + 1).saturating_sub(MAX_REFUSED_KEYS);
        for (_, old) in earlier.iter().take(surplus) {
            if let Some(entry) = self.entries.get_mut(&old.fingerprint()) {
                entry.form.refused.remove(address);
            }
        }
        self.remove_empty_entries();
        Some(())
    }

    /// Returns true if the key is remembered as refused for an address.
    pub(super) fn is_refused(&self, address: &str, key: PublicKey) -> bool {
        self.entry(key).is_some_and(|e| e.form.refused.contains_key(address))
    }

    /// Returns the keys refused for an address, the one refused last at the end.
    pub(super) fn refused_keys(&self, address: &str) -> Vec<PublicKey> {
        self.refused_by_time(address).into_iter().map(|(_, key)| key).collect()
    }

    fn refused_by_time(&self, address: &str) -> Vec<(Timestamp, PublicKey)> {
        let time = |e: &KeyringEntry| {
            let when = e.form.refused.get(address)?;
            Some((parse_time(when).unwrap_or_default(), e.key))
        };
        let mut refused: Vec<_> = self.entries().filter_map(time).collect();
        refused.sort_by_key(|(when, _)| *when);
        refused
    }

    /// Removes every key of an address. `held` are its messages, which pin none. Returns true if there was a pin.
    pub(super) fn forget_address(&mut self, address: &str, held: BTreeSet<MessageDigest>) -> bool {
        let mut pinned = false;
        let now = Timestamp::now().rfc3339();
        for entry in self.entries.values_mut() {
            if entry.form.pinned.remove(address).is_some() {
                pinned = true;
                entry.form.forgotten.insert(address.to_owned(), now.clone());
            }
            entry.form.refused.remove(address);
            entry.form.addresses.retain(|a| a != address);
        }
        self.remove_empty_entries();
        if pinned {
            self.forgotten_messages.entry(address.to_owned()).or_default().extend(held);
        }
        pinned
    }

    /// Returns the keys that vouched for an address until it was forgotten.
    pub(super) fn forgotten_keys(&self, address: &str) -> Vec<PublicKey> {
        self.entries().filter(|e| e.form.forgotten.contains_key(address)).map(|e| e.key).collect()
    }

    /// Returns the entry of a key, made if there is none; `None` if another key has its fingerprint.
    fn entry_or_insert(&mut self, key: PublicKey, now: &str) -> Option<&mut KeyringEntry> {
        let fingerprint = key.fingerprint();
        let entry = self.entries.entry(fingerprint).or_insert_with(|| KeyringEntry {
            key,
            form: KeyRecord {
                public_key_b64: key.to_base64(),
                fingerprint: fingerprint.to_string(),
                first_seen: now.to_owned(),
                last_seen: now.to_owned(),
                ..KeyRecord::default()
            },
        });
        // 64 bits of a hash can be made to collide, so equal names do not mean equal keys.
        (entry.key == key).then_some(entry)
    }

    /// Notes that a pinned key was used in this store. Returns true if the change is worth a write: a new day or a new
    /// store. The form has times of last use, but each of them would cost a write of the whole file.
    pub(super) fn record_use(
        &mut self,
        address: &str,
        key: PublicKey,
        store: &str,
        now: Timestamp,
    ) -> bool {
        let Some(entry) = self.entries.get_mut(&key.fingerprint()).filter(|e| e.key == key) else {
            return false;
        };
        let mut changed = false;
        if parse_time(&entry.form.last_seen).is_none_or(|last| last.day() < now.day()) {
            entry.form.last_seen = now.rfc3339();
            changed = true;
        }
        if let Some(pin) = entry.form.pinned.get_mut(address)
            && !pin.stores.iter().any(|s| s == store)
        {
            pin.stores.push(store.to_owned());
            changed = true;
        }
        changed
    }

    /// Removes entries without any content.
    fn remove_empty_entries(&mut self) {
        self.entries.retain(|_, e| {
            let f = &e.form;
            !(f.pinned.is_empty()
                && f.refused.is_empty()
                && f.forgotten.is_empty()
                && f.addresses.is_empty()
                && f.other.is_empty())
        });
    }
}

fn parse_forgotten(value: Value) -> Result<BTreeMap<String, BTreeSet<MessageDigest>>, String> {
    let texts: BTreeMap<String, String> =
        serde_json::from_value(value).map_err(|e| e.to_string())?;
    let prints = |text: &String| {
        let bytes = STANDARD.decode(text).map_err(|e| e.to_string())?;
        let (prints, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(format!(
                "{} bytes cannot be divided into fingerprints of 8 bytes each",
                bytes.len()
            ));
        }
        Ok(prints.iter().map(|p| MessageDigest(u64::from_be_bytes(*p))).collect())
    };
    texts.iter().map(|(address, text)| Ok((address.clone(), prints(text)?))).collect()
}

/// Parses both spellings in use: UTC with a zone, and the local time without one that `AgentAZAll` writes.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    let instant = text.parse::<jiff::Timestamp>().or_else(|_| {
        let local: jiff::civil::DateTime = text.parse()?;
        local.to_zoned(jiff::tz::TimeZone::system()).map(|z| z.timestamp())
    });
    instant.ok().map(|t| Timestamp::from_millis(t.as_millisecond()))
}
