"""Dask: what a worker holds lies in deepheap instead of in files of its spilling.

    from distributed import Worker
    from deepheap.dask import HybridBuffer

    worker = Worker(scheduler, data=HybridBuffer, memory_limit=0)

Start deepheap in the worker's process first: by ``DEEPHEAP_CONF=ram:8G,store:/mnt/nvme`` in its
environment. With ``memory_limit=0`` Dask neither spills nor pauses: deepheap's RAM budget is the
limit.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._arrays import empty


class _Packed(NamedTuple):
    """A value as a pickle and the buffers that it leaves out."""

    pickle: bytes
    buffers: list[Any]


class HybridBuffer(MutableMapping[str, Any]):
    """A mapping whose values have their large buffers in memory of deepheap.

    A value is taken apart by pickle's protocol 5, as Dask does to send it. Its buffers of at least
    ``min_bytes`` are copied into deepheap, the rest stays in RAM. A value that is got is put
    together anew around the same buffers: its arrays are not copied, and must not be changed, as
    everywhere in Dask. Values that have no such buffers, or that pickle cannot take, are kept as
    they are.
    """

    def __init__(self, min_bytes: int = 1 << 16) -> None:
        self._min_bytes = min_bytes
        self._values: dict[str, Any] = {}

    def _kept(self, buffer: pickle.PickleBuffer) -> npt.NDArray[np.uint8] | bytearray:
        raw = buffer.raw()
        if raw.nbytes < self._min_bytes:
            return bytearray(raw)
        kept = empty(raw.nbytes, np.uint8)
        kept[:] = np.frombuffer(raw, np.uint8)
        return kept

    def __setitem__(self, key: str, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        try:
            text = pickle.dumps(value, 5, buffer_callback=buffers.append)
            if any(buffer.raw().nbytes >= self._min_bytes for buffer in buffers):
                value = _Packed(text, [self._kept(buffer) for buffer in buffers])
        except (pickle.PicklingError, TypeError, AttributeError, BufferError):
            # Locks, open files, local functions; or a buffer that is in no one piece.
            pass
        self._values[key] = value

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, _Packed):
            return pickle.loads(value.pickle, buffers=value.buffers)
        return value

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
