//! Calls without page faults agree with plain pointers, byte for byte, whoever uses them when.

mod scene;

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use deepheap::internal::Hold;
use deepheap::objects::{self, Advice, ObjectError};
use deepheap::{DurableHeap, DurableOptions};
use scene::memory::{PAGE, Random, seed};
use scene::play;

const CONF: &str = "ram:24M,store_size:400M";
const DATA: usize = 80 << 20;

/// A managed allocation and a copy of what it must hold.
struct Twin {
    at: *mut u8,
    copy: Vec<u8>,
}

/// Allocations of mixed sizes, most of them away, each with random bytes.
fn twins(random: &mut Random) -> Vec<Twin> {
    let mut twins = Vec::new();
    let mut bytes = 0;
    while bytes < DATA {
        let size = match random.below(4) {
            0 => 1 + random.below(100),
            1 => 4096,
            2 => 1 + random.below(4096),
            _ => 1 + random.below(20_000),
        };
        let at = match random.below(2) {
            0 => deepheap::malloc(size),
            _ => objects::allocate(1, size),
        };
        assert!(!at.is_null());
        let copy: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
        // SAFETY: a fresh allocation of that size.
        unsafe { at.copy_from_nonoverlapping(copy.as_ptr(), size) };
        bytes += size;
        twins.push(Twin { at, copy });
    }
    twins
}

fn one_step(random: &mut Random, twins: &mut [Twin]) {
    let index = random.below(twins.len());
    let twin = &mut twins[index];
    let offset = random.below(twin.copy.len());
    let length = 1 + random.below((twin.copy.len() - offset).min(6000));
    let range = offset..offset + length;
    let mut bytes = vec![0; length];
    // SAFETY: inside live allocations and buffers of that length.
    unsafe {
        match random.below(4) {
            0 => objects::read(twin.at, offset, bytes.as_mut_ptr(), length).expect("read"),
            1 => {
                twin.copy[range].fill(7);
                return objects::write(twin.at, offset, [7; 6000].as_ptr(), length).expect("write");
            }
            2 => twin.at.add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), length),
            _ => {
                twin.copy[range].fill(9);
                return twin.at.add(offset).write_bytes(9, length);
            }
        }
    }
    assert_eq!(bytes, twin.copy[range], "object {index}");
}

fn one_batch(random: &mut Random, twins: &mut [Twin]) {
    let count = 1 + random.below(300);
    let length = 1 + random.below(64);
    let chosen: Vec<usize> = (0..count)
        .map(|_| random.below(twins.len()))
        .filter(|&index| twins[index].copy.len() >= length)
        .collect();
    let list: Vec<*mut u8> = chosen.iter().map(|&index| twins[index].at).collect();
    let mut bytes = vec![0u8; list.len() * length];
    // SAFETY: live objects of at least that length, a buffer for all of them.
    unsafe {
        let const_list = list.as_ptr().cast::<*const u8>();
        if random.below(3) == 0 {
            assert!(objects::prefetch(const_list, list.len()).expect("ours") <= list.len());
        }
        if random.below(2) == 0 {
            let done = objects::gather(const_list, list.len(), 0, length, bytes.as_mut_ptr());
            assert_eq!(done, Ok(list.len()));
            for (part, index) in bytes.chunks(length).zip(chosen) {
                assert_eq!(part, &twins[index].copy[..length], "object {index}");
            }
        } else {
            bytes.iter_mut().for_each(|byte| *byte = random.next() as u8);
            let done = objects::scatter(list.as_ptr(), list.len(), 0, length, bytes.as_ptr());
            assert_eq!(done, Ok(list.len()));
            // Of two parts for the same object the later one stays.
            for (part, index) in bytes.chunks(length).zip(chosen) {
                twins[index].copy[..length].copy_from_slice(part);
            }
        }
    }
}

#[test]
fn any_mix_of_calls_and_pointers_agrees_with_a_copy() {
    play("any_mix_of_calls_and_pointers_agrees_with_a_copy", CONF, || {
        let mut random = Random::new(seed());
        let mut twins = twins(&mut random);
        for _ in 0..20_000 {
            one_step(&mut random, &mut twins);
        }
        for _ in 0..600 {
            one_batch(&mut random, &mut twins);
        }
        for (index, twin) in twins.iter().enumerate() {
            // SAFETY: a live allocation of that length.
            let held = unsafe { std::slice::from_raw_parts(twin.at, twin.copy.len()) };
            assert_eq!(held, twin.copy, "object {index}");
            // SAFETY: as above; dead afterwards.
            unsafe { deepheap::free(twin.at) };
        }
    });
}

#[test]
fn no_thread_loses_a_write_to_calls_of_another() {
    const THREADS: usize = 6;
    const OBJECTS: usize = 60_000;
    const SIZE: usize = 1024;
    play("no_thread_loses_a_write_to_calls_of_another", CONF, || {
        let seed = seed();
        let list: Vec<usize> = (0..OBJECTS)
            .map(|index| match index % 3 {
                0 => deepheap::calloc(1, SIZE) as usize,
                1 => objects::allocate(1, SIZE) as usize,
                _ => objects::allocate(1, THREADS * 8) as usize,
            })
            .collect();
        for &at in &list {
            assert!(at != 0);
            // SAFETY: a live object with a word for each thread.
            unsafe { (at as *mut u8).write_bytes(0, THREADS * 8) };
        }
        // Thread t owns word t of every object, and counts its increments.
        let counts: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let list = &list;
                    scope.spawn(move || increments(seed + thread as u64, thread, list))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread failed")).collect()
        });
        for (thread, count) in counts.into_iter().enumerate() {
            // SAFETY: live objects with a word for each thread.
            let word = |at: usize| unsafe { *(at as *const u64).add(thread) };
            assert_eq!(list.iter().map(|&at| word(at)).sum::<u64>(), count, "thread {thread}");
        }
    });
}

#[test]
fn reading_what_another_thread_frees_harms_nobody() {
    const OWNERS: usize = 2;
    const OBJECTS: usize = 20_000;
    play("reading_what_another_thread_frees_harms_nobody", CONF, || {
        let seed = seed();
        let slots: Vec<AtomicUsize> = (0..OWNERS * OBJECTS).map(|_| AtomicUsize::new(0)).collect();
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for owner in 0..OWNERS {
                let (slots, done) = (&slots[owner * OBJECTS..][..OBJECTS], &done);
                scope.spawn(move || {
                    free_and_allocate(seed + owner as u64, slots);
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            for reader in 0..2 {
                let (slots, done) = (&slots, &done);
                scope.spawn(move || {
                    let mut random = Random::new(seed ^ reader);
                    let mut read = 0;
                    while done.load(Ordering::Relaxed) < OWNERS {
                        let mut slot = || slots[random.below(slots.len())].load(Ordering::Relaxed);
                        let (two, mut words) = ([slot(), slot()], [0u64; 2]);
                        let to = words.as_mut_ptr().cast();
                        // SAFETY: two pointers, a word of the buffer for each. They may be freed
                        // by now, and the words are worth nothing then.
                        match unsafe { objects::gather(two.as_ptr().cast(), 2, 0, 8, to) } {
                            Ok(count) => read += count,
                            Err(ObjectError::NotAnObject | ObjectError::OutOfBounds) => {}
                            Err(error) => panic!("{error:?}"),
                        }
                    }
                    assert!(read > 1000, "only {read} were there");
                });
            }
        });
    });
}

/// Keeps an object in each slot, of changing sizes, and frees only what still holds its own bytes.
fn free_and_allocate(seed: u64, slots: &[AtomicUsize]) {
    const SIZES: [usize; 4] = [16, 200, 1500, 5000];
    let mut random = Random::new(seed);
    let mut held = vec![0u64; slots.len()];
    for step in 0..120_000 {
        let at = if step < slots.len() { step } else { random.below(slots.len()) };
        let old = slots[at].load(Ordering::Relaxed) as *mut u64;
        let size = SIZES[random.below(SIZES.len())];
        // SAFETY: live objects of this thread, of two words at least.
        unsafe {
            assert!(old.is_null() || old.read() == held[at] && old.add(1).read() == at as u64);
            deepheap::free(old.cast());
            let object = objects::allocate(1, size).cast::<u64>();
            assert!(!object.is_null());
            held[at] = seed << 32 | step as u64;
            object.write(held[at]);
            object.add(1).write(at as u64);
            slots[at].store(object as usize, Ordering::Relaxed);
        }
    }
}

/// Increments the thread's words, by pointer, by single calls and by batches.
fn increments(seed: u64, thread: usize, list: &[usize]) -> u64 {
    let mut random = Random::new(seed);
    let mut count = 0;
    for _ in 0..4_000 {
        let at = list[random.below(list.len())] as *mut u64;
        let mut word = 0u64;
        // SAFETY: live objects with a word for each thread; buffers of a word each.
        unsafe {
            match random.below(3) {
                0 => at.add(thread).write_volatile(at.add(thread).read_volatile() + 1),
                1 => {
                    let bytes = (&raw mut word).cast::<u8>();
                    objects::read(at.cast(), thread * 8, bytes, 8).expect("read");
                    *bytes.cast::<u64>() += 1;
                    objects::write(at.cast(), thread * 8, bytes, 8).expect("write");
                }
                _ => {
                    let mut some: Vec<*mut u8> =
                        (0..40).map(|_| list[random.below(list.len())] as *mut u8).collect();
                    some.sort_unstable();
                    some.dedup();
                    let mut words = vec![0u64; some.len()];
                    let bytes = words.as_mut_ptr().cast::<u8>();
                    let got =
                        objects::gather(some.as_ptr().cast(), some.len(), thread * 8, 8, bytes);
                    assert_eq!(got, Ok(some.len()));
                    words.iter_mut().for_each(|word| *word += 1);
                    let put = objects::scatter(some.as_ptr(), some.len(), thread * 8, 8, bytes);
                    assert_eq!(put, Ok(some.len()));
                    count += some.len() as u64 - 1;
                }
            }
        }
        count += 1;
    }
    count
}

#[test]
fn the_programs_buffers_may_be_managed_and_away() {
    play("the_programs_buffers_may_be_managed_and_away", CONF, || {
        let mut random = Random::new(seed());
        let twins = twins(&mut random);
        let count = twins.len();
        // SAFETY: fresh allocations of ours, long enough.
        unsafe {
            let list = deepheap::malloc(count * 8).cast::<*const u8>();
            let bytes = deepheap::malloc(count);
            for (index, twin) in twins.iter().enumerate() {
                list.add(index).write(twin.at);
            }
            // Everything else goes through RAM, so that list and buffer are away.
            let sum: u64 = twins.iter().map(|twin| u64::from(*twin.at)).sum();
            assert_eq!(objects::gather(list, count, 0, 1, bytes), Ok(count));
            let got: u64 = (0..count).map(|index| u64::from(*bytes.add(index))).sum();
            assert_eq!(got, sum);
        }
    });
}

#[test]
fn what_was_prefetched_is_read_from_ram() {
    play("what_was_prefetched_is_read_from_ram", CONF, || {
        let mut random = Random::new(seed());
        let list: Vec<usize> = (0..20_000).map(|_| deepheap::malloc(4096) as usize).collect();
        for &at in &list {
            for word in 0..4096 / 8 {
                // SAFETY: a live object of that size. Random bytes, or all of it would fit in RAM.
                unsafe { (at as *mut u64).add(word).write(random.next()) };
            }
        }
        let some: Vec<*const u8> = (0..200).map(|n| list[n * 7] as *const u8).collect();
        let stats = || deepheap::stats().expect("it runs");
        let fetched = stats().prefetched;
        // SAFETY: live objects.
        let started = unsafe { objects::prefetch(some.as_ptr(), some.len()) }.expect("ours");
        assert!(started > 150, "{started} of them were away");
        let came = || stats().prefetched - fetched;
        assert!(
            scene::process::soon(std::time::Duration::from_secs(60), || came() >= started as u64),
            "{} of {started} came",
            came()
        );
        let reads = || stats().device_reads;
        let before = reads();
        let mut bytes = vec![0u8; some.len()];
        // SAFETY: live objects, a byte for each.
        let got = unsafe { objects::gather(some.as_ptr(), some.len(), 0, 1, bytes.as_mut_ptr()) };
        assert_eq!(got, Ok(some.len()));
        let more = reads() - before;
        assert!(more < started as u64 / 10, "{more} reads for {started} prefetched objects");
        objects::advise(some[0], Advice::Hot).expect("ours");
        objects::advise(some[0], Advice::Cold).expect("ours");
    });
}

#[test]
fn what_is_gathered_again_and_again_is_read_from_ram() {
    play("what_is_gathered_again_and_again_is_read_from_ram", CONF, || {
        let mut random = Random::new(seed());
        let list: Vec<usize> = (0..20_000).map(|_| deepheap::malloc(4096) as usize).collect();
        for (number, &at) in list.iter().enumerate() {
            for word in 0..4096 / 8 {
                let value = if word == 0 { number as u64 } else { random.next() };
                // SAFETY: a live object of that size.
                unsafe { (at as *mut u64).add(word).write(value) };
            }
        }
        // Each of them three times in one call.
        let some: Vec<usize> = (0..600).map(|at| at / 3 * 7).collect();
        let pointers: Vec<*const u8> = some.iter().map(|&at| list[at] as *const u8).collect();
        let gather = || {
            let before = deepheap::stats().expect("it runs").device_reads;
            let mut words = vec![0u64; some.len()];
            let into = words.as_mut_ptr().cast();
            // SAFETY: live objects, a word for each.
            let got = unsafe { objects::gather(pointers.as_ptr(), some.len(), 0, 8, into) };
            assert_eq!(got, Ok(some.len()));
            assert!(words.iter().zip(&some).all(|(&word, &number)| word == number as u64));
            deepheap::stats().expect("it runs").device_reads - before
        };
        let reads = [gather(), gather(), gather()];
        assert!(reads[0] <= some.len() as u64 / 2, "{reads:?}: three times, but one read");
        assert!(reads[2] <= some.len() as u64 / 30, "{reads:?}: it came to be in RAM");
    });
}

#[test]
fn bad_pointers_and_bounds_are_answered() {
    play("bad_pointers_and_bounds_are_answered", CONF, || {
        let (at, mut byte) = (deepheap::malloc(100), 0u8);
        // SAFETY: a live object, or none at all, which is what is asked.
        unsafe {
            at.write_bytes(1, 100);
            let usable = deepheap::usable_size(at).expect("live");
            assert_eq!(objects::read(at, usable - 1, &mut byte, 1), Ok(()));
            assert_eq!(objects::read(at, usable, &mut byte, 1), Err(ObjectError::OutOfBounds));
            assert_eq!(objects::read(at, usize::MAX, &mut byte, 2), Err(ObjectError::OutOfBounds));
            let foreign = &raw const byte;
            assert_eq!(objects::read(foreign, 0, &mut byte, 1), Err(ObjectError::NotAnObject));
            let list = [at.cast_const(), foreign];
            let mut two = [0u8; 2];
            assert_eq!(objects::gather(list.as_ptr(), 2, 0, 1, two.as_mut_ptr()), Ok(1));
            assert_eq!(objects::pin(foreign), Err(ObjectError::NotAnObject));
            assert_eq!(objects::prefetch(list.as_ptr(), 2), Err(ObjectError::NotAnObject));
            assert_eq!(objects::advise(foreign, Advice::Hot), Err(ObjectError::NotAnObject));
            assert_eq!(objects::pin(at), Ok(()));
            assert_eq!(objects::unpin(at), Ok(()));
        }
    });
}

#[test]
fn what_comes_before_a_bad_piece_of_a_window_is_done() {
    const OBJECT: usize = 200;
    const STRIDE: usize = 64;
    const LENGTH: usize = 50;
    play("what_comes_before_a_bad_piece_of_a_window_is_done", CONF, || {
        let array = objects::allocate(1000, STRIDE) as usize;
        let pair = [objects::allocate(1, OBJECT), objects::allocate(1, OBJECT)];
        let distance = pair[1] as usize - pair[0] as usize;
        for (object, byte) in pair.iter().zip([1, 2]) {
            // SAFETY: live objects of that size.
            unsafe { object.write_bytes(byte, OBJECT) };
        }
        // Elements of a dense array: the caller answers for the bounds, and here the offset leads
        // from the first into one object, from the second beyond the end of the next one.
        let first = array + STRIDE;
        let second = first + distance + STRIDE;
        let offset = pair[0] as usize + OBJECT / 2 - first;
        let list = [first as *mut u8, second as *mut u8];
        let mut bytes = [9u8; 2 * LENGTH];
        // SAFETY: elements of a live array, or none at all, which is what is asked; buffers of
        // that length.
        unsafe {
            let ours = list.as_ptr().cast::<*const u8>();
            let alone = objects::read(list[1], offset, bytes.as_mut_ptr(), LENGTH);
            assert_eq!(alone, Err(ObjectError::OutOfBounds));
            assert_eq!(objects::gather(ours, 2, offset, LENGTH, bytes.as_mut_ptr()), Ok(1));
            assert_eq!(bytes[..LENGTH], [1; LENGTH], "what was read of the first");
            assert_eq!(bytes[LENGTH..], [9; LENGTH], "the place of the second");

            let new = [3u8; 2 * LENGTH];
            assert_eq!(objects::scatter(list.as_ptr(), 2, offset, LENGTH, new.as_ptr()), Ok(1));
            let held = pair.map(|object| std::slice::from_raw_parts(object, OBJECT));
            assert_eq!(held[0][OBJECT / 2..][..LENGTH], new[..LENGTH], "what was written");
            assert_eq!(held[1], [2; OBJECT], "the object behind it");

            let foreign = [pair[0].cast_const(), bytes.as_ptr()];
            let mut two = [9u8; 2 * LENGTH];
            assert_eq!(objects::gather(foreign.as_ptr(), 2, 0, LENGTH, two.as_mut_ptr()), Ok(1));
            assert_eq!(two[..LENGTH], [1; LENGTH], "what was read of the first");
        }
    });
}

#[test]
fn pins_leave_half_of_the_page_buffer_to_everything_else() {
    play("pins_leave_half_of_the_page_buffer_to_everything_else", CONF, || {
        let list: Vec<*mut u8> = (0..40_000).map(|_| objects::allocate(1, 256)).collect();
        for (at, &object) in list.iter().enumerate() {
            // SAFETY: a live object of that size.
            unsafe { object.cast::<u64>().write(at as u64 + 1) };
        }
        let check = |range: std::ops::Range<usize>| {
            for at in range {
                // SAFETY: as above.
                assert_eq!(unsafe { list[at].cast::<u64>().read() }, at as u64 + 1);
            }
        };
        let pinned = list.iter().take_while(|&&object| objects::pin(object).is_ok()).count();
        assert!((100..list.len() / 2).contains(&pinned), "{pinned} pins");
        assert_eq!(objects::pin(list[pinned]), Err(ObjectError::Resources));
        check(0..list.len());
        let stats = deepheap::stats().expect("it runs");
        assert!(stats.page_buffer_bytes >= pinned as u64 * 4096);
        for &object in &list[..pinned] {
            assert_eq!(objects::unpin(object), Ok(()));
        }
        assert_eq!(objects::pin(list[pinned]), Ok(()));
        assert_eq!(objects::unpin(list[pinned]), Ok(()));
        check(0..list.len());
    });
}

#[test]
fn objects_that_are_written_in_bulk_are_what_was_written() {
    play("objects_that_are_written_in_bulk_are_what_was_written", CONF, || {
        const ARRAYS: usize = 600;
        const ELEMENTS: usize = 200;
        let mut random = Random::new(seed());
        // Of every third array only the beginnings are written: those go through the cache.
        let arrays: Vec<(usize, usize, usize)> = (0..ARRAYS)
            .map(|number| {
                let size = 32 + random.below(600);
                let array = objects::allocate(ELEMENTS, size);
                assert!(!array.is_null());
                (array as usize, size, if number % 3 == 0 { 16 } else { size })
            })
            .collect();
        let object = |array: usize, at: usize| {
            let (first, size, _) = arrays[array];
            (first + at * objects::stride(size)) as *mut u8
        };
        // One in eleven stays zero.
        let value = |array: usize, at: usize| {
            ((ELEMENTS * array + at) as u64 + 1) * u64::from(!at.is_multiple_of(11))
        };
        let written = || deepheap::stats().expect("it runs").device_write_bytes;
        let before = written();
        std::thread::scope(|scope| {
            // Somebody else writes the last byte of some of them at the same time, by pointers.
            scope.spawn(|| {
                for (array, &(_, size, _)) in arrays.iter().enumerate() {
                    for at in (0..ELEMENTS).step_by(97) {
                        // SAFETY: a live object.
                        unsafe { object(array, at).add(size - 1).write_volatile(7) };
                    }
                }
            });
            for (array, &(_, _, length)) in arrays.iter().enumerate() {
                let pointers: Vec<*mut u8> = (0..ELEMENTS).map(|at| object(array, at)).collect();
                let mut bytes = vec![0u8; ELEMENTS * length];
                for (at, bytes) in bytes.chunks_mut(length).enumerate() {
                    bytes[..8].copy_from_slice(&value(array, at).to_le_bytes());
                }
                let (list, bytes) = (pointers.as_ptr(), bytes.as_ptr());
                // SAFETY: live objects of at least that length, a buffer for all of them.
                let done = unsafe { objects::scatter(list, ELEMENTS, 0, length, bytes) };
                assert_eq!(done, Ok(ELEMENTS));
            }
        });
        assert!(written() - before > 10 << 20, "most of it does not fit");
        for (array, &(_, size, length)) in arrays.iter().enumerate() {
            for at in 0..ELEMENTS {
                // SAFETY: live objects; nobody writes them now.
                let bytes = unsafe { std::slice::from_raw_parts(object(array, at), size) };
                assert_eq!(bytes[..8], value(array, at).to_le_bytes(), "{at} of array {array}");
                let end = bytes[size - 1];
                // What was written last, where both wrote, is anybody's guess.
                let ends = if at % 97 != 0 {
                    [0, 0]
                } else if length < size {
                    [7, 7]
                } else {
                    [0, 7]
                };
                assert!(ends.contains(&end), "{end} ends {at} of array {array}");
            }
        }
    });
}

#[test]
fn the_kernel_finds_held_memory_of_a_durable_heap() {
    const BYTES: usize = 64 << 20;
    let conf = "ram:48M,store_size:400M";
    play("the_kernel_finds_held_memory_of_a_durable_heap", conf, || {
        let options = DurableOptions::parse("ram:16M,size:1G").expect("settings");
        let heap = DurableHeap::open(&scene::folder().join("heap"), &options).expect("a heap");
        let at = heap.malloc(BYTES);
        assert!(!at.is_null());
        // SAFETY: so large; four times what the heap has of RAM.
        unsafe { at.write_bytes(7, BYTES) };
        let (read, write) = std::io::pipe().expect("a pipe");
        let mut random = Random::new(seed());
        let (mut refused, mut bytes) = (0, [0u8; PAGE]);
        let mut send = |from: *const u8| {
            // SAFETY: a page of the allocation, then room for a page; the pipe takes that much.
            unsafe {
                let sent = libc::write(write.as_raw_fd(), from.cast(), PAGE);
                if sent != PAGE as isize {
                    return None;
                }
                let got = libc::read(read.as_raw_fd(), bytes.as_mut_ptr().cast(), PAGE);
                assert_eq!(got, sent);
                Some(bytes)
            }
        };
        for _ in 0..2000 {
            // SAFETY: inside of the allocation.
            let from = unsafe { at.add(random.below(BYTES / PAGE) * PAGE) };
            refused += usize::from(send(from).is_none());
            let hold = Hold::on(from as usize, PAGE);
            assert_eq!(send(from), Some([7; PAGE]), "a held page");
            drop(hold);
        }
        assert!(refused > 0, "some pages were away");
        let made = heap.checkpoint();
        assert!(made.is_ok(), "no hold is left: {made:?}");
    });
}
