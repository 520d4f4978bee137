//! Messages: `sendmsg`, `recvmsg` and their many-message forms.
//!
//! Guarantees: the kernel finds header, address, control data, the array of buffers and
//! `PINNED_MAX` bytes of the buffers resident, since it loses a message that it cannot copy. A
//! message from a stream without control data is received as by `readv`. A call that waits for
//! a message holds them from before management begins on: of the buffers then the first `EAGER`
//! bytes, and of many messages the first `MESSAGES`. A blocking send on a stream that stops in the
//! middle goes on. So does a receipt with MSG_WAITALL, unless it takes control data too: then it
//! may be short beyond `PINNED_MAX`.
//! Threads: any.

use core::ffi::{c_int, c_uint};

use libc::{iovec, mmsghdr, msghdr, ssize_t};

use crate::buffers::pins::Pins;
use crate::buffers::transfer::{Direction, is_answer, receiving};
use crate::buffers::vectors::{Held, Vector, managed};

/// The parts of a header besides its buffers.
fn envelope(pins: &mut Pins, header: *const msghdr) {
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

/// A header for some buffers. Only the first ones have address and control data.
///
/// # Safety
/// `header` is the program's own.
unsafe fn part_of(header: *const msghdr, parts: *const iovec, count: c_int, done: usize) -> msghdr {
    // SAFETY: a copy of the program's header; zero is a valid one.
    let mut part = unsafe { if done == 0 { *header } else { core::mem::zeroed() } };
    part.msg_iov = parts.cast_mut();
    part.msg_iovlen = count as usize;
    part
}

/// `recvmsg`, where `real` is libc's with any header.
pub fn receive(
    socket: c_int,
    header: *mut msghdr,
    flags: c_int,
    real: impl Fn(*mut msghdr) -> ssize_t,
) -> ssize_t {
    let whole = || real(header);
    if header.is_null() {
        return whole();
    }
    let mut pins = Pins::new();
    pins.value(header.cast_const());
    envelope(&mut pins, header);
    let vector = vector_of(header);
    let direction = receiving(flags);
    // SAFETY: the program's own header, read in user mode.
    let splits = unsafe { (*header).msg_controllen } == 0;
    let mut done = 0;
    if !deepheap::internal::is_managing() || !splits || !vector.is_managed() {
        let fills = splits && direction == Direction::ReadAll;
        let was_plain = !deepheap::internal::is_managing();
        let _held = Held::all(vector);
        let moved = whole();
        if !was_plain || !fills || is_answer(moved) || moved as usize == vector.len() {
            return moved;
        }
        done = moved.max(0) as usize;
    }
    managed(socket, direction, vector, done, &whole, &|parts, count, done| {
        // SAFETY: parts of the program's own buffers, and its own header for the answers.
        unsafe {
            let mut part = part_of(header, parts, count, done);
            let moved = real(&mut part);
            if done == 0 && moved >= 0 {
                (*header).msg_namelen = part.msg_namelen;
                (*header).msg_flags = part.msg_flags;
            }
            moved
        }
    })
}

/// `sendmsg`, where `real` is libc's with any header.
pub fn send(
    socket: c_int,
    header: *const msghdr,
    real: impl Fn(*const msghdr) -> ssize_t,
) -> ssize_t {
    let whole = || real(header);
    let mut done = 0;
    if !deepheap::internal::is_managing() || header.is_null() {
        let moved = whole();
        if header.is_null() || is_answer(moved) {
            return moved;
        }
        done = moved.max(0) as usize;
    }
    let mut pins = Pins::new();
    pins.value(header);
    envelope(&mut pins, header);
    managed(socket, Direction::Write, vector_of(header), done, &whole, &|parts, count, done| {
        // SAFETY: the program's own header.
        real(&unsafe { part_of(header, parts, count, done) })
    })
}

/// How many messages of one call are pinned; the kernel's short count covers the rest.
const MESSAGES: usize = 8;

/// Makes `recvmmsg` or `sendmmsg` with the first messages pinned. Once any span is managed the call
/// is made on those only.
pub fn many(first: *mut mmsghdr, count: c_uint, call: &dyn Fn(c_uint) -> c_int) -> c_int {
    if first.is_null() {
        return call(count);
    }
    let asked =
        if deepheap::internal::is_managing() { count.min(MESSAGES as c_uint) } else { count };
    let held_count = (count as usize).min(MESSAGES);
    let mut pins = Pins::new();
    pins.array(first, held_count);
    let mut held = [const { None }; MESSAGES];
    for (index, slot) in held.iter_mut().take(held_count).enumerate() {
        let message = first.wrapping_add(index);
        // SAFETY: the program passes `count` messages.
        let header = unsafe { &raw const (*message).msg_hdr };
        envelope(&mut pins, header);
        *slot = Some(Held::all(vector_of(header)));
    }
    call(asked)
}

/// `sendmmsg`: what was sent before management began is a short count.
pub fn send_many(first: *mut mmsghdr, count: c_uint, call: &dyn Fn(c_uint) -> c_int) -> c_int {
    if !deepheap::internal::is_managing() {
        let sent = call(count);
        if is_answer(sent as ssize_t) || sent > 0 {
            return sent;
        }
    }
    many(first, count, call)
}
