//! Private table: where private maps are.
//!
//! Threads: any, with all signals blocked, under the lock, which comes before that of the areas. A
//! fork holds it, so that no private map comes or goes meanwhile.

use deepheap_sys::threads::lock::{Guard, Lock};

/// Private maps at a time.
const PRIVATE_MAX: usize = deepheap_pager::SOURCES_MAX;

/// Where each begins, and how many bytes it has; (0, 0): free.
pub(crate) type Table = [(usize, usize); PRIVATE_MAX];

static MAPS: Lock<Table> = Lock::new([(0, 0); PRIVATE_MAX]);

/// The table, for as long as the guard lives.
pub(crate) fn lock() -> Guard<'static, Table> {
    MAPS.lock()
}
