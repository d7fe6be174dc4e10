//! A minimal FTP client: passive mode, binary, in the clear or in TLS (RFC 959, 2428, 3659, 4217).

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;

use crate::link::agentazall::fetch_folder;
use crate::link::connection::{ConnectionTimeouts, HostPort, LineConnection, TlsClient};
use crate::model::sanitize_line;

/// The limit on the length of a reply's line.
const MAX_LINE: usize = 8 << 10;
/// The limit on the lines of a reply.
const MAX_LINES: usize = 1000;
/// The limit on the size of a folder's listing.
const MAX_LIST: u64 = 32 << 20;

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FtpReply {
    /// The code: `226`, `550`, …
    pub code: u16,
    /// The last line of the reply.
    pub text: String,
}

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum FtpError {
    /// A failure of the connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A failure to write here what was fetched.
    #[error("{}", fetch_folder::describe_unsaved(.0))]
    Unsaved(io::Error),
    /// A refusal of the server.
    #[error("{0}")]
    Refused(FtpReply),
}

impl fmt::Display for FtpReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&sanitize_line(&self.text))
    }
}

impl FtpError {
    /// Returns the code of a refusal.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(reply) => Some(reply.code),
            Self::Io(_) | Self::Unsaved(_) => None,
        }
    }
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FtpEntry {
    /// Its name, as one component of a path.
    pub name: String,
    /// True for a folder, if the server gives the type.
    pub is_dir: Option<bool>,
    /// Its size, if the server gives it.
    pub size: Option<u64>,
    /// The time of its last change, by the clock of the server: `20260311142355`.
    pub modify: String,
}

/// The credentials of a session.
pub struct FtpLogin<'a> {
    /// The user's name.
    pub user: &'a str,
    /// The password.
    pub password: &'a str,
    /// The TLS client for the control and data connections, if they are encrypted.
    pub tls: Option<TlsClient>,
}

/// A session.
#[derive(Debug)]
pub struct FtpClient {
    wire: LineConnection,
    host: HostPort,
    tls: Option<TlsClient>,
    patience: ConnectionTimeouts,
    has_mlsd: bool,
}

impl FtpClient {
    /// Connects and logs in.
    ///
    /// # Errors
    /// Returns [`FtpError`].
    pub fn open(
        host: &HostPort,
        login: &FtpLogin<'_>,
        patience: ConnectionTimeouts,
    ) -> Result<Self, FtpError> {
        let wire = LineConnection::connect(host, None, patience)?;
        let (host, tls) = (host.clone(), login.tls.clone());
        let mut client = Self { wire, host, tls: None, patience, has_mlsd: true };
        client.expect_reply(2)?;
        if let Some(tls) = tls {
            client.require_command("AUTH TLS", 2)?;
            client.wire = client.wire.start_tls(&tls, &client.host.name)?;
            client.require_command("PBSZ 0", 2)?;
            client.require_command("PROT P", 2)?;
            client.tls = Some(tls);
        }
        let reply = client.send_command(&format!("USER {}", login.user))?;
        if reply.code / 100 == 3 {
            client.require_command(&format!("PASS {}", login.password), 2)?;
        } else if reply.code / 100 != 2 {
            return Err(FtpError::Refused(reply));
        }
        client.require_command("TYPE I", 2)?;
        Ok(client)
    }

    /// Begins another exchange, which has the whole time again.
    pub fn begin_exchange(&mut self) {
        self.wire.begin_exchange();
    }

    /// Returns true if the server answers on this connection.
    pub fn is_alive(&mut self) -> bool {
        self.require_command("NOOP", 2).is_ok()
    }

    /// Sends `QUIT` without waiting for the reply.
    pub fn quit(mut self) {
        let _ = self.wire.send(b"QUIT\r\n");
        self.wire.shut_down();
    }

    /// Returns the entries of a folder; none if it does not exist.
    ///
    /// # Errors
    /// Returns [`FtpError`].
    pub fn list_folder(&mut self, folder: &str) -> Result<Vec<FtpEntry>, FtpError> {
        // Not every server takes a path with blanks in `MLSD`, but all take it in `CWD`.
        let reply = self.send_command(&format!("CWD {folder}"))?;
        match reply.code {
            550 => return Ok(Vec::new()),
            code if code / 100 != 2 => return Err(FtpError::Refused(reply)),
            _ => {}
        }
        let mut text = Vec::new();
        if self.has_mlsd {
            match self.download_data("MLSD", MAX_LIST, &mut text) {
                Err(FtpError::Refused(reply)) if matches!(reply.code, 500..=504) => {
                    self.has_mlsd = false;
                }
                other => {
                    other?;
                    let text = String::from_utf8_lossy(&text);
                    return Ok(text.lines().filter_map(parse_mlsd_entry).collect());
                }
            }
        }
        match self.download_data("NLST", MAX_LIST, &mut text) {
            // Some servers answer so for an empty folder.
            Err(FtpError::Refused(reply)) if matches!(reply.code, 450 | 550) => {}
            other => drop(other?),
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut out = Vec::new();
        for name in text.lines().filter_map(|line| base_name(line.trim_end_matches('\r'))) {
            let path = format!("{folder}/{name}");
            let size = self.query_size(&path)?;
            let modify = self.send_command(&format!("MDTM {path}"))?;
            let modify = if modify.code == 213 { last_word(&modify.text) } else { String::new() };
            out.push(FtpEntry { name, is_dir: None, size, modify });
        }
        Ok(out)
    }

    /// Returns the size of a file; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns [`FtpError`].
    pub fn query_size(&mut self, path: &str) -> Result<Option<u64>, FtpError> {
        let reply = self.send_command(&format!("SIZE {path}"))?;
        match reply.code {
            213 => Ok(last_word(&reply.text).parse().ok()),
            421 => Err(FtpError::Refused(reply)),
            _ => Ok(None),
        }
    }

    /// Makes a folder if it is missing.
    ///
    /// # Errors
    /// Returns [`FtpError`] if the connection is gone. A refusal shows when the folder is used.
    pub fn make_dir(&mut self, path: &str) -> Result<(), FtpError> {
        self.send_command(&format!("MKD {path}")).map(drop)
    }

    /// Removes a file or folder, if the server permits it.
    ///
    /// # Errors
    /// Returns [`FtpError`] if the connection is gone.
    pub fn remove(&mut self, path: &str, is_dir: bool) -> Result<(), FtpError> {
        let verb = if is_dir { "RMD" } else { "DELE" };
        self.send_command(&format!("{verb} {path}")).map(drop)
    }

    /// Renames a file or folder.
    ///
    /// # Errors
    /// Returns [`FtpError`].
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), FtpError> {
        self.require_command(&format!("RNFR {from}"), 3)?;
        self.require_command(&format!("RNTO {to}"), 2).map(drop)
    }

    /// Writes a file, and replaces an existing one.
    ///
    /// # Errors
    /// Returns [`FtpError`].
    pub fn store_file(&mut self, path: &str, from: &mut dyn Read) -> Result<(), FtpError> {
        let mut data = self.open_data_connection(&format!("STOR {path}"))?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let n = from.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            if let Err(e) = data.send(buffer.get(..n).unwrap_or_default()) {
                drop(data);
                // The server may have sent the reason.
                return match self.read_reply() {
                    Ok(reply) if reply.code >= 400 => Err(FtpError::Refused(reply)),
                    _ => Err(FtpError::Io(e)),
                };
            }
        }
        data.shut_down();
        self.expect_reply(2).map(drop)
    }

    /// Reads a file and returns its length.
    ///
    /// # Errors
    /// Returns [`FtpError`]; if the file is larger than `limit`, the session is unusable afterwards.
    pub fn retrieve_file(
        &mut self,
        path: &str,
        limit: u64,
        to: &mut dyn Write,
    ) -> Result<u64, FtpError> {
        self.download_data(&format!("RETR {path}"), limit, to)
    }

    fn download_data(
        &mut self,
        command: &str,
        limit: u64,
        to: &mut dyn Write,
    ) -> Result<u64, FtpError> {
        let mut data = self.open_data_connection(command)?;
        let length = data.copy_rest(limit, to)?;
        data.shut_down();
        self.expect_reply(2)?;
        Ok(length)
    }

    /// Opens a data connection and sends the command that uses it.
    fn open_data_connection(&mut self, command: &str) -> Result<LineConnection, FtpError> {
        let port = self.enter_passive_mode()?;
        // The address in the reply is ignored: data comes from the host of the control connection.
        let address = SocketAddr::new(self.wire.peer(), port);
        let mut data = LineConnection::connect_plain(address, self.patience)?;
        data.end_with(&mut self.wire);
        self.require_command(command, 1)?;
        match &self.tls {
            Some(tls) => Ok(data.start_tls(tls, &self.host.name)?),
            None => Ok(data),
        }
    }

    fn enter_passive_mode(&mut self) -> Result<u16, FtpError> {
        let reply = self.send_command("EPSV")?;
        let reply = if reply.code == 229 { reply } else { self.require_command("PASV", 2)? };
        parse_passive_port(&reply).ok_or_else(|| {
            FtpError::Io(io::Error::other(format!("the server names no port for data: {reply}")))
        })
    }

    fn require_command(&mut self, command: &str, class: u16) -> Result<FtpReply, FtpError> {
        let reply = self.send_command(command)?;
        if reply.code / 100 == class { Ok(reply) } else { Err(FtpError::Refused(reply)) }
    }

    fn send_command(&mut self, command: &str) -> Result<FtpReply, FtpError> {
        if command.contains(['\r', '\n', '\0']) {
            return Err(FtpError::Io(io::Error::other(
                "a name with a line end cannot be sent by FTP",
            )));
        }
        self.wire.send(format!("{command}\r\n").as_bytes())?;
        self.read_reply()
    }

    fn expect_reply(&mut self, class: u16) -> Result<FtpReply, FtpError> {
        let reply = self.read_reply()?;
        if reply.code / 100 == class { Ok(reply) } else { Err(FtpError::Refused(reply)) }
    }

    fn read_reply(&mut self) -> Result<FtpReply, FtpError> {
        let mut first = None;
        for _ in 0..MAX_LINES {
            let line = self.wire.read_line(MAX_LINE)?;
            let text = String::from_utf8_lossy(&line).into_owned();
            let code = text.get(..3).and_then(|code| code.parse::<u16>().ok());
            let ends = text.as_bytes().get(3).is_none_or(|b| *b == b' ');
            match (first, code) {
                (None, None) => {
                    let why = format!("the server does not speak FTP: {}", sanitize_line(&text));
                    return Err(FtpError::Io(io::Error::other(why)));
                }
                (None, Some(code)) if ends => return Ok(FtpReply { code, text }),
                (None, Some(code)) => first = Some(code),
                (Some(first), Some(code)) if code == first && ends => {
                    return Ok(FtpReply { code, text });
                }
                (Some(_), _) => {}
            }
        }
        Err(FtpError::Io(io::Error::other("the server's answer is too long")))
    }
}

fn last_word(text: &str) -> String {
    text.split_whitespace().next_back().unwrap_or_default().to_owned()
}

/// Returns the port in a reply to `EPSV` or `PASV`.
fn parse_passive_port(reply: &FtpReply) -> Option<u16> {
    let inner = reply.text.rsplit_once('(')?.1.split_once(')')?.0;
    if reply.code == 229 {
        let digits = inner.trim_matches(|c: char| !c.is_ascii_digit());
        return digits.parse().ok();
    }
    let numbers: Vec<u16> = inner.split(',').map_while(|n| n.trim().parse().ok()).collect();
    match numbers[..] {
        [_, _, _, _, high @ 0..=255, low @ 0..=255] => Some(high << 8 | low),
        _ => None,
    }
}

/// Returns the last component of a name; `None` if it is unusable.
fn base_name(name: &str) -> Option<String> {
    let name = name.rsplit('/').next().unwrap_or_default();
    let is_name =
        !name.is_empty() && name != "." && name != ".." && !name.contains(char::is_control);
    is_name.then(|| name.to_owned())
}

/// Parses a line of `MLSD`.
fn parse_mlsd_entry(line: &str) -> Option<FtpEntry> {
    let (facts, name) = line.trim_end_matches('\r').split_once(' ')?;
    let fact = |wanted: &str| {
        let mut all = facts.split(';').filter_map(|fact| fact.split_once('='));
        all.find(|(key, _)| key.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
    };
    let kind = fact("type").unwrap_or_default().to_ascii_lowercase();
    if matches!(&*kind, "cdir" | "pdir") || name.contains('/') {
        return None;
    }
    let modify = fact("modify").unwrap_or_default().to_owned();
    let size = fact("size").and_then(|size| size.parse().ok());
    let is_dir = (!kind.is_empty()).then(|| kind == "dir");
    Some(FtpEntry { name: base_name(name)?, is_dir, size, modify })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::connection::tests::server;
    use std::time::Duration;

    #[test]
    fn ports_and_entries() {
        let port = |code, text: &str| parse_passive_port(&FtpReply { code, text: text.into() });
        assert_eq!(port(229, "229 Entering (|||50123|)"), Some(50123));
        assert_eq!(port(227, "227 ok (127,0,0,1,195,149)."), Some(50069));
        for bad in ["227 ok", "227 (1,2,3)", "227 (1,2,3,4,999,1)", "227 (1,2,3,4,5,6,7)", "227 ()"]
        {
            assert_eq!(port(227, bad), None, "{bad}");
        }
        assert_eq!(port(229, "229 (|||99999|)"), None);
        let e = parse_mlsd_entry("type=file;size=41;modify=20260311142355; a b.txt\r").unwrap();
        assert_eq!((e.name.as_str(), e.is_dir, e.size), ("a b.txt", Some(false), Some(41)));
        assert_eq!(parse_mlsd_entry("Type=dir;Modify=1; x").unwrap().is_dir, Some(true));
        for bad in
            ["type=cdir; .", "type=file; ../x", "type=file; /etc/passwd", "x", "type=file; a\u{1}"]
        {
            assert_eq!(parse_mlsd_entry(bad), None, "{bad}");
        }
        assert_eq!(base_name("/a/b/c.txt").as_deref(), Some("c.txt"));
        assert_eq!(base_name("a/.."), None);
    }

    /// Returns the result of opening a session with a server that sends these bytes.
    fn answered(bytes: &'static [u8]) -> Result<FtpClient, FtpError> {
        let host = server(move |mut s| {
            let _ = s.write_all(bytes);
            std::thread::sleep(Duration::from_millis(300));
        });
        let short = Duration::from_millis(200);
        let patience = ConnectionTimeouts { silence: short, line: short, whole: short };
        FtpClient::open(&host, &FtpLogin { user: "u", password: "p", tls: None }, patience)
    }

    #[test]
    fn odd_servers_end_in_an_error() {
        for bytes in [
            &b""[..],
            b"\0\0\0\r\n",
            b"SSH-2.0\r\n",
            b"220-hello\r\n220-more\r\n",
            b"220 ok\r\n530 no\r\n",
            b"421 busy\r\n",
            b"220 ok\r\n331 pw\r\n530 wrong\r\n",
        ] {
            assert!(answered(bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(answered(b"220 a\r\n331 b\r\n530 c\r\n").unwrap_err().code(), Some(530));
        assert!(answered(b"220-a\r\n 220 b\r\n220 c\r\n230 d\r\n200 e\r\n").is_ok());
    }

    proptest::proptest! {
        #[test]
        fn any_line_can_be_read(line in "\\PC{0,60}|[a-z=;. /]{0,60}", code in 0u16..1000) {
            if let Some(entry) = parse_mlsd_entry(&line) {
                proptest::prop_assert!(!entry.name.contains('/') && entry.name != "..");
            }
            let _ = parse_passive_port(&FtpReply { code, text: line });
        }
    }
}
