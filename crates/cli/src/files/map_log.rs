//! Map log: `deepheap inspect` and `fsck` of a map with a log; those of others are in `durable`.
//!
//! Guarantees: `fsck` ends with status 0 only if nothing is damaged, and with 1 if something is.
//! Never: changes the file.
//! Threads: none but main.

use std::fmt::Write;
use std::path::Path;

use deepheap::internal::stats_report::bytes;
use deepheap_tools::maps::{self, Look, MapError};

use crate::arguments::OfFile;
use crate::files::durable::{self, ago, verdict};
use crate::refusal::{Refusal, print_out};

/// The content of the file; none: it is no map with a log, or cannot be opened.
fn look(file: &Path) -> Result<Option<Look>, Refusal> {
    match maps::look(file) {
        Ok(look) => Ok(look),
        // A reader that looks for a durable heap says it.
        Err(MapError::Open(_)) => Ok(None),
        Err(error) => Err(Refusal::new(format!("{}: {error}", file.display()))),
    }
}

/// Shows what is in the file.
pub fn inspect(of: &OfFile) -> Result<(), Refusal> {
    match look(&of.file)? {
        Some(look) => print_out(text(&of.file, &look)),
        None => durable::inspect(of),
    }
}

fn text(file: &Path, look: &Look) -> String {
    let mut out = format!("{}: a map with a log\n", file.display());
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "  {name:<12}{text}");
    };
    let (superblock, shape) = (&look.superblock, &look.superblock.shape);
    let written = ago(superblock.time);
    let closing = if superblock.is_clean { ", when the map was ended" } else { "" };
    line("superblock", format!("number {}, written {written}{closing}", superblock.sequence));
    line(
        "data",
        format!("{}, from byte {} of the file", bytes(shape.data_bytes), shape.base_start()),
    );
    match &look.survey {
        None => line("log", "processes have the file mapped: see `deepheap maps`".to_owned()),
        Some(Err(error)) => line("log", error.to_string()),
        Some(Ok(survey)) => {
            let (used, whole) = (bytes(survey.bytes), bytes(shape.log_bytes));
            line("log", format!("{used} of {whole}, {} commits", survey.commits));
            let (committed, dropped) = (survey.committed_records, survey.uncommitted_records);
            let committed = format!("{committed} records, for the next map to bring into the data");
            line("committed", committed);
            line("dropped", format!("{dropped} records that were never committed"));
        }
    }
    if look.is_superblock_damaged {
        line("damage", DAMAGED.to_owned());
    }
    out
}

const DAMAGED: &str = "one of the two superblocks: a process or the power ended while it was \
                       written, or the device has lost it";

/// Verifies the file.
pub fn fsck(of: &OfFile) -> Result<(), Refusal> {
    match look(&of.file)? {
        Some(look) => verify(&of.file, &look),
        None => durable::fsck(of),
    }
}

fn verify(file: &Path, look: &Look) -> Result<(), Refusal> {
    let Some(survey) = &look.survey else {
        let text = format!("{}: processes have the file mapped: end them first", file.display());
        return Err(Refusal::new(text));
    };
    let mut out = match survey {
        Ok(survey) => format!(
            "{}: {} frames of the log and {} records were read; pages have no checksums\n",
            file.display(),
            survey.frames,
            survey.committed_records + survey.uncommitted_records
        ),
        Err(error) => format!("{}: {error}\n", file.display()),
    };
    if look.is_superblock_damaged {
        let _ = writeln!(out, "  {DAMAGED}");
    }
    let is_clean = survey.is_ok() && !look.is_superblock_damaged;
    verdict(out, is_clean, "map")
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepheap::maps::{Map, MapOptions};

    #[test]
    fn a_map_with_a_log_is_shown_and_verified_and_its_damage_is_found() {
        let name = format!("deepheap-map-log-{}", std::process::id());
        let path = Path::new("/var/tmp").join(name);
        let options = MapOptions {
            writes: true,
            length: 1 << 20,
            ram: 4 << 20,
            has_log: true,
            ..Default::default()
        };
        let map = Map::open(&path, options).expect("a map");
        let mapped = text(&path, &look(&path).expect("a file").expect("a map"));
        assert!(mapped.contains("deepheap maps"), "{mapped}");
        drop(map);
        let shown = text(&path, &look(&path).expect("a file").expect("a map"));
        for words in ["a map with a log", "1.00 MiB", "when the map was ended", "0 commits"] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        let clean = verify(&path, &look(&path).expect("a file").expect("a map"));
        let mut file = std::fs::read(&path).expect("the file");
        file[1000] ^= 1;
        std::fs::write(&path, file).expect("the file");
        let damaged = verify(&path, &look(&path).expect("a file").expect("a map"));
        std::fs::remove_file(&path).expect("it is removed");
        assert!(clean.is_ok() && damaged.is_err());
    }
}
