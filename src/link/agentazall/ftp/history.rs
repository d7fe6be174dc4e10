//! The history of the files on the server, between fetches.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::link::agentazall::fetch_folder;
use crate::link::job;
use crate::store::fs;

/// The file of the cache between fetches. Its loss costs nothing but requests.
const SAW: &str = "saw.json";

/// The listed size and times of a file and its attachments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FtpFileStamp {
    pub(super) size: u64,
    pub(super) modify: String,
    /// The names and sizes of its attachments.
    pub(super) parts: Vec<(String, u64)>,
}

/// The history of a file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct FtpFileHistory {
    pub(super) look: FtpFileStamp,
    /// The time since which the file is unchanged.
    pub(super) since: i64,
    /// The time at which the file was first seen.
    pub(super) first: i64,
    /// True if the text does not prove that it is complete.
    pub(super) unproven: bool,
    /// True if the torn text was reported.
    #[serde(default)]
    pub(super) told: bool,
    pub(super) taken: Option<FtpDelivery>,
}

/// The last fetched state of a file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct FtpDelivery {
    pub(super) at: i64,
    pub(super) look: FtpFileStamp,
    pub(super) length: u64,
    pub(super) sha: String,
}

/// The cache of a fetch: the history of each file that it has seen.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FtpFetchCache {
    /// The time at which all days were last examined.
    pub(super) all: i64,
    pub(super) files: BTreeMap<String, FtpFileHistory>,
}

impl FtpFetchCache {
    /// Reads the cache of the link whose fetch writes to a folder.
    pub(super) fn read(raw: &Path) -> Self {
        let bytes = cache_path(raw)
            .and_then(|path| fs::read_small_file(&path, fetch_folder::MAX_FILE).ok());
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// Writes the cache.
    ///
    /// # Errors
    /// Returns the system's error.
    pub(super) fn save(&self, raw: &Path) -> io::Result<()> {
        match (cache_path(raw), serde_json::to_vec(self)) {
            (Some(path), Ok(bytes)) => fetch_folder::write_if_changed(&path, &bytes),
            _ => Ok(()),
        }
    }
}

fn cache_path(raw: &Path) -> Option<PathBuf> {
    Some(job::link_folder(raw)?.join(SAW))
}
