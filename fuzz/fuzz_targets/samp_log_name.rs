//! Names of files in a store: only valid aliases come out.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::store::samp::alias::{LogName, classify, is_valid, log_name};

fuzz_target!(|name: &str| {
    for name in [name.to_owned(), log_name(name)] {
        if let LogName::Main(alias) | LogName::Conflict(alias) = classify(&name) {
            assert!(is_valid(alias));
            assert!(name.contains(alias));
        }
    }
});
