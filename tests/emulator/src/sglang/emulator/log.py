# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Log lines on stderr in the engine's shape, one write each."""

from __future__ import annotations

import os
import time

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


def raw(text: str) -> None:
    """Write ``text`` to stderr as it is: bars and library chatter."""
    data = text.encode()
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:
        pass


class Log:
    """Lines ``[time prefix] message``; ``prefix`` is for instance `` TP0``."""

    def __init__(self, prefix: str = "", level: str = "info") -> None:
        self.prefix, self._level = prefix, LEVELS.get(level.lower(), 20)

    def _write(self, level: int, message: str) -> None:
        if level >= self._level:
            milliseconds = ".%03d" % (time.time() % 1 * 1000) if os.environ.get("SGLANG_LOG_MS") == "1" else ""
            raw("[%s%s%s] %s\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), milliseconds, self.prefix, message))

    def info(self, message: str) -> None:
        self._write(20, message)

    def warning(self, message: str) -> None:
        self._write(30, message)

    def error(self, message: str) -> None:
        self._write(40, message)


def traceback_text(error: BaseException, frames: list[tuple[str, str, str]]) -> str:
    """A traceback with the engine's frames (file, function, source line) instead of the emulator's."""
    lines = ["Traceback (most recent call last):"]
    for file, function, source in frames:
        lines += ['  File "%s", line %d, in %s' % (file, 100 + len(file + function) * 7 % 2900, function), "    " + source]
    name = type(error).__name__ if type(error).__module__ == "builtins" else "%s.%s" % (type(error).__module__, type(error).__name__)
    return "\n".join([*lines, "%s: %s" % (name, error)])


def clock(seconds: float) -> str:
    """tqdm's mm:ss."""
    return "%02d:%02d" % divmod(int(seconds), 60)


class Bar:
    """A tqdm bar on stderr: updates split by carriage returns, a newline only when it closes."""

    def __init__(self, label: str, total: int, unit: str = "Completed") -> None:
        self._label, self._total, self._unit, self._start = label, total, unit, time.monotonic()

    def update(self, done: int, label: str = "") -> None:
        spent = time.monotonic() - self._start
        rate = done / spent if spent > 0 and done else 0.0
        pace = "?it/s" if not rate else "%5.2fit/s" % rate if rate >= 1 else "%5.2fs/it" % (1 / rate)
        left = clock((self._total - done) / rate) if rate else "?"
        percent = 100 * done // self._total
        if self._unit:
            middle = "%3d%% %s" % (percent, self._unit)
        else:
            middle = "%3d%%|%s" % (percent, "█" * (percent // 10) + " " * (10 - percent // 10))
        raw("\r%s: %s | %d/%d [%s<%s, %s]" % (label or self._label, middle, done, self._total, clock(spent), left, pace))

    def close(self) -> None:
        raw("\n")
