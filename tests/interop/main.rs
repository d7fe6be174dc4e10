//! Other programs on the same mailboxes as a mount.
//!
//! - `AgentAZAll` 1.0.24 from `PyPI`, with its FTP and relay servers. It is looked for in the virtual
//!   environment that `MSGFS_TEST_VENV` names, else in `target/ci-venv`, where `.ci/run` puts it.
//! - An AMP client made of `jq` and `openssl` (`amp_shell.sh`), in the way of the public shell client.
//!
//! No test is skipped: a test that lacks a program fails with the command that installs it.

// A test ends by panicking; clippy knows test functions but not their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

// This is the harness of the integration tests; this target uses a part of it.
#[path = "../integration/common/mod.rs"]
#[allow(dead_code, unused_imports, clippy::format_push_string, clippy::format_collect)]
mod common;

mod agentazall;
mod amp;
mod authority;
mod examples;
mod ftp;
mod hostile;
mod machine;
mod mail;
mod nolink;
mod pages;
mod pair;
mod peer;
mod ports;
mod post;
mod postoffice;
mod proxy;
mod relay;
mod secrets;
mod transports;
