//! Why a link cannot go on, in words that help.

use std::io;

use async_nats::{ConnectError, ConnectErrorKind};

use super::login;
use crate::link::secret::{self, SecretError};
use crate::link::{LinkConfig, tls};
use crate::model::sanitize_line;

/// Why a link cannot go on. It is tried again in each case.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// What is configured cannot work.
    #[error("{0}")]
    Settings(String),
    /// A file that holds a secret cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// No server answered, or it let nobody in.
    #[error("{0}")]
    Connect(String),
    /// The server is too old.
    #[error("the server is nats-server {0}, and 2.11 or newer is needed")]
    OldServer(String),
    /// There is no stream.
    #[error(
        "the stream {0} does not exist, and this machine may not make it ({1}): an admin runs `msgfs link create"
    )]
    NoStream(String, String),
    /// The stream cannot be used.
    #[error("the stream {0} cannot be used: its {1}")]
    Stream(String, String),
    /// The server refused a request.
    #[error("the server refuses {0}: {1}")]
    Refused(&'static str, String),
    /// A request was not answered.
    #[error("the server does not answer {0}")]
    NoAnswer(&'static str),
    /// The connection ended.
    #[error("the connection ended: {0}")]
    Lost(String),
    /// What came is not what this server says.
    #[error("the server's answer cannot be understood: {0}")]
    BadAnswer(&'static str),
    /// The disk does not take or give what it should.
    #[error("{0}: {1}")]
    Disk(String, #[source] io::Error),
}

impl NatsError {
    /// What people are told of it: a server may repeat what it was told.
    pub fn describe_redacted(&self, spec: &LinkConfig) -> String {
        let text = match self {
            Self::NoStream(..) => format!("{self} {}`", spec.name),
            _ => self.to_string(),
        };
        secret::redact_text(&text, &login::load_secrets(spec))
    }

    /// What the system said of something on the disk.
    pub fn disk(what: &str) -> impl FnOnce(io::Error) -> Self + '_ {
        move |error| Self::Disk(what.to_owned(), error)
    }

    /// Why a connection was not made.
    pub fn from_connect_error(error: &ConnectError) -> Self {
        let mut text = error.to_string();
        // The library tells the cause of each but as its source.
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
