//! Fuzz targets: readers of bytes that others wrote, and operations in any order. A fuzzer that
//! sees which code ran chooses the bytes; `scripts/fuzz.sh` runs it.
//!
//! A target takes the bytes as they are (settings, requests, traces), or as the choices of a scene
//! that the tests of the store play with numbers of a seed ([`Random::of_bytes`]): which bytes of a
//! heap's file are damaged, which checksums are made right again, which operation comes next.
//!
//! Guarantees: a target panics only if something is wrong; the same bytes do the same.

use std::sync::LazyLock;

use deepheap::internal::config::Config;
use deepheap::internal::machine::Machine;
use deepheap_pager::trace::format::Trace;
use deepheap_sim::Random;
use deepheap_tools::simulation::Simulation;

#[path = "../../crates/store/tests/damaged_log/mod.rs"]
mod damaged_log;
#[path = "../../crates/store/tests/forged_heap/mod.rs"]
mod forged_heap;
#[path = "../../crates/cli/src/live/serve/http.rs"]
#[allow(dead_code)] // what answers is not fuzzed
mod http;
#[path = "../../crates/store/tests/model/mod.rs"]
mod model;
#[path = "../../crates/store/tests/saved_heap/mod.rs"]
mod saved_heap;
#[path = "../../crates/store/tests/snapshot_work/mod.rs"]
mod snapshot_work;

/// Something that takes any bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, which is that of its folder in `corpus`, too.
    pub name: &'static str,
    /// Does with the bytes what it is for. Panics if something is wrong.
    pub play: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 6] = [
    Target { name: "settings", play: settings },
    Target { name: "request", play: request },
    Target { name: "trace", play: trace },
    Target { name: "map_log", play: map_log },
    Target { name: "heap_file", play: heap_file },
    Target { name: "durable_operations", play: durable_operations },
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

/// Settings are refused in a line, or what they mean can be written and reads back as the same.
fn settings(bytes: &[u8]) {
    const MACHINE: Machine = Machine { memory_bytes: 8 << 30, cgroup_limit_bytes: None };
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Config::parse_on(MACHINE, text) {
        Ok(config) => assert_eq!(Config::parse_on(MACHINE, &config.to_conf()), Ok(config)),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error:?}"),
    }
}

/// Bytes of a connection are a request, or are answered.
fn request(mut bytes: &[u8]) {
    let length = bytes.len();
    if let Ok(Ok(request)) = http::Request::read(&mut bytes) {
        assert!(request.path.starts_with('/'));
        assert!(request.token().map_or(0, str::len) + request.path.len() < length);
    }
}

/// A trace's file is refused with a reason, or read and simulated.
fn trace(bytes: &[u8]) {
    match Trace::read(bytes) {
        Ok(trace) => {
            assert!(trace.records.len() <= bytes.len());
            let simulation = Simulation::new(&trace);
            let ram = simulation.traced_ram;
            simulation.play(ram, simulation.terms(ram));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The log of a map gives what was committed, or a reason.
fn map_log(bytes: &[u8]) {
    damaged_log::round(&mut Random::of_bytes(bytes));
}

/// The file of a durable heap is refused, or serves right bytes.
fn heap_file(bytes: &[u8]) {
    static HEAPS: LazyLock<[forged_heap::Good; 2]> =
        LazyLock::new(|| [41, 42].map(forged_heap::good));
    let Some((&first, rest)) = bytes.split_first() else { return };
    let kind = forged_heap::Kind::ALL[first as usize % forged_heap::Kind::ALL.len()];
    let mut outcomes = forged_heap::Outcomes::NONE;
    forged_heap::round(&*HEAPS, kind, &mut Random::of_bytes(rest), &mut outcomes);
}

/// A durable heap is what a model says, whatever is done with it.
fn durable_operations(bytes: &[u8]) {
    let mut random = Random::of_bytes(bytes);
    let sizes = [model::Sizes::Whole, model::Sizes::Mixed, model::Sizes::Encrypted];
    let sizes = sizes[random.below(3) as usize];
    // About as many as there are bytes for.
    let operations = (bytes.len() as u32 / 4).min(16);
    let bounds = snapshot_work::Bounds { operations, accesses: 30 };
    snapshot_work::round(&mut random, sizes, &bounds);
}
