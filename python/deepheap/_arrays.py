"""Arrays on memory of deepheap, and the memory handler that makes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Union

import numpy as np
import numpy.typing as npt

from . import _native
from ._library import OBJECT_ERROR, library

Shape = Union[int, Sequence[int]]
Order = Literal["C", "F"]

PAGE = 4096


class numpy_allocator:
    """Makes every large array one of deepheap's, in this thread, inside of a ``with``.

    ``min_bytes``: smaller arrays keep NumPy's ordinary memory. An array keeps its memory after the
    ``with``, until it is freed. The setting belongs to the context of the running code
    (``contextvars``): other threads, and tasks that run already, do not have it.

    >>> with deepheap.numpy_allocator(min_bytes=1 << 20):
    ...     table = np.random.default_rng(1).random((1_000_000, 64))
    """

    def __init__(self, min_bytes: int = 1 << 20) -> None:
        if min_bytes < 0:
            raise ValueError("min_bytes must not be negative")
        library()
        self._handler = _native.make_handler(min_bytes)
        self._before: list[object] = []

    def __enter__(self) -> numpy_allocator:
        self._before.append(_native.set_handler(self._handler))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _native.set_handler(self._before.pop())


def empty(shape: Shape, dtype: npt.DTypeLike = float, order: Order = "C") -> npt.NDArray[Any]:
    """As ``numpy.empty``, on memory of deepheap.

    An ordinary ndarray, freed when the last view of it goes. ``MemoryError`` if neither the RAM
    budget nor the store has room.
    """
    with numpy_allocator(0):
        return np.empty(shape, dtype, order)


def zeros(shape: Shape, dtype: npt.DTypeLike = float, order: Order = "C") -> npt.NDArray[Any]:
    """As ``numpy.zeros``, on memory of deepheap. Pages that are never written take no room."""
    with numpy_allocator(0):
        return np.zeros(shape, dtype, order)


def full(
    shape: Shape, fill_value: Any, dtype: npt.DTypeLike | None = None, order: Order = "C"
) -> npt.NDArray[Any]:
    """As ``numpy.full``, on memory of deepheap."""
    with numpy_allocator(0):
        return np.full(shape, fill_value, dtype, order)


def from_numpy(array: npt.ArrayLike) -> npt.NDArray[Any]:
    """A copy of an array on memory of deepheap, with its shape, its type and its order."""
    source = np.asanyarray(array)
    with numpy_allocator(0):
        return source.copy(order="K")


def extent(array: npt.NDArray[Any]) -> tuple[int, int]:
    """Addresses of an array's first byte, and behind its last."""
    low = high = array.__array_interface__["data"][0]
    if array.size == 0:
        return low, low
    for length, stride in zip(array.shape, array.strides):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + array.itemsize


@contextlib.contextmanager
def pinned(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Keeps an array in RAM inside of a ``with``, so that anything may read and write it.

    Files and sockets need no pin. It is for code that calls the kernel past the C library, or finds
    libc's functions by name: ``ctypes``, ``io_uring``, drivers. All pages of the array count
    against the RAM budget; ``Error`` if all that is pinned would be more than half of the page
    buffer. Other memory than deepheap's needs no pin, and gets none.
    """
    calls = library()
    low, high = extent(array)
    held: list[int] = []
    try:
        at = low
        while at < high:
            end = min((at // PAGE + 1) * PAGE, high)
            # Inside of an allocation a pin is for the rest of the page; at its start for all of it.
            inside = at if end - at == 1 else at + 1
            code = calls.pin(inside)
            if code == OBJECT_ERROR and not held:
                break
            if code != 0:
                raise calls.error(code)
            held.append(inside)
            at = end
        yield array
    finally:
        for inside in held:
            calls.unpin(inside)
