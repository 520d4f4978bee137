//! Joint writes: several writes of a file under way at a time, none of which outlives its process.
//!
//! They go through the kernel's AIO contexts, not through a ring: what a ring has under way may end
//! after its process has died. A context is its address space's: before the kernel gives that up,
//! and with it the mappings and the files that they hold open, it waits for every request
//! (`exit_aio`, which comes before `exit_mmap`). So a lock that is held by an open file which the
//! process has mapped is held until the writes have ended (`rendezvous`).
//!
//! Guarantees: `write` returns when no request is under way any more; it says which writes are
//! whole.
//! Never: allocates | retries: what is not whole may be written again the plain way.
//! Threads: one at a time for each value (`&mut`), also in a signal handler. A child of a fork has
//! no use for its parent's.

use crate::errno::{Errno, Result, Saved};
use crate::raw_call::{raw_call, raw_call_again};
use crate::threads::signals::NoFileSizeSignal;
use std::os::fd::RawFd;

/// Writes of one call.
pub const WRITES_MAX: usize = 16;

/// IOCB_CMD_PWRITE.
const OPCODE_WRITE: u16 = 1;

/// The kernel's `struct iocb`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Control {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}

/// The kernel's `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    control: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Control>() == 64 && size_of::<Event>() == 32);

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
    context: usize,
}

impl JointWriter {
    /// ENOSYS, EPERM: the kernel has no such calls, or a sandbox refuses them. EAGAIN: all
    /// processes together have as many as an administrator allows (fs.aio-max-nr).
    pub fn new() -> Result<JointWriter> {
        let mut context = 0usize;
        // SAFETY: the kernel writes a word.
        unsafe { raw_call!(SYS_io_setup, WRITES_MAX, &raw mut context) }?;
        Ok(JointWriter { context })
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
        let count = writes.len().min(WRITES_MAX);
        for (index, write) in writes[..count].iter().enumerate() {
            controls[index] = Control {
                data: index as u64,
                opcode: OPCODE_WRITE,
                fd: fd as u32,
                buffer: write.from as u64,
                bytes: write.bytes as u64,
                offset: write.offset as i64,
                ..Control::default()
            };
            pointers[index] = &raw const controls[index];
        }
        // SAFETY: pointers to so many controls; the bytes are the caller's promise. Fewer may be
        // taken, or none: the others are not under way.
        let taken = unsafe {
            raw_call_again!(SYS_io_submit, self.context, count, pointers.as_ptr()).unwrap_or(0)
        };
        let mut whole = 0;
        let mut left = taken;
        while left > 0 {
            let mut events = [Event::default(); WRITES_MAX];
            let (context, none) = (self.context, core::ptr::null::<libc::timespec>());
            let room = events.as_mut_ptr();
            // SAFETY: room for so many events.
            let got = unsafe { raw_call_again!(SYS_io_getevents, context, left, left, room, none) };
            let got = match got {
                Ok(got) => got.min(left),
                // Nobody knows when the bytes are free again.
                Err(errno) => gone(errno),
            };
            for event in &events[..got] {
                let index = event.data as usize % WRITES_MAX;
                if event.result == controls[index].bytes as i64 {
                    whole |= 1 << index;
                }
            }
            left -= got;
        }
        whole
    }

    /// In the child of a fork: its parent's is not there.
    pub fn forget(self) {
        core::mem::forget(self);
    }
}

impl Drop for JointWriter {
    fn drop(&mut self) {
        // SAFETY: no memory arguments; nothing is under way.
        let _ = unsafe { raw_call!(SYS_io_destroy, self.context) };
    }
}

#[cold]
fn gone(errno: Errno) -> ! {
    crate::say!("fatal: writes cannot be waited for: ", errno);
    // SAFETY: no arguments.
    unsafe { libc::abort() }
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
