#!/usr/bin/env python3
"""shards.py: one cache over several memcached servers, each of which may hold more than its RAM.

    shards.py check ADDRESS...      values into all of them and back, from every server its part

An address is HOST:PORT, or the path of a socket. The client decides where a key lives: for each
server the key and the server's name are hashed together, and the largest hash wins (rendezvous
hashing, Thaler and Ravishankar 1998). So all clients agree without a word between them, every
server has an equal part, and when one is lost only its own keys move.
"""

import hashlib
import socket
import sys


class Server:
    """A connection to a memcached server, by its text protocol."""

    def __init__(self, address):
        self.address = address
        host, _, port = address.rpartition(":")
        if "/" in address:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(address)
        else:
            self.socket = socket.create_connection((host, int(port)))
        self.answers = self.socket.makefile("rb")

    def set_many(self, values):
        """Sets many values with one round trip."""
        requests = [b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), len(value), value)
                    for key, value in values.items()]
        self.socket.sendall(b"".join(requests))
        for key in values:
            if (answer := self.answers.readline()) != b"STORED\r\n":
                raise OSError(f"{self.address} does not store {key}: {answer!r}")

    def get_many(self, keys):
        """The values of those keys that it has, with one round trip."""
        self.socket.sendall(b"get %s\r\n" % " ".join(keys).encode())
        found = {}
        while (line := self.answers.readline()) != b"END\r\n":
            if not line:
                raise OSError(f"{self.address} has gone")
            _, key, _, length = line.split()
            found[key.decode()] = self.answers.read(int(length) + 2)[:-2]
        return found


class Shards:
    """Servers that share the keys among them."""

    def __init__(self, addresses):
        self.servers = [Server(address) for address in addresses]

    def server_of(self, key):
        """Where a key lives."""
        def weight(server):
            return hashlib.blake2b(f"{server.address} {key}".encode(), digest_size=8).digest()
        return max(self.servers, key=weight)

    def parts(self, keys):
        """The keys of each server."""
        parts = {server: [] for server in self.servers}
        for key in keys:
            parts[self.server_of(key)].append(key)
        return parts

    def set_many(self, values):
        """Sets many values, each where it lives."""
        for server, keys in self.parts(values).items():
            server.set_many({key: values[key] for key in keys})

    def get_many(self, keys):
        """The values of those keys that are there."""
        found = {}
        for server, part in self.parts(keys).items():
            if part:
                found |= server.get_many(part)
        return found


def value_of(number):
    """A value of a kilobyte that does not compress."""
    return hashlib.shake_128(str(number).encode()).digest(1000)


def check(addresses, count=60_000, batch=500):
    """Values into all servers and back; then without the last of several."""
    shards = Shards(addresses)
    batches = [range(at, at + batch) for at in range(0, count, batch)]
    for numbers in batches:
        shards.set_many({f"key{number}": value_of(number) for number in numbers})
    parts = shards.parts(f"key{number}" for number in range(count))
    for server, keys in parts.items():
        print(f"{server.address} has {len(keys)} of {count} values")
    for servers in filter(None, (addresses, addresses[:-1])):
        rest, found = Shards(servers), 0
        for numbers in batches:
            values = rest.get_many([f"key{number}" for number in numbers])
            found += len(values)
            for key, value in values.items():
                if value != value_of(key.removeprefix("key")):
                    sys.exit(f"{key} is not what it was")
        wanted = sum(len(parts[server]) for server in shards.servers[: len(servers)])
        if found != wanted:
            sys.exit(f"{found} values are there, and not {wanted}")
        print(f"{len(servers)} of the servers give {found} values, all right")


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] != "check":
        sys.exit(__doc__)
    check(sys.argv[2:])
