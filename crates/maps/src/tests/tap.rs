//! Tap: for tests, notes what the devices of maps with a log are asked to do.
//!
//! Threads: any.

use std::sync::{Mutex, MutexGuard, PoisonError};

use deepheap_sim::Event;
use deepheap_store::FileDevice;
use deepheap_store::device::{Device, Read, Result, Write};

/// A device that notes what it is asked to do.
pub struct Tap(FileDevice);

static EVENTS: Mutex<Option<Vec<Event>>> = Mutex::new(None);

/// From now on events are noted.
pub fn begin() {
    *events() = Some(Vec::new());
}

/// What was noted since `begin`.
pub fn end() -> Vec<Event> {
    events().take().unwrap_or_default()
}

fn events() -> MutexGuard<'static, Option<Vec<Event>>> {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes an event.
pub fn note(event: Event) {
    if let Some(events) = events().as_mut() {
        events.push(event);
    }
}

impl Tap {
    pub fn over(device: FileDevice) -> Tap {
        Tap(device)
    }
}

impl Device for Tap {
    fn read(&self, batch: &mut [Read<'_>]) {
        self.0.read(batch);
    }

    fn write(&self, batch: &mut [Write<'_>]) {
        for write in batch.iter() {
            note(Event::Write { offset: write.offset, data: write.data.into() });
        }
        self.0.write(batch);
    }

    fn sync(&self) -> Result<()> {
        let synced = self.0.sync();
        note(Event::Sync);
        synced
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        note(Event::Discard { offset, len });
        self.0.discard(offset, len)
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn after_fork(&self) {
        self.0.after_fork();
    }
}
