//! The output of commands: data on standard output, notices for people on standard error.

use std::io::{self, Write};

use msgfs::model::RULE;
use msgfs::model::{escape_json, sanitize_line, sanitize_lines};
use msgfs::store::process;
use serde::Serialize;

use super::failure::Failure;

/// Prints a notice for people. Its text cannot drive the terminal. A closed standard error is ignored.
pub(crate) fn print_notice(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", sanitize_lines(text).trim_end());
}

/// Writes whole lines to standard output. Their text cannot drive a terminal or hide.
pub(crate) fn print_data(text: &str) -> Result<(), Failure> {
    write_stdout(&sanitize_lines(text))
}

/// Writes JSON to standard output. Characters that could drive a terminal or hide are escaped.
pub(crate) fn print_json(text: &str) -> Result<(), Failure> {
    write_stdout(&escape_json(text))
}

/// Writes a value as one line of JSON.
pub(crate) fn print_json_line(value: &impl Serialize) -> Result<(), Failure> {
    // Commands print strings, numbers and lists, which always serialise.
    print_json(&(serde_json::to_string(value).unwrap_or_default() + "\n"))
}

fn write_stdout(text: &str) -> Result<(), Failure> {
    process::write_stdout(text.as_bytes()).map_err(|e| Failure::from_output_error(&e))
}

/// Prints a help text or the version, with colours on a terminal.
pub(crate) fn print_help(help: &clap::Error) -> Result<(), Failure> {
    process::check_stdout()
        .and_then(|()| help.print())
        .and_then(|()| io::stdout().flush())
        .map_err(|e| Failure::from_output_error(&e))
}

/// A writer to standard output that remembers its failure. Routines that write to it report the error as their
/// own.
#[derive(Default)]
pub(crate) struct StdoutWriter {
    failed: Option<Failure>,
}

impl StdoutWriter {
    /// Returns our own error first, and otherwise the outcome of the routine that wrote here.
    pub(crate) fn finish<T>(self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        self.failed.map_or(outcome, Err)
    }
}

impl Write for StdoutWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        process::write_stdout(bytes).inspect_err(|e| {
            self.failed = Some(Failure::from_output_error(e));
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A writer for one of several files. It begins with a separator line, like in transcripts, and puts one blank
/// before each line that begins like a separator.
pub(crate) struct SectionWriter {
    out: StdoutWriter,
    /// The separator, until something is written.
    title: Option<String>,
    /// The length of the separator prefix that the current line has so far; `None` once it differs.
    run: Option<usize>,
}

impl SectionWriter {
    /// Returns a writer for this file.
    pub(crate) fn new(name: &str) -> Self {
        let title = format!("{RULE} {}\n", sanitize_line(name));
        Self { out: StdoutWriter::default(), title: Some(title), run: Some(0) }
    }

    /// Returns the bytes that are not written yet, because they may become a separator.
    fn pending_separator(&self) -> &'static [u8] {
        RULE.as_bytes().get(..self.run.unwrap_or(0)).unwrap_or_default()
    }

    /// Ends the last line. Returns our own error first, and otherwise the outcome of the routine that wrote
    /// here.
    pub(crate) fn finish<T>(mut self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        if self.run != Some(0) {
            // The writer remembers its failure.
            let _ = self.out.write_all(&[self.pending_separator(), b"\n"].concat());
        }
        self.out.finish(outcome)
    }
}

impl Write for SectionWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut out = self.title.take().map(String::into_bytes).unwrap_or_default();
        for b in bytes {
            match self.run {
                Some(n) if *b == b'=' && n + 1 == RULE.len() => {
                    out.push(b' ');
                    out.extend_from_slice(RULE.as_bytes());
                    self.run = None;
                }
                Some(n) if *b == b'=' => self.run = Some(n + 1),
                _ => {
                    out.extend_from_slice(self.pending_separator());
                    out.push(*b);
                    self.run = (*b == b'\n').then_some(0);
                }
            }
        }
        self.out.write_all(&out)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
