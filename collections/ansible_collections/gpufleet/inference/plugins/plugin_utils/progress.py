# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress as its own judgement: which counters count in a phase, what moves, what is provably flat, and for how long.

CPU time of a scheduler counts nowhere: an idle one polls thousands of times a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpufleet.inference.plugins.plugin_utils.values import first, items, mapping, number, text

# Layers that count, by phase. Phases that are not named use STARTING.
STARTING = ("processes", "gpu_memory", "compilers", "log", "syscalls")
COUNTING: dict[str, tuple[str, ...]] = {
    "imports": STARTING,
    "weights_loading": STARTING,
    "jit_compile": STARTING,
    "graph_capture": (*STARTING, "tokens"),
    "warmup": (*STARTING, "tokens"),
    "serving": ("tokens",),
    "draining": ("tokens", "log"),
}
# Layers that are read independently of each other; the list of compilers comes with the processes.
INDEPENDENT = ("processes", "gpu_memory", "syscalls", "tokens")
CLOCK_S = 2.0  # the start of a process is told by the wall clock, and jitters with it
SYSCALLS = {"reading": True, "compiling": True, "heartbeat_only": False, "polling": False, "futex_wait": False, "idle": False}


def judge(
    facts: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]], seen: Mapping[str, Any], limits: Mapping[str, Any]
) -> dict[str, Any]:
    """What moves. Returns {progress, still, generating, overdue, serving_silent, stalled, compilers, cpu, uptime_s} for the view."""
    phase = facts["phase"]
    serving = phase in ("serving", "draining") or (phase is None and facts["port"] == "listening")
    layers = _layers(facts, sources, seen, limits, serving)
    counting = COUNTING.get("serving" if serving else phase or "", STARTING)
    values = [layers[layer] for layer in counting]
    flat = [layer for layer in counting if layers[layer] is False and layer in INDEPENDENT]
    any_layer = True if True in values else (False if len(flat) >= 2 or (serving and flat) else None)
    started, now = facts["started_at"], facts["collected_at"]
    uptime = facts["uptime_s"] if facts["uptime_s"] is not None else (max(0.0, now - started) if now and started else None)
    silence = limits["normal_silence_s"]
    # Whoever has schedulers is past its imports, whatever became of its log.
    begun = facts["last_line"] or uptime is None or facts["schedulers"]
    normal = silence.get(phase or ("unknown" if begun else "not_started"), silence["unknown"])
    quiet = first(facts["silent_s"], uptime)
    if uptime is not None and quiet is not None:
        quiet = min(quiet, uptime)
    totals = mapping(sources.get("processes", {}).get("totals"))
    told = mapping(seen.get("progress"))
    shown = facts["bar"] or {}
    in_phase = phase == "weights_loading" or not serving
    overdue = quiet is not None and quiet >= normal
    # Known to be a start, known to be silent; and without the processes nobody can say that no compiler runs.
    known = facts["phase"] is not None or facts["port"] == "closed"
    starting = facts["alive"] is not False and not serving and known and facts["silent_s"] is not None
    return {
        "progress": {
            "any": any_layer,
            "layers": layers,
            "flat": flat,
            "done": number(shown.get("done")) if in_phase else None,
            "total": number(shown.get("total")) if in_phase else None,
            "unit": "shards" if "shards" in (text(shown.get("kind")) or "") else ("steps" if shown else None),
            "bytes_per_s": first(_rate(totals), number(told.get("read_bytes_per_s"))),
        },
        "quiet_s": quiet,
        "normal_silence_s": normal,
        "overdue": overdue,
        "serving_silent": (facts["silent_s"] or 0) >= limits["serving"]["silence_s"],
        "stalled": bool(starting and overdue and any_layer is False and "processes" in flat),
        "generating": _generating(facts, limits, serving),
        "compilers": _compilers(sources, seen),
        "cpu": first(text(told.get("cpu")), _cpu(totals, limits)),
        "uptime_s": uptime,
        "still": _still(facts, sources, limits, serving),
    }


def _generating(facts: Mapping[str, Any], limits: Mapping[str, Any], serving: bool) -> bool | None:
    """Whether tokens are generated now: a generated token, or counters that advance. None: not known."""
    if facts["generate"] == "timeout" and (facts["generate_tokens"] or 0) > 0:
        return True  # slow: a token of our own came, and the rest did not in time
    if facts["generate"] == "ok" or (facts["tokens"] == "advancing" and not facts["workers_lost"]):
        return True
    if facts["generate"] == "timeout" and serving and facts["batch_while_asked"]:
        return True  # busy
    if facts["generate"] in ("timeout", "error", "refused", "garbage") or facts["tokens"] == "frozen":
        return False
    return None


def _rate(totals: Mapping[str, Any]) -> float | None:
    rates = [rate for rate in (number(totals.get("rchar_per_s")), number(totals.get("read_bytes_per_s"))) if rate is not None]
    return max(rates) if rates else None


def _cpu(totals: Mapping[str, Any], limits: Mapping[str, Any]) -> str | None:
    percent = number(totals.get("cpu_pct"))
    if percent is None:
        return None
    return "idle" if percent < limits["thresholds"]["cpu_idle_pct"] else "busy"


def _compilers(sources: Mapping[str, Mapping[str, Any]], seen: Mapping[str, Any]) -> list[str]:
    live = [text(mapping(item).get("name")) for item in items(sources.get("processes", {}).get("compilers"))]
    told = mapping(seen.get("progress")).get("compilers")
    told = [told] if isinstance(told, str) else items(told)
    return [name for name in [*live, *map(text, told)] if name][:16]


def _layers(
    facts: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]], seen: Mapping[str, Any], limits: Mapping[str, Any], serving: bool
) -> dict[str, bool | None]:
    limit = limits["thresholds"]
    told = mapping(seen.get("progress"))
    processes = sources.get("processes", {})
    totals = mapping(processes.get("totals"))
    window = facts["window_s"] or 5.0

    moving = [
        rate >= bound
        for rate, bound in (
            (_rate(totals), limit["read_bytes_per_s"]),
            (number(totals.get("majflt_per_s")), limit["majflt_per_s"]),
            (number(told.get("read_bytes_per_s")), limit["read_bytes_per_s"]),
            (number(told.get("major_faults_per_s")), limit["majflt_per_s"]),
        )
        if rate is not None
    ]
    deltas = [
        number(mapping(mapping(device).get("delta")).get("memory_used_mib")) for device in items(sources.get("gpus", {}).get("devices"))
    ]
    grown = [abs(delta) >= limit["gpu_memory_mib"] for delta in deltas if delta is not None]
    if not grown and told.get("gpu_memory") in ("growing", "flat"):
        grown = [told["gpu_memory"] == "growing"]

    compilers = _compilers(sources, seen)
    listed = isinstance(processes.get("compilers"), list) and processes.get("status") == "ok"
    silent = facts["silent_s"]
    tokens = {"advancing": True, "frozen": False}.get(facts["tokens"] or "")
    if facts["generate"] == "ok":
        tokens = True
    elif tokens is False and facts["running_requests"] == 0 and facts["generate"] is None:
        tokens = None  # nothing to generate: idle, not frozen
    return {
        "processes": _moving(moving, totals, told),
        "gpu_memory": any(grown) if grown else None,
        "compilers": True if compilers else (False if listed else None),
        "log": None if silent is None else silent <= window + 1,
        "syscalls": SYSCALLS.get(facts["syscalls"]["pattern"] or ""),
        "tokens": tokens,
    }


def _moving(moving: list[bool], totals: Mapping[str, Any], told: Mapping[str, Any]) -> bool | None:
    if any(moving):
        return True
    # Page faults alone can show movement and not its absence: without root the reads are hidden.
    if _rate(totals) is not None or number(told.get("read_bytes_per_s")) is not None:
        return False
    return False if told.get("cpu") == "idle" else None


def _still(facts: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]], limits: Mapping[str, Any], serving: bool) -> dict[str, Any]:
    """For how many visits (this one included), and over how many seconds, nothing that counts has moved."""
    now, main = facts["collected_at"], mapping(sources.get("processes", {}).get("main"))
    if now is None:
        return {"visits": 1, "seconds": 0.0}
    members = [mapping(member) for member in items(sources.get("processes", {}).get("members"))]
    devices = [number(mapping(device).get("memory_used_mib")) for device in items(sources.get("gpus", {}).get("devices"))]
    current = {
        "at": now,
        "main_pid": number(main.get("pid")),
        "main_start": number(main.get("start_time")),
        "rchar": sum(number(member.get("rchar")) or 0 for member in members),
        "read_bytes": sum(number(member.get("read_bytes")) or 0 for member in members),
        "majflt": sum(number(member.get("majflt")) or 0 for member in members),
        "gpu_memory_mib": sum(memory for memory in devices if memory is not None),
        "log_size": number(sources.get("log", {}).get("size")),
        "compilers": _compilers(sources, {}),
        "tokens": number(mapping(mapping(sources.get("http", {}).get("metrics")).get("second")).get("realtime_tokens_total")),
        "generate": facts["generate"],
    }
    visits, since = 1, now
    for visit in reversed(facts["records"]["visits"]):
        at = number(visit.get("at"))
        if at is None or at > now - 1:
            continue  # our own visit of now, or a clock that went back
        if not _same(visit, current, limits, serving):
            break
        visits += int(max(1, min(number(visit.get("count")) or 1, 1_000_000)))
        since = min(since, number(visit.get("first_at")) or at, at)
    return {"visits": visits, "seconds": round(max(0.0, now - since), 1)}


def _same(visit: Mapping[str, Any], current: Mapping[str, Any], limits: Mapping[str, Any], serving: bool) -> bool:
    limit = limits["thresholds"]
    seconds = max(1.0, current["at"] - (number(visit.get("at")) or 0))
    if number(visit.get("main_pid")) != current["main_pid"]:
        return False
    started = number(visit.get("main_start"))
    if None not in (started, current["main_start"]) and abs(started - current["main_start"]) > CLOCK_S:
        return False  # the same number for another process, or a clock that was set
    if serving:
        before, after = number(visit.get("tokens")), current["tokens"]
        # What our own unanswered requests made the engine compute is no life.
        ours = limits["serving"]["own_tokens"] * 2
        frozen = before == after if before is None or after is None else 0 <= after - before <= ours
        return frozen and visit.get("generate") != "ok" and current["generate"] != "ok"
    if visit.get("compilers") or current["compilers"]:
        return False

    def moved(name: str, bound: float) -> bool:
        before = number(visit.get(name))
        return before is not None and abs(current[name] - before) >= bound

    log_moved = None not in (number(visit.get("log_size")), current["log_size"]) and number(visit.get("log_size")) != current["log_size"]
    return not (
        log_moved
        or moved("rchar", limit["read_bytes_per_s"] * seconds)
        or moved("read_bytes", limit["read_bytes_per_s"] * seconds)
        or moved("majflt", limit["majflt_per_s"] * seconds)
        or moved("gpu_memory_mib", limit["gpu_memory_mib"] * 8)
    )
