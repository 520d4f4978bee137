//! Signals: the program's own SIGBUS stays its own, and handlers may touch managed memory.

mod scene;

use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use scene::memory::{Collection, Object, PAGE, Random, seed};
use scene::{play, watch};

const CONF: &str = "ram:24M,store_size:256M";

/// Installs a handler with the program's own call.
fn handle(signal: i32, handler: usize, flags: i32) {
    // SAFETY: zeroed is a valid sigaction, and the handler has the form that the flags say.
    let outcome = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(signal, &action, std::ptr::null_mut())
    };
    assert_eq!(outcome, 0);
}

/// A page of a file that is not there any more: touching it is SIGBUS.
fn truncated_page() -> usize {
    let path = scene::folder().join("truncated");
    let file = std::fs::File::create_new(&path).expect("create");
    file.set_len(PAGE as u64).expect("extend");
    let file = std::fs::File::open(&path).expect("open");
    // SAFETY: a new mapping of a file.
    let page = unsafe {
        use std::os::fd::AsRawFd;
        let (rights, fd) = (libc::PROT_READ, file.as_raw_fd());
        libc::mmap(std::ptr::null_mut(), PAGE, rights, libc::MAP_SHARED, fd, 0)
    };
    assert_ne!(page, libc::MAP_FAILED);
    std::fs::File::options().write(true).open(&path).expect("open").set_len(0).expect("truncate");
    page as usize
}

fn touch(address: usize) -> u8 {
    // SAFETY: a mapped page; the test wants to know how the fault ends.
    unsafe { (address as *const u8).read_volatile() }
}

static SEEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_bus(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's info; the page is mapped anew over the one that faulted.
    unsafe {
        let address = (*info).si_addr();
        SEEN.store(address as usize, Ordering::SeqCst);
        let (rights, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
        );
        let page = (address as usize & !(PAGE - 1)) as *mut libc::c_void;
        libc::mmap(page, PAGE, rights, flags, -1, 0);
    }
}

#[test]
fn the_programs_sigbus_reaches_its_handler() {
    play("the_programs_sigbus_reaches_its_handler", CONF, || {
        // As a program does: before deepheap manages anything.
        handle(libc::SIGBUS, on_bus as *const () as usize, libc::SA_SIGINFO);
        let seed = seed();
        let data = Collection::filled(seed, 10_000, PAGE);
        let page = truncated_page();
        assert_eq!(touch(page + 5), 0);
        assert_eq!(SEEN.load(Ordering::SeqCst), page + 5);
        data.check();
        assert_eq!(SEEN.load(Ordering::SeqCst), page + 5, "it saw a fault of ours");
    });
}

#[test]
fn the_programs_sigbus_without_a_handler_kills_it() {
    let ending = watch("the_programs_sigbus_without_a_handler_kills_it", CONF, || {
        let data = Collection::filled(seed(), 10_000, PAGE);
        data.check();
        touch(truncated_page());
    });
    assert_eq!(ending.status.signal(), Some(libc::SIGBUS), "{}", ending.said);
    assert!(!ending.said.contains("stops"), "it was no access of ours: {}", ending.said);
}

#[test]
fn a_sigbus_that_somebody_sends_kills_as_it_would() {
    let ending = watch("a_sigbus_that_somebody_sends_kills_as_it_would", CONF, || {
        // Rust's own handler would take the first one for a fault that comes again.
        handle(libc::SIGBUS, libc::SIG_DFL, 0);
        Collection::filled(seed(), 10_000, PAGE).check();
        // SAFETY: no memory is involved.
        unsafe { libc::raise(libc::SIGBUS) };
        std::thread::sleep(std::time::Duration::from_secs(1));
    });
    assert_eq!(ending.status.signal(), Some(libc::SIGBUS), "{}", ending.said);
}

/// Alarms whose handler has begun, and those whose handler has written.
static ALARMS: AtomicU64 = AtomicU64::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);
static ADDRESS: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static SPOILED: AtomicBool = AtomicBool::new(false);

/// Adds to a word of a managed array somewhere, and leaves errno as it was.
extern "C" fn on_alarm(_: i32) {
    let alarm = ALARMS.fetch_add(1, Ordering::Relaxed);
    let page = (alarm.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize;
    let page = page % COUNT.load(Ordering::Relaxed);
    let word = (ADDRESS.load(Ordering::Relaxed) + page * PAGE) as *mut u64;
    // SAFETY: the first word of a page of a live array, which only this handler adds to; errno is
    // this thread's.
    unsafe {
        *libc::__errno_location() = 77;
        let shared = AtomicU64::from_ptr(word);
        shared.fetch_add(1, Ordering::Relaxed);
        if *libc::__errno_location() != 77 {
            SPOILED.store(true, Ordering::Relaxed);
        }
    }
    HANDLED.fetch_add(1, Ordering::Release);
}

/// Has SIGALRM sent to the process each so many microseconds; 0 ends it.
fn alarm_each(us: i64) {
    // SAFETY: setitimer is in libc, which the crate does not name.
    unsafe extern "C" {
        fn setitimer(which: i32, new: *const libc::itimerval, old: *mut libc::itimerval) -> i32;
    }
    let each = libc::timeval { tv_sec: 0, tv_usec: us };
    let timer = libc::itimerval { it_interval: each, it_value: each };
    // SAFETY: a timer on the stack.
    assert_eq!(unsafe { setitimer(0, &timer, std::ptr::null_mut()) }, 0);
}

/// How many alarms there were, and what `sum` of their additions is. The last signal may still be
/// on its way when the timer has ended, so both are of one moment between two handlers.
fn alarms_and(sum: impl Fn() -> u64) -> (u64, u64) {
    loop {
        let alarms = ALARMS.load(Ordering::Acquire);
        if HANDLED.load(Ordering::Acquire) == alarms {
            let added = sum();
            if ALARMS.load(Ordering::Acquire) == alarms {
                return (alarms, added);
            }
        }
        std::thread::yield_now();
    }
}

fn errno() -> i32 {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() }
}

#[test]
fn a_handler_that_faults_among_faulting_threads_does_not_hang() {
    play("a_handler_that_faults_among_faulting_threads_does_not_hang", CONF, || {
        let seed = seed();
        let pages = 12_000;
        let array = Object::zeroed(pages * PAGE).expect("room");
        ADDRESS.store(array.address(), Ordering::Relaxed);
        COUNT.store(pages, Ordering::Relaxed);
        handle(libc::SIGALRM, on_alarm as *const () as usize, libc::SA_RESTART);
        alarm_each(1000);
        let kept = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (array, kept) = (&array, &kept);
                scope.spawn(move || {
                    let mut random = Random::new(seed + thread);
                    let mut mine: Vec<(Object, u64)> = Vec::new();
                    for step in 0..15_000 {
                        // SAFETY: errno of this thread; the handler disturbs it only as handlers
                        // of programs do, so it is set right before the touch.
                        let page = random.below(pages);
                        let word = 1 + thread as usize;
                        array.set(page * PAGE / 8 + word, array.get(page * PAGE / 8 + word) + 1);
                        kept.fetch_add(1, Ordering::Relaxed);
                        if step % 16 == 0 {
                            let object = Object::new(100 + random.below(9000)).expect("room");
                            object.fill(step);
                            mine.push((object, step));
                        }
                        if mine.len() > 400 {
                            let (object, seed) = mine.swap_remove(random.below(400));
                            object.check(seed);
                            object.free();
                        }
                    }
                });
            }
        });
        alarm_each(0);
        let sum =
            |word: usize| -> u64 { (0..pages).map(|page| array.get(page * PAGE / 8 + word)).sum() };
        let (alarms, written) = alarms_and(|| sum(0));
        eprintln!("{alarms} alarms");
        assert_eq!(written, alarms, "writes of the handler");
        assert_eq!((1..=4).map(sum).sum::<u64>(), kept.load(Ordering::Relaxed), "of the threads");
        assert!(alarms > 100);
        assert!(!SPOILED.load(Ordering::Relaxed), "a fault changed errno");
    });
}

static WRITTEN: AtomicUsize = AtomicUsize::new(0);

/// Adds to the first word of the object that a call writes to just now, or has written to.
extern "C" fn on_alarm_in_call(_: i32) {
    let word = WRITTEN.load(Ordering::Relaxed) as *mut u64;
    ALARMS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: a live object, whose first word only this handler adds to.
    unsafe { AtomicU64::from_ptr(word) }.fetch_add(1, Ordering::Relaxed);
    HANDLED.fetch_add(1, Ordering::Release);
}

#[test]
fn a_handler_that_touches_what_a_call_writes_neither_hangs_nor_loses_anything() {
    const CONF: &str = "ram:24M,page_buffer:2M";
    const OBJECTS: usize = 4000;
    const WORDS: usize = 40;
    const WRITES: u64 = 400_000;
    let name = "a_handler_that_touches_what_a_call_writes_neither_hangs_nor_loses_anything";
    play(name, CONF, || {
        let mut random = Random::new(seed());
        let list: Vec<usize> =
            (0..OBJECTS).map(|_| deepheap::objects::allocate(1, 8 * WORDS) as usize).collect();
        let mut values = vec![0u64; OBJECTS];
        WRITTEN.store(list[0], Ordering::Relaxed);
        handle(libc::SIGALRM, on_alarm_in_call as *const () as usize, libc::SA_RESTART);
        alarm_each(500);
        let mut words = [0u64; WORDS];
        for step in 1..=WRITES {
            let at = random.below(OBJECTS);
            WRITTEN.store(list[at], Ordering::Relaxed);
            words[1..].fill(step);
            let (from, length) = (words[1..].as_ptr().cast(), 8 * (WORDS - 1));
            // SAFETY: a live object of so many words.
            unsafe { deepheap::objects::write(list[at] as *mut u8, 8, from, length) }
                .expect("a write");
            values[at] = step;
            let at = random.below(OBJECTS);
            let to = words[1..].as_mut_ptr().cast();
            // SAFETY: as above, and room for them.
            unsafe { deepheap::objects::read(list[at] as *const u8, 8, to, length) }
                .expect("a read");
            assert!(words[1..].iter().all(|&word| word == values[at]), "{at}: {words:?}");
        }
        alarm_each(0);
        // SAFETY: live objects, of which only the handler writes the first word, atomically.
        let word = |&object: &usize| unsafe { AtomicU64::from_ptr(object as *mut u64) };
        let sum = || list.iter().map(|object| word(object).load(Ordering::Relaxed)).sum();
        let (alarms, written) = alarms_and(sum);
        assert_eq!(written, alarms, "additions of the handler");
        assert!(alarms > 100, "{alarms} alarms");
    });
}

#[test]
fn a_fault_leaves_errno_alone() {
    play("a_fault_leaves_errno_alone", CONF, || {
        let data = Collection::filled(seed(), 12_000, PAGE);
        let before = deepheap::stats().expect("stats").faults();
        for object in &data.objects {
            // SAFETY: errno of this thread.
            unsafe { *libc::__errno_location() = 4242 };
            assert_ne!(object.get(9), 0);
            assert_eq!(errno(), 4242);
        }
        assert!(deepheap::stats().expect("stats").faults() > before + 100);
    });
}
