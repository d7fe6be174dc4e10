//! Messages, addresses, threads, times: plain data without I/O.
//!
//! Everything above this module (stores, index, views) speaks in these types; nothing here knows
//! a storage format, a folder of the mount or the kernel.

mod message;
mod nearest;
mod policy;
mod signature;
mod text;
mod time;

pub use message::{Attachment, Draft, DraftError, Message, MessageKey};
pub use nearest::nearest;
pub use policy::{Choice, MarkRead, Scope, UnknownRecipient, Unsigned, Watch};
pub use signature::{Claim, Fingerprint, PublicKey, SignatureState};
pub use text::{hex, one_line, safe_text, shell_word};
pub use time::{Day, Timestamp};
