//! Real programs run the same with and without the preload library.

mod preloaded;

use std::process::Command;

use preloaded::{Scratch, Setting, run};

/// Runs a command line in every setting; all must end alike and print the same.
fn runs_alike(name: &str, line: &str) {
    let outputs = Setting::ALL.map(|setting| {
        let scratch = Scratch::new(&format!("{name}-{setting:?}"));
        let output = run(Command::new("/bin/bash").args(["-c", line]), setting, &scratch);
        (output.status, output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
    });
    assert!(outputs[0].0.success(), "{line} fails without us: {}", outputs[0].2);
    assert_eq!(outputs[0], outputs[1], "{line}");
    assert_eq!(outputs[0], outputs[2], "{line}");
}

fn is_installed(program: &str) -> bool {
    let found = Command::new("/bin/sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|output| output.status.success())
}

#[test]
fn bash_with_pipes_and_functions() {
    runs_alike(
        "bash",
        "f() { for i in $(seq 1 300); do x[$i]=$(echo $i | tr 0-9 a-j); done; echo ${x[@]}; }; \
         f | md5sum; trap 'echo trapped' USR1; kill -USR1 $$; (exit 3); echo $?; wait",
    );
}

#[test]
fn sort_larger_than_its_budget() {
    runs_alike(
        "sort",
        "seq 1 400000 | sort -S 200M --parallel=4 -R --random-source=<(yes) | md5sum",
    );
}

#[test]
fn the_summary_is_shown_though_a_program_closes_its_stderr() {
    let scratch = Scratch::new("summary");
    // As all of the GNU core utilities it closes it before it ends.
    let mut command = Command::new("seq");
    command.args(["1", "3"]).env("DEEPHEAP_SHOW_STATS", "yes");
    let output = run(&mut command, Setting::Managing, &scratch);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n2\n3\n");
    let summary = String::from_utf8_lossy(&output.stderr);
    assert!(summary.contains("with a RAM budget of 16.0 MiB"), "{summary}");
}

#[test]
fn python_with_threads_and_children() {
    if !is_installed("python3") {
        return;
    }
    runs_alike(
        "python",
        "PYTHONMALLOC=malloc python3 -c '
import hashlib, subprocess, threading, os
words = {str(i): bytes([i % 251]) * (i % 900) for i in range(60000)}
sums = []
def work(part):
    h = hashlib.sha256()
    for i in range(part, 60000, 4): h.update(words[str(i)])
    sums.append((part, h.hexdigest()))
threads = [threading.Thread(target=work, args=(p,)) for p in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sorted(sums))
print(subprocess.run([\"echo\", \"child\"], capture_output=True).stdout)
child = os.fork()
if child == 0: os._exit(0 if words[\"59999\"] == bytes([59999 % 251]) * (59999 % 900) else 1)
print(os.waitpid(child, 0)[1])
open(\"large\", \"wb\").write(bytearray(30000000)); print(len(open(\"large\", \"rb\").read()))
'",
    );
}

#[test]
fn gcc_compiles() {
    runs_alike(
        "gcc",
        "printf '#include <stdio.h>\\nint main(void){puts(\"made\");}' > a.c && \
         gcc -O2 -o a a.c && ./a",
    );
}

#[test]
fn redis_starts_serves_and_saves() {
    if !is_installed("redis-server") || !is_installed("redis-cli") {
        return;
    }
    runs_alike("redis-version", "redis-server --version");
    runs_alike(
        "redis",
        "redis-server --port 0 --unixsocket ./socket --save '' --dir . --dbfilename dump.rdb \
           --enable-debug-command local \
           > log 2>&1 & server=$!; \
         for i in $(seq 1 100); do [ -S socket ] && break; sleep 0.1; done; \
         redis-cli -s ./socket debug populate 70000 key 200; \
         redis-cli -s ./socket debug digest; redis-cli -s ./socket save; \
         redis-cli -s ./socket debug reload nosave; redis-cli -s ./socket debug digest; \
         redis-cli -s ./socket get key:69999 | wc -c; redis-cli -s ./socket bgsave | head -1; \
         sleep 1; redis-cli -s ./socket shutdown nosave; wait $server; echo $?",
    );
}

#[test]
fn tar_and_compression() {
    runs_alike(
        "tar",
        "mkdir -p d && seq 1 200000 > d/a && tar --sort=name --mtime=@0 --owner=0 --group=0 \
           --numeric-owner -cf - d | gzip -n | md5sum; xz -9 -k -c d/a | xz -d | md5sum",
    );
}
