//! Patience: whether a thread that makes room waits for other threads.

/// Whether a thread that makes room waits for what other threads have: a packer, the head of the
/// log, a free segment, the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// Until it has room, or there is none to be had.
    Waits,
    /// It makes the room that it can make at once: others make room, and it waits in line for that
    /// (`room`). A free lock goes to the thread that runs just then, so that a thread in the queue
    /// of a busy one may sleep for many turns of the others.
    AtOnce,
}
