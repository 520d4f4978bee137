//! Residency: where each object is, and what moves it from one place to another.
//!
//! An object is `Zero`, `Stored` in a block, `Cached` in a slot, or `Resident` in the page buffer
//! (`ownership`). The engines of the pager choose what moves, when, and by whose thread. Here are
//! the places themselves, and the tokens without which nothing moves:
//!
//! | token | stands for | dropped otherwise |
//! |---|---|---|
//! | `ownership::Owned` | the right to move one object | stops a debug build |
//! | `page_buffer::Reserved` | pages of the page buffer | gives them back |
//! | `object_cache::Slot` | room for one object in the cache | gives it back |
//! | `Promise` | room in the store for a page of memory | gives it back |
//!
//! `edges` has one function for each edge between two places.
//!
//! Guarantees: an object has one owner at most, and one place; a slot of the cache has one owner;
//! the page buffer is within its limit but for the exceptions that `page_buffer` lists.
//! Never: decides what moves; allocates after construction; touches managed memory through a
//! reference; waits for another object while an object is owned.
//! Threads: any, also in a signal handler, inside the pager's gate.

#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod codec;
pub mod contents;
pub mod counters;
mod edges;
pub mod frames;
pub mod object_cache;
pub mod ownership;
pub mod page_buffer;
pub mod promises;
pub mod ranges;
pub mod saved_places;
pub mod staging;
mod staging_room;
pub mod trace;

pub use edges::{Promise, Residency};

use deepheap_heap::PAGE;

const _: () = assert!(PAGE == deepheap_policy::PAGE);

/// The heap promises blocks by its own count of the objects that share one: it is the store's.
const _: () = {
    let mut bytes = 8;
    while bytes <= PAGE {
        let packed = deepheap_store::packed::per_block(bytes);
        assert!(deepheap_heap::objects_per_block(bytes) == packed);
        bytes += 8;
    }
};
