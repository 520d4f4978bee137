//! Futex: lets a thread sleep until a word changes; all waiting in deepheap uses it.
//!
//! Guarantees: private futexes (one process), but for those named shared; a waiter whose word
//! already changed does not sleep.
//! Never: allocates | changes errno | touches managed memory (the word must be pinned).
//! Threads: any, also in a signal handler. `wait` may return early: loop on the condition.

use crate::errno::Errno;
use crate::raw_call::raw_call;
use crate::threads::atomic::AtomicU32;
use core::time::Duration;

/// Why `wait` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Woken, interrupted, or the word did not hold `expected`: look at the word again.
    Look,
    /// The time has passed.
    TimedOut,
}

/// Sleeps while `word` holds `expected`, until woken, or for at most `timeout`.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Woken {
    #[cfg(feature = "schedules")]
    if let Some(scheduler) = crate::threads::schedule::current() {
        let is_over = crate::threads::schedules::wait(scheduler, word, expected, timeout.is_some());
        return if is_over { Woken::TimedOut } else { Woken::Look };
    }
    wait_on(word, expected, timeout, libc::FUTEX_PRIVATE_FLAG)
}

/// As `wait`, on a word in memory that processes share.
pub fn wait_shared(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Woken {
    wait_on(word, expected, timeout, 0)
}

/// As `wake`, on a word in memory that processes share.
pub fn wake_shared(word: &AtomicU32, n: u32) {
    let n = i32::try_from(n).unwrap_or(i32::MAX);
    // SAFETY: FUTEX_WAKE only uses the address, which is borrowed for the call.
    let _ = unsafe { raw_call!(SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, n) };
}

fn wait_on(word: &AtomicU32, expected: u32, timeout: Option<Duration>, flag: i32) -> Woken {
    let limit = timeout.map(|t| libc::timespec {
        tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: t.subsec_nanos() as libc::c_long,
    });
    let limit_ptr = limit.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: `word` is borrowed for the call and `limit` lives on this stack until it returns.
    let answer = unsafe {
        let operation = libc::FUTEX_WAIT | flag;
        raw_call!(SYS_futex, word.as_ptr(), operation, expected, limit_ptr)
    };
    if answer == Err(Errno::ETIMEDOUT) { Woken::TimedOut } else { Woken::Look }
}

/// Wakes at most `n` waiters of `word`; returns how many.
pub fn wake(word: &AtomicU32, n: u32) -> usize {
    #[cfg(feature = "schedules")]
    if let Some(scheduler) = crate::threads::schedule::current() {
        return scheduler.wake(word.as_ptr() as usize, n as usize);
    }
    let n = i32::try_from(n).unwrap_or(i32::MAX);
    // SAFETY: FUTEX_WAKE only uses the address, which is borrowed for the call.
    let answer = unsafe {
        let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        raw_call!(SYS_futex, word.as_ptr(), operation, n)
    };
    answer.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_does_not_sleep_when_the_word_has_changed() {
        assert_eq!(wait(&AtomicU32::new(1), 0, None), Woken::Look);
    }

    #[test]
    fn wait_ends_when_its_time_is_over() {
        let word = AtomicU32::new(7);
        assert_eq!(wait(&word, 7, Some(Duration::from_millis(5))), Woken::TimedOut);
        assert_eq!(wake(&word, u32::MAX), 0);
    }
}
