# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Kernel messages of this boot: a file, /dev/kmsg, dmesg or the journal, whichever can be read first."""

from __future__ import annotations

import os
import re
import stat
import time
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _patterns

_MAX_BYTES = 4 << 20
_KMSG = re.compile(r"^(\d+),\d+,(\d+),[^;]*;(.*)$")
_SINCE_BOOT = re.compile(r"^(?:<\d+>)?\[\s*(\d+\.\d+)\]\s?")
_CTIME = re.compile(r"^(?:<\d+>)?\[(\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})\]\s?")


def message_time(line: str, boot: float) -> Optional[float]:
    """Epoch of a kernel line in any of the usual shapes, null without a time."""
    match = _KMSG.match(line)
    if match:
        return round(boot + int(match.group(2)) / 1e6, 2)
    match = _SINCE_BOOT.match(line)
    if match:
        return round(boot + float(match.group(1)), 2)
    match = _CTIME.match(line)
    if match:
        try:
            return time.mktime(time.strptime(match.group(1)))
        except ValueError:
            return None
    return None


def collect(path: Optional[str], patterns: list[dict[str, str]], emit: _bounded.Emit) -> None:
    """Child body: emits ``path``, ``text`` (for the bundle), ``hits`` and ``lines``."""
    source, data, reason = _read(path)
    text = data.decode("utf-8", "replace")
    emit({"path": source, "reason": reason, "status": "unavailable" if reason else "ok", "text": text[-(256 << 10) :]})
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    matcher = _patterns.Matcher(patterns)
    hits: dict[str, dict[str, Any]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        names = matcher.match(line)
        if not names:
            continue
        kmsg = _KMSG.match(line)
        shown = _patterns.cut(kmsg.group(3) if kmsg else line)
        moment = message_time(line, boot)
        for name in names:
            _patterns.count(hits, name, shown, moment)
        lines.append(shown)
    emit({"hits": hits, "lines": lines[-20:], "bad_patterns": matcher.bad})


def _read(path: Optional[str]) -> tuple[Optional[str], bytes, Optional[str]]:
    if path:
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                return path, b"", f"{path} is not a regular file"
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_BYTES))
                return path, file.read(_MAX_BYTES), None
        except OSError as error:
            return path, b"", f"{path}: {error.strerror}"
    data, reason = _kmsg()
    if reason is None:
        return "/dev/kmsg", data, None
    for argv in (["dmesg", "--raw"], ["journalctl", "-k", "-b", "-o", "short-monotonic", "--no-pager", "-n", "20000", "-q"]):
        outcome = _bounded.run(argv, 5.0, max_bytes=_MAX_BYTES)
        if outcome.status == "ok" and outcome.returncode == 0 and outcome.output.strip():
            return argv[0], outcome.output, None
        reason = f"{reason}; {argv[0]}: {outcome.reason() or outcome.text.strip()[:120] or 'no output'}"
    return None, b"", reason


def _kmsg() -> tuple[bytes, Optional[str]]:
    """All records of /dev/kmsg; one read returns one record."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return b"", f"/dev/kmsg: {error.strerror}"
    records: list[bytes] = []
    size = 0
    try:
        while size < _MAX_BYTES:
            try:
                record = os.read(fd, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:  # the record was overwritten while we read: go on with the next
                continue
            if not record:
                break
            # Lines that start with a blank are a record's dictionary, not its message.
            records.append(record.split(b"\n", 1)[0] + b"\n")
            size += len(records[-1])
    except OSError as error:
        return b"", f"/dev/kmsg: {error.strerror}"
    finally:
        os.close(fd)
    return b"".join(records), None
