//! Caller: tells an allocation that libc makes for itself from one that the program makes.
//!
//! Guarantees: until `learn` has run every caller counts as libc, so everything allocated before
//! our constructor is plain. The fast path asks one question, `is_special`: until `all_are_special`
//! it means libc's own calls. A few functions of libc count as the program (`USERS`).
//! Never: allocates, locks; a check is two subtractions and two compares.
//! Threads: `learn` and `all_are_special` once, from the constructor, before the program has
//! threads; checks from any.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

/// One loaded object's addresses, from its first to its last segment. `calls` reads both words in
/// assembly.
#[repr(C)]
pub struct Extent {
    start: AtomicUsize,
    len: AtomicUsize,
}

impl Extent {
    #[inline(always)]
    fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.start.load(Ordering::Relaxed)) < self.len.load(Ordering::Relaxed)
    }

    fn set(&self, start: usize, len: usize) {
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
    }
}

/// Whose calls are special, and the dynamic linker, in one cache line.
#[repr(align(64))]
struct Libraries {
    special: Extent,
    linker: Extent,
}

static LIBRARIES: Libraries = Libraries {
    special: Extent { start: AtomicUsize::new(0), len: AtomicUsize::new(usize::MAX) },
    linker: Extent { start: AtomicUsize::new(0), len: AtomicUsize::new(0) },
};
/// libc. `special` is the same until `all_are_special`.
static LIBC: Extent = Extent { start: AtomicUsize::new(0), len: AtomicUsize::new(usize::MAX) };
/// This library.
pub static OWN: Extent = Extent { start: AtomicUsize::new(0), len: AtomicUsize::new(0) };

/// Functions of libc that allocate as much as the program has data: the buffer of `qsort`, that of
/// `open_memstream`, the nodes of `tsearch`. Their allocations are touched by their own code and by
/// the program, never by the kernel, so they may leave RAM. They hold no lock of libc that a fault
/// wants, and block no signals. All else that libc allocates may be a buffer of a system call that
/// it makes itself, past our wrappers.
const USERS: [&CStr; 3] = [c"qsort_r", c"_IO_str_overflow", c"tsearch"];
/// Their code; empty where libc has none of that name, or calls `malloc` from elsewhere.
static USERS_CODE: [Extent; USERS.len()] =
    [const { Extent { start: AtomicUsize::new(0), len: AtomicUsize::new(0) } }; USERS.len()];

/// Whether a call with this return address needs a closer look: it is libc's or the dynamic
/// linker's, or `placement` looks at every call.
#[inline(always)]
pub fn is_special(return_address: usize) -> bool {
    LIBRARIES.special.contains(return_address) || LIBRARIES.linker.contains(return_address)
}

/// Whether this return address lies in libc or the dynamic linker.
pub fn is_libc(return_address: usize) -> bool {
    LIBC.contains(return_address) || LIBRARIES.linker.contains(return_address)
}

/// Whether what is allocated by a call with this return address is for libc alone, and must be
/// plain.
pub fn is_for_libc(return_address: usize) -> bool {
    is_libc(return_address) && !USERS_CODE.iter().any(|code| code.contains(return_address))
}

/// Whether every allocation is plain: our constructor has not run, or found no libc.
pub fn is_all_plain() -> bool {
    LIBC.len.load(Ordering::Relaxed) == usize::MAX
}

/// Makes every call special from now on.
pub fn all_are_special() {
    LIBRARIES.special.set(0, usize::MAX);
}

/// Finds libc and the dynamic linker among the loaded objects. Where libc is not found everything
/// stays plain.
pub fn learn() {
    // SAFETY: the callback matches dl_iterate_phdr's contract.
    unsafe { libc::dl_iterate_phdr(Some(visit), null_mut()) };
    if is_all_plain() {
        return;
    }
    for (name, code) in USERS.into_iter().zip(&USERS_CODE) {
        if let Some((start, len)) = function(name).filter(|(start, _)| LIBC.contains(*start)) {
            code.set(start, len);
        }
    }
}

/// The code of a function: where it starts, and its length.
fn function(name: &CStr) -> Option<(usize, usize)> {
    const RTLD_DL_SYMENT: c_int = 1;
    unsafe extern "C" {
        fn dladdr1(
            address: *const c_void,
            info: *mut libc::Dl_info,
            symbol: *mut *mut libc::Elf64_Sym,
            flags: c_int,
        ) -> c_int;
    }
    let mut symbol: *mut libc::Elf64_Sym = null_mut();
    // SAFETY: a C string, room for the answers, and an entry of a loaded object's symbol table.
    unsafe {
        let address = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        let mut info: libc::Dl_info = core::mem::zeroed();
        let found =
            !address.is_null() && dladdr1(address, &mut info, &mut symbol, RTLD_DL_SYMENT) != 0;
        symbol.as_ref().filter(|_| found).map(|it| (address as usize, it.st_size as usize))
    }
}

unsafe extern "C" fn visit(object: *mut libc::dl_phdr_info, _size: usize, _: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr passes a valid object description.
    let object = unsafe { &*object };
    if object.dlpi_name.is_null() {
        return 0;
    }
    let (start, len) = extent(object);
    if (&raw const OWN as usize).wrapping_sub(start) < len {
        OWN.set(start, len);
        return 0;
    }
    // SAFETY: dlpi_name is a C string while the callback runs.
    let path = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    if name.starts_with(b"libc.so.") {
        LIBC.set(start, len);
        LIBRARIES.special.set(start, len);
    } else if name.starts_with(b"ld-linux") || name.starts_with(b"ld.so") {
        LIBRARIES.linker.set(start, len);
    }
    0
}

fn extent(object: &libc::dl_phdr_info) -> (usize, usize) {
    let (mut low, mut high) = (usize::MAX, 0);
    for index in 0..usize::from(object.dlpi_phnum) {
        // SAFETY: dlpi_phdr points to dlpi_phnum program headers.
        let header = unsafe { &*object.dlpi_phdr.add(index) };
        if header.p_type == libc::PT_LOAD {
            let start = object.dlpi_addr as usize + header.p_vaddr as usize;
            low = low.min(start);
            high = high.max(start + header.p_memsz as usize);
        }
    }
    if low < high { (low, high - low) } else { (0, 0) }
}
