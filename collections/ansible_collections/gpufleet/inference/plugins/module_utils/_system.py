# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Room on the host: shared memory, memory, disks, process limit."""

from __future__ import annotations

import os
import re
from typing import Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _proc

_MIB = 1 << 20


def collect(model_path: Optional[str], log_path: Optional[str], main: Optional[int], emit: _bounded.Emit) -> None:
    """Child body; the disks come last because a dead mount blocks there."""
    shm = _free("/dev/shm")  # noqa: S108
    memory = _proc.number(_proc.pairs("/proc/meminfo").get("MemAvailable"))
    emit(
        {
            "shm_free_mib": shm[0],
            "shm_total_mib": shm[1],
            "memory_available_mib": None if memory is None else memory // 1024,
            "boot_id": _proc.boot_id(),
            "kernel": os.uname().release,
            "pids_at_limit": pids_at_limit(main) if main else None,
        }
    )
    for key, path in (("log_disk_free_mib", log_path), ("model_disk_free_mib", model_path)):
        if path:
            emit({"reading": path})
            emit({key: _free(path)[0], "reading": None})


def _free(path: str) -> tuple[Optional[int], Optional[int]]:
    try:
        info = os.statvfs(path)
    except OSError:
        return None, None
    return info.f_bavail * info.f_frsize // _MIB, info.f_blocks * info.f_frsize // _MIB


def pids_at_limit(pid: int) -> Optional[bool]:
    """Whether the process limit of the server's cgroup or of its user is used up; null when neither can be read."""
    answers = []
    for line in (_proc.text(f"/proc/{pid}/cgroup") or "").splitlines():
        _number, controllers, path = line.split(":", 2)
        if controllers in ("", "pids"):
            base = f"/sys/fs/cgroup{'/pids' if controllers else ''}{path}"
            current, most = _proc.number(_proc.text(f"{base}/pids.current")), _proc.number(_proc.text(f"{base}/pids.max"))
            if current is not None:
                answers.append(most is not None and current >= most)
    match = re.search(r"^Max processes\s+(\d+)", _proc.text(f"/proc/{pid}/limits") or "", re.MULTILINE)
    threads = _proc.number(_proc.pairs(f"/proc/{pid}/status").get("Threads"))
    if match and threads is not None:
        answers.append(threads >= int(match.group(1)))
    return any(answers) if answers else None
