//! Busy: for how long a device has had something to do, and how long reads of a second tier take.
//!
//! Never: allocates, blocks, does I/O.
//! Threads: any. An estimate: where one begins in the instant in which the last one ends, a little
//! may be lost.

use deepheap_sys::moving_mean::MovingMean;
use deepheap_sys::process::clock;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicU64, Ordering};

/// See the file's header.
#[derive(Default)]
pub(crate) struct Busy {
    under_way: AtomicU32,
    since_ns: AtomicU64,
    total_ns: AtomicU64,
    /// What reads that were asked for together took: a moving mean.
    pub(crate) read_ns: MovingMean,
}

impl Busy {
    /// Does what the device is busy with.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.under_way.fetch_add(1, Ordering::Relaxed) == 0 {
            self.since_ns.store(clock::monotonic_ns(), Ordering::Relaxed);
        }
        let done = work();
        let now_ns = clock::monotonic_ns();
        let passed_ns = now_ns.saturating_sub(self.since_ns.load(Ordering::Relaxed));
        if self.under_way.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.total_ns.fetch_add(passed_ns, Ordering::Relaxed);
        }
        done
    }

    /// How long, up to the last time that it had nothing to do.
    pub(crate) fn ns(&self) -> u64 {
        self.total_ns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use std::thread::sleep;

    #[test]
    fn what_goes_on_at_once_counts_once() {
        let busy = Busy::default();
        let part = Duration::from_millis(30);
        let begun_ns = clock::monotonic_ns();
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| busy.during(|| sleep(part)))));
        });
        let passed_ns = clock::monotonic_ns() - begun_ns;
        assert!((part.as_nanos() as u64..=passed_ns).contains(&busy.ns()), "{}", busy.ns());
        sleep(part);
        assert!(busy.ns() <= passed_ns, "nothing went on");
    }
}
