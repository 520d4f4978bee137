//! Calls: what `dh_read` and `dh_write` of a whole object in RAM cost.
//!
//! Guarantees: every read is verified; what is measured includes the loop and the check.
//! Threads: the calling one, then so many at a time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deepheap::objects;
use serde::Serialize;

use crate::failure::Failure;
use crate::gauges;

/// Threads that call at the same time.
pub const THREADS: usize = 8;
/// So few objects stay in the processor's cache.
const FEW: usize = 500;
const CALLS: u64 = 2_000_000;
/// How long the threads call.
const TIME: Duration = Duration::from_millis(1500);
/// Between two looks at the clock's flag.
const ROUND: usize = 256;

/// What the calls cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Counts {
    /// One thread, a few objects.
    pub read_us: f64,
    pub write_us: f64,
    /// One thread, all objects.
    pub read_any_us: f64,
    pub write_any_us: f64,
    /// `THREADS` threads, all objects.
    pub reads_per_second: f64,
    pub writes_per_second: f64,
}

/// Objects that hold their own addresses, for calls.
pub struct Called<'a> {
    objects: &'a [usize],
    bytes: usize,
}

impl<'a> Called<'a> {
    /// Objects of so many bytes, in random order, each with its address in its first word.
    pub fn new(objects: &'a [usize], bytes: usize) -> Self {
        Self { objects, bytes }
    }

    /// Measures all.
    ///
    /// # Errors
    /// A call that fails, or an object that does not hold what was written.
    pub fn measure(&self) -> Result<Counts, Failure> {
        let few = Self { objects: &self.objects[..self.objects.len().min(FEW)], ..*self };
        let mut buffer = vec![0u64; self.bytes.div_ceil(8)];
        Ok(Counts {
            read_us: few.us_per_call(&mut buffer, Self::read)?,
            write_us: few.us_per_call(&mut buffer, Self::write)?,
            read_any_us: self.us_per_call(&mut buffer, Self::read)?,
            write_any_us: self.us_per_call(&mut buffer, Self::write)?,
            reads_per_second: self.calls_per_second(Self::read)?,
            writes_per_second: self.calls_per_second(Self::write)?,
        })
    }

    fn read(&self, at: usize, buffer: &mut [u64]) -> Result<(), Failure> {
        let object = self.objects[at];
        // SAFETY: a live object of so many bytes, and room for them.
        let done = unsafe {
            objects::read(object as *const u8, 0, buffer.as_mut_ptr().cast(), self.bytes)
        };
        match done {
            Ok(()) if buffer[0] == object as u64 => Ok(()),
            Ok(()) => Err(Failure::Failed(format!("WRONG DATA: the object at {object:#x}"))),
            Err(why) => Err(Failure::Failed(format!("dh_read: {why:?}"))),
        }
    }

    fn write(&self, at: usize, buffer: &mut [u64]) -> Result<(), Failure> {
        let object = self.objects[at];
        buffer[0] = object as u64;
        // SAFETY: a live object of so many bytes, and as many to write.
        unsafe { objects::write(object as *mut u8, 0, buffer.as_ptr().cast(), self.bytes) }
            .map_err(|why| Failure::Failed(format!("dh_write: {why:?}")))
    }

    fn us_per_call(
        &self,
        buffer: &mut [u64],
        call: impl Fn(&Self, usize, &mut [u64]) -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        // What is resident leaves, and what has a stored copy gives it up: not counted.
        (0..self.objects.len()).try_for_each(|at| call(self, at, buffer))?;
        let started_ns = gauges::thread_cpu_ns();
        let mut at = 0;
        for _ in 0..CALLS {
            call(self, at, buffer)?;
            at = if at + 1 == self.objects.len() { 0 } else { at + 1 };
        }
        Ok((gauges::thread_cpu_ns() - started_ns) as f64 / 1e3 / CALLS as f64)
    }

    fn calls_per_second(
        &self,
        call: impl Fn(&Self, usize, &mut [u64]) -> Result<(), Failure> + Sync,
    ) -> Result<f64, Failure> {
        let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        let started = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (stop, calls, call) = (&stop, &calls, &call);
                    scope.spawn(move || {
                        let mut buffer = vec![0u64; self.bytes.div_ceil(8)];
                        let mut at = self.objects.len() * thread / THREADS;
                        while !stop.load(Ordering::Relaxed) {
                            for _ in 0..ROUND {
                                call(self, at, &mut buffer)?;
                                at = if at + 1 == self.objects.len() { 0 } else { at + 1 };
                            }
                            calls.fetch_add(ROUND as u64, Ordering::Relaxed);
                        }
                        Ok(())
                    })
                })
                .collect();
            std::thread::sleep(TIME);
            stop.store(true, Ordering::Relaxed);
            let broken = || Err(Failure::Failed("a thread that called has panicked".into()));
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| broken()))
        })?;
        Ok(calls.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
    }
}
