"""frames.py N: a table of N orders; joins, groups, sorts and filters it; prints the results."""

import sys

import numpy
import pandas


def main():
    """Makes the tables and asks."""
    count = int(sys.argv[1])
    dice = numpy.random.RandomState(1)
    orders = pandas.DataFrame({
        "customer": dice.randint(0, count // 10, count),
        "product": dice.randint(0, 5000, count),
        "pieces": dice.randint(1, 20, count),
        "price": dice.randint(100, 10_000, count),
        "day": dice.randint(0, 365, count),
    })
    customers = pandas.DataFrame({
        "customer": numpy.arange(count // 10),
        "city": dice.randint(0, 300, count // 10),
    })
    joined = orders.merge(customers, on="customer")
    joined["sum"] = joined["pieces"] * joined["price"]
    print(joined.groupby("city")["sum"].sum().sort_values().tail(5).to_string())
    print(joined.groupby(["product", "day"])["pieces"].sum().nlargest(5).to_string())
    by_customer = joined.sort_values(["customer", "day", "sum"], kind="mergesort")
    print(int(by_customer["sum"].iloc[:: max(1, count // 1000)].sum()))
    print(joined[joined["price"] > 9000].describe().to_string())


main()
