//! Global allocator: a Rust program whose every allocation lives on deepheap.
//!
//!     DEEPHEAP_CONF=ram:64M,store:. cargo run --release -p deepheap --example global_allocator

use std::collections::HashMap;

#[global_allocator]
static HEAP: deepheap::DeepHeap = deepheap::DeepHeap;

fn main() {
    // 256 MiB of values; with a smaller budget, most of them are on the SSD.
    let values: HashMap<u64, Vec<u8>> =
        (0..65_536).map(|key| (key, vec![(key % 251) as u8; 4096])).collect();

    let wrong =
        values.iter().filter(|(key, value)| value.iter().any(|byte| *byte as u64 != *key % 251));
    println!("{} values, {} wrong", values.len(), wrong.count());
    if let Some(stats) = deepheap::stats() {
        eprint!("{}", deepheap::summary(&stats));
    }
}
