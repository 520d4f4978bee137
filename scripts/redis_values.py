#!/usr/bin/env python3
"""redis_values.py: fills a Redis server with values and reads every one of them back.

    redis_values.py load --count N --size BYTES | redis-cli -s SOCKET --pipe
    redis_values.py verify --count N --size BYTES --socket SOCKET

A value is derived from its key by SHAKE-128, so it does not compress, and a reader knows it
without having kept it. `verify` asks in scattered order, not in that of loading.

Exit status of verify: 0 if every value is right, 1 with the first wrong keys otherwise.
Needs nothing but the standard library.
"""

import argparse
import hashlib
import math
import socket
import sys
import time

# Requests on their way at once: enough to keep the server busy, few enough for its buffers.
PIPELINE = 128
# Wrong keys that are named.
TOLD_MAX = 5


def key_of(index):
    """The key of a number."""
    return b"key:%010d" % index


def value_of(key, size):
    """The value of a key."""
    return hashlib.shake_128(key).digest(size)


def command(*words):
    """A command as RESP, the protocol of Redis."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def scattered(count):
    """The numbers below count in an order that is not their own."""
    stride = int(count * 0.618) | 1
    while math.gcd(stride, count) != 1:
        stride += 2
    return ((i * stride) % count for i in range(count))


class Progress:
    """A line on stderr: rewritten in place on a terminal, a few lines elsewhere."""

    def __init__(self, what, count, size):
        self.what, self.count, self.size = what, count, size
        self.started = time.monotonic()
        self.is_terminal = sys.stderr.isatty()
        self.next_told = 0

    def tell(self, done):
        """Says how far it is, now and then."""
        if done < self.next_told:
            return
        step = max(1, self.count // (100 if self.is_terminal else 4))
        # The end is told, and told once.
        self.next_told = min(done + step, self.count) if done < self.count else self.count + 1
        rate = done / max(time.monotonic() - self.started, 1e-6)
        mib = done * self.size / (1 << 20)
        text = f"  {self.what:<9} {mib:6.0f} MiB  {100 * done // self.count:3d} %  {rate:8.0f}/s"
        end = "\r" if self.is_terminal and done < self.count else "\n"
        print(text, end=end, file=sys.stderr, flush=True)


def load(count, size):
    """Writes one SET a value to stdout."""
    progress = Progress("loading", count, size)
    batch = []
    for index in range(count):
        key = key_of(index)
        batch.append(command(b"SET", key, value_of(key, size)))
        if len(batch) == PIPELINE:
            sys.stdout.buffer.write(b"".join(batch))
            batch.clear()
            progress.tell(index + 1)
    sys.stdout.buffer.write(b"".join(batch))
    sys.stdout.buffer.flush()
    progress.tell(count)


def read_bulk(stream):
    """One bulk reply; None if the key is not there."""
    line = stream.readline()
    if not line.startswith(b"$"):
        raise ConnectionError(f"the server answers {line!r}")
    length = int(line[1:])
    if length < 0:
        return None
    data = stream.read(length + 2)
    if len(data) != length + 2:
        raise ConnectionError("the server hung up within a value")
    return data[:-2]


def wrong_keys(keys, size, connection, stream):
    """Those of some keys whose values are not what they must be."""
    connection.sendall(b"".join(command(b"GET", key) for key in keys))
    return [key for key in keys if read_bulk(stream) != value_of(key, size)]


def verify(count, size, path):
    """Reads every value back; returns the exit status."""
    progress = Progress("verifying", count, size)
    wrong = []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        stream = connection.makefile("rb", buffering=1 << 20)
        done, batch = 0, []
        for index in scattered(count):
            batch.append(key_of(index))
            if len(batch) == PIPELINE or done + len(batch) == count:
                wrong += wrong_keys(batch, size, connection, stream)
                done += len(batch)
                batch.clear()
                progress.tell(done)
    for key in wrong[:TOLD_MAX]:
        print(f"  wrong value: {key.decode()}", file=sys.stderr)
    print(f"{count - len(wrong)} of {count} values are right")
    return 1 if wrong else 0


def self_test():
    """What can be checked without a server."""
    for count in (1, 2, 3, 8, 100, 1024, 4097):
        assert sorted(scattered(count)) == list(range(count)), count
    assert command(b"GET", b"a") == b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n"
    assert value_of(key_of(1), 100) != value_of(key_of(2), 100)
    assert len(value_of(key_of(1), 4096)) == 4096
    return 0


def main():
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("load", "verify", "self-test"))
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--socket")
    arguments = parser.parse_args()
    if arguments.what == "self-test":
        return self_test()
    if arguments.what == "load":
        return load(arguments.count, arguments.size)
    return verify(arguments.count, arguments.size, arguments.socket)


if __name__ == "__main__":
    sys.exit(main())
