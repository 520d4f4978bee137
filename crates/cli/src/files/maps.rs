//! Maps command: `deepheap maps`, which files are mapped by whom.
//!
//! Never: changes anything.
//! Threads: none but main.

use std::fmt::Write;

use deepheap::internal::stats_report::bytes;
use deepheap_tools::maps::{self, Listed};

use crate::refusal::{Refusal, print_out};

/// Shows the maps of this user.
pub fn maps() -> Result<(), Refusal> {
    let listed = maps::list().map_err(|errno| {
        Refusal::missing(format!("the folder where maps are listed cannot be read: {errno}"))
    })?;
    print_out(text(&listed))
}

fn text(listed: &[Listed]) -> String {
    if listed.is_empty() {
        return "No process of this user has a map.\n".to_owned();
    }
    let mut out = String::new();
    for map in listed {
        let _ = writeln!(out, "{}: {}", map.path.display(), bytes(map.file_bytes));
        let (resident, budget) = (bytes(map.resident_bytes), bytes(map.budget_bytes));
        let _ = writeln!(out, "  RAM         {resident} of {budget}");
        let processes = map.processes.iter().map(|process| {
            let how = if process.is_writer { "writes" } else { "reads" };
            format!("{} ({how})", process.pid)
        });
        let _ = writeln!(out, "  processes   {}", processes.collect::<Vec<_>>().join(", "));
        let _ = writeln!(out, "  faults      {}", map.faults);
        let _ = writeln!(out, "  written     {} pages", map.pages_written);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use maps::Process;

    #[test]
    fn a_map_is_shown_with_its_processes() {
        let map = Listed {
            path: "/data/vectors".into(),
            processes: vec![
                Process { pid: 17, is_writer: true },
                Process { pid: 18, is_writer: false },
            ],
            file_bytes: 4 << 30,
            budget_bytes: 256 << 20,
            resident_bytes: 1 << 20,
            faults: 300,
            pages_written: 7,
        };
        let shown = text(&[map]);
        for words in ["/data/vectors", "17 (writes), 18 (reads)", "300", "7 pages"] {
            assert!(shown.contains(words), "{shown}");
        }
        assert!(text(&[]).contains("No process"));
    }
}
