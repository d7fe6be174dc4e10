//! Standard output for data, standard error for people.

use std::io::{self, Write};

use msgfs::model::safe_text;

use super::failure::Failure;

/// Says something to a person. What messages and errors contain cannot drive the terminal, and a
/// closed standard error is nobody's failure.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", safe_text(text).trim_end());
}

/// Writes data, all of it, to standard output.
pub(crate) fn data(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| Failure::output(&e))
}

/// Standard output as a sink that remembers how writing failed, for routines that report the
/// error of their sink as their own.
#[derive(Default)]
pub(crate) struct Stdout {
    failed: Option<Failure>,
}

impl Stdout {
    /// The outcome of a routine that wrote here: our own error comes first.
    pub(crate) fn finish<T>(self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        self.failed.map_or(outcome, Err)
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()).inspect_err(|e| {
            self.failed = Some(Failure::output(e));
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
