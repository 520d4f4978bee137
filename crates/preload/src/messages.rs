//! Messages: `sendmsg`, `recvmsg` and their many-message forms.
//!
//! Guarantees: header, address, control data, vector and up to `WINDOW` bytes of the buffers are
//! pinned before the kernel sees them, since a message that cannot be copied is lost. A blocking
//! send on a stream that stops in the middle is continued.
//!
//! Threads: any.

use core::ffi::{c_int, c_uint};

use libc::{mmsghdr, msghdr, ssize_t, timespec};

use crate::pins::Pins;
use crate::real::real;
use crate::transfer::{Direction, drive};
use crate::vectors::{Held, Piece, Vector};

/// The parts of a header besides its buffers.
fn envelope(pins: &mut Pins, header: *const msghdr) {
    pins.value(header);
    // SAFETY: the program's own header, read in user mode.
    let header = unsafe { &*header };
    pins.bytes(header.msg_name, header.msg_namelen as usize);
    pins.bytes(header.msg_control, header.msg_controllen);
}

fn vector_of(header: *const msghdr) -> Vector {
    // SAFETY: the program's own header, read in user mode.
    let header = unsafe { &*header };
    Vector::new(header.msg_iov, header.msg_iovlen as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(socket: c_int, header: *mut msghdr, flags: c_int) -> ssize_t {
    let real = real!(recvmsg: unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> ssize_t);
    if !deepheap::is_managing() || header.is_null() {
        // SAFETY: the program's own arguments.
        return unsafe { real(socket, header, flags) };
    }
    let mut pins = Pins::new();
    envelope(&mut pins, header);
    let _held = Held::all(vector_of(header));
    // SAFETY: the program's own arguments.
    unsafe { real(socket, header, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(socket: c_int, header: *const msghdr, flags: c_int) -> ssize_t {
    let real = real!(sendmsg: unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t);
    if !deepheap::is_managing() || header.is_null() {
        // SAFETY: the program's own arguments.
        return unsafe { real(socket, header, flags) };
    }
    let mut pins = Pins::new();
    envelope(&mut pins, header);
    let vector = vector_of(header);
    // SAFETY: the program's own arguments.
    let whole = || unsafe { real(socket, header, flags) };
    if !vector.is_managed() {
        return whole();
    }
    drive(socket, Direction::Write, vector.len(), &whole, &|done, most| {
        if most == usize::MAX {
            let _held = Held::all(vector);
            return (vector.len(), whole());
        }
        let piece = Piece::of(vector, done, most);
        let (parts, count) = piece.parts();
        // SAFETY: a copy of the program's header; zero is a valid one.
        let mut part = unsafe { if done == 0 { *header } else { core::mem::zeroed() } };
        part.msg_iov = parts.cast_mut();
        part.msg_iovlen = count as usize;
        // SAFETY: parts of the program's own buffers.
        (piece.bytes(), unsafe { real(socket, &part, flags) })
    })
}

/// How many messages of one call are pinned; the kernel's short count covers the rest.
const MESSAGES: usize = 8;

/// Pins the first messages and makes the call on them.
fn many(first: *mut mmsghdr, count: c_uint, call: &dyn Fn(c_uint) -> c_int) -> c_int {
    if !deepheap::is_managing() || first.is_null() {
        return call(count);
    }
    let count = (count as usize).min(MESSAGES);
    let mut pins = Pins::new();
    let mut held = [const { None }; MESSAGES];
    for (index, slot) in held.iter_mut().take(count).enumerate() {
        let message = first.wrapping_add(index);
        // SAFETY: the program passes `count` messages.
        let header = unsafe { &raw const (*message).msg_hdr };
        envelope(&mut pins, header);
        *slot = Some(Held::all(vector_of(header)));
    }
    call(count as c_uint)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    socket: c_int,
    first: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let real = real!(
        recvmmsg: unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int
    );
    let mut pins = Pins::new();
    pins.value(timeout);
    // SAFETY: the program's own arguments.
    many(first, count, &|count| unsafe { real(socket, first, count, flags, timeout) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    socket: c_int,
    first: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let real = real!(sendmmsg: unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int);
    // SAFETY: the program's own arguments.
    many(first, count, &|count| unsafe { real(socket, first, count, flags) })
}
