//! The configuration of a link.

use std::fmt;
use std::path::{Path, PathBuf};

/// Returns the folder of the links that all of a user's names share, in the folder of all states.
pub fn shared_links_folder(states: &Path) -> PathBuf {
    states.join("link")
}

/// Returns true for a valid name of a space, which is part of a stream's name and a subject: 1 to 32 letters, digits,
/// `_` and `-`.
pub fn is_space_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    (1..=32).contains(&name.len()) && name.bytes().all(plain)
}

/// The default space.
pub const SPACE: &str = "team";

/// The kind of engine that a link speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkKind {
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

impl LinkKind {
    /// All kinds with their names in the configuration.
    pub const ALL: &'static [(&'static str, Self)] = &[
        ("nats", Self::Nats),
        ("amp", Self::Amp),
        ("agenttalk", Self::AgentTalk),
        ("mail", Self::Mail),
        ("ftp", Self::Ftp),
    ];

    /// Returns its name in the configuration.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// The features of Cargo that add links. True means that this msgfs has the feature.
pub const FEATURES: [(&str, bool); 4] = [
    ("http", cfg!(feature = "http")),
    ("ftp", cfg!(feature = "ftp")),
    ("mail", cfg!(feature = "mail")),
    ("nats", cfg!(feature = "nats")),
];

impl LinkKind {
    /// Returns the feature of Cargo that adds links of this kind.
    fn cargo_feature(self) -> &'static str {
        match self {
            Self::Nats => "nats",
            Self::Amp | Self::AgentTalk => "http",
            Self::Mail => "mail",
            Self::Ftp => "ftp",
        }
    }

    /// Returns a sentence that this msgfs has no links of this kind, with the command that adds them. `None` if it has
    /// them.
    pub fn explain_absence(self) -> Option<String> {
        self.explain_absence_among(&FEATURES)
    }

    fn explain_absence_among(self, features: &[(&str, bool)]) -> Option<String> {
        let feature = self.cargo_feature();
        if features.contains(&(feature, true)) {
            return None;
        }
        let wanted = features.iter().filter(|(name, is_in)| *is_in || *name == feature);
        let wanted: Vec<&str> = wanted.map(|(name, _)| *name).collect();
        Some(format!(
            "this msgfs was built without links of kind {self}; to add them, in its source: \
             cargo install --locked --path . --features {}",
            wanted.join(",")
        ))
    }
}

impl LinkKind {
    /// Returns the kind of store that it serves, which is also the default name of such a store.
    pub fn store_kind(self) -> &'static str {
        match self {
            Self::Nats => "samp",
            Self::Amp => "amp",
            Self::AgentTalk | Self::Mail | Self::Ftp => "agentazall",
        }
    }
}

impl LinkConfig {
    /// Returns a link with default values.
    pub fn new(kind: LinkKind) -> Self {
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

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One configured link. Members that its kind does not use are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Its name, unique among the links.
    pub name: String,
    /// Its engine.
    pub kind: LinkKind,
    /// The name of the store that it serves.
    pub store: String,
    /// The addresses of the engine, which are tried in turn.
    pub url: Vec<String>,
    /// `nats`: the name of the group whose machines share one stream.
    pub space: Option<String>,
    /// `nats`: a file with a JWT and seed, or with an nkey seed.
    pub creds: Option<PathBuf>,
    /// `nats`: the user's name.
    pub user: Option<String>,
    /// A file with the password.
    pub password_file: Option<PathBuf>,
    /// A file with certificates of further authorities, in PEM.
    pub ca: Option<PathBuf>,
    /// `nats`: the prefix of the subjects of the API.
    pub api: Option<String>,
    /// `nats`: the prefix of the subjects for answers to this machine.
    pub inbox: Option<String>,
    /// True if plain text may go to any host.
    pub insecure: bool,
    /// `nats`: true if this machine and my other machines exchange marks.
    pub marks: bool,
    /// `mail`: true if the server sends me a copy of each mail, as proof that it took the mail.
    pub self_copy: bool,
    /// True if the link is switched off.
    pub off: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_built_in_is_told_with_the_command_that_adds_it() {
        let without = |out: &str| FEATURES.map(|(name, _)| (name, name != out));
        let nats = LinkKind::Nats.explain_absence_among(&without("nats")).unwrap();
        assert!(nats.contains("without links of kind nats"), "{nats}");
        assert!(nats.ends_with("cargo install --locked --path . --features http,ftp,mail,nats"));
        let none = FEATURES.map(|(name, _)| (name, false));
        for (name, kind) in LinkKind::ALL {
            let end = format!("--features {}", kind.cargo_feature());
            assert!(kind.explain_absence_among(&none).unwrap().ends_with(&end), "{name}");
            assert_eq!(kind.explain_absence_among(&without("")), None, "{name}");
        }
        assert_eq!(LinkKind::Mail.explain_absence_among(&without("http")), None);
    }
}
