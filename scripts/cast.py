#!/usr/bin/env python3
"""cast.py OUT: runs the commands below in a terminal and writes what it showed as a moving SVG.

Each command is a line for bash; one that begins with # is shown, not run. What was written over is
shown as it stood last. Pauses of more than a second are cut to one.
"""

import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

COMMANDS = [
    "seq 3000000 | shuf --random-source=<(yes) > numbers",
    "# an unmodified program ...",
    "/usr/bin/time -f '%M KB of RAM, %e s' sort -S 1G numbers | md5sum",
    "# ... and the same program with a RAM budget of 64 MB",
    "deepheap run --ram 64M --show-stats -- sort -S 1G numbers | md5sum",
]
BINARIES = Path(__file__).resolve().parent.parent / "target" / "release"

COLUMNS = 110
LINE = 19
LETTER = 8.43
MARGIN = 14
PAUSE = 1.0
TYPING = 0.04
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")

HEAD = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" xml:space="preserve" role="img" aria-label="deepheap in a terminal">
<style>
text {{ font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d0d7de; \
white-space: pre }}
.typed {{ fill: #7ee787 }}
.line {{ opacity: 0; animation: shown 0.01s linear forwards }}
@keyframes shown {{ to {{ opacity: 1 }} }}
@media (prefers-reduced-motion: reduce) {{ .line {{ animation: none; opacity: 1 }} }}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>
"""


def record(command, folder):
    """What a command shows: lines with the seconds since its start."""
    parent, child = pty.openpty()
    environment = {**os.environ, "PATH": f"{BINARIES}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", command], cwd=folder, env=environment,
        stdin=subprocess.DEVNULL, stdout=child, stderr=child)
    os.close(child)
    start, text, lines, seen = time.monotonic(), "", [], 0.0
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # the terminal is closed
            piece = b""
        if not piece:
            break
        seen = time.monotonic() - start
        text += piece.decode(errors="replace")
        *ended, text = text.replace("\r\n", "\n").split("\n")
        lines += [(seen, line) for line in ended]
    if text:
        lines.append((seen, text))
    os.close(parent)
    status = process.wait()
    if status != 0:
        sys.exit(f"cast.py: '{command}' ended with status {status}")
    # What a carriage return wrote over is not shown.
    return [(seen, CONTROL.sub("", line).rstrip("\r").split("\r")[-1]) for seen, line in lines]


def shown(folder):
    """All lines: when they appear, what they are, and whether they were typed."""
    now, rows = 0.5, []
    for command in COMMANDS:
        if command.startswith("#"):
            rows.append((now, command, True))
            now += PAUSE
            continue
        now += TYPING * len(command)
        rows.append((now, "$ " + command, True))
        before = 0.0
        for seen, line in record(command, folder):
            now += min(seen - before, PAUSE)
            before = seen
            rows += [(now, line[at:at + COLUMNS], False)
                     for at in range(0, max(len(line), 1), COLUMNS)]
        now += PAUSE
    return rows


def main():
    """Records, and writes the file."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    # Not in /tmp, which may be in memory: the store is there, too.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        rows = shown(folder)
    width = round(COLUMNS * LETTER + 2 * MARGIN)
    height = len(rows) * LINE + 2 * MARGIN
    svg = HEAD.format(width=width, height=height)
    for number, (when, line, is_typed) in enumerate(rows):
        kind = "line typed" if is_typed else "line"
        y = MARGIN + LINE * number + 15
        svg += (f'<text class="{kind}" x="{MARGIN}" y="{y}" '
                f'style="animation-delay: {when:.2f}s">{escape(line)}</text>\n')
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write(svg + "</svg>\n")


main()
