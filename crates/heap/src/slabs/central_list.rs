//! Central list: the slabs of one small class, shared by all threads.
//!
//! Thread caches fill from it and flush to it in batches. Objects are taken from the lowest slab
//! that has one free, so that the high slabs run empty and can be given back.
//!
//! Guarantees: `available` holds exactly the slabs with a free object; at most [`EMPTY_MAX`]
//! slabs without any allocated object are kept after a flush.
//! Never: touches an object.
//! Threads: any, under the list's lock; the lock of `Coalescing` is taken inside it.

use core::sync::atomic::{AtomicUsize, Ordering, fence};

use deepheap_sys::errno;
use deepheap_sys::threads::lock::Lock;

use crate::address_map::AddressMap;
use crate::address_set::AddressSet;
use crate::outcome::{Freed, FreedPages, FreedRun, Shortage};
use crate::page::{PAGE, PageNo};
use crate::slabs::size_class::{PAGES_PER_SLAB, SIZE_CLASSES, SizeClass};
use crate::slabs::thread_cache::Filling;
use crate::table::Populated;

/// Empty slabs a class keeps.
const EMPTY_MAX: usize = 2;

/// One class's slabs.
pub(crate) struct CentralList {
    class: u8,
    pub(crate) lock: Lock<Available>,
    /// Allocated objects of the class, those in thread caches included.
    pub(crate) allocated: AtomicUsize,
}

/// Slabs with a free object.
pub(crate) struct Available {
    pub(crate) slabs: AddressSet,
    /// How many of them have no allocated object.
    pub(crate) empty: usize,
}

impl CentralList {
    /// The list of `class`, for a region of `slabs` slabs.
    pub(crate) fn new(class: u8, slabs: usize, populated: &Populated) -> errno::Result<Self> {
        Ok(Self {
            class,
            lock: Lock::new(Available { slabs: AddressSet::new(slabs, populated)?, empty: 0 }),
            allocated: AtomicUsize::new(0),
        })
    }

    fn size_class(&self) -> &'static SizeClass {
        &SIZE_CLASSES[self.class as usize]
    }

    /// Allocates up to `want` objects (at least one), lowest address first, adds their addresses
    /// to `filling` and returns how many. A new slab is opened only for the first of them.
    pub(crate) fn take(
        &self,
        map: &AddressMap,
        want: usize,
        filling: &mut Filling,
    ) -> Result<usize, Shortage> {
        let class = self.size_class();
        let size = class.size as usize;
        let mut taken = 0;
        let mut available = self.lock.lock();
        while taken < want {
            let slab = match available.slabs.first() {
                Some(slab) => slab,
                None if taken > 0 => break,
                None => {
                    let slab = map.runs.allocate_slab(class)?;
                    map.slabs.open(slab, self.class);
                    available.slabs.insert(slab);
                    available.empty += 1;
                    slab
                }
            };
            let used = map.slabs.used(slab);
            let count = (want - taken).min(class.objects() - used);
            let start = map.address_of_slab(slab);
            map.slabs.take(slab, class, count, |index| filling.add(start + index * size));
            if used == 0 {
                available.empty -= 1;
            }
            if used + count == class.objects() {
                available.slabs.remove(slab);
            }
            taken += count;
        }
        self.allocated.fetch_add(taken, Ordering::Relaxed);
        drop(available);
        // page_is_free counts on the bits being stored before the program's first store to the
        // objects; see `address_map.rs`.
        fence(Ordering::Release);
        Ok(taken)
    }

    /// Frees the objects at `addresses`. Slabs that the class need not keep go into quarantine: the
    /// first is returned, the others are parked. If there is none and `report` is set, returns
    /// pages of kept slabs that became free.
    pub(crate) fn put(&self, map: &AddressMap, addresses: &[usize], report: bool) -> Freed {
        let mut freed = Flushed { count: 0, run: None, pages: report.then(FreedPages::new) };
        let mut available = self.lock.lock();
        // Objects whose bits are in one word are freed in one step: neighbours often are.
        let mut word = (usize::MAX, 0);
        let mut mask = 0;
        for &address in addresses {
            // When the addresses were cached they were slots of this class. The slab may have been
            // closed since, if the program freed one of them twice.
            let slot = map.slot_at(address).filter(|slot| slot.1 == self.class);
            let Some((slab, _, index)) = slot else {
                continue;
            };
            if word != (slab, index / 64) {
                self.put_word(map, &mut available, &mut freed, word, mask);
                word = (slab, index / 64);
                mask = 0;
            }
            mask |= 1 << (index % 64);
        }
        self.put_word(map, &mut available, &mut freed, word, mask);
        self.allocated.fetch_sub(freed.count, Ordering::Relaxed);
        drop(available);
        match (freed.run.or_else(|| map.runs.take_parked()), freed.pages) {
            (Some(run), _) => Freed::Run(run),
            (None, Some(pages)) if !pages.as_slice().is_empty() => Freed::Pages(pages),
            _ => Freed::Done,
        }
    }

    /// Frees the objects of `mask` in one word of a slab's bits.
    fn put_word(
        &self,
        map: &AddressMap,
        available: &mut Available,
        freed: &mut Flushed,
        (slab, word): (usize, usize),
        mask: u64,
    ) {
        if mask == 0 {
            return;
        }
        let class = self.size_class();
        let used_before = map.slabs.used(slab);
        let objects = map.slabs.put(slab, class, word, mask);
        let used = map.slabs.used(slab);
        if objects == 0 {
            return;
        }
        freed.count += used_before - used;
        if used_before == class.objects() {
            available.slabs.insert(slab);
        }
        if used > 0 {
            if let Some(pages) = &mut freed.pages {
                note_free_pages(map, pages, slab, class, (word, objects));
            }
        } else if available.empty < EMPTY_MAX {
            available.empty += 1;
        } else {
            available.slabs.remove(slab);
            map.slabs.close(slab);
            let held = map.runs.hold_slab(slab);
            match freed.run {
                None => freed.run = Some(held),
                Some(_) => map.runs.park(held),
            }
        }
    }

    /// Takes over a slab of a loaded heap, `used` of whose objects are allocated.
    pub(crate) fn adopt(&self, available: &mut Available, slab: usize, used: usize) {
        self.allocated.fetch_add(used, Ordering::Relaxed);
        if used < self.size_class().objects() {
            available.slabs.insert(slab);
            available.empty += usize::from(used == 0);
        }
    }

    /// Bytes of allocated objects, those in thread caches included.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.allocated.load(Ordering::Relaxed) * self.size_class().size as usize
    }
}

/// The result of a flush so far.
struct Flushed {
    count: usize,
    run: Option<FreedRun>,
    /// None if the caller does not ask for pages.
    pages: Option<FreedPages>,
}

/// Notes the pages of objects just freed that no allocated object touches now.
fn note_free_pages(
    map: &AddressMap,
    pages: &mut FreedPages,
    slab: usize,
    class: &SizeClass,
    (word, mut objects): (usize, u64),
) {
    let size = class.size as usize;
    let mut checked = 0;
    while objects != 0 {
        let start = (word * 64 + objects.trailing_zeros() as usize) * size;
        objects &= objects - 1;
        for page in (start / PAGE).max(checked)..(start + size).div_ceil(PAGE) {
            if map.slabs.page_is_free(slab, class, page) {
                pages.note(PageNo::from(slab * PAGES_PER_SLAB + page));
            }
            checked = page + 1;
        }
    }
}
