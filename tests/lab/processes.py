# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find and end the processes of a lab: those that work in its folders, and what descends from them."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """One process; `start` (clock ticks since boot) tells it from a later one with the same number."""

    pid: int
    ppid: int
    tty: int
    state: str
    start: int
    name: str
    cwd: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.name}, state {self.state}, in {self.cwd})"


def read(pid: int) -> Process | None:
    """The process, or None when it is gone, a zombie, or another user's."""
    try:
        head, _, tail = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
        fields = tail.split()
        cwd = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    return Process(pid, int(fields[1]), int(fields[4]), fields[0], int(fields[19]), head.partition("(")[2], cwd)


def under(folder: Path) -> list[Process]:
    """The lab's processes. One with a terminal is a person's (a shell, a pager) and is not the lab's; nor are we and our parents."""
    table = {p.pid: p for p in map(read, (int(e) for e in os.listdir("/proc") if e.isdigit())) if p}
    ours: set[int] = set()
    pid: int = os.getpid()
    while pid in table:
        ours.add(pid)
        pid = table[pid].ppid
    found = {p.pid for p in table.values() if (p.cwd + "/").startswith(f"{folder}/") and p.tty == 0} - ours
    while more := {p.pid for p in table.values() if p.ppid in found} - found - ours:
        found |= more
    return [table[pid] for pid in sorted(found)]


def send(process: Process, number: signal.Signals) -> None:
    """Signal exactly this process: the descriptor is held while its identity is read again."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        now = read(process.pid)
        if now and now.start == process.start:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def end_all_under(folder: Path, term_s: float = 5.0, kill_s: float = 10.0) -> list[Process]:
    """TERM, wait at most `term_s` seconds, KILL, wait at most `kill_s`; returns what is left."""
    for number, patience in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        deadline = time.monotonic() + patience
        signalled: set[tuple[int, int]] = set()
        while alive := under(folder):
            for process in alive:
                if (process.pid, process.start) not in signalled:
                    signalled.add((process.pid, process.start))
                    send(process, number)
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        else:
            return []
    return under(folder)
