# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is seen of a server, as plain JSON without process ids, paths, ports and times."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterable
from typing import Any

from conformance.target import Server

# Lines that mean something, by name. A name is noted once per rank, where it comes first.
MILESTONES = {
    "launch_server_warning": r"'python -m sglang.launch_server' is still supported",
    "usage": r"^usage: ",
    "usage_error": r"error: (?:unrecognized|argument|ambiguous|the following)",
    "refused_setting": r'server_args\.py", line \d+, in resolve_once',
    "unknown_model": r"Unrecognized model in ",
    "bad_repository": r"Repo id must be in the form",
    "server_args": r"\] server_args=\{'model_path': ",
    "chat_template": r"Using default HuggingFace chat template with detected content format: \w+",
    "parallel_begin": r"Init parallel begin\.",
    "parallel_end": r"Init parallel ends\. elapsed=[\d.]+ s",
    "memory_baseline": r"Memory baseline taken\. mem usage=-?[\d.]+ GB",
    "load_begin": r"Load weight begin\. avail mem=[\d.]+ GB",
    "bar_begins": r"Multi-thread loading shards: +0% Completed \| 0/\d+ \[",
    "bar_full": r"Multi-thread loading shards: +100% Completed \| (\d+)/\1 \[",
    "load_end": r"Load weight end\. elapsed=[\d.]+ s, type=\w+, avail mem=[\d.]+ GB, mem usage=-?[\d.]+ GB\.",
    "kv_cache": r"KV Cache is allocated\. dtype: torch\.bfloat16, #tokens: 4096, (?:KV size|K size)",
    "memory_pool": r"Memory pool end\. avail mem=[\d.]+ GB",
    "model_up": r"max_total_num_tokens=4096, chunked_prefill_size=\d+, max_prefill_tokens=\d+, max_running_requests=\d+, context_len=\d+",
    "radix_cache": r"Init Unified Radix Cache\.",
    "tree_cache": r"Tree cache initialized: ",
    "timings": r"Engine startup timings \(s\): load_weight=[\d.]+, kv_cache_allocation=[\d.]+, scheduler_e2e=[\d.]+, cuda_graph=\{.*\}, "
    r"tokenizer_e2e=[\d.]+",
    "started_process": r"INFO: +Started server process \[\d+\]",
    "startup_wait": r"INFO: +Waiting for application startup\.",
    "startup_complete": r"INFO: +Application startup complete\.",
    "uvicorn": r"INFO: +Uvicorn running on http://127\.0\.0\.1:\d+ \(Press CTRL\+C to quit\)",
    "dummy_health": r"Dummy health check server started in background thread at 127\.0\.0\.1:\d+",
    "child_ended": r"Scheduler or DataParallelController \d+ terminated with -?\d+",
    "own_model_info": r'127\.0\.0\.1:\d+ - "GET /model_info HTTP/1\.1" 200 OK',
    "prefill": r"Prefill batch, #new-seq: \d+, #new-token: \d+, #cached-token: \d+, token usage: [\d.]+, #running-req: \d+, "
    r"#queue-req: \d+, ",
    "decode": r"Decode batch, #running-req: \d+, #token: \d+, token usage: [\d.]+, .*gen throughput \(token/s\): [\d.]+, #queue-req: \d+",
    "own_generate": r'127\.0\.0\.1:\d+ - "POST /generate HTTP/1\.1" 200 OK',
    "own_freeze_gc": r'127\.0\.0\.1:\d+ - "POST /freeze_gc HTTP/1\.1" 200 OK',
    "ready": r"The server is fired up and ready to roll!",
    "deprecated_info": r"Endpoint '/get_server_info' is deprecated and will be removed in a future version\. "
    r"Please use '/server_info' instead\.",
    "health_failed": r"Health check failed\. Server couldn't get a response from detokenizer for last 20 seconds\. tic start time: "
    r"\S+\. last_heartbeat time: \S+",
    "address_in_use": r"ERROR: +\[Errno 98\] error while attempting to bind on address \('127\.0\.0\.1', \d+\): address already in use",
    "shutdown_wait": r"INFO: +Waiting for application shutdown\.",
    "shutdown_complete": r"INFO: +Application shutdown complete\.",
    "shutting_down": r"INFO: +Shutting down",
    "waiting_connections": r"INFO: +Waiting for connections to close",
    "waiting_background": r"INFO: +Waiting for background tasks to complete",
    "finished_process": r"INFO: +Finished server process \[\d+\]",
    "warmup_failed": r"Initialization failed\. warmup error: ",
    "init_failed": r"Initialization failed\. Please see the error messages above\.",
    "died_in_start": r"Rank \d+ scheduler died during initialization \(exit code: -?\d+\)",
    "missing_shard": r"RuntimeError: .*\.safetensors",
    "bad_shard": r"SafetensorError: ",
    "scheduler_exception": r"Scheduler hit an exception: Traceback",
    "detokenizer_exception": r"Detokenizer\w* hit an exception: Traceback",
    "peer_reset": r"Connection reset by peer|Connection closed by peer",
    "child_crashed": r"Subprocess (?:scheduler_\d|detokenizer) \(pid=\d+\) crashed with exit code -?\d+\. "
    r"Triggering SIGQUIT for cleanup\.\.\.",
    "sigquit_in_start": r"Received sigquit from a child process\. It usually means the child failed\.",
    "sigquit": r"SIGQUIT received\. signum=None, frame=None\. It usually means one child failed\.",
    "dump_requests": r"Dumping requests before crash",
    "pyspy_dump": r"Pyspy dump for PID \d+|Pyspy failed|All pyspy dump attempts failed",
    "coredump_wait": r"Waiting 60\.0 seconds for CUDA coredumps",
    "watchdog": r"Scheduler watchdog timeout \(self\.watchdog_timeout=[\d.]+, self\.soft=False\)",
    "soft_watchdog": r"\w+ watchdog timeout \(self\.watchdog_timeout=[\d.]+, self\.soft=True\)",
    "watchdog_on": r"Watchdog \w+ initialized\.",
    "sigterm": r"SIGTERM received\. signum=None frame=None\. Draining requests and shutting down\.\.\.",
    "draining": r"Gracefully exiting\.\.\. Remaining number of requests \d+\. Remaining requests remaining_rids=\[.*\]\.",
    "unhealthy_exit": r"Signal SIGTERM received while health check failed\. Force exiting\.",
    "killing_schedulers": r"Schedulers still alive 15s after ShutdownReq, killing them",
    "rendezvous_timeout": r"Timed out after \d+ seconds waiting for clients\. \d/\d clients joined",
    "follower_sigterm": r"SIGTERM received on node_rank",
}
_PATTERNS = {name: re.compile(pattern) for name, pattern in MILESTONES.items()}
# What is written beside a bar stands on the bar's line.
_LINES = re.compile(r"\n|(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_RANK = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d((?: [A-Z_]+\d+)*)\]")


def milestones(text: str, leave_out: Iterable[str] = ()) -> dict[str, list[str]]:
    """Names of milestones in their order, by rank; lines without a rank stand under ``main``."""
    found: dict[str, list[str]] = {}
    skipped = set(leave_out)
    for line in _LINES.split(text):
        match = _RANK.match(line)
        order = found.setdefault(match[1].strip() if match and match[1] else "main", [])
        order.extend(name for name, pattern in _PATTERNS.items() if name not in skipped and name not in order and pattern.search(line))
    return {rank: order for rank, order in found.items() if order}


def tree(server: Server) -> list[dict[str, Any]]:
    """The living processes below main, and main: title, short name, title of the parent."""
    rows = [row for row in server.processes() if row["state"] != "Z"]
    titles = {row["pid"]: _title(server, row["title"]) for row in rows}
    seen = [
        {
            "title": titles[row["pid"]],
            "comm": row["comm"],
            "parent": titles.get(row["ppid"], "outside") if row["pid"] != server.pid else "outside",
        }
        for row in rows
    ]
    return sorted(seen, key=lambda entry: (entry["parent"], entry["title"]))


def _title(server: Server, title: str) -> str:
    if title.startswith(" ".join(server.command)) or " ".join(server.command[1:]) in title:
        words = title.split()
        return "PYTHON SGLANG serve ARGUMENTS" if "-m" not in words[:3] else "PYTHON -m sglang.launch_server ARGUMENTS"
    title = re.sub(r"\S*/bin/python[\d.]*", "PYTHON", title)
    return re.sub(r"\d+", "N", title) if "multiprocessing" in title else title


def states(server: Server) -> dict[str, str]:
    """Title to process state, for the children that have a title of the engine."""
    return {row["title"]: row["state"] for row in server.processes() if row["title"].startswith("sglang::")}


def shape(value: Any, path: str = "") -> dict[str, str]:
    """Key paths of a JSON value with their types. Elements of a list share one path."""
    if isinstance(value, dict):
        found = {path or ".": "object"} if not value else {}
        for key, item in value.items():
            found.update(shape(item, f"{path}.{key}" if path else str(key)))
        return found
    if isinstance(value, list):
        found = {f"{path}[]": "empty"} if not value else {}
        for item in value:
            for key, kind in shape(item, f"{path}[]").items():
                found[key] = kind if found.get(key, kind) == kind else "mixed"
        return found
    kind = "null" if value is None else {bool: "bool", int: "number", float: "number", str: "string"}[type(value)]
    return {path or ".": kind}


def latency(seconds: float) -> str:
    """Class of a duration, wide enough for a busy machine."""
    for bound, name in ((0.9, "at once"), (6, "about a second"), (17, "seconds"), (26, "20 s")):
        if seconds < bound:
            return name
    return "longer"


def duration(seconds: float) -> str:
    """Class of the time that an end takes."""
    for bound, name in ((13, "seconds"), (40, "half a minute"), (240, "minutes")):
        if seconds < bound:
            return name
    return "longer"


def ask(
    port: int,
    path: str,
    body: Any = None,
    method: str = "",
    timeout: float = 8.0,
    raw: bytes | None = None,
    timed: bool = True,
    shaped: bool = True,
) -> dict[str, Any]:
    """One request: {status, latency, type, shape}; ``hangs`` as status when nothing comes within ``timeout``."""
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    started = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method or ("GET" if data is None else "POST"), path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
    except TimeoutError:
        return {"status": "hangs"}
    except ConnectionRefusedError:
        return {"status": "refused"}
    except (OSError, http.client.HTTPException):
        return {"status": "hangs up"}
    finally:
        connection.close()
    seen: dict[str, Any] = {"status": answer.status, "type": answer.headers.get("Content-Type"), "shape": _body(text, shaped)}
    if timed:
        seen["latency"] = latency(time.monotonic() - started)
    return seen


def _body(text: str, shaped: bool) -> Any:
    if not text.strip():
        return "empty"
    try:
        value = json.loads(text)
    except ValueError:
        return "text"
    return shape(value) if shaped else "json"


def quick(port: int, path: str, **more: Any) -> dict[str, Any]:
    """:func:`ask`, again if the machine was busy: the fastest of three answers tells what the server needs."""
    seen: dict[str, Any] = {}
    for _attempt in range(3):
        seen = ask(port, path, **more)
        if seen.get("latency") == "at once" or seen["status"] in ("hangs", "refused", "hangs up"):
            break
    return seen


def together(port: int, requests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Requests side by side, by name; each is the arguments of :func:`ask`."""
    seen: dict[str, Any] = {}

    def one(name: str, arguments: dict[str, Any]) -> None:
        seen[name] = ask(port, **arguments)

    threads = [threading.Thread(target=one, args=item) for item in requests.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(sorted(seen.items()))


def stream(port: int, path: str, body: dict[str, Any], timeout: float = 60.0) -> dict[str, Any]:
    """A streamed answer: its framing, the shapes of its events without repetitions, and what comes last."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
    finally:
        connection.close()
    events = text.split("\n\n")
    shapes: list[Any] = []
    for event in events[:-1]:
        data = event.removeprefix("data: ")
        seen = data if data == "[DONE]" else shape(json.loads(data))
        if seen not in shapes:
            shapes.append(seen)
    return {
        "status": answer.status,
        "type": answer.headers.get("Content-Type"),
        "transfer": answer.headers.get("Transfer-Encoding"),
        "framing": sorted({event[:6] for event in events[:-1]}),
        "ends_with_blank_line": events[-1] == "",
        "events": shapes,
        "last": events[-2] if len(events) > 1 and len(events[-2]) < 40 else "data",
    }


def metrics(port: int) -> dict[str, Any]:
    """/metrics: name to type and labels."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    names: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            names[name] = {"type": kind, "labels": []}
        match = re.match(r"^(\S+?)\{(.*)\} ", line)
        if match:
            name = match[1] if match[1] in names else re.sub(r"_(bucket|sum|count|created|total)$", "", match[1])
            labels = set(re.findall(r'(\w+)="', match[2])) - {"le", "pid"}
            if name in names:
                names[name]["labels"] = sorted({*names[name]["labels"], *labels})
    return {"status": answer.status, "type": answer.headers.get("Content-Type"), "names": dict(sorted(names.items()))}
