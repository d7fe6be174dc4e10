//! The bytes of a new mail (docs/formats/maildir.md, section 8).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::mail;
use crate::mime::compose::{compose_content, encode_header_text};
use crate::mime::reading::MailLimitError;
use crate::model::{Draft, Message};
use crate::store::Signer;

/// The length of a piece of a signature. Programs that save a mail encode longer words.
const PIECE: usize = 44;

/// Composes a signed mail with the header of a message, the ids of the mails before it, the first one first, and the
/// names and contents of its attachments. The message has a thread only if the ids do not give it.
///
/// # Errors
/// If nobody could read it.
pub(super) fn compose_mail(
    new: &Message,
    references: &[String],
    files: &[(String, Vec<u8>)],
    draft: &Draft,
    signer: &dyn Signer,
) -> Result<String, MailLimitError> {
    let mut head = String::new();
    let mut put = |key: &str, value: &str| {
        if !value.is_empty() {
            head.extend([key, ": ", value, "\n"]);
        }
    };
    let text = |text: &Option<String>| encode_header_text(text.as_deref().unwrap_or_default());
    // Encoded words are forbidden in addresses. RFC 6532 allows UTF-8.
    let list = |addresses: &[String]| addresses.join(",\n ");
    let in_brackets = |id: &String| format!("<{id}>");
    put("From", new.from.as_deref().unwrap_or_default());
    put("To", &list(&new.to));
    put("Cc", &list(&new.cc));
    put("Date", &new.time.rfc2822());
    put("Subject", &text(&new.subject));
    put("Message-ID", &in_brackets(&new.id));
    put("In-Reply-To", &new.in_reply_to.as_ref().map(in_brackets).unwrap_or_default());
    put("References", &references.iter().map(in_brackets).collect::<Vec<_>>().join("\n "));
    put("X-Msgfs-Ms", &new.time.millis().rem_euclid(1000).to_string());
    put("X-Msgfs-Thread", &text(&new.thread));
    put("X-Msgfs-Idempotency", &text(&draft.idempotency_key));
    put("Auto-Submitted", "auto-generated");
    put("MIME-Version", "1.0");
    let boundary = format!("=_msgfs_{}", new.id.split('@').next().unwrap_or_default());
    let rest = compose_content(&draft.body, files, &boundary);
    let unsigned = format!("{head}{rest}").replace("\r\n", "\n");
    let canonical = mail::parse_mail(unsigned.as_bytes(), "", new.time)?.canonical;
    let signature = BASE64.encode(signer.sign(&mail::signed_bytes(&canonical)));
    let (first, second) = signature.split_at(PIECE);
    let key = signer.public_key().to_base64();
    let signed = format!("X-Msgfs-Key: {key}\nX-Msgfs-Signature: {first}\n {second}\n");
    Ok(format!("{signed}{unsigned}"))
}
