//! The me and the paths, for commands that need them without opening a mailbox.

use std::path::{Path, PathBuf};

use msgfs::config::{self, Config, Env, LockHolder, Me, Paths};
use msgfs::fuse::mountpoint;
use msgfs::mailbox::MailboxOptions;
use msgfs::model::quote_shell_word;
use msgfs::store::{StoreSpec, probe};

use super::failure::Failure;
use super::{GlobalOptions, output};

impl GlobalOptions {
    /// Returns the beginning of a command that acts for the same name, with the same configuration.
    pub(crate) fn render_command(&self) -> String {
        let me = self.me.as_ref().map(|me| format!(" --me {}", quote_shell_word(me)));
        let config = self.config.as_ref().map(|path| path.to_string_lossy());
        let config = config.map(|path| format!(" --config {}", quote_shell_word(&path)));
        format!("msgfs{}{}", me.unwrap_or_default(), config.unwrap_or_default())
    }
}

/// The result of the command line, the environment and the configuration together.
pub(crate) struct CommandContext {
    pub(crate) env: Env,
    pub(crate) config: Config,
    pub(crate) me: Me,
    pub(crate) paths: Paths,
}

impl CommandContext {
    /// Determines me and the paths. Creates nothing.
    pub(crate) fn find(global: &GlobalOptions) -> Result<Self, Failure> {
        Self::from_options(&global.mailbox_options())
    }

    /// Does the same for a mailbox to be opened.
    pub(crate) fn from_options(options: &MailboxOptions) -> Result<Self, Failure> {
        let env = Env::from_process().with_mount(options.current_mount.clone());
        let config = Config::load(options.config.as_deref(), &env).map_err(Failure::refused)?;
        let me = Me::resolve(options.me.as_deref(), &env, &config).map_err(Failure::refused)?;
        let paths = Paths::new(&env, &me.name).map_err(Failure::refused)?;
        Ok(Self { env, config, me, paths })
    }

    /// Makes the state folder, if it is missing.
    pub(crate) fn create_state_folder(&self) -> Result<(), Failure> {
        self.paths.create_state().map_err(Failure::refused)
    }

    /// Returns the stores that would be opened: the configured ones, then those that are found.
    pub(crate) fn store_specs(&self) -> Result<Vec<StoreSpec>, Failure> {
        let mut specs = self.config.stores(&self.env, &self.me.name).map_err(Failure::refused)?;
        specs.extend(self.config.find_default_stores(&self.env, &self.me.name));
        Ok(specs)
    }

    /// Returns the name and folder of each store that would be opened.
    pub(crate) fn store_folders(&self) -> Result<Vec<(String, PathBuf)>, Failure> {
        let named = |spec: StoreSpec| (spec.name.clone(), store_folder(&spec));
        Ok(self.store_specs()?.into_iter().map(named).collect())
    }

    /// Returns a path in the form for people.
    pub(crate) fn display_path(&self, path: &Path) -> String {
        self.env.display_home(path)
    }

    /// Returns the path of the configuration, which may be missing.
    pub(crate) fn config_file(&self) -> PathBuf {
        self.config.path.clone().unwrap_or_else(|| self.paths.config.join("config.toml"))
    }
}

/// Prints the name that a command acts for and its source, if nobody chose it. The command itself reports
/// errors.
pub(crate) fn announce_identity(global: &GlobalOptions) {
    if let Some(remark) =
        CommandContext::find(global).ok().and_then(|context| context.me.explain_default())
    {
        output::print_notice(&format!("acting {remark}"));
    }
}

/// Returns the me and the mount point of our mount that contains the current folder.
pub(crate) fn find_current_mount() -> Option<(String, PathBuf)> {
    let here = std::env::current_dir().ok()?;
    let mounts = mountpoint::read_mounts().ok()?;
    let mount = mountpoint::enclosing_mount(&mounts, &here).filter(|mount| mount.is_ours())?;
    let dir = mount.mountpoint.clone();
    let name = |state: PathBuf| Some(state.file_name()?.to_str()?.to_owned());
    let held = find_holder(|holder| holder.serves(mount)).and_then(|(state, _)| name(state));
    // A read-only mount holds no lock.
    let name = held.or_else(|| mountpoint::read_identity(&dir))?;
    Some((name, dir))
}

/// Returns the first of my state folders whose holder is a wanted one, and the holder.
pub(crate) fn find_holder(
    is_wanted: impl Fn(&LockHolder) -> bool,
) -> Option<(PathBuf, LockHolder)> {
    list_state_folders().into_iter().find_map(|state| {
        let holder = config::find_lock_holder(&state)?;
        is_wanted(&holder).then_some((state, holder))
    })
}

/// Returns the folder of a store, also if its configuration file names it.
pub(crate) fn store_folder(spec: &StoreSpec) -> PathBuf {
    let is_file = probe::require_response(&spec.dir).is_ok() && spec.dir.is_file();
    let parent = spec.dir.parent().filter(|_| is_file);
    parent.unwrap_or(&spec.dir).to_owned()
}

/// Returns the home folder.
pub(crate) fn home_folder() -> Result<PathBuf, Failure> {
    let env = Env::from_process();
    let home = env.home().map(Path::to_owned);
    home.ok_or_else(|| Failure::refused("HOME is not set; name the folder: msgfs mount DIR"))
}

/// Returns the state folders of everybody I act for or have acted for, whatever the configuration says.
pub(crate) fn list_state_folders() -> Vec<PathBuf> {
    // Any valid name leads to the folder that all names share.
    let paths = Paths::new(&Env::from_process(), "x");
    let Some(all) = paths.ok().and_then(|paths| paths.state.parent().map(Path::to_owned)) else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(all).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
