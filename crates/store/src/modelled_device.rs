//! Modelled device: a device that takes as long as another one would, by a model of it.
//!
//! For measurements and tests of what is slow without having it: the bytes are on the real device,
//! and each call ends when the model says, or when the real device has ended if that takes longer.
//! The requests of a batch go in the order of their places, as a disk's queue would have them;
//! those that lie one behind the other cost no seek.
//!
//! Guarantees: results and bytes are those of the real device. A forked child reads its parent's
//! device without the model; its own has one.
//! Never: allocates. Waits while it holds the model's lock.
//! Threads: any. The lock is innermost, and held for some arithmetic.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use deepheap_sys::clock;
use deepheap_sys::errno::Result;
use deepheap_sys::lock::Lock;
use deepheap_sys::thread;

use crate::device::{Device, Read, Write};
use crate::device_model::{DeviceModel, Direction, ModelKind};

/// Requests that are put in order at a time.
const QUEUE: usize = 64;

/// A device that takes as long as its model.
pub struct ModelledDevice {
    device: Box<dyn Device>,
    model: Lock<DeviceModel>,
    /// We are a forked child: a thread of our parent may have held the lock.
    inherited: AtomicBool,
}

impl ModelledDevice {
    /// The device, as slow as one of this kind.
    pub fn new(device: Box<dyn Device>, kind: ModelKind) -> ModelledDevice {
        let model = Lock::new(DeviceModel::new(kind));
        ModelledDevice { device, model, inherited: AtomicBool::new(false) }
    }

    /// When the last of these requests, an offset and a length each, ends if they come now.
    fn ends_at(&self, direction: Direction, requests: impl Iterator<Item = (u64, u64)>) -> u64 {
        let now_ns = clock::monotonic_ns();
        if self.inherited.load(Ordering::Acquire) {
            return now_ns;
        }
        let mut queue = [(0, 0); QUEUE];
        let (mut count, mut last_ns) = (0, now_ns);
        let mut send = |queue: &mut [(u64, u64)]| {
            queue.sort_unstable();
            let mut model = self.model.lock();
            for &mut (offset, bytes) in queue {
                last_ns = last_ns.max(model.ends_at(direction, offset, bytes, now_ns));
            }
        };
        for request in requests {
            queue[count] = request;
            count += 1;
            if count == QUEUE {
                send(&mut queue);
                count = 0;
            }
        }
        send(&mut queue[..count]);
        last_ns
    }
}

/// Sleeps until the clock says so; the real device may have taken that long already.
fn wait_until(end_ns: u64) {
    loop {
        let now_ns = clock::monotonic_ns();
        if now_ns >= end_ns {
            return;
        }
        thread::sleep(Duration::from_nanos(end_ns - now_ns));
    }
}

impl Device for ModelledDevice {
    fn read(&self, batch: &mut [Read<'_>]) {
        let requests = batch.iter().map(|read| (read.offset, read.buf.len() as u64));
        let end_ns = self.ends_at(Direction::Read, requests);
        self.device.read(batch);
        wait_until(end_ns);
    }

    fn write(&self, batch: &mut [Write<'_>]) {
        let requests = batch.iter().map(|write| (write.offset, write.data.len() as u64));
        let end_ns = self.ends_at(Direction::Write, requests);
        self.device.write(batch);
        wait_until(end_ns);
    }

    fn sync(&self) -> Result<()> {
        self.device.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }

    fn len(&self) -> u64 {
        self.device.len()
    }

    fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.device.reserve(offset, len)
    }

    fn free_bytes(&self) -> Option<u64> {
        self.device.free_bytes()
    }

    fn memory_bytes(&self) -> u64 {
        self.device.memory_bytes()
    }

    fn after_fork(&self) {
        self.inherited.store(true, Ordering::Release);
        self.device.after_fork();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_device::FileDevice;
    use deepheap_sys::direct_file::DirectFile;
    use deepheap_sys::pinned_array::PinnedArray;
    use std::time::Instant;

    #[test]
    fn bytes_are_the_real_device_s_and_the_time_is_the_model_s() {
        const BLOCKS: usize = 16;
        let file = DirectFile::open_unlinked(&std::env::temp_dir()).expect("a file");
        let device = FileDevice::new(file).expect("a device");
        let device = ModelledDevice::new(Box::new(device), ModelKind::HardDisk);
        let mut pages = PinnedArray::<u8>::new(BLOCKS * 4096).expect("memory");
        for (at, page) in pages.chunks_mut(4096).enumerate() {
            page.fill(at as u8 + 1);
        }
        let begin = Instant::now();
        let mut writes = [Write::new(0, &pages)];
        device.write(&mut writes);
        assert_eq!(writes[0].result, Ok(()));
        let mut back = PinnedArray::<u8>::new(BLOCKS * 4096).expect("memory");
        // One read at a time, from the last to the first: each waits for the platter to turn.
        for at in (0..BLOCKS).rev() {
            let page = &mut back[at * 4096..][..4096];
            let mut read = [Read::new(at as u64 * 4096, page)];
            device.read(&mut read);
            assert_eq!(read[0].result, Ok(()));
        }
        assert_eq!(back[..], pages[..]);
        let scattered = begin.elapsed();
        // How far the platter has turned differs; a seek is the least for each.
        let seeks = Duration::from_millis(BLOCKS as u64);
        assert!(scattered >= seeks, "{scattered:?}");
        device.after_fork();
        let begin = Instant::now();
        for at in (0..BLOCKS).rev() {
            let page = &mut back[at * 4096..][..4096];
            device.read(&mut [Read::new(at as u64 * 4096, page)]);
        }
        assert!(begin.elapsed() < scattered, "a child's parent's device has no model");
    }
}
