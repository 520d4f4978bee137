//! Real: the libc function behind each wrapper, found once.
//!
//! Guarantees: `resolve_all` fills every entry at start-up; an entry used earlier (constructors of
//! libraries that ran before ours) resolves itself. After that a call costs one load.
//! Never: allocates managed memory (dlsym's own allocations come from libc and stay plain).
//! Threads: any; entries only ever change from null to one value.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::seam;

/// One libc function. All entries lie side by side in the section `deepheap_real`.
#[repr(C)]
pub struct Real {
    name: &'static CStr,
    /// The symbol version, where libc has several and the default must be named.
    version: Option<&'static CStr>,
    address: AtomicPtr<c_void>,
}

unsafe extern "C" {
    #[link_name = "__start_deepheap_real"]
    static FIRST: u8;
    #[link_name = "__stop_deepheap_real"]
    static END: u8;
}

impl Real {
    /// An entry that is not resolved yet; `name` ends with a NUL.
    pub const fn new(name: &'static str, version: Option<&'static CStr>) -> Real {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            panic!("a symbol name ends with its only NUL")
        };
        Real { name, version, address: AtomicPtr::new(null_mut()) }
    }

    /// The function's address; a function that answers ENOSYS where libc has none.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.resolve() } else { address }
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        // SAFETY: the names are NUL-terminated constants, RTLD_NEXT is a handle dlsym knows.
        let mut address = unsafe {
            match self.version {
                Some(version) => {
                    libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version.as_ptr())
                }
                None => null_mut(),
            }
        };
        if address.is_null() {
            // SAFETY: as above.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        }
        if address.is_null() {
            address = stand_in(self.name);
        }
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// What is called where libc has no function of that name.
fn stand_in(name: &CStr) -> *mut c_void {
    // glibc before 2.34 has some, as `res_query`, under their longer names only.
    let mut longer = [0; 64];
    longer[..2].copy_from_slice(b"__");
    if let Some(place) = longer[2..63].get_mut(..name.count_bytes()) {
        place.copy_from_slice(name.to_bytes());
    }
    // SAFETY: the array ends with a NUL, RTLD_NEXT is a handle dlsym knows.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, longer.as_ptr().cast()) };
    if !found.is_null() {
        return found;
    }
    match name.to_bytes() {
        b"stat" | b"stat64" => stat as *mut c_void,
        b"lstat" | b"lstat64" => lstat as *mut c_void,
        b"fstat" | b"fstat64" => fstat as *mut c_void,
        b"fstatat" | b"fstatat64" => fstatat as *mut c_void,
        _ => absent as *mut c_void,
    }
}

/// `stat` and its kin for glibc before 2.33, which has only what its headers call for them. So do
/// programs of its time; it is this library that calls `stat`.
macro_rules! versioned {
    ($($name:ident = $earlier:ident($($argument:ident: $type:ty),*);)*) => {$(
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            /// The only version of the structure on x86_64.
            const VERSION: c_int = 1;
            // SAFETY: the caller's.
            unsafe { real!($earlier: fn(c_int, $($type),*) -> c_int)(VERSION, $($argument),*) }
        }
    )*};
}

versioned! {
    stat = __xstat(path: *const c_char, status: *mut libc::stat);
    lstat = __lxstat(path: *const c_char, status: *mut libc::stat);
    fstat = __fxstat(descriptor: c_int, status: *mut libc::stat);
    fstatat = __fxstatat(
        folder: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int
    );
}

/// Stands for a function this libc does not have.
extern "C" fn absent() -> c_long {
    seam::set_errno(libc::ENOSYS);
    -1
}

/// Resolves every entry, so that no wrapper calls dlsym from a signal handler or a forked child.
pub fn resolve_all() {
    let first = (&raw const FIRST).cast::<Real>();
    // SAFETY: the linker places both symbols around one array of `Real`, the section's only type.
    let count = unsafe { (&raw const END).cast::<Real>().offset_from_unsigned(first) };
    for index in 0..count {
        // SAFETY: index is within the array, whose elements are shared statics.
        unsafe { (*first.add(index)).address() };
    }
}

/// The libc function of that name, as a function pointer of the given type, of which `fn(..) -> ..`
/// is enough; `name @ c"VERSION"` where libc has several versions of it.
macro_rules! real {
    ($name:ident: fn($($argument:ty),*) -> $result:ty) => {
        $crate::real::real!(@ $name, None, unsafe extern "C" fn($($argument),*) -> $result)
    };
    ($name:ident: $type:ty) => {
        $crate::real::real!(@ $name, None, $type)
    };
    ($name:ident @ $version:literal: $type:ty) => {
        $crate::real::real!(@ $name, Some($version), $type)
    };
    (@ $name:ident, $version:expr, $type:ty) => {{
        #[used]
        #[unsafe(link_section = "deepheap_real")]
        static REAL: $crate::real::Real =
            $crate::real::Real::new(concat!(stringify!($name), "\0"), $version);
        // SAFETY: libc declares the function with this type (the wrapper that names it repeats
        // libc's signature), and function pointers and data pointers are alike on x86_64.
        #[allow(unused_unsafe)]
        unsafe {
            core::mem::transmute::<*mut core::ffi::c_void, $type>(REAL.address())
        }
    }};
}
pub(crate) use real;
