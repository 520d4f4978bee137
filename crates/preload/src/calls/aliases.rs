//! Aliases: further names under which libc exports a wrapped function.
//!
//! Guarantees: each is the wrapper of the other name, for every caller.
//! Threads: any.

use crate::calls::{
    clocks, duplicate, files, formatted, paths, polling, processes, sockets, stdio,
};
use crate::process::{fork, spawn};
use crate::threads::locks;

macro_rules! aliases {
    ($($alias:ident = $room:ident::$function:ident;)*) => {$(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $alias() {
            // Nothing has changed at the jump: arguments, and where the call returns to.
            core::arch::naked_asm!("jmp {function}", function = sym $room::$function)
        }
    )*};
}

aliases! {
    __read = files::read; __write = files::write; __pread64 = files::pread64;
    __pwrite64 = files::pwrite64; __fcntl = files::fcntl; __pipe = files::pipe;
    __open = paths::open; __open64 = paths::open64; __statfs = paths::statfs;
    __poll = polling::poll; __select = polling::select; __sigsuspend = polling::sigsuspend;
    __connect = sockets::connect; __send = sockets::send; __recv = sockets::recv;
    __res_query = sockets::res_query; __res_search = sockets::res_search;
    __res_querydomain = sockets::res_querydomain; __res_nquery = sockets::res_nquery;
    __res_nsearch = sockets::res_nsearch; __res_nquerydomain = sockets::res_nquerydomain;
    __res_send = sockets::res_send; __res_nsend = sockets::res_nsend;
    __wait = processes::wait; __waitpid = processes::waitpid; __clone = fork::clone;
    __sched_getparam = processes::sched_getparam;
    __sched_setscheduler = processes::sched_setscheduler; __arch_prctl = processes::arch_prctl;
    __adjtimex = clocks::adjtimex;
    __gettimeofday = clocks::gettimeofday; __nanosleep = clocks::nanosleep;
    __setmntent = paths::setmntent;
    __pthread_mutex_lock = locks::pthread_mutex_lock;
    __pthread_mutex_trylock = locks::pthread_mutex_trylock;
    __pthread_mutex_unlock = locks::pthread_mutex_unlock;
    __pthread_mutex_destroy = locks::pthread_mutex_destroy;
    __pthread_rwlock_rdlock = locks::pthread_rwlock_rdlock;
    __pthread_rwlock_wrlock = locks::pthread_rwlock_wrlock;
    __pthread_rwlock_unlock = locks::pthread_rwlock_unlock;
    __pthread_rwlock_destroy = locks::pthread_rwlock_destroy;
    pthread_mutex_consistent_np = locks::pthread_mutex_consistent;
    __strdup = duplicate::strdup; __strndup = duplicate::strndup;
    __getdelim = duplicate::getdelim;
    _IO_printf = formatted::printf; _IO_fprintf = formatted::fprintf;
    _IO_vfprintf = formatted::vfprintf;
    _IO_popen = spawn::popen; _IO_fopen = paths::fopen; _IO_fread = stdio::fread;
    _IO_fwrite = stdio::fwrite; _IO_fputs = stdio::fputs; _IO_puts = stdio::puts;
    _IO_setvbuf = stdio::setvbuf; _IO_setbuffer = stdio::setbuffer;
}
