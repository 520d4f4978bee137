//! Objects as C and C++ programs use them: each is compiled with every warning an error, run under
//! a budget that it outgrows, and must print what is promised.

mod toolchain;

use toolchain::{PACKET_CACHE, Standard, run};

/// A budget that the programs outgrow; the working folder is the test's own.
const SMALL: (&str, &str) = ("DEEPHEAP_CONF", "ram:24M,store:.");

fn program(name: &str) -> String {
    format!("crates/libdeepheap/tests/programs/{name}")
}

#[test]
fn every_call_does_what_the_header_says() {
    for standard in [Standard::C99, Standard::C17] {
        let printed = run(standard, &program("objects.c"), &[SMALL]);
        assert_eq!(printed.stdout, "every object holds\n");
        let stops = printed.stderr.matches("not a live allocation").count();
        assert_eq!(stops, 4, "{}", printed.stderr);
    }
}

#[test]
fn small_elements_and_large_objects_have_every_call() {
    // A store that the program can fill.
    let filled = ("DEEPHEAP_CONF", "ram:24M,store:.,store_size:128M,compress:off");
    for standard in [Standard::C99, Standard::C17] {
        let printed = run(standard, &program("elements.c"), &[filled]);
        assert_eq!(printed.stdout, "every element holds\n");
    }
}

#[test]
fn containers_pools_and_pins_live_on_objects() {
    for standard in [Standard::Cxx17, Standard::Cxx20] {
        let printed = run(standard, &program("object_containers.cpp"), &[SMALL]);
        assert_eq!(printed.stdout, "containers of objects hold\n");
    }
}

#[test]
fn the_papers_names_work() {
    for standard in [Standard::C99, Standard::C17] {
        let printed = run(standard, &program("papers.c"), &[SMALL]);
        assert_eq!(printed.stdout, "the papers' names hold\n");
    }
}

#[test]
fn the_ported_example_prints_what_it_did_with_malloc() {
    // It holds twice the RAM that it gives itself.
    let printed = run(Standard::C99, "examples/packet_cache.c", &[]);
    assert_eq!(printed.stdout, PACKET_CACHE, "{}", printed.stderr);
}
