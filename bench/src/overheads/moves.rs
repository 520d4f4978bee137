//! Moves: objects that go between cache and page buffer, over and over.
//!
//! Objects are touched in random order, a burst that the page buffer has room for at a time; in the
//! pause after each burst deepheap's own threads evict. So the CPU time of the touching thread is
//! that of faults, and the CPU time of all others that of evictions.
//!
//! Threads: the calling one touches.

use core::hint::black_box;
use std::time::{Duration, Instant};

use deepheap_load::permutation::Permutation;
use serde::Serialize;

use super::Overheads;
use super::calls::Called;
use crate::failure::Failure;
use crate::gauges;
use crate::workload::Layout;

const BURST: usize = 32;
const PAUSE: Duration = Duration::from_millis(1);
const PAGE: u64 = 4096;
const LOOKUPS: u64 = 4_000_000;

/// What happened while objects moved.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counts {
    faults_cached: u64,
    faults_other: u64,
    evictions: u64,
    direct_reclaims: u64,
    touching_cpu_ns: u64,
    process_cpu_ns: u64,
}

impl Counts {
    /// Faults served, from the cache or otherwise.
    pub fn faults(&self) -> u64 {
        self.faults_cached + self.faults_other
    }

    /// Objects evicted.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Batches that the touching thread had to evict by itself.
    pub fn direct_reclaims(&self) -> u64 {
        self.direct_reclaims
    }

    /// CPU time of the touching thread for each fault, microseconds.
    pub fn touching_us_per_fault(&self) -> f64 {
        self.touching_cpu_ns as f64 / 1e3 / self.faults().max(1) as f64
    }

    /// CPU time of all other threads for each eviction, microseconds.
    pub fn evicting_us_per_eviction(&self) -> f64 {
        let others = self.process_cpu_ns.saturating_sub(self.touching_cpu_ns);
        others as f64 / 1e3 / self.evictions.max(1) as f64
    }

    /// CPU time of the process for each fault, microseconds.
    pub fn us_per_fault(&self) -> f64 {
        self.process_cpu_ns as f64 / 1e3 / self.faults().max(1) as f64
    }
}

/// The objects that move, in random order.
pub struct Field {
    objects: Vec<*mut u8>,
    object_bytes: u64,
}

impl Field {
    /// Allocates and writes objects, all of them in RAM and managed.
    pub fn new(overheads: &Overheads) -> Result<Self, Failure> {
        let is_objects = overheads.allocate == Layout::Objects;
        let object_bytes = if is_objects { overheads.object_size } else { PAGE };
        let fitting = overheads.ram_bytes / 2 / object_bytes.max(256);
        if overheads.objects > fitting {
            return Err(Failure::Refused(format!(
                "--objects {}: only about {fitting} of {object_bytes} bytes fit the RAM with all \
                 that belongs to them",
                overheads.objects
            )));
        }
        let allocate = |size: u64| {
            let object = match is_objects {
                true => deepheap::objects::allocate(1, size as usize),
                false => deepheap::malloc(size as usize),
            };
            if object.is_null() {
                return Err(Failure::Failed("deepheap gave no memory for the objects".into()));
            }
            // SAFETY: a fresh allocation of at least 16 bytes.
            unsafe { object.cast::<u64>().write_volatile(object as u64) };
            Ok(object)
        };
        let count = overheads.objects;
        let places: Vec<*mut u8> =
            (0..count).map(|_| allocate(object_bytes)).collect::<Result<_, _>>()?;
        if !is_objects {
            // Memory is managed from the budget on; these pages are never touched again.
            for _ in 0..overheads.ram_bytes / PAGE {
                allocate(PAGE)?;
            }
        }
        let order = Permutation::new(count, 1);
        let objects = (0..count).map(|at| places[order.forward(at) as usize]).collect();
        Ok(Self { objects, object_bytes })
    }

    /// Bytes of an object.
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// Does something with the objects by calls.
    pub fn called<T>(&self, measure: impl FnOnce(Called<'_>) -> T) -> T {
        let objects: Vec<usize> = self.objects.iter().map(|&object| object as usize).collect();
        measure(Called::new(&objects, self.object_bytes as usize))
    }

    /// Microseconds that deepheap takes to find what an address belongs to.
    pub fn lookup_us(&self) -> f64 {
        let rounds = LOOKUPS.div_ceil(self.objects.len() as u64);
        let started_ns = gauges::thread_cpu_ns();
        for _ in 0..rounds {
            for &object in &self.objects {
                black_box(deepheap::usable_size(black_box(object)));
            }
        }
        let lookups = rounds * self.objects.len() as u64;
        (gauges::thread_cpu_ns() - started_ns) as f64 / 1e3 / lookups as f64
    }

    /// Moves objects for a time, after a round through all of them that is not counted.
    pub fn moves(&self, seconds: f64) -> Result<Counts, Failure> {
        self.round(None)?;
        let (before, started) = (Counts::read(), Instant::now());
        let (mut touching_cpu_ns, end) = (0, Duration::from_secs_f64(seconds));
        while started.elapsed() < end {
            touching_cpu_ns += self.round(Some(started + end))?;
        }
        let after = Counts::read();
        let counts = Counts {
            faults_cached: after.faults_cached - before.faults_cached,
            faults_other: after.faults_other - before.faults_other,
            evictions: after.evictions - before.evictions,
            direct_reclaims: after.direct_reclaims - before.direct_reclaims,
            touching_cpu_ns,
            process_cpu_ns: after.process_cpu_ns - before.process_cpu_ns,
        };
        if counts.faults_cached <= counts.faults_other {
            return Err(Failure::Failed(format!(
                "only {} of {} faults were served from the cache: use more --ram or less --objects",
                counts.faults_cached,
                counts.faults()
            )));
        }
        Ok(counts)
    }

    /// Touches all objects once, or as many as fit the time; the CPU time of doing so.
    fn round(&self, end: Option<Instant>) -> Result<u64, Failure> {
        let mut cpu_ns = 0;
        for burst in self.objects.chunks(BURST) {
            if end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
            let before = gauges::thread_cpu_ns();
            for &object in burst {
                // SAFETY: a live object that holds its own address since `new`.
                if unsafe { object.cast::<u64>().read_volatile() } != object as u64 {
                    return Err(Failure::Failed(format!("WRONG DATA: the object at {object:p}")));
                }
            }
            cpu_ns += gauges::thread_cpu_ns() - before;
            std::thread::sleep(PAUSE);
        }
        Ok(cpu_ns)
    }
}

impl Counts {
    /// What deepheap counted so far, and the CPU time of the process.
    fn read() -> Self {
        let stats = deepheap::stats().unwrap_or_default();
        Self {
            faults_cached: stats.fault_cached.count,
            faults_other: stats.faults() - stats.fault_cached.count,
            evictions: stats.evictions(),
            direct_reclaims: stats.direct_reclaims,
            touching_cpu_ns: 0,
            process_cpu_ns: gauges::process_cpu_ns(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_the_cpu_time_are_told_apart() {
        let counts = Counts {
            faults_cached: 900,
            faults_other: 100,
            evictions: 500,
            direct_reclaims: 0,
            touching_cpu_ns: 3_000_000,
            process_cpu_ns: 4_000_000,
        };
        assert_eq!(counts.touching_us_per_fault(), 3.0);
        assert_eq!(counts.evicting_us_per_eviction(), 2.0);
        assert_eq!(counts.us_per_fault(), 4.0);
        assert_eq!(Counts::default().us_per_fault(), 0.0);
    }
}
