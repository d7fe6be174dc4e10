//! The errors of a link, with remedies.

use std::io;

use async_nats::{ConnectError, ConnectErrorKind};

use super::login;
use crate::link::secret::{self, SecretError};
use crate::link::{NatsConfig, tls};
use crate::model::sanitize_line;

/// The reason why a link cannot go on. In each case the link tries again.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// An address in the configuration that cannot work, whatever the files and the servers are.
    #[error("url: {0}")]
    Address(&'static str),
    /// A configuration that cannot work.
    #[error("{0}")]
    Settings(String),
    /// An unusable file with a secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A failed connection: no server answered, or it refused the login.
    #[error("{0}")]
    Connect(String),
    /// A server that is too old.
    #[error("the server is nats-server {0}, and 2.11 or newer is needed")]
    OldServer(String),
    /// A stream that does not exist.
    #[error(
        "the stream {0} does not exist, and this machine may not make it ({1}): an admin runs `msgfs link create"
    )]
    NoStream(String, String),
    /// A stream that cannot be used.
    #[error("the stream {0} cannot be used: its {1}")]
    Stream(String, String),
    /// A request that the server refused.
    #[error("the server refuses {0}: {1}")]
    Refused(&'static str, String),
    /// A request without an answer.
    #[error("the server does not answer {0}")]
    NoAnswer(&'static str),
    /// The end of the connection.
    #[error("the connection ended: {0}")]
    Lost(String),
    /// An answer that is not understood.
    #[error("the server's answer cannot be understood: {0}")]
    BadAnswer(&'static str),
    /// A failure of the disk.
    #[error("{0}: {1}")]
    Disk(String, #[source] io::Error),
}

impl NatsError {
    /// Returns the error for people, without secrets: a server may repeat those that it got.
    pub fn describe_redacted(&self, spec: &NatsConfig) -> String {
        let text = match self {
            Self::NoStream(..) => format!("{self} {}`", spec.name),
            _ => self.to_string(),
        };
        secret::redact_text(&text, &login::load_secrets(spec))
    }

    /// Returns a function that wraps the system's error about a file.
    pub fn disk(what: &str) -> impl FnOnce(io::Error) -> Self + '_ {
        move |error| Self::Disk(what.to_owned(), error)
    }

    /// Returns the reason why a connection was not made.
    pub fn from_connect_error(error: &ConnectError) -> Self {
        let mut text = error.to_string();
        // The library has the cause only as the source of its error.
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        let text = sanitize_line(&text).into_owned();
        let help = match error.kind() {
            ConnectErrorKind::AuthorizationViolation => {
                "; check creds, user and password_file: the server may not know them, or they \
                 expired"
            }
            ConnectErrorKind::Authentication => "; check the file that creds names",
            _ if tls::is_certificate_rejected(&text) => "",
            _ if text.contains("expired") => "; ask for new credentials",
            _ => "",
        };
        Self::Connect(format!("{}{help}", tls::add_advice(text)))
    }
}
