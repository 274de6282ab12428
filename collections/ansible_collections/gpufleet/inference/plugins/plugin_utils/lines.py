# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of logs: clean them, date them, and look at each once for all patterns."""

from __future__ import annotations

import calendar
import contextlib
import importlib
import json
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

# Longer lines are cut before matching: patterns must stay bounded on hostile input.
MAX_LINE = 4096
MAX_QUOTE = 300

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,32}[ -/]?[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-_])")
_PREFIX = re.compile(
    r"^(?:[\w.-]{1,80}(?: +)\| ?"  # docker compose
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.]{0,10}(?:Z|[+-]\d\d:?\d\d) (?:std(?:out|err) [FP] )?"  # CRI, kubectl --timestamps
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,80} [\w.@:-]{1,80}(?:\[\d+\])?: )"  # journalctl, syslog
)
_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)?((?: [A-Z_]{2,8}\d{1,5})*)\]")
_BAR = re.compile(r"([A-Za-z][\w ()-]{0,60}?)(?: \([^)]{0,80}\))?:\s+(\d{1,3})%[^\d\n]{1,80}(\d{1,9})/(\d{1,9})")


def clean(line: str) -> str:
    """The line without colours, container or journal prefixes and JSON wrapping; at most MAX_LINE characters."""
    line = line[: MAX_LINE * 8]
    if line.startswith('{"log":'):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            line = str(json.loads(line)["log"])
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    line = _PREFIX.sub("", line, count=1)
    return line.rstrip()[:MAX_LINE]


def split(text: str) -> Iterator[str]:
    """Lines of a text; a carriage return ends one too, because progress bars rewrite themselves."""
    for part in text.replace("\r", "\n").split("\n"):
        if part.strip():
            yield part


def stamp(line: str) -> tuple[float | None, str | None]:
    """Time (as if it were UTC, in epoch seconds) and rank prefix such as `TP0` of an SGLang line."""
    match = _TIME.search(line[:200])
    if not match:
        return None, None
    try:
        when = float(calendar.timegm(time.strptime(match.group(1), "%Y-%m-%d %H:%M:%S")))
    except ValueError:
        return None, None
    return when, match.group(2).strip() or None


def progress_bar(line: str) -> dict[str, Any] | None:
    """A progress bar as {kind, done, total, pct}, or None."""
    if "%" not in line or "/" not in line:
        return None
    match = _BAR.search(line)
    if not match:
        return None
    kind, pct, done, total = match.groups()
    return {"kind": kind.strip(), "pct": int(pct), "done": int(done), "total": int(total)}


class Scanner:
    """Looks at every line once for all patterns and counts the hits."""

    def __init__(self, patterns: dict[str, re.Pattern[str]]) -> None:
        self._always = [(name, pattern) for name, pattern in patterns.items() if not literals(pattern.pattern)]
        self._literal: list[tuple[tuple[str, ...], str, re.Pattern[str]]] = []
        needles: set[str] = set()
        for name, pattern in patterns.items():
            found = literals(pattern.pattern)
            if found:
                self._literal.append((found, name, pattern))
                needles.update(found)
        self._any = re.compile("|".join(sorted(map(re.escape, needles), key=len, reverse=True)), re.I) if needles else None

    def scan(self, lines: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Hits per pattern name: {count, first, last, first_time, last_time, at, ranks}; `at` is the number of the last line."""
        hits: dict[str, dict[str, Any]] = {}
        for index, line in enumerate(lines):
            for name, pattern in self._always:
                if pattern.search(line):
                    self._note(hits, name, line, index)
            if self._any is None or not self._any.search(line):
                continue
            lower = line.lower()
            for found, name, pattern in self._literal:
                if any(needle in lower for needle in found) and pattern.search(line):
                    self._note(hits, name, line, index)
        return hits

    @staticmethod
    def _note(hits: dict[str, dict[str, Any]], name: str, line: str, index: int) -> None:
        when, rank = stamp(line)
        quote = line[:MAX_QUOTE]
        hit = hits.setdefault(name, {"count": 0, "first": quote, "first_time": when, "ranks": {}})
        hit["count"] += 1
        hit.update(last=quote, last_time=when if when is not None else hit.get("last_time"), at=index)
        if rank and len(hit["ranks"]) < 1024:
            hit["ranks"][rank] = hit["ranks"].get(rank, 0) + 1


_PARSER: Any = importlib.import_module("re._parser")


def literals(regex: str) -> tuple[str, ...]:
    """Lower-case literals of which every match contains at least one (empty: no such literal of 3 characters or more)."""
    found = _needles(_PARSER.parse(regex))
    return tuple(sorted(found)) if found else ()


def _needles(tree: Any) -> set[str] | None:
    runs: list[str] = [""]
    choices: list[set[str]] = []
    for kind, argument in tree:
        name = str(kind)
        if name == "LITERAL":
            runs[-1] += chr(argument).lower()
            continue
        runs.append("")
        if name == "SUBPATTERN":
            inner = _needles(argument[-1])
        elif name == "BRANCH":
            parts = [_needles(branch) for branch in argument[1]]
            inner = None if any(part is None for part in parts) else {needle for part in parts if part for needle in part}
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] > 0:
            inner = _needles(argument[-1])
        else:
            inner = None
        if inner:
            choices.append(inner)
    best = max(runs, key=len)
    if len(best) >= 3:
        choices.append({best})
    return max(choices, key=lambda choice: min(len(needle) for needle in choice)) if choices else None


def explodes(regex: str) -> bool:
    """Whether an unbounded repeat stands inside another one, which can take exponential time."""
    return _nested(_PARSER.parse(regex), inside=False)


def _nested(tree: Any, inside: bool) -> bool:
    for kind, argument in tree:
        name = str(kind)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            unbounded = int(argument[1]) > 1000
            if (unbounded and inside) or _nested(argument[-1], inside or unbounded):
                return True
        elif name == "SUBPATTERN":
            if _nested(argument[-1], inside):
                return True
        elif name == "BRANCH" and any(_nested(branch, inside) for branch in argument[1]):
            return True
    return False
