//! Output: what is found out goes to standard output, a line at a time.
//!
//! Guarantees: a reader that is gone (`| head`) ends nothing: what is measured is cleaned up after
//! as ever. Any other failure to write is told.

use core::fmt::Display;
use std::io::{ErrorKind, Write};

use serde::Serialize;

use crate::failure::Failure;

/// Prints a line, or several.
pub fn line(text: impl Display) -> Result<(), Failure> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::os("standard output", &error))
        }
        _ => Ok(()),
    }
}

/// Prints one line of JSON.
pub fn json(report: &impl Serialize) -> Result<(), Failure> {
    line(serde_json::to_string(report).map_err(|error| Failure::Failed(error.to_string()))?)
}
