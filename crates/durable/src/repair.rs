//! Repair: `deepheap fsck --repair`. Makes the damaged tables of a durable heap whole
//! again, or goes back to the checkpoint before.
//!
//! What the damage has left is taken at each checkpoint of which anything is there, the newest
//! first. The first one counts from which nothing is lost; if there is none, the newest. The empty
//! heap that was created is taken only if it is all there is.
//!
//! | damaged | made anew from |
//! |---|---|
//! | superblocks | each other, the copies of the first one, the topmost pages of the index |
//! | pages of the index | the pages that they tell of |
//! | the store's tables | the directories of the segments |
//! | the object table | the names in the log; of two copies of an object the later one counts |
//! | the heap's tables | each other (`heap/saved/mend`) |
//! | roots, snapshots | nothing: they are lost |
//!
//! Guarantees: the file is changed by a checkpoint, which is committed as any other, and by a
//! second one of the same content if both superblocks were damaged. If the repair fails or is
//! interrupted, what was whole is whole. What could not be made as it was is told.
//! Never: changes a heap in which nothing is damaged; changes the log.
//! Threads: one; no process has the heap open for writing.

use std::collections::BTreeMap;
use std::sync::Arc;

use deepheap_heap::{Heap, Mended, PAGE, PAGES_PER_SPAN, PageNo};
use deepheap_pager::saved_places::{PLACES, page_of, places_of};
use deepheap_store::{
    Block, CHECKSUMS, Device, DurableError, RebuiltLog, SCALARS, SEGMENTS, SHARERS, SNAPSHOTS,
    Salvage, TAGS,
};

use crate::error::OpenError;
use crate::heap_file::HeapFile;
use crate::inspect::fsck_of;
use crate::load::{OBJECT_TABLE, expect_tables, heap_of, load_pages, load_roots};
use crate::offline::{device_of, stamp};
use crate::roots::Roots;

/// What a repair did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repair {
    /// The checkpoint that has whole tables.
    pub checkpoint: u64,
    /// The one whose content it has.
    pub content_of: u64,
    /// Pages of tables that were made anew.
    pub pages: usize,
    /// What is there, but not quite as it was.
    pub changed: Vec<String>,
    /// What is gone, or may be other bytes than it was.
    pub lost: Vec<String>,
}

/// Pages of tables: table, page, bytes.
type Pages = BTreeMap<(u32, u32), Box<[u8]>>;

/// Whole tables, made from what is left of a checkpoint.
struct Restored {
    pages: Pages,
    lost_pages: usize,
    changed: Vec<String>,
    lost: Vec<String>,
}

/// The later copy of each object of a lost page of the object table, and its order.
type Copies = BTreeMap<u32, Box<[Option<(u64, Block)>; PLACES]>>;

/// Repairs a file. None if there is nothing to repair: what is damaged then is in the log, if
/// anything is.
///
/// # Errors
/// `OpenError`: there is no heap, or somebody uses it; the file is what it was then.
pub fn repair<'a>(of: impl Into<HeapFile<'a>>) -> Result<Option<Repair>, OpenError> {
    let of = of.into();
    let device: Arc<dyn Device> = device_of(of.path)?;
    if fsck_of(&of).is_ok_and(|found| found.contradiction.is_none() && !found.report.has_tables()) {
        return Ok(None);
    }
    let mut all = Salvage::all(&device, of.key.as_ref())?;
    let mut chosen: Option<(usize, Restored)> = None;
    let mut refusal = None;
    for (number, salvage) in all.iter().enumerate() {
        let is_empty = salvage.checkpoint() == 1;
        match restore(salvage) {
            Ok(restored) if restored.lost.is_empty() && !(is_empty && chosen.is_some()) => {
                chosen = Some((number, restored));
                break;
            }
            Ok(restored) if chosen.is_none() && salvage.has_superblock() => {
                chosen = Some((number, restored));
            }
            Ok(_) => {}
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    let Some((number, restored)) = chosen else {
        return Err(refusal.unwrap_or(OpenError::Format(DurableError::SuperblocksDamaged)));
    };
    let newest = all[0].checkpoint();
    let salvage = &mut all[number];
    let (content_of, time) = (salvage.checkpoint(), salvage.file().stamp().time);
    let mut saving = salvage.begin()?;
    for ((table, page), bytes) in &restored.pages {
        saving.page(*table, *page, bytes)?;
    }
    let stamp = stamp(false);
    let now = stamp.time;
    let mut checkpoint = saving.commit(stamp.clone())?;
    if salvage.lacks_superblock()? {
        checkpoint = salvage.begin()?.commit(stamp)?;
    }
    let mut lost = restored.lost;
    if content_of < newest {
        let age = now.saturating_sub(time);
        lost.insert(
            0,
            format!(
                "what came after checkpoint {content_of}, made {age} s ago: the tables of \
                 checkpoint {newest} cannot be made anew"
            ),
        );
    }
    let (pages, changed) = (restored.lost_pages, restored.changed);
    Ok(Some(Repair { checkpoint, content_of, pages, changed, lost }))
}

/// Makes whole tables of what is left.
fn restore(salvage: &Salvage) -> Result<Restored, OpenError> {
    let file = salvage.file();
    expect_tables(file)?;
    let shape = file.shape();
    let mut log = RebuiltLog::new(salvage)?;
    let mut copies = Copies::new();
    let lost_places = salvage.lost_pages(OBJECT_TABLE);
    for &page in &lost_places {
        copies.insert(page, Box::new([None; PLACES]));
    }
    if !lost_places.is_empty() || !salvage.lost_pages(SHARERS).is_empty() {
        log.copies(&mut |copy| {
            let (page, at) = (copy.name / PLACES as u32, copy.name as usize % PLACES);
            let Some(places) = copies.get_mut(&page) else { return };
            if places[at].is_none_or(|(order, _)| order < copy.order) {
                places[at] = Some((copy.order, copy.block));
            }
        })?;
    }
    let stored = StoredPages::new(salvage, &copies, shape.region_len as usize / PAGE)?;
    let heap = heap_of(file)?;
    let (lost_of_heap, mended) = load_heap(salvage, &heap, &stored)?;
    let roots = Roots::default();
    load_roots(&roots, &mut |table, visit| salvage.load_table(table, visit))?;
    let Places { live, mut pages, dropped } = Places::settle(salvage, &log, &heap, &copies, false)?;
    // A page that is free may have kept a copy, which was counted, or not.
    let is_exact = lost_places.is_empty() || {
        let most = Places::settle(salvage, &log, &heap, &copies, true)?;
        log.agrees_with(&live, &most.live)
    };
    log.save(&live, &mut |table, page, bytes| {
        pages.insert((table, page), bytes.into());
        Ok(())
    })?;
    let mut keep = |table, page, bytes: &[u8]| drop(pages.insert((table, page), bytes.into()));
    if salvage.has_any_page(Heap::table_shapes(heap.region_bytes())[0].id)
        || !lost_of_heap.is_empty()
    {
        heap.save(&mut keep);
    }
    roots.hold().save(&mut keep);
    // Whatever is lost and nobody has handed out holds nothing.
    let mut lost_pages = 0;
    for table in &shape.tables {
        for page in salvage.lost_pages(table.id) {
            lost_pages += 1;
            pages.entry((table.id, page)).or_insert_with(|| vec![0; PAGE].into());
        }
    }
    let (changed, mut lost) = losses(salvage, &log, &mended);
    if !is_exact {
        lost.push(format!(
            "whether {} MiB of addresses are as they were: what was zeros may be what was there \
             before",
            (lost_places.len() * PLACES * PAGE) >> 20
        ));
    }
    if dropped > 0 {
        lost.push(format!("{dropped} pages of objects whose place or shape is lost"));
    }
    Ok(Restored { pages, lost_pages, changed, lost })
}

/// What is there and not quite as it was, and what is gone, but for the object table.
fn losses(salvage: &Salvage, log: &RebuiltLog<'_>, mended: &Mended) -> (Vec<String>, Vec<String>) {
    let told = |some: &[(usize, &str)]| -> Vec<String> {
        let some = some.iter().filter(|(count, _)| *count > 0);
        some.map(|(count, text)| format!("{count} {text}")).collect()
    };
    let tables = [SCALARS, SEGMENTS, CHECKSUMS, SHARERS, OBJECT_TABLE];
    let has_all = tables.iter().all(|&table| salvage.lost_pages(table).is_empty());
    let is_log_needed = !salvage.has_superblock() || !has_all;
    let silent = if is_log_needed { log.segments_without_directory() as usize } else { 0 };
    let is_list_lost = !salvage.lost_pages(SNAPSHOTS).is_empty();
    let changed = told(&[
        (
            mended.spans_joined,
            "pieces of up to 64 MiB are one allocation each: nothing in them can be freed",
        ),
        (mended.slabs_filled, "slabs of 64 KiB: their free objects count as allocated"),
        (mended.pages_filled, "pages of objects: those that are free count as allocated"),
    ]);
    let tags = salvage.lost_pages(TAGS).len();
    let lost = told(&[
        (tags, "MiB of the log, of an encrypted heap: what proves that its blocks are right"),
        (mended.pages_gone, "pages of objects of which size and number are not known"),
        (salvage.lost_pages(Roots::shape().id).len() * 64, "names of roots, or fewer"),
        (usize::from(is_list_lost), "list of snapshots, and they with it"),
        (silent, "segments of the log do not say what they hold"),
    ]);
    (changed, lost)
}

/// Loads what is left of the heap's tables, and mends the rest. Answers what was lost.
fn load_heap(
    salvage: &Salvage,
    heap: &Heap,
    stored: &StoredPages,
) -> Result<(Vec<(u32, u32)>, Mended), OpenError> {
    let mut lost = Vec::new();
    for shape in Heap::table_shapes(heap.region_bytes()) {
        lost.extend(salvage.lost_pages(shape.id).into_iter().map(|page| (shape.id, page)));
    }
    let is_new = load_pages(heap, &mut |table, visit| salvage.load_table(table, visit))?;
    let mended = heap.mend(&lost, &|page| stored.has(page));
    if !is_new || !lost.is_empty() {
        heap.loaded().map_err(|bad| OpenError::Damaged(bad.to_string()))?;
    }
    Ok((lost, mended))
}

/// Which pages have bytes in the log.
struct StoredPages(Vec<u64>);

impl StoredPages {
    fn new(salvage: &Salvage, copies: &Copies, pages: usize) -> Result<StoredPages, OpenError> {
        let mut bits = vec![0u64; pages.div_ceil(64)];
        let mut note = |page: usize| {
            if let Some(word) = bits.get_mut(page / 64) {
                *word |= 1 << (page % 64);
            }
        };
        salvage.load_table(OBJECT_TABLE, &mut |number, bytes| {
            let places = (number as usize * PLACES..).zip(places_of(bytes));
            places.filter(|(_, place)| place.is_some()).for_each(|(page, _)| note(page));
            Ok(())
        })?;
        for (&number, places) in copies {
            let places = (number as usize * PLACES..).zip(places.iter());
            places.filter(|(_, place)| place.is_some()).for_each(|(page, _)| note(page));
        }
        Ok(StoredPages(bits))
    }

    fn has(&self, page: usize) -> bool {
        self.0.get(page / 64).is_some_and(|word| word >> (page % 64) & 1 == 1)
    }
}

/// Where the objects are.
struct Places {
    /// What lives in each segment, units.
    live: Vec<u64>,
    /// Pages of the object table that are made anew.
    pages: Pages,
    /// Objects that had a place which cannot be.
    dropped: u64,
}

impl Places {
    /// Takes the places of what is left of the object table, and of the copies; of free pages only
    /// if these are `with_free`.
    fn settle(
        salvage: &Salvage,
        log: &RebuiltLog<'_>,
        heap: &Heap,
        copies: &Copies,
        with_free: bool,
    ) -> Result<Places, OpenError> {
        let mut this = Places { live: vec![0; log.segments()], pages: Pages::new(), dropped: 0 };
        salvage.load_table(OBJECT_TABLE, &mut |number, bytes| {
            let mut places = [None; PLACES];
            for (at, place) in places_of(bytes).enumerate() {
                places[at] = this.count(log, heap, page_at(number, at), place);
            }
            let page = page_of(&places);
            if page != *bytes {
                this.pages.insert((OBJECT_TABLE, number), Box::new(page));
            }
            Ok(())
        })?;
        for (&number, copies) in copies {
            let mut places = [None; PLACES];
            for (at, copy) in copies.iter().enumerate() {
                let page = page_at(number, at);
                let copy = copy.filter(|_| with_free || !heap.page_is_free(page));
                places[at] = this.count(log, heap, page, copy.map(|(_, block)| block));
            }
            this.pages.insert((OBJECT_TABLE, number), Box::new(page_of(&places)));
        }
        Ok(this)
    }

    /// Counts an object; none if it cannot be there.
    fn count(
        &mut self,
        log: &RebuiltLog<'_>,
        heap: &Heap,
        page: PageNo,
        place: Option<Block>,
    ) -> Option<Block> {
        let block = place?;
        let has_shape =
            !heap.is_object_span(page.0 as usize / PAGES_PER_SPAN) || heap.is_object_page(page);
        let cost = log.cost_in(block, heap.kept_bytes(page)).filter(|_| has_shape);
        match self.live.get_mut(log.segment_of(block)).zip(cost) {
            Some((live, cost)) => {
                *live += u64::from(cost);
                Some(block)
            }
            None => {
                self.dropped += 1;
                None
            }
        }
    }
}

fn page_at(number: u32, at: usize) -> PageNo {
    PageNo(number * PLACES as u32 + at as u32)
}
