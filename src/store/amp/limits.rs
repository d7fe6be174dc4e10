//! The largest sizes of a message (docs/formats/amp.md, section 7). A larger one is an error for the writer and a
//! warning for the reader, because other programs check next to nothing.

use super::envelope::AmpMessage;

/// The longest subject, in characters.
pub const SUBJECT_CHARS: usize = 256;
/// The longest body, in bytes.
pub const BODY_BYTES: usize = 65_536;
/// The largest `payload.context`, in bytes of JSON.
pub const CONTEXT_BYTES: usize = 262_144;
/// The largest message, in bytes of JSON.
pub const MESSAGE_BYTES: usize = 524_288;
/// The most attachments.
pub const ATTACHMENTS: usize = 10;
/// The most attachments of a message that are read.
pub const KEPT_ATTACHMENTS: usize = 64;
/// The largest attachment, in bytes.
pub const ATTACHMENT_BYTES: u64 = 25 << 20;
/// The most bytes of all attachments together.
pub const ATTACHMENTS_BYTES: u64 = 100 << 20;
/// The largest file that is read as a message, in bytes.
pub const FILE_BYTES: usize = 16 << 20;

/// Returns true if a stored message exceeds any limit of the format. Attachments in another service (`storage: afp`) do
/// not count.
pub fn is_over_limit(stored: &AmpMessage<'_>) -> bool {
    let length = |text: &Option<std::borrow::Cow<'_, str>>| text.as_ref().map_or(0, |t| t.len());
    let counted = stored.attachments.iter().filter(|a| a.storage.as_deref() != Some("afp"));
    let sizes = counted.clone().filter_map(|a| a.size);
    stored.file_len > MESSAGE_BYTES
        || stored.subject.as_ref().is_some_and(|s| s.chars().count() > SUBJECT_CHARS)
        || length(&stored.message) > BODY_BYTES
        || stored.context.is_some_and(|context| context.len() > CONTEXT_BYTES)
        || stored.more_attachments > 0
        || counted.clone().count() > ATTACHMENTS
        || sizes.clone().any(|size| size > ATTACHMENT_BYTES)
        || sizes.fold(0u64, u64::saturating_add) > ATTACHMENTS_BYTES
}
