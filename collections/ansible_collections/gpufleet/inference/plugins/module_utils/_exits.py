# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What the unit's C(ExecStopPost=) kept of each end of the server: systemd itself forgets it at the next start or boot."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _proc

_SUFFIX = ".exit"
_HEAD_BYTES = 4096
_MAX_BYTES = 256 << 10


def parse(text: str) -> dict[str, Any]:
    """The head of a record: C(key=value) lines up to the first empty one."""
    head = text.partition("\n\n")[0]
    fields = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
    code, status = fields.get("code"), fields.get("status") or ""
    killed = code in ("killed", "dumped")
    return {
        "at": _number(fields.get("at")),
        "unit": fields.get("unit") or None,
        "result": fields.get("result") or None,
        "exit_code": _number(status) if code == "exited" else None,
        "exit_signal": _signal(status) if killed else None,
        "asked": True if "stop_asked" in fields else {"yes": True, "no": False}.get(fields.get("asked", "")),
        "invocation": fields.get("invocation") or None,
        "boot_id": fields.get("boot_id") or None,
        "left": _number(fields.get("left")),
        "oom_kills": _number(fields.get("oom_kills")),
    }


def newest(state_dir: str, unit: str) -> Optional[dict[str, Any]]:
    """The last end of a unit with the C(path) of its record, null without one. A record that can not be read is passed over.

    C(this_boot) tells whether the host was booted since.
    """
    for path in _paths(state_dir):
        text = _read(path, _HEAD_BYTES)
        found = parse(text) if text else {}
        if found.get("at") is not None and found["unit"] == unit:
            return {**found, "path": path, "this_boot": found["boot_id"] == _proc.boot_id()}
    return None


def content(path: str) -> str:
    """All of one record, for an evidence directory; empty if it can not be read."""
    return _read(path, _MAX_BYTES) or ""


def note_asked(state_dir: str, unit: str, invocation: Optional[str]) -> None:
    """Remember that somebody wants a server stopped that had ended by itself; how it ended stays.

    :raises OSError: the record can not be written.
    """
    end = newest(state_dir, unit)
    now = int(time.time())
    path = os.path.join(state_dir, "exits", f"{now}-{os.getpid()}{_SUFFIX}")
    text = f"at={now}\nunit={unit}\ninvocation={invocation or ''}\nboot_id={_proc.boot_id()}\n"
    if end is not None and end["invocation"] == invocation:
        path, text = end["path"], content(end["path"])
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    new = os.path.join(os.path.dirname(path), f".{os.getpid()}.new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8", errors="replace") as file:
        file.write(f"stop_asked={now}\n{text}")
    os.replace(new, path)


def _paths(state_dir: str) -> list[str]:
    """The records, newest first."""
    found = []
    try:
        with os.scandir(os.path.join(state_dir, "exits")) as entries:
            for entry in entries:
                second = entry.name.partition("-")[0]
                if entry.name.endswith(_SUFFIX) and second.isdigit():
                    found.append((int(second), entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
    except OSError:
        return []
    return [path for _second, _changed, path in sorted(found, reverse=True)]


def _read(path: str, limit: int) -> Optional[str]:
    try:
        # A pipe that took the place of the file must not be waited for.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return None


def _number(value: Optional[str]) -> Optional[int]:
    return int(value) if value and value.isdigit() else None


def _signal(name: str) -> Optional[int]:
    """systemd names a signal as C(kill -l) does, and gives the number of one without a name."""
    if name.isdigit():
        return int(name)
    full = f"SIG{name}"
    return int(signal.Signals[full]) if full in signal.Signals.__members__ else None
