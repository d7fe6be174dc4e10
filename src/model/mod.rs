//! Messages, addresses, threads, times: plain data without I/O.
//!
//! Everything above this module (stores, index, views) speaks in these types; nothing here knows
//! a storage format, a folder of the mount or the kernel.

pub mod locks;
mod mark;
mod message;
mod nearest;
pub mod plain;
mod policy;
mod remedy;
mod remembered;
mod seed;
mod signature;
pub mod spelling;
mod text;
mod time;
pub mod verify;

pub use mark::{Host, Mark, Origin};
pub use message::{
    Attached, Attachment, Draft, DraftError, Message, MessageKey, ORIGIN, TWIN, plain_id,
    plain_thread, thread_label, twin_hash, twin_id,
};
pub use nearest::{nearest, resembles};
pub use policy::{Choice, MarkRead, Roles, Scope, UnknownRecipient, Unsigned, Watch};
pub use remedy::Remedy;
pub use seed::Seed;
pub use signature::{Claim, ClaimScope, Covered, Fingerprint, PublicKey, Readings, SignatureState};
pub use text::{
    fitting_name, hex, json_shown, one_line, plain_lines, safe_text, shell_word, shown_path,
    single_line, unhex_16, write_at,
};
pub use time::{CLOCK_SKEW_MS, Day, Timestamp};
