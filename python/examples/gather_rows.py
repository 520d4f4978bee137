"""gather_rows.py: how many rows of a large array one thread reads a second, in little RAM.

    python gather_rows.py deepheap [--ram 256M] [--gib 2] [--draw zipf]
    python gather_rows.py map      [--ram 256M] [--gib 2] [--draw zipf]
    python gather_rows.py memmap   [--ram 256M] [--gib 2] [--draw zipf]    (as root: needs a cgroup)

All read the same random rows of 512 random bytes, 4096 rows a call: with deepheap.gather from an
array or from a file (deepheap.map), or by indexing a np.memmap under MADV_RANDOM, in a memory
cgroup (version 1) that has the same RAM for the file beside what Python itself takes. Files and
stores are made in the working folder.
"""

import argparse
import contextlib
import mmap
import os
import time
from pathlib import Path

import numpy as np

ROW_BYTES = 512
TOGETHER = 4096
CGROUP = Path("/sys/fs/cgroup/memory/deepheap-gather-rows")


def size(text):
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]


def draws(kind, count, seed):
    """Calls' worth of row numbers, for ever: uniform, or by Zipf's law (0.99)."""
    rng = np.random.default_rng(seed)
    if kind == "uniform":
        while True:
            yield rng.integers(0, count, TOGETHER)
    shares = np.cumsum(1.0 / np.arange(1, count + 1) ** 0.99)
    places = rng.permutation(count)
    while True:
        yield places[np.searchsorted(shares, rng.random(TOGETHER) * shares[-1])]


def fill(array, seed):
    rng = np.random.default_rng(seed)
    for first in range(0, len(array), 1 << 16):
        part = array[first : first + (1 << 16)]
        part[...] = np.frombuffer(rng.bytes(part.nbytes), "u1").reshape(part.shape)


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


def measure(gather, options, count):
    out = np.empty((TOGETHER, ROW_BYTES), "u1")
    rows = draws(options.draw, count, 2)
    warm_until = time.monotonic() + options.seconds
    while time.monotonic() < warm_until:
        gather(next(rows), out)
    done, start = 0, time.monotonic()
    while (took := time.monotonic() - start) < options.seconds:
        gather(next(rows), out)
        done += TOGETHER
    print(f"{options.which} {options.draw}: {done / took:,.0f} rows/s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("which", choices=["deepheap", "map", "memmap"])
    parser.add_argument("--ram", default="256M")
    parser.add_argument("--gib", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--draw", choices=["uniform", "zipf"], default="uniform")
    options = parser.parse_args()
    count = (options.gib << 30) // ROW_BYTES
    if options.which == "deepheap":
        import deepheap

        deepheap.init(ram=options.ram, store=".")
        array = deepheap.empty((count, ROW_BYTES), "u1")
        fill(array, 1)
        measure(lambda rows, out: deepheap.gather(array, rows, out=out), options, count)
        return
    path = Path("gather_rows.bin")
    try:
        if options.which == "map":
            import deepheap

            os.environ["DEEPHEAP_MAP_RAM"] = options.ram
            array = deepheap.map(path, "u1", (count, ROW_BYTES), "w+")
            fill(array, 1)
            array.flush()
            array.advise("random")
            measure(lambda rows, out: array.gather(rows, out=out), options, count)
            return
        array = np.memmap(path, "u1", "w+", shape=(count, ROW_BYTES))
        fill(array, 1)
        array.flush()
        # Pages that are mapped would stay, and count for nobody in the cgroup.
        del array
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        array = np.memmap(path, "u1", "r", shape=(count, ROW_BYTES))
        array._mmap.madvise(mmap.MADV_RANDOM)
        with limited(size(options.ram)):
            take = lambda rows, out: np.take(array, rows, axis=0, out=out, mode="clip")
            measure(take, options, count)
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
