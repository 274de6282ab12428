# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. systemd's side of a stop: it ends what is left in the control group itself, and calls an end by SIGKILL a failure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _exits, _identity, _locate, _proc, _service, _systemd

_POLL_S = 0.5
_END_S = 20.0  # the unit gives its keeper of evidence 11 s

Members = dict[int, dict[str, Any]]


class Unit:
    """The unit of a server; does nothing for a server that is none of systemd's."""

    def __init__(self, located: _locate.Located) -> None:
        options = located.options
        known = options["service_manager"] == "systemd" and located.service.get("unit_state") is not None
        self._name = _systemd.unit_name(str(options["service_name"])) if known else None
        self._state_dir = str(options["state_dir"])
        self._now = located.service
        self._between = "auto-restart" in str(located.service.get("unit_state"))

    def wait(self) -> None:
        """Let systemd finish its part, for a while."""
        deadline = time.monotonic() + _END_S
        while self._name:
            self._now = _service.collect("systemd", self._name, None, 5.0, self._state_dir)
            if self._active() != "deactivating" or time.monotonic() >= deadline:
                return
            time.sleep(_POLL_S)

    def without_helpers(self, members: Members) -> Members:
        """Members of the control group that are the server's: what systemd started in it to keep the evidence is not."""
        control = self._now.get("control_pid")
        if not control:
            return members
        helpers = {control, *_identity.descendants(control, _parents(members))}
        return {pid: member for pid, member in members.items() if pid not in helpers}

    def settle(self, dry: bool = False) -> bool:
        """Make a server that is down and that somebody wanted down count as stopped, also when it had crashed before.

        :returns: whether that changed anything, in a dry run whether it would.
        """
        if not self._name or (dry and self._between):
            return bool(self._name)
        if self._active() not in ("failed", "inactive"):
            return False
        name, state_dir, run = self._name, self._state_dir, self._now["invocation"]
        crashed = bool(self._now["desired"] == "running" and run)
        if dry:
            return crashed or self._active() == "failed"
        if crashed:
            _bounded.call(lambda _emit: _exits.note_asked(state_dir, name, run), 5.0)
        return (self._active() == "failed" and _systemd.reset_failed(name)) or crashed or self._between

    def _active(self) -> str:
        return str(self._now.get("unit_state")).partition("/")[0]


def _parents(pids: Iterable[int]) -> Mapping[int, int]:
    return {pid: stat.ppid for pid in pids if (stat := _proc.stat(pid)) is not None}
