//! What lies between the disk and a format: an engine opens, lists, follows, keeps and writes the
//! files, and a format says what they mean.

pub mod files;
mod health;
pub(crate) mod lines;
