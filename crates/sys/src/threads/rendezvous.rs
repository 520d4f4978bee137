//! Rendezvous: a small file in RAM by which processes of one user find each other, share tables and
//! see which of them live.
//!
//! It lies in a folder of its own that only the user can enter. A process that holds the *door*
//! (flock) joins or leaves; each member then holds the lock of a byte (an open file description
//! lock) for as long as it lives, so the kernel itself tells which have died.
//!
//! Guarantees: close-on-exec; a folder or file of somebody else is refused; room for the tables is
//! reserved before they are mapped; a file is removed only while no member has a lock of it.
//! Never: runs in a signal handler, but for `is_locked`.
//! Threads: any.

use crate::PAGE;
use crate::errno::{Errno, Result};
use crate::files::file_status::{self, FileId};
use crate::files::own_descriptor::OwnDescriptor;
use crate::raw_call::{Descriptor, c_string, raw_call, raw_call_again};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::ffi::CString;
use std::os::fd::{AsRawFd, RawFd};

/// Where the folder may lie; the user's number is put in. It is no matter of the environment:
/// processes that share a file must find the same one. `/run/user` comes last, for it is taken away
/// with the user's last session, under processes that go on.
const PLACES: [&str; 2] = ["/dev/shm", "/run/user/{uid}"];

static HAS_TOLD: AtomicBool = AtomicBool::new(false);

/// The folder, made if need be: its path. Where somebody else has taken its name it lies in the
/// other place, and that is told. EPERM: there is no other.
pub fn folder() -> Result<CString> {
    // SAFETY: no arguments.
    let user = unsafe { libc::geteuid() };
    let (folder, refused) = folder_in(PLACES, user)?;
    if let Some((name, errno)) = refused
        && !HAS_TOLD.swap(true, Ordering::Relaxed)
    {
        crate::say!(
            &*name.to_string_lossy(),
            " is not a folder of this user's alone (",
            errno,
            "), so processes meet in ",
            &*folder.to_string_lossy(),
        );
    }
    Ok(folder)
}

/// As `folder`, and what could not be used of what is there.
fn folder_in(places: [&str; 2], user: u32) -> Result<(CString, Option<(CString, Errno)>)> {
    let (mut refused, mut failure) = (None, Errno::ENOENT);
    // Folders that are there come first: when the name is free again, those who meet elsewhere
    // since it was taken must be found.
    for makes in [false, true] {
        for place in places {
            let place = place.replace("{uid}", &user.to_string());
            let path = c_string(format!("{place}/deepheap-{user}"))?;
            // SAFETY: the path ends with NUL.
            let made = makes.then(|| unsafe { raw_call!(SYS_mkdir, path.as_ptr(), 0o700) });
            match check_folder(&path, user) {
                Ok(()) => return Ok((path, refused)),
                Err(Errno::ENOENT) => failure = made.and_then(Result::err).unwrap_or(failure),
                Err(errno) => refused = refused.or(Some((path, errno))),
            }
        }
    }
    Err(if refused.is_some() { Errno::EPERM } else { failure })
}

fn check_folder(path: &CStr, user: u32) -> Result<()> {
    let folder = Descriptor::open(path, libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)?;
    let stat = file_status::of(folder.as_raw_fd())?;
    let is_own = stat.st_uid == user && stat.st_mode & 0o077 == 0;
    if is_own { Ok(()) } else { Err(Errno::EPERM) }
}

/// Words of the file of this name, zeros when it is made, shared with all who ask for them. They
/// stay mapped; the file stays as long as one of the members does, each of which has a lock.
pub fn words<const COUNT: usize>(name: &str) -> Result<(&'static [AtomicU64; COUNT], Rendezvous)> {
    const { assert!(COUNT * size_of::<u64>() <= PAGE) };
    loop {
        let file = Rendezvous::open(name)?;
        let Some(door) = file.door()? else { continue };
        if file.bytes()? != PAGE {
            door.reset(PAGE)?;
        }
        let mut places = 0..PAGE;
        while !file.try_lock(places.next().ok_or(Errno::ENOSPC)?)? {}
        // A mapping keeps its open file, and so the locks of that.
        let page = file.reopened()?.map(PAGE)?;
        // SAFETY: a page of a mapping that stays, aligned as a page is, and used as atomics alone.
        let words = unsafe { &*page.cast() };
        drop(door);
        return Ok((words, file));
    }
}

/// See the file's header.
#[derive(Debug)]
pub struct Rendezvous {
    file: OwnDescriptor,
    path: CString,
}

/// The right to join and leave; given up on drop.
#[derive(Debug)]
pub struct Door<'a>(&'a Rendezvous);

impl Rendezvous {
    /// Opens the file of this name in the folder, made if need be.
    pub fn open(name: &str) -> Result<Rendezvous> {
        Self::open_named(name, libc::O_CREAT)
    }

    /// Opens the file of this name, which is there.
    pub fn existing(name: &str) -> Result<Rendezvous> {
        Self::open_named(name, 0)
    }

    fn open_named(name: &str, create: i32) -> Result<Rendezvous> {
        let path = c_string(format!("{}/{name}", folder()?.to_string_lossy()))?;
        let flags = libc::O_RDWR | libc::O_NOFOLLOW | create;
        let file = OwnDescriptor::adopt(Descriptor::open(&path, flags, 0o600)?);
        Ok(Rendezvous { file, path })
    }

    /// The door, unless somebody has it now: for callers that must not wait. The file may have been
    /// removed.
    pub fn door_if_free(&self) -> Option<Door<'_>> {
        let how = libc::LOCK_EX | libc::LOCK_NB;
        // SAFETY: no memory arguments.
        unsafe { raw_call_again!(SYS_flock, self.file.as_raw_fd(), how) }.ok()?;
        Some(Door(self))
    }

    /// Waits for the door. None: the file has been removed meanwhile; open it anew.
    pub fn door(&self) -> Result<Option<Door<'_>>> {
        // SAFETY: no memory arguments.
        unsafe { raw_call_again!(SYS_flock, self.file.as_raw_fd(), libc::LOCK_EX) }?;
        let door = Door(self);
        Ok(self.is_named()?.then_some(door))
    }

    /// Removes the file's name if nobody has a lock of the file but `member`, a descriptor of it.
    /// A process that has the door is about to join, or removes it as well.
    pub fn remove_unless_used(&self, member: RawFd) {
        if let Some(door) = self.door_if_free()
            && self.is_named() == Ok(true)
            && !is_locked(member, lock_of(0, 0))
        {
            door.remove();
        }
    }

    fn is_named(&self) -> Result<bool> {
        let own = FileId::of(self.file.as_raw_fd())?;
        Ok(file_status::at(&self.path).is_ok_and(|named| FileId::from(named) == own))
    }

    /// The same file, as another member: its locks are its own. For the child of a fork.
    pub fn reopened(&self) -> Result<Rendezvous> {
        let file = Descriptor::reopen(self.file.as_raw_fd(), libc::O_RDWR)?;
        Ok(Rendezvous { file: OwnDescriptor::adopt(file), path: self.path.clone() })
    }

    /// Takes the lock of a byte, for as long as this is open. False: another has it.
    pub fn try_lock(&self, byte: usize) -> Result<bool> {
        let mut lock = lock_of(byte, 1);
        let (fd, lock) = (self.file.as_raw_fd(), &raw mut lock);
        // SAFETY: the kernel reads a flock.
        match unsafe { raw_call_again!(SYS_fcntl, fd, libc::F_OFD_SETLK, lock) } {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Whether another has the lock of a byte. In doubt it has.
    pub fn is_locked(&self, byte: usize) -> bool {
        is_locked(self.file.as_raw_fd(), lock_of(byte, 1))
    }

    /// Whether another has the lock of any byte. In doubt it has.
    pub fn has_others(&self) -> bool {
        is_locked(self.file.as_raw_fd(), lock_of(0, 0))
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> Result<usize> {
        Ok(file_status::of(self.file.as_raw_fd())?.st_size as usize)
    }

    /// Maps the whole file, shared.
    pub fn map(&self, bytes: usize) -> Result<*mut u8> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (fd, flags) = (self.file.as_raw_fd(), libc::MAP_SHARED);
        // SAFETY: a new mapping wherever the kernel likes.
        Ok(unsafe { raw_call!(SYS_mmap, 0, bytes, protection, flags, fd, 0) }? as *mut u8)
    }
}

impl Door<'_> {
    /// Makes the file `bytes` zeros, with room reserved for all of them.
    pub fn reset(&self, bytes: usize) -> Result<()> {
        let fd = self.0.file.as_raw_fd();
        // SAFETY: no memory arguments.
        unsafe {
            raw_call_again!(SYS_ftruncate, fd, 0)?;
            raw_call_again!(SYS_fallocate, fd, 0, 0, bytes)?;
        }
        Ok(())
    }

    /// Removes the file's name: the last member leaves.
    pub fn remove(&self) {
        // SAFETY: the path ends with NUL. The next process that joins makes a file that stays anew.
        let _ = unsafe { raw_call!(SYS_unlink, self.0.path.as_ptr()) };
    }
}

impl Drop for Door<'_> {
    fn drop(&mut self) {
        // SAFETY: no memory arguments; closing the file would do it as well.
        let _ = unsafe { raw_call!(SYS_flock, self.0.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

impl AsRawFd for Rendezvous {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// The lock of so many bytes; 0: of all there can be.
fn lock_of(byte: usize, bytes: i64) -> libc::flock {
    // SAFETY: zeroed is a valid flock; l_pid must be 0.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = byte as i64;
    lock.l_len = bytes;
    lock
}

/// Whether another open file has such a lock. In doubt it has.
fn is_locked(descriptor: RawFd, mut lock: libc::flock) -> bool {
    let at = &raw mut lock;
    // SAFETY: the kernel reads and writes a flock.
    let asked = unsafe { raw_call_again!(SYS_fcntl, descriptor, libc::F_OFD_GETLK, at) };
    asked.is_err() || i32::from(lock.l_type) != libc::F_UNLCK
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    #[test]
    fn a_name_that_somebody_else_has_taken_leads_to_the_other_place_and_all_stay_there() {
        // SAFETY: no arguments.
        let user = unsafe { libc::geteuid() };
        let top = std::env::temp_dir().join(format!("test-places-{}", std::process::id()));
        let places = ["one", "two"].map(|name| top.join(name));
        let names = places.each_ref().map(|place| place.join(format!("deepheap-{user}")));
        let squats: [fn(&Path); 3] = [
            |at| std::fs::write(at, "").unwrap(),
            |at| std::os::unix::fs::symlink("/", at).unwrap(),
            |at| {
                std::fs::create_dir(at).unwrap();
                std::fs::set_permissions(at, Permissions::from_mode(0o777)).unwrap();
            },
        ];
        let found = || {
            let [one, two] = places.each_ref().map(|place| place.to_str().unwrap());
            let found = folder_in([one, two], user);
            found.map(|(path, refused)| (PathBuf::from(path.to_str().unwrap()), refused.is_some()))
        };
        for squat in squats {
            places.iter().for_each(|place| std::fs::create_dir_all(place).unwrap());
            squat(&names[0]);
            assert_eq!(found(), Ok((names[1].clone(), true)));
            std::fs::rename(&names[0], top.join("gone")).unwrap();
            assert_eq!(found(), Ok((names[1].clone(), false)), "where the others are");
            std::fs::remove_dir_all(&places[1]).unwrap();
            assert_eq!(found(), Ok((names[0].clone(), false)));
            std::fs::remove_dir(&names[0]).unwrap();
            std::fs::rename(top.join("gone"), &names[0]).unwrap();
            assert_eq!(found(), Err(Errno::EPERM));
            std::fs::remove_dir_all(&top).unwrap();
        }
        assert_eq!(found(), Err(Errno::ENOENT));
    }

    #[test]
    fn members_see_each_other_until_they_go() {
        let name = format!("test-members-{}", std::process::id());
        let first = Rendezvous::open(&name).unwrap();
        let door = first.door().unwrap().expect("just made");
        door.reset(8192).unwrap();
        drop(door);
        assert_eq!(first.bytes(), Ok(8192));
        let second = first.reopened().unwrap();
        assert_eq!((first.try_lock(3), second.try_lock(3)), (Ok(true), Ok(false)));
        assert!(second.is_locked(3) && !second.is_locked(4));
        assert!(!first.is_locked(3), "its own");
        drop(first);
        assert!(!second.is_locked(3));
        let door = second.door_if_free().expect("nobody has it");
        let third = second.reopened().unwrap();
        assert!(third.door_if_free().is_none());
        drop(door);
        assert!(third.door_if_free().is_some());
        second.door().unwrap().expect("still there").remove();
        assert!(second.door().unwrap().is_none(), "removed");
    }
}
