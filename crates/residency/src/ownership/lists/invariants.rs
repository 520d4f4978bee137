//! Invariants of the lists: each descriptor in use stands in exactly one of them.
//!
//! Threads: any, while no thread moves an object.

use super::*;
use crate::ownership::descriptor::State;

const ALL_LISTS: [List; LISTS] = [
    List::Probation,
    List::CacheSmall,
    List::CacheMain,
    List::CacheDense,
    List::CacheLeaving,
    List::Unevictable,
    List::Protected,
    List::InLane,
];

impl Descriptors {
    /// Panics if a list contradicts itself, or if a shard is locked. Shows each descriptor and its
    /// list to `look`. No thread may move an object meanwhile.
    pub fn check_invariants(&self, mut look: impl FnMut(DescriptorId, &Descriptor, List)) {
        let mut listed = 0;
        for (number, shard) in self.shards.iter().enumerate() {
            let Some(guard) = shard.lists.try_lock() else { panic!("shard {number} is locked") };
            for list in ALL_LISTS {
                let ends = guard[list.at()];
                let (mut previous, mut next, mut length) = (NONE, ends.head, 0);
                while next != NONE {
                    let (id, descriptor) = (DescriptorId(next), &self.all[next as usize]);
                    assert_eq!(self.shard_of(id), number, "{id:?} in {list:?} of another shard");
                    assert_eq!(descriptor.list.load(Ordering::Relaxed), list as u8, "{id:?}");
                    assert_eq!(descriptor.previous.load(Ordering::Relaxed), previous, "{id:?}");
                    look(id, descriptor, list);
                    (previous, next) = (next, descriptor.next.load(Ordering::Relaxed));
                    length += 1;
                    assert!(length <= shard.length(list), "{list:?} of shard {number} is longer");
                }
                assert_eq!(
                    (previous, length),
                    (ends.tail, shard.length(list)),
                    "{list:?} of {number}"
                );
                listed += length;
            }
        }
        let mut used = 0;
        self.for_each(|id, descriptor| {
            let (is_used, state) = (self.free.is_used(id), descriptor.state());
            assert_eq!(is_used, state != State::Free, "{id:?} is {state:?}");
            used += u32::from(is_used);
        });
        assert_eq!(listed, used, "descriptors in no list");
    }
}
