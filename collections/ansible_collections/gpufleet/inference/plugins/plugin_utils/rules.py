# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the evidence says without any signature: alive, moving, generating, gone, or not to be told."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

SLOW = {
    "weights_loading": "slow_weights",
    "graph_capture": "graph_capture_slow",
    "warmup": "jit_triton_first_request",
}
HUNG = {
    "dist_init": "post_nccl_hang_unknown",
    "weights_loading": "post_nccl_hang_unknown",
    "kv_cache_alloc": "post_nccl_hang_unknown",
    "autotune": "autotune_hang",
    "graph_capture": "capture_hang",
}
# Lines that an engine writes while it dies. One that got no port takes two minutes for it.
DYING = ("scheduler_exception", "sigquit", "child_crashed", "bind_failed")


@dataclasses.dataclass
class Finding:
    """A judgement and what it rests on. `facts` are names of the view that are quoted as reasons."""

    state: str
    action: str
    confidence: str
    cause: str | None = None
    phase: str | None = None
    proof: str | None = None
    signature: str | None = None
    forbid: tuple[str, ...] = ()
    priority: float = 0
    means: str = ""
    facts: list[str] = dataclasses.field(default_factory=list)
    next: tuple[str, ...] = ()


def dying(view: Mapping[str, Any]) -> list[str]:
    """Names of log hits that show the engine going down."""
    return [name for name in DYING if name in view["hits"]["log"] and not (name == "bind_failed" and view["port"] == "listening")]


def exiting(view: Mapping[str, Any]) -> bool:
    """Whether the engine said that it goes down and no token comes out any more."""
    return bool(view["alive"] and not view["generating"] and {"sigquit", "child_crashed"} & set(view["hits"]["log"]))


def follower(view: Mapping[str, Any]) -> bool:
    """Whether this is a node behind the first one of several: its port answers /health alone, and always with 200."""
    return str(view["flags"].get("node_rank") or "0") not in ("0", "")


def judge(view: Mapping[str, Any]) -> Finding:
    """The finding of the rules alone; always gives one."""
    if view["alive"] is False and view["generating"] and (view["desired"] != "stopped" or view["service"] == "failed"):
        return Finding(
            "unknown",
            "wait",
            "low",
            "unknown",
            facts=["process", "generate", "tokens"],
            means="no server process can be found, and yet tokens are generated: the wrong processes were looked for",
        )
    if view["alive"] is False:
        return _gone(view)
    if view["frozen"] and not view["generating"]:
        return Finding(
            "stuck",
            "restart",
            "medium",
            "process_stopped",
            proof="no_progress",
            facts=["frozen"],
            means="processes of the server are stopped by somebody outside",
        )
    if exiting(view):
        return Finding(
            "crashed",
            "restart",
            "medium",
            "crash_unknown",
            view["phase"],
            facts=["hits.log.child_crashed", "hits.log.sigquit", "alive", "generate"],
            means="the engine said that it goes down; what still lives writes its dumps",
        )
    if view["alive"] and view["workers_lost"]:
        return Finding(
            "crashed",
            "restart",
            "medium",
            "crash_unknown",
            facts=["schedulers", "schedulers_alive"],
            means="a worker is gone while the server lives",
        )
    if view["phase"] == "draining":
        return _draining(view)
    if view["generating"]:
        return _serving(view)
    if view["port"] == "listening" and view["alive"] and follower(view):
        return Finding(
            "serving",
            "none",
            "medium",
            "healthy",
            "serving",
            facts=["flags.node_rank", "schedulers_alive", "health"],
            means="a node behind the first one has no API of its own; its workers live",
        )
    if view["phase"] == "serving" or (view["port"] == "listening" and view["phase"] in (None, "serving")):
        return _open(view)
    return _starting(view)


def _draining(view: Mapping[str, Any]) -> Finding:
    """Asked to stop. It says every few seconds what it still waits for, so silence means that it waits for nothing that ends."""
    hung = view["alive"] and view["schedulers_alive"] == 0 and view["overdue"] and not view["generating"]
    if hung:
        return Finding(
            "stuck",
            "restart",
            "medium",
            "shutdown_hang",
            "draining",
            "no_progress",
            facts=["schedulers_alive", "quiet_s", "hits.log.stopping", "hits.log.draining"],
            means="it was asked to stop, its workers are gone, and it waits for a request that nobody answers",
        )
    return Finding(
        "stopped",
        "wait",
        "medium",
        phase="draining",
        facts=["hits.log.draining", "hits.log.stopping"],
        means="the server was asked to stop and finishes its requests",
    )


def _gone(view: Mapping[str, Any]) -> Finding:
    code, signal = view["exit_code"], view["exit_signal"]
    if view["desired"] == "stopped" and view["service"] != "failed":
        return Finding(
            "stopped",
            "none",
            "high",
            None,
            "not_started",
            facts=["service", "desired"],
            means="nobody asked for it to run",
        )
    bad = (code not in (None, 0)) or bool(signal) or view["service"] == "failed" or bool(dying(view))
    if not bad and view["desired"] != "running" and view["process"] in (None, "absent"):
        return Finding(
            "stopped",
            "none",
            "medium",
            None,
            "not_started",
            facts=["process", "service"],
            means="no server process, and nobody asked for one",
        )
    if not bad and view["service"] in ("stopped", "absent") and view["desired"] != "running":
        return Finding(
            "stopped",
            "none",
            "medium",
            None,
            "not_started",
            facts=["service"],
            means="stopped without an error",
        )
    if not bad and view["service"] is None and view["desired"] is None and "finished" in view["hits"]["log"]:
        return Finding(
            "stopped",
            "none",
            "medium",
            None,
            "not_started",
            facts=["hits.log.finished", "hits.log.draining"],
            means="it was asked to stop and ended in good order",
        )
    seen = {"processes", "log", "kernel", "gpus"} <= set(view["readable"])
    return Finding(
        "crashed",
        "restart" if seen else "escalate",
        "medium" if bad else "low",
        "crash_unknown",
        view["phase"],
        facts=["process", "exit_code", "exit_signal", "service", *(f"hits.log.{name}" for name in dying(view))],
        means="the server ended and nothing here says why",
    )


def _serving(view: Mapping[str, Any]) -> Finding:
    if view["generate"] == "timeout":
        return Finding(
            "serving",
            "none",
            "medium",
            "healthy",
            "serving",
            facts=["generate", "generate_tokens", *(["tokens"] if view["tokens"] == "advancing" else []), "batch_while_asked"],
            means="slow to answer us, but it generates tokens: busy",
        )
    whole = view["alive"] is True and view["generate"] == "ok"
    return Finding(
        "serving",
        "none",
        "high" if whole else "medium",
        "healthy",
        "serving",
        facts=["generate", "tokens", "schedulers_alive"],
        means="it generates tokens",
    )


def _open(view: Mapping[str, Any]) -> Finding:
    """Ready once, or the port is open; no token was generated for us now."""
    asked = view["generate"] in ("timeout", "refused", "error")
    hits = view["hits"]["log"]
    computes = view["tokens"] == "frozen" and (view["tokens_delta"] or 0) > 0 and view["health"] == "ok"
    if view["generate"] == "timeout" and computes and view["still"]["visits"] < 2:
        return Finding(
            "unknown",
            "wait",
            "low",
            "unknown",
            "serving",
            facts=["generate", "tokens_delta", "health"],
            means="it computes our request and answers /health, but not in time: slow, or nothing gets out; another look will tell",
        )
    if view["generate"] == "timeout" and view["tokens"] == "frozen":
        cause = (
            "kernel_spin_serving"
            if (view["gpus"]["util_min"] or 0) >= 90
            else "scheduler_idle_hang"
            if view["gpus"]["util_max"] == 0
            else "unknown"
        )
        return Finding(
            "stuck",
            "restart",
            "medium",
            cause,
            "serving",
            "no_progress",
            facts=["generate", "tokens", "health"],
            means="a request waits, and no token comes out for anybody",
        )
    if view["generate"] == "timeout" and view["tokens"] is None and view["serving_silent"] and view["health"] != "ok":
        return Finding(
            "stuck",
            "restart",
            "low",
            "unknown",
            "serving",
            "no_progress",
            facts=["generate", "silent_s"],
            means="a request waits and the log is silent",
        )
    if view["generate"] == "garbage" or (view["generate"] == "error" and view["phase"] in ("serving", None)):
        return Finding(
            "degraded",
            "escalate",
            "medium",
            "unknown",
            "serving",
            facts=["generate"],
            means="it answers, but not with a completion",
        )
    if view["tokens"] == "frozen" and (view["running_requests"] or 0) > 0:
        return Finding(
            "stuck",
            "restart",
            "low",
            "kernel_spin_serving",
            "serving",
            "no_progress",
            facts=["tokens", "running_requests"],
            means="requests run, and no token comes out",
        )
    if not asked and ("generated" in hits or "decode_batch" in hits) and view["health"] in (None, "ok"):
        facts = [f"hits.log.{name}" for name in ("ready", "decode_batch", "generated")]
        return Finding(
            "serving",
            "none",
            "medium",
            "healthy",
            "serving",
            facts=facts,
            means="the log shows generated tokens",
        )
    if not asked and view["health"] == "ok" and view["phase"] == "serving":
        return Finding(
            "serving",
            "none",
            "low",
            "healthy",
            "serving",
            facts=["health", "hits.log.ready"],
            means="ready, and /health answers; no token was asked for",
        )
    if not asked and view["health"] is None and "ready" in hits:
        return Finding(
            "serving",
            "none",
            "low",
            "healthy",
            "serving",
            facts=["hits.log.ready"],
            means="the log says ready; nothing was asked of it since",
        )
    return Finding(
        "unknown",
        "wait",
        "low",
        "unknown",
        view["phase"],
        facts=["port", "generate", "health"],
        means="it does not answer, and nothing shows whether it moves",
    )


def _starting(view: Mapping[str, Any]) -> Finding:
    phase, progress = view["phase"], view["progress"]
    cause = SLOW.get(phase or "")
    if "deepgemm_session" in view["tail"]:
        cause = "jit_deepgemm"
    if view["compilers"]:
        cause = "jit_flashinfer_slow"
    if progress["any"]:
        moving = [f"progress.layers.{layer}" for layer, moves in progress["layers"].items() if moves]
        return Finding(
            "starting",
            "wait",
            "high" if moving != ["progress.layers.log"] else "medium",
            cause,
            phase,
            facts=moving,
            means="it moves, so it is not stuck",
        )
    if view["stalled"]:
        flat = [f"progress.layers.{layer}" for layer in progress["flat"]]
        return Finding(
            "stuck",
            "restart",
            "low",
            HUNG.get(phase or "", "unknown"),
            phase,
            "no_progress",
            facts=["quiet_s", *flat],
            means="silent for longer than this phase ever is, and nothing moves",
        )
    if view["alive"] and view["quiet_s"] is not None and not view["overdue"]:
        return Finding(
            "starting",
            "wait",
            "medium",
            cause,
            phase,
            facts=["quiet_s"],
            means="this phase may be silent for as long",
        )
    if view["alive"] and view["quiet_s"] is None and phase:
        return Finding(
            "starting",
            "wait",
            "low",
            cause,
            phase,
            facts=["last_line"],
            means="in this phase; how long it has been silent is not known",
        )
    return Finding(
        "unknown",
        "wait",
        "low",
        cause or "unknown",
        phase,
        facts=["quiet_s"] if view["alive"] else [],
        means="nothing shows whether it moves",
    )
