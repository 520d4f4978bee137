//! IPC: POSIX and System V message queues, System V semaphores and shared memory.
//!
//! Guarantees: as `guarded`; a message that was taken from a queue is never lost, for its buffer is
//! held from before management begins on.
//!
//! Threads: any.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ushort, c_void};
use core::ptr::{null, null_mut};

use libc::{mq_attr, mqd_t, sembuf, size_t, ssize_t, timespec};

use crate::guarded::{guarded, held};
use crate::pins::Pins;
use crate::real::real;

guarded! {
    fn mq_open(name: *const c_char, flags: c_int, mode: libc::mode_t, attributes: *const mq_attr)
        -> mqd_t = |pins| {
            pins.text(name);
            if flags & libc::O_CREAT != 0 { pins.value(attributes) }
        };
    fn __mq_open_2(name: *const c_char, flags: c_int) -> mqd_t = |pins| pins.text(name);
    fn mq_unlink(name: *const c_char) -> c_int = |pins| pins.text(name);
    fn mq_getattr(queue: mqd_t, attributes: *mut mq_attr) -> c_int = |pins| pins.value(attributes);
    fn mq_setattr(queue: mqd_t, new: *const mq_attr, old: *mut mq_attr) -> c_int
        = |pins| { pins.value(new); pins.value(old) };
    fn mq_send(queue: mqd_t, message: *const c_char, len: size_t, priority: c_uint) -> c_int
        = |pins| pins.bytes(message, len);
    fn mq_timedsend(
        queue: mqd_t, message: *const c_char, len: size_t, priority: c_uint,
        until: *const timespec,
    ) -> c_int = |pins| { pins.bytes(message, len); pins.value(until) };
    fn msgsnd(queue: c_int, message: *const c_void, len: size_t, flags: c_int) -> c_int
        = |pins| pins.bytes(message, len.saturating_add(size_of::<c_long>()));
    fn msgctl(queue: c_int, command: c_int, state: *mut libc::msqid_ds) -> c_int
        = |pins| pins.value(state);
    fn semop(set: c_int, operations: *mut sembuf, count: size_t) -> c_int
        = |pins| pins.array(operations, count);
    fn semtimedop(set: c_int, operations: *mut sembuf, count: size_t, time: *const timespec)
        -> c_int = |pins| { pins.array(operations, count); pins.value(time) };
    fn shmctl(segment: c_int, command: c_int, state: *mut libc::shmid_ds) -> c_int
        = |pins| pins.value(state);
}

/// What a call holds that takes a message.
fn taken<T>(message: *mut T, len: size_t, priority: *mut c_uint, until: *const timespec) -> Pins {
    let mut pins = Pins::new();
    pins.bytes(message.cast_const().cast::<u8>(), len);
    pins.value(priority);
    pins.value(until);
    pins
}

held! {
    fn mq_receive(queue: mqd_t, message: *mut c_char, len: size_t, priority: *mut c_uint)
        -> ssize_t = taken(message, len, priority, null());
    fn mq_timedreceive(
        queue: mqd_t, message: *mut c_char, len: size_t, priority: *mut c_uint,
        until: *const timespec,
    ) -> ssize_t = taken(message, len, priority, until);
    fn msgrcv(queue: c_int, message: *mut c_void, len: size_t, kind: c_long, flags: c_int)
        -> ssize_t = taken(message, len.saturating_add(size_of::<c_long>()), null_mut(), null());
}

/// The most semaphores of a set whose values `GETALL` writes (the kernel's SEMMSL).
const SEMAPHORES: usize = 32_000;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn semctl(set: c_int, index: c_int, command: c_int, fourth: usize) -> c_int {
    let real = real!(semctl: unsafe extern "C" fn(c_int, c_int, c_int, usize) -> c_int);
    let bytes = match command {
        libc::GETALL | libc::SETALL => SEMAPHORES * size_of::<c_ushort>(),
        _ => size_of::<libc::semid_ds>(),
    };
    crate::guarded::guard(
        |pins| pins.bytes(fourth as *const u8, bytes),
        // SAFETY: the program's own arguments.
        || unsafe { real(set, index, command, fourth) },
    )
}
