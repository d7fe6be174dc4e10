//! Ports for servers that tests start.

use std::hash::{BuildHasher as _, RandomState};
use std::net::TcpListener;

/// A port of the loopback that nobody uses. It is none of those that the system gives to whoever asks for
/// any: such a one another program may have by the time the server starts, or between two of its starts.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = 20_000 + (RandomState::new().hash_one(0) % 12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
