//! What fits in RAM with the cold part compressed stays in RAM.

mod scene;

use std::sync::Barrier;

use scene::memory::{Object, PAGE, Random, seed};
use scene::play;

const CONF: &str = "ram:64M,store_size:512M,compress:lz4";
const THREADS: usize = 8;
/// Pages of each thread: 112 MiB in all.
const PAGES: usize = 3584;
const WORDS: usize = PAGE / 8;
/// Words of a page that are not zero. It becomes a fifth.
const RANDOM_WORDS: usize = 80;
const TOUCHES: usize = 20_000;

/// Many threads fill memory faster than one evictor can follow, and then touch it at random: the
/// page buffer would save faults if it were larger.
#[test]
fn what_fits_compressed_hardly_leaves_ram_while_threads_fill_and_touch_it() {
    const NAME: &str = "what_fits_compressed_hardly_leaves_ram_while_threads_fill_and_touch_it";
    play(NAME, CONF, || {
        let seed = seed();
        let all = Barrier::new(THREADS);
        let own = |thread: usize| {
            let mut random = Random::new(seed + thread as u64);
            let memory = Object::zeroed(PAGES * PAGE).expect("memory");
            for page in 0..PAGES {
                memory.set(page * WORDS, page as u64 + 1);
                (1..RANDOM_WORDS).for_each(|word| memory.set(page * WORDS + word, random.next()));
            }
            all.wait();
            for _ in 0..TOUCHES {
                let page = random.below(PAGES);
                assert_eq!(memory.get(page * WORDS), page as u64 + 1);
            }
            all.wait();
            memory.free();
        };
        let own = &own;
        std::thread::scope(|scope| {
            (0..THREADS).for_each(|thread| {
                scope.spawn(move || own(thread));
            });
        });
        let stats = deepheap::stats().expect("stats");
        let (touches, left) =
            (stats.fault_cached.count, stats.cache_reclaimed_dirty + stats.cache_reclaimed_clean);
        eprintln!("{touches} faults on cached pages, {left} left RAM");
        assert!(touches > (THREADS * TOUCHES / 8) as u64, "{stats:?}");
        assert!(left < (THREADS * PAGES / 50) as u64, "{left} left RAM: {stats:?}");
    });
}
