# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The watchdogs of schedulers and of main, and the stack dumps that come before an end."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from sglang.emulator.log import Log
from sglang.emulator.scenario import Scenario


@dataclass
class Progress:
    """What a watchdog looks at: it is awake in a start and while a batch runs, and wants ``steps`` to change."""

    initializing: bool = True
    running: bool = False
    steps: int = 0


def watch(name: str, progress: Progress, log: Log, scenario: Scenario, timeout: float, soft: bool) -> None:
    """Start a watchdog thread. A soft one only dumps, again and again; the other one ends the server."""
    if name != "Scheduler":
        log.info("Watchdog %s initialized." % name)
    threading.Thread(target=_watch, args=(name, progress, log, scenario, timeout, soft), daemon=True).start()


def _watch(name: str, progress: Progress, log: Log, scenario: Scenario, timeout: float, soft: bool) -> None:
    parent = os.getppid()
    seen, since = progress.steps, time.monotonic()
    while True:
        time.sleep(timeout / 2)
        # the hard one is made after the start
        asleep = not (progress.running or (soft and progress.initializing))
        if asleep or progress.steps != seen:
            seen, since = progress.steps, time.monotonic()
            continue
        if time.monotonic() - since <= timeout:
            continue
        if progress.running:
            log.error("%s debug info:\nscheduler.cur_batch_for_debug.batch_size()=1" % name)
        dump_stack(log, os.getpid())
        log.error("%s watchdog timeout (self.watchdog_timeout=%s, self.soft=%s)" % (name, timeout, soft))
        if not soft:
            time.sleep(scenario.get("watchdog_wait_s"))
            if os.getppid() == parent:
                os.kill(parent, signal.SIGQUIT)
        since = time.monotonic()


def dump_stack(log: Log, pid: int) -> None:
    """What the real server logs of py-spy; py-spy fails on a stopped process."""
    try:
        state = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0]
        title = Path("/proc/%d/cmdline" % pid).read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        state, title = "", ""
    if state not in ("", "T", "Z"):
        frames = ("Scheduler.event_loop_overlap (scheduler.py:2078)", "run_scheduler_process (scheduler.py:6368)")
        stack = "".join("\n    " + frame for frame in frames)
        text = 'Process %d: %s\nPython v3.11.7\n\nThread %d (active): "MainThread"%s\n' % (pid, title, pid, stack)
        log.error("Pyspy dump for PID %d (py-spy dump --native --pid %d):\n%s" % (pid, pid, text))
        return
    for command in ("py-spy dump --native --pid %d" % pid, "py-spy dump  --pid %d" % pid):
        log.error("Pyspy failed (%s). Error: Error: Failed to get stack traces\n" % command)
    log.error("All pyspy dump attempts failed for PID %d." % pid)
