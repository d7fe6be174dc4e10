//! Names of files in a store give only valid aliases.
#![no_main]

use libfuzzer_sys::fuzz_target;
use msgfs::store::samp::alias::{SampLogName, classify_log_name, is_valid_alias, log_name};

fuzz_target!(|name: &str| {
    for name in [name.to_owned(), log_name(name)] {
        if let SampLogName::Main(alias) | SampLogName::Conflict(alias) = classify_log_name(&name) {
            assert!(is_valid_alias(alias));
            assert!(name.contains(alias));
        }
    }
});
