//! `msgfs keep`: writes sessions of harnesses into threads of projects.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use clap_complete::engine::ArgValueCompleter;
use msgfs::model::{display_path, format_count, sanitize_line};
use msgfs::store::atsf::keep::ignore::{
    IGNORE_LINE, IgnoreState, find_ignore_state, threads_folder,
};
use msgfs::store::atsf::keep::project::KeptProject;
use msgfs::store::atsf::keep::{KeepReport, MessageReceiver, keep_session, list};
use msgfs::store::atsf::{project_folders, project_of};
use msgfs::store::sessions::folder::{SessionFolder, open_sessions};
use msgfs::store::sessions::message::SessionHead;
use msgfs::store::{Kind, StoreSpec};

use super::context::CommandContext;
use super::failure::{Failure, refuse};
use super::progress::WorkProgress;
use super::{GlobalOptions, complete, output};

/// The shortest beginning of an id that names a session.
const MIN_PREFIX: usize = 8;

/// Keep sessions of coding agents in threads of their projects
///
/// Copies what is new in a session of Claude Code or Codex into an ATSF thread: a folder in `.agent/threads/` of the
/// project in which the session ran. The thread stays when the program deletes the session, and the mount then shows
/// it in its place. Keep a session as often as you like: nothing is doubled. The sessions of sub-agents are kept with
/// it. The sessions must be in a [[store]] of kind claude or codex, and the project in one of kind atsf.
///
/// A session holds everything that the agent saw, secrets too. So a folder that git could put into a commit is refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs keep 5f0c2f0a\n  msgfs keep --all\n  \
    msgfs keep --store shop 5f0c2f0a\n\nA line for cron:\n  17 * * * *  msgfs --me anna keep --all")]
pub(crate) struct Args {
    /// The id of a session, or its first 8 characters or more
    #[arg(value_name = "SESSION", required_unless_present = "all")]
    session: Option<String>,
    /// Keep all sessions
    #[arg(long, conflicts_with = "session")]
    all: bool,
    /// Keep them in the project of this ATSF store, wherever they ran
    #[arg(long, value_name = "ATSF", add = ArgValueCompleter::new(complete::stores))]
    store: Option<String>,
    /// Keep them also where git does not ignore them
    #[arg(long)]
    tracked: bool,
}

/// A session, and the store that has it.
struct FoundSession<'a> {
    store: &'a SessionSource<'a>,
    head: SessionHead,
}

/// A store with sessions.
struct SessionSource<'a> {
    spec: &'a StoreSpec,
    folder: Box<dyn SessionFolder>,
}

/// A project that can take sessions.
struct KeepTarget<'a> {
    store: &'a StoreSpec,
    project: &'a Path,
    /// The folders of the project and of its worktrees.
    folders: Vec<PathBuf>,
}

/// Runs `msgfs keep`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let context = CommandContext::find(global)?;
    let specs = context.store_specs()?;
    let sources: Vec<&StoreSpec> = specs.iter().filter(|spec| spec.kind.has_sessions()).collect();
    if sources.is_empty() {
        return Err(explain_no_sources(&context));
    }
    let targets = find_targets(&specs, args.store.as_deref())?;
    let (told, there, projects) = (HashSet::new(), HashSet::new(), HashMap::new());
    let mut keeper = SessionKeeping { context: &context, args, targets, told, there, projects };
    let opened: Vec<SessionSource<'_>> =
        sources.iter().filter_map(|spec| keeper.open_source(spec)).collect();
    let found = list_sessions(&opened);
    keeper.there = found.iter().map(|one| one.head.id.clone()).collect();
    let chosen = match &args.session {
        Some(name) => select_sessions(found, name)?,
        None => found,
    };
    let all_kept = keeper.keep_sessions(&chosen)?;
    if opened.len() == sources.len() && all_kept { Ok(()) } else { Err(Failure::AlreadyReported) }
}

fn explain_no_sources(context: &CommandContext) -> Failure {
    Failure::refused(format!(
        "no [[store]] has sessions; add the lines of your program to {}:\n\n[[store]]\n\
         kind = \"claude\"\n\n[[store]]\nkind = \"codex\"\n",
        context.display_path(&context.config_file())
    ))
}

/// Returns the projects that may take sessions: that of the named store, or all.
fn find_targets<'a>(
    specs: &'a [StoreSpec],
    name: Option<&str>,
) -> Result<Vec<KeepTarget<'a>>, Failure> {
    let is_named = |spec: &StoreSpec| {
        name.is_none_or(|name| spec.name == name || project_of(&spec.dir) == Path::new(name))
    };
    let all = || specs.iter().filter(|spec| spec.kind == Kind::Atsf);
    let target = |store: &'a StoreSpec| {
        let project = project_of(&store.dir);
        KeepTarget { store, project, folders: project_folders(project) }
    };
    let named: Vec<KeepTarget<'a>> = all().filter(|spec| is_named(spec)).map(target).collect();
    if let (true, Some(name)) = (named.is_empty(), name) {
        let names: Vec<_> = all().map(|spec| sanitize_line(&spec.name)).collect();
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(Failure::Usage(format!(
            "there is no store of kind atsf named {}; there is: {known}",
            sanitize_line(name)
        )));
    }
    Ok(named)
}

/// Returns the sessions of all stores, in the order of their ids.
fn list_sessions<'a>(sources: &'a [SessionSource<'a>]) -> Vec<FoundSession<'a>> {
    let of = |store: &'a SessionSource<'a>| {
        store.folder.heads().into_iter().map(move |head| FoundSession { store, head })
    };
    sources.iter().flat_map(of).collect()
}

/// Returns the sessions that a name means: those of this id, or the ones whose only session has an id that begins
/// so, each with those of its sub-agents.
fn select_sessions<'a>(
    found: Vec<FoundSession<'a>>,
    name: &str,
) -> Result<Vec<FoundSession<'a>>, Failure> {
    let has_dot = name.contains('.');
    let is_named = |id: &str| {
        let is_part = name.len() >= MIN_PREFIX && id.starts_with(name);
        id == name || is_part && id.contains('.') == has_dot
    };
    let mut ids: Vec<&str> =
        found.iter().map(|one| &*one.head.id).filter(|id| is_named(id)).collect();
    ids.sort_unstable();
    ids.dedup();
    if let Some(exact) = ids.iter().find(|id| **id == name) {
        ids = vec![*exact];
    }
    let shown = sanitize_line(name);
    let id = match ids.as_slice() {
        [id] => (*id).to_owned(),
        [] if name.len() < MIN_PREFIX => refuse!(
            "no session has the id {shown}; a part of an id needs its first {MIN_PREFIX} characters or more"
        ),
        [] => refuse!("there is no session {shown} in the stores of kind claude and codex"),
        several => {
            let list: Vec<_> = several.iter().map(|id| sanitize_line(id)).collect();
            refuse!("several sessions begin with {shown}: {}", list.join(", "))
        }
    };
    let is_of_it =
        |of: &str| of == id || of.strip_prefix(&id).is_some_and(|rest| rest.starts_with('.'));
    Ok(found.into_iter().filter(|one| is_of_it(&one.head.id)).collect())
}

/// The state of the command.
struct SessionKeeping<'a> {
    context: &'a CommandContext,
    args: &'a Args,
    targets: Vec<KeepTarget<'a>>,
    /// The failures that were printed. Many sessions may fail for one reason.
    told: HashSet<String>,
    /// The ids of all sessions that are not gone.
    there: HashSet<String>,
    /// The projects that have taken sessions.
    projects: HashMap<&'a Path, KeptProject>,
}

impl<'a> SessionKeeping<'a> {
    fn print_failure(&mut self, text: String) {
        if self.told.insert(text.clone()) {
            output::print_notice(&format!("msgfs: {text}"));
        }
    }

    /// Reads the sessions of a store, and prints why if that fails.
    fn open_source<'s>(&mut self, spec: &'s StoreSpec) -> Option<SessionSource<'s>> {
        let opened = open_sessions(spec.kind, &spec.dir);
        let failed = |e| self.print_failure(format!("store {}: {e}", sanitize_line(&spec.name)));
        Some(SessionSource { spec, folder: opened.map_err(failed).ok()? })
    }

    /// Keeps these sessions. Returns false if one of them failed.
    fn keep_sessions(&mut self, sessions: &[FoundSession<'_>]) -> Result<bool, Failure> {
        let mut progress = WorkProgress::of_sessions();
        let (mut kept, mut added, mut failed) = (0usize, 0u64, 0usize);
        for (done, session) in sessions.iter().enumerate() {
            progress.update(done as u64, sessions.len() as u64);
            let outcome = self.keep_one(session);
            let is_told = !matches!(&outcome, Ok((_, report)) if *report == KeepReport::default());
            if is_told {
                progress.finish();
            }
            match outcome {
                Ok((place, report)) => {
                    kept += 1;
                    added += report.added;
                    failed += usize::from(!report.left_out.is_empty());
                    print_report(&place, &report)?;
                    report.left_out.into_iter().for_each(|text| self.print_failure(text));
                }
                Err(failure) => {
                    failed += 1;
                    self.print_failure(failure.to_string());
                }
            }
        }
        progress.finish();
        let failures = if failed == 0 { String::new() } else { format!(", {failed} failed") };
        let messages = format_count(added, "message");
        output::print_notice(&format!(
            "{} kept, {messages} added{failures}",
            format_count(kept as u64, "session")
        ));
        Ok(failed == 0)
    }

    /// Keeps one session. Returns the folder of its thread, and what was added.
    fn keep_one(&mut self, session: &FoundSession<'_>) -> Result<(PathBuf, KeepReport), Failure> {
        let (store, id) = (session.store, &session.head.id);
        let &KeepTarget { store: target, project: folder, .. } = self.find_target(&session.head)?;
        if !self.args.tracked {
            require_ignored(folder, id)?;
        }
        let state = self.context.paths.state.join("stores").join(&target.name);
        let project = self.projects.entry(folder).or_insert_with(|| {
            let is_there = |id: &str| self.there.contains(id);
            KeptProject::open(folder.to_owned(), state.join(list::FILE), is_there)
        });
        let read = |each: &mut MessageReceiver<'_>| store.folder.read(id, each);
        let report = keep_session(project, (store.spec.kind, id), read)
            .map_err(|e| Failure::refused(format!("session {}: {e}", sanitize_line(id))))?;
        Ok((threads_folder(folder).join(id), report))
    }

    /// Returns the project for a session: the named one, or the innermost that holds its working directory.
    fn find_target(&self, head: &SessionHead) -> Result<&KeepTarget<'a>, Failure> {
        if self.args.store.is_some()
            && let Some(named) = self.targets.first()
        {
            return Ok(named);
        }
        let cwd = Path::new(&head.cwd);
        let real = std::fs::canonicalize(cwd).unwrap_or_else(|_| cwd.to_owned());
        let depth = |target: &KeepTarget<'_>| {
            let around = |dir: &&PathBuf| cwd.starts_with(dir) || real.starts_with(dir);
            let folders = target.folders.iter().filter(around);
            folders.map(|dir| dir.components().count()).max()
        };
        // A worktree belongs to all projects of its repository: then the outermost one takes the session.
        let rank = |target: &&KeepTarget<'_>| {
            (depth(target), std::cmp::Reverse(target.project.components().count()))
        };
        let around = self.targets.iter().filter(|target| depth(target).is_some());
        let deepest = around.max_by_key(rank);
        deepest.ok_or_else(|| {
            let shown = display_path(cwd);
            Failure::refused(format!(
                "no store of kind atsf is for a project around {shown}, where the session ran; name one with \
                 --store, or add one to {} (`msgfs init` makes the file):\n\n[[store]]\nkind = \"atsf\"\n\
                 dir = {:?}\n",
                self.context.display_path(&self.context.config_file()),
                head.cwd
            ))
        })
    }
}

/// Fails if git could put the files of a thread into a commit.
fn require_ignored(project: &Path, thread: &str) -> Result<(), Failure> {
    let folder = display_path(&threads_folder(project));
    let file = display_path(&project.join(".gitignore"));
    match find_ignore_state(project, thread) {
        IgnoreState::Outside | IgnoreState::Ignored => Ok(()),
        IgnoreState::Visible => refuse!(
            "{folder} lies in a git work tree and is not ignored there, and sessions hold secrets; add this \
             line to {file}, or say --tracked if it is meant:\n{IGNORE_LINE}"
        ),
        IgnoreState::Unknown => refuse!(
            "{folder} lies in a git work tree, and git does not say that it is ignored there, because git is \
             not installed or failed; sessions hold secrets, so say --tracked if it is meant, or mend git and \
             add this line to {file}:\n{IGNORE_LINE}"
        ),
    }
}

/// Prints the additions to a thread, if there are any.
fn print_report(place: &Path, report: &KeepReport) -> Result<(), Failure> {
    if report.added == 0 {
        return Ok(());
    }
    let added = format_count(report.added, "message");
    output::print_data(&format!("{}: {added} added\n", display_path(place)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use msgfs::config::{Config, Env};
    use msgfs::store::StoreError;
    use msgfs::store::sessions::folder::SessionReader;

    struct NoSessions;

    impl SessionFolder for NoSessions {
        fn heads(&self) -> Vec<SessionHead> {
            Vec::new()
        }

        fn read(&self, _: &str, _: SessionReader<'_>) -> Result<SessionHead, StoreError> {
            Err(StoreError::Moved)
        }
    }

    fn selected(ids: &[&str], name: &str) -> Result<Vec<String>, String> {
        let env = Env::new("/", [("HOME", "/x")]);
        let spec = &Config::default().stores(&env, "foo").unwrap()[0];
        let store = SessionSource { spec, folder: Box::new(NoSessions) };
        let head = |id: &&str| SessionHead {
            id: (*id).to_owned(),
            kind: Kind::Claude,
            title: String::new(),
            version: String::new(),
            cwd: String::new(),
            git_branch: None,
            git_commit: None,
            worktree: None,
            parent: None,
        };
        let found = ids.iter().map(|id| FoundSession { store: &store, head: head(id) }).collect();
        let chosen = select_sessions(found, name).map_err(|e| e.to_string())?;
        Ok(chosen.into_iter().map(|one| one.head.id).collect())
    }

    #[test]
    fn a_session_is_named_by_its_id_or_the_beginning_of_it() {
        let ids = ["aaaaaaaa-1", "aaaaaaaa-1.b7", "aaaaaaaa-2", "short", "short.x", "shorter"];
        let told = |name: &str| selected(&ids, name).unwrap();
        assert_eq!(told("aaaaaaaa-1"), ["aaaaaaaa-1", "aaaaaaaa-1.b7"]);
        assert_eq!(told("aaaaaaaa-1.b"), ["aaaaaaaa-1.b7"]);
        assert_eq!(told("short"), ["short", "short.x"]);
        let refused = |name: &str| selected(&ids, name).unwrap_err();
        assert!(refused("aaaaaaaa").contains("aaaaaaaa-1, aaaaaaaa-2"), "{}", refused("aaaaaaaa"));
        assert!(refused("shorte").contains("first 8 characters"));
        assert!(refused("bbbbbbbb").contains("no session bbbbbbbb"));
    }
}
