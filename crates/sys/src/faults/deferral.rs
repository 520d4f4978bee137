//! Deferral: a signal that comes while its thread is in the fault path waits until the fault is
//! over.
//!
//! The kernel changes a thread's mask for a handler, and back, under a lock of the whole process.
//! With many threads that fault, half of their faults is waiting for it. So the handler of SIGBUS
//! has no mask where the handlers of the program are called by a *relay*, as under the preload
//! library. The relay asks `defer` first.
//!
//! ```text
//!   one reservation:         [ handler stacks ][ signal stack, record ][ signal stack, record ] ..
//!   alternate stack of the   [                             to here   ]
//!     first thread, second   [                                                     to here   ]
//! ```
//!
//! A thread tells the kernel that its alternate stack begins with the first handler stack and ends
//! with its own signal stack. While the thread is on a handler stack, the kernel therefore takes
//! it to be on its alternate stack, and puts the frame of a further signal below the stack pointer
//! and not over the frame of the SIGBUS. (To tell the kernel of a smaller alternate stack
//! meanwhile would cost that lock again.) No code but the fault path and the relay runs there; so
//! the stack pointer tells whether a signal has interrupted the fault path, at each instruction
//! from the kernel's frame to the return to the kernel.
//!
//! `defer` keeps the signal in the record of the thread's signal stack, and blocks all others in
//! the mask that the interrupted fault path goes on with: so there is one at most. At its end the
//! fault's handler finds the record in use. It then makes the frame of the SIGBUS the frame of that
//! signal and goes to the relay, as if the signal had come just after the fault. So no signal is
//! sent twice: those of one number stay in order, and none can be refused.
//!
//! All of it belongs to what the kernel knows of the calling task, not to the thread's own area: a
//! child that shares the memory has another alternate stack, and so another record. In the child of
//! a fork no fault is under way: the program forks, and the fault path does not.
//!
//! Guarantees: a signal that `defer` took is delivered before the interrupted instruction goes on.
//! Never: allocates | takes a lock.
//! Threads: `reserve` once, before there are faults; the rest each thread for itself.

use crate::errno::Result;
use crate::faults::handler_stack;
use crate::process::log::Piece;
use crate::raw_call::raw_call;
use crate::threads::signals::{Mask, SYNCHRONOUS, bit, mask};
use core::mem::offset_of;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use libc::{c_int, siginfo_t, stack_t, ucontext_t};

/// What the kernel calls for every handler of the program; 0: nothing does so.
pub(crate) static RELAY: AtomicUsize = AtomicUsize::new(0);
/// Where the reservation begins. No stack begins at the address that stands for none.
pub(crate) static BASE: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Where it ends.
static END: AtomicUsize = AtomicUsize::new(0);

/// Where a context tells the beginning and the size of the alternate stack.
pub(crate) const STACK_AT: usize = offset_of!(ucontext_t, uc_stack) + offset_of!(stack_t, ss_sp);
pub(crate) const SIZE_AT: usize = offset_of!(ucontext_t, uc_stack) + offset_of!(stack_t, ss_size);
/// Bytes of the kernel's context, whose last field is a mask of 8; the information follows it.
pub(crate) const CONTEXT_BYTES: usize = offset_of!(ucontext_t, uc_sigmask) + size_of::<Mask>();

/// The signal that waits for the end of its thread's fault. All zero in a new stack.
#[repr(C, align(64))]
struct Record {
    /// 0: none does. `deepheap_fault_end` reads it.
    signal: c_int,
    info: siginfo_t,
}

unsafe extern "C" {
    /// In `fault_signal`: from here on the fault's handler may begin the end of it anew.
    #[link_name = "deepheap_fault_end"]
    fn end();
    /// Its last instruction, with 16 bytes less on the stack.
    #[link_name = "deepheap_fault_return"]
    fn last();
}

/// Reserves the handler stacks, and behind them so many bytes for signal stacks; answers where
/// those begin. EEXIST: they are reserved.
///
/// The kernel calls `relay` for each handler of the program: it has three arguments, SA_ONSTACK,
/// and a mask of all signals but the synchronous ones. It asks `defer` first.
pub fn reserve(bytes: usize, relay: usize) -> Result<usize> {
    let stacks = handler_stack::reserve(bytes)?;
    RELAY.store(relay, Release);
    END.store(stacks + bytes, Relaxed);
    BASE.store(handler_stack::range().start, Release);
    Ok(stacks)
}

/// What the kernel is to be told of a signal stack that lies in the reservation; none for another.
pub fn alternate(bottom: usize, bytes: usize) -> Option<stack_t> {
    let base = BASE.load(Acquire);
    let is_reserved = bottom > base && bottom < END.load(Relaxed);
    is_reserved.then(|| stack_t {
        ss_sp: base as *mut libc::c_void,
        ss_flags: 0,
        ss_size: bottom + bytes - size_of::<Record>() - base,
    })
}

/// Whether the kernel was told of a stack in the reservation.
pub(crate) fn is_ours(stack: &stack_t) -> bool {
    stack.ss_sp as usize == BASE.load(Relaxed)
}

fn record(stack: &stack_t) -> *mut Record {
    (stack.ss_sp as usize + stack.ss_size) as *mut Record
}

/// Turns a signal away that has interrupted the fault path: the handler must not run, and has to
/// return to the kernel at once. False: it has interrupted other code.
///
/// # Safety
/// The relay's own arguments, where the kernel has put them.
pub unsafe fn defer(signal: c_int, info: *const siginfo_t, context: *mut ucontext_t) -> bool {
    // SAFETY: the caller's promise; `record` is resident memory of this thread, which nothing else
    // uses now: `take` runs with signals blocked.
    unsafe {
        let stack = &(*context).uc_stack;
        let registers = &mut (*context).uc_mcontext.gregs;
        let interrupted = (&raw mut (*context).uc_sigmask).cast::<Mask>();
        let sp = registers[libc::REG_RSP as usize] as usize;
        let base = stack.ss_sp as usize;
        if !is_ours(stack) || sp <= base || sp - base > stack.ss_size {
            return false;
        }
        if bit(signal) & SYNCHRONOUS != 0 {
            // On the signal stack a copy of the relay's may have found no room: the program's.
            if !handler_stack::range().contains(&sp) {
                return false;
            }
            if (*info).si_code > 0 {
                // The instruction runs again, and its signal kills because it is blocked.
                say_broken(signal, info);
                *interrupted |= bit(signal);
                return true;
            }
        }
        let record = record(stack);
        if (*record).signal == 0 {
            (*record).info = *info;
            (*record).signal = signal;
        } else {
            // All are blocked then, unless the program's handler of a SIGBUS that somebody sent
            // within a few instructions of the fault has opened them.
            send(signal, info);
        }
        *interrupted |= !bit(libc::SIGBUS);
        // If the fault's handler has looked at the record, it has to look again.
        let at = registers[libc::REG_RIP as usize] as usize;
        let (end, last) = (end as *const () as usize, last as *const () as usize);
        if (end..=last).contains(&at) {
            registers[libc::REG_RIP as usize] = end as i64;
            registers[libc::REG_RSP as usize] -= if at == last { 16 } else { 0 };
        }
        true
    }
}

/// Says that an instruction of the fault path has caused a signal.
#[cold]
pub(crate) fn say_broken(signal: c_int, info: *const siginfo_t) {
    // SAFETY: the kernel's information on a fault.
    let address = unsafe { (*info).si_addr() } as u64;
    let signal = Piece::Number(signal as u64);
    crate::say!("fatal: signal ", signal, " in the fault path, at ", Piece::Hex(address));
}

/// Whether a signal waits for the end of the fault. Signals are blocked.
pub(crate) fn is_waiting(stack: &stack_t) -> bool {
    // SAFETY: as in `defer`.
    is_ours(stack) && unsafe { (*record(stack)).signal != 0 }
}

/// Makes the frame of a fault that is over the frame of the signal that waits, and answers which.
/// 0: it was sent again, and comes when the mask allows it.
pub(crate) extern "C" fn take(context: *mut ucontext_t) -> c_int {
    // SIGBUS was sent meanwhile, and waits: the relay may not fault before it is open.
    if mask() & bit(libc::SIGBUS) != 0 {
        // SAFETY: the kernel's context.
        send_again(unsafe { &(*context).uc_stack });
        return 0;
    }
    // SAFETY: as in `defer`; the information lies behind the kernel's context.
    unsafe {
        let record = record(&(*context).uc_stack);
        let info = context.wrapping_byte_add(CONTEXT_BYTES).cast::<siginfo_t>();
        *info = (*record).info;
        core::mem::take(&mut (*record).signal)
    }
}

/// Leaves the signal that waits to the kernel, behind others of its number. The thread has it
/// blocked.
pub(crate) fn send_again(stack: &stack_t) {
    // SAFETY: as in `defer`.
    unsafe {
        let record = record(stack);
        send(core::mem::take(&mut (*record).signal), &raw const (*record).info);
    }
}

/// Sends the calling thread a signal as it came before.
pub(crate) fn send(signal: c_int, info: *const siginfo_t) {
    // SAFETY: the kernel reads the information. It allows a thread to send itself any.
    let _ = unsafe {
        let (process, thread) = (libc::getpid(), raw_call!(SYS_gettid).unwrap_or(0));
        raw_call!(SYS_rt_tgsigqueueinfo, process, thread, signal, info)
    };
}
