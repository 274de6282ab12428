# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One table of all hosts at the end of a run."""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from ansible import constants
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: fleet
type: aggregate
author: gpufleet contributors (@gpufleet)
short_description: One table of all hosts at the end of a run
description:
  - Prints a table of the last verdict of every host, after playbooks and after ad-hoc commands.
  - Where a report was written, prints its rows instead, which say what was and what would be done.
  - Prints nothing when no task gave a verdict, under AWX (which has a display of its own) and when the output is JSON.
requirements:
  - Enabled in C(ansible.cfg).
"""

COLUMNS = ("host", "state", "phase", "since", "cause", "confidence", "action", "fallback", "summary")
REPORT_COLUMNS = ("host", "state_before", "cause", "confidence", "action", "state_after", "seconds", "profile", "note")
COLOURS = {"serving": "green", "starting": "yellow", "degraded": "yellow", "stopped": "normal"}


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Remembers the last verdict of each host and prints them together."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "fleet"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._verdicts: dict[str, Mapping[str, Any]] = {}
        self._unreachable: dict[str, Mapping[str, Any]] = {}
        self._report: list[Mapping[str, Any]] = []

    def v2_runner_on_ok(self, result: Any) -> None:
        """Takes the verdict of a task that went well."""
        self._take(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Takes the verdict of a task that failed, such as a wait for a server that never came."""
        self._take(result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """A host that can not be reached has its line too, once any other host has a verdict."""
        self._unreachable[str(result.host.get_name())] = {"state": "unreachable", "summary": result.result.get("msg")}

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Prints the table; Ansible calls this after ad-hoc commands too."""
        if not self._verdicts or os.environ.get("AWX_HOST") or "json" in str(constants.DEFAULT_STDOUT_CALLBACK):
            return
        width = shutil.get_terminal_size((160, 24)).columns
        verdicts = {**self._verdicts, **self._unreachable}
        lines = report_table(self._report, width) if self._report else table(verdicts, width)
        states = [row.get("state_after") for row in self._report] or [verdicts[host].get("state") for host in sorted(verdicts)]
        self._display.display("")
        self._display.display(lines[0])
        for line, state in zip(lines[1:], states, strict=True):
            self._display.display(line, color=COLOURS.get(str(state), "red"))

    def _take(self, result: Any) -> None:
        rows = result.result.get("rows")
        if str(result.task.action).endswith("fleet_report") and isinstance(rows, list):
            self._report = rows
        verdict = result.result.get("verdict")
        # The verdict of analyze_bundle is about a directory of evidence, not about the host it runs on.
        if isinstance(verdict, Mapping) and verdict.get("state") and not str(result.task.action).endswith("analyze_bundle"):
            self._verdicts[str(result.host.get_name())] = verdict


def table(verdicts: Mapping[str, Mapping[str, Any]], width: int) -> list[str]:
    """Returns the header and one line per host, sorted, aligned and cut to V(width) characters; columns without a value are left out."""
    return _aligned([dict(zip(COLUMNS, _cells(host, verdicts[host]), strict=True)) for host in sorted(verdicts)], COLUMNS, width)


def report_table(rows: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Returns the same for the rows of a report, in their order."""
    return _aligned([{name: _clean(row.get(name)) for name in REPORT_COLUMNS} for row in rows], REPORT_COLUMNS, width)


def _aligned(rows: Sequence[Mapping[str, str]], columns: Sequence[str], width: int) -> list[str]:
    shown = [name for name in columns if any(row[name] for row in rows)]
    lines = [{name: name.upper().replace("_", " ") for name in shown}, *rows]
    widths = {name: max(len(line[name]) for line in lines) for name in shown}
    whole = ["  ".join(line[name].ljust(widths[name]) for name in shown).rstrip() for line in lines]
    return [line if len(line) <= width else line[: width - 1] + "…" for line in whole]


def _cells(host: str, verdict: Mapping[str, Any]) -> list[str]:
    fallback = verdict.get("fallback")
    # 2026-11-29T00:28:05Z as 11-29 00:28Z: a stuck server is found within days, and the summary needs the width.
    since = re.sub(r"^\d{4}-(\d\d-\d\d)T(\d\d:\d\d):[\d.]+", r"\1 \2", str(verdict.get("since") or ""))
    texts = [
        host,
        *(verdict.get(name) for name in ("state", "phase")),
        since,
        *(verdict.get(name) for name in ("cause", "confidence", "action")),
    ]
    texts += [fallback.get("profile") or "yes" if isinstance(fallback, Mapping) else None, verdict.get("summary")]
    return [_clean(text) for text in texts]


def _clean(text: Any) -> str:
    """Returns one line without control and formatting characters: log lines of a host must not steer the terminal."""
    printable = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in str("" if text is None else text))
    return " ".join(printable.split())
