//! Evict: pages leave RAM, from under all processes, and no store is lost.
//!
//! 1. Pages that are pinned stay. The others leave this process's page tables together (`unmap`).
//! 2. Each is put into a pipe, as a reference: the pipe shows every later store.
//! 3. Holes are made: the kernel unmaps the pages in every process. A store comes before that, and
//!    is in the pipe, or after it: then it faults, and waits for the shard.
//! 4. The pipe is read, and changed pages are written (`settle`).
//!
//! In a map that nobody has ever had to write, 2 and 4 are left out.
//!
//! Guarantees: the journal tells each step before it is made.
//! Never: allocates | waits for a shard.
//! Threads: any, also in a signal handler, with all signals blocked.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

use deepheap_sys::PAGE;
use deepheap_sys::threads::thread;

use crate::moves::settle::Settled;
use crate::region::Region;
use crate::tables::control::{BATCH, PIPES, journal};
use crate::tables::ownership::Owned;

/// Looks at shards, for each that there is, before a thread gives up to make room.
const ROUNDS: u32 = 4;
/// How long a thread sleeps that finds no pipe.
const PAUSE: Duration = Duration::from_micros(200);

impl Region {
    /// Counts `pages` as in RAM, and evicts if that is too much. False: RAM is full, and nothing
    /// can leave it.
    pub(crate) fn make_room(&self, pages: u64) -> bool {
        let header = self.tables.header();
        header.resident.fetch_add(pages, Relaxed);
        let shards = self.tables.shards();
        let (mut idle, mut busy) = (0, 0);
        while self.excess(0) > 0 {
            let next = header.hand.fetch_add(1, Relaxed) & (shards - 1);
            // Other threads may own all of them for as long as they write victims. Only a shard
            // that was looked at tells that nothing can leave it.
            let owned = if busy < shards { self.try_own(next) } else { Some(self.own(next)) };
            match owned.map(|owned| owned.evict_oldest()) {
                Some(Settled { gone: 1.., .. }) => {
                    header.counts.direct_evictions.fetch_add(1, Relaxed);
                    (idle, busy) = (0, 0);
                }
                None | Some(Settled { has_no_pipe: true, .. }) => busy += 1,
                Some(_) => idle += 1,
            }
            if idle > ROUNDS * shards.max(64) {
                self.recount();
                // With a log, what is committed makes room there for what is not.
                if self.excess(0) > 0 && !self.log().is_some_and(|log| log.fold_all()) {
                    return false;
                }
                idle = 0;
            }
        }
        true
    }

    /// Gives back what `make_room` has counted and did not come.
    pub(crate) fn uncount(&self, pages: u64) {
        let less = |resident: u64| Some(resident.saturating_sub(pages));
        let _ = self.tables.header().resident.fetch_update(Relaxed, Relaxed, less);
    }

    /// Pages that are kept free for faults: the evictor begins when there are fewer, and ends at
    /// twice as many.
    pub(crate) fn spare(&self) -> u64 {
        (self.tables.header().budget_pages.load(Relaxed) / 64).clamp(16, 4096)
    }

    /// Pages in RAM beyond the budget less `spare`.
    pub(crate) fn excess(&self, spare: u64) -> u64 {
        let header = self.tables.header();
        let limit = header.budget_pages.load(Relaxed).saturating_sub(spare);
        header.resident.load(Relaxed).saturating_sub(limit)
    }

    /// Evicts the oldest pages of the next shard; answers how many went.
    pub(crate) fn evict_some(&self) -> usize {
        let next = self.tables.header().hand.fetch_add(1, Relaxed);
        match self.try_own(next & (self.tables.shards() - 1)) {
            Some(owned) => owned.evict_oldest().gone,
            None => 0,
        }
    }
}

impl Owned<'_> {
    /// Evicts the oldest quarter, at most a batch.
    pub(crate) fn evict_oldest(&self) -> Settled {
        let wanted = self.used().div_ceil(4).clamp(1, BATCH);
        // Where the oldest are pinned, younger ones go.
        for _ in 0..self.used().div_ceil(wanted) {
            let mut victims = [0u32; BATCH];
            let count = self.find_oldest(&mut victims[..wanted]);
            let count = self.region.tables.unpinned(&mut victims[..count]);
            if count > 0 {
                return self.evict(&mut victims[..count]);
            }
        }
        Settled::default()
    }

    fn find_oldest(&self, victims: &mut [u32]) -> usize {
        for count in 0..victims.len() {
            let Some(page) = self.next_victim().and_then(|entry| self.page(entry)) else {
                return count;
            };
            // After a whole round it is a victim already.
            if victims[..count].contains(&page) {
                return count;
            }
            victims[count] = page;
        }
        victims.len()
    }

    /// Evicts these pages, all of which have entries and no pin.
    pub(crate) fn evict(&self, victims: &mut [u32]) -> Settled {
        victims.sort_unstable();
        let header = self.region.tables.header();
        let is_clean = header.was_writable.load(Acquire) == 0;
        let settled = if is_clean {
            self.region.unmap(victims);
            self.drop_clean(victims)
        } else {
            let Some(pipe) = self.claim_pipe() else {
                return Settled { has_no_pipe: true, ..Settled::default() };
            };
            let count = self.choose(pipe, victims);
            self.region.unmap(&victims[..count]);
            self.take_out(pipe, &victims[..count])
        };
        self.region.uncount(settled.gone as u64);
        if settled.gone > 0 {
            self.region.ranges.had_changes.store(settled.written > 0, Relaxed);
        }
        let clean = settled.gone - settled.written;
        header.counts.evicted_clean.fetch_add(clean as u64, Relaxed);
        header.counts.evicted_changed.fetch_add(settled.written as u64, Relaxed);
        settled
    }

    /// Without pipe: the file has all of it.
    fn drop_clean(&self, victims: &[u32]) -> Settled {
        let mut settled = Settled::default();
        for run in victims.chunk_by(are_neighbours) {
            if self.region.memory.punch(Region::offset_of(run[0]), run.len() * PAGE).is_ok() {
                run.iter().for_each(|page| self.end(*page, &mut settled));
            }
        }
        settled
    }

    fn claim_pipe(&self) -> Option<usize> {
        let users = &self.region.tables.header().pipe_users;
        let mine = self.index + 1;
        let first = self.index as usize;
        let mut pipes = (first..first + PIPES).map(|pipe| pipe % PIPES);
        let pipe =
            pipes.find(|&pipe| users[pipe].compare_exchange(0, mine, Acquire, Relaxed).is_ok());
        if pipe.is_none() {
            thread::sleep(PAUSE);
            self.region.reap_pipes();
        }
        pipe
    }

    /// Moves the pages that can be evicted to the front; answers how many there are. A page without
    /// memory was dropped by the program (MADV_REMOVE), and its entry ends. A process that cannot
    /// write leaves changed pages to those that can.
    fn choose(&self, pipe: usize, victims: &mut [u32]) -> usize {
        let can_write = self.region.backing.can_write();
        let slot = self.region.tables.slot(pipe);
        let mut count = 0;
        for index in 0..victims.len() {
            let page = victims[index];
            let Some(entry) = self.find(page) else { continue };
            if !self.region.is_in_memory(page) {
                self.remove(entry);
                self.region.uncount(1);
                continue;
            }
            // SAFETY: the slot is ours, with the pipe.
            let is_changed = !can_write
                && unsafe {
                    self.region.memory.read_page(slot, Region::offset_of(page)).is_err()
                        || self.region.hash(slot) != self.hash(entry)
                        || self.is_logged_in_parts(page)
                };
            if is_changed {
                self.give_chance(entry);
            } else {
                victims[count] = page;
                count += 1;
            }
        }
        count
    }

    /// Steps 2 to 4.
    fn take_out(&self, pipe: usize, victims: &[u32]) -> Settled {
        for (place, &page) in self.batch_pages.iter().zip(victims) {
            place.store(page, Relaxed);
        }
        self.pipe.store(pipe as u32, Relaxed);
        self.journal.store(journal::SPLICING, Release);
        let spliced = self.splice(pipe, victims);
        if spliced == 0 {
            self.drop_pipe(pipe);
            return Settled::default();
        }
        self.batch.store(spliced as u32, Relaxed);
        self.journal.store(journal::TAKEN, Release);
        let mut all_out = true;
        for run in victims[..spliced].chunk_by(are_neighbours) {
            let offset = Region::offset_of(run[0]);
            all_out &= self.region.memory.punch(offset, run.len() * PAGE).is_ok();
        }
        self.settle(!all_out)
    }

    /// Puts the pages into the pipe; answers how many it holds, exactly and from the first on; 0
    /// also if that is not known.
    fn splice(&self, pipe: usize, victims: &[u32]) -> usize {
        let pipe = &self.region.pipes[pipe];
        let mut count = 0;
        for run in victims.chunk_by(are_neighbours) {
            let put = pipe.put(&self.region.memory, Region::offset_of(run[0]), run.len());
            count += put.unwrap_or(0);
            if put != Ok(run.len()) {
                break;
            }
        }
        if pipe.held_bytes() == Ok(count * PAGE) { count } else { 0 }
    }
}

fn are_neighbours(one: &u32, next: &u32) -> bool {
    one + 1 == *next
}
