# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What we look at: options first, then the host's manifest, then what runs. An adopted server goes by what was seen of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _proc, _redact

_FROM_MANIFEST = {
    "service_manager": "service_manager",
    "service_name": "service_name",
    "supervisor_conf": "supervisor_conf",
    "port": "port",
    "bind": "host",
    "log_path": "log_path",
    "model_path": "model_path",
    "work_dir": "work_dir",
    "gpus_expected": "gpus_expected",
}
_ENVIRONMENT = ("NCCL_", "SGLANG_", "SGL_", "CUDA_", "TORCH", "FLASHINFER", "TRITON", "HF_", "PYTORCH", "LD_", "OMP_")


_LISTS, _MAPPINGS, _NUMBERS = ("command", "ladder"), ("environment", "effective"), ("port", "gpus_expected", "context_length")


def sound(manifest: Any) -> dict[str, Any]:
    """What can be used of a manifest record: values of another type than the record's own are left out."""
    if not isinstance(manifest, dict) or "error" in manifest:
        return {}
    types: dict[str, Any] = {**dict.fromkeys(_LISTS, list), **dict.fromkeys(_MAPPINGS, dict), **dict.fromkeys(_NUMBERS, int)}
    return {name: value for name, value in manifest.items() if isinstance(value, types.get(name, str))}


def resolve(options: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Options with the gaps filled from the manifest; an option that is null counts as a gap."""
    resolved = dict(options)
    for option, key in _FROM_MANIFEST.items():
        if resolved.get(option) is None:
            resolved[option] = manifest.get(key)
    resolved["service_name"] = resolved.get("service_name") or "sglang"
    return resolved


def adopted(record: Any, service: Mapping[str, Any]) -> Optional[dict[str, Any]]:
    """The record of an adopted server while it is the one that counts: of this boot, and its manager started none since."""
    if not isinstance(record, dict) or service.get("main_pid") is not None or record.get("boot_id") != _proc.boot_id():
        return None
    started, since = service.get("started"), record.get("since")
    if isinstance(started, (int, float)) and isinstance(since, (int, float)) and started > since:
        return None
    if not all(isinstance(record.get(name), int) for name in ("pid", "start")) or not isinstance(record.get("work_dir"), str):
        return None
    return record


def with_adopted(
    resolved: Mapping[str, Any], service: Mapping[str, Any], record: Optional[Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options and service as they are for an adopted server: it runs outside its manager until it is started again."""
    if record is None:
        return dict(resolved), dict(service)
    stat = _proc.stat(record["pid"])
    alive = stat is not None and stat.start == record["start"] and stat.state not in "ZX"
    here = {"work_dir": record["work_dir"], "log_path": record.get("log_path") or resolved.get("log_path"), "adopted": record}
    told = {"state": "running" if alive else "failed", "desired": "running", "started": record.get("started")}
    told.update(since=None, exit_code=None, exit_signal=None)  # what the manager knows about is an earlier run
    return {**resolved, **here}, {**service, **told, "adopted": True}


def server(resolved: Mapping[str, Any], service: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an identity: where the server runs and what the manager, or the record of its adoption, says about it."""
    record = resolved.get("adopted") or {}
    return {
        "work_dir": resolved.get("work_dir"),
        "port": resolved.get("port"),
        "service_manager": resolved.get("service_manager"),
        "main_pid": service.get("main_pid") or record.get("pid"),
        "unit_cgroup": service.get("cgroup"),
        "main_start": None if service.get("main_pid") else record.get("start"),
    }


def is_unknown(manifest: Mapping[str, Any], service: Mapping[str, Any]) -> bool:
    """Whether nobody of ours ever deployed here: what runs has to be discovered."""
    return not manifest.get("command") and service.get("state") in (None, "absent")


def choose(servers: Mapping[int, Mapping[str, Any]], port: Optional[int], work_dir: Optional[str]) -> tuple[Optional[int], Optional[str]]:
    """The one server that port and directory tell, else why none is chosen (null where there is none)."""
    found = {pid: row for pid, row in servers.items() if port in (None, row["port"])}
    here = {pid: row for pid, row in found.items() if work_dir and row["work_dir"] == os.path.realpath(work_dir)}
    found = here if here or (work_dir and port is None) else found
    if len(found) < 2:
        return next(iter(found), None), None
    named = ", ".join(
        f"process {pid} (port {row['port']}, in {row['work_dir'] or 'a directory closed to us'})" for pid, row in found.items()
    )
    return None, f"{len(found)} SGLang servers run here, which one is meant is not told: {named}; set sglang_port or sglang_work_dir"


def learn(resolved: Mapping[str, Any], pid: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Options with what a running server tells about itself; a log that it does not write to is not its log."""
    path = resolved.get("log_path")
    its_own = path is not None and any(link.startswith(str(path)) for link in _outputs(pid))
    told = {
        "port": row["port"],
        "work_dir": row["work_dir"],
        "bind": flag(row["arguments"], "--host"),
        "log_path": path if its_own else output(pid),
        "service_manager": resolved.get("service_manager") or "existing",
    }
    return {**resolved, **{name: value for name, value in told.items() if value is not None}}


def describe(resolved: Mapping[str, Any], manifest: Mapping[str, Any], command: list[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """The snapshot's ``target``; what runs wins over what was written down."""
    shown = notable(environ)
    command = command or [str(word) for word in manifest.get("command") or []]
    return {
        "status": "ok",
        "reason": None,
        "seconds": 0.0,
        "service_manager": resolved.get("service_manager"),
        "service": resolved.get("service_name"),
        "port": resolved.get("port"),
        "bind": resolved.get("bind"),
        "log_path": resolved.get("log_path"),
        "model_path": resolved.get("model_path") or flag(command, "--model-path"),
        "work_dir": resolved.get("work_dir"),
        "engine": "sglang" if command else None,
        "engine_version": manifest.get("engine_version"),
        "profile": manifest.get("profile"),
        "gpu_class": manifest.get("gpu_class"),
        "gpus_expected": resolved.get("gpus_expected"),
        "context_length": manifest.get("context_length"),
        "command": _redact.argv(command),
        "environment": _redact.environment({**(manifest.get("environment") or {}), **shown}),
        "flags": {},
    }


def notable(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that can matter to a server."""
    return {name: value for name, value in environ.items() if name.startswith(_ENVIRONMENT)}


def output(pid: int) -> Optional[str]:
    """File that takes the output of a process, null when it is a terminal, a pipe, removed, or not to be told."""
    paths = [path for path in _outputs(pid) if path.startswith("/") and not path.startswith("/dev/") and not path.endswith(" (deleted)")]
    return next(iter(paths), None)


def _outputs(pid: int) -> list[str]:
    return [_proc.link(f"/proc/{pid}/fd/{number}") or "" for number in (1, 2)]


def rotated(path: str, main: int) -> str:
    """Where the output of process ``main`` goes now: another name of the file ``path`` after a rotation, else ``path``."""
    for number in (1, 2):
        link = _proc.link(f"/proc/{main}/fd/{number}")
        if link and link != path and link.startswith(path):
            return f"/proc/{main}/fd/{number}"
    return path


def flag(command: list[str], name: str) -> Optional[str]:
    """Value of a flag on a command line, null without it."""
    for index, word in enumerate(command):
        if word.startswith(name + "="):
            return word[len(name) + 1 :]
        if word == name and index + 1 < len(command):
            return command[index + 1]
    return None
