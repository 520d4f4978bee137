//! The program's own `madvise`, `mprotect` and `mlock` on pages of the heap: what docs/limits.md
//! tells of them, and never a hang. (Under `deepheap run` the preload library stands before them.)

mod scene;

use std::os::unix::process::ExitStatusExt;

use scene::memory::{Collection, Object, PAGE, Random, seed};
use scene::{play, watch};

const CONF: &str = "ram:24M,store_size:256M";

fn as_pointer(address: usize) -> *mut libc::c_void {
    address as *mut libc::c_void
}

/// Touches enough else for all that can leave RAM to leave it.
fn push_out(data: &Collection) {
    data.check();
    data.check();
}

#[test]
fn dont_need_on_resident_pages_reads_as_zeros() {
    play("dont_need_on_resident_pages_reads_as_zeros", CONF, || {
        let seed = seed();
        let data = Collection::filled(seed, 8000, PAGE);
        let mut random = Random::new(seed);
        for round in 0..200 {
            let object = Object::aligned(PAGE, 16 * PAGE).expect("room");
            object.fill(round);
            let (page, count) = (random.below(8), 1 + random.below(8));
            let start = object.address() + page * PAGE;
            // SAFETY: our own pages.
            let done =
                unsafe { libc::madvise(as_pointer(start), count * PAGE, libc::MADV_DONTNEED) };
            assert_eq!(done, 0);
            if round % 3 == 0 {
                for other in data.objects.iter().step_by(7) {
                    assert_ne!(other.get(1), 0);
                }
            }
            // Resident pages are gone; one that had left RAM in between keeps what it had.
            for index in 0..object.size() / 8 {
                let inside = (page..page + count).contains(&(index * 8 / PAGE));
                let word = object.get(index);
                assert!(word != 0 || inside, "page {} lost a word", index * 8 / PAGE);
            }
            object.fill(round + 1);
            object.check(round + 1);
            object.free();
        }
        data.check();
    });
}

#[test]
fn dont_need_by_many_threads_while_others_fault_never_hangs() {
    play("dont_need_by_many_threads_while_others_fault_never_hangs", CONF, || {
        let seed = seed();
        let data = Collection::filled(seed, 8000, PAGE);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let data = &data;
                scope.spawn(move || {
                    let mut random = Random::new(seed + thread);
                    let own = Object::aligned(PAGE, 64 * PAGE).expect("room");
                    for round in 0..400 {
                        own.set(random.below(64) * PAGE / 8, round);
                        // SAFETY: our own pages.
                        unsafe {
                            libc::madvise(as_pointer(own.address()), 64 * PAGE, libc::MADV_DONTNEED)
                        };
                        own.set(random.below(64) * PAGE / 8, round);
                        for _ in 0..20 {
                            let object = random.below(data.objects.len());
                            assert_ne!(data.objects[object].get(5), 0);
                        }
                    }
                });
            }
        });
        data.check();
    });
}

#[test]
fn a_protected_page_faults_as_it_should_and_keeps_its_bytes() {
    play("a_protected_page_faults_as_it_should_and_keeps_its_bytes", CONF, || {
        let seed = seed();
        let data = Collection::filled(seed, 8000, PAGE);
        let protected = Object::aligned(PAGE, 4000 * PAGE).expect("room");
        protected.fill(seed);
        let protect = |rights| {
            let address = as_pointer(protected.address());
            // SAFETY: our own pages, which nobody touches without the rights.
            let outcome = unsafe { libc::mprotect(address, protected.size(), rights) };
            assert_eq!(outcome, 0);
        };
        // More than the page buffer holds, half in RAM and half in the store.
        for rights in [libc::PROT_NONE, libc::PROT_READ] {
            protect(rights);
            push_out(&data);
            if rights == libc::PROT_READ {
                protected.check(seed);
                push_out(&data);
            }
            protect(libc::PROT_READ | libc::PROT_WRITE);
            protected.check(seed);
        }
        protected.fill(!seed);
        protected.check(!seed);
        data.check();
    });
}

#[test]
fn protected_pages_are_not_tried_at_every_fault() {
    play("protected_pages_are_not_tried_at_every_fault", CONF, || {
        let data = Collection::filled(seed(), 8000, PAGE);
        // As many as the page buffer holds; they are the last that were touched.
        let protected = Object::aligned(PAGE, 5000 * PAGE).expect("room");
        protected.fill(1);
        let protect = |rights| {
            // SAFETY: our own pages, which nobody touches without the rights.
            unsafe { libc::mprotect(as_pointer(protected.address()), protected.size(), rights) };
        };
        protect(libc::PROT_NONE);
        let counts = || {
            let stats = deepheap::stats().expect("it runs");
            let faults = stats.fault_cached.count + stats.fault_stored.count;
            (faults, stats.direct_reclaims)
        };
        let (faults, batches) = counts();
        let mut random = Random::new(seed());
        for _ in 0..8000 {
            let object = random.below(8000);
            data.objects[object].check(seed() + object as u64);
        }
        let (faults, batches) = (counts().0 - faults, counts().1 - batches);
        assert!(faults > 4000, "{faults} faults");
        assert!(batches < 3 * faults, "{batches} batches evicted by {faults} faults");
        protect(libc::PROT_READ | libc::PROT_WRITE);
        // They leave again, once they can.
        push_out(&data);
        let mut present = vec![0u8; 5000];
        // SAFETY: our own pages; a byte for each.
        let asked = unsafe {
            libc::mincore(as_pointer(protected.address()), protected.size(), present.as_mut_ptr())
        };
        assert_eq!(asked, 0);
        let stayed = present.iter().filter(|page| **page & 1 != 0).count();
        assert!(stayed < 1000, "{stayed} pages stayed");
        protected.check(1);
    });
}

#[test]
fn touching_what_is_protected_is_a_segmentation_fault() {
    for resident in [true, false] {
        let name = "touching_what_is_protected_is_a_segmentation_fault";
        let ending = watch(name, CONF, || {
            let data = Collection::filled(seed(), 8000, PAGE);
            let object = Object::aligned(PAGE, PAGE).expect("room");
            object.fill(1);
            if !resident {
                push_out(&data);
            }
            // SAFETY: our own page.
            unsafe { libc::mprotect(as_pointer(object.address()), PAGE, libc::PROT_NONE) };
            object.get(0);
        });
        assert_eq!(ending.status.signal(), Some(libc::SIGSEGV), "{}", ending.said);
    }
}

#[test]
fn locked_pages_keep_their_bytes_and_count_like_others() {
    play("locked_pages_keep_their_bytes_and_count_like_others", CONF, || {
        let seed = seed();
        let data = Collection::filled(seed, 8000, PAGE);
        let locked = Object::aligned(PAGE, 500 * PAGE).expect("room");
        locked.fill(seed);
        // SAFETY: our own pages.
        let outcome = unsafe { libc::mlock(as_pointer(locked.address()), locked.size()) };
        assert_eq!(outcome, 0, "mlock: {}", std::io::Error::last_os_error());
        push_out(&data);
        locked.check(seed);
        locked.fill(!seed);
        push_out(&data);
        // SAFETY: as above.
        unsafe { libc::munlock(as_pointer(locked.address()), locked.size()) };
        locked.check(!seed);
        locked.free();
    });
}

#[test]
fn more_locked_than_the_budget_holds_does_not_hang() {
    play("more_locked_than_the_budget_holds_does_not_hang", "ram:16M,store_size:256M", || {
        let seed = seed();
        let data = Collection::filled(seed, 8000, PAGE);
        // Piece by piece: each is touched, then locked, until nothing is left to evict.
        let locked: Vec<Object> = (0..40)
            .map(|index| {
                let object = Object::aligned(PAGE, 100 * PAGE).expect("room");
                object.fill(index);
                // SAFETY: our own pages.
                unsafe { libc::mlock(as_pointer(object.address()), object.size()) };
                object
            })
            .collect();
        for step in 0..300 {
            let index = step * 26 % data.objects.len();
            data.objects[index].check(seed + index as u64);
        }
        scene::process::must_use_at_most(std::process::id(), 15);
        for (index, object) in locked.iter().enumerate() {
            // SAFETY: as above.
            unsafe { libc::munlock(as_pointer(object.address()), object.size()) };
            object.check(index as u64);
        }
        data.check();
    });
}
