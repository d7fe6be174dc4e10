//! The `[[link]]` entries of the configuration (docs/links/).

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file::{
    Config, ConfigReader, KEYS, KeyValue, is_word, parse_folder, parse_store_name, quote_words,
};
use crate::link::spec::is_space_name;
use crate::link::{LinkConfig, LinkKind};

/// The keys of a `[[link]]`.
const LINK_KEYS: &str =
    "kind store name url space creds user password_file ca api inbox marks self_copy insecure off";

/// The keys that only links of one kind have.
const KEYS_OF_ONE: &[(&str, LinkKind)] = &[
    ("url space creds user password_file api inbox marks", LinkKind::Nats),
    ("self_copy", LinkKind::Mail),
];

/// Other names that people use for the engines, and the kind of link that each means.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("smtp", "mail"),
    ("smtps", "mail"),
    ("imap", "mail"),
    ("imaps", "mail"),
    ("pop", "mail"),
    ("pop3", "mail"),
    ("email", "mail"),
    ("e-mail", "mail"),
    ("ftps", "ftp"),
    ("relay", "agenttalk"),
    ("agentazall", "agenttalk"),
    ("jetstream", "nats"),
];

impl ConfigReader<'_> {
    pub(super) fn read_links(&mut self, (key, value): KeyValue<'_>, config: &mut Config) {
        let Some(array) = value.get_ref().as_array() else {
            let text = "a link is written as [[link]], with two brackets".to_owned();
            return self.report_problem(&key.span(), text);
        };
        for item in array {
            let Some(table) = item.get_ref().as_table() else {
                let text = "a link is written as [[link]] with its keys below".to_owned();
                self.report_problem(&item.span(), text);
                continue;
            };
            let Some(link) = self.read_link(item, table) else { continue };
            if config.links.iter().any(|other| other.name == link.name) {
                let text = format!(
                    "there is already a link named {:?}; give this one another name = \"…\"",
                    link.name
                );
                self.report_problem(&item.span(), text);
            }
            config.links.push(link);
        }
    }

    fn read_link(
        &mut self,
        item: &Spanned<DeValue<'_>>,
        table: &DeTable<'_>,
    ) -> Option<LinkConfig> {
        let before = self.problems.len();
        let mut kind = None;
        let mut link = LinkConfig::new(LinkKind::Nats);
        let mut of_one: Vec<(Range<usize>, String, LinkKind)> = Vec::new();
        for member in table {
            let key = member.0.get_ref().as_ref();
            let only = KEYS_OF_ONE.iter().find(|(keys, _)| is_word(key, keys));
            of_one.extend(only.map(|(_, kind)| (member.0.span(), key.to_owned(), *kind)));
            let base = self.path.parent().unwrap_or(std::path::Path::new("")).to_owned();
            let env = self.env;
            let file = |text: &str| parse_folder(text, env, &base);
            match key {
                "kind" => kind = self.read_word_or_synonym(member, LinkKind::ALL, OTHER_WORDS),
                "name" => link.name = self.read_parsed(member, parse_link_name).unwrap_or_default(),
                "store" => {
                    link.store = self.read_parsed(member, parse_store_name).unwrap_or_default();
                }
                "url" => link.url = self.read_urls(member),
                "space" => link.space = self.read_parsed(member, parse_space),
                "creds" => link.creds = self.read_parsed(member, file),
                "password_file" => link.password_file = self.read_parsed(member, file),
                "ca" => link.ca = self.read_parsed(member, file),
                "user" => link.user = self.read_parsed(member, parse_word),
                "api" => link.api = self.read_parsed(member, parse_word),
                "inbox" => link.inbox = self.read_parsed(member, parse_word),
                "marks" => link.marks = self.read_flag(member).unwrap_or(true),
                "self_copy" => link.self_copy = self.read_flag(member).unwrap_or_default(),
                "insecure" => link.insecure = self.read_flag(member).unwrap_or_default(),
                "off" => link.off = self.read_flag(member).unwrap_or_default(),
                other => {
                    let hint = format!("{other:?} belongs above the first [[link]]");
                    self.report_unknown_key(
                        member,
                        LINK_KEYS,
                        is_word(other, KEYS).then_some(hint),
                    );
                }
            }
        }
        if !table.contains_key("kind") {
            let kinds = quote_words(LinkKind::ALL.iter().map(|(word, _)| *word));
            self.report_problem(
                &item.span(),
                format!("this [[link]] needs kind = \"…\", one of {kinds}"),
            );
        }
        link.kind = kind?;
        if link.name.is_empty() {
            link.name = link.kind.to_string();
        }
        if link.store.is_empty() {
            link.kind.store_kind().clone_into(&mut link.store);
        }
        if let Some(absence) = link.kind.explain_absence().filter(|_| !link.off) {
            self.report_problem(&item.span(), absence);
        }
        let is_fine = self.problems.len() == before;
        if link.kind == LinkKind::Nats && link.url.is_empty() && !link.off && is_fine {
            let text = "a link of kind \"nats\" needs url = \"nats://HOST:4222\"".to_owned();
            self.report_problem(&item.span(), text);
        }
        if let Some((span, key, of)) = of_one.into_iter().find(|(_, _, of)| *of != link.kind) {
            let described = match link.kind {
                LinkKind::Nats => String::new(),
                kind => {
                    format!(
                        "; a link of kind {:?} takes its settings from the store's own files",
                        kind.as_str()
                    )
                }
            };
            let text = format!("{key:?} is a key of links of kind {:?}{described}", of.as_str());
            self.report_problem(&span, text);
        }
        (self.problems.len() == before).then_some(link)
    }

    /// Returns the URLs of one text or of a list of texts.
    fn read_urls(&mut self, (key, value): KeyValue<'_>) -> Vec<String> {
        let check = |text: &str| match text.split_once("://") {
            Some(("nats" | "tls", host)) if !host.is_empty() => Ok(text.to_owned()),
            Some(("ws" | "wss", _)) => {
                Err("cannot be a WebSocket: name the port that speaks NATS itself, as \
                 nats://HOST:4222 or tls://HOST:4222"
                    .to_owned())
            }
            _ => Err("must be of the form nats://HOST:4222 or tls://HOST:4222".to_owned()),
        };
        match value.get_ref().as_array() {
            Some(items) => {
                items.iter().filter_map(|item| self.read_parsed((key, item), check)).collect()
            }
            None => self.read_parsed((key, value), check).into_iter().collect(),
        }
    }
}

/// Returns the name of a link, which becomes the name of a folder.
fn parse_link_name(text: &str) -> Result<String, String> {
    parse_store_name(text)
}

/// Returns the name of a space.
fn parse_space(text: &str) -> Result<String, String> {
    if is_space_name(text) {
        return Ok(text.to_owned());
    }
    Err("a space has 1 to 32 letters, digits, '_' and '-'".to_owned())
}

/// Returns a word without blanks.
fn parse_word(text: &str) -> Result<String, String> {
    let is_bad = |c: char| c.is_whitespace() || c.is_control();
    if text.is_empty() || text.contains(is_bad) {
        return Err("must be a word without blanks".to_owned());
    }
    Ok(text.to_owned())
}
