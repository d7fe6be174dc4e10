//! The ways in which the known writers of JSON print a number again (docs/formats/amp.md, section 9;
//! docs/formats/samp.md, section 5).
//!
//! All but one read it into a double first, and each prints doubles in its own way.

use std::fmt::Write as _;

/// A way to print numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberStyle {
    /// ECMAScript, which is also that of RFC 8785.
    Ecma,
    /// jq 1.6.
    Jq16,
    /// jq from 1.7 on: the digits as written, in one spelling.
    Jq17,
    /// Python's `json`: integers as written, others as `repr` prints them.
    Python,
}

/// Appends a JSON number. `None` if it has no finite value, for which only Python has words.
pub fn push_number(out: &mut String, text: &str, style: NumberStyle) -> Option<()> {
    let integer = !text.contains(['.', 'e', 'E']);
    match style {
        NumberStyle::Python if integer => out.push_str(if text == "-0" { "0" } else { text }),
        NumberStyle::Jq17 => push_decimal(out, text)?,
        NumberStyle::Python if text.parse() == Ok(f64::INFINITY) => out.push_str("Infinity"),
        NumberStyle::Python if text.parse() == Ok(f64::NEG_INFINITY) => out.push_str("-Infinity"),
        NumberStyle::Ecma | NumberStyle::Jq16 | NumberStyle::Python => {
            let value: f64 = text.parse().ok().filter(|v: &f64| v.is_finite())?;
            push_double(out, value, style);
        }
    }
    Some(())
}

/// Returns true if all styles print this number in the same way, as its own text.
pub fn is_plain_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    // 15 digits are always exact in a double.
    text != "-0" && digits.len() <= 15 && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Appends a finite double.
pub fn push_double(out: &mut String, value: f64, style: NumberStyle) {
    if value.is_sign_negative() && (value != 0.0 || style != NumberStyle::Ecma) {
        out.push('-');
    }
    let (digits, point) = shortest_digits(value.abs());
    let len = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let plain = match style {
        NumberStyle::Ecma => (-5..=21).contains(&point),
        NumberStyle::Python => (-3..=16).contains(&point),
        NumberStyle::Jq16 | NumberStyle::Jq17 => (-3..=len + 15).contains(&point),
    };
    if value == 0.0 {
        out.push('0');
        if style == NumberStyle::Python {
            out.push_str(".0");
        }
    } else if plain {
        push_fixed(out, &digits, point);
        if style == NumberStyle::Python && point >= len {
            out.push_str(".0");
        }
    } else {
        push_mantissa(out, &digits);
        // Writing to a string cannot fail.
        let _ = match style {
            NumberStyle::Ecma => write!(out, "e{:+}", point - 1),
            _ => write!(out, "e{:+03}", point - 1),
        };
    }
}

/// Returns the digits of the shortest decimal that reads back as this number, without zeros at the ends, and the
/// position of the decimal point after the first of them.
///
/// If two of that length are equally near, the others take the even one and Rust the larger one. So the digits are
/// rounded again from the exact value. Next to a power of two the rounded ones may read back as another number; then
/// Rust's are right.
fn shortest_digits(value: f64) -> (String, i32) {
    let shortest = format!("{value:e}");
    let fraction = shortest.split('e').next().map_or(0, |digits| digits.len().saturating_sub(2));
    let rounded = format!("{value:.fraction$e}");
    let text = if rounded.parse() == Ok(value) { rounded } else { shortest };
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    (digits.trim_end_matches('0').to_owned(), exponent.parse::<i32>().unwrap_or(0) + 1)
}

/// Appends digits with the decimal point after the first `point` of them.
fn push_fixed(out: &mut String, digits: &str, point: i32) {
    let before = usize::try_from(point).unwrap_or(0);
    match digits.split_at_checked(before) {
        Some(("", fraction)) => {
            out.push_str("0.");
            out.extend(std::iter::repeat_n('0', point.min(0).unsigned_abs() as usize));
            out.push_str(fraction);
        }
        Some((whole, "")) => out.push_str(whole),
        Some((whole, fraction)) => {
            out.push_str(whole);
            out.push('.');
            out.push_str(fraction);
        }
        None => {
            out.push_str(digits);
            out.extend(std::iter::repeat_n('0', before.saturating_sub(digits.len())));
        }
    }
}

/// Appends `d.ddd`.
fn push_mantissa(out: &mut String, digits: &str) {
    let (first, rest) = digits.split_at_checked(1).unwrap_or((digits, ""));
    out.push_str(first);
    if !rest.is_empty() {
        out.push('.');
        out.push_str(rest);
    }
}

/// Appends the scientific string of General Decimal Arithmetic, which jq prints since it keeps literals.
fn push_decimal(out: &mut String, text: &str) -> Option<()> {
    let (number, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (sign, number) = number.strip_prefix('-').map_or(("", number), |rest| ("-", rest));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let joined = format!("{whole}{fraction}");
    let digits = match joined.trim_start_matches('0') {
        "" => "0",
        digits => digits,
    };
    let scale = i64::try_from(fraction.len()).ok()?;
    let exponent = exponent.parse::<i64>().ok()?.checked_sub(scale)?;
    let adjusted = exponent.checked_add(i64::try_from(digits.len()).ok()? - 1)?;
    out.push_str(sign);
    if exponent <= 0 && adjusted >= -6 {
        let point = i32::try_from(adjusted + 1).ok()?;
        push_fixed(out, digits, point);
    } else {
        push_mantissa(out, digits);
        // Writing to a string cannot fail.
        let _ = write!(out, "E{adjusted:+}");
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn print(text: &str, style: NumberStyle) -> String {
        let mut out = String::new();
        push_number(&mut out, text, style).unwrap();
        out
    }

    #[test]
    fn as_the_programs_were_seen_to_print() {
        // The columns are text, ECMAScript (node 20), jq 1.6, jq 1.7 (decNumber), Python 3.
        let table = [
            ("0", "0", "0", "0", "0"),
            ("-0", "0", "-0", "-0", "0"),
            ("-0.0", "0", "-0", "-0.0", "-0.0"),
            ("0.00", "0", "0", "0.00", "0.0"),
            ("0e5", "0", "0", "0E+5", "0.0"),
            ("1.0", "1", "1", "1.0", "1.0"),
            ("1.10", "1.1", "1.1", "1.10", "1.1"),
            ("-2.50", "-2.5", "-2.5", "-2.50", "-2.5"),
            ("1e2", "100", "100", "1E+2", "100.0"),
            ("1e17", "100000000000000000", "1e+17", "1E+17", "1e+17"),
            ("1e21", "1e+21", "1e+21", "1E+21", "1e+21"),
            (
                "123456789e12",
                "123456789000000000000",
                "123456789000000000000",
                "1.23456789E+20",
                "1.23456789e+20",
            ),
            (
                "12345678901234567890",
                "12345678901234567000",
                "12345678901234567000",
                "12345678901234567890",
                "12345678901234567890",
            ),
            (
                "9007199254740993",
                "9007199254740992",
                "9007199254740992",
                "9007199254740993",
                "9007199254740993",
            ),
            ("1e-5", "0.00001", "1e-05", "0.00001", "1e-05"),
            ("0.0001", "0.0001", "0.0001", "0.0001", "0.0001"),
            ("0.00001234", "0.00001234", "1.234e-05", "0.00001234", "1.234e-05"),
            ("1e-6", "0.000001", "1e-06", "0.000001", "1e-06"),
            ("1e-7", "1e-7", "1e-07", "1E-7", "1e-07"),
            ("1.5e300", "1.5e+300", "1.5e+300", "1.5E+300", "1.5e+300"),
            ("123.456e-10", "1.23456e-8", "1.23456e-08", "1.23456E-8", "1.23456e-08"),
            ("5e-324", "5e-324", "5e-324", "5E-324", "5e-324"),
            (
                "1.7976931348623157e308",
                "1.7976931348623157e+308",
                "1.7976931348623157e+308",
                "1.7976931348623157E+308",
                "1.7976931348623157e+308",
            ),
            (
                "1234567890123456.5",
                "1234567890123456.5",
                "1234567890123456.5",
                "1234567890123456.5",
                "1234567890123456.5",
            ),
        ];
        for (text, ecma, jq16, jq17, python) in table {
            let got =
                [NumberStyle::Ecma, NumberStyle::Jq16, NumberStyle::Jq17, NumberStyle::Python]
                    .map(|s| print(text, s));
            assert_eq!(got, [ecma, jq16, jq17, python], "{text}");
        }
    }

    #[test]
    fn what_overflows_has_no_text() {
        assert_eq!(push_number(&mut String::new(), "1e400", NumberStyle::Ecma), None);
        assert_eq!(
            push_number(&mut String::new(), "1e99999999999999999999", NumberStyle::Jq17),
            None
        );
    }

    proptest! {
        #[test]
        fn reads_back_as_the_same_number(value in any::<f64>().prop_filter("", |v| v.is_finite())) {
            let text = format!("{value:e}");
            for style in [NumberStyle::Ecma, NumberStyle::Jq16, NumberStyle::Jq17, NumberStyle::Python] {
                let back: f64 = print(&text, style).parse().unwrap();
                // Zero may lose its sign.
                prop_assert!(back.to_bits() == value.to_bits() || text.trim_start_matches('-') == "0e0");
            }
        }

        #[test]
        fn plain_numbers_are_the_same_for_all(n in -999_999_999_999_999i64..=999_999_999_999_999) {
            let text = n.to_string();
            prop_assert!(is_plain_integer(&text));
            for style in [NumberStyle::Ecma, NumberStyle::Jq16, NumberStyle::Jq17, NumberStyle::Python] {
                prop_assert_eq!(&print(&text, style), &text);
            }
        }
    }
}
