"""tensors.py N: N rows of 128 numbers in PyTorch, in memory of deepheap; a linear layer learns from
batches of them; prints the loss of each turn. `tensors.py N plain` has them in ordinary memory.
"""

import sys

import numpy
import torch

ROWS = 4096


def main():
    """Fills the table and learns."""
    count = int(sys.argv[1])
    if sys.argv[2:] == ["plain"]:
        table = numpy.zeros((count, 128), "float32")
    else:
        import deepheap

        table = deepheap.zeros((count, 128), "float32")
    # The same memory, not a copy.
    tensor = torch.from_numpy(table)
    torch.manual_seed(1)
    for first in range(0, count, ROWS):
        tensor[first:first + ROWS].normal_()
    layer = torch.nn.Linear(128, 1)
    steps = torch.optim.SGD(layer.parameters(), lr=0.1)
    for turn in range(2):
        total = 0.0
        for first in range(0, count, ROWS):
            rows = tensor[first:first + ROWS]
            loss = torch.square(layer(rows).squeeze(1) - rows[:, 0]).mean()
            steps.zero_grad()
            loss.backward()
            steps.step()
            total += loss.item()
        print(f"turn {turn}: {total:.4f}")


main()
