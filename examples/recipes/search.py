"""search.py KIND N: an index of N vectors of 128 numbers in clusters: builds it, then searches it;
prints what was found. KIND is `ivf` or `hnsw` (faiss), or `hnswlib`.
"""

import sys
import time

import numpy

DIMENSIONS = 128
#: Vectors that are added at a time, and that are searched for.
CHUNK, SEARCHES = 10_000, 6_000


def make_index(kind, count, sample):
    """An empty index: functions that add vectors, and find the ten that are next to some."""
    if kind == "hnswlib":
        import hnswlib

        index = hnswlib.Index("l2", DIMENSIONS)
        index.init_index(count, M=8, ef_construction=32, random_seed=1)
        # Several threads insert in any order.
        return (
            lambda vectors: index.add_items(vectors, num_threads=1),
            lambda vectors: index.knn_query(vectors, k=10)[0],
        )
    import faiss

    if kind == "ivf":
        lists = max(16, count // 1000)
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(DIMENSIONS), DIMENSIONS, lists)
        index.train(sample)
        index.nprobe = 8
    else:
        faiss.omp_set_num_threads(1)
        index = faiss.IndexHNSWFlat(DIMENSIONS, 8)
        index.hnsw.efConstruction = 32
    return index.add, lambda vectors: index.search(vectors, 10)[1]


def main():
    """Builds the index and asks."""
    kind, count = sys.argv[1], int(sys.argv[2])
    dice = numpy.random.default_rng(1)
    centers = dice.standard_normal((256, DIMENSIONS), "float32")

    def vectors(number):
        noise = dice.standard_normal((number, DIMENSIONS), "float32")
        return centers[dice.integers(0, len(centers), number)] + noise

    start = time.monotonic()
    add, search = make_index(kind, count, vectors(count // 10))
    for first in range(0, count, CHUNK):
        add(vectors(min(CHUNK, count - first)))
    built = time.monotonic()
    total = 0
    for number in search(vectors(SEARCHES)).ravel().tolist():
        total = (total * 31 + number) % (1 << 61)
    print(kind, count, total)
    searched = time.monotonic()
    print(f"built in {built - start:.1f} s, {SEARCHES / (searched - built):.0f} searches a second",
          file=sys.stderr)


main()
