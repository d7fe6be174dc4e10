//! Attachments that go along: the provider keeps them under ids of its own, and these are part of what is signed. So
//! they are uploaded first, and the message is signed after that (docs/links/amp.md).
//!
//! How far that has come is in a note beside the bytes that are kept. Each step is on disk before the next one begins,
//! so a try that was cut off is taken up where it was, and what was signed once is what every later try sends.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::wire::{self, Forms};
use super::{Provider, info, parts, settings, words};
use crate::link::engine::Outcome;
use crate::link::http::{Answer, Trouble};
use crate::model::{Timestamp, hex, one_line};
use crate::store::amp::envelope;
use crate::store::amp::filename::{content_type, sha256_of};
use crate::store::amp::id::is_attachment_id;
use crate::store::amp::write::{Uploaded, signed_anew};
use crate::store::digest::of_file;
use crate::store::{Parcel, fs, place};

/// How long a carrier waits for a provider that examines a file, and how often it asks: other mail waits meanwhile.
const WHILE: (u32, Duration) = (3, Duration::from_millis(if cfg!(test) { 10 } else { 2000 }));
/// How soon it is asked again, in seconds.
const SOON: u64 = if cfg!(test) { 0 } else { 3 };
/// What is examined for longer, in milliseconds, is uploaded anew.
const EXAMINED: i64 = 5 * 60_000;
/// What a provider forgot so often it does not get again.
const ANEW: u32 = 5;
/// Neither file is larger.
const MAX_FILE: u64 = 16 << 20;

/// A message that is signed when its files are there.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Unsigned {
    /// As it lies in the store.
    message: String,
    /// The key for repeats: the same whatever ids its files get.
    key: String,
    files: Vec<File>,
}

/// A file that goes along.
#[derive(Debug, Serialize, Deserialize)]
struct File {
    name: String,
    content_type: String,
    size: u64,
    sha256: String,
    path: PathBuf,
}

/// How far it has come.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Note {
    /// What the provider knows of each file.
    files: Vec<Option<Known>>,
    /// What goes out, once it is signed.
    signed: Option<Forms>,
    /// How often all began anew.
    anew: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Known {
    id: String,
    stage: Stage,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stage {
    /// It has an id, and its bytes may be there.
    Begun,
    /// Its bytes are there, and are examined since this moment, in milliseconds since the epoch.
    There(i64),
    /// It may go, and is found there.
    Fit(String),
}

/// The bytes that are kept for a message of mine with files.
///
/// # Errors
/// Why it can never go.
pub(super) fn make(parcel: &Parcel, mine: &str) -> Result<Vec<u8>, String> {
    let message =
        envelope::parse(&parcel.bytes).map_err(|e| format!("it is not a message: {e}"))?;
    let key = wire::key_for(&message);
    // What cannot go for another reason is not uploaded first.
    wire::make(&parcel.bytes, mine)?;
    let known = message.attachments.iter().zip(&parcel.parts);
    let file = |(attachment, (name, path)): (&envelope::AttachmentRef<'_>, &(String, PathBuf))| {
        let digest = attachment.digest.as_deref().and_then(sha256_of)?;
        Some(File {
            name: name.clone(),
            content_type: content_type(name).to_owned(),
            size: attachment.size?,
            sha256: digest.to_owned(),
            path: path.clone(),
        })
    };
    let files: Option<Vec<File>> = known.map(file).collect();
    let files = files.filter(|files| files.len() == message.attachments.len());
    let files = files.ok_or("its list of attachments does not match the files")?;
    let text = String::from_utf8(parcel.bytes.clone()).map_err(|_| "it is not UTF-8")?;
    serde_json::to_vec(&Unsigned { message: text, key, files }).map_err(|e| e.to_string())
}

/// What was kept, if it is a message with files.
pub(super) fn read(bytes: &[u8]) -> Option<Unsigned> {
    serde_json::from_slice(bytes).ok()
}

/// A message on its way, with its note.
pub(super) struct Underway<'a> {
    provider: &'a Provider,
    key: &'a settings::Key,
    message: Unsigned,
    note: Note,
    path: PathBuf,
}

impl<'a> Underway<'a> {
    /// Takes it up where it was left; the note lies at `path`.
    pub fn new(
        provider: &'a Provider,
        key: &'a settings::Key,
        message: Unsigned,
        path: PathBuf,
    ) -> Self {
        let bytes = fs::read_small(&path, MAX_FILE).unwrap_or_default();
        let mut note: Note = serde_json::from_slice(&bytes).unwrap_or_default();
        note.files.resize(message.files.len(), None);
        Self { provider, key, message, note, path }
    }

    /// What goes out, once all files are there.
    pub fn forms(&mut self) -> Result<Forms, Outcome> {
        if let Some(forms) = &self.note.signed {
            return Ok(forms.clone());
        }
        for n in 0..self.message.files.len() {
            self.bring(n)?;
        }
        for n in 0..self.message.files.len() {
            self.examine(n)?;
        }
        let forms = self.sign()?;
        self.note.signed = Some(forms.clone());
        self.save()?;
        Ok(forms)
    }

    /// What an answer to what goes out means for the files: an id that is of no more use is made anew.
    pub fn judge(&mut self, outcome: Outcome) -> Outcome {
        let Outcome::Refused { why } = &outcome else { return outcome };
        let says = |code: &str| why.split([' ', ':']).any(|word| word == code);
        if says("attachment_pending") {
            return Outcome::Later { why: why.clone(), after: Some(SOON) };
        }
        if !["attachment_expired", "attachment_already_used", "attachment_not_found"]
            .into_iter()
            .any(says)
        {
            return outcome;
        }
        let why = why.clone();
        self.note.files.fill(None);
        self.begin_anew(&why)
    }

    /// Forgets what was signed, since some file must be uploaded anew.
    fn begin_anew(&mut self, why: &str) -> Outcome {
        self.note.signed = None;
        self.note.anew += 1;
        if let Err(outcome) = self.save() {
            return outcome;
        }
        if self.note.anew > ANEW {
            let provider = &self.provider.at.provider;
            return Outcome::Refused {
                why: format!(
                    "{provider} does not keep its files ({why}); send it again, or send it \
                     without them"
                ),
            };
        }
        Outcome::Later { why: why.to_owned(), after: Some(SOON) }
    }

    /// Has the bytes of a file be there.
    fn bring(&mut self, n: usize) -> Result<(), Outcome> {
        match self.known(n).map(|known| known.stage) {
            Some(Stage::There(_) | Stage::Fit(_)) => return Ok(()),
            // A try was cut off when it may have brought them.
            Some(Stage::Begun) if self.confirm(n)? => return Ok(()),
            Some(Stage::Begun) | None => {}
        }
        self.put(n)?;
        if self.confirm(n)? {
            return Ok(());
        }
        let name = self.shown(n);
        self.set(n, None)?;
        let provider = self.provider.at.provider.clone();
        Err(self.begin_anew(&format!("{provider} did not receive {name}")))
    }

    /// Asks for a place for a file, and brings it there.
    fn put(&mut self, n: usize) -> Result<(), Outcome> {
        let Some(file) = self.message.files.get(n) else { return Ok(()) };
        self.is_unchanged(n)?;
        let body = serde_json::json!({
            "filename": file.name, "content_type": file.content_type, "size": file.size,
            "digest": format!("sha256:{}", file.sha256),
        });
        let body = body.to_string();
        let asked = self.provider.base.post(
            "/attachments/upload",
            Some(self.key.as_str()),
            body.as_bytes(),
        );
        let answer = self.asked(asked).map_err(|outcome| match outcome {
            Outcome::Refused { why } => {
                // It may have said otherwise before.
                self.path.parent().and_then(Path::parent).into_iter().for_each(info::forget);
                let (provider, name) = (&self.provider.at.provider, self.shown(n));
                Outcome::Refused { why: format!("{provider} does not take {name}: {why}") }
            }
            other => other,
        })?;
        let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let text = |name: &str| said.get(name).and_then(Value::as_str).unwrap_or_default();
        let (id, url, method) = (text("attachment_id"), text("upload_url"), text("upload_method"));
        let headers = headers(said.get("upload_headers"));
        let may = parts::may_be_asked(url, &self.provider.at.base);
        let (true, true, Some(headers)) = (is_attachment_id(id), may, headers) else {
            let why = format!("it gives no usable address to upload {}", self.shown(n));
            return Err(Outcome::Later { why, after: None });
        };
        let place = self.provider.base.at(url);
        self.set(n, Some(Known { id: id.to_owned(), stage: Stage::Begun }))?;
        let Some(file) = self.message.files.get(n) else { return Ok(()) };
        let done = match method {
            "" | "PUT" => place.put_file(&headers, &file.path, file.size),
            _ => Err(Trouble::NotAsked(format!(
                "it wants files by the method {}, which msgfs does not have",
                one_line(method)
            ))),
        };
        // Files may lie with somebody else, so other messages go meanwhile.
        let failed = |what: &dyn std::fmt::Display| Outcome::Later {
            why: format!("{} cannot be uploaded: {what}", self.shown(n)),
            after: None,
        };
        match done {
            Ok(answer) if answer.is_good() => Ok(()),
            Ok(answer) => Err(failed(&answer.status)),
            Err(Trouble::NotAsked(why) | Trouble::Lost(why)) => Err(failed(&why)),
        }
    }

    /// Tells the provider that a file is whole; whether it agrees.
    fn confirm(&mut self, n: usize) -> Result<bool, Outcome> {
        let Some(known) = self.known(n) else { return Ok(false) };
        let path = format!("/attachments/{}/confirm", known.id);
        let got = self.provider.base.post(&path, Some(self.key.as_str()), b"{}");
        match self.asked(got) {
            Ok(_) => {
                let now = Timestamp::now().millis();
                self.set(n, Some(Known { stage: Stage::There(now), ..known }))?;
                Ok(true)
            }
            Err(Outcome::Refused { .. }) => Ok(false),
            Err(outcome) => Err(outcome),
        }
    }

    /// Waits for what the provider finds in a file.
    fn examine(&mut self, n: usize) -> Result<(), Outcome> {
        let Some(known) = self.known(n) else { return Ok(()) };
        let Stage::There(since) = known.stage else { return Ok(()) };
        let (name, provider) = (self.shown(n), self.provider.at.provider.clone());
        for _ in 0..WHILE.0 {
            let path = format!("/attachments/{}", known.id);
            let answer = match self.asked(self.provider.base.get(&path, Some(self.key.as_str()))) {
                Err(Outcome::Refused { why }) => {
                    self.set(n, None)?;
                    return Err(self.begin_anew(&format!("{provider} has lost {name}: {why}")));
                }
                other => other?,
            };
            let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let text = |name: &str| said.get(name).and_then(Value::as_str);
            match text("scan_status").or_else(|| text("status")) {
                Some("clean" | "basic_clean") => {
                    let given = text("url").or_else(|| text("download_url"));
                    let given =
                        given.filter(|url| settings::host(url).is_some() && parts::is_plain(url));
                    let own =
                        || format!("{}/attachments/{}/download", self.provider.at.base, known.id);
                    let url = given.map_or_else(own, str::to_owned);
                    return self.set(n, Some(Known { stage: Stage::Fit(url), ..known }));
                }
                Some(word @ ("suspicious" | "rejected")) => {
                    let why = format!(
                        "{provider} finds {name} {word}, so nobody would get it; send the message without it"
                    );
                    return Err(Outcome::Refused { why });
                }
                _ => std::thread::sleep(WHILE.1),
            }
        }
        if !(0..EXAMINED).contains(&(Timestamp::now().millis() - since)) {
            self.set(n, None)?;
            return Err(self.begin_anew(&format!("{provider} did not finish examining {name}")));
        }
        let why = format!("{provider} is examining {name}");
        Err(Outcome::Later { why, after: Some(SOON) })
    }

    /// The message with the ids that its files have there, signed.
    fn sign(&self) -> Result<Forms, Outcome> {
        let cannot =
            |why: &dyn std::fmt::Display| Outcome::away(format!("it cannot be signed: {why}"));
        let agent = self.provider.at.file.parent().and_then(Path::parent);
        let agent =
            agent.ok_or_else(|| cannot(&"the registration is not in the folder of an agent"))?;
        let seed = crate::store::amp::signing_key(agent).map_err(|e| cannot(&e))?;
        let known = (0..self.note.files.len()).filter_map(|n| self.known(n));
        let uploaded = known.filter_map(|known| match known.stage {
            Stage::Fit(url) => Some(Uploaded { id: known.id, url }),
            Stage::Begun | Stage::There(_) => None,
        });
        let uploaded: Vec<Uploaded> = uploaded.collect();
        let refused = |why: String| Outcome::Refused { why };
        let text = signed_anew(&self.message.message, &uploaded, &seed)
            .ok_or_else(|| refused("it is not a message with these files".into()))?;
        wire::forms(text.as_bytes(), &self.provider.at.address, Some(&self.message.key))
            .map_err(refused)
    }

    /// Whether a file is still what was promised.
    fn is_unchanged(&self, n: usize) -> Result<(), Outcome> {
        let Some(file) = self.message.files.get(n) else { return Ok(()) };
        let found = fs::open_regular(&file.path)
            .and_then(|from| Ok((from.metadata()?.len(), hex(&of_file(&from)?))));
        if found.is_ok_and(|(size, digest)| size == file.size && digest == file.sha256) {
            return Ok(());
        }
        let name = self.shown(n);
        Err(Outcome::Refused {
            why: format!(
                "{name} was changed or removed in attachments/ before it went; send it again"
            ),
        })
    }

    /// An answer of success; what else is said before anything of the message was handed over.
    fn asked(&self, got: Result<Answer, Trouble>) -> Result<Answer, Outcome> {
        let answer = match got {
            Ok(answer) if answer.is_good() => return Ok(answer),
            Ok(answer) => answer,
            Err(Trouble::NotAsked(why) | Trouble::Lost(why)) => return Err(Outcome::away(why)),
        };
        // Who takes messages need not know of these paths.
        if matches!(answer.status, 404 | 405 | 410 | 501) {
            return Err(Outcome::Refused { why: words(&answer) });
        }
        match self.provider.judge(&answer) {
            Outcome::Unknown { why } => Err(Outcome::Away { why, after: answer.after }),
            outcome => Err(outcome),
        }
    }

    fn known(&self, n: usize) -> Option<Known> {
        self.note.files.get(n).cloned().flatten()
    }

    fn set(&mut self, n: usize, known: Option<Known>) -> Result<(), Outcome> {
        if let Some(slot) = self.note.files.get_mut(n) {
            *slot = known;
        }
        self.save()
    }

    fn save(&self) -> Result<(), Outcome> {
        let bytes = serde_json::to_vec(&self.note).unwrap_or_default();
        let saved = place::write_atomic(&self.path, &bytes, 0o600);
        step();
        saved.map_err(|e| {
            Outcome::away(format!("the state of the upload cannot be saved here: {e}"))
        })
    }

    fn shown(&self, n: usize) -> String {
        self.message.files.get(n).map(|file| one_line(&file.name).into_owned()).unwrap_or_default()
    }
}

/// The headers that an upload is to have; `None` if some cannot be sent or are not for others to say.
fn headers(said: Option<&Value>) -> Option<Vec<(String, String)>> {
    let Some(said) = said.and_then(Value::as_object) else { return Some(Vec::new()) };
    let is_token =
        |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    let ours = ["host", "connection", "content-length", "transfer-encoding", "expect", "upgrade"];
    let header = |(name, value): (&String, &Value)| {
        let value = value.as_str()?;
        let is_fit = (1..=100).contains(&name.len())
            && is_token(name)
            && value.len() <= 8192
            && value.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
            && !ours.iter().any(|own| own.eq_ignore_ascii_case(name));
        is_fit.then(|| (name.clone(), value.to_owned()))
    };
    // What we say by ourselves says the same.
    let said = said.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("content-length"));
    let all: Option<Vec<(String, String)>> = said.map(header).collect();
    all.filter(|all| all.len() <= 32)
}

/// A place at which the tests kill this carrier.
fn step() {
    #[cfg(test)]
    super::tests::step();
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn headers_that_an_upload_may_have() {
        for (said, fits) in [
            (json!({"Content-Type": "text/plain", "x-amz-acl": "private"}), true),
            (json!({"Content-Length": "7"}), true),
            (json!({"Host": "evil.example"}), false),
            (json!({"Transfer-Encoding": "chunked"}), false),
            (json!({"X": "a\r\nY: b"}), false),
            (json!({"X\r\nY": "b"}), false),
            (json!({"": "b"}), false),
            (json!({"X": 7}), false),
            (json!("X: y"), true),
        ] {
            assert_eq!(headers(Some(&said)).is_some(), fits, "{said}");
        }
        assert_eq!(headers(Some(&json!({"content-length": "7"}))), Some(Vec::new()));
        let many: serde_json::Map<_, _> = (0..33).map(|n| (format!("x-{n}"), json!("y"))).collect();
        assert_eq!(headers(Some(&many.into())), None);
    }
}
