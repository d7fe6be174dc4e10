//! The credentials of this machine, and its check of the server.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};
use zeroize::Zeroizing;

use super::failure::NatsError;
use crate::link::{NatsConfig, private_hosts, secret};
use crate::model::{display_path, sanitize_line};

/// The time limit for a server's greeting.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time limit for an answer.
pub const ANSWER: Duration = Duration::from_secs(2);

/// Parses and checks the addresses of a link.
///
/// # Errors
/// Returns the error of one address, without a password that may be in it.
pub fn parse_addresses(spec: &NatsConfig) -> Result<Vec<ServerAddr>, NatsError> {
    let wrong = |why| Err(NatsError::Address(why));
    let mut all = Vec::new();
    for url in &spec.settings.url {
        let Ok(address) = url.parse::<ServerAddr>() else {
            return wrong(
                "one of them is not an address; write it as nats://host:4222 or tls://host:4222",
            );
        };
        if address.has_user_pass() || address.username().is_some() || url.contains('@') {
            return wrong(
                "must not hold a user or a password; give the user with user, and the file of the \
                 password with password_file",
            );
        }
        if !matches!(address.scheme(), "nats" | "tls") {
            return wrong("must begin with nats:// or tls://");
        }
        all.push(address);
    }
    if all.is_empty() { wrong("is missing; write it as nats://host:4222") } else { Ok(all) }
}

/// Returns the secrets that only the server may see, as the files have them now.
pub fn load_secrets(spec: &NatsConfig) -> Vec<Zeroizing<String>> {
    let read = |path: &Option<PathBuf>| secret::read_secret(path.as_deref()?).ok();
    let password = read(&spec.settings.password_file).map(|text| text.trim().to_owned());
    let creds = read(&spec.settings.creds).unwrap_or_default();
    // Sentences for people surround the JWT and the seed.
    let lines = creds.lines().map(str::trim);
    let lines =
        lines.filter(|line| !line.starts_with(['-', '*']) && !line.contains(char::is_whitespace));
    password.into_iter().chain(lines.map(str::to_owned)).map(Zeroizing::new).collect()
}

/// Builds the connection's options, without addresses. Reads files anew each time, so that a renewed one takes effect.
///
/// # Errors
/// Returns the unusable file, and the remedy.
pub fn build_options(
    spec: &NatsConfig,
    addresses: &[ServerAddr],
) -> Result<ConnectOptions, NatsError> {
    let mut options = ConnectOptions::new();
    if let Some(path) = &spec.settings.creds {
        let text = secret::read_secret(path)?;
        let seed = text.trim();
        options = if seed.starts_with("SU") && !seed.contains(char::is_whitespace) {
            options.nkey(seed.to_owned())
        } else {
            let bad = "is neither a file of credentials (a JWT and a seed) nor an nkey seed (SU…)";
            let bad = |_| NatsError::Settings(format!("creds: {} {bad}", path.display()));
            options.credentials(&text).map_err(bad)?
        };
    } else if let Some(user) = &spec.settings.user {
        let password = match &spec.settings.password_file {
            Some(path) => secret::read_secret(path)?.trim_end_matches(['\r', '\n']).to_owned(),
            None => String::new(),
        };
        options = options.user_and_password(user.clone(), password);
    }
    if let Some(ca) = &spec.ca {
        // The library's error would not name the file.
        std::fs::File::open(ca).map_err(|e| {
            let ca = display_path(ca);
            NatsError::Settings(format!("the certificate file that ca names, {ca}: {e}"))
        })?;
        options = options.add_root_certificates(ca.clone());
    }
    if let Some(inbox) = &spec.settings.inbox {
        options = options.custom_inbox_prefix(inbox);
    }
    // Nothing goes in the clear over public networks, even if the server permits it.
    let public = addresses.iter().any(|address| !private_hosts::is_private_host(address.host()));
    Ok(options
        .require_tls(public && !spec.insecure)
        .name(format!("msgfs {}", sanitize_line(&spec.name)))
        .connection_timeout(PATIENCE)
        .request_timeout(Some(ANSWER))
        // The user did not choose servers that another one names.
        .ignore_discovered_servers())
}
