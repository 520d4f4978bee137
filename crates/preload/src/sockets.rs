//! Sockets: addresses, options, and datagrams with an address.
//!
//! Guarantees: an accepted connection is never lost to an evicted address buffer. SO_ZEROCOPY is
//! refused: the network card would read physical pages after eviction gave them away.
//!
//! Threads: any.

use core::ffi::{c_int, c_void};

use libc::{size_t, sockaddr, socklen_t, ssize_t};

use crate::guarded::{guarded, guarded_code, held};
use crate::pins::Pins;
use crate::real::real;
use crate::refusal;
use crate::transfer::{Direction, receiving, transfer};

/// Pins an address buffer and the length word beside it.
fn address(pins: &mut Pins, address: *mut sockaddr, len: *mut socklen_t) {
    pins.value(len);
    if !address.is_null() && !len.is_null() {
        // SAFETY: the program's own length word, read in user mode.
        pins.bytes(address, unsafe { *len } as usize);
    }
}

/// As `address`, for `held!`.
fn held_address(peer: *mut sockaddr, len: *mut socklen_t) -> Pins {
    let mut pins = Pins::new();
    address(&mut pins, peer, len);
    pins
}

held! {
    fn accept(socket: c_int, peer: *mut sockaddr, len: *mut socklen_t) -> c_int
        = held_address(peer, len);
    fn accept4(socket: c_int, peer: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int
        = held_address(peer, len);
}

guarded! {
    fn getsockname(socket: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int
        = |pins| address(pins, name, len);
    fn getpeername(socket: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int
        = |pins| address(pins, name, len);
    fn bind(socket: c_int, name: *const sockaddr, len: socklen_t) -> c_int
        = |pins| pins.bytes(name, len as usize);
    fn connect(socket: c_int, name: *const sockaddr, len: socklen_t) -> c_int
        = |pins| pins.bytes(name, len as usize);
    fn getsockopt(
        socket: c_int, level: c_int, option: c_int, value: *mut c_void, len: *mut socklen_t,
    ) -> c_int = |pins| address(pins, value.cast(), len);
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut [c_int; 2]) -> c_int
        = |pins| pins.value(pair);
    fn pipe(pair: *mut [c_int; 2]) -> c_int = |pins| pins.value(pair);
    fn pipe2(pair: *mut [c_int; 2], flags: c_int) -> c_int = |pins| pins.value(pair);
}

guarded_code! {
    fn getaddrinfo(
        node: *const libc::c_char, service: *const libc::c_char,
        hints: *const libc::addrinfo, found: *mut *mut libc::addrinfo,
    ) = |pins| { pins.text(node); pins.text(service); };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    socket: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if level == libc::SOL_SOCKET && option == libc::SO_ZEROCOPY {
        return refusal::refuse(&refusal::ZERO_COPY, libc::EOPNOTSUPP);
    }
    let real = real!(
        setsockopt: unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int
    );
    let buffers = |pins: &mut Pins| {
        pins.bytes(value, len as usize);
        if level == libc::SOL_SOCKET && option == libc::SO_ATTACH_FILTER && !value.is_null() {
            // SAFETY: this option's value is a filter program; the program's own memory.
            let filter = unsafe { &*value.cast::<libc::sock_fprog>() };
            pins.array(filter.filter, usize::from(filter.len));
        }
    };
    // SAFETY: the program's own arguments.
    crate::guarded::guard(buffers, || unsafe { real(socket, level, option, value, len) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    socket: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    let real = real!(
        sendto: unsafe extern "C" fn(
            c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t,
        ) -> ssize_t
    );
    let send = || {
        transfer(socket, Direction::Write, buffer, len, |done, len| {
            // SAFETY: a part of the program's own buffer.
            unsafe { real(socket, buffer.byte_add(done), len, flags, to, to_len) }
        })
    };
    crate::guarded::guard(|pins| pins.bytes(to, to_len as usize), send)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    socket: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let real = real!(
        recvfrom: unsafe extern "C" fn(
            c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t,
        ) -> ssize_t
    );
    // The address comes last, when the message was taken.
    let _held = held_address(from, from_len);
    transfer(socket, receiving(flags), buffer, len, |done, len| {
        // SAFETY: a part of the program's own buffer.
        unsafe { real(socket, buffer.byte_add(done), len, flags, from, from_len) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    socket: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    if len > room {
        let checked = real!(
            __recvfrom_chk: unsafe extern "C" fn(
                c_int, *mut c_void, size_t, size_t, c_int, *mut sockaddr, *mut
                socklen_t,
            ) -> ssize_t
        );
        // SAFETY: the fortified call's own way out: it aborts.
        return unsafe { checked(socket, buffer, len, room, flags, from, from_len) };
    }
    // SAFETY: checked as the fortified call would.
    unsafe { recvfrom(socket, buffer, len, flags, from, from_len) }
}
