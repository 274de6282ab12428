# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP as uvicorn speaks it: one thread per connection, access lines, plain, JSON and chunked answers. Pages are elsewhere."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Optional

from sglang.emulator.log import Log

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class DisconnectedError(Exception):
    """The client went away."""


class Server(ThreadingHTTPServer):
    """The listening socket; OSError (EADDRINUSE) when the port is taken. ``pages`` answers one request through its Handler."""

    daemon_threads = True
    allow_reuse_port = False
    request_queue_size = 256

    def __init__(self, host: str, port: int, pages: Callable[[Handler], None], access: Optional[Log], quiet: tuple[str, ...] = ()) -> None:
        self.pages, self.access, self.quiet = pages, access, quiet
        self.connections: set[Handler] = set()
        self.closing = False
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        # the base class looks the host name up, which can take seconds
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are no news."""

    def serve_in_background(self) -> None:
        """Start accepting connections."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 1.0}, daemon=True).start()

    def stop_accepting(self) -> None:
        """Close the listening socket, and the connections on which no request runs."""
        self.closing = True
        self.shutdown()
        self.socket.close()
        for connection in list(self.connections):
            if not connection.busy:
                connection.hang_up()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server
    busy = False  # a request runs
    status = 0  # of the last answer

    def log_message(self, *args: Any) -> None:
        """Access lines are written by _head."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_") and name[3:] in METHODS:
            return self._serve
        raise AttributeError(name)

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self)

    def finish(self) -> None:
        self.server.connections.discard(self)
        super().finish()

    def hang_up(self) -> None:
        """End the connection under a waiting read."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        self.busy = True
        self.path, _, self.query = self.path.partition("?")
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length) if length else b""
        try:
            self.server.pages(self)
        except DisconnectedError:
            self.close_connection = True
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            self.busy = False
            self.close_connection = self.close_connection or self.server.closing

    def connected(self) -> bool:
        """The client is still there."""
        try:
            readable, _, _ = select.select([self.connection], [], [], 0)
            return not readable or bool(self.connection.recv(1, socket.MSG_PEEK))
        except (OSError, ValueError):
            return False

    # answers

    def _head(self, code: int, headers: dict[str, Any]) -> None:
        self.status = code
        host, port = self.client_address[:2]
        if self.server.access and not (self.server.quiet and self.path.startswith(self.server.quiet)):
            target = self.path + ("?" + self.query if self.query else "")
            line = '%s:%d - "%s %s HTTP/1.1" %d %s' % (host, port, self.command, target, code, HTTPStatus(code).phrase)
            self.server.access.info("INFO:     " + line)
        lines = ["HTTP/1.1 %d %s" % (code, HTTPStatus(code).phrase), "date: %s" % formatdate(time.time(), usegmt=True), "server: uvicorn"]
        lines += ["%s: %s" % item for item in headers.items()]
        self.wfile.write("\r\n".join([*lines, "", ""]).encode())

    def send(self, code: int, data: bytes, kind: Optional[str] = None, vary: bool = True, allow: str = "") -> None:
        """An answer of known length."""
        headers: dict[str, Any] = {**({"allow": allow} if allow else {}), "content-length": len(data)}
        if kind:
            headers["content-type"] = kind
        if vary:
            headers["vary"] = "Origin"
        self._head(code, headers)
        if self.command != "HEAD":
            self.wfile.write(data)

    def empty(self, code: int) -> None:
        """A status without a body."""
        self.send(code, b"")

    def json(self, code: int, value: Any, allow: str = "") -> None:
        """A JSON answer."""
        self.send(code, json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(), "application/json", allow=allow)

    def begin(self, kind: str, kind_header: str = "content-type") -> None:
        """The head of a chunked answer."""
        self._head(200, {kind_header: kind, "vary": "Origin", "Transfer-Encoding": "chunked"})

    def chunk(self, data: bytes) -> None:
        """A piece of a chunked answer; the empty one ends it."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
