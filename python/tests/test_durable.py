"""Named arrays are there again: in another process, after an end by SIGKILL."""

MAKE = """
    start()
    heap = deepheap.open("heap.dh", ram="16M", size="1G")
    assert len(heap) == 0 and list(heap) == [] and heap.get("none") is None
    vectors = heap["vectors"] = heap.zeros((100_000, 64), "f8")  # 51 MB
    for first in range(0, 100_000, 10_000):
        vectors[first:first + 10_000] = np.arange(first, first + 10_000)[:, None]
    heap["copied"] = np.arange(12).reshape(3, 4)
    heap["fortran"] = heap.from_numpy(np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    heap["part"] = vectors[10:20]
    heap["same"] = heap["copied"]
    heap["times"] = np.array(["2026-11-24"], "M8[s]")
    record = np.array([(1, 2.5, b"x")], [("a", "i4"), ("b", "f8"), ("c", "S3")])
    heap["record"] = record
    heap["text"] = np.array(["hello", "world"])
    heap["scalar"] = np.float32(3)
    heap["empty"] = np.zeros((0, 5), "i2")
    heap["a name with: signs, \\\\ and \\u00e4"] = np.ones(2)
    unnamed = heap.full(1_000_000, 1.0)
    made = heap.checkpoint()
    assert made.number > 1 and made.objects > 0 and made.time_ns >= made.pause_ns > 0, made
    vectors[0] = -1  # after the checkpoint
"""

LOOK = """
    start()
    before = deepheap.stats()
    with deepheap.open("heap.dh", ram="16M") as heap:
        vectors = heap["vectors"]
        first = {first}
        assert vectors.shape == (100_000, 64) and vectors.dtype == np.float64
        assert (vectors[0] == first).all(), vectors[0]
        assert (deepheap.gather(vectors, [99_999, 7])[:, 0] == [99_999, 7]).all()
        assert (vectors[1:, 5] == np.arange(1, 100_000)).all()
        assert (heap["copied"] == np.arange(12).reshape(3, 4)).all()
        assert heap["fortran"].flags.f_contiguous
        assert (heap["fortran"] == np.arange(6).reshape(2, 3)).all()
        assert (heap["part"][:, 0] == np.arange(10, 20)).all()
        heap["part"][0] = 77
        assert (vectors[10] == 77).all(), "the same memory, as it was"
        heap["part"][0] = 10
        heap["same"][0, 0] = 5
        assert heap["copied"][0, 0] == 5
        heap["same"][0, 0] = 0
        assert heap["times"][0] == np.datetime64("2026-11-24")
        assert heap["record"]["b"] == 2.5 and heap["record"]["c"] == b"x"
        assert heap["text"].tolist() == ["hello", "world"]
        assert heap["scalar"] == 3 and heap["scalar"].shape == ()
        assert heap["empty"].shape == (0, 5)
        assert "a name with: signs, \\\\ and \\u00e4" in heap and len(heap) == 11
        {more}
"""


def test_named_arrays_are_there_in_another_process(program):
    program(MAKE + "    heap.close()\n    assert heap.closed and vectors[0, 0] == -1\n")
    # Closing is a checkpoint; the last array to go makes another.
    program(LOOK.format(first="-1", more="vectors[0] = -1"))


def test_after_sigkill_the_last_checkpoint_is_there(program):
    program(MAKE + "    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)\n", status=-9)
    # What had no name is free: with it the heap would have no room for this.
    program(LOOK.format(first="0", more="pass"))
    program("""
        start()
        with deepheap.open("heap.dh", ram="16M") as heap:
            for name in list(heap):
                del heap[name]
            assert len(heap) == 0
    """)
    program("""
        start()
        with deepheap.open("heap.dh", ram="16M") as heap:
            for _ in range(60):  # 1.8 GB in all, of 1 GiB
                heap["again"] = heap.full(30 * MIB // 8, 2.0)
            assert (heap["again"] == 2).all()
    """)


def test_memory_without_a_name_is_free_when_its_arrays_go(program):
    program("""
        start()
        heap = deepheap.open("heap.dh", ram="16M", size="512M")
        for _ in range(20):  # 1.6 GB in all, of 512 MiB
            array = heap.full(80 * MIB, 1, "u1")
            view = array[5:]
            del array
            assert view[0] == 1
            del view
        heap["kept"] = heap.full(80 * MIB, 3, "u1")
        kept = heap["kept"]
        del heap["kept"]
        assert kept.sum() == 240 * MIB
        try:
            heap.empty(600 * MIB, "u1")
        except MemoryError as error:
            assert "heap.dh" in str(error)
        else:
            raise AssertionError
        del kept
        heap["kept"] = heap.full(120 * MIB, 4, "u1")
        heap.close()
    """)


def test_closing_leaves_arrays_that_are_in_use(program):
    program("""
        start("64M")
        with deepheap.open("heap.dh", ram="16M", size="1G") as heap:
            array = heap["array"] = heap.zeros(1000)
            array[1] = 1
        assert heap.closed and array[1] == 1
        for call in (heap.checkpoint, lambda: heap["array"], lambda: heap.zeros(1)):
            try:
                call()
            except ValueError as error:
                assert "closed" in str(error)
            else:
                raise AssertionError
        try:
            deepheap.open("heap.dh", ram="16M")
        except deepheap.Error as error:
            assert "heap.dh" in str(error), error
        else:
            raise AssertionError("it is open still")
        array[2] = 2
        del array
        heap.close()
        with deepheap.open("heap.dh", ram="16M") as heap:
            assert heap["array"][:3].tolist() == [0, 1, 2]
    """)


def test_what_cannot_be_kept_is_refused(program):
    program("""
        import os
        start("64M")
        heap = deepheap.open("heap.dh", ram="16M", size="1G")
        def refused(kind, words, call):
            try:
                call()
            except kind as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)
        refused(TypeError, "Python objects", lambda: heap.empty(3, object))
        refused(TypeError, "Python objects", lambda: heap.update(x=np.array([None])))
        refused(TypeError, "a text", lambda: heap.__setitem__(3, np.zeros(1)))
        refused(KeyError, "none", lambda: heap["none"])
        refused(KeyError, "none", lambda: heap.pop("none"))
        refused(deepheap.Error, "bogus", lambda: deepheap.open("other.dh", bogus=1))
        refused(deepheap.Error, "nowhere", lambda: deepheap.open("/nowhere/at/all.dh"))
        open("text.dh", "w").write("this is no heap" * 10_000)
        refused(deepheap.Error, "text.dh", lambda: deepheap.open("text.dh"))
        heap["x"] = np.ones(3)
        child = os.fork()
        if child == 0:
            try:
                heap["x"]
            except deepheap.Error as error:
                os._exit(0 if "forked child" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert heap["x"].sum() == 3
        heap.close(), heap.close()
    """)


def test_threads_use_a_heap_together(program):
    program("""
        import threading
        start()
        heap = deepheap.open("heap.dh", ram="16M", size="1G")
        failed = []
        def work(number):
            try:
                for turn in range(30):
                    name = f"{number} {turn % 3}"
                    heap[name] = heap.full(50_000, number * 100 + turn)
                    assert (heap[name] == number * 100 + turn).all()
                    if turn % 10 == number:
                        heap.checkpoint()
            except BaseException as error:
                failed.append(error)
                raise
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [t.start() for t in threads], [t.join() for t in threads]
        assert not failed and len(heap) == 12
        heap.close()
        with deepheap.open("heap.dh", ram="16M") as heap:
            for number in range(4):
                found = [heap[f"{number} {i}"][0] for i in range(3)]
                assert found == [number * 100 + 27 + i for i in range(3)]
    """)


def test_inspect_shows_the_names_of_arrays(program):
    program("""
        import os, subprocess
        start()
        def shown():
            heap.checkpoint()
            command = os.path.join(os.path.dirname(deepheap.__file__), "_lib", "deepheap")
            done = subprocess.run([command, "inspect", "heap.dh"], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            roots = [line.split(None, 2) for line in done.stdout.splitlines() if " root " in line]
            return {name: int(place, 16) for _, place, name in roots if name != "deepheap.python"}
        long = "n" * 60
        with deepheap.open("heap.dh", ram="16M", size="1G") as heap:
            array = heap["all rows"] = heap.zeros(1000)
            heap["some"] = array[10:]
            heap[long] = np.ones(1)
            begin = array.__array_interface__["data"][0]
            assert shown() == {"python:all rows": begin, "python:some": begin + 80}, shown()
            heap["all rows"] = heap.zeros(7)
            del heap["some"], array
        with deepheap.open("heap.dh", ram="16M") as heap:
            place = heap["all rows"].__array_interface__["data"][0]
            assert shown() == {"python:all rows": place} and place != begin
            del heap["all rows"]
            assert shown() == {} and list(heap) == [long]
    """)


def test_files_take_arrays_of_a_durable_heap(program):
    program("""
        start()
        with deepheap.open("heap.dh", ram="16M", size="1G") as heap:
            array = heap["array"] = heap.empty(8 * MIB, "u8")  # 64 MiB
            array[:] = rng.integers(0, 1 << 63, 8 * MIB, "u8")
            total = checksum(array)
            array.tofile("a.bin")
            assert checksum(np.memmap("a.bin", "u8", "r")) == total
            array[:] = 0
            with open("a.bin", "rb") as file:
                assert file.readinto(array) == array.nbytes
            assert checksum(array) == total
            heap.checkpoint()
    """)


def test_a_heap_that_makes_checkpoints_by_itself_is_whole_at_each(program):
    program(
        """
        import os, signal, threading, time
        start()
        heap = deepheap.open("heap.dh", ram="16M", size="1G", checkpoint="50ms")
        threading.Timer(3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        turn = 0
        while True:
            turn += 1
            heap[f"array {turn % 5}"] = heap.full(10_000 + turn % 7, turn)
            unnamed = heap.full(20_000, -1)
            if turn % 11 == 0:
                del heap["array 1"]
        """,
        status=-9,
    )
    program("""
        start()
        with deepheap.open("heap.dh", ram="16M") as heap:
            assert 3 <= len(heap) <= 5, list(heap)
            for name, array in heap.items():
                turn = int(array[0])
                assert (array == turn).all() and len(array) == 10_000 + turn % 7
                assert name == f"array {turn % 5}"
                heap[name] = heap.full(30_000, 1.0)
    """)
