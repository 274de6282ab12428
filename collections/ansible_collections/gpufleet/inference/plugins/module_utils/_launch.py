# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. How a running server was started, and by whom: what is needed to take it over or to refuse it."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat as stat_module
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _identity, _proc, _redact, _target

# Managers that start again what ends.
_KEEPERS = frozenset(["supervisord", "runsv", "s6-supervise", "circusd", "containerd-shim", "dockerd"])
_UNIT = re.compile(r"([^/]+\.service)(?:/[^/]*)?$")


def describe(pid: int, row: Mapping[str, Any], venv: Optional[str], timeout: float) -> dict[str, Any]:
    """Everything about the start of one server that :func:`_identity.launchers` found; what is closed to us is null.

    :arg venv: the installation that it should run from; ``venv`` of the result is spelled like this when it is the same.
    """
    work_dir, arguments = row["work_dir"] or "/", row["arguments"]
    outcome = _bounded.call(lambda emit: _read(pid, emit), timeout)
    environ: Optional[dict[str, str]] = outcome.values.get("environ") or None
    python = _interpreter(arguments[0], work_dir, (environ or {}).get("PATH"))
    prefix = os.path.dirname(os.path.dirname(python)) if python else None
    model = _target.flag(arguments, "--model-path") or _target.flag(arguments, "--model")
    salt = os.urandom(16).hex()
    same = prefix is not None and venv is not None and os.path.realpath(prefix) == os.path.realpath(venv)
    return {
        "pid": pid,
        "start": row["start"],
        "started": _proc.start_time(row["start"], _proc.boot_time()),
        "boot_id": _proc.boot_id(),
        "user": _user(_proc.owner(f"/proc/{pid}")),
        "port": row["port"],
        "work_dir": row["work_dir"],
        "venv": venv if same else prefix,
        "model_path": os.path.normpath(os.path.join(work_dir, model)) if model else None,
        "command": _redact.argv(arguments),
        "environment": None if environ is None else _redact.environment(_target.notable(environ)),
        "secrets": {"salt": salt, "values": _redact.fingerprints(arguments, _target.notable(environ or {}), salt)},
        "log_path": outcome.values.get("log_path"),
        "kept_by": _keeper(pid, row["parent"], timeout),
        "container": _other_mounts(pid),
    }


def owner(pid: int, row: Mapping[str, Any], service: Mapping[str, Any], records: Mapping[str, Any]) -> Optional[str]:
    """What makes a server ours: its service, its adoption, the manifest (one that our manager lost); null for a stranger's."""
    cgroup = service.get("cgroup")
    if pid == service.get("main_pid") or (cgroup and _identity.in_cgroup(pid, cgroup)):
        return "service"
    record = _target.adopted(records.get("adoption"), service)
    if record and (record["pid"], record["start"]) == (pid, row["start"]):
        return "adoption"
    manifest = _target.sound(records.get("manifest"))
    command = [str(word) for word in manifest.get("command") or []]
    if command and row["arguments"] == command and row["work_dir"] == os.path.realpath(str(manifest.get("work_dir"))):
        return "manifest"
    return None


def choose(servers: Sequence[Mapping[str, Any]], port: Optional[int], work_dir: Optional[str]) -> tuple[Optional[int], Optional[str]]:
    """Like :func:`_target.choose`, among our own servers if one of them is."""
    ours = [server for server in servers if server["owner"]]
    return _target.choose({server["pid"]: server for server in ours or servers}, port, work_dir)


def _read(pid: int, emit: _bounded.Emit) -> None:
    """Child body: a look at the environment takes the memory lock of the process, a look at the log its file system."""
    emit({"environ": _proc.environ(pid)})
    path = _target.output(pid)
    if path and stat_module.S_ISREG(
        os.stat(f"/proc/{pid}/fd/1" if _proc.link(f"/proc/{pid}/fd/1") == path else f"/proc/{pid}/fd/2").st_mode
    ):
        emit({"log_path": path})


def _interpreter(word: str, work_dir: str, path: Optional[str]) -> Optional[str]:
    """The program that a command line names, found as the shell did; a virtual environment is known by the place of its link."""
    if "/" in word:
        return os.path.normpath(os.path.join(work_dir, word))
    return shutil.which(word, path=path) if path else None


def _user(uid: Optional[int]) -> Optional[str]:
    try:
        return None if uid is None else pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _keeper(pid: int, parent: int, timeout: float) -> Optional[str]:
    """Who starts the server again when it ends, null when nobody is seen to."""
    stat = _proc.stat(parent)
    if stat is not None and stat.comm in _KEEPERS:
        return f"{stat.comm} (process {parent})"
    for line in (_proc.text(f"/proc/{pid}/cgroup") or "").splitlines():
        unit = _UNIT.search(line)
        if unit:
            # Processes that somebody left behind lie in the cgroup of his unit too.
            outcome = _bounded.run(["systemctl", "show", unit[1], "--property=MainPID"], timeout)
            if outcome.returncode == 0 and outcome.text.strip() == f"MainPID={pid}":
                return unit[1]
    return None


def _other_mounts(pid: int) -> Optional[bool]:
    """Whether the paths on its command line mean other files than here, null when that can not be told."""
    theirs, ours = _proc.link(f"/proc/{pid}/ns/mnt"), _proc.link("/proc/self/ns/mnt")
    return None if None in (theirs, ours) else theirs != ours
