"""inverse.py N: the inverse of a matrix of N times N at random, and the inverse of that, twice;
prints parts of it, and how far the last is from the matrix."""

import sys

import numpy


def main():
    """Makes the matrix and asks."""
    count = int(sys.argv[1])
    dice = numpy.random.RandomState(1)
    matrix = dice.uniform(-1, 1, (count, count))
    # Far from singular, so that the digits that are printed are right.
    matrix.flat[:: count + 1] += count / 8
    again = matrix
    for _ in range(2):
        inverse = numpy.linalg.inv(again)
        print(numpy.round(inverse.diagonal()[:: count // 8] * count, 6))
        print(round(inverse.trace(), 6), round(numpy.abs(inverse).max() * count, 6))
        again = numpy.linalg.inv(inverse)
        del inverse
    again -= matrix
    print(numpy.abs(again, out=again).max() < 1e-6)


main()
