//! A server that can do to its clients anything that a hostile server does.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// The action of the server after a line.
#[derive(Clone, Debug)]
pub enum ServerAction {
    /// A text, after which it listens on.
    Say(Vec<u8>),
    /// A first text, then a second one for ever.
    Endless(Vec<u8>, Vec<u8>),
    /// A text for ever, a byte at a time.
    Drip(Vec<u8>),
    /// Silence on an open connection.
    Hang,
    /// A text, after which it hangs up.
    Close(Vec<u8>),
    /// A text, after which it starts TLS.
    Tls(Vec<u8>),
}

/// The action for a line. The first line of a connection without a request is empty.
pub type ServerScript = Arc<dyn Fn(&str) -> ServerAction + Send + Sync>;

/// A server on the loopback that runs for as long as the tests.
#[derive(Clone)]
pub struct HostileServer {
    pub port: u16,
    /// The number of connections.
    pub met: Arc<AtomicUsize>,
    /// All bytes that it heard.
    pub heard: Arc<Mutex<Vec<u8>>>,
}

impl std::fmt::Debug for HostileServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostileServer({})", self.port)
    }
}

/// The protocol of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostileProtocol {
    /// A protocol in which the server speaks first, and answers each line.
    Lines,
    /// A protocol in which the server answers one complete request.
    Http,
}

impl HostileServer {
    pub fn start(manner: HostileProtocol, plan: ServerScript) -> Self {
        Self::start_with(manner, plan, None, false)
    }

    /// Starts a server with a certificate; TLS begins with the first byte if `at_once` is true.
    pub fn start_with(
        manner: HostileProtocol,
        plan: ServerScript,
        tls: Option<Arc<ServerConfig>>,
        at_once: bool,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Self { port, met: Arc::default(), heard: Arc::new(Mutex::new(Vec::new())) };
        let all = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                all.met.fetch_add(1, Ordering::SeqCst);
                let (plan, tls, heard) = (Arc::clone(&plan), tls.clone(), Arc::clone(&all.heard));
                std::thread::spawn(move || {
                    let _ = stream.set_write_timeout(Some(Duration::from_secs(20)));
                    let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
                    let _ = match tls.clone().filter(|_| at_once) {
                        Some(tls) => accept_tls(stream, tls)
                            .and_then(|s| serve_tls(s, manner, &plan, &heard)),
                        None => serve_plain(stream, manner, &plan, &heard, tls),
                    };
                });
            }
        });
        server
    }

    pub fn has_connections(&self) -> bool {
        self.met.load(Ordering::SeqCst) > 0
    }

    pub fn has_heard(&self, what: &str) -> bool {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.windows(what.len()).any(|w| w == what.as_bytes())
    }
}

type TlsServerStream = StreamOwned<ServerConnection, TcpStream>;

fn accept_tls(mut stream: TcpStream, tls: Arc<ServerConfig>) -> std::io::Result<TlsServerStream> {
    let mut conn = ServerConnection::new(tls).map_err(std::io::Error::other)?;
    while conn.is_handshaking() {
        conn.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(conn, stream))
}

/// Serves a connection in the clear, which may start TLS.
fn serve_plain(
    stream: TcpStream,
    manner: HostileProtocol,
    plan: &ServerScript,
    heard: &Mutex<Vec<u8>>,
    tls: Option<Arc<ServerConfig>>,
) -> std::io::Result<()> {
    let mut stream = stream;
    // Lines are read byte by byte, so that no bytes of TLS are consumed.
    let mut line = Vec::new();
    let mut is_first = manner == HostileProtocol::Lines;
    loop {
        if !is_first {
            line = if manner == HostileProtocol::Http {
                read_request(&mut stream)?
            } else {
                read_line(&mut stream)?
            };
            heard.lock().unwrap_or_else(PoisonError::into_inner).extend(&line);
            if line.is_empty() {
                return Ok(());
            }
        }
        is_first = false;
        match plan(&String::from_utf8_lossy(&line)) {
            ServerAction::Tls(text) => {
                stream.write_all(&text)?;
                let Some(tls) = tls else { return Ok(()) };
                // After TLS starts there is no greeting.
                let said: ServerScript = Arc::clone(plan);
                return serve_lines(accept_tls(stream, tls)?, &said, heard);
            }
            act if !perform_action(&mut stream, &act)? => return Ok(()),
            _ => {}
        }
    }
}

fn serve_tls(
    mut stream: TlsServerStream,
    manner: HostileProtocol,
    plan: &ServerScript,
    heard: &Mutex<Vec<u8>>,
) -> std::io::Result<()> {
    if manner == HostileProtocol::Http {
        let request = read_request(&mut stream)?;
        heard.lock().unwrap_or_else(PoisonError::into_inner).extend(&request);
        perform_action(&mut stream, &plan(&String::from_utf8_lossy(&request)))?;
        stream.conn.send_close_notify();
        return stream.flush();
    }
    if perform_action(&mut stream, &plan(""))? {
        serve_lines(stream, plan, heard)?;
    }
    Ok(())
}

fn serve_lines(
    mut stream: TlsServerStream,
    plan: &ServerScript,
    heard: &Mutex<Vec<u8>>,
) -> std::io::Result<()> {
    loop {
        let line = read_line(&mut stream)?;
        heard.lock().unwrap_or_else(PoisonError::into_inner).extend(&line);
        if line.is_empty() || !perform_action(&mut stream, &plan(&String::from_utf8_lossy(&line)))?
        {
            return Ok(());
        }
    }
}

/// Performs an action. Returns true if the connection goes on.
fn perform_action(stream: &mut impl Write, act: &ServerAction) -> std::io::Result<bool> {
    match act {
        ServerAction::Say(text) => stream.write_all(text).map(|()| true),
        ServerAction::Endless(first, then) => {
            stream.write_all(first)?;
            let many = then.repeat((64 << 10) / then.len() + 1);
            loop {
                stream.write_all(&many)?;
            }
        }
        ServerAction::Drip(text) => {
            for byte in text.iter().cycle() {
                stream.write_all(&[*byte])?;
                stream.flush()?;
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(false)
        }
        ServerAction::Hang => {
            std::thread::sleep(Duration::from_secs(20));
            Ok(false)
        }
        ServerAction::Close(text) | ServerAction::Tls(text) => {
            stream.write_all(text)?;
            stream.flush().map(|()| false)
        }
    }
}

/// Reads one line and nothing behind it.
fn read_line(stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while stream.read(&mut byte)? == 1 {
        line.push(byte[0]);
        if byte[0] == b'\n' {
            break;
        }
    }
    Ok(line)
}

/// Reads a request with its body.
fn read_request(stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut lines = BufReader::new(stream);
    let (mut all, mut length) = (Vec::new(), 0);
    loop {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line)? == 0 {
            return Ok(all);
        }
        let text = String::from_utf8_lossy(&line).to_ascii_lowercase();
        if let Some(number) = text.strip_prefix("content-length:") {
            length = number.trim().parse().unwrap_or(0);
        }
        all.extend(&line);
        if line == b"\r\n" {
            let mut body = vec![0; length];
            lines.read_exact(&mut body)?;
            all.extend(body);
            return Ok(all);
        }
    }
}
