//! The links of an AgentAZAll mailbox, as its own `config.json` describes them (docs/links/agenttalk.md).

pub mod relay;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
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

/// Why nothing may be carried for the mailbox of a configuration: the format's own daemon does.
fn other_carrier(config: &Path) -> Option<String> {
    let config = std::fs::canonicalize(config).ok()?;
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let daemon = ids.find(|id| is_daemon_for(*id, &config))?;
    Some(format!(
        "`agentazall daemon` (process {daemon}) carries the mail of this mailbox; end it with `kill {daemon}`, \
         or leave it to it with links = false"
    ))
}

/// Whether a process is the format's daemon for a configuration.
fn is_daemon_for(process: u32, config: &Path) -> bool {
    let proc = Path::new("/proc").join(process.to_string());
    let Ok(line) = std::fs::read(proc.join("cmdline")) else { return false };
    let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
    let is_program =
        |word: &&[u8]| word.ends_with(b"agentazall") || word.starts_with(b"agentazall.");
    let program = words.iter().take(4).position(is_program);
    let Some(arguments) = program.and_then(|at| words.get(at + 1..)) else { return false };
    if !arguments.contains(&b"daemon".as_slice()) {
        return false;
    }
    let named = arguments.iter().position(|word| *word == b"--config");
    let named = named.and_then(|at| arguments.get(at + 1)).map(|word| word.to_vec());
    let from_environment = || {
        let environment = std::fs::read(proc.join("environ")).ok()?;
        let mut lines = environment.split(|b| *b == 0);
        lines.find_map(|line| line.strip_prefix(b"AGENTAZALL_CONFIG=")).map(<[u8]>::to_vec)
    };
    let Some(named) = named.or_else(from_environment) else { return false };
    // As the process sees it: relative to its folder.
    let path = proc.join("cwd").join(OsStr::from_bytes(&named));
    std::fs::canonicalize(path).is_ok_and(|path| path == config)
}

/// A configuration, as far as it can be read: whoever owns the store says what is wrong with it.
fn read(config: &Path) -> Option<Value> {
    let real = std::fs::canonicalize(config).ok()?;
    serde_json::from_slice(&fs::read_small(&real, MAX_CONFIG).ok()?).ok()
}
