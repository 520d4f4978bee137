//! Zram: swap on compressed RAM (lz4), made, switched on, switched off and removed by one run.
//!
//! Guarantees: a device of our own, added for the run, in the ledger before swap is on; one swap
//! run at a time on a machine, as with swap files.
//! Never: touches a zram device that was there.
//! Threads: the supervising thread only.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::ledger::{self, Entry, Ledger};
use crate::swap_file::{PAGE, cluster_pages, header, size_for, swap_on, wait_for_turn};

const ADD: &str = "/sys/class/zram-control/hot_add";
const ALGORITHM: &str = "lz4";

/// Swap on compressed RAM; the ledger takes it back.
#[derive(Debug)]
pub struct Zram {
    folder: PathBuf,
    _turn: File,
}

/// Whether this kernel has it.
pub fn is_there() -> bool {
    Path::new(ADD).exists()
}

impl Zram {
    /// Adds a device with room for `data_bytes`, and switches swap on it on.
    pub fn create(ledger: &mut Ledger, data_bytes: u64) -> Result<Self, Failure> {
        let turn = wait_for_turn()?;
        ledger::clean();
        // Reading this file adds a device.
        let number = fs::read_to_string(ADD).map_err(|error| Failure::os(ADD, &error))?;
        let parsed = number.trim().parse::<u32>();
        let number = parsed.map_err(|_| Failure::Failed(format!("{ADD}: says {number}")))?;
        ledger.note(Entry::Zram(number))?;
        let folder = PathBuf::from(format!("/sys/block/zram{number}"));
        let device = PathBuf::from(format!("/dev/zram{number}"));
        let bytes = size_for(data_bytes);
        for (file, value) in [("comp_algorithm", ALGORITHM), ("disksize", &bytes.to_string())] {
            let path = folder.join(file);
            fs::write(&path, value).map_err(|error| Failure::os(path.display(), &error))?;
        }
        let failed = |error: std::io::Error| Failure::os(device.display(), &error);
        let mut file = OpenOptions::new().write(true).open(&device).map_err(failed)?;
        file.write_all(&header(bytes / PAGE)).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        drop(file);
        if !swap_on(&device)? {
            return Err(Failure::last_os(format!("swapon {}", device.display())));
        }
        // There is no seek to save, and reading ahead would decompress for nothing.
        cluster_pages(ledger, 0)?;
        Ok(Self { folder, _turn: turn })
    }

    /// Bytes of RAM that it takes now.
    pub fn pool_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join("mm_stat")).unwrap_or_default();
        text.split_whitespace().nth(2).and_then(|field| field.parse().ok()).unwrap_or(0)
    }
    /// The compressors that the kernel offers, the one in use in brackets.
    pub fn compressors(&self) -> String {
        let text = fs::read_to_string(self.folder.join("comp_algorithm")).unwrap_or_default();
        text.trim().to_owned()
    }
}
