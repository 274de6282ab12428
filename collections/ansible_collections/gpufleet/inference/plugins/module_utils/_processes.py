# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Counters of the server's processes, sampled twice so that progress is measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _identity, _proc

_DELTAS = ("cpu_s", "rchar", "read_bytes", "majflt")


def sample(found: Mapping[str, Any]) -> dict[str, Any]:
    """Read the counters of all members now (no call here can block)."""
    boot = _proc.boot_time()
    members = []
    for pid, member in found["members"].items():
        row = _member(pid, member, found["main"], boot)
        if row is not None:
            members.append(row)
    return {"at": time.monotonic(), "main": found["main"], "members": members, "reason": found["reason"]}


def _member(pid: int, member: Mapping[str, Any], main: Optional[int], boot: int) -> Optional[dict[str, Any]]:
    stat = _proc.stat(pid)
    if stat is None or stat.start != member["start"]:
        return None
    status = _proc.pairs(f"/proc/{pid}/status")
    io = _proc.pairs(f"/proc/{pid}/io")
    arguments = member["arguments"] or [stat.comm]
    title = " ".join(arguments)
    return {
        "pid": pid,
        "ppid": stat.ppid,
        "start_time": _proc.start_time(stat.start, boot),
        "role": _identity.role(arguments, stat.comm, pid == main),
        "rank": _identity.rank(title),
        "title": title[:200],
        "state": stat.state,
        "wchan": wchan(f"/proc/{pid}/wchan"),
        "threads": stat.threads,
        "cpu_s": round(stat.cpu / _proc.CLOCK_TICKS, 2),
        "rchar": _proc.number(io.get("rchar")),
        "read_bytes": _proc.number(io.get("read_bytes")),
        "wchar": _proc.number(io.get("wchar")),
        "majflt": stat.majflt,
        "rss_anon_kb": _proc.number(status.get("RssAnon")),
        "rss_file_kb": _proc.number(status.get("RssFile")),
        "rss_shmem_kb": _proc.number(status.get("RssShmem")),
        "orphan": member["orphan"],
        "compiler": _identity.compiler_name(arguments, stat.comm),
    }


def wchan(path: str) -> Optional[str]:
    """Kernel function a thread sleeps in; kernels without symbols answer 0."""
    name = _proc.text(path)
    return None if name in (None, "", "0") else name


def combine(first: Optional[Mapping[str, Any]], second: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """The snapshot's ``processes`` from one or two samples."""
    last = second or first
    if last is None:
        return _empty("unavailable", "no sample was taken")
    if not last["members"]:
        return _empty("unavailable" if last["reason"] else "absent", last["reason"] or "no process of the server was found")
    seconds = last["at"] - first["at"] if first and second else 0.0
    before = {(row["pid"], row["start_time"]): row for row in first["members"]} if first and second else {}
    members = []
    for row in last["members"]:
        old = before.get((row["pid"], row["start_time"]))
        members.append({**row, "delta": {key: _difference(row[key], old[key]) for key in _DELTAS} if old else None})
    compilers = [
        {"pid": row["pid"], "name": row["compiler"], "cpu_s": row["cpu_s"], "delta_cpu_s": (row["delta"] or row)["cpu_s"]}
        for row in members
        if row["role"] == "compiler"
    ]
    for row in members:
        del row["compiler"]
    schedulers = [row for row in members if row["role"] == "scheduler"]
    return {
        "status": "ok",
        "reason": last["reason"],
        "main": next((row for row in members if row["role"] == "main"), None),
        "members": members,
        "schedulers": len(schedulers),
        "schedulers_alive": sum(row["state"] not in "ZXx" for row in schedulers),
        "compilers": compilers,
        "stopped": [row["pid"] for row in members if row["state"] == "T"],
        "totals": {
            "rchar_per_s": _rate(members, "rchar", seconds),
            "read_bytes_per_s": _rate(members, "read_bytes", seconds),
            "majflt_per_s": _rate(members, "majflt", seconds),
            "cpu_pct": _rate(members, "cpu_s", seconds, 100.0),
        },
    }


def totals(members: Sequence[Mapping[str, Any]], key: str) -> Optional[int]:
    """Sum of one counter over the members, null when none of them shows it."""
    values = [row[key] for row in members if row.get(key) is not None]
    return sum(values) if values else None


def _rate(members: Sequence[Mapping[str, Any]], key: str, seconds: float, scale: float = 1.0) -> Optional[float]:
    values = [row["delta"][key] for row in members if row["delta"] and row["delta"][key] is not None]
    return round(sum(values) * scale / seconds, 1) if values and seconds > 0 else None


def _difference(new: Any, old: Any) -> Any:
    return None if new is None or old is None else round(new - old, 2)


def _empty(status: str, reason: str) -> dict[str, Any]:
    return {
        "status": status,
        "reason": reason,
        "main": None,
        "members": [],
        "schedulers": 0,
        "schedulers_alive": 0,
        "compilers": [],
        "stopped": [],
        "totals": {"rchar_per_s": None, "read_bytes_per_s": None, "majflt_per_s": None, "cpu_pct": None},
    }
