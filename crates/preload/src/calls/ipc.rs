//! IPC: POSIX and System V message queues, System V semaphores and shared memory.
//!
//! Guarantees: as `calls` says of each row; a message that was taken from a queue is never lost.
//! Threads: any.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ushort, c_void};

use libc::{
    mode_t, mq_attr, mqd_t, msqid_ds, sembuf, semid_ds, shmid_ds, size_t, ssize_t, timespec,
};

use crate::calls::{Text, calls};

calls! {
    // Variadic in C; a queue that is not to be made has no attributes.
    fn mq_open(name: Text, flags: c_int, mode: mode_t, attributes: *const mq_attr [made(flags)])
        -> mqd_t = pin;
    fn __mq_open_2(name: Text, flags: c_int) -> mqd_t = pin;
    fn mq_unlink(name: Text) -> c_int = pin;
    fn mq_getattr(queue: mqd_t, attributes: *mut mq_attr) -> c_int = pin;
    fn mq_setattr(queue: mqd_t, new: *const mq_attr, old: *mut mq_attr) -> c_int = pin;
    fn mq_send(queue: mqd_t, message: *const c_char [len], len: size_t, priority: c_uint)
        -> c_int = pin;
    fn mq_timedsend(
        queue: mqd_t, message: *const c_char [len], len: size_t, priority: c_uint,
        until: *const timespec,
    ) -> c_int = pin;
    fn msgsnd(queue: c_int, message: *const c_void [with_kind(len)], len: size_t, flags: c_int)
        -> c_int = pin;
    fn msgctl(queue: c_int, command: c_int, state: *mut msqid_ds) -> c_int = pin;
    fn semop(set: c_int, operations: *mut sembuf [count], count: size_t) -> c_int = pin;
    fn semtimedop(set: c_int, operations: *mut sembuf [count], count: size_t, time: *const timespec)
        -> c_int = pin;
    fn shmctl(segment: c_int, command: c_int, state: *mut shmid_ds) -> c_int = pin;
    fn mq_receive(
        queue: mqd_t, message: *mut c_char [len], len: size_t, priority: *mut c_uint,
    ) -> ssize_t = hold;
    fn mq_timedreceive(
        queue: mqd_t, message: *mut c_char [len], len: size_t, priority: *mut c_uint,
        until: *const timespec,
    ) -> ssize_t = hold;
    fn msgrcv(
        queue: c_int, message: *mut c_void [with_kind(len)], len: size_t, kind: c_long,
        flags: c_int,
    ) -> ssize_t = hold;
    fn semctl(set: c_int, index: c_int, command: c_int, fourth: *mut c_void [state(command)])
        -> c_int = pin;
}

/// How many `mq_attr` the flags of `mq_open` ask for.
fn made(flags: c_int) -> usize {
    usize::from(flags & libc::O_CREAT != 0)
}

/// The bytes of a message and of its kind before it.
fn with_kind(len: size_t) -> usize {
    len.saturating_add(size_of::<c_long>())
}

/// The most semaphores of a set whose values `GETALL` writes (the kernel's SEMMSL).
const SEMAPHORES: usize = 32_000;

/// The bytes behind the fourth argument of `semctl`.
fn state(command: c_int) -> usize {
    match command {
        libc::GETALL | libc::SETALL => SEMAPHORES * size_of::<c_ushort>(),
        _ => size_of::<semid_ds>(),
    }
}
