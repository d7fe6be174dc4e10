//! `msgfs doctor`: what is missing on this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use msgfs::fuse::mountpoint::{self, MountState, shell_word};
use msgfs::identity::{Identity, KeyError, Keyring};

use super::context::Context;
use super::failure::{Failure, system_text};
use super::machine::{self, Problem};
use super::{Global, output};

/// Find out what is missing, and the commands that mend it
///
/// Looks at FUSE, the configuration, the key, the folders and leftover mounts. Prints one line
/// per problem and exits with 1 if there is any. Nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs doctor\n  msgfs doctor --allow-other")]
pub(crate) struct Args {
    /// Look for what `msgfs mount --allow-other` needs, too
    #[arg(long)]
    allow_other: bool,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let mut problems = machine::fuse_problems(args.allow_other);
    problems.extend(stale_mounts());
    match Context::find(global) {
        Ok(context) => problems.extend(mailbox_problems(&context)),
        // Wrong lines of the configuration, or nobody to act for: the text says what to do.
        Err(failure) => problems.push(Problem::told(failure.to_string())),
    }
    if problems.is_empty() {
        return output::data("nothing is missing\n");
    }
    let lines: Vec<String> = problems.iter().map(|problem| format!("{problem}\n")).collect();
    output::data(&lines.concat())?;
    Err(Failure::Said)
}

/// Mounts whose msgfs has died.
fn stale_mounts() -> Vec<Problem> {
    let mounts = match mountpoint::mounts() {
        Ok(mounts) => mounts,
        Err(e) => return vec![Problem::told(format!("/proc is not usable: {}", system_text(&e)))],
    };
    mountpoint::ours(&mounts)
        .into_iter()
        .filter_map(|mount| {
            let dir = shell_word(mount.mountpoint.as_os_str());
            match mountpoint::state_of(&mount.mountpoint) {
                Ok(MountState::Stale) => Some(Problem::new(
                    format!("the mount at {dir} is stale: its msgfs has died"),
                    format!("msgfs umount {dir}"),
                )),
                Ok(MountState::Hung) => Some(Problem::new(
                    format!("the mount at {dir} does not answer"),
                    format!("msgfs umount --lazy {dir}"),
                )),
                _ => None,
            }
        })
        .collect()
}

fn mailbox_problems(context: &Context) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(state_problems(context));
    problems.extend(key_problems(context));
    let stores = match context.stores() {
        Ok(stores) => stores,
        Err(failure) => {
            problems.push(Problem::told(failure.to_string()));
            return problems;
        }
    };
    for (name, dir) in &stores {
        problems.extend(folder_problem(context, &format!("the store {name}"), dir));
    }
    let folders: Vec<PathBuf> = stores.into_iter().map(|(_, dir)| dir).collect();
    problems.extend(machine::watch_problem(&folders));
    problems
}

fn state_problems(context: &Context) -> Vec<Problem> {
    let state = &context.paths.state;
    let mut problems: Vec<Problem> =
        [("the state folder", state), ("the cache", &context.paths.cache)]
            .into_iter()
            .filter_map(|(what, dir)| folder_problem(context, what, dir))
            .collect();
    if let Ok(meta) = fs::metadata(state)
        && meta.permissions().mode() & 0o022 != 0
    {
        problems.push(Problem::new(
            format!("others can write to the state folder {}", context.shown(state)),
            format!("chmod 700 {}", shell_word(state.as_os_str())),
        ));
    }
    problems
}

fn folder_problem(context: &Context, what: &str, dir: &std::path::Path) -> Option<Problem> {
    let error = machine::writable(dir).err()?;
    let word = shell_word(dir.as_os_str());
    let mend = if rustix::process::geteuid().is_root() {
        format!("mkdir -p {word} && chmod u+rwx {word}")
    } else {
        format!("sudo install -d -o {} -m 700 {word}", rustix::process::geteuid().as_raw())
    };
    Some(Problem::new(
        format!("{what} at {} cannot be written ({})", context.shown(dir), system_text(&error)),
        mend,
    ))
}

fn key_problems(context: &Context) -> Vec<Problem> {
    let mut problems = Vec::new();
    match Identity::load(&context.paths.key_file()) {
        // A missing key is made at first use.
        Ok(_) | Err(KeyError::Missing { .. }) => {}
        Err(e) => problems.push(Problem::told(e.to_string())),
    }
    if let Err(e) = Keyring::open_read_only(&context.paths.keyring_file()) {
        problems.push(Problem::told(e.to_string()));
    }
    problems
}
