"""Dask: what a worker does not use now lies in deepheap instead of in files of its spilling.

    from distributed import Worker
    from deepheap.dask import HybridBuffer

    worker = Worker(scheduler, data=HybridBuffer, memory_limit=0)

Start deepheap in the worker's process first: by ``DEEPHEAP_CONF=ram:1G,store:/mnt/nvme`` in its
environment. With ``memory_limit=0`` Dask neither spills nor pauses: deepheap's RAM budget and
``recent_bytes`` are the limit (``data=(HybridBuffer, {"recent_bytes": 7 << 30})``).
"""

from __future__ import annotations

import functools
import os
import pickle
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._arrays import empty
from ._library import library

#: A buffer of at least so many bytes lies in deepheap.
LARGE = 1 << 16
#: Threads that read a large buffer, and the bytes that one of them reads at a time.
READERS, PART = 4, 1 << 20


class _Recent(NamedTuple):
    """A value in ordinary memory, and the buffers of it that pickle leaves out."""

    value: Any
    text: bytes
    buffers: list[pickle.PickleBuffer]
    size: int


class _Stored(NamedTuple):
    """A value as a pickle and copies of its buffers; the large ones lie in deepheap."""

    text: npt.NDArray[np.uint8] | bytes
    buffers: list[npt.NDArray[np.uint8] | bytes]


def _store(buffer: Any) -> npt.NDArray[np.uint8] | bytes:
    """A copy, in deepheap if it is large: written at once, without a fault."""
    if memoryview(buffer).nbytes < LARGE:
        return bytes(buffer)
    source = np.frombuffer(buffer, np.uint8)
    stored = empty(source.nbytes, np.uint8)
    calls = library()
    code = calls.write(stored.ctypes.data, 0, source.ctypes.data, source.nbytes)
    if code != 0:
        raise calls.error(code)
    return stored


def _load(stored: npt.NDArray[np.uint8] | bytes) -> npt.NDArray[np.uint8] | bytearray:
    """A copy in ordinary memory: read by several threads, without a fault."""
    if not isinstance(stored, np.ndarray):
        return bytearray(stored)
    loaded = np.empty(stored.nbytes, np.uint8)
    source, target, size = stored.ctypes.data, loaded.ctypes.data, stored.nbytes
    calls = library()

    def read(offset: int) -> int:
        length = min(PART, size - offset)
        code: int = calls.read(source, offset, target + offset, length)
        return code

    if size <= PART:
        codes = [read(0)]
    else:
        codes = list(_readers().map(read, range(0, size, PART)))
    for code in codes:
        if code != 0:
            raise calls.error(code)
    return loaded


@functools.cache
def _readers() -> ThreadPoolExecutor:
    """Threads that read: one alone would leave the SSD waiting while it copies."""
    return ThreadPoolExecutor(READERS, "deepheap-read")


# A forked child has none of them.
os.register_at_fork(after_in_child=_readers.cache_clear)


class HybridBuffer(MutableMapping[str, Any]):
    """A mapping of which what was used last is in ordinary memory, and the rest in deepheap.

    ``recent_bytes`` bounds what is in ordinary memory; it comes on top of deepheap's RAM budget,
    which may be small then. A value is taken apart by pickle's protocol 5, as Dask does to send it.
    Its buffers of 64 KiB or more are copied to deepheap when it has not been used for longer than
    others, and back when it is asked for. The copy in deepheap stays, so that a value that is not
    needed again is forgotten without being written. Values must not be changed, as everywhere in
    Dask. Values that pickle cannot take are kept as they are.
    """

    def __init__(self, recent_bytes: int = 1 << 28) -> None:
        self._limit = recent_bytes
        self._recent: OrderedDict[str, _Recent] = OrderedDict()
        self._recent_bytes = 0
        self._stored: dict[str, _Stored] = {}
        self._odd: dict[str, Any] = {}

    def _forget(self, key: str) -> None:
        forgotten = self._recent.pop(key, None)
        if forgotten is not None:
            self._recent_bytes -= forgotten.size

    def _make_room(self, size: int) -> None:
        """Moves what was used longest ago to deepheap, until there is room for a value."""
        while self._recent and self._recent_bytes + size > self._limit:
            oldest, leaving = next(iter(self._recent.items()))
            if oldest not in self._stored:
                self._stored[oldest] = _Stored(
                    _store(leaving.text), [_store(buffer.raw()) for buffer in leaving.buffers]
                )
            self._forget(oldest)
            del leaving

    def _remember(self, key: str, recent: _Recent) -> None:
        self._recent[key] = recent
        self._recent_bytes += recent.size

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self:
            del self[key]
        buffers: list[pickle.PickleBuffer] = []
        try:
            text = pickle.dumps(value, 5, buffer_callback=buffers.append)
            size = len(text) + sum(buffer.raw().nbytes for buffer in buffers)
        except (pickle.PicklingError, TypeError, AttributeError, BufferError):
            # Locks, open files, local functions; or a buffer that is in no one piece.
            self._odd[key] = value
            return
        self._make_room(size)
        self._remember(key, _Recent(value, text, buffers, size))

    def __getitem__(self, key: str) -> Any:
        if key in self._odd:
            return self._odd[key]
        recent = self._recent.get(key)
        if recent is not None:
            self._recent.move_to_end(key)
            return recent.value
        stored = self._stored[key]
        size = len(stored.text) + sum(len(buffer) for buffer in stored.buffers)
        self._make_room(size)
        text = bytes(_load(stored.text))
        buffers = [_load(buffer) for buffer in stored.buffers]
        value = pickle.loads(text, buffers=buffers)
        self._remember(key, _Recent(value, text, [], size))
        return value

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._forget(key)
        self._stored.pop(key, None)
        self._odd.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._recent or key in self._stored or key in self._odd

    def __iter__(self) -> Iterator[str]:
        yield from self._stored
        yield from (key for key in self._recent if key not in self._stored)
        yield from self._odd

    def __len__(self) -> int:
        fresh = sum(key not in self._stored for key in self._recent)
        return len(self._stored) + fresh + len(self._odd)
