//! Measures appends and reads of a store on a file: `throughput [directory [GiB]]`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use deepheap_store::device::{Device, Read, Result as DeviceResult, Write};
use deepheap_store::{BlockRead, ContentHash, FileDevice, Head, Options, Store};
use deepheap_sys::files::direct_file::DirectFile;
use deepheap_sys::memory::aligned_buffer::AlignedBuffer;

const PAGE: usize = 4096;

/// The device of the store, which is read without it, too.
struct Shared(Arc<FileDevice>);

impl Device for Shared {
    fn read(&self, batch: &mut [Read<'_>]) {
        self.0.read(batch);
    }

    fn write(&self, batch: &mut [Write<'_>]) {
        self.0.write(batch);
    }

    fn sync(&self) -> DeviceResult<()> {
        self.0.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> DeviceResult<()> {
        self.0.discard(offset, len)
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn reserve(&self, offset: u64, len: u64) -> DeviceResult<()> {
        self.0.reserve(offset, len)
    }
}

/// A device that costs nothing: what is left is the store.
struct NullDevice;

impl Device for NullDevice {
    fn read(&self, batch: &mut [Read<'_>]) {
        batch.iter_mut().for_each(|read| read.result = Ok(()));
    }
    fn write(&self, batch: &mut [Write<'_>]) {
        batch.iter_mut().for_each(|write| write.result = Ok(()));
    }
    fn sync(&self) -> DeviceResult<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> DeviceResult<()> {
        Ok(())
    }
    fn len(&self) -> u64 {
        u64::MAX
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap_or_else(|| "/var/tmp".into()));
    let gibibytes: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let blocks = (gibibytes << 30) / PAGE as u64;
    let device = Arc::new(FileDevice::new(DirectFile::open_unlinked(&directory)?)?);
    println!("direct: {}, rings: {}", device.file().is_direct(), device.memory_bytes() > 0);
    let options = Options { buffers: 16, ..Options::new((gibibytes << 30) * 2) };
    let store = Store::open(Box::new(Shared(device.clone())), options, None)?;
    store.reserve(blocks)?;

    let mut source = AlignedBuffer::new(256 * PAGE, 0)?;
    for (at, byte) in source.as_mut_slice().iter_mut().enumerate() {
        *byte = (at.wrapping_mul(2654435761) >> 13) as u8;
    }
    let pages: Vec<&[u8]> = source.as_mut_slice().chunks(PAGE).collect();
    let hash_start = Instant::now();
    let hashes: Vec<ContentHash> = pages.iter().map(|page| store.hash(page)).collect();
    println!("hash: {:.2} GB/s", rate(256, hash_start));

    let null = Store::open(Box::new(NullDevice), options, None)?;
    let start = Instant::now();
    for name in 0..blocks {
        // `writer` writes sealed segments itself where there is no thread to do it.
        let mut writer = null.writer(Head::Fresh)?;
        writer.append(name, pages[name as usize % 256], hashes[name as usize % 256]);
    }
    println!("append alone, a writer for each: {:.2} GB/s", rate(blocks, start));

    // Appends alone: as many as the buffers take without the device.
    let room = 12 * 255u64;
    let mut held: Vec<(u64, deepheap_store::Block)> = Vec::with_capacity(blocks as usize);
    for (what, target) in [("append to memory, first touch", room), ("append and write", blocks)] {
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
            if target == blocks {
                scope.spawn(|| while store.write_sealed(true) {});
            }
            let start = Instant::now();
            let first = held.len() as u64;
            while (held.len() as u64) < target {
                let mut writer = store.writer(Head::Fresh)?;
                for _ in 0..writer.room().min(256) {
                    let name = held.len() as u64;
                    let (page, hash) = (pages[name as usize % 256], hashes[name as usize % 256]);
                    let block = writer.append(name, page, hash);
                    held.push((name, block));
                }
            }
            if target == blocks {
                store.seal_and_drain();
            }
            println!("{what}: {:.2} GB/s", rate(held.len() as u64 - first, start));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            store.stop_waiting();
            Ok(())
        })?;
    }
    store.seal_and_drain();
    let mut page = AlignedBuffer::new(PAGE, 0)?;
    let (start, mut seed) = (Instant::now(), 7u64);
    for _ in 0..10_000 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let offset = (seed >> 33) % blocks * PAGE as u64;
        let mut read = [Read::new(offset, page.as_mut_slice())];
        device.read(&mut read);
        read[0].result?;
    }
    println!("random pread alone: {:.1} k/s", 10.0 / start.elapsed().as_secs_f64());
    for batch in [1usize, 8, 32] {
        let mut buffer = AlignedBuffer::new(batch * PAGE, 0)?;
        let (start, total) = (Instant::now(), 20_000 / batch * batch);
        let mut seed = 1u64;
        for _ in 0..total / batch {
            let mut requests: Vec<BlockRead<'_>> = buffer
                .as_mut_slice()
                .chunks_mut(PAGE)
                .map(|page| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let (name, block) = held[(seed >> 33) as usize % held.len()];
                    BlockRead::new(block, name, page)
                })
                .collect();
            store.read(&mut requests);
            for request in &requests {
                request.result?;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("random reads, {batch} together: {:.1} k/s", total as f64 / seconds / 1e3);
    }
    println!("memory: {:.1} MiB", store.memory_bytes() as f64 / (1 << 20) as f64);
    Ok(())
}

/// GB/s of so many blocks since `start`.
fn rate(blocks: u64, start: Instant) -> f64 {
    blocks as f64 * PAGE as f64 / start.elapsed().as_secs_f64() / 1e9
}
