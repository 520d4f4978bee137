//! Canary: what the other tests rely on fails when it should. A scene that panics, ends by a signal
//! or finds a wrong byte is caught; a child that fails is, too.

mod scene;

use std::os::unix::process::ExitStatusExt;

use scene::memory::{Collection, PAGE};
use scene::process::{fork, must_succeed};
use scene::watch;

const CONF: &str = "ram:16M,store_size:64M";

#[test]
fn canary_a_wrong_byte_is_caught() {
    let ending = watch("canary_a_wrong_byte_is_caught", CONF, || {
        let data = Collection::filled(1, 6000, PAGE);
        data.objects[77].set(511, 5);
        data.check();
    });
    assert!(!ending.status.success() && ending.said.contains("byte 4088"), "{}", ending.said);
}

#[test]
fn canary_a_failing_child_is_caught() {
    let ending = watch("canary_a_failing_child_is_caught", CONF, || {
        let data = Collection::filled(1, 6000, PAGE);
        must_succeed(fork(|| data.objects[0].check(2)));
    });
    assert!(!ending.status.success(), "{}", ending.said);
}

#[test]
fn canary_death_by_a_signal_is_caught() {
    let ending = watch("canary_death_by_a_signal_is_caught", CONF, || {
        // SAFETY: the end of this process.
        unsafe { libc::raise(libc::SIGKILL) };
    });
    assert_eq!(ending.status.signal(), Some(libc::SIGKILL));
}

#[test]
fn canary_a_process_that_spins_is_seen() {
    let pid = std::process::id();
    let before = scene::process::ticks(pid);
    let spun = || scene::process::ticks(pid) > before + 3;
    // It has the processor when the others let it.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::time::Instant::now() < end && !spun() {}
    assert!(spun());
}
