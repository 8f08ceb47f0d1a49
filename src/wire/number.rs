//! Exact decimal numbers: `1`, `1.0` and `1e0` are equal, and nothing is rounded at any size.

use std::cmp::Ordering;

/// The exact value of a JSON number.
///
/// It is kept as digits without zeros at either end and the power of ten of the first digit, so that equal values have
/// equal fields whatever their spelling. Minus zero is zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal {
    negative: bool,
    /// Digits without leading and trailing zeros; empty for zero.
    digits: Vec<u8>,
    /// The value is `0.DIGITS × 10^point`. Zero for zero. A point beyond `i64` is kept at its end: such numbers still
    /// compare as huge or tiny, only not among each other.
    point: i64,
}

impl Decimal {
    /// The value of a JSON number's text; `None` if the text is no JSON number.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Decimal> {
        let (negative, unsigned) = match text.split_first() {
            Some((b'-', rest)) => (true, rest),
            _ => (false, text),
        };
        let (mantissa, exponent) = match unsigned.iter().position(|byte| matches!(byte, b'e' | b'E')) {
            Some(at) => (&unsigned[..at], parse_exponent(&unsigned[at + 1..])?),
            None => (unsigned, 0),
        };
        let (whole, fraction) = match mantissa.iter().position(|byte| *byte == b'.') {
            Some(at) => (&mantissa[..at], Some(&mantissa[at + 1..])),
            None => (mantissa, None),
        };
        let leading_zero = whole.len() > 1 && whole[0] == b'0';
        if whole.is_empty() || leading_zero || fraction.is_some_and(<[u8]>::is_empty) {
            return None;
        }
        let fraction = fraction.unwrap_or_default();
        if !whole.iter().chain(fraction).all(u8::is_ascii_digit) {
            return None;
        }
        let mut digits = Vec::with_capacity(whole.len() + fraction.len());
        digits.extend_from_slice(whole);
        digits.extend_from_slice(fraction);
        while digits.last() == Some(&b'0') {
            digits.pop();
        }
        let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
        digits.drain(..zeros);
        if digits.is_empty() {
            return Some(Decimal { negative: false, digits, point: 0 });
        }
        let whole_digits = i64::try_from(whole.len()).unwrap_or(i64::MAX);
        let point = exponent.saturating_add(whole_digits).saturating_sub(i64::try_from(zeros).unwrap_or(i64::MAX));
        Some(Decimal { negative, digits, point })
    }

    /// The value of a whole number.
    #[must_use]
    pub fn from_i64(value: i64) -> Decimal {
        Decimal::parse(value.to_string().as_bytes()).expect("a whole number's text is a JSON number")
    }

    /// Whether it has no fraction: `1.0` and `10e-1` have none.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.digits.is_empty() || usize::try_from(self.point).is_ok_and(|point| point >= self.digits.len())
    }

    /// The one spelling that all equal values share; two different values never share it.
    #[must_use]
    pub fn canonical(&self) -> String {
        let sign = if self.negative { "-" } else { "" };
        let digits = std::str::from_utf8(&self.digits).unwrap_or_default();
        match usize::try_from(self.point) {
            _ if digits.is_empty() => "0".to_owned(),
            // Whole numbers of a readable length are printed as such.
            Ok(point) if point >= digits.len() && point <= 40 => {
                format!("{sign}{digits}{}", "0".repeat(point - digits.len()))
            }
            Ok(point) if point > 0 && point < digits.len() => {
                format!("{sign}{}.{}", &digits[..point], &digits[point..])
            }
            _ => format!("{sign}0.{digits}e{}", self.point),
        }
    }

    fn cmp_magnitude(&self, other: &Decimal) -> Ordering {
        match (self.digits.is_empty(), other.digits.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            // Without trailing zeros the digits after the point compare as text does.
            (false, false) => self.point.cmp(&other.point).then_with(|| self.digits.cmp(&other.digits)),
        }
    }
}

fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // A huge exponent stays huge; its exact value decides nothing.
    let value = digits.iter().fold(0_i64, |sum, digit| sum.saturating_mul(10).saturating_add(i64::from(digit - b'0')));
    Some(if negative { -value } else { value })
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Decimal) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Decimal) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.cmp_magnitude(other),
            (true, true) => other.cmp_magnitude(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        Decimal::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text} is a number"))
    }

    #[test]
    fn spellings_of_one_value_are_equal() {
        for group in [
            &["1", "1.0", "1e0", "10e-1", "0.1E1", "1.000e+0"][..],
            &["0", "-0", "0.0", "0e999999999999999999999", "-0.00"],
            &["1e5", "100000", "1.0E+5"],
            &["-12.5", "-125e-1", "-0.125e2"],
            &["1e400", "10e399", "0.1e401"],
        ] {
            for text in group {
                assert_eq!(decimal(text), decimal(group[0]), "{text}");
                assert_eq!(decimal(text).canonical(), decimal(group[0]).canonical(), "{text}");
            }
        }
    }

    #[test]
    fn nothing_is_rounded_above_two_to_the_53() {
        assert_ne!(decimal("9007199254740993"), decimal("9007199254740992"));
        assert!(decimal("9007199254740993") > decimal("9007199254740992.9"));
        assert_ne!(decimal("0.1000000000000000000001"), decimal("0.1"));
        assert_eq!(decimal("123456789012345678901234567890").canonical(), "123456789012345678901234567890");
    }

    #[test]
    fn order_is_the_order_of_the_numbers() {
        let sorted =
            ["-1e400", "-13", "-12.5", "-0.5", "0", "1e-400", "0.09", "0.1", "0.11", "2", "10", "1e300", "1e400"];
        for (low, a) in sorted.iter().enumerate() {
            for (high, b) in sorted.iter().enumerate() {
                assert_eq!(decimal(a).cmp(&decimal(b)), low.cmp(&high), "{a} against {b}");
            }
        }
    }

    #[test]
    fn canonical_spelling_is_a_number_of_the_same_value() {
        for text in ["1", "-1", "10", "0.5", "12.5", "1e400", "1e-400", "1e41", "1e40", "123e38", "-0.001", "1e39"] {
            assert_eq!(decimal(&decimal(text).canonical()), decimal(text), "{text}");
        }
        assert_eq!(decimal("100").canonical(), "100");
        assert_eq!(decimal("12.50").canonical(), "12.5");
    }

    #[test]
    fn what_is_no_json_number_is_refused() {
        for text in ["", "-", "01", "1.", ".5", "1e", "1e+", "+1", "0x10", "1 ", "NaN", "1_000", "--1", "1.2.3"] {
            assert_eq!(Decimal::parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
