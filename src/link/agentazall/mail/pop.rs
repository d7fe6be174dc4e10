//! A minimal POP3 client that reads a mailbox without changing it (RFC 1939).

use std::io::{self, Write};

use super::MailFetchResult;
use crate::link::connection::{ConnectionTimeouts, HostPort, LineConnection, TlsClient};
use crate::model::sanitize_line;

/// The limit on the length of an answer's line.
const MAX_LINE: usize = 1 << 20;
/// The number of bytes of a mail that are read at once.
const PIECE: usize = 64 << 10;
/// The limit on the number of mails in a mailbox.
const MAX_MAILS: usize = 1_000_000;

/// A session.
#[derive(Debug)]
pub struct PopClient(LineConnection);

impl PopClient {
    /// Connects and logs in.
    ///
    /// # Errors
    /// Returns the error of the system or the server.
    pub fn open(
        host: &HostPort,
        tls: Option<&TlsClient>,
        (user, password): (&str, &str),
        patience: ConnectionTimeouts,
    ) -> io::Result<Self> {
        let mut pop = Self(LineConnection::connect(host, tls, patience)?);
        pop.read_answer("to speak POP3")?.map_err(io::Error::other)?;
        pop.run_command(&format!("USER {user}"), "the user")?;
        pop.run_command(&format!("PASS {password}"), "the user or the password")?;
        Ok(pop)
    }

    /// Begins another exchange, which has the whole time again.
    pub fn begin_exchange(&mut self) {
        self.0.begin_exchange();
    }

    /// Returns the numbers of all mails in this session, with their ids.
    ///
    /// # Errors
    /// Returns the error of the system or the server.
    pub fn list_mails(&mut self) -> io::Result<Vec<(u64, String)>> {
        self.run_command("UIDL", "to list")?;
        let mut out = Vec::new();
        for _ in 0..MAX_MAILS {
            let line = self.0.read_line(MAX_LINE)?;
            if line == b"." {
                return Ok(out);
            }
            let line = String::from_utf8_lossy(&line).into_owned();
            let mut words = line.split_whitespace();
            let number = words.next().and_then(|n| n.parse().ok());
            let id = words.next().filter(|id| id.len() <= 100);
            out.extend(number.zip(id.map(str::to_owned)));
        }
        Err(io::Error::other("the list of mails has no end"))
    }

    /// Reads a mail of at most `limit` bytes.
    ///
    /// # Errors
    /// Returns the error of the system or the server.
    pub fn fetch_mail(
        &mut self,
        number: u64,
        limit: u64,
        to: &mut dyn Write,
    ) -> io::Result<MailFetchResult> {
        self.0.send(format!("RETR {number}\r\n").as_bytes())?;
        if let Err(why) = self.read_answer("a mail")? {
            return Ok(MailFetchResult::Refused(why));
        }
        let mut bytes = 0;
        let mut is_begin = true;
        loop {
            // A line may be too long to keep in memory.
            let (piece, is_end) = self.0.read_line_piece(PIECE)?;
            let mut text = piece.as_slice();
            if is_begin && is_end && matches!(text, b".\n" | b".\r\n") {
                return Ok(MailFetchResult::Whole);
            }
            bytes += text.len() as u64;
            if bytes > limit {
                return Ok(MailFetchResult::TooLarge(limit));
            }
            if is_begin {
                text = text.strip_prefix(b".").unwrap_or(text);
            }
            to.write_all(text)?;
            is_begin = is_end;
        }
    }

    /// Sends `QUIT` without waiting for the answer. No mail was marked for deletion.
    pub fn quit(mut self) {
        let _ = self.0.send(b"QUIT\r\n");
        self.0.shut_down();
    }

    fn run_command(&mut self, command: &str, what: &str) -> io::Result<()> {
        if command.contains(['\r', '\n', '\0']) {
            return Err(io::Error::other("a name with a line end cannot be sent by POP3"));
        }
        self.0.send(format!("{command}\r\n").as_bytes())?;
        self.read_answer(what)?.map_err(io::Error::other)
    }

    /// Reads an answer. The inner error is the server's refusal.
    fn read_answer(&mut self, what: &str) -> io::Result<Result<(), String>> {
        let line = self.0.read_line(MAX_LINE)?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let why = || format!("the server refuses {what}: {}", sanitize_line(&line));
        match line.get(..3) {
            Some("+OK") => Ok(Ok(())),
            Some("-ER") => Ok(Err(why())),
            _ => Err(io::Error::other(why())),
        }
    }
}
