//! Times as messages carry them: RFC 3339, whole seconds or milliseconds (docs/formats/amp.md, section 4).

use crate::model::Timestamp;

/// Parses `2026-11-21T20:07:12Z`, with any fraction (parts finer than a millisecond are dropped) and with an offset in
/// place of the `Z`.
pub fn parse_time(text: &str) -> Option<Timestamp> {
    let shaped = (20..=40).contains(&text.len())
        && text.as_bytes().get(10).is_some_and(|b| matches!(b, b'T' | b't'))
        && text.bytes().all(|b| b.is_ascii_digit() || b"TtZz:.+-".contains(&b));
    // The library accepts offsets of up to 25 hours, but a day has 24.
    let offset =
        text.get(19..).and_then(|end| end.split_once(['+', '-'])).map(|(_, offset)| offset);
    let hours = offset.and_then(|offset| offset.get(..2)?.parse::<u8>().ok());
    if hours.is_some_and(|hours| hours > 23) {
        return None;
    }
    let instant: jiff::Timestamp = shaped.then(|| text.parse().ok())??;
    let nanos = instant.as_nanosecond().div_euclid(1_000_000);
    i64::try_from(nanos).ok().map(Timestamp::from_millis)
}

/// Returns a time in whole seconds, as the plugin writes it.
pub fn format_time(time: Timestamp) -> String {
    format!("{}Z", time.rfc3339().get(..19).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_of_every_program() {
        for wrong in ["2026-02-26T14:32:07+25:00", "2026-02-26T14:32:07-24:00"] {
            assert_eq!(parse_time(wrong), None, "{wrong}");
        }
        assert!(parse_time("2026-02-26T14:32:07.5+23:59").is_some());
        let whole = 1_795_291_632_000;
        for (text, ms) in [
            ("2026-11-21T20:07:12Z", whole),
            ("2026-11-21T20:07:12.500Z", whole + 500),
            ("2026-11-21T20:07:12.5Z", whole + 500),
            ("2026-11-21T20:07:12.123456789Z", whole + 123),
            ("2026-11-21T21:07:12+01:00", whole),
            ("2026-11-21T15:07:12.001-05:00", whole + 1),
            ("2026-11-21t20:07:12z", whole),
        ] {
            assert_eq!(parse_time(text), Some(Timestamp::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "now",
            "2026-11-21",
            "2026-11-21 20:07:12Z",
            "2026-11-21T20:07:12",
            "1795291632",
            "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-11-21T25:00:00Z",
            "2026-11-21T20:07:12Z\n",
            "2026-11-21T20:07:12+01:00[Europe/Paris]",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(secs in -62_135_596_800i64..253_402_207_200, ms in 0i64..1000) {
            let time = Timestamp::from_secs(secs).plus_millis(ms);
            prop_assert_eq!(parse_time(&format_time(time)), Some(Timestamp::from_secs(secs)));
        }

        #[test]
        fn nothing_panics(text in "[0-9TZ:.+-]{0,40}", time in any::<i64>()) {
            let _ = parse_time(&text);
            prop_assert_eq!(format_time(Timestamp::from_millis(time)).len(), 20);
        }
    }
}
