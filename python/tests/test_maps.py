"""Arrays that are files: as numpy.memmap, within a budget, and with rows that are gathered."""

LARGE = {"DEEPHEAP_MAP_RAM": "4M"}


def test_a_file_larger_than_its_budget_is_an_array(program):
    program(
        """
        from pathlib import Path
        shape = (6000, 1024)  # 24 MiB
        want = rng.integers(0, 1 << 32, shape, "u4")
        array = deepheap.map("numbers", "u4", shape, "w+")
        assert isinstance(array, np.memmap) and array.mode == "w+" and not array[5].any()
        for first in range(0, 6000, 500):
            array[first:first + 500] = want[first:first + 500]
        array[7].flush()
        array.flush()
        assert (np.fromfile("numbers", "u4").reshape(shape) == want).all()
        # Most of it is not in RAM when libc gets it.
        array.tofile("copy")
        assert (np.fromfile("copy", "u4").reshape(shape) == want).all()
        rows = rng.integers(-6000, 6000, 3000)
        assert (array.gather(rows) == want[rows]).all()
        assert (deepheap.gather(array[:, 100:200], rows) == want[rows, 100:200]).all()
        array.advise("random")
        rows = rng.permutation(6000)[:2000]
        values = rng.integers(0, 1 << 32, (2000, 1024), "u4")
        array.scatter(rows, values)
        want[rows] = values
        assert array.prefetch([1, 2, 3]) >= 0
        assert array.sum(dtype="u8") == want.sum(dtype="u8")
        inside = array[17:19]
        del array
        # A view keeps it, and its end brings everything to the file.
        assert (inside == want[17:19]).all() and inside.filename.endswith("numbers")
        inside.flush()
        del inside
        assert (np.fromfile("numbers", "u4").reshape(shape) == want).all()
        again = deepheap.map("numbers", "u4", (5999, 1024), "r", offset=4096)
        assert (again == want[1:]).all() and not again.flags.writeable
        assert type(again[1]) is deepheap.Map and again[1].filename == again.filename
        assert type(again + 1) is type(again[[1, 2]]) is np.ndarray
        assert type(again.max()) is np.uint32 and type(again[1, 1]) is np.uint32
        whole = deepheap.map(Path("numbers"), "u4", mode="r")
        assert whole.shape == (6000 * 1024,)
        """,
        settings=LARGE,
    )


def test_processes_see_one_anothers_stores(program, tmp_path):
    program(
        """
        import subprocess, sys
        array = deepheap.map("shared", "i8", 1_000_000, "w+")
        other = '''if True:
            import deepheap
            array = deepheap.map("shared", "i8", 1_000_000)
            array[::1000] += 5
            assert array[1] == 7
        '''
        array[1] = 7
        subprocess.run([sys.executable, "-c", other], check=True)
        assert array.sum() == 5007
        """,
        settings=LARGE,
    )


def test_what_cannot_be_mapped_is_refused_with_a_sentence(program):
    program(
        """
        from pathlib import Path
        Path("ten").write_bytes(bytes(10))
        Path("empty").write_bytes(b"")
        def refused(kind, words, *arguments, **more):
            try:
                deepheap.map(*arguments, **more)
            except kind as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)
        refused(FileNotFoundError, "none", "none", "u1", 5)
        refused(ValueError, "no whole number", "ten", "f8")
        refused(ValueError, "has 10 bytes, and 80 are wanted", "ten", "f8", 10, "r")
        refused(ValueError, "needs a shape", "new", mode="w+")
        refused(ValueError, "private maps", "ten", mode="c")
        refused(ValueError, "'r', 'r+' or 'w+'", "ten", mode="a")
        refused(ValueError, "empty", "empty")
        refused(TypeError, "Python objects", "ten", object)
        assert not Path("new").exists()
        longer = deepheap.map("ten", "u1", 4096, "r+")
        assert Path("ten").stat().st_size == 4096 and not longer.any()
        """,
        settings=LARGE,
    )
