//! Raw reads: what the device gives without any memory above it, as `fio --rw=randread
//! --ioengine=io_uring --direct=1 --bs=4k --iodepth=N` would measure it.
//!
//! A file without a name in --dir is written in full, then one thread keeps --depth reads of
//! --read-size at random places in flight: each one that completes is replaced at once. io_uring is
//! used as it is, not through deepheap's own ring, which is part of what is compared with this.
//!
//! Guarantees: reads bypass the page cache; no read is in flight when `measure` returns.
//! Never: reads a block that was not written.
//! Threads: one.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use deepheap_load::histogram::Histogram;
use deepheap_load::random::{Random, mix};
use io_uring::{IoUring, opcode, types};
use serde::Serialize;

use crate::failure::Failure;
use crate::report::Latency;
use crate::sizes::parse_bytes;
use crate::{output, signals, supervisor};

const BLOCK: usize = 4096;
/// What direct I/O takes at the least.
const SECTOR: u64 = 512;
const WRITE_BYTES: usize = 1 << 20;
const MAX_DEPTH: u32 = 1024;
/// Completions between two looks at the clock.
const OPS_BETWEEN_LOOKS: u64 = 256;
const WARM_UP: Duration = Duration::from_millis(500);

/// What `deepheap-bench device` takes.
#[derive(Clone, Debug, Args)]
pub struct RawReads {
    /// Reads in flight
    #[arg(long, default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=MAX_DEPTH as i64))]
    pub depth: u32,
    /// Size of a read: 512 to 4096, a multiple of 512
    #[arg(long = "read-size", value_parser = parse_bytes, default_value = "4K",
          value_name = "SIZE")]
    pub read_bytes: u64,
    /// Seconds to measure; half a second of warm-up comes before
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Size of the file
    #[arg(long = "data", value_parser = parse_bytes, default_value = "4G", value_name = "SIZE")]
    pub data_bytes: u64,
    /// Where the file lies
    #[arg(long, default_value = ".", value_name = "PATH")]
    pub dir: PathBuf,
    /// Same seed, same places
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// The JSON line.
#[derive(Debug, Serialize)]
pub struct RawReport {
    depth: u32,
    read_bytes: u64,
    data_bytes: u64,
    seed: u64,
    measured_seconds: f64,
    measured_ops: u64,
    ops_per_second: f64,
    latency_ns: Latency,
}

/// Bytes at an address that direct I/O accepts.
#[repr(C, align(4096))]
#[derive(Clone)]
struct Block([u8; BLOCK]);

/// Measures and prints the JSON line.
pub fn main(reads: &RawReads) -> Result<(), Failure> {
    signals::install();
    let report = measure(reads)?;
    output::json(&report)
}

/// Reads for the time asked.
pub fn measure(reads: &RawReads) -> Result<RawReport, Failure> {
    let blocks = reads.data_bytes / BLOCK as u64;
    if blocks == 0 {
        return Err(Failure::Refused(format!("--data {}: less than a block", reads.data_bytes)));
    }
    if !(SECTOR..=BLOCK as u64).contains(&reads.read_bytes)
        || !reads.read_bytes.is_multiple_of(SECTOR)
    {
        return Err(Failure::Refused(format!(
            "--read-size {}: use a multiple of {SECTOR} up to {BLOCK}",
            reads.read_bytes
        )));
    }
    let file = written_file(&supervisor::folder(&reads.dir)?, blocks * BLOCK as u64)?;
    let ring = IoUring::new(reads.depth.next_power_of_two())
        .map_err(|error| Failure::os("io_uring (not allowed here?)", &error))?;
    let mut flight = Flight {
        file,
        ring,
        buffers: vec![Block([0; BLOCK]); reads.depth as usize],
        begun: vec![Instant::now(); reads.depth as usize],
        random: Random::new(reads.seed, 0),
        blocks,
        read_bytes: reads.read_bytes,
        in_flight: 0,
    };
    for slot in 0..reads.depth as usize {
        flight.begin(slot)?;
    }
    let outcome = flight.run(WARM_UP, &mut Histogram::default()).and_then(|()| {
        let (started, mut times) = (Instant::now(), Histogram::default());
        flight.run(Duration::from_secs_f64(reads.seconds), &mut times)?;
        Ok((started.elapsed().as_secs_f64(), times))
    });
    flight.land()?;
    let (measured_seconds, times) = outcome?;
    Ok(RawReport {
        depth: reads.depth,
        read_bytes: reads.read_bytes,
        data_bytes: reads.data_bytes,
        seed: reads.seed,
        measured_seconds,
        measured_ops: times.total(),
        ops_per_second: times.total() as f64 / measured_seconds,
        latency_ns: Latency {
            mean: times.mean(),
            deviation: times.deviation(),
            p50: times.percentile(0.5),
            p99: times.percentile(0.99),
            p99_9: times.percentile(0.999),
            max: times.max(),
        },
    })
}

/// The reads in flight.
struct Flight {
    ring: IoUring,
    file: File,
    buffers: Vec<Block>,
    begun: Vec<Instant>,
    random: Random,
    blocks: u64,
    read_bytes: u64,
    in_flight: usize,
}

impl Flight {
    /// Queues a read of a random block into the buffer of the slot.
    fn begin(&mut self, slot: usize) -> Result<(), Failure> {
        let offset = self.random.below(self.blocks) * BLOCK as u64;
        let buffer = self.buffers[slot].0.as_mut_ptr();
        let entry =
            opcode::Read::new(types::Fd(self.file.as_raw_fd()), buffer, self.read_bytes as u32)
                .offset(offset)
                .build()
                .user_data(slot as u64);
        self.begun[slot] = Instant::now();
        // SAFETY: buffer and file stay until `land` has seen every completion; no other read uses
        // the slot, because a slot is begun again only after its completion.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|error| Failure::Failed(format!("io_uring: {error}")))?;
        self.in_flight += 1;
        Ok(())
    }

    /// Keeps all slots in flight for `time`.
    fn run(&mut self, time: Duration, times: &mut Histogram) -> Result<(), Failure> {
        let end = Instant::now() + time;
        let mut next_look = 0;
        let mut done = 0;
        loop {
            if done >= next_look {
                next_look = done + OPS_BETWEEN_LOOKS;
                signals::interrupted()?;
                if Instant::now() >= end {
                    return Ok(());
                }
            }
            self.wait()?;
            while let Some(slot) = self.completed()? {
                times.record(self.begun[slot].elapsed().as_nanos() as u64, 1);
                done += 1;
                self.begin(slot)?;
            }
        }
    }

    /// Submits what is queued and waits for a completion.
    fn wait(&mut self) -> Result<(), Failure> {
        match self.ring.submit_and_wait(1) {
            Err(error) if error.raw_os_error() != Some(libc::EINTR) => {
                Err(Failure::os("io_uring", &error))
            }
            _ => Ok(()),
        }
    }

    /// The slot of a completed read, verified.
    fn completed(&mut self) -> Result<Option<usize>, Failure> {
        let Some(entry) = self.ring.completion().next() else { return Ok(None) };
        self.in_flight -= 1;
        let slot = entry.user_data() as usize;
        if entry.result() != self.read_bytes as i32 {
            return Err(Failure::Failed(format!("a read of the device gave {}", entry.result())));
        }
        let words: &[u8; 8] = self.buffers[slot].0.first_chunk().unwrap_or(&[0; 8]);
        if *words == [0; 8] {
            return Err(Failure::Failed("a read of the device gave zeros".into()));
        }
        Ok(Some(slot))
    }

    /// Waits until nothing is in flight.
    fn land(mut self) -> Result<(), Failure> {
        while self.in_flight > 0 {
            if let Err(failure) = self.wait() {
                // Reads that nobody can wait for keep their buffers.
                core::mem::forget(self);
                return Err(failure);
            }
            self.in_flight -= self.ring.completion().count();
        }
        Ok(())
    }
}

/// A file without a name, every block of it written.
fn written_file(dir: &Path, bytes: u64) -> Result<File, Failure> {
    let failed = |error: std::io::Error| {
        Failure::os(format!("{bytes} bytes without the page cache in {}", dir.display()), &error)
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE | libc::O_DIRECT)
        .open(dir)
        .map_err(failed)?;
    let mut piece = vec![Block([0; BLOCK]); WRITE_BYTES / BLOCK];
    for offset in (0..bytes).step_by(WRITE_BYTES) {
        signals::interrupted()?;
        for (index, block) in (offset / BLOCK as u64..).zip(&mut piece) {
            for (word, place) in (0..).zip(block.0.chunks_exact_mut(8)) {
                place.copy_from_slice(&(mix(index ^ word << 40) | 1).to_le_bytes());
            }
        }
        let length = (bytes - offset).min(WRITE_BYTES as u64) as usize;
        // SAFETY: plain bytes of the vector, whose blocks lie side by side without gaps.
        let piece = unsafe { core::slice::from_raw_parts(piece.as_ptr().cast::<u8>(), length) };
        file.write_all_at(piece, offset).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_at_depth_read_what_was_written() {
        if let Err(error) = IoUring::new(2) {
            eprintln!("SKIPPED: reads_at_depth_read_what_was_written needs io_uring: {error}");
            return;
        }
        let program = std::env::current_exe().unwrap_or_default();
        let reads = |read_bytes, seconds| RawReads {
            depth: 16,
            read_bytes,
            seconds,
            data_bytes: 4 << 20,
            dir: program.with_file_name(""),
            seed: 1,
        };
        for read_bytes in [512, 4096] {
            // Longer, where others have the processors or the device meanwhile.
            let is_measured = [0.05, 1.0, 20.0].into_iter().any(|seconds| {
                let report = measure(&reads(read_bytes, seconds));
                let report = report.unwrap_or_else(|failure| panic!("{failure}"));
                report.measured_ops > 16 && report.latency_ns.p50 > 0
            });
            assert!(is_measured, "reads of {read_bytes} bytes");
        }
        assert!(matches!(measure(&reads(100, 0.05)), Err(Failure::Refused(_))));
    }
}
