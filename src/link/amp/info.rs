//! The facts about a provider that matter when a message is written: whether it keeps attachments, and of which size.
//! The carrier that fetches mail asks for them now and then, so that writing a message needs no network.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::settings;
use crate::link::http::{HttpAnswer, HttpClient};
use crate::link::job;
use crate::model::{Timestamp, to_json};
use crate::store::amp::limits::{ATTACHMENT_BYTES, ATTACHMENTS, ATTACHMENTS_BYTES};
use crate::store::{atomic_file, fs};

/// The file in the link's folder.
const FILE: &str = "info.json";
/// The limit on its size.
const MAX_FILE: u64 = 64 << 10;
/// The time after which the provider is asked again, after an answer and after a failure, in milliseconds.
const AGAIN: (i64, i64) = (3_600_000, 300_000);

/// The remembered facts.
#[derive(Debug, Serialize, Deserialize)]
struct AmpProviderInfo {
    /// The time of the request, in milliseconds since the epoch, and the time for which it is enough.
    at: i64,
    enough: i64,
    /// True if the provider has answered.
    is_known: bool,
    /// The limits on attachments; `None` if the provider takes none.
    attachments: Option<AmpAttachmentLimits>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AmpAttachmentLimits {
    /// The size of the largest file, in bytes.
    one: u64,
    /// The size of all files together, in bytes.
    all: u64,
    /// The number of files.
    count: u64,
}

/// Asks the provider again if the last answer is old. Keeps the old facts if it does not answer.
pub(super) fn refresh_info(raw: &Path, base: &HttpClient, key: &settings::AmpApiKey) {
    let Some(folder) = job::link_folder(raw) else { return };
    let now = Timestamp::now().millis();
    let before = read_info(folder);
    if before.as_ref().is_some_and(|info| (0..info.enough).contains(&(now - info.at))) {
        return;
    }
    let known =
        |attachments| AmpProviderInfo { at: now, enough: AGAIN.0, is_known: true, attachments };
    let info = match base.get("/info", Some(key.as_str())) {
        Ok(answer) if answer.is_success() => known(parse_limits(&answer.body)),
        // A provider without this path takes no attachments.
        Ok(HttpAnswer { status: 404 | 405 | 501, .. }) => known(None),
        Ok(_) | Err(_) => {
            let none = AmpProviderInfo { is_known: false, ..known(None) };
            AmpProviderInfo { at: now, enough: AGAIN.1, ..before.unwrap_or(none) }
        }
    };
    let info = to_json(&info);
    if let Err(error) = atomic_file::write_atomic(&folder.join(FILE), &info, 0o600) {
        tracing::debug!(%error, "the limits of the provider cannot be saved");
    }
}

/// Forgets the facts, since the provider refused attachments that they permit.
pub(super) fn forget_info(folder: &Path) {
    let _ = std::fs::remove_file(folder.join(FILE));
}

/// Checks that a message may have files of these sizes.
///
/// # Errors
/// Returns the reason and the remedy, if it may not.
pub(super) fn check_sizes(folder: &Path, provider: &str, files: &[u64]) -> Result<(), String> {
    if files.is_empty() {
        return Ok(());
    }
    let Some(info) = read_info(folder).filter(|info| info.is_known) else {
        return Err(format!(
            "the provider {provider} was not reached so far, so it is not known yet if it takes \
             attachments; send it again when `msgfs link` says that it is connected, or put what \
             matters into the text"
        ));
    };
    let Some(limits) = info.attachments else {
        return Err(format!(
            "the provider {provider} takes no attachments; put what matters into the text"
        ));
    };
    let all = files.iter().fold(0u64, |sum, size| sum.saturating_add(*size));
    let takes = |what: String| {
        Err(format!(
            "the provider {provider} takes {what}; send fewer or smaller files, or put them elsewhere"
        ))
    };
    if let Some(size) = files.iter().find(|size| **size > limits.one) {
        return takes(format!("files of at most {} bytes, and one has {size}", limits.one));
    }
    if all > limits.all {
        return takes(format!("at most {} bytes with a message, and these are {all}", limits.all));
    }
    if files.len() as u64 > limits.count {
        return takes(format!("at most {} files with a message", limits.count));
    }
    Ok(())
}

fn read_info(folder: &Path) -> Option<AmpProviderInfo> {
    serde_json::from_slice(&fs::read_small_file(&folder.join(FILE), MAX_FILE).ok()?).ok()
}

/// Parses the limits on attachments in an answer. They lower ours and never raise them.
fn parse_limits(body: &[u8]) -> Option<AmpAttachmentLimits> {
    let info: Value = serde_json::from_slice(body).ok()?;
    let has = info.get("capabilities")?.as_array()?.iter().any(|c| c == "attachments");
    let said = |names: [&str; 2], ours: u64| {
        let limits = info.get("attachment_limits");
        let found = names.iter().find_map(|name| limits?.get(name)?.as_u64());
        found.map_or(ours, |theirs| theirs.min(ours))
    };
    has.then(|| AmpAttachmentLimits {
        one: said(["max_file_size", "max_size"], ATTACHMENT_BYTES),
        all: said(["max_total_size", "max_total"], ATTACHMENTS_BYTES),
        count: said(["max_attachments", "max_count"], ATTACHMENTS as u64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_provider_says_of_attachments() {
        let ours = (ATTACHMENT_BYTES, ATTACHMENTS_BYTES, ATTACHMENTS as u64);
        for (body, expected) in [
            ("", None),
            ("[]", None),
            (r#"{"capabilities":["relay"]}"#, None),
            (r#"{"capabilities":"attachments"}"#, None),
            (r#"{"capabilities":["attachments"]}"#, Some(ours)),
            (
                r#"{"capabilities":["attachments"],"attachment_limits":{"max_file_size":7,
                    "max_total_size":99999999999,"max_attachments":"many"}}"#,
                Some((7, ours.1, ours.2)),
            ),
        ] {
            let found = parse_limits(body.as_bytes()).map(|l| (l.one, l.all, l.count));
            assert_eq!(found, expected, "{body}");
        }
    }

    #[test]
    fn a_message_with_files_is_refused_before_it_is_promised() {
        let dir = tempfile::tempdir().unwrap();
        let say = |attachments| {
            let info = AmpProviderInfo { at: 1, enough: 1, is_known: true, attachments };
            let info = serde_json::to_vec(&info).unwrap();
            std::fs::write(dir.path().join(FILE), info).unwrap();
        };
        let why = |files: &[u64]| check_sizes(dir.path(), "x.ai", files).err().unwrap_or_default();
        assert_eq!(why(&[]), "");
        assert!(why(&[1]).contains("not known yet"));
        say(None);
        assert!(why(&[1]).contains("x.ai takes no attachments"));
        say(Some(AmpAttachmentLimits { one: 10, all: 15, count: 3 }));
        assert_eq!(why(&[10, 5]), "");
        assert!(why(&[11]).contains("at most 10 bytes"));
        assert!(why(&[10, 6]).contains("at most 15 bytes"));
        assert!(why(&[1; 4]).contains("at most 3 files"));
        forget_info(dir.path());
        assert!(why(&[1]).contains("not known yet"));
    }
}
