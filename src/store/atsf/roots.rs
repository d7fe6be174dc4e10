//! The folders that have a `.agent`: the project and the worktrees of its repository.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::git;
use crate::store::engine::lines::table::LogRoot;
use crate::store::fs;

/// Where `.agent` keeps its threads.
pub(super) const AGENT: &str = ".agent";
pub(super) const THREADS: &str = "threads";
/// Git's folder of worktrees, and the files in it that say where one is and when it is made.
const WORKTREES: &str = "worktrees";
/// Git's own folder in the main worktree.
pub(super) const GIT: &str = ".git";
const TELLING: [&str; 2] = ["gitdir", "locked"];
/// How often git is asked when nothing says that it has something new to tell.
const AGAIN: Duration = Duration::from_secs(3);

/// What is known of the repository.
#[derive(Debug, Default)]
pub(super) struct GitRepository {
    /// When git was asked last.
    asked_at: Option<Instant>,
    common_dir: Option<PathBuf>,
    /// What git has noted about worktrees, as it was then.
    worktree_notes: Option<Vec<(PathBuf, Option<std::time::SystemTime>)>>,
}

impl GitRepository {
    /// Brings the list of roots up to date; whether it changed. With `ask`, also if nothing says that
    /// it might have.
    pub fn refresh_roots(&mut self, project: &Path, roots: &mut Vec<LogRoot>, ask: bool) -> bool {
        let before = roots.clone();
        if roots.is_empty() {
            roots.push(LogRoot::main_root(project.to_owned()));
        }
        if let Some(main) = roots.first_mut() {
            main.here = !fs::is_folder_missing(&main.path);
        }
        let due = self.asked_at.is_none_or(|asked| ask && asked.elapsed() >= AGAIN);
        if self.common_dir.is_none() {
            // Where it is by far most often is seen without git, also as soon as it is made.
            let own = project.join(GIT);
            if own.is_dir() {
                self.common_dir = Some(own);
            } else if due {
                self.common_dir = git::find_common_dir(project);
            }
        }
        let noted = self.common_dir.as_deref().map(read_worktree_notes);
        if due || noted != self.worktree_notes {
            self.asked_at = Some(Instant::now());
            self.worktree_notes = noted;
            let some = self.worktree_notes.as_ref().is_some_and(|notes| notes.len() > 1);
            // Git is only asked where it has noted any.
            let listed = if some { git::list_worktrees(project) } else { Vec::new() };
            merge_roots(project, roots, &listed);
        }
        *roots != before
    }

    /// Folders of git's that tell of worktrees.
    pub fn watched_folders(&self, project: &Path) -> Vec<PathBuf> {
        let Some(common) = &self.common_dir else { return vec![project.to_owned()] };
        let worktrees = common.join(WORKTREES);
        if !worktrees.is_dir() {
            return vec![common.clone()];
        }
        let each = self.worktree_notes.iter().flatten().skip(1);
        let folders = each.filter_map(|(file, _)| file.parent().map(Path::to_owned));
        let mut out: Vec<PathBuf> = folders.filter(|folder| folder.is_dir()).collect();
        out.sort_unstable();
        out.dedup();
        out.push(worktrees);
        out
    }

    /// Whether a change of this name in one of those folders tells of worktrees; `None` if the folder
    /// is none of them.
    pub fn is_worktree_change(&self, folder: &Path, name: &str) -> Option<bool> {
        let below = folder.strip_prefix(self.common_dir.as_ref()?).ok()?;
        let mut parts = below.iter();
        Some(match (parts.next(), parts.next()) {
            (None, _) => name == WORKTREES,
            (Some(first), None) => first == WORKTREES,
            _ => TELLING.contains(&name),
        })
    }
}

/// What git has noted about worktrees: first the folder itself, then the file that says where each
/// is, with their times.
fn read_worktree_notes(common: &Path) -> Vec<(PathBuf, Option<std::time::SystemTime>)> {
    let folder = common.join(WORKTREES);
    let time = |path: &Path| std::fs::symlink_metadata(path).and_then(|m| m.modified()).ok();
    let mut out = Vec::new();
    for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
        for name in TELLING {
            let file = entry.path().join(name);
            let time = time(&file);
            out.push((file, time));
        }
    }
    out.sort_unstable();
    out.insert(0, (folder.clone(), time(&folder)));
    out
}

/// Makes the roots those that are listed. One that was a root before keeps its place and label.
fn merge_roots(project: &Path, roots: &mut Vec<LogRoot>, listed: &[PathBuf]) {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    let main = real(project);
    let mut seen: HashSet<PathBuf> = main.iter().cloned().collect();
    roots.iter_mut().skip(1).for_each(|root| root.here = false);
    for path in listed {
        let Some(path) = real(path).filter(|path| path.is_dir()) else { continue };
        // A project below the top of its repository is not all of it.
        let around = main.as_ref().is_some_and(|main| main.starts_with(&path));
        if around || !seen.insert(path.clone()) {
            continue;
        }
        if let Some(known) = roots.iter_mut().skip(1).find(|root| root.path == path) {
            known.here = true;
            continue;
        }
        let label = unused_label(roots, &path);
        roots.push(LogRoot { path, label, here: true });
    }
}

/// The name of the folder, with a number if another root has it.
fn unused_label(roots: &[LogRoot], path: &Path) -> String {
    let name = path.file_name().map_or_else(|| "worktree".into(), |n| n.to_string_lossy());
    let taken = |label: &str| roots.iter().any(|root| root.label == label);
    let mut label = name.clone().into_owned();
    let mut n = 2;
    while taken(&label) {
        label = format!("{name}~{n}");
        n += 1;
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_keeps_its_label_and_labels_differ() {
        let dir = tempfile::tempdir().unwrap();
        let base = std::fs::canonicalize(dir.path()).unwrap();
        let paths = ["p/sub", "x/wt", "y/wt"].map(|p| base.join(p));
        for path in &paths {
            std::fs::create_dir_all(path).unwrap();
        }
        let [project, x, y] = &paths;
        let mut roots = vec![LogRoot::main_root(project.clone())];
        let all = [base.join("p"), x.clone(), project.clone(), y.clone(), base.join("no")];
        merge_roots(project, &mut roots, &all);
        let labels = |roots: &[LogRoot]| -> Vec<(String, bool)> {
            roots.iter().map(|r| (r.label.clone(), r.here)).collect()
        };
        let told = |list: &[(&str, bool)]| -> Vec<(String, bool)> {
            list.iter().map(|(l, here)| ((*l).to_owned(), *here)).collect()
        };
        assert_eq!(labels(&roots), told(&[("", true), ("wt", true), ("wt~2", true)]));
        merge_roots(project, &mut roots, std::slice::from_ref(y));
        assert_eq!(labels(&roots), told(&[("", true), ("wt", false), ("wt~2", true)]));
        merge_roots(project, &mut roots, &[x.clone(), y.clone()]);
        assert_eq!(labels(&roots), told(&[("", true), ("wt", true), ("wt~2", true)]));
    }
}
