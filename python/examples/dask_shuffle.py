"""dask_shuffle.py: two Dask workers turn an array that is larger than their memory.

    python dask_shuffle.py deepheap [--gib 3] [--ram 512M]
    python dask_shuffle.py dask     [--gib 3] [--ram 512M]

An array of rows is made, cut anew into columns, and added up; all of it is held by the workers.
With ``deepheap`` what a worker holds has --ram of RAM, seven eighths of it for what was used last
(HybridBuffer), and the rest lies in deepheap; with ``dask`` the worker keeps as much, and spills
the rest to files. Both tell the time, and the most
RAM that the workers' processes had together. Files and stores are made in the working folder.
"""

import argparse
import os
import threading
import time

import dask
import dask.array as da
import psutil
from distributed import Client, LocalCluster

UNITS = {"K": 10, "M": 20, "G": 30}
SIDE = 24


def watch(processes, ends, peak):
    """Notes the most RAM that the processes have together."""
    while not ends.wait(0.05):
        total = sum(one.memory_info().rss for one in processes if one.is_running())
        peak[0] = max(peak[0], total)


def turn(rows):
    """Seconds until rows are made and cut anew into columns, and the sums of both."""
    start = time.monotonic()
    rows = rows.persist()
    before = float(rows.sum().compute())
    columns = rows.rechunk((rows.shape[0], rows.shape[1] // SIDE)).persist()
    after = float(columns.sum().compute())
    assert abs(before - after) < 1e-6 * before, (before, after)
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("which", choices=["deepheap", "dask"])
    parser.add_argument("--gib", type=float, default=3)
    parser.add_argument("--ram", default="512M")
    options = parser.parse_args()
    ram = int(options.ram[:-1]) << UNITS[options.ram[-1]]
    if options.which == "deepheap":
        from deepheap.dask import HybridBuffer

        os.environ["DEEPHEAP_CONF"] = f"ram:{ram // 8},store:{os.getcwd()}"
        data = (HybridBuffer, {"recent_bytes": ram - ram // 8})
        how = {"data": data, "memory_limit": 0}
    else:
        # A worker keeps 60 % of its limit; what its process takes beside that must not pause it.
        how = {"memory_limit": int(ram / 0.6)}
        dask.config.set(
            {"distributed.worker.memory.spill": False, "distributed.worker.memory.pause": False}
        )
        dask.config.set({"distributed.worker.memory.terminate": False})
    # Through what the workers hold, rather than by files of the shuffle's own.
    dask.config.set({"array.rechunk.method": "tasks", "temporary-directory": os.getcwd()})
    side = int((options.gib * (1 << 30) / 8) ** 0.5) // SIDE * SIDE
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None, **how) as cluster:
        with Client(cluster) as client:
            pids = client.run(os.getpid).values()
            processes = [psutil.Process(pid) for pid in pids]
            ends, peak = threading.Event(), [0]
            watcher = threading.Thread(target=watch, args=(processes, ends, peak))
            watcher.start()
            rng = da.random.default_rng(1)
            took = turn(rng.random((side, side), chunks=(side // SIDE, side)))
            ends.set()
            watcher.join()
    print(f"{options.which}: {took:.1f} s, at most {peak[0] >> 20} MiB in the workers")


if __name__ == "__main__":
    main()
