"""NumPy arrays larger than RAM.

deepheap keeps a program's memory within a RAM budget: what was not touched for a while moves to an
SSD, and comes back by itself when it is touched. The arrays of this package are ordinary ndarrays
in such memory.

    import deepheap

    deepheap.init(ram="2G", store="/mnt/nvme")
    vectors = deepheap.zeros((100_000_000, 128), "float32")   # 51 GB
    vectors[12345] = 1.0
    some = deepheap.gather(vectors, [5, 12345, 99_999_999])   # three reads at once

``vectors + 1`` is a new array, in ordinary memory; ``vectors += 1`` stays in deepheap's. Inside of
``with deepheap.numpy_allocator():`` new arrays of any function are deepheap's, too.

Without ``init`` the settings come from ``DEEPHEAP_CONF``. Errors are exceptions of the class
``deepheap.Error``; running out of room is a ``MemoryError``, as everywhere.

``python -m deepheap --ram 2G script.py`` runs a script that knows nothing of deepheap.
"""

from ._arrays import empty, from_numpy, full, numpy_allocator, pinned, zeros
from ._durable import Checkpoint, Heap, open
from ._library import Error, init, stats
from ._maps import Map, map
from ._rows import gather, prefetch, scatter

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "Error",
    "Heap",
    "Map",
    "empty",
    "from_numpy",
    "full",
    "gather",
    "init",
    "map",
    "numpy_allocator",
    "open",
    "pinned",
    "prefetch",
    "scatter",
    "stats",
    "zeros",
]
