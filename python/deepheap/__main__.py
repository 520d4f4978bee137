"""Runs Python, or any program, with all of its memory on deepheap.

    python -m deepheap [OPTIONS] script.py [ARGUMENTS]
    python -m deepheap [OPTIONS] -m module [ARGUMENTS]
    deepheap run [OPTIONS] program [ARGUMENTS]

The options are those of ``deepheap run``: ``--ram 4G``, ``--store /mnt/nvme`` and others.
"""

from __future__ import annotations

import os
import sys

from ._library import FOLDER

#: Options of `deepheap run` that take no value.
FLAGS = frozenset({"--show-stats", "--quiet", "--no-children", "--force", "--encrypt", "--help"})


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The options of ``deepheap run``, and what Python is to be called with."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("--"):
        if arguments[at] == "--":
            return arguments[:at], arguments[at + 1 :]
        at += 1 if arguments[at] in FLAGS or "=" in arguments[at] else 2
    return arguments[:at], arguments[at:]


def execute(arguments: list[str]) -> None:
    """Becomes the command of deepheap with these arguments."""
    path = FOLDER / "deepheap"
    try:
        os.execv(path, [os.fspath(path), *arguments])
    except OSError as error:
        sys.exit(f"deepheap: {os.fspath(path)!r} cannot be executed: {error}; install it again")


def command() -> None:
    """The command ``deepheap``."""
    execute(sys.argv[1:])


def main() -> None:
    """``python -m deepheap``."""
    options, python = split(sys.argv[1:])
    if not python and "--help" not in options:
        sys.exit((__doc__ or "").strip())
    execute(["run", *options, "--", sys.executable, *python])


if __name__ == "__main__":
    main()
