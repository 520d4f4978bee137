//! Drive: how long one lasts.

/// The bytes written that a common SSD of 1 TB is rated for: 600 TB.
pub const ENDURANCE_BYTES: f64 = 600e12;
/// Seconds of a day.
pub const DAY_SECONDS: f64 = 86_400.0;

/// Years until such an SSD is worn out by so many bytes a second; none if nothing is written.
pub fn life_years(bytes_per_second: f64) -> Option<f64> {
    (bytes_per_second > 0.0).then(|| ENDURANCE_BYTES / bytes_per_second / DAY_SECONDS / 365.25)
}

/// How long that is, for people.
pub fn in_words(years: Option<f64>) -> String {
    match years {
        None => "nothing written".to_owned(),
        Some(years) if years >= 100.0 => "over 100 years".to_owned(),
        Some(years) if years >= 1.0 => format!("{years:.1} years"),
        Some(years) => format!("{:.0} days", years * 365.25),
    }
}
