//! The use of a mail account by a carrier.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use super::fetch::MailFetch;
use super::smtp::SmtpClient;
use super::{MAX_MESSAGE, MailEngine, SmtpEnvelope};
use crate::link::agentazall::seen_ids;
use crate::link::engine::{ExchangeOutcome, LinkSession};
use crate::link::journal::progress_note_path;
use crate::store::{atomic_file, fs};

/// The use of an account by a carrier. The inbox has a connection for each fetch, because not every server shows new
/// mail in a folder that is open.
pub(super) struct MailSession<'a> {
    engine: &'a MailEngine,
    /// The connection on which the last mail went.
    smtp: Option<SmtpClient>,
}

/// Reads the envelope and the text of a mail that waits.
fn read_mail(wire: &Path) -> io::Result<(SmtpEnvelope, Vec<u8>)> {
    let bytes = fs::read_small_file(wire, MAX_MESSAGE * 3)?;
    let at = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
    let (line, rest) = bytes.split_at(at);
    let envelope: SmtpEnvelope = serde_json::from_slice(line)?;
    Ok((envelope, rest.get(1..).unwrap_or_default().to_owned()))
}

impl<'a> MailSession<'a> {
    /// Returns a session without a connection.
    pub(super) fn new(engine: &'a MailEngine) -> Self {
        Self { engine, smtp: None }
    }
}

impl MailSession<'_> {
    /// Begins a mail on the connection of the last one, or on a new one if that refuses or is gone. Returns the
    /// connection, and true with it if the server accepts the copy.
    fn begin_mail(
        &mut self,
        envelope: &SmtpEnvelope,
        copy: Option<&str>,
    ) -> Result<(SmtpClient, bool), ExchangeOutcome> {
        if let Some(mut smtp) = self.smtp.take() {
            // Some servers take only so many mails on a connection, and each says so in its own way.
            if smtp.begin_again()
                && let Ok(has_copy) = smtp.send_envelope(&envelope.from, &envelope.to, copy)
            {
                return Ok((smtp, has_copy));
            }
            smtp.quit();
        }
        let mut smtp = self.engine.connect_smtp().map_err(ExchangeOutcome::before_message)?;
        match smtp.send_envelope(&envelope.from, &envelope.to, copy) {
            Ok(has_copy) => Ok((smtp, has_copy)),
            Err(outcome) => {
                self.keep_after(smtp, &outcome);
                Err(outcome)
            }
        }
    }

    /// Keeps a connection for the next mail, if it can be used after this outcome.
    fn keep_after(&mut self, smtp: SmtpClient, outcome: &ExchangeOutcome) {
        match outcome {
            ExchangeOutcome::Away { .. } | ExchangeOutcome::Unknown { .. } => smtp.quit(),
            _ => self.smtp = Some(smtp),
        }
    }
}

impl LinkSession for MailSession<'_> {
    fn send(&mut self, wire: &Path) -> ExchangeOutcome {
        let (envelope, message) = match read_mail(wire) {
            Ok(read) => read,
            Err(e) => return ExchangeOutcome::away(e),
        };
        let copy = envelope.copy.as_deref().filter(|_| self.engine.self_copy);
        // The note exists from the moment when the server may have the mail, and with it a copy.
        let note = progress_note_path(wire);
        if copy.is_some() && note.try_exists().unwrap_or(true) {
            match self.engine.has_self_copy(&message) {
                Ok(true) => return ExchangeOutcome::Done,
                Ok(false) => {}
                Err(outcome) => {
                    let why = outcome.reason().unwrap_or_default();
                    return ExchangeOutcome::away(format!(
                        "the server may have it already, and the inbox cannot be searched for it: \
                         {why}"
                    ));
                }
            }
        }
        let (mut smtp, has_copy) = match self.begin_mail(&envelope, copy) {
            Ok(begun) => begun,
            Err(outcome) => return outcome,
        };
        let noted = if has_copy { atomic_file::write_atomic(&note, b"", 0o600) } else { Ok(()) };
        let outcome = match noted {
            Ok(()) => smtp.send_text(&message),
            Err(e) => ExchangeOutcome::away(e),
        };
        self.keep_after(smtp, &outcome);
        outcome
    }

    fn fetch(&mut self, raw: &Path, known: &HashSet<String>) -> ExchangeOutcome {
        let theirs = match seen_ids::read_reference_ids(&self.engine.settings) {
            Ok(theirs) => theirs,
            Err(e) => return ExchangeOutcome::away(e),
        };
        let mut new = MailFetch::new(raw, known, theirs);
        let result = self.engine.fetch_mails(&mut new);
        new.finish(result)
    }

    fn acknowledge(&mut self, ids: &[String]) -> ExchangeOutcome {
        seen_ids::report_filed(&self.engine.settings, ids)
    }

    fn disconnect(&mut self) {
        if let Some(smtp) = self.smtp.take() {
            smtp.quit();
        }
    }
}
