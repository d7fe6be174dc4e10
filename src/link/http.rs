//! An HTTP client for the engines. It sends JSON, limits the size of answers, follows no redirects, and always checks
//! certificates.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use ureq::http::{HeaderMap, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, Error, SendBody};

use super::disk_space::SpaceCheckedFile;
use super::{private_hosts, tls};
use crate::model::locks::Mutex;
use crate::store::fs;

/// The limit on the size of an answer in memory.
const MAX_ANSWER: u64 = 64 << 20;
/// The time limit for connecting, and for silence of the server.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 30 });
/// The time limit for a whole exchange.
const LONGEST: Duration = Duration::from_secs(if cfg!(test) { 6 } else { 10 * 60 });

/// A server, identified by the part of its URL that all calls share.
#[derive(Clone, Debug)]
pub struct HttpClient {
    agent: Agent,
    base: String,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// The status: `200`, `404`, …
    pub status: u16,
    /// The delay that the server asks for, in seconds.
    pub retry_after: Option<u64>,
    /// The body; empty if it went to a file.
    pub body: Vec<u8>,
}

impl HttpAnswer {
    /// Returns true for a successful answer.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns the status and the texts of these JSON members, for people.
    pub fn describe_error(&self, members: &[&str]) -> String {
        let json: Option<serde_json::Value> = serde_json::from_slice(&self.body).ok();
        let texts = members.iter().filter_map(|m| json.as_ref()?.get(m)?.as_str());
        let texts: Vec<&str> = texts.collect();
        crate::model::sanitize_line(&format!("{} {}", self.status, texts.join(": ")))
            .trim()
            .to_owned()
    }
}

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// A failure before anything left this machine.
    #[error("{0}")]
    NotSent(String),
    /// A failure after which the server may have the request.
    #[error("{0}")]
    Lost(String),
}

impl HttpClient {
    /// Returns a client for a server at `http://…` or `https://…`.
    ///
    /// # Errors
    /// Returns a sentence if that is no URL, or plain text must not go there, or `ca` cannot be used.
    pub fn new(base: &str, insecure: bool, ca: Option<&Path>) -> Result<Self, String> {
        let shown = crate::model::sanitize_line(base).into_owned();
        let uri: Option<Uri> = base.parse().ok();
        let authority = uri.as_ref().and_then(Uri::authority);
        // A user and a password before the host would be shown and logged.
        let host = authority.filter(|of| !of.as_str().contains('@') && !of.host().is_empty());
        let is_plain = match (uri.as_ref().and_then(Uri::scheme_str), host) {
            (Some("http"), Some(host)) => {
                !private_hosts::is_private_host(host.host().trim_matches(['[', ']']))
            }
            (Some("https"), Some(_)) => false,
            _ => return Err(format!("{shown:?} is not an address of the form https://HOST")),
        };
        if is_plain && !insecure {
            return Err(format!(
                "the token and the mail would go to {shown} in plain text; use https, or set \
                 insecure = true in a [[link]] for it"
            ));
        }
        Ok(Self { agent: shared_agent(ca)?, base: base.trim_end_matches('/').to_owned() })
    }

    /// Returns a client for the same server by another of its URLs.
    pub fn with_base(&self, base: &str) -> Self {
        Self { agent: self.agent.clone(), base: base.to_owned() }
    }

    /// Posts JSON.
    ///
    /// # Errors
    /// Returns [`HttpError`], which says if the server may have got it.
    pub fn post_json(
        &self,
        path: &str,
        token: Option<&str>,
        json: &[u8],
    ) -> Result<HttpAnswer, HttpError> {
        let mut request = self.agent.post(format!("{}{path}", self.base));
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        // The body has a length, since not every server reads chunks.
        let request = request.header("Content-Type", "application/json");
        read_answer(request.send(json).map_err(classify_error)?)
    }

    /// Puts `size` bytes of a file, with these headers and no others.
    ///
    /// # Errors
    /// Returns [`HttpError`].
    pub fn put_file(
        &self,
        headers: &[(String, String)],
        file: &Path,
        size: u64,
    ) -> Result<HttpAnswer, HttpError> {
        let file = fs::open_regular(file).map_err(|e| HttpError::NotSent(e.to_string()))?;
        let mut request = self.agent.put(&self.base).header("Content-Length", size.to_string());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut bytes = io::Read::take(file, size);
        read_answer(request.send(SendBody::from_reader(&mut bytes)).map_err(classify_error)?)
    }

    /// Gets an answer into memory.
    ///
    /// # Errors
    /// Returns [`HttpError`].
    pub fn get(&self, path: &str, token: Option<&str>) -> Result<HttpAnswer, HttpError> {
        read_answer(self.send_request(path, token, "GET")?)
    }

    /// Deletes a resource.
    ///
    /// # Errors
    /// Returns [`HttpError`].
    pub fn delete(&self, path: &str, token: Option<&str>) -> Result<HttpAnswer, HttpError> {
        read_answer(self.send_request(path, token, "DELETE")?)
    }

    /// Gets an answer into a file and syncs it. The file also gets the beginning of an answer that was cut off. An
    /// unsuccessful answer is not written.
    ///
    /// # Errors
    /// Returns [`HttpError`]; [`HttpError::Lost`] also if the answer was cut off or is larger than `limit`.
    pub fn get_to_file(
        &self,
        path: &str,
        token: Option<&str>,
        file: &Path,
        limit: u64,
    ) -> Result<HttpAnswer, HttpError> {
        let response = self.send_request(path, token, "GET")?;
        if !response.status().is_success() {
            return read_answer(response);
        }
        let (status, after) = (response.status().as_u16(), parse_retry_after(response.headers()));
        let length = response.body().content_length();
        let mut body = response.into_body().into_with_config().limit(limit + 1).reader();
        let lost = |what: &str, e: &dyn std::fmt::Display| HttpError::Lost(format!("{what}: {e}"));
        let mut out =
            SpaceCheckedFile::create(file).map_err(|e| lost("the answer cannot be saved", &e))?;
        // The bytes before an error are kept.
        let copied = io::copy(&mut body, &mut out);
        let kept = out.flush().and_then(|()| out.file().sync_all());
        kept.map_err(|e| lost("the answer cannot be saved", &e))?;
        match copied {
            Ok(bytes) if bytes > limit => {
                Err(HttpError::Lost(format!("the answer is larger than {limit} bytes")))
            }
            Ok(bytes) if length.is_some_and(|length| length != bytes) => {
                Err(HttpError::Lost("the answer was cut off".into()))
            }
            Ok(_) => Ok(HttpAnswer { status, retry_after: after, body: Vec::new() }),
            Err(e) => Err(lost("the answer was cut off", &e)),
        }
    }

    fn send_request(
        &self,
        path: &str,
        token: Option<&str>,
        method: &str,
    ) -> Result<ureq::http::Response<Body>, HttpError> {
        let url = format!("{}{path}", self.base);
        let mut request =
            if method == "DELETE" { self.agent.delete(url) } else { self.agent.get(url) };
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        request.call().map_err(classify_error)
    }
}

/// Returns the HTTP agent, which is cached for its root certificates: building it takes longer than a request.
fn shared_agent(ca: Option<&Path>) -> Result<Agent, String> {
    /// An agent, and the root certificates that it trusts.
    type CachedHttpAgent = Option<(Vec<CertificateDer<'static>>, Agent)>;
    static LAST: LazyLock<Mutex<CachedHttpAgent>> = LazyLock::new(Mutex::default);
    let believed = tls::load_root_certificates(ca)?;
    let mut last = LAST.lock();
    if let Some((_, agent)) = last.as_ref().filter(|(of, _)| *of == believed) {
        return Ok(agent.clone());
    }
    let certs = believed.iter().map(|cert| Certificate::from_der(cert).to_owned());
    let roots = RootCerts::Specific(Arc::new(certs.collect()));
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        // A reused connection that the server has closed would look like a lost answer.
        .max_idle_connections(0)
        .user_agent(concat!("msgfs/", env!("CARGO_PKG_VERSION")))
        .timeout_connect(Some(PATIENCE))
        .timeout_resolve(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .timeout_per_read(Some(PATIENCE))
        .timeout_per_write(Some(PATIENCE))
        .timeout_global(Some(LONGEST))
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .build();
    let agent = config.new_agent();
    *last = Some((believed, agent.clone()));
    Ok(agent)
}

fn read_answer(response: ureq::http::Response<Body>) -> Result<HttpAnswer, HttpError> {
    let (status, after) = (response.status().as_u16(), parse_retry_after(response.headers()));
    let read = response.into_body().into_with_config().limit(MAX_ANSWER).read_to_vec();
    match read {
        Ok(body) => Ok(HttpAnswer { status, retry_after: after, body }),
        // A refusal counts even if its words were cut off.
        Err(_) if status >= 400 => Ok(HttpAnswer { status, retry_after: after, body: Vec::new() }),
        Err(e) => Err(HttpError::Lost(format!("the answer was cut off: {e}"))),
    }
}

/// Returns the delay that the server asks for, in seconds.
fn parse_retry_after(headers: &HeaderMap) -> Option<u64> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<u64>().ok();
    let reset = || {
        let at = number("x-ratelimit-reset")?;
        at.checked_sub((crate::model::Timestamp::now().millis() / 1000) as u64)
    };
    let exhausted = number("x-ratelimit-remaining") == Some(0);
    // A server with a wrong clock must not stop a link for ever.
    number("retry-after").or_else(|| exhausted.then(reset)?).map(|secs| secs.min(24 * 3600))
}

/// Returns the error, which says if anything may have left this machine.
fn classify_error(error: Error) -> HttpError {
    use io::ErrorKind::{
        AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound,
    };
    let text = tls::add_advice(error.to_string());
    if tls::is_certificate_rejected(&text) {
        return HttpError::NotSent(text);
    }
    match &error {
        Error::HostNotFound
        | Error::ConnectionFailed
        | Error::BadUri(_)
        | Error::Tls(_)
        | Error::Rustls(_)
        | Error::TlsRequired
        | Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            HttpError::NotSent(text)
        }
        Error::Io(e)
            if matches!(
                e.kind(),
                ConnectionRefused
                    | HostUnreachable
                    | NetworkUnreachable
                    | AddrNotAvailable
                    | NotFound
            ) =>
        {
            HttpError::NotSent(text)
        }
        _ => HttpError::Lost(text),
    }
}
