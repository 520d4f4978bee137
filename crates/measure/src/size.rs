//! Size: `256M`, `2G`, `1.5G`, `50%` and plain bytes, as people write them.
//!
//! Guarantees: binary units, so `2G` is 2 * 1024^3; a size that does not fit is an error, never
//! a wrapped number.
//! Never: does I/O; what a percentage is taken of comes from the caller.
//! Threads: pure functions.

const NOT_A_NUMBER: &str = "it does not begin with a number; write a size like 256M, 2G or 1.5G";
const TOO_LARGE: &str = "it is larger than any memory; use K, M, G or T (of 1024)";

/// Bytes of a size; `whole` is what percentages are of, `None` if there may be none.
///
/// # Errors
/// What is wrong with the text, and what to write.
pub fn parse(text: &str, whole: Option<u64>) -> Result<u64, &'static str> {
    let text = text.trim();
    if text.is_empty() {
        return Err("it is empty; write a size like 256M, 2G or 1.5G");
    }
    let is_digit = |c: char| c.is_ascii_digit();
    let end = text.find(|c: char| !is_digit(c) && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim_start());
    if number.is_empty() && unit.strip_prefix('-').is_some_and(|rest| rest.starts_with(is_digit)) {
        return Err("it is negative; write a size like 256M, 2G or 1.5G");
    }
    if number.matches('.').count() > 1 {
        return Err("its number has two points; write a size like 256M, 2G or 1.5G");
    }
    if !number.contains(is_digit) {
        return Err(NOT_A_NUMBER);
    }
    if unit == "%" {
        let whole = whole.ok_or("a percentage makes no sense here; write a size like 20G")?;
        let percent: f64 = number.parse().map_err(|_| NOT_A_NUMBER)?;
        if percent > 100.0 {
            return Err("it is more than 100%");
        }
        return Ok((whole as f64 * percent / 100.0) as u64);
    }
    let shift =
        unit_shift(unit).ok_or("its unit is unknown; use K, M, G or T (of 1024), or none")?;
    if let Ok(number) = number.parse::<u64>() {
        let bytes = u128::from(number) << shift;
        return u64::try_from(bytes).ok().filter(|bytes| *bytes <= 1 << 63).ok_or(TOO_LARGE);
    }
    if !number.contains('.') {
        return Err(TOO_LARGE);
    }
    let number: f64 = number.parse().map_err(|_| NOT_A_NUMBER)?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes > (1u64 << 63) as f64 { Err(TOO_LARGE) } else { Ok(bytes as u64) }
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
            ("", "it is empty"),
            ("  ", "it is empty"),
            ("lots", "it does not begin with a number"),
            ("-1G", "it is negative"),
            ("-1", "it is negative"),
            ("--store", "it does not begin with a number"),
            (".", "it does not begin with a number"),
            ("1.5.5G", "its number has two points"),
            ("1.2.3%", "its number has two points"),
            ("2X", "its unit is unknown"),
            ("2GG", "its unit is unknown"),
            ("2iB", "its unit is unknown"),
            ("2%%", "its unit is unknown"),
            ("99999999T", "it is larger than any memory"),
            ("99999999999999999999999", "it is larger than any memory"),
            ("99999999.5T", "it is larger than any memory"),
            ("101%", "it is more than 100%"),
        ] {
            let refused = parse(text, Some(GIB)).expect_err(text);
            assert!(refused.starts_with(reason), "{text:?}: {refused}");
        }
        assert!(parse("50%", None).is_err_and(|refused| refused.contains("makes no sense here")));
    }

    #[test]
    fn exact_reads_back() {
        for bytes in [0, 1, 1023, 1024, 1025, 3 << 20, (3 << 20) + 1, 5 << 40, u64::MAX >> 1] {
            assert_eq!(parse(&exact(bytes), None), Ok(bytes));
        }
        assert_eq!(exact(2 * GIB), "2G");
    }
}
