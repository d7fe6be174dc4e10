//! The part of the process environment that configuration depends on.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::model::sanitize_line;

/// Environment variables and the current folder. They are taken once, so that everything that depends on them
/// can be tested without changing the process.
#[derive(Clone, Debug, Default)]
pub struct Env {
    vars: HashMap<OsString, OsString>,
    cwd: Option<PathBuf>,
    mount: Option<(String, PathBuf)>,
}

impl Env {
    /// Returns the environment of this process. Without `$HOME` the account's home folder counts.
    pub fn from_process() -> Self {
        let (vars, cwd) = (std::env::vars_os().collect(), std::env::current_dir().ok());
        let mut env = Self { vars, cwd, mount: None };
        if env.home().is_none()
            && let Some(home) = std::env::home_dir()
        {
            env.vars.insert("HOME".into(), home.into());
        }
        env
    }

    /// Returns the same environment in another folder.
    #[must_use]
    pub fn with_cwd(self, folder: PathBuf) -> Self {
        Self { cwd: Some(folder), mount: None, ..self }
    }

    /// Adds the mount that contains the current folder: its me and its mount point.
    #[must_use]
    pub fn with_mount(self, mount: Option<(String, PathBuf)>) -> Self {
        Self { mount, ..self }
    }

    /// Returns the mount that contains the current folder, if known: its me and its mount point.
    pub fn mount(&self) -> Option<&(String, PathBuf)> {
        self.mount.as_ref()
    }

    /// Returns the same environment without a variable.
    #[must_use]
    pub fn without_var(mut self, name: &str) -> Self {
        self.vars.remove(OsStr::new(name));
        self
    }

    /// Returns an environment of these variables, in this folder.
    pub fn new<K, V>(cwd: impl Into<PathBuf>, vars: impl IntoIterator<Item = (K, V)>) -> Self
    where
        K: Into<OsString>,
        V: Into<OsString>,
    {
        let vars = vars.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        Self { vars, cwd: Some(cwd.into()), mount: None }
    }

    /// Returns a variable; an empty one counts as unset.
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.vars.get(OsStr::new(name)).map(OsString::as_os_str).filter(|v| !v.is_empty())
    }

    /// Returns a variable that holds a folder; a relative one counts as unset (XDG Base Directory
    /// Specification).
    pub fn folder_var(&self, name: &str) -> Option<&Path> {
        self.var(name).map(Path::new).filter(|p| p.is_absolute())
    }

    /// Returns the home folder.
    pub fn home(&self) -> Option<&Path> {
        self.folder_var("HOME")
    }

    /// Returns the physical path of the current folder; `None` if it is gone.
    pub fn cwd(&self) -> Option<&Path> {
        self.cwd.as_deref()
    }

    /// Returns a path made absolute by the current folder.
    pub fn make_absolute(&self, path: &Path) -> PathBuf {
        self.cwd().map_or_else(|| path.to_owned(), |cwd| cwd.join(path))
    }

    /// Returns a path in the way that people write it: `~/mail` inside the home folder. It is always one line.
    pub fn display_home(&self, path: &Path) -> String {
        let shown = match self.home().and_then(|home| path.strip_prefix(home).ok()) {
            Some(rest) if rest.as_os_str().is_empty() => "~".into(),
            Some(rest) => format!("~/{}", rest.to_string_lossy()),
            None => path.to_string_lossy().into_owned(),
        };
        sanitize_line(&shown).into_owned()
    }

    /// Expands a leading `~/` and every `$NAME` or `${NAME}`; the error is a phrase that says what cannot be
    /// expanded.
    pub(super) fn expand(&self, text: &str) -> Result<PathBuf, String> {
        let mut out = OsString::new();
        let mut rest = text;
        if let Some(after) = text.strip_prefix('~') {
            if !after.is_empty() && !after.starts_with('/') {
                return Err(
                    "only ~/, your own home folder, can be used; write the path in full".into()
                );
            }
            out.push(self.home().ok_or("~ cannot be expanded, because $HOME is not set")?);
            rest = after;
        }
        while let Some((before, after)) = rest.split_once('$') {
            out.push(before);
            let (name, after) = match after.strip_prefix('{') {
                Some(braced) => braced.split_once('}').ok_or("${ without }")?,
                None => after.split_at(
                    after
                        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                        .unwrap_or(after.len()),
                ),
            };
            if name.is_empty() {
                return Err("the name of a variable is missing after $".into());
            }
            out.push(self.var(name).ok_or_else(|| format!("${} is not set", sanitize_line(name)))?);
            rest = after;
        }
        out.push(rest);
        Ok(out.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn env() -> Env {
        Env::new("/work", [("HOME", "/home/u"), ("D", "data"), ("EMPTY", ""), ("REL", "x/y")])
    }

    #[test]
    fn empty_and_relative_values_count_as_unset() {
        assert_eq!(env().var("EMPTY"), None);
        assert_eq!(env().folder_var("REL"), None);
        assert_eq!(env().home(), Some(Path::new("/home/u")));
        assert_eq!(Env::new("/", [("HOME", "u")]).home(), None);
    }

    #[test]
    fn paths_are_expanded_like_in_a_shell() {
        let ok = |text: &str| env().expand(text).unwrap();
        assert_eq!(ok("~"), Path::new("/home/u"));
        assert_eq!(ok("~/sync/$D/x"), Path::new("/home/u/sync/data/x"));
        assert_eq!(ok("/a/${D}b/$D-c"), Path::new("/a/datab/data-c"));
        assert_eq!(ok("a~b"), Path::new("a~b"));
        for bad in ["~bob/x", "$", "/a/$", "${D", "${}", "/a/$NOPE", "$EMPTY"] {
            assert!(env().expand(bad).is_err(), "{bad}");
        }
        assert!(Env::default().expand("~/x").unwrap_err().contains("$HOME"));
    }

    #[test]
    fn home_is_shown_as_tilde() {
        let shown = |p: &str| env().display_home(Path::new(p));
        assert_eq!(shown("/home/u/mail"), "~/mail");
        assert_eq!(shown("/home/u"), "~");
        assert_eq!(shown("/home/ursula/mail"), "/home/ursula/mail");
        assert_eq!(shown("/tmp/a\nb"), "/tmp/a\u{240a}b");
    }

    proptest! {
        #[test]
        fn expanding_never_panics(text in "[~$/{}a-zA-Z_ é]{0,20}") {
            let _ = env().expand(&text);
        }

        #[test]
        fn plain_paths_expand_to_themselves(text in "[a-z/. é]{1,20}") {
            prop_assert_eq!(env().expand(&text).unwrap(), Path::new(&text));
        }
    }
}
