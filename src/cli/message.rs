//! The text of a message from the command line or standard input.

use std::io::{self, IsTerminal, Read};

use super::failure::Failure;
use super::output;

/// The most bytes of a text: more than any store takes. It protects against `msgfs write x < /dev/zero`.
const LIMIT: u64 = 64 << 20;

/// Returns the words of the command line as one text, or standard input if there are none (or only `-`).
pub(crate) fn read_text(words: &[String]) -> Result<Vec<u8>, Failure> {
    match words {
        [] => read_stdin(),
        [dash] if dash == "-" => read_stdin(),
        words => Ok(words.join(" ").into_bytes()),
    }
}

/// Returns all of standard input.
pub(crate) fn read_stdin() -> Result<Vec<u8>, Failure> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        output::print_notice("Type the text; end it with Ctrl-D on a line of its own.");
    }
    let mut text = Vec::new();
    let read = stdin.lock().take(LIMIT + 1).read_to_end(&mut text);
    read.map_err(|e| Failure::from_io("cannot read standard input", &e))?;
    if text.len() as u64 > LIMIT {
        return Err(Failure::refused("the text is larger than 64 MiB; no store takes that"));
    }
    Ok(text)
}

/// Refuses a text without a visible character: it is a broken pipe more often than a message.
pub(crate) fn require_text(text: Vec<u8>) -> Result<Vec<u8>, Failure> {
    if text.iter().all(u8::is_ascii_whitespace) {
        return Err(Failure::refused(
            "nothing was sent: the text is empty; give it as an argument or on standard input",
        ));
    }
    Ok(text)
}

/// Returns a value for a header line.
pub(crate) fn header_value(value: &str) -> Result<String, String> {
    if value.trim().is_empty() {
        Err("must not be empty".to_owned())
    } else if value.chars().any(char::is_control) {
        Err("must be one line without control characters".to_owned())
    } else {
        Ok(value.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_joined() {
        let words = ["tests".to_owned(), "are green".to_owned()];
        assert_eq!(read_text(&words).unwrap(), b"tests are green");
    }

    #[test]
    fn blank_is_not_a_message() {
        assert!(require_text(b" \n\t".to_vec()).is_err());
        assert_eq!(require_text(b"x\n".to_vec()).unwrap(), b"x\n");
    }

    #[test]
    fn header_values_cannot_start_another_header() {
        assert_eq!(header_value(" plan "), Ok("plan".to_owned()));
        assert!(header_value("plan\nTo: eve").is_err());
        assert!(header_value("  ").is_err());
    }
}
