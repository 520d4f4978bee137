//! Unmanaged: says that a program which is about to be executed is statically linked. No library
//! can be preloaded into it, so it runs without deepheap.
//!
//! Guarantees: one line for a process and all that it forks; none with `quiet:yes`, none where the
//! library would not be preloaded anyway, and none into a stderr that is not the one of the start:
//! a program that collects what another one says does not find our line in it. errno stays.
//! Never: allocates, locks, pins, is a cancellation point.
//! Threads: any; also in a signal handler and in a child of `vfork`. `prepare` once, from the
//! constructor.

use core::ffi::{CStr, c_char, c_long};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::process::children::has_us;
use crate::process::lists::{List, environment, strings};
use crate::real::real;
use crate::seam;

/// Where it stands whether it was said, shared with forked children; null where nothing is said.
static SAID: AtomicPtr<AtomicBool> = AtomicPtr::new(null_mut());
/// Device and inode of stderr at the start.
static STDERR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The head of a file that is looked at: more than linkers write before what is loaded.
const HEAD_BYTES: usize = 1024;
/// The longest path that is tried in a search.
const PATH_BYTES: usize = 512;
const PT_INTERP: u32 = 3;
const MACHINE_X86_64: u16 = 62;

type Call = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

/// Notes what stderr is, and makes the word that forked children share.
pub fn prepare() {
    let Some(stderr) = stderr_now().filter(|_| !seam::is_quiet()) else { return };
    STDERR.iter().zip(stderr).for_each(|(to, part)| to.store(part, Ordering::Relaxed));
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANON);
    let words = [0, size_of::<AtomicBool>(), rights as usize, flags as usize, usize::MAX, 0];
    let shared = raw(libc::SYS_mmap, words);
    if shared > 0 {
        SAID.store(core::ptr::with_exposed_provenance_mut(shared as usize), Ordering::Relaxed);
    }
}

/// Before an exec or a spawn of this path, which is looked for in PATH if it `searches` and has no
/// slash: says it, if it was not said.
pub fn tell_if_static(path: *const c_char, environment: List, searches: bool) {
    // SAFETY: null, or the page that `prepare` mapped for ever.
    let Some(said) = (unsafe { SAID.load(Ordering::Relaxed).as_ref() }) else { return };
    if path.is_null() || said.load(Ordering::Relaxed) || !has_us(environment) {
        return;
    }
    seam::keep_errno(|| {
        // SAFETY: the program's own C string, read in user mode.
        let path = unsafe { CStr::from_ptr(path) };
        let mut room = [0; PATH_BYTES];
        let Some((path, file)) = opened(path, searches, &mut room) else { return };
        let is_static = has_no_linker(file) && !is_linker(path);
        raw(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
        let is_heard = || stderr_now() == Some([0, 1].map(|at| STDERR[at].load(Ordering::Relaxed)));
        if is_static && is_heard() && !said.swap(true, Ordering::Relaxed) {
            say(path.to_bytes());
        }
    });
}

/// The file that would be executed, and its path.
fn opened<'a>(
    path: &'a CStr,
    searches: bool,
    room: &'a mut [u8; PATH_BYTES],
) -> Option<(&'a CStr, usize)> {
    if !searches || path.to_bytes().contains(&b'/') {
        return open(path).map(|file| (path, file));
    }
    let name = path.to_bytes_with_nul();
    let is_path = |entry: &&CStr| entry.to_bytes().starts_with(b"PATH=");
    // SAFETY: C strings of the environment.
    let folders = strings(environment()).map(|entry| unsafe { CStr::from_ptr(entry) });
    let folders = folders.into_iter().find(is_path)?.to_bytes().get(5..)?;
    for folder in folders.split(|byte| *byte == b':') {
        let len = folder.len() + 1 + name.len();
        if folder.is_empty() || len > PATH_BYTES {
            continue;
        }
        room[..folder.len()].copy_from_slice(folder);
        room[folder.len()] = b'/';
        room[folder.len() + 1..len].copy_from_slice(name);
        let Some(file) = CStr::from_bytes_with_nul(&room[..len]).ok().and_then(open) else {
            continue;
        };
        return Some((CStr::from_bytes_with_nul(&room[..len]).ok()?, file));
    }
    None
}

/// Opens a file that may be executed.
fn open(path: &CStr) -> Option<usize> {
    let path = path.as_ptr() as usize;
    let here = libc::AT_FDCWD as usize;
    if raw(libc::SYS_access, [path, libc::X_OK as usize, 0, 0, 0, 0]) != 0 {
        return None;
    }
    // Not for ever, if it is a pipe.
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    usize::try_from(raw(libc::SYS_openat, [here, path, flags as usize, 0, 0, 0])).ok()
}

/// Whether it is a program for this processor that names no dynamic linker.
fn has_no_linker(file: usize) -> bool {
    let mut head = [0; HEAD_BYTES];
    let len = raw(libc::SYS_pread64, [file, head.as_mut_ptr() as usize, HEAD_BYTES, 0, 0, 0]);
    let Some(head) = usize::try_from(len).ok().and_then(|len| head.get(..len)) else {
        return false;
    };
    let number = |at: usize, bytes: usize| {
        let bytes = head.get(at..at.checked_add(bytes)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    let parts = || {
        let (first, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        // All of them, or nothing is known.
        number(first, size * count)?;
        Some((0..count).map(move |part| first + part * size))
    };
    let is_program =
        head.starts_with(b"\x7fELF\x02\x01") && number(18, 2) == Some(usize::from(MACHINE_X86_64));
    let Some(mut parts) = parts().filter(|_| is_program) else { return false };
    !parts.any(|part| number(part, 4) == Some(PT_INTERP as usize))
}

/// A dynamic linker that is executed itself heeds LD_PRELOAD.
fn is_linker(path: &CStr) -> bool {
    let name = path.to_bytes().rsplit(|byte| *byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b"ld-") || name.starts_with(b"ld."))
}

/// Device and inode of stderr; none if it is closed.
fn stderr_now() -> Option<[u64; 2]> {
    // SAFETY: plain numbers.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    let at = &raw mut status as usize;
    let found = raw(libc::SYS_fstat, [libc::STDERR_FILENO as usize, at, 0, 0, 0, 0]) == 0;
    found.then_some([status.st_dev, status.st_ino])
}

fn say(path: &[u8]) {
    let pieces: [&[u8]; 3] = [
        b"deepheap: ",
        path,
        b" is statically linked, so its malloc cannot be replaced: it runs without deepheap (said \
          once)\n",
    ];
    let pieces = pieces.map(|piece| libc::iovec {
        iov_base: piece.as_ptr().cast_mut().cast(),
        iov_len: piece.len(),
    });
    // Stderr may be full or gone; then nobody listens.
    let words = [libc::STDERR_FILENO as usize, pieces.as_ptr() as usize, pieces.len(), 0, 0, 0];
    raw(libc::SYS_writev, words);
}

/// A system call; -1 if it failed.
fn raw(number: c_long, words: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = words;
    // SAFETY: the callers above hand over memory of their own, of the length that they name.
    unsafe { real!(syscall: Call)(number, a, b, c, d, e, f) }
}
