//! The engine between the disk and a format. It opens, lists, follows, keeps and writes the files, and a format defines
//! their meaning.
//!
//! - `sources` is what every store on the engine has: its properties, its format, its table, the noted paths, its
//!   faults. It implements the trait of stores, once.
//! - [`files`] is the reader of sources that are messages as a whole. `lines` is the reader of logs, in which each line
//!   is a message.
//! - `format` is the part of a format that does not depend on the kind of sources. `health` says whether a store can be
//!   read.

pub mod files;
mod format;
mod health;
pub(crate) mod lines;
mod sources;

pub use self::format::Format;
pub use self::sources::{Engine, SourceStore};
