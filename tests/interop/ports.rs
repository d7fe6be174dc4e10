//! Ports for servers that tests start.

use std::hash::{BuildHasher as _, RandomState};
use std::net::TcpListener;

/// Returns a free port of the loopback. It is outside the range from which the system gives ports: another program may
/// get such a port before the server starts, or between two of its starts.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = 20_000 + (RandomState::new().hash_one(0) % 12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
