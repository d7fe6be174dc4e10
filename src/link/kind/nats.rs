//! The kind of links over NATS JetStream, which carry the logs of a SAMP folder line for line (docs/links/nats.md).

use std::path::PathBuf;

use serde::Deserialize;

use super::{LinkConfig, LinkKind, LinkSettings, note_insecure};
use crate::link::secret::strip_login;
use crate::model::{SettingsFiles, accept_text, check_rules};
use crate::store::Kind;

/// NATS `JetStream`. A `[[link]]` describes it whole.
pub(super) const NATS: LinkKind = LinkKind {
    other_words: "jetstream",
    keys: &[
        ("url", check_url),
        ("space", check_space),
        ("creds", accept_text),
        ("user", check_word),
        ("password_file", accept_text),
        ("api", check_word),
        ("inbox", check_word),
        ("marks", accept_text),
    ],
    needed_key: Some(("url", "url = \"nats://HOST:4222\"")),
    describe_place: Some(|link| {
        link.to_nats().map(|nats| nats.describe_servers()).unwrap_or_default()
    }),
    #[cfg(feature = "nats")]
    open_log_engine: Some(|link| Some(Box::new(link.to_nats()?))),
    ..LinkKind::new("nats", "nats", Kind::Samp, EXAMPLE)
};

const EXAMPLE: &str = r#"# url = "nats://10.0.0.5:4222"   # or tls://…, or a list of them
# space = "team"                 # machines with one space share their mail
# creds = "~/.config/msgfs/team.creds"    # a JWT with its seed, or an nkey seed; chmod 600
# ca = "~/.config/msgfs/ca.pem"  # if the server's certificate is of your own authority
"#;

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

impl NatsSettings {
    pub(super) fn files_mut(&mut self) -> SettingsFiles<'_> {
        let creds = self.creds.iter_mut().map(|file| (vec!["creds"], file));
        let password = self.password_file.iter_mut().map(|file| (vec!["password_file"], file));
        creds.chain(password).collect()
    }
}

/// A configured link over NATS.
pub type NatsConfig = LinkConfig<NatsSettings>;

impl NatsConfig {
    /// Returns the addresses and the space, for people, without a user or a password.
    pub fn describe_servers(&self) -> String {
        let urls: Vec<String> = self.settings.url.iter().map(|url| strip_login(url)).collect();
        let servers = if urls.is_empty() { "no url".to_owned() } else { urls.join(" ") };
        let place = format!("{servers}, space {}", self.settings.space);
        note_insecure(place, self.insecure)
    }
}

impl LinkConfig {
    /// Returns the configuration of a link over NATS; `None` for other kinds.
    pub fn to_nats(&self) -> Option<NatsConfig> {
        let Self { name, store, ca, insecure, off, settings } = self.clone();
        let LinkSettings::Nats(settings) = settings else { return None };
        Some(LinkConfig { name, store, ca, insecure, off, settings })
    }
}

/// Returns true for a valid name of a space, which is part of a stream's name and a subject: 1 to 32 letters, digits,
/// `_` and `-`.
pub fn is_space_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    (1..=32).contains(&name.len()) && name.bytes().all(plain)
}

/// Checks the name of a space.
fn check_space(space: &str) -> Result<(), String> {
    check_rules(&[(!is_space_name(space), "a space has 1 to 32 letters, digits, '_' and '-'")])
}

/// Checks the form of an address of a server.
fn check_url(url: &str) -> Result<(), String> {
    let form = "must be of the form nats://HOST:4222 or tls://HOST:4222, the port that speaks NATS \
                itself; it cannot be a WebSocket";
    let (scheme, host) = url.split_once("://").unwrap_or_default();
    check_rules(&[(!matches!(scheme, "nats" | "tls") || host.is_empty(), form)])
}

/// Checks that a text is one word.
fn check_word(text: &str) -> Result<(), String> {
    let is_bad = |c: char| c.is_whitespace() || c.is_control();
    check_rules(&[(text.is_empty() || text.contains(is_bad), "must be a word without blanks")])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A NATS link says so, too.
    #[test]
    fn the_description_of_an_insecure_link_says_so() {
        let mut link = NatsConfig::default();
        link.settings.url = vec!["nats://u:p@h.example".to_owned()];
        assert_eq!(link.describe_servers(), "nats://h.example, space team");
        link.insecure = true;
        assert_eq!(link.describe_servers(), "nats://h.example, space team, insecure = true");
    }
}
