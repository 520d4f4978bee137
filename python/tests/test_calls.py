"""Files and sockets work with arrays that are away, without `deepheap run`."""

import sys

import pytest

CALLS = """
    import io, os, socket, threading
    {start}
    array = large()
    total = checksum(array)
    saved = array[:8 * MIB].copy()

    array.tofile("a.bin")
    assert os.path.getsize("a.bin") == array.nbytes
    assert checksum(np.memmap("a.bin", "u8", "r")) == total
    np.save("a.npy", array)
    assert checksum(np.load("a.npy", mmap_mode="r")) == total
    with deepheap.numpy_allocator():
        loaded = np.load("a.npy")
        assert checksum(loaded) == total
        assert checksum(np.fromfile("a.bin", "u8")) == total
    del loaded
    np.savez("a.npz", array[:MIB])
    assert (np.load("a.npz")["arr_0"] == array[:MIB]).all()

    array[:] = 0
    assert checksum(array) == 0
    with open("a.bin", "rb", buffering=0) as file:
        view, done = memoryview(array).cast("B"), 0
        while done < array.nbytes:
            done += file.readinto(view[done:])
    assert checksum(array) == total
    array[:] = 0
    with open("a.bin", "rb") as file:
        assert file.readinto(array) == array.nbytes
    assert checksum(array) == total
    with open("b.bin", "wb", buffering=0) as file:
        view, done = memoryview(array).cast("B"), 0
        while done < array.nbytes:
            done += file.write(view[done:])
    assert checksum(np.memmap("b.bin", "u8", "r")) == total
    file = os.open("b.bin", os.O_RDWR)
    some = memoryview(array[-MIB:]).cast("B")
    assert os.pwrite(file, some, 0) == len(some)
    assert os.preadv(file, [memoryview(array[:MIB]).cast("B")], 0) == len(some)
    assert (array[:MIB] == array[-MIB:]).all()
    os.close(file)

    ours, theirs = socket.socketpair()
    def send():
        ours.sendall(saved_away)
        ours.sendmsg([saved_away[:1000], saved_away[1000:2000]])
        ours.close()
    saved_away = deepheap.from_numpy(saved)
    back = deepheap.zeros(saved.size, "u8")
    assert checksum(array) != 0
    thread = threading.Thread(target=send)
    thread.start()
    view, done = memoryview(back).cast("B"), 0
    while done < back.nbytes:
        done += theirs.recv_into(view[done:])
    rest = bytearray()
    while part := theirs.recv(1 << 16):
        rest += part
    thread.join()
    assert (back == saved).all() and rest == saved[:2000].tobytes()
    stats = deepheap.stats()
    assert stats["system_calls"]["pins"] > 0 and stats["managing"], stats
"""


@pytest.mark.parametrize("how", ["plain", "run"])
def test_bytes_go_to_and_from_files_and_sockets(program, how):
    if how == "plain":
        program(CALLS.format(start="start()"))
    else:
        run = ("-m", "deepheap", "--ram", "64M", "--store", ".")
        program(CALLS.format(start="pass"), prefix=(sys.executable, *run))


def test_modules_that_are_loaded_later_are_wrapped_too(program):
    program("""
        import sys
        start()
        array = large()
        assert "mmap" not in sys.modules and "_socket" not in sys.modules
        import socket
        ours, theirs = socket.socketpair()
        away = memoryview(array[:1000]).cast("B")
        ours.sendall(away)
        ours.close()
        got = b"".join(iter(lambda: theirs.recv(1 << 16), b""))
        assert got == array[:1000].tobytes()
    """)


def test_the_fault_handler_outlives_the_programs_own_handlers(program):
    program("""
        import faulthandler, signal
        start()
        array = large()
        total = checksum(array)
        faulthandler.enable()
        assert checksum(array) == total
        faulthandler.disable()
        assert checksum(array) == total
        signal.signal(signal.SIGBUS, lambda *_: None)
        assert checksum(array) == total
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        assert checksum(array) == total
    """)


def test_pinned_arrays_are_there_for_calls_past_the_wrappers(program):
    program("""
        import ctypes, os
        start()
        array = large()
        libc = ctypes.CDLL("libc.so.6", use_errno=True)
        libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
        file = os.open("c.bin", os.O_RDWR | os.O_CREAT)
        for part in (array[:10_000], array[50_000:51_000], array[3:4]):
            with deepheap.pinned(part):
                assert libc.write(file, part.ctypes.data, part.nbytes) == part.nbytes
            assert os.pread(file, part.nbytes, os.lseek(file, 0, 1) - part.nbytes) == part.tobytes()
        with deepheap.pinned(np.zeros(10)) as ordinary:
            assert not ordinary.any()
    """)
