//! What a program sees that `deepheap run` becomes.

mod command;

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};

use command::{Folder, told};

#[test]
fn exit_status_and_signals_are_the_programs() {
    let folder = Folder::new();
    assert_eq!(folder.output(["run", "sh", "-c", "exit 42"]).status.code(), Some(42));
    assert_eq!(folder.output(["run", "sh", "-c", "kill -9 $$"]).status.signal(), Some(9));
}

#[test]
fn exit_status_and_signals_are_the_programs_where_it_has_a_parent() {
    let folder = Folder::new();
    let output = |script: &str| folder.output(["run", "--show-stats", "sh", "-c", script]);
    assert_eq!(told(&output("exit 42")), (Some(42), String::new(), String::new()));
    for signal in [libc::SIGKILL, libc::SIGUSR1, libc::SIGTERM] {
        assert_eq!(output(&format!("kill -{signal} $$")).status.signal(), Some(signal));
    }
    // What is sent to the parent comes to the program.
    let script = "trap 'exit 7' TERM; echo ready; while :; do read line; done";
    let mut command = folder.deepheap();
    command.args(["run", "--show-stats", "sh", "-c", script]);
    let (own, others) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    command.stdin(std::os::fd::OwnedFd::from(others)).stdout(std::process::Stdio::piped());
    let mut run = command.spawn().expect("start");
    drop(command);
    let mut line = [0; 6];
    run.stdout.as_mut().expect("piped").read_exact(&mut line).expect("a line");
    assert_eq!(&line, b"ready\n");
    // SAFETY: no memory arguments; the child is not waited for yet, so its number is its.
    unsafe { libc::kill(run.id() as i32, libc::SIGTERM) };
    assert_eq!(run.wait().expect("its end").code(), Some(7));
    drop(own);
}

#[test]
fn a_program_ends_with_the_parent_that_is_to_tell_of_it() {
    let folder = Folder::new();
    let mut command = folder.deepheap();
    command.args(["run", "--show-stats", "sh", "-c", "echo ready; while :; do read line; done"]);
    let (mut own, others) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    command.stdin(std::os::fd::OwnedFd::from(others.try_clone().expect("a second")));
    command.stdout(std::os::fd::OwnedFd::from(others));
    let mut run = command.spawn().expect("start");
    drop(command);
    let mut line = [0; 6];
    own.read_exact(&mut line).expect("a line");
    run.kill().expect("killed");
    run.wait().expect("its end");
    // The program had the other end open, and nobody else.
    assert_eq!(own.read(&mut line).expect("the end of the program"), 0);
}

#[test]
fn arguments_are_not_touched() {
    let folder = Folder::new();
    let output = folder.output(["run", "--ram", "64M", "echo", "--ram", "1", "--", "-x"]);
    assert_eq!(told(&output).1, "--ram 1 -- -x\n");
    let output = folder.output(["run", "--", "echo", "--help"]);
    // echo(1) of coreutils knows --help; the shell's does not.
    assert!(told(&output).1.contains("echo"));
}

#[test]
fn show_stats_goes_over_its_variable() {
    let folder = Folder::new();
    for (options, seen) in [(&["--show-stats"][..], "1\n"), (&[], "0\n")] {
        let mut command = folder.deepheap();
        command.env("DEEPHEAP_SHOW_STATS", "0").arg("run").args(options);
        let output = command.args(["printenv", "DEEPHEAP_SHOW_STATS"]).output().expect("start");
        assert_eq!(told(&output).1, seen, "{options:?}");
    }
}

#[test]
fn options_go_over_the_environment() {
    let folder = Folder::new();
    let mut command = folder.deepheap();
    command.env("DEEPHEAP_CONF", "ram:64M,children:no,store_size:1G");
    command.args(["run", "--ram", "96M", "--show-stats", "--stats", "out,1.json"]);
    command.args(["--objects", "64-2048", "--page-buffer", "25M", "--compress", "off"]);
    let (status, out, err) =
        told(&command.args(["printenv", "DEEPHEAP_CONF"]).output().expect("start"));
    assert_eq!(status, Some(0), "{err}");
    let here = folder.path().display();
    let expected = format!(
        "ram:96M,store:{here},store_size:1G,page_buffer:25M,compress:off,objects:64-2K,\
         stats:{here}/out\\,1.json,show_stats:yes,children:no\n"
    );
    assert_eq!(out, expected);
}

#[test]
fn a_command_inside_of_a_run_goes_on_without_the_library() {
    let folder = Folder::new();
    let command = folder.deepheap().get_program().to_owned();
    let words = ["run", "--ram", "64M"].map(std::ffi::OsString::from);
    let inner = words.clone().into_iter().chain([command]);
    let inside = |more: &[&str]| {
        let more = more.iter().map(std::ffi::OsString::from);
        told(&folder.output(inner.clone().chain(more)))
    };
    // The inner budget holds, and the library is preloaded once.
    let shown = "echo $DEEPHEAP_CONF; echo $LD_PRELOAD";
    let (status, out, err) = inside(&["run", "--ram", "96M", "sh", "-c", shown]);
    assert_eq!(status, Some(0), "{err}");
    assert!(out.contains("ram:96M") && !out.contains("ram:64M"), "{out}");
    assert_eq!(out.matches("libdeepheap_preload.so").count(), 1, "{out}");
    let (_, out, _) = inside(&["--version"]);
    assert!(out.starts_with("deepheap "), "{out}");
}

#[test]
fn what_was_preloaded_is_kept() {
    let folder = Folder::new();
    let mut command = folder.deepheap();
    command.env("LD_PRELOAD", "/lib/x86_64-linux-gnu/libdl.so.2");
    let (_, out, _) =
        told(&command.args(["run", "printenv", "LD_PRELOAD"]).output().expect("start"));
    let here = folder.path().canonicalize().expect("folder");
    let ours = here.join("libdeepheap_preload.so");
    assert_eq!(out, format!("{}:/lib/x86_64-linux-gnu/libdl.so.2\n", ours.display()));
}

#[test]
fn scripts_run_by_their_interpreters() {
    let folder = Folder::new();
    let script = folder.file("script", b"#!/usr/bin/env sh\necho \"ran $1\"\n", 0o755);
    let bare = folder.file("bare", b"echo \"bare $1\"\n", 0o755);
    let run = |path: &std::path::Path| {
        told(&folder.output(["run", path.to_str().expect("utf8"), "it"])).1
    };
    assert_eq!(run(&script), "ran it\n");
    assert_eq!(run(&bare), "bare it\n");
}

#[test]
fn the_pipe_signal_is_as_it_was() {
    let folder = Folder::new();
    // A program killed by SIGPIPE when its reader goes; with the signal ignored it would fail
    // with a message instead.
    let command = "./deepheap run yes | head -n 1 > /dev/null; exit ${PIPESTATUS[0]}";
    drop(folder.deepheap());
    let mut bash = std::process::Command::new("bash");
    let output = bash.args(["-c", command]).current_dir(folder.path()).output().expect("bash");
    assert_eq!(told(&output), (Some(141), String::new(), String::new()));
}

#[test]
fn blocked_and_ignored_signals_are_as_they_were() {
    let folder = Folder::new();
    let signals = |mut command: std::process::Command| {
        let block = || {
            // SAFETY: a mask of one signal, and a standard disposition, between fork and execve.
            unsafe {
                let mut mask: libc::sigset_t = core::mem::zeroed();
                libc::sigaddset(&mut mask, libc::SIGUSR1);
                libc::pthread_sigmask(libc::SIG_SETMASK, &mask, core::ptr::null_mut());
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            Ok(())
        };
        // SAFETY: it makes system calls only.
        unsafe { command.pre_exec(block) };
        told(&command.args(["-E", "^Sig(Blk|Ign)", "/proc/self/status"]).output().expect("start"))
    };
    let bare = signals(std::process::Command::new("grep"));
    assert!(bare.1.contains("SigBlk:\t0000000000000200"), "{bare:?}");
    for options in [&[][..], &["--show-stats"]] {
        let mut command = folder.deepheap();
        command.arg("run").args(options).arg("grep");
        assert_eq!(signals(command), bare, "{options:?}");
    }
}
