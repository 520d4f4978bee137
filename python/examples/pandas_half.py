"""pandas_half.py: a pandas program that knows nothing of deepheap, at half of its memory.

    python pandas_half.py                              # alone: tells its peak
    python -m deepheap --ram 350M pandas_half.py       # the same answers, in half of it
"""

import resource
import time

import numpy as np
import pandas as pd

start = time.monotonic()
rng = np.random.default_rng(1)
rows = 8_000_000
sales = pd.DataFrame(
    {
        "shop": rng.integers(0, 5_000, rows),
        "item": rng.integers(0, 100_000, rows),
        "price": rng.random(rows).round(2),
        "count": rng.integers(1, 9, rows),
    }
)
shops = pd.DataFrame({"shop": np.arange(5_000), "region": rng.integers(0, 40, 5_000)})
sales["sum"] = sales["price"] * sales["count"]
joined = sales.merge(shops, on="shop")
regions = joined.groupby("region")["sum"].sum()
best = joined.sort_values("sum", ascending=False).head(1000)
print(f"{regions.sum():.2f} in {len(regions)} regions, the best {best['sum'].mean():.4f}")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
print(f"{time.monotonic() - start:.1f} s, at most {peak} MiB in RAM")
