//! `msgfs mount`: the request for a mount, and its folder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use msgfs::config::Paths;
use msgfs::fuse::mountpoint::{self, MountState, UnmountMode, shell_word};
use msgfs::mailbox::MailboxOptions;
use msgfs::store::fs::{lock_with_timeout, make_dirs};
use msgfs::store::probe;

use super::context;
use super::failure::{Failure, refuse};
use super::mount_options;
use super::serve::{MountEvent, MountReporter};
use super::{GlobalOptions, daemon, serve};

/// The longest wait for another msgfs that is just mounting on the same folder.
const OTHER_MOUNT: Duration = Duration::from_secs(10);

/// Mount my mail on a folder
///
/// The command returns when the mount answers. It prints the folder, the name that it acts for, the
/// reason for that name, the fingerprint of my key, the number of unread messages, and the stores.
/// README.txt in the mount explains how to use it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs mount\n  msgfs mount --me reviewer ~/review-mail\n  \
    msgfs mount -f --read-only /mnt/mail\n  msgfs mount -o me=foo,ro /mnt/mail   # as in fstab")]
pub(crate) struct Args {
    /// The folder to mount on [default: ~/mail]. It must be empty. msgfs makes it if it is missing
    dir: Option<PathBuf>,
    /// Stay in the foreground and log to standard error
    #[arg(short, long)]
    foreground: bool,
    /// Change nothing: mark no message as read, send nothing, take no lock
    #[arg(long)]
    read_only: bool,
    /// Let other users of this machine read the mount
    #[arg(long)]
    allow_other: bool,
    /// The options of mount(8).
    #[arg(
        short = 'o',
        value_name = "OPTIONS",
        value_parser = mount_options::parse,
        help = "Options as in fstab: me=NAME, config=FILE, ro, allow_other. General options of mount(8) are ignored"
    )]
    options: Vec<MailboxOptions>,
    /// Serve as the background half of `msgfs mount`, reporting on standard output
    #[arg(long, hide = true, conflicts_with = "foreground")]
    as_daemon: bool,
}

/// A request for a mount, from options and `-o` together.
#[derive(Clone, Debug)]
pub(crate) struct MountRequest {
    pub(crate) options: MailboxOptions,
    pub(crate) dir: PathBuf,
    pub(crate) foreground: bool,
}

/// Runs `msgfs mount`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    if args.as_daemon {
        let report = daemon::detach_session().map_err(|e| Failure::from_io("cannot detach", &e))?;
        return daemon::serve_detached(build_request(global, args)?, report);
    }
    let order = build_request(global, args)?;
    if args.foreground { serve::serve_in_foreground(&order) } else { daemon::start(&order) }
}

fn build_request(global: &GlobalOptions, args: &Args) -> Result<MountRequest, Failure> {
    let (read_only, allow_other) = (args.read_only, args.allow_other);
    let mut options = MailboxOptions { read_only, allow_other, ..global.mailbox_options() };
    for more in &args.options {
        options.me = options.me.or_else(|| more.me.clone());
        options.config = options.config.or_else(|| more.config.clone());
        options.read_only |= more.read_only;
        options.allow_other |= more.allow_other;
    }
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => context::home_folder()?.join("mail"),
    };
    let absolute = |path: PathBuf| {
        std::path::absolute(&path).map_err(|e| Failure::from_io(path.display(), &e))
    };
    options.config = options.config.map(absolute).transpose()?;
    Ok(MountRequest { options, dir: absolute(dir)?, foreground: args.foreground })
}

/// A folder that can be mounted on.
pub(crate) struct MountTarget {
    /// The path without symbolic links.
    pub(crate) dir: PathBuf,
    was_created: bool,
}

impl MountTarget {
    /// Undoes [`prepare_target`] after a mount that failed.
    pub(crate) fn undo_preparation(&self) {
        if self.was_created {
            // Only an empty folder is removed; anything in it was put there by somebody else.
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

/// Makes sure that a folder exists, is empty and has nothing mounted on it. A stale mount of ours is removed
/// first, because nothing else can be asked of the folder before.
pub(crate) fn prepare_target(
    dir: &Path,
    report: MountReporter<'_>,
) -> Result<MountTarget, Failure> {
    let shown = shell_word(dir.as_os_str());
    match mountpoint::mount_state(dir).map_err(|e| Failure::from_io(&shown, &e))? {
        MountState::Stale => {
            let stale =
                mountpoint::resolve_mountpoint(dir).map_err(|e| Failure::from_io(&shown, &e))?;
            mountpoint::unmount_path(&stale, UnmountMode::Lazy).map_err(Failure::refused)?;
            let told = format!("removed a dead mount at {shown} (its msgfs had died)");
            report(MountEvent::Notice(told))?;
        }
        state => refuse_mounted(&state, &shown)?,
    }
    let made = !dir.exists();
    if made {
        make_dirs(dir, 0o700).map_err(|e| {
            let why = Failure::from_io(format!("cannot make {shown}"), &e);
            Failure::refused(format!("{why}; choose another folder"))
        })?;
    }
    let empty = fs::read_dir(dir).map_err(|e| match e.kind() {
        io::ErrorKind::NotADirectory => {
            Failure::refused(format!("{shown} is not a folder; choose another place"))
        }
        _ => Failure::from_io(&shown, &e),
    })?;
    if empty.take(1).count() > 0 {
        refuse!("{shown} is not empty, and a mount would hide its files; choose another folder");
    }
    let dir = fs::canonicalize(dir).map_err(|e| Failure::from_io(&shown, &e))?;
    Ok(MountTarget { dir, was_created: made })
}

/// Refuses a folder on which something is mounted.
fn refuse_mounted(state: &MountState, shown: &str) -> Result<(), Failure> {
    match state {
        MountState::NotMounted => Ok(()),
        MountState::Hung => refuse!(
            "{shown} is mounted already, and its msgfs does not answer; to remove this mount: \
                 msgfs umount --lazy {shown}"
        ),
        MountState::Alive | MountState::Stale => {
            refuse!("{shown} is mounted already; to unmount it: msgfs umount {shown}")
        }
        MountState::Foreign(kind) => {
            refuse!("something else ({kind}) is mounted at {shown}; choose another folder")
        }
    }
}

/// Locks a prepared folder until it is mounted on, and checks again that nothing is mounted there. So of two mounts
/// that begin together, the second finds the first. The lock is one on the folder itself and leaves no file in it.
pub(crate) fn lock_target(target: &MountTarget) -> Result<File, Failure> {
    let shown = shell_word(target.dir.as_os_str());
    let failed = |e: io::Error| Failure::from_io(&shown, &e);
    let require_free =
        || refuse_mounted(&mountpoint::mount_state(&target.dir).map_err(failed)?, &shown);
    // A mount that is there now may not answer, so it is not opened.
    require_free()?;
    let folder = File::open(&target.dir).map_err(failed)?;
    // On a file system that locks no folder, only the check protects.
    if matches!(lock_with_timeout(&folder, OTHER_MOUNT), Ok(false)) {
        refuse!("another program has locked {shown}, maybe to mount there; try again");
    }
    require_free()?;
    Ok(folder)
}

/// Refuses a mount that would contain its own store or state: a read would ask the mount, which would ask
/// itself, for ever. A mount point inside a store is refused too, because other programs would take it for part
/// of the store.
pub(crate) fn refuse_recursion(
    dir: &Path,
    paths: &Paths,
    stores: &[(String, PathBuf)],
) -> Result<(), Failure> {
    let shown = shell_word(dir.as_os_str());
    let own = [("state folder", &paths.state), ("cache folder", &paths.cache)];
    for (what, path) in own {
        if mountpoint::contains(dir, &canonicalize_existing(path)) {
            refuse!(
                "the {what} {} lies below {shown}; mount on another folder",
                shell_word(path.as_os_str())
            );
        }
    }
    for (name, path) in stores {
        let store = canonicalize_existing(path);
        let (inner, outer) = if mountpoint::contains(dir, &store) {
            ("the store", "the mount point")
        } else if mountpoint::contains(&store, dir) {
            ("the mount point", "the store")
        } else {
            continue;
        };
        refuse!(
            "{inner} would lie inside {outer} (store {name}: {}, mount point: {shown}); mount \
             on another folder",
            shell_word(path.as_os_str())
        );
    }
    Ok(())
}

/// Returns the path without symbolic links, as far as it exists.
fn canonicalize_existing(path: &Path) -> PathBuf {
    if probe::require_response(path).is_err() {
        return path.to_owned();
    }
    for known in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (fs::canonicalize(known), path.strip_prefix(known)) {
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn silently(dir: &Path) -> Result<MountTarget, Failure> {
        prepare_target(dir, &mut |_| Ok(()))
    }

    fn refusal(dir: &Path) -> String {
        silently(dir).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn a_missing_folder_is_made_private_and_taken_back() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("a/mail");
        let target = silently(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        target.undo_preparation();
        assert!(!dir.exists());
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let tmp = tempfile::tempdir().unwrap();
        fs::write(tmp.path().join("file"), "x").unwrap();
        assert!(refusal(&tmp.path().join("file")).contains("not a folder"));
        assert!(refusal(tmp.path()).contains("not empty"));
        assert!(refusal(Path::new("/proc")).contains("something else (proc)"));
        let kept = tmp.path().join("kept");
        fs::create_dir(&kept).unwrap();
        silently(&kept).unwrap().undo_preparation();
        assert!(kept.exists(), "a folder that was there stays");
    }

    #[test]
    fn recursion_is_refused_through_links_and_for_folders_to_come() {
        let tmp = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(tmp.path()).unwrap();
        let mail = base.join("mail");
        fs::create_dir(&mail).unwrap();
        symlink(&mail, base.join("link")).unwrap();
        let paths = Paths {
            state: base.join("state/foo"),
            cache: base.join("cache/foo"),
            config: base.join("config"),
        };
        let with = |dir: &Path, store: &str| {
            let stores = [("samp".to_owned(), base.join(store))];
            refuse_recursion(dir, &paths, &stores).is_err()
        };
        assert!(!with(&mail, "store"));
        assert!(!with(&mail, "mailbox"));
        assert!(with(&mail, "mail/store"));
        assert!(with(&mail, "link/not/yet"));
        assert!(with(&mail, "."));
        assert!(with(&base.join("state"), "store"));
        assert!(with(&base.join("cache"), "store"));
    }
}
