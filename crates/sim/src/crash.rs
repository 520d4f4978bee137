//! Crash: a device that remembers what was asked of it, and what a medium may hold after the power
//! failed at any moment of that.
//!
//! All writes before the last sync are there. Of the writes after it, each is there, or not, or a
//! part of it, in any order.
//!
//! Guarantees: the same seed and the same events have the same outcome.
//! Threads: any, one after the other. Clones of a `Recorder` are handles of the same device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use deepheap_store::device::{Device, Errno, Read, Result, Write};

use crate::random::Random;

const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// Something that a device was asked to do, or that its user noted.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write.
    Write {
        /// Where, bytes.
        offset: u64,
        /// What.
        data: Arc<[u8]>,
    },
    /// A discard; it reads as zeros.
    Discard {
        /// Where, bytes.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A sync.
    Sync,
    /// Whatever the user noted.
    Mark(u64),
}

/// The content of a medium.
#[derive(Clone, Default)]
pub struct Image {
    pages: HashMap<u64, Arc<[u8; PAGE]>>,
}

impl Image {
    /// Numbers of the pages that hold something, in order.
    pub fn pages(&self) -> Vec<u64> {
        let mut pages: Vec<u64> = self.pages.keys().copied().collect();
        pages.sort_unstable();
        pages
    }

    /// Flips these bits of a byte.
    pub fn flip(&mut self, offset: u64, bits: u8) {
        self.page_mut(offset / PAGE as u64)[offset as usize % PAGE] ^= bits;
    }

    /// Writes `bytes`, which may begin and end within pages.
    fn write(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = offset as usize % PAGE;
            let (piece, rest) = bytes.split_at(bytes.len().min(PAGE - at));
            self.page_mut(offset / PAGE as u64)[at..at + piece.len()].copy_from_slice(piece);
            offset += piece.len() as u64;
            bytes = rest;
        }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) {
        for (number, out) in (offset / PAGE as u64..).zip(buf.chunks_mut(PAGE)) {
            match self.pages.get(&number) {
                Some(page) => out.copy_from_slice(&page[..out.len()]),
                None => out.fill(0),
            }
        }
    }

    fn discard(&mut self, offset: u64, len: u64) {
        for page in offset / PAGE as u64..(offset + len) / PAGE as u64 {
            self.pages.remove(&page);
        }
    }

    fn page_mut(&mut self, number: u64) -> &mut [u8; PAGE] {
        Arc::make_mut(self.pages.entry(number).or_insert_with(|| Arc::new([0; PAGE])))
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Write { offset, data } => self.write(*offset, data),
            Event::Discard { offset, len } => self.discard(*offset, *len),
            Event::Sync | Event::Mark(_) => {}
        }
    }
}

/// The part of unsynced writes that a power failure takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// All of it.
    Everything,
    /// Nothing.
    Nothing,
    /// What came last: it ends within a write, after a sector.
    Tail,
    /// Whole writes, by chance, in any order.
    Writes,
    /// Pieces of 4096 bytes of the writes, by chance, in any order.
    Pages,
    /// Pieces of 512 bytes of the writes, by chance, in any order.
    Sectors,
}

impl Loss {
    /// All of them.
    pub const ALL: [Loss; 6] =
        [Loss::Everything, Loss::Nothing, Loss::Tail, Loss::Writes, Loss::Pages, Loss::Sectors];
}

/// A medium, event by event.
#[derive(Clone, Default)]
pub struct Medium {
    synced: Image,
    /// Writes and discards since the last sync.
    pending: Vec<Event>,
}

impl Medium {
    /// A medium that holds this.
    pub fn over(synced: Image) -> Self {
        Self { synced, pending: Vec::new() }
    }

    /// The event happens.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Sync => {
                for event in self.pending.drain(..) {
                    self.synced.apply(&event);
                }
            }
            Event::Mark(_) => {}
            event => self.pending.push(event.clone()),
        }
    }

    /// The content if the power fails now.
    pub fn crash(&self, loss: Loss, random: &mut Random) -> Image {
        let mut image = self.synced.clone();
        let mut pending: Vec<&Event> = self.pending.iter().collect();
        let piece = match loss {
            Loss::Everything => return image,
            Loss::Nothing => {
                pending.iter().for_each(|event| image.apply(event));
                return image;
            }
            Loss::Tail => {
                pending.truncate(random.below(pending.len() as u64 + 1) as usize);
                if let Some(Event::Write { offset, data }) = pending.pop() {
                    pending.iter().for_each(|event| image.apply(event));
                    let sectors = random.below((data.len() / SECTOR) as u64 + 1) as usize;
                    image.write(*offset, &data[..sectors * SECTOR]);
                }
                return image;
            }
            Loss::Writes => usize::MAX,
            Loss::Pages => PAGE,
            Loss::Sectors => SECTOR,
        };
        for at in (1..pending.len()).rev() {
            pending.swap(at, random.below(at as u64 + 1) as usize);
        }
        // From nearly everything to nearly nothing.
        let of_eight = 1 + random.below(7);
        for event in pending {
            match event {
                Event::Write { offset, data } => {
                    let pieces = data.chunks(piece.min(data.len()).max(1));
                    for (at, bytes) in pieces.enumerate() {
                        if random.below(8) < of_eight {
                            image.write(offset + (at * piece.min(data.len())) as u64, bytes);
                        }
                    }
                }
                event if random.below(8) < of_eight => image.apply(event),
                _ => {}
            }
        }
        image
    }
}

/// A correct device in memory that remembers what it was asked to do.
#[derive(Clone)]
pub struct Recorder {
    len: u64,
    state: Arc<Mutex<(Image, Vec<Event>)>>,
}

impl Recorder {
    /// A device of `len` bytes that holds this, and remembers nothing.
    pub fn over(len: u64, image: Image) -> Self {
        Self { len, state: Arc::new(Mutex::new((image, Vec::new()))) }
    }

    /// Notes the number among the events.
    pub fn mark(&self, number: u64) {
        self.lock().1.push(Event::Mark(number));
    }

    /// The requests so far, reads left out.
    pub fn events(&self) -> Vec<Event> {
        self.lock().1.clone()
    }

    /// Its content.
    pub fn image(&self) -> Image {
        self.lock().0.clone()
    }

    fn lock(&self) -> MutexGuard<'_, (Image, Vec<Event>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, event: Event) {
        let mut state = self.lock();
        state.0.apply(&event);
        state.1.push(event);
    }

    /// Whether the device may be asked that.
    fn check(&self, offset: u64, bytes: usize) -> Result<()> {
        let end = offset.checked_add(bytes as u64);
        match end {
            _ if !offset.is_multiple_of(PAGE as u64) || !bytes.is_multiple_of(PAGE) => {
                Err(Errno::EINVAL)
            }
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Errno::ENXIO),
        }
    }
}

impl Device for Recorder {
    fn read(&self, batch: &mut [Read<'_>]) {
        for read in batch {
            read.result = self.check(read.offset, read.buf.len());
            if read.result.is_ok() {
                self.lock().0.read(read.offset, read.buf);
            }
        }
    }

    fn write(&self, batch: &mut [Write<'_>]) {
        for write in batch {
            write.result = self.check(write.offset, write.data.len());
            if write.result.is_ok() {
                self.ask(Event::Write { offset: write.offset, data: write.data.into() });
            }
        }
    }

    fn sync(&self) -> Result<()> {
        self.ask(Event::Sync);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len as usize)?;
        self.ask(Event::Discard { offset, len });
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, pages: usize, byte: u8) -> Event {
        Event::Write { offset, data: vec![byte; pages * PAGE].into() }
    }

    /// The bytes at the starts of the first 32 sectors.
    fn sectors(image: &Image) -> Vec<u8> {
        let mut bytes = vec![0; 4 * PAGE];
        image.read(0, &mut bytes);
        bytes.chunks(SECTOR).map(|sector| sector[0]).collect()
    }

    #[test]
    fn what_was_synced_survives_and_the_rest_does_as_the_loss_says() {
        let mut medium = Medium::default();
        for event in [write(0, 4, 1), Event::Sync, write(0, 2, 2), write(2 * PAGE as u64, 2, 3)] {
            medium.apply(&event);
        }
        let old = [1; 32];
        let new = [[2; 16], [3; 16]].concat();
        let mut seen = Vec::new();
        for seed in 0..200 {
            for loss in Loss::ALL {
                let found = sectors(&medium.crash(loss, &mut Random::new(seed)));
                let of_new = found.iter().zip(&new).filter(|(found, new)| found == new).count();
                assert!(found.iter().zip(&new).all(|(found, new)| found == new || *found == 1));
                let right = match loss {
                    Loss::Everything => found == old,
                    Loss::Nothing => found == new,
                    Loss::Tail => {
                        found[..of_new] == new[..of_new] && found[of_new..] == old[of_new..]
                    }
                    Loss::Writes => of_new % 16 == 0,
                    Loss::Pages => found.chunks(8).all(|page| page.iter().all(|it| *it == page[0])),
                    Loss::Sectors => true,
                };
                assert!(right, "{loss:?} {found:?}");
                seen.push((loss, of_new));
            }
        }
        for (loss, count) in
            [(Loss::Tail, 17), (Loss::Writes, 16), (Loss::Pages, 24), (Loss::Sectors, 5)]
        {
            assert!(seen.contains(&(loss, count)), "{loss:?}");
        }
        medium.apply(&Event::Sync);
        assert_eq!(sectors(&medium.crash(Loss::Everything, &mut Random::new(1))), new);
    }
}
