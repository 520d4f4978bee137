//! Spawn: `posix_spawn`, `system` and `popen`.
//!
//! Their child runs on our memory with every signal blocked, so a fault would kill it. The memory
//! that it reads is pinned before it is born.
//!
//! Guarantees: path, arguments, environment, file actions, attributes and the command are resident
//! for the whole call.
//! Threads: any.

use core::ffi::c_int;

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::calls::{Argument, Opaque, Text, calls};
use crate::process::exec::each_of;
use crate::process::lists::{List, environment};
use crate::process::unmanaged::tell_if_static;

/// Pins of whole lists, however long; only while something is under management.
struct HeldLists<const N: usize>(Option<[List; N]>);

impl<const N: usize> HeldLists<N> {
    /// Pins the lists and their strings.
    fn all(lists: [List; N]) -> Self {
        let held = deepheap::internal::is_managing().then_some(lists);
        for list in held.into_iter().flatten() {
            each_of(list, &mut |start, len| _ = deepheap::internal::pin(start, len));
        }
        HeldLists(held)
    }
}

impl<const N: usize> Drop for HeldLists<N> {
    fn drop(&mut self) {
        for list in self.0.into_iter().flatten() {
            each_of(list, &mut deepheap::internal::unpin);
        }
    }
}

calls! {
    fn posix_spawn @ c"GLIBC_2.15", posix_spawnp @ c"GLIBC_2.15"(
        child: *mut pid_t, path: Text, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: List, environment: List,
    ) -> c_int = by(|real| {
        let _held = (child.hold(), path.hold(), actions.hold(), attributes.hold());
        let _lists = HeldLists::all([arguments, environment]);
        // Both look the same to us: a name without a slash is one in this folder, or in PATH.
        tell_if_static(path.0, environment, true);
        real(child, path, actions, attributes, arguments, environment)
    });
    fn system(command: Text) -> c_int = by(|real| {
        let _held = (command.hold(), HeldLists::all([environment()]));
        real(command)
    });
    fn popen(command: Text, mode: Opaque) -> *mut FILE = by(|real| {
        let _held = (command.hold(), HeldLists::all([environment()]));
        real(command, mode)
    });
    fn wordexp(words: Text, found: Opaque, flags: c_int) -> c_int = pin;
}
