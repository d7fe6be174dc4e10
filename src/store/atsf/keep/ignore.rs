//! The question of git whether a project's threads could get into commits.

use std::path::{Path, PathBuf};

use super::super::roots::{AGENT, GIT, THREADS};
use super::super::{LOG, META, assets, git};

/// The line for a `.gitignore` in the folder of the project.
pub const IGNORE_LINE: &str = "/.agent/threads/";

/// The answer of git on a project's folder of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoreState {
    /// It is in no work tree.
    Outside,
    /// It is in a work tree, which ignores it.
    Ignored,
    /// It is in a work tree, which does not ignore all of it.
    Visible,
    /// It is in a work tree, and git is not here or cannot tell.
    Unknown,
}

/// Returns the folder of a project's threads.
pub fn threads_folder(project: &Path) -> PathBuf {
    project.join(AGENT).join(THREADS)
}

/// Asks whether git ignores the files of a thread of a project, which may not exist yet.
pub fn find_ignore_state(project: &Path, thread: &str) -> IgnoreState {
    let mut folder = std::fs::canonicalize(project).unwrap_or_else(|_| project.to_owned());
    let mut rest = vec![AGENT, THREADS, thread];
    // A folder on the way may be a work tree of its own.
    while let Some((first, below)) =
        rest.split_first().map(|(first, below)| (*first, below.to_vec()))
        && folder.join(first).is_dir()
    {
        folder.push(first);
        rest = below;
    }
    if !folder.ancestors().any(|above| above.join(GIT).symlink_metadata().is_ok()) {
        return IgnoreState::Outside;
    }
    let asset = format!("{}/sha256-0000000000000000.png", assets::FOLDER);
    let path = |file: &str| rest.iter().copied().chain([file]).collect::<Vec<_>>().join("/");
    let paths = [META, LOG, &asset].map(path);
    match git::are_ignored(&folder, &paths.each_ref().map(String::as_str)) {
        Some(true) => IgnoreState::Ignored,
        Some(false) => IgnoreState::Visible,
        None => IgnoreState::Unknown,
    }
}
