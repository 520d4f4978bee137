//! Marked page: a page of the documents, of which a command writes what stands between two marks.
//!
//! Guarantees: what stands outside of the marks stays as it is.
//! Never: measures.

use std::fs;
use std::path::Path;

use crate::failure::Failure;

/// The second mark. The first one names the command that writes there.
pub const END: &str = "<!-- measured: end -->";

/// Puts a text behind the mark `begin` of a page. `usual` is where the page usually lies.
pub fn put(page: &Path, begin: &str, text: &str, usual: &str) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::os(page.display(), &error);
    let old = fs::read_to_string(page).map_err(failed)?;
    let new = between(&old, begin, text).ok_or_else(|| {
        Failure::Refused(format!("{}: has no marks; --page: give {usual}", page.display()))
    })?;
    fs::write(page, new).map_err(failed)
}

/// The page with another text between the marks; none if it has no marks.
pub fn between(page: &str, begin: &str, text: &str) -> Option<String> {
    let (before, rest) = page.split_once(begin)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}\n{}\n{END}{after}", text.trim()))
}
