"""embedding_table.py: a table of embeddings larger than RAM, trained a batch at a time.

    python embedding_table.py [table.dh]

A model touches a few thousand rows a step, of millions. The table gathers the rows of a batch with
all reads from the SSD on their way at once, and scatters back what the step has changed. With a
file it is a durable heap: training goes on where the last checkpoint was made.

With PyTorch installed `lookup` gives tensors that collect gradients, as of a small
`torch.nn.Embedding`.
"""

import sys

import numpy as np

import deepheap

try:
    import torch
except ImportError:
    torch = None


class EmbeddingTable:
    """`rows` vectors of `width` numbers, each at first random and short."""

    def __init__(self, rows, width, path=None, seed=0):
        self.heap = None if path is None else deepheap.open(path)
        if self.heap is not None and "vectors" in self.heap:
            self.vectors = self.heap["vectors"]
            return
        # Not `self.heap or deepheap`: a heap without arrays is empty, as any mapping, and so false.
        where = deepheap if self.heap is None else self.heap
        self.vectors = where.empty((rows, width), np.float32)
        rng = np.random.default_rng(seed)
        for first in range(0, rows, 1 << 16):
            part = self.vectors[first : first + (1 << 16)]
            part[...] = rng.standard_normal(part.shape, np.float32) * 0.01
        if self.heap is not None:
            self.heap["vectors"] = self.vectors
            self.heap.checkpoint()

    def prefetch(self, rows):
        """Starts to bring the rows of a later batch into RAM."""
        deepheap.prefetch(self.vectors, rows)

    def lookup(self, rows):
        """The rows, each once and in order, and where each of `rows` is among them."""
        own, places = np.unique(rows, return_inverse=True)
        vectors = deepheap.gather(self.vectors, own)
        if torch is None:
            return own, places, vectors
        return own, torch.from_numpy(places), torch.from_numpy(vectors).requires_grad_()

    def store(self, own, vectors):
        """Puts rows of `lookup` back, changed."""
        if torch is not None:
            vectors = vectors.detach().numpy()
        deepheap.scatter(self.vectors, own, vectors)

    def close(self):
        """Makes all of it durable, if it has a file."""
        self.vectors = None
        if self.heap is not None:
            self.heap.close()


def step(table, left, right, rate):
    """Brings the vectors of pairs closer to each other; answers how far they were apart."""
    own, places, vectors = table.lookup(np.concatenate([left, right]))
    half = len(left)
    if torch is not None:
        apart = ((vectors[places[:half]] - vectors[places[half:]]) ** 2).sum()
        apart.backward()
        with torch.no_grad():
            vectors -= rate * vectors.grad
    else:
        difference = vectors[places[:half]] - vectors[places[half:]]
        apart = (difference**2).sum()
        change = np.zeros_like(vectors)
        np.add.at(change, places[:half], 2 * difference)
        np.add.at(change, places[half:], -2 * difference)
        vectors -= rate * change
    table.store(own, vectors)
    return float(apart) / half


def main():
    deepheap.init(ram="64M", store=".")
    rows, width, batch = 500_000, 64, 2048  # 128 MB
    table = EmbeddingTable(rows, width, *sys.argv[1:2])
    rng = np.random.default_rng(1)
    pairs = [rng.integers(0, rows, (2, batch)) for _ in range(20)]
    for turn in range(3):
        apart = []
        for now, later in zip(pairs, pairs[1:] + pairs[:1]):
            table.prefetch(later.reshape(-1))
            apart.append(step(table, *now, rate=0.1))
        print(f"turn {turn}: pairs are {np.mean(apart):.6f} apart")
    table.close()


if __name__ == "__main__":
    main()
