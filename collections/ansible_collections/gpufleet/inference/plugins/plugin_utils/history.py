# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one host keeps about itself, as the plan needs it: attempts, marks, lease, and the incident they belong to.

Times in records are seconds since the epoch or ISO 8601 text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

LISTS = ("attempts", "marks")
RECORDS = ("manifest", "attempts", "marks", "lease", "visits")


def mapping(value: Any) -> Mapping[str, Any]:
    """Returns the value when it is a dictionary, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Mapping[str, Any]]:
    """Returns the dictionaries of a list, or nothing."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def epoch(value: Any) -> float | None:
    """Returns a time in seconds since the epoch, or null when it is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else None
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def utc(at: float) -> str:
    """Returns a time for people, in UTC."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def unreadable(records: Mapping[str, Any]) -> list[str]:
    """Returns the records that are there but could not be read, each with the reason. What can not be read must not pass for none."""
    if "error" in records:
        return [f"records: {records['error']}"]
    return [f"{name}: {reason}" for name in RECORDS if (reason := _unreadable(name, records.get(name)))]


def _unreadable(name: str, record: Any) -> str | None:
    if record is None:
        return None
    if not isinstance(record, Mapping):
        return "not an object"
    if "error" in record:
        return str(record["error"])
    if name in LISTS:
        rows = record.get(name, [])
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            return "not a list of objects"
        if name == "attempts" and any(epoch(row.get("at")) is None for row in rows):
            return "an attempt without a time"
    if name == "lease" and record and not record.get("owner"):
        return "a lease without an owner"
    return None


def attempts(records: Mapping[str, Any], now: float, window: float) -> list[Mapping[str, Any]]:
    """Returns the attempts of the last V(window) seconds, oldest first."""
    rows = [(epoch(row.get("at")), row) for row in items(mapping(records.get("attempts")).get("attempts"))]
    return [row for at, row in sorted(((at, row) for at, row in rows if at is not None and at > now - window), key=lambda pair: pair[0])]


def unfinished(records: Mapping[str, Any], now: float) -> Mapping[str, Any] | None:
    """Returns the newest attempt when it has no end: it was cut off, unless somebody holds the lease that a repair has."""
    rows = attempts(records, now, math.inf)
    return rows[-1] if rows and rows[-1].get("result") == "running" else None


def marks(records: Mapping[str, Any], now: float) -> list[Mapping[str, Any]]:
    """Returns the marks that hold now."""
    return [mark for mark in items(mapping(records.get("marks")).get("marks")) if _holds(mark, now)]


def lease(records: Mapping[str, Any], now: float, owner: str | None) -> Mapping[str, Any] | None:
    """Returns the lease that somebody else holds now, or null."""
    found = mapping(records.get("lease"))
    return found if found.get("owner") and found["owner"] != owner and _holds(found, now) else None


def incident(host: str, verdict: Mapping[str, Any], records: Mapping[str, Any], recent: list[Mapping[str, Any]]) -> str:
    """Returns an id that stays the same until a cure: that of the last attempt unless it cured, else a new one from what is seen."""
    if recent and recent[-1].get("result") != "cured" and recent[-1].get("incident"):
        return str(recent[-1]["incident"])
    last: Mapping[str, Any] = next(reversed(items(mapping(records.get("visits")).get("visits"))), {})
    start = epoch(last.get("main_start"))
    # The kernel's boot time moves by a second now and then, and the start with it: only its day is stable.
    anchor = f"{last.get('main_pid')}/{int(start // 86400)}" if start is not None else str(verdict.get("since"))
    text = "\n".join((host, str(verdict.get("state")), str(verdict.get("cause")), anchor))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _holds(entry: Mapping[str, Any], now: float) -> bool:
    expires = epoch(entry.get("expires"))
    return expires is None or expires > now
