//! Standing: what the rounds of one program under one contender come to.
//!
//! Guarantees: a round that gave no time counts as one that took longest; a bound is never told as
//! a number.
//! Never: does I/O.

use crate::papers::figure;
use crate::papers::runs::Record;

/// How a program did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// Nobody measured it.
    Unknown,
    /// The median of its times, in seconds.
    Took(f64),
    /// It was ended after so many seconds.
    Late(f64),
    /// It was killed for memory.
    Killed,
    /// There is no limit with which program and pool take as little.
    Unfit,
}

impl Standing {
    /// Of all rounds.
    pub fn of(record: &Record) -> Self {
        let mut rounds: Vec<Self> = record
            .rounds
            .iter()
            .map(|round| {
                let number = |name| round.numbers.get(name);
                match (number("seconds"), number("late"), number("killed")) {
                    (Some(seconds), _, _) => Self::Took(seconds),
                    (_, Some(limit), _) => Self::Late(limit),
                    (_, _, Some(_)) => Self::Killed,
                    _ => Self::Unfit,
                }
            })
            .collect();
        rounds.sort_by(|a, b| a.order().total_cmp(&b.order()));
        // Of an even number the slower of the middle two: a bound has no mean.
        rounds.get(rounds.len() / 2).copied().unwrap_or(Self::Unknown)
    }

    fn order(self) -> f64 {
        match self {
            Self::Took(seconds) => seconds,
            Self::Late(_) => 1e9,
            Self::Killed => 2e9,
            Self::Unfit => 3e9,
            Self::Unknown => 4e9,
        }
    }

    /// The better of two.
    pub fn better(self, other: Self) -> Self {
        if self.order() <= other.order() { self } else { other }
    }

    /// As it stands in a table.
    pub fn shown(self) -> String {
        match self {
            Self::Unknown => figure::UNKNOWN.into(),
            Self::Took(seconds) => figure::shown(seconds, "s"),
            Self::Late(limit) => format!("> {}", figure::shown(limit, "s")),
            Self::Killed => "killed".into(),
            Self::Unfit => "does not fit".into(),
        }
    }

    /// Whether going on with further rounds could tell more.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Late(_) | Self::Unfit)
    }
}

/// How many times as fast one is as another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// Both ended.
    Exactly(f64),
    /// The other did not end in time.
    MoreThan(f64),
    /// This one did not end in time.
    LessThan(f64),
    /// That says nothing.
    Unknown,
}

impl Speed {
    /// Of `one` beside `other`.
    pub fn of(one: Standing, other: Standing) -> Self {
        match (one, other) {
            (Standing::Took(one), Standing::Took(other)) => Self::Exactly(other / one),
            (Standing::Took(one), Standing::Late(limit)) => Self::MoreThan(limit / one),
            (Standing::Late(limit), Standing::Took(other)) => Self::LessThan(other / limit),
            _ => Self::Unknown,
        }
    }

    /// As it stands in a table.
    pub fn shown(self) -> String {
        match self {
            Self::Exactly(times) => format!("{times:.2}x"),
            Self::MoreThan(times) => format!("> {times:.1}x"),
            Self::LessThan(times) => format!("< {times:.2}x"),
            Self::Unknown => figure::UNKNOWN.into(),
        }
    }

    /// The number, or that of the bound.
    pub fn bound(self) -> Option<f64> {
        match self {
            Self::Exactly(times) | Self::MoreThan(times) | Self::LessThan(times) => Some(times),
            Self::Unknown => None,
        }
    }

    /// The number, if there is one.
    pub fn exactly(self) -> Option<f64> {
        match self {
            Self::Exactly(times) => Some(times),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn record(rounds: &[Value]) -> Record {
        let rounds: Vec<Value> = rounds
            .iter()
            .map(|numbers| {
                json!({ "date": "", "command": "", "machine": { "cpus": 2 }, "limit_bytes": null,
                        "numbers": numbers, "report": null })
            })
            .collect();
        let record = json!({ "id": "x", "settings": null, "rounds": rounds, "failed": null });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn the_median_counts_what_did_not_end_as_slowest() {
        let took = |seconds: f64| json!({ "seconds": seconds });
        let late = json!({ "late": 40.0 });
        let of = |rounds: &[Value]| Standing::of(&record(rounds));
        assert_eq!(of(&[]), Standing::Unknown);
        assert_eq!(of(&[took(3.0), took(1.0), took(2.0)]), Standing::Took(2.0));
        assert_eq!(of(&[took(3.0), late.clone(), took(2.0)]), Standing::Took(3.0));
        assert_eq!(of(&[late.clone(), late.clone(), took(2.0)]), Standing::Late(40.0));
        assert_eq!(of(&[json!({ "killed": 1.0 })]), Standing::Killed);
        assert_eq!(of(&[json!({ "unfit": 1.0 })]), Standing::Unfit);
        assert_eq!(Standing::Late(1.0).better(Standing::Took(9.0)), Standing::Took(9.0));
    }

    #[test]
    fn a_bound_is_told_as_one() {
        let (took, late) = (Standing::Took(2.0), Standing::Late(40.0));
        let shown = |one, other| Speed::of(one, other).shown();
        assert_eq!(shown(took, Standing::Took(3.0)), "1.50x");
        assert_eq!(shown(took, late), "> 20.0x");
        assert_eq!(shown(late, took), "< 0.05x");
        assert_eq!(shown(late, late), "-");
        assert_eq!(shown(Standing::Killed, took), "-");
        assert_eq!(late.shown(), "> 40 s");
    }
}
