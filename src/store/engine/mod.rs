//! The engines between the disk and a format. An engine opens, lists, follows, keeps and writes the files, and a
//! format defines their meaning.

pub mod files;
mod health;
pub(crate) mod lines;
