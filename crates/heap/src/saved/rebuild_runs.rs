//! Rebuild runs: makes free runs and counts anew from the tags of a heap that was loaded.
//!
//! The walk goes from run to run, not from page to page. A run in quarantine is free from now on,
//! with its old bytes; so is one that was in a thread cache. A begun span that no run and no object
//! was in is a free one.
//!
//! Guarantees: if it succeeds, runs tile the spans, and each is marked as what it is.
//! Never: touches pages.
//! Threads: the one that loads the heap, under the lock of `Coalescing`.

use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::address_map::AddressMap;
use crate::objects::space::ObjectSpace;
use crate::page::{PAGES_PER_SPAN, pages_of};
use crate::runs::coalescing::{Coalescing, HUGE_BODY};
use crate::runs::tags::RunState;
use crate::saved::tables::{BadTables, check};
use crate::slabs::bits::Slabs;
use crate::slabs::size_class::{PAGES_PER_SLAB, SIZE_CLASSES};

/// The findings of the walk.
#[derive(Default)]
pub(crate) struct Rebuilt {
    /// Slabs.
    pub slabs: usize,
    /// Pages of allocated runs.
    pub run_pages: usize,
    /// Committed pages.
    dirty: usize,
}

/// Checks the runs in the spans below `spans`, and makes the rest from them. The grant is what is
/// committed.
pub(crate) fn rebuild_runs(
    map: &AddressMap,
    objects: &ObjectSpace,
    spans: usize,
) -> Result<Rebuilt, BadTables> {
    let (runs, slabs) = (&map.runs, &map.slabs);
    let mut lock = runs.lock.lock();
    let mut walk = Walk { runs, slabs, objects, found: Rebuilt::default() };
    let mut span = 0;
    while span < spans {
        span = walk.rebuild(span, spans)?;
    }
    let found = walk.found;
    for span in spans..runs.huge.len() {
        let unused = runs.huge[span].load(Relaxed) == 0 && !objects.has_span(span);
        check(unused, "never begun, but in use: span", span)?;
    }
    let all = 0..runs.huge.len() * PAGES_PER_SPAN;
    check(runs.dirty.count(all) == found.dirty, "committed pages above span", spans)?;
    lock.next = spans;
    runs.grant.committed.store(found.dirty, Relaxed);
    runs.grant.granted.store(found.dirty, Relaxed);
    runs.run_pages.store(found.run_pages, Relaxed);
    runs.end.store(spans, Release);
    Ok(found)
}

/// The walk, and what it has found so far.
struct Walk<'a> {
    runs: &'a Coalescing,
    slabs: &'a Slabs,
    objects: &'a ObjectSpace,
    found: Rebuilt,
}

impl Walk<'_> {
    /// Rebuilds a span, or the huge run that begins there; returns the span behind it.
    fn rebuild(&mut self, span: usize, spans: usize) -> Result<usize, BadTables> {
        let huge = self.runs.huge[span].load(Relaxed) as usize;
        let end = span + huge.max(1);
        check(end <= spans, "runs into nowhere: the huge run at span", span)?;
        for span in span..end {
            let sound = self.runs.dirty.agrees(span) && self.runs.live_pages.agrees(span);
            check(sound, "words of bits in the whole span", span)?;
            self.found.dirty += self.runs.dirty.count(pages_of(span));
        }
        match huge {
            0 if self.objects.has_span(span) => self.check_object_span(span)?,
            0 => self.rebuild_span(span)?,
            _ => self.rebuild_huge(span, huge)?,
        }
        Ok(end)
    }

    fn check_object_span(&self, span: usize) -> Result<(), BadTables> {
        let has_runs = self.runs.tags.any_marked(span * PAGES_PER_SPAN, PAGES_PER_SPAN);
        let sound = !has_runs && self.runs.dirty.count(pages_of(span)) == 0;
        check(sound, "runs beside the objects of span", span)
    }

    fn rebuild_span(&mut self, span: usize) -> Result<(), BadTables> {
        let (start, end) = (span * PAGES_PER_SPAN, (span + 1) * PAGES_PER_SPAN);
        if self.runs.tags.get(start) == (RunState::Inside, 0) {
            check(
                self.runs.live_pages.count(start..end) == 0,
                "live pages in the free span",
                span,
            )?;
            self.make_free(start, PAGES_PER_SPAN);
            return Ok(());
        }
        let mut free_from = None;
        let mut at = start;
        while at < end {
            let (state, pages) = self.runs.tags.get(at);
            let fits = pages > 0 && at + pages <= end;
            check(fits, "the runs do not tile span", span)?;
            let run = at..at + pages;
            let is_free = matches!(state, RunState::Free | RunState::Held | RunState::Cached);
            if !is_free && let Some(first) = free_from.take() {
                self.make_free(first, at - first);
            }
            match state {
                RunState::Free | RunState::Held | RunState::Cached => {
                    if state == RunState::Cached {
                        self.runs.live_pages.clear(run.clone());
                    }
                    check(
                        self.runs.live_pages.count(run) == 0,
                        "live and free: the run at page",
                        at,
                    )?;
                    free_from = free_from.or(Some(at));
                }
                RunState::Slab => {
                    self.check_slab_run(at, pages)?;
                    self.found.slabs += 1;
                }
                RunState::Allocated => {
                    self.check_allocated(at, pages)?;
                    self.found.run_pages += pages;
                }
                RunState::Inside | RunState::Area => {
                    check(false, "no run of memory starts at page", at)?;
                }
            }
            at += pages;
        }
        if let Some(first) = free_from {
            self.make_free(first, end - first);
        }
        Ok(())
    }

    fn rebuild_huge(&mut self, span: usize, count: usize) -> Result<(), BadTables> {
        let is_body = |body: usize| self.runs.huge[body].load(Relaxed) == HUGE_BODY;
        let whole = (span + 1..span + count).all(is_body)
            && (span..span + count).all(|span| !self.objects.has_span(span));
        let (start, end) = (span * PAGES_PER_SPAN, (span + count) * PAGES_PER_SPAN);
        let (state, pages) = self.runs.tags.get(start);
        let fits = pages > 0 && pages.div_ceil(PAGES_PER_SPAN) == count;
        check(whole && fits, "not whole: the huge run at span", span)?;
        match state {
            RunState::Allocated => {
                self.check_allocated(start, pages)?;
                self.found.run_pages += pages;
                let rest = self.runs.dirty.count(start + pages..end);
                self.runs.dirty_free.add(end - 1, rest);
                Ok(())
            }
            RunState::Held => {
                let live = self.runs.live_pages.count(start..end);
                check(live == 0, "live and free: the run at page", start)?;
                for span in span..span + count {
                    self.runs.huge[span].store(0, Relaxed);
                    self.make_free(span * PAGES_PER_SPAN, PAGES_PER_SPAN);
                }
                Ok(())
            }
            _ => check(false, "neither used nor free: the huge run at span", span),
        }
    }

    fn check_allocated(&self, first: usize, pages: usize) -> Result<(), BadTables> {
        let run = first..first + pages;
        let sound =
            self.runs.live_pages.count(run.clone()) == pages && self.runs.dirty.count(run) == pages;
        check(sound, "not live or not committed: the run at page", first)
    }

    fn check_slab_run(&self, first: usize, pages: usize) -> Result<(), BadTables> {
        let slab = first / PAGES_PER_SLAB;
        let class = &SIZE_CLASSES[usize::from(self.slabs.class_of(slab))];
        let covered = class.covered_pages();
        let sound = pages == PAGES_PER_SLAB
            && first.is_multiple_of(PAGES_PER_SLAB)
            && covered > 0
            && self.runs.dirty.count(first..first + covered) == covered
            && self.runs.live_pages.count(first..first + pages) == 0;
        check(sound, "not a whole slab: slab", slab)
    }

    fn make_free(&self, first: usize, pages: usize) {
        self.runs.dirty_free.add(first, self.runs.dirty.count(first..first + pages));
        self.runs.insert_free(first, pages);
    }
}
