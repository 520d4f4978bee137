"""nearest.py N: an index (faiss, HNSW) of N vectors of 512 dimensions in clusters: builds it, then
searches it; prints the results."""

import sys

import faiss
import numpy

DIMENSIONS = 512
CHUNK = 2000


def main():
    """Builds the index and asks."""
    count = int(sys.argv[1])
    # Several threads insert in any order.
    faiss.omp_set_num_threads(1)
    dice = numpy.random.RandomState(1)
    centers = dice.standard_normal((256, DIMENSIONS)).astype("float32")

    def vectors(number):
        noise = dice.standard_normal((number, DIMENSIONS)).astype("float32")
        return centers[dice.randint(0, len(centers), number)] + noise

    index = faiss.IndexHNSWFlat(DIMENSIONS, 8)
    index.hnsw.efConstruction = 16
    for start in range(0, count, CHUNK):
        index.add(vectors(min(CHUNK, count - start)))
    total = 0
    for _ in range(10):
        _, found = index.search(vectors(count // 40), 10)
        total = (total * 31 + int(found.sum())) % (1 << 61)
    print(count, total)


main()
