//! Mend: makes the tables of a heap whole again of which pages are lost, between `load` and
//! `loaded`.
//!
//! | lost | what comes in its place |
//! |---|---|
//! | head | the last span and the last chunk that any table tells of |
//! | slab used | the objects are counted |
//! | huge runs | the lengths of runs |
//! | object spans | the places of chunks |
//! | dirty bits | what is allocated, and what has bytes in the store |
//! | live bits | what runs and chunks say; all objects that were ever handed out |
//! | slab lines and sheets | all objects of the slab are allocated |
//! | batches | all objects of a live page are allocated |
//! | run tags, slab classes | a span of theirs is one allocation, up to the last page in use |
//! | chunks | nothing: their objects are gone |
//!
//! Guarantees: what was allocated and is not said to be gone stays where it was, with its bytes:
//! where nothing is known it counts as allocated.
//! Never: touches pages; changes what a page that is there says of runs and objects outside of
//! spans that become one allocation.
//! Threads: the one that loads the heap.

use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeSet;

use deepheap_sys::narrow::Narrow;
use deepheap_sys::threads::lock::Lock;

use crate::address_map::AddressMap;
use crate::heap::Heap;
use crate::objects::Objects;
use crate::objects::chunk::{Chunk, ChunkState};
use crate::page::{PAGE, PAGES_PER_SPAN, pages_of};
use crate::runs::coalescing::HUGE_BODY;
use crate::runs::tags::{RUN_PAGES_MAX, RunState};
use crate::saved::tables::{self as saved, Head, RawHead};
use crate::slabs::bits::{LINE_WORDS, SHEET_WORDS};
use crate::slabs::size_class::{PAGES_PER_SLAB, SIZE_CLASSES, SMALL_CLASSES};
use crate::table::Table;

const SLABS_PER_SPAN: usize = PAGES_PER_SPAN / PAGES_PER_SLAB;
const TAGS_PER_PAGE: usize = PAGE / size_of::<u32>();

/// Counts of what could not be made anew.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Mended {
    /// Spans that are one allocation each now: nothing in them can be freed by itself.
    pub spans_joined: usize,
    /// Slabs of 64 KiB of which all objects count as allocated.
    pub slabs_filled: usize,
    /// Pages of objects of which all count as allocated.
    pub pages_filled: usize,
    /// Pages that were those of objects which are gone.
    pub pages_gone: usize,
}

/// The pages of tables that are lost.
struct Lost(BTreeSet<(u32, u32)>);

impl Lost {
    /// Whether anything of the table is.
    fn any(&self, table: u32) -> bool {
        self.0.range((table, 0)..=(table, u32::MAX)).next().is_some()
    }

    /// Whether the cell of so many bytes is.
    fn has(&self, table: u32, cell: usize, bytes: usize) -> bool {
        self.0.contains(&(table, (cell * bytes / PAGE).to_u32()))
    }

    /// The pages of the table that are.
    fn pages(&self, table: u32) -> impl Iterator<Item = usize> {
        self.0.range((table, 0)..=(table, u32::MAX)).map(|&(_, page)| page as usize)
    }

    /// Whether the live bits of a page are.
    fn has_live(&self, page: usize) -> bool {
        self.has(saved::LIVE_PAGES, page / 64, 8)
            || self.has(saved::LIVE_SPANS, page / PAGES_PER_SPAN / 64, 8)
    }
}

impl Heap {
    /// Fills in what is lost: the table and the page of each. `is_stored` says whether there are
    /// bytes of a page in the store.
    pub fn mend(&self, lost: &[(u32, u32)], is_stored: &dyn Fn(usize) -> bool) -> Mended {
        if lost.is_empty() {
            return Mended::default();
        }
        let (map, objects, loading) = (&self.map, &self.objects, &self.loading);
        let lost = Lost(lost.iter().copied().collect());
        Mending { map, objects, lost, is_stored, spans: 0, chunks_end: usize::MAX }.mend(loading)
    }
}

/// The tables, and what is lost of them.
struct Mending<'a> {
    map: &'a AddressMap,
    objects: &'a Objects,
    lost: Lost,
    is_stored: &'a dyn Fn(usize) -> bool,
    /// The ends that the head tells, or that the tables show.
    spans: usize,
    chunks_end: usize,
}

impl Mending<'_> {
    fn mend(mut self, loading: &Lock<Option<RawHead>>) -> Mended {
        if self.lost.any(saved::OBJECT_SPANS) {
            self.mend_object_spans();
        }
        self.mend_head(loading);
        if self.lost.any(saved::HUGE_RUNS) {
            self.mend_huge();
        }
        let joined = self.spans_to_join();
        joined.iter().for_each(|&span| self.join_span(span));
        let mut mended = Mended { spans_joined: joined.len(), ..Mended::default() };
        mended.slabs_filled = self.mend_slabs();
        let is_live_lost = self.lost.any(saved::LIVE_PAGES) || self.lost.any(saved::LIVE_SPANS);
        let is_dirty_lost = self.lost.any(saved::DIRTY_PAGES) || self.lost.any(saved::DIRTY_SPANS);
        let is_shifted = !joined.is_empty() || self.lost.any(saved::OBJECT_SPANS);
        if is_live_lost || is_shifted || self.lost.any(saved::CHUNKS) {
            (mended.pages_filled, mended.pages_gone) = self.mend_live_objects();
        }
        if self.lost.any(saved::BATCHES) || is_live_lost {
            mended.pages_filled += self.mend_batches();
        }
        if is_live_lost || is_dirty_lost || is_shifted {
            self.mend_bits_of_runs();
        }
        mended
    }

    /// The chunks say which spans are theirs.
    fn mend_object_spans(&self) {
        for (_, _, pages) in self.chunks() {
            let of_chunk = pages.start / PAGES_PER_SPAN..pages.end.div_ceil(PAGES_PER_SPAN);
            of_chunk.for_each(|span| self.objects.space.spans.set_bit(span));
        }
    }

    /// The chunks in use, each with its name and its pages.
    fn chunks(&self) -> impl Iterator<Item = (usize, &Chunk, Range<usize>)> {
        let (chunks, end) = (&self.objects.map.chunks, self.map.len() / PAGE);
        let names = (1..chunks.len().min(self.chunks_end)).filter(|&id| chunks.is_marked(id));
        names.map(move |id| (id, &chunks[id])).filter_map(move |(id, chunk)| {
            let is_used = chunk.has_state() && chunk.state() != ChunkState::Unused;
            is_used.then(|| (id, chunk, chunk.first()..chunk.range().end.min(end)))
        })
    }

    fn mend_head(&mut self, loading: &Lock<Option<RawHead>>) {
        let (base, bytes) = (self.map.base(), self.map.len());
        let words = *loading.lock();
        let chunks_end = self.chunks().last().map_or(1, |(id, ..)| id + 1);
        if let Some(Ok(head)) = words.map(|words| Head::parse(words, base, bytes)) {
            let seen = if self.lost.any(saved::CHUNKS) { chunks_end } else { 1 };
            (self.spans, self.chunks_end) = (head.spans_begun, head.chunks_end.max(seen));
            return;
        }
        let runs = &self.map.runs;
        let is_begun = |&span: &usize| {
            let first = span * PAGES_PER_SPAN;
            runs.tags.any_marked(first, PAGES_PER_SPAN)
                || runs.huge[span].load(Relaxed) != 0
                || self.objects.space.has_span(span)
                || runs.live_pages.count(pages_of(span)) + runs.dirty.count(pages_of(span)) > 0
        };
        let spans_begun = (0..bytes / PAGE / PAGES_PER_SPAN).rfind(is_begun).map_or(0, |at| at + 1);
        let head = Head { region_base: base, region_bytes: bytes, spans_begun, chunks_end };
        *loading.lock() = Some(Head::words(&head.page()));
        (self.spans, self.chunks_end) = (spans_begun, chunks_end);
    }

    /// Only huge runs are longer than a span.
    fn mend_huge(&self) {
        let huge = &self.map.runs.huge;
        let store = |span: usize, value: u32| huge.cell(span).store(value, Relaxed);
        for span in 0..huge.len() {
            if huge.is_marked(span) {
                store(span, 0);
            }
        }
        let mut span = 0;
        while span < self.spans {
            let (state, pages) = self.map.runs.tags.get(span * PAGES_PER_SPAN);
            let count = pages.div_ceil(PAGES_PER_SPAN);
            let is_run = matches!(state, RunState::Allocated | RunState::Held);
            if !is_run
                || count < 2
                || span + count > self.spans
                || self.objects.space.has_span(span)
            {
                span += 1;
                continue;
            }
            store(span, count.to_u32());
            (span + 1..span + count).for_each(|body| store(body, HUGE_BODY));
            span += count;
        }
    }

    /// Spans of runs of which the tags or the classes of slabs are lost, and which are in use.
    fn spans_to_join(&self) -> BTreeSet<usize> {
        let runs = &self.map.runs;
        let of_tags = self.lost.pages(saved::RUN_TAGS);
        let mut suspects: BTreeSet<usize> =
            of_tags.map(|page| page * TAGS_PER_PAGE / PAGES_PER_SPAN).collect();
        for page in self.lost.pages(saved::SLAB_CLASSES) {
            let first = page * PAGE / SLABS_PER_SPAN;
            suspects.extend(
                (first..first + PAGE / SLABS_PER_SPAN).filter(|&span| {
                    self.runs_of(span).any(|(_, _, state)| state == RunState::Slab)
                }),
            );
        }
        if self.lost.any(saved::HUGE_RUNS) {
            suspects.extend((0..self.spans).filter(|&span| {
                runs.tags.get(span * PAGES_PER_SPAN) == (RunState::Inside, 0)
                    && runs.huge[span].load(Relaxed) == 0
            }));
        }
        let has_slab = |span: usize| {
            let mut slabs = span * SLABS_PER_SPAN..(span + 1) * SLABS_PER_SPAN;
            slabs.any(|slab| self.map.slabs.class_of(slab) != 0)
        };
        suspects.retain(|&span| {
            span < self.spans
                && !self.objects.space.has_span(span)
                && runs.huge[span].load(Relaxed) != HUGE_BODY
                && (runs.live_pages.count(pages_of(span)) > 0
                    || has_slab(span)
                    || pages_of(span).any(self.is_stored))
        });
        suspects
    }

    /// The runs of a span as far as the tags lead: first page, pages and state.
    fn runs_of(&self, span: usize) -> impl Iterator<Item = (usize, usize, RunState)> + '_ {
        let Range { start: mut at, end } = pages_of(span);
        let end = end.min(self.map.len() / PAGE);
        core::iter::from_fn(move || {
            let (state, pages) = if at < end { self.map.runs.tags.get(at) } else { return None };
            let first = at;
            at += pages;
            (pages > 0).then_some((first, pages, state))
        })
    }

    /// Makes one allocation of what is in use of the span, or of the huge run that begins there.
    fn join_span(&self, span: usize) {
        let (runs, slabs) = (&self.map.runs, &self.map.slabs);
        // A forged count is not followed beyond the spans that say that they are the run's body.
        let is_body = |&at: &usize| runs.huge[at].load(Relaxed) == HUGE_BODY;
        let body = (span + 1..self.spans).take_while(is_body);
        let told = (runs.huge[span].load(Relaxed) as usize).max(1);
        let count = told.min(1 + body.count());
        if count < told {
            runs.huge.cell(span).store(if count > 1 { count.to_u32() } else { 0 }, Relaxed);
        }
        let in_use = |&page: &usize| {
            runs.live_pages.get(page)
                || (self.is_stored)(page)
                || slabs.class_of(page / PAGES_PER_SLAB) != 0
        };
        let last = pages_of(span).rfind(in_use).unwrap_or(span * PAGES_PER_SPAN);
        for slab in span * SLABS_PER_SPAN..(span + count) * SLABS_PER_SPAN {
            if slabs.classes.is_marked(slab) {
                slabs.classes[slab].store(0, Relaxed);
            }
            if slabs.used.is_marked(slab) {
                slabs.used[slab].store(0, Relaxed);
            }
            set_slab_bits(&slabs.lines, LINE_WORDS, slab, 0);
            set_slab_bits(&slabs.sheets, SHEET_WORDS, slab, 0);
        }
        let first = span * PAGES_PER_SPAN;
        if count > 1 {
            let pages = (count * PAGES_PER_SPAN).min(RUN_PAGES_MAX);
            return runs.tags.set(first, pages, RunState::Allocated);
        }
        let used = last + 1 - first;
        runs.tags.set(first, used, RunState::Allocated);
        if used < PAGES_PER_SPAN {
            runs.tags.set(last + 1, PAGES_PER_SPAN - used, RunState::Free);
        }
    }

    /// Objects of slabs: all of those are allocated of which nothing is known.
    /// Answers in how many slabs.
    fn mend_slabs(&self) -> usize {
        let (slabs, mut filled) = (&self.map.slabs, 0);
        for slab in slabs.with_class().collect::<Vec<_>>() {
            let class = usize::from(slabs.class_of(slab));
            if class > SMALL_CLASSES {
                continue;
            }
            let objects = SIZE_CLASSES[class].objects();
            let (number, table, words) = match objects <= LINE_WORDS * 64 {
                true => (saved::SLAB_LINES, &slabs.lines, LINE_WORDS),
                false => (saved::SLAB_SHEETS, &slabs.sheets, SHEET_WORDS),
            };
            if self.lost.has(number, slab, words * 8) {
                set_slab_bits(table, words, slab, objects);
                filled += 1;
            } else if !self.lost.has(saved::SLAB_USED, slab, 2) {
                continue;
            }
            let bits = table[slab * words..(slab + 1) * words].iter();
            let used: u32 = bits.map(|word| word.load(Relaxed).count_ones()).sum();
            slabs.used.cell(slab).store(used.to_u16(), Relaxed);
        }
        filled
    }

    /// Pages of objects live as their chunks have it: no others, and where the bits are lost all
    /// that were ever handed out. Answers how many pages are such guesses, and how many were none.
    fn mend_live_objects(&self) -> (usize, usize) {
        let live = &self.map.runs.live_pages;
        let (mut of_chunks, mut filled, mut gone) = (BTreeSet::new(), 0, 0);
        for (_, chunk, pages) in self.chunks() {
            let (shape, is_pooled) = (chunk.shape(), chunk.state() == ChunkState::Pooled);
            let handed_out = chunk.fresh.load(Relaxed).div_ceil(shape.batch) as usize;
            for page in pages {
                let is_guess = is_pooled && self.lost.has_live(page);
                let may_live = match chunk.state() {
                    ChunkState::Array => true,
                    ChunkState::Pooled if is_guess => {
                        (page - chunk.first()) / (shape.stride as usize) < handed_out
                    }
                    ChunkState::Pooled => live.get(page),
                    _ => false,
                };
                if may_live {
                    of_chunks.insert(page);
                    filled += usize::from(is_guess);
                }
            }
        }
        for span in (0..self.spans).filter(|&span| self.objects.space.has_span(span)) {
            let is_gone = |page: &usize| live.get(*page) && !of_chunks.contains(page);
            for page in pages_of(span).filter(is_gone) {
                live.clear(page..page + 1);
                gone += 1;
            }
            for &page in of_chunks.range(pages_of(span)).filter(|&&page| !live.get(page)) {
                live.set(page..page + 1);
            }
        }
        (filled, gone)
    }

    /// Batches: all of those are allocated of which nothing is known. Answers how many pages'.
    fn mend_batches(&self) -> usize {
        let (map, live) = (&self.objects.map, &self.map.runs.live_pages);
        let mut filled = 0;
        for (_, chunk, pages) in self.chunks() {
            let batch = chunk.shape().batch;
            let is_batched =
                chunk.state() == ChunkState::Pooled && (2..=u16::BITS).contains(&batch);
            if !is_batched || pages.is_empty() {
                continue;
            }
            map.batches.mark(pages.clone());
            for page in pages {
                let is_lost = self.lost.has(saved::BATCHES, page, 2);
                if !is_lost && !self.lost.has_live(page) {
                    continue;
                }
                let objects = map.batches[page].load(Relaxed);
                if !is_lost {
                    // The batch is there, the live bit was not.
                    match objects {
                        0 => live.clear(page..page + 1),
                        _ => live.set(page..page + 1),
                    }
                } else if live.get(page) {
                    map.batches[page].store(u16::MAX >> (u16::BITS - batch), Relaxed);
                    filled += 1;
                }
            }
        }
        filled
    }

    /// Live and dirty bits of the spans of runs.
    fn mend_bits_of_runs(&self) {
        let runs = &self.map.runs;
        let mut span = 0;
        while span < self.spans {
            let count = match runs.huge[span].load(Relaxed) {
                0 | HUGE_BODY => 1,
                count => (count as usize).min(self.spans - span),
            };
            let all = span * PAGES_PER_SPAN..(span + count) * PAGES_PER_SPAN;
            span += count;
            if self.objects.space.has_span(all.start / PAGES_PER_SPAN) {
                runs.dirty.clear(all);
                continue;
            }
            let dirty: Vec<usize> = all.clone().filter(|&page| (self.is_stored)(page)).collect();
            runs.live_pages.clear(all.clone());
            runs.dirty.clear(all.clone());
            for (first, pages, state) in self.runs_of(all.start / PAGES_PER_SPAN) {
                let run = first..(first + pages).min(all.end);
                match state {
                    RunState::Allocated => {
                        runs.live_pages.set_run(run.clone());
                        runs.dirty.set_run(run);
                    }
                    RunState::Slab => {
                        let class = self.map.slabs.class_of(first / PAGES_PER_SLAB);
                        let class = SIZE_CLASSES.get(usize::from(class));
                        let covered = class.map_or(0, |class| class.covered_pages());
                        runs.dirty.set(first..first + covered);
                    }
                    _ => {}
                }
            }
            for page in dirty.into_iter().filter(|&page| !runs.dirty.get(page)) {
                runs.dirty.set(page..page + 1);
            }
        }
    }
}

/// Sets the first `objects` bits of a slab in a table with so many words a slab, and clears the
/// others.
fn set_slab_bits(table: &Table<AtomicU64>, words: usize, slab: usize, objects: usize) {
    let cells = slab * words..(slab + 1) * words;
    if objects > 0 {
        table.mark(cells.clone());
    } else if !table.is_marked(cells.start) {
        return;
    }
    for (at, word) in table[cells].iter().enumerate() {
        let set = objects.saturating_sub(at * 64).min(64);
        word.store(if set == 0 { 0 } else { u64::MAX >> (64 - set) }, Relaxed);
    }
}
