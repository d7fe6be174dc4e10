//! Attachments of outgoing messages. The provider keeps them under ids of its own, which the signature covers, so they
//! are uploaded first and the message is signed after that (docs/links/amp.md).
//!
//! A note beside the kept bytes records the progress. Each step is on disk before the next one begins, so an
//! interrupted try continues from there, and every later try sends the same signed bytes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::request_bodies::{self, AmpRequestBodies};
use super::{AmpEngine, attachments, describe_answer, info, settings};
use crate::link::engine::ExchangeOutcome;
use crate::link::http::{HttpAnswer, HttpError};
use crate::model::{Timestamp, encode_hex, sanitize_line, to_json};
use crate::store::amp::envelope;
use crate::store::amp::filename::{guess_content_type, parse_sha256};
use crate::store::amp::id::is_attachment_id;
use crate::store::amp::write::{AmpProviderAttachment, sign_with_uploads};
use crate::store::digest::hash_file;
use crate::store::{OutboundMail, atomic_file, fs};

/// The number of requests while a provider examines a file, and the pause between them. Other mail waits meanwhile.
const RETRIES: (u32, Duration) = (3, Duration::from_millis(if cfg!(test) { 10 } else { 2000 }));
/// The delay before the provider is asked again, in seconds.
const SOON: u64 = if cfg!(test) { 0 } else { 3 };
/// The time after which an unfinished examination leads to a new upload, in milliseconds.
const EXAMINED: i64 = 5 * 60_000;
/// The number of new uploads after which the message is refused.
const ANEW: u32 = 5;
/// The limit on the size of the kept bytes and of the note.
const MAX_FILE: u64 = 16 << 20;

/// A message that is signed when its files are uploaded.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AmpUnsignedMessage {
    /// The message as it lies in the store.
    message: String,
    /// The idempotency key, which does not depend on the ids of the files.
    key: String,
    files: Vec<AmpUploadFile>,
}

/// One attachment.
#[derive(Debug, Serialize, Deserialize)]
struct AmpUploadFile {
    name: String,
    content_type: String,
    size: u64,
    sha256: String,
    path: PathBuf,
}

/// The progress of an upload.
#[derive(Debug, Default, Serialize, Deserialize)]
struct AmpUploadProgress {
    /// The provider's ids and the stage of each file.
    files: Vec<Option<AmpUploadedFile>>,
    /// The bodies to send, once the message is signed.
    signed: Option<AmpRequestBodies>,
    /// The number of times that the upload began anew.
    anew: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct AmpUploadedFile {
    id: String,
    stage: AmpUploadStage,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AmpUploadStage {
    /// An upload that has an id, and whose bytes may be there.
    Begun,
    /// An uploaded file, which is examined since this moment, in milliseconds since the epoch.
    There(i64),
    /// An accepted file at this URL.
    Fit(String),
}

/// Encodes a message of mine with files for keeping.
///
/// # Errors
/// Returns the reason why it can never go.
pub(super) fn encode_unsigned(parcel: &OutboundMail, mine: &str) -> Result<Vec<u8>, String> {
    let message =
        envelope::parse(&parcel.bytes).map_err(|e| format!("it is not a message: {e}"))?;
    let key = request_bodies::derive_idempotency_key(&message);
    // A message that cannot go for another reason must not be uploaded first.
    request_bodies::encode_message(&parcel.bytes, mine)?;
    let known = message.attachments.iter().zip(&parcel.parts);
    let file = |(attachment, (name, path)): (&envelope::AttachmentRef<'_>, &(String, PathBuf))| {
        let digest = attachment.digest.as_deref().and_then(parse_sha256)?;
        Some(AmpUploadFile {
            name: name.clone(),
            content_type: guess_content_type(name).to_owned(),
            size: attachment.size?,
            sha256: digest.to_owned(),
            path: path.clone(),
        })
    };
    let files: Option<Vec<AmpUploadFile>> = known.map(file).collect();
    let files = files.filter(|files| files.len() == message.attachments.len());
    let files = files.ok_or("its list of attachments does not match the files")?;
    let text = String::from_utf8(parcel.bytes.clone()).map_err(|_| "it is not UTF-8")?;
    serde_json::to_vec(&AmpUnsignedMessage { message: text, key, files }).map_err(|e| e.to_string())
}

/// Decodes the kept bytes, if they are a message with files.
pub(super) fn decode_unsigned(bytes: &[u8]) -> Option<AmpUnsignedMessage> {
    serde_json::from_slice(bytes).ok()
}

/// A message on its way, with its progress.
pub(super) struct AmpUpload<'a> {
    provider: &'a AmpEngine,
    key: &'a settings::AmpApiKey,
    message: AmpUnsignedMessage,
    progress: AmpUploadProgress,
    note_path: PathBuf,
}

impl<'a> AmpUpload<'a> {
    /// Continues from the note at `path`.
    ///
    /// # Errors
    /// Fails if the note cannot be read now: it may have the signed bodies that an earlier try sent.
    pub fn new(
        provider: &'a AmpEngine,
        key: &'a settings::AmpApiKey,
        message: AmpUnsignedMessage,
        path: PathBuf,
    ) -> io::Result<Self> {
        let bytes = match fs::read_small_file(&path, MAX_FILE) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read?,
        };
        let mut note: AmpUploadProgress = serde_json::from_slice(&bytes).unwrap_or_default();
        note.files.resize(message.files.len(), None);
        Ok(Self { provider, key, message, progress: note, note_path: path })
    }

    /// Uploads all files, signs the message and returns the bodies to send.
    pub fn prepare_bodies(&mut self) -> Result<AmpRequestBodies, ExchangeOutcome> {
        if let Some(forms) = &self.progress.signed {
            return Ok(forms.clone());
        }
        for n in 0..self.message.files.len() {
            self.ensure_uploaded(n)?;
        }
        for n in 0..self.message.files.len() {
            self.await_examination(n)?;
        }
        let forms = self.sign_message()?;
        self.progress.signed = Some(forms.clone());
        self.save_progress()?;
        Ok(forms)
    }

    /// Returns what an answer to the message means for its files. Files whose ids are useless now are uploaded anew.
    pub fn revise_outcome(&mut self, outcome: ExchangeOutcome) -> ExchangeOutcome {
        let ExchangeOutcome::Refused { why } = &outcome else { return outcome };
        let says = |code: &str| why.split([' ', ':']).any(|word| word == code);
        if says("attachment_pending") {
            return ExchangeOutcome::Later { why: why.clone(), after: Some(SOON) };
        }
        if !["attachment_expired", "attachment_already_used", "attachment_not_found"]
            .into_iter()
            .any(says)
        {
            return outcome;
        }
        let why = why.clone();
        self.progress.files.fill(None);
        self.restart_upload(&why)
    }

    /// Forgets the signed bodies, since some file must be uploaded anew.
    fn restart_upload(&mut self, why: &str) -> ExchangeOutcome {
        self.progress.signed = None;
        self.progress.anew += 1;
        if let Err(outcome) = self.save_progress() {
            return outcome;
        }
        if self.progress.anew > ANEW {
            let provider = &self.provider.registration.provider;
            return ExchangeOutcome::Refused {
                why: format!(
                    "{provider} does not keep its files ({why}); send it again, or send it \
                     without them"
                ),
            };
        }
        ExchangeOutcome::Later { why: why.to_owned(), after: Some(SOON) }
    }

    /// Uploads a file, unless its bytes are at the provider.
    fn ensure_uploaded(&mut self, n: usize) -> Result<(), ExchangeOutcome> {
        match self.uploaded_file(n).map(|known| known.stage) {
            Some(AmpUploadStage::There(_) | AmpUploadStage::Fit(_)) => return Ok(()),
            // The interrupted try may have uploaded them.
            Some(AmpUploadStage::Begun) if self.confirm_file(n)? => return Ok(()),
            Some(AmpUploadStage::Begun) | None => {}
        }
        self.upload_file(n)?;
        if self.confirm_file(n)? {
            return Ok(());
        }
        let name = self.display_name(n);
        self.set_uploaded_file(n, None)?;
        let provider = self.provider.registration.provider.clone();
        Err(self.restart_upload(&format!("{provider} did not receive {name}")))
    }

    /// Requests an upload URL for a file, and uploads the file to it.
    fn upload_file(&mut self, n: usize) -> Result<(), ExchangeOutcome> {
        let Some(file) = self.message.files.get(n) else { return Ok(()) };
        self.check_unchanged(n)?;
        let body = serde_json::json!({
            "filename": file.name, "content_type": file.content_type, "size": file.size,
            "digest": format!("sha256:{}", file.sha256),
        });
        let body = body.to_string();
        let asked = self.provider.base.post_json(
            "/attachments/upload",
            Some(self.key.as_str()),
            body.as_bytes(),
        );
        let answer = self.expect_success(asked).map_err(|outcome| match outcome {
            ExchangeOutcome::Refused { why } => {
                // The remembered provider information may be out of date.
                self.note_path
                    .parent()
                    .and_then(Path::parent)
                    .into_iter()
                    .for_each(info::forget_info);
                let (provider, name) = (&self.provider.registration.provider, self.display_name(n));
                ExchangeOutcome::Refused { why: format!("{provider} does not take {name}: {why}") }
            }
            other => other,
        })?;
        let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let text = |name: &str| said.get(name).and_then(Value::as_str).unwrap_or_default();
        let (id, url, method) = (text("attachment_id"), text("upload_url"), text("upload_method"));
        let headers = parse_upload_headers(said.get("upload_headers"));
        let may = attachments::may_request_url(url, &self.provider.registration.base);
        let (true, true, Some(headers)) = (is_attachment_id(id), may, headers) else {
            let why = format!("it gives no usable address to upload {}", self.display_name(n));
            return Err(ExchangeOutcome::Later { why, after: None });
        };
        let place = self.provider.base.with_base(url);
        self.set_uploaded_file(
            n,
            Some(AmpUploadedFile { id: id.to_owned(), stage: AmpUploadStage::Begun }),
        )?;
        let Some(file) = self.message.files.get(n) else { return Ok(()) };
        let done = match method {
            "" | "PUT" => place.put_file(&headers, &file.path, file.size),
            _ => Err(HttpError::NotSent(format!(
                "it wants files by the method {}, which msgfs does not have",
                sanitize_line(method)
            ))),
        };
        // Files may lie at another host, so other messages go meanwhile.
        let failed = |what: &dyn std::fmt::Display| ExchangeOutcome::Later {
            why: format!("{} cannot be uploaded: {what}", self.display_name(n)),
            after: None,
        };
        match done {
            Ok(answer) if answer.is_success() => Ok(()),
            Ok(answer) => Err(failed(&answer.status)),
            Err(HttpError::NotSent(why) | HttpError::Lost(why)) => Err(failed(&why)),
        }
    }

    /// Tells the provider that a file is complete. Returns true if it agrees.
    fn confirm_file(&mut self, n: usize) -> Result<bool, ExchangeOutcome> {
        let Some(known) = self.uploaded_file(n) else { return Ok(false) };
        let path = format!("/attachments/{}/confirm", known.id);
        let got = self.provider.base.post_json(&path, Some(self.key.as_str()), b"{}");
        match self.expect_success(got) {
            Ok(_) => {
                let now = Timestamp::now().millis();
                self.set_uploaded_file(
                    n,
                    Some(AmpUploadedFile { stage: AmpUploadStage::There(now), ..known }),
                )?;
                Ok(true)
            }
            Err(ExchangeOutcome::Refused { .. }) => Ok(false),
            Err(outcome) => Err(outcome),
        }
    }

    /// Waits until the provider has examined a file.
    fn await_examination(&mut self, n: usize) -> Result<(), ExchangeOutcome> {
        let Some(known) = self.uploaded_file(n) else { return Ok(()) };
        let AmpUploadStage::There(since) = known.stage else { return Ok(()) };
        let (name, provider) = (self.display_name(n), self.provider.registration.provider.clone());
        for _ in 0..RETRIES.0 {
            let path = format!("/attachments/{}", known.id);
            let answer = match self
                .expect_success(self.provider.base.get(&path, Some(self.key.as_str())))
            {
                Err(ExchangeOutcome::Refused { why }) => {
                    self.set_uploaded_file(n, None)?;
                    return Err(self.restart_upload(&format!("{provider} has lost {name}: {why}")));
                }
                other => other?,
            };
            let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let text = |name: &str| said.get(name).and_then(Value::as_str);
            match text("scan_status").or_else(|| text("status")) {
                Some("clean" | "basic_clean") => {
                    let given = text("url").or_else(|| text("download_url"));
                    let given = given.filter(|url| {
                        settings::url_host(url).is_some() && attachments::is_plain_url(url)
                    });
                    let own = || {
                        format!(
                            "{}/attachments/{}/download",
                            self.provider.registration.base, known.id
                        )
                    };
                    let url = given.map_or_else(own, str::to_owned);
                    return self.set_uploaded_file(
                        n,
                        Some(AmpUploadedFile { stage: AmpUploadStage::Fit(url), ..known }),
                    );
                }
                Some(word @ ("suspicious" | "rejected")) => {
                    let why = format!(
                        "{provider} finds {name} {word}, so nobody would get it; send the message without it"
                    );
                    return Err(ExchangeOutcome::Refused { why });
                }
                _ => std::thread::sleep(RETRIES.1),
            }
        }
        if !(0..EXAMINED).contains(&(Timestamp::now().millis() - since)) {
            self.set_uploaded_file(n, None)?;
            return Err(self.restart_upload(&format!("{provider} did not finish examining {name}")));
        }
        let why = format!("{provider} is examining {name}");
        Err(ExchangeOutcome::Later { why, after: Some(SOON) })
    }

    /// Signs the message with the provider's ids of its files.
    fn sign_message(&self) -> Result<AmpRequestBodies, ExchangeOutcome> {
        let cannot = |why: &dyn std::fmt::Display| {
            ExchangeOutcome::away(format!("it cannot be signed: {why}"))
        };
        let agent = self.provider.registration.file.parent().and_then(Path::parent);
        let agent =
            agent.ok_or_else(|| cannot(&"the registration is not in the folder of an agent"))?;
        let seed = crate::store::amp::signing_key(agent).map_err(|e| cannot(&e))?;
        let known = (0..self.progress.files.len()).filter_map(|n| self.uploaded_file(n));
        let uploaded = known.filter_map(|known| match known.stage {
            AmpUploadStage::Fit(url) => Some(AmpProviderAttachment { id: known.id, url }),
            AmpUploadStage::Begun | AmpUploadStage::There(_) => None,
        });
        let uploaded: Vec<AmpProviderAttachment> = uploaded.collect();
        let refused = |why: String| ExchangeOutcome::Refused { why };
        let text = sign_with_uploads(&self.message.message, &uploaded, &seed)
            .ok_or_else(|| refused("it is not a message with these files".into()))?;
        request_bodies::build_bodies(
            text.as_bytes(),
            &self.provider.registration.address,
            Some(&self.message.key),
        )
        .map_err(refused)
    }

    /// Checks that a file is unchanged since the message was accepted.
    fn check_unchanged(&self, n: usize) -> Result<(), ExchangeOutcome> {
        let Some(file) = self.message.files.get(n) else { return Ok(()) };
        let found = fs::open_regular(&file.path)
            .and_then(|from| Ok((from.metadata()?.len(), encode_hex(&hash_file(&from)?))));
        if found.is_ok_and(|(size, digest)| size == file.size && digest == file.sha256) {
            return Ok(());
        }
        let name = self.display_name(n);
        Err(ExchangeOutcome::Refused {
            why: format!(
                "{name} was changed or removed in attachments/ before it went; send it again"
            ),
        })
    }

    /// Returns a successful answer. Classifies any other one as sent before the message was handed over.
    fn expect_success(
        &self,
        got: Result<HttpAnswer, HttpError>,
    ) -> Result<HttpAnswer, ExchangeOutcome> {
        let answer = match got {
            Ok(answer) if answer.is_success() => return Ok(answer),
            Ok(answer) => answer,
            Err(HttpError::NotSent(why) | HttpError::Lost(why)) => {
                return Err(ExchangeOutcome::away(why));
            }
        };
        // A provider that takes messages may lack these paths.
        if matches!(answer.status, 404 | 405 | 410 | 501) {
            return Err(ExchangeOutcome::Refused { why: describe_answer(&answer) });
        }
        match self.provider.classify_answer(&answer) {
            ExchangeOutcome::Unknown { why } => {
                Err(ExchangeOutcome::Away { why, after: answer.retry_after })
            }
            outcome => Err(outcome),
        }
    }

    fn uploaded_file(&self, n: usize) -> Option<AmpUploadedFile> {
        self.progress.files.get(n).cloned().flatten()
    }

    fn set_uploaded_file(
        &mut self,
        n: usize,
        known: Option<AmpUploadedFile>,
    ) -> Result<(), ExchangeOutcome> {
        if let Some(slot) = self.progress.files.get_mut(n) {
            *slot = known;
        }
        self.save_progress()
    }

    fn save_progress(&self) -> Result<(), ExchangeOutcome> {
        let bytes = to_json(&self.progress);
        let saved = atomic_file::write_atomic(&self.note_path, &bytes, 0o600);
        crash_point();
        saved.map_err(|e| {
            ExchangeOutcome::away(format!("the state of the upload cannot be saved here: {e}"))
        })
    }

    fn display_name(&self, n: usize) -> String {
        self.message
            .files
            .get(n)
            .map(|file| sanitize_line(&file.name).into_owned())
            .unwrap_or_default()
    }
}

/// Parses the headers for an upload; `None` if some cannot be sent or must not come from others.
fn parse_upload_headers(said: Option<&Value>) -> Option<Vec<(String, String)>> {
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
    // Our own header has the same value.
    let said = said.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("content-length"));
    let all: Option<Vec<(String, String)>> = said.map(header).collect();
    all.filter(|all| all.len() <= 32)
}

/// Marks a place at which the tests kill this carrier.
fn crash_point() {
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
            assert_eq!(parse_upload_headers(Some(&said)).is_some(), fits, "{said}");
        }
        assert_eq!(parse_upload_headers(Some(&json!({"content-length": "7"}))), Some(Vec::new()));
        let many: serde_json::Map<_, _> = (0..33).map(|n| (format!("x-{n}"), json!("y"))).collect();
        assert_eq!(parse_upload_headers(Some(&many.into())), None);
    }
}
