"""The programs of the documents run, and the examples do."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: What is smaller here than there, or here.
SMALLER = {
    "ram:1G,store:/mnt/nvme": "ram:64M,store:.",
    'ram="1G"': 'ram="16M", size="1G"',
    "10_000_000": "100_000",
}


def blocks(path):
    text = (ROOT / path).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def block_with(word):
    """The one block of the page that has this word, made small."""
    (program,) = [block for block in blocks("docs/python.md") if word in block]
    for large, small in SMALLER.items():
        program = program.replace(large, small)
    return program


BEGIN = "import os, numpy as np, deepheap\n"
START = BEGIN + "deepheap.init(ram='64M', store='.')\n"
#: The words by which the tests below find a block each, and the first program.
TESTED = (
    "1_999_999",
    "gradient",
    "numpy_allocator",
    "deepheap.open",
    "deepheap.map",
    "HybridBuffer",
)


def run(folder, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", ["README.md", "docs/python.md"])
def test_the_first_program_runs(path, tmp_path):
    assert run(tmp_path, "-c", blocks(path)[0]) == "128.0\n"


def test_the_durable_program_goes_on_where_it_was(tmp_path):
    look = "\nwith deepheap.open('index.dh', ram='16M') as heap: print(heap['vectors'][7].sum())"
    for _ in range(2):
        assert run(tmp_path, "-c", START + block_with("deepheap.open") + look) == "128.0\n"


def test_the_file_that_is_an_array_is_one(tmp_path):
    assert run(tmp_path, "-c", BEGIN + block_with("deepheap.map")) == "128.0\n"


def test_every_program_of_the_page_is_run_here():
    for block in blocks("docs/python.md"):
        assert sum(word in block for word in TESTED) == 1, block


def test_rows_are_gathered_changed_and_scattered(tmp_path):
    begin = """
vectors = deepheap.full((200_000, 128), 1.0, "float32")
order = np.random.default_rng(1).permutation(200_000)
batches = [order[at : at + 4096] for at in range(0, 4 * 4096, 4096)]
gradient = lambda rows: rows / 2
"""
    look = "print(vectors.sum(axis=1)[order[:4096 * 4]].reshape(4, 4096).mean(axis=1))"
    said = run(tmp_path, "-c", START + begin + block_with("gradient") + look)
    assert said == "[ 64.  64.  64. 128.]\n", "the last batch has no later one"


def test_the_arrays_of_others_are_on_deepheap(tmp_path):
    begin = "np.save('large.npy', np.random.default_rng(1).random((1 << 18, 8)))\n"
    look = """
allocated = deepheap.stats()["heap"]["allocated_bytes"]
print((np.diff(table[order, 0]) >= 0).all(), allocated >= table.nbytes + order.nbytes)
"""
    said = run(tmp_path, "-c", START + begin + block_with("numpy_allocator") + look)
    assert said == "True True\n"


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs Dask")
def test_the_cluster_of_dask_computes(tmp_path):
    program = f"""
{BEGIN}
from dask.distributed import Client, LocalCluster
from deepheap.dask import HybridBuffer
if __name__ == "__main__":
{"".join("    " + line for line in block_with("HybridBuffer").splitlines(True))}
    with Client(cluster) as client:
        print(client.submit(lambda: int(np.arange(1000).sum())).result())
    cluster.close()
"""
    (tmp_path / "program.py").write_text(program)
    assert run(tmp_path, "program.py") == "499500\n"


def test_an_embedding_table_is_trained_on(tmp_path):
    example = str(ROOT / "python/examples/embedding_table.py")
    apart = [
        [float(number) for number in re.findall(r"are ([0-9.]+) apart", said)]
        for said in (run(tmp_path, example, "table.dh"), run(tmp_path, example, "table.dh"))
    ]
    assert len(apart[0]) == 3 and sorted(apart[0] + apart[1], reverse=True) == apart[0] + apart[1]
