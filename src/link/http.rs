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
use super::engine::ExchangeOutcome;
use super::{private_hosts, secret, tls};
use crate::model::locks::Mutex;
use crate::store::fs;

/// The limit on the size of an answer in memory.
const MAX_ANSWER: u64 = 64 << 20;
/// The time limit for connecting, and for silence of the server.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 30 });
/// The longest time for which an unused connection is kept.
const KEPT: Duration = Duration::from_secs(2);
/// The time limit for a whole exchange.
const LONGEST: Duration = Duration::from_secs(if cfg!(test) { 6 } else { 10 * 60 });

/// A server, identified by the part of its URL that all calls share.
#[derive(Clone, Debug)]
pub struct HttpClient {
    agents: HttpAgents,
    base: String,
}

/// The agents for one server. A connection is used again only if the server announces that it stays open, because one
/// that the server closes at that moment would look like a lost answer.
#[derive(Clone, Debug)]
struct HttpAgents {
    /// An agent that closes each connection.
    single: Agent,
    roots: RootCerts,
    /// An agent that keeps a connection, as long as the last answer announced that.
    keeping: Arc<Mutex<Option<Agent>>>,
}

impl HttpAgents {
    fn current(&self) -> Agent {
        self.keeping.lock().as_ref().unwrap_or(&self.single).clone()
    }

    /// Keeps the next connection if this answer announces it; closes a kept one if not.
    fn follow_answer(&self, answer: &Result<ureq::http::Response<Body>, Error>) {
        let says_keep = |response: &ureq::http::Response<Body>| {
            let all = response.headers().get_all("connection").iter();
            let mut words = all.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(','));
            words.any(|word| word.trim().eq_ignore_ascii_case("keep-alive"))
        };
        let mut keeping = self.keeping.lock();
        if !answer.as_ref().is_ok_and(says_keep) {
            *keeping = None;
        } else if keeping.is_none() {
            *keeping = Some(make_agent(self.roots.clone(), 1));
        }
    }
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

impl From<HttpError> for ExchangeOutcome {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::NotSent(why) => Self::away(why),
            HttpError::Lost(why) => Self::Unknown { why },
        }
    }
}

impl HttpClient {
    /// Returns a client for a server at `http://…` or `https://…`.
    ///
    /// # Errors
    /// Returns a sentence if that is no URL, or plain text must not go there, or `ca` cannot be used.
    pub fn new(base: &str, insecure: bool, ca: Option<&Path>) -> Result<Self, String> {
        let shown = secret::strip_login(base);
        let shown = crate::model::sanitize_line(&shown).into_owned();
        let uri: Option<Uri> = base.parse().ok();
        let authority = uri.as_ref().and_then(Uri::authority);
        // A user and a password before the host would be shown and logged.
        let host = authority.filter(|of| !of.as_str().contains('@') && !of.host().is_empty());
        let is_plain = match (uri.as_ref().and_then(Uri::scheme_str), host) {
            (Some("http"), Some(host)) => {
                !private_hosts::is_private_host(host.host().trim_matches(['[', ']']))
            }
            (Some("https"), Some(_)) => false,
            _ if shown != base && base.contains('@') => {
                return Err(format!(
                    "the address of {shown} must not hold a user or a password; take them out of it"
                ));
            }
            _ => return Err(format!("{shown:?} is not an address of the form https://HOST")),
        };
        if is_plain && !insecure {
            return Err(format!(
                "the token and the mail would go to {shown} in plain text; use https, or set \
                 insecure = true in a [[link]] for it"
            ));
        }
        Ok(Self { agents: shared_agents(ca)?, base: base.trim_end_matches('/').to_owned() })
    }

    /// Returns a client for the same server by another of its URLs.
    pub fn with_base(&self, base: &str) -> Self {
        Self { agents: self.agents.clone(), base: base.to_owned() }
    }

    /// Closes the connection that is kept, since nothing is to be exchanged now.
    pub fn disconnect(&self) {
        *self.agents.keeping.lock() = None;
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
        let mut request = self.agents.current().post(format!("{}{path}", self.base));
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        // The body has a length, since not every server reads chunks.
        let request = request.header("Content-Type", "application/json");
        let answer = request.send(json);
        self.agents.follow_answer(&answer);
        read_answer(answer.map_err(|e| self.classify_error(e))?)
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
        let mut request =
            self.agents.single.put(&self.base).header("Content-Length", size.to_string());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut bytes = io::Read::take(file, size);
        read_answer(
            request.send(SendBody::from_reader(&mut bytes)).map_err(|e| self.classify_error(e))?,
        )
    }

    /// Gets an answer into memory.
    ///
    /// # Errors
    /// Returns [`HttpError`].
    pub fn get(&self, path: &str, token: Option<&str>) -> Result<HttpAnswer, HttpError> {
        read_answer(self.send_request(path, token, "GET", true)?)
    }

    /// Deletes a resource.
    ///
    /// # Errors
    /// Returns [`HttpError`].
    pub fn delete(&self, path: &str, token: Option<&str>) -> Result<HttpAnswer, HttpError> {
        read_answer(self.send_request(path, token, "DELETE", true)?)
    }

    /// Gets an answer into a file and syncs it, over a connection of its own: an answer that is lost may hold mail that
    /// the server has deleted. The file also gets the beginning of an answer that was cut off. An
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
        let response = self.send_request(path, token, "GET", false)?;
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

    fn classify_error(&self, error: Error) -> HttpError {
        classify_error(error, self.base.starts_with("https:"))
    }

    fn send_request(
        &self,
        path: &str,
        token: Option<&str>,
        method: &str,
        may_keep: bool,
    ) -> Result<ureq::http::Response<Body>, HttpError> {
        let url = format!("{}{path}", self.base);
        let agent = if may_keep { self.agents.current() } else { self.agents.single.clone() };
        let mut request = if method == "DELETE" { agent.delete(url) } else { agent.get(url) };
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let answer = request.call();
        if may_keep {
            self.agents.follow_answer(&answer);
        }
        answer.map_err(|e| self.classify_error(e))
    }
}

/// Returns the HTTP agents for a server. The root certificates and the agent that keeps nothing are cached: building
/// them takes longer than a request.
fn shared_agents(ca: Option<&Path>) -> Result<HttpAgents, String> {
    /// An agent, and the root certificates that it trusts.
    type CachedHttpAgent = Option<(Vec<CertificateDer<'static>>, RootCerts, Agent)>;
    static LAST: LazyLock<Mutex<CachedHttpAgent>> = LazyLock::new(Mutex::default);
    let believed = tls::load_root_certificates(ca)?;
    let mut last = LAST.lock();
    if let Some((_, roots, single)) = last.as_ref().filter(|(of, _, _)| *of == believed) {
        let (single, roots) = (single.clone(), roots.clone());
        return Ok(HttpAgents { single, roots, keeping: Arc::default() });
    }
    let certs = believed.iter().map(|cert| Certificate::from_der(cert).to_owned());
    let roots = RootCerts::Specific(Arc::new(certs.collect()));
    let single = make_agent(roots.clone(), 0);
    *last = Some((believed, roots.clone(), single.clone()));
    Ok(HttpAgents { single, roots, keeping: Arc::default() })
}

/// Returns an agent that keeps so many unused connections.
fn make_agent(roots: RootCerts, kept: usize) -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .max_idle_connections(kept)
        .max_idle_connections_per_host(kept)
        .max_idle_age(KEPT)
        .user_agent(concat!("msgfs/", env!("CARGO_PKG_VERSION")))
        .timeout_connect(Some(PATIENCE))
        .timeout_resolve(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .timeout_per_read(Some(PATIENCE))
        .timeout_per_write(Some(PATIENCE))
        .timeout_global(Some(LONGEST))
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .build();
    config.new_agent()
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

/// Returns true if the server ended the connection before it answered anything.
fn is_hangup(error: &Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error, Error::Io(e) if matches!(e.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof))
}

/// Returns the error, which says if anything may have left this machine. `is_tls`: the address begins with `https:`.
fn classify_error(error: Error, is_tls: bool) -> HttpError {
    use io::ErrorKind::{
        AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound,
    };
    let text = secret::hide_logins(&error.to_string());
    let text = if is_tls && is_hangup(&error) {
        tls::add_handshake_advice(text)
    } else {
        tls::add_advice(text)
    };
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Returns a client of a server that answers `times` requests on each connection with these headers, and the number
    /// of its connections.
    fn served(headers: &'static str, times: usize) -> (HttpClient, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let met = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&met);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let mut lines = BufReader::new(stream.try_clone().unwrap());
                for _ in 0..times {
                    let mut line = String::new();
                    while !line.ends_with("\r\n\r\n") && lines.read_line(&mut line).unwrap() > 0 {}
                    if line.is_empty() {
                        break;
                    }
                    let body = if line.starts_with("POST") { 2 } else { 0 };
                    lines.read_exact(&mut vec![0; body]).unwrap();
                    let answer = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: 2\r\n\r\nok");
                    (&stream).write_all(answer.as_bytes()).unwrap();
                }
            }
        });
        (HttpClient::new(&url, false, None).unwrap(), met)
    }

    #[test]
    fn a_connection_is_used_again_only_if_the_server_says_so() {
        for (headers, connections) in
            [("Connection: keep-alive\r\n", 2), ("Connection: close\r\n", 5), ("", 5)]
        {
            let times = if connections == 2 { usize::MAX } else { 1 };
            let (client, met) = served(headers, times);
            for _ in 0..5 {
                assert_eq!(client.post_json("/", None, b"{}").unwrap().body, b"ok");
            }
            assert_eq!(met.load(Ordering::SeqCst), connections, "{headers:?}");
        }
    }

    /// A server that ends a connection which it promised to keep costs one lost answer, not more.
    #[test]
    fn a_broken_promise_to_keep_a_connection_is_believed_once() {
        let (client, met) = served("Connection: keep-alive\r\n", 1);
        let mut lost = 0;
        for _ in 0..6 {
            lost += usize::from(client.post_json("/", None, b"{}").is_err());
        }
        assert!(lost <= 3 && met.load(Ordering::SeqCst) >= 3, "{lost}");
        client.disconnect();
        assert!(client.post_json("/", None, b"{}").is_ok());
    }
}
