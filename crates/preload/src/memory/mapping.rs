//! Mapping: `mmap`, `madvise` and their kin. Private anonymous mappings of the program become
//! memory of the heap; calls on addresses of the heap are answered by it.
//!
//! Guarantees: advice that zaps managed memory never reaches the kernel, for it would be mistaken
//! for an eviction; MADV_DONTNEED, MADV_FREE and MADV_REMOVE still make zeros. MADV_DONTDUMP keeps
//! memory out of core dumps, in RAM or out of it. Mappings over memory of `malloc` and locked
//! memory are refused.
//! Never: looks at hints: a mapping of the heap is where the heap has room.
//! Threads: any.

use core::ffi::{c_int, c_long, c_uchar, c_uint, c_void};
use core::ptr;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use libc::{iovec, off_t, size_t, ssize_t};

use crate::buffers::guarded::guard;
use crate::buffers::pins::PAGE;
use crate::buffers::vectors::Vector;
use crate::caller;
use crate::calls::{Opaque, calls};
use crate::real::real;
use crate::refusal::{REMAPPING, refuse, refused};
use crate::seam;

calls! {
    fn madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int = program(|real| {
        if !is_managed(address) {
            return real(address, len, advice);
        }
        if !(address as usize).is_multiple_of(PAGE) {
            return refused(libc::EINVAL);
        }
        match advice {
            libc::MADV_DONTNEED | DONTNEED_LOCKED | libc::MADV_FREE | libc::MADV_REMOVE => {
                if deepheap::internal::give_up_area(address as usize, len).is_none() {
                    // SAFETY: the program gives these bytes up and expects zeros.
                    unsafe { deepheap::internal::give_up(address.cast(), len) };
                }
                0
            }
            libc::MADV_DONTDUMP | libc::MADV_DODUMP => {
                // An area that is noted as changed ends as it began, in core dumps.
                let _ = deepheap::internal::before_protect(address as usize, len, libc::PROT_NONE);
                real(address, len, advice)
            }
            _ if HINTS_ABOUT_SPEED.contains(&advice) => 0,
            // A change that did not happen must not seem to have: children have a copy of the heap,
            // and its pages are neither shared nor guarded.
            _ => refused(libc::EINVAL),
        }
    });
    fn posix_madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int
        = program(|real| if is_managed(address) { 0 } else { real(address, len, advice) });

    fn mmap, mmap64(
        address: *mut c_void, len: size_t, protection: c_int, flags: c_int, file: c_int,
        offset: off_t,
    ) -> *mut c_void = program(|real| {
        let request = Mapping { address, len, protection, flags, file, offset };
        map(&request, || real(address, len, protection, flags, file, offset))
    });
    fn munmap(address: *mut c_void, len: size_t) -> c_int = program(|real| {
        if !is_managed(address) {
            look_before_unmapping(len);
            return real(address, len);
        }
        if len == 0 || !(address as usize).is_multiple_of(PAGE) {
            return refused(libc::EINVAL);
        }
        match deepheap::internal::unmap_area(address as usize, len) {
            Some(()) => 0,
            None => refuse(&REMAPPING, libc::EINVAL),
        }
    });
    fn mprotect(address: *mut c_void, len: size_t, protection: c_int) -> c_int
        = program(|real| protect(address, len, protection, || real(address, len, protection)));
    fn pkey_mprotect(address: *mut c_void, len: size_t, protection: c_int, key: c_int) -> c_int
        = program(|real| {
            protect(address, len, protection, || real(address, len, protection, key))
        });
    // Not libc's, which glibc has since 2.36 only. The kernel refuses to advise another process to
    // lose memory; for this one there is `madvise`.
    fn process_madvise(
        process: c_int, first: *const iovec, count: size_t, advice: c_int, flags: c_uint,
    ) -> ssize_t = same({
        let vector = Vector::new(first, c_int::try_from(count).unwrap_or(0));
        if HINTS_ABOUT_SPEED.contains(&advice) || !vector.is_managed() {
            let advise = real!(
                syscall: fn(c_long, c_int, *const iovec, size_t, c_int, c_uint) -> ssize_t
            );
            let call = || advise(libc::SYS_process_madvise, process, first, count, advice, flags);
            guard(|pins| pins.array(first, count), call)
        } else {
            refused(libc::EINVAL) as ssize_t
        }
    });
    fn shmat(segment: c_int, address: *const c_void, flags: c_int) -> *mut c_void
        = refuse(REMAPPING, EINVAL if is_managed(address));
    fn mremap(
        address: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, place: *mut c_void,
    ) -> *mut c_void = program(|real| {
        let is_moved_over_us = flags & libc::MREMAP_FIXED != 0 && is_managed(place);
        if is_moved_over_us || (is_managed(address) && flags & !libc::MREMAP_MAYMOVE != 0) {
            return failed(refuse(&REMAPPING, libc::EINVAL));
        }
        if is_managed(address) {
            return resize(address, old_len, new_len, flags);
        }
        real(address, old_len, new_len, flags, place)
    });
    fn mlock(address: *const c_void, len: size_t) -> c_int
        = refuse(LOCKING, ENOMEM if is_managed(address));
    fn mlock2(address: *const c_void, len: size_t, flags: c_uint) -> c_int
        = refuse(LOCKING, ENOMEM if is_managed(address));
    fn mlockall(flags: c_int) -> c_int = refuse(LOCKING, EPERM if true);

    fn mincore(address: Opaque, len: size_t, resident: *mut c_uchar [len.div_ceil(PAGE)]) -> c_int
        = pin;
}

/// Like MADV_DONTNEED, for locked pages too.
const DONTNEED_LOCKED: c_int = 24;

/// Advice that changes nothing which a program could see, or asks for what is so anyway.
const HINTS_ABOUT_SPEED: [c_int; 11] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_WILLNEED,
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_UNMERGEABLE,
    libc::MADV_DOFORK,
    libc::MADV_KEEPONFORK,
];

/// How much the program unmaps of what is not managed between two looks at what it has. A look
/// takes less than a hundredth of the time that unmapping it takes if it was touched.
const LOOK_BYTES: usize = 16 << 20;

/// Bytes that are not managed and were unmapped.
static UNMAPPED: AtomicUsize = AtomicUsize::new(0);

/// Looks at what the program has while it still has it, once for each `LOOK_BYTES`.
fn look_before_unmapping(len: usize) {
    let before = UNMAPPED.fetch_add(len, Relaxed);
    if before / LOOK_BYTES != before.wrapping_add(len) / LOOK_BYTES {
        deepheap::internal::note_unmanaged();
    }
}

/// Arguments of a `mmap`.
struct Mapping {
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
}

impl Mapping {
    fn is_reserved(&self) -> bool {
        self.flags & libc::MAP_NORESERVE != 0
    }
}

/// Flags that say nothing about what the memory is.
const HINTS: c_int = libc::MAP_NORESERVE | libc::MAP_POPULATE | libc::MAP_NONBLOCK;
const PRIVATE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Maps as asked for; `by_kernel` makes the program's own call.
fn map(request: &Mapping, by_kernel: impl FnOnce() -> *mut c_void) -> *mut c_void {
    let &Mapping { address, len, protection, flags, .. } = request;
    let is_fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    if is_fixed && is_managed(address) {
        return map_over(request, by_kernel);
    }
    let is_plain = flags & !HINTS == PRIVATE && protection & libc::PROT_EXEC == 0;
    if !is_plain || is_fixed || caller::is_all_plain() || len >= isize::MAX as usize {
        return by_kernel();
    }
    match deepheap::internal::area_bytes_min() {
        Some(least) if len >= least => {
            match deepheap::internal::map_area(len, protection, request.is_reserved()) {
                Ok(address) => address as *mut c_void,
                Err(errno) => failed(refused(errno.raw())),
            }
        }
        _ => by_kernel(),
    }
}

/// Maps over memory of the heap.
fn map_over(request: &Mapping, by_kernel: impl FnOnce() -> *mut c_void) -> *mut c_void {
    let &Mapping { address, len, protection, flags, .. } = request;
    let start = address as usize;
    if len == 0 || !start.is_multiple_of(PAGE) {
        return failed(refused(libc::EINVAL));
    }
    if flags & libc::MAP_FIXED == 0 && deepheap::internal::is_area_mapped(start, len) {
        return failed(refused(libc::EEXIST));
    }
    let is_private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    if !is_private {
        let mapped = deepheap::internal::map_hole(start, len, by_kernel);
        return mapped.unwrap_or_else(|| failed(refuse(&REMAPPING, libc::EINVAL)));
    }
    let is_file = flags & libc::MAP_ANONYMOUS == 0;
    let first = if is_file { libc::PROT_READ | libc::PROT_WRITE } else { protection };
    match deepheap::internal::map_over_area(start, len, first, request.is_reserved()) {
        None => failed(refuse(&REMAPPING, libc::EINVAL)),
        Some(Err(errno)) => failed(refused(errno.raw())),
        Some(Ok(())) if is_file => copy_file(request),
        Some(Ok(())) => address,
    }
}

/// Fills fresh memory of the heap with a file that the program maps privately there. Later writes
/// to the file are not seen, which POSIX leaves open.
fn copy_file(request: &Mapping) -> *mut c_void {
    let mut done = 0;
    while done < request.len {
        let into = request.address.wrapping_byte_add(done);
        let from = request.offset + done as off_t;
        // SAFETY: the wrapped call, on memory that was just mapped for it.
        match unsafe { libc::pread(request.file, into, request.len - done, from) } {
            0 => break,
            -1 if seam::errno() == libc::EINTR => {}
            -1 => return failed(-1),
            bytes => done += bytes as usize,
        }
    }
    // Committed pages can be given any protection.
    let _ = deepheap::internal::before_protect(
        request.address as usize,
        request.len,
        request.protection,
    );
    // SAFETY: the same memory, as the program wants it.
    match unsafe { libc::mprotect(request.address, request.len, request.protection) } {
        0 => request.address,
        _ => failed(-1),
    }
}

/// Makes an area longer or shorter; it moves to grow.
fn resize(address: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int) -> *mut c_void {
    const STEP: usize = 1 << 20;
    let (old, new) = (old_len.next_multiple_of(PAGE), new_len.next_multiple_of(PAGE));
    if old == 0 || new == 0 || !(address as usize).is_multiple_of(PAGE) {
        return failed(refused(libc::EINVAL));
    }
    if new <= old {
        let rest = address as usize + new;
        let unmapped = new == old || deepheap::internal::unmap_area(rest, old - new).is_some();
        return if unmapped { address } else { failed(refuse(&REMAPPING, libc::EINVAL)) };
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return failed(refused(libc::ENOMEM));
    }
    if !deepheap::internal::is_area_mapped(address as usize, old) {
        return failed(refused(libc::EFAULT));
    }
    let moved = match deepheap::internal::map_area(new, libc::PROT_READ | libc::PROT_WRITE, false) {
        Ok(moved) => moved as *mut u8,
        Err(errno) => return failed(refused(errno.raw())),
    };
    // In steps, so that both never need room at once.
    for at in (0..old).step_by(STEP) {
        let (from, bytes) = (address.wrapping_byte_add(at), STEP.min(old - at));
        for page in (0..bytes).step_by(PAGE) {
            // SAFETY: the program's own mapping, which it must not use meanwhile, and a fresh one
            // of at least that length.
            unsafe { copy_page(from.cast::<u8>().add(page), moved.add(at + page)) };
        }
        deepheap::internal::unmap_area(from as usize, bytes);
    }
    moved.cast()
}

/// Copies a page to one that reads as zeros.
///
/// # Safety
/// Two pages that can be read and written, and are not the same.
unsafe fn copy_page(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let words = core::slice::from_raw_parts(from.cast::<u64>(), PAGE / 8);
        if words.iter().any(|word| *word != 0) {
            ptr::copy_nonoverlapping(from, to, PAGE);
        }
    }
}

fn failed(answer: c_int) -> *mut c_void {
    debug_assert_eq!(answer, -1);
    libc::MAP_FAILED
}

/// Makes the program's call, unless it names memory of the heap and there is no room for what it
/// wants to do there.
fn protect(
    address: *const c_void,
    len: size_t,
    protection: c_int,
    by_kernel: impl FnOnce() -> c_int,
) -> c_int {
    if is_managed(address)
        && deepheap::internal::before_protect(address as usize, len, protection).is_err()
    {
        return refused(libc::ENOMEM);
    }
    by_kernel()
}

/// Whether a call of the program names memory of the heap.
fn is_managed(address: *const c_void) -> bool {
    deepheap::owns(address as usize)
}
