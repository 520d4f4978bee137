"""gather_rows.py: how many rows of a large array one thread reads a second, in little RAM.

    python gather_rows.py deepheap map memmap c [--ram 256M] [--gib 4] [--draw zipf] [--rounds 2]

All read the same random rows of 128 random floats, 4096 rows a call: with deepheap.gather from an
array (deepheap) or from a file (map), by indexing a np.memmap under MADV_RANDOM (memmap), or by
dh_gather in a program in C (c; GATHER_ROWS_C names what gather_rows.c was built to). memmap needs
root: its process is in a memory cgroup (version 1) that has the same RAM for the file beside what
Python itself takes. Each is a process of its own, in turns. Files and stores are made in the
working folder.
"""

import argparse
import contextlib
import mmap
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROW_BYTES = 512
ROW = (ROW_BYTES // 4,)
TOGETHER = 4096
#: Rows that are drawn beforehand; then they come again.
DRAWN = 1 << 22
CGROUP = Path("/sys/fs/cgroup/memory/deepheap-gather-rows")
CONTENDERS = ("deepheap", "map", "memmap", "c")


def size(text):
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]


def draw(kind, count):
    """Row numbers: uniform, or by Zipf's law (0.99) over rows in any order."""
    rng = np.random.default_rng(2)
    if kind == "uniform":
        return rng.integers(0, count, DRAWN)
    shares = np.cumsum(1.0 / np.arange(1, count + 1) ** 0.99)
    return rng.permutation(count)[np.searchsorted(shares, rng.random(DRAWN) * shares[-1])]


def fill(array):
    rng = np.random.default_rng(1)
    for first in range(0, len(array), 1 << 16):
        part = array[first : first + (1 << 16)]
        part[...] = rng.random(part.shape, "float32")


def resident():
    """Bytes of RAM that this process has, files apart."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise OSError("no RssAnon in /proc/self/status")


@contextlib.contextmanager
def limited(limit):
    """This process in a memory cgroup of so many bytes beside what it has already."""
    CGROUP.mkdir()
    try:
        (CGROUP / "memory.limit_in_bytes").write_text(str(limit + resident()))
        (CGROUP / "cgroup.procs").write_text(str(os.getpid()))
        yield
        (CGROUP.parent / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        CGROUP.rmdir()


def measure(gather, drawn, seconds):
    """Prints rows a second, after as long to warm up."""
    out = np.empty((TOGETHER, *ROW), "float32")
    at = 0

    def for_seconds():
        nonlocal at
        done, start = 0, time.monotonic()
        while (took := time.monotonic() - start) < seconds:
            gather(drawn[at : at + TOGETHER], out)
            done += TOGETHER
            at = (at + TOGETHER) % DRAWN
        return done / took

    for_seconds()
    print(f"{for_seconds():.0f}")


def contend(which, options, count):
    """One contender, in this process."""
    shape = (count, *ROW)
    drawn = np.fromfile(options.rows, np.int64)
    if which == "deepheap":
        import deepheap

        deepheap.init(ram=options.ram, store=".")
        array = deepheap.empty(shape, "float32")
        fill(array)
        take = lambda rows, out: deepheap.gather(array, rows, out=out)
        measure(take, drawn, options.seconds)
        return
    path = Path("gather_rows.bin")
    try:
        if which == "map":
            import deepheap

            os.environ["DEEPHEAP_MAP_RAM"] = options.ram
            array = deepheap.map(path, "float32", shape, "w+")
            fill(array)
            array.flush()
            array.advise("random")
            measure(lambda rows, out: array.gather(rows, out=out), drawn, options.seconds)
            return
        array = np.memmap(path, "float32", "w+", shape=shape)
        fill(array)
        array.flush()
        # Pages that are mapped would stay, and count for nobody in the cgroup.
        del array
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        array = np.memmap(path, "float32", "r", shape=shape)
        array._mmap.madvise(mmap.MADV_RANDOM)
        with limited(size(options.ram)):
            take = lambda rows, out: np.take(array, rows, axis=0, out=out, mode="clip")
            measure(take, drawn, options.seconds)
    finally:
        path.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("which", nargs="+", choices=CONTENDERS)
    parser.add_argument("--ram", default="256M")
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--draw", choices=["uniform", "zipf"], default="uniform")
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    options = parser.parse_args()
    count = (options.gib << 30) // ROW_BYTES
    if options.rows:
        contend(options.which[0], options, count)
        return
    rows = Path("gather_rows.rows")
    draw(options.draw, count).tofile(rows)
    try:
        found = {which: [] for which in options.which}
        for which in options.which * options.rounds:
            command = [sys.executable, *sys.argv, "--rows", str(rows)]
            command[2 : 2 + len(options.which)] = [which]
            conf = dict(os.environ)
            if which == "c":
                command = [os.environ["GATHER_ROWS_C"], rows, str(count), str(options.seconds)]
                conf["DEEPHEAP_CONF"] = f"ram:{options.ram},store:."
            said = subprocess.run(command, env=conf, check=True, text=True, stdout=subprocess.PIPE)
            found[which].append(float(said.stdout))
            print(f"{which} {options.draw}: {float(said.stdout):,.0f} rows/s", flush=True)
    finally:
        rows.unlink()
    for which, rates in found.items():
        print(f"{which} {options.draw}: median {statistics.median(rates):,.0f} rows/s")


if __name__ == "__main__":
    main()
