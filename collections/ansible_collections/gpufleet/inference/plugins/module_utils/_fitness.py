# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The checks of a host before a server is started on it. Each is a pure function of what was read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _gpus


def gpu_count(devices: Sequence[Mapping[str, Any]], expected: int, reason: Optional[str]) -> dict[str, Any]:
    """All GPUs are there."""
    ok = len(devices) == expected
    message = f"{len(devices)} GPUs, gpus_expected is {expected}" + (f" ({reason})" if reason and not ok else "")
    return _check("gpu_count", ok, expected, len(devices), message)


def gpu_absence(reason: Optional[str], installed: bool) -> dict[str, Any]:
    """A host that is to have no GPU shows none. Where the tool is there and fails, it may have one all the same."""
    message = "no GPU, as gpus_expected says" + (f" ({reason})" if reason else "")
    return _check("gpu_count", None if reason and installed else True, 0, 0, message)


def gpu_model(devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All GPUs are of one model, one that belongs to a known class."""
    models = sorted({str(device["name"]) for device in devices})
    if len(models) != 1:
        message = f"different GPU models: {', '.join(models)}" if models else "no GPU can be seen"
        return _check("gpu_model", False, "one model", models, message)
    known = _gpus.gpu_class(models[0], devices[0]["compute_cap"])
    message = f"{models[0]}: {known or 'no profiles exist for this model'}"
    return _check("gpu_model", True if known else None, "a known class", models[0], message)


def gpu_memory(devices: Sequence[Mapping[str, Any]], needed_mib: int, ours: Collection[int]) -> dict[str, Any]:
    """Every GPU has room; what our own server holds counts as room."""
    low, unknown, least = [], [], None
    for device in devices:
        used, total = device["memory_used_mib"], device["memory_total_mib"]
        if used is None or total is None:
            unknown.append(str(device["index"]))
            continue
        own = [process["memory_mib"] for process in device["processes"] or [] if process["pid"] in ours]
        free = total - used + (used if None in own else min(used, sum(own)))
        least = free if least is None else min(least, free)
        if free < needed_mib:
            others = [str(process["pid"]) for process in device["processes"] or [] if process["pid"] not in ours]
            low.append(f"GPU {device['index']}: {free:.0f} MiB" + (f" (held by process {', '.join(others)})" if others else ""))
    if low:
        return _check("gpu_memory", False, needed_mib, least, f"less than {needed_mib} MiB free on {'; '.join(low)}")
    if unknown or not devices:
        return _check("gpu_memory", None, needed_mib, least, f"the memory of GPU {', '.join(unknown) or '0'} can not be read")
    return _check("gpu_memory", True, needed_mib, least, f"at least {least:.0f} MiB free on every GPU")


def port_free(port: int, seen: Mapping[str, Any], comm: Optional[str]) -> dict[str, Any]:
    """Nobody but our own server listens on the port."""
    if seen["listening"] is None:
        return _check("port_free", None, "free or ours", None, f"port {port}: {seen['reason']}")
    if not seen["listening"]:
        return _check("port_free", True, "free or ours", "free", f"port {port} is free")
    if seen["ours"]:
        return _check("port_free", True, "free or ours", "ours", f"port {port} is held by our own server, process {seen['owner_pid']}")
    owner = f"process {seen['owner_pid']} ({comm})" if seen["owner_pid"] else "a process that can not be seen"
    return _check("port_free", False, "free or ours", owner, f"port {port} is taken by {owner}")


def model_complete(path: str, seen: Mapping[str, Any]) -> dict[str, Any]:
    """Every file that the model's index names is there and whole."""
    problems = seen["problems"]
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    message = "model_path: " + "; ".join(problems[:3]) + more if problems else f"{path}: {seen['shards']} shards"
    return _check("model_complete", not problems, path, seen["shards"], message)


def _check(name: str, ok: Optional[bool], expected: Any, found: Any, message: str) -> dict[str, Any]:
    return {"id": name, "ok": ok, "expected": expected, "found": found, "message": message}
