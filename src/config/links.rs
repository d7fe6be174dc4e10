//! The `[[link]]` entries of the configuration (docs/links/).

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::reader::{ConfigReader, SpannedValue};
use super::values::{check_rules, parse_entry_name};
use crate::link::spec::is_space_name;
use crate::link::{LinkConfig, LinkKind, LinkSettings, NatsSettings};
use crate::model::find_word;

/// The keys that only links of kind `nats` have.
pub(super) const NATS_KEYS: &str = "url space creds user password_file api inbox marks";

/// The keys that only links of kind `mail` have.
pub(super) const MAIL_KEYS: &str = "self_copy";

/// Other names that people use for the engines, and the kind of link that each means.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("smtp smtps imap imaps pop pop3 email e-mail", "mail"),
    ("ftps", "ftp"),
    ("relay agentazall", "agenttalk"),
    ("jetstream", "nats"),
];

impl<'a> ConfigReader<'a> {
    /// Moves the settings of one kind into a table below `kind`, as serde reads an enum.
    pub(super) fn nest_settings(&mut self, link: &mut SpannedValue<'a>) {
        let span = link.span();
        let DeValue::Table(table) = link.get_mut() else { return };
        let kind = table.remove("kind");
        let all = std::mem::take(table).into_iter();
        let is_own = |key: &str| NATS_KEYS.split(' ').chain([MAIL_KEYS]).any(|own| own == key);
        let (own, mut common): (DeTable<'_>, _) =
            all.partition(|(key, _)| is_own(key.get_ref().as_ref()));
        if kind.is_none() {
            let kinds = LinkKind::ALL.iter().map(|(word, _)| *word);
            self.report_missing_kind("link", &span, kinds);
        }
        let found = kind.as_ref().and_then(|kind| {
            let word = kind.get_ref().as_str().unwrap_or_default();
            let found = find_word(word, LinkKind::ALL, OTHER_WORDS);
            found.inspect_err(|why| self.report_value("kind", kind, why)).ok()
        });
        // The settings of an unknown kind are not read.
        let (kind, own) = found.map_or((LinkKind::Ftp, DeTable::new()), |kind| (kind, own));
        let spanned = |value: DeTable<'a>| Spanned::new(span.clone(), DeValue::Table(value));
        let key = |word: &'static str| Spanned::new(span.clone(), word.into());
        common.insert(
            key("kind"),
            spanned([(key(kind.as_str()), spanned(own))].into_iter().collect()),
        );
        *table = common;
    }

    /// Checks a `[[link]]`, gives it its default names, and makes its paths absolute.
    pub(super) fn check_link(&mut self, table: &SpannedValue<'_>, link: &mut LinkConfig) {
        let kind = link.kind();
        self.check_texts(table, "name", parse_entry_name);
        self.check_texts(table, "store", parse_entry_name);
        self.resolve_path(table, "ca", &mut link.ca);
        // A link of an unknown kind is read as one that may be absent.
        let is_fine = self.problems.is_empty() && !link.off;
        if let Some(absence) = kind.explain_absence().filter(|_| is_fine) {
            self.report_problem(&table.span(), absence);
        }
        let settings = table.get_ref().get("kind").and_then(|kind| kind.get_ref().get("nats"));
        if let (LinkSettings::Nats(nats), Some(settings)) = (&mut link.settings, settings) {
            self.check_nats(settings, nats);
            let url = settings.get_ref().get("url").map(Spanned::get_ref);
            let is_missing = url.is_none_or(|url| url.as_array().is_some_and(|all| all.is_empty()));
            if is_missing && !link.off {
                let text = "a link of kind \"nats\" needs url = \"nats://HOST:4222\"";
                self.report_problem(&table.span(), text);
            }
        }
        if link.name.is_empty() {
            link.name = kind.to_string();
        }
        if link.store.is_empty() {
            kind.store_kind().clone_into(&mut link.store);
        }
    }

    fn check_nats(&mut self, table: &SpannedValue<'_>, nats: &mut NatsSettings) {
        self.check_texts(table, "url", check_url);
        self.check_texts(table, "space", check_space);
        for key in ["user", "api", "inbox"] {
            self.check_texts(table, key, check_word);
        }
        self.resolve_path(table, "creds", &mut nats.creds);
        self.resolve_path(table, "password_file", &mut nats.password_file);
    }
}

/// Checks the name of a space.
fn check_space(space: &str) -> Result<(), String> {
    check_rules(&[(!is_space_name(space), "a space has 1 to 32 letters, digits, '_' and '-'")])
}

/// Checks the form of an address of a NATS server.
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
