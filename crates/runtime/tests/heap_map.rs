//! The map of the heap: drawn when another process asks, true, and free of charge otherwise.

mod scene;

use std::fs::{self, File};
use std::time::Duration;

use deepheap::internal::stats_page::{HeapMapCopy, Request, StatsPage};
use scene::memory::{Collection, PAGE, seed};
use scene::play;
use scene::process::{must_rest, soon, ticks};

/// The statistics of this process, as another one finds them.
fn stats_file() -> File {
    for entry in fs::read_dir("/proc/self/fd").expect("open files") {
        let link = entry.expect("an entry").path();
        let target = fs::read_link(&link).unwrap_or_default();
        if target.to_string_lossy().contains("deepheap-stats") {
            return File::options().read(true).write(true).open(link).expect("its owner may");
        }
    }
    panic!("no statistics among the open files");
}

/// Asks for a map newer than `edition`, and waits for it.
fn map_after(file: &File, edition: u64) -> HeapMapCopy {
    StatsPage::ask(file, Request::Map).expect("ask");
    let mut found = None;
    let came = soon(Duration::from_secs(120), || {
        let map = StatsPage::read_copy(file, 0).expect("a page").heap_map().read();
        found = map.filter(|map| map.edition > edition);
        found.is_some()
    });
    assert!(came, "no map in two minutes");
    found.expect("a map")
}

#[test]
fn a_map_tells_where_the_pages_are_and_costs_nothing_unless_asked_for() {
    const CONF: &str = "ram:24M,store_size:256M,compress:off";
    play("a_map_tells_where_the_pages_are_and_costs_nothing_unless_asked_for", CONF, || {
        let seed = seed();
        let data = Collection::filled(seed, 20_000, PAGE);
        let file = stats_file();
        let before = StatsPage::read_copy(&file, 0).expect("a page");
        assert_eq!(before.heap_map().read(), None, "nobody asked");
        // What is still on its way to the store would be elsewhere when it is compared.
        must_rest(std::process::id());
        let map = map_after(&file, 0);
        let sum = |of: fn(&deepheap::internal::Survey) -> u32| -> usize {
            map.cells.iter().map(|cell| of(cell) as usize).sum()
        };
        let counts =
            [sum(|c| c.resident), sum(|c| c.cached), sum(|c| c.stored), sum(|c| c.nowhere)];
        eprintln!("{counts:?} of {} in cells of {}", map.pages, map.cell_pages);
        assert_eq!(counts.iter().sum::<usize>() as u64, map.pages, "each page was looked at");
        let stats = deepheap::stats().expect("it runs");
        let close = |pages: usize, bytes: u64| {
            let wanted = bytes as usize / PAGE;
            pages.abs_diff(wanted) <= wanted / 8 + 64
        };
        assert!(close(counts[0], stats.page_buffer_bytes), "{stats:?}");
        assert!(close(counts[1], stats.cache_bytes), "{stats:?}");
        let kept: usize = counts[..3].iter().sum();
        assert!((20_000..22_000).contains(&kept), "{kept}");

        // What was freed is nowhere in the next one.
        let gone = data.objects.len() / 2;
        let mut data = data;
        data.objects.drain(..gone).for_each(scene::memory::Object::free);
        let later = map_after(&file, map.edition);
        let kept: u32 = later.cells.iter().map(|c| c.resident + c.cached + c.stored).sum();
        assert!((10_000..=21_000).contains(&kept), "{kept}");

        // A viewer that asks all the time gets ten a second, and little CPU.
        let (start, begun) = (ticks(std::process::id()), std::time::Instant::now());
        let mut asked = 0;
        while begun.elapsed() < Duration::from_secs(1) {
            StatsPage::ask(&file, Request::Map).expect("ask");
            std::thread::sleep(Duration::from_micros(500));
            asked += 1;
        }
        let last = map_after(&file, later.edition);
        let drawn = (last.edition - later.edition) / 2;
        // Four more: of the moments at the ends.
        let most = begun.elapsed().as_millis() as u64 / 100 + 4;
        let used = ticks(std::process::id()) - start;
        eprintln!("{asked} asked, {drawn} drawn, {used} ticks");
        assert!(drawn <= most, "{drawn} drawn, where {most} are allowed");
        // The rest of the objects was never touched by all this.
        for (index, object) in data.objects.iter().enumerate() {
            object.check(seed + (gone + index) as u64);
        }
    });
}
