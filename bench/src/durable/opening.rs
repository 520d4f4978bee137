//! Opening: how long a large durable heap takes to open and to give the first of its data: many
//! small objects, or one allocation of which little was ever touched.
//!
//! Another process makes the heap. What the kernel has cached of files is dropped then, which
//! needs root.
//!
//! Guarantees: a wrong word ends it with an error. Its files are removed.
//! Threads: one, beside those of the heap.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use deepheap::{DurableHeap, DurableOptions};
use deepheap_load::random::Random;
use serde::Serialize;

use super::checkpoints::{check, close, failed, make_checkpoint, milliseconds, word};
use super::new_folder;
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::sizes::parse_bytes;
use crate::{output, signals};

/// Of a sparse allocation one of so many bytes is touched.
const SPARSE: usize = 16 << 20;
/// Bytes of an object.
const OBJECT: usize = 128;

/// What a heap holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Content {
    /// Objects of 128 bytes, each on a page of its own
    Objects,
    /// One allocation of which a page for each 16 MiB was touched
    Sparse,
}

/// What `deepheap-bench opening` takes.
#[derive(Clone, Debug, Args)]
pub struct Opening {
    /// What the heap holds
    #[arg(long, value_enum, default_value = "objects")]
    content: Content,
    /// Bytes of it
    #[arg(long, value_parser = parse_bytes, default_value = "4G", value_name = "SIZE")]
    data: u64,
    /// RAM of the heap
    #[arg(long, value_parser = parse_bytes, default_value = "256M", value_name = "SIZE")]
    ram: u64,
    /// Times that it is opened
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Folder for the file
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Makes this heap and ends
    #[arg(long, hide = true)]
    make: Option<PathBuf>,
    /// Opens this heap, prints the times, and ends
    #[arg(long, hide = true)]
    open: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    content: Content,
    data_bytes: u64,
    places: usize,
    open_ms: f64,
    first_access_ms: f64,
    thousand_accesses_ms: f64,
}

impl Opening {
    /// Makes a heap, opens it some times, and prints a JSON line for each.
    pub fn main(&self) -> Result<(), Failure> {
        if let Some(path) = &self.make {
            return self.make_heap(path);
        }
        if let Some(path) = &self.open {
            return self.open_heap(path);
        }
        signals::install();
        let mut ledger = Ledger::open()?;
        let folder = new_folder(&mut ledger, &self.dir, "opening")?;
        let path = folder.join("heap");
        self.in_process("--make", &path)?;
        for _ in 0..self.runs.max(1) {
            drop_caches()?;
            self.in_process("--open", &path)?;
        }
        std::fs::remove_file(&path).map_err(|error| Failure::os(path.display(), &error))
    }

    fn in_process(&self, what: &str, path: &Path) -> Result<(), Failure> {
        let mut command = Command::new("/proc/self/exe");
        let content = self.content.to_possible_value().map(|value| value.get_name().to_owned());
        command.arg("opening").arg("--content").arg(content.unwrap_or_default());
        command.args(["--data", &self.data.to_string(), "--ram", &self.ram.to_string()]);
        command.arg(what).arg(path);
        signals::die_with_parent(&mut command);
        let status = command.status().map_err(|error| Failure::os("/proc/self/exe", &error))?;
        signals::interrupted()?;
        match status.success() {
            true => Ok(()),
            false => Err(Failure::Failed(format!("{what}: {status}"))),
        }
    }

    /// Bytes from one word that is written to the next, and how many words.
    fn places(&self) -> (usize, usize) {
        match self.content {
            Content::Objects => (deepheap::objects::stride(OBJECT), self.data as usize / OBJECT),
            Content::Sparse => (SPARSE, self.data as usize / SPARSE),
        }
    }

    fn heap(&self, path: &Path, more: &str) -> Result<DurableHeap, Failure> {
        let options = DurableOptions::parse(&format!("ram:{}{more}", self.ram));
        DurableHeap::open(path, &options.map_err(|error| failed(&error))?)
            .map_err(|error| failed(&error))
    }

    fn make_heap(&self, path: &Path) -> Result<(), Failure> {
        let (stride, count) = self.places();
        // Objects take a page of addresses each; the file grows as it is written.
        let size = (stride * count) as u64 * 5 / 4 + (1 << 30);
        let stored = self.data * 3 + (1 << 30);
        let heap = self.heap(path, &format!(",size:{size},store_size:{stored}"))?;
        let start = match self.content {
            Content::Objects => heap.allocate_objects(count, OBJECT),
            Content::Sparse => heap.malloc(self.data as usize),
        };
        if start.is_null() {
            return Err(Failure::Failed("no room for the data".into()));
        }
        heap.set_root("data", start).map_err(|error| failed(&error))?;
        let start = start.expose_provenance();
        for number in 0..count {
            // SAFETY: memory of ours.
            unsafe {
                word(start, number * stride / 8).write_volatile((number * stride / 8) as u64)
            };
        }
        make_checkpoint(&heap)?;
        close(heap)
    }

    fn open_heap(&self, path: &Path) -> Result<(), Failure> {
        let (stride, places) = self.places();
        let mut random = Random::new(13, u64::from(std::process::id()));
        let begun = Instant::now();
        let since = |begun: Instant| -> f64 { milliseconds(begun.elapsed()) };
        let heap = self.heap(path, "")?;
        let open_ms = since(begun);
        let start = heap.root("data").expose_provenance();
        let mut access = || {
            let number = random.below(places as u64) as usize;
            check(start, number * stride / 8, u64::MAX)
        };
        access()?;
        let first_access_ms = since(begun);
        (0..1000).try_for_each(|_| access())?;
        output::json(&Report {
            content: self.content,
            data_bytes: self.data,
            places,
            open_ms,
            first_access_ms,
            thousand_accesses_ms: since(begun) - first_access_ms,
        })?;
        close(heap)
    }
}

/// Makes the kernel forget what it has cached of files.
fn drop_caches() -> Result<(), Failure> {
    // SAFETY: a call without arguments.
    unsafe { libc::sync() };
    signals::sleep(Duration::from_secs(1))?;
    std::fs::write("/proc/sys/vm/drop_caches", "3")
        .map_err(|error| Failure::os("/proc/sys/vm/drop_caches", &error))
}
