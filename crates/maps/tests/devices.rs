//! Devices: maps of block devices, on full disks, and on devices that fail.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod scene;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use deepheap_maps::{self as maps, MapError, SyncError};
use deepheap_sys::errno::Errno;
use scene::{Mapped, PAGE, Scratch, alone, ended, number_at, process, shared_words};

const RAM: u64 = 3 << 20;

/// Runs a program of the system; answers what it printed.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_string()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// A loop device over a file.
struct Loop(String);

impl Loop {
    fn new(image: &Scratch) -> Result<Loop, String> {
        run("losetup", &["--find", "--show", &image.0.to_string_lossy()]).map(Loop)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.0]);
    }
}

/// A small file system of its own.
struct Disk {
    image: Scratch,
    at: PathBuf,
}

impl Disk {
    fn new(bytes: usize) -> Result<Disk, String> {
        let image = Scratch::zeros(bytes);
        let at = image.0.with_extension("mount");
        let disk = Disk { image, at };
        let (image, at) = (disk.image.0.to_string_lossy(), disk.at.to_string_lossy());
        run("mkfs.ext4", &["-q", "-F", "-m", "0", "-O", "^has_journal", &image])?;
        std::fs::create_dir(&disk.at).unwrap();
        run("mount", &["-o", "loop", &image, &at])?;
        Ok(disk)
    }

    fn file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.at.join(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    /// From now on it answers EIO.
    fn fail(&self) {
        const FS_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587D;
        let (root, how) = (File::open(&self.at).unwrap(), 2u32);
        // SAFETY: an open descriptor, and a number that outlives the call.
        let done = unsafe { libc::ioctl(root.as_raw_fd(), FS_IOC_SHUTDOWN, &raw const how) };
        assert_eq!(done, 0);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run("umount", &[&self.at.to_string_lossy()]);
        let _ = std::fs::remove_dir(&self.at);
    }
}

fn skipped(name: &str, reason: &str) {
    eprintln!("SKIPPED {name}: needs root and a loop device: {reason}");
}

#[test]
fn a_block_device_is_mapped_as_a_file_is() {
    let _alone = alone();
    let image = Scratch::numbered(2000 * PAGE);
    let device = match Loop::new(&image) {
        Ok(device) => device,
        Err(reason) => return skipped("a_block_device_is_mapped_as_a_file_is", &reason),
    };
    let map = Mapped::of(Path::new(&device.0), RAM, true).unwrap();
    for page in 0..2000 {
        assert_eq!(map.word(page, 9).load(Relaxed), number_at(page, 9));
        map.word(page, 0).store(page as u64 + 1, Relaxed);
    }
    // SAFETY: not used meanwhile.
    let refused = unsafe { maps::resize(map.at, 1 << 20) };
    assert_eq!(refused, Err(MapError::FixedLength));
    map.sync();
    map.check();
    // Another process, by the same device.
    let other = process(|| {
        let map = Mapped::of(Path::new(&device.0), RAM, false).unwrap();
        assert_eq!(map.word(1999, 0).load(SeqCst), 2000);
        assert_eq!(map.stats().processes, 3, "the test, this child of it, and the child's own map");
    });
    assert_eq!(ended(other), 0);
    drop(map);
    drop(device);
    assert!((0..2000).all(|page| image.word(page, 0) == page as u64 + 1));
}

#[test]
fn on_a_full_disk_what_is_in_ram_stays_usable_and_is_written_once_there_is_space() {
    const PAGES: usize = 8000;
    let _alone = alone();
    let disk = match Disk::new(24 << 20) {
        Ok(disk) => disk,
        Err(reason) => return skipped("on_a_full_disk", &reason),
    };
    let file = disk.file("mapped", (PAGES * PAGE) as u64);
    let filler = disk.at.join("filler");
    run("fallocate", &["-l", "14M", &filler.to_string_lossy()]).unwrap();
    let stored = shared_words::<1>();
    let map = Mapped::of(&file, RAM, true).unwrap();
    // More than fits: it stops, and says why.
    let writer = process(|| {
        let map = Mapped::of(&file, RAM, true).unwrap();
        for page in 0..PAGES {
            map.word(page, 1).store(page as u64 + 7, SeqCst);
            stored[0].store(page as u64 + 1, SeqCst);
        }
    });
    assert_eq!(ended(writer) & 0x7f, libc::SIGBUS);
    let count = stored[0].load(SeqCst) as usize;
    assert!((1000..PAGES).contains(&count), "{count}");
    let refused = maps::sync(map.at, 0).unwrap_err();
    assert_eq!(refused, MapError::Sync(SyncError::Write(Errno::from_raw(libc::ENOSPC))));
    assert!(map.stats().write_errors > 0);
    std::fs::remove_file(&filler).unwrap();
    map.sync();
    for page in 0..count {
        assert_eq!(map.word(page, 1).load(SeqCst), page as u64 + 7, "{page}");
    }
    map.check();
    drop(map);
    let bytes = std::fs::read(&file).unwrap();
    for page in 0..count {
        let at = page * PAGE + 8;
        assert_eq!(bytes[at..at + 8], (page as u64 + 7).to_le_bytes());
    }
}

#[test]
fn a_device_that_fails_stops_accesses_that_need_it_and_no_others() {
    let _alone = alone();
    let disk = match Disk::new(24 << 20) {
        Ok(disk) => disk,
        Err(reason) => return skipped("a_device_that_fails", &reason),
    };
    let file = disk.file("mapped", 1000 * PAGE as u64);
    let user = process(|| {
        let map = Mapped::of(&file, RAM, true).unwrap();
        for page in 0..100 {
            map.word(page, 1).store(page as u64, SeqCst);
        }
        disk.fail();
        let reader = process(|| assert_eq!(map.word(900, 0).load(SeqCst), 0));
        assert_eq!(ended(reader) & 0x7f, libc::SIGBUS);
        for page in 0..100 {
            assert_eq!(map.word(page, 1).load(SeqCst), page as u64);
        }
        // Now, and for ever.
        for _ in 0..2 {
            assert!(matches!(maps::sync(map.at, 0), Err(MapError::Sync(_))));
        }
        // SAFETY: used no more, but in the next line.
        assert!(unsafe { maps::close(map.at) }.is_err(), "what cannot be written stays");
        assert_eq!(map.word(99, 1).load(SeqCst), 99);
        core::mem::forget(map);
    });
    assert_eq!(ended(user), 0);
}
