//! A minimal IMAP client that reads a folder without changing it (RFC 3501). Mails have numbers of 64 bits: the server
//! that comes with AgentAZAll counts milliseconds.

use std::io::{self, Write};

use super::MailFetchResult;
use crate::link::connection::{ConnectionTimeouts, HostPort, LineConnection, TlsClient};
use crate::model::sanitize_line;

/// The limit on the size of an answer, except for mails: the list of a million mails fits.
const MAX_LINE: usize = 32 << 20;
/// The limit on lines and pieces of an answer.
const MAX_LINES: usize = 100_000;

/// A session with a folder open for reading.
#[derive(Debug)]
pub struct ImapClient {
    wire: LineConnection,
    tag: u32,
    /// The UIDVALIDITY of the folder: a different value invalidates all numbers.
    pub validity: u64,
}

fn describe_refusal(what: &str, line: &str) -> String {
    format!("the server refuses {what}: {}", sanitize_line(line))
}

fn refusal_error(what: &str, line: &str) -> io::Error {
    io::Error::other(describe_refusal(what, line))
}

impl ImapClient {
    /// Connects, logs in and opens a folder.
    ///
    /// # Errors
    /// Returns the error of the system or the server.
    pub fn open(
        host: &HostPort,
        tls: Option<&TlsClient>,
        (user, password): (&str, &str),
        folder: &str,
        patience: ConnectionTimeouts,
    ) -> io::Result<Self> {
        let wire = LineConnection::connect(host, tls, patience)?;
        let mut imap = Self { wire, tag: 0, validity: 0 };
        let greeting = imap.read_line()?;
        if !greeting.starts_with("* OK") && !greeting.starts_with("* PREAUTH") {
            return Err(refusal_error("to speak IMAP", &greeting));
        }
        if greeting.starts_with("* OK") {
            let command = format!("LOGIN {} {}", quote_string(user)?, quote_string(password)?);
            imap.run_command(&command, "the user or the password", &mut |_| {})?;
        }
        let mut validity = 0;
        imap.run_command(
            &format!("EXAMINE {}", quote_string(folder)?),
            "the folder",
            &mut |line| {
                let number =
                    line.split("[UIDVALIDITY ").nth(1).and_then(|rest| rest.split(']').next());
                validity = number.and_then(|n| n.trim().parse().ok()).unwrap_or(validity);
            },
        )?;
        imap.validity = validity;
        Ok(imap)
    }

    /// Begins another exchange, which has the whole time again.
    pub fn begin_exchange(&mut self) {
        self.wire.begin_exchange();
    }

    /// Returns the numbers of all mails.
    ///
    /// # Errors
    /// Returns the error of the system or the server.
    pub fn search_all(&mut self) -> io::Result<Vec<u64>> {
        self.search_uids("ALL")
    }

    /// Returns the numbers of the mails that may have this id; some servers return all numbers.
    ///
    /// # Errors
    /// Returns the error of the system or the server.
    pub fn search_message_id(&mut self, id: &str) -> io::Result<Vec<u64>> {
        self.search_uids(&format!("HEADER Message-ID {}", quote_string(id)?))
    }

    fn search_uids(&mut self, what: &str) -> io::Result<Vec<u64>> {
        let mut out = Vec::new();
        self.run_command(&format!("UID SEARCH {what}"), "to search", &mut |line| {
            let numbers = line.strip_prefix("* SEARCH").unwrap_or_default().split_whitespace();
            out.extend(numbers.filter_map(|n| n.parse::<u64>().ok()));
        })?;
        out.sort_unstable();
        out.dedup();
        Ok(out)
    }

    /// Reads a mail.
    ///
    /// # Errors
    /// Returns the error of the system or the server.
    pub fn fetch_mail(
        &mut self,
        uid: u64,
        limit: u64,
        to: &mut dyn Write,
    ) -> io::Result<MailFetchResult> {
        let tag = self.send_command(&format!("UID FETCH {uid} (RFC822)"))?;
        let mut got = MailFetchResult::Missing;
        for _ in 0..MAX_LINES {
            let line = self.read_line()?;
            if let Some(rest) = line.strip_prefix(&tag) {
                return match rest.get(..3) {
                    Some(" OK") => Ok(got),
                    Some(" NO") => Ok(MailFetchResult::Refused(describe_refusal("a mail", &line))),
                    _ => Err(refusal_error("a mail", &line)),
                };
            }
            let Some(length) = parse_literal_length(&line) else { continue };
            let is_mail = got == MailFetchResult::Missing
                && line.contains(" FETCH ")
                && line.contains("RFC822");
            match () {
                () if length > limit => return Ok(MailFetchResult::TooLarge(length)),
                () if is_mail => {
                    self.wire.copy_exactly(length, to)?;
                    got = MailFetchResult::Whole;
                }
                () => self.wire.copy_exactly(length, &mut io::sink())?,
            }
        }
        Err(io::Error::other("the server's answer is too long"))
    }

    /// Reads the beginning of a mail that is too large.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn read_beginning(&mut self, bytes: u64, to: &mut dyn Write) -> io::Result<()> {
        self.wire.copy_exactly(bytes, to)
    }

    /// Sends `LOGOUT` without waiting for the answer.
    pub fn quit(mut self) {
        let _ = self.send_command("LOGOUT");
        self.wire.shut_down();
    }

    fn send_command(&mut self, command: &str) -> io::Result<String> {
        self.tag += 1;
        let tag = format!("a{}", self.tag);
        self.wire.send(format!("{tag} {command}\r\n").as_bytes())?;
        Ok(tag)
    }

    fn run_command(
        &mut self,
        command: &str,
        what: &str,
        hear: &mut dyn FnMut(&str),
    ) -> io::Result<()> {
        let tag = self.send_command(command)?;
        let mut length = 0;
        for _ in 0..MAX_LINES {
            let line = self.read_line()?;
            length += line.len();
            if length > MAX_LINE {
                break;
            }
            if let Some(rest) = line.strip_prefix(&tag).and_then(|rest| rest.strip_prefix(' ')) {
                return if rest.starts_with("OK") {
                    Ok(())
                } else {
                    Err(refusal_error(what, &line))
                };
            }
            if line.starts_with("* BYE") {
                return Err(refusal_error(what, &line));
            }
            hear(&line);
            if let Some(length) = parse_literal_length(&line) {
                self.wire.copy_exactly(length.min(MAX_LINE as u64), &mut io::sink())?;
            }
        }
        Err(io::Error::other("the server's answer is too long"))
    }

    fn read_line(&mut self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&self.wire.read_line(MAX_LINE)?).into_owned())
    }
}

/// Returns the number of bytes that follow a line with this end: `{123}`.
fn parse_literal_length(line: &str) -> Option<u64> {
    let digits = line.strip_suffix('}')?.rsplit_once('{')?.1;
    digits.trim_end_matches('+').parse().ok()
}

fn quote_string(text: &str) -> io::Result<String> {
    if text.contains(['\r', '\n', '\0']) {
        return Err(io::Error::other("a name with a line end cannot be sent by IMAP"));
    }
    Ok(format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::connection::tests::server;
    use std::io::{BufRead, BufReader, Write};
    use std::time::Duration;

    /// Returns a session with a server that gives these answers one after the other.
    fn session(answers: Vec<Vec<u8>>) -> io::Result<ImapClient> {
        let host = server(move |mut s| {
            let mut lines = BufReader::new(s.try_clone().unwrap());
            for answer in answers {
                if s.write_all(&answer).is_err() || lines.read_line(&mut String::new()).is_err() {
                    return;
                }
            }
        });
        let short = Duration::from_millis(500);
        let patience = ConnectionTimeouts { silence: short, line: short, whole: short * 4 };
        ImapClient::open(&host, None, ("u\"x", "hunter2"), "INBOX", patience)
    }

    fn opened(answers: &[&[u8]]) -> io::Result<ImapClient> {
        let before: [&[u8]; 3] = [
            b"* OK hi\r\n",
            b"a1 OK in\r\n",
            b"* 3 EXISTS\r\n* OK [UIDVALIDITY 7] x\r\na2 OK done\r\n",
        ];
        session(before.iter().chain(answers).map(|a| a.to_vec()).collect())
    }

    #[test]
    fn numbers_are_long_and_mails_are_bytes() {
        let mut imap = opened(&[
            b"* SEARCH 1795291734546 2 x -1 99999999999999999999\r\n* SEARCH 2 3\r\na3 OK\r\n",
            b"* 9 EXISTS\r\n* 1 FETCH (UID 2 FLAGS () RFC822 {5}\r\na\n)\r\n)\r\na4 OK done\r\n",
            b"a5 OK nothing\r\n",
            b"* 1 FETCH (UID 2 RFC822 {4294967296}\r\n",
        ])
        .unwrap();
        assert_eq!(imap.validity, 7);
        assert_eq!(imap.search_all().unwrap(), [2, 3, 1_795_291_734_546]);
        let mut out = Vec::new();
        assert_eq!(imap.fetch_mail(2, 100, &mut out).unwrap(), MailFetchResult::Whole);
        assert_eq!(out, b"a\n)\r\n");
        assert_eq!(imap.fetch_mail(3, 100, &mut out).unwrap(), MailFetchResult::Missing);
        assert_eq!(
            imap.fetch_mail(3, 100, &mut out).unwrap(),
            MailFetchResult::TooLarge(4_294_967_296)
        );
    }

    #[test]
    fn odd_servers_end_in_an_error_without_secrets() {
        for answers in [
            vec![b"* BYE busy\r\n".to_vec()],
            vec![b"220 smtp\r\n".to_vec()],
            vec![b"* OK\r\n".to_vec(), b"a1 NO wrong\r\n".to_vec()],
            vec![b"* OK\r\n".to_vec(), b"* BYE\r\n".to_vec()],
            vec![b"* OK\r\n".to_vec(), b"a1 OK\r\n".to_vec(), b"a2 NO none\r\n".to_vec()],
            vec![b"* OK\r\n".to_vec(), b"* X {99999999999999999999}\r\n".to_vec()],
        ] {
            let why = session(answers).unwrap_err().to_string();
            assert!(!why.contains("hunter2"), "{why}");
        }
        let mut cut = opened(&[b"* 1 FETCH (UID 2 RFC822 {50}\r\nshort"]).unwrap();
        assert!(cut.fetch_mail(2, 100, &mut io::sink()).is_err());
        let mut no = opened(&[b"a3 NO gone\r\n", b"a4 BAD what\r\n"]).unwrap();
        let refused = MailFetchResult::Refused("the server refuses a mail: a3 NO gone".into());
        assert_eq!(no.fetch_mail(2, 100, &mut io::sink()).unwrap(), refused);
        assert!(no.fetch_mail(2, 100, &mut io::sink()).is_err());
    }
}
