//! Lender: helps out a program that waits for memory in its memory cgroup.
//!
//! A program that swaps in a small memory cgroup may be killed although there is swap: the kernel
//! gives up when sixteen rounds of its reclaim freed nothing, because the pages are on their way to
//! the swap file. It is swap's weakness, but no number. With version 1 of the memory cgroup the
//! program waits instead. By then most of those pages have been written, and only need somebody who
//! reclaims them: the lender does, by lowering the limit for a moment. If that frees nothing, it
//! lends a little memory.
//!
//! Guarantees: what is lent is taken back as soon as the kernel can; a program that needs more than
//! a tenth of its limit is killed after all.
//! Threads: the one that waits for the program.

use crate::cgroup::Cgroup;

/// What is lent at a time.
const LENT_BYTES: u64 = 512 << 10;

/// What a program has beyond its limit.
#[derive(Debug)]
pub struct Lender<'c> {
    cgroup: &'c Cgroup,
    limit: u64,
    lent: u64,
    times: u64,
    ended: bool,
}

impl<'c> Lender<'c> {
    /// Nothing is lent yet.
    pub fn new(cgroup: &'c Cgroup, limit: u64) -> Self {
        Self { cgroup, limit, lent: 0, times: 0, ended: false }
    }

    /// Lends memory to a program that is stuck, and takes it back. To be called again and again.
    pub fn look(&mut self) {
        if self.cgroup.is_stuck() {
            let limit = self.limit + self.lent;
            if self.cgroup.set_limit(limit - LENT_BYTES) && self.cgroup.set_limit(limit) {
                // A process that waits is woken when the limit rises.
                return;
            }
            if self.lent >= self.limit / 10 {
                self.ended = true;
                return self.cgroup.end_all();
            }
            self.lent += LENT_BYTES;
            self.times += 1;
            self.cgroup.set_limit(self.limit + self.lent);
        } else if self.lent > 0 && self.cgroup.set_limit(self.limit) {
            self.lent = 0;
        }
    }

    /// How often memory was lent.
    pub fn times(&self) -> u64 {
        self.times
    }

    /// Whether the program was killed because it needed too much.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}
