//! What the statistics promise: nothing counted is lost, and everything counted is shown.

mod scene;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use deepheap::internal::stats_page::{FAULTS_PER_SAMPLE, SAMPLES, StatsPage};
use deepheap::internal::stats_table::TOLD;
use deepheap::number;
use deepheap::stats::{FaultKind, Number, STATS_VERSION, Stats};
use deepheap::{stats_json, summary};
use scene::memory::Collection;

fn page() -> &'static StatsPage {
    StatsPage::create().expect("memfd")
}

#[test]
fn every_number_has_its_own_field() {
    let page = page();
    for (n, number) in Number::all().enumerate() {
        page.add(n, number, 1_000_000 + n as u64);
        page.set(number, 1_000_000);
    }
    page.set_managing(true);
    let stats = page.snapshot();
    for (n, number) in Number::all().enumerate() {
        assert_eq!(number.of(&stats), 2_000_000 + n as u64);
    }
    assert_eq!((stats.prefetched, stats.managing), (2_000_000, 1));
    assert_eq!(stats.dense_bytes, 2_000_000 + Number::COUNT as u64 - 1);
}

#[test]
fn every_number_is_told_once() {
    let mut told: Vec<usize> = TOLD.iter().map(|told| told.number.index()).collect();
    told.sort_unstable();
    assert_eq!(told, (0..Number::COUNT).collect::<Vec<_>>());
    let places: BTreeSet<_> = TOLD.iter().map(|told| told.json).collect();
    assert_eq!(places.len(), Number::COUNT);
}

#[test]
fn threads_lose_no_count() {
    let page = page();
    std::thread::scope(|scope| {
        for thread in 0..20 {
            scope.spawn(move || {
                for n in 0..10_000 {
                    page.add(thread, number!(device_reads), 1);
                    page.record(thread, FaultKind::Stored, n);
                }
            });
        }
    });
    let stats = page.snapshot();
    assert_eq!(stats.device_reads, 200_000);
    assert_eq!(stats.fault_stored.count, 200_000);
    assert_eq!(stats.fault_stored.total_ns, 20 * 9_999 * 5_000);
    assert_eq!(stats.fault_stored.max_ns, 9_999);
    assert!((5_000..=5_630).contains(&stats.fault_stored.p50_ns), "{:?}", stats.fault_stored);
    assert_eq!(stats.fault_zero.count, 0);
}

#[test]
fn one_of_some_faults_is_kept_as_a_sample_and_the_newest_are() {
    let page = page();
    let faults = FAULTS_PER_SAMPLE * 100;
    for fault in 0..faults {
        page.sample(5, 0x1000 + fault as usize);
    }
    let (seen, samples) = page.samples_since(5, 0);
    assert_eq!((seen, samples.len()), (faults, SAMPLES));
    for (age, code) in samples.iter().rev().enumerate() {
        assert_eq!(*code, 0x1000 + faults - FAULTS_PER_SAMPLE * (age as u64 + 1));
    }
    // A reader that has seen them sees the next one only.
    assert_eq!(page.samples_since(5, seen), (faults, Vec::new()));
    page.sample(5, 1);
    assert_eq!(page.samples_since(5, seen), (faults + 1, vec![1]));
    assert_eq!(page.samples_since(4, 0), (0, Vec::new()), "of another shard");
}

#[test]
fn a_copy_shows_the_same_and_a_stranger_is_refused() {
    let page = page();
    page.add(3, number!(prefetched), 77);
    let address = core::ptr::from_ref(page) as u64;
    let copy =
        StatsPage::read_copy(&File::open("/proc/self/mem").expect("mem"), address).expect("a page");
    assert_eq!(copy.pid(), std::process::id());
    assert_eq!(copy.value(number!(prefetched)), 77);

    let other = File::open("/proc/self/exe").expect("exe");
    let refused = StatsPage::read_copy(&other, 0).err().map(|error| error.kind());
    assert_eq!(refused, Some(ErrorKind::InvalidData));
}

#[test]
fn another_version_is_refused() {
    let page = page();
    let path = std::env::temp_dir().join(format!("deepheap-page-{}", std::process::id()));
    // SAFETY: a live page is as many readable bytes.
    let bytes = unsafe {
        core::slice::from_raw_parts(core::ptr::from_ref(page).cast::<u8>(), size_of::<StatsPage>())
    };
    std::fs::write(&path, bytes).expect("write");
    let file = File::options().read(true).write(true).open(&path).expect("open");
    std::fs::remove_file(&path).expect("remove");
    assert!(StatsPage::read_copy(&file, 0).is_ok());
    file.write_all_at(&(STATS_VERSION + 1).to_ne_bytes(), 8).expect("write");
    let refused = StatsPage::read_copy(&file, 0).err().map(|error| error.to_string());
    assert!(refused.is_some_and(|text| text.contains(&format!("version {}", STATS_VERSION + 1))));
}

#[test]
fn a_forked_child_counts_for_itself() {
    let page = page();
    page.add(0, number!(pins), 5);
    // SAFETY: the child calls only async-signal-safe functions and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let fresh = page.become_child().is_ok() && page.value(number!(pins)) == 0;
        page.add(0, number!(pins), 1);
        let good = fresh && page.value(number!(pins)) == 1 && page.pid() == std::process::id();
        // SAFETY: ends the child without running the parent's clean-up.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(page.value(number!(pins)), 5);
}

#[test]
fn json_is_one_line_with_every_number() {
    let page = page();
    page.record(0, FaultKind::Cached, 3000);
    page.add(0, number!(blocks_appended_fresh), 10);
    page.add(0, number!(device_write_bytes), 81_920);
    let text = stats_json(&page.snapshot());
    assert!(!text.contains('\n'));
    let json: serde_json::Value = serde_json::from_str(&text).expect("json");
    assert_eq!(json["faults"]["cached"]["count"], 1);
    assert_eq!(json["log"]["write_amplification"], 2.0);
    assert_eq!(json["device"]["blocks_refused"], 0);
    assert_eq!(json["pid"], std::process::id());
}

#[test]
fn what_faults_take_for_want_of_ram_is_told_as_a_share_of_the_run_time() {
    const OBJECTS: usize = 12_000;
    const NAME: &str = "what_faults_take_for_want_of_ram_is_told_as_a_share_of_the_run_time";
    scene::play(NAME, "ram:24M,store_size:256M,compress:off", || {
        let few = Collection::filled(7, 1000, 4096);
        let plain = deepheap::stats().expect("stats");
        assert_eq!((plain.fault_stall_ns, plain.stall_share_ppm), (0, 0), "all of it is in RAM");
        let many = Collection::filled(8, OBJECTS, 4096);
        for _ in 0..3 {
            many.check();
        }
        let told = deepheap::stats().expect("stats");
        let faults = [told.fault_cached, told.fault_stored, told.fault_waited];
        let least: u64 = faults.iter().map(|latency| latency.total_ns).sum();
        let most = least + told.fault_zero.total_ns;
        assert!(least > 0 && (least..=most).contains(&told.fault_stall_ns), "{told:?}");
        assert!((1..=1_000_000).contains(&told.stall_share_ppm), "{told:?}");
        // A fault also takes the time in which other processes have the CPUs, which is no run time:
        // so the two cannot be compared.
        assert!(told.run_ns <= told.uptime_ns, "{} {}", told.run_ns, told.uptime_ns);
        // SAFETY: the child ends by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = deepheap::stats().expect("stats");
            let began_anew = own.run_ns < told.run_ns / 2 && own.fault_stall_ns < least / 2;
            // SAFETY: ends the child without running the parent's clean-up.
            unsafe { libc::_exit(i32::from(!began_anew)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0, "the child has its parent's times");
        few.check();
    });
}

/// What another process would see of this one at this moment, without asking the runtime.
fn seen_from_outside() -> Stats {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let line = maps.lines().find(|line| line.contains("deepheap-stats")).expect("the page");
    let address = u64::from_str_radix(line.split('-').next().expect("start"), 16).expect("hex");
    let memory = File::open("/proc/self/mem").expect("mem");
    StatsPage::read_copy(&memory, address).expect("a page").snapshot()
}

#[test]
fn a_heap_that_is_not_managed_yet_shows_the_memory_it_takes() {
    scene::play("a_heap_that_is_not_managed_yet_shows_the_memory_it_takes", "ram:64M", || {
        const MIB: u64 = 1 << 20;
        let mut held = Vec::new();
        for mib in 1..12u64 {
            held.extend((0..64).map(|_| deepheap::calloc(1, 16 << 10)));
            let seen = seen_from_outside();
            let shown = [seen.allocated_bytes, seen.page_buffer_bytes, seen.used_bytes()];
            for bytes in shown {
                assert!((mib * MIB - MIB / 2..(mib + 2) * MIB).contains(&bytes), "{mib}: {seen:?}");
            }
            assert_eq!((seen.managing, seen.cache_bytes), (0, 0));
        }
        // SAFETY: allocated above, freed once.
        held.drain(..).for_each(|address| unsafe { deepheap::free(address) });
    });
}

#[test]
fn ram_that_is_kept_for_the_next_objects_is_not_called_unmanaged() {
    const MIB: usize = 1 << 20;
    scene::play(
        "ram_that_is_kept_for_the_next_objects_is_not_called_unmanaged",
        "ram:80M,compress:off",
        || {
            let objects = Collection::filled(7, 128, MIB);
            let full = deepheap::stats().expect("stats");
            assert!(full.cache_bytes > 16 << 20, "the cache is in use: {full:?}");
            objects.free();
            let seen = deepheap::stats().expect("stats");
            let grown = seen.unmanaged_bytes.saturating_sub(full.unmanaged_bytes);
            assert!(grown < 4 << 20, "{grown} bytes of RAM belong to nobody: {seen:?}");
        },
    );
}

#[test]
fn the_summary_tells_a_store_that_was_never_written_from_one_in_use() {
    let page = page();
    page.set_managing(true);
    page.set(number!(store_used_bytes), 64 << 20);
    page.set(number!(store_capacity_bytes), 1 << 30);
    let text = summary(&page.snapshot());
    let said = "store   never written to; 64.0 MiB set aside of 1.00 GiB\n";
    assert!(text.contains(said) && text.contains("0 pages fetched ahead"), "{text}");
    page.set(number!(stored_bytes), 3 << 20);
    page.add(0, number!(device_write_bytes), 4 << 20);
    let text = summary(&page.snapshot());
    assert!(text.contains("store   3.00 MiB live; 64.0 MiB taken of 1.00 GiB; 0 segm"), "{text}");
}

#[test]
fn the_summary_is_lines_that_say_who_speaks() {
    let quiet = summary(&Stats { pid: 7, ..Stats::default() });
    assert!(quiet.contains("the heap fitted the budget"), "{quiet}");
    let page = page();
    page.set_managing(true);
    page.record(0, FaultKind::Stored, 80_000);
    page.add(0, number!(stall_ns), 1_500_000);
    let text = summary(&page.snapshot());
    assert!(text.lines().all(|line| line.starts_with("deepheap: ")), "{text}");
    assert!(text.contains("1 stored     p50 80.0 us") && text.contains("1.50 ms"), "{text}");
    assert!(!text.contains("read again"), "{text}");
    page.add(0, number!(blocks_reread), 2);
    let text = summary(&page.snapshot());
    assert!(text.lines().all(|line| line.starts_with("deepheap: ")), "{text}");
    assert!(text.contains("2 blocks were right only when read again, 0 could not"), "{text}");
}
