"""What the tests share: programs of their own process, with a store that goes away with them.

deepheap starts once a process, so each promise that needs a start is tested in a process of its
own. A program says what it found with assertions; what it prints comes back.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

BEGIN = """
import numpy as np
import deepheap
seed = {seed}
rng = np.random.default_rng(seed)
MIB = 1 << 20
def start(ram="32M"):
    assert deepheap.init(ram=ram, store={store!r}, store_size="2G")
def large(mib=96):
    "An array of random words, three times the budget."
    array = deepheap.empty(mib * MIB // 8, "u8")
    for first in range(0, array.size, MIB):
        array[first:first + MIB] = rng.integers(0, 1 << 63, min(MIB, array.size - first), "u8")
    return array
def checksum(array):
    flat = array.reshape(-1)
    parts = (flat[at:at + MIB] for at in range(0, flat.size, MIB))
    return sum(int(part.sum(dtype="u8")) for part in parts) % (1 << 64)
"""


Program = Callable[..., str]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Runs a program; its folder is ``tmp_path``, and its process is as said by ``prefix``."""

    def run(
        text: str,
        *arguments: str,
        prefix: tuple[str, ...] = (sys.executable,),
        status: int = 0,
        settings: dict[str, str] | None = None,
    ) -> str:
        seed = int.from_bytes(os.urandom(4), "little")
        path = tmp_path / f"program{len(list(tmp_path.glob('program*.py')))}.py"
        begin = BEGIN.format(seed=seed, store=str(tmp_path))
        path.write_text(begin + textwrap.dedent(text))
        environment = {**os.environ, **(settings or {})}
        environment.pop("DEEPHEAP_CONF", None) if not settings else None
        done = subprocess.run(
            [*prefix, str(path), *arguments],
            cwd=tmp_path,
            env=environment,
            text=True,
            capture_output=True,
            check=False,
            timeout=300,
        )
        said = f"seed {seed}, status {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == status, said
        return done.stdout

    return run
