//! Encryption: nothing of what a store keeps is readable on its device, and nothing is taken from
//! the device that the key did not put there.

mod model;
mod saved_heap;

use std::sync::Arc;

use deepheap_sim::{Image, Random, Recorder};
use deepheap_store::durable::verify::{verify_blocks, verify_tables};
use deepheap_store::{Device, DurableError, DurableFile, KEY_BYTES, Key};
use model::Sizes;
use saved_heap::{SavedHeap, device_len, judge, key_of, open_store};

const SEGMENTS: u64 = 24;

fn heap(seed: u64) -> (SavedHeap, Arc<dyn Device>, Recorder) {
    let device = Recorder::over(device_len(SEGMENTS), Image::default());
    let shared: Arc<dyn Device> = Arc::new(device.clone());
    let heap = SavedHeap::create(shared.clone(), SEGMENTS, Sizes::Encrypted);
    let mut heap = heap.expect("a correct device");
    let mut random = Random::new(seed);
    for round in 0..4 {
        heap.work(&mut random, 60, 200).expect("room");
        heap.checkpoint().expect("a correct device");
        if round == 1 {
            heap.snapshot("kept").expect("room");
        }
    }
    (heap, shared, device)
}

#[test]
fn an_encrypted_heap_opens_with_its_key_and_no_other() {
    let (heap, device, _) = heap(model::seed(51));
    let map = heap.model.map.clone();
    drop(heap);
    let open = |key: Option<&Key>| DurableFile::open(device.clone(), key).map(drop);
    assert_eq!(open(None), Err(DurableError::NeedsKey));
    assert_eq!(open(Some(&Key::from_bytes([8; KEY_BYTES]))), Err(DurableError::WrongKey));
    let key = key_of(Sizes::Encrypted);
    assert_eq!(open(key.as_ref()), Ok(()));
    let again = judge(device.clone(), Sizes::Encrypted, |_| Some(map.clone()));
    let again = again.unwrap_or_else(|error| panic!("{error}"));
    let mut report = verify_tables(device, key.as_ref()).expect("a heap");
    let (store, _) = open_store(&again.file).expect("a log");
    verify_blocks(&store, &mut report).expect("memory");
    assert!(report.is_clean() && report.blocks > 0, "{report:?}");
    let plain: Arc<dyn Device> = Arc::new(Recorder::over(device_len(SEGMENTS), Image::default()));
    drop(SavedHeap::create(plain.clone(), SEGMENTS, Sizes::Mixed).expect("a correct device"));
    let opened = DurableFile::open(plain, key.as_ref()).map(drop);
    assert_eq!(opened, Err(DurableError::NotEncrypted));
}
