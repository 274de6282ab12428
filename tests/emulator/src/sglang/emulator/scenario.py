# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scenario file of a machine: which fault is on, and the durations and speeds. Re-read while the server runs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Optional

ENVIRONMENT = "SGLANG_EMULATOR_MACHINE"
NAMES = ("healthy", "incident", "incident_slow", "incident_triton", "compiling", "oom", "green_freeze", "stubborn")

# seconds unless the name says otherwise
DEFAULTS: dict[str, Any] = {
    "imports_s": 0.5,  # main process, before its first line
    "spawn_imports_s": 0.5,  # children, before they set their title
    "dist_init_s": 0.5,
    "load_s": 3.0,  # all shards
    "post_bar_s": 1.0,  # silent repack after the bar's 100 %
    "kv_s": 0.2,
    "capture_s": 1.0,
    "warmup_s": 1.0,  # what the first request pays
    "tokens_per_s": 400.0,  # decode, per request
    "prefill_tokens_per_s": 20000.0,
    "answer_tokens": 256,  # length of an answer when max_tokens allows more
    "threads": 6,  # extra sleeping threads per process
    "poll_s": 0.05,  # idle loop of rank 0
    "idle_poll": 0,  # 1: idle schedulers poll without a pause, as the real ones do (state R, a core each)
    "shutdown_s": 1.5,  # SIGTERM to the first look at what runs
    "interrupt_s": 0.4,  # SIGINT to exit
    "drain_poll_s": 5.0,  # SIGTERM: how often running requests are looked for
    "scheduler_exit_s": 15.0,  # SIGTERM: how long schedulers get to end
    "weights_gib": 578.64,  # all ranks together, on GPUs
    "cpu_memory_gib": 20.0,  # what is available with --device cpu
    "slow_load_s": 600.0,  # incident_slow: how long the silent reading lasts
    "slow_bytes_per_s": 131072,  # incident_slow: per rank
    "slow_bar_pct": 100,  # incident_slow: where the bar stops
    "compile_s": 600.0,  # compiling: how long the compiler lives
    "compile_cpu": 0.15,  # compiling: share of one core
    "oom_rank": 0,
    "base": "incident",  # stubborn: what it otherwise behaves like
    "load_barrier_s": 480.0,
    "crash_wait_s": 5.0,  # SIGQUIT while serving: before the dumps
    "coredump_wait_s": 60.0,  # SIGQUIT while serving, with a living scheduler: after the dumps
    "watchdog_wait_s": 5.0,  # a watchdog's line to its SIGQUIT
    "ready_poll_s": 5.0,  # start: how often main looks for dead schedulers
    "warmup_poll_s": 1.0,  # the server waits this long before it asks itself
    "port_wait_s": 120.0,  # port held by a stranger: warm-up tries
    "dist_timeout_s": 1800.0,  # several nodes: how long they look for each other without --dist-timeout
    "health_timeout_s": 20.0,
}


class Scenario:
    """Current scenario and settings of ``machine`` (None: healthy, defaults). A broken file keeps the last good one."""

    def __init__(self, machine: Optional[Path] = None) -> None:
        self._path = machine / "scenario.json" if machine else None
        self._name, self._settings = "healthy", dict(DEFAULTS)
        self._stamp: Any = None
        self._checked = 0.0
        self._refresh(0.0)

    def _refresh(self, max_age: float = 0.2) -> None:
        now = time.monotonic()
        if self._path is None or now - self._checked < max_age:
            return
        self._checked = now
        try:
            stat = self._path.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if stamp != self._stamp:
                data = json.loads(self._path.read_text())
                settings = {key: type(DEFAULTS[key])(value) for key, value in data.get("settings", {}).items() if key in DEFAULTS}
                if data.get("scenario", "healthy") in NAMES:
                    self._name, self._settings, self._stamp = data.get("scenario", "healthy"), {**DEFAULTS, **settings}, stamp
        except (OSError, ValueError, TypeError, AttributeError):
            pass

    @property
    def name(self) -> str:
        """The scenario now."""
        self._refresh()
        return self._name

    def get(self, key: str) -> Any:
        """One setting now; its type is that of DEFAULTS."""
        self._refresh()
        return self._settings[key]

    @property
    def stubborn(self) -> bool:
        """SIGTERM is ignored and one worker outlives main."""
        return self.name == "stubborn"

    def fault(self, flashinfer: bool) -> Optional[str]:
        """What goes wrong with this attention backend: hang, slow, compile, oom, freeze or None."""
        name = self.get("base") if self.name == "stubborn" else self.name
        if name in ("incident", "incident_slow") and not flashinfer:
            return None
        return {
            "incident": "hang",
            "incident_triton": "hang",
            "incident_slow": "slow",
            "compiling": "compile",
            "oom": "oom",
            "green_freeze": "freeze",
        }.get(name)


def write(machine: Path, name: str, settings: dict[str, Any]) -> None:
    """Set the scenario of ``machine`` atomically. ValueError names what is unknown."""
    if name not in NAMES:
        raise ValueError("unknown scenario %r; known: %s" % (name, ", ".join(NAMES)))
    for key, value in settings.items():
        if key not in DEFAULTS:
            raise ValueError("unknown setting %r; known: %s" % (key, ", ".join(DEFAULTS)))
        type(DEFAULTS[key])(value)
    if settings.get("base", "healthy") not in NAMES:
        raise ValueError("unknown scenario %r for base; known: %s" % (settings["base"], ", ".join(NAMES)))
    machine.mkdir(parents=True, exist_ok=True)
    temporary = machine / (".scenario.%d" % os.getpid())
    temporary.write_text(json.dumps({"scenario": name, "settings": settings}, indent=1) + "\n")
    os.replace(temporary, machine / "scenario.json")


def machine_from_environment() -> Optional[Path]:
    """The machine directory of this process, or None for healthy defaults without files."""
    value = os.environ.get(ENVIRONMENT)
    return Path(value) if value else None
