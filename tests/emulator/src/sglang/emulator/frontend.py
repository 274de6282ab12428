# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the real server calls the tokenizer manager: requests in, tokens out, health, counters. Lives in main."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Callable, Optional

from sglang.emulator.http_server import DisconnectedError
from sglang.emulator.log import Log
from sglang.emulator.scenario import Scenario

STARTING, UP, UNHEALTHY = "Starting", "Up", "UnHealthy"


class BadRequestError(Exception):
    """A request that is refused with 400."""


@dataclass
class Pending:
    """One request that main waits for."""

    prompt: int
    results: queue.Queue[dict[str, Any]] = field(default_factory=queue.Queue)
    started: float = field(default_factory=time.monotonic)


@dataclass
class Sums:
    """A histogram's sum and count."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """One more observation."""
        self.total += value
        self.count += 1


@dataclass
class Finished:
    """Totals of finished requests."""

    prompt: int = 0
    cached: int = 0
    generation: int = 0
    requests: int = 0
    first_token: Sums = field(default_factory=Sums)
    latency: Sums = field(default_factory=Sums)
    per_token: Sums = field(default_factory=Sums)


def count_tokens(text: str) -> int:
    """Rough prompt length: one token a word, and one per 4 characters for words longer than 12 (not a real tokenizer)."""
    return sum(1 if len(word) <= 12 else -(-len(word) // 4) for word in text.split())


class Frontend:
    """Talks to rank 0 (``control``) and reads the detokenizer (``texts``)."""

    def __init__(
        self, args: dict[str, Any], model: dict[str, Any], scenario: Scenario, log: Log, control: Connection, texts: Connection,
        info: dict[str, Any], on_first: Callable[[], None],
    ) -> None:  # fmt: skip
        self.args, self.model, self.scenario, self.log, self.info = args, model, scenario, log, info
        self.status, self.draining = STARTING, False
        self.blocked = False  # main's one thread is busy with something else: nothing is answered
        self.pending: dict[str, Pending] = {}
        self.stats: dict[str, Any] = {}
        self.finished: dict[str, Finished] = {}  # by "is_streaming" as the metrics spell it
        self.requests: dict[tuple[str, str], int] = defaultdict(int)  # (page, method)
        self.responses: dict[tuple[str, str, int], int] = defaultdict(int)
        self.active: dict[tuple[str, ...], int] = defaultdict(int)
        self.tasks = 0  # requests that are not answered, also those whose client left
        self.lock = threading.Lock()
        self._control, self._texts, self._on_first = control, texts, on_first
        self._known: set[Any] = set()
        self._states: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._last_message = 0.0
        self._sending = threading.Lock()
        for target in (self._read_texts, self._read_control):
            threading.Thread(target=target, daemon=True).start()

    def _read_texts(self) -> None:
        try:
            while True:
                batch = self._texts.recv()
                self._last_message = time.monotonic()
                for item in batch:
                    pending = self.pending.get(item["rid"])
                    if pending:
                        pending.results.put(item)
        except (EOFError, OSError):
            return

    def _read_control(self) -> None:
        try:
            while True:
                message = self._control.recv()
                if message["kind"] == "stats":
                    self.stats = message["stats"]
                elif message["kind"] == "aborted":
                    pending = self.pending.pop(message["rid"], None)
                    if pending:
                        pending.results.put({"text": "", "tokens": [], "finished": True, "prompt": pending.prompt, "produced": 0})
                else:
                    self._last_message = time.monotonic()
                    if message["kind"] == "state" and message["id"] in self._states:
                        self._states[message["id"]].put(message["state"])
        except (EOFError, OSError):
            return

    def send(self, message: dict[str, Any]) -> None:
        """To rank 0; silently dropped when it is gone, as with the real sockets."""
        try:
            with self._sending:
                self._control.send(message)
        except OSError:
            pass

    def plan(self, prompt: int, max_tokens: Optional[int], ignore_eos: bool = False, key: Any = None) -> dict[str, Any]:
        """Check lengths: {prompt, max_new, reason, key}. ``key`` identifies the prompt. BadRequestError with the engine's words."""
        context, longest = self.info["context_length"], self.info["max_req_input_len"]
        if prompt >= context:
            raise BadRequestError("The input (%d tokens) is longer than the model's context length (%d tokens)." % (prompt, context))
        if prompt > longest:
            raise BadRequestError(
                "Input length (%d tokens) exceeds the maximum allowed length (%d tokens). Use a shorter input or enable "
                "--allow-auto-truncate." % (prompt, longest)
            )
        if max_tokens is not None and prompt + max_tokens > context:
            raise BadRequestError(
                "Requested token count exceeds the model's maximum context length of %d tokens. You requested a total of %d tokens: "
                "%d tokens from the input messages and %d tokens for the completion. Please reduce the number of tokens in the input "
                "messages or the completion to fit within the limit." % (context, prompt + max_tokens, prompt, max_tokens)
            )
        limit = max_tokens if max_tokens is not None else context - prompt - 1
        answer = limit if ignore_eos else min(limit, self.scenario.get("answer_tokens"))
        return {"prompt": max(prompt, 1), "max_new": max(0, answer), "reason": "length" if answer == limit else "stop", "key": key}

    def generate(
        self, plan: dict[str, Any], connected: Callable[[], bool], rid: str = "", streaming: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield items {text, tokens, finished, produced, prompt} from the detokenizer. DisconnectedError aborts the request."""
        rid = rid or uuid.uuid4().hex
        pending = self.pending[rid] = Pending(plan["prompt"])
        self._on_first()
        # the prefix cache knows whole prompts only, and its last token is always computed
        cached = plan["cached"] = plan["prompt"] - 1 if plan["key"] in self._known else 0
        self.send({"kind": "generate", "rid": rid, "prompt": plan["prompt"], "max_new": plan["max_new"], "cached": cached})
        done, looked, first = False, time.monotonic(), 0.0
        try:
            while not done:
                if time.monotonic() - looked > 0.5:
                    looked = time.monotonic()
                    if not connected():
                        raise DisconnectedError()
                try:
                    item = pending.results.get(timeout=0.5)
                except queue.Empty:
                    continue
                first = first or time.monotonic()
                done = item["finished"]
                if done:
                    self._known.add(plan["key"])
                    self._count(item, pending.started, first, streaming, cached)
                yield item
        finally:
            if done:
                self.pending.pop(rid, None)
            else:
                # it counts as running until the scheduler has heard of it
                self.send({"kind": "abort", "rid": rid})

    def _count(self, item: dict[str, Any], started: float, first: float, streaming: bool, cached: int) -> None:
        now = time.monotonic()
        with self.lock:
            done = self.finished.setdefault(str(streaming).lower(), Finished())
            done.prompt += item["prompt"]
            done.cached += cached
            done.generation += item["produced"]
            done.requests += 1
            done.first_token.add(first - started)
            done.latency.add(now - started)
            if item["produced"] > 1:
                done.per_token.add((now - first) / (item["produced"] - 1))

    @contextlib.contextmanager
    def counted(self, page: str, method: str) -> Iterator[Callable[[int], None]]:
        """Count one request; the function that is given counts its answer's status."""
        with self.lock:
            self.requests[page, method] += 1
            self.active[page, method] += 1
            self.tasks += 1
        try:
            yield lambda status: self._answered(page, method, status)
        finally:
            with self.lock:
                self.active[page, method] -= 1
                self.tasks -= 1

    def _answered(self, page: str, method: str, status: int) -> None:
        with self.lock:
            self.responses[page, method, status] += 1

    def ready(self) -> bool:
        """What /ready and /ping say."""
        return self.status == UP and not self.draining

    def health(self) -> int:
        """200 or 503: a one-token request, then any message of a child newer than it, looked for once a second."""
        if self.draining:
            self.log.info("Health check request received during shutdown. Returning 503.")
            return 503
        if self.status == STARTING:
            return 503
        timeout = float(self.scenario.get("health_timeout_s"))
        asked, wall = time.monotonic(), time.strftime("%H:%M:%S")
        rid = "HEALTH_CHECK_" + uuid.uuid4().hex
        self.pending[rid] = Pending(1)
        self.send({"kind": "generate", "rid": rid, "prompt": 1, "max_new": 1, "cached": 0})
        try:
            while time.monotonic() - asked < timeout:
                time.sleep(1)
                if self._last_message > asked and not self.blocked:
                    self.status = UP
                    return 200
        finally:
            self.pending.pop(rid, None)
            self.send({"kind": "abort", "rid": rid})
        ago = time.time() - (time.monotonic() - self._last_message)
        self.log.error(
            "Health check failed. Server couldn't get a response from detokenizer for last %d seconds. tic start time: %s. "
            "last_heartbeat time: %s" % (timeout, wall, time.strftime("%H:%M:%S", time.localtime(ago)))
        )
        self.status = UNHEALTHY
        return 503

    def internal_state(self) -> dict[str, Any]:
        """Ask rank 0 for its state; blocks for as long as it hangs, whether the client waits or not."""
        with self.lock:
            number = len(self._states) + 1
            answer = self._states[number] = queue.Queue()
        self.send({"kind": "state", "id": number})
        return answer.get()

    def remaining(self) -> list[str]:
        """Requests in flight, health checks included."""
        return list(self.pending)
