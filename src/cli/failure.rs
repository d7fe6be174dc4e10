//! The failures of commands, and their exit codes.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use msgfs::mailbox::MailboxOpenError;
use msgfs::model::sanitize_text;

/// A reason why a command failed. The text is for people.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The request was refused or failed; exit code 1.
    #[error("{0}")]
    Refused(String),
    /// The file system refused or failed, or would have; exit code 1.
    #[error("{1}")]
    Errno(i32, String),
    /// The command ends with this exit code.
    #[error("{1}")]
    Code(u8, String),
    /// The command line is wrong in a way that only its command can find; exit code 2.
    #[error("{0}")]
    Usage(String),
    /// The mailbox cannot be opened.
    #[error(transparent)]
    Open(#[from] MailboxOpenError),
    /// The process that served the tree ended before it began the request; exit code 1.
    #[error("the msgfs that acts for this name has just ended; nothing was done; try again")]
    ServerGone,
    /// Everything was reported already; exit code 1.
    #[error("failed")]
    AlreadyReported,
    /// The reader of our standard output has closed it, like in `msgfs ls | head`; exit code 0.
    #[error("standard output is closed")]
    OutputClosed,
}

impl Failure {
    /// Returns a refusal with this sentence.
    pub(crate) fn refused(sentence: impl Display) -> Self {
        Self::Refused(sentence.to_string())
    }

    /// Returns a failure with its subject and the system's error.
    pub(crate) fn from_io(what: impl Display, error: &io::Error) -> Self {
        Self::Refused(format!("{what}: {}", format_io_error(error)))
    }

    /// Returns the failure for an error of standard output.
    pub(crate) fn from_output_error(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::from_io("cannot write to standard output", error)
        }
    }

    /// Prints the failure on standard error and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::OutputClosed => return ExitCode::SUCCESS,
            Self::AlreadyReported => return ExitCode::from(1),
            _ => super::output::print_notice(&format!("msgfs: {self}")),
        }
        ExitCode::from(match self {
            Self::Usage(_) => 2,
            Self::Code(code, _) => *code,
            _ => 1,
        })
    }
}

/// Ends a command with a refusal in this sentence.
macro_rules! refuse {
    ($($sentence:tt)+) => {
        return Err($crate::cli::failure::Failure::Refused(format!($($sentence)+)))
    };
}
pub(crate) use refuse;

/// Returns the system's sentence without Rust's `(os error 2)`.
pub(crate) fn format_io_error(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" (os error ").map_or(text.as_str(), |(sentence, _)| sentence);
    sanitize_text(text.trim_end()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_no_failure_and_others_are() {
        let pipe = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Failure::from_output_error(&pipe), Failure::OutputClosed));
        let full = io::Error::from_raw_os_error(28);
        assert_eq!(
            Failure::from_output_error(&full).to_string(),
            "cannot write to standard output: No space left on device"
        );
    }
}
