//! Times as the format's program reads them: with Go's `time.Parse` and its layout `RFC3339Nano`. This is stricter than
//! RFC 3339 in some places (no `t`, no second 60) and laxer in others.

use jiff::civil::{Date, date};

use crate::model::Timestamp;

/// Parses a time and drops fractions of a millisecond. `None` if the format's program rejects it.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let mut rest = text.as_bytes();
    let year = parse_digits(&mut rest, 4)?;
    let month = parse_number_after(&mut rest, b'-', 2)?;
    let day = parse_number_after(&mut rest, b'-', 2)?;
    // An hour may have one digit.
    let is_short = rest.get(2).is_some_and(|b| !b.is_ascii_digit());
    let hour = parse_number_after(&mut rest, b'T', if is_short { 1 } else { 2 })?;
    let minute = parse_number_after(&mut rest, b':', 2)?;
    let second = parse_number_after(&mut rest, b':', 2)?;
    let millis = parse_fraction(&mut rest);
    let offset = parse_offset(rest)?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let small = |n: i64| i8::try_from(n).ok();
    let day = Date::new(i16::try_from(year).ok()?, small(month)?, small(day)?).ok()?;
    let days = day.duration_since(date(1970, 1, 1)).as_hours() / 24;
    let seconds = ((days * 24 + hour) * 60 + minute - offset) * 60 + second;
    Some(Timestamp::from_millis(seconds * 1000 + millis))
}

/// Takes a number with this many digits.
fn parse_digits(rest: &mut &[u8], count: usize) -> Option<i64> {
    let (number, after) = rest.split_at_checked(count)?;
    *rest = after;
    if !number.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(number.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
}

/// Takes this character and the number after it.
fn parse_number_after(rest: &mut &[u8], mark: u8, count: usize) -> Option<i64> {
    let (first, number) = rest.split_first()?;
    *rest = number;
    if *first == mark { parse_digits(rest, count) } else { None }
}

/// Takes a fraction of a second after a point or a comma, of any length, and returns its milliseconds.
fn parse_fraction(rest: &mut &[u8]) -> i64 {
    let [b'.' | b',', number @ ..] = *rest else { return 0 };
    let count = number.iter().take_while(|b| b.is_ascii_digit()).count();
    let Some((number, after)) = number.split_at_checked(count).filter(|_| count > 0) else {
        return 0;
    };
    *rest = after;
    let three = number.iter().copied().chain(std::iter::repeat(b'0')).take(3);
    three.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'))
}

/// Returns the offset from UTC in minutes of the zone that ends the text.
fn parse_offset(zone: &[u8]) -> Option<i64> {
    let (sign, mut rest) = match zone {
        b"Z" => return Some(0),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let hours = parse_digits(&mut rest, 2)?;
    let minutes = parse_number_after(&mut rest, b':', 2)?;
    // Some people write 24 hours and 60 minutes, and Go accepts them.
    (rest.is_empty() && hours <= 24 && minutes <= 60).then_some(sign * (hours * 60 + minutes))
}
