//! The values of configuration keys.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _, Unexpected};

use super::env::Env;
use super::me::{ALIAS_RULE, is_alias};
use crate::model::{check_rules, sanitize_line};

/// The longest name of a store or link, in bytes; it becomes part of names in the mount.
const MAX_NAME: usize = 64;

/// The longest `wait_timeout`.
const MAX_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The largest `max_message` in bytes. It fits a record of 32-bit length even if every byte needs six to be
/// written.
const MAX_SIZE: u64 = 512 << 20;

/// Parses a number with a unit. The error is a phrase without the value, and may have the `example`. `units` are names
/// with their factors.
fn parse_with_unit(text: &str, units: &[(&str, u64)], example: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    if number.is_empty() {
        return Err(format!("it must begin with a whole number, as in {example}"));
    }
    let factor = units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let factor = factor.ok_or_else(|| {
        let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        if unit.starts_with(['.', ',']) {
            format!("the number must be whole, as in {example}")
        } else if unit.is_empty() {
            format!("the number must be followed by one of the units {names}, as in {example}")
        } else {
            format!("{:?} is none of the units {names}", sanitize_line(unit))
        }
    })?;
    number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(factor))
        .ok_or_else(|| "the number is too large".into())
}

/// Parses a duration such as `500ms`, `60s`, `5m` or `1h`, at most 24 hours.
///
/// # Errors
/// Returns a phrase that says what is wrong.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
    let duration = Duration::from_millis(parse_with_unit(text, &units, "60s")?);
    if duration > MAX_WAIT { Err("it must be at most 24h".into()) } else { Ok(duration) }
}

/// Parses a size in bytes such as `16MiB`, `500kB` or `1000B`, from 1 byte to 512 MiB.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let units = [("B", 1), ("kB", 1000), ("MB", 1_000_000), ("KiB", 1 << 10), ("MiB", 1 << 20)];
    check_size(parse_with_unit(text, &units, "16MiB")?)
}

/// Reads a duration.
pub(super) fn read_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(from)?).map_err(D::Error::custom)
}

/// Reads a size: a text with a unit, or a number of bytes.
pub(super) fn read_size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    match toml::Value::deserialize(from)? {
        toml::Value::String(text) => parse_size(&text).map_err(D::Error::custom),
        toml::Value::Integer(n) => check_size(n.try_into().unwrap_or(0)).map_err(D::Error::custom),
        other => Err(D::Error::invalid_type(Unexpected::Other(other.type_str()), &"a string")),
    }
}

/// Checks the range of a size in bytes.
fn check_size(bytes: u64) -> Result<u64, String> {
    if (1..=MAX_SIZE).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("it must be from 1B to 512MiB".into())
    }
}

/// Returns a name that can be mine.
///
/// # Errors
/// Returns the rule for names.
pub fn parse_alias(name: &str) -> Result<String, String> {
    check_rules(&[(!is_alias(name), ALIAS_RULE)])?;
    Ok(name.to_owned())
}

/// Returns the name of a sender or a thread; only its store knows the form.
pub(super) fn parse_muted(name: &str) -> Result<String, String> {
    check_rules(&[
        (name.trim().is_empty(), "the name of a sender or a thread cannot be empty"),
        (sanitize_line(name) != name, "a name cannot hold control characters"),
    ])?;
    Ok(name.to_owned())
}

/// Returns the name of a store or link. Names become folders.
pub(super) fn parse_entry_name(name: &str) -> Result<String, String> {
    check_rules(&[
        (name.is_empty(), "a name cannot be empty"),
        (name.starts_with('.'), "a name cannot begin with a dot"),
        (name.contains('/'), "a name cannot hold a slash"),
        (sanitize_line(name) != name, "a name cannot hold control characters"),
        (name.len() > MAX_NAME, "a name has at most 64 bytes"),
    ])?;
    Ok(name.to_owned())
}

/// Returns an absolute path. Relative ones start at `base` and not at the current folder, because a file must mean
/// the same wherever it is read.
pub(super) fn parse_path(text: &str, env: &Env, base: &Path) -> Result<PathBuf, String> {
    check_rules(&[
        (text.is_empty(), "a path cannot be empty"),
        (text.contains('\0'), "a path cannot hold a NUL character"),
    ])?;
    Ok(env.make_absolute(&base.join(env.expand(text)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations() {
        assert_eq!(parse_duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_duration(" 250 ms "), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_duration("24h"), Ok(MAX_WAIT));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        for bad in ["", "s", "60", "60x", "-1s", "1.5s", "25h", "99999999999999999999s", "60S"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert!(parse_duration("60x").unwrap_err().contains("ms, s, m, h"));
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("16MiB"), Ok(16 << 20));
        assert_eq!(parse_size("500 kB"), Ok(500_000));
        assert_eq!(parse_size("1B"), Ok(1));
        assert_eq!(parse_size("512MiB"), Ok(MAX_SIZE));
        for bad in ["", "16", "16M", "0B", "513MiB", "MiB", "18446744073709551615MiB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn parsers_never_panic(text in "\\PC{0,16}") {
            let _ = parse_duration(&text);
            let _ = parse_size(&text);
        }

        #[test]
        fn what_is_written_is_read(ms in 0u64..86_400_000, bytes in 1..=MAX_SIZE) {
            prop_assert_eq!(parse_duration(&format!("{ms}ms")), Ok(Duration::from_millis(ms)));
            prop_assert_eq!(parse_duration(&format!("{}s", ms / 1000)), Ok(Duration::from_secs(ms / 1000)));
            prop_assert_eq!(parse_size(&format!("{bytes}B")), Ok(bytes));
        }
    }
}
