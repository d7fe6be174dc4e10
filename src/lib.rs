//! msgfs presents agent messages as files.
//!
//! The layers, from the bottom up; each knows only those below it: [`model`] (plain data), [`mime`] (mails that anybody
//! can have written), [`store`] (formats on disk), [`identity`] (keys and trust), [`index`] (one index over all
//! stores), [`outbox`] (from draft to appended message), [`link`] (mail between machines), [`search`] (words of
//! messages), [`view`] (the tree), [`watch`] (changes of folders), [`fuse`] (the adapter to the kernel).
//! [`config`] finds me and the paths, [`mailbox`] opens and connects everything, [`hook`] tells agents that
//! there is mail. The command line lives in the binary.

#![warn(missing_docs)]

pub mod config;
pub mod fuse;
pub mod hook;
pub mod identity;
pub mod index;
pub mod link;
pub mod mailbox;
pub mod mime;
pub mod model;
pub mod outbox;
pub mod search;
pub mod store;
pub mod view;
pub mod watch;
