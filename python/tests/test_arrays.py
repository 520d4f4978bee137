"""Arrays larger than the budget behave as NumPy's do."""

import sys


def test_an_array_larger_than_the_budget_keeps_every_word(program):
    program("""
        start()
        array = large()
        want = np.random.default_rng(seed).integers(0, 1 << 63, MIB, "u8")
        assert (array[:MIB] == want).all()
        stats = deepheap.stats()
        assert stats["managing"] and stats["memory"]["budget_bytes"] == 32 * MIB, stats
        assert stats["device"]["write_bytes"] > 50 * MIB, stats
    """)


def test_views_slices_and_copies_are_ordinary(program):
    program("""
        start()
        a = deepheap.from_numpy(np.arange(24.0).reshape(4, 6))
        assert type(a) is np.ndarray and a.flags.owndata
        assert (a[1:, ::2] == np.arange(24.0).reshape(4, 6)[1:, ::2]).all()
        a[2] = -1
        b = a[2:].copy()
        a[2] = 5
        assert (b[0] == -1).all() and b.sum() == -6 + sum(range(18, 24))
        assert (a.T @ a).shape == (6, 6)
        c = deepheap.zeros((3, 4), "i4", order="F")
        assert c.flags.f_contiguous and not c.any()
        assert (deepheap.full((2, 3), 7) == 7).all() and deepheap.full(3, 7).dtype == int
        assert deepheap.empty(()).shape == () and deepheap.empty((0, 4)).size == 0
        f = deepheap.from_numpy(np.asfortranarray(np.eye(3)))
        assert f.flags.f_contiguous and (f == np.eye(3)).all()
        a.resize((8, 6), refcheck=False)
        assert (a[4:] == 0).all() and (a[3] == np.arange(18, 24)).all()
        objects = deepheap.full(3, None, object)
        assert objects.tolist() == [None] * 3
    """)


def test_memory_comes_back_when_the_last_view_goes(program):
    program("""
        start()
        array = large(64)
        view = array[10:20]
        assert deepheap.stats()["heap"]["allocated_bytes"] >= 64 * MIB
        del array
        assert deepheap.stats()["heap"]["allocated_bytes"] >= 64 * MIB
        del view
        assert deepheap.stats()["heap"]["allocated_bytes"] < MIB
        for _ in range(8):
            large(64)
        assert deepheap.stats()["heap"]["allocated_bytes"] < MIB
    """)


def test_the_allocator_takes_large_arrays_only_inside_of_its_with(program):
    program("""
        import threading
        try:
            from numpy._core.multiarray import get_handler_name as name_of_handler
        except ImportError:
            from numpy.core.multiarray import get_handler_name as name_of_handler
        start()
        used = lambda: deepheap.stats()["heap"]["allocated_bytes"]
        allocator = deepheap.numpy_allocator(min_bytes=MIB)
        before = np.ones(2 * MIB)
        with allocator:
            small = np.ones(100)
            assert used() < MIB
            large = np.ones(2 * MIB)
            assert used() >= 16 * MIB
            with deepheap.numpy_allocator(0), allocator:
                assert name_of_handler() == "deepheap"
            other = []
            thread = threading.Thread(target=lambda: other.append(np.ones(2 * MIB)))
            thread.start(), thread.join()
            assert used() < 32 * MIB, "another thread has its own context"
            grown = np.fromiter(range(300_000), "u8")
            assert (grown == np.arange(300_000)).all()
        assert name_of_handler() == "default_allocator"
        after = np.ones(2 * MIB)
        assert used() < 32 * MIB
        large.resize(4 * MIB, refcheck=False)
        assert large[:2 * MIB].all() and not large[2 * MIB:].any()
        del large, grown
        assert used() < MIB
        before.resize(3 * MIB, refcheck=False)
    """)


def test_threads_fault_side_by_side(program):
    program("""
        import threading
        start()
        array = large()
        total = checksum(array)
        parts = np.array_split(array, 8)
        sums = [0] * 8
        def add(index):
            sums[index] = checksum(parts[index])
        for _ in range(2):
            threads = [threading.Thread(target=add, args=(i,)) for i in range(8)]
            [t.start() for t in threads], [t.join() for t in threads]
            assert sum(sums) % (1 << 64) == total
    """)


def test_pickles_are_ordinary(program):
    program("""
        import copy, pickle
        start()
        a = deepheap.from_numpy(rng.random((100, 7)))
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            b = pickle.loads(pickle.dumps(a, protocol))
            assert (a == b).all()
        buffers = []
        data = pickle.dumps(a, 5, buffer_callback=buffers.append)
        assert (pickle.loads(data, buffers=buffers) == a).all()
        assert (copy.deepcopy(a) == a).all()
    """)


def test_children_of_fork_and_spawn_see_what_they_should(program):
    program("""
        import multiprocessing, os
        def child(pipe, array, total):
            assert checksum(array) == total
            array[:] = 7
            assert checksum(array) == 7 * array.size
            pipe.send(os.getpid())
        if __name__ == "__main__":
            start()
            array = large()
            total = checksum(array)
            for how, part in [("fork", array), ("spawn", array[:MIB])]:
                context = multiprocessing.get_context(how)
                ours, theirs = context.Pipe()
                process = context.Process(target=child, args=(theirs, part, checksum(part)))
                process.start()
                # A child that dies leaves no answer.
                process.join(200)
                assert process.exitcode == 0, (how, process.exitcode)
                assert ours.recv() == process.pid
                assert checksum(array) == total
    """)


def test_a_process_pool_takes_parts_and_gives_results(program):
    program("""
        import concurrent.futures, multiprocessing
        def double(part):
            return part * 2
        if __name__ == "__main__":
            start()
            array = large(64)
            context = multiprocessing.get_context("fork")
            with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
                parts = list(pool.map(double, np.array_split(array, 8)))
            for part, doubled in zip(np.array_split(array, 8), parts):
                assert (part * 2 == doubled).all()
    """)


def test_errors_are_exceptions_with_the_sentences_of_deepheap(program):
    program("""
        import os
        for settings, words in [
            (dict(ram="nonsense"), "ram"),
            (dict(ram="1K"), "at least 16.0 MiB"),
            (dict(bogus=1), "bogus"),
            (dict(store="/nowhere/at/all"), "/nowhere/at/all"),
        ]:
            try:
                deepheap.init(**settings)
            except deepheap.Error as error:
                assert words in str(error) and error.code < 0, (settings, error)
            else:
                raise AssertionError(settings)
        os.mkdir("a, folder")
        assert deepheap.init(ram=32 * MIB, store=os.path.abspath("a, folder"), store_size="64M")
        assert deepheap.stats()["memory"]["budget_bytes"] in (0, 32 * MIB)
        assert deepheap.init(ram=32 * MIB, store=os.path.abspath("a, folder"), store_size="64M")
        assert deepheap.Error.__module__ == "deepheap"
        try:
            deepheap.init()
        except deepheap.Error as error:
            assert "started already" in str(error)
        else:
            raise AssertionError
        try:
            deepheap.empty(1 << 40, "u1").fill(1)
        except MemoryError as error:
            assert "Unable to allocate" in str(error)
        else:
            raise AssertionError
        try:
            with deepheap.pinned(deepheap.zeros(64 * MIB, "u1")):
                raise AssertionError
        except deepheap.Error as error:
            assert "memory" in str(error)
    """)


def test_a_process_under_deepheap_run_keeps_its_settings(program):
    prefix = (sys.executable, "-m", "deepheap", "--ram", "48M", "--store=.")
    program(
        """
        import sys
        assert deepheap.init(ram="32M", store="/nowhere") is False
        assert deepheap.stats()["memory"]["budget_bytes"] == 48 * MIB
        ordinary = np.ones(16 * MIB)
        assert deepheap.stats()["managing"]
        assert ordinary.sum() == 16 * MIB
        assert (deepheap.gather(ordinary.reshape(-1, 64), [0, 1]) == 1).all()
        assert sys.argv[1:] == ["--its", "own"], sys.argv
        """,
        "--its",
        "own",
        prefix=prefix,
    )
