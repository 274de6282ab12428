# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. End the processes of one server, and of no other, in order."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import (
    _bounded,
    _locate,
    _port,
    _proc,
    _processes,
    _redact,
    _service,
    _systemd,
    _unit,
)

_CHILDREN_S = 3.0  # children follow their main process within a second
_POLL_S = 0.1

Members = dict[int, dict[str, Any]]


def alive(pid: int, start: int) -> bool:
    """Whether exactly this process still runs; a zombie does not."""
    stat = _proc.stat(pid)
    return stat is not None and stat.start == start and stat.state not in "ZX"


def send(pid: int, start: int, number: int) -> bool:
    """Signal a process only if it is still the one that started at ``start`` ticks; false if it is gone."""
    open_pidfd = getattr(os, "pidfd_open", None)
    send_pidfd = getattr(signal, "pidfd_send_signal", None)
    fd: Optional[int] = None
    try:
        if open_pidfd and send_pidfd:
            try:
                fd = open_pidfd(pid)
            except ProcessLookupError:
                return False
            except OSError:  # a kernel without pidfd
                fd = None
        if not alive(pid, start):
            return False
        if fd is not None and send_pidfd:
            send_pidfd(fd, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # one that we may not signal shows up among the survivors
        return False
    finally:
        if fd is not None:
            os.close(fd)
    return True


def wait_gone(members: Mapping[int, Mapping[str, Any]], timeout: float) -> Members:
    """Wait until none of them runs; returns those that still do."""
    deadline = time.monotonic() + timeout
    while True:
        left = {pid: dict(member) for pid, member in members.items() if alive(pid, member["start"])}
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_POLL_S)


class Stop:
    """One stop of one server; ``signals`` lists what was sent, or in a dry run what would be."""

    def __init__(self, located: _locate.Located, dry: bool) -> None:
        self._located = located
        self._unit = _unit.Unit(located)
        self._dry = dry
        self.signals: list[dict[str, Any]] = []

    def run(self, term_timeout: float, kill_timeout: float) -> dict[str, Any]:
        """TERM to the main process, then KILL to what is left of it.

        :returns: ``changed``, ``signals``, ``survivors``, ``foreign`` (who else listens on the port) and ``reset`` (a failed unit
            counts as stopped now).
        """
        main = self._located.found["main"]
        members: Members = self._located.found["members"]
        if self._dry:
            for pid in self._order(members, main):
                self._note(pid, members[pid], signal.SIGTERM if pid == main else signal.SIGKILL, "check mode")
            return self._result(members, {}, not members and self._unit.settle(dry=True))
        if main is not None:
            self._terminate(main, members)
            if wait_gone({main: members[main]}, term_timeout):
                self._kill([main], members)
            wait_gone(members, _CHILDREN_S)
        elif self._located.service["desired"] == "running":
            self._ask_manager()
        self._unit.wait()
        members = self._unit.without_helpers({**members, **self._located.again()["members"]})
        left = wait_gone(members, 0.0)
        self._kill(self._order(left, main), left)
        if left:
            left = wait_gone({**left, **self._located.again()["members"]}, kill_timeout)
            self._unit.wait()
        return self._result(members, left, not left and self._unit.settle())

    def _terminate(self, main: int, members: Members) -> None:
        # The manager has to know that this end is wanted, or it starts the server again.
        service = self._located.service
        waits = service["main_pid"] is None and service["desired"] == "running"
        asked = (service["main_pid"] == main or waits) and self._ask_manager()
        if asked and not waits:
            self._note(main, members[main], signal.SIGTERM, str(self._located.options["service_manager"]))
        elif send(main, members[main]["start"], signal.SIGTERM):
            self._note(main, members[main], signal.SIGTERM, "pidfd")

    def _ask_manager(self) -> bool:
        options = self._located.options
        manager, name, conf = options["service_manager"], options["service_name"], options["supervisor_conf"]
        if manager == "supervisor" and conf and name:
            return _bounded.call(lambda emit: emit({"asked": _service.supervisor(conf).stopProcess(name, False)}), 10.0).reason() is None
        if manager == "systemd" and name:
            return _systemd.stop(_systemd.unit_name(name))
        return False

    def _kill(self, pids: Iterable[int], members: Mapping[int, dict[str, Any]]) -> None:
        for pid in pids:
            if send(pid, members[pid]["start"], signal.SIGKILL):
                self._note(pid, members[pid], signal.SIGKILL, "pidfd")

    @staticmethod
    def _order(members: Members, main: Optional[int]) -> list[int]:
        """Main process first: its children are set to die with it."""
        return sorted(members, key=lambda pid: (pid != main, pid))

    def _note(self, pid: int, member: Mapping[str, Any], number: signal.Signals, via: str) -> None:
        title = " ".join(_redact.argv(member["arguments"]))[:200]
        self.signals.append({"pid": pid, "title": title, "signal": number.name[3:], "at": round(time.time(), 3), "via": via})

    def _result(self, members: Members, left: Members, reset: bool = False) -> dict[str, Any]:
        survivors = []
        for pid, member in left.items():
            stat = _proc.stat(pid)
            title = " ".join(_redact.argv(member["arguments"]))[:200]
            wchan = _processes.wchan(f"/proc/{pid}/wchan")
            survivors.append({"pid": pid, "title": title, "state": stat.state if stat else None, "wchan": wchan})
        port = _port.collect(self._located.options["port"], None, members)
        foreign = []
        if port["listening"] and port["ours"] is not True:
            stat = _proc.stat(port["owner_pid"]) if port["owner_pid"] else None
            foreign.append(
                {"pid": port["owner_pid"], "comm": stat.comm if stat else None, "holds": f"port {self._located.options['port']}"}
            )
        changed = bool(self.signals) or reset
        return {"changed": changed, "signals": self.signals, "survivors": survivors, "foreign": foreign, "reset": reset}
