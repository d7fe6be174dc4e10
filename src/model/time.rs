//! Points in time and calendar days, in the three spellings the mount uses.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

/// A point in time in milliseconds since the Unix epoch, UTC.
///
/// Foreign records may carry any integer. Values outside the years 1 to 9999 are kept for ordering
/// and clamped only where they are written as a calendar date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// 0001-01-01T00:00:00Z in milliseconds.
const MIN_CALENDAR_MS: i64 = -62_135_596_800_000;
/// 9999-12-30T22:00:00Z in milliseconds: the last whole hour every calendar routine can print.
const MAX_CALENDAR_MS: i64 = 253_402_207_200_000;
const MS_PER_DAY: i64 = 86_400_000;

impl Timestamp {
    /// From milliseconds since the epoch.
    pub const fn from_millis(ms: i64) -> Self {
        Self(ms)
    }

    /// From whole seconds since the epoch; saturates at the ends of the range.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// From nanoseconds since the epoch, rounded down, as file systems tell times.
    pub fn from_nanos(ns: i128) -> Self {
        Self(i64::try_from(ns.div_euclid(1_000_000)).unwrap_or_default())
    }

    /// The wall clock.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Milliseconds since the epoch.
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// Whole seconds since the epoch, rounded down.
    pub const fn secs(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// This time plus `ms` milliseconds, saturating.
    pub const fn plus_millis(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// The UTC day this time falls on.
    pub fn day(self) -> Day {
        Day(self.calendar().0.div_euclid(MS_PER_DAY))
    }

    /// For `stat`: the same instant, clamped to what a calendar can show.
    pub fn to_system_time(self) -> SystemTime {
        let ms = self.calendar().0;
        let d = Duration::from_millis(ms.unsigned_abs());
        if ms >= 0 { UNIX_EPOCH + d } else { UNIX_EPOCH - d }
    }

    /// `2026-04-24T17:42:03.000Z` (RFC 3339), always in UTC and with milliseconds.
    pub fn rfc3339(self) -> String {
        format!("{:.3}", self.zoned().timestamp())
    }

    /// The same with as many digits as it takes: no zeros at the end of the fraction.
    pub fn rfc3339_short(self) -> String {
        self.zoned().timestamp().to_string()
    }

    /// `20260424T174203.000Z`, the first part of a message's file name (docs/SEMANTICS.md, S17).
    pub fn stamp(self) -> String {
        self.zoned().strftime("%Y%m%dT%H%M%S.%3fZ").to_string()
    }

    /// Parses what [`Timestamp::stamp`] writes; `None` for anything else.
    pub fn from_stamp(s: &str) -> Option<Self> {
        let civil = DateTime::strptime("%Y%m%dT%H%M%S%.fZ", s).ok()?;
        let time = Self(civil.to_zoned(TimeZone::UTC).ok()?.timestamp().as_millisecond());
        // Other spellings of the same are read, too.
        (time.stamp() == s).then_some(time)
    }

    /// `Fri, 24 Apr 2026 17:42:03 +0000` (RFC 5322 date-time, always UTC). The day has two digits, as
    /// mail programs and `date -R` write it.
    pub fn rfc2822(self) -> String {
        self.zoned().strftime("%a, %d %b %Y %H:%M:%S +0000").to_string()
    }

    /// The same instant, moved to the nearest one that a calendar can show.
    pub fn calendar(self) -> Self {
        Self(self.0.clamp(MIN_CALENDAR_MS, MAX_CALENDAR_MS))
    }

    fn zoned(self) -> jiff::Zoned {
        jiff::Timestamp::from_millisecond(self.calendar().0)
            .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
            .to_zoned(TimeZone::UTC)
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

/// A UTC calendar day, counted from 1970-01-01; shown as `2026-04-24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(i64);

impl Day {
    /// Midnight at the start of this day.
    pub const fn start(self) -> Timestamp {
        Timestamp(self.0.saturating_mul(MS_PER_DAY))
    }

    /// From days since 1970-01-01.
    pub const fn from_number(days: i64) -> Self {
        Self(days)
    }

    /// Days since 1970-01-01.
    pub const fn number(self) -> i64 {
        self.0
    }

    /// The day after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.start().zoned().date())
    }
}

/// The text is not a calendar day of the form `YYYY-MM-DD`.
#[derive(Debug, thiserror::Error)]
#[error("not a day of the form YYYY-MM-DD")]
pub struct ParseDayError;

impl FromStr for Day {
    type Err = ParseDayError;

    fn from_str(s: &str) -> Result<Self, ParseDayError> {
        let date: Date = s.parse().map_err(|_| ParseDayError)?;
        let midnight = date.to_zoned(TimeZone::UTC).map_err(|_| ParseDayError)?.timestamp();
        let day = Timestamp(midnight.as_millisecond()).day();
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
        assert_eq!(t.stamp(), "20260424T174203.000Z");
        assert_eq!(t.rfc2822(), "Fri, 24 Apr 2026 17:42:03 +0000");
        assert_eq!(t.rfc3339(), "2026-04-24T17:42:03.000Z");
        assert_eq!(t.day().to_string(), "2026-04-24");
        let t = Timestamp::from_secs(1_770_108_003);
        assert_eq!(t.rfc2822(), "Tue, 03 Feb 2026 08:40:03 +0000");
    }

    #[test]
    fn extremes_are_clamped_not_panicked_on() {
        for t in [i64::MIN, i64::MAX, MIN_CALENDAR_MS, MAX_CALENDAR_MS, -1, 0] {
            let t = Timestamp::from_millis(t);
            assert_eq!(t.stamp().len(), 20);
            assert_eq!(t.day().to_string().len(), 10);
            assert!(!t.rfc2822().is_empty());
            assert_eq!(t.rfc3339().len(), 24);
            let _ = t.to_system_time();
        }
    }

    proptest! {
        #[test]
        fn stamp_round_trips(ms in MIN_CALENDAR_MS..MAX_CALENDAR_MS) {
            let t = Timestamp::from_millis(ms);
            prop_assert_eq!(Timestamp::from_stamp(&t.stamp()), Some(t));
            prop_assert_eq!(t.day().to_string().parse::<Day>().unwrap(), t.day());
        }

        #[test]
        fn parsing_never_panics(s in "\\PC{0,24}") {
            let _ = Timestamp::from_stamp(&s);
            let _ = s.parse::<Day>();
        }
    }
}
