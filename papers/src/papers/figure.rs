//! Figure: a number as a reader wants it: three digits, a unit, a range.
//!
//! Guarantees: equal numbers look equal; what is not known is a dash.
//! Never: rounds to nothing: a small number keeps its digits.

use super::experiments::Form;
use deepheap_bench::gauges::ENDURANCE_BYTES;

/// What stands for a number that is not known.
pub const UNKNOWN: &str = "-";

/// A number with its unit.
pub fn shown(value: f64, unit: &str) -> String {
    match unit {
        "us" if value.abs() >= 1e6 => format!("{} s", digits(value / 1e6)),
        "us" if value.abs() >= 1e3 => format!("{} ms", digits(value / 1e3)),
        "B" if value >= (1 << 20) as f64 => format!("{} MiB", digits(value / 1_048_576.0)),
        "B" if value >= 1e4 => format!("{} KiB", digits(value / 1024.0)),
        "us" | "B" => format!("{} {unit}", digits(value)),
        _ => {
            let (scaled, thousands) = match value.abs() {
                v if v >= 1e6 => (value / 1e6, " M"),
                v if v >= 1e4 => (value / 1e3, " k"),
                _ => (value, ""),
            };
            let space = if unit.is_empty() || unit.starts_with('/') { "" } else { " " };
            format!("{}{thousands}{space}{unit}", digits(scaled))
        }
    }
}

/// The same, or a dash.
pub fn or_dash(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(|| UNKNOWN.into(), |value| shown(value, unit))
}

/// A comparison.
pub fn compared(value: f64, form: Form, unit: &str) -> String {
    match form {
        Form::Plain => shown(value, unit),
        Form::Times | Form::FirstToLast => times(value),
        Form::PercentMore | Form::PercentLess => format!("{} %", digits(value)),
        Form::Added if value > 0.0 => format!("+{}", shown(value, unit)),
        Form::Added => shown(value, unit),
    }
}

/// `2.5x`, or `1/20` where it is far below one.
pub fn times(ratio: f64) -> String {
    if ratio > 0.0 && ratio < 0.5 {
        format!("1/{}", digits(1.0 / ratio))
    } else {
        format!("{}x", digits(ratio))
    }
}

/// Two numbers, or one if they look the same.
pub fn range((least, most): (f64, f64), show: impl Fn(f64) -> String) -> String {
    let (least, most) = (show(least), show(most));
    if least == most { least } else { format!("{least} to {most}") }
}

/// How long a drive lasts.
pub fn years(value: Option<f64>) -> String {
    match value {
        None => UNKNOWN.into(),
        Some(years) if years > 1000.0 => "> 1000 years".into(),
        Some(years) if years >= 1.0 => format!("{} years", digits(years)),
        Some(years) => format!("{} days", digits(years * 365.25)),
    }
}

/// What `years` is about.
pub fn endurance() -> String {
    format!("{} TB", ENDURANCE_BYTES / 1e12)
}

/// Three digits that count.
fn digits(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{value:.places$}");
    if value == value.trunc() && value.abs() < 1e15 { format!("{value:.0}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (value, unit, text) in [
            (25_369.1, "/s", "25.4 k/s"),
            (1234.0, "/s", "1234/s"),
            (1_300_000.0, "entries", "1.30 M entries"),
            (0.014, "us", "0.014 us"),
            (257.0, "us", "257 us"),
            (2_228.2, "us", "2.23 ms"),
            (1419.3, "B", "1419 B"),
            (8.0, "lines", "8 lines"),
            (0.0, "B", "0 B"),
        ] {
            assert_eq!(shown(value, unit), text);
        }
        assert_eq!((times(2.345), times(0.05)), ("2.35x".into(), "1/20".into()));
        assert_eq!(range((1.0, 1.001), times), "1x to 1.00x");
        assert_eq!(range((2.0, 2.0), times), "2x");
        assert_eq!(compared(3.25, Form::Added, "us"), "+3.25 us");
        assert_eq!(years(Some(0.5)), "183 days");
        assert_eq!(or_dash(None, "us"), "-");
    }
}
