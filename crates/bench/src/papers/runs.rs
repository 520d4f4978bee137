//! Runs: one JSON file for each point, `<out>/runs/<id>.json`, with all its rounds.
//!
//! Guarantees: a file is replaced as a whole, so that an interrupted run leaves what was there; a
//! record with other settings is as good as none; a failure is kept beside the rounds that
//! succeeded, and does not count as one.
//! Never: deletes a file.
//! Threads: one.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::machine::Machine;
use super::numbers::{Numbers, median};
use crate::failure::Failure;

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
    /// All that the program reported.
    pub report: Value,
}

/// A point as it is on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The name of the file.
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

/// The folder of the files.
#[derive(Clone, Debug)]
pub struct Runs {
    folder: PathBuf,
}

impl Runs {
    /// The folder, which is made if it is not there.
    pub fn open(folder: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(folder).map_err(|error| Failure::os(folder.display(), &error))?;
        Ok(Self { folder: folder.into() })
    }

    /// What is known of a point with these settings; a file that cannot be read is no knowledge.
    pub fn load(&self, id: &str, settings: &Value) -> Record {
        let text = fs::read_to_string(self.path(id)).unwrap_or_default();
        serde_json::from_str::<Record>(&text)
            .ok()
            .filter(|record| record.settings == *settings)
            .unwrap_or_else(|| Record::empty(id, settings))
    }

    /// Keeps what is known of a point.
    pub fn save(&self, record: &Record) -> Result<(), Failure> {
        let (path, next) = (self.path(&record.id), self.path(&format!("{}.next", record.id)));
        let failed = |error: std::io::Error| Failure::os(path.display(), &error);
        let mut text = serde_json::to_string_pretty(record)
            .map_err(|error| Failure::Failed(error.to_string()))?;
        text.push('\n');
        fs::write(&next, text).map_err(failed)?;
        fs::rename(&next, &path).map_err(failed)
    }

    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }
}
