//! Bad input as an ordinary user meets it: every refusal has status 2, says what is wrong and what
//! to do, and the program does not start. Started by root, the command runs as nobody.

mod command;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use command::{Folder, told};

const NOBODY: u32 = 65_534;

fn is_root() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() == 0 }
}

/// A folder that everybody may write to.
fn open_folder() -> Folder {
    let folder = Folder::new();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("chmod");
    folder
}

/// The command as an ordinary user.
fn as_user(folder: &Folder) -> Command {
    let mut command = folder.deepheap();
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

#[track_caller]
fn assert_refused(command: &mut Command, said: &[&str]) {
    let (status, out, err) = told(&command.output().expect("start deepheap"));
    assert_eq!((status, out.as_str()), (Some(2), ""), "{err}");
    for words in said {
        assert!(err.contains(words), "'{words}' is not in: {err}");
    }
    for ugly in ["panicked", "RUST_BACKTRACE", "Os {", "unwrap"] {
        assert!(!err.contains(ugly), "{err}");
    }
}

#[test]
fn it_works_for_an_ordinary_user() {
    let folder = open_folder();
    let output = as_user(&folder).args(["run", "--ram", "64M", "id", "-u"]).output();
    let (status, out, err) = told(&output.expect("start"));
    assert_eq!(status, Some(0), "{err}");
    assert!(!is_root() || out.trim() == NOBODY.to_string(), "{out}");
}

#[test]
fn every_bad_input_is_refused_before_the_program_starts() {
    let folder = open_folder();
    for (options, said) in [
        (&["--rma", "2G"][..], &["--rma", "--help"][..]),
        (&["--ram", "plenty"], &["--ram", "'plenty' is not a size"]),
        (&["--ram", "0"], &["ram 0 B", "at least 16.0 MiB"]),
        (&["--ram", "15M"], &["ram", "at least 16.0 MiB"]),
        (&["--ram", "999999999999G"], &["ram"]),
        (&["--ram", "200%"], &["--ram", "100%"]),
        (&["--store", "/nowhere/at/all"], &["/nowhere/at/all", "does not exist", "create"]),
        (&["--store", "/root/secret"], &["/root/secret", "cannot be reached", "--store"]),
        (&["--store", "/usr"], &["'/usr'", "may not write", "--store"]),
        (&["--store", "/dev/shm"], &["/dev/shm", "memory itself", "--store"]),
        (&["--store", "/dev/zero"], &["/dev/zero", "no folder, file or block device"]),
        (&["--store-size", "3T"], &["free", "--store-size"]),
        (&["--store-size", "5M"], &["at least 16.0 MiB"]),
        (&["--stats", "/usr/stats.json"], &["/usr/stats.json", "may write to"]),
    ] {
        let is_roots = options[1].starts_with("/root") || options[1].starts_with("/usr");
        if is_roots && !is_root() && fs::metadata("/root/.").is_ok() {
            continue;
        }
        assert_refused(as_user(&folder).arg("run").args(options).args(["echo", "ran"]), said);
    }
}

/// A file system mounted read-only; undone in the end.
struct ReadOnly<'a>(&'a Path);

impl<'a> ReadOnly<'a> {
    fn new(path: &'a Path) -> Option<ReadOnly<'a>> {
        let run = |arguments: &[&str]| {
            let output = Command::new("mount").args(arguments).arg(path).output();
            output.is_ok_and(|output| output.status.success())
        };
        let path_text = path.to_str()?;
        let bound = run(&["--bind", path_text]).then_some(ReadOnly(path))?;
        run(&["-o", "remount,ro,bind"]).then_some(bound)
    }
}

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}

#[test]
fn a_read_only_store() {
    let folder = open_folder();
    let place = folder.path().join("read-only");
    fs::create_dir(&place).expect("folder");
    let Some(_mounted) = ReadOnly::new(&place) else {
        return eprintln!("SKIPPED a_read_only_store: mounting needs root");
    };
    let store = place.to_str().expect("utf8");
    let said = [store, "mounted read-only", "--store"];
    assert_refused(as_user(&folder).args(["run", "--store", store, "echo", "ran"]), &said);
}

#[test]
fn a_kernel_without_userfaultfd() {
    let folder = open_folder();
    for (errno, words) in [
        (libc::EPERM, "a seccomp filter forbids it"),
        (libc::ENOSYS, "this kernel does not have it, or a seccomp filter hides it"),
    ] {
        let mut command = as_user(&folder);
        // SAFETY: system calls only, between fork and exec.
        unsafe { command.pre_exec(move || forbid_userfaultfd(errno)) };
        let said = ["userfaultfd", words, "/dev/userfaultfd", "seccomp profile"];
        assert_refused(command.args(["run", "echo", "ran"]), &said);
    }
}

/// Has the kernel answer `errno` to userfaultfd from now on, as a container's filter does.
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
