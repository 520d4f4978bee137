//! Checkpoints that a worker makes: threads that wait learn the truth, many requests become one,
//! and an interval makes them without a request.

mod scene;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deepheap::{CheckpointError, DurableHeap, DurableOptions};
use scene::memory::PAGE;
use scene::play_in_turn;

const CONF: &str = "ram:64M,store_size:512M";
const OPTIONS: &str = "ram:24M,size:4G,store_size:1G";
const MEMORY: usize = 8 << 20;

fn open_with(path: &Path, more: &str) -> DurableHeap {
    let options = DurableOptions::parse(&format!("{OPTIONS},{more}")).expect("settings");
    DurableHeap::open(path, &options).unwrap_or_else(|error| panic!("{error}"))
}

fn open(path: &Path) -> DurableHeap {
    open_with(path, "")
}

/// Memory of zeros that the next process finds again.
fn memory(heap: &DurableHeap) -> *mut AtomicU64 {
    let known = heap.root("memory");
    if !known.is_null() {
        return known.cast();
    }
    let new = heap.malloc(MEMORY);
    // SAFETY: so large.
    unsafe { new.write_bytes(0, MEMORY) };
    heap.set_root("memory", new).expect("a root");
    new.cast()
}

/// A word on a page of its own.
fn word(heap: &DurableHeap, page: usize) -> &'static AtomicU64 {
    // SAFETY: memory of the heap, which stays open while it is used.
    unsafe { &*memory(heap).byte_add(page * PAGE) }
}

/// Waits, however long it takes.
fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(500), "{what} never came");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn requests_of_many_threads_become_few_checkpoints_and_none_is_lost() {
    const THREADS: usize = 8;
    const REQUESTS: u64 = 12;
    play_in_turn(
        "requests_of_many_threads_become_few_checkpoints_and_none_is_lost",
        CONF,
        &[
            |path| {
                let heap = open(path);
                memory(&heap);
                let first = heap.checkpoint().expect("a checkpoint").number;
                std::thread::scope(|scope| {
                    for thread in 0..THREADS {
                        scope.spawn(move || {
                            for request in 1..=REQUESTS {
                                word(&heap, thread).store(request, Ordering::SeqCst);
                                let ticket = heap.checkpoint_async();
                                let made = ticket.wait().unwrap_or_else(|error| panic!("{error}"));
                                assert!(made.number > first);
                                // It was served for good.
                                let again = ticket.wait().expect("it was served");
                                assert!(again.number >= made.number);
                            }
                        });
                    }
                });
                let last = heap.newest_checkpoint().expect("no failure").number;
                let asked = heap.checkpoint_async().number() - 1;
                assert_eq!(asked, THREADS as u64 * REQUESTS);
                assert!(last - first < asked, "{asked} requests, {} checkpoints", last - first);
                eprintln!("{asked} requests, {} checkpoints", last - first);
                // The process ends without a close.
            },
            |path| {
                let heap = open(path);
                for thread in 0..THREADS {
                    assert_eq!(word(&heap, thread).load(Ordering::SeqCst), REQUESTS);
                }
            },
        ],
    );
}

#[test]
fn a_failure_reaches_everyone_who_waits_and_a_later_checkpoint_mends_it() {
    play_in_turn(
        "a_failure_reaches_everyone_who_waits_and_a_later_checkpoint_mends_it",
        CONF,
        &[
            |path| {
                let heap = open(path);
                let page = word(&heap, 3);
                page.store(7, Ordering::SeqCst);
                let number = heap.checkpoint().expect("a checkpoint").number;
                page.store(8, Ordering::SeqCst);
                let protect = |access| {
                    // SAFETY: a page of our own, which nobody uses meanwhile.
                    let done = unsafe {
                        libc::mprotect(core::ptr::from_ref(page).cast_mut().cast(), PAGE, access)
                    };
                    assert_eq!(done, 0);
                };
                protect(libc::PROT_NONE);
                let tickets: Vec<_> = (0..6).map(|_| heap.checkpoint_async()).collect();
                std::thread::scope(|scope| {
                    for ticket in &tickets {
                        scope.spawn(|| {
                            let error = ticket.wait().expect_err("the page cannot be read");
                            assert!(error.to_string().contains("cannot be read"), "{error}");
                        });
                    }
                });
                let error = heap.newest_checkpoint().expect_err("the worker failed");
                assert!(matches!(error, CheckpointError::Cut(_)), "{error}");
                protect(libc::PROT_READ | libc::PROT_WRITE);
                let made = heap.checkpoint().unwrap_or_else(|error| panic!("{error}"));
                assert!(made.number > number);
                // All of them hold by now what they were to hold.
                for ticket in &tickets {
                    assert_eq!(ticket.wait().expect("it is durable").number, made.number);
                }
                assert_eq!(heap.newest_checkpoint().expect("no failure").number, made.number);
            },
            |path| assert_eq!(word(&open(path), 3).load(Ordering::SeqCst), 8),
        ],
    );
}

#[test]
fn what_a_system_call_uses_is_waited_for_and_then_told() {
    play_in_turn(
        "what_a_system_call_uses_is_waited_for_and_then_told",
        CONF,
        &[
            |path| {
                let heap = open(path);
                let address = core::ptr::from_ref(word(&heap, 0)) as usize;
                deepheap::internal::pin(address, PAGE);
                let error = heap.checkpoint_async().wait().expect_err("the page is in use");
                assert!(error.to_string().contains("system call"), "{error}");
                // One that is let go of while it is tried again.
                word(&heap, 1).store(5, Ordering::SeqCst);
                let ticket = heap.checkpoint_async();
                std::thread::sleep(Duration::from_millis(100));
                deepheap::internal::unpin(address, PAGE);
                ticket.wait().unwrap_or_else(|error| panic!("{error}"));
            },
            |path| assert_eq!(word(&open(path), 1).load(Ordering::SeqCst), 5),
        ],
    );
}

#[test]
fn an_interval_makes_what_changed_durable_and_nothing_else() {
    play_in_turn(
        "an_interval_makes_what_changed_durable_and_nothing_else",
        CONF,
        &[
            |path| {
                let heap = open_with(path, "checkpoint:10ms");
                let newest = || heap.newest_checkpoint().expect("no failure").number;
                let first = newest();
                word(&heap, 2).store(1, Ordering::SeqCst);
                until("a checkpoint of new memory", || newest() > first);
                // What is written in place, and what is a root only, count as well.
                for round in 2..6u64 {
                    let before = settled(&heap);
                    match round % 2 {
                        0 => word(&heap, 2).store(round, Ordering::SeqCst),
                        _ => heap
                            .set_root("mark", word(&heap, round as usize).as_ptr().cast())
                            .expect("a root"),
                    }
                    until("a checkpoint of a change", || newest() > before);
                }
                let before = settled(&heap);
                std::thread::sleep(Duration::from_millis(300));
                assert_eq!(newest(), before, "nothing has changed");
            },
            |path| {
                let heap = open(path);
                assert_eq!(word(&heap, 2).load(Ordering::SeqCst), 4);
                assert_eq!(heap.root("mark").cast::<u64>(), word(&heap, 5).as_ptr());
            },
        ],
    );
}

/// The number of a checkpoint that has all that was changed, and after which none came for a while.
fn settled(heap: &DurableHeap) -> u64 {
    loop {
        // One that is asked for: that of the interval may be late where others have the processors.
        let made = heap.checkpoint_async().wait().unwrap_or_else(|error| panic!("{error}"));
        let number = made.number;
        std::thread::sleep(Duration::from_millis(100));
        if heap.newest_checkpoint().expect("no failure").number == number {
            return number;
        }
    }
}

#[test]
fn a_failure_of_the_interval_is_told_and_tried_again() {
    const NAME: &str = "a_failure_of_the_interval_is_told_and_tried_again";
    if !scene::is_played(NAME) {
        let ending = scene::watch(NAME, CONF, || {});
        assert!(ending.status.success(), "{}", ending.said);
        let told = ending.said.matches("no checkpoint could be made").count();
        assert_eq!(told, 1, "{}", ending.said);
        return;
    }
    scene::play(NAME, CONF, || {
        let heap = open_with(&scene::folder().join("heap"), "checkpoint:10ms");
        let page = word(&heap, 3);
        page.store(7, Ordering::SeqCst);
        let number = heap.checkpoint().expect("a checkpoint").number;
        let protect = |access| {
            let at = core::ptr::from_ref(page).cast_mut().cast();
            // SAFETY: a page of our own, which nobody uses meanwhile.
            assert_eq!(unsafe { libc::mprotect(at, PAGE, access) }, 0);
        };
        protect(libc::PROT_NONE);
        word(&heap, 4).store(1, Ordering::SeqCst);
        until("the failure", || heap.newest_checkpoint().is_err());
        protect(libc::PROT_READ | libc::PROT_WRITE);
        let is_made = || heap.newest_checkpoint().is_ok_and(|made| made.number > number);
        until("the next one", is_made);
    });
}

#[test]
fn closing_makes_durable_what_was_asked_for_and_abandoning_ends_in_any_moment() {
    play_in_turn(
        "closing_makes_durable_what_was_asked_for_and_abandoning_ends_in_any_moment",
        CONF,
        &[|path| {
            for round in 0..40u64 {
                let heap = open_with(path, if round % 3 == 0 { "checkpoint:10ms" } else { "" });
                let found = word(&heap, 1).load(Ordering::SeqCst);
                assert!(round == 0 || found + 1 == round || found == round, "{round}: {found}");
                let closed = word(&heap, 2).load(Ordering::SeqCst);
                word(&heap, 1).store(round + 1, Ordering::SeqCst);
                assert!(closed <= found && (round % 2 == 0 || closed == round), "{round}");
                let _ = heap.checkpoint_async();
                if round % 2 == 0 {
                    word(&heap, 2).store(round + 1, Ordering::SeqCst);
                    // SAFETY: nobody uses it any more.
                    unsafe { heap.close() }.unwrap_or_else(|error| panic!("{error}"));
                    assert!(heap.checkpoint().is_err(), "it is closed");
                } else {
                    std::thread::sleep(Duration::from_millis(round % 7));
                    // SAFETY: nobody uses it any more.
                    unsafe { heap.abandon() };
                }
            }
        }],
    );
}

#[test]
fn a_forked_child_asks_for_nothing_and_the_worker_of_its_parent_goes_on() {
    play_in_turn(
        "a_forked_child_asks_for_nothing_and_the_worker_of_its_parent_goes_on",
        CONF,
        &[
            |path| {
                let heap = open_with(path, "checkpoint:10ms");
                let stop = AtomicBool::new(false);
                memory(&heap);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        while !stop.load(Ordering::Relaxed) {
                            word(&heap, 1).fetch_add(1, Ordering::SeqCst);
                            let _ = heap.checkpoint_async();
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    });
                    for _ in 0..20 {
                        // SAFETY: the child only does what is seen here, and ends.
                        let pid = unsafe { libc::fork() };
                        if pid == 0 {
                            let is_refused =
                                matches!(heap.checkpoint(), Err(CheckpointError::Closed))
                                    && matches!(
                                        heap.checkpoint_async().wait(),
                                        Err(CheckpointError::Closed)
                                    )
                                    && heap.newest_checkpoint().is_err();
                            // SAFETY: the end of the child.
                            unsafe { libc::_exit(i32::from(!is_refused)) };
                        }
                        let mut status = 0;
                        // SAFETY: our own child.
                        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                        assert_eq!(status, 0, "the child is refused");
                    }
                    stop.store(true, Ordering::Relaxed);
                });
                word(&heap, 2).store(9, Ordering::SeqCst);
                heap.checkpoint_async().wait().unwrap_or_else(|error| panic!("{error}"));
            },
            |path| assert_eq!(word(&open(path), 2).load(Ordering::SeqCst), 9),
        ],
    );
}
