//! `config.json`: my name, the folder of the mailboxes, and the address filter (docs/formats/agentazall.md, sections 1
//! and 6). It is read, never written.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::filter::{self, Filter};
use crate::store::StoreError;
use crate::store::fs::{self, FaultFlag, Stamp};

/// Size limit of a configuration.
const LIMIT: u64 = 16 << 20;

/// The parts of a configuration that msgfs needs.
#[derive(Debug)]
pub(super) struct AgentAzallConfig {
    /// `agent_name`, if it is a text.
    pub agent: Option<String>,
    /// `mailbox_dir`, absolute if the file's path is.
    pub mailboxes: PathBuf,
    /// `address_filter` and `filter`.
    pub filters: Filters,
    /// The fault of a filter that does not do what its writer meant.
    pub filter_fault: Option<String>,
}

/// The settings that can change while the store is open.
#[derive(Debug, Default)]
pub(super) struct ReloadableSettings {
    /// Stamp of the file when it was read.
    pub stamp: Option<Stamp>,
    pub filters: Filters,
    /// The reason why the file as it is now is not in use.
    pub fault: Option<String>,
}

impl ReloadableSettings {
    /// Reads the configuration again if it changed.
    pub fn reload(&mut self, file: &Path, mailboxes: &Path, fault: &FaultFlag) {
        let stamp = read_stamp(file);
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        match read_config(file) {
            Ok(read) => {
                let moved = (read.mailboxes != mailboxes).then(|| {
                    let file = file.display();
                    format!("mailbox_dir was changed in {file}; mount again to use the new one")
                });
                self.fault = moved.or(read.filter_fault);
                self.filters = read.filters;
            }
            Err(e) => {
                if e.is_transient() {
                    fault.set();
                }
                self.fault =
                    Some(format!("{e}; the address filter that was read before stays in use"));
            }
        }
    }
}

/// The address filters of a configuration: both spellings of the key count.
#[derive(Clone, Debug, Default)]
pub(super) struct Filters(Vec<Filter>);

impl Filters {
    fn from_config(config: &Value) -> Self {
        Self(list_filter_values(config).map(Filter::from_config).collect())
    }

    /// Returns the reason why mail from this address is not accepted.
    pub fn find_refusal(&self, from: &str) -> Option<String> {
        self.0.iter().find_map(|filter| filter.find_refusal(from))
    }
}

/// Returns the values of both spellings of the key.
fn list_filter_values(config: &Value) -> impl Iterator<Item = &Value> {
    ["address_filter", "filter"].into_iter().filter_map(|key| config.get(key))
}

/// Returns the configuration file of a folder. The path may also be that of the file itself.
pub(super) fn locate_config_file(dir: &Path) -> PathBuf {
    let named_as_file = dir.extension().is_some_and(|e| e == "json") && !dir.is_dir();
    if dir.is_file() || named_as_file { dir.to_owned() } else { dir.join("config.json") }
}

/// Returns the stamp of the file, to notice changes; `None` if there is none.
pub(super) fn read_stamp(file: &Path) -> Option<Stamp> {
    std::fs::metadata(file).ok().map(|m| Stamp::from(&m))
}

/// Reads a configuration.
///
/// # Errors
/// [`StoreError::Invalid`] with a remedy if there is none or it is not a JSON object.
pub(super) fn read_config(file: &Path) -> Result<AgentAzallConfig, StoreError> {
    let shown = file.display();
    // The file is the user's own, so a symbolic link is followed. A FIFO is still not opened.
    let real = std::fs::canonicalize(file).map_err(|e| {
        StoreError::Invalid(if e.kind() == std::io::ErrorKind::NotFound {
            format!(
                "{shown} does not exist and msgfs never makes it; run `agentazall setup`, or set \
                 $AGENTAZALL_CONFIG (or dir in the configuration of msgfs) to the one you have"
            )
        } else {
            format!("{shown} cannot be read: {e}")
        })
    })?;
    let bytes = fs::read_small_file(&real, LIMIT)
        .map_err(|e| StoreError::Invalid(format!("{shown} cannot be read: {e}")))?;
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|e| StoreError::Invalid(format!("{shown} is not JSON ({e}); mend it")))?;
    if !value.is_object() {
        return Err(StoreError::Invalid(format!("{shown} is not a JSON object; mend it")));
    }
    let text = |key: &str| value.get(key).and_then(Value::as_str).filter(|s| !s.is_empty());
    let usable = value.get("mailbox_dir").is_none_or(|v| v.is_null() || v.is_string());
    if !usable || text("mailbox_dir").is_some_and(|text| text.contains('\0')) {
        let why = format!("mailbox_dir in {shown} is not the path of a folder; mend it");
        return Err(StoreError::Invalid(why));
    }
    let folder = file.parent().unwrap_or(Path::new("."));
    let written = folder.join(text("mailbox_dir").unwrap_or("./data/mailboxes"));
    Ok(AgentAzallConfig {
        agent: text("agent_name").map(str::to_owned),
        mailboxes: normalize_path(&written),
        filters: Filters::from_config(&value),
        filter_fault: list_filter_values(&value).find_map(filter::find_odd_list).map(|key| {
            format!(
                "{key} of the address filter in {shown} is no list, so it counts as empty; write it as \
                 [\"eve@*\"]"
            )
        }),
    })
}

/// Returns the mailbox that a configuration describes, for links; `None` if it cannot be read.
pub fn find_mailbox(file: &Path, me: &str) -> Option<PathBuf> {
    super::names::is_mailbox_name(me).then_some(())?;
    read_config(file).ok().map(|config| config.mailboxes.join(me))
}

/// Returns the configurations of other agents of this machine that can be found from mine: in the agent's mailbox,
/// beside the mailboxes, and beside mine.
pub(super) fn list_neighbour_configs(mine: &Path, mailboxes: &Path, agent: &str) -> Vec<PathBuf> {
    let mut out = vec![mailboxes.join(agent).join("config.json")];
    out.extend(mailboxes.parent().map(|p| p.join("config.json")));
    out.extend(list_sibling_configs(mine));
    out.retain(|file| file != mine && file.is_file());
    out.sort_unstable();
    out.dedup();
    out
}

/// Returns a path without `.` and `..`, by its text alone. It may come from another agent's configuration and lead
/// anywhere.
fn normalize_path(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

/// Returns `../*/config.json`, seen from the folder of my configuration. One of the folders there may be the mount that
/// asks. So only real folders of the same file system are searched. The kernel tells which they are without asking the
/// file system of any of them.
pub(super) fn list_sibling_configs(mine: &Path) -> Vec<PathBuf> {
    let Some(above) = mine.parent().and_then(Path::parent) else { return Vec::new() };
    let Some(home) = read_device(above) else { return Vec::new() };
    let Ok(entries) = std::fs::read_dir(above) else { return Vec::new() };
    let folders = entries.flatten().map(|e| e.path()).filter(|p| read_device(p) == Some(home));
    let files = folders.map(|p| p.join("config.json"));
    files.filter(|file| file.symlink_metadata().is_ok_and(|m| m.is_file())).collect()
}

/// Returns the file system of a real folder, as far as the kernel knows it by itself.
fn read_device(folder: &Path) -> Option<(u32, u32)> {
    use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let stat = statx(CWD, folder, flags, StatxFlags::TYPE).ok()?;
    let is_dir = FileType::from_raw_mode(stat.stx_mode.into()).is_dir();
    is_dir.then_some((stat.stx_dev_major, stat.stx_dev_minor))
}

/// Returns true if two paths are one folder.
pub(super) fn is_same_folder(a: &Path, b: &Path) -> bool {
    match (std::fs::canonicalize(a), std::fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_or_the_file_itself() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        assert_eq!(locate_config_file(dir.path()), file);
        assert_eq!(locate_config_file(&dir.path().join("my.json")), dir.path().join("my.json"));
        std::fs::write(dir.path().join("agent.conf"), "{}").unwrap();
        assert_eq!(
            locate_config_file(&dir.path().join("agent.conf")),
            dir.path().join("agent.conf")
        );
    }

    #[test]
    fn defaults_and_relative_folders() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        std::fs::write(&file, r#"{"agent_name": "bob@x"}"#).unwrap();
        let config = read_config(&file).unwrap();
        assert_eq!(config.agent.as_deref(), Some("bob@x"));
        assert_eq!(config.mailboxes, dir.path().join("data/mailboxes"));
        std::fs::write(&file, r#"{"agent_name": 5, "mailbox_dir": "/m"}"#).unwrap();
        let config = read_config(&file).unwrap();
        assert_eq!((config.agent, config.mailboxes), (None, PathBuf::from("/m")));
    }

    #[test]
    fn both_names_of_the_filter_count() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        let black =
            |key: &str| format!(r#"{{"{key}": {{"mode": "blacklist", "blacklist": ["eve@*"]}}}}"#);
        for key in ["address_filter", "filter"] {
            std::fs::write(&file, black(key)).unwrap();
            let filters = read_config(&file).unwrap().filters;
            assert!(filters.find_refusal("eve@x").is_some(), "{key}");
            assert!(filters.find_refusal("bob@x").is_none(), "{key}");
        }
    }

    #[test]
    fn what_cannot_be_used_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        let why = |text: Option<&str>| {
            let _ = std::fs::remove_file(&file);
            if let Some(text) = text {
                std::fs::write(&file, text).unwrap();
            }
            read_config(&file).unwrap_err().to_string()
        };
        assert!(why(None).contains("agentazall setup"));
        assert!(why(Some("{")).contains("is not JSON"));
        assert!(why(Some("[]")).contains("not a JSON object"));
        assert!(why(Some(r#"{"mailbox_dir": 5}"#)).contains("mailbox_dir in"));
        assert!(why(Some(r#"{"mailbox_dir": "a\u0000b"}"#)).contains("mailbox_dir in"));
    }
}
