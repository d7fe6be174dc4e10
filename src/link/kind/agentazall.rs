//! The kinds of links that AgentAZAll's configuration describes (docs/links/agenttalk.md, docs/links/mail.md,
//! docs/links/ftp.md).

use serde::Deserialize;

use super::LinkKind;
#[cfg(any(feature = "http", feature = "ftp", feature = "mail"))]
use crate::link::agentazall as links;
use crate::model::accept_text;
use crate::store::Kind;

/// AgentAZAll's relay over HTTP.
pub(super) const AGENTTALK: LinkKind = LinkKind {
    other_words: "relay agentazall",
    #[cfg(any(feature = "http", feature = "ftp", feature = "mail"))]
    find_accounts: Some(|config, me| links::RELAYS.find_links(config, me)),
    #[cfg(feature = "http")]
    open_engine: Some(|settings| Ok(Box::new(links::relay::RelayEngine::open(settings)))),
    ..new("agenttalk", "http")
};

/// SMTP, and IMAP or POP3.
pub(super) const MAIL: LinkKind = LinkKind {
    other_words: "smtp smtps imap imaps pop pop3 email e-mail",
    keys: &[("self_copy", accept_text)],
    #[cfg(any(feature = "http", feature = "ftp", feature = "mail"))]
    find_accounts: Some(|config, me| links::MAIL_ACCOUNTS.find_links(config, me)),
    #[cfg(feature = "mail")]
    open_engine: Some(|settings| Ok(Box::new(links::mail::MailEngine::open(settings)?))),
    ..new("mail", "mail")
};

/// FTP and FTPS.
pub(super) const FTP: LinkKind = LinkKind {
    other_words: "ftps",
    #[cfg(any(feature = "http", feature = "ftp", feature = "mail"))]
    find_accounts: Some(|config, me| links::FTP_SERVERS.find_links(config, me)),
    #[cfg(feature = "ftp")]
    open_engine: Some(|settings| Ok(Box::new(links::ftp::FtpEngine::open(settings)))),
    ..new("ftp", "ftp")
};

/// Returns the common part of these kinds.
const fn new(name: &'static str, cargo_feature: &'static str) -> LinkKind {
    let example = "# off = true                    # config.json describes the link; it carries mail if the [[store]]
#                               # has links = true\n";
    LinkKind {
        needs_consent: true,
        ..LinkKind::new(name, cargo_feature, Kind::AgentAzall, example)
    }
}

/// The settings of a link by e-mail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MailSettings {
    /// True if the server sends me a copy of each mail, as proof that it took the mail.
    pub self_copy: bool,
}
