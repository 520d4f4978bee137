//! Schedules: what the feature of that name puts in the place of atomics, futexes and identities of
//! threads, for tests that decide which thread runs (`schedule`). No product has it.
//!
//! A scheduler may also decide what a thread sees: each operation on an atomic, with its order, is
//! its own to do (`access`). The memory always holds the newest value.
//!
//! Threads: those of a scheduler run one at a time.

// As documented for those of the core library.
#![allow(missing_docs)]

use core::cell::Cell;
use core::panic::Location;
use core::sync::atomic::{self, Ordering};

use crate::memory::pinned_array::Zeroed;

/// An atomic in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    pub address: usize,
    pub bytes: usize,
}

impl Word {
    /// The value in memory.
    pub fn read(self) -> u64 {
        let (at, mut value) = (self.address as *const u8, [0; 8]);
        // SAFETY: an atomic that its user borrows; the threads of a scheduler run one at a time.
        unsafe { at.copy_to_nonoverlapping(value.as_mut_ptr(), self.bytes) };
        u64::from_le_bytes(value)
    }

    /// Puts a value into memory.
    pub fn write(self, value: u64) {
        let bytes = value.to_le_bytes();
        // SAFETY: as in `read`.
        unsafe { (self.address as *mut u8).copy_from(bytes.as_ptr(), self.bytes) };
    }

    /// Does an operation in memory; answers the value before it.
    pub fn do_now(self, access: &Access<'_>) -> u64 {
        let now = self.read();
        let next = match access {
            Access::Load(_) => None,
            Access::Store(value, _) => Some(*value),
            Access::Change(change, ..) => change(now),
        };
        next.into_iter().for_each(|next| self.write(next));
        now
    }
}

/// What is done with an atomic.
pub enum Access<'a> {
    Load(Ordering),
    Store(u64, Ordering),
    /// It becomes what the function makes of it, or stays. The orders: if it changes, if it stays.
    Change(&'a dyn Fn(u64) -> Option<u64>, Ordering, Ordering),
}

/// Decides which thread runs.
pub trait Scheduler {
    /// Another thread may run; `must_yield`: this one waits for what others do.
    fn point(&self, must_yield: bool);
    /// Does an operation on an atomic; answers the value before it, of a load what it reads.
    fn access(&self, word: Word, access: &Access<'_>, _from: &'static Location<'static>) -> u64 {
        self.point(false);
        word.do_now(access)
    }
    /// A fence.
    fn fence(&self, _order: Ordering, _from: &'static Location<'static>) {}
    /// What a thread sees that is about to sleep by this word.
    fn look(&self, word: Word) -> u64 {
        word.read()
    }
    /// The thread sleeps until it is woken by this word. No other thread has run since it
    /// looked at the word.
    fn sleep(&self, word: usize);
    /// Wakes up to `most` threads that sleep by this word; answers how many.
    fn wake(&self, word: usize, most: usize) -> usize;
    /// The number of the thread that is running, never 0.
    fn thread(&self) -> usize;
}

thread_local! {
    static SCHEDULER: Cell<Option<&'static dyn Scheduler>> = const { Cell::new(None) };
}

/// Sets the scheduler of this thread, or takes it away.
pub fn set(scheduler: Option<&'static dyn Scheduler>) {
    SCHEDULER.set(scheduler);
}

/// The scheduler of this thread.
pub fn current() -> Option<&'static dyn Scheduler> {
    SCHEDULER.get()
}

/// A point at which another thread may go on.
#[inline]
pub fn point() {
    if let Some(scheduler) = current() {
        scheduler.point(false);
    }
}

/// Waits as `futex::wait` does. True: the time is over.
pub(crate) fn wait(
    scheduler: &dyn Scheduler,
    word: &AtomicU32,
    expected: u32,
    has_limit: bool,
) -> bool {
    let now = scheduler.look(word.word()) as u32;
    if now == expected && has_limit {
        // Time passes only when other threads run.
        scheduler.point(true);
        return true;
    }
    if now == expected {
        scheduler.sleep(word.as_ptr() as usize);
    }
    false
}

/// A fence.
#[track_caller]
pub fn fence(order: Ordering) {
    match current() {
        Some(scheduler) => scheduler.fence(order, Location::caller()),
        None => atomic::fence(order),
    }
}

/// A value of an atomic, as 64 bits.
trait Value: Copy {
    fn to_bits(self) -> u64;
    fn of_bits(bits: u64) -> Self;
}

macro_rules! value {
    ($($value:ty),*) => {$(
        impl Value for $value {
            fn to_bits(self) -> u64 {
                self as u64 & u64::MAX >> (64 - 8 * size_of::<Self>())
            }

            fn of_bits(bits: u64) -> Self {
                bits as Self
            }
        }
    )*};
}

value!(u8, u16, u32, u64, i32, usize);

impl Value for bool {
    fn to_bits(self) -> u64 {
        u64::from(self)
    }

    fn of_bits(bits: u64) -> Self {
        bits != 0
    }
}

/// Operations that take a value and answer the previous one: what each makes of the two.
macro_rules! forward {
    ($value:ty: $($name:ident = $new:expr),*) => {$(
        #[track_caller]
        pub fn $name(&self, value: $value, order: Ordering) -> $value {
            let new: fn($value, $value) -> $value = $new;
            match current() {
                Some(scheduler) => {
                    let change = |now| Some(new(Value::of_bits(now), value).to_bits());
                    let access = Access::Change(&change, order, order);
                    Value::of_bits(scheduler.access(self.word(), &access, Location::caller()))
                }
                None => self.0.$name(value, order),
            }
        }
    )*};
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(atomic::$name);

        // SAFETY: an atomic and nothing else: every bit pattern of a number is one, and zero
        // is false.
        unsafe impl Zeroed for $name {}

        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            /// # Safety
            /// As for that of the core library.
            pub const unsafe fn from_ptr<'a>(word: *mut $value) -> &'a Self {
                // SAFETY: the caller's promise; nothing but the atomic is in it.
                unsafe { &*word.cast() }
            }

            pub const fn as_ptr(&self) -> *mut $value {
                self.0.as_ptr()
            }

            pub(crate) fn word(&self) -> Word {
                Word { address: self.as_ptr() as usize, bytes: size_of::<$value>() }
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                match current() {
                    Some(scheduler) => {
                        let access = Access::Load(order);
                        Value::of_bits(scheduler.access(self.word(), &access, Location::caller()))
                    }
                    None => self.0.load(order),
                }
            }

            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                match current() {
                    Some(scheduler) => {
                        let access = Access::Store(value.to_bits(), order);
                        scheduler.access(self.word(), &access, Location::caller());
                    }
                    None => self.0.store(value, order),
                }
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let Some(scheduler) = current() else {
                    return self.0.compare_exchange(from, to, success, failure);
                };
                let change = |now: u64| (now == from.to_bits()).then_some(to.to_bits());
                let access = Access::Change(&change, success, failure);
                let now = scheduler.access(self.word(), &access, Location::caller());
                let was = Value::of_bits(now);
                if now == from.to_bits() { Ok(was) } else { Err(was) }
            }

            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(from, to, success, failure)
            }

            forward!($value:
                swap = |_, new| new,
                fetch_or = |a, b| a | b,
                fetch_and = |a, b| a & b
            );

            #[track_caller]
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut seen = self.load(failure);
                while let Some(next) = change(seen) {
                    match self.compare_exchange(seen, next, success, failure) {
                        Ok(before) => return Ok(before),
                        Err(now) => seen = now,
                    }
                }
                Err(seen)
            }
        }
    };
}

macro_rules! number {
    ($name:ident, $value:ty) => {
        atomic!($name, $value);

        impl $name {
            forward!($value:
                fetch_add = |a, b| a.wrapping_add(b),
                fetch_sub = |a, b| a.wrapping_sub(b),
                fetch_max = |a, b| a.max(b)
            );
        }
    };
}

atomic!(AtomicBool, bool);
number!(AtomicU8, u8);
number!(AtomicU16, u16);
number!(AtomicU32, u32);
number!(AtomicU64, u64);
number!(AtomicI32, i32);
number!(AtomicUsize, usize);
