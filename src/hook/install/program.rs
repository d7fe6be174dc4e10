//! The program that hooks call: its path, which must stay valid.

use std::path::{Path, PathBuf};

use crate::config::Env;
use crate::model::display_path;

/// The reason why the hooks cannot call this msgfs, in a sentence.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// A program that disappears as soon as something is built or cleaned up.
    #[error(
        "{} may be gone soon, because it is in a {}; install msgfs first ({}), and run this again",
        display_path(.0),
        .1.what,
        .1.install
    )]
    Temporary(PathBuf, &'static TemporaryPlace),
    /// No absolute path that can be written into a command.
    #[error(
        "msgfs is not on the PATH, and it was not called by an absolute path whose last part is msgfs"
    )]
    NoAbsolutePath,
}

/// Returns the command that calls msgfs from a shell: the path of the first one on the PATH, symlinks kept; else the
/// path of this process.
///
/// # Errors
/// [`ProgramError`].
pub fn locate_program(env: &Env, called: &Path) -> Result<String, ProgramError> {
    let called = || {
        let has_folder = called.components().count() > 1;
        if has_folder { env.make_absolute(called) } else { called.into() }
    };
    let path = find_on_path(env, "msgfs").unwrap_or_else(called);
    if let Some(place) = find_temporary_place(&path) {
        return Err(ProgramError::Temporary(path, place));
    }
    let text = path.to_str().filter(|text| !text.contains(char::is_control));
    let text = text.filter(|_| path.is_absolute() && path.ends_with("msgfs"));
    text.map(str::to_owned).ok_or(ProgramError::NoAbsolutePath)
}

/// A kind of place in which no program stays.
#[derive(Debug)]
pub struct TemporaryPlace {
    what: &'static str,
    /// The command that puts the same program where it stays.
    install: &'static str,
}

const BUILD: TemporaryPlace = TemporaryPlace {
    what: "folder of a build",
    install: "cargo install --locked --path ., in its source",
};
const NPX: TemporaryPlace = TemporaryPlace {
    what: "cache of npx",
    install: "npm install --global, with the packages that npx was given",
};
const UVX: TemporaryPlace = TemporaryPlace {
    what: "cache of uvx",
    install: "uv tool install, with the wheel that uvx was given",
};

/// Returns the kind of place a program is in, if it does not stay there.
fn find_temporary_place(path: &Path) -> Option<&'static TemporaryPlace> {
    let mut parts = path.components().filter_map(|part| part.as_os_str().to_str());
    parts.find_map(|part| match part {
        "target" => Some(&BUILD),
        "_npx" => Some(&NPX),
        part if part.starts_with("archive-v") || part.starts_with("environments-v") => Some(&UVX),
        _ => None,
    })
}

/// Returns the first program of this name on the PATH.
pub(super) fn find_on_path(env: &Env, program: &str) -> Option<PathBuf> {
    let folders = env.var("PATH").map(std::env::split_paths).into_iter().flatten();
    // A relative path depends on the current folder.
    let mut files =
        folders.filter(|folder| folder.is_absolute()).map(|folder| folder.join(program));
    files.find(|file| is_executable(file))
}

/// Returns true if a path is a file that can be executed.
pub(super) fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}
