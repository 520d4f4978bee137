//! Size: `256M`, `2G`, `1.5G`, `50%` and plain bytes, as people write them.
//!
//! Guarantees: binary units, so `2G` is 2 * 1024^3; a size that does not fit is an error, never
//! a wrapped number.
//! Never: does I/O; what a percentage is taken of comes from the caller.
//! Threads: pure functions.

use core::fmt;

/// Why a size cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// Nothing there.
    Empty,
    /// No number at the start.
    NotANumber,
    /// A number with a minus before it.
    Negative,
    /// A number with more than one point.
    TwoPoints,
    /// What follows the number is no unit.
    UnknownUnit,
    /// More than 2^63 bytes.
    TooLarge,
    /// A percentage above 100.
    TooManyPercent,
    /// A share that is not a whole percentage from 1 to 100.
    BadShare,
    /// A percentage where only an absolute size makes sense.
    PercentOfWhat,
}

impl fmt::Display for SizeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            SizeError::Empty => "it is empty; write a size like 256M, 2G or 1.5G",
            SizeError::NotANumber => {
                "it does not begin with a number; write a size like 256M, 2G or 1.5G"
            }
            SizeError::Negative => "it is negative; write a size like 256M, 2G or 1.5G",
            SizeError::TwoPoints => "its number has two points; write a size like 256M, 2G or 1.5G",
            SizeError::UnknownUnit => "its unit is unknown; use K, M, G or T (of 1024), or none",
            SizeError::TooLarge => "it is larger than any memory; use K, M, G or T (of 1024)",
            SizeError::TooManyPercent => "it is more than 100%",
            SizeError::BadShare => "write a whole percentage from 1% to 100%",
            SizeError::PercentOfWhat => "a percentage makes no sense here; write a size like 20G",
        })
    }
}

impl core::error::Error for SizeError {}

/// Bytes of a size; `whole` is what percentages are of, `None` if there may be none.
///
/// # Errors
/// [`SizeError`] says what is wrong with the text.
pub fn parse(text: &str, whole: Option<u64>) -> Result<u64, SizeError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(SizeError::Empty);
    }
    let is_digit = |c: char| c.is_ascii_digit();
    let end = text.find(|c: char| !is_digit(c) && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim_start());
    if number.is_empty() && unit.strip_prefix('-').is_some_and(|rest| rest.starts_with(is_digit)) {
        return Err(SizeError::Negative);
    }
    if number.matches('.').count() > 1 {
        return Err(SizeError::TwoPoints);
    }
    if !number.contains(is_digit) {
        return Err(SizeError::NotANumber);
    }
    if unit == "%" {
        let whole = whole.ok_or(SizeError::PercentOfWhat)?;
        let percent: f64 = number.parse().map_err(|_| SizeError::NotANumber)?;
        if percent > 100.0 {
            return Err(SizeError::TooManyPercent);
        }
        return Ok((whole as f64 * percent / 100.0) as u64);
    }
    let shift = unit_shift(unit).ok_or(SizeError::UnknownUnit)?;
    if let Ok(number) = number.parse::<u64>() {
        let bytes = u128::from(number) << shift;
        return u64::try_from(bytes)
            .ok()
            .filter(|bytes| *bytes <= 1 << 63)
            .ok_or(SizeError::TooLarge);
    }
    if !number.contains('.') {
        return Err(SizeError::TooLarge);
    }
    let number: f64 = number.parse().map_err(|_| SizeError::NotANumber)?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes > (1u64 << 63) as f64 { Err(SizeError::TooLarge) } else { Ok(bytes as u64) }
}

/// Powers of two of a unit: `G`, `g`, `GB` and `GiB` all mean 1024^3.
fn unit_shift(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_lowercase();
    let prefix = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit);
    match prefix {
        "" if unit != "ib" => Some(0),
        "k" => Some(10),
        "m" => Some(20),
        "g" => Some(30),
        "t" => Some(40),
        "p" => Some(50),
        _ => None,
    }
}

/// The shortest text that reads back as exactly these bytes.
pub fn exact(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    for (shift, unit) in UNITS {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64k", 64 << 10),
            ("64K", 64 << 10),
            ("256M", 256 << 20),
            ("256MB", 256 << 20),
            ("256MiB", 256 << 20),
            ("2G", 2 * GIB),
            ("2 G", 2 * GIB),
            (" 2g ", 2 * GIB),
            ("1.5G", GIB + GIB / 2),
            (".5G", GIB / 2),
            ("1T", 1 << 40),
            ("50%", 4 * GIB),
            ("12.5%", GIB),
            ("100%", 8 * GIB),
        ] {
            assert_eq!(parse(text, Some(8 * GIB)), Ok(bytes), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", SizeError::Empty),
            ("  ", SizeError::Empty),
            ("lots", SizeError::NotANumber),
            ("-1G", SizeError::Negative),
            ("-1", SizeError::Negative),
            ("--store", SizeError::NotANumber),
            (".", SizeError::NotANumber),
            ("1.5.5G", SizeError::TwoPoints),
            ("1.2.3%", SizeError::TwoPoints),
            ("2X", SizeError::UnknownUnit),
            ("2GG", SizeError::UnknownUnit),
            ("2iB", SizeError::UnknownUnit),
            ("2%%", SizeError::UnknownUnit),
            ("99999999T", SizeError::TooLarge),
            ("99999999999999999999999", SizeError::TooLarge),
            ("99999999.5T", SizeError::TooLarge),
            ("101%", SizeError::TooManyPercent),
        ] {
            assert_eq!(parse(text, Some(GIB)), Err(reason), "{text:?}");
        }
        assert_eq!(parse("50%", None), Err(SizeError::PercentOfWhat));
    }

    #[test]
    fn exact_reads_back() {
        for bytes in [0, 1, 1023, 1024, 1025, 3 << 20, (3 << 20) + 1, 5 << 40, u64::MAX >> 1] {
            assert_eq!(parse(&exact(bytes), None), Ok(bytes));
        }
        assert_eq!(exact(2 * GIB), "2G");
    }
}
