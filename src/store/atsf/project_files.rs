//! The files of a project before its first thread: `.agent/config.json` and `.agent/.gitignore`. Existing files are
//! never changed.

use std::io::{self, Write as _};
use std::path::Path;

use super::roots::{AGENT, THREADS};
use super::thread::{VERSION, check_version};
use crate::store::atomic_file::FileSlot;
use crate::store::text::json_values::{as_object, as_text, pick_members};
use crate::store::{StoreError, confined, fs};

const CONFIG: &str = "config.json";
const IGNORE: &str = ".gitignore";
const MAX_CONFIG: usize = 4 << 20;

/// The patterns of the format's own default, which keep conversations out of commits.
const PATTERNS: &str = "\
# Agent Thread Storage Format - default .gitignore
# Conversation threads are not committed by default.
# They can be large and may contain sensitive content.

# Ignore message logs and binary assets
threads/*/messages.jsonl
threads/*/assets/
";

/// Creates the missing files.
///
/// # Errors
/// The error of the system.
pub(super) fn create_project_files(project: &Path) -> Result<(), StoreError> {
    let path = project.join(AGENT);
    let io = |e| StoreError::io(&path, e);
    confined::make_dir(project, &[AGENT, THREADS], 0o755).map_err(io)?;
    let dir = confined::open_dir(project, &[AGENT]).map_err(io)?;
    let config = format!(
        "{{\n  \"specVersion\": \"{VERSION}\",\n  \"createdBy\": {{\n    \"name\": \"msgfs\",\n    \
         \"version\": \"{}\"\n  }}\n}}\n",
        env!("CARGO_PKG_VERSION")
    );
    for (name, contents) in [(CONFIG, config.as_str()), (IGNORE, PATTERNS)] {
        if confined::stat(&dir, name).is_ok() {
            continue;
        }
        match FileSlot::new(&dir, name)
            .create_with(0o644, |file| file.write_all(contents.as_bytes()))
        {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            other => other.map_err(io)?,
        }
    }
    fs::fsync(&dir).map_err(io)
}

/// Returns the agent that the project prefers; `None` if it names none, or if its version is not supported.
pub(super) fn read_preferred_agent(project: &Path) -> Option<String> {
    let file = confined::open_path(project, &[AGENT, CONFIG]).ok()?;
    let (_, bytes) = confined::read_whole(&file, MAX_CONFIG).ok()?;
    let config = String::from_utf8(bytes).ok()?;
    let [version, defaults] = pick_members(&config, ["specVersion", "defaults"])?;
    check_version(&as_text(version.as_ref())?).ok()?;
    let [agent] = pick_members(as_object(defaults.as_ref())?, ["agentId"])?;
    as_text(agent.as_ref()).map(std::borrow::Cow::into_owned).filter(|agent| !agent.is_empty())
}
