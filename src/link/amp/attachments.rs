//! Attachments that a provider keeps. They are fetched before their message is filed (docs/links/amp.md).
//!
//! The URL of an attachment is foreign text. So it leads only to the provider itself or to a public host with TLS,
//! without the key and without redirects. A message waits for its attachments only for a limited time. Then it is filed
//! without them, and names what is missing.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{page, settings};
use crate::link::engine::FetchedItem;
use crate::link::http::{HttpClient, HttpError};
use crate::link::{job, private_hosts};
use crate::model::{Timestamp, encode_hex};
use crate::store::amp::envelope::{self, AttachmentRef};
use crate::store::amp::filename;
use crate::store::amp::limits::{ATTACHMENTS, ATTACHMENTS_BYTES};
use crate::store::{atomic_file, fs};

/// The time for which a message waits for its attachments, in milliseconds.
const MAX_WAIT_MS: i64 = 10 * 60_000;
/// The time after which a fetch begins no further message's attachments.
const FETCH_TIME: Duration = Duration::from_secs(4 * 60);
/// The number of bytes after which a fetch begins no further message's attachments.
const FETCH_BYTES: u64 = 256 << 20;
/// The file in the link's folder with the times since which messages wait.
const WAITING: &str = "attachments.json";
/// The file in a job's folder that lists the fetched attachments.
const BROUGHT: &str = "parts.json";
/// The limit on the size of either file.
const MAX_FILE: u64 = 16 << 20;

/// The names of files, and their paths.
type AmpNamedFiles = Vec<(String, PathBuf)>;

/// The fetched attachments, by the item to which they belong. A message that waits has no entry.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct AmpFetchedFiles(BTreeMap<String, AmpNamedFiles>);

impl AmpFetchedFiles {
    /// Reads the list in a job's folder.
    pub fn read(raw: &Path) -> Self {
        let bytes = fs::read_small_file(&raw.join(BROUGHT), MAX_FILE).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// Returns the item with its attachments; `None` if it still waits.
    pub fn attach_to(&mut self, mut item: FetchedItem) -> Option<FetchedItem> {
        if list_downloads(&item).is_empty() {
            return Some(item);
        }
        item.arrived.parts = self.0.remove(&item.id)?;
        Some(item)
    }
}

/// The data for fetching an attachment.
struct AmpDownload {
    name: String,
    url: String,
    size: u64,
    sha256: String,
}

/// Returns the attachments that a message has elsewhere and may have here.
fn list_downloads(item: &FetchedItem) -> Vec<AmpDownload> {
    let Ok(message) = envelope::parse(&item.arrived.bytes) else { return Vec::new() };
    let one = |attachment: &AttachmentRef<'_>| {
        let url = attachment.url.as_deref().filter(|url| !url.is_empty())?;
        let digest = attachment.digest.as_deref().and_then(filename::parse_sha256)?;
        filename::withheld_reason(attachment).is_none().then(|| AmpDownload {
            name: filename::clean_filename(attachment.filename.as_deref().unwrap_or_default()),
            url: url.to_owned(),
            size: attachment.size.unwrap_or(0),
            sha256: digest.to_owned(),
        })
    };
    let all: Vec<AmpDownload> =
        message.attachments.iter().take(ATTACHMENTS).filter_map(one).collect();
    let total = all.iter().fold(0u64, |sum, one| sum.saturating_add(one.size));
    if total > ATTACHMENTS_BYTES { Vec::new() } else { all }
}

/// Fetches the attachments of all messages of a list.
///
/// # Errors
/// Returns the system's error.
pub(super) fn fetch_attachments(
    list: &page::AmpPendingList<'_>,
    provider: &str,
    base: &HttpClient,
    api: &str,
    raw: &Path,
) -> std::io::Result<()> {
    let items: Vec<FetchedItem> =
        list.messages.iter().map(|text| page::build_item(text, provider)).collect();
    let items: Vec<(&FetchedItem, Vec<AmpDownload>)> = items
        .iter()
        .map(|item| (item, list_downloads(item)))
        .filter(|(_, all)| !all.is_empty())
        .collect();
    if items.is_empty() {
        return Ok(());
    }
    let since = update_waiting_since(raw, &items)?;
    let (mut brought, mut bytes, began) = (AmpFetchedFiles::default(), 0u64, Instant::now());
    for (n, (item, all)) in items.iter().enumerate() {
        let is_late =
            !(0..MAX_WAIT_MS).contains(&(now() - since.get(&item.id).copied().unwrap_or(0)));
        let has_time = began.elapsed() < FETCH_TIME && bytes < FETCH_BYTES;
        // Only a download that was tried can be given up.
        let (mut parts, mut waits) = (AmpNamedFiles::new(), !has_time);
        for (k, one) in all.iter().enumerate().filter(|_| has_time) {
            let path = raw.join(format!("part-{n}-{k}"));
            match download_attachment(one, base, api, &path) {
                Ok(true) if !parts.iter().any(|(name, _)| *name == one.name) => {
                    bytes += one.size;
                    parts.push((one.name.clone(), path));
                }
                Ok(_) => {}
                Err(()) => waits |= !is_late,
            }
        }
        if !waits {
            brought.0.insert(item.id.clone(), parts);
        }
    }
    atomic_file::write_atomic(&raw.join(BROUGHT), &serde_json::to_vec(&brought)?, 0o600)
}

/// Fetches one attachment. Returns false if it is wrong or does not exist, and `Err` if it may come later.
fn download_attachment(
    one: &AmpDownload,
    base: &HttpClient,
    api: &str,
    path: &Path,
) -> Result<bool, ()> {
    if !may_request_url(&one.url, api) {
        return Ok(false);
    }
    match base.with_base(&one.url).get_to_file("", None, path, one.size) {
        Ok(answer) if answer.is_success() => {}
        Ok(answer) if matches!(answer.status, 408 | 425 | 429 | 500..) => return Err(()),
        Ok(_) => return Ok(false),
        // The file is longer than announced.
        Err(HttpError::Lost(_)) if path.metadata().is_ok_and(|m| m.len() > one.size) => {
            return Ok(false);
        }
        Err(HttpError::NotSent(_) | HttpError::Lost(_)) => return Err(()),
    }
    let mut bytes = Vec::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(one.size + 1).read_to_end(&mut bytes));
    Ok(read.map_err(drop)? as u64 == one.size && encode_hex(&Sha256::digest(&bytes)) == one.sha256)
}

/// Returns true if a URL leads to the provider, or to a public host by TLS.
pub(super) fn may_request_url(url: &str, api: &str) -> bool {
    let (Some(host), Some(own)) = (settings::url_host(url), settings::url_host(api)) else {
        return false;
    };
    let is_own = host == own && !settings::is_less_secure(url, api);
    let is_public =
        !settings::is_less_secure(url, "https://") && !private_hosts::is_private_host(&host);
    is_plain_url(url) && (is_own || is_public)
}

/// Returns true if a URL can be requested at all.
pub(super) fn is_plain_url(url: &str) -> bool {
    url.len() <= 4096 && url.bytes().all(|b| b.is_ascii_graphic())
}

/// Returns the time since which each of these messages waits, and forgets all others.
fn update_waiting_since(
    raw: &Path,
    items: &[(&FetchedItem, Vec<AmpDownload>)],
) -> std::io::Result<BTreeMap<String, i64>> {
    let Some(path) = job::link_folder(raw).map(|folder| folder.join(WAITING)) else {
        return Ok(BTreeMap::new());
    };
    let before: BTreeMap<String, i64> =
        serde_json::from_slice(&fs::read_small_file(&path, MAX_FILE).unwrap_or_default())
            .unwrap_or_default();
    let since = |id: &String| before.get(id).copied().unwrap_or_else(now);
    let all: BTreeMap<String, i64> =
        items.iter().map(|(item, _)| (item.id.clone(), since(&item.id))).collect();
    atomic_file::write_atomic(&path, &serde_json::to_vec(&all)?, 0o600)?;
    Ok(all)
}

fn now() -> i64 {
    Timestamp::now().millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_to_the_provider_or_to_a_public_host() {
        for (url, api, may) in [
            ("https://api.x.ai/f", "https://api.x.ai", true),
            ("http://127.0.0.1:5/f", "http://127.0.0.1:9/api", true),
            ("https://store.example/f?sig=1", "https://api.x.ai", true),
            ("https://store.example/f", "http://127.0.0.1:9", true),
            ("http://api.x.ai/f", "https://api.x.ai", false),
            ("http://store.example/f", "https://api.x.ai", false),
            ("https://127.0.0.1/f", "https://api.x.ai", false),
            ("http://169.254.169.254/latest", "https://api.x.ai", false),
            ("https://10.0.0.1/f", "https://api.x.ai", false),
            ("https://router.local/f", "https://api.x.ai", false),
            ("https://u@api.x.ai/f", "https://api.x.ai", false),
            ("file:///etc/passwd", "https://api.x.ai", false),
            ("https://api.x.ai/a b\r\nX: y", "https://api.x.ai", false),
        ] {
            assert_eq!(may_request_url(url, api), may, "{url}");
        }
    }
}
