//! Completions for the words of a command line: paths of the tree, recipients, stores, mount points.
//!
//! A shell asks for them at each press of the key, so nothing here prints, waits for a mount or changes one.

use std::ffi::OsStr;

use clap_complete::engine::CompletionCandidate;
use msgfs::fuse::mountpoint;
use msgfs::model::sanitize_line;

use super::GlobalOptions;
use super::access::{self, AccessPurpose, split_path};
use super::context::CommandContext;

/// Returns paths from the root of the tree.
pub(crate) fn paths(typed: &OsStr) -> Vec<CompletionCandidate> {
    let found = || {
        let typed = typed.to_str()?;
        let (folder, _) = split_path(typed);
        let shown = typed.get(..typed.rfind('/').map_or(0, |at| at + 1))?;
        let folder = access::parse_tree_path(folder).ok()?;
        let listed = access::with_tree(&parse_global_options(), AccessPurpose::LOOK, |tree| {
            tree.ls(&folder)
        })
        .ok()?;
        // A name that cannot be typed as shown does not help.
        let plain = listed.into_iter().filter(|entry| sanitize_line(&entry.name) == entry.name);
        let line = |entry: msgfs::view::FolderEntry| {
            format!("{shown}{}{}", entry.name, if entry.is_dir { "/" } else { "" })
        };
        Some(plain.map(line).collect())
    };
    matching_candidates(typed, found())
}

/// Returns recipients that the stores have seen, for the last of several words between commas.
pub(crate) fn recipients(typed: &OsStr) -> Vec<CompletionCandidate> {
    let found = || {
        let typed = typed.to_str()?;
        let before = typed.get(..typed.rfind(',').map_or(0, |at| at + 1))?;
        let mailbox = parse_global_options().open_mailbox(true).ok()?;
        let tables = mailbox.tree().index().read();
        let plain = tables
            .messages
            .names()
            .known_addresses()
            .filter(|address| sanitize_line(address) == *address);
        Some(plain.map(|address| format!("{before}{address}")).collect())
    };
    matching_candidates(typed, found())
}

/// Returns the names of stores.
pub(crate) fn stores(typed: &OsStr) -> Vec<CompletionCandidate> {
    let stores = CommandContext::find(&parse_global_options())
        .and_then(|context| context.store_folders())
        .ok();
    matching_candidates(
        typed,
        stores.map(|stores| stores.into_iter().map(|(name, _)| name).collect()),
    )
}

/// Returns the mount points of msgfs.
pub(crate) fn mounts(typed: &OsStr) -> Vec<CompletionCandidate> {
    let all = mountpoint::read_mounts().unwrap_or_default();
    let ours = mountpoint::list_our_mounts(&all).into_iter();
    let names = ours.filter_map(|mount| Some(mount.mountpoint.to_str()?.to_owned())).collect();
    matching_candidates(typed, Some(names))
}

/// Returns the words that begin with the typed text, each once.
fn matching_candidates(typed: &OsStr, all: Option<Vec<String>>) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let mut fit = all.unwrap_or_default();
    fit.retain(|word| word.starts_with(&*typed));
    fit.sort_unstable();
    fit.dedup();
    fit.into_iter().map(CompletionCandidate::new).collect()
}

/// Returns `--me` and `--config` of the line that is being typed. The shell passes it as our own arguments.
fn parse_global_options() -> GlobalOptions {
    let words: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let value = |name: &str| {
        let equals = format!("{name}=");
        let joined = words.iter().find_map(|word| word.strip_prefix(&equals));
        let next = words.iter().skip_while(|word| *word != name).nth(1);
        joined.or(next.map(String::as_str)).map(str::to_owned)
    };
    GlobalOptions { me: value("--me"), config: value("--config").map(Into::into) }
}
