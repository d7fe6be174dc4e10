//! The links of an AgentAZAll mailbox, as its own `config.json` describes them (docs/links/agenttalk.md).

pub mod relay;

use std::path::Path;

use serde_json::Value;

use super::engine::Settings;
use super::spec::Kind;
use crate::store::fs;

/// Larger than any configuration.
const MAX_CONFIG: u64 = 16 << 20;

/// The links that a configuration names, by name.
pub fn found(config: &Path, me: &str) -> Vec<(String, Settings)> {
    let Some(value) = read(config) else { return Vec::new() };
    let settings = |kind: Kind, part: String| Settings {
        kind: kind.to_string(),
        file: config.to_owned(),
        part,
        me: me.to_owned(),
        insecure: false,
    };
    let mut out = Vec::new();
    let relays = value.get("relays").and_then(Value::as_array).map_or(0, Vec::len);
    for n in 0..relays {
        let name = if n == 0 { "relay".to_owned() } else { format!("relay-{}", n + 1) };
        out.push((name, settings(Kind::AgentTalk, format!("/relays/{n}"))));
    }
    let transport = value.get("transport").and_then(Value::as_str).unwrap_or("email");
    if relays == 0 && transport == "agenttalk" {
        out.push(("relay".to_owned(), settings(Kind::AgentTalk, "/agenttalk".to_owned())));
    }
    out
}

/// A configuration, as far as it can be read: whoever owns the store says what is wrong with it.
fn read(config: &Path) -> Option<Value> {
    let real = std::fs::canonicalize(config).ok()?;
    serde_json::from_slice(&fs::read_small(&real, MAX_CONFIG).ok()?).ok()
}
