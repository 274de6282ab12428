# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Evidence as files: one directory per visit, readable by its owner only, secrets already removed."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _log, _redact

KEEP = 20
_NEEDED = 256 << 20


def write(state_dir: str, snapshot: Mapping[str, Any], texts: Mapping[str, str], known: Sequence[str]) -> str:
    """Write one evidence directory and remove the oldest beyond the quota.

    :arg texts: file name to content, for sources whose raw output says more than the snapshot.
    :returns: path of the directory.
    :raises OSError: no room, or the state directory can not be written.
    """
    parent = os.path.join(state_dir, "diag")
    os.makedirs(parent, mode=0o700, exist_ok=True)
    room = os.statvfs(parent)
    if room.f_bavail * room.f_frsize < _NEEDED:
        raise OSError(f"less than {_NEEDED >> 20} MiB free under {parent}")
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(snapshot["collected_at"]))
    path = os.path.join(parent, moment)
    os.makedirs(path, mode=0o700, exist_ok=True)
    _file(path, "snapshot.json", json.dumps(snapshot, indent=1, sort_keys=True, default=str))
    for name, content in texts.items():
        if content:
            _file(path, name, _redact.text(content, known))
    rotated = snapshot["log"].get("rotated") or {}
    for logged, begin in ((rotated.get("path"), rotated.get("begin")), (snapshot["log"].get("path"), snapshot["log"].get("start_offset"))):
        log = log_text(logged, begin)
        if log:
            _file(path, "server.log.1" if logged == rotated.get("path") else "server.log", _redact.text(log, known))
    for old in sorted(os.listdir(parent))[:-KEEP]:
        shutil.rmtree(os.path.join(parent, old), ignore_errors=True)
    return path


def log_text(path: Optional[str], offset: Optional[int]) -> str:
    """Head and tail of the incarnation's log as text, bounded in bytes and time."""
    if not path or offset is None:
        return ""
    outcome = _bounded.call(lambda emit: emit({"text": "\n".join(_log.excerpt(path, offset))}), 10.0)
    return str(outcome.values.get("text", ""))


def _file(directory: str, name: str, content: str) -> None:
    fd = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as file:
        file.write(content)
