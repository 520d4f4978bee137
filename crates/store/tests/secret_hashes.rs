//! Nobody can prepare bytes that one process takes for others: each has hashes of its own.

use std::process::Command;

use deepheap_sim::SimDevice;
use deepheap_store::{Options, Store};

/// Says that this process is to tell a hash, and end.
const TELL: &str = "STORE_TELL_HASH";

/// The hash of a page of zeros in a process of its own.
fn hash_of_another_process() -> String {
    let name = "each_process_has_hashes_of_its_own";
    let this = std::env::current_exe().expect("this binary");
    let output = Command::new(this)
        .args([name, "--exact", "--nocapture"])
        .env(TELL, "1")
        .output()
        .expect("it runs");
    let said = String::from_utf8(output.stdout).expect("text");
    let hash = said.lines().find_map(|line| line.split("hash ").nth(1));
    hash.unwrap_or_else(|| panic!("no hash in {said}")).to_owned()
}

#[test]
fn each_process_has_hashes_of_its_own() {
    let device = SimDevice::new(32 << 20, 1);
    let store = Store::open(Box::new(device), Options::new(32 << 20), None).expect("a store");
    let own = format!("{:032x}", store.hash(&[0; 4096]).0);
    if std::env::var_os(TELL).is_some() {
        return println!("hash {own}");
    }
    let hashes = [own, hash_of_another_process(), hash_of_another_process()];
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        assert_ne!(hashes[one], hashes[other]);
    }
}
