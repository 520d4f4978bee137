"""correlation.py N: N variables of 2 N samples each at random, some of which depend on others;
their correlation by values, then by ranks; prints the results."""

import sys

import numpy


def tell(correlation):
    """Prints the pairs that belong together most, and the mean."""
    print(round(numpy.abs(correlation).mean(), 6))
    for row, values in enumerate(correlation):
        values[row:] = 0
    best = numpy.argsort(numpy.abs(correlation), axis=None, kind="stable")[-8:]
    rows, columns = numpy.unravel_index(best, correlation.shape)
    for row, column in zip(rows, columns):
        print(row, column, round(correlation[row, column], 6))


def main():
    """Makes the samples and asks."""
    count = int(sys.argv[1])
    dice = numpy.random.RandomState(1)
    samples = dice.normal(size=(count, 2 * count))
    for row in range(3, count, 97):
        samples[row] += samples[row - 2] * (row / count)
    tell(numpy.corrcoef(samples))
    for row in samples:
        row[row.argsort(kind="stable")] = numpy.arange(len(row))
    tell(numpy.corrcoef(samples))


main()
