//! Links against the engines they are made for, on this machine.
//!
//! A real `nats-server` (2.11 or newer) is taken from `$NATS_SERVER`, else from `$PATH`; without one these
//! tests fail. Links run in this process, or, to be killed, in a process of their own.

// Tests that need what the machine does not give say so there; these panic, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[cfg(feature = "http")]
mod amp;
// The harness of the integration tests; this target uses a part of it.
#[path = "../integration/common/mod.rs"]
#[allow(dead_code, unused_imports, clippy::format_push_string, clippy::format_collect)]
mod common;

mod marks;
mod mounted;
mod nats;
#[path = "../interop/pair.rs"]
mod pair;
#[path = "../interop/ports.rs"]
mod ports;
#[cfg(feature = "http")]
mod provider;
#[path = "../interop/secrets.rs"]
mod secrets;

use common::{PATIENCE, soon};
