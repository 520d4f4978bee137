//! Stdio: the calls whose buffer libc hands to the kernel itself.
//!
//! A large `fread` reads, and a large `fwrite` or `fputs` writes, straight between the file and the
//! caller's memory, with libc's internal `read` and `write`, which no wrapper sees.
//!
//! Guarantees: managed buffers that do not go through the stream's own buffer are moved in pinned
//! pieces under the stream's lock; a call that is under way when management begins goes on so, its
//! lock taken anew. A caller's stream buffer (`setvbuf`) on the heap is replaced by one of libc's
//! own.
//! Never: pins more than `WINDOW` bytes.
//!
//! Threads: any; the stream's lock is held across the pieces, as libc holds it across the call, and
//! given back if the thread is cancelled meanwhile. Such a thread leaves its pins behind.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;

use libc::{FILE, size_t};

use crate::pins::{Pins, WINDOW};
use crate::real::real;
use crate::seam;

/// A stream with a smaller buffer may pass by it even with what it has room for (glibc's threshold
/// for whole blocks).
const BLOCK_MIN: usize = 128;

/// libc's `struct _pthread_cleanup_buffer`: what is to be done if the thread is cancelled.
#[repr(C)]
struct Cleanup([usize; 4]);

unsafe extern "C" {
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
    fn _pthread_cleanup_push(
        cleanup: *mut Cleanup,
        routine: unsafe extern "C" fn(*mut FILE),
        stream: *mut FILE,
    );
    fn _pthread_cleanup_pop(cleanup: *mut Cleanup, runs: c_int);
    fn __fbufsize(stream: *mut FILE) -> size_t;
    fn ferror_unlocked(stream: *mut FILE) -> c_int;
    fn clearerr_unlocked(stream: *mut FILE);
}

type Move = unsafe extern "C" fn(*mut c_void, size_t, size_t, *mut FILE) -> size_t;

/// Whether so many bytes may pass by the stream's buffer. A stream that is not buffered has one of
/// a byte, a stream that was not used yet none.
///
/// # Safety
/// The program passes an open stream.
#[inline]
unsafe fn is_direct(stream: *mut FILE, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { __fbufsize(stream) <= len.max(BLOCK_MIN) }
}

/// Moves `len` bytes in pinned pieces; returns how many.
///
/// # Safety
/// `step` is libc's `fread` or `fwrite` in an unlocked form, and the arguments are a call of it.
unsafe fn pieces(start: *mut c_void, len: usize, stream: *mut FILE, step: Move) -> usize {
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(WINDOW);
        let mut pins = Pins::new();
        // SAFETY: within the caller's buffer.
        let moved = unsafe {
            let at = start.byte_add(done);
            pins.bytes(at.cast_const(), piece);
            step(at, 1, piece, stream)
        };
        done += moved;
        if moved < piece {
            break;
        }
    }
    done
}

/// What `body` answers under the stream's lock, which a thread gives back that is cancelled inside.
///
/// # Safety
/// The program passes an open stream.
unsafe fn locked<R>(stream: *mut FILE, body: impl FnOnce() -> R) -> R {
    let mut cleanup = Cleanup([0; 4]);
    // SAFETY: the caller's promise; the record is on this stack until it is taken back.
    unsafe {
        flockfile(stream);
        _pthread_cleanup_push(&mut cleanup, funlockfile, stream);
        let answer = body();
        _pthread_cleanup_pop(&mut cleanup, 1);
        answer
    }
}

/// `pieces` under the stream's lock.
unsafe fn locked_pieces(start: *mut c_void, len: usize, stream: *mut FILE, step: Move) -> usize {
    // SAFETY: the program passes an open stream.
    unsafe { locked(stream, || pieces(start, len, stream, step)) }
}

/// Moves `len` bytes of the heap; returns how many. `whole` is the program's call, `step` its
/// unlocked form, `in_pieces` how to make that for all of them.
///
/// # Safety
/// As `pieces`.
unsafe fn moved(
    start: *mut c_void,
    len: usize,
    stream: *mut FILE,
    whole: Move,
    step: Move,
    in_pieces: unsafe fn(*mut c_void, usize, *mut FILE, Move) -> usize,
) -> usize {
    // SAFETY: the caller's promise; parts of its buffer.
    unsafe {
        let mut done = 0;
        let was_plain = !deepheap::is_managing();
        if was_plain || !is_direct(stream, len) {
            done = whole(start, 1, len, stream);
            let is_fault = done < len && was_plain && deepheap::is_managing();
            if !is_fault || ferror_unlocked(stream) == 0 || seam::errno() != libc::EFAULT {
                return done;
            }
            // Management has begun meanwhile, and was no error of the stream.
            clearerr_unlocked(stream);
        }
        done + in_pieces(start.byte_add(done), len - done, stream, step)
    }
}

macro_rules! block_moves {
    ($($name:ident, $step:ident, $pieces:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            start: *mut c_void, size: size_t, count: size_t, stream: *mut FILE,
        ) -> size_t {
            let whole = real!($name: Move);
            let len = size.saturating_mul(count);
            // SAFETY: the program's own arguments, or parts of its buffer.
            unsafe {
                if len == 0 || !deepheap::owns(start as usize) {
                    return whole(start, size, count, stream);
                }
                moved(start, len, stream, whole, real!($step: Move), $pieces) / size
            }
        }
    )*};
}

block_moves! {
    fread, fread_unlocked, locked_pieces;
    fread_unlocked, fread_unlocked, pieces;
    fwrite, fwrite_unlocked, locked_pieces;
    fwrite_unlocked, fwrite_unlocked, pieces;
}

macro_rules! checked_reads {
    ($($name:ident, $unchecked:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            start: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut FILE,
        ) -> size_t {
            let real = real!($name: unsafe extern "C" fn(
                *mut c_void, size_t, size_t, size_t, *mut FILE
            ) -> size_t);
            let len = size.saturating_mul(count);
            // SAFETY: the program's own arguments; too long a read goes to libc, which aborts.
            unsafe {
                if len <= room && deepheap::owns(start as usize) {
                    return $unchecked(start, size, count, stream);
                }
                real(start, room, size, count, stream)
            }
        }
    )*};
}

checked_reads! {
    __fread_chk, fread;
    __fread_unlocked_chk, fread_unlocked;
}

type PutText = unsafe extern "C" fn(*const c_char, *mut FILE) -> c_int;

macro_rules! text_puts {
    ($($name:ident, $write:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(text: *const c_char, stream: *mut FILE) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                if deepheap::owns(text as usize) {
                    let len = libc::strlen(text);
                    let done = $write(text.cast_mut().cast(), 1, len, stream);
                    return if done == len { 1 } else { libc::EOF };
                }
                real!($name: PutText)(text, stream)
            }
        }
    )*};
}

text_puts! {
    fputs, fwrite;
    fputs_unlocked, fwrite_unlocked;
}

unsafe extern "C" {
    static stdout: *mut FILE;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn puts(text: *const c_char) -> c_int {
    let real = real!(puts: unsafe extern "C" fn(*const c_char) -> c_int);
    if !deepheap::owns(text as usize) {
        // SAFETY: the program's own argument.
        return unsafe { real(text) };
    }
    // SAFETY: the program passes a C string; stdout is a stream, locked around both writes.
    unsafe {
        let len = libc::strlen(text);
        let step = real!(fwrite_unlocked: Move);
        let ended = locked(stdout, || {
            let done = pieces(text.cast_mut().cast(), len, stdout, step);
            done == len && step(c"\n".as_ptr().cast_mut().cast(), 1, 1, stdout) == 1
        });
        if ended { c_int::try_from(len + 1).unwrap_or(c_int::MAX) } else { libc::EOF }
    }
}

/// A stream's buffer must stay where it is for as long as the stream lives, so one on the heap is
/// left to the program ("the contents of the array at any time are unspecified") and libc makes its
/// own.
fn stream_buffer(buffer: *mut c_char) -> *mut c_char {
    if deepheap::owns(buffer as usize) { null_mut() } else { buffer }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setvbuf(
    stream: *mut FILE,
    buffer: *mut c_char,
    mode: c_int,
    size: size_t,
) -> c_int {
    let real = real!(setvbuf: unsafe extern "C" fn(*mut FILE, *mut c_char, c_int, size_t) -> c_int);
    // SAFETY: the program's own arguments, or no buffer.
    unsafe { real(stream, stream_buffer(buffer), mode, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setbuffer(stream: *mut FILE, buffer: *mut c_char, size: size_t) {
    let mode = if buffer.is_null() { libc::_IONBF } else { libc::_IOFBF };
    // SAFETY: the program's own arguments; `setvbuf` is what this call is defined by.
    unsafe { setvbuf(stream, buffer, mode, size) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn setbuf(stream: *mut FILE, buffer: *mut c_char) {
    // SAFETY: the program's own arguments; libc says such a buffer has BUFSIZ bytes.
    unsafe { setbuffer(stream, buffer, libc::BUFSIZ as size_t) };
}
