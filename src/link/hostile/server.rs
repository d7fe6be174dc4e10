//! A server that can do to its clients what servers do that mean harm.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// What the server does when it has heard something.
#[derive(Clone, Debug)]
pub enum Act {
    /// Says this and listens on.
    Say(Vec<u8>),
    /// Says the first, then the second for ever.
    Endless(Vec<u8>, Vec<u8>),
    /// Says this for ever, a byte at a time.
    Drip(Vec<u8>),
    /// Says nothing more and stays.
    Hang,
    /// Says this and goes.
    Close(Vec<u8>),
    /// Says this and goes on in TLS.
    Tls(Vec<u8>),
}

/// What is done when a line has been heard; the first one, of a connection that says nothing, is empty.
pub type Plan = Arc<dyn Fn(&str) -> Act + Send + Sync>;

/// One that listens on the loopback for as long as the tests run.
#[derive(Clone)]
pub struct Hostile {
    pub port: u16,
    /// How many connections there were.
    pub met: Arc<AtomicUsize>,
    /// All that it heard.
    pub heard: Arc<Mutex<Vec<u8>>>,
}

impl std::fmt::Debug for Hostile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hostile({})", self.port)
    }
}

/// How lines come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// The server speaks first, and answers each line.
    Lines,
    /// It answers one request, once it has all of it.
    Http,
}

impl Hostile {
    pub fn start(manner: Manner, plan: Plan) -> Self {
        Self::with(manner, plan, None, false)
    }

    /// The same with a certificate; `at_once` if TLS begins with the first byte.
    pub fn with(manner: Manner, plan: Plan, tls: Option<Arc<ServerConfig>>, at_once: bool) -> Self {
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
                        Some(tls) => {
                            secured(stream, tls).and_then(|s| talk(s, manner, &plan, &heard))
                        }
                        None => begin(stream, manner, &plan, &heard, tls),
                    };
                });
            }
        });
        server
    }

    pub fn was_met(&self) -> bool {
        self.met.load(Ordering::SeqCst) > 0
    }

    pub fn has_heard(&self, what: &str) -> bool {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.windows(what.len()).any(|w| w == what.as_bytes())
    }
}

type Stream = StreamOwned<ServerConnection, TcpStream>;

fn secured(mut stream: TcpStream, tls: Arc<ServerConfig>) -> std::io::Result<Stream> {
    let mut conn = ServerConnection::new(tls).map_err(std::io::Error::other)?;
    while conn.is_handshaking() {
        conn.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(conn, stream))
}

/// In the clear; may go on in TLS.
fn begin(
    stream: TcpStream,
    manner: Manner,
    plan: &Plan,
    heard: &Mutex<Vec<u8>>,
    tls: Option<Arc<ServerConfig>>,
) -> std::io::Result<()> {
    let mut stream = stream;
    // Byte by byte, so that nothing of what TLS says is taken.
    let mut line = Vec::new();
    let mut is_first = manner == Manner::Lines;
    loop {
        if !is_first {
            line = if manner == Manner::Http { request(&mut stream)? } else { one(&mut stream)? };
            heard.lock().unwrap_or_else(PoisonError::into_inner).extend(&line);
            if line.is_empty() {
                return Ok(());
            }
        }
        is_first = false;
        match plan(&String::from_utf8_lossy(&line)) {
            Act::Tls(text) => {
                stream.write_all(&text)?;
                let Some(tls) = tls else { return Ok(()) };
                // Nothing is said first any more.
                let said: Plan = Arc::clone(plan);
                return talk_on(secured(stream, tls)?, &said, heard);
            }
            act if !perform(&mut stream, &act)? => return Ok(()),
            _ => {}
        }
    }
}

fn talk(
    mut stream: Stream,
    manner: Manner,
    plan: &Plan,
    heard: &Mutex<Vec<u8>>,
) -> std::io::Result<()> {
    if manner == Manner::Http {
        let request = request(&mut stream)?;
        heard.lock().unwrap_or_else(PoisonError::into_inner).extend(&request);
        perform(&mut stream, &plan(&String::from_utf8_lossy(&request)))?;
        stream.conn.send_close_notify();
        return stream.flush();
    }
    if perform(&mut stream, &plan(""))? {
        talk_on(stream, plan, heard)?;
    }
    Ok(())
}

fn talk_on(mut stream: Stream, plan: &Plan, heard: &Mutex<Vec<u8>>) -> std::io::Result<()> {
    loop {
        let line = one(&mut stream)?;
        heard.lock().unwrap_or_else(PoisonError::into_inner).extend(&line);
        if line.is_empty() || !perform(&mut stream, &plan(&String::from_utf8_lossy(&line)))? {
            return Ok(());
        }
    }
}

/// Whether the connection goes on.
fn perform(stream: &mut impl Write, act: &Act) -> std::io::Result<bool> {
    match act {
        Act::Say(text) => stream.write_all(text).map(|()| true),
        Act::Endless(first, then) => {
            stream.write_all(first)?;
            let many = then.repeat((64 << 10) / then.len() + 1);
            loop {
                stream.write_all(&many)?;
            }
        }
        Act::Drip(text) => {
            for byte in text.iter().cycle() {
                stream.write_all(&[*byte])?;
                stream.flush()?;
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(false)
        }
        Act::Hang => {
            std::thread::sleep(Duration::from_secs(20));
            Ok(false)
        }
        Act::Close(text) | Act::Tls(text) => {
            stream.write_all(text)?;
            stream.flush().map(|()| false)
        }
    }
}

/// One line, read so that nothing behind it is.
fn one(stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while stream.read(&mut byte)? == 1 {
        line.push(byte[0]);
        if byte[0] == b'\n' {
            break;
        }
    }
    Ok(line)
}

/// A request with its body.
fn request(stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
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
