//! What this machine lacks for a mount, and the command that mends it.

use std::fmt::{self, Display};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use msgfs::fuse;
use msgfs::fuse::mountpoint::shell_word;
use msgfs::store::asked;
use rustix::fs::Access;
use rustix::thread::{CapabilitySet, capabilities};
use serde::Serialize;

use super::failure::system_text;

const DEVICE: &str = "/dev/fuse";
const FUSE_CONF: &str = "/etc/fuse.conf";

/// Something that is missing or wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    pub(crate) severity: Severity,
    /// What it is, in a sentence.
    #[serde(rename = "problem")]
    what: String,
    /// The command that mends it, if one does.
    pub(crate) command: Option<String>,
}

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Something does not work until it is mended.
    Error,
    /// Nothing is kept from working.
    Warning,
}

impl Problem {
    /// An error that no single command mends.
    pub(crate) fn error(what: impl Display) -> Self {
        Self { severity: Severity::Error, what: what.to_string(), command: None }
    }

    /// The same, when nothing is kept from working.
    pub(crate) fn warning(what: impl Display) -> Self {
        Self { severity: Severity::Warning, ..Self::error(what) }
    }

    /// With the command that mends it.
    pub(crate) fn mend(self, command: impl Display) -> Self {
        Self { command: Some(command.to_string()), ..self }
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        f.write_str(&self.what)?;
        match &self.command {
            Some(command) => write!(f, "; mend it with: {command}"),
            None => Ok(()),
        }
    }
}

/// An error and the command that mends it.
fn problem(what: impl Display, mend: impl Display) -> Problem {
    Problem::error(what).mend(mend)
}

/// How a container is started that may mount.
const PRIVILEGED: &str = "docker run --device /dev/fuse --cap-add SYS_ADMIN \
                          --security-opt apparmor=unconfined ...";

/// Whether a mount can really be made, if nothing that it needs is missing.
pub(crate) fn mount_problem(allow_other: bool) -> Option<Problem> {
    let error = fuse::probe(fuse::Options { allow_other, read_only: false }).err()?;
    Some(problem(
        format!(
            "FUSE cannot mount here, though everything it needs is there ({}); all commands but \
             `msgfs mount` work without it",
            system_text(&error)
        ),
        PRIVILEGED,
    ))
}

/// What keeps this process from mounting; `allow_other`: for other users too.
pub(crate) fn fuse_problems(allow_other: bool) -> Vec<Problem> {
    let root = rustix::process::geteuid().is_root();
    let mut problems: Vec<Problem> = device_problem(Path::new(DEVICE), root).into_iter().collect();
    if root {
        if capabilities(None).is_ok_and(|sets| !sets.effective.contains(CapabilitySet::SYS_ADMIN)) {
            problems.push(problem("this container may not mount", PRIVILEGED));
        }
        return problems;
    }
    problems.extend(helper_problem());
    if allow_other {
        let conf = fs::read_to_string(FUSE_CONF).unwrap_or_default();
        if !allows_others(&conf) {
            problems.push(problem(
                format!("{FUSE_CONF} does not let users mount with --allow-other"),
                format!("echo user_allow_other | sudo tee -a {FUSE_CONF}"),
            ));
        }
    }
    problems
}

/// Whether the device can be opened, which the mount itself will have to do.
fn device_problem(device: &Path, root: bool) -> Option<Problem> {
    let error = OpenOptions::new().read(true).write(true).open(device).err()?;
    let sudo = if root { "" } else { "sudo " };
    let shown = device.display();
    Some(match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => problem(
            format!("there is no {shown}"),
            format!("{sudo}modprobe fuse (in a container: start it with --device /dev/fuse)"),
        ),
        Some(libc::EPERM) => problem(
            format!("this container may not use {shown}"),
            "docker run --device /dev/fuse --cap-add SYS_ADMIN ...",
        ),
        Some(libc::EACCES) => {
            problem(format!("you may not open {shown}"), format!("sudo chmod 666 {shown}"))
        }
        _ => Problem::error(format!("{shown}: {error}")),
    })
}

/// Whether the program that mounts for ordinary users is there and may do so.
fn helper_problem() -> Option<Problem> {
    let Some(helper) = in_path("fusermount3") else {
        return Some(problem(
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
    Some(problem(
        format!("{helper} is not setuid root, so it cannot mount"),
        format!("sudo chmod u+s {helper}"),
    ))
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let files = std::env::split_paths(&path).map(|dir| dir.join(program));
    files.into_iter().find(|file| asked::reach(file).is_ok() && file.is_file())
}

fn allows_others(conf: &str) -> bool {
    conf.lines().any(|line| line.trim() == "user_allow_other")
}

/// Whether changes in these folders can be watched.
pub(crate) fn watch_problem(folders: &[PathBuf]) -> Option<Problem> {
    let limit = |name: &str, value: u32| {
        format!("sudo sysctl -w fs.inotify.{name}={value} (to keep it: /etc/sysctl.d/msgfs.conf)")
    };
    let inotify = match inotify::Inotify::init() {
        Ok(inotify) => inotify,
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {
            return Some(problem(
                "no more folders can be watched: all inotify instances are in use",
                limit("max_user_instances", 512),
            ));
        }
        Err(e) => return Some(Problem::error(format!("folders cannot be watched: {e}"))),
    };
    let is_there = |folder: &&PathBuf| asked::reach(folder).is_ok() && folder.is_dir();
    for folder in folders.iter().filter(is_there) {
        match inotify.watches().add(folder, inotify::WatchMask::CREATE) {
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => {
                return Some(problem(
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

/// Whether files can be made in a folder, or in the nearest parent that exists.
pub(crate) fn writable(folder: &Path) -> io::Result<()> {
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
        let problem = device_problem(Path::new("/dev/no-such-fuse"), false).unwrap().to_string();
        assert!(problem.contains("there is no /dev/no-such-fuse"), "{problem}");
        assert!(problem.contains("sudo modprobe fuse"), "{problem}");
        assert_eq!(device_problem(Path::new("/dev/null"), false), None);
    }

    #[test]
    fn settings_are_read_as_their_programs_do() {
        assert!(allows_others("# x\nuser_allow_other\n"));
        assert!(!allows_others("#user_allow_other\nmount_max = 10\n"));
    }

    #[test]
    fn folders_that_can_be_made_are_writable() {
        let tmp = tempfile::tempdir().unwrap();
        assert!(writable(&tmp.path().join("a/b")).is_ok());
        fs::write(tmp.path().join("file"), "").unwrap();
        assert!(writable(&tmp.path().join("file/b")).is_err());
    }
}
