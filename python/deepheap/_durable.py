"""Durable heaps: named arrays in a file, which are there again in the next process.

A heap holds a catalogue of its arrays: a text at the root ``deepheap.python``. It is written anew
before each checkpoint that this module makes, so that what a checkpoint holds belongs together.
Where the library makes checkpoints by itself (``checkpoint="10s"``), it is written at each change,
and before a block that it tells of is freed. Memory of arrays that have no name is named there,
too: the next process frees it.

Each named array has a root, too, ``python:NAME``, for ``deepheap inspect``. Nothing here reads it:
a name that is too long for a root is not shown.

A block, the memory of an array, lives as long as it has a name or an array in this process. Arrays
may be dropped at any moment, even inside of this module, so a block only notes that it is gone; the
next call frees it.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import json
import os
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, MutableMapping
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._arrays import Order, Shape, extent
from ._library import Error, library, settings_text

ROOT = b"deepheap.python"
SHOWN = "python:"
FORMAT = 1
#: Arrays begin at a multiple of so many bytes.
ALIGNMENT = 64


class Checkpoint(NamedTuple):
    """The cost of a checkpoint: its number, times in nanoseconds, objects and bytes written."""

    number: int
    pause_ns: int
    time_ns: int
    objects: int
    table_bytes: int


class _Block:
    """Memory of a heap that arrays of this process use. It is their ``base`` in the end."""

    def __init__(self, heap: Heap, address: int, nbytes: int) -> None:
        self.heap = heap
        self.address = address
        self.nbytes = nbytes
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
        }

    def __del__(self) -> None:
        self.heap._drop(self.address)


class _Entry(NamedTuple):
    """A named array: its block, and how the array lies in it."""

    block: int
    nbytes: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    order: Order


class Heap(MutableMapping[str, npt.NDArray[Any]]):
    """A durable heap: a mapping from names to arrays, made by ``deepheap.open``.

    >>> with deepheap.open("index.dh", ram="1G") as heap:
    ...     if "vectors" not in heap:
    ...         heap["vectors"] = heap.zeros((1_000_000, 128), "float32")
    ...     heap["vectors"][7] = 1.0
    ...     heap.checkpoint()

    An assignment names an array of this heap where it is, and copies any other array in. A named
    array is there in the next process, as of the last checkpoint; an array without a name is freed
    when its last view goes. All arrays of numbers, texts and records will do, not those of Python
    objects.

    Threads may use a heap together. A forked child does not have it: its arrays must not be touched
    there.
    """

    _handle: int | None = None

    def __init__(self, path: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self.path = os.fspath(path)
        self._lock = threading.Lock()
        self._is_timed = options.get("checkpoint") is not None
        self._calls = library()
        self._process = os.getpid()
        self._dropped: deque[int] = deque()
        self._blocks: weakref.WeakValueDictionary[int, _Block] = weakref.WeakValueDictionary()
        self._used: dict[int, int] = {}  # arrays' blocks and how many objects use each
        self._allocated: set[int] = set()
        self._entries: dict[str, _Entry] = {}
        self._shown: dict[bytes, int] = {}  # roots of arrays, and where they lead
        self._catalogue = 0
        self._changed = False
        self._closing = False
        given = settings_text(options)
        handle = self._calls.open(os.fsencode(self.path), given or None)
        if not handle:
            raise Error(f"{self.path}: {self._calls.file_error()}")
        self._handle = handle
        self._read_catalogue()

    # The catalogue.

    def _read_catalogue(self) -> None:
        address = self._calls.root(self._handle, ROOT)
        if not address:
            return
        length = ctypes.c_uint64.from_address(address).value
        catalogue = json.loads(ctypes.string_at(address + 8, length))
        if catalogue["format"] != FORMAT:
            raise Error(
                f"the arrays of {self.path!r} were written by another version of this package; "
                "open it with that one"
            )
        self._catalogue = address
        unnamed = catalogue["unnamed"]
        for name, (block, nbytes, offset, dtype, shape, order) in catalogue["arrays"].items():
            self._entries[name] = _Entry(block, nbytes, offset, dtype, tuple(shape), order)
            self._allocated.add(block)
        # Files of an earlier version have none.
        roots = {root: self._calls.root(self._handle, root) for root in self._places()}
        self._shown = {root: place for root, place in roots.items() if place}
        self._changed = bool(unnamed)
        if unnamed and self._is_timed:
            self._write_catalogue()
        for address in unnamed:
            self._calls.free(address)

    def _write_catalogue(self) -> None:
        named = {entry.block for entry in self._entries.values()}
        unnamed = sorted(self._allocated - named)
        text = json.dumps({"format": FORMAT, "arrays": self._entries, "unnamed": unnamed}).encode()
        address = self._allocate(8 + len(text))
        ctypes.c_uint64.from_address(address).value = len(text)
        ctypes.memmove(address + 8, text, len(text))
        code = self._calls.set_root(self._handle, ROOT, address)
        if code != 0:
            self._calls.free(address)
            raise self._calls.file_error(code)
        self._show()
        before, self._catalogue = self._catalogue, address
        if before:
            self._calls.free(before)
        self._changed = False

    def _places(self) -> dict[bytes, int]:
        return {
            (SHOWN + name).encode(errors="replace"): entry.block + entry.offset
            for name, entry in self._entries.items()
        }

    def _show(self) -> None:
        places = self._places()
        for root in self._shown.keys() - places.keys():
            self._calls.set_root(self._handle, root, None)
        for root, place in places.items():
            if self._shown.get(root) != place:
                self._calls.set_root(self._handle, root, place)
        self._shown = places

    # Blocks.

    def _allocate(self, nbytes: int) -> int:
        address: int | None = self._calls.heap_aligned(self._handle, ALIGNMENT, max(nbytes, 1))
        if not address:
            raise MemoryError(
                f"{nbytes} bytes do not fit into {self.path!r}: neither its RAM nor its file "
                "has room"
            )
        return address

    def _block(self, address: int, nbytes: int) -> _Block:
        block = self._blocks.get(address)
        if block is None:
            block = _Block(self, address, nbytes)
            self._blocks[address] = block
            self._used[address] = self._used.get(address, 0) + 1
        return block

    def _drop(self, address: int) -> None:
        """A block object is gone. Anywhere, in any thread: it waits for nothing."""
        self._dropped.append(address)
        if self._lock.acquire(blocking=False):
            try:
                self._free_dropped()
            finally:
                self._lock.release()

    def _free_dropped(self) -> None:
        while self._dropped:
            address = self._dropped.popleft()
            self._used[address] -= 1
            if self._used[address] == 0:
                del self._used[address]
                self._free_unless_used(address)
        if self._closing and not self._used:
            self._end()

    def _free_unless_used(self, address: int) -> None:
        is_named = any(entry.block == address for entry in self._entries.values())
        if address not in self._used and not is_named and self._is_here():
            self._allocated.discard(address)
            self._changed = True
            if self._is_timed:
                self._write_catalogue()
            self._calls.free(address)

    def _is_here(self) -> bool:
        return self._handle is not None and self._process == os.getpid()

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        """Holds the lock, if the heap may be used."""
        if self._process != os.getpid():
            # Not even the lock: a thread that the child does not have may have held it.
            raise Error(f"a forked child does not have the heap {self.path!r}")
        with self._lock:
            if self.closed:
                raise ValueError(f"the heap {self.path!r} is closed")
            self._free_dropped()
            yield
            if self._is_timed and self._changed:
                self._write_catalogue()

    # Arrays.

    def empty(
        self, shape: Shape, dtype: npt.DTypeLike = float, order: Order = "C"
    ) -> npt.NDArray[Any]:
        """As ``numpy.empty``, in this heap. ``MemoryError`` if it has no room."""
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise TypeError("Python objects cannot be kept in a durable heap")
        dimensions = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        nbytes = kind.itemsize
        for length in dimensions:
            if length < 0:
                raise ValueError("negative dimensions are not allowed")
            nbytes *= int(length)
        with self._entered():
            address = self._allocate(nbytes)
            self._allocated.add(address)
            self._changed = True
            block = self._block(address, nbytes)
        return np.ndarray(dimensions, kind, buffer=np.asarray(block), order=order)

    def zeros(
        self, shape: Shape, dtype: npt.DTypeLike = float, order: Order = "C"
    ) -> npt.NDArray[Any]:
        """As ``numpy.zeros``, in this heap."""
        array = self.empty(shape, dtype, order)
        memory: Any = array.base
        memory[...] = 0
        return array

    def full(
        self, shape: Shape, fill_value: Any, dtype: npt.DTypeLike | None = None, order: Order = "C"
    ) -> npt.NDArray[Any]:
        """As ``numpy.full``, in this heap."""
        kind = np.asarray(fill_value).dtype if dtype is None else dtype
        array = self.empty(shape, kind, order)
        array[...] = fill_value
        return array

    def from_numpy(self, array: npt.ArrayLike) -> npt.NDArray[Any]:
        """A copy of an array in this heap, with its shape, its type and its order."""
        source = np.asarray(array)
        is_fortran = source.flags.f_contiguous and not source.flags.c_contiguous
        copy = self.empty(source.shape, source.dtype, "F" if is_fortran else "C")
        copy[...] = source
        return copy

    def _block_of(self, array: npt.NDArray[Any]) -> _Block | None:
        base: Any = array
        while isinstance(base, (np.ndarray, memoryview)):
            base = base.obj if isinstance(base, memoryview) else base.base
        return base if isinstance(base, _Block) and base.heap is self else None

    # The mapping.

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        with self._entered():
            entry = self._entries[name]
            block = self._block(entry.block, entry.nbytes)
        kind = np.lib.format.descr_to_dtype(ast.literal_eval(entry.dtype))
        return np.ndarray(
            entry.shape, kind, buffer=np.asarray(block), offset=entry.offset, order=entry.order
        )

    def __setitem__(self, name: str, array: npt.ArrayLike) -> None:
        if not isinstance(name, str):
            raise TypeError("the name of an array is a text")
        here = np.asarray(array)
        block = self._block_of(here)
        if block is None or not (here.flags.c_contiguous or here.flags.f_contiguous):
            here = self.from_numpy(here)
            block = self._block_of(here)
        assert block is not None
        entry = _Entry(
            block.address,
            block.nbytes,
            extent(here)[0] - block.address,
            repr(np.lib.format.dtype_to_descr(here.dtype)),
            here.shape,
            "C" if here.flags.c_contiguous else "F",
        )
        with self._entered():
            before = self._entries.get(name)
            self._entries[name] = entry
            self._changed = True
            if before is not None:
                self._free_unless_used(before.block)

    def __delitem__(self, name: str) -> None:
        """Takes the name away. The memory is free once no array uses it."""
        with self._entered():
            entry = self._entries.pop(name)
            self._changed = True
            self._free_unless_used(entry.block)

    def __iter__(self) -> Iterator[str]:
        with self._entered():
            return iter(list(self._entries))

    def __len__(self) -> int:
        with self._entered():
            return len(self._entries)

    def __contains__(self, name: object) -> bool:
        with self._entered():
            return name in self._entries

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<deepheap.Heap {self.path!r}{state}: {', '.join(self._entries)}>"

    # Checkpoints and the end.

    def checkpoint(self) -> Checkpoint:
        """Makes durable what the heap holds at one instant, while other threads go on.

        Whatever happens later, the next ``open`` finds what the last checkpoint held. ``Error`` if
        it cannot be made; then the one before stands.
        """
        with self._entered():
            return self._checkpoint()

    def _checkpoint(self) -> Checkpoint:
        if self._changed:
            self._write_catalogue()
        info = (ctypes.c_uint64 * len(Checkpoint._fields))()
        code = self._calls.checkpoint(self._handle, ctypes.addressof(info))
        if code != 0:
            raise self._calls.file_error(code)
        return Checkpoint(*info)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._handle is None or self._closing

    def close(self) -> None:
        """Makes a checkpoint and closes the heap.

        Arrays of it that are still in use stay usable: then the file is given back, after one more
        checkpoint, when the last of them goes. Closing twice does nothing. ``Error`` if the
        checkpoint cannot be made; the heap stays open.
        """
        if self.closed:
            return
        with self._entered():
            if self._used:
                self._checkpoint()
                self._closing = True
            else:
                self._end()

    def _end(self) -> None:
        if not self._is_here():
            return
        if self._changed:
            self._write_catalogue()
        code = self._calls.close(self._handle)
        if code != 0:
            raise self._calls.file_error(code)
        self._handle = None

    def __enter__(self) -> Heap:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._handle is not None and not sys.is_finalizing() and self._is_here():
            warnings.warn(f"the heap {self.path!r} was not closed", ResourceWarning, stacklevel=2)
            self.close()


def open(
    path: str | os.PathLike[str],
    *,
    ram: str | int | None = None,
    size: str | int | None = None,
    store_size: str | int | None = None,
    **options: Any,
) -> Heap:
    """Opens the durable heap in a file, or makes it: named arrays that are there again.

    ``ram``: its part of the process's RAM budget (half of it). ``size``: address space, which
    cannot grow later (256G), and ``store_size``: the most that the file may take (as ``size``);
    both count when the heap is made. ``checkpoint="10s"`` makes a checkpoint after each such time
    if anything changed. The other options are those of ``dh_open``: ``address``, ``compress``,
    ``segment``, ``page_buffer``.

    One process has a heap open at a time. Raises ``Error`` with the reason if it cannot be opened.
    """
    return Heap(path, {"ram": ram, "size": size, "store_size": store_size, **options})
