//! Durable: hands out the heap's tables as pages, and fills a fresh heap from such pages.
//!
//! A saved heap goes on where it was, at the same region base, in any later process: nothing that
//! is saved is a pointer. A run or an object that was in quarantine when the heap was saved is free
//! in the loaded one, with its old bytes; nobody need end it. A chunk of objects that waited for
//! its bytes to be ended comes back from `Heap::take_idle_objects`.
//!
//! Guarantees: after `loaded` the live allocations are those of the moment of `save`. No bytes at
//! all make `load` or `loaded` panic or run for ever. But only some errors are found: the caller
//! has to verify the pages, by checksums for example.
//! Never: touches managed memory; saves thread caches or areas.
//! Threads: `save` while nothing changes; `load` and `loaded` by one thread, before others know the
//! heap.

use core::sync::atomic::Ordering;

use crate::fork::ForkGuards;
use crate::heap::Heap;
use crate::page::{PAGE, SPAN_SHIFT};
use crate::saved::rebuild_runs::{Rebuilt, rebuild_runs};
use crate::saved::tables::{self as saved, BadTables, Head, TABLES, TableShape, check};
use crate::slabs::size_class::{SIZE_CLASSES, SMALL_CLASSES};
use crate::table::Pages;

impl Heap {
    /// The tables that a heap of this region length (bytes) is saved in, the same for ever.
    pub fn table_shapes(region_len: usize) -> Vec<TableShape> {
        TABLES.iter().map(|table| table.shape(region_len >> SPAN_SHIFT)).collect()
    }

    /// Hands out table, page and bytes of every page that may hold something: tables in their
    /// order, pages ascending, 4096 bytes each. One that is all zero need not be kept. A page that
    /// was handed out once will be each time that this heap is saved, until the process ends.
    ///
    /// Nothing may change meanwhile: either between `fork_prepare` and `after_fork`, or under a
    /// lock of the caller's that every user of the heap takes. Memory in a thread cache would be
    /// lost to the loaded heap: `flush` first. A heap that ever had an area cannot be saved.
    pub fn save(&self, page: &mut dyn FnMut(u32, u32, &[u8])) {
        assert!(!self.map.runs.had_areas.load(Ordering::Relaxed), "areas are not saved");
        page(saved::HEAD, 0, &self.head().page());
        for table in &TABLES[1..] {
            if let Some(pages) = self.pages_of(table.id) {
                pages.save(&mut |number, bytes| page(table.id, number, bytes));
            }
        }
    }

    /// Fills a page of a fresh heap, before `loaded`. Pages that are not loaded are all zero.
    /// False: the tables have no such page, or `bytes` is not one.
    pub fn load(&self, table: u32, page: u32, bytes: &[u8]) -> bool {
        let Ok(bytes) = <&[u8; PAGE]>::try_from(bytes) else { return false };
        if table == saved::HEAD && page == 0 {
            *self.loading.lock() = Some(Head::words(bytes));
            return true;
        }
        self.pages_of(table).is_some_and(|pages| pages.load(page, bytes))
    }

    /// Ends loading: checks the tables against each other and makes the rest of the heap from them.
    /// From now on the spans below `spans_begun` are in use; their pages have to be there, each as
    /// it was when the heap was saved. Granted are what is committed, and the blocks that objects
    /// use.
    ///
    /// # Errors
    /// What is wrong with the tables. The heap cannot be used then.
    pub fn loaded(&self) -> Result<(), BadTables> {
        let words = self.loading.lock().take();
        let words = words.ok_or(BadTables { what: "missing: head page", number: 0 })?;
        let head = Head::parse(words, self.map.base(), self.map.len())?;
        let spans = head.spans_begun;
        let rebuilt = rebuild_runs(&self.map, &self.objects.space, spans)?;
        self.adopt_slabs(&rebuilt)?;
        let ground = self.objects.ground(&self.map);
        let object_pages = self.objects.rebuild(ground, spans, head.chunks_end)?;
        // No run and no object is where these bits are not counted.
        let live = self.map.runs.live_pages.count(0..self.map.len() / PAGE);
        let known = rebuilt.run_pages + object_pages;
        check(live == known, "live, but of no run and no object: pages,", live - known.min(live))
    }

    /// Spans from this one on were never begun.
    pub fn spans_begun(&self) -> usize {
        self.head().spans_begun
    }

    fn head(&self) -> Head {
        // `fork_prepare` takes the lock of the guards last, so it is not held for the others.
        let frozen = self.fork_guards.lock().as_ref().and_then(ForkGuards::ends);
        let (spans_begun, chunks_end) = frozen.unwrap_or_else(|| {
            let spans_begun = self.map.runs.lock.lock().next;
            (spans_begun, self.objects.space.lock.lock().chunks_end as usize)
        });
        let (region_base, region_bytes) = (self.map.base(), self.map.len());
        Head { region_base, region_bytes, spans_begun, chunks_end }
    }

    /// The pages of the table with that number; None if it is not saved by pages.
    fn pages_of(&self, table: u32) -> Option<&dyn Pages> {
        let (slabs, runs, objects) = (&self.map.slabs, &self.map.runs, &self.objects);
        Some(match table {
            saved::SLAB_CLASSES => &slabs.classes,
            saved::SLAB_USED => &slabs.used,
            saved::SLAB_LINES => &slabs.lines,
            saved::SLAB_SHEETS => &slabs.sheets,
            saved::RUN_TAGS => &runs.tags.tags,
            saved::LIVE_PAGES => &runs.live_pages.words,
            saved::LIVE_SPANS => &runs.live_pages.whole,
            saved::DIRTY_PAGES => &runs.dirty.words,
            saved::DIRTY_SPANS => &runs.dirty.whole,
            saved::HUGE_RUNS => &runs.huge,
            saved::OBJECT_SPANS => &objects.space.spans,
            saved::CHUNKS => &objects.map.chunks,
            saved::BATCHES => &objects.map.batches,
            _ => return None,
        })
    }

    /// Gives every slab to the central list of its class.
    fn adopt_slabs(&self, rebuilt: &Rebuilt) -> Result<(), BadTables> {
        let slabs = &self.map.slabs;
        let mut lists: [_; SMALL_CLASSES] =
            core::array::from_fn(|list| self.lists[list].lock.lock());
        let mut found = 0;
        for slab in slabs.with_class() {
            let class = usize::from(slabs.class_of(slab));
            let used = slabs.used(slab);
            let valid = (1..=SMALL_CLASSES).contains(&class);
            let fits = valid && used <= SIZE_CLASSES[class].objects();
            check(fits, "impossible: the class or use of slab", slab)?;
            if used == 0 {
                // Its pages may have been all zero, and not been kept.
                slabs.mark(slab, slabs.class_of(slab));
            }
            self.lists[class - 1].adopt(&mut lists[class - 1], slab, used);
            found += 1;
        }
        // Each slab among the runs has a class, so if there are as many, they are the same.
        check(found == rebuilt.slabs, "slabs that no run is:", found - rebuilt.slabs.min(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::SPAN;

    #[test]
    fn every_table_is_there_and_as_long_as_its_shape_says() {
        for spans in [1, 3, 64, 65, 1000] {
            let heap = Heap::new(1 << 40, spans * SPAN).expect("address space");
            for shape in Heap::table_shapes(spans * SPAN) {
                let bytes = [0; PAGE];
                assert!(heap.load(shape.id, shape.pages - 1, &bytes), "{shape:x?}");
                assert!(!heap.load(shape.id, shape.pages, &bytes), "{shape:x?}");
                assert!(!heap.load(shape.id, 0, &bytes[1..]), "{shape:x?}");
            }
            assert!(!heap.load(0xff, 0, &[0; PAGE]) && !heap.load(0x10e, 0, &[0; PAGE]));
        }
    }

    #[test]
    fn mending_follows_no_forged_huge_run_out_of_the_heap() {
        for (forged, spans) in [(1_000_000u32, 2), (u32::MAX - 1, 2), (3, 2), (2, 1)] {
            let heap = Heap::new(1 << 40, 4 * SPAN).expect("address space");
            let (region_base, region_bytes) = (heap.map.base(), heap.map.len());
            let head = Head { region_base, region_bytes, spans_begun: spans, chunks_end: 1 };
            assert!(heap.load(saved::HEAD, 0, &head.page()));
            let mut huge = [0; PAGE];
            huge[..4].copy_from_slice(&forged.to_le_bytes());
            assert!(heap.load(saved::HUGE_RUNS, 0, &huge));
            let mended = heap.mend(&[(saved::RUN_TAGS, 0)], &|page| page == 3);
            assert_eq!((mended.spans_joined, heap.loaded()), (1, Ok(())), "{forged}");
        }
    }
}
