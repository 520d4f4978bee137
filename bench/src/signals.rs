//! Signals: SIGINT, SIGTERM and SIGHUP end the children, so that the run unwinds and cleans up.
//!
//! Guarantees: after a signal no watched child lives on and `interrupted` answers.
//! Never: does anything in the handler but kill(2) and a store.
//! Threads: installed once by the main thread; up to `WATCHED_MAX` children at a time.

use core::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use crate::failure::Failure;

const WATCHED_MAX: usize = 8;
static WATCHED: [AtomicI32; WATCHED_MAX] = [const { AtomicI32::new(0) }; WATCHED_MAX];
static ARRIVED: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_signal(signal: i32) {
    ARRIVED.store(signal, Ordering::SeqCst);
    for slot in &WATCHED {
        kill(slot.load(Ordering::SeqCst));
    }
}

/// Kills a process, or, by its negative number, a group of them.
fn kill(pid: i32) {
    if pid != 0 {
        // SAFETY: kill has no memory preconditions; the pid is a child that was not reaped yet, or
        // the group that it leads.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// Takes over the signals that would end this process.
pub fn install() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: a sigaction of zeros is valid: no flags, empty mask.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
        // SAFETY: a valid action whose handler is async-signal-safe.
        unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) };
    }
}

/// Ok until a signal arrived.
pub fn interrupted() -> Result<(), Failure> {
    match ARRIVED.load(Ordering::SeqCst) {
        0 => Ok(()),
        signal => Err(Failure::Interrupted(signal)),
    }
}

/// Sleeps, and wakes early with an error when a signal arrives.
pub fn sleep(duration: Duration) -> Result<(), Failure> {
    let end = Instant::now() + duration;
    loop {
        interrupted()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// A child that a signal to us kills, as long as this value lives.
#[derive(Debug)]
pub struct Watched {
    slot: usize,
}

impl Watched {
    /// Watches a child; drop the value after it was waited for.
    pub fn new(pid: u32) -> Result<Self, Failure> {
        Self::listed(pid as i32)
    }

    /// Watches a child that leads a process group (`process_group(0)`), and all of the group.
    pub fn group(leader: u32) -> Result<Self, Failure> {
        Self::listed(-(leader as i32))
    }

    /// Kills what is watched.
    pub fn kill(&self) {
        kill(WATCHED[self.slot].load(Ordering::SeqCst));
    }

    fn listed(pid: i32) -> Result<Self, Failure> {
        let taken = WATCHED.iter().position(|slot| {
            slot.compare_exchange(0, pid, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        });
        let slot = taken.ok_or_else(|| Failure::Failed("too many children".into()))?;
        if interrupted().is_err() {
            // The signal may have come before the child was listed.
            kill(pid);
        }
        Ok(Self { slot })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        WATCHED[self.slot].store(0, Ordering::SeqCst);
    }
}

/// Makes a child die with its parent, also by SIGKILL.
pub fn die_with_parent(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let parent = std::process::id() as i32;
    // SAFETY: between fork and exec only prctl and getppid are called, both async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 || libc::getppid() != parent
            {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        })
    };
}
