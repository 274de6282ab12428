# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Differences between what two targets show, and the list of those that are accepted."""

from __future__ import annotations

import fnmatch
import json
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ACCEPTED = HERE / "differences.yml"
OBSERVED = HERE / "observed"
REASON = "a CPU can not show"
ABSENT = "(absent)"


def differences(real: Any, other: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """(path, real, other) of everything that differs."""
    if isinstance(real, dict) and isinstance(other, dict):
        found = []
        for key in sorted({*real, *other}):
            found += differences(real.get(key, ABSENT), other.get(key, ABSENT), f"{path}/{key}" if path else str(key))
        return found
    return [] if real == other else [(path, real, other)]


def accepted(path: Path = ACCEPTED) -> list[dict[str, str]]:
    """The accepted differences: [{at, reason}]; ``at`` is a path that may have wildcards."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))["accepted"] or []
    for entry in entries:
        if set(entry) != {"at", "reason"} or not entry["reason"].startswith(REASON):
            raise ValueError(f"{path.name}: {entry}: at and a reason that begins with {REASON!r} are needed")
    return list(entries)


def sift(found: list[tuple[str, Any, Any]], entries: list[dict[str, str]]) -> tuple[list[tuple[str, Any, Any]], list[dict[str, str]]]:
    """The differences that nobody accepted, and the entries that accept nothing any more."""
    used: set[str] = set()
    rest = []
    for row in found:
        matching = [entry["at"] for entry in entries if fnmatch.fnmatchcase(row[0], entry["at"])]
        used.update(matching)
        if not matching:
            rest.append(row)
    return rest, [entry for entry in entries if entry["at"] not in used]


def text(rows: list[tuple[str, Any, Any]]) -> str:
    """Differences for a reader."""
    return "\n".join(f"{path}\n    real      {json.dumps(real)}\n    emulator  {json.dumps(other)}" for path, real, other in rows)


def load(folder: Path) -> dict[str, Any]:
    """Observations by scenario, from a folder of records or of results."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        found[path.stem] = content.get("seen", content)
    return found


def record(folder: Path, names: list[str]) -> int:
    """Keep what was seen in ``folder`` as what the emulator is held to."""
    seen = load(folder)
    for name in names:
        if name in seen:
            (OBSERVED / f"{name}.json").write_text(json.dumps(seen[name], indent=1, sort_keys=True) + "\n")
    return 0


def main(real: Path, other: Path) -> int:
    """Print what differs between two folders of observations."""
    first, second = load(real), load(other)
    rows = []
    for name in sorted({*first} & {*second}):
        rows += differences(first[name], second[name], name)
    rest, _stale = sift(rows, accepted())
    print(text(rest))
    print(f"{len(rest)} differences, {len(rows) - len(rest)} accepted")
    return 1 if rest else 0
