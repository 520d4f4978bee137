//! Point: one program with its options under one contender.
//!
//! Every contender has the same RAM. deepheap gets it as its budget, with objects and with pages;
//! beside that a program has memory of its own, an index for example, which deepheap does not move.
//! An application under swap and mmap therefore gets a memory cgroup with as much as the object
//! variant was seen to use as a whole, page tables included. The worker of `deepheap-bench run`
//! sees to that by itself.
//!
//! Guarantees: the id names program, options and contender, and is good as a file name.
//! Never: does I/O.

use serde_json::{Value, json};

use super::experiments::{Case, Contender, Program};
use super::numbers::Numbers;
use super::settings::Settings;
use deepheap_bench::sizes::ObjectSize;

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// What runs.
    pub program: Program,
    /// Where its memory comes from.
    pub contender: Contender,
    /// Names and values, sorted.
    pub options: Vec<(String, String)>,
    /// The RAM is this part of the data.
    pub ram_part: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// By our names.
    pub numbers: Numbers,
    /// Of the memory cgroup.
    pub limit_bytes: Option<u64>,
}

impl Point {
    /// The point of a case under a contender.
    pub fn of(case: &Case, contender: Contender) -> Self {
        let pair = |&(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        let mut options: Vec<_> = case.options.iter().map(pair).collect();
        options.sort();
        Self { program: case.program, contender, options, ram_part: case.ram_part }
    }

    /// `packets.object-100-1500.threads-8.writes-50.swap`.
    pub fn id(&self) -> String {
        let mut parts = vec![self.program.name().to_string()];
        parts.extend(self.options.iter().map(|(name, value)| format!("{name}-{value}")));
        if self.ram_part != super::experiments::RAM_PART {
            parts.push(format!("ram-{}", self.ram_part));
        }
        parts.push(self.contender.name().into());
        parts.join(".")
    }

    /// Everything that another number could come of, but the machine.
    pub fn settings(&self, settings: &Settings) -> Value {
        json!({
            "program": self.program.name(),
            "contender": self.contender.name(),
            "options": self.options.iter().map(|(name, value)| json!([name, value]))
                .collect::<Vec<_>>(),
            "data_bytes": settings.data_bytes,
            "ram_bytes": self.ram_bytes(settings),
            "seconds": settings.seconds,
            "warm_up": self.warm_up(settings),
            "page_cluster": self.program.page_cluster(),
        })
    }

    /// Its RAM: the share of the data that the settings give to a case of the usual part, scaled.
    pub fn ram_bytes(&self, settings: &Settings) -> u64 {
        settings.ram_bytes * super::experiments::RAM_PART / self.ram_part
    }

    /// Operations before those that are measured, the same for all contenders of a case; the
    /// program's own number if there is nothing.
    pub fn warm_up(&self, settings: &Settings) -> Option<u64> {
        if let Some(operations) = settings.warm_up {
            return Some(operations / self.program.objects_an_operation());
        }
        // Twice the objects that all of the RAM would hold: whatever holds objects or pages holds
        // nothing any more that it had after the fill.
        let size = self.object_size().filter(|_| self.program == Program::Memory)?;
        let fitting = 2 * self.ram_bytes(settings) / size.mean_bytes();
        Some(fitting.min(2 * settings.data_bytes / size.mean_bytes()))
    }

    /// The option that says how large objects are.
    pub fn object_size(&self) -> Option<ObjectSize> {
        let named = |(name, _): &&(String, String)| name == "object" || name == "object-size";
        self.options.iter().find(named)?.1.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::experiments;
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn an_id_means_one_point_and_is_a_file_name() {
        let mut seen: BTreeMap<String, Point> = BTreeMap::new();
        for experiment in experiments::all() {
            for case in experiment.cases {
                for &contender in case.contenders {
                    let point = Point::of(case, contender);
                    let id = point.id();
                    assert!(id.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)));
                    let other = seen.insert(id.clone(), point.clone());
                    assert!(other.is_none_or(|other| other == point), "{id} means two points");
                }
            }
        }
        assert!(seen.len() > 100, "{}", seen.len());
    }

    #[test]
    fn the_contenders_of_a_case_warm_up_alike() {
        let settings = Settings { warm_up: None, ..Settings::example() };
        for case in experiments::all().flat_map(|experiment| experiment.cases) {
            let warm_up = |who| Point::of(case, who).warm_up(&settings);
            let all: Vec<Option<u64>> = case.contenders.iter().copied().map(warm_up).collect();
            assert!(all.iter().all(|operations| *operations == all[0]), "{case:?}");
            // Else the layout, which contenders do not share, would decide.
            assert!(case.program != Program::Memory || all[0] > Some(10_000), "{case:?}");
        }
    }
}
