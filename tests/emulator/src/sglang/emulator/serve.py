# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scheduler's event loop: rank 0 takes requests, all ranks step together, tokens go to the detokenizer."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from sglang.emulator import machine as machines
from sglang.emulator.rank import SRT, Rank

TICK_S = 0.05
DECODE_LOG_STEPS = 40
PREFILL = [
    (SRT + "managers/scheduler.py", "run_scheduler_process", "scheduler.run_event_loop()"),
    (SRT + "managers/scheduler.py", "event_loop_overlap", "batch_result = self.run_batch(batch)"),
    (SRT + "layers/attention/trtllm_mla_backend.py", "forward_extend", "output = flashinfer.prefill.trtllm_ragged_attention_deepseek("),
]


def tell(target: Connection, message: Any) -> None:
    """Send; what a dead process would get is dropped, as by the real sockets."""
    with contextlib.suppress(OSError):
        target.send(message)


@dataclass
class Request:
    """One generation in the scheduler."""

    rid: str
    prompt: int
    max_new: int
    cached: int = 0
    prefilled: int = 0
    produced: int = 0
    carry: float = 0.0


@dataclass
class Lead:
    """Rank 0's state while serving."""

    me: Rank
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    held: list[dict[str, Any]] = field(default_factory=list)  # accepted while frozen
    totals: dict[str, int] = field(default_factory=lambda: {"prefill_compute": 0, "prefill_cache": 0, "decode": 0})
    first: bool = True
    busy: bool = False
    steps: int = 0
    prefill_at: float = field(default_factory=time.monotonic)
    window: float = field(default_factory=time.monotonic)
    window_tokens: int = 0
    throughput: float = 0.0
    sent: Any = None

    def used(self) -> int:
        """KV tokens in use."""
        return sum(request.prefilled + request.produced for request in self.running)

    def state(self) -> dict[str, Any]:
        """Counters for metrics and /v1/loads."""
        return {
            "num_running_reqs": len(self.running),
            "num_queue_reqs": len(self.waiting),
            "num_used_tokens": self.used(),
            "token_usage": self.used() / self.me.capacity,
            "gen_throughput": self.throughput if self.running else 0.0,
            "realtime": dict(self.totals),
        }

    def publish(self) -> None:
        """Send the counters to main when they changed."""
        state = self.state()
        if state != self.sent and self.me.links.control:
            self.sent = state
            tell(self.me.links.control, {"kind": "stats", "stats": state})

    def handle(self, message: dict[str, Any]) -> None:
        """One message of main."""
        kind = message["kind"]
        if kind == "generate":
            request = Request(message["rid"], message["prompt"], message["max_new"], message["cached"], message["cached"])
            request.max_new = min(request.max_new, self.me.capacity - request.prompt)
            self.waiting.append(request)
        elif kind == "abort":
            self.waiting = [request for request in self.waiting if request.rid != message["rid"]]
            self.running = [request for request in self.running if request.rid != message["rid"]]
            self.held = [other for other in self.held if other["rid"] != message["rid"]]
            if self.me.links.control:
                tell(self.me.links.control, {"kind": "aborted", "rid": message["rid"]})
        elif kind == "state" and self.me.links.control:
            tell(self.me.links.control, {"kind": "state", "id": message["id"], "state": self.state()})
        elif kind == "freeze_gc":
            pass
        elif kind == "shutdown":
            for peer in self.me.links.peers:
                peer.send("shutdown")
            raise SystemExit(0)

    def together(self, what: str) -> None:
        """Have all ranks do ``what`` and wait for them: a stopped or dead rank holds everybody."""
        try:
            for peer in self.me.links.peers:
                peer.send(what)
            for peer in self.me.links.peers:
                peer.recv()
        except (EOFError, OSError):
            raise self.me.peer_gone() from None

    def forward(self, seconds: float) -> None:
        """One step of all ranks, ``seconds`` long."""
        progress = self.me.progress
        progress.running = True
        self.together("step")
        time.sleep(seconds)
        progress.steps += 1

    def admit(self) -> None:
        """Prefill the first waiting request that fits, one chunk at a time."""
        if not self.waiting or len(self.running) >= self.me.max_running:
            return
        request = self.waiting[0]
        reserved = sum(other.prompt + other.max_new for other in self.running)
        if self.running and reserved + request.prompt + request.max_new > self.me.capacity:
            return
        if "trtllm_mla" in (self.me.args["attention_backend"], self.me.args["prefill_attention_backend"]) and self.sm() == 12:
            self.me.frames = PREFILL
            raise RuntimeError("Error in function 'TllmGenFmhaRunner' at trtllm_fmha_kernel_launcher.cu: Unsupported architecture")
        chunk = min(request.prompt - request.prefilled, max(self.me.args["chunked_prefill_size"], 1))
        if self.me.args["chunked_prefill_size"] < 0:
            chunk = request.prompt - request.prefilled
        now = time.monotonic()
        pace, self.prefill_at = chunk / max(now - self.prefill_at, 1e-3), now
        cached = request.cached if request.prefilled == request.cached else 0
        self.me.log.info(
            "Prefill batch, #new-seq: 1, #new-token: %d, #cached-token: %d, token usage: %.2f, #running-req: %d, #queue-req: %d, "
            "#pending-token: %d, %s: False, input throughput (token/s): %.2f"
            % (chunk, cached, self.used() / self.me.capacity, len(self.running), len(self.waiting) - 1,
               request.prompt - request.prefilled - chunk, self.me.device.graph_name, pace)
        )  # fmt: skip
        self.forward(chunk / self.me.scenario.get("prefill_tokens_per_s") + (self.me.scenario.get("warmup_s") if self.first else 0))
        self.first = False
        request.prefilled += chunk
        self.totals["prefill_compute"] += chunk
        self.totals["prefill_cache"] += cached
        if request.prefilled >= request.prompt:
            self.waiting.pop(0)
            self.running.append(request)
            self.emit([(request, min(1, request.max_new))])

    def sm(self) -> int:
        """Major compute capability of the machine."""
        return int(machines.load(self.me.machine)["compute_cap"].split(".")[0])

    def decode(self) -> None:
        """One tick of decoding for all running requests."""
        self.forward(TICK_S)
        batch = []
        for request in self.running:
            request.carry += self.me.scenario.get("tokens_per_s") * TICK_S
            count = min(max(int(request.carry), 0), request.max_new - request.produced)
            request.carry -= count
            if count:
                batch.append((request, count))
        self.emit(batch)

    def emit(self, batch: list[Any]) -> None:
        """Send new tokens to the detokenizer; drop finished requests."""
        items = []
        for request, count in batch:
            start = request.produced
            request.produced += count
            finished = request.produced >= request.max_new
            items.append({
                "rid": request.rid, "tokens": [start + offset + request.prompt for offset in range(count)],
                "finished": finished, "prompt": request.prompt, "produced": request.produced,
            })  # fmt: skip
            self.totals["decode"] += count
            self.window_tokens += count
        if items and self.me.links.detokenizer:
            tell(self.me.links.detokenizer, items)
            self.steps += max(count for _, count in batch)
        self.report()
        self.running = [request for request in self.running if request.produced < request.max_new]

    def report(self) -> None:
        """The decode line of every 40 steps."""
        if self.steps < DECODE_LOG_STEPS:
            return
        now = time.monotonic()
        self.throughput = self.window_tokens / max(now - self.window, 1e-3)
        graph = self.me.args["cuda_graph_config"]["decode"]["backend"] != "disabled"
        self.me.log.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, %s: %s, gen throughput (token/s): %.2f, #queue-req: %d"
            % (len(self.running), self.used(), self.used() / self.me.capacity, self.me.device.graph_name, graph, self.throughput,
               len(self.waiting))
        )  # fmt: skip
        self.steps, self.window, self.window_tokens = 0, now, 0

    def set_busy(self, busy: bool) -> None:
        """Tell all GPUs when work starts and ends."""
        if busy != self.busy:
            self.busy = busy
            self.me.device.work(busy)
            for peer in self.me.links.peers:
                peer.send("busy" if busy else "idle")


def receive(state: Lead, control: Connection, frozen: bool, timeout: float) -> bool:
    """Take what main sent; False when main is gone. While frozen, requests are accepted and kept."""
    for source in wait([control, *state.me.links.peers], timeout):  # type: ignore[list-item]
        try:
            message: Any = source.recv()  # type: ignore[union-attr,call-arg]
        except (EOFError, OSError):
            if source is control:
                return False
            raise state.me.peer_gone() from None
        # rank 0 hands every message to the others before it acts on it
        state.together("look")
        if frozen and message["kind"] == "generate":
            state.held.append(message)
        else:
            state.handle(message)
    return True


def lead(me: Rank) -> None:
    """Rank 0's loop until main is gone or says shutdown."""
    state = Lead(me)
    control, beat, last_work = me.links.control, 0.0, 0.0
    assert control is not None
    while True:
        frozen = me.fault() == "freeze"
        busy = not frozen and bool(state.waiting or state.running)
        if not receive(state, control, frozen, 0 if busy or me.scenario.get("idle_poll") else me.scenario.get("poll_s")):
            return
        if frozen:
            # replies other than tokens keep coming, and count as life for /health
            if time.monotonic() - beat > 1:
                beat = time.monotonic()
                tell(control, {"kind": "load"})
            continue
        for message in state.held:
            state.handle(message)
        state.held = []
        if state.waiting or state.running:
            state.set_busy(True)
            state.admit()
            if state.running:
                state.decode()
            me.progress.running = bool(state.running)
            last_work = time.monotonic()
        elif time.monotonic() - last_work > 1:
            state.set_busy(False)
        state.publish()


def follow(me: Rank) -> None:
    """Another rank's loop: step when rank 0 does."""
    source, was_orphan = me.links.peers[0], me.orphan()
    while True:
        if me.orphan() != was_orphan:
            was_orphan = me.orphan()
            me.follow_parent()
        try:
            if not source.poll(0.0 if me.scenario.get("idle_poll") else 1.0):
                continue
            message = source.recv()
            if message in ("step", "look"):
                me.progress.running = message == "step"
                me.progress.steps += me.progress.running
                source.send("done")
        except (EOFError, OSError):
            while me.orphan():
                threading.Event().wait(3600)
            raise me.peer_gone() from None
        if message == "shutdown":
            return
        if message in ("busy", "idle"):
            me.progress.running = False
            me.device.work(message == "busy")
