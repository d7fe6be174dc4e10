//! `msgfs doctor`: a report of what is missing on this machine.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use msgfs::config::PathError;
use msgfs::fuse::mountpoint::{self, MountState, shell_word};
use msgfs::identity::{self, KeyError, KeyPair, Keyring, SignerRegistry};
use msgfs::link;
use msgfs::model::{sanitize_line, sanitize_text};
use msgfs::outbox;
use msgfs::store::{self, Advice, Kind, Store, StoreSpec, probe};

use super::context::{CommandContext, store_folder};
use super::failure::{Failure, format_io_error};
use super::machine::{self, DoctorProblem, ProblemSeverity};
use super::{GlobalOptions, hook, output};

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

/// Runs `msgfs doctor`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let mut problems = machine::find_fuse_problems(args.allow_other);
    if problems.is_empty() {
        problems.extend(machine::probe_mount(args.allow_other));
    }
    problems.extend(find_stale_mounts());
    match CommandContext::find(global) {
        Ok(context) => problems.extend(find_mailbox_problems(&context)),
        // The configuration has wrong lines, or there is no me. The text says what to do.
        Err(failure) => problems.push(DoctorProblem::error(failure)),
    }
    problems.extend(hook::find_problems());
    if args.json {
        problems.iter().try_for_each(output::print_json_line)?;
    } else if problems.is_empty() {
        return output::print_data("nothing is missing\n");
    } else {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        output::print_data(&(lines.join("\n") + "\n"))?;
    }
    let errors = problems.iter().any(|problem| problem.severity == ProblemSeverity::Error);
    if errors { Err(Failure::AlreadyReported) } else { Ok(()) }
}

/// Returns the mounts whose msgfs has died or does not answer.
fn find_stale_mounts() -> Vec<DoctorProblem> {
    let mounts = match mountpoint::read_mounts() {
        Ok(mounts) => mounts,
        Err(e) => {
            return vec![DoctorProblem::error(format!(
                "/proc is not usable: {}",
                format_io_error(&e)
            ))];
        }
    };
    let ours = mountpoint::list_our_mounts(&mounts);
    let states = mountpoint::mount_states(&ours);
    ours.into_iter()
        .zip(states)
        .filter_map(|(mount, state)| {
            let dir = shell_word(mount.mountpoint.as_os_str());
            match state {
                MountState::Stale => Some(
                    DoctorProblem::error(format!(
                        "the mount at {dir} is dead: its msgfs has ended"
                    ))
                    .with_remedy(format!("msgfs umount {dir}")),
                ),
                MountState::Hung => Some(
                    DoctorProblem::error(format!("the mount at {dir} does not answer"))
                        .with_remedy(format!("msgfs umount --lazy {dir}")),
                ),
                _ => None,
            }
        })
        .collect()
}

fn find_mailbox_problems(context: &CommandContext) -> Vec<DoctorProblem> {
    for dir in [&context.paths.state, &context.paths.cache] {
        if let Err(e) = probe::require_response(dir) {
            return vec![DoctorProblem::error(format!(
                "{}: {}",
                context.display_path(dir),
                format_io_error(&e)
            ))];
        }
    }
    let mut problems = find_state_problems(context);
    problems.extend(find_key_problems(context));
    match context.store_specs() {
        Ok(specs) => problems.extend(find_store_problems(context, &specs)),
        Err(failure) => problems.push(DoctorProblem::error(failure)),
    }
    problems
}

fn find_store_problems(context: &CommandContext, specs: &[StoreSpec]) -> Vec<DoctorProblem> {
    let mut problems: Vec<DoctorProblem> = Vec::new();
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    let used = SignerRegistry::open(&context.paths.signers_file(), true);
    for spec in specs {
        let (name, dir) = (sanitize_line(&spec.name), store_folder(spec));
        if let Err(e) = probe::require_response(&dir) {
            let shown = context.display_path(&dir);
            problems.push(store_error(&name, &format!("{shown}: {}", format_io_error(&e))));
            continue;
        }
        // SAMP's folder is made at first use, unless somebody named it. Opening the store makes nothing.
        let is_there = dir.exists();
        let is_to_be_made = !is_there && spec.kind == Kind::Samp && spec.may_create;
        // Transcripts are only read.
        if (is_there && !spec.kind.has_sessions()) || is_to_be_made {
            problems.extend(find_folder_problem(context, &format!("the store {name}"), &dir));
        }
        if is_to_be_made {
            continue;
        }
        match store::open(spec) {
            Ok(store) => {
                problems.extend(store.advice().into_iter().map(|a| problem_from_advice(&name, a)));
                let state = context.paths.state.join("stores").join(&spec.name);
                let incidents = store.facets().upkeep.map(|upkeep| upkeep.incidents(&state));
                let told = |line: String| problem_from_advice(&name, Advice::warning(line));
                problems.extend(incidents.into_iter().flatten().map(told));
                let lost = outbox::explain_lost_key(store.as_ref(), &used)
                    .unwrap_or_else(|e| Some(e.to_string()));
                let wrong = |why: String| store_error(&name, &why);
                problems.extend(lost.map(wrong));
                stores.push(store);
            }
            Err(e) => problems.push(store_error(&name, &e.to_string())),
        }
    }
    problems.extend(find_link_problems(context, &stores));
    problems.extend(find_log_link_problems(context, specs, &stores));
    problems.extend(find_duplicate_stores(context, &stores));
    problems.extend(find_foreign_keys(context, &stores));
    problems.extend(find_unused_stores(context));
    let folders: Vec<PathBuf> = specs.iter().map(store_folder).collect();
    problems.extend(machine::find_watch_problem(&folders));
    problems
}

/// Returns the problems of links that carry messages, as far as they can be tried without sending.
fn find_link_problems(context: &CommandContext, stores: &[Arc<dyn Store>]) -> Vec<DoctorProblem> {
    let linked = context.config.linked_stores();
    let mut problems = Vec::new();
    for store in stores {
        for (name, settings) in
            link::engine_settings(store.as_ref(), &context.config.links, &linked)
        {
            let found = match link::open_engine(&settings) {
                Ok(engine) => {
                    let checked = link::check_engine(engine.as_ref());
                    engine.find_other_carrier().into_iter().chain(checked).collect()
                }
                Err(why) => vec![why],
            };
            let to_problem = |why: String| {
                let store = sanitize_line(store.name());
                DoctorProblem::error(format!(
                    "the link {name} of the store {store}: {}",
                    sanitize_text(&why)
                ))
            };
            problems.extend(found.into_iter().map(to_problem));
        }
    }
    problems
}

/// Returns the problems of links that carry lines of logs.
fn find_log_link_problems(
    context: &CommandContext,
    specs: &[StoreSpec],
    stores: &[Arc<dyn Store>],
) -> Vec<DoctorProblem> {
    let mut problems = Vec::new();
    let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let links = context.config.links.iter().filter(|link| !link.off);
    for spec in links.filter(|link| link.kind().carries_logs()) {
        let describe = |why: String| format!("the link {}: {}", spec.name, sanitize_text(&why));
        let wrong = if names.contains(&&*spec.store) {
            link::check_log_link(spec)
        } else {
            vec![super::link::describe_left_out(&spec.store, &names)]
        };
        if wrong.is_empty() {
            let store = stores.iter().find(|store| store.name() == spec.store);
            let why = store.and_then(|store| link::check_shared_marks(spec, store.me()));
            problems.extend(why.map(|why| DoctorProblem::warning(describe(why))));
        }
        problems.extend(wrong.into_iter().map(|why| DoctorProblem::error(describe(why))));
    }
    problems
}

/// Returns a problem of a store as a whole.
fn store_error(name: &str, why: &str) -> DoctorProblem {
    DoctorProblem::error(format!("the store {name}: {}", sanitize_text(why)))
}

/// Returns a warning for other keys that sign under my name, as far as a mount has seen them.
fn find_foreign_keys(context: &CommandContext, stores: &[Arc<dyn Store>]) -> Vec<DoctorProblem> {
    let Ok(keyring) = Keyring::open_read_only(&context.paths.keyring_file()) else {
        return Vec::new();
    };
    let having_keys = stores.iter().filter(|store| !store.properties().uses_roles);
    let mine =
        having_keys.flat_map(|store| store.properties().my_addresses().map(move |me| (store, me)));
    let told = |(store, me): (&Arc<dyn Store>, &str)| {
        let (other, own) = (keyring.refused_key(me)?, store.facets().keys.is_none());
        Some(DoctorProblem::warning(identity::describe_other_own_key(me, other, own)))
    };
    let mut out: Vec<DoctorProblem> = mine.filter_map(told).collect();
    out.dedup();
    out
}

/// Returns a problem that a store wants a person to mend.
fn problem_from_advice(store: &str, advice: Advice) -> DoctorProblem {
    let what = format!("the store {store}: {}", sanitize_line(&advice.problem));
    let what =
        if advice.serious { DoctorProblem::error(what) } else { DoctorProblem::warning(what) };
    match advice.command {
        Some(command) => what.with_remedy(sanitize_line(&command)),
        None => what,
    }
}

/// Returns the pairs of stores that are the same mailbox: each message would be there twice.
fn find_duplicate_stores(
    context: &CommandContext,
    stores: &[Arc<dyn Store>],
) -> Vec<DoctorProblem> {
    let place = |store: &Arc<dyn Store>| {
        fs::canonicalize(store.dir()).unwrap_or_else(|_| store.dir().to_owned())
    };
    let same = |a: &Arc<dyn Store>, b: &Arc<dyn Store>| {
        a.kind() == b.kind()
            && a.canonical_address(a.me()) == b.canonical_address(b.me())
            && place(a) == place(b)
    };
    let mut problems = Vec::new();
    for (n, store) in stores.iter().enumerate() {
        for other in stores.iter().skip(n + 1).filter(|other| same(store, other)) {
            problems.push(DoctorProblem::error(format!(
                "the stores {} and {} are the same mailbox ({} in {}), so each message is shown \
                 twice; remove one [[store]] from {}",
                sanitize_line(store.name()),
                sanitize_line(other.name()),
                sanitize_line(store.me()),
                context.display_path(store.dir()),
                context.display_path(&context.config_file())
            )));
        }
    }
    problems
}

/// Returns a warning for each store at a default place whose mail is not read. That of a mount of msgfs is for mail
/// programs.
fn find_unused_stores(context: &CommandContext) -> Vec<DoctorProblem> {
    let unused = context.config.find_unused_stores(&context.env);
    if unused.is_empty() {
        return Vec::new();
    }
    let mounts = mountpoint::read_mounts().unwrap_or_default();
    let ours = mountpoint::list_our_mounts(&mounts);
    let is_foreign = |(_, dir): &(Kind, PathBuf)| {
        let real = fs::canonicalize(dir);
        real.is_ok_and(|real| !ours.iter().any(|mount| real.starts_with(&mount.mountpoint)))
    };
    let warn = |(kind, dir): (Kind, PathBuf)| {
        DoctorProblem::warning(format!(
            "the mail in {} is not read, because no [[store]] has this folder; to read it, add one \
             with kind = \"{kind}\" to {} (as soon as there is a [[store]], msgfs uses only those)",
            context.display_path(&dir),
            context.display_path(&context.config_file())
        ))
    };
    unused.into_iter().filter(is_foreign).map(warn).collect()
}

fn find_state_problems(context: &CommandContext) -> Vec<DoctorProblem> {
    let state = &context.paths.state;
    let mut problems: Vec<DoctorProblem> =
        [("the state folder", state), ("the cache", &context.paths.cache)]
            .into_iter()
            .filter_map(|(what, dir)| find_folder_problem(context, what, dir))
            .collect();
    if let Err(PathError::Exposed(path, problem, mend)) = context.paths.check_state() {
        let what = format!("{}: {problem}", context.display_path(&path));
        problems.push(DoctorProblem::error(what).with_remedy(mend));
    }
    problems.extend(find_search_problem(context));
    problems
}

/// Returns the problem of an index of search that cannot be written.
fn find_search_problem(context: &CommandContext) -> Option<DoctorProblem> {
    let file = context.paths.search_file();
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(&file);
    let error = opened.err().filter(|error| error.kind() != std::io::ErrorKind::NotFound)?;
    let what = format!(
        "the index of search at {} cannot be written ({}), so searches are slow",
        context.display_path(&file),
        format_io_error(&error)
    );
    Some(DoctorProblem::error(what).with_remedy(format!("rm -r {}", shell_word(file.as_os_str()))))
}

fn find_folder_problem(
    context: &CommandContext,
    what: &str,
    dir: &std::path::Path,
) -> Option<DoctorProblem> {
    let error = machine::check_writable(dir).err()?;
    let word = shell_word(dir.as_os_str());
    let shown = context.display_path(dir);
    let what = format!("{what} at {shown} cannot be written ({})", format_io_error(&error));
    let user = rustix::process::geteuid();
    let mend = if user.is_root() {
        format!("mkdir -p {word} && chmod u+rwx {word}")
    } else if may_take_over(context, dir) {
        format!("sudo install -d -o {} -m 700 {word}", user.as_raw())
    } else {
        let held = |meta: fs::Metadata| {
            format!(
                "; it belongs to the user {} and has mode {:o}",
                meta.uid(),
                meta.mode() & 0o7777
            )
        };
        let held = fs::metadata(dir).map(held).unwrap_or_default();
        return Some(DoctorProblem::error(what + &held));
    };
    Some(DoctorProblem::error(what).with_remedy(mend))
}

/// Returns true if a folder can be made mine: it does not exist, or is below my home folder. Another one may be a
/// folder that others use, too.
fn may_take_over(context: &CommandContext, dir: &std::path::Path) -> bool {
    let home = context.env.home().and_then(|home| fs::canonicalize(home).ok());
    match fs::canonicalize(dir) {
        Ok(dir) => home.is_some_and(|home| dir.starts_with(home)),
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    }
}

fn find_key_problems(context: &CommandContext) -> Vec<DoctorProblem> {
    // A missing key is made at first use.
    let is_wrong = |e: &KeyError| !matches!(e, KeyError::Missing { .. });
    let used = SignerRegistry::open(&context.paths.signers_file(), true);
    let key = KeyPair::load_own(&context.paths.key_file(), &used, false).err().filter(is_wrong);
    let key = key.or_else(|| used.last_key(SignerRegistry::OWN).err());
    let keyring = Keyring::open_read_only(&context.paths.keyring_file());
    let keyring = keyring.map_or_else(|e| Some(e.to_string()), |keyring| keyring.fault());
    key.map(DoctorProblem::error).into_iter().chain(keyring.map(DoctorProblem::error)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use msgfs::config::{Config, Env, Me, Paths};

    fn context(home: &std::path::Path, config: &str) -> CommandContext {
        let env = Env::new(home.join("foo"), [("HOME", home)]);
        let config = Config::parse(config, &home.join("c.toml"), &env).unwrap();
        let me = Me::resolve(Some("foo"), &env, &config).unwrap();
        let paths = Paths::new(&env, "foo").unwrap();
        CommandContext { env, config, me, paths }
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
        let problems = find_store_problems(&context, &context.store_specs().unwrap());
        assert_eq!(problems.len(), 1, "{problems:?}");
        let told = problems[0].to_string();
        assert!(told.contains("the stores a and b are the same mailbox (foo in"), "{told}");
    }

    #[test]
    fn a_maildir_that_no_store_has_is_told() {
        let home = tempfile::tempdir().unwrap();
        let told = |text: &str| {
            let context = context(home.path(), text);
            let problems = find_store_problems(&context, &context.store_specs().unwrap());
            problems.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let samp = "[[store]]\nkind = \"samp\"\n";
        fs::create_dir_all(home.path().join("Maildir/new")).unwrap();
        assert!(told("").is_empty(), "{:?}", told(""));
        for leaf in ["cur", "tmp"] {
            fs::create_dir(home.path().join("Maildir").join(leaf)).unwrap();
        }
        for text in ["", samp] {
            let problems = told(text);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(
                problems[0].starts_with("warning: the mail in ~/Maildir is not read"),
                "{problems:?}"
            );
        }
        std::os::unix::fs::symlink("Maildir", home.path().join("mail")).unwrap();
        for dir in ["", "dir = \"~/Maildir\"\n", "dir = \"~/mail\"\n"] {
            let problems = told(&format!("[[store]]\nkind = \"maildir\"\n{dir}"));
            assert!(problems.is_empty(), "{problems:?}");
        }
    }

    #[test]
    fn doctor_makes_no_store() {
        let home = tempfile::tempdir().unwrap();
        let context = context(home.path(), "");
        assert!(find_store_problems(&context, &context.store_specs().unwrap()).is_empty());
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
            problem_from_advice("work", advice(false, Some("chmod 600 k"))).to_string(),
            "warning: the store work: others can read\u{240a}the key; mend it with: chmod 600 k"
        );
        let text = problem_from_advice("work", advice(true, None)).to_string();
        assert_eq!(text, "the store work: others can read\u{240a}the key");
    }
}
