# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The last small snapshots on the host: without them nobody can tell a still server from a slow one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _processes

KEEP = 48
_BYTES_PER_S = 4096
_FAULTS_PER_S = 10
_GPU_MIB = 16
_COUNTERS = ("rchar", "read_bytes", "majflt", "gpu_memory_mib", "log_size", "tokens", "main_pid", "main_start", "first_at")
_CLOCK_S = 2.0  # the start of a process is told by the wall clock, and jitters with it


def visit(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """What one snapshot leaves behind; counters are sums over all processes or GPUs."""
    processes, http = snapshot["processes"], snapshot["http"]
    members, main = processes["members"], processes["main"] or {}
    memory = [device["memory_used_mib"] for device in snapshot["gpus"]["devices"] if device["memory_used_mib"] is not None]
    return {
        "at": snapshot["collected_at"],
        "first_at": snapshot["collected_at"],
        "count": 1,
        "main_pid": main.get("pid"),
        "main_start": main.get("start_time"),
        "rchar": _processes.totals(members, "rchar"),
        "read_bytes": _processes.totals(members, "read_bytes"),
        "majflt": _processes.totals(members, "majflt"),
        "gpu_memory_mib": sum(memory) if memory else None,
        "log_size": snapshot["log"].get("size"),
        "tokens": (http["metrics"]["second"] or {}).get("realtime_tokens_total"),
        "generate": http["generate"]["result"],
        "compilers": [compiler["name"] for compiler in processes["compilers"]],
    }


def add(record: Optional[Mapping[str, Any]], new: Mapping[str, Any]) -> dict[str, Any]:
    """The record with one more visit.

    A visit that shows no progress against the two before it takes the place of the last one, so a still run keeps its first
    and its last visit however long it is; ``count`` and ``first_at`` tell how many visits an entry stands for and since when.
    """
    stored = (record or {}).get("visits")
    visits = [row for row in stored if _sound(row)] if isinstance(stored, list) else []
    if len(visits) >= 2 and still(visits[-2], visits[-1]) and still(visits[-2], new) and still(visits[-1], new):
        last = visits.pop()
        new = {**new, "count": last.get("count", 1) + 1, "first_at": last.get("first_at", last.get("at"))}
    return {"visits": [*visits, dict(new)][-KEEP:]}


def still(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether nothing that counts as progress moved between two visits to the same server."""
    if (
        old.get("main_pid") != new.get("main_pid")
        or _moved(old, new, "main_start", _CLOCK_S)
        or new.get("compilers")
        or "ok" in (old.get("generate"), new.get("generate"))
    ):
        return False
    seconds = max(1.0, float(new.get("at") or 0) - float(old.get("at") or 0))
    limits = (("read_bytes", _BYTES_PER_S * seconds), ("rchar", _BYTES_PER_S * seconds), ("majflt", _FAULTS_PER_S * seconds))
    if any(_moved(old, new, key, limit) for key, limit in (*limits, ("gpu_memory_mib", _GPU_MIB), ("tokens", 1))):
        return False
    # Once the port is open our own probes are logged, so only before that is a longer log progress.
    return new.get("generate") != "refused" or not _moved(old, new, "log_size", 1)


def _sound(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("at"), (int, float)) or not isinstance(row.get("count", 1), int):
        return False
    return all(isinstance(row.get(key), (int, float, type(None))) for key in _COUNTERS)


def _moved(old: Mapping[str, Any], new: Mapping[str, Any], key: str, limit: float) -> bool:
    before, after = old.get(key), new.get(key)
    return before is not None and after is not None and abs(after - before) >= limit
