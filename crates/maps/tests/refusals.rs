//! Refusals: what cannot be mapped is told, with what to do.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod scene;

use std::path::Path;

use deepheap_maps::{self as maps, MapError, Request, Writes};
use scene::{Mapped, PAGE, Scratch, alone, ended, process};

fn refusal(path: &Path, length: u64, budget_bytes: u64) -> String {
    let request = Request { path, length, writes: true, budget_bytes };
    maps::open(&request, Writes::InPlace).unwrap_err().to_string()
}

#[test]
fn every_refusal_has_its_sentence() {
    let _alone = alone();
    let file = Scratch::zeros(PAGE);
    let empty = Scratch::zeros(0);
    for (path, length, budget, words) in [
        (Path::new("/no/such/file"), 0, 4 << 20, "No such file"),
        (Path::new("/dev/null"), 0, 4 << 20, "neither a regular file nor a block device"),
        (Path::new("/proc"), 0, 4 << 20, "neither a regular file nor a block device"),
        (&file.0, 1 << 50, 4 << 20, "16 TiB"),
        (&file.0, 0, 4096, "too few"),
        (&empty.0, 0, 4 << 20, "no bytes"),
    ] {
        let text = refusal(path, length, budget);
        assert!(text.contains(words), "{}: {text}", path.display());
    }
}

#[test]
fn a_file_in_ram_and_one_that_somebody_has_for_himself_are_refused() {
    let _alone = alone();
    let name = format!("/dev/shm/deepheap-test-{}", std::process::id());
    if std::fs::write(&name, [1; 8192]).is_ok() {
        let text = refusal(Path::new(&name), 0, 4 << 20);
        std::fs::remove_file(&name).unwrap();
        assert!(text.contains("tmpfs"), "{text}");
    }
    let file = Scratch::zeros(PAGE);
    let owner = file.open();
    owner.lock().unwrap();
    assert!(refusal(&file.0, 0, 4 << 20).contains("for itself"));
    owner.unlock().unwrap();
    drop(Mapped::new(&file, 4 << 20, true));
}

#[test]
fn where_there_is_no_map_calls_are_refused() {
    let _alone = alone();
    let byte = 0u8;
    let nowhere = &raw const byte;
    assert_eq!(maps::sync(nowhere, 1), Err(MapError::NotAMap));
    assert_eq!(maps::stats(nowhere), Err(MapError::NotAMap));
    assert!(!maps::owns(nowhere) && !maps::prefetch(nowhere));
    // SAFETY: no map is there.
    assert_eq!(unsafe { maps::close(nowhere.cast_mut()) }, Err(MapError::NotAMap));
}

/// USERFAULTFD_IOC_NEW, which asks the device /dev/userfaultfd for one.
const DEVICE_NEW: u32 = 0xaa00;

/// From now on the process gets no userfaultfd.
fn forbid_userfaultfd() {
    let code = |class: u32, jump: (u8, u8), value: u32| libc::sock_filter {
        code: class as u16,
        jt: jump.0,
        jf: jump.1,
        k: value,
    };
    let second_argument = core::mem::offset_of!(libc::seccomp_data, args) + 8;
    let mut filter = [
        code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), 0),
        code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (3, 0), libc::SYS_userfaultfd as u32),
        code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (0, 3), libc::SYS_ioctl as u32),
        code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), second_argument as u32),
        code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (0, 1), DEVICE_NEW),
        code(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        code(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    let program =
        libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_mut_ptr() };
    // SAFETY: a filter program on this stack, which the kernel copies.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    assert!(installed);
}

#[test]
fn without_userfaultfd_for_shared_memory_there_is_a_sentence() {
    let _alone = alone();
    let file = Scratch::zeros(PAGE);
    let child = process(|| {
        forbid_userfaultfd();
        let text = refusal(&file.0, 0, 4 << 20);
        assert!(text.contains("userfaultfd for shared memory is not to be had"), "{text}");
    });
    assert_eq!(ended(child), 0);
}
