//! Points in time and calendar days, in the three forms that the mount uses.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime, date};
use serde::{Deserialize, Serialize};

/// A point in time in milliseconds since the Unix epoch, UTC.
///
/// Foreign records may carry any integer. Values outside the years 1 to 9999 are kept for ordering, and clamped
/// only where they are written as a calendar date.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Timestamp(i64);

/// 0001-01-01T00:00:00Z in milliseconds.
const MIN_CALENDAR_MS: i64 = -62_135_596_800_000;
/// 9999-12-31T23:59:59.999Z in milliseconds.
const MAX_CALENDAR_MS: i64 = 253_402_300_799_999;
/// 1970-01-01T00:00:00.
const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);
const MS_PER_DAY: i64 = 86_400_000;

/// Milliseconds by which a time from a correct clock may be ahead of ours. It is AMP's rule: its providers
/// refuse messages that are further ahead, and its readers warn of them. So a reply dated after such a time
/// still passes that rule.
pub const CLOCK_SKEW_MS: i64 = 60_000;

impl Timestamp {
    /// Creates a time from milliseconds since the epoch.
    pub const fn from_millis(ms: i64) -> Self {
        Self(ms)
    }

    /// Creates a time from whole seconds since the epoch; saturates at the ends of the range.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// Creates a time from seconds with a fraction, to the millisecond; saturates at the ends of the range.
    fn from_secs_f64(secs: f64) -> Self {
        Self((secs * 1000.0).round() as i64)
    }

    /// Creates a time from a number of seconds in JSON, whole or with a fraction; `None` if it is out of the range of
    /// numbers.
    pub fn from_json_secs(secs: &serde_json::Number) -> Option<Self> {
        let whole = secs.as_i64().map(Self::from_secs);
        whole.or_else(|| secs.as_f64().map(Self::from_secs_f64))
    }

    /// Creates a time from nanoseconds since the epoch, as file systems report them, rounded down.
    pub fn from_nanos(ns: i128) -> Self {
        Self(i64::try_from(ns.div_euclid(1_000_000)).unwrap_or_default())
    }

    /// Returns the time of the wall clock.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Returns milliseconds since the epoch.
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// Returns whole seconds since the epoch, rounded down.
    pub const fn secs(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Returns this time plus `ms` milliseconds, saturating.
    pub const fn plus_millis(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Returns this time if it is behind another one, else the millisecond behind that. So both keep their order.
    pub fn kept_behind(self, before: Option<Self>) -> Self {
        before.map_or(self, |before| self.max(before.plus_millis(1)))
    }

    /// Returns the UTC day of this time.
    pub fn day(self) -> Day {
        Day(self.clamp_to_calendar().0.div_euclid(MS_PER_DAY))
    }

    /// Returns the time for `stat`, clamped to the range of calendars.
    pub fn to_system_time(self) -> SystemTime {
        let ms = self.clamp_to_calendar().0;
        let d = Duration::from_millis(ms.unsigned_abs());
        if ms >= 0 { UNIX_EPOCH + d } else { UNIX_EPOCH - d }
    }

    /// Returns `2026-04-24T17:42:03.000Z` (RFC 3339), always in UTC and with milliseconds.
    pub fn rfc3339(self) -> String {
        format!("{:.3}Z", self.to_civil())
    }

    /// Returns the same with as few digits as possible: no zeros at the end of the fraction.
    pub fn rfc3339_short(self) -> String {
        format!("{}Z", self.to_civil())
    }

    /// Returns `20260424T174203.000Z`, the first part of a message's file name (docs/SEMANTICS.md, S17).
    pub fn iso8601_basic(self) -> String {
        let mut out = String::with_capacity(20);
        self.push_iso8601_basic(&mut out);
        out
    }

    /// Appends the [first part of a file name](Self::iso8601_basic). It is written by hand, because a hundred
    /// thousand names are made at once.
    pub fn push_iso8601_basic(self, out: &mut String) {
        let (year, month, day) = self.day().to_civil();
        let ms = self.clamp_to_calendar().0.rem_euclid(MS_PER_DAY);
        let secs = ms / 1000;
        push_digits(out, year, 4);
        push_digits(out, month, 2);
        push_digits(out, day, 2);
        out.push('T');
        push_digits(out, secs / 3600, 2);
        push_digits(out, secs / 60 % 60, 2);
        push_digits(out, secs % 60, 2);
        out.push('.');
        push_digits(out, ms % 1000, 3);
        out.push('Z');
    }

    /// Parses the form that [`Timestamp::iso8601_basic`] writes; returns `None` for anything else.
    pub fn from_iso8601_basic(s: &str) -> Option<Self> {
        let number = |range: std::ops::Range<usize>| -> Option<i64> {
            s.get(range).filter(|d| d.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
        };
        let day = Day::from_civil(number(0..4)?, number(4..6)?, number(6..8)?);
        let secs = number(9..11)? * 3600 + number(11..13)? * 60 + number(13..15)?;
        let time = day.start().plus_millis(secs * 1000 + number(16..19)?);
        // Reject other characters between the numbers, and numbers that no calendar has.
        (time.iso8601_basic() == s).then_some(time)
    }

    /// The length of [`Timestamp::rfc2822`] in bytes, the same for every time.
    pub const RFC2822_LEN: usize = 31;

    /// Returns `Fri, 24 Apr 2026 17:42:03 +0000` (RFC 5322 date-time, always UTC). The day has two digits, as
    /// mail programs and `date -R` write it.
    pub fn rfc2822(self) -> String {
        self.to_civil().strftime("%a, %d %b %Y %H:%M:%S +0000").to_string()
    }

    /// Returns the nearest time that a calendar can show.
    pub fn clamp_to_calendar(self) -> Self {
        Self(self.0.clamp(MIN_CALENDAR_MS, MAX_CALENDAR_MS))
    }

    /// Returns the time of this date and clock in UTC, rounded down.
    pub fn from_civil(civil: DateTime) -> Self {
        Self::from_nanos(civil.duration_since(EPOCH).as_nanos())
    }

    fn to_civil(self) -> DateTime {
        EPOCH.saturating_add(SignedDuration::from_millis(self.clamp_to_calendar().0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(d) => Self(i64::try_from(d.as_millis()).unwrap_or(i64::MAX)),
            Err(e) => Self(-i64::try_from(e.duration().as_millis()).unwrap_or(i64::MAX)),
        }
    }
}

/// Appends the last `count` decimal digits of a number that is not negative.
fn push_digits(out: &mut String, number: i64, count: u32) {
    for place in (0..count).rev() {
        out.push((b'0' + (number / 10_i64.pow(place) % 10) as u8) as char);
    }
}

/// A UTC calendar day, counted from 1970-01-01; shown as `2026-04-24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(i64);

impl Day {
    /// Returns midnight at the start of this day.
    pub const fn start(self) -> Timestamp {
        Timestamp(self.0.saturating_mul(MS_PER_DAY))
    }

    /// Creates a day from the number of days since 1970-01-01.
    pub const fn from_number(days: i64) -> Self {
        Self(days)
    }

    /// Returns the number of days since 1970-01-01.
    pub const fn number(self) -> i64 {
        self.0
    }

    /// Returns year, month and day of the month, for the years that a calendar can show. It counts in years that
    /// begin in March, so that the leap day is the last one, and in eras of 400 such years.
    const fn to_civil(self) -> (i64, i64, i64) {
        let days = self.0 + 719_468;
        let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        (year + era * 400 + (month <= 2) as i64, month, day)
    }

    /// Returns the day of a date. A month or day out of range gives some other day.
    const fn from_civil(year: i64, month: i64, day: i64) -> Self {
        let year = if month <= 2 { year - 1 } else { year };
        let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
        let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
        Self(era * 146_097 + year * 365 + year / 4 - year / 100 + of_year - 719_468)
    }

    /// Returns the day after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.start().to_civil().date())
    }
}

/// An error for text that is not a calendar day of the form `YYYY-MM-DD`.
#[derive(Debug, thiserror::Error)]
#[error("not a day of the form YYYY-MM-DD")]
pub struct ParseDayError;

impl FromStr for Day {
    type Err = ParseDayError;

    fn from_str(s: &str) -> Result<Self, ParseDayError> {
        let date: Date = s.parse().map_err(|_| ParseDayError)?;
        let day = Timestamp::from_civil(date.at(0, 0, 0, 0)).day();
        if day.to_string() == s { Ok(day) } else { Err(ParseDayError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings_of_one_instant() {
        let t = Timestamp::from_secs(1_777_052_523);
        assert_eq!(t.iso8601_basic(), "20260424T174203.000Z");
        assert_eq!(t.rfc2822(), "Fri, 24 Apr 2026 17:42:03 +0000");
        assert_eq!(t.rfc3339(), "2026-04-24T17:42:03.000Z");
        assert_eq!(t.day().to_string(), "2026-04-24");
        let t = Timestamp::from_secs(1_770_108_003);
        assert_eq!(t.rfc2822(), "Tue, 03 Feb 2026 08:40:03 +0000");
    }

    #[test]
    fn the_last_day_is_shown_as_it_is() {
        let last = Timestamp::from_millis(MAX_CALENDAR_MS);
        assert_eq!(last.rfc3339(), "9999-12-31T23:59:59.999Z");
        assert_eq!(last.rfc2822(), "Fri, 31 Dec 9999 23:59:59 +0000");
        assert_eq!("9999-12-31".parse::<Day>().unwrap(), last.day());
    }

    #[test]
    fn extremes_are_clamped_not_panicked_on() {
        for t in [i64::MIN, i64::MAX, MIN_CALENDAR_MS, MAX_CALENDAR_MS, -1, 0] {
            let t = Timestamp::from_millis(t);
            assert_eq!(t.iso8601_basic().len(), 20);
            assert_eq!(t.day().to_string().len(), 10);
            assert!(!t.rfc2822().is_empty());
            assert_eq!(t.rfc3339().len(), 24);
            let _ = t.to_system_time();
        }
    }

    proptest! {
        #[test]
        fn stamp_round_trips(ms in MIN_CALENDAR_MS..=MAX_CALENDAR_MS) {
            let t = Timestamp::from_millis(ms);
            prop_assert_eq!(Timestamp::from_iso8601_basic(&t.iso8601_basic()), Some(t));
            prop_assert_eq!(t.day().to_string().parse::<Day>().unwrap(), t.day());
        }

        #[test]
        fn calendars_agree(ms in MIN_CALENDAR_MS..=MAX_CALENDAR_MS) {
            let (t, theirs) = (Timestamp::from_millis(ms), Timestamp(ms).to_civil());
            prop_assert_eq!(t.iso8601_basic(), theirs.strftime("%Y%m%dT%H%M%S.%3fZ").to_string());
            prop_assert_eq!(t.rfc2822().len(), Timestamp::RFC2822_LEN);
        }

        #[test]
        fn only_stamps_are_stamps(s in "(0000|0001|1900|2000|2023|2024|9999)[01][0-9][0-3][0-9][T ][0-2][0-9][0-6][0-9][0-6][0-9][.,][0-9]{3}[Zz]") {
            let theirs = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%S%.fZ", &s).ok();
            let theirs = theirs.map(Timestamp::from_civil).filter(|t| t.iso8601_basic() == s);
            prop_assert_eq!(Timestamp::from_iso8601_basic(&s), theirs);
        }

        #[test]
        fn parsing_never_panics(s in "\\PC{0,24}") {
            let _ = Timestamp::from_iso8601_basic(&s);
            let _ = s.parse::<Day>();
        }
    }
}
