//! `msgfs check`: every line of every log against the rules of the format.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::alias::{self, LogName};
use super::record::{self, Parsed, RecordError, Scratch};
use crate::model::Claim;
use crate::store::{StoreError, Violation, fs};

/// Reports each violation of the folder's logs, file by file, line by line.
pub(super) fn check(
    dir: &Path,
    verify: &dyn Fn(&Claim) -> Option<String>,
    report: &mut dyn FnMut(Violation),
) -> Result<(), StoreError> {
    let entries = std::fs::read_dir(dir).map_err(|e| StoreError::io(dir, e))?;
    let mut names: Vec<std::ffi::OsString> = entries.flatten().map(|e| e.file_name()).collect();
    names.sort_unstable();
    for name in names {
        let shown = name.to_string_lossy().into_owned();
        let mut say = |line: u64, rule: &'static str, detail: String| {
            report(Violation { file: shown.clone(), line, rule, detail });
        };
        let Some(text) = name.to_str() else {
            say(0, "name", "the name is not UTF-8".into());
            continue;
        };
        let alias = match alias::classify(text) {
            LogName::NotALog => continue,
            LogName::BadAlias => {
                say(0, "alias", "the name holds no valid alias".into());
                continue;
            }
            LogName::Conflict(alias) => {
                say(0, "conflict-copy", "left by a sync program beside the log it copies".into());
                alias
            }
            LogName::Main(alias) => alias,
        };
        let path = dir.join(text);
        match fs::open_regular(&path) {
            Ok(file) => check_log(BufReader::new(file), alias, verify, &mut say),
            Err(e) => say(0, "file", format!("cannot be read: {e}")),
        }
    }
    Ok(())
}

fn check_log(
    mut log: impl BufRead,
    alias: &str,
    verify: &dyn Fn(&Claim) -> Option<String>,
    say: &mut dyn FnMut(u64, &'static str, String),
) {
    let mut scratch = Scratch::default();
    let mut ids: HashSet<String> = HashSet::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        match log.read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) => {}
            Err(e) => return say(number, "file", format!("cannot be read: {e}")),
        }
        let text = String::from_utf8_lossy(&line);
        let parsed = record::parse(&text, &mut scratch);
        if parsed.is_err()
            && let Some(torn) = Violation::torn(&line)
        {
            say(number, Violation::TORN, torn);
            continue;
        }
        if !line.ends_with(b"\n") {
            say(number, "unterminated", "the last line does not end in a newline".into());
        }
        if !line.trim_ascii().is_empty() {
            if matches!(text, Cow::Owned(_)) {
                say(number, "utf-8", "the line is not valid UTF-8".into());
            }
            check_line(&text, parsed, alias, &mut ids, verify, &mut |rule, detail| {
                say(number, rule, detail);
            });
        }
    }
}

fn check_line(
    text: &str,
    parsed: Result<Parsed<'_>, RecordError>,
    alias: &str,
    ids: &mut HashSet<String>,
    verify: &dyn Fn(&Claim) -> Option<String>,
    say: &mut dyn FnMut(&'static str, String),
) {
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(e) => return say("schema", e.to_string()),
    };
    if parsed.from != alias {
        say("from", format!("from is {:?}, the log is that of {alias:?}", parsed.from));
    }
    if !alias::is_valid(&parsed.to) {
        say("to", format!("to is {:?}, which is not a valid alias", parsed.to));
    }
    if !parsed.id_verified {
        say("id", format!("the content does not hash to the id {:?}", parsed.id));
    }
    if !ids.insert(parsed.id.to_string()) {
        say("duplicate", format!("the id {:?} stands in this log before", parsed.id));
    }
    if parsed.has_sig
        && let Some(wrong) = record::claim(text).as_ref().and_then(verify)
    {
        say("signature", wrong);
    }
}
