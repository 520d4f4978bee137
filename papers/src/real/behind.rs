//! Behind: what bounds the rows in which deepheap is slower than swap: faults, bytes, CPU.
//!
//! Guarantees: a number is the median of a record's rounds.
//! Never: does I/O.

use core::fmt::Write;

use super::measured::{Line, Measured};
use super::standing::Speed;
use crate::papers::figure;
use crate::papers::runs::Record;

/// deepheap's columns, and those of swap: numbers of a run, and their units.
const OURS: [(&str, &str); 6] = [
    ("cached_faults", ""),
    ("stored_faults", ""),
    ("read_bytes", "B"),
    ("written_bytes", "B"),
    ("user_seconds", "s"),
    ("system_seconds", "s"),
];
const SWAP: [(&str, &str); 5] = [
    ("major_faults", ""),
    ("swapped_in_bytes", "B"),
    ("swapped_out_bytes", "B"),
    ("user_seconds", "s"),
    ("system_seconds", "s"),
];

/// A table; nothing if no row is behind.
pub fn text(all: &[Measured]) -> String {
    let is_behind = |line: &Line<'_>| {
        let speed = line.beside_swap();
        matches!(speed, Speed::Exactly(x) | Speed::LessThan(x) if x < 1.0)
    };
    let mut text = String::new();
    for line in all.iter().flat_map(Measured::lines).filter(is_behind) {
        let shown = |record: Option<&Record>, names: &[(&str, &str)]| {
            let number = |&(name, unit): &(&str, &str)| {
                let value = record.and_then(|record| record.median(name));
                figure::or_dash(value, unit)
            };
            names.iter().map(number).collect::<Vec<_>>().join(" | ")
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            line.program.id,
            line.part,
            line.beside_swap().shown(),
            shown(line.ours, &OURS),
            shown(line.swap, &SWAP),
        );
    }
    if text.is_empty() {
        return text;
    }
    format!(
        "\nRows that are behind swap, and what both did; faults that deepheap served from \
         compressed RAM, and from the SSD.\n\n\
         | program | memory | deepheap : swap | compressed | SSD | read | written | user | system \
         | swap: major faults | read | written | user | system |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n{text}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::contender::Part;
    use super::super::programs;
    use super::*;

    #[test]
    fn only_rows_behind_swap_are_explained() {
        let record = |numbers| Record::example(&numbers);
        let limited = |ours: f64| {
            let ours = json!({ "seconds": ours, "stored_faults": 7, "read_bytes": 1 << 21 });
            vec![record(ours), record(json!({ "seconds": 4.0, "major_faults": 9 }))]
        };
        let measured = |ours| Measured {
            program: &programs::ALL[0],
            alone: record(json!({ "seconds": 1.0, "peak_bytes": 1e8 })),
            limited: vec![(Part::USUAL[0], limited(ours))],
        };
        assert_eq!(text(&[measured(2.0)]), "");
        let row = "| 2/3 | 0.50x | - | 7 | 2 MiB | - | - | - | 9 | - | - | - | - |";
        assert!(text(&[measured(8.0)]).contains(row), "{}", text(&[measured(8.0)]));
    }
}
