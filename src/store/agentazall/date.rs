//! Dates: the five spellings of the `Date` header, and the folders named by local days
//! (docs/formats/agentazall.md, sections 1 and 2).

use jiff::civil;
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::tz::TimeZone;

use crate::model::Timestamp;
use crate::store::text::pytext::strip;

/// The spelling of a `Date`, which shows the transport of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DateForm {
    /// `2026-03-11 14:23:55`: local time, as the reference writes it.
    Local,
    /// `2026-11-21T20:07:53.579619`: UTC without a zone, from the Python relay.
    Relay,
    /// `2026-11-21T20:07:53.5+00:00`, from the Rust relay.
    Rfc3339,
    /// `Wed, 11 Mar 2026 14:23:55 +0100`, from e-mail.
    Rfc2822,
    /// `2026-03-11`: a day and no more.
    DateOnly,
}

/// Returns the instant of a `Date`, to the millisecond (further digits are dropped), and its form; `None` for anything
/// that is no date.
///
/// A text without a zone is local time in `zone`, except the relay's form, which is UTC. A bare day is its local
/// midnight. A local time that the clock skipped is read with the offset before the change. A local time that it showed
/// twice is the first.
pub fn parse_date(text: &str, zone: &TimeZone) -> Option<(Timestamp, DateForm)> {
    let text = strip(text);
    if is_day(text) {
        return Some((local_midnight(text, zone)?, DateForm::DateOnly));
    }
    let Some((day, time)) = text.split_at_checked(10).filter(|(day, _)| is_day(day)) else {
        let at = DateTimeParser::new().relaxed_weekday(true).parse_timestamp(text).ok()?;
        return Some((to_timestamp(at), DateForm::Rfc2822));
    };
    let relay = time.starts_with(['T', 't']);
    let time = strip(time.strip_prefix(['T', 't', ' '])?);
    if time.contains(['+', '-']) || time.ends_with(['Z', 'z']) {
        let exact: String = time.chars().filter(|c| *c != ' ').collect();
        let at: jiff::Timestamp = format!("{day}T{exact}").parse().ok()?;
        return Some((to_timestamp(at), DateForm::Rfc3339));
    }
    let civil: civil::DateTime = format!("{day}T{time}").parse().ok()?;
    Some(if relay {
        (Timestamp::from_civil(civil), DateForm::Relay)
    } else {
        (to_instant(civil, zone)?, DateForm::Local)
    })
}

/// Returns the local midnight at the start of a day folder. If the clock skips midnight, it is the first instant of the
/// day. Returns `None` if the name is no day of the calendar.
pub fn local_midnight(day: &str, zone: &TimeZone) -> Option<Timestamp> {
    if !is_day(day) {
        return None;
    }
    let day: civil::Date = day.parse().ok()?;
    to_instant(day.at(0, 0, 0, 0), zone)
}

/// Returns the instant of a local time. The library knows none from 9999-12-30T22:00:00Z on; then the last offset that
/// it knows counts.
fn to_instant(civil: civil::DateTime, zone: &TimeZone) -> Option<Timestamp> {
    let known = civil.to_zoned(zone.clone()).map(|at| to_timestamp(at.timestamp()));
    let late = || {
        let offset = zone.to_offset(jiff::Timestamp::MAX);
        let is_late = civil.date().year() == 9999;
        is_late
            .then(|| Timestamp::from_civil(civil).plus_millis(-1000 * i64::from(offset.seconds())))
    };
    known.ok().or_else(late)
}

/// Returns the local day, as the reference names today's folder: `2026-03-11`.
pub fn format_local_day(now: Timestamp, zone: &TimeZone) -> String {
    to_local_time(now, zone).strftime("%Y-%m-%d").to_string()
}

/// Returns the local time, as the reference writes `Date`: `2026-03-11 14:23:55`.
pub fn format_local_stamp(now: Timestamp, zone: &TimeZone) -> String {
    to_local_time(now, zone).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Returns true if a name is that of a day folder: 4, 2 and 2 digits. It need not be in the calendar.
pub fn is_day(name: &str) -> bool {
    name.len() == 10
        && name.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

/// Returns the local time.
pub(super) fn to_local_time(now: Timestamp, zone: &TimeZone) -> jiff::Zoned {
    jiff::Timestamp::from_millisecond(now.clamp_to_calendar().millis())
        .unwrap_or(jiff::Timestamp::MAX)
        .to_zoned(zone.clone())
}

fn to_timestamp(at: jiff::Timestamp) -> Timestamp {
    // This rounds down also before 1970, so that the digits are those written.
    Timestamp::from_millis(at.as_microsecond().div_euclid(1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn zone() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    fn read(text: &str) -> Option<(String, DateForm)> {
        parse_date(text, &zone()).map(|(at, form)| (at.iso8601_basic(), form))
    }

    #[test]
    fn the_five_forms() {
        use DateForm::{DateOnly, Local, Relay, Rfc2822, Rfc3339};
        for (text, stamp, form) in [
            ("2026-03-11 14:23:55", "20260311T132355.000Z", Local),
            ("2026-07-11 14:23:55", "20260711T122355.000Z", Local),
            (" 2026-03-11 14:23:55.1239\u{a0}", "20260311T132355.123Z", Local),
            ("2026-03-11 14:23", "20260311T132300.000Z", Local),
            // The clock skips the first and shows the second twice.
            ("2026-03-29 02:30:00", "20260329T013000.000Z", Local),
            ("2026-10-25 02:30:00", "20261025T003000.000Z", Local),
            ("9999-12-31 10:00:00", "99991231T090000.000Z", Local),
            ("9999-12-31", "99991230T230000.000Z", DateOnly),
            ("9999-12-31T10:00:00", "99991231T100000.000Z", Relay),
            ("2026-11-21T20:07:53.579619", "20261121T200753.579Z", Relay),
            ("2026-11-21T20:07:53", "20261121T200753.000Z", Relay),
            ("1969-12-31T23:59:59.9999", "19691231T235959.999Z", Relay),
            ("2026-11-21T20:07:53.579619+00:00", "20261121T200753.579Z", Rfc3339),
            ("2026-11-21T20:07:53.999999999Z", "20261121T200753.999Z", Rfc3339),
            ("2026-11-21 20:07:53 +0530", "20261121T143753.000Z", Rfc3339),
            ("2026-11-21t20:07:53-08:00", "20261122T040753.000Z", Rfc3339),
            ("Wed, 11 Mar 2026 14:23:55 +0100", "20260311T132355.000Z", Rfc2822),
            // E-mail is careless with weekdays, zones by name and comments.
            ("Mon, 11 Mar 2026 14:23:55 GMT", "20260311T142355.000Z", Rfc2822),
            ("11 Mar 2026 14:23:55 -0500 (EST)", "20260311T192355.000Z", Rfc2822),
            ("2026-03-11", "20260310T230000.000Z", DateOnly),
        ] {
            assert_eq!(read(text), Some((stamp.to_owned(), form)), "{text}");
        }
    }

    #[test]
    fn what_is_no_date() {
        for text in [
            "",
            "yesterday",
            "2026-02-30",
            "2026-02-30 10:00:00",
            "2026-03-11X10:00:00",
            "2026-03-11 25:00:00",
            "2026-03-11T",
            "2026-03-1\u{661} 10:00:00",
            "20260311",
            "9999-99-99",
            "Wed, 99 Mar 2026 14:23:55 +0100",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn days_are_local() {
        let late = Timestamp::from_iso8601_basic("20260310T233000.000Z").unwrap();
        assert_eq!(format_local_day(late, &zone()), "2026-03-11");
        assert_eq!(format_local_stamp(late, &zone()), "2026-03-11 00:30:00");
        assert_eq!(
            local_midnight("2026-03-11", &zone()).unwrap().iso8601_basic(),
            "20260310T230000.000Z"
        );
        assert_eq!(local_midnight("2026-13-11", &zone()), None);
        assert_eq!(local_midnight("2026-3-11", &zone()), None);
        // A zone whose clock skips midnight.
        let beirut = TimeZone::posix("EET-2EEST,M3.5.0/0,M10.5.0/0").unwrap();
        assert_eq!(
            local_midnight("2026-03-29", &beirut).unwrap().iso8601_basic(),
            "20260328T220000.000Z"
        );
        assert!(is_day("0000-99-99") && !is_day("2026-03-111") && !is_day("2026-03-1"));
        assert!(!is_day("2026_03_11") && !is_day("\u{661}026-03-1"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(secs in -62_000_000_000i64..253_000_000_000) {
            let at = Timestamp::from_secs(secs);
            let zone = TimeZone::fixed(jiff::tz::offset(5));
            let stamp = format_local_stamp(at, &zone);
            prop_assert_eq!(parse_date(&stamp, &zone), Some((at, DateForm::Local)));
            let (day, _) = stamp.split_at(10);
            prop_assert_eq!(format_local_day(at, &zone), day);
            prop_assert!(local_midnight(day, &zone).unwrap() <= at);
        }

        #[test]
        fn foreign_dates_never_panic(text in "\\PC{0,40}|[-0-9TZ:+. ]{0,40}", ms in any::<i64>()) {
            let _ = parse_date(&text, &zone());
            let _ = format_local_stamp(Timestamp::from_millis(ms), &zone());
        }
    }
}
