# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Read /proc. Every reader returns null or empty for a process that is gone or closed to us.

``cmdline`` and ``environ`` take the memory lock of the process and can block for ever on a sick one: call them only in a
bounded child.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/PID/stat that we use; times in clock ticks, ``start`` since boot."""

    pid: int
    comm: str
    state: str
    ppid: int
    majflt: int
    cpu: int
    threads: int
    start: int


def pids(proc: str = "/proc") -> list[int]:
    """All process ids."""
    try:
        return [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []


def read(path: str, limit: int = 1 << 20) -> Optional[bytes]:
    """At most ``limit`` bytes of a /proc file, null if it can not be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return None


def text(path: str, limit: int = 1 << 20) -> Optional[str]:
    """:func:`read` as stripped text."""
    data = read(path, limit)
    return None if data is None else data.decode("utf-8", "replace").strip()


def parse_stat(line: str) -> Optional[Stat]:
    """Parse one /proc/PID/stat line; the command name may hold blanks and brackets."""
    head, bracket, tail = line.rpartition(")")
    fields = tail.split()
    pid, open_bracket, comm = head.partition(" (")
    if not bracket or not open_bracket or len(fields) < 20 or not pid.isdigit():
        return None
    ppid, majflt, user, system, threads, start = (int(fields[index]) for index in (1, 9, 11, 12, 17, 19))
    return Stat(int(pid), comm, fields[0], ppid, majflt, user + system, threads, start)


def stat(pid: int, proc: str = "/proc") -> Optional[Stat]:
    """State, parent, counters and start of one process."""
    line = text(f"{proc}/{pid}/stat")
    return parse_stat(line) if line else None


def pairs(path: str) -> dict[str, str]:
    """A ``key: value`` file such as status, io or meminfo; empty if it can not be read."""
    result: dict[str, str] = {}
    for line in (text(path) or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            result[key.strip()] = value.strip()
    return result


def number(value: Optional[str]) -> Optional[int]:
    """First word of a value such as ``123 kB`` as a number."""
    word = (value or "").partition(" ")[0]
    return int(word) if word.isdigit() else None


def owner(path: str) -> Optional[int]:
    """User id that owns a path (of /proc/PID: whose process it is), null when it can not be told."""
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


def link(path: str) -> Optional[str]:
    """Target of a /proc link such as cwd or fd/1."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def cmdline(pid: int, proc: str = "/proc") -> list[str]:
    """Arguments; a rewritten title comes back as its one argument. Can block."""
    data = read(f"{proc}/{pid}/cmdline") or b""
    parts = data.decode("utf-8", "replace").split("\0")
    while parts and not parts[-1].strip():
        parts.pop()
    return parts


def environ(pid: int, proc: str = "/proc") -> dict[str, str]:
    """Environment at exec time, if a title has not overwritten it. Can block."""
    data = (read(f"{proc}/{pid}/environ") or b"").decode("utf-8", "replace")
    return dict(part.split("=", 1) for part in data.split("\0") if "=" in part and part.split("=", 1)[0].isidentifier())


def boot_time(proc: str = "/proc") -> int:
    """Epoch second of the boot; 0 if unknown."""
    for line in (text(f"{proc}/stat") or "").splitlines():
        if line.startswith("btime "):
            return int(line.split()[1])
    return 0


def start_time(ticks: int, boot: int) -> float:
    """Epoch of a start given in ticks since boot."""
    return round(boot + ticks / CLOCK_TICKS, 2)


def boot_id(proc: str = "/proc") -> Optional[str]:
    """Identity of this boot."""
    return text(f"{proc}/sys/kernel/random/boot_id")


def uptime(proc: str = "/proc") -> Optional[float]:
    """Seconds since boot."""
    line = text(f"{proc}/uptime")
    return float(line.split()[0]) if line else None
