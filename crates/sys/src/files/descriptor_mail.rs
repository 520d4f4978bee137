//! Descriptor mail: open files that processes hand to one that waits for them.
//!
//! The letter box is a socket with a name that is in no folder (unix(7), abstract), so nothing is
//! left behind, and a sender that may not see the folders of the receiver can send all the same.
//!
//! Guarantees: a letter names the process and the user that sent it, as the kernel knows them. A
//! sender waits `PATIENCE` at most, and is told if nobody has the box any more.
//! Never: is a cancellation point of libc.
//! Threads: any.

use core::ffi::c_void;
use core::mem::{offset_of, size_of};
use core::time::Duration;
use std::os::fd::{AsRawFd, RawFd};

use crate::errno::{Errno, Result};
use crate::raw_call::{Descriptor, raw_call, raw_call_again};

/// How long a sender waits for room in the box.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest name: an address begins with a zero, which keeps it out of the folders.
const NAME_MAX: usize =
    size_of::<libc::sockaddr_un>() - offset_of!(libc::sockaddr_un, sun_path) - 1;
/// Room for the descriptor and the sender, with what the kernel puts before each of them.
const CONTROL_WORDS: usize = 16;

/// A box that descriptors are sent to. It is open as long as this is there.
pub struct LetterBox(Descriptor);

/// What came.
pub struct Letter {
    /// The open file; its taker's to close.
    pub file: Descriptor,
    /// The process that sent it.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

impl LetterBox {
    /// Opens one of this name; EADDRINUSE: there is one.
    pub fn open(name: &str) -> Result<LetterBox> {
        let socket = socket(libc::SOCK_NONBLOCK)?;
        let (address, len) = address(name)?;
        set_option(&socket, libc::SO_PASSCRED, &1i32)?;
        // SAFETY: an address of that many bytes.
        unsafe { raw_call!(SYS_bind, socket.as_raw_fd(), &raw const address, len) }?;
        Ok(LetterBox(socket))
    }

    /// Takes one out; none if there is none.
    pub fn take(&self) -> Option<Letter> {
        loop {
            match self.receive() {
                Ok(Some(letter)) => return Some(letter),
                // Not one of ours: the next.
                Ok(None) => {}
                Err(_) => return None,
            }
        }
    }

    fn receive(&self) -> Result<Option<Letter>> {
        let (mut byte, mut control) = ([0u8; 1], [0u64; CONTROL_WORDS]);
        let mut text = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
        let mut message = message(&mut text, &mut control);
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        // SAFETY: the message's buffers are those above.
        unsafe { raw_call_again!(SYS_recvmsg, self.as_raw_fd(), &raw mut message, flags) }?;
        let (mut file, mut sender) = (None, None);
        // SAFETY: the kernel has filled the control buffer as the message says now; a descriptor
        // in it is ours, and a file closes it if it is not wanted.
        unsafe {
            let mut head = libc::CMSG_FIRSTHDR(&raw const message);
            while let Some(found) = head.as_ref() {
                let data = libc::CMSG_DATA(head);
                if found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_RIGHTS {
                    let bytes = found.cmsg_len - data.offset_from_unsigned(head.cast::<u8>());
                    for at in 0..bytes / size_of::<RawFd>() {
                        let number = data.cast::<RawFd>().add(at).read_unaligned();
                        file = Some(Descriptor::new(number as usize));
                    }
                }
                if found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_CREDENTIALS
                {
                    sender = Some(data.cast::<libc::ucred>().read_unaligned());
                }
                head = libc::CMSG_NXTHDR(&raw const message, head);
            }
        }
        let letter = file.zip(sender);
        Ok(letter.map(|(file, by)| Letter { file, pid: by.pid as u32, uid: by.uid }))
    }
}

impl AsRawFd for LetterBox {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Sends an open file to the box of this name. ECONNREFUSED: there is none any more.
pub fn send(name: &str, descriptor: RawFd) -> Result<()> {
    let socket = socket(0)?;
    let patience = libc::timeval { tv_sec: PATIENCE.as_secs() as i64, tv_usec: 0 };
    set_option(&socket, libc::SO_SNDTIMEO, &patience)?;
    let (mut address, len) = address(name)?;
    let (mut byte, mut control) = ([0u8; 1], [0u64; CONTROL_WORDS]);
    let mut text = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    let mut message = message(&mut text, &mut control);
    message.msg_name = (&raw mut address).cast::<c_void>();
    message.msg_namelen = len;
    // SAFETY: the control buffer has room for one descriptor; the message's buffers are those
    // above.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(descriptor);
        let flags = libc::MSG_NOSIGNAL;
        raw_call_again!(SYS_sendmsg, socket.as_raw_fd(), &raw const message, flags)?;
    }
    Ok(())
}

fn socket(flags: i32) -> Result<Descriptor> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | flags;
    // SAFETY: no memory arguments; the new descriptor is nobody's but ours.
    unsafe { Ok(Descriptor::new(raw_call!(SYS_socket, libc::AF_UNIX, kind, 0)?)) }
}

fn set_option<T>(socket: &Descriptor, option: i32, value: &T) -> Result<()> {
    let (level, len) = (libc::SOL_SOCKET, size_of::<T>());
    let value = core::ptr::from_ref(value);
    // SAFETY: a value of that many bytes.
    unsafe { raw_call!(SYS_setsockopt, socket.as_raw_fd(), level, option, value, len) }?;
    Ok(())
}

/// The address of a box, and how long it is.
fn address(name: &str) -> Result<(libc::sockaddr_un, u32)> {
    if name.len() > NAME_MAX {
        return Err(Errno::EINVAL);
    }
    let mut address =
        libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; NAME_MAX + 1] };
    for (to, byte) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = byte as core::ffi::c_char;
    }
    let len = offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Ok((address, len as u32))
}

fn message(text: &mut libc::iovec, control: &mut [u64; CONTROL_WORDS]) -> libc::msghdr {
    libc::msghdr {
        msg_name: core::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: text,
        msg_iovlen: 1,
        msg_control: control.as_mut_ptr().cast(),
        msg_controllen: size_of_val(control),
        msg_flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{FromRawFd, IntoRawFd};

    #[test]
    fn a_file_arrives_with_its_sender_and_a_closed_box_is_told() {
        let name = format!("deepheap-test-{}", std::process::id());
        let letter_box = LetterBox::open(&name).expect("a box");
        assert!(LetterBox::open(&name).is_err(), "there is one");
        assert!(letter_box.take().is_none());
        let sent = File::open("/proc/self/comm").expect("a file");
        send(&name, sent.as_raw_fd()).expect("sent");
        let letter = letter_box.take().expect("a letter");
        assert_eq!(letter.pid, std::process::id());
        // SAFETY: no memory arguments.
        assert_eq!(letter.uid, unsafe { libc::geteuid() });
        let mut text = String::new();
        // SAFETY: it is ours.
        let mut file = unsafe { File::from_raw_fd(letter.file.into_raw_fd()) };
        file.read_to_string(&mut text).expect("it can be read");
        assert!(!text.is_empty());
        drop(letter_box);
        assert_eq!(send(&name, sent.as_raw_fd()), Err(Errno::ECONNREFUSED));
    }
}
