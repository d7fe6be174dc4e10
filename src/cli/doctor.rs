//! `msgfs doctor`: what is missing on this machine.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use msgfs::config::PathError;
use msgfs::fuse::mountpoint::{self, MountState, shell_word};
use msgfs::identity::{self, Identity, KeyError, Keyring, Used};
use msgfs::link;
use msgfs::model::{one_line, safe_text};
use msgfs::outbox;
use msgfs::store::{self, Advice, Kind, Spec, Store, asked};

use super::context::{Context, folder};
use super::failure::{Failure, system_text};
use super::machine::{self, Problem, Severity};
use super::{Global, hook, output};

/// Find problems on this machine, and print the commands that mend them
///
/// Looks at FUSE, the configuration, the keys, the stores, the links, the hooks and dead mounts.
/// Prints one line for each problem. Exit code 1 means that there is an error; warnings alone end
/// with 0. Nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs doctor\n  msgfs doctor --allow-other")]
pub(crate) struct Args {
    /// Also look for the problems of `msgfs mount --allow-other`
    #[arg(long)]
    allow_other: bool,
    /// Print one JSON object a line for each problem: severity (error, warning), problem, command (null
    /// if no command mends it)
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(global: &Global, args: &Args) -> Result<(), Failure> {
    let mut problems = machine::fuse_problems(args.allow_other);
    if problems.is_empty() {
        problems.extend(machine::mount_problem(args.allow_other));
    }
    problems.extend(stale_mounts());
    match Context::find(global) {
        Ok(context) => problems.extend(mailbox_problems(&context)),
        // Wrong lines of the configuration, or nobody to act for: the text says what to do.
        Err(failure) => problems.push(Problem::error(failure)),
    }
    problems.extend(hook::problems());
    if args.json {
        problems.iter().try_for_each(output::json_line)?;
    } else if problems.is_empty() {
        return output::data("nothing is missing\n");
    } else {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        output::data(&(lines.join("\n") + "\n"))?;
    }
    let errors = problems.iter().any(|problem| problem.severity == Severity::Error);
    if errors { Err(Failure::Said) } else { Ok(()) }
}

/// Mounts whose msgfs has died or does not answer.
fn stale_mounts() -> Vec<Problem> {
    let mounts = match mountpoint::mounts() {
        Ok(mounts) => mounts,
        Err(e) => {
            return vec![Problem::error(format!("/proc is not usable: {}", system_text(&e)))];
        }
    };
    let ours = mountpoint::ours(&mounts);
    let states = mountpoint::states_of(&ours);
    ours.into_iter()
        .zip(states)
        .filter_map(|(mount, state)| {
            let dir = shell_word(mount.mountpoint.as_os_str());
            match state {
                MountState::Stale => Some(
                    Problem::error(format!("the mount at {dir} is dead: its msgfs has ended"))
                        .mend(format!("msgfs umount {dir}")),
                ),
                MountState::Hung => Some(
                    Problem::error(format!("the mount at {dir} does not answer"))
                        .mend(format!("msgfs umount --lazy {dir}")),
                ),
                _ => None,
            }
        })
        .collect()
}

fn mailbox_problems(context: &Context) -> Vec<Problem> {
    for dir in [&context.paths.state, &context.paths.cache] {
        if let Err(e) = asked::reach(dir) {
            return vec![Problem::error(format!("{}: {}", context.shown(dir), system_text(&e)))];
        }
    }
    let mut problems = state_problems(context);
    problems.extend(key_problems(context));
    match context.specs() {
        Ok(specs) => problems.extend(store_problems(context, &specs)),
        Err(failure) => problems.push(Problem::error(failure)),
    }
    problems
}

fn store_problems(context: &Context, specs: &[Spec]) -> Vec<Problem> {
    let mut problems: Vec<Problem> = Vec::new();
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    let used = Used::open(&context.paths.signers_file(), true);
    for spec in specs {
        let (name, dir) = (one_line(&spec.name), folder(spec));
        if let Err(e) = asked::reach(&dir) {
            let shown = context.shown(&dir);
            problems.push(of_store(&name, &format!("{shown}: {}", system_text(&e))));
            continue;
        }
        // SAMP's folder is made at first use, unless somebody named it; opening makes nothing.
        let is_there = dir.exists();
        let is_to_be_made = !is_there && spec.kind == Kind::Samp && spec.makes;
        if is_there || is_to_be_made {
            problems.extend(folder_problem(context, &format!("the store {name}"), &dir));
        }
        if is_to_be_made {
            continue;
        }
        match store::open(spec) {
            Ok(store) => {
                problems.extend(store.advice().into_iter().map(|a| advised(&name, a)));
                let state = context.paths.state.join("stores").join(&spec.name);
                let incidents = store.facets().recovery.map(|recovery| recovery.incidents(&state));
                let told = |line: String| advised(&name, Advice::warning(line));
                problems.extend(incidents.into_iter().flatten().map(told));
                let lost =
                    outbox::lost_key(store.as_ref(), &used).unwrap_or_else(|e| Some(e.to_string()));
                let wrong = |why: String| of_store(&name, &why);
                problems.extend(lost.map(wrong));
                stores.push(store);
            }
            Err(e) => problems.push(of_store(&name, &e.to_string())),
        }
    }
    problems.extend(link_problems(context, &stores));
    problems.extend(clashes(context, &stores));
    problems.extend(others_as_me(context, &stores));
    let folders: Vec<PathBuf> = specs.iter().map(folder).collect();
    problems.extend(machine::watch_problem(&folders));
    problems
}

/// What keeps links from working, as far as that can be tried without sending.
fn link_problems(context: &Context, stores: &[Arc<dyn Store>]) -> Vec<Problem> {
    let linked = context.config.linked();
    let mut problems = Vec::new();
    for store in stores {
        for (name, settings) in link::settings(store.as_ref(), &context.config.links, &linked) {
            let found = match link::engine(&settings) {
                Ok(engine) => {
                    let checked = link::checked(engine.as_ref());
                    engine.other_carrier().into_iter().chain(checked).collect()
                }
                Err(why) => vec![why],
            };
            let told = |why: String| {
                let store = one_line(store.name());
                Problem::error(format!("the link {name} of the store {store}: {}", safe_text(&why)))
            };
            problems.extend(found.into_iter().map(told));
        }
    }
    #[cfg(feature = "nats")]
    for spec in context.config.links.iter().filter(|s| s.kind == link::Kind::Nats && !s.off) {
        let told =
            |why: String| Problem::error(format!("the link {}: {}", spec.name, safe_text(&why)));
        let wrong = link::nats::check(spec);
        if wrong.is_empty() && spec.marks {
            let store = stores.iter().find(|store| store.name() == spec.store);
            let why = store.and_then(|store| link::nats::check_marks(spec, store.me()));
            let text = |why: String| format!("the link {}: {}", spec.name, safe_text(&why));
            problems.extend(why.map(|why| Problem::warning(text(why))));
        }
        problems.extend(wrong.into_iter().map(told));
    }
    problems
}

/// What is wrong with a store as a whole.
fn of_store(name: &str, why: &str) -> Problem {
    Problem::error(format!("the store {name}: {}", safe_text(why)))
}

/// Other keys that sign under my name, as far as a mount has seen them.
fn others_as_me(context: &Context, stores: &[Arc<dyn Store>]) -> Vec<Problem> {
    let Ok(keyring) = Keyring::open_read_only(&context.paths.keyring_file()) else {
        return Vec::new();
    };
    let told = |store: &Arc<dyn Store>| {
        let other = keyring.refused(store.me()).filter(|_| !store.about().roles)?;
        let own = store.facets().keys.is_none();
        Some(Problem::warning(identity::other_key_of_mine(store.me(), other, own)))
    };
    let mut out: Vec<Problem> = stores.iter().filter_map(told).collect();
    out.dedup();
    out
}

/// What a store would have a person mend.
fn advised(store: &str, advice: Advice) -> Problem {
    let what = format!("the store {store}: {}", one_line(&advice.problem));
    let what = if advice.serious { Problem::error(what) } else { Problem::warning(what) };
    match advice.command {
        Some(command) => what.mend(one_line(&command)),
        None => what,
    }
}

/// Two stores that are the same mailbox: each message would be there twice.
fn clashes(context: &Context, stores: &[Arc<dyn Store>]) -> Vec<Problem> {
    let place = |store: &Arc<dyn Store>| {
        fs::canonicalize(store.dir()).unwrap_or_else(|_| store.dir().to_owned())
    };
    let same = |a: &Arc<dyn Store>, b: &Arc<dyn Store>| {
        a.kind() == b.kind() && a.canonical(a.me()) == b.canonical(b.me()) && place(a) == place(b)
    };
    let mut problems = Vec::new();
    for (n, store) in stores.iter().enumerate() {
        for other in stores.iter().skip(n + 1).filter(|other| same(store, other)) {
            problems.push(Problem::error(format!(
                "the stores {} and {} are the same mailbox ({} in {}), so each message is shown \
                 twice; remove one [[store]] from {}",
                one_line(store.name()),
                one_line(other.name()),
                one_line(store.me()),
                context.shown(store.dir()),
                context.shown(&context.config_file())
            )));
        }
    }
    problems
}

fn state_problems(context: &Context) -> Vec<Problem> {
    let state = &context.paths.state;
    let mut problems: Vec<Problem> =
        [("the state folder", state), ("the cache", &context.paths.cache)]
            .into_iter()
            .filter_map(|(what, dir)| folder_problem(context, what, dir))
            .collect();
    if let Err(PathError::Exposed(path, problem, mend)) = context.paths.check_state() {
        let what = format!("{}: {problem}", context.shown(&path));
        problems.push(Problem::error(what).mend(mend));
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
    let shown = context.shown(dir);
    let what = format!("{what} at {shown} cannot be written ({})", system_text(&error));
    Some(Problem::error(what).mend(mend))
}

fn key_problems(context: &Context) -> Vec<Problem> {
    // A missing key is made at first use.
    let is_wrong = |e: &KeyError| !matches!(e, KeyError::Missing { .. });
    let used = Used::open(&context.paths.signers_file(), true);
    let key = Identity::own(&context.paths.key_file(), &used, false).err().filter(is_wrong);
    let keyring = Keyring::open_read_only(&context.paths.keyring_file()).err();
    key.map(Problem::error).into_iter().chain(keyring.map(Problem::error)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use msgfs::config::{Config, Env, Me, Paths};

    fn context(home: &std::path::Path, config: &str) -> Context {
        let env = Env::new(home.join("foo"), [("HOME", home)]);
        let config = Config::parse(config, &home.join("c.toml"), &env).unwrap();
        let me = Me::resolve(Some("foo"), &env, &config).unwrap();
        let paths = Paths::new(&env, "foo").unwrap();
        Context { env, config, me, paths }
    }

    #[test]
    fn one_mailbox_in_two_stores_is_told() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("m")).unwrap();
        std::os::unix::fs::symlink("m", home.path().join("link")).unwrap();
        let store = |name: &str, dir: &str, me: &str| {
            format!(
                "[[store]]\nname = \"{name}\"\nkind = \"samp\"\ndir = \"{dir}\"\nme = \"{me}\"\n"
            )
        };
        let text = [store("a", "m", "foo"), store("b", "link", "foo"), store("c", "m", "bar")];
        let context = context(home.path(), &text.concat());
        let problems = store_problems(&context, &context.specs().unwrap());
        assert_eq!(problems.len(), 1, "{problems:?}");
        let told = problems[0].to_string();
        assert!(told.contains("the stores a and b are the same mailbox (foo in"), "{told}");
    }

    #[test]
    fn doctor_makes_no_store() {
        let home = tempfile::tempdir().unwrap();
        let context = context(home.path(), "");
        assert!(store_problems(&context, &context.specs().unwrap()).is_empty());
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }

    #[test]
    fn advice_comes_with_its_command() {
        let advice = |serious, command: Option<&str>| Advice {
            problem: "others can read\nthe key".into(),
            command: command.map(str::to_owned),
            serious,
        };
        assert_eq!(
            advised("work", advice(false, Some("chmod 600 k"))).to_string(),
            "warning: the store work: others can read\u{240a}the key; mend it with: chmod 600 k"
        );
        let text = advised("work", advice(true, None)).to_string();
        assert_eq!(text, "the store work: others can read\u{240a}the key");
    }
}
