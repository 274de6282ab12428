# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What we look at: options first, then the host's manifest."""

from __future__ import annotations

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


def server(resolved: Mapping[str, Any], service: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an identity: where the server runs and what the manager says about it."""
    return {
        "work_dir": resolved.get("work_dir"),
        "port": resolved.get("port"),
        "service_manager": resolved.get("service_manager"),
        "main_pid": service.get("main_pid"),
        "unit_cgroup": service.get("cgroup"),
    }


def describe(resolved: Mapping[str, Any], manifest: Mapping[str, Any], command: list[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """The snapshot's ``target``; what runs wins over what was written down."""
    shown = {name: value for name, value in environ.items() if name.startswith(_ENVIRONMENT)}
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
