# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The emulated machine: its GPUs, who uses them, and the record of signals that servers received."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, Optional

MODELS: dict[str, dict[str, Any]] = {
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": {
        "compute_cap": "12.0", "memory_total_mib": 97887, "memory_reserved_mib": 637, "power_limit_w": 600.0, "nvlink": False,
    },
    "NVIDIA H200": {"compute_cap": "9.0", "memory_total_mib": 143771, "memory_reserved_mib": 602, "power_limit_w": 700.0, "nvlink": True},
    "NVIDIA B200": {"compute_cap": "10.0", "memory_total_mib": 183359, "memory_reserved_mib": 717, "power_limit_w": 1000.0, "nvlink": True},
}  # fmt: skip
DEFAULT_MODEL = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
IDLE_W, CONTEXT_MIB = 34.0, 850


def describe(gpu_model: str = DEFAULT_MODEL, count: int = 8, seed: str = "default") -> dict[str, Any]:
    """machine.json for ``count`` GPUs. KeyError for a model that is not in MODELS."""
    return {
        "gpu_model": gpu_model,
        "count": count,
        "driver_version": "580.95.05",
        "cuda_version": "13.0",
        "seed": seed,
        "devices": {},  # per index: {"extra_memory_mib": 0, "recovery_action": "None", "missing": false}
        **MODELS[gpu_model],
    }


def load(machine: Optional[Path]) -> dict[str, Any]:
    """machine.json over the defaults; defaults alone without a directory or file."""
    base = describe()
    if machine is not None:
        try:
            data = json.loads((machine / "machine.json").read_text())
            return {**base, **MODELS.get(data.get("gpu_model", ""), {}), **data}
        except OSError:
            pass
    return base


def make(machine: Path, gpu_model: str, count: int) -> None:
    """Create a machine directory: machine.json, a healthy scenario.json, gpus/, an empty signals.log."""
    (machine / "gpus").mkdir(parents=True, exist_ok=True)
    (machine / "machine.json").write_text(json.dumps(describe(gpu_model, count, str(machine.resolve())), indent=1) + "\n")
    (machine / "signals.log").touch()
    if not (machine / "scenario.json").exists():
        (machine / "scenario.json").write_text(json.dumps({"scenario": "healthy", "settings": {}}) + "\n")


def start_time(pid: int) -> Optional[int]:
    """Field 22 of /proc/PID/stat (clock ticks since boot); None when the process is gone or a zombie."""
    try:
        fields = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def entries(machine: Optional[Path]) -> list[dict[str, Any]]:
    """GPU entries of living processes; the files of dead ones are ignored."""
    found = []
    for path in sorted((machine / "gpus").glob("*.json")) if machine else []:
        try:
            entry = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if start_time(entry["pid"]) == entry["start_time"]:
            found.append(entry)
    return found


def clean(machine: Optional[Path]) -> None:
    """Remove the files of dead processes."""
    alive = {(entry["index"], entry["pid"]) for entry in entries(machine)}
    for path in (machine / "gpus").glob("*.json") if machine else []:
        index, pid = path.name.split(".")[:2]
        if (int(index), int(pid)) not in alive:
            path.unlink(missing_ok=True)


class Gpu:
    """This process's entry on one GPU: gpus/<index>.<pid>.json, rewritten only when something changes."""

    def __init__(self, machine: Optional[Path], index: int) -> None:
        self._path = machine / "gpus" / ("%d.%d.json" % (index, os.getpid())) if machine else None
        self._entry: dict[str, Any] = {"index": index, "pid": os.getpid(), "start_time": start_time(os.getpid())}
        if self._path:
            self._path.parent.mkdir(parents=True, exist_ok=True)

    def set(self, memory_gib: float, utilization: int, power_w: float) -> None:
        """Record memory (GiB of tensors, the CUDA context comes on top), utilisation in % and power in W."""
        entry = {**self._entry, "memory_used_mib": int(memory_gib * 1024) + CONTEXT_MIB, "utilization": utilization, "power": power_w}
        if self._path and entry != self._entry:
            temporary = self._path.with_suffix(".tmp")
            temporary.write_text(json.dumps(entry) + "\n")
            os.replace(temporary, self._path)
        self._entry = entry


def devices(machine: Optional[Path]) -> list[dict[str, Any]]:
    """The GPUs as nvidia-smi sees them now: index, uuid, bus id, memory, utilisation, power, processes."""
    data = load(machine)
    used = entries(machine)
    found = []
    for index in range(data["count"]):
        extra = data["devices"].get(str(index), {})
        if extra.get("missing"):
            continue
        mine = [entry for entry in used if entry["index"] == index]
        digest = hashlib.sha256(("%s/%d" % (data["seed"], index)).encode()).hexdigest()
        memory = sum(entry["memory_used_mib"] for entry in mine) + int(extra.get("extra_memory_mib", 0))
        found.append({
            "index": index,
            "uuid": "GPU-%s-%s-%s-%s-%s" % (digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]),
            "bus_id": "00000000:%02X:00.0" % (0x01 + 0x10 * index),
            "serial": str(int(digest[32:42], 16))[:13],
            "name": data["gpu_model"],
            "memory_total": data["memory_total_mib"],
            "memory_reserved": data["memory_reserved_mib"],
            "memory_used": min(memory, data["memory_total_mib"]),
            "utilization": max([entry["utilization"] for entry in mine], default=0),
            "power": max([entry["power"] for entry in mine], default=IDLE_W),
            "power_limit": data["power_limit_w"],
            "recovery_action": extra.get("recovery_action", "None"),
            "processes": mine,
        })  # fmt: skip
    return found


def free_gib(machine: Optional[Path], index: int) -> float:
    """Free memory of one GPU before our process allocates, in GiB (its CUDA context already counted)."""
    data = load(machine)
    others = sum(entry["memory_used_mib"] for entry in entries(machine) if entry["index"] == index and entry["pid"] != os.getpid())
    others += int(data["devices"].get(str(index), {}).get("extra_memory_mib", 0))
    return float(data["memory_total_mib"] - data["memory_reserved_mib"] - CONTEXT_MIB - others) / 1024


def log_signal(machine: Optional[Path], signal_name: str, title: str) -> None:
    """Append one received signal to signals.log as a JSON line (epoch seconds)."""
    if machine:
        line = json.dumps({"at": round(time.time(), 3), "pid": os.getpid(), "title": title, "signal": signal_name}) + "\n"
        try:
            with open(machine / "signals.log", "a") as stream:
                stream.write(line)
        except OSError:
            pass
