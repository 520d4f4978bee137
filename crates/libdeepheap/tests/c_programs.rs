//! C and C++ programs against the library as a user links it: each is compiled with every
//! warning an error, run, and must print what is promised.

mod toolchain;

use toolchain::{Standard, assert_compiles, root, run};

/// A budget and store that every machine has; the working folder is the test's own.
const CONF: (&str, &str) = ("DEEPHEAP_CONF", "ram:64M,store:.");
/// A budget that the programs outgrow.
const SMALL: (&str, &str) = ("DEEPHEAP_CONF", "ram:24M,store:.");

fn program(name: &str) -> String {
    format!("crates/libdeepheap/tests/programs/{name}")
}

#[test]
fn the_family_keeps_the_contracts_of_malloc() {
    for standard in [Standard::C99, Standard::C11] {
        let printed = run(standard, &program("contracts.c"), &[CONF]);
        assert_eq!(printed.stdout, "every contract holds\n");
    }
}

#[test]
fn dh_init_tells_what_is_wrong_and_starts_once() {
    let printed = run(Standard::C11, &program("start.c"), &[]);
    assert_eq!(printed.stdout, "started once\n");
}

#[test]
fn statistics_fit_any_caller() {
    let printed = run(Standard::C99, &program("statistics.c"), &[CONF]);
    assert_eq!(printed.stdout, "statistics fit\n");
}

#[test]
fn threads_that_block_every_signal_use_their_memory() {
    for standard in [Standard::C99, Standard::C17] {
        let printed = run(standard, &program("blocked.c"), &[SMALL]);
        assert_eq!(printed.stdout, "blocked threads hold\n");
    }
}

#[test]
fn containers_of_the_standard_library_live_on_deepheap() {
    for standard in [Standard::Cxx17, Standard::Cxx20] {
        let printed = run(standard, &program("containers.cpp"), &[CONF]);
        assert_eq!(printed.stdout, "containers hold\n");
    }
}

#[test]
fn durable_heaps_are_there_in_the_next_process() {
    for standard in [Standard::C99, Standard::C17] {
        let printed = run(standard, &program("durable.c"), &[CONF]);
        assert_eq!(printed.stdout, "the index is there again\n");
    }
    for standard in [Standard::Cxx17, Standard::Cxx20] {
        let printed = run(standard, &program("durable.cpp"), &[CONF]);
        assert_eq!(printed.stdout, "containers are there again\n");
    }
}

#[test]
fn files_are_mapped_within_their_ram_and_shared_with_a_child() {
    let ram = ("DEEPHEAP_MAP_RAM", "4M");
    for standard in [Standard::C99, Standard::C17] {
        let printed = run(standard, &program("maps.c"), &[SMALL, ram]);
        assert_eq!(printed.stdout, "maps hold\n");
    }
    let example = std::fs::read_to_string(root().join("examples/map_sum.c"));
    assert_compiles(Standard::C99, &example.expect("the example"));
    for name in ["examples/memmap.c", "examples/graph_engine.c"] {
        let example = std::fs::read_to_string(root().join(name));
        assert_compiles(Standard::C99, &example.expect("the example"));
    }
    let printed = run(Standard::Cxx17, &program("mapped.cpp"), &[SMALL, ram]);
    assert_eq!(printed.stdout, "spans hold\n");
}

#[test]
fn a_private_map_changes_no_file_and_takes_no_more_than_the_heap_s_ram() {
    let printed = run(Standard::C17, &program("private_maps.c"), &[SMALL]);
    assert_eq!(printed.stdout, "private maps hold\n");
}

#[test]
fn threads_lose_no_store_in_a_private_map_and_never_see_what_was_before() {
    let printed = run(Standard::C17, &program("private_threads.c"), &[SMALL]);
    assert_eq!(printed.stdout, "no count is lost\n");
}

#[test]
fn a_forked_child_and_its_parent_keep_every_byte() {
    let printed = run(Standard::C11, &program("fork.c"), &[SMALL]);
    assert_eq!(printed.stdout, "both keep every byte\n");
}

#[test]
fn threads_that_come_and_go_share_one_heap() {
    let printed = run(Standard::C11, &program("threads.c"), &[SMALL]);
    assert_eq!(printed.stdout, "threads share\n");
}

#[test]
fn the_examples_run_and_tell_of_themselves() {
    let show = ("DEEPHEAP_SHOW_STATS", "1");
    let printed = run(Standard::C99, "examples/hello.c", &[]);
    assert!(printed.stdout.starts_with("hello, "), "{}", printed.stdout);
    let printed = run(Standard::Cxx17, "examples/pmr.cpp", &[CONF, show]);
    assert!(printed.stdout.contains("words"), "{}", printed.stdout);
    assert!(printed.stderr.contains("deepheap"), "no summary at exit: {}", printed.stderr);
}
