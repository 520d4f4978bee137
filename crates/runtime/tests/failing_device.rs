//! P0 and P4: a store that fails in the middle of a run stops accesses with a reason, or refuses
//! memory; it never serves a wrong byte, and what is in DRAM stays usable.

mod scene;

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deepheap::objects::{self, ObjectError};
use scene::memory::{Collection, Object, PAGE, Random, seed};
use scene::process::{run, soon};
use scene::{Ending, Folder, act, finish, is_played, spawn, this_binary};

/// A scene whose store is a file of its own, which the scene can reach.
fn with_file(name: &str, body: impl FnOnce(&Path)) -> Ending {
    if is_played(name) {
        let path = scene::folder().join("store");
        fs::File::options().write(true).create_new(true).mode(0o600).open(&path).expect("create");
        act(&format!("ram:16M,store_size:96M,store:{}", path.display()), || body(&path));
    }
    let folder = Folder::new(name);
    finish(name, spawn(name, folder.path(), Command::new(this_binary())))
}

#[track_caller]
fn assert_stopped(ending: &Ending, reason: &str) {
    assert_eq!(ending.status.signal(), Some(libc::SIGBUS), "{}\n{}", ending.status, ending.said);
    let lines = ending.said.lines().filter(|line| line.starts_with("deepheap["));
    let lines: Vec<&str> = lines.collect();
    assert!(lines.iter().any(|line| line.contains(reason)), "no '{reason}' in {}", ending.said);
    assert!(!ending.said.contains("wrong byte was served"), "{}", ending.said);
    assert!(!ending.said.contains("panicked"), "{}", ending.said);
}

/// Changes every block of the store.
fn damage(store: &Path) {
    let file = fs::File::options().write(true).open(store).expect("open");
    let length = file.metadata().expect("length").len();
    // One bit in every block would be enough; a word in each leaves no block as it was.
    for offset in (0..length).step_by(PAGE) {
        file.write_all_at(b"garbage!", offset + 100).expect("write");
    }
    file.sync_all().expect("sync");
}

/// Reads every object, in an order that no scan is recognised in: one block at a time.
fn read_all(data: &Collection) {
    const STRIDE: usize = 4099; // prime, so every object has its turn
    let count = data.objects.len();
    for turn in 0..count {
        let index = turn * STRIDE % count;
        let object = &data.objects[index];
        if object.wrong(data.seed + index as u64).is_some() {
            eprintln!("a wrong byte was served");
            std::process::abort();
        }
    }
}

#[test]
fn bytes_that_changed_on_the_device_stop_the_access() {
    let ending = with_file("bytes_that_changed_on_the_device_stop_the_access", |store| {
        let data = Collection::filled(seed(), 12_000, PAGE);
        damage(store);
        read_all(&data);
    });
    assert_stopped(&ending, "fail their checksum");
}

#[test]
fn compressed_bytes_that_changed_on_the_device_stop_the_access() {
    const NAME: &str = "compressed_bytes_that_changed_on_the_device_stop_the_access";
    let ending = with_file(NAME, |store| {
        // Half of a page compresses to nothing, the other half not at all.
        const WORDS: usize = PAGE / 16;
        let seed = seed();
        let pages: Vec<Object> = (0..12_000u64)
            .map(|page| {
                let object = Object::new(PAGE).expect("room");
                let mut words = Random::new(seed + page);
                (0..WORDS).for_each(|word| object.set(word, words.next()));
                object
            })
            .collect();
        let stats = deepheap::stats().expect("it runs");
        assert!(stats.compressed > 1000, "{}", stats.compressed);
        damage(store);
        for (page, object) in pages.iter().enumerate() {
            let mut words = Random::new(seed + page as u64);
            if (0..WORDS).any(|word| object.get(word) != words.next()) {
                eprintln!("a wrong byte was served");
                std::process::abort();
            }
        }
    });
    assert_stopped(&ending, "fail their checksum");
}

#[test]
fn calls_answer_that_an_object_cannot_be_read_and_statistics_tell_how_often() {
    const NAME: &str = "calls_answer_that_an_object_cannot_be_read_and_statistics_tell_how_often";
    let ending = with_file(NAME, |store| {
        const BYTES: usize = 512;
        let objects: Vec<*mut u8> = (0..60_000)
            .map(|number| {
                let object = objects::allocate(1, BYTES);
                assert!(!object.is_null());
                // SAFETY: a fresh object of so many bytes.
                unsafe { object.write_bytes(number as u8, BYTES) };
                object
            })
            .collect();
        damage(store);
        let mut refused = 0;
        for (number, &object) in objects.iter().enumerate() {
            let mut byte = 0;
            // SAFETY: a live object, and a byte for one of its bytes.
            match unsafe { objects::read(object, 100, &mut byte, 1) } {
                Ok(()) => assert_eq!(byte, number as u8),
                Err(error) => {
                    assert_eq!(error, ObjectError::Unreadable);
                    refused += 1;
                }
            }
        }
        let stats = deepheap::stats().expect("it runs");
        assert!(refused > 10_000, "{refused}");
        assert_eq!(stats.blocks_refused, refused);
        assert!(deepheap::summary(&stats).contains("could not be read"));
    });
    assert!(ending.status.success(), "{}\n{}", ending.status, ending.said);
}

#[test]
fn blocks_in_each_others_places_stop_the_access() {
    let ending = with_file("blocks_in_each_others_places_stop_the_access", |store| {
        let data = Collection::filled(seed(), 12_000, PAGE);
        let file = fs::File::options().read(true).write(true).open(store).expect("open");
        let length = file.metadata().expect("length").len();
        let (mut one, mut other) = (vec![0; PAGE], vec![0; PAGE]);
        for offset in (0..length - 2 * PAGE as u64).step_by(2 * PAGE) {
            file.read_exact_at(&mut one, offset).expect("read");
            file.read_exact_at(&mut other, offset + PAGE as u64).expect("read");
            file.write_all_at(&other, offset).expect("write");
            file.write_all_at(&one, offset + PAGE as u64).expect("write");
        }
        file.sync_all().expect("sync");
        read_all(&data);
    });
    assert_stopped(&ending, "fail their checksum");
}

#[test]
fn a_store_that_was_cut_off_stops_the_access() {
    let ending = with_file("a_store_that_was_cut_off_stops_the_access", |store| {
        let data = Collection::filled(seed(), 12_000, PAGE);
        fs::File::options().write(true).open(store).expect("open").set_len(0).expect("truncate");
        read_all(&data);
    });
    // What was written since made the file long again, with holes in it: either is the truth.
    assert_stopped(&ending, " stops: the store ");
}

#[test]
fn reads_that_the_device_refuses_stop_the_access() {
    const NAME: &str = "reads_that_the_device_refuses_stop_the_access";
    if is_played(NAME) {
        act("ram:16M,store_size:96M", || {
            let data = Collection::filled(seed(), 8000, PAGE);
            read_all(&data);
        });
    }
    if Command::new("strace").arg("--version").output().is_err() {
        return eprintln!("SKIPPED {NAME}: needs strace");
    }
    let folder = Folder::new(NAME);
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "--seccomp-bpf", "-o", "/dev/null"]);
    // Those of the store only: everybody else reads with other calls, or small files.
    let calls = "pread64,preadv,preadv2";
    command.arg("-e").arg(format!("trace={calls}"));
    command.arg("-e").arg(format!("inject={calls}:error=EIO:when=12+"));
    command.arg(this_binary());
    let ending = finish(NAME, spawn(NAME, folder.path(), command));
    assert_stopped(&ending, "the store cannot be read: EIO");
}

/// From now on the device takes no write: the kernel answers EFBIG.
fn refuse_writes() {
    limit_writes(0);
}

fn limit_writes(limit: libc::rlim_t) {
    // SAFETY: constants and a limit on the stack.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let none = libc::rlimit { rlim_cur: limit, rlim_max: libc::RLIM_INFINITY };
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &none), 0);
    }
}

#[test]
fn without_writes_what_is_clean_can_be_read_for_ever() {
    let name = "without_writes_what_is_clean_can_be_read_for_ever";
    let ending = with_file(name, |_| {
        let data = Collection::filled(seed(), 10_000, PAGE);
        // After these nearly everything in DRAM is as it is in the store.
        read_all(&data);
        read_all(&data);
        refuse_writes();
        let changed = &data.objects[5000..5300];
        for (index, object) in changed.iter().enumerate() {
            object.fill(index as u64);
        }
        for _ in 0..3 {
            data.objects[..5000].iter().enumerate().for_each(|(index, object)| {
                object.check(data.seed + index as u64);
            });
            data.check_from(5300);
            for (index, object) in changed.iter().enumerate() {
                object.check(index as u64);
            }
        }
    });
    assert!(ending.status.success(), "{}\n{}", ending.status, ending.said);
}

#[test]
fn writes_that_fail_for_a_while_are_made_again() {
    let name = "writes_that_fail_for_a_while_are_made_again";
    let ending = with_file(name, |_| {
        let data = Collection::filled(seed(), 10_000, PAGE);
        let retried = || deepheap::stats().expect("it runs").writes_retried;
        for round in 1..4 {
            refuse_writes();
            let before = retried();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    data.objects.iter().enumerate().for_each(|(index, object)| {
                        object.fill(data.seed + round + index as u64);
                    });
                });
                // The writer has found out, and this thread waits for it.
                assert!(soon(Duration::from_secs(60), || retried() > before));
                limit_writes(libc::RLIM_INFINITY);
            });
            for (index, object) in data.objects.iter().enumerate() {
                object.check(data.seed + round + index as u64);
            }
        }
        let stats = deepheap::stats().expect("it runs");
        assert_eq!(stats.blocks_refused, 0);
        assert!(deepheap::summary(&stats).contains("refused writes were made again"));
    });
    assert!(ending.status.success(), "{}\n{}", ending.status, ending.said);
    for line in ["a write to the store failed", "the store has taken what it had refused"] {
        assert_eq!(ending.said.matches(line).count(), 1, "{}", ending.said);
    }
}

#[test]
fn when_nothing_can_be_written_the_access_stops() {
    let ending = with_file("when_nothing_can_be_written_the_access_stops", |_| {
        let data = Collection::filled(seed(), 10_000, PAGE);
        refuse_writes();
        for (index, object) in data.objects.iter().enumerate() {
            object.fill(!data.seed + index as u64);
        }
    });
    assert_stopped(&ending, "the store takes no more writes");
    assert!(ending.said.contains("a write to the store failed"), "{}", ending.said);
}

/// The thread whose access was stopped waits here; others go on.
static STOPPED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn stay(_: i32) {
    STOPPED.fetch_add(1, Ordering::SeqCst);
    loop {
        std::thread::sleep(Duration::from_secs(1000));
    }
}

#[test]
fn when_nothing_can_be_written_what_is_in_dram_stays_usable() {
    let name = "when_nothing_can_be_written_what_is_in_dram_stays_usable";
    let ending = with_file(name, |_| {
        // SAFETY: a handler of one argument.
        unsafe { libc::signal(libc::SIGBUS, stay as *const () as usize) };
        let data = Collection::filled(seed(), 10_000, PAGE);
        let data: &'static Collection = Box::leak(Box::new(data));
        static WRITTEN: AtomicUsize = AtomicUsize::new(0);
        refuse_writes();
        std::thread::spawn(|| {
            for (index, object) in data.objects.iter().enumerate() {
                object.fill(!data.seed + index as u64);
                WRITTEN.store(index + 1, Ordering::SeqCst);
            }
        });
        assert!(soon(Duration::from_secs(60), || STOPPED.load(Ordering::SeqCst) > 0));
        let written = WRITTEN.load(Ordering::SeqCst);
        eprintln!("stopped after {written} pages were rewritten");
        assert!(written > 30, "{written}");
        // None of them reached the device: all are in DRAM, in one place or another.
        for _ in 0..5 {
            for index in 0..written {
                data.objects[index].check(!data.seed + index as u64);
                data.objects[index].fill(!data.seed + index as u64);
            }
        }
        assert_eq!(STOPPED.load(Ordering::SeqCst), 1);
    });
    assert!(ending.status.success(), "{}\n{}", ending.status, ending.said);
}

/// A small ext4 in a file, mounted; taken apart in the end.
struct Disk {
    mount: PathBuf,
    _folder: Folder,
}

impl Disk {
    /// None, and why, where that is not allowed.
    fn new(name: &str, size: u64) -> Result<Disk, String> {
        let folder = Folder::new(name);
        let (image, mount) = (folder.path().join("image"), folder.path().join("mount"));
        let file = fs::File::create(&image).and_then(|file| file.set_len(size));
        file.and_then(|()| fs::create_dir(&mount)).map_err(|error| error.to_string())?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        run("mkfs.ext4", &["-q", "-m0", &text(&image)])?;
        let disk = Disk { mount, _folder: folder };
        // The loop device goes away with the mount.
        run("mount", &["-o", "loop", &text(&image), &text(&disk.mount)])?;
        Ok(disk)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: whatever still uses it ends soon. Fails if it was never mounted.
        let _ = Command::new("umount").arg("-l").arg(&self.mount).output();
    }
}

#[test]
fn a_disk_that_fills_up_refuses_memory_and_loses_nothing() {
    const NAME: &str = "a_disk_that_fills_up_refuses_memory_and_loses_nothing";
    const DISK: &str = "DEEPHEAP_TEST_DISK";
    if is_played(NAME) {
        let disk = PathBuf::from(std::env::var_os(DISK).expect("a disk"));
        act(&format!("ram:16M,store:{}", disk.display()), || {
            let seed = seed();
            let data = Collection::filled(seed, 5000, PAGE);
            // Somebody else takes what is left.
            let rest = fs::File::create(disk.join("somebody-elses")).expect("create");
            let piece = vec![1; 1 << 20];
            let mut taken = 0;
            while rest.write_all_at(&piece, taken).is_ok() {
                taken += piece.len() as u64;
            }
            let more = Collection::until_full(!seed >> 1, 3 * PAGE);
            eprintln!("{} MiB more; {taken} bytes were somebody else's", more.bytes() >> 20);
            for _ in 0..2 {
                data.check();
                more.check();
            }
            assert!(Object::new(8 << 20).is_none());
            more.free();
            Collection::filled(seed, 500, PAGE).check();
            data.check();
        });
    }
    let disk = match Disk::new(NAME, 160 << 20) {
        Ok(disk) => disk,
        Err(reason) => return eprintln!("SKIPPED {NAME}: needs root and a loop device: {reason}"),
    };
    fs::set_permissions(&disk.mount, fs::Permissions::from_mode(0o777)).expect("chmod");
    let folder = Folder::new("a_disk_that_fills_up-scene");
    let mut command = Command::new(this_binary());
    command.env(DISK, &disk.mount);
    let ending = finish(NAME, spawn(NAME, folder.path(), command));
    assert!(ending.status.success(), "{}\n{}", ending.status, ending.said);
    assert!(!ending.said.contains("stops"), "{}", ending.said);
    print!("{}", ending.said);
}
