# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read values out of untrusted documents: the right type, or None. Nothing here raises."""

from __future__ import annotations

import calendar
import math
import time
from typing import Any

MAX_ITEMS = 4096


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is a mapping (text keys only), else an empty one."""
    if not isinstance(value, dict):
        return {}
    return {key: item for key, item in value.items() if isinstance(key, str)}


def items(value: Any) -> list[Any]:
    """The value if it is a list (at most 4096 items of it), else an empty list."""
    return value[:MAX_ITEMS] if isinstance(value, list) else []


def number(value: Any) -> float | None:
    """A finite number as float. Booleans are none, numeric text is."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value.strip()[:40])
        except ValueError:
            return None
    if isinstance(value, (int, float)):
        try:
            result = float(value)
        except OverflowError:
            return None
        return result if math.isfinite(result) else None
    return None


def text(value: Any) -> str | None:
    """Non-empty text (numbers are written out), else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return str(value)
    return value.strip()[:4096] or None if isinstance(value, str) else None


def word(value: Any, *allowed: str) -> str | None:
    """One of the allowed words, else None."""
    return value if isinstance(value, str) and value in allowed else None


def flag(value: Any) -> bool | None:
    """A boolean; YAML-like words are accepted."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("on", "yes", "true"):
        return True
    if isinstance(value, str) and value.lower() in ("off", "no", "false"):
        return False
    return None


def numbers(value: Any) -> list[float]:
    """A list of numbers from a list or a single number."""
    return [n for n in (number(item) for item in (value if isinstance(value, list) else [value])[:MAX_ITEMS]) if n is not None]


def first(*values: Any) -> Any:
    """The first value that is not None."""
    return next((value for value in values if value is not None), None)


def moment(value: Any) -> float | None:
    """A time in epoch seconds, from a number or from the `YYYY-mm-dd HH:MM:SS` of a log (taken as UTC)."""
    if isinstance(value, str):
        try:
            return float(calendar.timegm(time.strptime(value.strip()[:19].replace("T", " "), "%Y-%m-%d %H:%M:%S")))
        except ValueError:
            return number(value)
    return number(value)
