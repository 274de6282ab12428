# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Look at each line once for all named patterns."""

from __future__ import annotations

import re
from typing import Any, Optional

QUOTE = 300
_LINE = 16384


class Matcher:
    """Named regular expressions behind one combined filter, so that a line nobody wants costs one search.

    :ivar bad: patterns that do not compile, name to message.
    """

    def __init__(self, patterns: list[dict[str, str]]) -> None:
        self.bad: dict[str, str] = {}
        self._patterns: list[tuple[str, re.Pattern[str]]] = []
        for pattern in patterns:
            try:
                self._patterns.append((pattern["name"], re.compile(pattern["regex"])))
            except re.error as error:
                self.bad[pattern["name"]] = str(error)
        self._filter = _combine([compiled.pattern for _name, compiled in self._patterns])

    def match(self, line: str) -> list[str]:
        """Names of the patterns found in a line."""
        if not self._patterns or not line:
            return []
        line = line[:_LINE]
        if self._filter is not None and self._filter.search(line) is None:
            return []
        return [name for name, pattern in self._patterns if pattern.search(line)]


def _combine(sources: list[str]) -> Optional[re.Pattern[str]]:
    # Back references and flags other than "ignore case" do not survive being joined: then there is no filter.
    if not sources or any(re.search(r"\\[1-9]|\(\?P=|\(\?[aLmsux]", source) for source in sources):
        return None
    plain = [re.sub(r"\(\?P<[^>]*>", "(", re.sub(r"^\(\?i\)", "", source)) for source in sources]
    flags = re.IGNORECASE if any(source.startswith("(?i)") for source in sources) else re.RegexFlag(0)
    try:
        return re.compile("|".join(f"(?:{source})" for source in plain), flags)
    except re.error:
        return None


def count(hits: dict[str, dict[str, Any]], name: str, line: str, moment: Optional[float]) -> dict[str, Any]:
    """Add one hit; first and last line and time are kept."""
    hit = hits.setdefault(name, {"count": 0, "first": line, "last": line, "first_time": moment, "last_time": moment})
    hit["count"] += 1
    hit["last"] = line
    hit["last_time"] = moment if moment is not None else hit["last_time"]
    return hit


def cut(line: str, limit: int = QUOTE) -> str:
    """A line short enough to quote."""
    line = line.strip()
    return line if len(line) <= limit else line[: limit - 3] + "..."
