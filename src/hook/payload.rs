//! The input of a hook: one JSON object on standard input, in the harness's own words. It is foreign text: bounded in
//! length and time, and used only for names and folders.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value};

use super::harness::Harness;

/// The longest input that is read.
const BYTES: usize = 1 << 20;
/// The time that a harness that waits for the hook may take to write it.
const WITHIN: Duration = Duration::from_millis(200);
/// The time that a harness may take to write to a waiter: a busy harness closes the input late.
const PATIENTLY: Duration = Duration::from_secs(10);

/// Reads all of standard input; `None` if it is too long, not closed in time, or cannot be read. A waiter has more
/// time, because nobody waits for it.
pub fn read_stdin(waits: bool) -> Option<Vec<u8>> {
    read_until_closed(&io::stdin(), if waits { PATIENTLY } else { WITHIN })
}

fn read_until_closed(input: &impl AsFd, within: Duration) -> Option<Vec<u8>> {
    let deadline = Instant::now() + within;
    let mut bytes = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).ok()?;
        match poll(&mut [PollFd::new(input, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(0) | Err(_) => return None,
            Ok(_) => {}
        }
        match rustix::io::read(input, &mut part) {
            Ok(0) => return Some(bytes),
            Ok(n) => bytes.extend_from_slice(part.get(..n)?),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
        if bytes.len() > BYTES {
            return None;
        }
    }
}

/// The object that a harness wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookPayload(Map<String, Value>);

impl HookPayload {
    /// Returns the object in these bytes, if it is one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match serde_json::from_slice(bytes).ok()? {
            Value::Object(members) => Some(Self(members)),
            _ => None,
        }
    }

    fn text_member(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str().filter(|text| !text.is_empty())
    }

    fn has_member(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// Returns the id of the session.
    pub fn session_id(&self, harness: &Harness) -> Option<&str> {
        harness.session.iter().find_map(|name| self.text_member(name))
    }

    /// Returns the text that was submitted as a prompt.
    pub fn prompt(&self) -> Option<&str> {
        self.text_member("prompt")
    }

    /// Returns the path, if it is absolute.
    fn parse_absolute_path(text: &str) -> Option<PathBuf> {
        Some(PathBuf::from(text)).filter(|path| path.is_absolute())
    }

    /// Returns the current folder of the session.
    pub fn cwd(&self) -> Option<PathBuf> {
        self.text_member("cwd").and_then(Self::parse_absolute_path)
    }

    /// Returns the first of the project's folders, if the harness lists them.
    pub fn project_root(&self, harness: &Harness) -> Option<PathBuf> {
        self.0.get(harness.roots_member?)?.get(0)?.as_str().and_then(Self::parse_absolute_path)
    }

    /// Returns true if the turn is that of a subagent, which has no mail of its own.
    pub fn is_of_subagent(&self) -> bool {
        self.has_member("agent_id") || self.has_member("agentId")
    }

    /// Returns true if the input comes from Cursor, which runs the hooks of others too.
    pub fn is_of_cursor(&self) -> bool {
        self.has_member("cursor_version")
    }

    /// Returns true if the turn that ends was itself the work of a hook.
    pub fn is_hook_continuation(&self) -> bool {
        let yes = |name| self.0.get(name).and_then(Value::as_bool) == Some(true);
        let loops = self.0.get("loop_count").and_then(Value::as_u64);
        yes("stop_hook_active") || yes("stopHookActive") || loops.is_some_and(|n| n > 0)
    }

    /// Returns true if a turn that ended like this may be continued.
    pub fn may_continue(&self, harness: &Harness) -> bool {
        let Some((name, wanted)) = harness.continues_only_if else { return true };
        self.text_member(name) == Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn what_is_too_long_or_not_closed_is_not_read() {
        let read = |bytes: &[u8], close: bool| {
            let (input, mut writer) = io::pipe().unwrap();
            let bytes = bytes.to_vec();
            let keep = std::thread::spawn(move || {
                let _ = writer.write_all(&bytes);
                (!close).then_some(writer)
            });
            let got = read_until_closed(&input, Duration::from_millis(300));
            drop(input);
            drop(keep.join());
            got
        };
        assert_eq!(read(b"{}", true).as_deref(), Some(&b"{}"[..]));
        assert_eq!(read(b"", true).as_deref(), Some(&b""[..]));
        assert_eq!(read(b"{}", false), None);
        assert_eq!(read(&vec![b' '; 2 << 20], true), None);
    }

    #[test]
    fn only_an_object_counts_and_only_strings_are_ids() {
        for bad in ["", "{", "[]", "1", "null", "{\"a\":1", "\u{feff}{}"] {
            assert_eq!(HookPayload::parse(bad.as_bytes()), None, "{bad}");
        }
        let claude = Harness::from_name("claude-code").unwrap();
        let of = |text: &str| HookPayload::parse(text.as_bytes()).unwrap();
        assert_eq!(of(r#"{"session_id":"s"}"#).session_id(claude), Some("s"));
        for odd in ["{}", r#"{"session_id":1}"#, r#"{"session_id":""}"#, r#"{"sessionId":"s"}"#] {
            assert_eq!(of(odd).session_id(claude), None, "{odd}");
        }
        assert!(of(r#"{"stop_hook_active":true}"#).is_hook_continuation());
        assert!(of(r#"{"loop_count":1}"#).is_hook_continuation());
        assert!(!of(r#"{"stop_hook_active":"true","loop_count":0}"#).is_hook_continuation());
        assert!(!of(r#"{"agent_id":null}"#).is_of_subagent());
        let cursor = Harness::from_name("cursor").unwrap();
        let roots = of(r#"{"workspace_roots":["/p","/q"],"status":"completed"}"#);
        assert_eq!(roots.project_root(cursor), Some("/p".into()));
        assert!(roots.may_continue(cursor) && !of(r#"{"status":"aborted"}"#).may_continue(cursor));
        assert_eq!(of(r#"{"workspace_roots":["p"]}"#).project_root(cursor), None);
    }
}
