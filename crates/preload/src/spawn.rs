//! Spawn: `posix_spawn`, `system` and `popen`.
//!
//! Their child runs on our memory with every signal blocked, so a fault would kill it. What it
//! reads is pinned before it is born.
//!
//! Guarantees: path, arguments, environment, file actions, attributes and the command are resident
//! for the whole call.
//!
//! Threads: any.

use core::ffi::{c_char, c_int};
use core::ptr::null;

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::calls::{Argument, Opaque, Text, calls};
use crate::exec::{List, each_of, environment};
use crate::pins::Pins;

/// Pins of whole lists, however long.
struct HeldLists<'a> {
    lists: &'a [List],
}

impl<'a> HeldLists<'a> {
    /// Pins the lists and their strings; only while something is under management.
    fn all(lists: &'a [List]) -> HeldLists<'a> {
        for list in lists {
            each_of(*list, &mut |start, len| _ = deepheap::pin(start, len));
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

/// Makes a call with a string and two lists pinned.
fn held<R>(text: *const c_char, lists: [List; 2], call: impl Fn() -> R) -> R {
    if !deepheap::is_managing() {
        return call();
    }
    let mut pins = Pins::new();
    pins.text(text);
    let _held = HeldLists::all(&lists);
    call()
}

type Actions = *const posix_spawn_file_actions_t;
type Attributes = *const posix_spawnattr_t;

/// What `posix_spawn` uses besides.
fn held_settings(child: *const pid_t, actions: Actions, attributes: Attributes) -> impl Sized {
    deepheap::is_managing().then(|| (child.hold(), actions.hold(), attributes.hold()))
}

calls! {
    fn posix_spawn @ c"GLIBC_2.15", posix_spawnp @ c"GLIBC_2.15"(
        child: *mut pid_t, path: *const c_char, actions: Actions, attributes: Attributes,
        arguments: List, environment: List,
    ) -> c_int = by(|real| {
        let _held = held_settings(child, actions, attributes);
        held(path, [arguments, environment], || {
            real(child, path, actions, attributes, arguments, environment)
        })
    });
    fn system(command: *const c_char) -> c_int
        = by(|real| held(command, [environment(), null()], || real(command)));
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE
        = by(|real| held(command, [environment(), null()], || real(command, mode)));
    fn wordexp(words: Text, found: Opaque, flags: c_int) -> c_int = pin;
}
