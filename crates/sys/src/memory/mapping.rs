//! Mapping: address space and memory from the kernel, and advice about it.
//!
//! Never: allocates | takes a deepheap lock. Lengths and addresses are whole pages; EINVAL
//! otherwise.
//! Threads: any.

use crate::PAGE;
use crate::errno::{Errno, Result, check};
use crate::raw_call::raw_call;
use libc::c_void;

/// Advice to the kernel about a range: see madvise(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)] // the names are those of madvise(2)
pub enum Advice {
    DontNeed = libc::MADV_DONTNEED,
    DontNeedLocked = 24,
    NoHugePage = libc::MADV_NOHUGEPAGE,
    Unmergeable = libc::MADV_UNMERGEABLE,
    DontFork = libc::MADV_DONTFORK,
    WipeOnFork = libc::MADV_WIPEONFORK,
    KeepOnFork = libc::MADV_KEEPONFORK,
    DontDump = libc::MADV_DONTDUMP,
    DoDump = libc::MADV_DODUMP,
    PopulateRead = 22,
    PopulateWrite = 23,
}

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Maps anonymous memory.
///
/// # Safety
/// With MAP_FIXED the caller owns what is there, and nobody needs it any more.
unsafe fn map(at: usize, len: usize, protection: i32, flags: i32) -> Result<usize> {
    // SAFETY: without MAP_FIXED no existing mapping is touched, and the memory belongs to no one
    // yet; else the caller's promise.
    let got = unsafe { libc::mmap(at as *mut c_void, len, protection, ANONYMOUS | flags, -1, 0) };
    if got == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(got as usize) }
}

/// Maps memory wherever the kernel likes, readable and writable, in small pages.
fn map_small_pages(len: usize) -> Result<*mut u8> {
    // SAFETY: in place of nothing.
    let got = unsafe { map(0, len, libc::PROT_READ | libc::PROT_WRITE, 0) }? as *mut u8;
    // A kernel without huge pages refuses, and gives none. SAFETY: just mapped.
    let _ = unsafe { advise(got, len, Advice::NoHugePage) };
    Ok(got)
}

/// Reserves `len` bytes of address space aligned to `align` (a power of two, at least a page): no
/// memory, no access. At `hint` if that is not 0, aligned and free; otherwise at any aligned
/// address.
pub fn reserve(len: usize, align: usize, hint: usize) -> Result<*mut u8> {
    if len == 0 || !len.is_multiple_of(PAGE) || !align.is_power_of_two() || align < PAGE {
        return Err(Errno::EINVAL);
    }
    if hint != 0 && hint.is_multiple_of(align) {
        // Kernels before 4.17 take MAP_FIXED_NOREPLACE for a mere hint: check the address.
        // SAFETY: in place of nothing.
        let got = unsafe { map(hint, len, libc::PROT_NONE, libc::MAP_FIXED_NOREPLACE) };
        if let Ok(got) = got {
            if got == hint {
                return Ok(hint as *mut u8);
            }
            trim(got, len);
        }
    }
    let slack = align - PAGE;
    let all = len.checked_add(slack).ok_or(Errno::ENOMEM)?;
    // SAFETY: as above.
    let got = unsafe { map(0, all, libc::PROT_NONE, 0) }?;
    let start = got.next_multiple_of(align);
    trim(got, start - got);
    trim(start + len, got + all - start - len);
    Ok(start as *mut u8)
}

/// Gives back a part of a reservation that this file just made.
fn trim(at: usize, len: usize) {
    if len > 0 {
        // SAFETY: the caller is `reserve`, and no one else knows of these addresses yet.
        unsafe { libc::munmap(at as *mut c_void, len) };
    }
}

/// Makes a part of a reservation readable and writable; reads as zeros until written.
///
/// # Safety
/// `ptr..ptr+len` lies in a reservation of the caller's.
pub unsafe fn commit(ptr: *mut u8, len: usize) -> Result<()> {
    // SAFETY: the caller owns the range; more rights cannot break anyone who uses it.
    unsafe { protect(ptr, len, libc::PROT_READ | libc::PROT_WRITE) }
}

/// Changes what may be done with a range: `PROT_READ` and its kin, see mprotect(2).
///
/// # Safety
/// `ptr..ptr+len` lies in a reservation of the caller's, and its users want that protection.
pub unsafe fn protect(ptr: *mut u8, len: usize, protection: i32) -> Result<()> {
    // SAFETY: the caller's promise.
    check(unsafe { libc::mprotect(ptr.cast(), len, protection) }.into())?;
    Ok(())
}

/// Puts memory that reads as zeros in place of whatever is mapped in a part of a reservation.
///
/// # Safety
/// `ptr..ptr+len` lies in a reservation of the caller's; nothing there is needed any more.
pub unsafe fn replace(ptr: *mut u8, len: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { map(ptr as usize, len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED) }?;
    // SAFETY: as above. A kernel without huge pages refuses, and gives none.
    let _ = unsafe { advise(ptr, len, Advice::NoHugePage) };
    Ok(())
}

/// Puts a page of private memory of its own in place of a page of a reservation, at once: a touch
/// of the page finds the old bytes or those that `fill` has written.
///
/// # Errors
/// Nothing has changed, or there is nothing any more: a touch ends the process then.
///
/// # Safety
/// `page` is a page of a reservation of the caller's; nothing that is there is needed any more.
pub unsafe fn replace_page(page: *mut u8, fill: impl FnOnce(*mut u8)) -> Result<()> {
    let made = map_small_pages(PAGE)?;
    fill(made);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the page that was made moves to the caller's, by the caller's promise.
    let moved = unsafe { libc::mremap(made.cast(), PAGE, PAGE, flags, page) };
    if moved == libc::MAP_FAILED {
        let errno = Errno::last();
        trim(made as usize, PAGE);
        return Err(errno);
    }
    Ok(())
}

/// Maps `len` bytes (rounded up to pages) of zeroed private memory, populated when first touched,
/// in small pages. It is never managed, so touching it never enters our fault path. Core dumps do
/// not hold it, since it may have a copy of what the program keeps out of them.
pub fn map_pinned(len: usize) -> Result<*mut u8> {
    let len = len.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?.max(PAGE);
    let got = map_small_pages(len)?;
    // SAFETY: just mapped; the advice does not change what it holds.
    let _ = unsafe { advise(got, len, Advice::DontDump) };
    Ok(got)
}

/// Unmaps memory, a reservation or a part of one.
///
/// # Safety
/// The caller owns the range, and nothing uses it any more.
pub unsafe fn unmap(ptr: *mut u8, len: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    check(unsafe { libc::munmap(ptr.cast(), len) }.into())?;
    Ok(())
}

/// How often advice is given that the kernel has no resources for at the moment.
const ADVISED_MAX: u32 = 100;

/// Advises the kernel about a range. EAGAIN and EINTR are retried, but not for ever: a filter of
/// system calls may answer so each time.
///
/// # Safety
/// The caller owns the range; nothing that the advice drops is needed any more.
pub unsafe fn advise(ptr: *mut u8, len: usize, advice: Advice) -> Result<()> {
    let mut advised = 1;
    loop {
        // SAFETY: the caller's promise.
        match check(unsafe { libc::madvise(ptr.cast(), len, advice as i32) }.into()) {
            Ok(_) => return Ok(()),
            Err(errno) if advised == ADVISED_MAX => return Err(errno),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) if advice == Advice::DontNeed => {
                // SAFETY: no arguments.
                unsafe { libc::sched_yield() };
            }
            Err(errno) => return Err(errno),
        }
        advised += 1;
    }
}

/// Gives the RAM of a range back; it reads as zeros until it is written again. Works also if the
/// program has locked its memory (mlockall).
///
/// # Safety
/// The caller owns the range; nothing in it is needed any more.
pub unsafe fn give_back(ptr: *mut u8, len: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { advise(ptr, len, Advice::DontNeed) } {
        // SAFETY: as above.
        Err(Errno::EINVAL) => unsafe { advise(ptr, len, Advice::DontNeedLocked) },
        answer => answer,
    }
}

/// Whether a page is anything but private anonymous memory: a file, shared memory, nothing at all.
///
/// # Safety
/// No thread forks meanwhile: for a moment a child would not get the page.
pub unsafe fn is_foreign(page: *mut u8) -> bool {
    // The kernel wipes private anonymous memory only, and says so before it changes anything.
    // SAFETY: neither advice drops anything in this process; the rest is the caller's promise.
    unsafe {
        if advise(page, PAGE, Advice::WipeOnFork).is_err() {
            return true;
        }
        let _ = advise(page, PAGE, Advice::KeepOnFork);
    }
    false
}

/// Bytes of RAM of the machine.
pub fn memory_bytes() -> u64 {
    // SAFETY: all zeros is a valid `sysinfo`, and the call fills it.
    let info = unsafe {
        let mut info: libc::sysinfo = core::mem::zeroed();
        let _ = raw_call!(SYS_sysinfo, &raw mut info);
        info
    };
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// Bytes of a range that are in RAM now (mincore(2)).
pub fn resident_bytes(ptr: *const u8, len: usize) -> Result<usize> {
    const PAGES_A_CALL: usize = 4096;
    let mut resident = [0u8; PAGES_A_CALL];
    let mut bytes = 0;
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(PAGES_A_CALL * PAGE);
        let at = ptr.wrapping_add(done) as *mut c_void;
        // SAFETY: mincore writes one byte a page of `piece`, at most PAGES_A_CALL of them.
        unsafe { raw_call!(SYS_mincore, at, piece, resident.as_mut_ptr()) }?;
        let pages = piece.div_ceil(PAGE);
        bytes += resident[..pages].iter().filter(|flags| **flags & 1 != 0).count() * PAGE;
        done += piece;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the system's default is huge pages, one touched byte would cost 2 MiB.
    #[test]
    fn pinned_memory_comes_in_small_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            return; // a kernel without huge pages tells no such flag
        }
        let len = 8 << 20;
        let memory = map_pinned(len).unwrap();
        // SAFETY: ours, and a byte in the middle of it.
        unsafe { memory.add(len / 2).write(1) };
        assert_eq!(resident_bytes(memory, len).unwrap(), PAGE);
        // It may be merged with its neighbours in the list.
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let is_ours = |line: &str| {
            let (range, _) = line.split_once(' ').unwrap_or_default();
            let (start, end) = range.split_once('-').unwrap_or_default();
            let address = |text| usize::from_str_radix(text, 16).unwrap_or(0);
            (address(start)..address(end)).contains(&(memory as usize))
        };
        let mut lines = maps.lines().skip_while(|line| !is_ours(line));
        let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.contains(" nh"), "{flags}");
        // SAFETY: ours and unused from now on.
        unsafe { unmap(memory, len) }.unwrap();
    }

    #[test]
    fn a_page_of_a_shared_mapping_is_replaced_by_a_private_one() {
        let file = crate::files::sparse_file::SparseFile::create(c"test", 4 * PAGE as u64).unwrap();
        let at = file.map(4 * PAGE).unwrap();
        // SAFETY: mapped above, and nobody else's.
        unsafe {
            at.write_bytes(1, 4 * PAGE);
            // SAFETY: a page.
            replace_page(at.add(PAGE), |page| page.write_bytes(2, PAGE)).unwrap();
            let bytes = [0, 1, 2].map(|page| at.add(page * PAGE).read());
            assert_eq!(bytes, [1, 2, 1]);
            unmap(at, 4 * PAGE).unwrap();
        }
    }

    #[test]
    fn reserve_keeps_its_alignment_and_refuses_to_replace() {
        let align = 64 << 20;
        let first = reserve(align, align, 0).unwrap();
        assert_eq!(first as usize % align, 0);
        let second = reserve(align, align, first as usize).unwrap();
        assert_ne!(first, second);
        assert_eq!(second as usize % align, 0);
        // SAFETY: ours and unused.
        unsafe { unmap(second, align) }.unwrap();
        // Another test may map something there in between, but not every time.
        let mut place = first;
        let is_kept = (0..10).any(|_| {
            // SAFETY: ours and unused.
            unsafe { unmap(place, align) }.unwrap();
            place = reserve(align, align, first as usize).unwrap();
            place == first
        });
        assert!(is_kept, "{place:?} instead of {first:?}");
        // SAFETY: ours and unused after the reads and writes below.
        unsafe {
            commit(first, PAGE).unwrap();
            first.write(7);
            advise(first, PAGE, Advice::DontNeed).unwrap();
            assert_eq!(first.read(), 0);
            unmap(first, align).unwrap();
        }
    }

    #[test]
    fn pinned_memory_is_zeroed_and_resident_only_where_touched() {
        let len = 1 << 20;
        let memory = map_pinned(len).unwrap();
        assert_eq!(resident_bytes(memory, len).unwrap(), 0);
        // SAFETY: mapped above, one mebibyte long.
        unsafe {
            assert_eq!(memory.add(5 * PAGE).read(), 0);
            memory.write(1);
            assert!(resident_bytes(memory, len).unwrap() <= 2 * PAGE);
            unmap(memory, len).unwrap();
        }
    }
}
