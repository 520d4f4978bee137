//! Fuzzes the target that DEEPHEAP_FUZZ_TARGET names, with libFuzzer, whose options it takes.
//! `scripts/fuzz.sh` builds it with coverage, and runs it.
#![no_main]

use std::sync::LazyLock;

use deepheap_fuzz::{Target, target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("DEEPHEAP_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("DEEPHEAP_FUZZ_TARGET is no target: {name:?}"))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.play)(bytes));
