//! The values of configuration keys.

use std::time::Duration;

use crate::model::Choice;
use crate::store::Durability;

impl Choice for Durability {
    const ALL: &'static [(&'static str, Self)] = &[("fsync", Self::Fsync), ("none", Self::None)];
}

/// The longest `wait_timeout`.
const MAX_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The largest `max_message` in bytes. It fits a record of 32-bit length even if every byte needs six to be
/// written.
const MAX_SIZE: u64 = 512 << 20;

/// Parses a number with a unit; the error is a phrase without the value. `units` are names with their factors.
fn parse_with_unit(text: &str, units: &[(&str, u64)]) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    if number.is_empty() {
        return Err("it must begin with a whole number".into());
    }
    let factor = units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let factor = factor.ok_or_else(|| {
        let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
        format!("the number must be followed by one of the units {}", names.join(", "))
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
    let duration = Duration::from_millis(parse_with_unit(text, &units)?);
    if duration > MAX_WAIT { Err("it must be at most 24h".into()) } else { Ok(duration) }
}

/// Parses a size in bytes such as `16MiB`, `500kB` or `1000B`, from 1 byte to 512 MiB.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let units = [("B", 1), ("kB", 1000), ("MB", 1_000_000), ("KiB", 1 << 10), ("MiB", 1 << 20)];
    check_size(parse_with_unit(text, &units)?)
}

/// Checks the range of a size in bytes.
pub(super) fn check_size(bytes: u64) -> Result<u64, String> {
    if (1..=MAX_SIZE).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("it must be from 1B to 512MiB".into())
    }
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
