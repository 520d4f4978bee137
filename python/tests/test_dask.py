"""What a Dask worker would hold keeps its values, more of them than RAM."""

import importlib.util

import pytest


def test_values_come_back_as_they_were(program):
    program("""
        import threading
        from deepheap.dask import HybridBuffer
        start()
        held = HybridBuffer(recent_bytes=8 * MIB)
        wants = [rng.random((MIB // 2,)) for _ in range(3)]
        for index in range(24):  # 96 MiB
            held[f"array {index}"] = {"it": wants[index % 3], "index": index}
        assert deepheap.stats()["heap"]["allocated_bytes"] >= (96 - 8) * MIB
        assert deepheap.stats()["managing"]
        for index in range(24):
            got = held[f"array {index}"]
            assert (got["it"] == wants[index % 3]).all() and got["index"] == index
        assert held["array 23"] is got and held["array 0"] is not got
        held["array 0"] = "another"
        assert held["array 0"] == "another" and len(held) == 24
        lock = threading.Lock()
        odd = {"number": 7, "text": "x", "lock": lock, "none": None, "small": np.arange(3),
               "strided": np.arange(200_000)[::2], "objects": np.array([None, "a"] * 50_000),
               "fortran": np.asfortranarray(rng.random((300, 400))), "empty": np.empty(0)}
        for key, value in odd.items():
            held[key] = value
        assert held["lock"] is lock and held["number"] == 7 and held["none"] is None
        for key in ("small", "strided", "objects", "fortran", "empty"):
            assert (held[key] == odd[key]).all(), key
        assert len(held) == 24 + len(odd) and set(odd) < set(held)
        assert "array 1" in held and "nothing" not in held
        for key in ("nothing", "array 24"):
            try:
                held[key]
            except KeyError:
                continue
            raise AssertionError(key)
        for key in list(held):
            del held[key]
        assert len(held) == 0
        assert deepheap.stats()["heap"]["allocated_bytes"] < MIB
    """)


def test_a_forked_child_reads_what_was_stored(program):
    program("""
        import os
        from deepheap.dask import HybridBuffer
        start()
        held = HybridBuffer(recent_bytes=0)
        want = rng.random((MIB,))
        held["it"] = held["another"] = want
        assert (held["it"] == want).all()
        child = os.fork()
        if child == 0:
            os._exit(0 if (held["another"] == want).all() else 1)
        assert os.waitpid(child, 0)[1] == 0
    """)


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs Dask")
def test_workers_shuffle_more_than_their_budget(program):
    program("""
        from deepheap.dask import HybridBuffer
        if __name__ == "__main__":
            import os
            import dask.array as da
            from distributed import Client, LocalCluster
            os.environ["DEEPHEAP_CONF"] = f"ram:32M,store:{os.getcwd()},store_size:2G"
            data = HybridBuffer, {"recent_bytes": 16 << 20}
            with LocalCluster(2, threads_per_worker=1, data=data, memory_limit=0,
                              dashboard_address=None) as cluster, Client(cluster) as client:
                rows = da.random.default_rng(seed).random((4000, 4000), chunks=(500, 4000))
                rows = rows.persist()  # 128 MB in two workers of 32 MiB
                turned = rows.rechunk((4000, 500)).persist()
                assert abs(float((turned.sum() - rows.sum()).compute())) < 1e-3
                stats = client.run(lambda: __import__("deepheap").stats())
                assert all(one["managing"] for one in stats.values()), stats
    """)
