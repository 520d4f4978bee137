//! Traced: a process whose system calls a test sees (ptrace(2)), to end it at one of them, or to
//! have one refused.
//!
//! Every call of every thread stops twice, before the kernel does it and after; the test decides
//! each time how it goes on. The other threads run meanwhile.
//!
//! Guarantees: a process that is ended before a call has not done it, and after it has; one that is
//! refused was not made. The process ends with the thread that traces it.
//! Never: traces the children of the process.
//! Threads: `watch` is for the thread that has started the process and has no other children.

use std::collections::{HashMap, HashSet};
use std::io::Error;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

/// A system call that is about to be made, or was.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The thread.
    pub thread: libc::pid_t,
    /// Which call, `libc::SYS_...`.
    pub number: libc::c_long,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// The kernel's answer; none: it has not been made.
    pub result: Option<i64>,
}

impl Call {
    /// The file of a descriptor of the process.
    pub fn path_of(&self, descriptor: u64) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{}/fd/{}", self.thread, descriptor as i32)).ok()
    }
}

/// How a process goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GoOn {
    /// As if nobody looked.
    Freely,
    /// It does not: SIGKILL.
    Never,
    /// The call is not made, and answers this errno. Only before it.
    Refused(i32),
}

/// Lets the new process be traced by the thread that starts it.
pub fn prepare(command: &mut Command) -> &mut Command {
    let trace_me = || {
        // SAFETY: no memory arguments; the process execs next.
        match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    };
    // SAFETY: one system call, and no memory is allocated.
    unsafe { command.pre_exec(trace_me) }
}

/// Watches a process that was `prepare`d to its end; its status.
///
/// # Panics
/// If the kernel has no ptrace for us.
pub fn watch(child: Child, mut judge: impl FnMut(&Call) -> GoOn) -> ExitStatus {
    let process = child.id() as libc::pid_t;
    let mut known = HashSet::from([process]);
    let mut under_way: HashMap<libc::pid_t, (Call, Option<i32>)> = HashMap::new();
    // It stops after its exec.
    let (first, status) = wait_for_any();
    assert!(first == process && libc::WIFSTOPPED(status), "{first} {status:#x}");
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SETOPTIONS, process, 0, options as usize);
    request(libc::PTRACE_SYSCALL, process, 0, 0);
    loop {
        let (thread, status) = wait_for_any();
        if !libc::WIFSTOPPED(status) {
            known.remove(&thread);
            // The first thread is the last whose end is told.
            if thread == process {
                return ExitStatus::from_raw(status);
            }
            continue;
        }
        let signal = match libc::WSTOPSIG(status) {
            CALL_STOP => {
                if let GoOn::Never = at_call(thread, &mut under_way, &mut judge) {
                    // SAFETY: no memory arguments.
                    unsafe { libc::kill(process, libc::SIGKILL) };
                    continue;
                }
                0
            }
            // An event of ours, or the first stop of a new thread: no signal of the program's.
            libc::SIGTRAP if status >> 16 != 0 => 0,
            libc::SIGSTOP if known.insert(thread) => 0,
            signal => signal,
        };
        request(libc::PTRACE_SYSCALL, thread, 0, signal as usize);
    }
}

/// SIGTRAP, as a stop at a call tells it under PTRACE_O_TRACESYSGOOD.
const CALL_STOP: i32 = libc::SIGTRAP | 0x80;

fn at_call(
    thread: libc::pid_t,
    under_way: &mut HashMap<libc::pid_t, (Call, Option<i32>)>,
    judge: &mut impl FnMut(&Call) -> GoOn,
) -> GoOn {
    // SAFETY: all zeros are one.
    let mut info: libc::ptrace_syscall_info = unsafe { core::mem::zeroed() };
    let at = (&raw mut info) as usize;
    let length = size_of::<libc::ptrace_syscall_info>();
    if request(libc::PTRACE_GET_SYSCALL_INFO, thread, length, at) <= 0 {
        return GoOn::Freely; // it was killed meanwhile
    }
    match info.op {
        libc::PTRACE_SYSCALL_INFO_ENTRY => {
            // SAFETY: the kernel has said which one it is.
            let entry = unsafe { info.u.entry };
            let (number, arguments) = (entry.nr as libc::c_long, entry.args);
            let call = Call { thread, number, arguments, result: None };
            let go_on = judge(&call);
            let refused = match go_on {
                GoOn::Refused(errno) => {
                    // No call has this number.
                    request(libc::PTRACE_POKEUSER, thread, NUMBER, usize::MAX);
                    Some(errno)
                }
                _ => None,
            };
            under_way.insert(thread, (call, refused));
            go_on
        }
        libc::PTRACE_SYSCALL_INFO_EXIT => {
            // SAFETY: the kernel has said which one it is.
            let mut result = unsafe { info.u.exit.sval };
            let Some((call, refused)) = under_way.remove(&thread) else { return GoOn::Freely };
            if let Some(errno) = refused {
                result = -i64::from(errno);
                request(libc::PTRACE_POKEUSER, thread, ANSWER, result as usize);
            }
            judge(&Call { result: Some(result), ..call })
        }
        _ => GoOn::Freely,
    }
}

/// Where the kernel keeps the number of a call of a stopped thread.
#[cfg(target_arch = "x86_64")]
const NUMBER: usize = register(core::mem::offset_of!(libc::user_regs_struct, orig_rax));
/// Where it keeps the answer.
#[cfg(target_arch = "x86_64")]
const ANSWER: usize = register(core::mem::offset_of!(libc::user_regs_struct, rax));

#[cfg(target_arch = "x86_64")]
const fn register(offset: usize) -> usize {
    core::mem::offset_of!(libc::user, regs) + offset
}

/// A request to ptrace. That a thread is not there any more is no failure: it was killed.
fn request(what: libc::c_uint, thread: libc::pid_t, address: usize, data: usize) -> i64 {
    // SAFETY: what each request of this file takes: numbers; for one of them room for an answer.
    let answer = unsafe { libc::ptrace(what, thread, address, data) };
    let error = Error::last_os_error();
    assert!(answer >= 0 || error.raw_os_error() == Some(libc::ESRCH), "ptrace {what:#x}: {error}");
    answer
}

/// The next of this thread's children that stops or ends, and its status.
fn wait_for_any() -> (libc::pid_t, i32) {
    let mut status = 0;
    loop {
        // SAFETY: a place for the status.
        let child = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
        if child > 0 {
            return (child, status);
        }
        let error = Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::EINTR), "waitpid: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `echo` writes once.
    fn echo(judge: impl FnMut(&Call) -> GoOn) -> (ExitStatus, bool) {
        let file = std::env::temp_dir().join(format!("traced-{}", std::process::id()));
        let mut command = Command::new("/bin/echo");
        let out = std::fs::File::create(&file).expect("a file");
        command.arg("text").stdout(out).stderr(std::process::Stdio::null());
        let child = prepare(&mut command).spawn().expect("a process");
        let status = watch(child, judge);
        let text = std::fs::read_to_string(&file).expect("a file");
        std::fs::remove_file(&file).expect("a file");
        (status, text == "text\n")
    }

    #[test]
    fn a_process_is_ended_before_or_after_a_call_or_the_call_is_refused() {
        let (status, has_written) = echo(|_| GoOn::Freely);
        assert!(status.success() && has_written);
        for is_after in [false, true] {
            let (status, has_written) = echo(|call| {
                let is_it = call.number == libc::SYS_write && call.result.is_some() == is_after;
                if is_it { GoOn::Never } else { GoOn::Freely }
            });
            assert_eq!((status.signal(), has_written), (Some(libc::SIGKILL), is_after));
        }
        let mut answers = Vec::new();
        let (status, has_written) = echo(|call| {
            let writes_out = call.number == libc::SYS_write && call.arguments[0] == 1;
            match call.result {
                None if writes_out => return GoOn::Refused(libc::ENOSPC),
                Some(result) if writes_out => answers.push(result),
                _ => {}
            }
            GoOn::Freely
        });
        assert!(status.code() == Some(1) && !has_written, "{status}");
        assert_eq!(answers, [-i64::from(libc::ENOSPC)]);
    }
}
