//! What is configured of a link.

use std::fmt;
use std::path::{Path, PathBuf};

/// The folders of links that all of a user's names share, in the folder of all states.
pub fn shared(states: &Path) -> PathBuf {
    states.join("link")
}

/// Whether a space can have this name, which a stream and a subject hold: 1 to 32 letters, digits, `_` and
/// `-`.
pub fn is_space(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    (1..=32).contains(&name.len()) && name.bytes().all(plain)
}

/// The space of a link that names none.
pub const SPACE: &str = "team";

/// The engine a link speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// NATS `JetStream`: the logs of a SAMP folder, line for line.
    Nats,
    /// A provider of AMP 0.1 over HTTP.
    Amp,
    /// AgentAZAll's relay over HTTP.
    AgentTalk,
    /// SMTP, and IMAP or POP3.
    Mail,
    /// FTP and FTPS.
    Ftp,
}

impl Kind {
    /// Every kind and its name in the configuration.
    pub const ALL: &'static [(&'static str, Self)] = &[
        ("nats", Self::Nats),
        ("amp", Self::Amp),
        ("agenttalk", Self::AgentTalk),
        ("mail", Self::Mail),
        ("ftp", Self::Ftp),
    ];

    /// Its name in the configuration.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

impl Kind {
    /// The kind of store it serves, which is also the name of such a store if nobody gave it another.
    pub fn store(self) -> &'static str {
        match self {
            Self::Nats => "samp",
            Self::Amp => "amp",
            Self::AgentTalk | Self::Mail | Self::Ftp => "agentazall",
        }
    }
}

impl Spec {
    /// A link of which nothing is said yet.
    pub fn new(kind: Kind) -> Self {
        Self {
            name: String::new(),
            kind,
            store: String::new(),
            url: Vec::new(),
            space: None,
            creds: None,
            user: None,
            password_file: None,
            ca: None,
            api: None,
            inbox: None,
            insecure: false,
            marks: true,
            self_copy: false,
            off: false,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One link as it is configured. What a kind does not use is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its name, unique among the links.
    pub name: String,
    /// Its engine.
    pub kind: Kind,
    /// The store it serves, by name.
    pub store: String,
    /// Where the engine is; several are tried in turn.
    pub url: Vec<String>,
    /// `nats`: the name of the circle whose machines share one stream.
    pub space: Option<String>,
    /// `nats`: a file with a JWT and seed, or with an nkey seed.
    pub creds: Option<PathBuf>,
    /// `nats`: who to log in as.
    pub user: Option<String>,
    /// A file with the password.
    pub password_file: Option<PathBuf>,
    /// A file with certificates of further authorities, in PEM.
    pub ca: Option<PathBuf>,
    /// `nats`: the prefix of the subjects of the API.
    pub api: Option<String>,
    /// `nats`: the prefix of the subjects on which this machine is answered.
    pub inbox: Option<String>,
    /// Plain text may go anywhere.
    pub insecure: bool,
    /// `nats`: my other machines are told what was read here, and tell.
    pub marks: bool,
    /// `mail`: the server is asked for a copy of each mail, by which it can be seen what it has taken.
    pub self_copy: bool,
    /// It is switched off.
    pub off: bool,
}
