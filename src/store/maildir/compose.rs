//! The bytes of a new mail (docs/formats/maildir.md, section 8).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::mail;
use crate::mime::compose::{compose_content, encode_header_text, format_address_list};
use crate::mime::reading::MailLimitError;
use crate::model::{Draft, Timestamp};
use crate::store::Signer;

/// The length of a piece of a signature. Programs that save a mail encode longer words.
const PIECE: usize = 44;

/// A mail to compose, besides its draft.
pub(super) struct NewMail<'a> {
    pub from: &'a str,
    pub to: &'a [String],
    pub cc: &'a [String],
    pub now: Timestamp,
    pub subject: &'a str,
    pub id: &'a str,
    pub in_reply_to: Option<&'a str>,
    /// The ids of the mails before it, the first one first.
    pub references: &'a [String],
    /// The thread, where the ids do not give it.
    pub thread: Option<&'a str>,
    /// The names and contents of its attachments.
    pub files: &'a [(String, Vec<u8>)],
}

/// Composes a signed mail.
///
/// # Errors
/// If nobody could read it.
pub(super) fn compose_mail(
    new: &NewMail<'_>,
    draft: &Draft,
    signer: &dyn Signer,
) -> Result<String, MailLimitError> {
    let mut head = String::new();
    let mut put = |key: &str, value: &str| {
        if !value.is_empty() {
            head.extend([key, ": ", value, "\n"]);
        }
    };
    put("From", new.from);
    put("To", &format_address_list(new.to));
    put("Cc", &format_address_list(new.cc));
    put("Date", &new.now.rfc2822());
    put("Subject", &encode_header_text(new.subject));
    put("Message-ID", &format!("<{}>", new.id));
    let ids = |ids: &[String]| ids.iter().map(|id| format!("<{id}>")).collect::<Vec<_>>();
    put("In-Reply-To", &new.in_reply_to.map(|id| format!("<{id}>")).unwrap_or_default());
    put("References", &ids(new.references).join("\n "));
    put("X-Msgfs-Ms", &new.now.millis().rem_euclid(1000).to_string());
    put("X-Msgfs-Thread", &new.thread.map(encode_header_text).unwrap_or_default());
    let key = draft.idempotency_key.as_deref().map(encode_header_text);
    put("X-Msgfs-Idempotency", &key.unwrap_or_default());
    put("Auto-Submitted", "auto-generated");
    put("MIME-Version", "1.0");
    let boundary = format!("=_msgfs_{}", new.id.split('@').next().unwrap_or_default());
    let rest = compose_content(&draft.body, new.files, &boundary);
    let unsigned = format!("{head}{rest}").replace("\r\n", "\n");
    let canonical = mail::parse_mail(unsigned.as_bytes(), "", new.now)?.canonical;
    let signature = BASE64.encode(signer.sign(&mail::signed_bytes(&canonical)));
    let (first, second) = signature.split_at(PIECE);
    let key = signer.public_key().to_base64();
    let signed = format!("X-Msgfs-Key: {key}\nX-Msgfs-Signature: {first}\n {second}\n");
    Ok(format!("{signed}{unsigned}"))
}
