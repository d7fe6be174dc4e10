//! `msgfs wait`: blocks until there is mail.

use std::time::{Duration, Instant};

use super::access::{self, AccessPurpose};
use super::failure::Failure;
use super::{GlobalOptions, output};

/// Wait until there is unread mail, and print the names of the messages
///
/// Returns at once if there is unread mail already. Exit code 1 means that no mail came in time.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  msgfs wait --timeout 10m && msgfs inbox")]
pub(crate) struct Args {
    /// Wait at most this long: 60s, 5m, 1h. A bare number means seconds. 0 looks once and does not wait
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = timeout)]
    timeout: Duration,
}

/// Parses a duration like in the configuration; a bare number is in seconds.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return msgfs::config::parse_duration(&format!("{text}s"));
    }
    msgfs::config::parse_duration(text)
}

/// Runs `msgfs wait`.
pub(crate) fn run(global: &GlobalOptions, args: &Args) -> Result<(), Failure> {
    let deadline = Instant::now() + args.timeout;
    let names = loop {
        let left = || deadline.saturating_duration_since(Instant::now());
        match access::with_tree(global, AccessPurpose::WAIT, |tree| tree.wait_for_mail(left())) {
            // The mount has ended, and the stores can be followed without it.
            Err(Failure::ServerGone) if !left().is_zero() => {}
            waited => break waited?,
        }
    };
    if names.is_empty() {
        output::print_notice("no new mail");
        return Err(Failure::AlreadyReported);
    }
    output::print_data(&(names.join("\n") + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_spellings_of_a_time() {
        for (text, ms) in
            [("0", 0), ("60", 60_000), ("60s", 60_000), ("500ms", 500), ("5m", 300_000)]
        {
            assert_eq!(timeout(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "soon", "-5s", "5 parsecs", "99999999999999999999"] {
            assert!(timeout(text).is_err(), "{text}");
        }
    }
}
