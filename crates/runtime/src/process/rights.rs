//! Rights: opens what the switch needs while the process still may.
//!
//! A program that keeps its rights opens all of it at the switch, and nothing if it never outgrows
//! RAM.
//!
//! Threads: any, outside the fault path.

use deepheap_sys::threads::signals::Blocked;
use deepheap_sys::threads::token::Token;

use crate::process::provision::Provision;
use crate::process::start::start_from_environment;
use crate::process::switch::open_provision;
use crate::runtime::{Inside, running};

/// Before the program gives up rights. A file that cannot be opened is opened again at the switch,
/// which says why it cannot. Not in a child of `vfork`: it is in its parent's memory, with
/// descriptors of its own.
pub fn provide() {
    let Some(runtime) = running().or_else(start_from_environment) else { return };
    if runtime.pager().is_some() {
        return;
    }
    let _inside = Inside::enter();
    let _blocked = Blocked::all();
    let mut growth = runtime.growth.lock();
    if runtime.pager().is_none() && !growth.refused && growth.provision.is_none() {
        let opened = Token::new().ok().zip(open_provision(runtime).ok());
        growth.provision = opened.map(|(token, opened)| Provision { token: Some(token), ..opened });
    }
}
