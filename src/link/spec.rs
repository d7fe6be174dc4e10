//! The configuration of a link.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::secret::strip_login;
use crate::model::find_nearest;

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

/// Everything that the rest of msgfs knows about a kind of link.
struct LinkKindRow {
    /// Its name in the configuration.
    name: &'static str,
    /// The feature of Cargo that adds links of this kind.
    cargo_feature: &'static str,
    /// The kind of store that it serves.
    store_kind: &'static str,
    /// An example of its own keys in a `[[link]]`, in lines that are commented out.
    example: &'static str,
}

const NATS: LinkKindRow = LinkKindRow {
    name: "nats",
    cargo_feature: "nats",
    store_kind: "samp",
    example: r#"# url = "nats://10.0.0.5:4222"   # or tls://…, or a list of them
# space = "team"                 # machines with one space share their mail
# creds = "~/.config/msgfs/team.creds"    # a JWT with its seed, or an nkey seed; chmod 600
# ca = "~/.config/msgfs/ca.pem"  # if the server's certificate is of your own authority
"#,
};

const AMP: LinkKindRow = LinkKindRow {
    name: "amp",
    cargo_feature: "http",
    store_kind: "amp",
    example: "# off = true                    # without this, msgfs uses the registrations of the agent\n",
};

const AGENTTALK: LinkKindRow =
    LinkKindRow { name: "agenttalk", cargo_feature: "http", ..AGENTAZALL };

const MAIL: LinkKindRow = LinkKindRow { name: "mail", cargo_feature: "mail", ..AGENTAZALL };

const FTP: LinkKindRow = LinkKindRow { name: "ftp", cargo_feature: "ftp", ..AGENTAZALL };

/// The common part of the links that `AgentAZAll`'s configuration describes.
const AGENTAZALL: LinkKindRow = LinkKindRow {
    name: "",
    cargo_feature: "",
    store_kind: "agentazall",
    example: "# off = true                    # config.json describes the link; it carries mail if the [[store]]
#                               # has links = true\n",
};

impl LinkKind {
    /// All kinds with their names in the configuration.
    pub const ALL: &'static [(&'static str, Self)] = &[
        (NATS.name, Self::Nats),
        (AMP.name, Self::Amp),
        (AGENTTALK.name, Self::AgentTalk),
        (MAIL.name, Self::Mail),
        (FTP.name, Self::Ftp),
    ];

    fn row(self) -> &'static LinkKindRow {
        match self {
            Self::Nats => &NATS,
            Self::Amp => &AMP,
            Self::AgentTalk => &AGENTTALK,
            Self::Mail => &MAIL,
            Self::Ftp => &FTP,
        }
    }

    /// Returns the kind with this name in the configuration.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// Returns its name in the configuration.
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    /// Returns the kind of store that it serves, which is also the default name of such a store.
    pub fn store_kind(self) -> &'static str {
        self.row().store_kind
    }

    /// Returns an example of such a link for the configuration, in lines that are commented out.
    pub fn render_example(self) -> String {
        let LinkKindRow { name, store_kind, example, .. } = self.row();
        format!(
            "# See docs/links/{name}.md.\n# [[link]]\n# kind = \"{name}\"\n# store = \"{store_kind}\"\n{example}"
        )
    }

    /// Returns a sentence that this msgfs has no links of this kind, with the command that adds them. `None` if it has
    /// them.
    pub fn explain_absence(self) -> Option<String> {
        self.explain_absence_among(&FEATURES)
    }

    fn explain_absence_among(self, features: &[(&str, bool)]) -> Option<String> {
        let feature = self.row().cargo_feature;
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

/// The features of Cargo that add links. True means that this msgfs has the feature.
pub const FEATURES: [(&str, bool); 4] = [
    ("http", cfg!(feature = "http")),
    ("ftp", cfg!(feature = "ftp")),
    ("mail", cfg!(feature = "mail")),
    ("nats", cfg!(feature = "nats")),
];

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A configured link, with the settings of its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig<S = LinkSettings> {
    /// Its name, unique among the links.
    #[serde(default)]
    pub name: String,
    /// The name of the store that it serves.
    #[serde(default)]
    pub store: String,
    /// A file with certificates of further authorities, in PEM.
    pub ca: Option<PathBuf>,
    /// True if plain text may go to any host.
    #[serde(default)]
    pub insecure: bool,
    /// True if the link is switched off.
    #[serde(default)]
    pub off: bool,
    /// The settings that links of other kinds do not have.
    #[serde(rename = "kind")]
    pub settings: S,
}

/// The settings of one kind of link.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkSettings {
    /// A link over NATS.
    Nats(NatsSettings),
    /// A link to a provider of AMP. The registrations of the agent describe it.
    Amp(NoSettings),
    /// A link to AgentAZAll's relay. The store's own file describes it.
    AgentTalk(NoSettings),
    /// A link by e-mail. The store's own file describes the accounts.
    Mail(MailSettings),
    /// A link over FTP. The store's own file describes it.
    Ftp(NoSettings),
}

/// The settings of a link that other files describe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoSettings {}

/// The settings of a link over NATS.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NatsSettings {
    /// The addresses of the servers, which are tried in turn.
    #[serde(deserialize_with = "crate::model::read_one_or_many")]
    pub url: Vec<String>,
    /// The name of the group whose machines share one stream.
    pub space: String,
    /// A file with a JWT and seed, or with an nkey seed.
    pub creds: Option<PathBuf>,
    /// The user's name.
    pub user: Option<String>,
    /// A file with the password.
    pub password_file: Option<PathBuf>,
    /// The prefix of the subjects of the API.
    pub api: String,
    /// The prefix of the subjects for answers to this machine.
    pub inbox: Option<String>,
    /// True if this machine and my other machines exchange marks.
    pub marks: bool,
}

impl Default for NatsSettings {
    fn default() -> Self {
        Self {
            url: Vec::new(),
            space: "team".to_owned(),
            creds: None,
            user: None,
            password_file: None,
            api: "$JS.API".to_owned(),
            inbox: None,
            marks: true,
        }
    }
}

/// The settings of a link by e-mail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MailSettings {
    /// True if the server sends me a copy of each mail, as proof that it took the mail.
    pub self_copy: bool,
}

/// Adds to the description of an engine, for people, that plain text may go to any host.
pub fn note_insecure(place: String, insecure: bool) -> String {
    if insecure { place + ", insecure = true" } else { place }
}

/// A configured link over NATS.
pub type NatsConfig = LinkConfig<NatsSettings>;

impl NatsConfig {
    /// Returns the addresses and the space, for people, without a user or a password.
    pub fn describe_place(&self) -> String {
        let urls: Vec<String> = self.settings.url.iter().map(|url| strip_login(url)).collect();
        let place = format!("{}, space {}", urls.join(" "), self.settings.space);
        note_insecure(place, self.insecure)
    }
}

impl LinkConfig {
    /// Returns the kind of its engine.
    pub fn kind(&self) -> LinkKind {
        match self.settings {
            LinkSettings::Nats(_) => LinkKind::Nats,
            LinkSettings::Amp(_) => LinkKind::Amp,
            LinkSettings::AgentTalk(_) => LinkKind::AgentTalk,
            LinkSettings::Mail(_) => LinkKind::Mail,
            LinkSettings::Ftp(_) => LinkKind::Ftp,
        }
    }

    /// Returns the configuration of a link over NATS; `None` for other kinds.
    pub fn to_nats(&self) -> Option<NatsConfig> {
        let Self { name, store, ca, insecure, off, settings } = self.clone();
        let LinkSettings::Nats(settings) = settings else { return None };
        Some(LinkConfig { name, store, ca, insecure, off, settings })
    }
}

/// Returns why a link to this store is left out, with the nearest of the stores that are there.
pub fn describe_missing_store(store: &str, stores: &[&str]) -> String {
    let near = find_nearest(store, stores.iter().copied());
    let hint = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
    format!("there is no store {store:?}; there is {}{hint}", stores.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A NATS link says so, too.
    #[test]
    fn the_description_of_an_insecure_link_says_so() {
        let mut link = NatsConfig::default();
        link.settings.url = vec!["nats://u:p@h.example".to_owned()];
        assert_eq!(link.describe_place(), "nats://h.example, space team");
        link.insecure = true;
        assert_eq!(link.describe_place(), "nats://h.example, space team, insecure = true");
    }

    #[test]
    fn what_is_not_built_in_is_told_with_the_command_that_adds_it() {
        let without = |out: &str| FEATURES.map(|(name, _)| (name, name != out));
        let nats = LinkKind::Nats.explain_absence_among(&without("nats")).unwrap();
        assert!(nats.contains("without links of kind nats"), "{nats}");
        assert!(nats.ends_with("cargo install --locked --path . --features http,ftp,mail,nats"));
        let none = FEATURES.map(|(name, _)| (name, false));
        for (name, kind) in LinkKind::ALL {
            let end = format!("--features {}", kind.row().cargo_feature);
            assert!(kind.explain_absence_among(&none).unwrap().ends_with(&end), "{name}");
            assert_eq!(kind.explain_absence_among(&without("")), None, "{name}");
        }
        assert_eq!(LinkKind::Mail.explain_absence_among(&without("http")), None);
    }
}
