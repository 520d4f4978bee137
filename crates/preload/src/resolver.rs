//! Resolver: the DNS calls whose question and answer libc itself sends and receives.
//!
//! Guarantees: as `held`, since what a server answered comes once.
//!
//! Threads: any.

use core::ffi::{c_char, c_int, c_uchar, c_void};

use crate::guarded::held;
use crate::pins::Pins;

/// What libc sends and where it receives; a name it only reads in user mode.
fn message(question: *const c_uchar, asked: c_int, answer: *mut c_uchar, room: c_int) -> Pins {
    let mut pins = Pins::new();
    pins.bytes(question, usize::try_from(asked).unwrap_or(0));
    pins.bytes(answer.cast_const(), usize::try_from(room).unwrap_or(0));
    pins
}

fn answered(answer: *mut c_uchar, room: c_int) -> Pins {
    message(core::ptr::null(), 0, answer, room)
}

held! {
    fn res_query(
        name: *const c_char, class: c_int, kind: c_int, answer: *mut c_uchar, room: c_int,
    ) -> c_int = answered(answer, room);
    fn res_search(
        name: *const c_char, class: c_int, kind: c_int, answer: *mut c_uchar, room: c_int,
    ) -> c_int = answered(answer, room);
    fn res_querydomain(
        name: *const c_char, domain: *const c_char, class: c_int, kind: c_int,
        answer: *mut c_uchar, room: c_int,
    ) -> c_int = answered(answer, room);
    fn res_nquery(
        state: *mut c_void, name: *const c_char, class: c_int, kind: c_int,
        answer: *mut c_uchar, room: c_int,
    ) -> c_int = answered(answer, room);
    fn res_nsearch(
        state: *mut c_void, name: *const c_char, class: c_int, kind: c_int,
        answer: *mut c_uchar, room: c_int,
    ) -> c_int = answered(answer, room);
    fn res_nquerydomain(
        state: *mut c_void, name: *const c_char, domain: *const c_char, class: c_int, kind: c_int,
        answer: *mut c_uchar, room: c_int,
    ) -> c_int = answered(answer, room);
    fn res_send(question: *const c_uchar, asked: c_int, answer: *mut c_uchar, room: c_int)
        -> c_int = message(question, asked, answer, room);
    fn res_nsend(
        state: *mut c_void, question: *const c_uchar, asked: c_int, answer: *mut c_uchar,
        room: c_int,
    ) -> c_int = message(question, asked, answer, room);
}
