//! Fault signal: SIGBUS goes to our handler first, and to the program's own handler after it.
//!
//! Without a relay (`deferral`) the kernel blocks every signal for our handler. With one it blocks
//! none, and the relay keeps the program's handlers out, until `keep_all_signals_out`.
//!
//! Guarantees: no handler of the program runs on top of ours, and errno is kept; ours gets only
//! missing pages (`BUS_ADRERR`, which userfaultfd raises). Another fault, a memory error and a
//! SIGBUS that a process sends go to what the program installed, or kill as they would without us.
//! A fault within our handler kills.
//! Never: allocates | uses more than a few hundred bytes of stack itself | takes a lock in the
//! handler, but once, on an alternate stack of which nobody knew.
//! Threads: `install` once; the handler in any thread; `previous` any time, also in the handler.

use crate::errno::{Result, Saved};
use crate::faults::{deferral, handler_stack};
use crate::raw_call::raw_call;
use crate::threads::lock::Lock;
use crate::threads::signals::{Blocked, LIBC_INTERNAL, Mask, bit, set_mask};
use core::arch::global_asm;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, fence};
use libc::{SIGBUS, c_int, c_void, siginfo_t, stack_t, ucontext_t};

/// A SIGBUS of an instruction that touched an absent page.
#[derive(Debug)]
pub struct Fault {
    /// The address that was touched.
    pub address: usize,
    /// The interrupted context (a `ucontext_t`).
    pub context: *mut c_void,
}

impl Fault {
    /// The address of the instruction.
    pub fn instruction(&self) -> usize {
        // SAFETY: the kernel made the context, and it lives while the handler runs.
        let context = unsafe { &*self.context.cast::<ucontext_t>() };
        context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
    }

    /// The address of the instruction, the stack pointer and rbp.
    pub fn registers(&self) -> [usize; 3] {
        // SAFETY: as above.
        let context = unsafe { &*self.context.cast::<ucontext_t>() };
        [libc::REG_RIP, libc::REG_RSP, libc::REG_RBP]
            .map(|register| context.uc_mcontext.gregs[register as usize] as usize)
    }

    /// The signals that the interrupted code had blocked.
    pub fn blocked_signals(&self) -> Mask {
        // SAFETY: as above; the kernel's mask is the first 8 bytes of libc's.
        unsafe {
            (&raw const (*self.context.cast::<ucontext_t>()).uc_sigmask).cast::<Mask>().read()
        }
    }
}

/// The handler's verdict on a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is repaired: run the instruction again.
    Retry,
    /// The address is not ours.
    NotOurs,
    /// It is ours and cannot be repaired.
    Fatal,
}

/// How to handle a fault; runs in the signal handler.
pub type Handler = fn(&Fault) -> Verdict;

static HANDLER: AtomicUsize = AtomicUsize::new(0);
/// Held while the kernel's action for SIGBUS changes.
static CHANGING: Lock<()> = Lock::new(());
/// Whether the kernel blocks no signals for our handler.
static IS_OPEN: AtomicBool = AtomicBool::new(false);
/// Whether the kernel is to block all of them from the beginning.
static STAYS_SHUT: AtomicBool = AtomicBool::new(false);
/// The process that these words speak of. A child of `vfork` has them too, and actions of its own.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Installs `handler` for SIGBUS in this process; what was installed before becomes `previous`. A
/// second call only replaces the handler. Calls the kernel directly, past any wrapper of sigaction.
pub fn install(handler: Handler) -> Result<()> {
    handler_stack::prepare()?;
    let _blocked = Blocked::every();
    let _changing = CHANGING.lock();
    if !is_installed() {
        // Set it before other threads may change it: a change must not be lost.
        previous::set(kernel_action(SIGBUS, None)?);
    }
    if HANDLER.swap(handler as *const () as usize, Release) != 0 {
        return Ok(());
    }
    note_process();
    let relay = deferral::RELAY.load(Acquire);
    let is_open = relay != 0 && !STAYS_SHUT.load(Acquire) && only_relayed(relay);
    IS_OPEN.store(is_open, Release);
    kernel_action(SIGBUS, Some(&own_action(is_open)))?;
    Ok(())
}

/// Has the kernel block all signals for our handler from now on, in every thread and for good. For
/// what could let other code than the relay run on top of the handler. Faults that are under way
/// end as they began.
pub fn keep_all_signals_out() {
    let _blocked = Blocked::every();
    let _changing = CHANGING.lock();
    if !is_installed() {
        STAYS_SHUT.store(true, Release);
        return;
    }
    let entry = entry as *const () as usize;
    let is_ours = kernel_action(SIGBUS, None).is_ok_and(|now| now.handler == entry);
    if is_ours && kernel_action(SIGBUS, Some(&own_action(false))).is_ok() && is_own_process() {
        IS_OPEN.store(false, Release);
    }
}

/// Whether the relay is the only handler besides libc's own.
fn only_relayed(relay: usize) -> bool {
    let is_relayed = |signal| match kernel_action(signal, None).map(|action| action.handler) {
        Ok(libc::SIG_DFL | libc::SIG_IGN) => true,
        Ok(handler) => handler == relay || LIBC_INTERNAL & bit(signal) != 0,
        Err(_) => false,
    };
    (1..=Mask::BITS as c_int).filter(|signal| *signal != SIGBUS).all(is_relayed)
}

fn note_process() {
    // SAFETY: no arguments.
    PROCESS.store(unsafe { libc::getpid() }, Relaxed);
}

fn is_own_process() -> bool {
    // SAFETY: no arguments.
    PROCESS.load(Relaxed) == unsafe { libc::getpid() }
}

/// The action that the program believes to be installed for SIGBUS.
pub fn previous() -> libc::sigaction {
    let action = previous::get();
    // SAFETY: zeroed is a valid sigaction.
    let mut answer: libc::sigaction = unsafe { core::mem::zeroed() };
    answer.sa_sigaction = action.handler;
    answer.sa_flags = (action.flags & !SA_RESTORER) as c_int;
    // SAFETY: the kernel's mask is the first 8 bytes of libc's.
    unsafe { (&raw mut answer.sa_mask).cast::<Mask>().write(action.mask) };
    answer
}

/// Installs an action for the program, behind our handler; answers what `previous` was. An
/// async-signal-safe replacement for sigaction(SIGBUS, ...).
pub fn set_previous(new: libc::sigaction) -> libc::sigaction {
    let old = previous();
    // SAFETY: as in `previous`.
    let mask = unsafe { (&raw const new.sa_mask).cast::<Mask>().read() };
    previous::set(KernelAction {
        handler: new.sa_sigaction,
        flags: new.sa_flags as u32 as u64,
        restorer: 0,
        mask,
    });
    old
}

/// Makes the program's own change of the kernel's action for SIGBUS, as long as ours is not
/// installed; `install` waits meanwhile. Once ours is installed it does nothing and answers None.
pub fn unless_installed<T>(change: impl FnOnce() -> T) -> Option<T> {
    if is_installed() {
        return None;
    }
    // A handler of this thread that ran in between could wait for us: block it.
    let _blocked = Blocked::every();
    let _changing = CHANGING.lock();
    (!is_installed()).then(change)
}

/// Takes the program's action for a SIGBUS that the relay is about to hand over, as the kernel
/// does: a handler that is to be called once is gone. A program that has none any more gets its
/// SIGBUS anew, if an instruction causes it.
pub fn begin_previous() -> libc::sigaction {
    extern "C" fn none(_: c_int) {}
    let mut action = previous();
    if [libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction) {
        action.sa_sigaction = none as *const () as usize;
    } else if action.sa_flags & libc::SA_RESETHAND != 0 {
        previous::set(KernelAction { handler: libc::SIG_DFL, ..previous::get() });
    }
    action
}

/// In the child of a fork: changes work again even if another thread of the parent was making one.
pub fn after_fork() {
    note_process();
    // SAFETY: the child has one thread, and it changes nothing now. There is no value.
    unsafe { CHANGING.force_unlock() };
    previous::after_fork();
    handler_stack::after_fork();
}

const SA_RESTORER: u64 = 0x0400_0000;

/// struct kernel_sigaction of x86_64.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: Mask,
}

// The code that a handler returns to: debuggers and unwinders recognise a signal frame by these
// very bytes.
global_asm!(
    ".pushsection .text.deepheap_signal_return,\"ax\",@progbits",
    ".globl deepheap_signal_return",
    ".hidden deepheap_signal_return",
    ".type deepheap_signal_return,@function",
    ".p2align 4",
    "nop", // unwinders look one byte before the return address
    "deepheap_signal_return:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00", // mov rax, SYS_rt_sigreturn
    "syscall",
    ".size deepheap_signal_return, . - deepheap_signal_return",
    ".popsection",
);

// What the kernel calls. A signal that `deferral` turned away is delivered here, where nothing of
// ours is owned any more: in place of returning to the kernel, with the frame as the kernel made
// it. A signal that comes between the look at the record and the return has the look repeated. The
// stack is the same at each of these instructions but the last.
global_asm!(
    ".pushsection .text.deepheap_fault_signal,\"ax\",@progbits",
    ".globl deepheap_fault_signal",
    ".hidden deepheap_fault_signal",
    ".type deepheap_fault_signal,@function",
    ".globl deepheap_fault_end",
    ".hidden deepheap_fault_end",
    ".globl deepheap_fault_return",
    ".hidden deepheap_fault_return",
    ".p2align 4",
    "deepheap_fault_signal:",
    ".cfi_startproc",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call {on_signal}",
    "test eax, eax",
    "jnz 4f",
    "deepheap_fault_end:", // the frame's context is at rsp + 16
    "mov rax, [rsp + 16 + {stack_at}]",
    "cmp rax, [rip + {base}]",
    "jne 2f",
    "add rax, [rsp + 16 + {size_at}]",
    "cmp dword ptr [rax], 0",
    "jne 3f",
    "2:",
    "mov eax, 15", // SYS_rt_sigreturn
    "add rsp, 16",
    "deepheap_fault_return:",
    "syscall",
    "3:",
    "lea rdi, [rsp + 16]",
    "call {take}",
    "test eax, eax",
    "jz deepheap_fault_end",
    "4:", // to the relay, as from the kernel
    "mov edi, eax",
    "lea rdx, [rsp + 16]",
    "lea rsi, [rdx + {context_bytes}]",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "jmp qword ptr [rip + {relay}]",
    ".cfi_endproc",
    ".size deepheap_fault_signal, . - deepheap_fault_signal",
    ".popsection",
    on_signal = sym on_signal,
    take = sym deferral::take,
    base = sym deferral::BASE,
    relay = sym deferral::RELAY,
    stack_at = const deferral::STACK_AT,
    size_at = const deferral::SIZE_AT,
    context_bytes = const deferral::CONTEXT_BYTES,
);
const _: () = assert!(libc::SYS_rt_sigreturn == 15);

unsafe extern "C" {
    #[link_name = "deepheap_signal_return"]
    fn signal_return();
    #[link_name = "deepheap_fault_signal"]
    fn entry();
}

/// Our action for SIGBUS, with no signals blocked or with all.
fn own_action(is_open: bool) -> KernelAction {
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | if is_open { libc::SA_NODEFER } else { 0 };
    KernelAction {
        handler: entry as *const () as usize,
        flags: flags as u64 | SA_RESTORER,
        restorer: signal_return as *const () as usize,
        mask: if is_open { 0 } else { Mask::MAX },
    }
}

/// Sets a signal's action, if one is given; answers the old one.
fn kernel_action(signal: c_int, new: Option<&KernelAction>) -> Result<KernelAction> {
    let mut old = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: both are laid out as the kernel's struct, with its 8-byte mask, and live across the
    // call.
    unsafe {
        let new = new.map_or(core::ptr::null(), core::ptr::from_ref);
        raw_call!(SYS_rt_sigaction, signal, new, &raw mut old, size_of::<Mask>())
    }?;
    Ok(old)
}

/// Whether SIGBUS is ours: from then on the program's own action is `previous`.
pub fn is_installed() -> bool {
    HANDLER.load(Acquire) != 0
}

/// Answers the signal if the relay is to call the program's handler, or 0.
extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) -> c_int {
    let _errno = Saved::new();
    // SAFETY: the kernel made the info and the context, and they live while the handler runs.
    let (code, address, alternate, stack_pointer) = unsafe {
        let context = &*context.cast::<ucontext_t>();
        let stack_pointer = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
        ((*info).si_code, (*info).si_addr() as usize, &context.uc_stack, stack_pointer)
    };
    if !deferral::is_ours(alternate) {
        if IS_OPEN.load(Acquire) {
            // The relay cannot know that the thread is in the fault path. Until here a handler of
            // the program may have run on top of us: nothing is owned yet.
            set_mask(Mask::MAX);
            keep_all_signals_out();
        }
    } else if handler_stack::range().contains(&stack_pointer) {
        interrupts_fault_path(signal, info, context);
        return 0;
    }
    // Codes up to 0 were sent (kill, sigqueue): no fault, and no address. A memory error that no
    // thread has touched yet is no fault either.
    let synchronous = is_synchronous(code);
    let fault = Fault { address, context };
    // Broken memory (BUS_MCEERR_AR) is lost, even if it is ours.
    if code == libc::BUS_ADRERR {
        let mut handling = Handling { fault: &fault, verdict: Verdict::NotOurs };
        handler_stack::call(alternate, handle, (&raw mut handling).cast());
        if handling.verdict == Verdict::Retry {
            return 0;
        }
    }
    chain(signal, info, &fault, alternate, synchronous)
}

fn is_synchronous(code: c_int) -> bool {
    code > 0 && code != libc::BUS_MCEERR_AO
}

/// A SIGBUS in the fault path. If an instruction of ours has caused it, it happens again when this
/// returns, and kills because it is blocked. Otherwise it comes again after the fault.
#[cold]
#[inline(never)]
fn interrupts_fault_path(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's info and context; its mask is the first 8 bytes of libc's.
    unsafe {
        let interrupted = (&raw mut (*context.cast::<ucontext_t>()).uc_sigmask).cast::<Mask>();
        *interrupted |= bit(SIGBUS);
        if is_synchronous((*info).si_code) {
            deferral::say_broken(signal, info);
        } else {
            set_mask(*interrupted);
            deferral::send(signal, info);
        }
    }
}

/// A fault for the handler, and the handler's answer.
struct Handling<'a> {
    fault: &'a Fault,
    verdict: Verdict,
}

extern "C" fn handle(handling: *mut c_void) {
    // SAFETY: `on_signal` passes a Handling that lives across the call.
    let handling = unsafe { &mut *handling.cast::<Handling<'_>>() };
    let handler = HANDLER.load(Acquire);
    // SAFETY: `install` stored a Handler before the kernel knew of `on_signal`.
    let handler = unsafe { core::mem::transmute::<usize, Handler>(handler) };
    handling.verdict = handler(handling.fault);
}

/// The signal belongs to the program: does what the kernel would have done. Answers the signal if
/// that is the relay's part, or 0.
#[cold]
#[inline(never)]
fn chain(
    signal: c_int,
    info: *mut siginfo_t,
    fault: &Fault,
    alternate: &stack_t,
    synchronous: bool,
) -> c_int {
    let action = previous::get();
    match action.handler {
        libc::SIG_IGN if !synchronous => {}
        // For a fault that is ignored the kernel kills, as it does by default.
        libc::SIG_DFL | libc::SIG_IGN => die(synchronous),
        _ if deferral::is_ours(alternate) => {
            // As the relay is called by the kernel.
            set_mask(Mask::MAX & !bit(SIGBUS));
            if !deferral::is_waiting(alternate) {
                return signal;
            }
            // A signal that came first is delivered first. The instruction causes its own again.
            if !synchronous {
                deferral::send_again(alternate);
                return signal;
            }
        }
        handler => {
            let flag = |flag: c_int| action.flags & flag as u32 as u64 != 0;
            if flag(libc::SA_RESETHAND) {
                previous::set(KernelAction { handler: libc::SIG_DFL, ..action });
            }
            // The program's handler may touch managed memory: SIGBUS stays open for us, and the
            // rest is as the program asked. Returning from the signal restores the old mask.
            set_mask((fault.blocked_signals() | action.mask) & !bit(SIGBUS));
            if flag(libc::SA_SIGINFO) {
                // SAFETY: the program installed it as a three-argument handler.
                let handler = unsafe {
                    core::mem::transmute::<
                        usize,
                        extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void),
                    >(handler)
                };
                handler(signal, info, fault.context);
            } else {
                // SAFETY: the program installed it as a one-argument handler.
                let handler =
                    unsafe { core::mem::transmute::<usize, extern "C-unwind" fn(c_int)>(handler) };
                handler(signal);
            }
        }
    }
    0
}

/// Dies of SIGBUS: by the instruction running again as soon as the handler returns, or by a signal
/// sent to ourselves, at once or then.
fn die(synchronous: bool) {
    let default = KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    let _ = kernel_action(SIGBUS, Some(&default));
    if !synchronous {
        // SAFETY: no memory arguments.
        let _ = unsafe {
            let (process, thread) = (libc::getpid(), raw_call!(SYS_gettid).unwrap_or(0));
            raw_call!(SYS_tgkill, process, thread, SIGBUS)
        };
    }
}

/// The program's action, readable without a lock while it changes.
///
/// Generation g lives in slot g % SLOTS and is never changed while it can be read: it is
/// overwritten by generation g + SLOTS, which starts after g + SLOTS - 1 was published. A reader
/// that finds a generation below that after it has read, has read a whole one.
mod previous {
    use super::*;

    const SLOTS: usize = 32;

    struct Slot {
        handler: AtomicUsize,
        flags: AtomicU64,
        mask: AtomicU64,
    }

    static ACTIONS: [Slot; SLOTS] = [const {
        Slot { handler: AtomicUsize::new(0), flags: AtomicU64::new(0), mask: AtomicU64::new(0) }
    }; SLOTS];
    static GENERATION: AtomicUsize = AtomicUsize::new(0);
    static WRITER: Lock<()> = Lock::new(());

    pub(super) fn get() -> KernelAction {
        loop {
            let generation = GENERATION.load(Acquire);
            let slot = &ACTIONS[generation % SLOTS];
            let action = KernelAction {
                handler: slot.handler.load(Relaxed),
                flags: slot.flags.load(Relaxed),
                restorer: 0,
                mask: slot.mask.load(Relaxed),
            };
            fence(Acquire);
            if GENERATION.load(Relaxed).wrapping_sub(generation) < SLOTS - 1 {
                return action;
            }
        }
    }

    pub(super) fn set(action: KernelAction) {
        // A handler of this thread that ran in between could wait for us: block them, and SIGBUS as
        // well, which nothing here can cause.
        let _blocked = Blocked::every();
        let _writer = WRITER.lock();
        let generation = GENERATION.load(Relaxed).wrapping_add(1);
        let slot = &ACTIONS[generation % SLOTS];
        // Pairs with the reader's fence: a thread that sees any of these stores sees the generation
        // before them.
        fence(Release);
        slot.handler.store(action.handler, Relaxed);
        slot.flags.store(action.flags, Relaxed);
        slot.mask.store(action.mask, Relaxed);
        GENERATION.store(generation, Release);
    }

    pub(super) fn after_fork() {
        // SAFETY: the child has one thread, and it is not in `set`. A half-written slot is no harm:
        // it was not published, and the next `set` writes it again.
        unsafe { WRITER.force_unlock() };
    }
}
