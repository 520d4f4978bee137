#!/usr/bin/env python3
"""soak.py [--hours H] [--seed S] [--only NAME] [--root]: runs all that hunts for faults, in turns,
for hours: each turn draws a member, its settings and its seed.

The members: lost writes under eviction and forks (`hunt`); processes with durable heaps that are
killed, and with --root cuts of power (`torture`); crashes of the store on a simulated device
(`crashes`); damaged and forged heaps (`forged`); schedules of the pager (`schedules`); processes
that share a map and are killed (`maps`); system calls that are refused (`calls`); and real programs
with settings drawn at random (`programs`), alone and under deepheap, some in a memory cgroup of
their budget and some with a store that is too small.

Guarantees: prints for each turn how to repeat it; goes on after a failure, and ends with status 1
then. A program that is refused its settings, or that ends with deepheap's own sentence because the
store is full, has not failed; a wrong answer has. Writes below target/soak only.
"""

import argparse
import hashlib
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
RELEASE = TARGET / "release"
#: Of this process alone: several may run at once.
WORK = TARGET / "soak" / str(os.getpid())
WORKLOADS = ROOT / "papers/src/real/workloads"
#: No turn takes longer, seconds; a real program that would is too slow for its settings.
PATIENCE, PROGRAM_PATIENCE = 1800, 240
#: Each real program: what makes its input, if it has one, and its command.
PROGRAMS = {
    "python": (None, ["python3", str(WORKLOADS / "objects.py"), "60000"]),
    "sort": (
        "import random\nrandom.seed(7)\n"
        "for _ in range(1200000): print(f'{random.getrandbits(160):x}')",
        ["sort", "-S", "1G", "--parallel=3", "INPUT"],
    ),
    "perl": (None, ["perl", str(WORKLOADS / "words.pl"), "150000"]),
    "xz": (
        "import random\nrandom.seed(9)\n"
        "for i in range(600000): print(i, random.choice('abcdefgh') * 9)",
        ["xz", "-7", "-T", "2", "-c", "INPUT"],
    ),
    "threads": (
        None,
        ["python3", "-c", """
import hashlib, threading
sums = [None] * 4
def work(n):
    own = [bytearray(hashlib.sha256(b"%d %d" % (n, i)).digest() * 40) for i in range(9000)]
    for step in range(3):
        for i in range(0, len(own), step + 1):
            own[i][step] = (own[i][step] + n) % 256
    sums[n] = hashlib.sha256(b"".join(bytes(part) for part in own)).hexdigest()
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sums)
"""],
    ),
    "processes": (
        None,
        ["python3", "-c", """
import hashlib, os
data = [hashlib.sha256(b"%d" % i).digest() * 20 for i in range(70000)]
for child in range(3):
    pid = os.fork()
    if pid == 0:
        data[child::5] = [bytes(part[::-1]) for part in data[child::5]]
        print(child, hashlib.sha256(b"".join(data)).hexdigest(), flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
print(hashlib.sha256(b"".join(data)).hexdigest())
"""],
    ),
}


#: What deepheap says where a small store has no room for a program.
NO_ROOM = re.compile(
    "store is full|refused, neither RAM nor the store|are refused, the RAM budget|"
    "no room for it in RAM or in the store"
)


class Failure(Exception):
    """What went wrong in a turn."""


def run(command, patience=PATIENCE, cgroup=None, **environment):
    """Runs a command in a session of its own; gives status, output and errors. Status None: it was
    ended because it took too long."""
    files = WORK / "out", WORK / "err"

    def enter():
        if cgroup:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    with files[0].open("wb") as out, files[1].open("wb") as err:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            env=os.environ | environment, preexec_fn=enter, cwd=WORK,
        )
        try:
            status = child.wait(patience)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    return status, files[0].read_bytes(), files[1].read_text(errors="replace")


def tested(package, test, *options, **environment):
    """Runs a test of cargo."""
    command = ["cargo", "test", "-q", *options, "-p", package, *test, "--", "--nocapture"]
    told = " ".join(f"{key}={value}" for key, value in environment.items())
    print(f"soak:   {told} {shlex.join(command)}", flush=True)
    status, out, err = run(command, CARGO_TARGET_DIR=str(TARGET), **environment)
    if status != 0:
        raise Failure(f"status {status}:\n{out.decode(errors='replace')[-4000:]}{err[-4000:]}")


def benched(*options):
    """Runs deepheap-bench; gives what it said."""
    command = [str(RELEASE / "deepheap-bench"), *map(str, options)]
    print(f"soak:   {shlex.join(command)}", flush=True)
    status, out, err = run(command)
    if status != 0:
        raise Failure(f"status {status}:\n{out.decode(errors='replace')[-4000:]}{err[-4000:]}")
    return out.decode() + err


def hunt(draw, seed, _root):
    options = ["--seconds", 60, "--seed", seed, "--dir", WORK]
    options += ["--ram", f"{draw.choice([16, 24, 32, 48, 80])}M"]
    options += ["--threads", draw.choice([2, 6, 12])]
    options += ["--fork-every-ms", draw.choice([0, 200, 700, 3000])]
    if draw.random() < 0.3:
        options += ["--tier", WORK]
    if draw.random() < 0.3:
        options += ["--micro-pages"]
    told = re.search(r"hunt: (\d+) increments", benched("hunt", *options))
    return int(told[1])


def torture(draw, seed, root):
    cuts, systems = (10, "here,ext4,xfs,btrfs") if root else (0, "here")
    options = ["--kills", 20, "--power-cuts", cuts, "--on", systems, "--seed", seed, "--dir", WORK]
    told = benched("torture", *options)
    return sum(map(int, re.findall(r"(\d+) operations verified", told)))


def crashes(_draw, seed, _root):
    settings = {"DEEPHEAP_CRASH_POINTS": "20000", "STORE_SEED": str(seed % 2**32)}
    tested("deepheap-store", ["--test", "crash_points"], "--release", **settings)
    return 20000


def forged(_draw, seed, _root):
    settings = {"DEEPHEAP_FUZZ_SECONDS": "60", "STORE_SEED": str(seed % 2**32)}
    tested("deepheap-store", ["--test", "fuzz_recovery"], "--release", **settings)
    return 1


def schedules(_draw, seed, _root):
    settings = {"DEEPHEAP_SCHEDULES": "100", "DEEPHEAP_TEST_SEED": str(seed)}
    tested("deepheap-pager", ["--lib", "schedules"], "--features", "schedules", **settings)
    return 100


def maps(_draw, _seed, _root):
    tests = ["--test", "processes", "--test", "synced", "killed"]
    tested("deepheap-maps", tests, DEEPHEAP_KILLS="20")
    return 20


def calls(_draw, seed, _root):
    settings = {"DEEPHEAP_POINTS": "40", "DEEPHEAP_TEST_SEED": str(seed)}
    tested("deepheap", ["--test", "durable_points"], **settings)
    return 40


def settings_of(draw, peak):
    """Settings for a program that takes so many bytes alone."""
    ram = max(10 << 20, int(peak * draw.uniform(0.3, 1.1)))
    settings = [f"ram:{ram}", f"store:{WORK}", "quiet:yes"]
    for chance, choices in [
        (0.3, ["page_buffer:30%", "page_buffer:60%", "page_buffer:85%"]),
        (0.4, ["compress:off", "compress:lz4"]),
        (0.2, ["encrypt:yes"]),
        (0.2, [f"tier:{WORK}"]),
        (0.3, ["objects:16-256", "objects:64-4096", "objects:1024-1M"]),
        (0.3, ["mmap:off", "mmap:4K", "mmap:4M"]),
        (0.2, ["segment:128K", "segment:1M"]),
        (0.2, ["strides:no"]),
        (0.2, ["sequences:no"]),
        (0.2, ["micro_pages:yes"]),
        (0.2, ["overcommit:strict"]),
        (0.1, ["stall:5%"]),
        (0.1, ["children:no"]),
    ]:
        if draw.random() < chance:
            settings.append(draw.choice(choices))
    return ram, settings


def memory_cgroup(limit):
    """A memory cgroup with this limit; None where none can be made."""
    for root, name in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                       ("/sys/fs/cgroup", "memory.max")]:
        folder = Path(root) / f"deepheap-soak-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        # The kernel fills the folder of a cgroup, if it has that limit.
        if (folder / name).exists():
            (folder / name).write_text(str(limit))
            return folder
        folder.rmdir()
    return None


def remove_cgroup(folder):
    """Removes a cgroup, once the processes in it, which were killed, have ended."""
    while (folder / "cgroup.procs").read_text():
        time.sleep(0.01)
    folder.rmdir()


alone = {}


def answer(name):
    """The answer of a program alone, its command and its peak in bytes."""
    if name not in alone:
        make, command = PROGRAMS[name]
        if not shutil.which(command[0]):
            return None
        if make:
            status, made, _ = run([sys.executable, "-c", make])
            assert status == 0
            (WORK / name).write_bytes(made)
        command = [str(WORK / name) if part == "INPUT" else part for part in command]
        # The greatest child of one that does nothing else is the program.
        probe = ("import resource, subprocess, sys\n"
                 "status = subprocess.run(sys.argv[1:]).returncode\n"
                 "sys.stderr.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))\n"
                 "sys.exit(status)")
        status, out, err = run([sys.executable, "-c", probe, *command], LC_ALL="C")
        assert status == 0, (name, status, err)
        alone[name] = hashlib.sha256(out).digest(), command, int(err.split()[-1]) << 10
    return alone[name]


def programs(draw, _seed, root):
    name = draw.choice(sorted(PROGRAMS))
    known = answer(name)
    if known is None:
        return 0
    right, command, peak = known
    ram, settings = settings_of(draw, peak)
    is_full = draw.random() < 0.15
    if is_full:
        # What it tells is how a program without memory is known from one that fails.
        settings.remove("quiet:yes")
        settings.append(f"store_size:{max(20 << 20, (peak - ram) // 3)}")
    cgroup = memory_cgroup(ram + (96 << 20)) if root and draw.random() < 0.3 else None
    conf = ",".join(settings)
    print(f"soak:   DEEPHEAP_CONF={conf} LC_ALL=C deepheap run -- {name}"
          f"{f' in a cgroup of {ram + (96 << 20)}' if cgroup else ''}", flush=True)
    run_command = [str(RELEASE / "deepheap"), "run", "--", *command]
    try:
        status, out, err = run(
            run_command, PROGRAM_PATIENCE, cgroup, DEEPHEAP_CONF=conf, LC_ALL="C")
    finally:
        if cgroup:
            remove_cgroup(cgroup)
    told = "deepheap" in err
    if status is None:
        print("soak:   took too long with these settings", flush=True)
    elif is_full and NO_ROOM.search(err):
        # A program may end with status 0 although a thread of its had no memory.
        print("soak:   the store was full", flush=True)
    elif status == 0:
        if hashlib.sha256(out).digest() != right:
            raise Failure(f"a wrong answer; stderr: {err[-2000:]}")
        return 1
    elif status == 2 and told:
        print(f"soak:   refused: {err.strip().splitlines()[0][:160]}", flush=True)
    elif cgroup and status == -signal.SIGKILL:
        print("soak:   killed for want of memory in its cgroup", flush=True)
    else:
        raise Failure(f"status {status}; stderr: {err[-3000:]}")
    return 0


#: How often each is drawn, and what its counts are.
MEMBERS = {
    hunt: (3, "increments, summed exactly"),
    torture: (2, "operations compared"),
    crashes: (1, "points"),
    forged: (1, "minutes"),
    schedules: (1, "schedules"),
    maps: (1, "kills"),
    calls: (1, "system calls refused"),
    programs: (8, "right answers"),
}


def prepare():
    """Builds what the turns run."""
    for part in (["build", "--release"], ["build", "--release", "-p", "deepheap-bench"],
                 ["test", "--no-run", "--release", "-p", "deepheap-store"],
                 ["test", "--no-run", "-p", "deepheap-pager", "--features", "schedules", "--lib"],
                 ["test", "--no-run", "-p", "deepheap-maps", "-p", "deepheap"]):
        subprocess.run(["cargo", *part], check=True, cwd=ROOT)


def main():
    about = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(description=about[0], epilog=about[1])
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0, help="0: from the clock")
    parser.add_argument("--only", choices=[member.__name__ for member in MEMBERS])
    parser.add_argument("--root", action="store_true", help="cuts of power and memory cgroups, too")
    parser.add_argument("--no-build", action="store_true", help="all is built already")
    options = parser.parse_args()
    if not options.no_build:
        prepare()
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    first = options.seed or time.time_ns() // 1000
    members = [m for m in MEMBERS if options.only in (None, m.__name__)]
    table = {member: [0, 0.0, 0, 0] for member in members}
    began = time.monotonic()
    turn = 0
    try:
        while time.monotonic() - began < options.hours * 3600:
            seed = first + turn
            draw = random.Random(seed)
            member = draw.choices(members, [MEMBERS[m][0] for m in members])[0]
            turn += 1
            print(f"soak: turn {turn}, --seed {seed}: {member.__name__}", flush=True)
            start, row = time.monotonic(), table[member]
            try:
                row[2] += member(draw, seed, options.root)
            except Failure as failure:
                row[3] += 1
                print(f"soak: FAILED: {member.__name__} --seed {seed}: {failure}", flush=True)
            row[0] += 1
            row[1] += time.monotonic() - start
    except KeyboardInterrupt:
        print("soak: interrupted")
    hours = (time.monotonic() - began) / 3600
    print(f"\n{hours:.1f} hours, seeds {first} to {first + max(turn, 1) - 1}\n")
    print("| what | turns | hours | done | failures |\n|---|---|---|---|---|")
    for member, (turns, seconds, done, failures) in table.items():
        print(f"| {member.__name__} | {turns} | {seconds / 3600:.2f} "
              f"| {done:,} {MEMBERS[member][1]} | {failures} |")
    shutil.rmtree(WORK, ignore_errors=True)
    sys.exit(any(row[3] for row in table.values()))


if __name__ == "__main__":
    # As Ctrl-C: nothing is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Core files of programs that are killed would fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
