//! Boxed: one value of plain data as an object, owned like a `Box`.
//!
//! Guarantees: `get`, `set`, `gather` and `scatter` copy the value as bytes, without a page fault,
//! and return an error if the device fails. `Deref` gives a reference to the memory itself: there a
//! failed device stops the access with SIGBUS.
//! Never: reads a value in to free it.
//! Threads: as `Box<T>`: the borrow checker keeps writers and readers apart.

use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use deepheap_heap::PAGE;

use crate::memory::allocate::free;
use crate::objects::{self, Advice, ObjectError};

/// A value as an object of its own.
///
/// `T: Copy` has no destructor, so it can be freed unseen, and moves as bytes, padding and all.
///
/// ```no_run
/// use deepheap::ObjectBox;
///
/// #[derive(Clone, Copy)]
/// struct User {
///     id: u64,
///     visits: u64,
/// }
///
/// # fn main() -> Result<(), deepheap::objects::ObjectError> {
/// let mut users = Vec::new();
/// for id in 0..1_000_000 {
///     users.push(ObjectBox::new(User { id, visits: 0 })?);
/// }
/// users[7].visits += 1; // as with any Box
/// let user = users[7].get()?; // a copy, without a page fault
/// let batch = ObjectBox::gather(&users[100..164])?; // 64 reads under way together
/// let pinned = users[7].pin()?; // in RAM until it is dropped
/// # let _ = (user.id, batch.len(), pinned.visits);
/// # Ok(())
/// # }
/// ```
#[repr(transparent)]
pub struct ObjectBox<T: Copy + 'static>(NonNull<T>);

// SAFETY: it owns its value and reaches nothing else, as a Box does.
unsafe impl<T: Copy + Send + 'static> Send for ObjectBox<T> {}
// SAFETY: shared, it only reads its value, as a Box does.
unsafe impl<T: Copy + Sync + 'static> Sync for ObjectBox<T> {}

impl<T: Copy + 'static> ObjectBox<T> {
    /// Larger ones are written page by page: a write that failed could leave half a value.
    const IS_POSSIBLE: () =
        assert!(size_of::<T>() <= PAGE && align_of::<T>() <= PAGE, "a value takes a page at most");

    /// Allocates an object that holds `value`.
    ///
    /// # Errors
    /// `ObjectError::Resources` if neither RAM nor store can take it; what `set` answers.
    pub fn new(value: T) -> Result<ObjectBox<T>, ObjectError> {
        const { Self::IS_POSSIBLE };
        // Its size is a multiple of its alignment, and objects are aligned for their size.
        let object = objects::allocate(1, size_of::<T>().max(align_of::<T>())).cast::<T>();
        let mut object = ObjectBox(NonNull::new(object).ok_or(ObjectError::Resources)?);
        object.set(value)?;
        Ok(object)
    }

    /// A copy of the value.
    ///
    /// # Errors
    /// `ObjectError::Unreadable`, `NoRoom` or `Resources`.
    pub fn get(&self) -> Result<T, ObjectError> {
        let mut value = MaybeUninit::<T>::uninit();
        // SAFETY: the object is live while it is borrowed; the room is as long as the value.
        unsafe {
            objects::read(self.address(), 0, value.as_mut_ptr().cast(), size_of::<T>())?;
            // A T has been there since `new`, and only as bytes of a T.
            Ok(value.assume_init())
        }
    }

    /// Takes another value.
    ///
    /// # Errors
    /// As `get`; the value is the old one then.
    pub fn set(&mut self, value: T) -> Result<(), ObjectError> {
        let (object, bytes) = (self.0.as_ptr().cast(), (&raw const value).cast());
        // SAFETY: the object is live and borrowed by us alone; the value is that long.
        unsafe { objects::write(object, 0, bytes, size_of::<T>()) }
    }

    /// Copies of the values of many objects, in order. One thread keeps the device busy with it.
    ///
    /// # Errors
    /// As `get`.
    pub fn gather(boxes: &[ObjectBox<T>]) -> Result<Vec<T>, ObjectError> {
        let mut values = Vec::<T>::new();
        values.try_reserve_exact(boxes.len()).map_err(|_| ObjectError::Resources)?;
        while values.len() < boxes.len() {
            let rest = &boxes[values.len()..];
            let buffer = values.spare_capacity_mut().as_mut_ptr().cast();
            // SAFETY: boxes are pointers to live objects; the vector has room for as many values,
            // and what has been copied is one.
            unsafe {
                let length = size_of::<T>();
                let done = objects::gather(rest.as_ptr().cast(), rest.len(), 0, length, buffer)?;
                values.set_len(values.len() + some(done, rest.len())?);
            }
        }
        Ok(values)
    }

    /// Gives many objects new values, in order.
    ///
    /// # Errors
    /// `OutOfBounds` if there are not as many values as objects, otherwise as `set`; each object
    /// has its old or its new value then.
    pub fn scatter(boxes: &mut [ObjectBox<T>], values: &[T]) -> Result<(), ObjectError> {
        if boxes.len() != values.len() {
            return Err(ObjectError::OutOfBounds);
        }
        let mut at = 0;
        while at < boxes.len() {
            let (rest, buffer) = (&mut boxes[at..], values[at..].as_ptr().cast());
            let (objects, count) = (rest.as_mut_ptr().cast(), rest.len());
            // SAFETY: boxes are pointers to live objects, borrowed by us alone, and there is a
            // value for each.
            let done = unsafe { objects::scatter(objects, count, 0, size_of::<T>(), buffer) }?;
            at += some(done, count)?;
        }
        Ok(())
    }

    /// Starts to bring objects into RAM; answers how many were started.
    ///
    /// # Errors
    /// As `get`.
    pub fn prefetch(boxes: &[ObjectBox<T>]) -> Result<usize, ObjectError> {
        // SAFETY: boxes are pointers to live objects.
        unsafe { objects::prefetch(boxes.as_ptr().cast(), boxes.len()) }
    }

    /// Tells how the value will be used. A hint: nothing depends on it but speed.
    ///
    /// # Errors
    /// None, as long as the box owns its object.
    pub fn advise(&self, advice: Advice) -> Result<(), ObjectError> {
        objects::advise(self.address(), advice)
    }

    /// Keeps the value in RAM, touchable without a fault, until the guard is dropped.
    ///
    /// # Errors
    /// `ObjectError::Resources` if all that is pinned would be more than half of the page buffer.
    pub fn pin(&self) -> Result<Pinned<'_, T>, ObjectError> {
        objects::pin(self.address())?;
        Ok(Pinned(self))
    }

    /// Where the object is.
    pub fn address(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }

    /// Gives up ownership; `from_raw` takes it back.
    pub fn into_raw(self) -> NonNull<T> {
        ManuallyDrop::new(self).0
    }

    /// Owns what `into_raw` gave up.
    ///
    /// # Safety
    /// `object` came from `into_raw` and has no other owner.
    pub unsafe fn from_raw(object: NonNull<T>) -> ObjectBox<T> {
        ObjectBox(object)
    }
}

impl<T: Copy + 'static> Deref for ObjectBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: a live object, aligned for T, that holds a T; nobody writes while it is borrowed.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Copy + 'static> DerefMut for ObjectBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and borrowed by nobody else.
        unsafe { self.0.as_mut() }
    }
}

impl<T: Copy + 'static> Drop for ObjectBox<T> {
    fn drop(&mut self) {
        // SAFETY: the object is ours, and nobody has it afterwards.
        unsafe { free(self.0.as_ptr().cast()) };
    }
}

/// A value that stays in RAM while this lives.
pub struct Pinned<'a, T: Copy + 'static>(&'a ObjectBox<T>);

impl<T: Copy + 'static> Deref for Pinned<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T: Copy + 'static> Drop for Pinned<'_, T> {
    fn drop(&mut self) {
        // It is a live object, as it was when it was pinned: there is nothing to be told.
        let _ = objects::unpin(self.0.address());
    }
}

/// How many of `count` objects a call has done: one at least, or it would have been an error.
fn some(done: usize, count: usize) -> Result<usize, ObjectError> {
    if (1..=count).contains(&done) { Ok(done) } else { Err(ObjectError::Resources) }
}
