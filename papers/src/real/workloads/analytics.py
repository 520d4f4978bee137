"""analytics.py N: a table of N orders in DuckDB, in memory; joins, groups and sorts it; prints the
results."""

import os
import sys

import duckdb

TABLE = """
CREATE TABLE orders AS
SELECT i AS id, hash(i) % ({0} // 10) AS customer, hash(i + 1) % 365 AS day,
       (hash(i + 2) % 10007)::INTEGER AS price,
       'order ' || i || ', to be sent to street ' || hash(i + 3) % 99991 AS note
FROM range({0}) numbers(i)
"""
QUERIES = (
    "SELECT count(*), sum(length(note)) FROM orders",
    "SELECT customer, sum(price) FROM orders GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5",
    """SELECT count(*), sum(a.price * b.day), sum(length(a.note))
       FROM orders a JOIN orders b ON a.id = b.id * 7919 % {0}""",
    """SELECT sum(turn * price) FROM (SELECT price,
       row_number() OVER (PARTITION BY customer ORDER BY day, id) AS turn FROM orders)""",
    "SELECT day, count(DISTINCT customer) FROM orders GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 5",
)


def main():
    """Makes the table and asks."""
    count = int(sys.argv[1])
    settings = {"threads": os.cpu_count(), "memory_limit": "64GB", "temp_directory": ""}
    base = duckdb.connect(":memory:", config=settings)
    base.execute(TABLE.format(count))
    for query in QUERIES:
        print(base.execute(query.format(count)).fetchall())


main()
