# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Snapshots as the node writes them, one per situation, for the tests of the judge."""

from __future__ import annotations

import copy
from typing import Any

from ansible_collections.gpufleet.inference.plugins.plugin_utils import lines, signatures

NOW = 1_780_000_000.0
COMMAND = ["/opt/x/bin/python", "-m", "sglang.launch_server", "--model-path", "/models/k", "--tp-size", "8", "--attention-backend"]
START = """[2026-05-28 18:40:01] server_args={'model_path': '/models/k', 'tp_size': 8}
[2026-05-28 18:40:09 TP0] Init parallel begin.
[2026-05-28 18:40:10 TP0] sglang is using nccl==2.27.5"""
BAR = "Multi-thread loading shards: 100% Completed | 64/64 [00:31<00:00,  2.05it/s]"


def each_rank(line: str) -> str:
    """The line once per rank, as eight schedulers log it."""
    return "\n".join(f"[2026-05-28 18:40:15 TP{rank}] {line}" for rank in range(8))


LOADING = "\n".join([START, each_rank("Init parallel ends. elapsed=2.31 s"), each_rank("Load weight begin. avail mem=94.14 GB"), BAR])
LOADED = "\n".join([LOADING, each_rank("Load weight end. elapsed=85.78 s, type=KimiK25ForConditionalGeneration")])
READY = "\n".join([LOADED, "[2026-05-28 18:42:01] The server is fired up and ready to roll!"])


def log(text: str, silent_s: float) -> dict[str, Any]:
    """A log source with the hits of the shipped catalogue."""
    catalog = signatures.load()
    cleaned = [lines.clean(line) for line in lines.split(text)]
    bars = [found for found in map(lines.progress_bar, cleaned) if found]
    return {
        "status": "ok",
        "reason": None,
        "seconds": 0.1,
        "path": "/var/log/sglang.log",
        "size": len(text),
        "mtime": NOW - silent_s,
        "silent_s": silent_s,
        "start_offset": 0,
        "tail": cleaned[-40:],
        "last_line": cleaned[-1] if cleaned else None,
        "last_time": lines.stamp(cleaned[-1])[0] if cleaned else None,
        "hits": catalog.scanners["server"].scan(cleaned),
        "bar": bars[-1] if bars else None,
    }


def member(pid: int, role: str, rank: int | None = None, state: str = "S") -> dict[str, Any]:
    """One process of the server."""
    return {
        "pid": pid,
        "ppid": 1 if role == "main" else 1000,
        "start_time": NOW - 1200,
        "role": role,
        "rank": rank,
        "title": f"sglang::{role}",
        "state": state,
        "wchan": "ep_poll",
        "threads": 20,
        "cpu_s": 300.0,
        "rchar": 9_000_000,
        "read_bytes": 9_000_000,
        "wchar": 1000,
        "majflt": 12,
        "rss_anon_kb": 1000,
        "rss_file_kb": 1000,
        "rss_shmem_kb": 0,
        "orphan": False,
        "delta": {"cpu_s": 4.9, "rchar": 40, "read_bytes": 0, "majflt": 0},
    }


def base(backend: str = "flashinfer", text: str = LOADING, silent_s: float = 900.0, util: float = 0.0) -> dict[str, Any]:
    """A live server whose weights are in and whose counters are flat; every source readable."""
    members = [member(1000, "main"), *(member(1001 + rank, "scheduler", rank, "R") for rank in range(8)), member(1009, "detokenizer")]
    device = {
        "uuid": "GPU-0",
        "pci_bus_id": "0000:01:00.0",
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "compute_cap": "12.0",
        "memory_used_mib": 77000,
        "memory_total_mib": 97887,
        "utilization_pct": util,
        "power_w": 90.0,
        "power_limit_w": 600.0,
        "recovery_action": "None",
        "processes": [{"pid": 1001, "memory_mib": 76000}],
        "delta": {"memory_used_mib": 0},
    }
    ok: dict[str, Any] = {"status": "ok", "reason": None, "seconds": 0.1}
    return {
        "schema": 1,
        "collected_at": NOW,
        "duration_s": 12.0,
        "window_s": 5.0,
        "depth": "deep",
        "host": {"name": "gpu01", "boot_id": "b", "uptime_s": 90000.0},
        "target": {
            "service_manager": "supervisor",
            "service": "sglang",
            "port": 30000,
            "bind": "0.0.0.0",
            "log_path": "/var/log/sglang.log",
            "model_path": "/models/k",
            "work_dir": "/opt/x",
            "engine": "sglang",
            "engine_version": "0.5.23",
            "profile": backend,
            "gpu_class": "sm120_pcie",
            "command": [*COMMAND, backend],
            "environment": {"NCCL_PROTO": "LL"},
            "gpus_expected": 8,
            "context_length": 98304,
        },
        "service": {
            **ok,
            "state": "running",
            "desired": "running",
            "main_pid": 1000,
            "exit_code": None,
            "exit_signal": None,
            "since": NOW - 1200,
        },
        "processes": {
            **ok,
            "main": members[0],
            "members": members,
            "schedulers": 8,
            "schedulers_alive": 8,
            "compilers": [],
            "stopped": [],
            "totals": {"rchar_per_s": 64.0, "read_bytes_per_s": 0.0, "majflt_per_s": 0.0, "cpu_pct": 800.0},
        },
        "port": {**ok, "listening": False, "owner_pid": None, "ours": None},
        "http": {
            **ok,
            "generate": {"result": "refused"},
            "health": {"result": "refused"},
            "models": {"result": "refused"},
            "server_info": None,
            "metrics": None,
        },
        "log": log(text, silent_s),
        "kernel": {**ok, "path": None, "hits": {}, "lines": []},
        "gpus": {
            **ok,
            "tool": "nvidia-smi",
            "driver_version": "580.95.05",
            "count": 8,
            "devices": [{**device, "index": index} for index in range(8)],
        },
        "syscalls": {
            **ok,
            "method": "strace",
            "pid": 1001,
            "rank": 0,
            "threads": 20,
            "seconds": 1.5,
            "counts": {"write": 12},
            "pattern": "heartbeat_only",
            "lines": ['[pid 1001] 00:35:20 write(127, "\\1", 1) = 1'],
        },
        "system": {
            **ok,
            "shm_free_mib": 64000,
            "shm_total_mib": 64000,
            "memory_available_mib": 900000,
            "model_disk_free_mib": 1,
            "log_disk_free_mib": 1,
            "boot_id": "b",
            "kernel": "6.8",
            "pids_at_limit": False,
        },
        "records": {
            "manifest": None,
            "last_known_good": None,
            "fallback": None,
            "attempts": None,
            "marks": None,
            "visits": None,
            "lease": None,
        },
    }


def incident() -> dict[str, Any]:
    """The founding incident."""
    return base()


def incident_slow() -> dict[str, Any]:
    """The same, still reading."""
    snapshot = base(text=LOADING.replace("100% Completed | 64/64", " 64% Completed | 41/64"), silent_s=700)
    snapshot["processes"]["totals"]["read_bytes_per_s"] = 41e6
    snapshot["syscalls"]["pattern"] = "reading"
    return snapshot


def incident_triton() -> dict[str, Any]:
    """The same hang with the other backend."""
    return base("triton")


def compiling() -> dict[str, Any]:
    """Silent, with a live compiler."""
    snapshot = base(text=LOADED, silent_s=1500)
    snapshot["processes"]["compilers"] = [{"pid": 2000, "name": "cicc", "cpu_s": 60.0, "delta_cpu_s": 4.9}]
    snapshot["syscalls"]["pattern"] = "futex_wait"
    return snapshot


def gone(snapshot: dict[str, Any], state: str = "failed", code: int | None = 137, desired: str = "running") -> dict[str, Any]:
    """The same without processes."""
    snapshot["service"].update(state=state, exit_code=code, main_pid=None, desired=desired)
    snapshot["processes"].update(main=None, members=[], schedulers=0, schedulers_alive=0)
    for device in snapshot["gpus"]["devices"]:
        device.update(memory_used_mib=2, processes=[], utilization_pct=0)
    snapshot["syscalls"] = {"status": "absent", "reason": "no process", "seconds": 0}
    return snapshot


def oom() -> dict[str, Any]:
    """Out of GPU memory, dead."""
    text = (
        LOADED
        + "\n[2026-05-28 18:42:00 TP3] Scheduler hit an exception: Traceback (most recent call last):"
        + "\ntorch.OutOfMemoryError: CUDA out of memory."
    )
    return gone(base("triton", text, 30.0))


def serving(text: str = READY, silent_s: float = 40.0) -> dict[str, Any]:
    """A server that generates."""
    snapshot = base("triton", text, silent_s)
    snapshot["port"].update(listening=True, owner_pid=1000, ours=True)
    counters = {"realtime_tokens_total": 1000, "num_running_reqs": 0, "num_queue_reqs": 0, "http_requests_active": 0}
    snapshot["http"].update(
        generate={"result": "ok", "tokens": 8, "seconds": 0.4, "code": 200, "error": None},
        health={"result": "ok", "code": 200, "seconds": 1.1},
        models={"result": "ok"},
        server_info={
            "result": "ok",
            "version": "0.5.23",
            "attention_backend": "triton",
            "context_length": 98304,
            "max_total_num_tokens": 116153,
        },
        metrics={"first": counters, "second": {**counters, "realtime_tokens_total": 1008}, "tokens_delta": 8},
    )
    snapshot["syscalls"] = {"status": "absent", "reason": "not needed", "seconds": 0}
    return snapshot


def green_freeze() -> dict[str, Any]:
    """/health is 200, and no token comes."""
    snapshot = serving(silent_s=200.0)
    snapshot["http"]["generate"] = {"result": "timeout", "tokens": 0, "seconds": 20.0, "code": None, "error": "timed out"}
    snapshot["http"]["metrics"]["second"] = {
        "realtime_tokens_total": 1000,
        "num_running_reqs": 2,
        "num_queue_reqs": 0,
        "http_requests_active": 3,
    }
    snapshot["http"]["metrics"]["tokens_delta"] = 0
    return snapshot


def busy() -> dict[str, Any]:
    """Full queue: our request waits, tokens flow."""
    snapshot = green_freeze()
    snapshot["http"]["metrics"]["tokens_delta"] = 4000
    snapshot["http"]["health"] = {"result": "timeout", "code": None, "seconds": 20.0}
    return snapshot


def fresh() -> dict[str, Any]:
    """Started seconds ago."""
    snapshot = base(text="", silent_s=4.0)
    snapshot["log"].update(hits={}, tail=[], last_line=None, last_time=None, bar=None)
    for process in [snapshot["processes"]["main"], *snapshot["processes"]["members"]]:
        process["start_time"] = NOW - 6
    snapshot["service"]["since"] = NOW - 6
    snapshot["processes"].update(schedulers=0, schedulers_alive=0)
    snapshot["syscalls"] = {"status": "absent", "reason": "no scheduler", "seconds": 0}
    return snapshot


def stopped() -> dict[str, Any]:
    """Stopped on purpose."""
    return gone(serving(), "stopped", 0, "stopped")


ALL = {
    maker.__name__: maker
    for maker in (incident, incident_slow, incident_triton, compiling, oom, serving, green_freeze, busy, fresh, stopped)
}


def build(name: str) -> dict[str, Any]:
    """A fresh copy of a situation by name."""
    return copy.deepcopy(ALL[name]())
