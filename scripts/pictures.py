#!/usr/bin/env python3
"""pictures.py FOLDER: runs a program under deepheap, looks at it by `deepheap top` and `deepheap
serve`, and writes what they showed to FOLDER/top.svg and FOLDER/serve.png.

Needs pyte, which plays the terminal, Pillow (`pip install pyte pillow`), and chromium.
"""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request
from html import escape
from pathlib import Path

import pyte
from PIL import Image, ImageChops

BINARIES = Path(__file__).resolve().parent.parent / "target" / "release"
COLUMNS, ROWS = 92, 24
LINE, LETTER, MARGIN = 18, 8.43, 14
#: Seconds until the program has begun, and until `top` has something to show.
BEGIN, LOOK = 4, 22
#: Of the window of the browser, which is higher than the page; and what is left below the page.
WIDTH, HEIGHT, BELOW = 1000, 2000, 16

PROGRAM = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
enum { PAGES = 1 << 16, PAGE = 4096 };
static uint64_t state = 1;
static size_t draw(size_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}
static __attribute__((noinline)) void walk_randomly(char *memory) {
    for (int i = 0; i < 1000; i++) {
        memory[draw(i % 4 ? PAGES / 8 : PAGES) * PAGE + 64]++;
    }
}
static __attribute__((noinline)) void write_in_order(char *memory, size_t *at) {
    for (int i = 0; i < 200; i++, *at = (*at + 1) % PAGES) {
        for (size_t byte = 512; byte < PAGE; byte += 512) {
            memory[*at * PAGE + byte] = (char)draw(256);
        }
    }
}
int main(void) {
    char *memory = malloc((size_t)PAGES * PAGE);
    for (size_t i = 0; i < (size_t)PAGES * PAGE; i += 8) {
        memory[i] = (char)draw(i % (2 * PAGE) < PAGE ? 4 : 256);
    }
    for (size_t at = 0;;) {
        walk_randomly(memory);
        write_in_order(memory, &at);
    }
}
"""

#: The terminal's first colours, as pyte names them, and as the picture has them.
COLOURS = {
    "black": "#484f58", "cd0000": "#ff7b72", "00cd00": "#7ee787", "cdcd00": "#e3b341",
    "5c5cff": "#79c0ff", "cd00cd": "#d2a8ff", "00cdcd": "#76e3ea", "7f7f7f": "#8b949e",
}


def colour(name):
    """A colour of the terminal for the picture."""
    return COLOURS.get(name, "#d0d7de")


def look_by_top(pid):
    """What `top` shows of a process, after a while: a screen."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    top = subprocess.Popen(
        [BINARIES / "deepheap", "top", str(pid)], stdin=child, stdout=child, stderr=child,
        start_new_session=True, env={**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"})
    os.close(child)
    end = time.monotonic() + LOOK
    while (left := end - time.monotonic()) > 0:
        if select.select([parent], [], [], left)[0]:
            stream.feed(os.read(parent, 65536))
    os.write(parent, b"q")
    top.wait(10)
    os.close(parent)
    return screen


def look_by_browser(pid, picture):
    """Writes what a browser shows of the page of a process, after a while."""
    serve = subprocess.Popen(
        [BINARIES / "deepheap", "serve", str(pid), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE, text=True)
    try:
        address = next(word for word in serve.stdout.readline().split() if "http://" in word)
        # As a page that is open asks: the process draws the map of its heap when it is asked.
        for _ in range(LOOK):
            with urllib.request.urlopen(address.replace("/?", "/data?"), timeout=5) as data:
                data.read()
            time.sleep(1)
        subprocess.run(
            # The program is to go on meanwhile.
            ["nice", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--window-size={WIDTH},{HEIGHT}", f"--virtual-time-budget={LOOK * 1000}",
             f"--screenshot={picture}", address],
            check=True, stderr=subprocess.DEVNULL)
    finally:
        serve.terminate()
        serve.wait()
    window = Image.open(picture).convert("RGB")
    paper = Image.new("RGB", window.size, window.getpixel((0, HEIGHT - 1)))
    end = ImageChops.difference(window, paper).getbbox()[3] + BELOW
    window.crop((0, 0, WIDTH, min(end, HEIGHT))).quantize(128).save(picture, optimize=True)


def drawn(screen):
    """The screen as an SVG."""
    width, height = round(COLUMNS * LETTER + 2 * MARGIN), ROWS * LINE + 2 * MARGIN
    svg = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'viewBox="0 0 {width} {height}" xml:space="preserve" role="img" '
           'aria-label="deepheap top">\n<style>text { font: 14px ui-monospace, Menlo, Consolas, '
           '"DejaVu Sans Mono", monospace; white-space: pre }</style>\n'
           f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>\n')
    for row in range(ROWS):
        runs = []  # of one style: where it begins, its style, its text
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            front, back = colour(cell.fg), None if cell.bg == "default" else colour(cell.bg)
            if cell.reverse:
                front, back = back or "#0d1117", front
            style = (front, back, cell.bold)
            if runs and runs[-1][1] == style:
                runs[-1][2].append(cell.data)
            else:
                runs.append((column, style, [cell.data]))
        for column, (front, back, bold), letters in runs:
            x, y = MARGIN + column * LETTER, MARGIN + row * LINE
            if back:
                svg += (f'<rect x="{x:.1f}" y="{y}" width="{len(letters) * LETTER:.1f}" '
                        f'height="{LINE}" fill="{back}"/>\n')
            text = "".join(letters)
            if text.strip():
                weight = ' font-weight="bold"' if bold else ""
                svg += (f'<text x="{x:.1f}" y="{y + 14}" fill="{front}"{weight} '
                        f'textLength="{len(letters) * LETTER:.1f}">{escape(text)}</text>\n')
    return svg + "</svg>\n"


def main():
    """Looks, and writes the files."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    pictures = Path(sys.argv[1]).resolve()
    # Not in /tmp, which may be in memory.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        source = Path(folder, "load.c")
        source.write_text(PROGRAM)
        subprocess.run(["cc", "-O1", source, "-o", Path(folder, "load")], check=True)
        load = subprocess.Popen(
            [BINARIES / "deepheap", "run", "--ram", "64M", "--store", folder, "--", "./load"],
            cwd=folder)
        try:
            time.sleep(BEGIN)
            screen = look_by_top(load.pid)
            look_by_browser(load.pid, pictures / "serve.png")
        finally:
            load.kill()
            load.wait()
    (pictures / "top.svg").write_text(drawn(screen), encoding="utf-8")


main()
