//! Stdio: the calls whose buffer libc hands to the kernel itself.
//!
//! A large `fread`, `fwrite` or `fputs` moves the bytes straight between the file and the caller's
//! memory. It does so with libc's internal `read` and `write`, which no wrapper sees.
//!
//! Guarantees: managed buffers that pass by the stream's own buffer are moved in pinned pieces,
//! under the stream's lock. A call that is under way when management begins goes on like that and
//! takes the lock anew. A stream buffer on the heap (`setvbuf`) is replaced by one of libc's own.
//! Never: pins more than `PINNED_MAX` bytes.
//! Threads: any; the stream's lock is held across the pieces, as libc holds it across the call, and
//! given back if the thread is cancelled meanwhile.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;

use libc::{_IOFBF, _IONBF, BUFSIZ, FILE, size_t};

use crate::buffers::pins::{PINNED_MAX, Pins};
use crate::calls::calls;
use crate::real::real;
use crate::seam;

calls! {
    fn fread(start: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t
        = by(|real| block(start, size, count, stream, real, Some(real!(fread_unlocked: Move))));
    fn fwrite(start: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t
        = by(|real| block(start, size, count, stream, real, Some(real!(fwrite_unlocked: Move))));
    fn fread_unlocked, fwrite_unlocked(
        start: *mut c_void, size: size_t, count: size_t, stream: *mut FILE,
    ) -> size_t = by(|real| block(start, size, count, stream, real, None));
    fn __fread_chk(
        start: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut FILE,
    ) -> size_t = checked(fits(start, size, count, room) => fread(start, size, count, stream));
    fn __fread_unlocked_chk(
        start: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut FILE,
    ) -> size_t
        = checked(fits(start, size, count, room) => fread_unlocked(start, size, count, stream));

    fn fputs(text: *const c_char, stream: *mut FILE) -> c_int
        = by(|real| put(text, stream, real, fwrite));
    fn fputs_unlocked(text: *const c_char, stream: *mut FILE) -> c_int
        = by(|real| put(text, stream, real, fwrite_unlocked));
    fn puts(text: *const c_char) -> c_int
        = by(|real| match deepheap::internal::may_leave(text as usize) {
            true => put_line(text),
            false => real(text),
        });

    fn setvbuf(stream: *mut FILE, buffer: *mut c_char, mode: c_int, size: size_t) -> c_int
        = by(|real| real(stream, stream_buffer(buffer), mode, size));
    fn setbuffer(stream: *mut FILE, buffer: *mut c_char, size: size_t) -> () = same({
        setvbuf(stream, buffer, if buffer.is_null() { _IONBF } else { _IOFBF }, size);
    });
    fn setbuf(stream: *mut FILE, buffer: *mut c_char) -> ()
        = same(setbuffer(stream, buffer, BUFSIZ as size_t));
}

/// libc moves whole blocks past a smaller stream buffer, even if they fit it (glibc's threshold).
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
    static stdout: *mut FILE;
}

type Move = unsafe extern "C" fn(*mut c_void, size_t, size_t, *mut FILE) -> size_t;

/// Whether libc may move so many bytes past the stream's buffer. An unbuffered stream has a buffer
/// of one byte, an unused stream has none.
///
/// # Safety
/// The program passes an open stream.
#[inline]
unsafe fn is_direct(stream: *mut FILE, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { __fbufsize(stream) <= len.max(BLOCK_MIN) }
}

/// Moves `len` bytes in pinned pieces by `step`, which takes their start and number; returns how
/// many.
fn pieces(start: *mut c_void, len: usize, step: impl Fn(*mut c_void, usize) -> usize) -> usize {
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(PINNED_MAX);
        let mut pins = Pins::new();
        let at = start.wrapping_byte_add(done);
        pins.bytes(at.cast_const(), piece);
        let moved = step(at, piece);
        done += moved;
        if moved < piece {
            break;
        }
    }
    done
}

/// Runs `body` under the stream's lock. A thread that is cancelled inside gives the lock back.
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

/// `fread` or `fwrite`, where `real` is libc's. If it takes the stream's lock, `unlocked` is the
/// form that does not.
fn block(
    start: *mut c_void,
    size: size_t,
    count: size_t,
    stream: *mut FILE,
    real: impl Fn(*mut c_void, size_t, size_t, *mut FILE) -> size_t,
    unlocked: Option<Move>,
) -> size_t {
    let len = size.saturating_mul(count);
    if len == 0 || !deepheap::internal::may_leave(start as usize) {
        return real(start, size, count, stream);
    }
    let mut done = 0;
    let was_plain = !deepheap::internal::is_managing();
    // SAFETY: the program passes an open stream, and a buffer of `len` bytes.
    unsafe {
        if was_plain || !is_direct(stream, len) {
            done = real(start, 1, len, stream);
            let is_fault = done < len && was_plain && deepheap::internal::is_managing();
            if !is_fault || ferror_unlocked(stream) == 0 || seam::errno() != libc::EFAULT {
                return done / size;
            }
            // Management has begun meanwhile; the stream has no error of its own.
            clearerr_unlocked(stream);
        }
        let (rest, left) = (start.byte_add(done), len - done);
        let moved = match unlocked {
            Some(step) => locked(stream, || pieces(rest, left, |at, len| step(at, 1, len, stream))),
            None => pieces(rest, left, |at, len| real(at, 1, len, stream)),
        };
        (done + moved) / size
    }
}

/// Whether a fortified read of the heap fits its buffer.
fn fits(start: *const c_void, size: size_t, count: size_t, room: size_t) -> bool {
    size.saturating_mul(count) <= room && deepheap::internal::may_leave(start as usize)
}

/// `fputs`, where `real` is libc's, and `write` the `fwrite` that takes its place.
fn put(
    text: *const c_char,
    stream: *mut FILE,
    real: impl Fn(*const c_char, *mut FILE) -> c_int,
    write: Move,
) -> c_int {
    if !deepheap::internal::may_leave(text as usize) {
        return real(text, stream);
    }
    // SAFETY: the program passes a C string and an open stream.
    unsafe {
        let len = libc::strlen(text);
        if write(text.cast_mut().cast(), 1, len, stream) == len { 1 } else { libc::EOF }
    }
}

/// `puts` of a managed text.
fn put_line(text: *const c_char) -> c_int {
    // SAFETY: the program passes a C string; stdout is a stream, locked around both writes.
    unsafe {
        let len = libc::strlen(text);
        let step = real!(fwrite_unlocked: Move);
        let ended = locked(stdout, || {
            let put = |at, len| step(at, 1, len, stdout);
            let done = pieces(text.cast_mut().cast(), len, put);
            done == len && step(c"\n".as_ptr().cast_mut().cast(), 1, 1, stdout) == 1
        });
        if ended { c_int::try_from(len + 1).unwrap_or(c_int::MAX) } else { libc::EOF }
    }
}

/// A stream's buffer must stay resident as long as the stream lives. So libc gets none that is on
/// the heap, and makes its own. The program cannot tell: "the contents of the array at any time are
/// unspecified".
fn stream_buffer(buffer: *mut c_char) -> *mut c_char {
    if deepheap::internal::may_leave(buffer as usize) { null_mut() } else { buffer }
}
