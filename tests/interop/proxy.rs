//! A server between a link and its engine that disturbs exchanges as networks do.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A fault of one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The request does not reach the engine.
    Drop,
    /// The engine gets the request, and its answer is lost.
    Swallow,
    /// The engine gets the request, and half of its answer arrives.
    Cut,
    /// The engine gets the request, and its answer comes late.
    Delay,
    /// Another server than the engine answers with an error.
    Error,
}

/// A function that chooses the fault by the request's first line and the number of the exchange.
type Plan = Box<dyn FnMut(&str, usize) -> Option<Fault> + Send>;

/// A function that carries one connection with the faults of a plan.
type Carry = fn(TcpStream, u16, &mut dyn FnMut(&str) -> Option<Fault>) -> io::Result<()>;

/// The server, which ends when this is dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts one before the engine on a port of the loopback.
    pub(crate) fn before(
        engine: u16,
        plan: impl FnMut(&str, usize) -> Option<Fault> + Send + 'static,
    ) -> Self {
        Self::serve(engine, plan, exchange)
    }

    /// Starts one before an engine that speaks in lines. The plan gets each line that the client sends and the number
    /// of the connection.
    pub(crate) fn before_lines(
        engine: u16,
        plan: impl FnMut(&str, usize) -> Option<Fault> + Send + 'static,
    ) -> Self {
        Self::serve(engine, plan, talk)
    }

    fn serve(
        engine: u16,
        plan: impl FnMut(&str, usize) -> Option<Fault> + Send + 'static,
        carry: Carry,
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
                    // A client that goes away is part of the test.
                    let _ = carry(client, engine, &mut decide);
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

/// Passes lines and answers on until a line meets its fault.
fn talk(
    client: TcpStream,
    engine: u16,
    decide: &mut dyn FnMut(&str) -> Option<Fault>,
) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", engine))?;
    let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
    // The budget is the number of bytes of answers that may still pass once a fault has begun.
    let budget = Arc::new(AtomicI64::new(i64::MAX));
    let stopped = Arc::new(AtomicBool::new(false));
    let (left, seen) = (Arc::clone(&budget), Arc::clone(&stopped));
    let answers = std::thread::spawn(move || {
        let mut buffer = [0; 16 << 10];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            let pass = left.load(Ordering::SeqCst).clamp(0, n as i64) as usize;
            if to.write_all(&buffer[..pass]).is_err() {
                break;
            }
            if pass < n {
                seen.store(true, Ordering::SeqCst);
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let mut server = server;
    let mut lines = BufReader::new(client.try_clone()?);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        let fault = decide(String::from_utf8_lossy(&line).trim_end());
        match fault {
            Some(Fault::Drop) => break,
            Some(Fault::Error) => {
                (&client).write_all(b"421 busy\r\n")?;
                break;
            }
            Some(Fault::Swallow) => budget.store(0, Ordering::SeqCst),
            Some(Fault::Cut) => budget.store(3, Ordering::SeqCst),
            Some(Fault::Delay) => std::thread::sleep(Duration::from_millis(300)),
            None => {}
        }
        server.write_all(&line)?;
        line.clear();
        if matches!(fault, Some(Fault::Swallow | Fault::Cut)) {
            for _ in 0..100 {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
    let _ = client.shutdown(Shutdown::Both);
    let _ = answers.join();
    Ok(())
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
    // Each connection carries one exchange.
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

/// Reads a whole request: head and as much body as it announces.
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
