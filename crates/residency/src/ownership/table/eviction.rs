//! Table eviction: takes pages of the object table out of RAM.
//!
//! **Why eviction of a page loses no change.** It holds the page's lock, and turns the entries into
//! 0 one by one, by compare-exchange, each if it is `Zero` or `Stored`; otherwise it puts back what
//! it has taken. A thread that changes an entry either owns the object, and then the entry is
//! `Busy` and not taken; or replaces a value that is not 0 by compare-exchange, which meets the
//! value before it is taken, or 0 after that, and then brings the page and tries again. So once all
//! entries are 0, nothing but 0 is stored there until the lock is free (a failed compare-exchange
//! may store the 0 that it met). The page of RAM can be dropped then: it reads as zeros before and
//! after. The lock is held until it is dropped, so nobody fills it in between. The thread that
//! fills it locks it later, and so sees the copy whole; its stores are releases, so a thread that
//! loads an entry that was filled sees what came before the entry was first published, as if the
//! page had stayed.
//!
//! Guarantees: a page leaves only while none of its objects is in RAM; what cannot be written
//! stays.
//! Never: allocates; waits for the lock of a page.
//! Threads: any that owns no object, inside the gate, also in a signal handler; one at a time.

use deepheap_store::device::table_file::TOGETHER_MAX;
use deepheap_sys::memory::zap::Zapper;
use deepheap_sys::threads::atomic::{AtomicU32, Ordering};

use super::directory::{Home, Locked};
use super::{ABSENT, BYTES, ENTRIES, Evicting, ObjectTable, Place};
use crate::PAGE;

/// Pages that one call of `evict` looks at, at most.
const LOOKS_MAX: usize = 4 * TOGETHER_MAX;

/// A page whose entries are all `ABSENT`, still locked.
struct Taken<'a> {
    locked: Locked<'a>,
    page: usize,
    /// Where its copy lies; none: it has to be written.
    home: Option<Home>,
    checksum: u64,
    is_new: bool,
}

impl ObjectTable {
    /// Takes pages out of RAM of whose objects none is in RAM, `TOGETHER_MAX` at most; returns how
    /// many. Such a page is cold: the objects that were used last are in RAM.
    pub fn evict(&self, zapper: &Zapper) -> usize {
        // Waits for another thread that evicts: a thread that brings pages must not outrun it. That
        // one waits for the device alone.
        let Evicting { hand, copies } = &mut *self.evicting.lock();
        if self.excess() == 0 {
            return 0;
        }
        // A few at a time, for one flush of the processors' TLBs. Each has the copy of its index.
        let mut taken: [Option<Taken<'_>>; TOGETHER_MAX] = [const { None }; TOGETHER_MAX];
        let mut count = 0;
        let cold = core::iter::from_fn(|| self.take_cold());
        let others = core::iter::from_fn(|| {
            let next = self.directory.next_here(*hand).or_else(|| self.directory.next_here(0))?;
            *hand = next + 1;
            Some(next)
        });
        for page in cold.chain(others.take(LOOKS_MAX)) {
            taken[count] = self.take(page, &mut copies[count * PAGE..][..PAGE]);
            count += usize::from(taken[count].is_some());
            if count == TOGETHER_MAX {
                break;
            }
        }
        self.write_changed(&mut taken[..count], copies);
        let left = self.drop_taken(&mut taken[..count], copies, zapper);
        self.evicted.fetch_add(left as u64, Ordering::Relaxed);
        left
    }

    /// Turns the entries of a page into `ABSENT`, with a copy of what they were; none if one of its
    /// objects is in RAM, or if it could go nowhere.
    fn take(&self, at: usize, copy: &mut [u8]) -> Option<Taken<'_>> {
        let locked = self.directory.try_lock(at)?;
        if !locked.is_here() {
            return None;
        }
        let entries = self.page(at);
        let look = |entry: &AtomicU32| Place::decode(entry.load(Ordering::Relaxed)).to_bytes();
        // Most pages that cannot leave show it at once, and are not touched.
        if entries.iter().any(|entry| look(entry).is_none()) {
            return None;
        }
        let places = copy.as_chunks_mut::<BYTES>().0;
        for index in 0..ENTRIES {
            match take_entry(&entries[index]) {
                Some(bytes) => places[index] = bytes,
                None => {
                    put_back(&entries[..index], &copy[..index * BYTES]);
                    return None;
                }
            }
        }
        // The last checkpoint may have other bytes, if the page was here when it was made.
        let (home, checksum, is_new) = if is_zero(copy) {
            (Some(Home::NOWHERE), 0, true)
        } else {
            let (home, known) = (locked.home(), locked.checksum());
            match self.homes.checksum(at, copy) {
                Some(sum) if home != Home::NOWHERE && sum == known => (Some(home), sum, false),
                Some(sum) if self.homes.has_file() => (None, sum, true),
                _ => {
                    put_back(entries, copy);
                    return None;
                }
            }
        };
        Some(Taken { locked, page: at, home, checksum, is_new })
    }

    /// Writes the pages that have changed. Those that the device refuses come back.
    fn write_changed(&self, taken: &mut [Option<Taken<'_>>], copies: &[u8]) {
        let needs = |one: &Option<Taken<'_>>| one.as_ref().is_some_and(|one| one.home.is_none());
        let mut first = 0;
        // The copies of pages that are written together lie one behind the other.
        for run in taken.chunk_by_mut(|one, next| needs(one) == needs(next)) {
            let bytes = &copies[first * PAGE..][..run.len() * PAGE];
            first += run.len();
            if !needs(&run[0]) {
                continue;
            }
            let mut pages = [0; TOGETHER_MAX];
            for (page, one) in pages.iter_mut().zip(run.iter().flatten()) {
                *page = one.page as u32;
            }
            if let Ok(home) = self.homes.write(&pages[..run.len()], bytes) {
                run.iter_mut().flatten().for_each(|one| one.home = Some(home));
                self.written.fetch_add(run.len() as u64, Ordering::Relaxed);
            } else {
                // Nobody tries again before the evictor has looked at the limit.
                self.set_limit(usize::MAX);
                self.bring_back(run, bytes);
            }
        }
    }

    /// Drops the RAM of pages whose entries are all `ABSENT`; returns how many there were.
    fn drop_taken(&self, taken: &mut [Option<Taken<'_>>], copies: &[u8], zapper: &Zapper) -> usize {
        let nothing = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        let mut ranges = [nothing; TOGETHER_MAX];
        let mut count = 0;
        for one in taken.iter().flatten() {
            ranges[count].iov_base = self.page(one.page).as_ptr().cast_mut().cast();
            ranges[count].iov_len = PAGE;
            count += 1;
        }
        if count == 0 {
            return 0;
        }
        // SAFETY: whole pages of the table, locked; all their entries are 0, and nothing but 0 is
        // stored there while they are locked (the file's header), so it is no loss.
        #[cfg(not(feature = "schedules"))]
        let zapped = unsafe { zapper.zap(&ranges[..count]) };
        // Pages are smaller than those of the kernel here; that they read as zeros is the same.
        #[cfg(feature = "schedules")]
        let zapped = zapper.populate_write(&ranges[..0]);
        if zapped.is_err() {
            self.bring_back(taken, copies);
            return 0;
        }
        for mut one in taken.iter_mut().filter_map(Option::take) {
            one.locked.set_home(one.home.unwrap_or(Home::NOWHERE), one.checksum);
            if one.is_new {
                one.locked.set_unsaved();
            }
            one.locked.set_out();
        }
        count
    }

    /// The pages stay. Some of them may have been written over their copies.
    fn bring_back(&self, taken: &mut [Option<Taken<'_>>], copies: &[u8]) {
        for (one, copy) in taken.iter_mut().zip(copies.chunks(PAGE)) {
            if let Some(mut one) = one.take() {
                put_back(self.page(one.page), copy);
                one.locked.set_home(Home::NOWHERE, 0);
            }
        }
    }
}

fn is_zero(page: &[u8]) -> bool {
    page.iter().all(|&byte| byte == 0)
}

/// Makes an entry `ABSENT`; what it was, unless its object is in RAM.
fn take_entry(entry: &AtomicU32) -> Option<[u8; BYTES]> {
    let mut now = entry.load(Ordering::Relaxed);
    loop {
        let bytes = Place::decode(now).to_bytes()?;
        match entry.compare_exchange(now, ABSENT, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Some(bytes),
            Err(other) => now = other,
        }
    }
}

/// Stores again what was taken. The lock of the page is held.
fn put_back(entries: &[AtomicU32], copy: &[u8]) {
    for (entry, bytes) in entries.iter().zip(copy.as_chunks::<BYTES>().0) {
        entry.store(Place::of_bytes(*bytes).encode(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::AtomicU64;

    use deepheap_sim::{Random, SimDevice};
    use deepheap_store::{Block, Device, Options, Store};

    use super::super::TableTraffic;
    use super::*;
    use crate::ownership::descriptor::DescriptorId;
    use deepheap_heap::PageNo;

    const TABLE_PAGES: usize = 12;
    const PAGES: usize = TABLE_PAGES * ENTRIES;

    fn store() -> Store {
        let options = Options {
            segment_bytes: 256 << 10,
            capacity_bytes: 2 << 20,
            buffers: 4,
            reserve_segments: 2,
        };
        Store::open(Box::new(SimDevice::new(2 << 20, 1)), options, None).expect("a store")
    }

    /// A table that wants no page in RAM, and the device that its pages go to.
    fn table(store: &Store) -> (ObjectTable, SimDevice) {
        let device = SimDevice::new((TABLE_PAGES * PAGE) as u64, 1);
        let table = ObjectTable::new(PAGES).expect("memory");
        table.add_file(store.table_file(Box::new(device.clone())));
        table.set_limit(0);
        (table, device)
    }

    fn stored(block: u64) -> Place {
        Place::Stored(Block(block as u32))
    }

    /// Four threads change objects of their own on the same pages, while a fifth takes the pages
    /// out of RAM: each finds its objects where it left them.
    #[test]
    fn no_change_of_an_entry_is_lost_while_pages_come_and_go() {
        const THREADS: u64 = 4;
        let store = store();
        let (table, _device) = table(&store);
        let zapper = Zapper::new();
        let running = AtomicU64::new(THREADS);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (table, running, zapper) = (&table, &running, &zapper);
                scope.spawn(move || {
                    let mut random = Random::new(thread);
                    let mut places = HashMap::new();
                    for round in 0..20_000u64 {
                        let page = random.below(PAGES as u64 / THREADS) * THREADS + thread;
                        let page = PageNo(page as u32);
                        let was = places.get(&page.0).copied().unwrap_or(Place::Zero);
                        assert_eq!(table.load(page), was, "{page:?} of thread {thread}");
                        let busy = Place::Busy(DescriptorId(page.0));
                        assert!(table.replace(page, was, busy), "{page:?} is nobody else's");
                        assert_eq!(table.peek(page), Some(busy), "an object in RAM is known");
                        let to = if random.once_in(4) { Place::Zero } else { stored(round) };
                        table.publish(page, to);
                        places.insert(page.0, to);
                        let moved = stored(round + 1);
                        if round % 3 == 0 && table.replace(page, to, moved) {
                            places.insert(page.0, moved);
                        }
                        assert!(!table.replace(page, stored(1 << 29), Place::Zero));
                        if round % 32 == 0 {
                            table.evict(zapper);
                        }
                    }
                    running.fetch_sub(1, Ordering::Relaxed);
                });
            }
            scope.spawn(|| {
                while running.load(Ordering::Relaxed) > 0 {
                    table.evict(&zapper);
                }
            });
        });
        let TableTraffic { read, evicted, written } = table.traffic();
        assert!(read > 100 && evicted > 100 && written > 100, "{read} {evicted} {written}");
    }

    #[test]
    fn a_page_leaves_ram_and_comes_back_and_is_written_only_if_it_changed() {
        let store = store();
        let (table, device) = table(&store);
        let zapper = Zapper::new();
        let page = PageNo(3 * ENTRIES as u32 + 7);
        assert!(table.replace(page, Place::Zero, stored(5)));
        assert_eq!(table.load(PageNo(0)), Place::Zero, "looked at");
        assert_eq!(table.evict(&zapper), 2);
        assert_eq!(table.traffic().written, 1, "zeros lie nowhere");
        assert_eq!(table.peek(page), None);
        assert!(table.may_be_stored(page) && !table.may_be_stored(PageNo(0)));
        assert_eq!(table.next_known(0, PAGES), Some(3 * ENTRIES));
        assert_eq!(table.next_object(0, PAGES), Some(page.0 as usize));
        assert_eq!(table.peek(PageNo(0)), None, "zeros are not brought to be looked through");
        assert_eq!(table.load(page), stored(5));
        assert_eq!(table.evict(&zapper), 1);
        assert_eq!(table.traffic().written, 1, "it was as it is at home");
        assert!(table.replace(page, stored(5), stored(6)));
        assert_eq!(table.evict(&zapper), 1);
        assert_eq!((table.traffic().written, table.load(page)), (2, stored(6)));
        assert!(table.used_bytes() >= PAGE && device.pages() > 0);
    }

    #[test]
    fn a_page_with_an_object_in_ram_stays_as_it_is() {
        let store = store();
        let (table, _device) = table(&store);
        let last = PageNo(ENTRIES as u32 - 1);
        assert!(table.replace(PageNo(0), Place::Zero, stored(9)));
        for place in [Place::Cached(DescriptorId(3)), Place::Busy(DescriptorId(3))] {
            let was = table.load(last);
            assert!(table.replace(last, was, place));
            assert_eq!(table.evict(&Zapper::new()), 0);
            assert_eq!((table.load(PageNo(0)), table.load(last)), (stored(9), place));
        }
    }

    /// The canary of P0: a page that comes back other than it left is lost, and never taken for
    /// what it was; and so is an older version of it.
    #[test]
    fn bytes_that_are_not_the_pages_are_never_taken_for_it() {
        let store = store();
        let zapper = Zapper::new();
        for old in [false, true] {
            let (table, device) = table(&store);
            let page = PageNo(1030);
            let mut copy = vec![0; PAGE];
            for block in [1, 2] {
                let was = table.load(page);
                assert!(table.replace(page, was, stored(block)));
                assert_eq!(table.evict(&zapper), 1);
                if block == 1 {
                    device.read(&mut [deepheap_store::Read::new(PAGE as u64, &mut copy)]);
                }
            }
            if !old {
                copy[100] ^= 1;
            }
            let mut aligned =
                deepheap_sys::memory::aligned_buffer::AlignedBuffer::new(PAGE, 0).expect("memory");
            aligned.as_mut_slice().copy_from_slice(&copy);
            device.write(&mut [deepheap_store::Write::new(PAGE as u64, aligned.as_mut_slice())]);
            assert_eq!(table.load(page), Place::Lost);
            assert!(!table.replace(page, stored(2), Place::Zero));
            assert_eq!(table.evict(&zapper), 0, "it stays lost");
            assert_eq!(table.load(PageNo(5)), Place::Zero, "other pages are not");
        }
    }

    #[test]
    fn a_device_that_refuses_leaves_the_page_in_ram() {
        let store = store();
        let (table, device) = table(&store);
        let zapper = Zapper::new();
        let page = PageNo(17);
        assert!(table.replace(page, Place::Zero, stored(4)));
        device.break_place(0..PAGE as u64);
        assert_eq!((table.evict(&zapper), table.peek(page)), (0, Some(stored(4))));
        assert_eq!(table.excess(), 0, "nobody tries before the limit is set anew");
        device.heal();
        table.set_limit(0);
        assert_eq!((table.evict(&zapper), table.load(page)), (1, stored(4)));
    }

    /// Parent and child read what was evicted before the fork, whatever either evicts later.
    #[test]
    fn what_was_evicted_before_a_fork_stays_readable() {
        let store = store();
        let (table, before) = table(&store);
        let zapper = Zapper::new();
        let (page, other) = (PageNo(17), PageNo(2000));
        assert!(!table.freeze(), "nothing is in the file");
        for page in [page, other] {
            assert!(table.replace(page, Place::Zero, stored(4)));
        }
        assert_eq!(table.evict(&zapper), 2);
        assert!(table.freeze() && !table.can_leave());
        let writes = before.count(deepheap_sim::Operation::Write);
        assert!(table.replace(page, stored(4), stored(5)));
        assert_eq!(table.evict(&zapper), 0, "there is no file");
        let after = SimDevice::new((TABLE_PAGES * PAGE) as u64, 1);
        table.add_file(store.table_file(Box::new(after)));
        table.set_limit(0);
        assert_eq!(table.evict(&zapper), 1);
        assert_eq!((table.load(page), table.load(other)), (stored(5), stored(4)));
        assert_eq!(before.count(deepheap_sim::Operation::Write), writes);
        // Once no page is there any more the file is closed.
        assert!(table.replace(other, stored(4), stored(6)));
        assert_eq!(table.evict(&zapper), 2);
        assert!(before.handles() > 1);
        assert!(table.freeze());
        assert_eq!(before.handles(), 1);
        assert_eq!((table.load(page), table.load(other)), (stored(5), stored(6)));
    }
}
