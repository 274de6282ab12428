# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Bounded HTTP to the server on this host, and what its pages say."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Optional

_MAX_BODY = 8 << 20
_METRIC = re.compile(r"^(?:sglang:)?(\w+)(?:\{[^}]*\})?\s+([0-9.eE+-]+|NaN|[+-]Inf)\s*$")
_COUNTERS = ("realtime_tokens_total", "num_running_reqs", "num_queue_reqs", "http_requests_active")
_DECODED = re.compile(r'^(?:sglang:)?realtime_tokens_total\{[^}]*\bmode="decode"[^}]*\}')
_INFO_KEYS = (
    "version",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "context_length",
    "max_total_num_tokens",
    "model_path",
    "served_model_name",
    "tp_size",
    "mem_fraction_static",
    "disable_custom_all_reduce",
    "num_continuous_decode_steps",
    "max_running_requests",
)


def local(bind: Optional[str]) -> str:
    """Address at which this host reaches a server bound to ``bind``."""
    if bind in (None, "", "0.0.0.0", "localhost"):  # noqa: S104
        return "127.0.0.1"
    return "::1" if bind in ("::", "[::]") else (bind or "").strip("[]")


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread after ``seconds``, also from a read that drips; other threads get no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(_number: int, _frame: Any) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def request(
    host: str, port: int, path: str, timeout: float, body: Optional[Mapping[str, Any]] = None, api_key: Optional[str] = None
) -> dict[str, Any]:
    """One request, bounded as a whole. What came before a timeout is kept in ``text``.

    :returns: ``result`` (ok for any status code, timeout, refused, error), ``code``, ``seconds``, ``text``, ``error``.
    """
    answer: dict[str, Any] = {"result": "ok", "code": None, "text": "", "error": None}
    headers = {"Accept": "*/*", "Connection": "close"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    started = time.monotonic()
    body_read = bytearray()
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        with limit(timeout):
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body).encode(), headers)
            response = connection.getresponse()
            answer["code"] = response.status
            _read(response, body_read)
    except TimeoutError:  # socket.timeout is the same class from Python 3.10 on
        answer["result"] = "timeout"
    except ConnectionRefusedError:
        answer["result"] = "refused"
    except (OSError, http.client.HTTPException, ValueError) as error:
        timed_out = isinstance(error, OSError) and str(error) == "timed out"
        answer.update(result="timeout" if timed_out else "error", error=f"{type(error).__name__}: {error}"[:200])
    finally:
        connection.close()
    answer["text"] = body_read.decode("utf-8", "replace")
    answer["seconds"] = round(time.monotonic() - started, 3)
    return answer


def _read(response: http.client.HTTPResponse, into: bytearray) -> None:
    while len(into) < _MAX_BODY:
        block = response.read1(_MAX_BODY - len(into))
        if not block:
            break
        into += block
    if response.length and len(into) < _MAX_BODY:
        raise http.client.IncompleteRead(b"", response.length)


def document(answer: Mapping[str, Any]) -> dict[str, Any]:
    """JSON object of an answer, empty if there is none."""
    try:
        value = json.loads(answer["text"]) if answer["result"] == "ok" else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def health(host: str, port: int, timeout: float) -> dict[str, Any]:
    """``/health``. A healthy answer takes a second, an honest 503 twenty; run it beside no other probe."""
    answer = request(host, port, "/health", timeout)
    result = answer["result"]
    if result == "ok":
        result = {200: "ok", 503: "unavailable"}.get(answer["code"], "error")
    return {"result": result, "code": answer["code"], "seconds": answer["seconds"], "error": answer["error"]}


def models(host: str, port: int, timeout: float, api_key: Optional[str] = None) -> dict[str, Any]:
    """``/v1/models``: answers as soon as the port is open, so it proves nothing but the names."""
    answer = request(host, port, "/v1/models", timeout, api_key=api_key)
    data = document(answer).get("data")
    rows = [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []
    return {
        "result": _result(answer),
        "code": answer["code"],
        "seconds": answer["seconds"],
        "ids": [str(row.get("id")) for row in rows],
        "max_model_len": rows[0].get("max_model_len") if rows else None,
    }


def server_info(host: str, port: int, timeout: float, api_key: Optional[str] = None) -> dict[str, Any]:
    """``/server_info``: goes through the scheduler, so it hangs with it. Only chosen keys: the page leaks secrets."""
    answer = request(host, port, "/server_info", timeout, api_key=api_key)
    page = document(answer)
    states = page.get("internal_states")
    inner = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    info = {key: page[key] if page.get(key) is not None else inner.get(key) for key in _INFO_KEYS}
    return {"result": _result(answer), "code": answer["code"], "seconds": answer["seconds"], **info}


def metrics(host: str, port: int, timeout: float) -> Optional[dict[str, Any]]:
    """Chosen counters of ``/metrics``, null without the page."""
    answer = request(host, port, "/metrics", timeout)
    return parse_metrics(answer["text"]) if answer["result"] == "ok" and answer["code"] == 200 else None


def parse_metrics(text: str) -> dict[str, Optional[float]]:
    """Sums over all label sets of the counters that show progress, and the decoded tokens alone; null for what the page does not have."""
    sums: dict[str, Optional[float]] = dict.fromkeys((*_COUNTERS, "decode_tokens_total"))
    for line in text.splitlines():
        match = _METRIC.match(line)
        if match and match.group(1) in _COUNTERS:
            try:
                value = float(match.group(2))
            except ValueError:
                continue
            if not math.isfinite(value):
                continue
            for name in (match.group(1), *(["decode_tokens_total"] if _DECODED.match(line) else [])):
                sums[name] = (sums[name] or 0.0) + value
    return sums


def _result(answer: Mapping[str, Any]) -> str:
    if answer["result"] == "ok" and answer["code"] != 200:
        return "error"
    return str(answer["result"])
