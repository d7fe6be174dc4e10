//! The folders that have a `.agent`: the project and the worktrees of its repository.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::git;
use crate::store::engine::lines::table::LogRoot;
use crate::store::fs;

/// The folder that holds a project's agent data, and its folder of threads.
pub(super) const AGENT: &str = ".agent";
pub(super) const THREADS: &str = "threads";
/// Git's folder of worktrees. [`TELLING`] are the files in it that change when a worktree is made or moved.
const WORKTREES: &str = "worktrees";
/// Git's own folder in the main worktree.
pub(super) const GIT: &str = ".git";
const TELLING: [&str; 2] = ["gitdir", "locked"];
/// The shortest time between two runs of git if nothing shows that worktrees changed.
const AGAIN: Duration = Duration::from_secs(3);

/// The facts about the repository.
#[derive(Debug, Default)]
pub(super) struct GitRepository {
    /// The time of the last run of git.
    asked_at: Option<Instant>,
    common_dir: Option<PathBuf>,
    /// Git's notes about worktrees at that time.
    worktree_notes: Option<Vec<(PathBuf, Option<std::time::SystemTime>)>>,
}

/// Returns the folders that belong to a project: its own, and the worktrees of its repository.
pub fn project_folders(project: &Path) -> Vec<PathBuf> {
    let mut roots = Vec::new();
    GitRepository::default().refresh_roots(project, &mut roots, true);
    let real = std::fs::canonicalize(project).ok();
    roots.into_iter().map(|root| root.path).chain(real).collect()
}

impl GitRepository {
    /// Updates the list of roots. Returns true if it changed. With `ask`, it also runs git if nothing shows a change.
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
            // The usual folder is found without git, also as soon as it is made.
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
            // Git runs only if it has noted a worktree.
            let listed = if some { git::list_worktrees(project) } else { Vec::new() };
            merge_roots(project, roots, &listed);
        }
        *roots != before
    }

    /// Returns git's folders that tell of worktrees.
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

    /// Returns true if a change of this name in one of those folders may concern worktrees; `None` if it is another
    /// folder.
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

/// Returns git's notes about worktrees with their times: first the folder itself, then these files of each worktree.
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

/// Makes the listed folders the roots. A known root keeps its place and label.
fn merge_roots(project: &Path, roots: &mut Vec<LogRoot>, listed: &[PathBuf]) {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    let main = real(project);
    let mut seen: HashSet<PathBuf> = main.iter().cloned().collect();
    roots.iter_mut().skip(1).for_each(|root| root.here = false);
    for path in listed {
        let Some(path) = real(path).filter(|path| path.is_dir()) else { continue };
        // If the project lies below the top of its repository, the top worktree is not another project.
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

/// Returns the name of the folder, with a number if another root has it.
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
