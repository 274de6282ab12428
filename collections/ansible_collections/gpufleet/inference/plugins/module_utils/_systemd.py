# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What systemd says about a unit, and the few commands that we give it."""

from __future__ import annotations

import time
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded

_UNIT_PROPERTIES = (
    "LoadState,UnitFileState,ActiveState,SubState,Result,Job,InvocationID,MainPID,ControlPID,ExecMainCode,ExecMainStatus,"
    "ExecMainStartTimestampMonotonic,ExecMainExitTimestampMonotonic,ActiveEnterTimestampMonotonic,InactiveEnterTimestampMonotonic,"
    "ControlGroup,NRestarts"
)
_ACTIVE = ("active", "reloading", "refreshing")


def unit_name(name: str) -> str:
    """The full name of a unit; its type may be left out."""
    return name if name.endswith((".service", ".scope", ".slice")) else f"{name}.service"


def show(unit: str, timeout: float = 5.0) -> _bounded.Outcome:
    """What systemd knows about a unit, as :func:`parse_unit` takes it."""
    return _bounded.run(["systemctl", "show", unit, f"--property={_UNIT_PROPERTIES}"], timeout)


def stop(unit: str) -> bool:
    """Ask for a stop and do not wait for it; false if systemd does not know the unit or does not answer."""
    return _done(["systemctl", "stop", "--no-block", unit])


def reset_failed(unit: str) -> bool:
    """Make a failed unit an inactive one."""
    return _done(["systemctl", "reset-failed", unit])


def _done(command: list[str]) -> bool:
    outcome = _bounded.run(command, 10.0)
    return outcome.reason() is None and outcome.returncode == 0


def parse_unit(text: str, last_exit: Optional[dict[str, Any]] = None) -> dict[str, Any]:
    """Translate ``systemctl show``; monotonic microseconds become epoch seconds.

    :arg last_exit: the last end of the unit that was kept, null without one.
    """
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    active = fields.get("ActiveState")
    load = fields.get("LoadState")
    if load in ("not-found", "masked") and active in ("inactive", "failed", None):
        return {"state": "absent"} if load == "not-found" else {"state": "absent", "desired": "stopped"}
    invocation = fields.get("InvocationID") or None
    own = last_exit if last_exit and (invocation is None or last_exit.get("invocation") == invocation) else None
    state, desired = _unit_state(fields, own)
    killed = fields.get("ExecMainCode") in ("2", "3")  # CLD_KILLED, CLD_DUMPED
    gone = state in ("failed", "stopped")
    ended = gone and fields.get("ExecMainCode", "0") != "0"
    code = int(fields.get("ExecMainStatus") or 0)
    started = _epoch(fields.get("ExecMainStartTimestampMonotonic"))
    result = {
        "state": state,
        "desired": desired,
        "main_pid": int(fields.get("MainPID") or 0) or None,
        "exit_code": code if ended and not killed else None,
        "exit_signal": code if ended and killed else None,
        "since": _epoch(fields.get("ExecMainExitTimestampMonotonic")) if ended else started,
        "started": started,
        "cgroup": fields.get("ControlGroup") or None,
        "restarts": int(fields.get("NRestarts") or 0),
        "control_pid": int(fields.get("ControlPID") or 0) or None,
        "invocation": invocation,
        "unit_state": "/".join(fields.get(name) or "?" for name in ("ActiveState", "SubState")),
        "result": fields.get("Result") or None,
        "enabled": fields.get("UnitFileState") or None,
    }
    if gone and not ended and own:
        result.update(exit_code=own["exit_code"], exit_signal=own["exit_signal"], since=own["at"])
    return result


def _unit_state(fields: dict[str, str], own: Optional[dict[str, Any]]) -> tuple[Optional[str], Optional[str]]:
    """Our words for the state of a unit, and whether somebody wants it to run.

    :arg own: the kept end of its last run.
    """
    active, sub, job = fields.get("ActiveState"), fields.get("SubState") or "", fields.get("Job") not in (None, "", "0")
    asked = own["asked"] if own else None
    if active in _ACTIVE:
        return "running", "running"
    if active == "activating":  # between two tries nothing runs
        return ("failed" if sub.startswith("auto-restart") else "starting"), "running"
    if active == "deactivating":
        if job:
            return "running", "stopped"
        return ("running" if int(fields.get("MainPID") or 0) else "failed"), "running"
    if active == "failed":
        # A stop that had to kill ends in a failed unit, too. A start that was refused is none.
        return ("stopped", "stopped") if asked and fields.get("Result") != "start-limit-hit" else ("failed", "running")
    if active != "inactive":
        return None, None
    if fields.get("Result") not in ("success", None, ""):  # stopped between two tries
        return "stopped", "stopped"
    if job:  # a start that waits for its turn
        return "starting", "running"
    entered = [int(fields.get(f"{name}EnterTimestampMonotonic") or 0) for name in ("Active", "Inactive")]
    if not any(entered) and not (own and own["this_boot"]):  # it did not run since the boot, which starts what is enabled
        return "stopped", "running" if fields.get("UnitFileState") in ("enabled", "enabled-runtime") else "stopped"
    return "stopped", "running" if asked is False else "stopped"


def _epoch(microseconds: Optional[str]) -> Optional[float]:
    value = int(microseconds or 0)
    return round(time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) + value / 1e6, 2) if value else None
