//! Spawn: `posix_spawn`, `system` and `popen`, whose child runs on our memory with every signal
//! blocked.
//!
//! A fault in that child would be its death, so everything it reads is pinned before it is born.
//!
//! Guarantees: path, arguments, environment, file actions, attributes and the command are resident
//! for the whole call; what was pinned is unpinned after it.
//!
//! Threads: any.

use core::ffi::{c_char, c_int, c_void};

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::exec::{List, each_of, environment};
use crate::guarded::guarded;
use crate::pins::Pins;
use crate::real::real;

/// Pins of whole lists, however long.
struct HeldLists<'a> {
    lists: &'a [List],
}

impl<'a> HeldLists<'a> {
    /// Pins the lists and their strings; only while something is under management.
    fn all(lists: &'a [List]) -> HeldLists<'a> {
        for list in lists {
            each_of(*list, &mut deepheap::pin);
        }
        HeldLists { lists }
    }
}

impl Drop for HeldLists<'_> {
    fn drop(&mut self) {
        for list in self.lists {
            each_of(*list, &mut deepheap::unpin);
        }
    }
}

macro_rules! spawns {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            child: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
            attributes: *const posix_spawnattr_t, arguments: List, environment: List,
        ) -> c_int {
            let real = real!($name @ c"GLIBC_2.15": unsafe extern "C" fn(
                *mut pid_t, *const c_char, *const posix_spawn_file_actions_t,
                *const posix_spawnattr_t, List, List,
            ) -> c_int);
            let call = || {
                // SAFETY: the program's own arguments.
                unsafe { real(child, path, actions, attributes, arguments, environment) }
            };
            if !deepheap::is_managing() {
                return call();
            }
            let mut pins = Pins::new();
            pins.value(child);
            pins.text(path);
            pins.value(actions);
            pins.value(attributes);
            let lists = [arguments, environment];
            let _held = HeldLists::all(&lists);
            call()
        }
    )*};
}

spawns! {
    posix_spawn;
    posix_spawnp;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    let real = real!(system: unsafe extern "C" fn(*const c_char) -> c_int);
    if !deepheap::is_managing() || command.is_null() {
        // SAFETY: the program's own argument.
        return unsafe { real(command) };
    }
    let mut pins = Pins::new();
    pins.text(command);
    let lists = [environment()];
    let _held = HeldLists::all(&lists);
    // SAFETY: the program's own argument.
    unsafe { real(command) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    let real = real!(popen: unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE);
    if !deepheap::is_managing() {
        // SAFETY: the program's own arguments.
        return unsafe { real(command, mode) };
    }
    let mut pins = Pins::new();
    pins.text(command);
    let lists = [environment()];
    let _held = HeldLists::all(&lists);
    // SAFETY: the program's own arguments.
    unsafe { real(command, mode) }
}

guarded! {
    fn wordexp(words: *const c_char, found: *mut c_void, flags: c_int) -> c_int
        = |pins| pins.text(words);
}
