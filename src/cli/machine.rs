//! The requirements of a mount that this machine lacks, and the commands that mend them.

use std::fmt::{self, Display};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use msgfs::fuse;
use msgfs::fuse::mountpoint::shell_word;
use msgfs::store::probe;
use rustix::fs::Access;
use rustix::thread::{CapabilitySet, capabilities};
use serde::Serialize;

use super::failure::format_io_error;

const DEVICE: &str = "/dev/fuse";
const FUSE_CONF: &str = "/etc/fuse.conf";

/// A problem of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DoctorProblem {
    pub(crate) severity: ProblemSeverity,
    /// The problem, in a sentence.
    #[serde(rename = "problem")]
    what: String,
    /// The command that mends it, if there is one.
    pub(crate) command: Option<String>,
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProblemSeverity {
    /// A function does not work until the problem is mended.
    Error,
    /// Everything still works.
    Warning,
}

impl DoctorProblem {
    /// Returns an error that no single command mends.
    pub(crate) fn error(what: impl Display) -> Self {
        Self { severity: ProblemSeverity::Error, what: what.to_string(), command: None }
    }

    /// Returns a warning that no single command mends.
    pub(crate) fn warning(what: impl Display) -> Self {
        Self { severity: ProblemSeverity::Warning, ..Self::error(what) }
    }

    /// Adds the command that mends the problem.
    pub(crate) fn with_remedy(self, command: impl Display) -> Self {
        Self { command: Some(command.to_string()), ..self }
    }
}

impl Display for DoctorProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.severity == ProblemSeverity::Warning {
            f.write_str("warning: ")?;
        }
        f.write_str(&self.what)?;
        match &self.command {
            Some(command) => write!(f, "; mend it with: {command}"),
            None => Ok(()),
        }
    }
}

/// Returns an error with the command that mends it.
fn error_with_remedy(what: impl Display, mend: impl Display) -> DoctorProblem {
    DoctorProblem::error(what).with_remedy(mend)
}

/// The command that starts a container which may mount.
const PRIVILEGED: &str = "docker run --device /dev/fuse --cap-add SYS_ADMIN \
                          --security-opt apparmor=unconfined ...";

/// Tries to mount, if nothing that a mount needs is missing. Returns the problem if it fails.
pub(crate) fn probe_mount(allow_other: bool) -> Option<DoctorProblem> {
    let error = fuse::probe_mount(fuse::MountOptions { allow_other, read_only: false }).err()?;
    Some(error_with_remedy(
        format!(
            "FUSE cannot mount here, though everything it needs is there ({}); all commands but \
             `msgfs mount` work without it",
            format_io_error(&error)
        ),
        PRIVILEGED,
    ))
}

/// Returns the problems that keep this process from mounting; `allow_other`: for other users too.
pub(crate) fn find_fuse_problems(allow_other: bool) -> Vec<DoctorProblem> {
    let root = rustix::process::geteuid().is_root();
    let mut problems: Vec<DoctorProblem> =
        find_device_problem(Path::new(DEVICE), root).into_iter().collect();
    if root {
        if capabilities(None).is_ok_and(|sets| !sets.effective.contains(CapabilitySet::SYS_ADMIN)) {
            problems.push(error_with_remedy("this container may not mount", PRIVILEGED));
        }
        return problems;
    }
    problems.extend(find_helper_problem());
    if allow_other {
        let conf = fs::read_to_string(FUSE_CONF).unwrap_or_default();
        if !has_user_allow_other(&conf) {
            problems.push(error_with_remedy(
                format!("{FUSE_CONF} does not let users mount with --allow-other"),
                format!("echo user_allow_other | sudo tee -a {FUSE_CONF}"),
            ));
        }
    }
    problems
}

/// Returns the problem if the device cannot be opened, which the mount itself must do.
fn find_device_problem(device: &Path, root: bool) -> Option<DoctorProblem> {
    let error = OpenOptions::new().read(true).write(true).open(device).err()?;
    let sudo = if root { "" } else { "sudo " };
    let shown = device.display();
    Some(match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => error_with_remedy(
            format!("there is no {shown}"),
            format!("{sudo}modprobe fuse (in a container: start it with --device /dev/fuse)"),
        ),
        Some(libc::EPERM) => error_with_remedy(
            format!("this container may not use {shown}"),
            "docker run --device /dev/fuse --cap-add SYS_ADMIN ...",
        ),
        Some(libc::EACCES) => error_with_remedy(
            format!("you may not open {shown}"),
            format!("sudo chmod 666 {shown}"),
        ),
        _ => DoctorProblem::error(format!("{shown}: {error}")),
    })
}

/// Returns the problem if the program that mounts for ordinary users is missing or may not mount.
fn find_helper_problem() -> Option<DoctorProblem> {
    let Some(helper) = find_in_path("fusermount3") else {
        return Some(error_with_remedy(
            "fusermount3 is missing, which mounts for ordinary users",
            "sudo apt-get install fuse3",
        ));
    };
    let mode = fs::metadata(&helper).map_or(0, |meta| meta.permissions().mode());
    // Some distributions use a file capability instead of the setuid bit.
    let capable = rustix::fs::getxattr(&helper, "security.capability", &mut [0u8; 64][..]).is_ok();
    if mode & 0o4000 != 0 || capable {
        return None;
    }
    let helper = shell_word(helper.as_os_str());
    Some(error_with_remedy(
        format!("{helper} is not setuid root, so it cannot mount"),
        format!("sudo chmod u+s {helper}"),
    ))
}

fn find_in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let files = std::env::split_paths(&path).map(|dir| dir.join(program));
    files.into_iter().find(|file| probe::require_response(file).is_ok() && file.is_file())
}

fn has_user_allow_other(conf: &str) -> bool {
    conf.lines().any(|line| line.trim() == "user_allow_other")
}

/// Returns the problem if changes in these folders cannot be watched.
pub(crate) fn find_watch_problem(folders: &[PathBuf]) -> Option<DoctorProblem> {
    let limit = |name: &str, value: u32| {
        format!("sudo sysctl -w fs.inotify.{name}={value} (to keep it: /etc/sysctl.d/msgfs.conf)")
    };
    let inotify = match inotify::Inotify::init() {
        Ok(inotify) => inotify,
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {
            return Some(error_with_remedy(
                "no more folders can be watched: all inotify instances are in use",
                limit("max_user_instances", 512),
            ));
        }
        Err(e) => return Some(DoctorProblem::error(format!("folders cannot be watched: {e}"))),
    };
    let is_there = |folder: &&PathBuf| probe::require_response(folder).is_ok() && folder.is_dir();
    for folder in folders.iter().filter(is_there) {
        match inotify.watches().add(folder, inotify::WatchMask::CREATE) {
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => {
                return Some(error_with_remedy(
                    "no more folders can be watched: all inotify watches are in use",
                    limit("max_user_watches", 524_288),
                ));
            }
            // Unreadable folders are reported as such elsewhere.
            _ => {}
        }
    }
    None
}

/// Checks that files can be made in a folder, or in the nearest parent that exists.
pub(crate) fn check_writable(folder: &Path) -> io::Result<()> {
    let existing = folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if !existing.is_dir() {
        return Err(rustix::io::Errno::NOTDIR.into());
    }
    Ok(rustix::fs::access(existing, Access::WRITE_OK | Access::EXEC_OK)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_is_told_with_the_command() {
        let problem =
            find_device_problem(Path::new("/dev/no-such-fuse"), false).unwrap().to_string();
        assert!(problem.contains("there is no /dev/no-such-fuse"), "{problem}");
        assert!(problem.contains("sudo modprobe fuse"), "{problem}");
        assert_eq!(find_device_problem(Path::new("/dev/null"), false), None);
    }

    #[test]
    fn settings_are_read_as_their_programs_do() {
        assert!(has_user_allow_other("# x\nuser_allow_other\n"));
        assert!(!has_user_allow_other("#user_allow_other\nmount_max = 10\n"));
    }

    #[test]
    fn folders_that_can_be_made_are_writable() {
        let tmp = tempfile::tempdir().unwrap();
        assert!(check_writable(&tmp.path().join("a/b")).is_ok());
        fs::write(tmp.path().join("file"), "").unwrap();
        assert!(check_writable(&tmp.path().join("file/b")).is_err());
    }
}
