"""dask_worker.py: a worker of Dask whose values beyond its RAM lie in deepheap.

    DEEPHEAP_CONF=ram:1G,store:/mnt/nvme python dask_worker.py tcp://SCHEDULER:8786 7G [THREADS]

Start one on each machine of a cluster, in place of `dask worker`. It keeps 7 GiB of what was used
last in ordinary memory, and 1 GiB of RAM is deepheap's; what does not fit lies on the machine's own
SSD. It ends when the scheduler goes.
"""

import asyncio
import os
import sys

from dask.distributed import Worker
from dask.utils import parse_bytes

from deepheap.dask import HybridBuffer


async def serve(scheduler, recent, threads):
    """Works until the scheduler goes."""
    data = HybridBuffer, {"recent_bytes": parse_bytes(recent)}
    # Without a limit of its own Dask neither spills nor pauses.
    async with Worker(scheduler, data=data, memory_limit=0, nthreads=threads) as worker:
        await worker.finished()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    threads = int(sys.argv[3]) if len(sys.argv) > 3 else os.cpu_count()
    asyncio.run(serve(sys.argv[1], sys.argv[2], threads))
