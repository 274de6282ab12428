# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of a run: rows as a JSON document and as one HTML page without anything from outside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from typing import Any

import jinja2

from .profiles import DATA

COLUMNS = ("host", "state_before", "cause", "confidence", "action", "state_after", "seconds", "profile", "note", "reasons", "evidence")


class ReportError(ValueError):
    """Rows that can not be reported. The text is one message for a person."""


def document(rows: Sequence[Mapping[str, Any]], title: str, now: float, mode: str | None = None) -> dict[str, Any]:
    """Returns the report as a JSON-able document.

    V(rows): one per host with V(COLUMNS), all but host optional; V(now): seconds since the epoch. Raises ReportError for a row without
    host. Columns of its own are kept in the document and not shown on the page.
    """
    table = sorted((_row(row) for row in rows), key=lambda row: str(row["host"]))
    return {
        "schema": 1,
        "title": title,
        "at": datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "mode": mode,
        "counts": {
            "hosts": len(table),
            "state_before": _count(table, "state_before"),
            "state_after": _count(table, "state_after"),
            "action": _count(table, "action"),
        },
        "rows": table,
    }


def as_json(report: Mapping[str, Any]) -> str:
    """Returns the document as JSON text."""
    return json.dumps(report, indent=2, ensure_ascii=True) + "\n"


def as_html(report: Mapping[str, Any]) -> str:
    """Returns the document as one HTML page; every value is escaped."""
    return _template().render(report=report)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((DATA / "report.html.j2").read_text(encoding="utf-8"))


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(row, Mapping) or not row.get("host"):
        raise ReportError(f"rows: expected a dictionary with host, found {row!r}")
    result = {**dict.fromkeys(COLUMNS), **row}
    result["reasons"] = [_reason(reason) for reason in _listed(row.get("reasons"))]
    result["evidence"] = [str(item) for item in _listed(row.get("evidence"))]
    return result


def _listed(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _reason(reason: Any) -> str:
    if isinstance(reason, Mapping):
        means, quote = reason.get("means"), reason.get("quote") or "nothing quoted"
        return f"{reason.get('source') or 'evidence'}: " + (f"{means} ({quote})" if means else str(quote))
    return str(reason)


def _count(table: Sequence[Mapping[str, Any]], column: str) -> dict[str, int]:
    return dict(sorted(Counter(str(row[column]) for row in table if row[column]).items()))
