//! TLB: what it costs that every access is to another page.
//!
//! One pointer chase over the same number of cache lines, laid out twice: side by side, where the
//! TLB reaches them all, and one to each 2 MiB of address space, where every step misses the TLB
//! and walks to a page table of its own. Both fit the caches; the page tables may not, which is
//! part of the cost of a miss.
//!
//! Threads: one.

use core::ptr;

use deepheap_load::permutation::Permutation;
use deepheap_load::random::Random;

use crate::failure::Failure;
use crate::gauges;

const LINES: u64 = 8192;
const LINE: usize = 64;
const PAGE: usize = 4096;
const RANGE: usize = 2 << 20;
const STEPS: u64 = 500_000;
const ROUNDS: usize = 5;

/// Microseconds that a step takes longer when it misses the TLB.
pub fn miss_us() -> Result<f64, Failure> {
    let dense = Memory::map(LINES as usize * LINE)?;
    let sparse = Memory::map(LINES as usize * RANGE)?;
    let mut random = Random::new(1, 0);
    let near: Vec<usize> = (0..LINES as usize).map(|line| line * LINE).collect();
    let far: Vec<usize> = (0..LINES as usize)
        .map(|range| {
            let page = random.below((RANGE / PAGE) as u64) as usize;
            range * RANGE + page * PAGE + range * LINE % PAGE
        })
        .collect();
    let fitting_ns = dense.step_ns(&near);
    let missing_ns = sparse.step_ns(&far);
    Ok((missing_ns - fitting_ns) / 1e3)
}

/// An anonymous mapping of ordinary pages.
struct Memory {
    base: *mut u8,
    bytes: usize,
}

impl Memory {
    fn map(bytes: usize) -> Result<Self, Failure> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Failure::last_os(format!("mmap of {bytes} bytes of address space")));
        }
        // Fails on kernels without huge pages, where there is nothing to switch off.
        // SAFETY: exactly the mapping made above.
        unsafe { libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE) };
        Ok(Self { base: base.cast(), bytes })
    }

    /// Nanoseconds a step of a chase through all places, in random order; the best of some rounds.
    fn step_ns(&self, places: &[usize]) -> f64 {
        let order = Permutation::new(places.len() as u64, 1);
        let at = |line: u64| self.base.wrapping_add(places[line as usize]).cast::<usize>();
        for line in 0..places.len() as u64 {
            // SAFETY: a place inside the mapping, aligned to a line.
            unsafe { at(line).write(at(order.next_on_cycle(line)) as usize) };
        }
        let mut best = f64::INFINITY;
        let mut place = at(0);
        for _ in 0..=ROUNDS {
            let started_ns = gauges::thread_cpu_ns();
            for _ in 0..STEPS {
                // SAFETY: every place holds the address of another place, written above.
                place = unsafe { place.read_volatile() } as *mut usize;
            }
            best = best.min((gauges::thread_cpu_ns() - started_ns) as f64 / STEPS as f64);
        }
        best
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, which nobody uses any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chase_over_many_pages_is_slower() {
        // Noise of a busy machine is nanoseconds; a miss in a virtual machine is tens of them.
        assert!(miss_us().is_ok_and(|us| us > -0.005 && us < 10.0));
    }
}
