//! The me that this process acts for.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::env::Env;
use super::file::Config;
use crate::model::{display_path, sanitize_line};
// Names are SAMP's aliases.
use crate::store::probe;
pub(super) use crate::store::samp::alias::is_valid_alias as is_alias;
use crate::store::text::pytext;

/// The file in a folder that names the agent working there (docs/formats/samp.md, section 3).
const FILE: &str = ".agent-message";

/// The most bytes read from such a file.
const MAX_FILE: u64 = 64 << 10;

/// The rule for valid names, for error texts.
pub(super) const ALIAS_RULE: &str = "a name has 1 to 64 letters, digits, dots, underscores and hyphens, and begins with a letter \
     or digit";

/// The source of the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeOrigin {
    /// The command line.
    Flag,
    /// `$MSGFS_ME`.
    Variable,
    /// The mount at this folder, which contains the current folder.
    Mount(PathBuf),
    /// This configuration file.
    Config(PathBuf),
    /// `.agent-message` in the current folder.
    AgentFile,
    /// The name of the current folder.
    Folder,
}

impl fmt::Display for MeOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("from --me"),
            Self::Variable => f.write_str("from $MSGFS_ME"),
            Self::Mount(path) => write!(f, "that of the mount at {}", display_path(path)),
            Self::Config(path) => write!(f, "from {}", display_path(path)),
            Self::AgentFile => write!(f, "from ./{FILE}"),
            Self::Folder => f.write_str("the name of this folder"),
        }
    }
}

/// A reason why there is no me.
#[derive(Debug, thiserror::Error)]
pub enum MeError {
    /// A name was given, but it is not valid.
    #[error("{:?} ({origin}) is not a valid name: {ALIAS_RULE}", sanitize_line(name))]
    Invalid {
        /// The given name.
        name: String,
        /// The source of the name.
        origin: MeOrigin,
    },
    /// No name was given, and the last component of the current folder, empty if it has none, is not a valid
    /// name.
    #[error(
        "who are you? No name is set, and the name of this folder, {:?}, is not a valid name \
         ({ALIAS_RULE}); choose one with `--me NAME` or `echo NAME > {FILE}`",
        sanitize_line(.0)
    )]
    Folder(String),
    /// The file that may name me cannot be read.
    #[error(
        "./{FILE} may hold your name, but it cannot be read: {0}; mend it, or choose a name with \
         `--me NAME`"
    )]
    Unreadable(#[source] io::Error),
}

/// The name that this process acts under, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Me {
    /// A valid alias.
    pub name: String,
    /// The source of the name.
    pub origin: MeOrigin,
}

impl Me {
    /// Determines me from `--me`, `$MSGFS_ME`, the mount that contains the current folder, the configuration,
    /// the first valid line of `.agent-message` in the current folder, or the folder's name. The first source
    /// that exists decides, even if its name is wrong: acting for somebody else would be worse than an error.
    ///
    /// # Errors
    /// Returns a [`MeError`]; every text says how to choose a name.
    pub fn resolve(flag: Option<&str>, env: &Env, config: &Config) -> Result<Self, MeError> {
        let checked = |name: &str, origin| {
            if is_alias(name) {
                Ok(Self { name: name.to_owned(), origin })
            } else {
                Err(MeError::Invalid { name: name.to_owned(), origin })
            }
        };
        if let Some(name) = flag {
            return checked(name, MeOrigin::Flag);
        }
        if let Some(name) = env.var("MSGFS_ME") {
            return checked(&name.to_string_lossy(), MeOrigin::Variable);
        }
        if let Some((name, dir)) = env.mount() {
            return checked(name, MeOrigin::Mount(dir.clone()));
        }
        if let Some(name) = &config.me {
            return checked(name, MeOrigin::Config(config.path.clone().unwrap_or_default()));
        }
        let cwd = env.cwd().unwrap_or(Path::new(""));
        if !cwd.as_os_str().is_empty()
            && let Some(name) = read_agent_file(&cwd.join(FILE))?
        {
            return Ok(Self { name, origin: MeOrigin::AgentFile });
        }
        let folder = cwd.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if is_alias(&folder) {
            Ok(Self { name: folder, origin: MeOrigin::Folder })
        } else {
            Err(MeError::Folder(folder))
        }
    }

    /// Returns the name and its source, if nobody chose it: `as shop (the name of this folder)`.
    pub fn explain_default(&self) -> Option<String> {
        let is_chosen = !matches!(self.origin, MeOrigin::AgentFile | MeOrigin::Folder);
        (!is_chosen).then(|| format!("as {} ({})", self.name, self.origin))
    }
}

/// Returns the first valid line of the file; `None` if it has none, is missing or is no regular file.
fn read_agent_file(path: &Path) -> Result<Option<String>, MeError> {
    probe::require_response(path).map_err(MeError::Unreadable)?;
    // A symlink to a file is allowed here; a FIFO must not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => std::fs::File::from(fd),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NXIO) => return Ok(None),
        Err(e) => return Err(MeError::Unreadable(e.into())),
    };
    if !file.metadata().map_err(MeError::Unreadable)?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes).map_err(MeError::Unreadable)?;
    Ok(first_valid_line(&String::from_utf8_lossy(&bytes)))
}

/// Returns the first valid line. Lines end and are stripped like in Python, which the format's own programs
/// use: U+001C to U+001E end a line, and these and U+001F count as space.
fn first_valid_line(text: &str) -> Option<String> {
    pytext::split_lines(text).map(pytext::strip).find(|line| is_alias(line)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn config(me: Option<&str>) -> Config {
        Config {
            me: me.map(str::to_owned),
            path: me.map(|_| "/etc/c.toml".into()),
            ..Config::default()
        }
    }

    fn resolved(flag: Option<&str>, env: &Env, config: &Config) -> (String, String) {
        let me = Me::resolve(flag, env, config).unwrap();
        (me.name, me.origin.to_string())
    }

    #[test]
    fn the_first_that_is_there_decides() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().join("folder");
        fs::create_dir(&here).unwrap();
        let bare = Env::new(&here, [("MSGFS_ME", "")]);
        let with = Env::new(&here, [("MSGFS_ME", "var")]);
        let expect = |got: (String, String), name: &str, origin: &str| {
            assert_eq!((got.0.as_str(), got.1.as_str()), (name, origin));
        };
        expect(resolved(None, &bare, &config(None)), "folder", "the name of this folder");
        fs::write(here.join(FILE), "# who\n\nnot valid\n  filed \nlater\n").unwrap();
        expect(resolved(None, &bare, &config(None)), "filed", "from ./.agent-message");
        expect(resolved(None, &bare, &config(Some("conf"))), "conf", "from /etc/c.toml");
        let inside = |env: &Env| env.clone().with_mount(Some(("mine".into(), "/m".into())));
        let mount = "that of the mount at /m";
        expect(resolved(None, &inside(&bare), &config(Some("conf"))), "mine", mount);
        let with_mount = inside(&with);
        expect(resolved(None, &with_mount, &config(Some("conf"))), "var", "from $MSGFS_ME");
        assert_eq!(with_mount.with_cwd("/x".into()).mount(), None, "it is that of the folder");
        expect(resolved(None, &with, &config(Some("conf"))), "var", "from $MSGFS_ME");
        expect(resolved(Some("flag"), &with, &config(Some("conf"))), "flag", "from --me");
    }

    #[test]
    fn a_wrong_name_is_not_passed_over() {
        let env = Env::new("/tmp/folder", [("MSGFS_ME", "a b")]);
        let error = Me::resolve(None, &env, &config(None)).unwrap_err();
        assert!(error.to_string().starts_with("\"a b\" (from $MSGFS_ME)"), "{error}");
        for bad in ["", "a/b", ".x", "-x", "a\n", &"x".repeat(65)] {
            let error = Me::resolve(Some(bad), &env, &config(None)).unwrap_err();
            assert!(matches!(error, MeError::Invalid { origin: MeOrigin::Flag, .. }), "{bad:?}");
        }
    }

    #[test]
    fn a_folder_that_is_no_name_says_how_to_choose() {
        for folder in ["/", "/tmp/my project", "/tmp/.hidden", "/tmp/é"] {
            let env = Env::new(folder, [("A", "b")]);
            let text = Me::resolve(None, &env, &config(None)).unwrap_err().to_string();
            assert!(text.contains("--me NAME") && text.contains("echo NAME > .agent-message"));
        }
        assert!(Me::resolve(None, &Env::default(), &config(None)).is_err());
    }

    #[test]
    fn only_a_readable_regular_file_counts() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().join("folder");
        fs::create_dir(&here).unwrap();
        let env = Env::new(&here, [("A", "b")]);
        let file = here.join(FILE);
        let name = || resolved(None, &env, &config(None)).0;

        fs::create_dir(&file).unwrap();
        assert_eq!(name(), "folder");
        fs::remove_dir(&file).unwrap();

        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        assert_eq!(name(), "folder");
        fs::remove_file(&file).unwrap();

        fs::write(dir.path().join("target"), "linked").unwrap();
        symlink("../target", &file).unwrap();
        assert_eq!(name(), "linked", "a last line without newline counts");
        fs::remove_file(&file).unwrap();

        fs::write(&file, "no name here\n").unwrap();
        assert_eq!(name(), "folder");
        fs::remove_file(&file).unwrap();

        symlink(FILE, &file).unwrap();
        let error = Me::resolve(None, &env, &config(None)).unwrap_err();
        assert!(matches!(error, MeError::Unreadable { .. }), "{error}");
    }

    #[test]
    fn lines_are_those_of_the_format() {
        for text in
            ["a b\x1cfoo\x1f\n", "\r\nfoo\r\n", "!\rfoo", "!\u{2028}\u{3000}foo", "\u{85}foo"]
        {
            assert_eq!(first_valid_line(text).as_deref(), Some("foo"), "{text:?}");
        }
        assert_eq!(first_valid_line("\u{feff}foo"), None);
        assert_eq!(first_valid_line(""), None);
    }

    proptest! {
        #[test]
        fn what_is_found_is_a_name(text in any::<String>(), name in "[A-Za-z0-9][A-Za-z0-9._-]{0,63}") {
            prop_assert!(first_valid_line(&text).is_none_or(|n| is_alias(&n)));
            prop_assert!(is_alias(&name));
            let padded = format!("\t{name} \n{text}");
            prop_assert_eq!(first_valid_line(&padded), Some(name));
        }
    }
}
