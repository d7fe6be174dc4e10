//! Who and where, for commands that need it without opening a mailbox.

use std::path::{Path, PathBuf};

use msgfs::config::{self, Config, Env, Me, Paths};
use msgfs::fuse::mountpoint;
use msgfs::mailbox::Options;
use msgfs::store::{Spec, asked};

use super::failure::Failure;
use super::{Global, output};

/// What the command line, the environment and the configuration say together.
pub(crate) struct Context {
    pub(crate) env: Env,
    pub(crate) config: Config,
    pub(crate) me: Me,
    pub(crate) paths: Paths,
}

impl Context {
    /// Finds out who and where. Nothing is created.
    pub(crate) fn find(global: &Global) -> Result<Self, Failure> {
        Self::of(&global.options())
    }

    /// The same of a mailbox to be opened.
    pub(crate) fn of(options: &Options) -> Result<Self, Failure> {
        let env = Env::from_process().in_mount(options.here.clone());
        let config = Config::load(options.config.as_deref(), &env).map_err(Failure::refused)?;
        let me = Me::resolve(options.me.as_deref(), &env, &config).map_err(Failure::refused)?;
        let paths = Paths::new(&env, &me.name).map_err(Failure::refused)?;
        Ok(Self { env, config, me, paths })
    }

    /// Makes the state folder, if it is missing.
    pub(crate) fn make_state(&self) -> Result<(), Failure> {
        self.paths.create_state().map_err(Failure::refused)
    }

    /// The stores that would be opened: those that are configured, then those that are found.
    pub(crate) fn specs(&self) -> Result<Vec<Spec>, Failure> {
        let mut specs = self.config.stores(&self.env, &self.me.name).map_err(Failure::refused)?;
        specs.extend(self.config.found(&self.env, &self.me.name));
        Ok(specs)
    }

    /// Name and folder of each store that would be opened.
    pub(crate) fn stores(&self) -> Result<Vec<(String, PathBuf)>, Failure> {
        let named = |spec: Spec| (spec.name.clone(), folder(&spec));
        Ok(self.specs()?.into_iter().map(named).collect())
    }

    /// A path as it is shown to people.
    pub(crate) fn shown(&self, path: &Path) -> String {
        self.env.display_home(path)
    }

    /// Where the configuration is, or would be.
    pub(crate) fn config_file(&self) -> PathBuf {
        self.config.path.clone().unwrap_or_else(|| self.paths.config.join("config.toml"))
    }
}

/// Says which name a command acts for and why, where nobody chose it. What is wrong the command says itself.
pub(crate) fn announce(global: &Global) {
    if let Some(remark) = Context::find(global).ok().and_then(|context| context.me.remark()) {
        output::say(&format!("acting {remark}"));
    }
}

/// Finds the mount of ours that the current folder is in: whom it acts for, and where it is.
pub(crate) fn mount_here() -> Option<(String, PathBuf)> {
    let here = std::env::current_dir().ok()?;
    let mounts = mountpoint::mounts().ok()?;
    let dir =
        mountpoint::around(&mounts, &here).filter(|mount| mount.is_ours())?.mountpoint.clone();
    let holds = |state: &PathBuf| {
        config::holder(state).and_then(|holder| holder.mountpoint).as_ref() == Some(&dir)
    };
    let name = |state: PathBuf| Some(state.file_name()?.to_str()?.to_owned());
    let held = state_folders().into_iter().find(holds).and_then(name);
    // A read-only mount holds no lock.
    let name = held.or_else(|| mountpoint::me_of(&dir))?;
    Some((name, dir))
}

/// The folder of a store, also where it is named by its configuration file.
pub(crate) fn folder(spec: &Spec) -> PathBuf {
    let is_file = asked::reach(&spec.dir).is_ok() && spec.dir.is_file();
    let parent = spec.dir.parent().filter(|_| is_file);
    parent.unwrap_or(&spec.dir).to_owned()
}

/// The home folder.
pub(crate) fn home() -> Result<PathBuf, Failure> {
    let env = Env::from_process();
    let home = env.home().map(Path::to_owned);
    home.ok_or_else(|| Failure::refused("HOME is not set; name the folder: msgfs mount DIR"))
}

/// The state folders of everybody I act for or have acted for; whatever the configuration says.
pub(crate) fn state_folders() -> Vec<PathBuf> {
    // Any valid name serves to find the folder that all names share.
    let paths = Paths::new(&Env::from_process(), "x");
    let Some(all) = paths.ok().and_then(|paths| paths.state.parent().map(Path::to_owned)) else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(all).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}
