//! Relay: what the kernel calls for each handler of the program.
//!
//! A coroutine's stack from `malloc` may be evicted when a signal comes, and the kernel kills a
//! process for whose frame there is no room. So the kernel writes every frame to the alternate
//! stack, which is resident, and the relay moves it to the stack that was interrupted, as if the
//! kernel had written it there. A handler may use that stack as it likes: switch away from it and
//! return much later, recurse deeply, or look for pointers in it, as collectors of garbage do.
//!
//! ```text
//!   kernel: frame on the alternate stack, signals blocked
//!     -> `place`: in the fault path? turn it away; otherwise copy it
//!     -> `admit`: the mask of the handler -> handler
//!     -> `finish`: signals blocked, SIGBUS open in the frame's mask, copy it back
//!     -> kernel: return from the copy on the alternate stack
//! ```
//!
//! While anything of ours is on the alternate stack, all signals are blocked but those that an
//! instruction causes, or it is the fault path, which `deferral` keeps them out of. So no handler
//! of the program begins there, and could stay. The runtime's handler of SIGBUS comes here itself
//! at its end, with its own frame, if a signal was turned away, or if the SIGBUS is the program's.
//!
//! Guarantees: a handler runs where it would run without us. The kernel finds the frame that a
//! handler returns from resident, with SIGBUS open in its mask, whatever the handler wrote there.
//! Never: allocates, locks.
//! Threads: any, each for itself; a handler may return in another thread than it began in.

use core::arch::global_asm;
use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::{copy_nonoverlapping, null_mut};
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use deepheap::internal::deferral;
use libc::{
    SA_NODEFER, SA_ONSTACK, SIG_BLOCK, SIG_SETMASK, sigaction as Action, sighandler_t, siginfo_t,
    sigset_t, ucontext_t,
};

use crate::real::real;
use crate::seam;
use crate::signals;
use crate::signals::set::{FAULT_BIT, action, of_word, word};
use crate::signals::stack::is_on;

/// Signals are below this number.
pub const SIGNALS: usize = 65;
/// Bytes below the stack pointer that belong to the interrupted function.
const RED_ZONE: usize = 128;
/// Alignment of the registers that the kernel saves with XSAVE.
const FRAME_ALIGN: usize = 64;
/// Bytes of the kernel's `ucontext`: its mask, the last field, has 8.
const CONTEXT_BYTES: usize = offset_of!(ucontext_t, uc_sigmask) + 8;
/// Bytes of saved registers without XSAVE, and where those with it tell their size.
const REGISTERS_BYTES: usize = 512;
const EXTENDED_AT: usize = 464;
const EXTENDED_MAGIC: u32 = 0x4650_5853;
/// No set of registers is larger.
const REGISTERS_MAX: usize = 16 << 10;

/// All signals but those that an instruction of the thread itself can cause.
const SENT: u64 = !(1 << (libc::SIGBUS - 1)
    | 1 << (libc::SIGSEGV - 1)
    | 1 << (libc::SIGILL - 1)
    | 1 << (libc::SIGFPE - 1));

/// The program's request when it set a handler.
#[repr(C)]
struct Asked {
    handler: AtomicUsize,
    mask: AtomicU64,
    flags: AtomicI32,
}

/// A request stays when the kernel's action changes: the signal may be on its way.
static ASKED: [Asked; SIGNALS] = [const {
    Asked { handler: AtomicUsize::new(0), mask: AtomicU64::new(0), flags: AtomicI32::new(0) }
}; SIGNALS];
const _: () = assert!(size_of::<Asked>() == 24);

unsafe extern "C" {
    #[link_name = "deepheap_signal_relay"]
    fn relay();
}

/// What the kernel calls.
pub fn address() -> sighandler_t {
    relay as *const () as sighandler_t
}

/// Whether a signal's action of the kernel is the relay.
pub fn is_relay(action: &Action) -> bool {
    action.sa_sigaction == address()
}

/// The action that the program asked for, last, with a handler of its own.
pub fn asked(signal: c_int) -> Action {
    let asked = &ASKED[signal as usize];
    let handler = asked.handler.load(Ordering::Relaxed);
    action(handler, asked.flags.load(Ordering::Relaxed), asked.mask.load(Ordering::Relaxed))
}

/// Takes the program's action for a signal, which has a handler, and answers the kernel's.
pub fn relayed(signal: c_int, wanted: &Action) -> Action {
    let asked = &ASKED[signal as usize];
    asked.mask.store(word(&wanted.sa_mask), Ordering::Relaxed);
    asked.flags.store(wanted.sa_flags, Ordering::Relaxed);
    asked.handler.store(wanted.sa_sigaction, Ordering::Relaxed);
    action(address(), wanted.sa_flags | SA_ONSTACK, SENT)
}

fn set_mask(how: c_int, mask: u64) {
    let real = real!(pthread_sigmask: fn(c_int, *const sigset_t, *mut sigset_t) -> c_int);
    // SAFETY: a set on this stack.
    unsafe { real(how, &of_word(mask), null_mut()) };
}

// Called by the kernel with signal, information and context; the frame begins with the address to
// return to, which only unwinders use. The bytes on the stack above `rsp` move with the frame, so
// the rules for unwinding hold throughout.
global_asm!(
    ".pushsection .text.deepheap_signal_relay,\"ax\",@progbits",
    ".globl deepheap_signal_relay",
    ".hidden deepheap_signal_relay",
    ".type deepheap_signal_relay,@function",
    ".p2align 4",
    "deepheap_signal_relay:",
    ".cfi_startproc",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "call {place}",
    "cmp rax, {turned_away}",
    "je 7f",
    // To the copy, with what was pushed below it.
    "lea rcx, [rsp + rax]",
    "mov rdx, [rsp]",
    "mov rsi, [rsp + 8]",
    "mov rdi, [rsp + 16]",
    "add rdx, rax",
    "add rsi, rax",
    "mov rsp, rcx",
    "mov [rsp], rdx",
    "mov [rsp + 8], rsi",
    "mov [rsp + 16], rdi",
    "mov rsi, rdx",
    "call {admit}",
    "mov rdx, [rsp]",
    "mov rsi, [rsp + 8]",
    "mov rdi, [rsp + 16]",
    "call rax",
    "mov rdi, [rsp]",
    "call {finish}",
    "mov rsp, rax",
    "mov eax, 15", // SYS_rt_sigreturn
    "syscall",
    "7:",
    "mov rsp, [rsp]", // the context
    "mov eax, 15",
    "syscall",
    ".cfi_endproc",
    ".size deepheap_signal_relay, . - deepheap_signal_relay",
    ".popsection",
    turned_away = const TURNED_AWAY,
    place = sym place,
    admit = sym admit,
    finish = sym finish,
);
const _: () = assert!(libc::SYS_rt_sigreturn == 15);

/// The answer of `place` for a signal that is to come again after a fault.
const TURNED_AWAY: usize = 1;
const _: () = assert!(!TURNED_AWAY.is_multiple_of(FRAME_ALIGN));

/// Moves the frame of a signal that has just come to the stack that was interrupted, or to the
/// program's signal stack, unless it is where the program wants it. Answers how far.
///
/// The copy may fault: the frame of that SIGBUS lies below this one.
extern "C" fn place(signal: c_int, info: *const siginfo_t, context: *mut ucontext_t) -> usize {
    // SAFETY: what the kernel has handed to the relay.
    if unsafe { deferral::defer(signal, info, context) } {
        return TURNED_AWAY;
    }
    let frame = context as usize - size_of::<usize>();
    // SAFETY: the kernel's context.
    let (stack, interrupted) = unsafe {
        ((*context).uc_stack, (*context).uc_mcontext.gregs[libc::REG_RSP as usize] as usize)
    };
    let asked = if signal == libc::SIGBUS { seam::fault_action() } else { asked(signal) };
    let wants_stack = asked.sa_flags & SA_ONSTACK != 0;
    let stays = !is_on(&stack, frame)
        || is_on(&stack, interrupted)
        || (!signals::stack::is_ours(&stack) && wants_stack);
    if stays {
        return 0;
    }
    let bytes = stack.ss_sp as usize + stack.ss_size - frame;
    let top = signals::stack::of_program()
        .filter(|own| wants_stack && !is_on(own, interrupted) && own.ss_size > bytes)
        .map_or(interrupted.wrapping_sub(RED_ZONE), |own| own.ss_sp as usize + own.ss_size);
    let lowest = top.wrapping_sub(bytes);
    let moved = lowest.wrapping_sub(lowest.wrapping_sub(frame) % FRAME_ALIGN);
    let distance = moved.wrapping_sub(frame);
    // SAFETY: the frame is the first on its stack and ends with it; the interrupted code has
    // nothing below its red zone, and the thread nothing on a signal stack that it is not on.
    // Without room the process dies of SIGSEGV, as if the kernel had found none.
    unsafe {
        copy_nonoverlapping(frame as *const u8, moved as *mut u8, bytes);
        point_to_registers(context, distance, bytes);
    }
    distance
}

/// Sets the mask that the handler is to run under, and answers the handler.
extern "C" fn admit(signal: c_int, context: *const ucontext_t) -> sighandler_t {
    let asked = match signal {
        libc::SIGBUS => seam::begin_fault_action(),
        _ => asked(signal),
    };
    let own = if asked.sa_flags & SA_NODEFER == 0 { 1 << (signal - 1) } else { 0 };
    // SAFETY: the kernel's context, or the copy.
    let interrupted = unsafe { (&raw const (*context).uc_sigmask).cast::<u64>().read() };
    set_mask(SIG_SETMASK, (interrupted | word(&asked.sa_mask) | own) & !FAULT_BIT);
    asked.sa_sigaction
}

/// A copy of a context, so far away, has a copy of its registers, if they are within so many bytes
/// of it.
unsafe fn point_to_registers(context: *mut ucontext_t, distance: usize, bytes: usize) {
    // SAFETY: the caller's promise: a context and its copy.
    unsafe {
        let registers = (*context).uc_mcontext.fpregs;
        if (registers as usize).wrapping_sub(context as usize) < bytes {
            let copy = context.wrapping_byte_add(distance);
            (*copy).uc_mcontext.fpregs = registers.wrapping_byte_add(distance);
        }
    }
}

/// Bytes of a context with the registers behind it. Only the context, if its registers are
/// elsewhere: a handler may have put another context there.
unsafe fn bytes_of(context: *const ucontext_t) -> usize {
    // SAFETY: the caller's promise: a context that the kernel is about to read.
    unsafe {
        let registers = (*context).uc_mcontext.fpregs.cast::<u8>();
        let offset = (registers as usize).wrapping_sub(context as usize);
        if !(CONTEXT_BYTES..CONTEXT_BYTES + REGISTERS_MAX).contains(&offset) {
            return CONTEXT_BYTES;
        }
        let [magic, extended] = registers.add(EXTENDED_AT).cast::<[u32; 2]>().read();
        let is_extended = magic == EXTENDED_MAGIC && extended as usize <= REGISTERS_MAX;
        offset + if is_extended { extended as usize } else { REGISTERS_BYTES }
    }
}

/// Opens SIGBUS in the mask that the kernel will set, and answers where it finds the frame: on the
/// alternate stack, since the interrupted one may leave RAM before the kernel has read it. No
/// signal comes until then, whose frame would be written there.
///
/// The copy goes to the middle of the alternate stack. The frame of a fault, if the copy needs one,
/// lies above it; nothing else is there, for this thread is on another stack.
extern "C" fn finish(context: *mut ucontext_t) -> usize {
    set_mask(SIG_BLOCK, SENT);
    // SAFETY: the context of the handler that has returned, where the handler found it.
    unsafe {
        *(&raw mut (*context).uc_sigmask).cast::<u64>() &= !FAULT_BIT;
        let Some(stack) = signals::stack::own() else { return context as usize };
        if is_on(&stack, context as usize) {
            return context as usize;
        }
        let lowest = signals::stack::middle();
        let copy = lowest + (context as usize).wrapping_sub(lowest) % FRAME_ALIGN;
        let bytes = bytes_of(context);
        copy_nonoverlapping(context.cast::<u8>(), copy as *mut u8, bytes);
        point_to_registers(context, copy.wrapping_sub(context as usize), bytes);
        copy
    }
}
