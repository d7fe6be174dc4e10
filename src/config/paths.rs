//! The folders of msgfs's own files, and the default places of stores.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::env::Env;
use super::me::is_alias;
use crate::model::{Remedy, display_path, sanitize_line};
use crate::store::{DefaultPlace, Kind, fs, probe};

/// A reason why there is no folder for msgfs's files.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// Neither the variable nor `$HOME` has an absolute path.
    #[error(
        "neither ${0} nor $HOME is set to an absolute path; set one, for example: export HOME=/home/NAME"
    )]
    NoHome(&'static str),
    /// The name would not be a folder of its own.
    #[error("{:?} cannot be used as the name of a folder", sanitize_line(.0))]
    BadName(String),
    /// A store of this name and kind has no default place.
    #[error(
        "the store {:?} needs a place: give its [[store]] a line dir = \"…\"{}",
        sanitize_line(.0),
        in_words(*.1).map(|names| format!(", or set {names}")).unwrap_or_default()
    )]
    NoPlace(String, Kind),
    /// Others could change the files there. The fields are the path, the problem and the command.
    #[error("{}: {}, so it is not used; mend it with: {}", display_path(.0), .1, .2)]
    Exposed(PathBuf, String, Remedy),
    /// The folder cannot be made.
    #[error("{}: the folder cannot be made: {}", display_path(.0), .1)]
    Io(PathBuf, #[source] io::Error),
}

/// The folders of one me. Making this value creates no folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// `$XDG_STATE_HOME/msgfs/<me>`: marks, keyring, key, spool. Losing it loses something.
    pub state: PathBuf,
    /// `$XDG_CACHE_HOME/msgfs/<me>`: the index snapshot. Deleting it loses nothing.
    pub cache: PathBuf,
    /// `$XDG_CONFIG_HOME/msgfs`: the configuration, the same for every me.
    pub config: PathBuf,
}

impl Paths {
    /// Returns the folders for this name.
    ///
    /// # Errors
    /// Returns [`PathError::BadName`] unless the name is an alias, and [`PathError::NoHome`].
    pub fn new(env: &Env, me: &str) -> Result<Self, PathError> {
        if !is_alias(me) {
            return Err(PathError::BadName(me.to_owned()));
        }
        let own =
            |variable, default| xdg_folder(env, variable, default).map(|base| base.join("msgfs"));
        Ok(Self {
            state: own("XDG_STATE_HOME", ".local/state")?.join(me),
            cache: own("XDG_CACHE_HOME", ".cache")?.join(me),
            config: own("XDG_CONFIG_HOME", ".config")?,
        })
    }

    /// Makes the state folder with mode 0700, if it is missing.
    ///
    /// # Errors
    /// Returns [`PathError::Io`] from the system, or an error of [`Paths::check_state`].
    pub fn create_state(&self) -> Result<(), PathError> {
        create_folder(&self.state)?;
        self.check_state()
    }

    /// Checks that nobody else can change the state folder, the folder of all states above it, or the files in
    /// it.
    ///
    /// # Errors
    /// Returns [`PathError::Exposed`] with the command that mends it, or [`PathError::Io`].
    pub fn check_state(&self) -> Result<(), PathError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            |source| PathError::Io(path, source)
        };
        let mut is_closed = true;
        for folder in self.state.parent().into_iter().chain([self.state.as_path()]) {
            let meta = std::fs::metadata(folder).map_err(io(folder))?;
            refuse_exposed(folder, &meta, 0o700)?;
            is_closed = meta.mode() & 0o011 == 0;
        }
        for entry in std::fs::read_dir(&self.state).map_err(io(&self.state))?.flatten() {
            // A file that disappears meanwhile was a temporary file.
            let Ok(meta) = entry.metadata() else { continue };
            if is_closed || meta.is_symlink() {
                refuse_foreign(&entry.path(), &meta)?;
            } else {
                let mode = if meta.is_dir() { 0o700 } else { 0o600 };
                refuse_exposed(&entry.path(), &meta, mode)?;
            }
        }
        Ok(())
    }

    /// Makes the cache folder with mode 0700, if it is missing.
    ///
    /// # Errors
    /// Returns [`PathError::Io`] from the system.
    pub fn create_cache(&self) -> Result<(), PathError> {
        create_folder(&self.cache)
    }

    /// Returns the file of the signing key.
    pub fn key_file(&self) -> PathBuf {
        self.state.join("identity_key")
    }

    /// Returns the file that lists which keys have signed.
    pub fn signers_file(&self) -> PathBuf {
        self.state.join("signers.json")
    }

    /// Returns the file that lists the messages read last.
    pub fn read_last_file(&self) -> PathBuf {
        self.state.join("read-last")
    }

    /// Returns the file of the index of search.
    pub fn search_file(&self) -> PathBuf {
        self.cache.join("search")
    }

    /// Returns the file of the keyring.
    pub fn keyring_file(&self) -> PathBuf {
        self.state.join("keyring.json")
    }
}

fn create_folder(path: &Path) -> Result<(), PathError> {
    fs::make_dirs(path, 0o700).map_err(|source| PathError::Io(path.to_owned(), source))
}

/// Refuses a file that belongs to another user.
fn refuse_foreign(path: &Path, meta: &Metadata) -> Result<(), PathError> {
    let Some(owner) = fs::foreign_owner(meta) else { return Ok(()) };
    let problem = format!("it belongs to the user {owner}, who could have changed it");
    Err(PathError::Exposed(path.to_owned(), problem, Remedy::Own(path.to_owned())))
}

/// Refuses a file that others can write to as well.
fn refuse_exposed(path: &Path, meta: &Metadata, mode: u32) -> Result<(), PathError> {
    refuse_foreign(path, meta)?;
    if meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    let problem = "others can write to it".to_owned();
    Err(PathError::Exposed(path.to_owned(), problem, Remedy::Permit(path.to_owned(), mode)))
}

/// Returns a base folder of the XDG specification.
fn xdg_folder(env: &Env, variable: &'static str, default: &str) -> Result<PathBuf, PathError> {
    env.folder_var(variable)
        .map(Path::to_owned)
        .or_else(|| env.home().map(|home| home.join(default)))
        .ok_or(PathError::NoHome(variable))
}

/// Returns the folder for files that are needed during one login only: `$XDG_RUNTIME_DIR` if it is a folder,
/// mine, and writable to nobody else, or else the base folder of state. `None` if neither is known.
pub fn private_base(env: &Env) -> Option<PathBuf> {
    // A symlink may lead anywhere. With a slash behind it, it would be followed.
    let named = env.folder_var("XDG_RUNTIME_DIR").map(|dir| dir.components().collect::<PathBuf>());
    let mine = |dir: &PathBuf| {
        std::fs::symlink_metadata(dir)
            .is_ok_and(|meta| meta.is_dir() && refuse_exposed(dir, &meta, 0o700).is_ok())
    };
    let runtime = named.filter(mine);
    runtime.or_else(|| xdg_folder(env, "XDG_STATE_HOME", ".local/state").ok())
}

/// Returns the default path of the configuration file.
pub(super) fn default_config_file(env: &Env) -> Result<PathBuf, PathError> {
    xdg_folder(env, "XDG_CONFIG_HOME", ".config").map(|base| base.join("msgfs/config.toml"))
}

/// Returns the default place of a store of this kind; for AgentAZAll it may be the configuration file itself.
/// `None` if the kind has no place unless a variable names one.
pub(super) fn default_dir(kind: Kind, env: &Env) -> Result<Option<PathBuf>, PathError> {
    let named = |variable| env.var(variable).map(|place| env.make_absolute(Path::new(place)));
    if let Some(place) = kind.row().dir_variables.iter().find_map(|variable| named(variable)) {
        return Ok(Some(place));
    }
    match kind.row().place {
        DefaultPlace::Nowhere => Ok(None),
        // The format takes any non-empty value, also a relative one (docs/formats/samp.md, section 1). msgfs
        // must use the folder that the format's other programs use.
        DefaultPlace::State(folder) => {
            let state = match named("XDG_STATE_HOME") {
                Some(state) => state,
                None => xdg_folder(env, "XDG_STATE_HOME", ".local/state")?,
            };
            Ok(Some(state.join(folder)))
        }
        DefaultPlace::Home(folder) => {
            let variable = kind.row().dir_variables.first().copied().unwrap_or("HOME");
            let home = env.home().ok_or(PathError::NoHome(variable))?;
            Ok(Some(home.join(folder)))
        }
    }
}

/// Returns the variables that name a kind's default place, for people.
fn in_words(kind: Kind) -> Option<String> {
    let names: Vec<String> =
        kind.row().dir_variables.iter().map(|name| format!("${name}")).collect();
    (!names.is_empty()).then(|| names.join(" or "))
}

/// Returns the default place of this kind, if a store is there that nobody configured.
pub(super) fn find_default_store(kind: Kind, env: &Env) -> Option<PathBuf> {
    let is_store = kind.row().is_store?;
    let dir = default_dir(kind, env).ok().flatten()?;
    let is_named = kind.row().dir_variables.iter().any(|variable| env.var(variable).is_some());
    // Opening the store reports the fault.
    let is_there = probe::require_response(&dir).is_err() || is_store(&dir, is_named);
    is_there.then_some(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn env(vars: &[(&str, &str)]) -> Env {
        Env::new("/cwd", vars.iter().copied())
    }

    #[test]
    fn home_is_the_default_and_xdg_variables_win_if_absolute() {
        let odd =
            [("XDG_STATE_HOME", "/s"), ("XDG_CACHE_HOME", "relative"), ("XDG_CONFIG_HOME", "")];
        for (vars, state) in [(&[][..], "/h/.local/state/msgfs/foo"), (&odd, "/s/msgfs/foo")] {
            let vars = [&[("HOME", "/h")], vars].concat();
            let expected = Paths {
                state: state.into(),
                cache: "/h/.cache/msgfs/foo".into(),
                config: "/h/.config/msgfs".into(),
            };
            assert_eq!(Paths::new(&env(&vars), "foo").unwrap(), expected);
        }
    }

    #[test]
    fn no_home_and_no_name_are_told() {
        let error = Paths::new(&env(&[]), "foo").unwrap_err();
        assert!(error.to_string().contains("$XDG_STATE_HOME"), "{error}");
        for bad in ["", ".", "..", "a/b", "../x", "a\0"] {
            let error = Paths::new(&env(&[("HOME", "/h")]), bad).unwrap_err();
            assert!(matches!(error, PathError::BadName { .. }), "{bad:?}");
        }
    }

    #[test]
    fn stores_are_where_their_programs_look() {
        use Kind::{AgentAzall, Amp, Samp};
        let home = ("HOME", "/h");
        let (state, relative) = (("XDG_STATE_HOME", "/s"), ("XDG_STATE_HOME", "s"));
        let samp = |dir| ("AGENT_MESSAGE_DIR", dir);
        let (config, root) = (("AGENTAZALL_CONFIG", "a/c.json"), ("AGENTAZALL_ROOT", "/r"));
        for (kind, vars, dir) in [
            (Samp, &[home][..], "/h/.local/state/agent-message"),
            (Samp, &[home, state], "/s/agent-message"),
            (Samp, &[home, relative], "/cwd/s/agent-message"),
            (Samp, &[home, state, samp("/m")], "/m"),
            (Samp, &[home, samp("m")], "/cwd/m"),
            (Samp, &[home, samp("")], "/h/.local/state/agent-message"),
            (AgentAzall, &[root], "/r"),
            (AgentAzall, &[root, config], "/cwd/a/c.json"),
            (Amp, &[home], "/h/.agent-messaging"),
            (Amp, &[home, ("AMP_DIR", "/x")], "/x"),
        ] {
            let found = default_dir(kind, &env(vars)).unwrap();
            assert_eq!(found.as_deref(), Some(Path::new(dir)), "{vars:?}");
        }
        assert_eq!(default_dir(AgentAzall, &env(&[])).unwrap(), None);
        assert!(default_dir(Samp, &env(&[])).is_err());
        let text = default_dir(Amp, &env(&[])).unwrap_err().to_string();
        assert!(text.contains("$AMP_DIR nor $HOME"), "{text}");
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (home, root) = (at("home"), at("root"));
        let vars = [("HOME", home.as_str()), ("AGENTAZALL_ROOT", root.as_str())];
        let look = |kind| find_default_store(kind, &env(&vars));
        for kind in Kind::ALL {
            assert_eq!(look(*kind), None);
        }
        std::fs::create_dir_all(dir.path().join("home/.agent-messaging")).unwrap();
        std::fs::create_dir(&root).unwrap();
        assert_eq!((look(Kind::Amp), look(Kind::AgentAzall)), (None, None));
        std::fs::create_dir(dir.path().join("home/.agent-messaging/agents")).unwrap();
        std::fs::write(dir.path().join("root/config.json"), "{}").unwrap();
        assert_eq!(look(Kind::Amp), Some(dir.path().join("home/.agent-messaging")));
        assert_eq!(look(Kind::AgentAzall), Some(root.clone().into()));
        let agent = at("home/.agent-messaging/agents");
        let by = |name: &str, place: &str| env(&[("HOME", home.as_str()), (name, place)]);
        assert_eq!(
            find_default_store(Kind::Amp, &by("AMP_DIR", &agent)),
            Some(agent.clone().into())
        );
        assert_eq!(find_default_store(Kind::Amp, &by("AMP_DIR", &at("none"))), None);
        let file = at("root/config.json");
        let named = find_default_store(Kind::AgentAzall, &by("AGENTAZALL_CONFIG", &file));
        assert_eq!(named, Some(file.into()));
    }

    #[test]
    fn state_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(&env(&[("HOME", dir.path().to_str().unwrap())]), "foo").unwrap();
        paths.create_state().unwrap();
        paths.create_state().unwrap();
        paths.create_cache().unwrap();
        for made in [&paths.state, &paths.cache] {
            assert_eq!(std::fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o700);
        }
        let open = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let above = paths.state.parent().unwrap();
        for (folder, mode) in [(above, 0o777), (paths.state.as_path(), 0o720)] {
            open(folder, mode);
            let error = paths.create_state().unwrap_err().to_string();
            assert!(error.contains(&format!("chmod 700 {}", folder.display())), "{error}");
            open(folder, 0o755);
        }
        let spool = paths.state.join("spool");
        std::fs::write(&spool, "").unwrap();
        open(&spool, 0o666);
        let error = paths.create_state().unwrap_err().to_string();
        assert!(error.contains(&format!("chmod 600 {}", spool.display())), "{error}");
        open(&paths.state, 0o700);
        paths.create_state().unwrap();
        std::fs::remove_file(&spool).unwrap();
        std::fs::remove_dir(&paths.state).unwrap();
        std::fs::write(&paths.state, "").unwrap();
        assert!(matches!(paths.create_state(), Err(PathError::Io { .. })));
    }
}
