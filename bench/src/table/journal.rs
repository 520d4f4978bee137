//! Journal: every run of the table as a JSON line; an interrupted table goes on where it was.
//!
//! Guarantees: only whole rounds with the same settings are reused, so that the numbers of a round
//! come from the same minutes.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::Settings;
use crate::failure::Failure;

/// What is known, and where it is written.
pub struct Journal {
    file: Option<File>,
    settings: Value,
    known: Vec<Value>,
}

impl Journal {
    /// Opens or creates `path`; without one nothing is kept.
    pub fn open(path: Option<&Path>, settings: &Settings) -> Result<Self, Failure> {
        let settings = json!({
            "data_bytes": settings.data_bytes,
            "ram_bytes": settings.ram_bytes,
            "seconds": settings.seconds,
            "quick": settings.quick,
            "dir": settings.dir,
        });
        let Some(path) = path else { return Ok(Self { file: None, settings, known: Vec::new() }) };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Failure::os(path.display(), &error)),
        };
        // A last line that was cut short is not JSON and not known.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let known = lines.filter(|line| line["settings"] == settings).collect();
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let mut file = opened.map_err(|error| Failure::os(path.display(), &error))?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n").map_err(|error| Failure::os(path.display(), &error))?;
        }
        Ok(Self { file: Some(file), settings, known })
    }

    /// The results of a round, in the order of `names`, if all of them are known.
    pub fn round(&self, case: &str, round: u32, names: &[String]) -> Option<Vec<Value>> {
        let find = |name: &String| {
            // The latest: an earlier one belongs to a round that was cut short.
            let mut lines = self.known.iter().rev();
            let line = lines.find(|line| {
                line["case"] == case && line["round"] == round && line["contender"] == name.as_str()
            });
            line.map(|line| line["result"].clone())
        };
        names.iter().map(find).collect()
    }

    /// Keeps a result.
    pub fn write(
        &mut self,
        case: &str,
        contender: &str,
        round: u32,
        result: &Value,
    ) -> Result<(), Failure> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let line = json!({ "case": case, "contender": contender, "round": round,
                           "settings": self.settings, "result": result });
        writeln!(file, "{line}").map_err(|error| Failure::os("--out", &error))
    }
}
