# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the ranks of several nodes meet: rank 0 listens on --dist-init-addr, the ranks of other nodes connect. JSON lines on a socket."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from multiprocessing.connection import Connection
from typing import Any, Union


class Wire:
    """One rank of another node, with the manners of a multiprocessing Connection. Values are what JSON can say."""

    def __init__(self, stream: socket.socket) -> None:
        self._socket = stream
        self._buffer = b""

    def fileno(self) -> int:
        """For waiting on it."""
        return self._socket.fileno()

    def send(self, value: Any) -> None:
        """Send one value. OSError when the other side is gone."""
        self._socket.sendall(json.dumps(value).encode() + b"\n")

    def recv(self) -> Any:
        """The next value. EOFError when the other side is gone."""
        while b"\n" not in self._buffer:
            data = self._socket.recv(65536)
            if not data:
                raise EOFError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def poll(self, timeout: float = 0.0) -> bool:
        """Whether something can be received within ``timeout`` seconds."""
        return b"\n" in self._buffer or bool(select.select([self._socket], [], [], timeout)[0])


Peer = Union[Connection, Wire]


def address(text: str) -> tuple[str, int]:
    """Host and port of --dist-init-addr."""
    host, _, port = text.rpartition(":")
    return host.rpartition("//")[2].strip("[]"), int(port)


def listen(where: str) -> socket.socket:
    """The socket of rank 0; it stays open for as long as the server lives, as the real store does."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address(where))
    listener.listen(64)
    return listener


def gather(listener: socket.socket, count: int, timeout: float) -> dict[int, Wire]:
    """Wait for ``count`` ranks of other nodes: rank -> wire. DistStoreError after ``timeout`` s."""
    found: dict[int, Wire] = {}
    begin = time.monotonic()
    while len(found) < count:
        listener.settimeout(max(0.01, begin + timeout - time.monotonic()))
        try:
            stream = listener.accept()[0]
            stream.settimeout(5)
            wire = Wire(stream)
            rank = int(wire.recv())
            stream.settimeout(None)
            found[rank] = wire
        except (socket.timeout, EOFError, ValueError):
            if time.monotonic() - begin >= timeout:
                raise DistStoreError(
                    "Timed out after %d seconds waiting for clients. %d/%d clients joined." % (int(timeout) + 1, len(found) + 1, count + 1)
                ) from None
    return found


def join(where: str, rank: int, timeout: float) -> Wire:
    """Connect to rank 0, again and again until it listens. DistNetworkError after ``timeout`` s."""
    begin = time.monotonic()
    host, port = address(where)
    while True:
        with contextlib.suppress(OSError):
            stream = socket.create_connection((host, port), 5)
            stream.settimeout(None)
            wire = Wire(stream)
            wire.send(rank)
            return wire
        if time.monotonic() - begin >= timeout:
            raise DistNetworkError(
                "The client socket has timed out after %dms while trying to connect to (%s, %d)." % (int(timeout * 1000), host, port)
            )
        time.sleep(0.5)


class DistStoreError(RuntimeError):
    """torch's error of the rank that waits."""

    __module__ = "torch.distributed"


class DistNetworkError(RuntimeError):
    """torch's error of a rank that can not connect."""

    __module__ = "torch.distributed"
