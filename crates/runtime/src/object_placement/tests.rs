//! Tests: what sites are decided for, by faults that these tests make up.

use super::*;

const CALLER: usize = 0x5555_0000_1234;
/// Allocations of a slab: addresses a size apart.
fn addresses(from: usize, size: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| 0x2000_0000_0000 + from + i * size)
}

fn allocate(sites: &Sites, from: usize, size: usize, count: usize, is_managing: bool) {
    for address in addresses(from, size, count) {
        sites.allocated(address, CALLER, size, is_managing);
    }
}

fn sites() -> Box<Sites> {
    Box::new(Sites::new())
}

fn told(sites: &Sites) -> Vec<Told> {
    let mut out = [Told::NONE; 8];
    let count = sites.told(&mut out);
    out[..count].to_vec()
}

/// Makes a site a candidate, has it place enough for all its trials, and answers the pages of
/// those, run by run.
fn tried(sites: &Sites, caller: usize, size: usize) -> Vec<usize> {
    let base = 0x2100_0000_0000 + ((caller & 0xFFFF) << 24);
    for address in addresses((caller & 0xFFFF) << 24, size, 2 * LIVE_MIN as usize) {
        sites.allocated(address, caller, size, true);
    }
    let mut pages = Vec::new();
    for _ in 0..64 * RUN_EVERY {
        if let Placement::Object(making) = sites.place(caller, size) {
            let page = base + pages.len() * PAGE;
            sites.object_made(making, page);
            pages.push(page);
        }
    }
    pages
}

fn is_object(sites: &Sites, caller: usize, size: usize) -> bool {
    // Every `RUN_EVERY`th begins a run, if there is room for one.
    matches!(sites.place(caller, size), Placement::Object(Making { run: None, .. }))
}

fn faulted(sites: &Sites, address: usize, is_read: bool, epoch: usize) {
    let address = address & !(PAGE - 1);
    sites.faulted(&Return { address, is_read, epoch: epoch as u32, window: 8 });
}

/// An order of `0..count` that is none.
fn shuffled(count: usize) -> impl Iterator<Item = usize> {
    assert!(count.is_power_of_two());
    (0..count).map(move |n| (n * 0x9E37_79B1 + 0x0123_4567) & (count - 1))
}

#[test]
fn little_locality_makes_a_site_one_of_objects() {
    let sites = sites();
    let pages = tried(&sites, CALLER, 256);
    assert_eq!(pages.len(), 32 * 16, "32 runs of a page's worth");
    assert!(!is_object(&sites, CALLER, 256), "many are live, nothing is known of locality");
    assert_eq!(told(&sites)[0].verdict, Verdict::None);
    for (n, at) in shuffled(pages.len()).enumerate() {
        faulted(&sites, pages[at] + 40, true, n / 4);
    }
    assert!(is_object(&sites, CALLER, 256) && is_object(&sites, CALLER, 260));
    assert!(!is_object(&sites, CALLER, 512), "another size");
    assert!(!is_object(&sites, CALLER + 8, 256), "another caller");
    let told = told(&sites);
    assert_eq!((told.len(), told[0].caller, told[0].sizes), (1, CALLER, (256, 287)));
    assert_eq!((told[0].verdict, told[0].objects), (Verdict::Objects, 512));
    assert!(told[0].together_percent < 12 && told[0].live_most >= 4096, "{told:?}");
}

#[test]
fn neighbours_used_together_keep_a_site_on_pages() {
    for (name, order) in [
        ("a scan", (0..512).collect::<Vec<usize>>()),
        // Random, but of each page's worth one half is used with its first.
        ("rows", shuffled(64).flat_map(|row| row * 8..row * 8 + 8).collect()),
    ] {
        let sites = sites();
        let pages = tried(&sites, CALLER, 256);
        for round in 0..4 {
            for (n, &at) in order.iter().enumerate() {
                faulted(&sites, pages[at], true, (round * 512 + n) / 8);
            }
        }
        assert!(!is_object(&sites, CALLER, 256), "{name}");
        let told = told(&sites);
        assert_eq!(told[0].verdict, Verdict::Pages, "{name}");
        assert!(told[0].together_percent >= 12, "{name}: {told:?}");
    }
}

#[test]
fn another_look_decides_anew() {
    let sites = sites();
    let pages = tried(&sites, CALLER, 1000);
    assert_eq!(pages.len(), 32 * 4, "32 runs of a page's worth");
    for n in 0..3 * 128 {
        faulted(&sites, pages[n % 128], false, n / 4);
    }
    assert_eq!(told(&sites)[0].verdict, Verdict::Pages);
    for (n, at) in shuffled(128).chain(shuffled(128)).enumerate() {
        faulted(&sites, pages[at], true, 1000 + n);
    }
    assert_eq!(told(&sites)[0].verdict, Verdict::Objects);
}

#[test]
fn objects_are_for_what_is_read_without_its_neighbours() {
    let seen = |reads, along| Seen { windows: 32, reads, neighbours: 400, along };
    for (reads, along, last, verdict) in [
        (32, 49, Verdict::None, Verdict::Objects),
        (32, 50, Verdict::None, Verdict::Pages),
        (32, 50, Verdict::Objects, Verdict::Pages),
        (4, 0, Verdict::Pages, Verdict::Objects),
        (3, 0, Verdict::None, Verdict::InRam),
        // As objects, more of them fit RAM: they would not be there as pages.
        (3, 0, Verdict::Objects, Verdict::Objects),
    ] {
        let seen = seen(reads, along);
        assert_eq!(seen.verdict(last), verdict, "{seen:?}, {last:?} before");
    }
    let window = Window { site: 0, is_read: true, neighbours: 15, along: 2 };
    let sum = (0..LOOK_WINDOWS).map(|_| Seen::word_of(&window)).sum();
    let sum = Seen::from_word(sum);
    assert_eq!(sum, Seen { windows: 32, reads: 32, neighbours: 480, along: 64 });
}

#[test]
fn a_run_is_of_one_thread() {
    let sites = sites();
    allocate(&sites, 0, 256, 2 * LIVE_MIN as usize, true);
    assert!(matches!(sites.place(CALLER, 256), Placement::Object(_)), "it begins a run");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| sites.place(CALLER, 256));
        assert_eq!(other.join().unwrap(), Placement::Page);
    });
    assert!(matches!(sites.place(CALLER, 256), Placement::Object(_)));
}

#[test]
fn few_short_lived_and_odd_sizes_stay_ordinary() {
    let sites = sites();
    allocate(&sites, 0, 128, LIVE_MIN as usize / 2, true);
    assert_eq!(sites.place(CALLER, 128), Placement::Page, "few are live");
    for round in 0..100 {
        allocate(&sites, round << 24, 512, 1000, true);
        addresses(round << 24, 512, 1000).for_each(|address| sites.freed(address));
    }
    assert_eq!(sites.place(CALLER, 512), Placement::Page, "none is live for long");
    for size in [16, 63, 2049, 100_000] {
        allocate(&sites, size << 24, size, 4 * LIVE_MIN as usize, true);
        assert_eq!(sites.place(CALLER, size), Placement::Page, "{size} bytes");
    }
    assert_eq!(sites.told(&mut []), 0);
}

#[test]
fn nothing_is_tried_while_the_heap_fits() {
    let sites = sites();
    allocate(&sites, 0, 200, 4 * LIVE_MIN as usize, false);
    assert_eq!(sites.place(CALLER, 200), Placement::Page);
    allocate(&sites, 1 << 30, 200, 1000, true);
    let on_trial = matches!(sites.place(CALLER, 200), Placement::Object(_));
    assert!(on_trial, "what was counted before still counts");
}

#[test]
fn the_sample_is_one_in_sixty_four_of_every_stride() {
    for stride in [16, 48, 64, 128, 144, 1000, 2048, 4096] {
        let count = 1 << 16;
        let sampled = addresses(0, stride, count).filter(|&at| is_sampled(at)).count();
        let expected = count / SAMPLE as usize;
        assert!(sampled.abs_diff(expected) < expected / 4, "{stride}: {sampled}");
    }
}

#[test]
fn full_tables_only_count_less() {
    let sites = sites();
    for address in addresses(1 << 44, 128, 64 * 2 * TRACKED) {
        sites.allocated(address, CALLER, 128, true);
    }
    for caller in 0..4 * SITES {
        for address in addresses(caller << 20, 64, 256) {
            sites.allocated(address, CALLER + caller * 16, 64, true);
        }
    }
    let tracked = sites.tracked.iter().filter(|slot| slot.load(Ordering::Relaxed) != 0);
    assert!(tracked.count() > TRACKED / 2);
    let live: u32 = sites.sites.iter().map(|site| site.live.load(Ordering::Relaxed)).sum();
    assert!(live as usize <= TRACKED);
    for address in addresses(1 << 44, 128, 64 * 2 * TRACKED) {
        sites.freed(address);
    }
    for caller in 0..4 * SITES {
        addresses(caller << 20, 64, 256).for_each(|address| sites.freed(address));
    }
    let live: u32 = sites.sites.iter().map(|site| site.live.load(Ordering::Relaxed)).sum();
    assert_eq!(live, 0, "every allocation that was counted is uncounted");
}

#[test]
fn classes_cover_every_size_once() {
    let mut last = 0;
    for size in 8..=4096 {
        let class = class_of(size);
        let (first, end) = sizes_of(class);
        assert!((first..=end).contains(&size), "{size}: {first} to {end}");
        assert!(class >= last && end - first < first / 8 + 1);
        last = class;
    }
    assert!(last < 256);
}

#[test]
fn the_largest_sites_are_told_first() {
    let sites = sites();
    for (n, size) in [128usize, 512, 1024].into_iter().enumerate() {
        allocate(&sites, n << 32, size, (2 + n) * LIVE_MIN as usize, true);
    }
    let Placement::Object(making) = sites.place(CALLER, 512) else { panic!("on trial") };
    sites.object_made(making, 0x2200_0000_0000);
    let mut out = [Told::NONE; 2];
    assert_eq!(sites.told(&mut out), 3);
    assert_eq!((out[0].sizes.0, out[0].objects), (512, 1));
    assert_eq!(out[1].sizes.0, 1024, "the one with more live ones");
}
