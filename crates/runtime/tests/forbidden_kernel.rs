//! Bad input: a kernel that does not let us manage memory, as under a container's seccomp filter.
//! `init` says so, and without `init` an allocation beyond RAM is refused with the reason.

mod scene;

use std::os::unix::process::CommandExt;
use std::process::Command;

use scene::{Ending, Folder, finish, is_played, spawn, this_binary};

/// Loads the number of the system call, compares it with userfaultfd's, answers `errno` or lets go.
fn forbid_userfaultfd(errno: i32) -> std::io::Result<()> {
    let code = |class: u32, jump: (u8, u8), value: u32| libc::sock_filter {
        code: class as u16,
        jt: jump.0,
        jf: jump.1,
        k: value,
    };
    let mut filter = [
        code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), 0),
        code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (0, 1), libc::SYS_userfaultfd as u32),
        code(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ERRNO | errno as u32),
        code(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    let program =
        libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_mut_ptr() };
    // SAFETY: a filter program on this stack, which the kernel copies.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    if installed { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn under_filter(name: &str, errno: i32, body: impl FnOnce()) -> Ending {
    if is_played(name) {
        body();
        std::process::exit(0);
    }
    let folder = Folder::new(name);
    let mut command = Command::new(this_binary());
    command.current_dir(folder.path());
    // SAFETY: system calls only, between fork and exec.
    unsafe { command.pre_exec(move || forbid_userfaultfd(errno)) };
    finish(name, spawn(name, folder.path(), command))
}

#[test]
fn init_tells_what_is_forbidden_and_how_to_allow_it() {
    let ending =
        under_filter("init_tells_what_is_forbidden_and_how_to_allow_it", libc::ENOSYS, || {
            let config = deepheap::Config::parse("ram:16M,store:.").expect("settings");
            match deepheap::init(config) {
                Err(error @ deepheap::InitError::Kernel(_)) => eprintln!("said: {error}"),
                other => panic!("{other:?}"),
            }
        });
    assert!(ending.status.success(), "{}", ending.said);
    assert!(ending.said.contains("said: userfaultfd: this kernel does not have it"));
    assert!(ending.said.contains("allow the system call in the"), "{}", ending.said);
}

#[test]
fn without_init_memory_beyond_ram_is_refused_with_the_reason() {
    let ending = under_filter(
        "without_init_memory_beyond_ram_is_refused_with_the_reason",
        libc::ENOSYS,
        || {
            // SAFETY: no other thread of this process looks at the environment now.
            unsafe { std::env::set_var("DEEPHEAP_CONF", "ram:16M,store:.") };
            let full = scene::memory::Collection::until_full(1, 10_000);
            assert!(full.bytes() > 4 << 20, "{}", full.bytes());
            full.check();
            full.free();
            let again = scene::memory::Collection::until_full(1, 10_000);
            assert!(again.bytes() > 4 << 20, "{}", again.bytes());
        },
    );
    assert!(ending.status.success(), "{}", ending.said);
    let reasons = ending.said.matches("userfaultfd is not to be had").count();
    assert_eq!(reasons, 1, "{}", ending.said);
}
