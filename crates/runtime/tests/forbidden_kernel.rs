//! Bad input: a kernel that does not let us manage memory, as under a container's seccomp filter.
//! `init` says so, and without `init` an allocation beyond RAM is refused with the reason.

mod scene;

use std::process::Command;

use deepheap_sys::memory::userfaultfd::{Userfaultfd, feature};
use scene::{Ending, Folder, finish, is_played, spawn, this_binary};

/// USERFAULTFD_IOC_NEW, which asks the device /dev/userfaultfd for one.
const DEVICE_NEW: u32 = 0xaa00;
/// UFFDIO_MOVE, which kernels before 6.8 do not know.
const MOVE: u32 = 0xc028_aa05;
/// Stands for it among system calls.
const MOVES: libc::c_long = MOVE as libc::c_long;

/// Answers `errno` to these system calls, and to the device's request for a userfaultfd if that is
/// one of them; lets all others go.
fn forbid(calls: &[libc::c_long], errno: i32) -> std::io::Result<()> {
    let code = |class: u32, jump: (u8, u8), value: u32| libc::sock_filter {
        code: class as u16,
        jt: jump.0,
        jf: jump.1,
        k: value,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let is = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let refuse = code(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ERRNO | errno as u32);
    let allow = code(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ALLOW);
    let mut filter = vec![code(load, (0, 0), 0)];
    for call in calls {
        filter.extend([code(is, (0, 1), *call as u32), refuse]);
    }
    let requests = [(libc::SYS_userfaultfd, DEVICE_NEW), (MOVES, MOVE)];
    for (_, request) in requests.iter().filter(|(call, _)| calls.contains(call)) {
        let second_argument = core::mem::offset_of!(libc::seccomp_data, args) + 8;
        filter.extend([
            code(load, (0, 0), 0),
            code(is, (0, 3), libc::SYS_ioctl as u32),
            code(load, (0, 0), second_argument as u32),
            code(is, (0, 1), *request),
            refuse,
        ]);
    }
    filter.push(allow);
    let program =
        libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_mut_ptr() };
    // SAFETY: a filter program of this function's, which the kernel copies.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    if installed { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn under_filter(
    name: &str,
    calls: &'static [libc::c_long],
    errno: i32,
    body: impl FnOnce(),
) -> Ending {
    if is_played(name) {
        forbid(calls, errno).expect("a filter");
        body();
        std::process::exit(0);
    }
    let folder = Folder::new(name);
    let mut command = Command::new(this_binary());
    command.current_dir(folder.path());
    finish(name, spawn(name, folder.path(), command))
}

#[test]
fn init_tells_what_is_forbidden_and_how_to_allow_it() {
    let name = "init_tells_what_is_forbidden_and_how_to_allow_it";
    let ending = under_filter(name, &[libc::SYS_userfaultfd], libc::ENOSYS, say_refusal);
    assert!(ending.status.success(), "{}", ending.said);
    assert!(ending.said.contains("said: userfaultfd: this kernel does not have it"));
    assert!(ending.said.contains("/dev/userfaultfd"), "{}", ending.said);
}

#[test]
fn init_names_vmsplice_where_that_is_forbidden_and_pages_cannot_be_moved() {
    let name = "init_names_vmsplice_where_that_is_forbidden_and_pages_cannot_be_moved";
    let ending = under_filter(name, &[libc::SYS_vmsplice, MOVES], libc::EPERM, say_refusal);
    assert!(ending.status.success(), "{}", ending.said);
    assert!(ending.said.contains("a seccomp filter forbids vmsplice"), "{}", ending.said);
    assert!(ending.said.contains("--security-opt seccomp=PROFILE"), "{}", ending.said);
}

fn say_refusal() {
    let config = deepheap::Config::parse("ram:16M,store:.").expect("settings");
    match deepheap::init(config) {
        Err(error @ deepheap::InitError::Kernel(_)) => eprintln!("said: {error}"),
        other => panic!("{other:?}"),
    }
}

/// What Podman's profile refuses beside userfaultfd, which comes from the device there. Docker's
/// allows the first one.
const REFUSED: [libc::c_long; 5] = [
    libc::SYS_vmsplice,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_process_madvise,
];

#[test]
fn under_dockers_profile_memory_beyond_ram_is_right() {
    is_right_without("under_dockers_profile_memory_beyond_ram_is_right", &REFUSED[1..]);
}

#[test]
fn under_podmans_profile_memory_beyond_ram_is_right() {
    let moves = Userfaultfd::open().expect("a userfaultfd").features() & feature::MOVE != 0;
    if moves {
        is_right_without("under_podmans_profile_memory_beyond_ram_is_right", &REFUSED);
    }
}

fn is_right_without(name: &str, calls: &'static [libc::c_long]) {
    let ending = under_filter(name, calls, libc::EPERM, || {
        let config = deepheap::Config::parse("ram:16M,store:.,compress:off").expect("settings");
        deepheap::init(config).expect("a heap");
        let seed = scene::memory::seed();
        let objects: Vec<_> =
            (0..1024).map(|_| scene::memory::Object::new(64 << 10).expect("memory")).collect();
        for (number, object) in objects.iter().enumerate() {
            object.fill(seed ^ number as u64);
        }
        // A scan, then calls of many objects from all over.
        for (number, object) in objects.iter().enumerate() {
            object.check(seed ^ number as u64);
        }
        let addresses: Vec<_> =
            (0..64).map(|at| objects[at * 613 % 1024].address() as *const u8).collect();
        let mut words = vec![0u64; addresses.len()];
        // SAFETY: objects of 64 KiB; a word of room for each.
        unsafe {
            deepheap::objects::gather(
                addresses.as_ptr(),
                addresses.len(),
                0,
                8,
                words.as_mut_ptr().cast(),
            )
        }
        .expect("gathered");
        for (at, word) in words.iter().enumerate() {
            // SAFETY: the first word of a live object.
            assert_eq!(*word, unsafe { addresses[at].cast::<u64>().read_volatile() });
        }
    });
    assert!(ending.status.success(), "{}", ending.said);
}

#[test]
fn without_init_memory_beyond_ram_is_refused_with_the_reason() {
    let ending = under_filter(
        "without_init_memory_beyond_ram_is_refused_with_the_reason",
        &[libc::SYS_userfaultfd],
        libc::EPERM,
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
    let reasons = ending.said.matches("userfaultfd: a seccomp filter forbids it").count();
    assert_eq!(reasons, 1, "{}", ending.said);
}
