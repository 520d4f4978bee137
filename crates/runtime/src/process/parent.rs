//! Parent: the `deepheap run` that waits for this process and tells how it went, however it ends.
//!
//! This process hands the file of its statistics page to it, so that the last counters are there
//! when this process is not. Nothing runs when it ends, so a signal, `exit_group` and the kernel's
//! OOM killer are all the same.
//!
//! Guarantees: a process that finds at its exit that there is no parent any more tells of itself.
//! Never: touches managed memory.
//! Threads: any, outside the fault path.

use core::sync::atomic::{AtomicBool, Ordering};

use deepheap_sys::files::descriptor_mail;
use deepheap_sys::process::environment;

use crate::stats::page::StatsPage;

/// Names the letter box of the parent, for the program and its children.
pub const PARENT_VARIABLE: &str = "DEEPHEAP_PARENT";

/// Where it is told of this process.
#[derive(Default)]
pub(crate) struct Parent {
    /// The name of its letter box; empty if there is none.
    letter_box: String,
    knows: AtomicBool,
}

impl Parent {
    /// As the environment says; for the start, before the environment can be managed memory.
    pub(crate) fn of_environment() -> Parent {
        let name = environment::variable(PARENT_VARIABLE).and_then(|name| name.into_string().ok());
        Parent { letter_box: name.unwrap_or_default(), knows: AtomicBool::new(false) }
    }

    /// Whether there was one at the start.
    pub(crate) fn is_there(&self) -> bool {
        !self.letter_box.is_empty()
    }

    /// Hands the page to it, if it does not have it.
    pub(crate) fn introduce(&self, page: &StatsPage) {
        if self.is_there() && !self.knows.load(Ordering::Relaxed) {
            self.knows.store(self.tells(page), Ordering::Relaxed);
        }
    }

    /// At the exit: whether it will tell of this process. It drops a page that it has.
    pub(crate) fn tells(&self, page: &StatsPage) -> bool {
        let file = page.file().filter(|_| self.is_there());
        file.is_some_and(|file| descriptor_mail::send(&self.letter_box, file).is_ok())
    }

    /// In the child of a fork, which has a page of its own.
    pub(crate) fn forget(&self) {
        self.knows.store(false, Ordering::Relaxed);
    }
}
