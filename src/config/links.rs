//! The `[[link]]` entries of the configuration (docs/links/).

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file::{Config, KEYS, Member, Reader, folder, is_word, listed, store_name};
use crate::link::spec::is_space;
use crate::link::{Kind, Spec};

/// Keys of a `[[link]]`.
const LINK_KEYS: &str =
    "kind store name url space creds user password_file ca api inbox marks self_copy insecure off";

/// Keys that only links of one kind have.
const KEYS_OF_ONE: &[(&str, Kind)] = &[
    ("url space creds user password_file api inbox marks", Kind::Nats),
    ("self_copy", Kind::Mail),
];

/// The names that people use for the engines, and the kind of link that speaks to each.
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

impl Reader<'_> {
    pub(super) fn links(&mut self, (key, value): Member<'_>, config: &mut Config) {
        let Some(array) = value.get_ref().as_array() else {
            let text = "a link is written as [[link]], with two brackets".to_owned();
            return self.problem(&key.span(), text);
        };
        for item in array {
            let Some(table) = item.get_ref().as_table() else {
                let text = "a link is written as [[link]] with its keys below".to_owned();
                self.problem(&item.span(), text);
                continue;
            };
            let Some(link) = self.link(item, table) else { continue };
            if config.links.iter().any(|other| other.name == link.name) {
                let text = format!(
                    "there is already a link named {:?}; give this one another name = \"…\"",
                    link.name
                );
                self.problem(&item.span(), text);
            }
            config.links.push(link);
        }
    }

    fn link(&mut self, item: &Spanned<DeValue<'_>>, table: &DeTable<'_>) -> Option<Spec> {
        let before = self.problems.len();
        let mut kind = None;
        let mut link = Spec::new(Kind::Nats);
        let mut of_one: Vec<(Range<usize>, String, Kind)> = Vec::new();
        for member in table {
            let key = member.0.get_ref().as_ref();
            let only = KEYS_OF_ONE.iter().find(|(keys, _)| is_word(key, keys));
            of_one.extend(only.map(|(_, kind)| (member.0.span(), key.to_owned(), *kind)));
            let base = self.path.parent().unwrap_or(std::path::Path::new("")).to_owned();
            let env = self.env;
            let file = |text: &str| folder(text, env, &base);
            match key {
                "kind" => kind = self.word_or(member, Kind::ALL, OTHER_WORDS),
                "name" => link.name = self.parsed(member, link_name).unwrap_or_default(),
                "store" => link.store = self.parsed(member, store_name).unwrap_or_default(),
                "url" => link.url = self.urls(member),
                "space" => link.space = self.parsed(member, space),
                "creds" => link.creds = self.parsed(member, file),
                "password_file" => link.password_file = self.parsed(member, file),
                "ca" => link.ca = self.parsed(member, file),
                "user" => link.user = self.parsed(member, word),
                "api" => link.api = self.parsed(member, word),
                "inbox" => link.inbox = self.parsed(member, word),
                "marks" => link.marks = self.flag(member).unwrap_or(true),
                "self_copy" => link.self_copy = self.flag(member).unwrap_or_default(),
                "insecure" => link.insecure = self.flag(member).unwrap_or_default(),
                "off" => link.off = self.flag(member).unwrap_or_default(),
                other => {
                    let hint = format!("{other:?} belongs above the first [[link]]");
                    self.unknown(member, LINK_KEYS, is_word(other, KEYS).then_some(hint));
                }
            }
        }
        if !table.contains_key("kind") {
            let kinds = listed(Kind::ALL.iter().map(|(word, _)| *word));
            self.problem(&item.span(), format!("this [[link]] needs kind = \"…\", one of {kinds}"));
        }
        link.kind = kind?;
        if link.name.is_empty() {
            link.name = link.kind.to_string();
        }
        if link.store.is_empty() {
            link.kind.store().clone_into(&mut link.store);
        }
        if let Some(absence) = link.kind.explain_absence().filter(|_| !link.off) {
            self.problem(&item.span(), absence);
        }
        let is_fine = self.problems.len() == before;
        if link.kind == Kind::Nats && link.url.is_empty() && !link.off && is_fine {
            let text = "a link of kind \"nats\" needs url = \"nats://HOST:4222\"".to_owned();
            self.problem(&item.span(), text);
        }
        if let Some((span, key, of)) = of_one.into_iter().find(|(_, _, of)| *of != link.kind) {
            let described = match link.kind {
                Kind::Nats => String::new(),
                kind => {
                    format!(
                        "; a link of kind {:?} takes its settings from the store's own files",
                        kind.as_str()
                    )
                }
            };
            let text = format!("{key:?} is a key of links of kind {:?}{described}", of.as_str());
            self.problem(&span, text);
        }
        (self.problems.len() == before).then_some(link)
    }

    /// One text or a list of them.
    fn urls(&mut self, (key, value): Member<'_>) -> Vec<String> {
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
                items.iter().filter_map(|item| self.parsed((key, item), check)).collect()
            }
            None => self.parsed((key, value), check).into_iter().collect(),
        }
    }
}

/// The name of a link: it becomes the name of a folder.
fn link_name(text: &str) -> Result<String, String> {
    store_name(text)
}

/// The name of a space.
fn space(text: &str) -> Result<String, String> {
    if is_space(text) {
        return Ok(text.to_owned());
    }
    Err("a space has 1 to 32 letters, digits, '_' and '-'".to_owned())
}

/// A word without blanks.
fn word(text: &str) -> Result<String, String> {
    let is_bad = |c: char| c.is_whitespace() || c.is_control();
    if text.is_empty() || text.contains(is_bad) {
        return Err("must be a word without blanks".to_owned());
    }
    Ok(text.to_owned())
}
