//! Neighbours: who jumps about among pages that lie together waits for few of them, and who does
//! not has nothing read for nothing.

mod scene;

use scene::memory::{Object, PAGE, Random, seed};
use scene::play;

const CONF: &str = "ram:32M,store_size:1G";
const PAGES: usize = 32 << 10;
const GROUP: usize = 8;
/// Odd, so that it goes through a group's pages in an order that is no scan.
const STRIDE: usize = 5;

#[test]
fn pages_that_are_used_together_come_together() {
    play("pages_that_are_used_together_come_together", CONF, || {
        let seed = seed();
        let array = Object::new(PAGES * PAGE).expect("room");
        array.fill(seed);
        let mut random = Random::new(seed);
        let mut touch = |groups: usize, pages_of_group: usize| {
            let before = deepheap::stats().expect("it runs");
            for _ in 0..groups {
                let first = random.below(PAGES / GROUP) * GROUP;
                let start = random.below(GROUP);
                for step in 0..pages_of_group {
                    let page = first + (start + step * STRIDE) % GROUP;
                    let word = page * PAGE / 8;
                    array.set(word, array.get(word));
                }
            }
            let after = deepheap::stats().expect("it runs");
            let touched = (groups * pages_of_group) as u64;
            let stored = after.fault_stored.count - before.fault_stored.count;
            let ahead = after.prefetched - before.prefetched;
            eprintln!("{touched} touched, {stored} waited for, {ahead} brought");
            (touched, stored, ahead)
        };
        touch(2000, GROUP); // learns it
        let (touched, stored, ahead) = touch(4000, GROUP);
        assert!(stored < touched / 2 && ahead > touched / 4);
        touch(4000, 1); // learns that it is over
        let (touched, stored, ahead) = touch(20_000, 1);
        assert!(stored > touched / 2 && ahead < touched / 20);
        array.check(seed);
    });
}
