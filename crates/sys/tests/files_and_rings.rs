//! Files and rings: full lengths or the reason why not, past the page cache, one by one or many at
//! once.

#![allow(clippy::unwrap_used)] // all of this file is a test

use deepheap_sys::files::direct_file::{self, DirectFile, Existing, OpenError};
use deepheap_sys::files::ring::{Request, Ring};
use deepheap_sys::memory::pinned_array::PinnedArray;
use deepheap_sys::{Errno, PAGE};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory on a disk, of the build.
fn dir() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// A file of the test's own, gone with it.
struct Named(PathBuf);

impl Named {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = dir().join(format!("{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Named(path)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pages(count: usize, byte: u8) -> PinnedArray<u8> {
    let mut array = PinnedArray::new(count * PAGE).unwrap();
    array.fill(byte);
    array
}

#[test]
fn what_is_written_is_read_and_the_end_of_the_file_is_told() {
    for dir in [dir(), Path::new("/dev/shm")] {
        let file = DirectFile::open_unlinked(dir).unwrap();
        assert!(PAGE.is_multiple_of(file.alignment()) && !file.is_device());
        assert!(file.is_empty().unwrap());
        file.write_at(&pages(4, 7), 4 * PAGE as u64).unwrap();
        let mut buffer = pages(2, 1);
        file.read_at(&mut buffer, 6 * PAGE as u64).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 7));
        file.read_at(&mut buffer, 0).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0), "a hole");
        assert_eq!(file.read_at(&mut buffer, 7 * PAGE as u64), Err(Errno::ENODATA));
        file.sync().unwrap();
        assert_eq!(file.len(), Ok(8 * PAGE as u64));
        file.allocate(0, 16 * PAGE as u64).unwrap();
        assert_eq!(file.len(), Ok(16 * PAGE as u64));
        file.punch(4 * PAGE as u64, 4 * PAGE as u64).unwrap();
        file.read_at(&mut buffer, 5 * PAGE as u64).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0), "punched");
        assert_eq!(file.len(), Ok(16 * PAGE as u64));
    }
}

#[test]
fn an_unlinked_file_is_private_and_leaves_no_name() {
    let own = dir().join(format!("unlinked-{}", std::process::id()));
    std::fs::create_dir(&own).unwrap();
    let file = DirectFile::open_unlinked(&own).unwrap();
    assert_eq!(std::fs::read_dir(&own).unwrap().count(), 0);
    // SAFETY: fstat fills in the zeroed struct.
    let mode = unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        assert_eq!(libc::fstat(file.as_raw_fd(), &mut stat), 0);
        stat.st_mode
    };
    assert_eq!(mode & 0o077, 0);
    std::fs::remove_dir(&own).unwrap();
    assert_eq!(DirectFile::open_unlinked(&own).err(), Some(Errno::ENOENT));
}

#[test]
fn a_path_with_foreign_data_is_refused_unless_the_user_insists() {
    let mut image = vec![0u8; 128 << 10];
    let empty = Named::new("empty", &image);
    let file = DirectFile::open_path(&empty.0, Existing::Refuse).unwrap();
    let again = DirectFile::open_path(&empty.0, Existing::Overwrite);
    assert_eq!(again.err(), Some(OpenError::InUse), "it is locked");
    drop(file);
    image[1024 + 0x38..1024 + 0x3a].copy_from_slice(&[0x53, 0xef]);
    let ext4 = Named::new("ext4", &image);
    let refused = DirectFile::open_path(&ext4.0, Existing::Refuse).err();
    assert_eq!(refused, Some(OpenError::Holds("an ext2/3/4 file system")));
    DirectFile::open_path(&ext4.0, Existing::Overwrite).unwrap();
    let short = Named::new("short", &image[..1000]);
    DirectFile::open_path(&short.0, Existing::Refuse).unwrap();
    let thesis = Named::new("thesis", b"Chapter 1");
    let refused = DirectFile::open_path(&thesis.0, Existing::Refuse).err();
    assert_eq!(refused, Some(OpenError::Holds("data that deepheap did not write")));
    image[1024..2048].fill(7);
    image[..8].copy_from_slice(b"dheapseg");
    let earlier = Named::new("earlier", &image);
    DirectFile::open_path(&earlier.0, Existing::Refuse).unwrap();
    let wrong = [Path::new("/dev/null"), dir()].map(|p| DirectFile::open_path(p, Existing::Refuse));
    assert!(wrong.iter().all(|answer| matches!(answer, Err(OpenError::WrongKind))));
    let nowhere = DirectFile::open_path(&dir().join("nowhere"), Existing::Refuse).err();
    assert_eq!(nowhere, Some(OpenError::System(Errno::ENOENT)));
}

#[test]
fn memory_file_systems_are_known() {
    assert_eq!(direct_file::file_system_is_memory(Path::new("/dev/shm")), Ok(true));
    assert_eq!(direct_file::file_system_is_memory(Path::new("/proc")), Ok(false));
}

#[test]
fn many_requests_are_all_done_and_each_tells() {
    for ring in [Ring::new(64), Ring::by_aio(64)] {
        match ring {
            Ok(ring) => do_many_requests(ring),
            Err(errno) => eprintln!("skipped: neither io_uring nor AIO here ({errno})"),
        }
    }
}

/// Writes the pages to the file, the first one to its beginning.
fn write_all(ring: &mut Ring, file: &DirectFile, source: &[PinnedArray<u8>]) {
    let writes = source.iter().enumerate();
    let mut writes: Vec<_> =
        writes.map(|(index, page)| Request::write((index * PAGE) as u64, page)).collect();
    ring.do_all(file.as_raw_fd(), &mut writes);
    assert!(writes.iter().all(|write| write.result() == PAGE as i32));
}

fn do_many_requests(mut ring: Ring) {
    const REQUESTS: usize = 100;
    let file = DirectFile::open_unlinked(dir()).unwrap();
    let source: Vec<_> = (0..REQUESTS).map(|index| pages(1, index as u8)).collect();
    write_all(&mut ring, &file, &source);
    let mut buffer = pages(2 * REQUESTS, 0xff);
    let mut reads: Vec<_> = buffer
        .chunks_mut(2 * PAGE)
        .enumerate()
        .map(|(index, chunk)| Request::read(((REQUESTS - 1 - index) * PAGE) as u64, chunk))
        .collect();
    ring.do_all(file.as_raw_fd(), &mut reads);
    let results: Vec<_> = reads.iter().map(Request::result).collect();
    assert_eq!(results[0], PAGE as i32, "the file ends there");
    assert!(results[1..].iter().all(|result| *result == 2 * PAGE as i32));
    for (index, chunk) in buffer.chunks(2 * PAGE).enumerate() {
        assert_eq!(chunk[0], (REQUESTS - 1 - index) as u8);
    }
    let mut reads: Vec<_> = buffer
        .chunks_mut(2 * PAGE)
        .enumerate()
        .map(|(index, chunk)| Request::read((index * PAGE) as u64, chunk))
        .collect();
    let mut seen = [0; REQUESTS];
    ring.do_each(file.as_raw_fd(), &mut reads, |index, result| seen[index] += result);
    assert_eq!(seen[REQUESTS - 1], PAGE as i32, "each once");
    assert!(seen[..REQUESTS - 1].iter().all(|result| *result == 2 * PAGE as i32));
    let mut bad = [Request::read(0, &mut buffer)];
    ring.do_all(-1, &mut bad);
    assert_eq!(bad[0].result(), -libc::EBADF);
    ring.do_all(file.as_raw_fd(), &mut []);
    // Of requests that the kernel refuses at once, the others' answers are still told.
    let mut buffer = pages(4, 0xff);
    let mut mixed: Vec<_> = buffer
        .chunks_mut(PAGE)
        .enumerate()
        .map(|(index, page)| {
            // O_DIRECT wants whole sectors, unless the file system reads it by the page cache.
            let skew = if index == 1 { 1 } else { 0 };
            Request::read((index * PAGE) as u64, &mut page[..PAGE - skew])
        })
        .collect();
    ring.do_all(file.as_raw_fd(), &mut mixed);
    let results: Vec<_> = mixed.iter().map(Request::result).collect();
    assert!([-libc::EINVAL, PAGE as i32 - 1].contains(&results[1]), "{results:?}");
    for index in [0, 2, 3] {
        assert_eq!(results[index], PAGE as i32);
        assert_eq!(buffer[index * PAGE], index as u8);
    }
}

/// More requests than AIO has room for are all made, by batches of every size.
#[test]
fn a_small_ring_of_aio_does_as_many_requests_as_are_asked_for() {
    let Ok(mut ring) = Ring::by_aio(2) else { return };
    let file = DirectFile::open_unlinked(dir()).unwrap();
    for count in [1, 2, 15, 16, 17, 100] {
        let source: Vec<_> = (0..count).map(|index| pages(1, (index + count) as u8)).collect();
        write_all(&mut ring, &file, &source);
        let mut buffer = pages(count, 0xff);
        let mut reads: Vec<_> = buffer
            .chunks_mut(PAGE)
            .enumerate()
            .map(|(index, page)| Request::read((index * PAGE) as u64, page))
            .collect();
        ring.do_all(file.as_raw_fd(), &mut reads);
        assert!(reads.iter().all(|read| read.result() == PAGE as i32));
        for (index, page) in buffer.chunks(PAGE).enumerate() {
            assert!(page.iter().all(|byte| *byte == (index + count) as u8));
        }
    }
}

/// From now on the process gets EPERM from these system calls, as in a container.
fn forbid(calls: &[libc::c_long]) {
    let code = |class: u32, jump: (u8, u8), value: u32| libc::sock_filter {
        code: class as u16,
        jt: jump.0,
        jf: jump.1,
        k: value,
    };
    let mut filter = vec![code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), 0)];
    for call in calls {
        filter.push(code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (0, 1), *call as u32));
        let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        filter.push(code(libc::BPF_RET | libc::BPF_K, (0, 0), refusal));
    }
    filter.push(code(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ALLOW));
    let program =
        libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_mut_ptr() };
    // SAFETY: a filter program of this function's, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

#[test]
fn where_io_uring_is_refused_a_ring_goes_through_aio_and_survives_its_refusal_too() {
    // The filter is this thread's alone.
    let thread = std::thread::spawn(|| {
        forbid(&[libc::SYS_io_uring_setup]);
        if let Ok(ring) = Ring::new(64) {
            assert!(!ring.is_uring());
            do_many_requests(ring);
        }
        let late = Ring::new(64);
        forbid(&[libc::SYS_io_submit]);
        if let Ok(late) = late {
            do_many_requests(late);
        }
        forbid(&[libc::SYS_io_setup]);
        assert_eq!(Ring::new(64).err(), Some(Errno::EPERM));
    });
    thread.join().unwrap();
}

/// Times that the handler below ran.
static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// In a child of its own, for the limit is the process's: answers whether all was as it should be.
fn write_beyond_the_limit(file: &DirectFile, ring: &mut Ring, data: &PinnedArray<u8>) -> bool {
    let end = 8 * PAGE as u64;
    let limit = libc::rlimit { rlim_cur: end, rlim_max: libc::RLIM_INFINITY };
    let signals = || SIGNALS.load(Ordering::Relaxed);
    // SAFETY: reads one rlimit; sets a handler that only counts.
    unsafe {
        libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
        libc::signal(libc::SIGXFSZ, count_signal as *const () as libc::sighandler_t);
    }
    if file.write_at(data, end - PAGE as u64).is_ok() || file.write_at(data, end).is_ok() {
        return false;
    }
    if file.allocate(0, 2 * end) != Err(Errno::EFBIG) {
        return false;
    }
    let mut writes = [Request::write(end, data), Request::write(2 * end, data)];
    ring.do_all(file.as_raw_fd(), &mut writes);
    if writes.iter().any(|write| write.result() != -libc::EFBIG) {
        return false;
    }
    if signals() != 0 {
        return false;
    }
    // The program's own writes behave as ever.
    // SAFETY: reads the borrowed bytes.
    unsafe { libc::pwrite(file.as_raw_fd(), data.as_ptr().cast(), data.len(), end as i64) };
    signals() == 1
}

#[test]
fn a_write_beyond_the_limit_of_file_sizes_is_an_error_and_no_signal() {
    let file = DirectFile::open_unlinked(dir()).unwrap();
    let data = pages(2, 7);
    // SAFETY: the child makes system calls and maps memory, and ends by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let is_good = [Ring::new(8), Ring::by_aio(8)].into_iter().flatten().all(|mut ring| {
                SIGNALS.store(0, Ordering::Relaxed);
                write_beyond_the_limit(&file, &mut ring, &data)
            });
            // SAFETY: ends the child without running the parent's clean-up.
            unsafe { libc::_exit((!is_good).into()) };
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(status, 0);
        }
    }
}
