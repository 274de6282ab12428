# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Who listens on the server's port: /proc/net/tcp and tcp6, socket inode to process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _proc

_LISTEN = "0A"


def parse_listeners(table: str, port: int) -> set[str]:
    """Socket inodes that listen on ``port`` in one /proc/net/tcp table."""
    inodes: set[str] = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        if int(fields[1].rpartition(":")[2], 16) == port:
            inodes.add(fields[9])
    return inodes


def listeners(port: int, pid: Optional[int] = None, proc: str = "/proc") -> Optional[set[str]]:
    """Inodes listening on ``port`` in the network namespace of ``pid`` (ours without one), null if unreadable."""
    base = f"{proc}/{pid}/net" if pid and os.path.isdir(f"{proc}/{pid}/net") else f"{proc}/net"
    tables = [table for table in (_proc.text(f"{base}/tcp", 8 << 20), _proc.text(f"{base}/tcp6", 8 << 20)) if table is not None]
    if not tables:
        return None
    return set().union(*(parse_listeners(table, port) for table in tables))


def owner(inodes: set[str], candidates: Iterable[int], proc: str = "/proc") -> Optional[int]:
    """First of ``candidates`` that holds one of the sockets open."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in candidates:
        try:
            names = os.listdir(f"{proc}/{pid}/fd")
        except OSError:
            continue
        if any(_proc.link(f"{proc}/{pid}/fd/{name}") in wanted for name in names):
            return pid
    return None


def collect(port: Optional[int], main: Optional[int], members: Iterable[int], proc: str = "/proc") -> dict[str, Any]:
    """The snapshot's ``port``: listening, owner_pid, ours (null when the owner can not be seen)."""
    if port is None:
        return {"status": "absent", "reason": "no port is known", "listening": None, "owner_pid": None, "ours": None}
    inodes = listeners(port, main, proc)
    if inodes is None:
        return {"status": "unavailable", "reason": "no /proc/net/tcp", "listening": None, "owner_pid": None, "ours": None}
    if not inodes:
        return {"status": "ok", "reason": None, "listening": False, "owner_pid": None, "ours": None}
    ours = list(members)
    pid = owner(inodes, ours, proc)
    if pid is not None:
        return {"status": "ok", "reason": None, "listening": True, "owner_pid": pid, "ours": True}
    known = set(ours)
    pid = owner(inodes, (other for other in _proc.pids(proc) if other not in known), proc)
    reason = None if pid else "the owner of the listening socket can not be seen"
    return {"status": "ok", "reason": reason, "listening": True, "owner_pid": pid, "ours": None if pid is None else False}
