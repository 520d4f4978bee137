//! Lock: a futex mutex with brief spinning, the only lock of deepheap.
//!
//! Guarantees: const-constructible, zeroed memory is an unlocked lock, no allocation ever.
//! Never: poisons, is fair, is reentrant; is held while managed memory is touched.
//! Threads: any. Taken in a signal handler only if no code of the same thread can be interrupted
//! while it holds it (see `signals::Blocked`).

use crate::memory::pinned_array::Zeroed;
use crate::threads::atomic::AtomicU32;
use crate::threads::futex;
use crate::threads::tls;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

// FREE -> holder              [lock, try_lock]        holder -> FREE           [Guard::drop]
// holder -> holder | AWAITED  [lock, before sleeping] holder | AWAITED -> FREE [.., wakes one]
// The holder is its `tls::thread_id`: a fork in a handler must know the locks of the code that the
// handler interrupted, and one instruction takes the lock and says whose it is.
const FREE: u32 = 0;
const AWAITED: u32 = 1 << 31;

/// How often a waiter looks at the word before it sleeps: about 2 us.
const SPINS_MAX: u32 = if cfg!(feature = "schedules") { 1 } else { 100 };

/// A value that one thread at a time can use.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the guard hands out the value to one thread at a time, so sharing the lock sends the
// value.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: a lock owns its value.
unsafe impl<T: Send> Send for Lock<T> {}
// SAFETY: state 0 is FREE, and a zeroed value is valid by T's own promise.
unsafe impl<T: Zeroed> Zeroed for Lock<T> {}

/// The right to use the value; given up on drop.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Lock { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits until no other thread has the value, and takes it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let id = tls::thread_id();
        if self.state.compare_exchange(FREE, id, Acquire, Relaxed).is_err() {
            self.lock_slowly(id);
        }
        Guard { lock: self }
    }

    /// As `lock`; None if this very thread has the value, in code that a handler has interrupted.
    pub fn lock_unless_mine(&self) -> Option<Guard<'_, T>> {
        let holder = self.state.load(Relaxed) & !AWAITED;
        (holder != tls::thread_id()).then(|| self.lock())
    }

    /// Takes the value if no other thread has it now.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.state.compare_exchange(FREE, tls::thread_id(), Acquire, Relaxed).ok()?;
        Some(Guard { lock: self })
    }

    /// The value of a lock that no other thread can see.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Frees the lock in the child of a fork, whatever thread of the parent held it.
    ///
    /// # Safety
    /// No thread of this process holds a guard: its holder lived in another process. The value must
    /// be whole: either the lock was taken before the fork by the forking thread, which then forgot
    /// its guard, or the caller repairs the value.
    pub unsafe fn force_unlock(&self) {
        self.state.store(FREE, Release);
    }

    /// Frees the lock as the drop of its guard, which was forgotten, would have.
    ///
    /// # Safety
    /// A thread of this process took the lock and forgot its guard.
    pub unsafe fn unlock_forgotten(&self) {
        drop(Guard { lock: self });
    }

    #[cold]
    fn lock_slowly(&self, id: u32) {
        for _ in 0..SPINS_MAX {
            core::hint::spin_loop();
            if self.state.load(Relaxed) == FREE
                && self.state.compare_exchange(FREE, id, Acquire, Relaxed).is_ok()
            {
                return;
            }
        }
        // From here on take it as AWAITED: others may sleep, and only the word tells of them.
        loop {
            let word = self.state.load(Relaxed);
            let next = if word == FREE { id | AWAITED } else { word | AWAITED };
            if self.state.compare_exchange(word, next, Acquire, Relaxed).is_ok() {
                if word == FREE {
                    return;
                }
                futex::wait(&self.state, next, None);
            }
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only between taking FREE and giving it back: we are alone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in deref, and the guard itself is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.state.swap(FREE, Release) & AWAITED != 0 {
            futex::wake(&self.lock.state, 1);
        }
    }
}

// SAFETY: a shared guard only lends `&T`.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_lets_one_thread_at_a_time_in() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 50_000;
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), THREADS * ROUNDS);
    }

    #[test]
    fn a_thread_knows_the_lock_that_is_its_own() {
        let lock = Lock::new(7);
        let guard = lock.lock();
        assert!(lock.lock_unless_mine().is_none());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| lock.lock_unless_mine().map(|guard| *guard));
            drop(guard);
            assert_eq!(other.join().unwrap(), Some(7));
        });
        assert_eq!(lock.lock_unless_mine().map(|guard| *guard), Some(7));
    }

    #[test]
    fn try_lock_answers_none_while_held_and_force_unlock_frees() {
        let lock = Lock::new(());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        core::mem::forget(guard);
        // SAFETY: the only guard was forgotten.
        unsafe { lock.force_unlock() };
        assert!(lock.try_lock().is_some());
    }
}
