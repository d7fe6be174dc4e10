//! `msgfs ls`: lists a folder of the tree.

use std::fmt::Write;

use msgfs::model::sanitize_line;
use msgfs::view::FolderEntry;

use clap_complete::engine::ArgValueCompleter;

use super::access::{self, AccessPurpose};
use super::failure::Failure;
use super::{GlobalOptions, complete, output};

/// List a folder of the tree
///
/// The tree is the files and folders that `msgfs mount` shows. No mount is needed. Listing changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  msgfs ls\n  msgfs ls -l inbox\n  msgfs ls threads")]
pub(crate) struct Args {
    /// Also show mode, size in bytes and time (UTC)
    #[arg(short, long)]
    long: bool,
    /// A folder or file, as a path from the root of the tree
    #[arg(default_value = "/", hide_default_value = true, add = ArgValueCompleter::new(complete::paths))]
    path: String,
}

/// Runs `msgfs ls`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let path = access::parse_tree_path(&args.path)?;
    let listed = access::with_tree(global, AccessPurpose::LOOK, |tree| {
        tree.ls(&path).map_err(|failure| access::add_pattern_hint(&path, failure))
    })?;
    output::print_data(&if args.long { format_long(&listed) } else { format_short(&listed) })
}

fn format_short(listed: &[FolderEntry]) -> String {
    listed.iter().fold(String::new(), |text, entry| text + &sanitize_line(&entry.name) + "\n")
}

fn format_long(listed: &[FolderEntry]) -> String {
    let width = listed.iter().map(|e| e.size.to_string().len()).max().unwrap_or(0);
    listed.iter().fold(String::new(), |mut text, entry| {
        let mode = format_mode(entry.is_dir, entry.mode);
        let time = entry.time.rfc3339();
        let (time, _) = time.split_once('.').unwrap_or((&time, ""));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{mode} {size:>width$} {time}Z {name}",
            size = entry.size,
            name = sanitize_line(&entry.name)
        );
        text
    })
}

/// Returns the mode in the form of ls(1), like `-r--------`.
fn format_mode(is_dir: bool, mode: u16) -> String {
    let bit = |i: u16, c| if mode & (0o400 >> i) == 0 { '-' } else { c };
    let kind = if is_dir { 'd' } else { '-' };
    std::iter::once(kind).chain((0..9).zip("rwxrwxrwx".chars()).map(|(i, c)| bit(i, c))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use msgfs::model::Timestamp;

    #[test]
    fn a_long_line_is_aligned_and_complete() {
        let entry = |name: &str, is_dir, size, mode| FolderEntry {
            name: name.to_owned(),
            is_dir,
            size,
            time: Timestamp::from_secs(1_777_052_523),
            mode,
        };
        let listed = [entry("inbox", true, 0, 0o700), entry("README.txt", false, 1234, 0o400)];
        assert_eq!(
            format_long(&listed),
            "drwx------    0 2026-04-24T17:42:03Z inbox\n\
             -r-------- 1234 2026-04-24T17:42:03Z README.txt\n"
        );
        assert_eq!(format_short(&listed), "inbox\nREADME.txt\n");
        assert_eq!(format_mode(false, 0o200), "--w-------");
    }
}
