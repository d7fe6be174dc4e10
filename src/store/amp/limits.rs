//! What a message may measure (docs/formats/amp.md, section 7). Errors when writing, a warning when
//! reading: the other programs check next to nothing.

use super::envelope::AmpMessage;

/// Longest subject, in characters.
pub const SUBJECT_CHARS: usize = 256;
/// Longest body, in bytes.
pub const BODY_BYTES: usize = 65_536;
/// Largest `payload.context`, in bytes of JSON.
pub const CONTEXT_BYTES: usize = 262_144;
/// Largest message, in bytes of JSON.
pub const MESSAGE_BYTES: usize = 524_288;
/// Most attachments.
pub const ATTACHMENTS: usize = 10;
/// Largest attachment, in bytes.
pub const ATTACHMENT_BYTES: u64 = 25 << 20;
/// Most bytes of all attachments together.
pub const ATTACHMENTS_BYTES: u64 = 100 << 20;
/// A file larger than this is not read as a message at all, in bytes.
pub const FILE_BYTES: usize = 16 << 20;

/// Whether a stored message is larger in any respect than the format allows. Attachments kept in
/// another service (`storage: afp`) are not counted.
pub fn is_over_limit(stored: &AmpMessage<'_>) -> bool {
    let length = |text: &Option<std::borrow::Cow<'_, str>>| text.as_ref().map_or(0, |t| t.len());
    let counted = stored.attachments.iter().filter(|a| a.storage.as_deref() != Some("afp"));
    let sizes = counted.clone().filter_map(|a| a.size);
    stored.file_len > MESSAGE_BYTES
        || stored.subject.as_ref().is_some_and(|s| s.chars().count() > SUBJECT_CHARS)
        || length(&stored.message) > BODY_BYTES
        || stored.context.is_some_and(|context| context.len() > CONTEXT_BYTES)
        || counted.clone().count() > ATTACHMENTS
        || sizes.clone().any(|size| size > ATTACHMENT_BYTES)
        || sizes.fold(0u64, u64::saturating_add) > ATTACHMENTS_BYTES
}
