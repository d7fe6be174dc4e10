//! Messages, addresses, threads, times: plain data without I/O.
//!
//! Everything above this module (stores, index, views) uses these types. Nothing here knows a storage format, a
//! folder of the mount or the kernel.

mod file_names;
mod json;
pub mod locks;
mod mark;
mod message;
pub mod name_encoding;
mod name_similarity;
mod policy;
mod receipt;
mod remedy;
mod render;
mod seed;
pub mod short_id;
mod signature;
mod signature_cache;
mod text;
mod time;
pub mod verify;

pub use file_names::FileNames;
pub use json::{push_json_line, to_json};
pub use mark::{MachineId, Mark, MarkOrigin};
pub use message::{
    Attachment, Draft, DraftAttachment, DraftError, Message, MessageKey, ORIGIN, QUALIFIER,
    id_qualifier, plain_id, plain_thread_id, qualify_id, reply_subject, thread_label,
};
pub use name_similarity::{find_nearest, is_similar_name};
pub use policy::{
    BellVolume, Durability, MarkRead, Roles, Scope, SettingsFiles, TextRule, UnknownRecipient,
    Unsigned, Watch, accept_text, check_address, check_rules, find_word, quote_words,
    read_one_or_many,
};
pub use receipt::DeliveryState;
pub use remedy::Remedy;
pub use render::{ByteCounter, MIME_LINES, RULE, ShownMessage, TextSink, render_body};
pub use seed::Seed;
pub use signature::{
    CandidateVisitor, Fingerprint, PublicKey, SignatureClaim, SignatureScope, SignatureState,
    SignedBytes,
};
pub use text::{
    cut_text, decode_hex_u64, display_path, encode_hex, escape_json, flatten_line, format_count,
    is_visible, list_distinct, quote_shell_word, sanitize_line, sanitize_lines, sanitize_text,
    shorten_name, write_at,
};
pub use time::{CLOCK_SKEW_MS, Day, Timestamp};
