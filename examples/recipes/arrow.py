"""arrow.py N: a table of N orders in Arrow; joins, groups, sorts and filters it; prints the
results.
"""

import sys

import numpy
import pyarrow
import pyarrow.compute as compute


def main():
    """Makes the tables and asks."""
    count = int(sys.argv[1])
    dice = numpy.random.default_rng(1)
    orders = pyarrow.table({
        "customer": dice.integers(0, count // 10, count),
        "day": dice.integers(0, 365, count),
        "price": dice.integers(100, 10_000, count),
        "note": pyarrow.array(dice.integers(0, 1 << 40, count)).cast("string"),
    })
    customers = pyarrow.table({
        "customer": numpy.arange(count // 10),
        "city": dice.integers(0, 300, count // 10),
    })
    joined = orders.join(customers, "customer")
    cities = joined.group_by("city").aggregate([("price", "sum"), ("note", "count_distinct")])
    print(cities.sort_by("city").slice(0, 5).to_pylist())
    by_price = orders.sort_by([("price", "descending"), ("note", "ascending")])
    print(by_price.slice(0, 3).to_pylist())
    dear = orders.filter(compute.greater(orders["price"], 9000))
    print(dear.num_rows, compute.sum(dear["day"]).as_py())


main()
