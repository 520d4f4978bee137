"""Rows of large arrays, many at once: all reads from the SSD are on their way together."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import PAGE
from ._library import OBJECT_ERROR, library

#: Rows of one call; it bounds the table of addresses.
TOGETHER = 1 << 16


def _checked(array: npt.NDArray[Any]) -> int:
    """Bytes of a row. Refuses what has no rows that are contiguous."""
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise TypeError("this needs an ndarray of one dimension or more")
    if array.dtype.hasobject:
        raise TypeError("rows of Python objects cannot be copied as bytes")
    bytes_inside = array.itemsize
    for length, stride in zip(reversed(array.shape[1:]), reversed(array.strides[1:])):
        if length > 1 and stride != bytes_inside:
            raise ValueError(
                "the rows of this array are not contiguous; make a copy with order='C', or index it"
            )
        bytes_inside *= length
    return bytes_inside


def _indices(array: npt.NDArray[Any], rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The rows as numbers from 0 on."""
    numbers = np.asarray(rows)
    if numbers.size == 0:
        return numbers.astype(np.int64)
    if numbers.dtype.kind not in "iu":
        raise IndexError("rows must be integers, as in array[rows]")
    length = array.shape[0]
    lowest, highest = int(numbers.min()), int(numbers.max())
    if lowest < -length or highest >= length:
        wrong = highest if highest >= length else lowest
        raise IndexError(f"row {wrong} is out of bounds for {length} rows")
    numbers = np.asarray(numbers, np.int64, order="C")
    return np.where(numbers < 0, numbers + length, numbers) if lowest < 0 else numbers


def _addresses(array: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    addresses = rows * array.strides[0]
    addresses += array.__array_interface__["data"][0]
    return addresses


def _transfer(
    call: Any, array: npt.NDArray[Any], rows: npt.NDArray[np.int64], row_bytes: int, buffer: int
) -> bool:
    """Copies rows to or from a buffer; False, and nothing done, if the array is not deepheap's."""
    rows = rows.reshape(-1)
    for first in range(0, rows.size, TOGETHER):
        some = _addresses(array, rows[first : first + TOGETHER])
        done = call(some.ctypes.data, some.size, 0, row_bytes, buffer + first * row_bytes)
        if done == OBJECT_ERROR and first == 0:
            return False
        if done < some.size:
            if done >= 0:
                # Which error it was, the failed row alone tells.
                at = buffer + (first + done) * row_bytes
                done = call(some[done:].ctypes.data, 1, 0, row_bytes, at)
            raise library().error(min(int(done), 0) or OBJECT_ERROR)
    return True


def gather(
    array: npt.NDArray[Any], rows: npt.ArrayLike, out: npt.NDArray[Any] | None = None
) -> npt.NDArray[Any]:
    """As ``array[rows]`` for an array of rows, with all reads from the SSD on their way at once.

    ``array``: shape ``(n, ...)``; each ``array[i]`` must be contiguous. ``rows``: integers of any
    shape from ``-n`` to ``n - 1``. The result has the shape ``rows.shape + array.shape[1:]``, in
    ordinary memory; ``out``, if given, must have it, the type of ``array``, and be C-contiguous.

    The GIL is released meanwhile. An array that is not deepheap's is copied as NumPy would.

    Raises ``IndexError`` for a row that is not there, ``TypeError`` or ``ValueError`` for an array
    that does not fit, ``Error`` if the device fails.
    """
    row_bytes = _checked(array)
    numbers = _indices(array, rows)
    shape = numbers.shape + array.shape[1:]
    if out is None:
        out = np.empty(shape, array.dtype)
    elif not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != array.dtype:
        raise ValueError(f"out must have the shape {shape} and the type {array.dtype}")
    elif not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError("out must be C-contiguous and writeable")
    if out.nbytes > 0 and not _transfer(
        library().gather, array, numbers, row_bytes, out.__array_interface__["data"][0]
    ):
        np.take(array, numbers, axis=0, out=out, mode="clip")
    return out


def scatter(array: npt.NDArray[Any], rows: npt.ArrayLike, values: npt.ArrayLike) -> None:
    """As ``array[rows] = values``, with all reads from the SSD on their way at once.

    ``values`` is broadcast to the shape ``rows.shape + array.shape[1:]`` and converted to the type
    of ``array``. If a row is named twice, one of its values remains. Raises as ``gather``, and
    ``ValueError`` if ``array`` cannot be written or ``values`` does not fit.
    """
    row_bytes = _checked(array)
    if not array.flags.writeable:
        raise ValueError("the array is read-only")
    numbers = _indices(array, rows)
    shape = numbers.shape + array.shape[1:]
    fitting = np.broadcast_to(np.asarray(values, dtype=array.dtype), shape)
    packed = np.asarray(fitting, order="C")
    if packed.nbytes > 0 and not _transfer(
        library().scatter, array, numbers, row_bytes, packed.__array_interface__["data"][0]
    ):
        array[numbers] = packed


def prefetch(array: npt.NDArray[Any], rows: npt.ArrayLike) -> int:
    """Starts to bring rows into RAM and does not wait. A hint: it may start fewer than asked for.

    ``rows`` as for ``gather``. Answers how many pages of 4096 bytes were started; 0 if all are in
    RAM, or the array is not deepheap's.
    """
    row_bytes = _checked(array)
    numbers = _indices(array, rows).reshape(-1)
    if row_bytes == 0:
        return 0
    calls = library()
    started = 0
    # Rows of several pages make several addresses each.
    together = max(TOGETHER // (row_bytes // PAGE + 2), 1)
    for first in range(0, numbers.size, together):
        starts = _addresses(array, numbers[first : first + together])
        pages = starts[:, None] // PAGE + np.arange((row_bytes - 1) // PAGE + 2)
        pages = np.unique(pages[pages * PAGE < starts[:, None] + row_bytes])
        # Not the address of an allocation, which would mean all of it.
        addresses = pages * PAGE + 1
        count = calls.prefetch(addresses.ctypes.data, addresses.size)
        if count == OBJECT_ERROR:
            return started
        if count < 0:
            raise calls.error(int(count))
        started += count
    return started
