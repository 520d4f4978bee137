"""gather, scatter and prefetch do what indexing does."""


def test_gather_and_scatter_are_array_indexing(program):
    program("""
        start()
        want = rng.integers(0, 1 << 32, (MIB // 4, 64), "u8")  # 128 MiB
        array = deepheap.from_numpy(want)
        for shape in [(), (1,), (1000,), (30, 40), (0,), (100_000,)]:
            rows = rng.integers(-len(want), len(want), shape)
            got = deepheap.gather(array, rows)
            assert got.shape == rows.shape + (64,) and (got == want[rows]).all()
        out = np.empty((3, 64), "u8")
        assert deepheap.gather(array, [5, -1, 5], out=out) is out
        assert (out == want[[5, -1, 5]]).all()

        rows = rng.permutation(len(want))[:50_000]
        values = rng.integers(0, 1 << 32, (50_000, 64), "u8")
        deepheap.scatter(array, rows, values)
        want[rows] = values
        deepheap.scatter(array, [1, 2], 9)
        want[[1, 2]] = 9
        deepheap.scatter(array, rows[:10], np.arange(64.0))
        want[rows[:10]] = np.arange(64)
        for first in range(0, len(want), 4096):
            assert (array[first:first + 4096] == want[first:first + 4096]).all()
    """)


def test_views_steps_and_small_rows_gather_too(program):
    program("""
        start()
        big = large(64)  # something to be pushed out by
        for dtype in ["u1", "f4", "c16", "M8[s]", "S7", [("a", "i4"), ("b", "f8")]]:
            base = rng.integers(0, 255, 40_000, "u1")
            want = base.repeat(np.dtype(dtype).itemsize).view(dtype)
            array = deepheap.from_numpy(want)
            checksum(big)
            rows = rng.integers(0, 40_000, 5000)
            assert (deepheap.gather(array, rows) == want[rows]).all()
            assert (deepheap.gather(array[::-1], rows) == want[::-1][rows]).all()
            assert (deepheap.gather(array[::3], rows % 1000) == want[::3][rows % 1000]).all()
        cube = deepheap.from_numpy(rng.random((500, 30, 40)))
        assert (deepheap.gather(cube, [499, 0]) == cube[[499, 0]]).all()
        assert (deepheap.gather(cube[:, 3:5], [7, 9]) == cube[:, 3:5][[7, 9]]).all()
        part = deepheap.zeros((100, 8))
        deepheap.scatter(part[::2], [0, 49], 1.5)
        assert part.sum() == 24 and (part[98] == 1.5).all()
    """)


def test_what_does_not_fit_is_refused_with_a_sentence(program):
    program("""
        start()
        array = deepheap.zeros((10, 8))
        def refused(kind, words, call, *arguments, **more):
            try:
                call(*arguments, **more)
            except kind as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)
        gather, scatter, prefetch = deepheap.gather, deepheap.scatter, deepheap.prefetch
        for call in (gather, prefetch):
            refused(IndexError, "row 10 is out of bounds for 10 rows", call, array, [0, 10])
            refused(IndexError, "row -11 is out of bounds", call, array, [-11])
            refused(IndexError, "integers", call, array, [0.5])
            refused(ValueError, "not contiguous", call, array[:, ::2], [0])
        refused(IndexError, "row 10", scatter, array, [10], 1)
        refused(ValueError, "shape", gather, array, [1], out=np.zeros((2, 8)))
        refused(ValueError, "type", gather, array, [1], out=np.zeros((1, 8), "f4"))
        refused(ValueError, "contiguous", gather, array, [1], out=np.zeros((1, 16))[:, ::2])
        refused(ValueError, "broadcast", scatter, array, [1], np.zeros(7))
        refused(TypeError, "Python objects", gather, np.array([None]), [0])
        refused(TypeError, "ndarray", gather, [1, 2], [0])
        array.flags.writeable = False
        refused(ValueError, "read-only", scatter, array, [1], 1)
        assert not gather(array, [1]).any()
    """)


def test_ordinary_arrays_are_copied_as_numpy_does(program):
    program("""
        start()
        array = rng.random((1000, 3))
        rows = rng.integers(-1000, 1000, (5, 6))
        assert (deepheap.gather(array, rows) == array[rows]).all()
        want = array.copy()
        want[[3, -1]] = 2
        deepheap.scatter(array, [3, -1], 2)
        assert (array == want).all()
        assert deepheap.prefetch(array, [1, 2]) == 0
    """)


def test_prefetch_starts_what_is_away_and_changes_nothing(program):
    program("""
        start()
        array = large().reshape(-1, 1024)  # rows of two pages
        total = checksum(array)
        checksum(array)
        assert deepheap.prefetch(array, []) == 0
        started = deepheap.prefetch(array, [0, 1, 2])
        assert 0 <= started <= 6, started
        started = deepheap.prefetch(array, np.arange(0, len(array), 64))
        assert started > 0
        assert checksum(array) == total
    """)


def test_other_threads_go_on_while_rows_are_gathered(program):
    program("""
        import threading
        start()
        array = large().reshape(-1, 64)
        count, stop = [0], threading.Event()
        def tick():
            while not stop.is_set():
                count[0] += 1
        thread = threading.Thread(target=tick)
        thread.start()
        before = count[0]
        got = deepheap.gather(array, rng.integers(0, len(array), 60_000))
        went_on = count[0] - before
        stop.set(), thread.join()
        assert got.shape == (60_000, 64) and went_on > 0
    """)
