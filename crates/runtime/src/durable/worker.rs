//! Worker: the thread that makes the checkpoints of a durable heap that the program does not make
//! itself: what it asked for (`checkpoint_async`), and one after each interval (`checkpoint:10s`).
//!
//! A request is a number, its *ticket*. The cut of a checkpoint reads the last one, and the
//! checkpoint serves all requests until then, so many requests become one checkpoint.
//!
//! ```text
//!   asked ──a cut reads the tickets, the checkpoint is durable──► served
//!         └─the worker's checkpoint fails──► failed ──a later one is durable──► served
//! ```
//!
//! Guarantees: a thread that waits for a ticket learns that what the heap held at the request is
//! durable, or why it is not. The worker makes no checkpoint while the heap is being closed.
//! Never: touches managed memory; runs in a forked child; does anything at rest, unless there is an
//! interval.
//! Threads: `serve` is the worker's. Everything else: any, outside the fault path; `asked` and
//! `made` also in a checkpoint.

use core::time::Duration;

use deepheap_pager::CutError;
use deepheap_sys::process::clock;
use deepheap_sys::say;
use deepheap_sys::threads::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use deepheap_sys::threads::futex;
use deepheap_sys::threads::lock::{Guard, Lock};
use deepheap_sys::threads::signals::Blocked;

use crate::durable::error::CheckpointError;

/// How often the worker tries what was asked for while a system call or the log is in the way.
const ATTEMPTS: u32 = 3;
/// The pause between.
const PAUSE: Duration = Duration::from_millis(250);

/// The outcome of a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checkpoint {
    /// Checkpoints of a heap are counted from 1, its creation.
    pub number: u64,
    /// How long a thread that wrote to memory in RAM was held up, at most.
    pub pause: Duration,
    /// How long threads were held up that allocated, freed, or touched what was not in RAM.
    pub cut: Duration,
    /// How long it took.
    pub time: Duration,
    /// Objects that were written for it.
    pub objects: u64,
    /// Bytes of tables that were written for it.
    pub table_bytes: u64,
    /// The last ticket that it serves.
    pub(crate) served: u64,
    /// Marks that change with the heap, as they were at the cut.
    pub(crate) marks: Marks,
}

/// Counts of which one at least is another when the heap is another, unless the difference is in
/// objects that are in RAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) allocated_bytes: usize,
    pub(crate) objects: usize,
    pub(crate) roots_set: u64,
    pub(crate) blocks_appended: u64,
    pub(crate) live_bytes: u64,
}

/// Why the worker is to make a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Asked,
    /// The interval is over: only if anything has changed.
    Interval,
}

/// Requests for a heap's checkpoints, and their outcomes.
#[derive(Default)]
pub(crate) struct Requests {
    /// The last ticket.
    asked: AtomicU64,
    state: Lock<WorkerState>,
    /// Changes when the worker may have something to do.
    for_worker: AtomicU32,
    /// Changes when a waiting thread may go on.
    for_waiters: AtomicU32,
}

#[derive(Default)]
struct WorkerState {
    newest: Checkpoint,
    /// The last ticket that the worker's last checkpoint was for, which failed, and why.
    failed: Option<(u64, CheckpointError)>,
    phase: Phase,
    is_making: bool,
}

/// `Open -> Closing [pause]`, `Closing -> Open [go_on]`, `Closing -> Ended [end]`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    Closing,
    Ended,
}

enum Next {
    Make(Why),
    /// At most so long.
    Sleep(Option<Duration>),
    End,
}

impl Requests {
    /// Takes a ticket.
    pub(crate) fn ask(&self) -> u64 {
        let ticket = self.asked.fetch_add(1, SeqCst) + 1;
        wake(&self.for_worker);
        ticket
    }

    /// The last ticket.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(SeqCst)
    }

    /// Notes a checkpoint that is durable.
    pub(crate) fn made(&self, made: &Checkpoint) {
        let mut state = self.state();
        (state.0.newest, state.0.failed) = (*made, None);
        drop(state);
        wake(&self.for_waiters);
    }

    /// The newest checkpoint, or why the worker has failed to make one since.
    pub(crate) fn newest(&self) -> Result<Checkpoint, CheckpointError> {
        let state = self.state();
        state.0.failed.map_or(Ok(state.0.newest), |(_, error)| Err(error))
    }

    /// Marks that change with the heap, as they were at the newest checkpoint.
    pub(crate) fn marks(&self) -> Marks {
        self.state().0.newest.marks
    }

    /// Whether a checkpoint served all tickets.
    pub(crate) fn are_served(&self) -> bool {
        self.state().0.newest.served >= self.asked()
    }

    /// Waits until a ticket is served, or has failed. Answers the newest checkpoint.
    pub(crate) fn wait(&self, ticket: u64) -> Result<Checkpoint, CheckpointError> {
        loop {
            let seen = self.for_waiters.load(SeqCst);
            let state = self.state();
            match state.0.failed {
                _ if state.0.newest.served >= ticket => return Ok(state.0.newest),
                Some((failed, error)) if failed >= ticket => return Err(error),
                _ if state.0.phase == Phase::Ended => return Err(CheckpointError::Closed),
                _ => {}
            }
            drop(state);
            futex::wait(&self.for_waiters, seen, None);
        }
    }

    /// Waits until the worker makes no checkpoint; it begins none until `go_on`.
    pub(crate) fn pause(&self) {
        self.state().0.phase = Phase::Closing;
        loop {
            let seen = self.for_waiters.load(SeqCst);
            if !self.state().0.is_making {
                return;
            }
            futex::wait(&self.for_waiters, seen, None);
        }
    }

    /// The heap stays open.
    pub(crate) fn go_on(&self) {
        self.state().0.phase = Phase::Open;
        wake(&self.for_worker);
    }

    /// The worker ends, after `pause`.
    pub(crate) fn end(&self) {
        self.state().0.phase = Phase::Ended;
        wake(&self.for_worker);
        wake(&self.for_waiters);
    }

    /// The worker: makes what is asked for, and one every so often, until the heap is closed.
    /// `make` answers none if there is nothing to do any more. The first failure is said, with
    /// `name`.
    pub(crate) fn serve(
        &self,
        every: Option<Duration>,
        name: &str,
        make: &dyn Fn(Why) -> Result<Option<Checkpoint>, CheckpointError>,
    ) {
        let after = |now_ns: u64| every.map(|every| now_ns + every.as_nanos() as u64);
        let mut next_ns = after(clock::monotonic_ns());
        let (mut attempts, mut is_said) = (0, false);
        loop {
            let seen = self.for_worker.load(SeqCst);
            let why = match self.begin(next_ns) {
                Next::Make(why) => why,
                Next::Sleep(limit) => {
                    futex::wait(&self.for_worker, seen, limit);
                    continue;
                }
                Next::End => return,
            };
            let asked = self.asked();
            let made = make(why);
            attempts += 1;
            let is_in_the_way =
                matches!(made, Err(CheckpointError::Cut(CutError::Busy | CutError::InUse)));
            let is_again = why == Why::Asked && is_in_the_way && attempts < ATTEMPTS;
            if let Err(error) = made
                && !is_again
            {
                if !is_said {
                    is_said = true;
                    let (is_asked, text) = (why == Why::Asked, error.to_string());
                    say!(
                        name,
                        ": no checkpoint could be made: ",
                        &*text,
                        if is_asked { "" } else { "; it is tried again" }
                    );
                }
                self.state().0.failed = Some((asked, error));
            }
            self.state().0.is_making = false;
            wake(&self.for_waiters);
            if is_again {
                futex::wait(&self.for_worker, self.for_worker.load(SeqCst), Some(PAUSE));
            } else {
                attempts = 0;
                next_ns = after(clock::monotonic_ns());
            }
        }
    }

    /// The next work of the worker.
    fn begin(&self, next_ns: Option<u64>) -> Next {
        let mut state = self.state();
        let done = state.0.failed.map_or(0, |(failed, _)| failed).max(state.0.newest.served);
        let now_ns = clock::monotonic_ns();
        let why = match (state.0.phase, next_ns) {
            (Phase::Ended, _) => return Next::End,
            (Phase::Closing, _) => return Next::Sleep(None),
            (Phase::Open, _) if self.asked() > done => Why::Asked,
            (Phase::Open, Some(next_ns)) if next_ns <= now_ns => Why::Interval,
            (Phase::Open, Some(next_ns)) => {
                return Next::Sleep(Some(Duration::from_nanos(next_ns - now_ns)));
            }
            (Phase::Open, None) => return Next::Sleep(None),
        };
        state.0.is_making = true;
        Next::Make(why)
    }

    /// A handler of the program that came in between would wait for itself.
    fn state(&self) -> (Guard<'_, WorkerState>, Blocked) {
        let blocked = Blocked::all();
        (self.state.lock(), blocked)
    }
}

fn wake(word: &AtomicU32) {
    word.fetch_add(1, SeqCst);
    futex::wake(word, u32::MAX);
}
