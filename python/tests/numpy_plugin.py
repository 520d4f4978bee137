"""A plugin of pytest: runs any tests with every array on deepheap, and most of it away.

    cd python/tests
    python -m pytest -p numpy_plugin --pyargs numpy._core.tests.test_multiarray

RAM is 64 MiB (NUMPY_PLUGIN_RAM), the store is in the working folder. `make numpy-check` compares
with a run without it.
"""

import os

import deepheap


def pytest_configure(config):
    deepheap.init(ram=os.environ.get("NUMPY_PLUGIN_RAM", "64M"), store=".")
    allocator = deepheap.numpy_allocator(min_bytes=0)
    allocator.__enter__()
    # More than the budget: from here on memory is managed.
    config.ballast = deepheap.full(32 << 20, 1.5)
    config.allocator = allocator


def pytest_unconfigure(config):
    stats = deepheap.stats()
    assert stats["managing"] and config.ballast.sum() == 1.5 * config.ballast.size
    faults = stats["faults"]["total"]
    print(f"deepheap: {faults} faults, {stats['evictions']['total']} pages evicted")
