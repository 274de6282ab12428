# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The GPU table from nvidia-smi, in a child that can be abandoned."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded

FIELDS: dict[str, str] = {
    "index": "index",
    "uuid": "uuid",
    "pci_bus_id": "pci.bus_id",
    "name": "name",
    "driver_version": "driver_version",
    "compute_cap": "compute_cap",
    "memory_used_mib": "memory.used",
    "memory_total_mib": "memory.total",
    "utilization_pct": "utilization.gpu",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
    "recovery_action": "gpu_recovery_action",
}
_NUMBERS = ("memory_used_mib", "memory_total_mib", "utilization_pct", "power_w", "power_limit_w")
_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
_NVLINK_CAPABILITIES = ("9.0", "10.0", "10.3")


def query(tool: str, timeout: float, beside: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """One pass over all GPUs: ``devices`` without processes, or a ``reason``. Fields the driver does not know are left out.

    An unknown field makes nvidia-smi refuse the whole query, so it is dropped and the query repeated.

    :arg beside: called again and again while we wait.
    """
    fields = dict(FIELDS)
    end = time.monotonic() + timeout
    for _attempt in range(4):
        argv = [tool, f"--query-gpu={','.join(fields.values())}", "--format=csv,noheader,nounits"]
        outcome = _run(argv, end - time.monotonic(), beside)
        unknown = _UNKNOWN_FIELD.search(outcome.text)
        if unknown is None or unknown.group(1) not in fields.values():
            break
        fields = {key: field for key, field in fields.items() if field != unknown.group(1)}
    devices = parse_devices(outcome.text, list(fields))
    reason = outcome.reason()
    if reason is None and outcome.returncode != 0:
        reason = outcome.text.strip().splitlines()[-1][:200] if outcome.text.strip() else f"{tool} exited with {outcome.returncode}"
    return {"devices": devices, "reason": reason, "seconds": outcome.seconds, "text": ", ".join(fields.values()) + "\n" + outcome.text}


def parse_devices(text: str, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a ``--query-gpu`` csv; what is no number (``[N/A]``, ``ERR!``) becomes null."""
    devices = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(keys) or not cells[0].isdigit():
            continue
        row: dict[str, Any] = dict.fromkeys(FIELDS)
        row.update({key: number(cell) if key in _NUMBERS else word(cell) for key, cell in zip(keys, cells)})
        row["index"] = int(cells[0])
        devices.append(row)
    return devices


def parse_apps(text: str) -> dict[str, list[dict[str, Any]]]:
    """Rows of ``--query-compute-apps=gpu_uuid,pid,used_memory`` by GPU."""
    result: dict[str, list[dict[str, Any]]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[1].isdigit():
            result.setdefault(cells[0], []).append({"pid": int(cells[1]), "memory_mib": number(cells[2])})
    return result


def number(cell: str) -> Optional[float]:
    """A cell as a number (whole ones as int), null for anything else."""
    try:
        value = float(cell.partition(" ")[0])
    except ValueError:
        return None
    return int(value) if value.is_integer() else value


def word(cell: str) -> Optional[str]:
    """A cell as text, null when the driver has no answer."""
    return None if cell in ("", "N/A", "[N/A]", "[Not Supported]") else cell


def gpu_class(name: Optional[str], compute_cap: Optional[str]) -> Optional[str]:
    """Class of a GPU: sm120_pcie, nvlink or null for one without profiles."""
    if (compute_cap or "").startswith("12.") or "RTX PRO 6000 Blackwell" in (name or ""):
        return "sm120_pcie"
    return "nvlink" if compute_cap in _NVLINK_CAPABILITIES or re.search(r"\b(B200|B300|H200|GB200)\b", name or "") else None


def sample(tool: str, timeout: float, beside: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """:func:`query` with the processes on each GPU."""
    end = time.monotonic() + timeout
    result = query(tool, timeout, beside)
    apps: Optional[dict[str, list[dict[str, Any]]]] = {}
    if result["devices"]:
        argv = [tool, "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits"]
        outcome = _run(argv, end - time.monotonic(), beside)
        # Without an answer nobody knows who holds the memory; an empty list would say that nobody does.
        apps = parse_apps(outcome.text) if outcome.reason() is None and outcome.returncode == 0 else None
        result["text"] += outcome.text
        result["reason"] = result["reason"] or outcome.reason()
        result["seconds"] += outcome.seconds
    for device in result["devices"]:
        device["processes"] = None if apps is None else apps.get(device["uuid"] or "", [])
    return result


def _run(argv: Sequence[str], timeout: float, beside: Callable[[], None]) -> _bounded.Outcome:
    child = _bounded.Child(argv, timeout, max_bytes=1 << 20)
    while not child.poll():
        beside()
        time.sleep(0.01)
    return child.wait()


def combine(tool: str, first: Optional[dict[str, Any]], second: Optional[dict[str, Any]]) -> dict[str, Any]:
    """The snapshot's ``gpus`` from one or two samples."""
    result = first or second
    base: dict[str, Any] = {"tool": tool, "driver_version": None, "count": None, "devices": []}
    if result is None:
        return {**base, "status": "unavailable", "reason": "no sample was taken", "seconds": 0.0}
    later = {device["uuid"]: device for device in second["devices"]} if first and second else {}
    devices = []
    for device in result["devices"]:
        row = {key: value for key, value in device.items() if key != "driver_version"}
        old, new = device["memory_used_mib"], later.get(device["uuid"], {}).get("memory_used_mib")
        row["delta"] = {"memory_used_mib": None if old is None or new is None else new - old}
        devices.append(row)
    missing = (result["reason"] or "").startswith("No such file") or "No such file or directory" in (result["reason"] or "")
    return {
        **base,
        "status": "ok" if devices else "absent" if missing else "unavailable",
        "reason": result["reason"],
        "seconds": round(result["seconds"] + (second["seconds"] if first and second else 0.0), 3),
        "driver_version": result["devices"][0]["driver_version"] if devices else None,
        "count": len(devices) if devices else None,
        "devices": devices,
    }
