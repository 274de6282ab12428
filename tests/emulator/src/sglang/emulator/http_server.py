# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP surface. Bound only when all ranks are ready; one thread per connection."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Optional

from sglang import __version__
from sglang.emulator import metrics
from sglang.emulator.args import bool_env
from sglang.emulator.frontend import STARTING, UNHEALTHY, BadRequestError, DisconnectedError, Frontend
from sglang.emulator.generation_api import Generation
from sglang.emulator.log import Log

OPEN_PREFIXES = ("/health", "/ready", "/metrics")
PHRASES = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 503: "Service Unavailable"}


class Server(ThreadingHTTPServer):
    """The listening socket; OSError (EADDRINUSE) when the port is taken."""

    daemon_threads = True
    allow_reuse_port = False
    request_queue_size = 256

    def __init__(self, host: str, port: int, frontend: Frontend, log: Log, access: Log, environment: dict[str, str]) -> None:
        self.frontend, self.log, self.access, self.environment = frontend, log, access, environment
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        # the base class looks the host name up, which can take seconds
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are no news."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server
    server_version, sys_version = "uvicorn", ""

    def log_message(self, *args: Any) -> None:
        """Access lines are written by _head."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        front = self.server.frontend
        path = self.path.partition("?")[0]
        length = int(self.headers.get("Content-Length") or 0)
        self._body = self.rfile.read(length) if length else b""
        counted = path != "/metrics"
        with front.lock:
            front.active_http += counted
        try:
            while front.dying:
                time.sleep(1)
            if self._authorized(path):
                self._route(path)
            else:
                self._json(401, {"error": "Unauthorized"})
        except DisconnectedError:
            self.close_connection = True
        except BadRequestError as error:
            self._error(path, str(error))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except (TypeError, AttributeError, KeyError, ValueError) as error:
            self._error(path, "%s: %s" % (type(error).__name__, error))
        finally:
            with front.lock:
                front.active_http -= counted

    def _authorized(self, path: str) -> bool:
        key = self.server.frontend.args["api_key"]
        return not key or path.startswith(OPEN_PREFIXES) or self.headers.get("Authorization") == "Bearer %s" % key

    def _route(self, path: str) -> None:
        front, args = self.server.frontend, self.server.frontend.args
        if path in ("/v1/chat/completions", "/v1/completions", "/generate"):
            return self._generation(path)
        if path == "/health" and not bool_env(self.server.environment.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"), True):
            return self._empty(503 if front.status == STARTING or front.draining else 200)
        if path in ("/health", "/health_generate"):
            return self._empty(front.health())
        if path in ("/ready", "/ping"):
            return self._empty(503 if front.status in (STARTING, UNHEALTHY) or front.draining else 200)
        if path == "/v1/models":
            name = args["served_model_name"]
            card = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "sglang", "root": name, "parent": None,
                    "max_model_len": front.info["context_length"]}  # fmt: skip
            return self._json(200, {"object": "list", "data": [card]})
        if path in ("/model_info", "/get_model_info"):
            self._deprecated(path)
            return self._json(200, self._model_info())
        if path in ("/server_info", "/get_server_info"):
            self._deprecated(path)
            state = front.internal_state(self._connected)
            info = {key: front.info[key] for key in ("status", "max_total_num_tokens", "max_req_input_len")}
            answer = {**args, **info, "internal_states": [{**state, **self._memory()}], "version": __version__,
                      "startup_time": front.info["startup_s"]}  # fmt: skip
            return self._json(200, answer)
        if path == "/metrics" and args["enable_metrics"]:
            return self._send(200, metrics.prometheus(front).encode(), "text/plain; version=0.0.4; charset=utf-8")
        if path == "/v1/loads":
            return self._json(200, metrics.loads(front, front.info["accelerator"]))
        if path in ("/freeze_gc", "/flush_cache"):
            return self._send(200, b"Cache flushed.\n" if path == "/flush_cache" else b"Garbage collection frozen.\n", "text/plain")
        if path == "/abort_request":
            front.send({"kind": "abort", "rid": self._payload().get("rid", "")})
            return self._empty(200)
        self._json(404, {"detail": "Not Found"})
        return None

    def _model_info(self) -> dict[str, Any]:
        front = self.server.frontend
        keys = ("model_path", "served_model_name", "tokenizer_path", "preferred_sampling_params", "weight_version", "tool_call_parser",
                "reasoning_parser", "load_format")  # fmt: skip
        model = front.model
        return {
            **{key: front.args.get(key) for key in keys},
            "is_generation": True,
            "has_image_understanding": model["vision"],
            "has_audio_understanding": False,
            "model_type": model["model_type"],
            "architectures": model["architectures"],
        }

    def _memory(self) -> dict[str, Any]:
        info = self.server.frontend.info
        usage = {
            "weight": round(info["weights_gib"], 2),
            "kvcache": round(info["kv_gib"], 2),
            "token_capacity": info["max_total_num_tokens"],
        }
        return {"memory_usage": usage, "effective_max_running_requests_per_dp": 2048}

    def _deprecated(self, path: str) -> None:
        if path.startswith("/get_"):
            self.server.log.warning(
                "Endpoint '%s' is deprecated and will be removed in a future version. Please use '/%s' instead." % (path, path[5:])
            )

    def _generation(self, path: str) -> None:
        run = Generation(path, self._payload(), self.server.frontend, self._connected)
        if not self._payload().get("stream"):
            return self._json(200, run.whole())
        self._head(200, "text/event-stream; charset=utf-8", None)
        for event in run.events():
            self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")
        return None

    # plumbing

    def _payload(self) -> dict[str, Any]:
        try:
            body = json.loads(self._body or b"{}")
        except ValueError:
            raise BadRequestError("The request body is not valid JSON.") from None
        if not isinstance(body, dict):
            raise BadRequestError("The request body must be a JSON object.")
        return body

    def _connected(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        try:
            return not readable or bool(self.connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _head(self, code: int, kind: Optional[str], length: Optional[int]) -> None:
        host, port = self.client_address[:2]
        line = '%s:%d - "%s %s HTTP/1.1" %d %s' % (host, port, self.command, self.path, code, PHRASES.get(code, ""))
        if not self.path.startswith(tuple(self.server.frontend.args["uvicorn_access_log_exclude_prefixes"] or ()) or ("\0",)):
            self.server.access.info("INFO:     " + line)
        self.send_response(code)
        if kind:
            self.send_header("Content-Type", kind)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _send(self, code: int, data: bytes, kind: Optional[str]) -> None:
        self._head(code, kind, len(data))
        self.wfile.write(data)

    def _empty(self, code: int) -> None:
        self._send(code, b"", None)

    def _json(self, code: int, value: Any) -> None:
        self._send(code, json.dumps(value).encode(), "application/json")

    def _error(self, path: str, message: str) -> None:
        if path == "/generate":
            return self._json(400, {"error": {"message": message}})
        self._json(400, {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400})
        return None


def serve_in_background(server: Server) -> None:
    """Start accepting connections."""
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 1.0}, daemon=True).start()
