//! Durable ticket: a checkpoint that the heap's worker makes while the program goes on.
//!
//! Guarantees: when `wait` has answered a checkpoint, what the heap held at the request is durable.
//! Threads: any, outside the fault path.

use crate::durable::DurableHeap;
use crate::durable::error::CheckpointError;
use crate::durable::worker::Checkpoint;

/// The request for a checkpoint.
#[derive(Clone, Copy)]
#[must_use = "only who waits learns whether the checkpoint was made"]
pub struct Ticket {
    heap: DurableHeap,
    number: u64,
}

impl DurableHeap {
    /// Asks for a checkpoint of what the heap holds now, and does not wait for it. Requests that
    /// come before the worker's checkpoint has begun become one. `close` serves what was asked for.
    pub fn checkpoint_async(&self) -> Ticket {
        // A forked child is told when it waits.
        let number = if self.is_open() { self.durable.requests.ask() } else { 0 };
        Ticket { heap: *self, number }
    }

    /// The ticket of this number; none if none was handed out.
    pub fn ticket(&self, number: u64) -> Option<Ticket> {
        let is_one = !self.is_open() || (1..=self.durable.requests.asked()).contains(&number);
        is_one.then_some(Ticket { heap: *self, number })
    }

    /// The newest checkpoint, whoever made it.
    ///
    /// # Errors
    /// Why the worker failed to make one, if it has made none since.
    pub fn newest_checkpoint(&self) -> Result<Checkpoint, CheckpointError> {
        self.pager()?;
        self.durable.requests.newest()
    }
}

impl Ticket {
    /// Its number, from 1 on; they grow.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Waits until a checkpoint holds what the heap held at the request. Answers the newest one.
    ///
    /// # Errors
    /// Why it could not be made; the last checkpoint is what it was. If a later one has been made
    /// by now there is no error: that one holds it, too.
    pub fn wait(&self) -> Result<Checkpoint, CheckpointError> {
        self.heap.pager()?;
        self.heap.durable.requests.wait(self.number)
    }
}
