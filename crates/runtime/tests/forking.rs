//! P1: fork loses no byte, in the parent, the child, or any of their children.

mod scene;

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use scene::memory::{Collection, Object, PAGE, Random, seed};
use scene::play;
use scene::process::{fork, kill, must_succeed, others_sleep, soon};

const CONF: &str = "ram:24M,store_size:400M";

fn stats() -> deepheap::Stats {
    deepheap::stats().expect("the runtime runs")
}

/// Rewrites everything under another seed, and checks it.
fn rewrite(data: &mut Collection, seed: u64) {
    data.seed = seed;
    for (index, object) in data.objects.iter().enumerate() {
        object.fill(seed + index as u64);
    }
    data.check();
}

#[test]
fn child_and_grandchild_read_and_write_everything() {
    play("child_and_grandchild_read_and_write_everything", CONF, || {
        let seed = seed();
        let mut data = Collection::filled(seed, 15_000, PAGE);
        let child = fork(|| {
            data.check();
            rewrite(&mut data, !seed >> 1);
            let grandchild = fork(|| {
                data.check();
                rewrite(&mut data, !seed >> 2);
                let more = Collection::filled(seed, 5000, PAGE);
                more.check();
                data.objects.drain(..).for_each(Object::free);
            });
            data.check();
            rewrite(&mut data, !seed >> 3);
            must_succeed(grandchild);
            data.check();
        });
        rewrite(&mut data, !seed >> 4);
        must_succeed(child);
        data.check();
        data.free();
    });
}

#[test]
fn a_child_that_outlives_its_parent_keeps_every_byte() {
    // A daemon's way: the process in the middle ends at once, the one above it rewrites and ends.
    play("a_child_that_outlives_its_parent_keeps_every_byte", CONF, || {
        let seed = seed();
        let mut data = Collection::filled(seed, 15_000, PAGE);
        let mut pipe = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let lives = fork(|| {
            let middle = fork(|| {
                let daemon = fork(|| {
                    std::thread::sleep(Duration::from_millis(600));
                    data.check();
                    rewrite(&mut data, !seed >> 1);
                    data.check();
                    // SAFETY: one byte that is there.
                    unsafe { libc::write(pipe[1], b"y".as_ptr().cast(), 1) };
                });
                assert!(daemon > 0);
            });
            must_succeed(middle);
            rewrite(&mut data, !seed >> 2);
            data.objects.drain(..).for_each(Object::free);
        });
        must_succeed(lives);
        data.check();
        // SAFETY: our own descriptor; the daemon has a copy.
        unsafe { libc::close(pipe[1]) };
        let mut answer = 0u8;
        // SAFETY: one byte of room. 0 means that the daemon died.
        let read = unsafe { libc::read(pipe[0], (&raw mut answer).cast(), 1) };
        assert_eq!((read, answer), (1, b'y'), "the daemon's memory");
        data.check();
    });
}

/// Threads that allocate, write, check and free until told to stop; the number of rounds.
fn churn(seed: u64, stop: &AtomicBool, rounds: &AtomicU64) {
    let mut random = Random::new(seed);
    let mut mine: Vec<(Object, u64)> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if mine.len() < 600 {
            let object = Object::new(16 + random.below(12_000)).expect("room");
            let seed = random.next();
            object.fill(seed);
            mine.push((object, seed));
        } else {
            let (object, seed) = mine.swap_remove(random.below(mine.len()));
            object.check(seed);
            object.free();
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    mine.iter().for_each(|(object, seed)| object.check(*seed));
}

#[test]
fn twenty_forks_while_threads_allocate_free_and_write() {
    play("twenty_forks_while_threads_allocate_free_and_write", CONF, || {
        let seed = seed();
        let data = Collection::filled(seed, 8000, PAGE);
        let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (stop, rounds) = (&stop, &rounds);
                scope.spawn(move || churn(seed + thread, stop, rounds));
            }
            let mut killed = Vec::new();
            for round in 0..20 {
                let child = fork(|| {
                    data.check();
                    let own = Collection::filled(seed, 200, PAGE);
                    own.check();
                    if round % 3 == 0 {
                        loop {
                            data.objects[0].set(0, 1);
                            data.check_from(1);
                        }
                    }
                });
                match round % 3 {
                    0 => killed.push(child),
                    _ => must_succeed(child),
                }
                if killed.len() > 2 {
                    kill(killed.remove(0));
                }
            }
            killed.into_iter().for_each(kill);
            stop.store(true, Ordering::Relaxed);
        });
        eprintln!("{} rounds meanwhile", rounds.load(Ordering::Relaxed));
        data.check();
    });
}

#[test]
fn killed_children_give_back_what_they_withheld() {
    // Ten times the store is written in all: without what dead children withheld, it would end.
    let conf = "ram:16M,store_size:96M";
    play("killed_children_give_back_what_they_withheld", conf, || {
        let seed = seed();
        let mut data = Collection::filled(seed, 9000, PAGE);
        let mut random = Random::new(seed);
        for round in 0..25 {
            let child = fork(|| {
                loop {
                    rewrite(&mut data, seed);
                }
            });
            std::thread::sleep(Duration::from_millis(random.below(60) as u64));
            kill(child);
            rewrite(&mut data, seed ^ (round + 1) << 40);
        }
        data.check();
        data.free();
        assert!(stats().stored_bytes < 4 << 20);
        Collection::filled(seed, 12_000, PAGE).check();
    });
}

#[test]
fn children_without_number_are_forgotten_one_by_one() {
    // More than are kept track of at a time, and as many pins as there are, at rest.
    let conf = "ram:16M,store_size:96M";
    play("children_without_number_are_forgotten_one_by_one", conf, || {
        let seed = seed();
        let mut data = Collection::filled(seed, 5000, PAGE);
        for _ in 0..1100 {
            // SAFETY: the child ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends this process.
                unsafe { libc::_exit(0) };
            }
            must_succeed(child);
        }
        for round in 0..6 {
            rewrite(&mut data, seed + (round << 40));
        }
    });
}

#[test]
fn a_hundred_children_at_a_time_withhold_nothing_after_their_end() {
    let name = "a_hundred_children_at_a_time_withhold_nothing_after_their_end";
    play(name, "ram:16M,store_size:96M", || {
        let seed = seed();
        let mut data = Collection::filled(seed, 17_000, PAGE);
        let children: Vec<i32> =
            (0..100).map(|_| fork(|| std::thread::sleep(Duration::from_secs(1000)))).collect();
        children.into_iter().for_each(kill);
        for round in 0..3 {
            rewrite(&mut data, seed + (round << 40));
        }
    });
}

#[test]
fn a_forked_child_may_run_another_program() {
    play("a_forked_child_may_run_another_program", CONF, || {
        let seed = seed();
        let mut data = Collection::filled(seed, 15_000, PAGE);
        for round in 0..10u64 {
            let child = fork(|| {
                let arguments = [c"true".as_ptr(), std::ptr::null()];
                // SAFETY: a list of C strings that ends with a null pointer.
                unsafe { libc::execv(c"/bin/true".as_ptr(), arguments.as_ptr()) };
                panic!("exec failed");
            });
            // std's Command: posix_spawn or vfork, which share our memory until exec.
            let output = Command::new("/bin/echo").arg("hello").output().expect("spawn");
            assert_eq!(output.stdout, b"hello\n");
            // SAFETY: between vfork and exec nothing but exec is done, with constant arguments.
            #[allow(deprecated)]
            let sharing = unsafe { libc::vfork() };
            if sharing == 0 {
                // SAFETY: as above.
                unsafe {
                    let arguments = [c"true".as_ptr(), std::ptr::null()];
                    libc::execv(c"/bin/true".as_ptr(), arguments.as_ptr());
                    libc::_exit(1)
                }
            }
            must_succeed(sharing);
            must_succeed(child);
            rewrite(&mut data, seed + (round << 40));
        }
        assert!(soon(Duration::from_secs(60), || stats().stored_bytes > 0));
        data.check();
    });
}

#[test]
fn forks_of_several_threads_at_once_all_succeed() {
    play("forks_of_several_threads_at_once_all_succeed", CONF, || {
        let seed = seed();
        let data = Collection::filled(seed, 8000, PAGE);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        must_succeed(fork(|| data.check()));
                    }
                });
            }
        });
        data.check();
    });
}

/// From now on this thread and its children can fork, but start no thread: as under a limit on
/// processes that others use up.
fn forbid_threads() {
    let code = |class: u32, jump: (u8, u8), value: u32| libc::sock_filter {
        code: class as u16,
        jt: jump.0,
        jf: jump.1,
        k: value,
    };
    let (load, is, has) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K,
    );
    let answer = |what| code(libc::BPF_RET | libc::BPF_K, (0, 0), what);
    let first_argument = core::mem::offset_of!(libc::seccomp_data, args) as u32;
    let mut filter = [
        code(load, (0, 0), core::mem::offset_of!(libc::seccomp_data, nr) as u32),
        // libc makes the older call then, whose flags can be seen.
        code(is, (3, 0), libc::SYS_clone3 as u32),
        code(is, (0, 4), libc::SYS_clone as u32),
        code(load, (0, 0), first_argument),
        code(has, (1, 2), libc::CLONE_THREAD as u32),
        answer(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        answer(libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program =
        libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_mut_ptr() };
    // SAFETY: a filter program on this stack, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

fn threads() -> usize {
    // The kernel's own threads for io_uring come and go.
    let is_ours = |task: &std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        !name.is_ok_and(|name| name.starts_with("iou-"))
    };
    std::fs::read_dir("/proc/self/task").expect("tasks").flatten().filter(is_ours).count()
}

#[test]
fn children_that_get_no_worker_threads_evict_write_and_collect_themselves() {
    // Each writes the store several times over, so without collection it would find no room.
    let name = "children_that_get_no_worker_threads_evict_write_and_collect_themselves";
    play(name, "ram:16M,store_size:96M", || {
        let seed = seed();
        let mut data = Collection::filled(seed, 12_000, PAGE);
        forbid_threads();
        let children: Vec<i32> = (0..3)
            .map(|number| {
                fork(|| {
                    rewrite(&mut data, !seed >> 1 ^ number << 40);
                    let mut random = Random::new(seed ^ number);
                    let mut seeds: Vec<u64> =
                        (0..data.objects.len() as u64).map(|index| data.seed + index).collect();
                    // Some here and there: so no segment of the log is dead as a whole.
                    for _ in 0..60_000 {
                        let index = random.below(seeds.len());
                        seeds[index] = random.next();
                        data.objects[index].fill(seeds[index]);
                    }
                    let objects = || data.objects.iter().zip(&seeds);
                    objects().for_each(|(object, seed)| object.check(*seed));
                    let more = Collection::filled(seed, 500, PAGE);
                    must_succeed(fork(|| {
                        more.check();
                        objects().for_each(|(object, seed)| object.check(*seed));
                    }));
                    more.check();
                    objects().for_each(|(object, seed)| object.check(*seed));
                    assert_eq!(threads(), 1);
                    assert!(stats().segments_collected > 0);
                })
            })
            .collect();
        children.into_iter().for_each(must_succeed);
        data.check();
    });
}

#[test]
fn a_child_has_as_many_workers_as_its_work_needs() {
    play("a_child_has_as_many_workers_as_its_work_needs", CONF, || {
        let seed = seed();
        let mut data = Collection::filled(seed, 15_000, PAGE);
        let parents = threads();
        // At rest the child finds nothing to evict when it begins.
        let (mut before, mut looks) = (0, 0);
        assert!(soon(Duration::from_secs(60), || {
            let now = stats().evicted_dirty + stats().evicted_clean + stats().evicted_free;
            looks = if now == before && others_sleep() { looks + 1 } else { 0 };
            before = now;
            looks >= 20
        }));
        must_succeed(fork(|| {
            assert_eq!(threads(), 2, "its own and the evictor");
            rewrite(&mut data, !seed >> 1);
            // The parent has one more: that of the test harness.
            assert!(soon(Duration::from_secs(60), || {
                rewrite(&mut data, !seed >> 2);
                threads() >= parents - 1
            }));
        }));
        data.check();
    });
}

#[test]
fn a_childs_store_is_on_a_disk_whatever_the_parents_is() {
    for kind in ["a-folder", "a-file"] {
        let name = "a_childs_store_is_on_a_disk_whatever_the_parents_is";
        if scene::is_played(name) {
            // SAFETY: no other thread of this process looks at the environment now.
            unsafe { std::env::set_var("TMPDIR", "/dev/shm") };
            let folder = scene::folder();
            let store = if folder.join("a-file").exists() { folder.join("a-file") } else { folder };
            scene::act(&format!("ram:16M,store_size:96M,store:{}", store.display()), || {
                let mut data = Collection::filled(seed(), 6000, PAGE);
                must_succeed(fork(|| {
                    rewrite(&mut data, 1);
                    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors");
                    let open: Vec<_> =
                        open.flatten().flat_map(|fd| std::fs::read_link(fd.path())).collect();
                    let memory = open.iter().filter(|path| path.starts_with("/dev/shm"));
                    assert_eq!(memory.count(), 0, "{open:?}");
                }));
                data.check();
            });
        }
        let folder = scene::Folder::new(&format!("{name}-{kind}"));
        if kind == "a-file" {
            use std::os::unix::fs::OpenOptionsExt;
            let path = folder.path().join(kind);
            let mut options = std::fs::File::options();
            options.write(true).create_new(true).mode(0o600).open(path).expect("create");
        }
        let command = Command::new(scene::this_binary());
        let ending = scene::finish(name, scene::spawn(name, folder.path(), command));
        assert!(ending.status.success(), "{kind}: {}\n{}", ending.status, ending.said);
    }
}
