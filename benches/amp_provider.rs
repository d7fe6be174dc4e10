//! A provider of AMP for `benches/run post`: the one of the tests, listening until standard input ends.
//! Prints its port.

// A tool of the tests: it ends by panicking.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::io::Read as _;

#[path = "../tests/links/provider.rs"]
mod provider;

fn main() -> std::io::Result<()> {
    let provider = provider::Provider::start("bench.example", provider::Manner::Paper);
    println!("{}", provider.port);
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
