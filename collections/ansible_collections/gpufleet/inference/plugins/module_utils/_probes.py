# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Order of the HTTP probes: a generation first, then /health alone, then the pages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _http, _httpgen

GENERATE_S = 10.0
HEALTH_S = 25.0
_PAGE_S = 3.0
_TOKENS = 4


def first(
    host: str,
    port: int,
    window: float,
    generate_s: float,
    model: Optional[str],
    api_key: Optional[str],
    generate: bool,
    emit: _bounded.Emit,
) -> None:
    """Child body: counters, one generation, counters again when the window is over; the pages only where it worked."""
    started = time.monotonic()
    before = _http.metrics(host, port, _PAGE_S)
    emit({"metrics": _metrics(before, None)})
    ok = not generate
    if generate:
        if not model:
            page = _http.models(host, port, _PAGE_S, api_key)
            emit({"models": page})
            model = page["ids"][0] if page["ids"] else "default"
        asked_at = round(time.time(), 2)
        answer = _httpgen.generate(host, port, model, _httpgen.prompt(0), _TOKENS, generate_s, api_key, stream=True)
        emit({"generate": {**answer, "asked_at": asked_at}})
        ok = answer["result"] == "ok"
    if ok:
        pages(host, port, api_key, emit)
    time.sleep(max(0.0, started + window - time.monotonic()))
    emit({"metrics": _metrics(before, _http.metrics(host, port, _PAGE_S))})


def after_failure(host: str, port: int, api_key: Optional[str], health_s: float, before: Any, emit: _bounded.Emit) -> None:
    """Child body after a failed generation. ``before``: the counters of the first look, to count over the whole time since."""
    emit({"health": _http.health(host, port, health_s)})
    if before:
        later = _http.metrics(host, port, _PAGE_S)
        if later:
            emit({"metrics": _metrics(before, later)})
    pages(host, port, api_key, emit)


def pages(host: str, port: int, api_key: Optional[str], emit: _bounded.Emit) -> None:
    """The descriptive pages."""
    emit({"models": _http.models(host, port, _PAGE_S, api_key)})
    emit({"server_info": _http.server_info(host, port, _PAGE_S, api_key)})


def skipped(result: str, reason: Optional[str]) -> dict[str, Any]:
    """The snapshot's ``http`` when nothing was asked (``refused``: nobody listens, ``skipped``: on purpose)."""
    return {
        "status": "ok" if result == "refused" else "absent",
        "reason": reason,
        "seconds": 0.0,
        "generate": {"result": result, "tokens": 0, "prompt_tokens": None, "seconds": 0.0, "code": None, "error": None, "asked_at": None},
        "health": {"result": result, "code": None, "seconds": 0.0, "error": None},
        "models": {"result": result},
        "server_info": {"result": result},
        "metrics": _metrics(None, None),
    }


def combine(outcomes: list[_bounded.Outcome], generate: bool) -> dict[str, Any]:
    """The snapshot's ``http`` from the children's answers; what a killed child did not say is a timeout."""
    result = skipped("skipped", None)
    reasons = []
    for outcome in outcomes:
        result.update(outcome.values)
        result["seconds"] = round(result["seconds"] + outcome.seconds, 3)
        if outcome.reason():
            reasons.append(str(outcome.reason()))
    if generate and outcomes and "generate" not in outcomes[0].values:
        timed_out = outcomes[0].status != "ok"
        result["generate"].update(
            result="timeout" if timed_out else "error", seconds=round(outcomes[0].seconds, 3), error=outcomes[0].error
        )
    result.update(status="ok" if any(outcome.values for outcome in outcomes) else "unavailable", reason="; ".join(reasons) or None)
    return result


def _metrics(before: Optional[Mapping[str, Any]], after: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"first": before, "second": after}
    for name, counter in (("tokens_delta", "realtime_tokens_total"), ("decode_delta", "decode_tokens_total")):
        old, new = (page.get(counter) if page else None for page in (before, after))
        found[name] = None if old is None or new is None else int(new - old)
    return found
