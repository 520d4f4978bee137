//! Overheads: what a fault on an object is made of, step by step, beside Table 4 of the SSDAlloc
//! paper; and what calls cost that need no fault.
//!
//! Guarantees: all numbers are CPU time, so that a busy machine changes them little; the steps are
//! measured one after the other in this process, with one thread that touches; what a number
//! includes is printed beside it.
//! Never: claims a step it could not measure.
//! Threads: one, and those of deepheap; for the calls also several.

mod calls;
mod moves;
mod signal;
mod tlb;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::backend::deepheap;
use crate::failure::Failure;
use crate::output;
use crate::sizes::parse_bytes;
use crate::workload::Layout;

/// What `deepheap-bench overheads` takes.
#[derive(Clone, Debug, Args)]
pub struct Overheads {
    /// Objects that are touched; all of them fit the RAM, next to none the page buffer
    #[arg(long, default_value_t = 20_000, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    pub objects: u64,
    /// Size of one object, at most 4096
    #[arg(long, value_parser = parse_bytes, default_value = "128", value_name = "SIZE")]
    pub object_size: u64,
    /// Objects (dh_oalloc for each) or pages (malloc of 4 KiB for each, and more of them than fit
    /// the RAM)
    #[arg(long, value_enum, default_value = "objects", value_name = "HOW")]
    pub allocate: Layout,
    /// deepheap's RAM budget
    #[arg(long = "ram", value_parser = parse_bytes, default_value = "256M", value_name = "SIZE")]
    pub ram_bytes: u64,
    /// deepheap's other settings, as DEEPHEAP_CONF takes them
    #[arg(long, default_value = "page_buffer:2M", value_name = "SETTINGS")]
    pub conf: String,
    /// Where the store lies
    #[arg(long, default_value = ".", value_name = "PATH")]
    pub dir: PathBuf,
    /// Seconds that objects are moved
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Prints one JSON line instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Everything measured; microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    tlb_miss_us: f64,
    address_lookup_us: f64,
    signal_us: f64,
    materialize_us: f64,
    dematerialize_us: f64,
    combined_us: f64,
    #[serde(flatten)]
    moves: moves::Counts,
    calls: calls::Counts,
    allocate: Layout,
    object_bytes: u64,
    objects: u64,
}

impl Overheads {
    /// Measures and prints.
    pub fn main(&self) -> Result<(), Failure> {
        if !(16..=4096).contains(&self.object_size) {
            return Err(Failure::Refused("--object-size: use 16 to 4096 bytes".into()));
        }
        if !matches!(self.allocate, Layout::Objects | Layout::Each) {
            return Err(Failure::Refused("--allocate: use objects or each".into()));
        }
        let tlb_miss_us = tlb::miss_us()?;
        let signal_us = signal::round_trip_us()?;
        deepheap::start(self.ram_bytes, &self.dir, &self.conf)?;
        let objects = moves::Field::new(self)?;
        let address_lookup_us = objects.lookup_us();
        let counts = objects.moves(self.seconds)?;
        let calls = objects.called(|called| called.measure())?;
        let measured = Measured {
            tlb_miss_us,
            address_lookup_us,
            signal_us,
            materialize_us: counts.touching_us_per_fault() - signal_us,
            dematerialize_us: counts.evicting_us_per_eviction(),
            combined_us: counts.us_per_fault(),
            moves: counts,
            calls,
            allocate: self.allocate,
            object_bytes: objects.object_bytes(),
            objects: self.objects,
        };
        match self.json {
            true => output::json(&measured),
            false => output::line(measured.markdown()),
        }
    }
}

impl Measured {
    fn markdown(&self) -> String {
        let rows = [
            (
                "TLB miss",
                0.014,
                self.tlb_miss_us,
                "chase over 8192 lines in 8192 page tables, less the same lines side by side",
            ),
            (
                "address lookup",
                0.046,
                self.address_lookup_us,
                "dh_usable_size of random objects: the lookup of free, not only that of a fault",
            ),
            (
                "materialize",
                0.138,
                self.materialize_us,
                "CPU of the touching thread for a fault served from the cache, less the signal",
            ),
            (
                "dematerialize",
                0.172,
                self.dematerialize_us,
                "CPU of all other threads for each eviction",
            ),
            (
                "signal",
                0.666,
                self.signal_us,
                "touch of a protected page, SIGSEGV, return behind it",
            ),
            (
                "combined",
                0.833,
                self.combined_us,
                "CPU of the process for each fault served from the cache",
            ),
        ];
        let mut text = format!(
            "{} {} of {} B, {} faults, {} evictions, {} batches of them by the touching thread\n\n\
             | overhead | paper, us | here, us | what is measured |\n|---|---|---|---|\n",
            self.objects,
            if self.allocate == Layout::Objects { "objects" } else { "pages" },
            self.object_bytes,
            self.moves.faults(),
            self.moves.evictions(),
            self.moves.direct_reclaims(),
        );
        for (name, paper, here, what) in rows {
            text.push_str(&format!("| {name} | {paper:.3} | {here:.3} | {what} |\n"));
        }
        let calls = &self.calls;
        text.push_str(&format!(
            "\n| call, whole objects in RAM | dh_read | dh_write |\n|---|---|---|\n\
             | one thread, a few objects, us | {:.3} | {:.3} |\n\
             | one thread, all objects, us | {:.3} | {:.3} |\n\
             | {} threads, all objects, millions a second | {:.2} | {:.2} |\n",
            calls.read_us,
            calls.write_us,
            calls.read_any_us,
            calls.write_any_us,
            calls::THREADS,
            calls.reads_per_second / 1e6,
            calls.writes_per_second / 1e6,
        ));
        text
    }
}
