//! Second tier: what is changed in order goes behind the store and comes back, and a second tier
//! that is full, fails or is slow costs nothing that was promised.

mod scene;

use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use scene::memory::{Object, PAGE, Random, seed};
use scene::process::{fork, must_succeed, soon};
use scene::{play, watch};

/// Until space is given back: a second or so.
const PATIENCE: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;
const CONF: &str = "ram:48M,store_size:1G,tier:/var/tmp:1G,stall:off";

fn stats() -> deepheap::Stats {
    deepheap::stats().expect("it runs")
}

/// What was written since an earlier moment: to the store, and to the second tier.
fn written_since(before: &deepheap::Stats) -> (u64, u64) {
    let now = stats();
    let store = now.device_write_bytes - before.device_write_bytes;
    (store, now.tier_write_bytes - before.tier_write_bytes)
}

/// Bytes that the second tier of this process takes on its disk; the store is in another folder.
fn tier_disk_bytes() -> u64 {
    let files = std::fs::read_dir("/proc/self/fd").expect("our files").flatten();
    let is_there = |path: &Path| path.read_link().is_ok_and(|to| to.starts_with("/var/tmp"));
    let files = files.map(|file| file.path()).filter(|path| is_there(path));
    files.filter_map(|path| path.metadata().ok()).map(|file| file.blocks() * 512).sum()
}

/// Adds to a word of a page.
fn change(array: &Object, page: usize) {
    let word = page * PAGE / 8 + page % 100;
    array.set(word, array.get(word).wrapping_add(1));
}

/// Does so with each page, in order.
fn sweep(array: &Object) {
    (0..array.size() / PAGE).for_each(|page| change(array, page));
}

/// All pages in no order.
fn shuffled(array: &Object, random: &mut Random) -> Vec<usize> {
    let mut pages: Vec<usize> = (0..array.size() / PAGE).collect();
    for at in (1..pages.len()).rev() {
        pages.swap(at, random.below(at + 1));
    }
    pages
}

/// Takes back what so many sweeps did, and checks everything.
fn check_swept(array: &Object, seed: u64, sweeps: u64) {
    for page in 0..array.size() / PAGE {
        let word = page * PAGE / 8 + page % 100;
        array.set(word, array.get(word).wrapping_sub(sweeps));
    }
    array.check(seed);
}

#[test]
fn what_is_changed_in_order_goes_to_the_second_tier_and_comes_back() {
    play("what_is_changed_in_order_goes_to_the_second_tier_and_comes_back", CONF, || {
        let seed = seed();
        let array = Object::new(160 * MIB).expect("room");
        array.fill(seed);
        (0..2).for_each(|_| sweep(&array));
        let before = stats();
        (0..3).for_each(|_| sweep(&array));
        let (store, tier) = written_since(&before);
        assert!(tier > store / 4, "{tier} bytes to the second tier, {store} to the store");
        assert!(stats().tier_stored_bytes > 5 << 20);
        check_swept(&array, seed, 5);
        assert!(stats().tier_read_bytes > before.tier_read_bytes + (30 << 20));
        array.free();
    });
}

#[test]
fn what_is_changed_again_and_again_in_the_same_order_goes_to_the_second_tier_and_comes_back() {
    let name =
        "what_is_changed_again_and_again_in_the_same_order_goes_to_the_second_tier_and_comes_back";
    play(name, CONF, || {
        let (seed, mut random) = (seed(), Random::new(11));
        let array = Object::new(128 * MIB).expect("room");
        array.fill(seed);
        let order = shuffled(&array, &mut random);
        let walk = || order.iter().for_each(|&page| change(&array, page));
        (0..3).for_each(|_| walk());
        let before = stats();
        (0..3).for_each(|_| walk());
        let (store, tier) = written_since(&before);
        assert!(tier > store / 16, "{tier} bytes to the second tier, {store} to the store");
        assert!(stats().tier_read_bytes > before.tier_read_bytes + (4 << 20));
        check_swept(&array, seed, 6);
    });
}

/// Works through an array, then touches its pages at random: of that little waits for the second
/// tier.
fn touch_at_random_after(work: impl Fn(&Object, &mut Random)) {
    let (seed, mut random) = (seed(), Random::new(7));
    let array = Object::new(128 * MIB).expect("room");
    array.fill(seed);
    (0..3).for_each(|_| work(&array, &mut Random::new(11)));
    let pages = array.size() / PAGE;
    let mut touch = |count: usize| {
        for _ in 0..count {
            array.get(random.below(pages) * PAGE / 8);
        }
    };
    touch(8 * pages);
    let before = stats();
    touch(2 * pages);
    let now = stats();
    let slow = (now.tier_read_bytes - before.tier_read_bytes) / PAGE as u64;
    let all = now.faults() - before.faults();
    assert!(slow < all / 5, "{slow} of {all} faults waited for the second tier");
    check_swept(&array, seed, 3);
}

#[test]
fn what_is_touched_at_random_goes_to_the_store() {
    play("what_is_touched_at_random_goes_to_the_store", CONF, || {
        touch_at_random_after(|array, _| sweep(array));
    });
}

#[test]
fn what_is_touched_at_random_after_it_was_in_order_goes_to_the_store() {
    play("what_is_touched_at_random_after_it_was_in_order_goes_to_the_store", CONF, || {
        touch_at_random_after(|array, random| {
            shuffled(array, random).iter().for_each(|&page| change(array, page));
        });
    });
}

#[test]
fn a_second_tier_that_is_full_leaves_the_rest_to_the_store() {
    let conf = "ram:48M,store_size:1G,tier:/var/tmp:16M,stall:off";
    play("a_second_tier_that_is_full_leaves_the_rest_to_the_store", conf, || {
        let seed = seed();
        let array = Object::new(128 * MIB).expect("room");
        array.fill(seed);
        (0..4).for_each(|_| sweep(&array));
        assert!(stats().tier_write_bytes > 0);
        assert!(stats().tier_stored_bytes <= 16 << 20);
        check_swept(&array, seed, 4);
    });
}

#[test]
fn what_is_free_in_the_second_tier_goes_back_to_its_file_system() {
    play("what_is_free_in_the_second_tier_goes_back_to_its_file_system", CONF, || {
        let array = Object::new(320 * MIB).expect("room");
        array.fill(seed());
        (0..3).for_each(|_| sweep(&array));
        let (live, before) = (stats().tier_stored_bytes, tier_disk_bytes());
        eprintln!("{} MiB live in the second tier, {} MiB of disk", live >> 20, before >> 20);
        assert!(before > 120 << 20, "{before} bytes of disk");
        array.free();
        let is_less = || tier_disk_bytes() < before / 2;
        assert!(soon(PATIENCE, is_less), "of {before} bytes {}", tier_disk_bytes());
    });
}

#[cfg(feature = "device-hook")]
#[test]
fn above_its_bound_on_stalls_a_program_waits_for_the_store_instead() {
    // A disk that is never fast enough for a program that does nothing else.
    let conf = "ram:48M,store_size:1G,tier:/var/tmp:1G,stall:0.1%";
    deepheap::internal::tier_hook::TIER_HOOK
        .set(deepheap_sim::ModelledDisk::around)
        .expect("the first");
    play("above_its_bound_on_stalls_a_program_waits_for_the_store_instead", conf, || {
        let seed = seed();
        let array = Object::new(96 * MIB).expect("room");
        array.fill(seed);
        (0..3).for_each(|_| sweep(&array));
        let before = stats();
        (0..3).for_each(|_| sweep(&array));
        let (store, tier) = written_since(&before);
        assert!(tier < store / 3, "{tier} bytes to the second tier, {store} to the store");
        check_swept(&array, seed, 6);
    });
}

#[test]
fn a_forked_child_reads_what_is_in_the_second_tier() {
    play("a_forked_child_reads_what_is_in_the_second_tier", CONF, || {
        let seed = seed();
        let array = Object::new(96 * MIB).expect("room");
        array.fill(seed);
        (0..3).for_each(|_| sweep(&array));
        assert!(stats().tier_stored_bytes > 2 << 20);
        let child = fork(|| {
            sweep(&array);
            check_swept(&array, seed, 4);
        });
        sweep(&array);
        must_succeed(child);
        check_swept(&array, seed, 4);
    });
}

/// From now on no write to the second tier of this process is taken; what is there can be read.
fn refuse_writes_to_tier() {
    let mut refused = 0;
    for file in std::fs::read_dir("/proc/self/fd").expect("our files").flatten() {
        let path = file.path();
        if !path.read_link().is_ok_and(|to| to.starts_with("/var/tmp")) {
            continue;
        }
        let number: i32 = file.file_name().to_string_lossy().parse().expect("a descriptor");
        let options = &mut std::fs::File::options();
        let reader = options.read(true).custom_flags(libc::O_DIRECT).open(&path).expect("open");
        // SAFETY: the same file takes the descriptor's place.
        assert!(unsafe { libc::dup3(reader.as_raw_fd(), number, libc::O_CLOEXEC) } >= 0);
        refused += 1;
    }
    assert_eq!(refused, 1, "files of the second tier");
}

#[test]
fn a_second_tier_that_fails_in_the_middle_of_a_run_loses_nothing_and_is_told_once() {
    let name = "a_second_tier_that_fails_in_the_middle_of_a_run_loses_nothing_and_is_told_once";
    let ending = watch(name, CONF, || {
        let seed = seed();
        let array = Object::new(160 * MIB).expect("room");
        array.fill(seed);
        (0..3).for_each(|_| sweep(&array));
        assert!(stats().tier_stored_bytes > 2 << 20);
        refuse_writes_to_tier();
        (0..3).for_each(|_| sweep(&array));
        let before = stats();
        sweep(&array);
        let (store, tier) = written_since(&before);
        assert!(tier == 0 && store > 0, "{tier} to the second tier, {store} to the store");
        check_swept(&array, seed, 7);
    });
    assert!(ending.status.success(), "{}\n{}", ending.status, ending.said);
    let told = ending.said.matches("a write to the second tier failed").count();
    assert_eq!(told, 1, "{}", ending.said);
}

#[test]
fn a_second_tier_that_cannot_be_used_is_refused_at_the_start() {
    let config = deepheap::Config::parse("ram:48M,store:/var/tmp,tier:/nowhere/at/all");
    let refused = deepheap::init(config.expect("settings")).expect_err("there is no such folder");
    assert!(refused.to_string().contains("'/nowhere/at/all' does not exist"), "{refused}");
}
