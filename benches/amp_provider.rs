//! The AMP provider of the tests for `benches/run post`, which listens until standard input ends and prints its port.

// This tool of the tests ends by panicking.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::io::Read as _;

#[path = "../tests/links/provider.rs"]
mod provider;

fn main() -> std::io::Result<()> {
    let provider = provider::Provider::start("bench.example", provider::Manner::Paper);
    println!("{}", provider.port);
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
