//! A connection to an engine with a protocol of lines, in the clear or in TLS.
//!
//! Everything has a limit: the silence of the other side, the time for one line and for one exchange, the
//! length of a line, and the size of one piece.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{private_hosts, secret, tls};
use crate::model::locks::Mutex;
use crate::model::sanitize_line;

/// The time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// The limit on silence of the other side.
    pub silence: Duration,
    /// The limit for one line.
    pub line: Duration,
    /// The limit for one exchange, with the time to connect.
    pub whole: Duration,
}

impl Default for ConnectionTimeouts {
    fn default() -> Self {
        let [silence, line, whole] = if cfg!(test) { [3, 4, 6] } else { [30, 60, 10 * 60] };
        let [silence, line, whole] = [silence, line, whole].map(Duration::from_secs);
        Self { silence, line, whole }
    }
}

/// The host and port of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPort {
    /// The host's name or address.
    pub name: String,
    /// The port.
    pub port: u16,
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", sanitize_line(&secret::strip_login(&self.name)), self.port)
    }
}

/// A TLS client with the certificates that it trusts.
#[derive(Clone)]
pub struct TlsClient(Arc<ClientConfig>);

impl std::fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsClient")
    }
}

impl TlsClient {
    /// Returns a client that trusts the system's certificates and those of a file in PEM.
    ///
    /// # Errors
    /// Returns the reason why the file cannot be used.
    pub fn new(ca: Option<&Path>) -> Result<Self, String> {
        /// The last client, and the certificates that it trusts.
        type CachedTlsClient = Option<(Vec<CertificateDer<'static>>, TlsClient)>;
        static LAST: LazyLock<Mutex<CachedTlsClient>> = LazyLock::new(Mutex::default);
        let believed = tls::load_root_certificates(ca)?;
        let mut last = LAST.lock();
        if let Some((_, tls)) = last.as_ref().filter(|(of, _)| *of == believed) {
            return Ok(tls.clone());
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(believed.iter().cloned());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?;
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let tls = Self(Arc::new(config));
        *last = Some((believed, tls.clone()));
        Ok(tls)
    }
}

/// Refuses to send secrets in the clear to a host that is not private.
///
/// # Errors
/// Returns a sentence with the remedy.
pub fn check_plain_allowed(host: &HostPort, insecure: bool, instead: &str) -> Result<(), String> {
    if insecure || private_hosts::is_private_host(&host.name) {
        return Ok(());
    }
    Err(format!(
        "the password and the mail would go to {host} in plain text; set {instead}, or set \
         insecure = true in a [[link]] for it"
    ))
}

/// A socket with its time limits.
#[derive(Debug)]
struct TimedSocket {
    tcp: TcpStream,
    silence: Duration,
    deadline: Instant,
    line_deadline: Option<Instant>,
}

impl TimedSocket {
    fn remaining_time(&self) -> io::Result<Duration> {
        let until = self.line_deadline.map_or(self.deadline, |line| line.min(self.deadline));
        let left = until.saturating_duration_since(Instant::now()).min(self.silence);
        if left.is_zero() { Err(timeout_error()) } else { Ok(left) }
    }
}

fn timeout_error() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the server is too slow or does not answer")
}

/// Maps the system's "would block" at the end of a time limit to a timeout.
fn map_timeout(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { timeout_error() } else { error }
}

impl Read for TimedSocket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.tcp.set_read_timeout(Some(self.remaining_time()?))?;
        self.tcp.read(buf).map_err(map_timeout)
    }
}

impl Write for TimedSocket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.tcp.set_write_timeout(Some(self.remaining_time()?))?;
        self.tcp.write(buf).map_err(map_timeout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

#[derive(Debug)]
enum ConnectionStream {
    Plain(TimedSocket),
    Tls(Box<StreamOwned<ClientConnection, TimedSocket>>),
}

impl ConnectionStream {
    fn socket_mut(&mut self) -> &mut TimedSocket {
        match self {
            Self::Plain(timed) => timed,
            Self::Tls(stream) => &mut stream.sock,
        }
    }
}

impl Read for ConnectionStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buf),
            Self::Tls(stream) => stream.read(buf),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct LineConnection {
    stream: BufReader<ConnectionStream>,
    patience: ConnectionTimeouts,
    peer: IpAddr,
}

impl LineConnection {
    /// Connects, and speaks TLS from the first byte if `tls` is given.
    ///
    /// # Errors
    /// Returns the error of the system or of the certificate.
    pub fn connect(
        host: &HostPort,
        tls: Option<&TlsClient>,
        patience: ConnectionTimeouts,
    ) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (host.name.as_str(), host.port).to_socket_addrs()? {
            match Self::connect_plain(address, patience) {
                Ok(wire) => return wire.start_tls_if_given(tls, host),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Connects to an address, in the clear.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn connect_plain(address: SocketAddr, patience: ConnectionTimeouts) -> io::Result<Self> {
        let tcp = TcpStream::connect_timeout(&address, patience.silence).map_err(map_timeout)?;
        tcp.set_nodelay(true)?;
        let until = Instant::now() + patience.whole;
        let timed =
            TimedSocket { tcp, silence: patience.silence, deadline: until, line_deadline: None };
        let stream = BufReader::with_capacity(64 << 10, ConnectionStream::Plain(timed));
        Ok(Self { stream, patience, peer: address.ip() })
    }

    fn start_tls_if_given(self, tls: Option<&TlsClient>, host: &HostPort) -> io::Result<Self> {
        match tls {
            Some(tls) => self.start_tls(tls, &host.name),
            None => Ok(self),
        }
    }

    /// Starts TLS on the connection.
    ///
    /// # Errors
    /// Returns the error of the certificate; also if the other side sent unexpected bytes in the clear.
    pub fn start_tls(self, tls: &TlsClient, name: &str) -> io::Result<Self> {
        if !self.stream.buffer().is_empty() {
            return Err(io::Error::other(
                "the server spoke before TLS began; somebody on the way may have changed the \
                 connection",
            ));
        }
        let ConnectionStream::Plain(timed) = self.stream.into_inner() else {
            return Err(io::Error::other("the connection speaks TLS already"));
        };
        let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let client = ClientConnection::new(Arc::clone(&tls.0), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(client, timed);
        while stream.conn.is_handshaking() {
            let done = stream.conn.complete_io(&mut stream.sock);
            done.map_err(|e| {
                let kind = match e.kind() {
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                        io::ErrorKind::Other
                    }
                    kind => kind,
                };
                io::Error::new(kind, tls::add_handshake_advice(e.to_string()))
            })?;
        }
        let stream = BufReader::with_capacity(64 << 10, ConnectionStream::Tls(Box::new(stream)));
        Ok(Self { stream, patience: self.patience, peer: self.peer })
    }

    /// Returns the address of the other side.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Begins another exchange, which has the whole time again.
    pub fn begin_exchange(&mut self) {
        let until = Instant::now() + self.patience.whole;
        self.stream.get_mut().socket_mut().deadline = until;
    }

    /// Ends the current exchange no later than that of another connection.
    pub fn end_with(&mut self, other: &mut Self) {
        let latest = other.stream.get_mut().socket_mut().deadline;
        let own = self.stream.get_mut().socket_mut();
        own.deadline = own.deadline.min(latest);
    }

    /// Reads one line, without its end.
    ///
    /// # Errors
    /// Returns the system's error; also if the line is longer than `max` bytes, or the other side hung up.
    pub fn read_line(&mut self, max: usize) -> io::Result<Vec<u8>> {
        let (mut line, is_whole) = self.read_line_piece(max.saturating_add(3))?;
        if !is_whole || line.len() > max.saturating_add(2) {
            return Err(io::Error::other(format!(
                "the server sent a line of more than {max} bytes"
            )));
        }
        while line.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
            line.pop();
        }
        Ok(line)
    }

    /// Reads a line with its end, or its first `max` bytes. Returns true with it if the end is there.
    ///
    /// # Errors
    /// Returns the system's error; also if the other side hung up.
    pub fn read_line_piece(&mut self, max: usize) -> io::Result<(Vec<u8>, bool)> {
        let limit = Instant::now() + self.patience.line;
        self.stream.get_mut().socket_mut().line_deadline = Some(limit);
        let piece = self.read_piece(max);
        self.stream.get_mut().socket_mut().line_deadline = None;
        piece
    }

    fn read_piece(&mut self, max: usize) -> io::Result<(Vec<u8>, bool)> {
        let mut piece = Vec::new();
        while piece.len() < max {
            let chunk = self.stream.fill_buf()?;
            if chunk.is_empty() {
                return Err(hangup_error());
            }
            let chunk = chunk.get(..chunk.len().min(max - piece.len())).unwrap_or_default();
            let end = chunk.iter().position(|b| *b == b'\n');
            let taken = end.map_or(chunk.len(), |at| at + 1);
            piece.extend_from_slice(chunk.get(..taken).unwrap_or_default());
            self.stream.consume(taken);
            if end.is_some() {
                return Ok((piece, true));
            }
        }
        Ok((piece, false))
    }

    /// Copies exactly this many bytes to a writer.
    ///
    /// # Errors
    /// Returns the system's error; also if fewer bytes came.
    pub fn copy_exactly(&mut self, bytes: u64, to: &mut dyn Write) -> io::Result<()> {
        let copied = io::copy(&mut Read::by_ref(&mut self.stream).take(bytes), to)?;
        if copied == bytes { Ok(()) } else { Err(hangup_error()) }
    }

    /// Copies all bytes to a writer until the other side ends. The caller must check that they are complete, since not
    /// every server announces the end in TLS.
    ///
    /// # Errors
    /// Returns the system's error; also if there are more than `limit` bytes.
    pub fn copy_rest(&mut self, limit: u64, to: &mut dyn Write) -> io::Result<u64> {
        let mut copied = 0;
        loop {
            let chunk = match self.stream.fill_buf() {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(copied),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                chunk => chunk?,
            };
            let length = chunk.len();
            if length == 0 {
                return Ok(copied);
            }
            copied += length as u64;
            if copied > limit {
                let why = format!("it is larger than {limit} bytes");
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
            }
            to.write_all(chunk)?;
            self.stream.consume(length);
        }
    }

    /// Sends all bytes, in one write if the system permits it.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.stream.get_mut() {
            ConnectionStream::Plain(stream) => stream.write_all(bytes),
            ConnectionStream::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    /// Announces the end of sending, and waits no longer.
    pub fn shut_down(mut self) {
        if let ConnectionStream::Tls(stream) = self.stream.get_mut() {
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
        let _ = self.stream.get_mut().socket_mut().tcp.shutdown(std::net::Shutdown::Write);
    }
}

fn hangup_error() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server ended the connection")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Returns a server for one connection, on a port of the loopback.
    pub fn server(serve: impl FnOnce(TcpStream) + Send + 'static) -> HostPort {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                serve(stream);
            }
        });
        HostPort { name: "127.0.0.1".into(), port }
    }

    fn hasty() -> ConnectionTimeouts {
        let short = Duration::from_millis(200);
        ConnectionTimeouts { silence: short, line: short * 2, whole: short * 10 }
    }

    #[test]
    fn lines_have_limits() {
        let host = server(|mut s| {
            s.write_all(b"one\r\ntwo\nthree\r\n").unwrap();
            s.write_all(&vec![b'x'; 3000]).unwrap();
            std::thread::sleep(Duration::from_secs(2));
        });
        let mut wire = LineConnection::connect(&host, None, hasty()).unwrap();
        for expected in ["one", "two", "three"] {
            assert_eq!(wire.read_line(10).unwrap(), expected.as_bytes());
        }
        assert!(wire.read_line(1000).unwrap_err().to_string().contains("more than 1000"));
    }

    #[test]
    fn one_byte_at_a_time_does_not_last_for_ever() {
        let host = server(|mut s| {
            while s.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut wire = LineConnection::connect(&host, None, hasty()).unwrap();
        assert_eq!(wire.read_line(1 << 20).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let host = server(|s| {
            std::thread::sleep(Duration::from_secs(2));
            drop(s);
        });
        let mut wire = LineConnection::connect(&host, None, hasty()).unwrap();
        assert_eq!(wire.read_line(10).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn what_is_cut_short_or_endless_is_an_error() {
        let host = server(|mut s| s.write_all(b"12345").unwrap());
        let mut wire = LineConnection::connect(&host, None, hasty()).unwrap();
        let mut out = Vec::new();
        assert!(wire.copy_exactly(4_000_000_000, &mut out).is_err());
        assert_eq!(out, b"12345");
        let host = server(|mut s| while s.write_all(&[0; 4096]).is_ok() {});
        let mut wire = LineConnection::connect(&host, None, hasty()).unwrap();
        assert!(wire.copy_rest(10_000, &mut io::sink()).is_err());
    }

    #[test]
    fn passwords_stay_near() {
        let host = |name: &str| HostPort { name: name.into(), port: 1 };
        assert!(check_plain_allowed(&host("127.0.0.1"), false, "x").is_ok());
        assert!(check_plain_allowed(&host("mail.example"), true, "x").is_ok());
        let why = check_plain_allowed(&host("mail.example"), false, "smtp_ssl").unwrap_err();
        assert!(why.contains("smtp_ssl") && why.contains("plain text"), "{why}");
    }

    #[test]
    fn a_server_without_tls_that_hangs_up_is_told_as_such() {
        for reset in [false, true] {
            let host = server(move |s| {
                if reset {
                    // The end of the connection is a reset, because bytes of the client are unread.
                    std::thread::sleep(Duration::from_millis(100));
                } else {
                    let mut some = [0; 4096];
                    let _ = (&s).read(&mut some);
                }
            });
            let tls = TlsClient::new(None).unwrap();
            let why = LineConnection::connect(&host, Some(&tls), hasty()).unwrap_err().to_string();
            assert!(why.contains("TLS was tried"), "reset: {reset}: {why}");
        }
    }

    #[test]
    fn what_was_said_before_tls_is_not_believed() {
        let host = server(|mut s| {
            s.write_all(b"220 go\r\n250 injected\r\n").unwrap();
            std::thread::sleep(Duration::from_millis(500));
        });
        let mut wire = LineConnection::connect(&host, None, hasty()).unwrap();
        wire.read_line(100).unwrap();
        let tls = TlsClient::new(None).unwrap();
        let why = wire.start_tls(&tls, "127.0.0.1").unwrap_err().to_string();
        assert!(why.contains("before TLS"), "{why}");
    }
}
