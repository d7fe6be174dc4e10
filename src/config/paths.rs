//! Where msgfs keeps its own files, and where stores are by default.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::env::Env;
use super::me::is_alias;
use crate::model::one_line;
use crate::store::Kind;

/// Why there is no place for msgfs's files.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// Neither the variable nor `$HOME` says where.
    #[error(
        "neither ${variable} nor $HOME is set to an absolute path; set one, for example: export HOME=/home/NAME"
    )]
    NoHome {
        /// The variable that would say.
        variable: &'static str,
    },
    /// The name would not be a folder of its own.
    #[error("{:?} cannot be used as the name of a folder", one_line(name))]
    BadName {
        /// The name.
        name: String,
    },
    /// The folder cannot be made.
    #[error("{}: the folder cannot be made: {source}", one_line(&path.to_string_lossy()))]
    Io {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The folders of one me. Nothing is created by asking.
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
    /// The folders for this name.
    ///
    /// # Errors
    /// [`PathError::BadName`] unless the name is an alias (see [`is_alias`]);
    /// [`PathError::NoHome`].
    pub fn new(env: &Env, me: &str) -> Result<Self, PathError> {
        if !is_alias(me) {
            return Err(PathError::BadName { name: me.to_owned() });
        }
        let own = |variable, default| xdg(env, variable, default).map(|base| base.join("msgfs"));
        Ok(Self {
            state: own("XDG_STATE_HOME", ".local/state")?.join(me),
            cache: own("XDG_CACHE_HOME", ".cache")?.join(me),
            config: own("XDG_CONFIG_HOME", ".config")?,
        })
    }

    /// Makes the state folder, mode 0700, if it is missing.
    ///
    /// # Errors
    /// [`PathError::Io`] as the system gave it.
    pub fn create_state(&self) -> Result<(), PathError> {
        create(&self.state)
    }

    /// Makes the cache folder, mode 0700, if it is missing.
    ///
    /// # Errors
    /// [`PathError::Io`] as the system gave it.
    pub fn create_cache(&self) -> Result<(), PathError> {
        create(&self.cache)
    }

    /// The signing key.
    pub fn key_file(&self) -> PathBuf {
        self.state.join("identity_key")
    }

    /// The keyring.
    pub fn keyring_file(&self) -> PathBuf {
        self.state.join("keyring.json")
    }
}

fn create(path: &Path) -> Result<(), PathError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| PathError::Io { path: path.to_owned(), source })
}

/// A base folder of the XDG specification.
fn xdg(env: &Env, variable: &'static str, default: &str) -> Result<PathBuf, PathError> {
    env.folder(variable)
        .map(Path::to_owned)
        .or_else(|| env.home().map(|home| home.join(default)))
        .ok_or(PathError::NoHome { variable })
}

/// Where the configuration is, if nobody says otherwise.
pub(super) fn default_config_file(env: &Env) -> Result<PathBuf, PathError> {
    xdg(env, "XDG_CONFIG_HOME", ".config").map(|base| base.join("msgfs/config.toml"))
}

/// The default place of a store of this kind.
///
/// # Errors
/// [`PathError::NoHome`].
pub fn default_dir(kind: Kind, env: &Env) -> Result<PathBuf, PathError> {
    match kind {
        // The format takes any non-empty value, also a relative one (formats/samp.md, 1.1); msgfs
        // must look where the format's other programs look.
        Kind::Samp => {
            if let Some(dir) = env.var("AGENT_MESSAGE_DIR") {
                return Ok(env.absolute(Path::new(dir)));
            }
            if let Some(state) = env.var("XDG_STATE_HOME") {
                return Ok(env.absolute(&Path::new(state).join("agent-message")));
            }
            xdg(env, "XDG_STATE_HOME", ".local/state").map(|state| state.join("agent-message"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn env(vars: &[(&str, &str)]) -> Env {
        Env::new("/cwd", vars.iter().copied())
    }

    #[test]
    fn home_is_the_default() {
        let paths = Paths::new(&env(&[("HOME", "/h")]), "foo").unwrap();
        assert_eq!(paths.state, Path::new("/h/.local/state/msgfs/foo"));
        assert_eq!(paths.cache, Path::new("/h/.cache/msgfs/foo"));
        assert_eq!(paths.config, Path::new("/h/.config/msgfs"));
    }

    #[test]
    fn xdg_variables_win_if_absolute() {
        let vars = [
            ("HOME", "/h"),
            ("XDG_STATE_HOME", "/s"),
            ("XDG_CACHE_HOME", "relative"),
            ("XDG_CONFIG_HOME", ""),
        ];
        let paths = Paths::new(&env(&vars), "foo").unwrap();
        assert_eq!(paths.state, Path::new("/s/msgfs/foo"));
        assert_eq!(paths.cache, Path::new("/h/.cache/msgfs/foo"));
        assert_eq!(paths.config, Path::new("/h/.config/msgfs"));
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
    fn samp_is_where_its_programs_look() {
        let dir = |vars: &[(&str, &str)]| default_dir(Kind::Samp, &env(vars)).unwrap();
        let home = ("HOME", "/h");
        assert_eq!(dir(&[home]), Path::new("/h/.local/state/agent-message"));
        assert_eq!(dir(&[home, ("XDG_STATE_HOME", "/s")]), Path::new("/s/agent-message"));
        assert_eq!(dir(&[home, ("XDG_STATE_HOME", "s")]), Path::new("/cwd/s/agent-message"));
        let both = [home, ("XDG_STATE_HOME", "/s"), ("AGENT_MESSAGE_DIR", "/m")];
        assert_eq!(dir(&both), Path::new("/m"));
        assert_eq!(dir(&[home, ("AGENT_MESSAGE_DIR", "m")]), Path::new("/cwd/m"));
        assert_eq!(
            dir(&[home, ("AGENT_MESSAGE_DIR", "")]),
            Path::new("/h/.local/state/agent-message")
        );
        assert!(default_dir(Kind::Samp, &env(&[])).is_err());
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
        std::fs::remove_dir(&paths.state).unwrap();
        std::fs::write(&paths.state, "").unwrap();
        assert!(matches!(paths.create_state(), Err(PathError::Io { .. })));
    }
}
