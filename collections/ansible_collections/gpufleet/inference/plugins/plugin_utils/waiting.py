# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""When to stop waiting for a server that starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpufleet.inference.plugins.plugin_utils import observe

READY = ("serving", "degraded")
#: States that end a wait once two looks in a row agree: a start that is just being made passes through some of them.
GONE = ("crashed", "stopped")
BROKEN = ("gpu_fault", "host_fault")
LAST_LINES = 15
BAR = re.compile(r"\d%[^|]*\|")


class Watch:
    """Verdicts on one start, in order, and whether they are enough."""

    def __init__(self, host: str, limits: Mapping[str, float]) -> None:
        """O(limits): C(timeout), C(confirm_seconds) in seconds and C(confirm_visits)."""
        self.host = host
        self.limits = limits
        self.done = False
        self.ready = False
        self.suspicious = False
        self.timeline: list[dict[str, Any]] = []
        self._verdict: dict[str, Any] = {}
        self._tail: list[str] = []
        self._seconds = 0.0
        self._step: tuple[Any, ...] | None = None
        self._bad_state: str | None = None
        self._bad_since = 0.0
        self._bad_looks = 0

    def look(self, verdict: dict[str, Any], snapshot: Mapping[str, Any], seconds: float) -> str | None:
        """Take one more verdict, O(seconds) after the wait began. Returns the line to show when something moved."""
        self._verdict, self._seconds = verdict, seconds
        self._tail = _without_old_bars([str(line) for line in ((snapshot.get("log") or {}).get("tail") or [])])[-LAST_LINES:]
        state = str(verdict.get("state"))
        self.ready = state in READY
        self._count_bad(state, seconds)
        self.done = self.ready or self._is_final(state, seconds)
        if observe.step(verdict) == self._step:
            return None
        self._step = observe.step(verdict)
        words = observe.progress_line(verdict)
        self.timeline.append({"seconds": round(seconds, 1), "what": words})
        return f"{self.host} {words}"

    def out_of_time(self, seconds: float) -> bool:
        """Whether the whole wait took longer than its limit."""
        return seconds >= self.limits["timeout"]

    def outcome(self) -> dict[str, Any]:
        """The result of the task."""
        result: dict[str, Any] = {"verdict": self._verdict, "seconds": round(self._seconds, 1), "timeline": self.timeline[-60:]}
        if self.ready:
            return result
        summary = self._verdict.get("summary") or "no verdict"
        if not self.done:
            summary = f"not ready after {self.limits['timeout']:.0f} s: {summary}"
        steps = "; ".join(str(step) for step in self._verdict.get("next") or [])
        return dict(result, failed=True, msg=summary + (f". Next: {steps}" if steps else ""), log_tail=self._tail)

    def _count_bad(self, state: str, seconds: float) -> None:
        if state not in ("stuck", *GONE, *BROKEN):
            self._bad_state, self._bad_looks, self.suspicious = None, 0, False
            return
        if state != self._bad_state:
            self._bad_state, self._bad_since, self._bad_looks = state, seconds, 0
        self._bad_looks += 1
        self.suspicious = True

    def _is_final(self, state: str, seconds: float) -> bool:
        if state == "stuck" and self._verdict.get("proof") == "no_progress":
            return self._bad_looks >= self.limits["confirm_visits"] and seconds - self._bad_since >= self.limits["confirm_seconds"]
        return state in ("stuck", *GONE, *BROKEN) and self._bad_looks >= 2


def _without_old_bars(lines: list[str]) -> list[str]:
    """The lines with only the last state of each progress bar."""
    return [line for line, after in zip(lines, [*lines[1:], ""], strict=False) if not (BAR.search(line) and BAR.search(after))]
