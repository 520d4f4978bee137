//! Joint writes: several writes of a file under way at a time, none of which outlives its process.
//!
//! They go through the kernel's AIO (`aio`), not through io_uring: what that has under way may end
//! after its process has died. AIO's requests end before the kernel gives up the mappings, and the
//! files that they hold open. So a lock that is held by an open file which the process has mapped
//! is held until the writes have ended (`rendezvous`).
//!
//! Guarantees: `write` returns when no request is under way any more; it says which writes are
//! whole.
//! Never: allocates | retries: what is not whole may be written again the plain way.
//! Threads: one at a time for each value (`&mut`), also in a signal handler. A child of a fork has
//! no use for its parent's.

use crate::errno::{Result, Saved};
use crate::files::aio::{Context, Control, Event, Piece};
use crate::threads::signals::NoFileSizeSignal;
use std::os::fd::RawFd;

/// Writes of one call.
pub const WRITES_MAX: usize = 16;

/// A write.
#[derive(Clone, Copy, Debug)]
pub struct JointWrite {
    /// Its bytes.
    pub from: *const u8,
    /// How many.
    pub bytes: usize,
    /// Where they go.
    pub offset: u64,
}

/// See the file's header.
#[derive(Debug)]
pub struct JointWriter {
    context: Context,
}

impl JointWriter {
    /// Errors: those of an AIO context.
    pub fn new() -> Result<JointWriter> {
        Ok(JointWriter { context: Context::new(WRITES_MAX)? })
    }

    /// Writes all side by side, `WRITES_MAX` at most, and waits for them; answers which are whole,
    /// a bit for each.
    ///
    /// # Safety
    /// The bytes can be read, and nobody changes them meanwhile.
    pub unsafe fn write(&mut self, fd: RawFd, writes: &[JointWrite]) -> u32 {
        let _errno = Saved::new();
        let _no_signal = NoFileSizeSignal::new();
        let mut controls = [Control::default(); WRITES_MAX];
        let mut pointers = [core::ptr::null::<Control>(); WRITES_MAX];
        let writes = &writes[..writes.len().min(WRITES_MAX)];
        for (number, write) in writes.iter().enumerate() {
            let &JointWrite { from, bytes, offset } = write;
            let buffer = from.cast_mut(); // it is only read
            controls[number] =
                Control::of(fd, Piece { buffer, bytes, offset, is_write: true, number });
            pointers[number] = &raw const controls[number];
        }
        // SAFETY: the bytes are the caller's promise, and all that is taken is over below. Fewer
        // may be taken, or none: the others are not under way.
        let mut left = unsafe { self.context.submit(&pointers[..writes.len()]) }.unwrap_or(0);
        let mut whole = 0;
        while left > 0 {
            let mut events = [Event::default(); WRITES_MAX];
            let got = self.context.wait(left, &mut events).min(left);
            for event in &events[..got] {
                let number = event.number() % WRITES_MAX;
                if writes.get(number).is_some_and(|write| event.result() == write.bytes as i64) {
                    whole |= 1 << number;
                }
            }
            left -= got;
        }
        whole
    }

    /// In the child of a fork: its parent's is not there.
    pub fn forget(self) {
        self.context.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;
    use crate::files::direct_file::DirectFile;
    use crate::threads::rendezvous::Rendezvous;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn all_that_is_said_to_be_whole_is_in_the_file_and_a_refusal_is_not() {
        let path = std::env::temp_dir().join(format!("deepheap-joint-{}", std::process::id()));
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.unwrap();
        std::fs::remove_file(&path).unwrap();
        let bytes: Vec<u8> = (0..WRITES_MAX * PAGE).map(|at| (at / 11) as u8).collect();
        let writes: Vec<JointWrite> = (0..WRITES_MAX)
            .map(|index| JointWrite {
                from: bytes[index * PAGE..].as_ptr(),
                bytes: PAGE,
                offset: (3 * index * PAGE) as u64,
            })
            .collect();
        let Ok(mut writer) = JointWriter::new() else { return };
        // SAFETY: borrowed bytes.
        assert_eq!(unsafe { writer.write(file.as_raw_fd(), &writes) }, 0xffff);
        for (index, write) in writes.iter().enumerate() {
            let mut found = vec![0; PAGE];
            file.read_exact_at(&mut found, write.offset).unwrap();
            assert!(found == bytes[index * PAGE..(index + 1) * PAGE], "write {index}");
        }
        let mut bad = [writes[0], writes[1], writes[2]];
        bad[1].from = core::ptr::null();
        // SAFETY: the kernel refuses bytes that are not there.
        let whole = unsafe { writer.write(file.as_raw_fd(), &bad) };
        assert_eq!(whole & 0b10, 0, "{whole:b}");
        // SAFETY: borrowed bytes; no such file.
        assert_eq!(unsafe { writer.write(-1, &writes) }, 0);
    }

    /// A slot of shared memory that a process writes from, over and over, until it is killed; then
    /// a process that finds its lock free writes other bytes there.
    #[test]
    fn when_the_lock_of_a_killed_process_is_free_its_writes_have_ended() {
        const KILLS: usize = 40;
        const BYTES: usize = WRITES_MAX * PAGE;
        let number = std::process::id();
        let own = Rendezvous::open(&format!("test-joint-{number}")).unwrap();
        let door = own.door().unwrap().unwrap();
        door.reset(BYTES).unwrap();
        let slot = own.map(BYTES).unwrap();
        let path = std::env::temp_dir().join(format!("deepheap-joint-killed-{number}"));
        std::fs::write(&path, vec![0; 2 * BYTES]).unwrap();
        let file = DirectFile::open_in_place(&path, true).unwrap();
        let plain = std::fs::File::open(&path).unwrap();
        for kill in 0..KILLS {
            // SAFETY: a slot that nobody writes from now.
            unsafe { slot.write_bytes(kill as u8 | 0x80, BYTES) };
            // SAFETY: the child allocates in `reopened` alone, and ends by being killed.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let mine = own.reopened().unwrap();
                let from = mine.map(BYTES).unwrap();
                assert!(mine.try_lock(kill).unwrap());
                let writes: [JointWrite; WRITES_MAX] = core::array::from_fn(|index| JointWrite {
                    from: from.wrapping_add(index * PAGE),
                    bytes: PAGE,
                    offset: (2 * index * PAGE) as u64,
                });
                let Ok(mut writer) = JointWriter::new() else {
                    loop {
                        std::thread::sleep(std::time::Duration::from_secs(1));
                    }
                };
                loop {
                    // SAFETY: the slot, which stays.
                    unsafe { writer.write(file.as_raw_fd(), &writes) };
                }
            }
            while !own.is_locked(kill) {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_micros(2_000 + 137 * kill as u64));
            // SAFETY: no memory arguments.
            unsafe { libc::kill(child, libc::SIGKILL) };
            while own.is_locked(kill) {
                core::hint::spin_loop();
            }
            // SAFETY: the lock is free, so the slot is ours.
            unsafe { slot.write_bytes(kill as u8, BYTES) };
            for index in 0..WRITES_MAX {
                // SAFETY: as above.
                let bytes =
                    unsafe { core::slice::from_raw_parts(slot.wrapping_add(index * PAGE), PAGE) };
                file.write_at(bytes, (2 * index * PAGE) as u64).unwrap();
            }
            // SAFETY: waits for our own child.
            assert_eq!(unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) }, child);
            for index in 0..WRITES_MAX {
                let mut found = vec![0xff; PAGE];
                plain.read_exact_at(&mut found, (2 * index * PAGE) as u64).unwrap();
                assert!(found.iter().all(|byte| *byte == kill as u8), "kill {kill}, write {index}");
            }
        }
        door.remove();
        std::fs::remove_file(&path).unwrap();
    }
}
