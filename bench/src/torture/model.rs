//! Model: what a durable heap must hold after so many operations, and a process that performs them.
//!
//! Each lane is a thread with memory of its own. Its operations are made of the seed, the lane and
//! the operation's number alone. So the heap needs to hold nothing but two numbers a lane: the
//! operation that was begun last, and the one that was done last. Everything else follows, and a
//! checker can hold every byte against it.
//!
//! Lanes note what they have seen of each other, too: an instant that has a note has what it tells.
//!
//! Guarantees: an operation that was cut off can be performed again.
//! Threads: one a lane.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use deepheap::{DurableHeap, free, usable_size};
use deepheap_load::random::mix;

/// Threads that change the heap.
pub const LANES: usize = 4;
/// Blocks that a lane can have.
const SLOTS: usize = 1500;
const ROOT: &str = "torture";

/// What lies in the heap.
#[repr(C)]
struct Field {
    lanes: [LaneField; LANES],
}

#[repr(C)]
struct LaneField {
    begun: AtomicU64,
    done: AtomicU64,
    /// What was done by each lane before the operation that was begun last.
    seen: [AtomicU64; LANES],
    /// Addresses of the blocks; 0: none.
    slots: [AtomicU64; SLOTS],
}

/// What a block holds: the numbers of the operations that wrote its halves.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Content {
    words: usize,
    halves: [u64; 2],
}

/// An operation on a slot.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// A new block, in the place of an old one if there is one.
    Make {
        words: usize,
        is_object: bool,
    },
    Free,
    Write {
        halves: [bool; 2],
    },
}

/// What a lane's blocks must hold.
struct Shadow {
    seed: u64,
    done: u64,
    slots: Vec<Option<Content>>,
}

impl Shadow {
    /// After so many operations.
    fn after(seed: u64, lane: usize, done: u64) -> Shadow {
        let seed = mix(seed ^ mix(lane as u64 + 1));
        let mut shadow = Shadow { seed, done: 0, slots: vec![None; SLOTS] };
        while shadow.done < done {
            let (slot, change) = shadow.next();
            shadow.note(slot, change);
        }
        shadow
    }

    /// The next operation.
    fn next(&self) -> (usize, Change) {
        let bits = mix(self.seed ^ (self.done + 1));
        let more = mix(bits);
        let slot = bits as usize % SLOTS;
        let words = match more % 8 {
            0 => 2 + (more >> 8) as usize % 14,
            1..=4 => 16 + (more >> 8) as usize % 240,
            5 | 6 => 64 + (more >> 8) as usize % 700,
            _ => 512 + (more >> 8) as usize % 2000,
        };
        let make = Change::Make { words, is_object: more >> 40 & 1 == 1 };
        let change = match (self.slots[slot], (bits >> 32) % 8) {
            (None, _) | (Some(_), 0 | 1) => make,
            (Some(_), 2 | 3) => Change::Free,
            (Some(_), 4) => Change::Write { halves: [true, false] },
            (Some(_), 5) => Change::Write { halves: [false, true] },
            (Some(_), _) => Change::Write { halves: [true, true] },
        };
        (slot, change)
    }

    fn note(&mut self, slot: usize, change: Change) {
        self.done += 1;
        let number = self.done;
        match (change, &mut self.slots[slot]) {
            (Change::Make { words, .. }, held) => {
                *held = Some(Content { words, halves: [number; 2] });
            }
            (Change::Write { halves }, Some(held)) => {
                (0..2).filter(|&half| halves[half]).for_each(|half| held.halves[half] = number);
            }
            (Change::Free, held) => *held = None,
            (Change::Write { .. }, None) => {}
        }
    }

    /// The word at a place that this operation wrote.
    fn word(&self, number: u64, at: usize) -> u64 {
        mix(self.seed ^ number).wrapping_add(at as u64)
    }
}

fn half_of(words: usize, half: usize) -> core::ops::Range<usize> {
    let middle = words / 2;
    if half == 0 { 0..middle } else { middle..words }
}

/// The heap's field: found, or made.
fn field_of(heap: &DurableHeap) -> Result<&'static Field, String> {
    let known = heap.root(ROOT);
    if !known.is_null() {
        // SAFETY: made below, by this process or one before; it stays as long as the heap is open.
        return Ok(unsafe { &*known.cast() });
    }
    let new = heap.malloc(size_of::<Field>());
    if new.is_null() {
        return Err("no memory for the lanes".into());
    }
    // SAFETY: so large.
    unsafe { new.write_bytes(0, size_of::<Field>()) };
    heap.set_root(ROOT, new).map_err(|errno| format!("no root: {errno}"))?;
    // SAFETY: as above.
    Ok(unsafe { &*new.cast() })
}

/// Operations that each lane has done.
#[derive(Clone, Copy)]
pub struct Progress(&'static Field);

impl Progress {
    /// Of the lanes in a heap.
    pub fn of(heap: &DurableHeap) -> Result<Progress, String> {
        field_of(heap).map(Progress)
    }

    /// What was done by now.
    pub fn done(&self) -> [u64; LANES] {
        std::array::from_fn(|lane| self.0.lanes[lane].done.load(SeqCst))
    }
}

/// Performs operations for ever, from where the heap is.
pub fn perform(heap: &DurableHeap, seed: u64, lane: usize) -> Result<(), String> {
    let field = field_of(heap)?;
    let own = &field.lanes[lane];
    let mut shadow = Shadow::after(seed, lane, own.done.load(SeqCst));
    loop {
        let number = shadow.done + 1;
        let seen = Progress(field).done();
        own.begun.store(number, SeqCst);
        (0..LANES).for_each(|other| own.seen[other].store(seen[other], SeqCst));
        let (slot, change) = shadow.next();
        act(heap, &own.slots[slot], change, &shadow)?;
        shadow.note(slot, change);
        own.done.store(number, SeqCst);
    }
}

fn act(
    heap: &DurableHeap,
    slot: &AtomicU64,
    change: Change,
    shadow: &Shadow,
) -> Result<(), String> {
    let number = shadow.done + 1;
    let old = slot.load(SeqCst) as *mut u8;
    match change {
        Change::Make { words, is_object } => {
            let new = match is_object {
                true => heap.allocate_objects(1, 8 * words),
                false => heap.malloc(8 * words),
            };
            if new.is_null() {
                return Err(format!("no memory for {words} words"));
            }
            for at in 0..words {
                // SAFETY: a new block of so many words.
                unsafe { new.cast::<u64>().add(at).write(shadow.word(number, at)) };
            }
            slot.store(new as u64, SeqCst);
        }
        Change::Free => slot.store(0, SeqCst),
        Change::Write { halves } => {
            let index = shadow.next().0;
            let Some(held) = shadow.slots[index] else { return Ok(()) };
            for at in (0..2).filter(|&half| halves[half]).flat_map(|half| half_of(held.words, half))
            {
                // SAFETY: the slot's block, of so many words.
                unsafe { old.cast::<u64>().add(at).write(shadow.word(number, at)) };
            }
            return Ok(());
        }
    }
    if !old.is_null() {
        // SAFETY: a block of the slot's, which has another by now, or none.
        unsafe { free(old) };
    }
    Ok(())
}

/// Holds every byte of every lane against what it must be. Answers how many operations were done,
/// in all.
pub fn check(heap: &DurableHeap, seed: u64, told: &[u64; LANES]) -> Result<u64, String> {
    let field = field_of(heap)?;
    let done = Progress(field).done();
    for lane in 0..LANES {
        let own = &field.lanes[lane];
        let begun = own.begun.load(SeqCst);
        if done[lane] < told[lane] {
            return Err(format!(
                "lane {lane}: {} operations were durable, {} are there",
                told[lane], done[lane]
            ));
        }
        if begun != done[lane] && begun != done[lane] + 1 {
            return Err(format!("lane {lane}: {begun} begun, {} done", done[lane]));
        }
        for (other, (seen, &done)) in own.seen.iter().zip(&done).enumerate() {
            let seen = seen.load(SeqCst);
            if seen > done {
                return Err(format!(
                    "no instant: lane {lane} has seen {seen} operations of lane {other}, which \
                     has done {done}"
                ));
            }
        }
        let shadow = Shadow::after(seed, lane, done[lane]);
        let cut_off = (begun > done[lane]).then(|| shadow.next().0);
        for slot in (0..SLOTS).filter(|&slot| Some(slot) != cut_off) {
            let address = own.slots[slot].load(SeqCst) as *const u64;
            check_block(&shadow, slot, address).map_err(|wrong| {
                format!("lane {lane}, slot {slot}, after {}: {wrong}", shadow.done)
            })?;
        }
    }
    Ok(done.iter().sum())
}

fn check_block(shadow: &Shadow, slot: usize, address: *const u64) -> Result<(), String> {
    let Some(held) = shadow.slots[slot] else {
        return match address.is_null() {
            true => Ok(()),
            false => Err(format!("a block at {address:p} that was freed")),
        };
    };
    let usable = usable_size(address.cast()).unwrap_or(0);
    if address.is_null() || usable < 8 * held.words {
        return Err(format!("{usable} bytes at {address:p}, which has {} words", held.words));
    }
    for half in 0..2 {
        for at in half_of(held.words, half) {
            // SAFETY: a live block of so many words, as the heap just said.
            let found = unsafe { address.add(at).read() };
            let right = shadow.word(held.halves[half], at);
            if found != right {
                let words = held.words;
                return Err(format!("word {at} of {words} is {found:#x}, not {right:#x}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_those_of_the_seed_and_use_every_change() {
        let (one, again) = (Shadow::after(7, 1, 20_000), Shadow::after(7, 1, 20_000));
        assert_eq!(one.slots, again.slots);
        assert_ne!(one.slots, Shadow::after(8, 1, 20_000).slots);
        assert_ne!(one.slots, Shadow::after(7, 2, 20_000).slots);
        let full = one.slots.iter().flatten().count();
        assert!((SLOTS / 3..SLOTS).contains(&full), "{full}");
        let is_mixed = |held: &&Content| held.halves[0] != held.halves[1];
        assert!(one.slots.iter().flatten().filter(is_mixed).count() > 50);
    }
}
