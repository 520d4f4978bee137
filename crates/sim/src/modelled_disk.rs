//! Modelled disk: a device that takes as long as a hard disk would, by a model of it.
//!
//! For measurements and tests of what is slow without having it: the bytes are on the real device,
//! and each call ends when the model says, or when the real device has ended if that takes longer.
//! The requests of a batch go in the order of their places, as a disk's queue would have them;
//! those that lie one behind the other cost no seek.
//!
//! Disks of one name share an arm, in all processes of a user: each has a part of the disk, as
//! far from the next one's as files of 1 GiB side by side. A small file in RAM
//! (`sys/threads/rendezvous`) says where the arm is and until when it is busy. It is changed
//! without a lock, so that a process that is killed or stopped holds up no other. Two that meet may
//! take the arm to be where it was a request before.
//!
//! Guarantees: results and bytes are those of the real device. The small file goes with the last
//! device of its name, or when another is made after that one's process has ended.
//! Never: allocates, but in `new`.
//! Threads: any.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::os::fd::AsRawFd;

use deepheap_store::{Device, Read, Write};
use deepheap_sys::errno::Result;
use deepheap_sys::process::clock;
use deepheap_sys::threads::rendezvous::{self, Rendezvous};
use deepheap_sys::threads::rendezvous_list;
use deepheap_sys::threads::thread;

use crate::disk_model::{Direction, DiskModel};

/// Requests that are put in order at a time.
const QUEUE: usize = 64;
/// How far the part of one device is from that of the next.
const PART_BYTES: u64 = 1 << 30;
/// The prefix of the small files' names.
const PREFIX: &str = "model-";
/// The disk of all programs that are measured together.
const SHARED: &str = "shared";
/// Parts of the disk of the model.
const PARTS: u64 = 149;

/// A device that takes as long as its model.
pub struct ModelledDisk {
    device: Box<dyn Device>,
    /// Where the arm is, until when it is busy, and which part the next device has.
    shared: &'static [AtomicU64; 3],
    /// By which the others know that it is there.
    member: Option<Rendezvous>,
    /// Where its part of the disk begins.
    begin: u64,
}

impl ModelledDisk {
    /// The device, as slow as the disk of all programs of this user.
    pub fn around(device: Box<dyn Device>) -> Box<dyn Device> {
        Box::new(ModelledDisk::new(device, SHARED))
    }

    /// The device, as slow as the disk of this name. Where nothing can be shared it is one of its
    /// own.
    fn new(device: Box<dyn Device>, name: &str) -> ModelledDisk {
        rendezvous_list::sweep(PREFIX);
        let (shared, member) = match rendezvous::words(&file_name(name)) {
            Ok((shared, member)) => (shared, Some(member)),
            Err(_) => (&*Box::leak(Box::default()), None),
        };
        let [_, _, next_part] = shared;
        let part = next_part.fetch_add(1, Ordering::Relaxed) % PARTS;
        ModelledDisk { device, shared, member, begin: part * PART_BYTES }
    }

    /// When the last of these requests, an offset and a length each, ends if they come now.
    fn ends_at(&self, direction: Direction, requests: impl Iterator<Item = (u64, u64)>) -> u64 {
        let now_ns = clock::monotonic_ns();
        let mut queue = [(0, 0); QUEUE];
        let (mut count, mut last_ns) = (0, now_ns);
        let mut send = |queue: &mut [(u64, u64)]| {
            queue.sort_unstable();
            last_ns = last_ns.max(self.served_at(direction, queue, now_ns));
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

    /// When the last of the requests of a queue ends.
    fn served_at(&self, direction: Direction, queue: &[(u64, u64)], now_ns: u64) -> u64 {
        let [arm, busy, _] = self.shared;
        loop {
            let (at, busy_ns) = (arm.load(Ordering::Relaxed), busy.load(Ordering::Acquire));
            let mut model = DiskModel::resumed(at, busy_ns);
            let ends = queue.iter().map(|&(offset, bytes)| {
                model.ends_at(direction, self.begin + offset, bytes, now_ns)
            });
            let last_ns = ends.max().unwrap_or(now_ns);
            let (at, until_ns) = model.ended();
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            if busy.compare_exchange(busy_ns, until_ns, order.0, order.1).is_ok() {
                arm.store(at, Ordering::Relaxed);
                return last_ns;
            }
        }
    }
}

fn file_name(name: &str) -> String {
    format!("{PREFIX}{name}")
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

impl Drop for ModelledDisk {
    fn drop(&mut self) {
        if let Some(member) = &self.member {
            member.remove_unless_used(member.as_raw_fd());
        }
    }
}

impl Device for ModelledDisk {
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
        self.device.after_fork();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepheap_store::FileDevice;
    use deepheap_sys::files::direct_file::DirectFile;
    use deepheap_sys::memory::pinned_array::PinnedArray;
    use std::time::Instant;

    #[test]
    fn bytes_are_the_real_device_s_and_the_time_is_the_model_s() {
        const BLOCKS: usize = 16;
        let file = DirectFile::open_unlinked(&std::env::temp_dir()).expect("a file");
        let device = FileDevice::new(file).expect("a device");
        let name = format!("test-bytes-{}", std::process::id());
        let device = ModelledDisk::new(Box::new(device), &name);
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
        drop(device);
        assert_eq!(rendezvous_list::names(&file_name(&name)), Ok(vec![]));
    }

    #[test]
    fn devices_of_one_name_wait_for_one_another() {
        let own = format!("test-arm-{}", std::process::id());
        let [one, same, other] = [own.clone(), own.clone(), format!("{own}-other")].map(|name| {
            let file = DirectFile::open_unlinked(&std::env::temp_dir()).expect("a file");
            let device = Box::new(FileDevice::new(file).expect("a device"));
            ModelledDisk::new(device, &name)
        });
        let end_ns = one.ends_at(Direction::Write, [(0, 700 << 20)].into_iter());
        assert!(end_ns > clock::monotonic_ns() + 9_000_000_000, "ten seconds");
        let block = || [(0, 4096)].into_iter();
        assert!(same.ends_at(Direction::Read, block()) > end_ns + 1_000_000, "a seek later");
        assert!(other.ends_at(Direction::Read, block()) < end_ns);
        drop(same);
        let is_there = |name| rendezvous_list::names(&file_name(name));
        assert_eq!(is_there(&own).map(|names| names.len()), Ok(2), "one and other are members");
        drop((one, other));
        assert_eq!(is_there(&own), Ok(vec![]));
    }
}
