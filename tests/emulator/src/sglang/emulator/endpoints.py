# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages of a server: which paths and methods there are, who may ask, and what each answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

from sglang.emulator import infos, metrics, validation
from sglang.emulator.args import bool_env
from sglang.emulator.frontend import STARTING, BadRequestError, Frontend
from sglang.emulator.generation_api import Generation
from sglang.emulator.http_server import Handler
from sglang.emulator.log import Log, traceback_text

OPEN_PREFIXES = ("/health", "/ready", "/metrics")
GENERATION = ("/generate", "/v1/completions", "/v1/chat/completions")
# path -> methods, in the order of the real server's ``allow`` header
ROUTES: dict[str, tuple[str, ...]] = {
    "/": ("GET",),
    "/health": ("GET",),
    "/health_generate": ("GET",),
    "/ready": ("GET",),
    "/ping": ("GET",),
    "/v1/models": ("GET",),
    "/v1/loads": ("GET",),
    "/model_info": ("GET",),
    "/get_model_info": ("GET",),
    "/server_info": ("GET",),
    "/get_server_info": ("GET",),
    "/freeze_gc": ("GET", "POST"),
    "/flush_cache": ("GET", "POST"),
    "/abort_request": ("POST",),
    "/generate": ("PUT", "POST"),
    "/v1/completions": ("POST",),
    "/v1/chat/completions": ("POST",),
}
SECTIONS = ("all", "core", "disagg", "lora", "memory", "queues", "spec")
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


class Endpoints:
    """Answers the requests of all connections."""

    def __init__(self, frontend: Frontend, log: Log, uvicorn: Log, environment: dict[str, str]) -> None:
        self.front, self.log, self.uvicorn, self.environment = frontend, log, uvicorn, environment

    def __call__(self, request: Handler) -> None:
        while self.front.blocked:
            time.sleep(0.5)
        with self.front.counted(_page(request.path), request.command) as answered:
            try:
                if self._authorized(request):
                    self._route(request)
                else:
                    request.json(401, {"error": "Unauthorized"})
            except BadRequestError as error:
                self._refuse(request, str(error))
            except validation.PlainError as error:
                request.json(400, {"error": str(error)})
            except validation.InvalidBodyError as error:
                request.json(400, {"object": "error", "message": error.text, "type": "Bad Request", "param": None, "code": 400})
            except (TypeError, AttributeError, KeyError, ValueError) as error:
                request.send(500, b"Internal Server Error", "text/plain; charset=utf-8", vary=False)
                self.uvicorn.error("ERROR:    Exception in ASGI application\n" + traceback_text(error, []))
            answered(request.status)

    def _authorized(self, request: Handler) -> bool:
        key = self.front.args["api_key"]
        return not key or request.path.startswith(OPEN_PREFIXES) or request.headers.get("Authorization") == "Bearer %s" % key

    def _refuse(self, request: Handler, message: str) -> None:
        if request.path == "/generate":
            return request.json(400, {"error": {"message": message}})
        return request.json(400, {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400})

    def _route(self, request: Handler) -> None:
        path, front = request.path, self.front
        if path.startswith("/metrics") and front.args["enable_metrics"]:
            request.begin("text/plain; version=0.0.4; charset=utf-8", "Content-Type")
            request.chunk(metrics.prometheus(front).encode())
            return request.chunk(b"")
        if path.startswith("/v1/models/"):
            return self._model(request, path[len("/v1/models/") :])
        if path not in ROUTES:
            return request.json(404, {"detail": "Not Found"})
        if request.command not in ROUTES[path]:
            return request.json(405, {"detail": "Method Not Allowed"}, allow=", ".join(ROUTES[path]))
        if path in GENERATION:
            return self._generation(request)
        if path in ("/health", "/health_generate"):
            return request.empty(self._health(path))
        if path in ("/ready", "/ping"):
            return request.empty(200 if front.ready() else 503)
        if path in ("/freeze_gc", "/flush_cache"):
            return request.send(200, b"Garbage collection frozen.\n" if path == "/freeze_gc" else FLUSHED.encode())
        if path == "/abort_request":
            front.send({"kind": "abort", "rid": validation.read(path, request.body, request.headers.get("Content-Type")).get("rid", "")})
            return request.empty(200)
        return self._page(request)

    def _page(self, request: Handler) -> None:
        path, front = request.path, self.front
        if path == "/":
            return request.json(200, "SGLang is running")
        if path == "/v1/models":
            return request.json(200, {"object": "list", "data": [self._card()]})
        if path == "/v1/loads":
            return self._loads(request)
        if path.startswith("/get_"):
            self.log.warning(
                "Endpoint '%s' is deprecated and will be removed in a future version. Please use '/%s' instead." % (path, path[5:])
            )
        if path.endswith("model_info"):
            return request.json(200, infos.model(front))
        return request.json(200, infos.server(front, front.internal_state()))

    def _health(self, path: str) -> int:
        front = self.front
        if path == "/health" and not bool_env(self.environment.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"), True):
            return 503 if front.status == STARTING or front.draining else 200
        return front.health()

    def _card(self) -> dict[str, Any]:
        name = self.front.args["served_model_name"]
        return {
            "id": name, "object": "model", "created": int(time.time()), "owned_by": "sglang", "root": name, "parent": None,
            "max_model_len": self.front.info["context_length"],
        }  # fmt: skip

    def _model(self, request: Handler, name: str) -> None:
        if request.command != "GET":
            return request.json(405, {"detail": "Method Not Allowed"}, allow="GET")
        if name == self.front.args["served_model_name"]:
            return request.json(200, self._card())
        text = "The model '%s' does not exist" % name
        error = {"message": text, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
        return request.json(404, {"error": error})

    def _loads(self, request: Handler) -> None:
        query = parse_qs(request.query)
        wanted = query.get("include", ["all"])[0].split(",")
        unknown = {name for name in wanted if name not in SECTIONS}
        if unknown:
            raise ValueError("Invalid include sections: %r. Valid options: %r" % (unknown, list(SECTIONS)))
        answer = metrics.loads(self.front, set(wanted), query.get("dp_rank", ["0"])[0] == "0")
        if query.get("format", ["json"])[0] == "prometheus":
            return request.send(200, metrics.loads_text(answer).encode(), "text/plain; version=0.0.4; charset=utf-8")
        return request.json(200, answer)

    def _generation(self, request: Handler) -> None:
        body = validation.read(request.path, request.body, request.headers.get("Content-Type"))
        streaming = bool(body.get("stream"))
        try:
            run = Generation(request.path, body, self.front, request.connected)
        except BadRequestError as error:
            if not streaming or request.path != "/generate":
                raise
            events: Iterator[Any] = iter([_stream_error(str(error))])
        else:
            if not streaming:
                return request.json(200, run.whole())
            events = run.events()
        request.begin("text/event-stream; charset=utf-8")
        for event in events:
            request.chunk(b"data: " + json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n")
        request.chunk(b"data: [DONE]\n\n")
        return request.chunk(b"")


def _page(path: str) -> str:
    """The page's name in the metrics."""
    if path.startswith("/v1/models/"):
        return "/v1/models/{model:path}"
    return path.rstrip("/") or "/"


def _stream_error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}}
