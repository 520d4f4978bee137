//! Blocks of compressed pages: a page costs its share of its block, what lives is never more than a
//! block a page, and a store full of what is promised goes on taking new versions of it.

mod model;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use deepheap_sim::{Random, SimDevice};
use deepheap_store::packed::{self, Content};
use deepheap_store::{
    BLOCK_BYTES, BLOCK_UNITS, Block, BlockRead, Head, PACKED_MAX, PackedBlock, Plan, Store,
    VictimObject, share,
};
use deepheap_sys::memory::aligned_buffer::AlignedBuffer;
use model::{Page, SEGMENT_BYTES, options};

const SEGMENTS: u64 = 40;

/// A compressed page: its name, and some bytes.
type Compressed = (u32, Vec<u8>);

/// The bytes of a version of a page: as many as a page of its kind may become.
fn bytes(name: u32, version: u64, most: u64) -> Vec<u8> {
    let mut random = Random::new(u64::from(name) << 32 | version);
    (0..20 + random.below(most - 20)).map(|_| random.number() as u8).collect()
}

/// A store of compressed pages, and what it must hold: each page's block and version.
struct Pages {
    store: Store,
    map: RefCell<BTreeMap<u32, (Block, u64)>>,
    buffer: RefCell<AlignedBuffer>,
    most: u64,
}

impl Pages {
    fn new(most: u64) -> Pages {
        let device = SimDevice::new(SEGMENTS * SEGMENT_BYTES, 3);
        let store = Store::open(Box::new(device), options(SEGMENTS), None).expect("a store");
        let buffer = RefCell::new(AlignedBuffer::new(store.segment_bytes(), 0).expect("memory"));
        Pages { store, map: RefCell::default(), buffer, most }
    }

    /// Packs and appends pages, and tells where each is.
    fn append(&self, head: Head, pages: &[Compressed], mut placed: impl FnMut(u32, Block)) {
        let sizes: Vec<u16> = pages.iter().map(|(_, bytes)| bytes.len() as u16).collect();
        let mut plan = Box::new(Plan::new());
        for number in 0..plan.assign(&sizes) {
            let mut page = Page([0xbb; BLOCK_BYTES]);
            let mut packed = PackedBlock::begin_with(&mut page.0, Content::Pages);
            for at in plan.objects(number) {
                packed.push(pages[at].0, &pages[at].1);
            }
            let (count, packed) = (packed.count(), packed.finish());
            let mut writer = loop {
                if let Some(writer) = self.store.try_writer(head).expect("room") {
                    break writer;
                }
                let goes_on = self.store.write_sealed(false) || head == Head::Fresh;
                assert!(goes_on, "collection has no room");
                if head == Head::Fresh {
                    self.collect();
                }
            };
            let block = writer.append_pages(packed, count);
            drop(writer);
            assert_eq!(self.store.share_in(block), Some(share(count)));
            plan.objects(number).for_each(|at| placed(pages[at].0, block));
        }
    }

    fn put(&self, names: &BTreeSet<u32>, version: u64) {
        names.iter().for_each(|&name| self.remove(name));
        let page = |&name: &u32| (name, bytes(name, version, self.most));
        let pages: Vec<_> = names.iter().map(page).collect();
        self.append(Head::Fresh, &pages, |name, block| {
            self.map.borrow_mut().insert(name, (block, version));
        });
    }

    fn remove(&self, name: u32) {
        if let Some((block, _)) = self.map.borrow_mut().remove(&name) {
            self.retire(block);
        }
    }

    fn retire(&self, block: Block) {
        self.store.retire(block, self.store.share_in(block).expect("a block of pages"));
    }

    fn collect(&self) {
        let Some(victim) = self.store.victim() else { return };
        let mut buffer = self.buffer.borrow_mut();
        let mut live: Vec<Compressed> = Vec::new();
        for object in victim.load(buffer.as_mut_slice()).expect("no damage") {
            let VictimObject::Packed(object) = object else { panic!("{object:?}") };
            assert_eq!(object.content, Content::Pages);
            assert_eq!(Some(object.cost), self.store.share_in(object.block));
            let held = self.map.borrow().get(&object.name).map(|held| held.0);
            if held == Some(object.block) {
                live.push((object.name, object.data.to_vec()));
            }
        }
        for some in live.chunks(deepheap_store::block::pack::BATCH_MAX) {
            self.append(Head::Survivor, some, |name, block| {
                let mut map = self.map.borrow_mut();
                let held = map.get_mut(&name).expect("it is there");
                self.retire(held.0);
                held.0 = block;
            });
        }
        assert!(self.store.release(victim), "nothing lives there any more");
    }

    /// Everything is where the map says, and costs what its blocks say.
    fn check(&self) {
        let map = self.map.borrow();
        let share = |held: &(Block, u64)| u64::from(self.store.share_in(held.0).expect("pages"));
        let live: u64 = map.values().map(share).sum();
        assert_eq!(self.store.stats().live_bytes, live);
        assert!(live <= map.len() as u64 * u64::from(BLOCK_UNITS), "more than is promised");
        for (&name, &(block, version)) in &*map {
            let mut page = Page([0; BLOCK_BYTES]);
            let mut reads = [BlockRead::packed(block, &mut page.0)];
            self.store.read(&mut reads);
            assert!(reads[0].result.is_ok());
            let found = packed::find(&page.0, Content::Pages, name);
            assert_eq!(found, Some(&bytes(name, version, self.most)[..]), "page {name}");
            assert_eq!(packed::find(&page.0, Content::Objects, name), None);
        }
    }
}

#[test]
fn a_store_full_of_what_is_promised_keeps_every_page_however_it_compresses() {
    for (seed, most) in [(1, 300), (2, 1500), (3, PACKED_MAX as u64)] {
        let (pages, mut random) = (Pages::new(most), Random::new(seed));
        let promised = pages.store.stats().reservable_blocks;
        pages.store.reserve(promised).expect("all of it");
        for version in 0..600 {
            let most = 1 + random.below(200);
            let names = (0..most).map(|_| random.below(promised) as u32).collect();
            pages.put(&names, version);
            let gone = random.below(20);
            (0..gone).for_each(|_| pages.remove(random.below(promised) as u32));
            if version % 100 == 99 {
                pages.check();
            }
        }
        let stats = pages.store.stats();
        println!("{most}: {} collected, {} live", stats.segments_collected, stats.live_blocks);
    }
}
