"""Maps: arrays that are files, as ``numpy.memmap``, with a RAM budget and gathered rows.

A map is one of ``dh_map``: pages of the file come to RAM when they are touched, within a budget
that all processes of the user that map the file share, and with one copy for all of them.
"""

from __future__ import annotations

import math
import os
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _rows
from ._arrays import Shape, extent
from ._library import library

# Linux's. The module `mmap` is not imported: `_library` wraps those that are loaded later.
_PROT_READ, _PROT_WRITE = 1, 2

Mode = Literal["r", "r+", "w+", "c"]

_ADVICE = {"willneed": 0, "dontneed": 1, "random": 2, "sequential": 3}


class _Mapping:
    """The memory of a map. It is the ``base`` of its arrays in the end, and ends with them."""

    def __init__(self, path: str, nbytes: int, is_writeable: bool) -> None:
        self._calls = library()
        protection = _PROT_READ | (_PROT_WRITE if is_writeable else 0)
        address = self._calls.map(os.fsencode(path), nbytes, protection, 0)
        if not address:
            raise self._calls.file_error()
        self.address = address
        self.__array_interface__ = {
            "version": 3,
            "data": (address, not is_writeable),
            "shape": (nbytes,),
            "typestr": "|u1",
        }

    def __del__(self) -> None:
        address = getattr(self, "address", None)
        if address is not None and self._calls.unmap(address) != 0:
            # The interpreter tells it: there is nobody to be told by an exception.
            raise self._calls.file_error()


class Map(np.memmap):
    """An array that is a file, made by ``deepheap.map``.

    It is a ``numpy.memmap``, but deepheap keeps its pages, and gathers, scatters and prefetches its
    rows. Stores are in the file after ``flush``, or when the last process that has the map lets go
    of it.
    """

    # As numpy.memmap: what is not in the file is an ordinary array.

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        is_in_file = type(found) is not Map or found._mmap is not None
        return found if is_in_file else found.view(np.ndarray)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if array is self:
            return array
        return array[()] if return_scalar or array.ndim == 0 else array.view(np.ndarray)

    def flush(self) -> None:
        """Makes durable what this and all other processes have stored in this array until now.

        Raises ``Error`` if the device refuses: then nobody knows what of it is durable, and every
        later call fails, too.
        """
        if self.size == 0 or not isinstance(self._mmap, _Mapping):
            return
        low, high = extent(self)
        calls = library()
        code = calls.sync(low, high - low)
        if code != 0:
            raise calls.file_error(code)

    def advise(self, advice: Literal["willneed", "dontneed", "random", "sequential"]) -> None:
        """Tells how this array will be used. A hint: no byte changes.

        ``"random"`` and ``"sequential"`` are of the whole map, in this process.
        """
        if advice not in _ADVICE:
            raise ValueError(f"advice is one of {', '.join(_ADVICE)}")
        if self.size == 0 or not isinstance(self._mmap, _Mapping):
            return
        low, high = extent(self)
        calls = library()
        code = calls.map_advise(low, high - low, _ADVICE[advice])
        if code != 0:
            raise calls.file_error(code)

    def gather(
        self, rows: npt.ArrayLike, out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """As ``deepheap.gather`` of this array."""
        return _rows.gather(self, rows, out)

    def scatter(self, rows: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """As ``deepheap.scatter`` to this array."""
        _rows.scatter(self, rows, values)

    def prefetch(self, rows: npt.ArrayLike) -> int:
        """As ``deepheap.prefetch`` of this array."""
        return _rows.prefetch(self, rows)


def map(
    path: str | os.PathLike[str],
    dtype: npt.DTypeLike = np.uint8,
    shape: Shape | None = None,
    mode: Mode = "r+",
    offset: int = 0,
    order: Literal["C", "F"] = "C",
) -> Map:
    """Maps a file as an array, as ``numpy.memmap(path, dtype, mode, offset, shape, order)`` does.

    ``mode``: ``"r"`` to read, ``"r+"`` to read and write, ``"w+"`` to make the file or write over
    it (``shape`` is needed; it reads as zeros). ``shape`` of None: one dimension, all that the file
    has from ``offset`` (bytes) on. With ``"r+"`` a file that is too short is made longer.

    How much RAM the map may take is in ``DEEPHEAP_MAP_RAM`` (``"256M"``, ``"10%"``) of the process
    that maps the file first, else ``ram`` of ``DEEPHEAP_CONF``, else a quarter of the machine. The
    file must be on a disk, not in RAM (tmpfs). Do not ``read`` or ``write`` it by other means while
    it is mapped.

    >>> vectors = deepheap.map("vectors.f32", "float32", (10_000_000, 128), "r+")
    >>> vectors.gather([5, 12345, 9_999_999]).sum()

    Raises ``ValueError`` for arguments that do not fit, ``OSError`` if the file cannot be opened or
    made longer, ``Error`` if it cannot be mapped.
    """
    if mode == "c":
        raise ValueError("mode 'c' is not there yet: private maps are not in this version")
    if mode not in ("r", "r+", "w+"):
        raise ValueError("mode is 'r', 'r+' or 'w+'")
    kind = np.dtype(dtype)
    if kind.hasobject or kind.itemsize == 0:
        raise TypeError("an array in a file cannot have Python objects, or elements without bytes")
    if offset < 0:
        raise ValueError("offset must not be negative")
    name = os.path.abspath(os.fspath(path))
    lengths = None if shape is None else tuple(np.atleast_1d(np.asarray(shape, np.int64)).tolist())
    if lengths is not None and any(length < 0 for length in lengths):
        raise ValueError("lengths must not be negative")
    if mode == "w+" and lengths is None:
        raise ValueError("mode 'w+' needs a shape")

    flags = {"r": os.O_RDONLY, "r+": os.O_RDWR, "w+": os.O_RDWR | os.O_CREAT | os.O_TRUNC}[mode]
    descriptor = os.open(name, flags | os.O_CLOEXEC, 0o666)
    try:
        have = os.lseek(descriptor, 0, os.SEEK_END)  # devices have a length, too
        if lengths is None:
            count, rest = divmod(have - offset, kind.itemsize)
            if count < 0 or rest != 0:
                raise ValueError(
                    f"{name!r} has {have} bytes, from {offset} on no whole number of elements of "
                    f"{kind.itemsize} bytes"
                )
            lengths = (count,)
        end = offset + math.prod(lengths) * kind.itemsize
        if end > have:
            if mode == "r":
                raise ValueError(f"{name!r} has {have} bytes, and {end} are wanted")
            os.ftruncate(descriptor, end)
    finally:
        os.close(descriptor)
    if end == offset:
        raise ValueError("an empty array cannot be mapped")

    mapping = _Mapping(name, end, mode != "r")
    array = np.ndarray.__new__(Map, lengths, kind, np.asarray(mapping), offset, None, order)
    # What numpy.memmap has; views find it by `__array_finalize__`.
    array._mmap, array.offset, array.mode = mapping, offset, mode
    array.filename = name
    return array
