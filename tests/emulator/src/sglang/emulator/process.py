# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Things a process does to itself: title, parent-death signal, signal record, sleeping threads, killing its tree."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from pathlib import Path
from typing import Callable, Optional

from sglang.emulator.machine import log_signal
from sglang.emulator.scenario import Scenario

PR_SET_PDEATHSIG = 1
RECORDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def set_title(title: str) -> None:
    """Rewrite the command line in /proc (the real server uses the same library)."""
    import setproctitle

    setproctitle.setproctitle(title)


def die_with_parent(wanted: bool = True) -> None:
    """SIGKILL this process when the parent's thread that forked it ends. Call it from the main thread."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL) if wanted else 0, 0, 0, 0)


def record_signals(
    machine: Optional[Path], scenario: Scenario, title: str, handlers: Optional[dict[int, Callable[[], None]]] = None
) -> None:
    """Log catchable signals to signals.log, then do ``handlers[signum]()`` or the default. A stubborn server ignores SIGTERM."""

    def on_signal(number: int, frame: object) -> None:
        log_signal(machine, signal.Signals(number).name, title)
        if number == signal.SIGCONT or (number == signal.SIGTERM and scenario.stubborn):
            return
        if handlers and number in handlers:
            handlers[number]()
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in RECORDED:
        signal.signal(number, on_signal)


def sleeping_threads(count: int) -> None:
    """Threads that wait for ever, as the libraries of the real server have many of."""
    for _ in range(count):
        threading.Thread(target=threading.Event().wait, daemon=True).start()


def descendants(pid: int) -> list[int]:
    """All living descendants of ``pid``, nearest first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(name))
    found, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(0), []):
            found.append(child)
            queue.append(child)
    return found


def kill_tree(include_self: bool = True) -> None:
    """SIGKILL all descendants, then this process itself: its exit status is 137 / -9."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if include_self:
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
