//! A configuration file gives settings, or problems whose lines exist.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use msgfs::config::{Config, ConfigError, Env};

fuzz_target!(|text: &str| {
    let env = Env::new("/nowhere", [("HOME", "/nowhere")]);
    match Config::parse(text, Path::new("config.toml"), &env) {
        Ok(config) => assert!(config.max_message > 0),
        Err(ConfigError::Invalid { problems, .. }) => {
            assert!(!problems.is_empty());
            assert!(problems.iter().all(|p| p.line >= 1 && p.line <= text.split('\n').count() + 1));
        }
        Err(_) => {}
    }
});
