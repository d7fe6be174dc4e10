//! Links against real servers on this machine.
//!
//! A real `nats-server` (2.11 or newer) comes from `$NATS_SERVER`, else from `$PATH`; without one these tests fail.
//! Links run in this process, or in a process of their own that a test can kill.

// A test panics if the machine lacks something that it needs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[cfg(feature = "http")]
mod amp;
// This is the harness of the integration tests; this target uses a part of it.
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
