//! A record as a line of a log and as a message (docs/formats/samp.md, sections 2, 5 and 6).

use std::borrow::Cow;
use std::collections::HashSet;
use std::num::NonZeroU64;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest as _, Sha256};

use super::alias::is_valid_alias;
use super::files::{self, NewSampFile};
use crate::model::{ShownMessage, SignatureClaim, Timestamp, decode_hex_u64, is_visible};
use crate::store::digest::secure_hash64;
use crate::store::text::canonical::{self, HashedMembers, RecordId, SIGNATURE_CONTEXT};
use crate::store::text::json::{self, JsonError, JsonValue, RawStr};
use crate::store::text::{pytext, signature};
use crate::store::{Kind, MulticastKey, Signer};

/// The reason why a line is not delivered as a message, one sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampRecordError {
    /// A line that is not a JSON object.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The lack of a member that every record needs.
    #[error("the record has no member \"{0}\"")]
    Missing(&'static str),
    /// A member that is not text.
    #[error("the member \"{0}\" is not a string")]
    NotAString(&'static str),
    /// A time that is neither an integer nor a float.
    #[error("the member \"ts\" is not a number")]
    TimeNotANumber,
    /// A time without a place in time: NaN, infinite, or a float too large to hold.
    #[error("the member \"ts\" is not a finite number")]
    TimeNotFinite,
    /// The lack of an id where none can be made.
    #[error(
        "the record has no id, and none can be computed because its text holds half a surrogate pair"
    )]
    NoId,
}

/// Memory for parsing, so that parsing a log does not allocate for each record.
#[derive(Debug, Default)]
pub struct SampScratch {
    canonical: String,
}

/// A record that is delivered. Half surrogate pairs, which no Rust text can hold, are U+FFFD.
#[derive(Clone, Debug)]
pub struct SampRecord<'a> {
    /// The stored id, or the computed one if none is stored.
    pub id: Cow<'a, str>,
    /// True if the id is the hash of the content.
    pub id_verified: bool,
    /// Time in whole seconds since the epoch, rounded down, saturated to the range.
    pub secs: i64,
    /// The milliseconds of that second, if the record states them.
    pub ms: Option<u16>,
    /// The sender that it states, verbatim.
    pub from: Cow<'a, str>,
    /// The recipient, verbatim.
    pub to: Cow<'a, str>,
    /// Its thread, verbatim: any text at all.
    pub thread: Cow<'a, str>,
    /// The text as spelled in the log; see [`SampRecord::body_text`].
    pub body: RawStr<'a>,
    /// The subject, if it is text.
    pub subject: Option<Cow<'a, str>>,
    /// The id of the record that it answers, if it is text.
    pub re: Option<Cow<'a, str>>,
    /// Its idempotency key, if that is text.
    pub idem: Option<Cow<'a, str>>,
    /// All recipients of the message, each of whom has a record. Empty if the record names no others.
    pub rcpt: Vec<String>,
    /// The value of the id that the record to the first of these has, if the id of this record is verified.
    pub shared_id: Option<u64>,
    /// The text of the list of its files ([`parse_list`](files::parse_list)), if it lists any. It is parsed when the
    /// message is read.
    pub files: Option<&'a str>,
    /// True if it has a member `sig`, whatever its value; see [`parse_claim`].
    pub has_sig: bool,
    /// True if every character of its line [is visible](is_visible).
    pub is_visible: bool,
}

impl<'a> SampRecord<'a> {
    /// Returns its time, to the millisecond only if it states that.
    pub fn time(&self) -> Timestamp {
        Timestamp::from_secs(self.secs).plus_millis(self.ms.unwrap_or_default().into())
    }

    /// Returns all recipients of the message, even if this is the record of one of them.
    pub fn all_recipients(&self) -> Vec<String> {
        if self.rcpt.is_empty() { vec![self.to.to_string()] } else { self.rcpt.clone() }
    }

    /// Returns a function that returns the id of the record of the same message to a recipient.
    pub fn recipient_ids(&self) -> impl Fn(&str) -> String {
        let (body, secs) = (pytext::to_nfc(&self.body_text()).into_owned(), self.secs);
        let start = [("body", &*body), ("from", &self.from), ("thread", &self.thread)];
        let mut text = String::with_capacity(body.len() + 128);
        push_object(&mut text, &start.map(|(key, text)| (key, SampValue::Text(text))), COMPACT);
        text.pop();
        // All records begin alike, and the body can be long.
        let hash = Sha256::new_with_prefix(text);
        move |to| {
            let mut end = String::new();
            let members = [("to", SampValue::Text(to)), ("ts", SampValue::Number(secs))];
            push_object(&mut end, &members, COMPACT);
            end.replace_range(..1, ",");
            RecordId::from_hash(hash.clone().chain_update(end)).as_str().to_owned()
        }
    }

    /// Returns the values that the record, which stands on this line, has in common with those to the other recipients.
    pub fn multicast_key(&self, line: &str) -> Option<MulticastKey> {
        let key = self.shared_id?;
        let answers = self.re.as_deref().and_then(decode_hex_u64).and_then(NonZeroU64::new);
        let other = answers.map(|_| "re");
        let digest = secure_hash64(&canonical::common_bytes(line, other)?);
        let is_first = self.rcpt.first().is_some_and(|first| *first == self.to);
        Some(MulticastKey { key, digest, answers, is_first, is_id: true })
    }

    /// Returns the length for [`FoundMessage::plain_length`](crate::store::FoundMessage::plain_length). `to` names the
    /// recipients as the header shows them. It is unknown if files come with the message: the header names them.
    pub fn plain_length(&self, to: &str) -> Option<u32> {
        if self.files.is_some() {
            return None;
        }
        // A value that is spelled without escapes stands in the line.
        let stands = |text: &Cow<'_, str>| matches!(text, Cow::Borrowed(_));
        let values = [&self.from, &self.to, &self.thread, &self.id].into_iter();
        let mut values = values.chain(&self.subject).chain(&self.re);
        let is_visible = self.is_visible && !self.body.has_escapes() && values.all(stands);
        let shown = ShownMessage {
            is_visible,
            kind: Kind::Samp.as_str(),
            from: Some(&self.from),
            to: to.into(),
            time: self.time(),
            subject: self.subject.as_deref(),
            thread: &self.thread,
            in_reply_to: self.re.as_deref(),
            id: &self.id,
            body: &self.body_text(),
            ..ShownMessage::default()
        };
        shown.length_unverified()
    }

    /// Returns the text as written, not normalised.
    pub fn body_text(&self) -> Cow<'a, str> {
        self.body.to_text()
    }
}

/// The members that have a meaning here. The last of equal keys wins.
#[derive(Default)]
struct SampMembers<'a> {
    hashed: HashedMembers<'a>,
    id: Option<JsonValue<'a>>,
    subject: Option<JsonValue<'a>>,
    re: Option<JsonValue<'a>>,
    idem: Option<JsonValue<'a>>,
    ms: Option<JsonValue<'a>>,
    rcpt: Option<JsonValue<'a>>,
    files: Option<JsonValue<'a>>,
    has_sig: bool,
}

/// Parses the record on this line.
///
/// The line comes without its newline. White space around the object does not matter. The caller compares
/// [`SampRecord::from`] with the log's alias.
///
/// # Errors
/// If the line is not delivered. Other records of the log are not affected.
pub fn parse<'a>(
    line: &'a str,
    scratch: &mut SampScratch,
) -> Result<SampRecord<'a>, SampRecordError> {
    let mut m = SampMembers::default();
    json::visit_members(line, |key, value| {
        let key = if key.has_escapes() { key.to_text() } else { Cow::Borrowed(key.raw_text()) };
        let place = match &*key {
            "id" => &mut m.id,
            "ts" => &mut m.hashed.ts,
            "from" => &mut m.hashed.from,
            "to" => &mut m.hashed.to,
            "thread" => &mut m.hashed.thread,
            "body" => &mut m.hashed.body,
            "re" => &mut m.re,
            "subject" => &mut m.subject,
            "idem" => &mut m.idem,
            "ms" => &mut m.ms,
            "rcpt" => &mut m.rcpt,
            "files" => &mut m.files,
            "sig" => {
                m.has_sig = true;
                return;
            }
            _ => return,
        };
        *place = Some(value);
    })?;
    let secs = parse_seconds(m.hashed.ts)?;
    let from = required_text(m.hashed.from, "from")?;
    let to = required_text(m.hashed.to, "to")?;
    let thread = required_text(m.hashed.thread, "thread")?;
    let body = required_text(m.hashed.body, "body")?;
    let is_visible = is_visible(line);
    m.hashed.ascii = is_visible;
    let computed = canonical::compute_id(&m.hashed, &mut scratch.canonical);
    let (id, id_verified) = match (optional_text(m.id).filter(|id| !id.is_empty()), computed) {
        (Some(stored), computed) => {
            let verified = computed.is_some_and(|computed| *stored == *computed.as_str());
            (stored, verified)
        }
        (None, Some(computed)) => (Cow::Owned(computed.as_str().to_owned()), true),
        (None, None) => return Err(SampRecordError::NoId),
    };
    let to = to.to_text();
    let rcpt = parse_recipients(m.rcpt, &to);
    let shared_id = rcpt.first().filter(|_| id_verified).and_then(|first| {
        let to = Some(JsonValue::String(RawStr::from_plain(first)));
        let of_first = HashedMembers { to, ..m.hashed };
        let id = canonical::compute_id(&of_first, &mut scratch.canonical)?;
        decode_hex_u64(id.as_str())
    });
    Ok(SampRecord {
        id,
        id_verified,
        secs,
        ms: parse_millis(m.ms).or_else(|| parse_fraction(m.hashed.ts)),
        from: from.to_text(),
        rcpt,
        shared_id,
        to,
        thread: thread.to_text(),
        body,
        subject: optional_text(m.subject),
        re: optional_text(m.re),
        idem: optional_text(m.idem),
        files: files::find_list(m.files),
        has_sig: m.has_sig,
        is_visible,
    })
}

fn required_text<'a>(
    value: Option<JsonValue<'a>>,
    name: &'static str,
) -> Result<RawStr<'a>, SampRecordError> {
    match value {
        Some(JsonValue::String(text)) => Ok(text),
        Some(_) => Err(SampRecordError::NotAString(name)),
        None => Err(SampRecordError::Missing(name)),
    }
}

fn optional_text(value: Option<JsonValue<'_>>) -> Option<Cow<'_, str>> {
    match value {
        Some(JsonValue::String(text)) => Some(text.to_text()),
        _ => None,
    }
}

/// Returns the whole seconds of a time: any integer, any finite float. Nobody writes booleans as times, so they are
/// refused although Python counts them as integers.
fn parse_seconds(value: Option<JsonValue<'_>>) -> Result<i64, SampRecordError> {
    match value {
        Some(JsonValue::Int(digits)) => Ok(digits.parse().unwrap_or({
            // The grammar allows nothing but digits, so it can only be out of range.
            if digits.starts_with('-') { i64::MIN } else { i64::MAX }
        })),
        Some(JsonValue::Float(number)) => match number.parse::<f64>() {
            // The cast saturates.
            Ok(secs) if secs.is_finite() => Ok(secs.floor() as i64),
            _ => Err(SampRecordError::TimeNotFinite),
        },
        Some(JsonValue::Constant(_)) => Err(SampRecordError::TimeNotFinite),
        Some(_) => Err(SampRecordError::TimeNotANumber),
        None => Err(SampRecordError::Missing("ts")),
    }
}

/// Returns the milliseconds of a second: an integer from 0 to 999. Any other value states none.
fn parse_millis(value: Option<JsonValue<'_>>) -> Option<u16> {
    match value {
        Some(JsonValue::Int(digits)) => digits.parse().ok().filter(|ms| *ms < 1000),
        _ => None,
    }
}

/// Returns the milliseconds of a time with a fraction.
fn parse_fraction(value: Option<JsonValue<'_>>) -> Option<u16> {
    let Some(JsonValue::Float(number)) = value else { return None };
    let secs: f64 = number.parse().ok()?;
    let ms = ((secs - secs.floor()) * 1000.0).round() as u16;
    (ms > 0).then_some(ms.min(999))
}

/// The longest text of a list of recipients that is read. Its names take some thirty times the memory.
const RECIPIENTS_LIMIT: usize = 1 << 20;

/// Returns the recipients, each once, in a list of aliases that contains this record's recipient and another one. Any
/// other value, or a longer one than [`RECIPIENTS_LIMIT`], is no list of recipients.
fn parse_recipients(value: Option<JsonValue<'_>>, to: &str) -> Vec<String> {
    let Some(JsonValue::Compound(list)) = value else { return Vec::new() };
    if list.len() > RECIPIENTS_LIMIT {
        return Vec::new();
    }
    let mut list: Vec<String> = serde_json::from_str(list).unwrap_or_default();
    let mut known = HashSet::new();
    list.retain(|name| known.insert(name.clone()));
    let good = list.len() > 1 && known.contains(to) && list.iter().all(|name| is_valid_alias(name));
    if good { list } else { Vec::new() }
}

/// Returns the signature of the record on this line; `None` if it has no member `sig`, or is no record at all.
///
/// `sig` is the base64 of 64 bytes, `pub` that of the 32 bytes of the key. A record without `pub` names no key, and
/// the key pinned for its sender decides.
pub fn parse_claim(line: &str) -> Option<SignatureClaim> {
    signature::parse_claim(line, || canonical::signed_bytes(line))
}

/// A record that is to be written.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewSampRecord<'a> {
    /// The time at which it was written.
    pub time: Timestamp,
    /// My alias.
    pub from: &'a str,
    /// The recipient's alias.
    pub to: &'a str,
    /// The thread.
    pub thread: &'a str,
    /// The text, which is normalised to NFC.
    pub body: &'a str,
    /// The id of the record that it answers.
    pub re: Option<&'a str>,
    /// The subject.
    pub subject: Option<&'a str>,
    /// The idempotency key.
    pub idem: Option<&'a str>,
    /// All recipients, if they are several.
    pub rcpt: &'a [&'a str],
    /// The files that come with the message.
    pub files: &'a [NewSampFile],
}

impl NewSampRecord<'_> {
    /// Returns the id that it will have.
    pub fn id(&self) -> String {
        let body = pytext::to_nfc(self.body);
        self.id_with_body(&body).as_str().to_owned()
    }

    fn id_with_body(&self, body: &str) -> RecordId {
        let mut canonical = String::with_capacity(body.len() + 128);
        let mut members = self.id_members(body);
        members.sort_unstable_by_key(|(key, _)| *key);
        push_object(&mut canonical, &members, COMPACT);
        RecordId::from_canonical(&canonical)
    }

    /// Returns the members that the reference writes, but for the id, in its order.
    fn id_members<'a>(&'a self, body: &'a str) -> Vec<(&'a str, SampValue<'a>)> {
        vec![
            ("ts", SampValue::Number(self.time.secs())),
            ("from", SampValue::Text(self.from)),
            ("to", SampValue::Text(self.to)),
            ("thread", SampValue::Text(self.thread)),
            ("body", SampValue::Text(body)),
        ]
    }
}

/// A value of a record that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SampValue<'a> {
    Text(&'a str),
    Number(i64),
    Size(u64),
    List(&'a [&'a str]),
    Files(&'a [NewSampFile], FileData),
}

/// The bytes of the files of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileData {
    /// The record has them.
    Here,
    /// The first record of the message has them.
    InFirst,
}

/// The separators before a member and before its value.
type JsonSeparators = (&'static str, &'static str);
const COMPACT: JsonSeparators = (",", ":");
const SPACED: JsonSeparators = (", ", ": ");

/// Appends an object.
fn push_object(out: &mut String, members: &[(&str, SampValue<'_>)], by: JsonSeparators) {
    for (n, (key, value)) in members.iter().enumerate() {
        out.push_str(if n == 0 { "{" } else { by.0 });
        canonical::push_text(out, key);
        out.push_str(by.1);
        match value {
            SampValue::Text(text) => canonical::push_text(out, text),
            SampValue::Number(number) => out.push_str(&number.to_string()),
            SampValue::Size(size) => out.push_str(&size.to_string()),
            SampValue::List(texts) => {
                for (n, text) in texts.iter().enumerate() {
                    out.push_str(if n == 0 { "[" } else { by.0 });
                    canonical::push_text(out, text);
                }
                out.push(']');
            }
            SampValue::Files(files, data) => {
                for (n, file) in files.iter().enumerate() {
                    out.push_str(if n == 0 { "[" } else { by.0 });
                    push_object(out, &file_members(file, *data, by), by);
                }
                out.push(']');
            }
        }
    }
    out.push('}');
}

/// Returns the members of a file in a list. The canonical form has them in the order of their keys.
fn file_members(
    file: &NewSampFile,
    data: FileData,
    by: JsonSeparators,
) -> Vec<(&'static str, SampValue<'_>)> {
    let mut members = vec![
        ("name", SampValue::Text(&file.name)),
        ("size", SampValue::Size(file.size)),
        ("sha256", SampValue::Text(&file.sha256)),
    ];
    if data == FileData::Here {
        members.push(("data", SampValue::Text(&file.data)));
    }
    if by == COMPACT {
        members.sort_unstable_by_key(|(key, _)| *key);
    }
    members
}

/// Returns the line of a new record, without its newline, and its id.
///
/// The first six members are byte for byte those that the reference writes. Ours follow in the order `re`, `subject`,
/// `idem`, `ms`, `rcpt`, `files`, `pub`, `sig`. The record to the first recipient has the bytes of the files.
pub fn build_line(record: &NewSampRecord<'_>, signer: &dyn Signer) -> (String, String) {
    let body = pytext::to_nfc(record.body);
    let id = record.id_with_body(&body);
    let key = BASE64.encode(signer.public_key().0);
    let mut members = vec![("id", SampValue::Text(id.as_str()))];
    members.extend(record.id_members(&body));
    let optional = [("re", record.re), ("subject", record.subject), ("idem", record.idem)];
    members.extend(
        optional.iter().filter_map(|(key, value)| Some((*key, SampValue::Text((*value)?)))),
    );
    members.push(("ms", SampValue::Number(record.time.millis().rem_euclid(1000))));
    if record.rcpt.len() > 1 {
        members.push(("rcpt", SampValue::List(record.rcpt)));
    }
    if !record.files.is_empty() {
        let is_first = record.rcpt.first().is_none_or(|first| *first == record.to);
        let data = if is_first { FileData::Here } else { FileData::InFirst };
        members.push(("files", SampValue::Files(record.files, data)));
    }
    members.push(("pub", SampValue::Text(&key)));

    let mut sorted = members.clone();
    sorted.sort_unstable_by_key(|(key, _)| *key);
    let mut signed = String::with_capacity(body.len() + 512);
    signed.push_str(SIGNATURE_CONTEXT);
    push_object(&mut signed, &sorted, COMPACT);
    let sig = BASE64.encode(signer.sign(signed.as_bytes()));
    members.push(("sig", SampValue::Text(&sig)));

    let mut line = String::with_capacity(signed.len() + 512);
    push_object(&mut line, &members, SPACED);
    (line, id.as_str().to_owned())
}

#[cfg(test)]
mod tests;
