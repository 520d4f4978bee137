//! Start: `dh_init`, the configuration from C.
//!
//! Guarantees: 0, or a negative code with nothing started and the reason in `dh_strerror`.
//! Threads: any thread; of several callers at once, one starts deepheap and the others are told.

use core::ffi::{CStr, c_char, c_int};

use deepheap::{Config, InitError};

use crate::durable::text_of;
use crate::error::{DH_ECONF, DH_EKERNEL, DH_EMEMORY, DH_ESTARTED, DH_ESTORE, remember};

/// Starts deepheap with `conf`, in the syntax of DEEPHEAP_CONF; NULL takes the environment.
///
/// # Safety
/// `conf` is NULL or a zero-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dh_init(conf: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let config = match unsafe { text_of(conf) }.map(CStr::to_str) {
        None => Config::from_environment(),
        Some(Ok(text)) => Config::parse(text),
        Some(Err(_)) => return remember(DH_ECONF, "the configuration is not UTF-8".into()),
    };
    match config.map_err(InitError::Config).and_then(deepheap::init) {
        Ok(()) => 0,
        Err(error) => remember(code_of(&error), error.to_string()),
    }
}

/// The code that stands for an error of starting.
fn code_of(error: &InitError) -> c_int {
    match error {
        InitError::Started => DH_ESTARTED,
        InitError::Config(_) => DH_ECONF,
        InitError::Store(_) => DH_ESTORE,
        InitError::Kernel(_) => DH_EKERNEL,
        InitError::Resources(_) => DH_EMEMORY,
    }
}
