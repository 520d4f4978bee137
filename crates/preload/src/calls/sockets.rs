//! Sockets: addresses, options, bytes and messages, and what libc asks a name server.
//!
//! Guarantees: an evicted buffer never loses an accepted connection, a message or a server's
//! answer. SO_ZEROCOPY is refused: the network card would read physical pages after eviction gave
//! them away.
//! Threads: any.

use core::ffi::{c_int, c_uint, c_void};

use libc::{mmsghdr, msghdr, size_t, sock_fprog, socklen_t, ssize_t, timespec};

use crate::buffers::guarded::{Code, guard};
use crate::buffers::pins::Pins;
use crate::buffers::transfer::{Direction::Write, receiving, transfer};
use crate::calls::messages;
use crate::calls::{Argument, Opaque, Text, calls, hold_array};
use crate::refusal::{ZERO_COPY, refuse};

calls! {
    fn accept(socket: c_int, peer: *mut c_void [room(peer, len)], len: *mut socklen_t)
        -> c_int = hold;
    fn accept4(
        socket: c_int, peer: *mut c_void [room(peer, len)], len: *mut socklen_t, flags: c_int,
    ) -> c_int = hold;
    fn getsockname, getpeername(
        socket: c_int, name: *mut c_void [room(name, len)], len: *mut socklen_t,
    ) -> c_int = pin;
    fn bind, connect(socket: c_int, name: *const c_void [len], len: socklen_t) -> c_int = pin;
    fn bindresvport(socket: c_int, name: *mut [u8; 16]) -> c_int = pin;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut [c_int; 2])
        -> c_int = pin;
    fn getsockopt(
        socket: c_int, level: c_int, option: c_int, value: *mut c_void [room(value, len)],
        len: *mut socklen_t,
    ) -> c_int = pin;
    fn setsockopt(
        socket: c_int, level: c_int, option: c_int, value: *const c_void, len: socklen_t,
    ) -> c_int = by(|real| {
        if level == libc::SOL_SOCKET && option == libc::SO_ZEROCOPY {
            return refuse(&ZERO_COPY, libc::EOPNOTSUPP);
        }
        let is_filter = level == libc::SOL_SOCKET && option == libc::SO_ATTACH_FILTER;
        let buffers = |pins: &mut Pins| pin_option(pins, is_filter, value, len);
        guard(buffers, || real(socket, level, option, value, len))
    });

    fn send(socket: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t
        = transfer(Write);
    fn recv(socket: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t
        = transfer(receiving(flags));
    fn __recv_chk(socket: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int)
        -> ssize_t = checked(len <= room => recv(socket, buffer, len, flags));
    fn sendto(
        socket: c_int, buffer: *const c_void, len: size_t, flags: c_int, to: *const c_void,
        to_len: socklen_t,
    ) -> ssize_t = by(|real| {
        let part = |done, len| {
            real(socket, buffer.wrapping_byte_add(done), len, flags, to, to_len)
        };
        let send = || transfer(socket, Write, buffer, len, part);
        guard(|pins| pins.bytes(to, to_len as usize), send)
    });
    // The address comes last, when the message was taken.
    fn recvfrom(
        socket: c_int, buffer: *mut c_void, len: size_t, flags: c_int, from: *mut c_void,
        from_len: *mut socklen_t,
    ) -> ssize_t = by(|real| {
        let _held = (hold_array(from, room(from, from_len) as usize), from_len.hold());
        transfer(socket, receiving(flags), buffer, len, |done, len| {
            real(socket, buffer.wrapping_byte_add(done), len, flags, from, from_len)
        })
    });
    fn __recvfrom_chk(
        socket: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int,
        from: *mut c_void, from_len: *mut socklen_t,
    ) -> ssize_t
        = checked(len <= room => recvfrom(socket, buffer, len, flags, from, from_len));

    fn sendmsg(socket: c_int, header: *const msghdr, flags: c_int) -> ssize_t
        = by(|real| messages::send(socket, header, |header| real(socket, header, flags)));
    fn recvmsg(socket: c_int, header: *mut msghdr, flags: c_int) -> ssize_t
        = by(|real| messages::receive(socket, header, flags, |header| real(socket, header, flags)));
    fn sendmmsg(socket: c_int, first: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
        = by(|real| messages::send_many(first, count, &|count| real(socket, first, count, flags)));
    fn recvmmsg(
        socket: c_int, first: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec,
    ) -> c_int = by(|real| {
        let _held = timeout.hold();
        messages::many(first, count, &|count| real(socket, first, count, flags, timeout))
    });

    fn getaddrinfo(node: Text, service: Text, hints: Opaque, found: Opaque) -> Code = pin;
    fn res_query, res_search(
        name: Opaque, class: c_int, kind: c_int, answer: *mut c_void [room], room: c_int,
    ) -> c_int = hold;
    fn res_querydomain(
        name: Opaque, domain: Opaque, class: c_int, kind: c_int, answer: *mut c_void [room],
        room: c_int,
    ) -> c_int = hold;
    fn res_nquery, res_nsearch(
        state: Opaque, name: Opaque, class: c_int, kind: c_int, answer: *mut c_void [room],
        room: c_int,
    ) -> c_int = hold;
    fn res_nquerydomain(
        state: Opaque, name: Opaque, domain: Opaque, class: c_int, kind: c_int,
        answer: *mut c_void [room], room: c_int,
    ) -> c_int = hold;
    fn res_send(
        question: *const c_void [asked], asked: c_int, answer: *mut c_void [room], room: c_int,
    ) -> c_int = hold;
    fn res_nsend(
        state: Opaque, question: *const c_void [asked], asked: c_int, answer: *mut c_void [room],
        room: c_int,
    ) -> c_int = hold;
}

/// The bytes of an answer, as the word beside it says.
fn room(answer: *const c_void, len: *const socklen_t) -> socklen_t {
    if answer.is_null() || len.is_null() {
        return 0;
    }
    // SAFETY: the program's own length word, read in user mode.
    unsafe { *len }
}

/// The argument of `setsockopt`; a filter program is named in its value.
fn pin_option(pins: &mut Pins, is_filter: bool, value: *const c_void, len: socklen_t) {
    pins.bytes(value, len as usize);
    if is_filter && !value.is_null() {
        // SAFETY: this option's value is a filter program; the program's own memory.
        let filter = unsafe { &*value.cast::<sock_fprog>() };
        pins.array(filter.filter, usize::from(filter.len));
    }
}
