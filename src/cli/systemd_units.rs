//! The systemd user units that mount and carry: a list of those that are enabled or running, and their removal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use msgfs::config::Env;

/// The unit files that this msgfs ships.
const SHIPPED: [(&str, &str); 3] = [
    ("msgfs.service", include_str!("../../mount-scripts/msgfs.service")),
    ("msgfs@.service", include_str!("../../mount-scripts/msgfs@.service")),
    ("msgfs-carry@.service", include_str!("../../mount-scripts/msgfs-carry@.service")),
];
/// The same names as patterns of systemctl.
const PATTERNS: [&str; 3] = ["msgfs.service", "msgfs@*.service", "msgfs-carry@*.service"];

/// A unit of this user that starts msgfs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SystemdUnit {
    pub(crate) name: String,
    /// The links that start it at log-in.
    links: Vec<PathBuf>,
    is_running: bool,
}

/// A unit file in the folder for a user's own units.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SystemdUnitFile {
    pub(crate) path: PathBuf,
    /// The file is as this msgfs ships it.
    pub(crate) is_shipped: bool,
}

impl SystemdUnit {
    /// Stops the unit and disables it.
    ///
    /// # Errors
    /// Returns the error of the system; systemctl prints its own error on standard error.
    pub(crate) fn stop_and_disable(&self) -> io::Result<()> {
        if self.is_running && !systemctl_command(&["stop", "--", &self.name]).status()?.success() {
            return Err(io::Error::other("systemctl could not stop it"));
        }
        self.links.iter().try_for_each(fs::remove_file)
    }
}

/// Returns the folder for a user's own units.
fn find_unit_folder(env: &Env) -> Option<PathBuf> {
    let config = env.folder_var("XDG_CONFIG_HOME").map(Path::to_owned);
    Some(config.or_else(|| Some(env.home()?.join(".config")))?.join("systemd/user"))
}

/// Returns the units that are enabled or running, by name.
pub(crate) fn list_units(env: &Env) -> Vec<SystemdUnit> {
    let mut units: Vec<SystemdUnit> = Vec::new();
    let folders = find_unit_folder(env).into_iter().flat_map(list_entries);
    let wanting = folders
        .filter(|folder| folder.extension().is_some_and(|end| end == "wants" || end == "requires"));
    for link in wanting.flat_map(list_entries) {
        let name = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !is_unit_name(&name) || !fs::symlink_metadata(&link).is_ok_and(|meta| meta.is_symlink())
        {
            continue;
        }
        // The link of a removed package leads nowhere.
        if fs::read_to_string(&link).is_ok_and(|text| !starts_msgfs(&text)) {
            continue;
        }
        match units.iter_mut().find(|unit| unit.name == name) {
            Some(unit) => unit.links.push(link),
            None => units.push(SystemdUnit { name, links: vec![link], is_running: false }),
        }
    }
    for name in list_running_units() {
        match units.iter_mut().find(|unit| unit.name == name) {
            Some(unit) => unit.is_running = true,
            None => units.push(SystemdUnit { name, links: Vec::new(), is_running: true }),
        }
    }
    units.sort_by(|a, b| a.name.cmp(&b.name));
    units
}

/// Returns the files of these units in the folder for a user's own units.
pub(crate) fn list_unit_files(env: &Env) -> Vec<SystemdUnitFile> {
    let Some(folder) = find_unit_folder(env) else { return Vec::new() };
    let read = |(name, shipped): &(&str, &str)| {
        let path = folder.join(name);
        let text = fs::read_to_string(&path).ok()?;
        Some(SystemdUnitFile { is_shipped: text == *shipped, path })
    };
    SHIPPED.iter().filter_map(read).collect()
}

/// Tells systemd that unit files have changed, if it runs.
pub(crate) fn reload_systemd() {
    let _ = systemctl_command(&["daemon-reload"]).stderr(Stdio::null()).status();
}

fn list_entries(folder: PathBuf) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// Returns true for the name of one of our units, also of an instance.
fn is_unit_name(name: &str) -> bool {
    let template = name.split_once('@').map(|(kind, _)| format!("{kind}@.service"));
    let kind = template.as_deref().filter(|_| name.ends_with(".service")).unwrap_or(name);
    SHIPPED.iter().any(|(shipped, _)| *shipped == kind)
}

/// Returns true if the text of a unit starts msgfs.
fn starts_msgfs(text: &str) -> bool {
    let commands = text.lines().filter_map(|line| line.trim_start().strip_prefix("ExecStart="));
    commands.flat_map(str::split_whitespace).any(|word| word.rsplit('/').next() == Some("msgfs"))
}

/// Returns the units that systemd runs now; none if systemd does not run.
fn list_running_units() -> Vec<String> {
    let list = ["list-units", "--plain", "--no-legend", "--full"];
    let Some(text) = query_systemctl(&[&list[..], &PATTERNS[..]].concat()) else {
        return Vec::new();
    };
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| is_unit_name(name)).filter(|name| {
        let file = query_systemctl(&["show", "--property=FragmentPath", "--value", "--", name]);
        let file = file.map(|file| PathBuf::from(file.trim_end()));
        file.and_then(|file| fs::read_to_string(file).ok()).is_some_and(|text| starts_msgfs(&text))
    });
    names.map(str::to_owned).collect()
}

fn systemctl_command(arguments: &[&str]) -> Command {
    let mut command = Command::new("systemctl");
    command.arg("--user").args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Returns the output of systemctl; `None` if it is missing or reaches no systemd.
fn query_systemctl(arguments: &[&str]) -> Option<String> {
    let mut command = systemctl_command(arguments);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_units_are_told_from_others() {
        for (name, text) in SHIPPED {
            assert!(is_unit_name(name) && starts_msgfs(text), "{name}");
        }
        for name in ["msgfs@alice.service", "msgfs-carry@a-b.service"] {
            assert!(is_unit_name(name), "{name}");
        }
        for name in
            ["msgfs", "msgfs@x.timer", "notmsgfs.service", "msgfs-backup.service", "@.service"]
        {
            assert!(!is_unit_name(name), "{name}");
        }
        assert!(!starts_msgfs("ExecStart=/usr/bin/backup ~/msgfs.old\n# msgfs"));
    }
}
