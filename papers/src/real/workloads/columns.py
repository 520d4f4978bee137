"""columns.py N: a table of N orders in polars; joins, groups, sorts and filters it; prints the
results."""

import sys

import numpy
import polars


def main():
    """Makes the tables and asks."""
    count = int(sys.argv[1])
    dice = numpy.random.RandomState(1)
    orders = polars.DataFrame({
        "customer": dice.randint(0, count // 10, count),
        "product": dice.randint(0, 5000, count),
        "pieces": dice.randint(1, 20, count),
        "price": dice.randint(100, 10_000, count),
        "day": dice.randint(0, 365, count),
    })
    customers = polars.DataFrame({
        "customer": numpy.arange(count // 10),
        "city": dice.randint(0, 300, count // 10),
    })
    total = (polars.col("pieces") * polars.col("price")).alias("sum")
    joined = orders.join(customers, on="customer").with_columns(total)
    by_city = joined.group_by("city").agg(polars.col("sum").sum())
    print(by_city.sort("sum", "city").tail(5).rows())
    by_day = joined.group_by("product", "day").agg(polars.col("pieces").sum())
    print(by_day.sort("pieces", "product", "day").tail(5).rows())
    by_customer = joined.sort("customer", "day", "sum")
    print(by_customer["sum"].gather_every(max(1, count // 1000)).sum())
    dear = joined.filter(polars.col("price") > 9000)
    print(dear.height, dear.select(polars.all().sum()).rows())


main()
