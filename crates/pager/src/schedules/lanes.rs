//! Objects in lanes: things that want the same lane, and what is done to two of them at once.

use deepheap_heap::LANES;

use super::*;

/// Frames of the lanes.
pub(super) const FRAMES: usize = 16;
/// Things that share a lane, and lanes that things share.
const RIVALS: usize = 6;
const SHARED: usize = 2;

impl World {
    /// Objects of which each lane of a few has some. What lies between is never touched.
    pub(super) fn rivals(&self) -> Vec<usize> {
        let mut rivals = Vec::new();
        let pages = FRAMES * LANES;
        let mut first = None;
        while rivals.len() < RIVALS * SHARED {
            let address = self.allocate_object(512);
            let page = address / PAGE;
            if (page - *first.get_or_insert(page)) % pages < SHARED {
                rivals.push(address);
            }
        }
        // All frames are used from the start: the page buffer is too small to make room for them.
        if let Some(lanes) = &self.pager.lanes {
            for frame in 0..FRAMES as u32 {
                assert!(lanes.use_frame(PageNo(frame)));
            }
        }
        rivals
    }

    /// Has two things resident at once, as one instruction with two operands needs them.
    pub(super) fn count_both(&self, sequences: &mut Sequences, thread: usize, two: [usize; 2]) {
        const TRIES: usize = 100_000;
        let addresses = two.map(|number| self.things[number].address + 8 * thread);
        for _ in 0..TRIES {
            match addresses.iter().find(|&&address| !is_present(address)) {
                None => {
                    for (number, address) in two.into_iter().zip(addresses) {
                        // SAFETY: a word of a live object, which is present, and only this
                        // thread's; no other thread has run since the look.
                        unsafe {
                            add_one(address as *mut u64, &self.things[number].numbers[thread])
                        };
                    }
                    return schedule::point();
                }
                Some(&address) => {
                    schedule::point();
                    self.pager.resolve(address, sequences, 0).expect("a page");
                }
            }
        }
        panic!("{two:?} are never resident at once");
    }
}

#[test]
fn a_fresh_object_that_has_to_be_exiled_is_there_after_one_fault() {
    let world = World::new(Kind::InLanes);
    let (pager, mut sequences) = (&world.pager, Sequences::default());
    let rivals = &world.things[world.things.len() - RIVALS * SHARED..];
    let page = |thing: &Thing| pager.residency.frames.page_at(thing.address);
    let lane = |thing: &Thing| pager.lanes.as_ref().expect("lanes").lane_of(page(thing));
    let (has_it, wants_it) = (&rivals[0], &rivals[SHARED]);
    assert_eq!(lane(has_it), lane(wants_it));
    pager.resolve(has_it.address, &mut sequences, 0).expect("a page");
    let pinned =
        pager.residency.ownership.try_pin(page(has_it), Pin::Call).expect("it is resident");
    pager.resolve(wants_it.address, &mut sequences, 0).expect("a page");
    assert!(is_present(has_it.address) && is_present(wants_it.address));
    pager.residency.ownership.descriptor(pinned).drop_pin(Pin::Call);
}
