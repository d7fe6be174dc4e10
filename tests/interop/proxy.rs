//! A server between a link and its engine that does to HTTP exchanges what networks do.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What happens to one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The request does not reach the engine.
    Drop,
    /// The engine gets it, and its answer is lost.
    Swallow,
    /// The engine gets it, and half of its answer comes.
    Cut,
    /// The engine gets it, and its answer comes late.
    Delay,
    /// It is answered by an error that is not the engine's.
    Error,
}

/// Decides by the request's first line and the number of the exchange.
type Plan = Box<dyn FnMut(&str, usize) -> Option<Fault> + Send>;

/// The server; ended when dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Before the engine on a port of the loopback.
    pub(crate) fn before(
        engine: u16,
        plan: impl FnMut(&str, usize) -> Option<Fault> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let port = listener.local_addr().expect("address").port();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, plan) = (Arc::clone(&stop), Arc::new(Mutex::new(Box::new(plan) as Plan)));
        let thread = std::thread::spawn(move || {
            for (number, client) in listener.incoming().enumerate() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(client), plan) = (client, Arc::clone(&plan)) else { continue };
                std::thread::spawn(move || {
                    let mut decide = |line: &str| (plan.lock().unwrap())(line, number);
                    // A client that goes away is what this is for.
                    let _ = exchange(client, engine, &mut decide);
                });
            }
        });
        Self { port, stop, thread: Some(thread) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn exchange(
    mut client: TcpStream,
    engine: u16,
    decide: &mut dyn FnMut(&str) -> Option<Fault>,
) -> io::Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut request = request(&mut client)?;
    let line = String::from_utf8_lossy(&request);
    let fault = decide(line.lines().next().unwrap_or_default());
    match fault {
        Some(Fault::Drop) => return client.shutdown(Shutdown::Both),
        Some(Fault::Error) => {
            client.write_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")?;
            return client.shutdown(Shutdown::Both);
        }
        _ => {}
    }
    let mut server = TcpStream::connect(("127.0.0.1", engine))?;
    // One exchange a connection.
    let text = String::from_utf8_lossy(&request);
    if let Some(end) = text.find("\r\n").filter(|_| !text.contains("onnection: close")) {
        request.splice(end..end, b"\r\nConnection: close".iter().copied());
    }
    server.write_all(&request)?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    match fault {
        Some(Fault::Swallow) => return client.shutdown(Shutdown::Both),
        Some(Fault::Cut) => answer.truncate(answer.len() * 2 / 3),
        Some(Fault::Delay) => std::thread::sleep(Duration::from_millis(300)),
        _ => {}
    }
    client.write_all(&answer)?;
    client.shutdown(Shutdown::Both)
}

/// A whole request: head and as much body as it announces.
fn request(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        if let Some(end) = text.find("\r\n\r\n") {
            let length = text.split("content-length:").nth(1).and_then(|t| t.lines().next());
            let length = length.and_then(|n| n.trim().parse::<usize>().ok()).unwrap_or(0);
            if bytes.len() >= end + 4 + length {
                return Ok(bytes);
            }
        }
        match client.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => bytes.extend(&buffer[..n]),
        }
    }
}
