//! `msgfs uninstall`: ends what msgfs started, removes its parts from the files of others, and lists what
//! stays.
//!
//! 1. Hooks go first, so that no session starts another waiter. Units follow, so that nothing is started again.
//!    Then the carrying processes end, so that none takes over from a mount. The mounts come last.
//! 2. A process is ended only if it is proved to be a msgfs of this user ([`LockProcess`]). Other processes are named.
//! 3. An exchange of a link is never cut off, because a repeated one may send twice. It ends by itself.
//! 4. No mail, key or configuration is touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use msgfs::config::{Env, LockHolder, LockProcess, Paths};
use msgfs::fuse::mountpoint::{self, MountEntry, MountState, UnmountMode};
use msgfs::hook::harness::ALL;
use msgfs::hook::install;
use msgfs::link::carrier;
use msgfs::model::{display_path, sanitize_line};
use msgfs::store::probe;

use super::context::{self, CommandContext};
use super::failure::Failure;
use super::umount::{self, GONE_WITHIN};
use super::{GlobalOptions, hook, mount_users, output, systemd_units};

const PAUSE: Duration = Duration::from_millis(50);
const FSTAB: &str = "/etc/fstab";

/// End and take out everything that msgfs started or installed, and say what stays
///
/// Unmounts all mounts of this user, also those in use; stops and disables systemd user units; ends `msgfs carry` and the
/// processes that wait for mail in coding agents; takes hooks and standing instructions out of their files. Mail, keys and
/// configuration stay, and so does the program. Exit code 1 if something could not be ended or taken out.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs uninstall --dry-run\n  msgfs uninstall")]
pub(crate) struct Args {
    /// End and write nothing, and print what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Runs `msgfs uninstall`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let env = Env::from_process();
    let context = CommandContext::find(global).ok();
    let mut work = Uninstaller {
        dry_run: args.dry_run,
        done: Vec::new(),
        remaining: Vec::new(),
        is_failed: false,
    };
    let taken = hook::remove_from_harnesses(&env, args.dry_run);
    work.is_failed |= taken.is_refused;
    // A process whose folder is in a mount uses it; this command does not need to.
    std::env::set_current_dir("/").map_err(|e| Failure::from_io("/", &e))?;
    work.end_units(&env);
    let states = context::list_state_folders();
    work.end_carriers(&states);
    work.end_mounts(&states)?;
    work.end_unseen_mounts(&states);
    work.await_exchanges(&states);
    work.list_remaining(&env, context.as_ref());

    let mut text = taken.text;
    text.extend(work.done.iter().flat_map(|line| [line, "\n"]));
    if text.is_empty() {
        text += "nothing of msgfs runs or is installed here\n";
    }
    if !work.remaining.is_empty() {
        text += "What stays:\n";
    }
    text.extend(work.remaining.iter().flat_map(|line| ["  ", line, "\n"]));
    output::print_data(&text)?;
    if work.is_failed { Err(Failure::AlreadyReported) } else { Ok(()) }
}

/// The progress of an uninstall.
struct Uninstaller {
    dry_run: bool,
    /// A line for each thing that was ended or removed.
    done: Vec<String>,
    /// A line for each thing that stays.
    remaining: Vec<String>,
    is_failed: bool,
}

impl Uninstaller {
    /// Records the action that was done to a thing, or would be.
    fn record_done(&mut self, thing: &str, done: &str) {
        let would = if self.dry_run { "would be " } else { "" };
        self.done.push(format!("{thing}: {would}{done}"));
    }

    /// Records a thing that stays although it should not.
    fn record_failure(&mut self, thing: &str, why: &dyn std::fmt::Display) {
        self.is_failed = true;
        output::print_notice(&format!("msgfs: {thing}: {why}"));
    }

    fn end_units(&mut self, env: &Env) {
        let before = self.done.len();
        for unit in &systemd_units::list_units(env) {
            let thing = format!("unit {}", sanitize_line(&unit.name));
            match if self.dry_run { Ok(()) } else { unit.stop_and_disable() } {
                Ok(()) => self.record_done(&thing, "stopped and disabled"),
                Err(e) => self.record_failure(&thing, &e),
            }
        }
        for file in &systemd_units::list_unit_files(env) {
            let thing = format!("unit file {}", env.display_home(&file.path));
            if !file.is_shipped {
                self.remaining.push(format!("{thing}, which was changed or is of another msgfs"));
                continue;
            }
            match if self.dry_run { Ok(()) } else { fs::remove_file(&file.path) } {
                Ok(()) => self.record_done(&thing, "removed"),
                Err(e) => self.record_failure(&thing, &e),
            }
        }
        if !self.dry_run && self.done.len() > before {
            systemd_units::reload_systemd();
        }
    }

    /// Ends a process, and waits for its end.
    fn end_process(&mut self, thing: &str, process: Result<LockProcess, LockHolder>) {
        let process = match process {
            Ok(process) => process,
            Err(holder) => {
                let why = format!(
                    "{holder} is not known here to be a msgfs of yours; it may be in a container"
                );
                return self.record_failure(thing, &why);
            }
        };
        if self.dry_run {
            return self.record_done(thing, "ended");
        }
        match process.terminate() {
            Err(e) => self.record_failure(thing, &e),
            Ok(()) if process.wait_for_end(GONE_WITHIN) => self.record_done(thing, "ended"),
            Ok(()) => self.record_failure(thing, &format!("{} has not ended yet", process.holder)),
        }
    }

    fn end_carriers(&mut self, states: &[PathBuf]) {
        for state in states {
            if let Some(process) = LockProcess::find_carrying(state) {
                self.end_process(&format!("msgfs carry of {}", state_owner(state)), process);
            }
        }
    }

    fn end_mounts(&mut self, states: &[PathBuf]) -> Result<(), Failure> {
        let all = mountpoint::read_mounts()
            .map_err(|e| Failure::from_io("cannot read the mount table", &e))?;
        let me = rustix::process::geteuid().as_raw();
        let mine: Vec<&MountEntry> =
            all.iter().filter(|mount| mount.is_ours() && mount.owner == Some(me)).collect();
        let conditions = mountpoint::mount_states(&mine);
        // Of several mounts at one place the last one is on top.
        for (mount, condition) in mine.into_iter().zip(conditions).rev() {
            self.end_mount(mount, &condition, states);
        }
        Ok(())
    }

    fn end_mount(&mut self, mount: &MountEntry, condition: &MountState, states: &[PathBuf]) {
        let dir = mount.mountpoint.as_path();
        let thing = format!("mount {}", display_path(dir));
        let daemon = umount::find_serving(mount, |is_it| {
            let mut all = states.iter().filter_map(|state| LockProcess::find_acting(state));
            all.find(|process| is_it(holder_of(process)))
        });
        if self.dry_run {
            return self.record_done(&thing, "unmounted");
        }
        let users = mount_users::find_mount_users(dir);
        let taken = match condition {
            // Neither can be asked to let go.
            MountState::Stale | MountState::Hung => {
                mountpoint::unmount_path(dir, UnmountMode::Lazy).map(|()| true)
            }
            _ => mountpoint::unmount_or_detach(dir),
        };
        let is_detached = match taken {
            Ok(is_detached) => is_detached,
            Err(e) => return self.record_failure(&thing, &e),
        };
        let used = is_detached && *condition == MountState::Alive;
        let by = if used {
            format!(", although it was in use by {}", umount::format_users(&users))
        } else {
            String::new()
        };
        self.record_done(&thing, &format!("unmounted{by}"));
        match daemon {
            // Without users it ends by itself and saves everything.
            Some(Ok(process)) if !is_detached && process.wait_for_end(GONE_WITHIN) => {}
            Some(Err(_)) if !is_detached => {}
            Some(process) => {
                self.end_process(&format!("the msgfs of {}", display_path(dir)), process);
            }
            // A read-only mount holds no lock.
            None if used => self.remaining.push(format!(
                "the msgfs of {}, which ends when {} let go",
                display_path(dir),
                umount::format_users(&users)
            )),
            None => {}
        }
    }

    /// Ends the processes whose mount is not seen here, and names running commands.
    fn end_unseen_mounts(&mut self, states: &[PathBuf]) {
        for state in states {
            let Some(process) = LockProcess::find_acting(state) else { continue };
            let holder = holder_of(&process);
            if let Some(dir) = holder.mountpoint.clone() {
                let mounts = mountpoint::read_mounts().unwrap_or_default();
                // A mount that is seen here was handled before.
                if !mounts.iter().any(|mount| holder.may_serve(mount)) {
                    let thing =
                        format!("the msgfs of {}, which is not mounted here", display_path(&dir));
                    self.end_process(&thing, process);
                }
            } else if LockProcess::find_carrying(state).is_none() {
                self.remaining.push(format!(
                    "{holder}, a command that acts for {} and ends by itself",
                    state_owner(state)
                ));
            }
        }
    }

    /// Waits a moment for the exchanges of links, which end by themselves.
    fn await_exchanges(&mut self, states: &[PathBuf]) {
        let at_work =
            || states.iter().map(|state| carrier::count_carriers(&state.join("links"))).sum();
        let mut count: usize = at_work();
        let deadline = Instant::now() + GONE_WITHIN;
        while count > 0 && !self.dry_run && Instant::now() < deadline {
            thread::sleep(PAUSE);
            count = at_work();
        }
        if count > 0 {
            self.remaining.push(format!(
                "{count} of the exchanges of links; each ends by itself, so that nothing is sent twice"
            ));
        }
    }

    /// Lists the user's own files, which stay.
    fn list_remaining(&mut self, env: &Env, context: Option<&CommandContext>) {
        let mut name = |what: &str, path: &Path| {
            // A path that does not answer stays, too.
            if probe::require_response(path).is_err() || path.exists() {
                self.remaining.push(format!("{what}: {}", env.display_home(path)));
            }
        };
        for (store, dir) in
            context.and_then(|context| context.store_folders().ok()).into_iter().flatten()
        {
            name(&format!("mail of the store {}", sanitize_line(&store)), &dir);
        }
        // Any valid name leads to the folders that all names share.
        let paths =
            context.map(|context| context.paths.clone()).or_else(|| Paths::new(env, "x").ok());
        let above = |path: &Path| path.parent().map(Path::to_owned).unwrap_or_default();
        if let Some(paths) = paths {
            name("keys, marks and unsent drafts", &above(&paths.state));
            let file = context
                .map_or_else(|| paths.config.join("config.toml"), CommandContext::config_file);
            name("configuration", &file);
            name("cache, which can be removed", &above(&paths.cache));
        }
        for file in install::list_all_backups(env) {
            name("what a file was before msgfs changed it", &file);
        }
        for harness in &ALL {
            let plugin = install::plugin::find_enabled_plugin(env, harness);
            self.remaining.extend(plugin.map(|plugin| {
                let id = plugin.id;
                format!("the plugin of {}: claude plugin uninstall {id}", harness.title)
            }));
        }
        self.remaining.extend(list_fstab_entries());
        let program = std::env::current_exe().ok();
        self.remaining
            .extend(program.map(|program| format!("the program: {}", env.display_home(&program))));
    }
}

/// Returns the holder of a lock, proved or not.
fn holder_of(process: &Result<LockProcess, LockHolder>) -> &LockHolder {
    process.as_ref().map_or_else(|holder| holder, |process| &process.holder)
}

/// Returns the name that a state folder is for.
fn state_owner(state: &Path) -> String {
    sanitize_line(&state.file_name().unwrap_or_default().to_string_lossy()).into_owned()
}

/// Returns the lines of fstab that mount msgfs; the file belongs to root.
fn list_fstab_entries() -> Vec<String> {
    let text = fs::read_to_string(FSTAB).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let of_type = |line: &str| {
        let mut words = line.split_whitespace();
        let dir = words.nth(1)?;
        (words.next() == Some(mountpoint::FSTYPE)).then(|| sanitize_line(dir).into_owned())
    };
    lines.filter_map(of_type).map(|dir| format!("a line of {FSTAB}: {dir}")).collect()
}
