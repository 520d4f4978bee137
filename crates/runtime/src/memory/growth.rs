//! Growth: gives the heap what it lacks: address space, and promises of space for its pages.
//!
//! A promise sets a block of the store aside for a page; in plain mode it is a page of RAM. With
//! `overcommit:lazy` memory pages take their blocks only when they are touched (the pager's
//! `promises`). As much again as is touched is promised ahead, so a program that touches half of
//! what it allocates gets NULL at the end of the store, and its touches never lack room. More than
//! that is granted while the store has some room left, a margin. Memory pages and objects climb
//! one ladder, the cheapest rung first:
//!
//! | rung | where the space comes from |
//! |---|---|
//! | RAM | memory pages only, while the heap is plain |
//! | store | what nobody was promised |
//! | dead children | what the store withheld for them |
//! | idle objects | chunks that pools keep without an object |
//! | free pages | those that keep their old bytes for reuse |
//!
//! Guarantees: an allocation that could not be spilled fails with ENOMEM; a lazy one, if what is
//! untouched is more than the margin, may instead end the program when it is touched (`relief`).
//! Never: promises more than the store or, in plain mode, RAM can hold.
//! Threads: any, outside the fault path, one at a time under `growth` with all signals blocked.

use deepheap_heap::{Heap, PAGE, PAGES_PER_SPAN, SPAN, Shortage, SpanRange};
use deepheap_pager::Pager;
use deepheap_sys::memory::mapping::{self, Advice};
use deepheap_sys::say;
use deepheap_sys::threads::signals::Blocked;

use crate::control::budget::{most_plain_pages, plain_pages};
use crate::memory::no_room;
use crate::process::children::forget_dead_children;
use crate::process::switch::switched;
use crate::runtime::{GRANT_BLOCKS, Growth, Inside, Runtime};
use crate::settings::store_location::StoreLocation;
use crate::stats::observe::{has_changed, publish_gauges};

/// Lazy: what is granted and not touched needs room for all of it, or for this part of the store
/// (and `GRANT_BLOCKS` at least).
const MARGIN_PART: u64 = 64;

/// Which heap needs space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Memory pages, each of which is a block.
    Memory,
    /// Objects, managed from birth: the first one ends plain mode.
    Objects,
    /// Objects in lanes: address space of their own, and blocks as other objects.
    Lanes,
}

impl Runtime {
    /// Relieves a shortage of the heap, or answers that there is no memory (false).
    pub(crate) fn relieve(&'static self, shortage: Shortage) -> bool {
        let _inside = Inside::enter();
        let _blocked = Blocked::all();
        let mut growth = self.growth.lock();
        let relieved = match shortage {
            Shortage::TooLarge => false,
            Shortage::Pages(pages) => self.grant(&mut growth, Kind::Memory, pages),
            Shortage::Spans(count) => self.add_spans(&mut growth, Kind::Memory, count),
            Shortage::ObjectBlocks(blocks) => self.grant(&mut growth, Kind::Objects, blocks),
            Shortage::ObjectSpans(count) => self.add_spans(&mut growth, Kind::Objects, count),
            Shortage::LaneSpans(count) => self.add_spans(&mut growth, Kind::Lanes, count),
        };
        if !matches!(shortage, Shortage::Pages(_)) || has_changed(self) {
            publish_gauges(self);
        }
        relieved
    }

    /// The result of `attempt`, once its shortage was relieved; none if there is no memory.
    pub(crate) fn relieved<T>(
        &'static self,
        mut attempt: impl FnMut() -> Result<T, Shortage>,
    ) -> Option<T> {
        loop {
            match attempt() {
                Ok(answer) => return Some(answer),
                Err(shortage) => self.relieve(shortage).then_some(())?,
            }
        }
    }

    /// New spans for what the program maps itself. None if the region has no more.
    pub(crate) fn area_spans(&'static self, count: usize) -> Option<SpanRange> {
        let _inside = Inside::enter();
        let _blocked = Blocked::all();
        let mut growth = self.growth.lock();
        self.make_spans(&mut growth, Kind::Memory, count)
    }

    /// The ladder: grants `missing` more blocks, and some to spare if they are there.
    fn grant(&'static self, growth: &mut Growth, kind: Kind, missing: usize) -> bool {
        let in_ram = |growth: &Growth| {
            kind == Kind::Memory
                && self.pager().is_none()
                && self.grant_in_ram(most_plain_pages(self, growth.refused), missing)
        };
        if in_ram(growth) {
            return true;
        }
        // Under a bound on stalls there may be RAM left for a heap that cannot be managed.
        let Some(pager) = switched(self, growth) else { return in_ram(growth) };
        let grant = |blocks| self.grant_from_store(pager, kind, blocks);
        // Many threads may have asked at once: what one of them was granted is there for all.
        let spare = match kind {
            Kind::Memory => self.heap.granted_pages().saturating_sub(self.heap.committed_pages()),
            Kind::Objects | Kind::Lanes => 0,
        };
        if grant(missing.max(GRANT_BLOCKS.saturating_sub(spare))) || grant(missing) {
            return true;
        }
        forget_dead_children(self, pager);
        if grant(missing) {
            return true;
        }
        let used = used_blocks(&self.heap, kind);
        for idle in [Kind::Objects, Kind::Memory] {
            match idle {
                Kind::Objects | Kind::Lanes => self.return_idle_objects(pager),
                Kind::Memory => self.purge(0),
            }
            // Idle room of the same kind is as good as granted. The store has to promise anew
            // what was the other's.
            if idle != kind {
                pager.store().unreserve(revoke_blocks(self, pager, idle));
            }
            if used_blocks(&self.heap, kind) + missing <= used || grant(missing) {
                return true;
            }
        }
        let (wanted, has_tables) = match kind {
            Kind::Memory if self.config.is_lazy() => {
                let wanted = margin(pager, untouched_pages(&self.heap, pager) + missing);
                (wanted, pager.has_tables_for(wanted))
            }
            _ => (missing, has_room_for_tables(pager, kind, missing)),
        };
        match has_tables {
            true => no_room::say_store_is_full(pager.store(), wanted as u64),
            false => say_no_tables(self, wanted),
        }
        false
    }

    /// Plain mode: grants pages up to a limit, or drops as many that keep old bytes.
    fn grant_in_ram(&self, limit: usize, missing: usize) -> bool {
        let granted = self.heap.granted_pages();
        if granted + missing <= limit {
            self.heap.grant(missing.max(GRANT_BLOCKS).min(limit - granted));
            return true;
        }
        let used = self.heap.committed_pages();
        self.purge(0);
        self.heap.committed_pages() + missing <= used
    }

    /// Grants `blocks` if the store can promise to hold them and the budget their tables.
    fn grant_from_store(&self, pager: &Pager, kind: Kind, blocks: usize) -> bool {
        if kind == Kind::Memory && self.config.is_lazy() {
            let untouched = untouched_pages(&self.heap, pager) + blocks;
            let ahead = promised_ahead(pager, untouched);
            let has_room = pager.promise_ahead(ahead)
                && (ahead == untouched || pager.room_left() >= margin(pager, untouched));
            if has_room {
                self.heap.grant(blocks);
            }
            return has_room;
        }
        let promised = has_room_for_tables(pager, kind, blocks)
            && pager.store().reserve(blocks as u64).is_ok();
        match kind {
            Kind::Memory if promised => {
                self.heap.grant(blocks);
                pager.rebalance();
            }
            Kind::Objects if promised => self.heap.grant_object_blocks(blocks as u64),
            Kind::Memory | Kind::Objects | Kind::Lanes => {}
        }
        promised
    }

    /// Gives the store back promises that no page has and that are not meant for untouched ones.
    pub(crate) fn return_promises(&self, pager: &Pager) {
        pager.return_promises(promised_ahead(pager, untouched_pages(&self.heap, pager)));
    }

    /// Makes `count` more consecutive spans usable.
    fn add_spans(&'static self, growth: &mut Growth, kind: Kind, count: usize) -> bool {
        let fits = match kind {
            // All of them but the last are needed whole.
            Kind::Memory => count <= 1 || could_hold(self, (count - 1) * PAGES_PER_SPAN),
            Kind::Objects | Kind::Lanes => switched(self, growth).is_some_and(|pager| {
                let has_room = pager.has_room_for_objects(count);
                if !has_room {
                    say_no_tables(self, count * PAGES_PER_SPAN);
                }
                has_room
            }),
        };
        let Some(range) = fits.then(|| self.make_spans(growth, kind, count)).flatten() else {
            return false;
        };
        match kind {
            Kind::Memory => self.heap.publish_spans(range),
            Kind::Objects | Kind::Lanes => {
                match kind {
                    Kind::Lanes => self.heap.add_lane_spans(range),
                    _ => self.heap.add_object_spans(range),
                }
                if let Some(pager) = self.pager() {
                    pager.rebalance();
                }
            }
        }
        true
    }

    /// Consecutive spans whose memory can be used.
    fn make_spans(
        &'static self,
        growth: &mut Growth,
        kind: Kind,
        count: usize,
    ) -> Option<SpanRange> {
        let range = self.heap.begin_spans(count)?;
        let address = self.region_base + range.first * SPAN;
        // SAFETY: our own reservation, not in use by anyone yet.
        let usable = unsafe {
            mapping::commit(address as *mut u8, range.count * SPAN).and_then(|()| {
                // Huge pages would be charged to the budget whole and could only leave it whole.
                mapping::advise(address as *mut u8, range.count * SPAN, Advice::NoHugePage)
            })
        };
        let usable = usable.and_then(|()| match (kind, self.pager()) {
            (Kind::Memory, Some(pager)) => pager.manage(range.first, range.count),
            (Kind::Objects | Kind::Lanes, Some(pager)) => {
                let managed = match kind {
                    Kind::Lanes => pager.manage_lanes(range.first, range.count),
                    _ => pager.manage_objects(range.first, range.count),
                };
                managed.inspect(|()| pager.expect_objects(range.first, range.count))
            }
            (_, None) => Ok(()),
        });
        if let Err(errno) = usable {
            say!("the heap cannot grow: ", errno);
            self.heap.abandon_spans(range);
            return None;
        }
        growth.spans = growth.spans.max(range.first + range.count);
        Some(range)
    }
}

/// Takes back all that was granted and is not used; answers what the store had promised for it.
fn revoke_blocks(runtime: &Runtime, pager: &Pager, kind: Kind) -> u64 {
    match kind {
        Kind::Memory if runtime.config.is_lazy() => {
            runtime.return_promises(pager);
            0
        }
        Kind::Memory => runtime.heap.revoke(usize::MAX) as u64,
        Kind::Objects | Kind::Lanes => runtime.heap.revoke_object_blocks(u64::MAX),
    }
}

/// Whether the store or, in plain mode, RAM beside it could hold as many pages if all else were
/// free; says why not. Address space costs metadata: it is not spent on what can never be.
fn could_hold(runtime: &Runtime, pages: usize) -> bool {
    let most = match runtime.pager() {
        Some(pager) => pager.store().stats().reservable_blocks,
        None => {
            let location = StoreLocation::find(&runtime.config).ok();
            let capacity = location.and_then(|location| location.capacity_bytes(&runtime.config));
            capacity.map_or(u64::MAX, |bytes| bytes / PAGE as u64)
        }
    };
    let most = most.max(plain_pages(runtime) as u64);
    let fits = pages as u64 <= most;
    let has_tables = pages.saturating_mul(Pager::BYTES_PER_PAGE) <= runtime.ram();
    if !fits {
        no_room::say_too_large(pages as u64, most);
    } else if !has_tables {
        say_no_tables(runtime, pages);
    }
    fits && has_tables
}

fn say_no_tables(runtime: &Runtime, pages: usize) {
    no_room::say_tables_are_too_large(pages as u64, runtime.ram() as u64);
}

/// Granted blocks that are used. A snapshot.
fn used_blocks(heap: &Heap, kind: Kind) -> usize {
    match kind {
        Kind::Memory => heap.committed_pages(),
        Kind::Objects | Kind::Lanes => heap.used_object_blocks() as usize,
    }
}

/// Lazy: pages that were granted and are not touched yet. A snapshot.
fn untouched_pages(heap: &Heap, pager: &Pager) -> usize {
    heap.granted_pages().saturating_sub(pager.touched_pages())
}

/// Lazy: for how many of so many untouched pages room is promised all the same: for as many as are
/// touched, and some.
fn promised_ahead(pager: &Pager, untouched: usize) -> usize {
    untouched.min(pager.touched_pages().max(GRANT_BLOCKS))
}

/// Lazy: how much room must be left before so many untouched pages are granted.
fn margin(pager: &Pager, untouched: usize) -> usize {
    let part = pager.store().stats().reservable_blocks / MARGIN_PART;
    untouched.min(usize::try_from(part).unwrap_or(usize::MAX).max(GRANT_BLOCKS))
}

/// Whether the budget holds the tables of that many blocks; those of objects came with their span.
fn has_room_for_tables(pager: &Pager, kind: Kind, blocks: usize) -> bool {
    kind == Kind::Objects || pager.has_room_for_tables(blocks)
}
