//! Pool: the file in RAM in which the processes of a pool tell each other their use and their
//! needs.
//!
//! It is a rendezvous (`sys/threads/rendezvous`) with a word for the RAM of the pool and a slot for
//! each process. A process writes its own slot alone, at the door. The kernel drops the lock of a
//! slot when its process ends, however it ends. A process that finds a slot without its lock
//! clears it.
//!
//! Guarantees: what the dead had is free within `CENSUS`. A file that another version made, or that
//! nobody uses, is made anew. It goes with the last member that ends by `exit`; if that one was
//! killed, when a process joins a pool.
//! Never: waits for another process, but when it joins.
//! Threads: the evictor's own.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use core::time::Duration;
use std::os::fd::AsRawFd;

use deepheap_policy::fair_share::{Member, Want};
use deepheap_sys::errno::{Errno, Result};
use deepheap_sys::files::own_descriptor::OwnDescriptor;
use deepheap_sys::threads::rendezvous::Rendezvous;
use deepheap_sys::threads::rendezvous_list;

/// The prefix of the files' names.
const PREFIX: &str = "pool-";
/// The most processes of a pool.
const SLOTS: usize = 127;
const WORDS: usize = 8;
const BYTES: usize = (SLOTS + 1) * WORDS * size_of::<u64>();
const VERSION: u64 = 1;
/// How often a process looks which members live.
const CENSUS: Duration = Duration::from_millis(200);

/// The descriptor by which this process is a member, for the child of a fork.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

/// A slot, or before the first one the version and the bytes of the pool.
#[repr(C, align(64))]
struct Slot([AtomicU64; WORDS]);

/// Words of a slot.
const IS_USED: usize = 0;
const GRANTED: usize = 1;
const USED: usize = 2;
const LEAST: usize = 3;
const WANT: usize = 4;
/// What is wanted, by its number.
const WANTS: [Want; 3] = [Want::Nothing, Want::Keep, Want::More];

/// This process's place in a pool.
pub(crate) struct Pool {
    file: Rendezvous,
    slots: &'static [Slot],
    own: usize,
    census_ns: u64,
}

/// The findings of a look at the pool, this process among the members.
pub(crate) struct Seen {
    pub total: u64,
    pub members: Vec<Member>,
    pub own: usize,
}

impl Pool {
    /// Joins the pool of this name, or makes it, with so many bytes. ENOSPC: it is full.
    pub(crate) fn join(name: &str, bytes: u64) -> Result<Pool> {
        rendezvous_list::sweep(PREFIX);
        loop {
            let file = Rendezvous::open(&format!("{PREFIX}{name}"))?;
            let Some(door) = file.door()? else { continue };
            if file.bytes()? != BYTES {
                door.reset(BYTES)?;
            }
            // A mapping keeps its open file, and so the locks of that, in forked children, too.
            let at = file.reopened()?.map(BYTES)?.cast::<Slot>();
            // SAFETY: a mapping of so many slots, all of them atomics, which stays.
            let slots = unsafe { core::slice::from_raw_parts(at, SLOTS + 1) };
            let is_dead = |slot: &usize| !file.is_locked(*slot);
            let head = &slots[0].0;
            if head[0].load(Ordering::Relaxed) != VERSION || (1..=SLOTS).all(|slot| is_dead(&slot))
            {
                slots.iter().flat_map(|slot| &slot.0).for_each(|it| it.store(0, Ordering::Relaxed));
                head[1].store(bytes, Ordering::Relaxed);
                head[0].store(VERSION, Ordering::Relaxed);
            }
            let own = (1..=SLOTS).find(is_dead).ok_or(Errno::ENOSPC)?;
            if !file.try_lock(own)? {
                return Err(Errno::EAGAIN);
            }
            put(&slots[own], &Member { granted: 0, used: 0, least: 0, want: Want::Keep });
            drop(door);
            DESCRIPTOR.store(file.as_raw_fd(), Ordering::Release);
            return Ok(Pool { file, slots, own, census_ns: 0 });
        }
    }

    /// Tells what this process uses and wants; `decide` sees all members, and what it answers is
    /// granted. None: another process is here.
    pub(crate) fn look(
        &mut self,
        now_ns: u64,
        me: &Member,
        decide: impl FnOnce(&Seen) -> u64,
    ) -> Option<(u64, Seen)> {
        let _door = self.file.door_if_free()?;
        let is_time = now_ns - self.census_ns >= CENSUS.as_nanos() as u64;
        if is_time {
            self.census_ns = now_ns;
        }
        let mut seen =
            Seen { total: self.slots[0].0[1].load(Ordering::Relaxed), members: Vec::new(), own: 0 };
        for (index, slot) in self.slots.iter().enumerate().skip(1) {
            if index == self.own {
                let granted = slot.0[GRANTED].load(Ordering::Relaxed);
                seen.own = seen.members.len();
                seen.members.push(Member { granted, ..*me });
            } else if slot.0[IS_USED].load(Ordering::Relaxed) != 0 {
                if is_time && !self.file.is_locked(index) {
                    slot.0[IS_USED].store(0, Ordering::Relaxed);
                    continue;
                }
                seen.members.push(get(slot));
            }
        }
        let granted = decide(&seen);
        put(&self.slots[self.own], &Member { granted, ..*me });
        seen.members[seen.own].granted = granted;
        Some((granted, seen))
    }
}

fn put(slot: &Slot, member: &Member) {
    let want = WANTS.iter().position(|want| *want == member.want).unwrap_or(0);
    let words = [1, member.granted, member.used, member.least, want as u64];
    words.iter().zip(&slot.0).for_each(|(value, word)| word.store(*value, Ordering::Relaxed));
}

fn get(slot: &Slot) -> Member {
    let word = |word: usize| slot.0[word].load(Ordering::Relaxed);
    let want = WANTS[(word(WANT) as usize).min(WANTS.len() - 1)];
    Member { granted: word(GRANTED), used: word(USED), least: word(LEAST), want }
}

/// The process ends by `exit`: if it is the last member of the pool, the file goes.
pub(crate) fn leave(name: &str) {
    let descriptor = DESCRIPTOR.load(Ordering::Acquire);
    if descriptor >= 0
        && let Ok(file) = Rendezvous::existing(&format!("{PREFIX}{name}"))
    {
        file.remove_unless_used(descriptor);
    }
}

/// In the child of a fork: it is no member, whatever its parent was.
///
/// # Safety
/// The child has one thread, which is here.
pub(crate) unsafe fn leave_in_child() {
    let descriptor = DESCRIPTOR.swap(-1, Ordering::AcqRel);
    if descriptor >= 0 {
        // SAFETY: its owner is a thread of the parent, so nobody here would drop it.
        drop(unsafe { OwnDescriptor::take_back(descriptor) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Member = Member { granted: 0, used: 5, least: 3, want: Want::More };

    #[test]
    fn members_see_each_other_and_the_ram_is_what_the_first_one_said() {
        let name = format!("test-{}", std::process::id());
        let mut first = Pool::join(&name, 100).unwrap();
        let mut second = Pool::join(&name, 200).unwrap();
        let (granted, _) = first.look(1, &ME, |_| 40).unwrap();
        assert_eq!(granted, 40);
        let (_, seen) = second
            .look(1, &ME, |seen| {
                assert_eq!(seen.members[seen.own].granted, 0);
                7
            })
            .unwrap();
        assert_eq!((seen.total, seen.own, seen.members.len()), (100, 1, 2));
        let told = |seen: &Seen| -> Vec<u64> { seen.members.iter().map(|it| it.granted).collect() };
        assert_eq!(told(&seen), [40, 7]);
        // The descriptor is the lock: as if its process had ended.
        leave(&name);
        drop(first);
        let (_, seen) = second.look(u64::MAX / 2, &ME, |_| 9).unwrap();
        assert_eq!(told(&seen), [9]);
        let names = || rendezvous_list::names(&format!("{PREFIX}{name}")).unwrap().len();
        rendezvous_list::sweep(PREFIX);
        assert_eq!(names(), 1, "it has a member");
        leave(&name);
        assert_eq!(names(), 0, "which is the last");
        drop(second);
    }
}
