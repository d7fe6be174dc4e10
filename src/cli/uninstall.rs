//! `msgfs uninstall`: ends what msgfs started, takes out what it wrote into the files of others, and says what stays.
//!
//! 1. Hooks go first, so that no session starts another waiter; then units, so that nothing is started again; then
//!    what carries, so that it does not take the place of a mount; then the mounts.
//! 2. A process is ended only if it is proved to be a msgfs of this user ([`LockProcess`]). What is not proved is named.
//! 3. An exchange of a link is never cut off: whoever is asked twice may send twice. It ends by itself.
//! 4. No mail, key or configuration is touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use msgfs::config::{Env, Holder, LockProcess, Paths};
use msgfs::fuse::mountpoint::{self, MountEntry, MountState, Unmount};
use msgfs::hook::harness::ALL;
use msgfs::hook::install;
use msgfs::link::job;
use msgfs::model::{one_line, shown_path};
use msgfs::store::asked;

use super::context::{self, Context};
use super::failure::Failure;
use super::umount::{self, GONE_WITHIN};
use super::{Global, hook, output, units, users};

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

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let env = Env::from_process();
    let context = Context::find(global).ok();
    let mut work =
        Removal { dry_run: args.dry_run, done: Vec::new(), left: Vec::new(), is_failed: false };
    let taken = hook::take_all(&env, args.dry_run);
    work.is_failed |= taken.is_refused;
    // Whoever stands in a mount and asks for its end uses it; this command need not.
    std::env::set_current_dir("/").map_err(|e| Failure::io("/", &e))?;
    work.end_units(&env);
    let states = context::state_folders();
    work.end_carriers(&states);
    work.end_mounts(&states)?;
    work.end_others(&states);
    work.await_exchanges(&states);
    work.name_what_stays(&env, context.as_ref());

    let mut text = taken.text;
    text.extend(work.done.iter().flat_map(|line| [line, "\n"]));
    if text.is_empty() {
        text += "nothing of msgfs runs or is installed here\n";
    }
    if !work.left.is_empty() {
        text += "What stays:\n";
    }
    text.extend(work.left.iter().flat_map(|line| ["  ", line, "\n"]));
    output::data(&text)?;
    if work.is_failed { Err(Failure::Said) } else { Ok(()) }
}

/// The progress of an uninstall: a line for each thing that goes or stays.
struct Removal {
    dry_run: bool,
    /// A line for each thing that is dealt with.
    done: Vec<String>,
    /// A line for each thing that stays.
    left: Vec<String>,
    is_failed: bool,
}

impl Removal {
    /// Notes what was done to a thing, or would be.
    fn note(&mut self, thing: &str, done: &str) {
        let would = if self.dry_run { "would be " } else { "" };
        self.done.push(format!("{thing}: {would}{done}"));
    }

    /// Notes that a thing stays although it should not.
    fn fail(&mut self, thing: &str, why: &dyn std::fmt::Display) {
        self.is_failed = true;
        output::say(&format!("msgfs: {thing}: {why}"));
    }

    fn end_units(&mut self, env: &Env) {
        let before = self.done.len();
        for unit in &units::list_units(env) {
            let thing = format!("unit {}", one_line(&unit.name));
            match if self.dry_run { Ok(()) } else { unit.take() } {
                Ok(()) => self.note(&thing, "stopped and disabled"),
                Err(e) => self.fail(&thing, &e),
            }
        }
        for file in &units::list_unit_files(env) {
            let thing = format!("unit file {}", env.display_home(&file.path));
            if !file.is_shipped {
                self.left.push(format!("{thing}, which was changed or is of another msgfs"));
                continue;
            }
            match if self.dry_run { Ok(()) } else { fs::remove_file(&file.path) } {
                Ok(()) => self.note(&thing, "removed"),
                Err(e) => self.fail(&thing, &e),
            }
        }
        if !self.dry_run && self.done.len() > before {
            units::reload();
        }
    }

    /// Ends a process, and waits for its end.
    fn end_process(&mut self, thing: &str, process: Result<LockProcess, Holder>) {
        let process = match process {
            Ok(process) => process,
            Err(holder) => {
                let why = format!(
                    "{holder} is not known here to be a msgfs of yours; it may be in a container"
                );
                return self.fail(thing, &why);
            }
        };
        if self.dry_run {
            return self.note(thing, "ended");
        }
        match process.end() {
            Err(e) => self.fail(thing, &e),
            Ok(()) if process.ends_within(GONE_WITHIN) => self.note(thing, "ended"),
            Ok(()) => self.fail(thing, &format!("{} has not ended yet", process.holder)),
        }
    }

    fn end_carriers(&mut self, states: &[PathBuf]) {
        for state in states {
            if let Some(process) = LockProcess::carrying(state) {
                self.end_process(&format!("msgfs carry of {}", me_of(state)), process);
            }
        }
    }

    fn end_mounts(&mut self, states: &[PathBuf]) -> Result<(), Failure> {
        let all =
            mountpoint::mounts().map_err(|e| Failure::io("cannot read the mount table", &e))?;
        let me = rustix::process::geteuid().as_raw();
        let mine: Vec<&MountEntry> =
            all.iter().filter(|mount| mount.is_ours() && mount.owner == Some(me)).collect();
        let conditions = mountpoint::states_of(&mine);
        // Of several at one place the last one is on top.
        for (mount, condition) in mine.into_iter().zip(conditions).rev() {
            self.end_mount(&mount.mountpoint, &condition, states);
        }
        Ok(())
    }

    fn end_mount(&mut self, dir: &Path, condition: &MountState, states: &[PathBuf]) {
        let thing = format!("mount {}", shown_path(dir));
        let has_it = |process: &Result<LockProcess, Holder>| {
            let holder = process.as_ref().map_or_else(|holder| holder, |process| &process.holder);
            holder.mountpoint.as_deref() == Some(dir)
        };
        let daemon = states.iter().filter_map(|state| LockProcess::acting(state)).find(has_it);
        if self.dry_run {
            return self.note(&thing, "unmounted");
        }
        let users = users::of(dir);
        let taken = match condition {
            // Neither can be asked to let go.
            MountState::Stale | MountState::Hung => {
                mountpoint::unmount(dir, Unmount::Lazy).map(|()| true)
            }
            _ => mountpoint::unmount_now(dir),
        };
        let is_detached = match taken {
            Ok(is_detached) => is_detached,
            Err(e) => return self.fail(&thing, &e),
        };
        let used = is_detached && *condition == MountState::Alive;
        let by = if used {
            format!(", although it was in use by {}", umount::names(&users))
        } else {
            String::new()
        };
        self.note(&thing, &format!("unmounted{by}"));
        match daemon {
            // Without users it ends by itself, and writes down what it has.
            Some(Ok(process)) if !is_detached && process.ends_within(GONE_WITHIN) => {}
            Some(Err(_)) if !is_detached => {}
            Some(process) => {
                self.end_process(&format!("the msgfs of {}", shown_path(dir)), process);
            }
            // A read-only one holds no lock.
            None if used => self.left.push(format!(
                "the msgfs of {}, which ends when {} let go",
                shown_path(dir),
                umount::names(&users)
            )),
            None => {}
        }
    }

    /// Ends those whose mount is not seen here, and names commands that are at work.
    fn end_others(&mut self, states: &[PathBuf]) {
        for state in states {
            let Some(process) = LockProcess::acting(state) else { continue };
            let holder = process.as_ref().map_or_else(|holder| holder, |process| &process.holder);
            if let Some(dir) = holder.mountpoint.clone() {
                let mounts = mountpoint::mounts().unwrap_or_default();
                // It was noted with its mount.
                if mountpoint::find(&mounts, &dir).is_none_or(|mount| !mount.is_ours()) {
                    let thing =
                        format!("the msgfs of {}, which is not mounted here", shown_path(&dir));
                    self.end_process(&thing, process);
                }
            } else if LockProcess::carrying(state).is_none() {
                self.left.push(format!(
                    "{holder}, a command that acts for {} and ends by itself",
                    me_of(state)
                ));
            }
        }
    }

    /// Waits a moment for the exchanges of links, which end by themselves.
    fn await_exchanges(&mut self, states: &[PathBuf]) {
        let at_work = || states.iter().map(|state| job::count_at_work(&state.join("links"))).sum();
        let mut count: usize = at_work();
        let deadline = Instant::now() + GONE_WITHIN;
        while count > 0 && !self.dry_run && Instant::now() < deadline {
            thread::sleep(PAUSE);
            count = at_work();
        }
        if count > 0 {
            self.left.push(format!(
                "{count} of the exchanges of links; each ends by itself, so that nothing is sent twice"
            ));
        }
    }

    /// Names what is the user's own.
    fn name_what_stays(&mut self, env: &Env, context: Option<&Context>) {
        let mut name = |what: &str, path: &Path| {
            // One that does not answer stays, too.
            if asked::reach(path).is_err() || path.exists() {
                self.left.push(format!("{what}: {}", env.display_home(path)));
            }
        };
        for (store, dir) in context.and_then(|context| context.stores().ok()).into_iter().flatten()
        {
            name(&format!("mail of the store {}", one_line(&store)), &dir);
        }
        // Any valid name serves to find the folders that all names share.
        let paths =
            context.map(|context| context.paths.clone()).or_else(|| Paths::new(env, "x").ok());
        let above = |path: &Path| path.parent().map(Path::to_owned).unwrap_or_default();
        if let Some(paths) = paths {
            name("keys, marks and unsent drafts", &above(&paths.state));
            let file =
                context.map_or_else(|| paths.config.join("config.toml"), Context::config_file);
            name("configuration", &file);
            name("cache, which can be removed", &above(&paths.cache));
        }
        for file in install::kept_aside(env) {
            name("what a file was before msgfs changed it", &file);
        }
        for harness in &ALL {
            let plugin = install::plugin::enabled(env, harness);
            self.left.extend(plugin.map(|plugin| {
                let id = plugin.id;
                format!("the plugin of {}: claude plugin uninstall {id}", harness.title)
            }));
        }
        self.left.extend(fstab());
        let program = std::env::current_exe().ok();
        self.left
            .extend(program.map(|program| format!("the program: {}", env.display_home(&program))));
    }
}

/// Returns the name that a state folder is for.
fn me_of(state: &Path) -> String {
    one_line(&state.file_name().unwrap_or_default().to_string_lossy()).into_owned()
}

/// Names the lines of the table of mounts, which is root's.
fn fstab() -> Vec<String> {
    let text = fs::read_to_string(FSTAB).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let of_type = |line: &str| {
        let mut words = line.split_whitespace();
        let dir = words.nth(1)?;
        (words.next() == Some(mountpoint::FSTYPE)).then(|| one_line(dir).into_owned())
    };
    lines.filter_map(of_type).map(|dir| format!("a line of {FSTAB}: {dir}")).collect()
}
