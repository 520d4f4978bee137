//! Strict tests: whether the tables of a map agree with each other and with its RAM.
//!
//! Never: is in a product: only builds with debug assertions have it.
//! Threads: any, not in a signal handler.

use core::sync::atomic::Ordering::Relaxed;

use deepheap_sys::PAGE;
use deepheap_sys::threads::signals::Blocked;

use crate::calls::access::stats;
use crate::calls::table::find;
use crate::log::tables::{INDEX, Tail};
use crate::tables::control::journal;
use crate::tables::ownership::Owned;

/// Whether tables and RAM agree. Says what does not.
///
/// It owns all shards at once, in ascending order: the evictors of other processes may be at work.
/// There is no deadlock, since nobody else waits for a shard while owning one.
pub fn check_invariants(address: *const u8) -> Result<(), String> {
    let region = find(address as usize).ok_or("no map")?;
    let _blocked = Blocked::all();
    let all: Vec<_> = (0..region.tables.shards()).map(|index| region.own(index)).collect();
    let mut entries = 0;
    for (index, owned) in all.iter().enumerate() {
        if owned.journal.load(Relaxed) != journal::IDLE {
            return Err(format!("the journal of shard {index} is not idle"));
        }
        let mut pages: Vec<u32> =
            (0..owned.pages.len()).filter_map(|entry| owned.page(entry)).collect();
        entries += pages.len() as u64;
        if owned.used() != pages.len() {
            return Err(format!("shard {index} counts {} of {}", owned.used(), pages.len()));
        }
        if let Some(page) = pages.iter().find(|page| !region.is_in_memory(**page)) {
            return Err(format!("page {page} has an entry and is a hole"));
        }
        pages.sort_unstable();
        pages.dedup();
        if owned.used() != pages.len() {
            return Err(format!("shard {index} has a page twice"));
        }
    }
    for owned in &all {
        check_index(owned)?;
    }
    let resident = stats(address).map_or(0, |stats| stats.resident_bytes) / PAGE as u64;
    if resident != entries {
        return Err(format!("{resident} pages are in RAM, {entries} have entries"));
    }
    let users = &region.tables.header().pipe_users;
    match users.iter().position(|user| user.load(Relaxed) != 0) {
        Some(pipe) => Err(format!("pipe {pipe} is in use")),
        None => Ok(()),
    }
}

/// Whether the index contradicts itself, the log or what is in RAM.
fn check_index(owned: &Owned<'_>) -> Result<(), String> {
    let Some(log) = owned.log() else { return Ok(()) };
    let mut pages = Vec::new();
    let end = Tail::of(log.log.words).end();
    for (page, logged) in (0..INDEX).filter_map(|place| log.shard.logged_at(place)) {
        pages.push(page);
        if logged.position >= end || logged.pieces == 0 {
            return Err(format!("page {page} is logged as {logged:?}, the log ends at {end}"));
        }
        if !logged.is_whole && owned.find(page).is_none() {
            return Err(format!("page {page} is in RAM no more, and its record is a part"));
        }
    }
    let count = pages.len();
    pages.sort_unstable();
    pages.dedup();
    if pages.len() == count { Ok(()) } else { Err("a page is in the index twice".to_owned()) }
}
