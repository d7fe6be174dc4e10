//! A minimal SMTP client (RFC 5321, 3207, 4954).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::link::connection::{ConnectionTimeouts, HostPort, LineConnection, TlsClient};
use crate::link::engine::ExchangeOutcome;
use crate::model::sanitize_line;

/// The limit on the length of a reply's line.
const MAX_LINE: usize = 8 << 10;
/// The limit on the lines of a reply.
const MAX_LINES: usize = 200;
/// A word in the greeting of the server that comes with AgentAZAll. After its 354 that server spins for ever if the
/// client goes away before the end of the text, so it gets `DATA` and the text at once.
const FRAGILE: &str = "AgentAZAll";

/// A server and its credentials.
#[derive(Debug)]
pub struct SmtpServer<'a> {
    /// The server's host and port.
    pub host: &'a HostPort,
    /// TLS from the first byte.
    pub tls: Option<&'a TlsClient>,
    /// TLS after the greeting.
    pub starttls: Option<&'a TlsClient>,
    /// The user's name; nobody logs in if the password is empty.
    pub user: &'a str,
    /// The password.
    pub password: &'a str,
}

/// A session.
#[derive(Debug)]
pub struct SmtpClient {
    wire: LineConnection,
    is_fragile: bool,
    /// True if a message was begun and not taken.
    is_open_message: bool,
    /// The extensions that the server offers, in upper case.
    offers: Vec<String>,
}

/// A reply: its code and its last line.
type SmtpReply = (u16, String);

/// Returns the outcome that a refusal means before the text was handed over.
fn classify_refusal((code, text): SmtpReply) -> ExchangeOutcome {
    let why = sanitize_line(&text).into_owned();
    match code {
        421 => ExchangeOutcome::away(why),
        530 | 534 | 535 | 538 => {
            ExchangeOutcome::away(format!("the server refuses the user or the password ({why})"))
        }
        500.. => ExchangeOutcome::Refused { why },
        _ => ExchangeOutcome::Later { why, after: None },
    }
}

impl SmtpClient {
    /// Connects and logs in.
    ///
    /// # Errors
    /// Returns the outcome for a message.
    pub fn open(
        server: &SmtpServer<'_>,
        patience: ConnectionTimeouts,
    ) -> Result<Self, ExchangeOutcome> {
        let wire = LineConnection::connect(server.host, server.tls, patience)?;
        let mut smtp = Self { wire, is_fragile: false, is_open_message: false, offers: Vec::new() };
        let (code, text) = smtp.read_reply()?;
        if code != 220 {
            return Err(ExchangeOutcome::away(text));
        }
        smtp.is_fragile = text.contains(FRAGILE);
        smtp.send_hello()?;
        if let Some(tls) = server.starttls {
            let (code, text) = smtp.send_command("STARTTLS")?;
            if code != 220 {
                return Err(ExchangeOutcome::away(format!(
                    "the server does not begin TLS: {text}"
                )));
            }
            smtp.wire = smtp.wire.start_tls(tls, &server.host.name)?;
            smtp.send_hello()?;
        }
        if !server.password.is_empty() {
            smtp.log_in(server.user, server.password)?;
        }
        Ok(smtp)
    }

    fn send_hello(&mut self) -> Result<(), ExchangeOutcome> {
        self.offers.clear();
        let mut lines = Vec::new();
        self.wire.send(b"EHLO localhost\r\n")?;
        let (code, text) = self.read_reply_lines(&mut lines)?;
        if code / 100 != 2 {
            return Err(ExchangeOutcome::away(format!("the server does not speak ESMTP: {text}")));
        }
        self.offers =
            lines.iter().filter_map(|l| l.get(4..)).map(str::to_ascii_uppercase).collect();
        Ok(())
    }

    fn log_in(&mut self, user: &str, password: &str) -> Result<(), ExchangeOutcome> {
        let ways = self.offers.iter().find_map(|offer| offer.strip_prefix("AUTH"));
        let ways: Vec<&str> = ways.unwrap_or_default().split([' ', '=']).collect();
        let reply = if ways.contains(&"PLAIN") {
            let token = STANDARD.encode(encode_auth_plain(user, password).as_bytes());
            self.send_command(&format!("AUTH PLAIN {}", Zeroizing::new(token).as_str()))?
        } else if ways.contains(&"LOGIN") {
            self.send_command("AUTH LOGIN")?;
            self.send_command(&STANDARD.encode(user))?;
            self.send_command(&STANDARD.encode(password))?
        } else {
            // The server needs no login.
            return Ok(());
        };
        match reply {
            (200..300, _) => Ok(()),
            (400..500, text) => Err(classify_refusal((421, text))),
            (_, text) => Err(classify_refusal((535, text))),
        }
    }

    /// Sends the sender, the recipient and the recipient of a copy. Returns true if the server accepts the copy. The
    /// copy's recipient comes last, so a copy proves that the other recipient was served.
    ///
    /// # Errors
    /// Returns the outcome for the message.
    pub fn send_envelope(
        &mut self,
        from: &str,
        to: &str,
        copy: Option<&str>,
    ) -> Result<bool, ExchangeOutcome> {
        self.is_open_message = true;
        let offers_utf8 = self.offers.iter().any(|offer| offer == "SMTPUTF8");
        let utf8 =
            if offers_utf8 && !(from.is_ascii() && to.is_ascii()) { " SMTPUTF8" } else { "" };
        for command in [format!("MAIL FROM:<{from}>{utf8}"), format!("RCPT TO:<{to}>")] {
            let reply = self.send_command(&command)?;
            if reply.0 / 100 != 2 {
                return Err(classify_refusal(reply));
            }
        }
        match copy {
            None => Ok(false),
            Some(me) if me.eq_ignore_ascii_case(to) => Ok(true),
            Some(me) => match self.send_command(&format!("RCPT TO:<{me}>"))? {
                (421, text) => Err(ExchangeOutcome::away(text)),
                (code, _) => Ok(code / 100 == 2),
            },
        }
    }

    /// Returns the size of the largest mail that the server takes, as far as it says so (RFC 1870).
    fn size_limit(&self) -> Option<u64> {
        let size = self.offers.iter().find_map(|offer| offer.strip_prefix("SIZE "))?;
        size.trim().parse().ok().filter(|limit| *limit > 0)
    }

    /// Hands over the text. It begins only when the whole text is ready. A text that is too large is refused at once.
    pub fn send_text(&mut self, message: &[u8]) -> ExchangeOutcome {
        let length = message.len() as u64;
        if let Some(limit) = self.size_limit().filter(|limit| length > *limit) {
            let why = format!("the mail has {length} bytes; the server takes at most {limit}");
            return ExchangeOutcome::Refused { why };
        }
        let unknown = |why: ExchangeOutcome| match why {
            ExchangeOutcome::Away { why, .. } => ExchangeOutcome::Unknown { why },
            other => other,
        };
        let text = stuff_dots(message);
        if self.is_fragile {
            let all = [b"DATA\r\n", text.as_slice()].concat();
            if let Err(e) = self.wire.send(&all) {
                return unknown(ExchangeOutcome::away(e));
            }
            match self.read_reply() {
                Ok((354, _)) => {}
                Ok(reply) => return classify_refusal(reply),
                Err(outcome) => return unknown(outcome),
            }
        } else {
            match self.send_command("DATA") {
                Ok((354, _)) => {}
                Ok(reply) => return classify_refusal(reply),
                Err(outcome) => return outcome,
            }
            if let Err(e) = self.wire.send(&text) {
                return unknown(ExchangeOutcome::away(e));
            }
        }
        match self.read_reply() {
            Ok((200..300, _)) => {
                self.is_open_message = false;
                ExchangeOutcome::Done
            }
            Ok((421, text)) => unknown(ExchangeOutcome::away(text)),
            Ok(reply) => classify_refusal(reply),
            Err(outcome) => unknown(outcome),
        }
    }

    /// Begins another message, which has the whole time again. Ends the one before it, if the server refused that.
    /// Returns false if the session cannot be used again.
    pub fn begin_again(&mut self) -> bool {
        self.wire.begin_exchange();
        !self.is_open_message || matches!(self.send_command("RSET"), Ok((200..300, _)))
    }

    /// Sends `QUIT` without waiting for the reply.
    pub fn quit(mut self) {
        let _ = self.wire.send(b"QUIT\r\n");
        self.wire.shut_down();
    }

    fn send_command(&mut self, command: &str) -> Result<SmtpReply, ExchangeOutcome> {
        if command.contains(['\r', '\n', '\0']) {
            return Err(ExchangeOutcome::Refused { why: "an address with a line end".to_owned() });
        }
        self.wire.send(format!("{command}\r\n").as_bytes())?;
        self.read_reply()
    }

    fn read_reply(&mut self) -> Result<SmtpReply, ExchangeOutcome> {
        self.read_reply_lines(&mut Vec::new())
    }

    fn read_reply_lines(&mut self, lines: &mut Vec<String>) -> Result<SmtpReply, ExchangeOutcome> {
        for _ in 0..MAX_LINES {
            let line = self.wire.read_line(MAX_LINE)?;
            let line = String::from_utf8_lossy(&line).into_owned();
            let code = line.get(..3).and_then(|code| code.parse().ok());
            let Some(code) = code.filter(|code| (200..600).contains(code)) else {
                return Err(ExchangeOutcome::away(format!(
                    "the server does not speak SMTP: {line}"
                )));
            };
            lines.push(line.clone());
            if line.as_bytes().get(3) != Some(&b'-') {
                return Ok((code, line));
            }
        }
        Err(ExchangeOutcome::away("the server's answer is too long"))
    }
}

/// Returns the token of `AUTH PLAIN` (RFC 4616).
pub fn encode_auth_plain(user: &str, password: &str) -> Zeroizing<String> {
    Zeroizing::new(format!("\0{user}\0{password}"))
}

/// Encodes a text for `DATA`: CR LF ends each line, dots are doubled, and a single dot ends the text.
fn stuff_dots(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len() + 16);
    let text = message.strip_suffix(b"\n").unwrap_or(message);
    for line in text.split(|b| *b == b'\n') {
        if line.first() == Some(&b'.') {
            out.push(b'.');
        }
        out.extend_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b".\r\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::connection::tests::server;
    use std::io::{BufRead, BufReader, Write};
    use std::time::Duration;

    #[test]
    fn no_line_of_a_text_ends_it() {
        for (text, sent) in [
            (&b"a\r\n.\r\nb\r\n"[..], &b"a\r\n..\r\nb\r\n.\r\n"[..]),
            (b"a\n..x", b"a\r\n...x\r\n.\r\n"),
            (b"", b"\r\n.\r\n"),
        ] {
            assert_eq!(stuff_dots(text), sent);
        }
    }

    fn patience() -> ConnectionTimeouts {
        let short = Duration::from_millis(500);
        ConnectionTimeouts { silence: short, line: short, whole: short * 4 }
    }

    /// Returns the outcome of a message at a server that answers the commands so.
    fn sent(
        greeting: &'static str,
        answer: impl Fn(&str) -> String + Send + 'static,
    ) -> ExchangeOutcome {
        let host = server(move |mut s| {
            let mut lines = BufReader::new(s.try_clone().unwrap());
            s.write_all(format!("{greeting}\r\n").as_bytes()).unwrap();
            let (mut line, mut is_text) = (String::new(), false);
            while lines.read_line(&mut line).is_ok_and(|n| n > 0) {
                let command = line.trim_end().to_owned();
                line.clear();
                if is_text && command != "." {
                    continue;
                }
                is_text = command == "DATA";
                let answer = answer(&command);
                if answer.is_empty() || s.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        });
        let server =
            SmtpServer { host: &host, tls: None, starttls: None, user: "u", password: "hunter2" };
        match SmtpClient::open(&server, patience()) {
            Ok(mut smtp) => smtp
                .send_envelope("a@x", "b@y", None)
                .map_or_else(|outcome| outcome, |_| smtp.send_text(b"Subject: x\r\n\r\n.\r\n")),
            Err(outcome) => outcome,
        }
    }

    fn usual(command: &str) -> String {
        match command.split([' ', ':']).next().unwrap() {
            "EHLO" => "250-x\r\n250-AUTH PLAIN LOGIN\r\n250 SIZE 1000\r\n",
            "AUTH" => "235 ok\r\n",
            "DATA" => "354 go\r\n",
            _ => "250 ok\r\n",
        }
        .to_owned()
    }

    #[test]
    fn every_answer_means_something() {
        let but = |which: &'static str, answer: &'static str| {
            move |command: &str| {
                if command.starts_with(which) { answer.to_owned() } else { usual(command) }
            }
        };
        assert_eq!(sent("220 x", usual), ExchangeOutcome::Done);
        assert_eq!(sent("220 AgentAZAll SMTP ready", usual), ExchangeOutcome::Done);
        let is_refused = |o: ExchangeOutcome| matches!(o, ExchangeOutcome::Refused { .. });
        let is_away = |o: ExchangeOutcome| matches!(o, ExchangeOutcome::Away { .. });
        let is_later = |o: ExchangeOutcome| matches!(o, ExchangeOutcome::Later { .. });
        let is_unknown = |o: ExchangeOutcome| matches!(o, ExchangeOutcome::Unknown { .. });
        assert!(is_refused(sent("220 x", but("RCPT", "550 nobody\r\n"))));
        assert!(is_refused(sent("220 x", but("DATA", "554 no\r\n"))));
        let why = sent("220 x", but("EHLO", "250-x\r\n250 SIZE 16\r\n"));
        assert!(
            why.reason().unwrap().ends_with("17 bytes; the server takes at most 16"),
            "{why:?}"
        );
        for size in ["SIZE", "SIZE 0", "SIZE 17"] {
            let answer = format!("250-x\r\n250 {size}\r\n");
            let server = move |command: &str| {
                if command.starts_with("EHLO") { answer.clone() } else { usual(command) }
            };
            assert_eq!(sent("220 x", server), ExchangeOutcome::Done, "{size}");
        }
        assert!(is_refused(sent("220 x", but(".", "552 too large\r\n"))));
        assert!(is_later(sent("220 x", but("RCPT", "450 grey\r\n"))));
        assert!(is_later(sent("220 x", but(".", "451 disk\r\n"))));
        assert!(is_away(sent("220 x", but("MAIL", "421 bye\r\n"))));
        assert!(is_away(sent("220 x", but("AUTH", "535 wrong\r\n"))));
        assert!(is_away(sent("220 x", but("RCPT", ""))));
        assert!(is_away(sent("554 go away", usual)));
        assert!(is_away(sent("HTTP/1.1 400 Bad", usual)));
        assert!(is_unknown(sent("220 x", but(".", ""))));
        assert!(is_unknown(sent("220 x", but(".", "421 bye\r\n"))));
        assert!(is_unknown(sent("220 AgentAZAll", but("DATA", ""))));
        let why = sent("220 x", but("AUTH", "535 hunter\r\n"));
        assert!(!why.reason().unwrap().contains("hunter2"));
    }
}
