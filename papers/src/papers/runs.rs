//! Runs: all points that were measured, a line of JSON each, in one file in order of their names.
//!
//! Guarantees: the file is replaced as a whole, so that an interrupted run leaves what was there; a
//! record with other settings is as good as none; a failure is kept beside the rounds that
//! succeeded, and does not count as one.
//! Never: deletes a record but by one of the same name.
//! Threads: one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::machine::Machine;
use super::numbers::{Numbers, median};
use deepheap_bench::failure::Failure;

/// One time that a point was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// When, in UTC.
    pub date: String,
    /// By which command.
    pub command: String,
    /// Where.
    pub machine: Machine,
    /// The limit of the memory cgroup it ran in, if it ran in one.
    pub limit_bytes: Option<u64>,
    /// What came of it.
    pub numbers: Numbers,
    /// What the program reported, if more than its numbers is wanted later.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub report: Value,
}

/// A point as it is on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The name of the point.
    pub id: String,
    /// What was asked.
    pub settings: Value,
    /// What was measured.
    pub rounds: Vec<Round>,
    /// Why the last try gave nothing, if it did not.
    pub failed: Option<String>,
}

impl Record {
    /// Nothing is known.
    pub fn empty(id: &str, settings: &Value) -> Self {
        Self { id: id.into(), settings: settings.clone(), rounds: Vec::new(), failed: None }
    }

    /// One round that came to these numbers.
    #[cfg(test)]
    pub fn example(numbers: &Value) -> Self {
        let machine = serde_json::from_str(r#"{ "cpus": 2 }"#).expect("a machine");
        let round = Round {
            date: "2026-11-23".into(),
            command: "deepheap-papers real".into(),
            machine,
            limit_bytes: None,
            numbers: Numbers::of_anything(numbers),
            report: Value::Null,
        };
        Self { rounds: vec![round], ..Self::empty("x", &Value::Null) }
    }

    /// The median over the rounds.
    pub fn median(&self, name: &str) -> Option<f64> {
        median(self.rounds.iter().filter_map(|round| round.numbers.get(name)).collect())
    }

    /// The lowest and the highest round, if there were several.
    pub fn spread(&self, name: &str) -> Option<(f64, f64)> {
        let of_rounds = || self.rounds.iter().filter_map(|round| round.numbers.get(name));
        let (low, high) = (of_rounds().reduce(f64::min)?, of_rounds().reduce(f64::max)?);
        (of_rounds().count() > 1).then_some((low, high))
    }
}

/// The file and what is in it.
#[derive(Clone, Debug)]
pub struct Runs {
    path: PathBuf,
    records: RefCell<BTreeMap<String, Record>>,
}

impl Runs {
    /// Reads a file, which need not be there; its folder is made. A line that is no record is none.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::os(path.display(), &error);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.map_err(failed)?,
        };
        let records = text.lines().filter_map(|line| serde_json::from_str::<Record>(line).ok());
        let records = records.map(|record| (record.id.clone(), record)).collect();
        Ok(Self { path: path.into(), records: RefCell::new(records) })
    }

    /// What is known of a point with these settings.
    pub fn load(&self, id: &str, settings: &Value) -> Record {
        let records = self.records.borrow();
        let known = records.get(id).filter(|record| record.settings == *settings);
        known.cloned().unwrap_or_else(|| Record::empty(id, settings))
    }

    /// Keeps what is known of a point.
    pub fn save(&self, record: &Record) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::os(self.path.display(), &error);
        let mut records = self.records.borrow_mut();
        records.insert(record.id.clone(), record.clone());
        let mut text = String::new();
        for record in records.values() {
            text += &serde_json::to_string(record)
                .map_err(|error| Failure::Failed(error.to_string()))?;
            text.push('\n');
        }
        let next = self.path.with_extension("next");
        fs::write(&next, text).map_err(failed)?;
        fs::rename(&next, &self.path).map_err(failed)
    }
}
