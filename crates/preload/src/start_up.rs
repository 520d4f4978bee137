//! Start-up: the constructor and the destructor of the library.
//!
//! Guarantees: before the constructor has run everything is plain memory and libc's own behaviour;
//! for ever where the heap can have no address space.
//! Never: starts the runtime; the first managed allocation does.
//! Threads: the dynamic linker's, alone.

use crate::calls::duplicate;
use crate::memory::placement;
use crate::process::{children, fork, unmanaged};
use crate::{caller, real, signals, threads};

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

extern "C" fn at_start() {
    real::resolve_all();
    duplicate::learn();
    children::apply_setting();
    unmanaged::prepare();
    let has_address_space = deepheap::internal::has_address_space();
    if has_address_space {
        signals::stack::reserve(signals::relay::address());
    }
    threads::start::prepare();
    if fork::register() && has_address_space {
        caller::learn();
        placement::learn();
    }
}

extern "C" fn at_end() {
    deepheap::internal::exit_summary();
}
