//! Proofs of the sentences in docs/SEMANTICS.md, on real mounts with the built program.
//!
//! Every test names the sentences that it proves at the start of its doc comment (`/// S12, S13: …`). [`numbers`]
//! fails if a sentence has no test or a test names no sentence. The tests see only what any other program sees:
//! the mount, the store, the command line. They compute the expected bytes from the formats, and never take them
//! from msgfs.
//!
//! They need `/dev/fuse`, root (some mount as another user), Python with `cryptography`, and the usual tools:
//! rsync, tar, vim, nano, setpriv, fusermount3. `MSGFS_TEST_BIN` names another binary, `MSGFS_TEST_KILLS` the
//! number of kills of each kill loop, `MSGFS_TEST_LIMIT` the seconds after which a hanging mount is aborted.

// A test ends by panicking. Clippy knows that of test functions but not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
// Messages named a, b, c and stores that are built line by line read better than the fast alternatives.
#![allow(clippy::many_single_char_names, clippy::format_push_string, clippy::format_collect)]

mod acting;
mod agentazall;
mod agents;
mod amp;
mod amq;
mod arrival;
mod atsf;
mod attachments;
mod blocked;
mod carrying;
mod changed;
mod claude;
mod codex;
mod commands;
mod common;
mod composing;
mod config;
mod conversations;
mod crash;
mod doors;
mod drafts;
mod errors;
mod faults;
mod files;
mod gone;
mod hook;
mod identity;
mod joined;
mod judged;
mod keep;
mod keys;
mod kills;
mod kinds;
mod late;
mod lifecycle;
mod looking;
mod maildir;
mod maildir_store;
mod mailtools;
mod marks;
mod me;
mod model;
mod names;
mod nonroot;
mod numbers;
mod outbox;
mod peers;
mod porcelain;
mod power;
mod questions;
mod readers;
mod receipts;
mod recorded;
mod recovered;
mod refused;
mod regressions;
mod replies;
mod robustness;
mod samp_files;
mod scale;
mod search;
mod sendmail;
mod several;
mod shared_ids;
mod snapshot;
mod ssot;
mod stress;
mod threads;
mod tools;
mod tree;
mod unanswered;
mod uninstall;
mod unmounted;
mod unsent;
mod vectors;
mod waiting;
mod watermark;
