"""The programs of the documents run, and the examples do."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: What is smaller here than there.
SMALLER = {
    'ram="1G"': 'ram="16M", size="1G"',
    "10_000_000": "100_000",
}


def blocks(path):
    text = (ROOT / path).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


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
    (program,) = [block for block in blocks("docs/python.md") if "deepheap.open" in block]
    for large, small in SMALLER.items():
        program = program.replace(large, small)
    begin = "import deepheap\ndeepheap.init(ram='64M', store='.')\n"
    look = "\nwith deepheap.open('index.dh', ram='16M') as heap: print(heap['vectors'][7].sum())"
    for _ in range(2):
        assert run(tmp_path, "-c", begin + program + look) == "128.0\n"


def test_the_file_that_is_an_array_is_one(tmp_path):
    (program,) = [block for block in blocks("docs/python.md") if "deepheap.map" in block]
    assert run(tmp_path, "-c", "import deepheap\n" + program) == "128.0\n"


def test_an_embedding_table_is_trained_on(tmp_path):
    example = str(ROOT / "python/examples/embedding_table.py")
    apart = [
        [float(number) for number in re.findall(r"are ([0-9.]+) apart", said)]
        for said in (run(tmp_path, example, "table.dh"), run(tmp_path, example, "table.dh"))
    ]
    assert len(apart[0]) == 3 and sorted(apart[0] + apart[1], reverse=True) == apart[0] + apart[1]
