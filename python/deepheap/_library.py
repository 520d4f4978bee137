"""The library: opening it once, its settings, its errors and its counters.

The package carries the library that ``deepheap run`` preloads. In a process under ``deepheap run``
it is there already; elsewhere it is loaded at the first use, and the C library's calls of Python
and its modules are brought to it, so that files and sockets work with memory that is not in RAM.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from pathlib import Path
from typing import Any

from . import _native

#: Where the wheel has put the library and the command.
FOLDER = Path(__file__).resolve().parent / "_lib"

OBJECT_ERROR = -7
STARTED_ERROR = -2


class Error(Exception):
    """An error of deepheap, with its reason in a sentence.

    ``code`` is the number that ``deepheap.h`` gives the error (``DH_E...``); 0 if it has none.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


# Tracebacks show it as the name that programs catch.
Error.__module__ = "deepheap"


class Library:
    """The functions of the library, with their types."""

    def __init__(self) -> None:
        handle, self.was_there = _native.open_library(str(FOLDER / "libdeepheap_preload.so"))
        #: The settings with which ``init`` has started it.
        self.started_with: bytes | None = None
        calls = ctypes.CDLL(None, handle=handle)
        text, address, size = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t
        number, count = ctypes.c_int, ctypes.c_ssize_t

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(calls, name)
            found.restype, found.argtypes = result, arguments
            return found

        self.init = function("dh_init", number, text)
        self.strerror = function("dh_strerror", text, number)
        self.stats_json = function("dh_stats_json", size, text, size)
        self.free = function("dh_free", None, address)
        self.read = function("dh_read", number, address, size, address, size)
        self.write = function("dh_write", number, address, size, address, size)
        self.gather = function("dh_gather", count, address, size, size, size, address)
        self.scatter = function("dh_scatter", count, address, size, size, size, address)
        self.prefetch = function("dh_prefetch", count, address, size)
        self.pin = function("dh_pin", number, address)
        self.unpin = function("dh_unpin", number, address)
        self.open = function("dh_open", address, text, text)
        self.last_error = function("dh_last_error", text)
        self.heap_aligned = function("dh_heap_aligned_alloc", address, address, size, size)
        self.set_root = function("dh_set_root", number, address, text, address)
        self.root = function("dh_root", address, address, text)
        self.checkpoint = function("dh_checkpoint_info", number, address, address)
        self.map = function("dh_map", address, text, size, number, ctypes.c_uint32)
        self.unmap = function("dh_unmap", number, address)
        self.sync = function("dh_sync", number, address, size)
        self.map_advise = function("dh_map_advise", number, address, size, number)
        self.close = function("dh_close", number, address)

    def error(self, code: int) -> Error:
        """The exception for a code ``DH_E...``."""
        return Error(self.strerror(code).decode(errors="replace"), code)

    def file_error(self, code: int = 0) -> Error:
        """The exception for the last call on a durable heap, which failed."""
        return Error(self.last_error().decode(errors="replace"), code)


_library: Library | None = None
_opening = threading.Lock()


def library() -> Library:
    """The library, opened if need be, and told of what has been loaded since."""
    global _library
    if _library is None:
        with _opening:
            if _library is None:
                _library = Library()
    if not _library.was_there:
        _native.wrap_calls()
    return _library


def settings_text(settings: dict[str, Any]) -> bytes:
    """Settings as a text of ``key:value`` pairs; those that are None are left out."""
    pairs = []
    for key, value in settings.items():
        if value is None:
            continue
        if isinstance(value, bool):
            value = "yes" if value else "no"
        text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
        if "\0" in text:
            raise ValueError(f"the setting {key} has a zero byte")
        text = text.replace("\\", "\\\\").replace(",", "\\,")
        if text.endswith(" "):
            text = text[:-1] + "\\ "
        if text.startswith(" "):
            text = "\\" + text
        pairs.append(f"{key}:{text}")
    return ",".join(pairs).encode()


def init(
    ram: str | int | None = None,
    store: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> bool:
    """Starts deepheap with these settings. Call it before the first array is made.

    ``ram`` is the RAM budget: ``"4G"``, ``"50%"`` or a number of bytes. ``store`` is a folder on an
    SSD, a file or a block device. The other settings are those of ``DEEPHEAP_CONF``:
    ``store_size``, ``store_floor``, ``overcommit``, ``compress``, ``page_buffer``, ``stats``,
    ``show_stats``, ``force``. Sizes are texts as ``"20G"`` or numbers of bytes. Nothing given
    means: the settings of the environment.

    True if deepheap has started. False if the process runs under ``deepheap run`` (or ``python -m
    deepheap``), whose settings stand.

    Raises ``Error`` if a setting is wrong, if the store or the kernel cannot be used, or if
    deepheap has started already with others. With the same settings it may be called again.
    """
    given = settings_text({"ram": ram, "store": store, **settings})
    opened = library()
    if given == opened.started_with:
        return True
    code = opened.init(given or None)
    if code == STARTED_ERROR and opened.was_there:
        return False
    if code != 0:
        raise opened.error(code)
    opened.started_with = given
    return True


def stats() -> dict[str, Any]:
    """One snapshot of what deepheap counts, as ``deepheap stat --json`` prints it.

    Counters begin at the start of the process, sizes are bytes, times nanoseconds. All are 0 before
    deepheap has started.
    """
    opened = library()
    room = 8192
    while True:
        buffer = ctypes.create_string_buffer(room)
        length = opened.stats_json(buffer, room)
        if length < room:
            snapshot: dict[str, Any] = json.loads(buffer.value)
            return snapshot
        room = length + 256
