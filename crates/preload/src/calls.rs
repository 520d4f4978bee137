//! Calls: the macro that makes wrappers of libc's functions from a table.
//!
//! A row is a function's C prototype and a strategy, which says what happens to its buffers:
//!
//!     calls! {
//!         fn stat(path: Text, status: *mut Status) -> c_int = pin;
//!         fn recv(socket: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t
//!             = transfer(receiving(flags));
//!     }
//!
//! Functions with the same prototype and strategy share a row: `fn open, open64(..)`. Each wrapper
//! calls the function of its own name.
//!
//! Most rows are in `files`, `paths`, `sockets`, `processes`, `clocks`, `polling` and `ipc`. Rows
//! with much code of their own are beside that code.
//!
//! The type of an argument says which memory the kernel uses through it:
//!
//! - a number: none;
//! - `Opaque`: none; it is a function, or a pointer that only libc follows, in user mode;
//! - `*const T` or `*mut T`: one `T`;
//! - `*const T [n]` or `*mut T [n]`: `n` values, which are bytes if `T` is `c_void`;
//! - `Text`: a C string.
//!
//! Strategies for buffers:
//!
//! - `pin`: pins them for the call once the heap is managed (see `guarded`);
//! - `pin(|pins| body)`: the same, and `body` finds the buffers;
//! - `pin(provided)`: the same, and before the call the runtime opens what it may need later;
//! - `hold`: keeps them in RAM for the whole call, also if management begins meanwhile. It is for
//!   calls that may wait long, and for calls that lose something if they fail with EFAULT at their
//!   end: `accept` a connection, `wait` a child, `mq_receive` a message;
//! - `pin(not own descriptor)`: the same, and the call answers EBADF for a descriptor of ours;
//! - `pin(open mask)` and `hold(open mask)`: the same, and the kernel sees a copy of the signal
//!   mask `mask` without SIGBUS;
//! - `transfer(direction, offset)`: moves many bytes in pinned pieces (see `transfer`). The
//!   arguments begin with descriptor, buffer and length;
//! - `vector(direction, offset)`: the same with an array of buffers (see `vectors`).
//!
//! Strategies for objects that threads wait on, the first argument (see `waiting`):
//!
//! - `pin_known`: pins an object that the kernel knows until it is destroyed. The call never waits;
//! - `wait`: the same, and holds the object and what the other arguments point to. The call may
//!   wait;
//! - `try_first(attempt)`: calls `attempt`; calls the function itself, as `wait`, only after EBUSY;
//! - `destroy`: ends that pin.
//!
//! Other strategies:
//!
//! - `refuse(why, errno if condition)`: fails the program's call under the condition (see
//!   `refusal`);
//! - `same(call)`: makes that call instead;
//! - `checked(sound => call)`: a fortified form of `call`. A call that is not sound goes to libc,
//!   which ends the program;
//! - `by(|real| body)`: runs `body`, where `real` is libc's function;
//! - `program(|real| body)` or `program(function)`: the same for the program's calls only.
//!
//! The runtime is linked into this library, so its own calls of `madvise`, `close` or `sigaction`
//! reach the wrappers too. Where a wrapper does something else than libc, `program` and `refuse`
//! look at the return address: a call from inside this library goes straight to libc. Until
//! `caller::learn` has run every caller counts as the program. Code of ours that may run below a
//! pin calls no other wrapper, which would pin again (`crates/checks/tests/cancellation.rs`).
//!
//! A name may carry the symbol version that is wanted: `fn glob @ c"GLIBC_2.27"(..)`.
//!
//! Guarantees: a wrapper has the name, the arguments and the result of libc's function.
//! Never: allocates.
//! Threads: any; also in the fault handler.

pub(crate) mod aliases;
pub(crate) mod asynchronous_io;
pub(crate) mod clocks;
pub(crate) mod descriptor_list;
pub(crate) mod descriptors;
pub(crate) mod duplicate;
pub(crate) mod files;
pub(crate) mod formatted;
pub(crate) mod ipc;
pub(crate) mod messages;
pub(crate) mod own_memory;
pub(crate) mod paths;
pub(crate) mod polling;
pub(crate) mod processes;
pub(crate) mod randomness;
pub(crate) mod sockets;
pub(crate) mod stdio;
pub(crate) mod system_call;
pub(crate) mod variadic;

use core::ffi::c_char;

use deepheap::internal::Hold;

use crate::buffers::pins::{PINNED_MAX, Pins};

/// A C string that the kernel reads, or writes in place.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Text(pub *const c_char);

/// A pointer whose memory the kernel does not use.
pub type Opaque = usize;

/// An argument, as far as the kernel uses memory behind it.
pub trait Argument: Copy {
    /// The hold that keeps the memory in RAM.
    type Held;

    /// Pins the memory.
    fn pin(self, pins: &mut Pins);

    /// Holds the memory.
    fn hold(self) -> Self::Held;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Argument for $type {
            type Held = ();
            #[inline(always)]
            fn pin(self, _pins: &mut Pins) {}
            #[inline(always)]
            fn hold(self) {}
        }
    )*};
}
numbers!(i32 u32 i64 u64 usize);

macro_rules! pointers {
    ($($kind:tt)*) => {$(
        impl<T> Argument for *$kind T {
            type Held = Hold;
            #[inline(always)]
            fn pin(self, pins: &mut Pins) {
                pins.value(self);
            }
            #[inline(always)]
            fn hold(self) -> Hold {
                Hold::on(self as usize, size_of::<T>())
            }
        }
    )*};
}
pointers!(const mut);

impl Argument for Text {
    type Held = Pins;
    #[inline(always)]
    fn pin(self, pins: &mut Pins) {
        pins.text(self.0);
    }
    fn hold(self) -> Pins {
        let mut pins = Pins::new();
        pins.text(self.0);
        pins
    }
}

/// A count as C passes it; a negative one is none.
#[inline(always)]
pub fn count(number: impl TryInto<usize>) -> usize {
    number.try_into().unwrap_or(0)
}

/// Holds `count` values, `PINNED_MAX` bytes of them at most.
#[inline(always)]
pub fn hold_array<T>(start: *const T, count: usize) -> Hold {
    let bytes = count.saturating_mul(size_of::<T>()).min(PINNED_MAX);
    Hold::on(if bytes == 0 { 0 } else { start as usize }, bytes)
}

/// The table; this file's head says what its rows mean.
macro_rules! calls {
    ($(fn $($name:ident $(@ $version:literal)?),+ ($($arguments:tt)*) -> $result:ty
        = $strategy:ident $(($($detail:tt)*))?;)*) => {$(
        $crate::calls::each! { [$($name $(@ $version)?),+]
            (($($arguments)*) -> $result = $strategy ($($($detail)*)?)) }
    )*};
}
pub(crate) use calls;

/// One row, for each of its names.
macro_rules! each {
    ([$($name:ident $(@ $version:literal)?),+] $row:tt) => {$(
        $crate::calls::call! { @row $name $(@ $version)? $row }
    )+};
}
pub(crate) use each;

/// One function.
macro_rules! call {
    (@row $name:ident $(@ $version:literal)?
        (($($argument:ident: $type:ty $([$count:expr])?),* $(,)?) -> $result:ty
            = $strategy:ident $detail:tt)) => {
        $crate::calls::call! { $strategy $detail fn $name $(@ $version)?
            ($($argument: $type $([$count])?),*) -> $result }
    };
    (pin ($($before:ident)*) fn $name:ident $(@ $version:literal)?
        ($($argument:ident: $type:ty $([$count:expr])?),*) -> $result:ty) => {
        $crate::calls::call! { by (|real| {
            $crate::calls::call!(@before $($before)*);
            $crate::buffers::guarded::guard(
                |_pins| { $($crate::calls::call!(@pin _pins $argument $($count)?);)* },
                || real($($argument),*),
            )
        }) fn $name $(@ $version)? ($($argument: $type),*) -> $result }
    };
    (pin (|$pins:ident| $buffers:expr) fn $name:ident
        ($($argument:ident: $type:ty),*) -> $result:ty) => {
        $crate::calls::call! { by (|real| {
            let buffers = |$pins: &mut $crate::buffers::pins::Pins| $buffers;
            $crate::buffers::guarded::guard(buffers, || real($($argument),*))
        }) fn $name($($argument: $type),*) -> $result }
    };
    (hold ($($before:ident)*) fn $name:ident $(@ $version:literal)?
        ($($argument:ident: $type:ty $([$count:expr])?),*) -> $result:ty) => {
        $crate::calls::call! { by (|real| {
            $crate::calls::call!(@before $($before)*);
            // They share a name; each lives until the call is over.
            $(let _held = $crate::calls::call!(@hold $argument $($count)?);)*
            real($($argument),*)
        }) fn $name $(@ $version)? ($($argument: $type),*) -> $result }
    };
    (wait () fn $name:ident $(@ $version:literal)?
        ($object:ident: $kind:ty $(, $argument:ident: $type:ty)*) -> $result:ty) => {
        $crate::calls::call! { hold (known $object) fn $name $(@ $version)?
            ($object: $kind $(, $argument: $type)*) -> $result }
    };
    (pin_known () fn $name:ident ($object:ident: $kind:ty) -> $result:ty) => {
        $crate::calls::call! { by (|real| {
            $crate::threads::waiting::pin_known($object);
            real($object)
        }) fn $name($object: $kind) -> $result }
    };
    (try_first ($attempt:ident) fn $name:ident ($object:ident: $kind:ty) -> $result:ty) => {
        $crate::calls::call! { by (|real| {
            let attempt = $crate::calls::call!(@real $attempt ($object: $kind) -> $result);
            $crate::threads::waiting::try_first($object, attempt, real)
        }) fn $name($object: $kind) -> $result }
    };
    (destroy () fn $name:ident $(@ $version:literal)? ($object:ident: $kind:ty) -> $result:ty) => {
        $crate::calls::call! { by (|real| $crate::threads::waiting::destroy($object, real))
            fn $name $(@ $version)? ($object: $kind) -> $result }
    };
    (transfer ($direction:expr $(, $offset:ident)?) fn $name:ident
        ($descriptor:ident: $number:ty, $buffer:ident: $pointer:ty, $len:ident: $size:ty
        $(, $more:ident: $type:ty)*) -> $result:ty) => {
        $crate::calls::call! { by (|real| {
            let step = |done: usize, $len: usize| {
                $(let $offset = $offset + done as i64;)?
                let at = $crate::calls::call!(@offset $($offset)?);
                $crate::calls::own_memory::reached($descriptor, at, $len, || {
                    real($descriptor, $buffer.wrapping_byte_add(done), $len $(, $more)*)
                })
            };
            $crate::buffers::transfer::transfer($descriptor, $direction, $buffer, $len, step)
        }) fn $name($descriptor: $number, $buffer: $pointer, $len: $size $(, $more: $type)*)
            -> $result }
    };
    (vector ($direction:expr $(, $offset:ident)?) fn $name:ident
        ($descriptor:ident: $number:ty, $first:ident: $pointer:ty, $count:ident: $size:ty
        $(, $more:ident: $type:ty)*) -> $result:ty) => {
        $crate::calls::call! { by (|real| {
            let step = |$first: $pointer, $count: $size, _done: usize| {
                // A negative offset is the descriptor's own, which moves by itself.
                $(let $offset = if $offset < 0 { $offset } else { $offset + _done as i64 };)?
                let at = $crate::calls::call!(@offset $($offset)?);
                let bytes = $crate::buffers::vectors::Vector::new($first, $count).len();
                $crate::calls::own_memory::reached($descriptor, at, bytes, || {
                    real($descriptor, $first, $count $(, $more)*)
                })
            };
            $crate::buffers::vectors::transfer($descriptor, $direction, $first, $count, step)
        }) fn $name($descriptor: $number, $first: $pointer, $count: $size $(, $more: $type)*)
            -> $result }
    };
    (refuse ($why:ident, $code:ident if $condition:expr) fn $name:ident
        ($($argument:ident: $type:ty),*) -> $result:ty) => {
        $crate::calls::call! { program (|real| {
            if $condition {
                let failed = $crate::refusal::refuse(&$crate::refusal::$why, libc::$code);
                return failed as isize as $result;
            }
            real($($argument),*)
        }) fn $name($($argument: $type),*) -> $result }
    };
    (same ($call:expr) fn $name:ident ($($argument:ident: $type:ty),*) -> $result:ty) => {
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some calls are safe")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the program's own arguments, under libc's own contract.
            unsafe { $call }
        }
    };
    (checked ($sound:expr => $call:expr) fn $name:ident
        ($($argument:ident: $type:ty),*) -> $result:ty) => {
        $crate::calls::call! { by (|real| {
            if $sound {
                // SAFETY: the program's own arguments, checked as the fortified form would.
                unsafe { $call }
            } else {
                real($($argument),*)
            }
        }) fn $name($($argument: $type),*) -> $result }
    };
    (by (|$real:ident| $body:expr) fn $name:ident $(@ $version:literal)?
        ($($argument:ident: $type:ty),*) -> $result:ty) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            let $real = $crate::calls::call!(
                @real $name $(@ $version)? ($($argument: $type),*) -> $result
            );
            $body
        }
    };
    (program (|$real:ident| $body:expr) fn $name:ident $(@ $version:literal)?
        ($($argument:ident: $type:ty),*) -> $result:ty) => {
        /// The work of a call of the program; `system_call` makes it for calls by number.
        pub mod $name {
            use super::*;
            pub unsafe extern "C" fn of_program($($argument: $type),*) -> $result {
                let $real = $crate::calls::call!(
                    @real $name $(@ $version)? ($($argument: $type),*) -> $result
                );
                $body
            }
        }
        $crate::calls::call! {
            program ($name::of_program) fn $name $(@ $version)?
                ($($argument: $type),*) -> $result
        }
    };
    // Only rax is touched before the jump, so all arguments arrive in place, those on the stack
    // too.
    (program ($body:path) fn $name:ident $(@ $version:literal)?
        ($($argument:ident: $type:ty),*) -> $result:ty) => {
        const _: () = {
            unsafe extern "C" fn direct($($argument: $type),*) -> $result {
                $crate::calls::call!(@real $name $(@ $version)? ($($argument: $type),*) -> $result)
                    ($($argument),*)
            }

            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                core::arch::naked_asm!(
                    "mov rax, [rsp]",
                    "sub rax, [rip + {own}]",
                    "cmp rax, [rip + {own} + 8]",
                    "jb 2f",
                    "jmp {body}",
                    "2:",
                    "jmp {direct}",
                    own = sym $crate::caller::OWN,
                    body = sym $body,
                    direct = sym direct,
                )
            }
        };
    };
    // libc's function, for the program's own arguments.
    (@real $name:ident $(@ $version:literal)? ($($argument:ident: $type:ty),*) -> $result:ty) => {
        |$($argument: $type),*| {
            let real = $crate::real::real!(
                $name $(@ $version)?: unsafe extern "C" fn($($type),*) -> $result
            );
            // SAFETY: the program's own arguments, or parts of them, under libc's own contract.
            unsafe { real($($argument),*) }
        }
    };
    (@offset) => { None };
    // A negative one is the descriptor's own.
    (@offset $offset:ident) => { ($offset >= 0).then_some($offset) };
    (@before) => {};
    (@before provided) => { $crate::process::provision::provide() };
    (@before known $object:ident) => { $crate::threads::waiting::pin_known($object) };
    (@before not own $descriptor:ident) => {
        if let Some(refused) = $crate::refusal::refused_if_own($descriptor) {
            return refused;
        }
    };
    // A copy of the mask without SIGBUS takes its place.
    (@before open $mask:ident) => {
        // SAFETY: the program's own mask, or null; the copy lives until the call is over.
        let open = unsafe { $mask.as_ref() }.map($crate::signals::set::without_fault);
        let $mask = $crate::signals::set::pointer(&open);
    };
    (@pin $pins:ident $argument:ident) => {
        $crate::calls::Argument::pin($argument, $pins)
    };
    (@pin $pins:ident $argument:ident $count:expr) => {
        $pins.array($argument, $crate::calls::count($count))
    };
    (@hold $argument:ident) => {
        $crate::calls::Argument::hold($argument)
    };
    (@hold $argument:ident $count:expr) => {
        $crate::calls::hold_array($argument, $crate::calls::count($count))
    };
}
pub(crate) use call;
