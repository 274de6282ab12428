# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a start is: the phase from milestones in the log, per rank where ranks log them. Data in data/phases.yml."""

from __future__ import annotations

import functools
import re
from typing import Any

import yaml
from ansible_collections.gpufleet.inference.plugins.plugin_utils import policy, values

PHASES = (
    "not_started",
    "imports",
    "dist_init",
    "weights_loading",
    "kv_cache_alloc",
    "jit_compile",
    "autotune",
    "graph_capture",
    "warmup",
    "serving",
    "draining",
)
_RANK = re.compile(r"\b(TP|PP|DP|EP)(\d{1,5})")


@functools.lru_cache(maxsize=1)
def table() -> dict[str, list[dict[str, Any]]]:
    """The marker table: {markers, compiling, facts}, each a list of {name, regex, ...}."""
    loaded: dict[str, list[dict[str, Any]]] = yaml.safe_load((policy.DATA / "phases.yml").read_text(encoding="utf-8"))
    return loaded


def patterns() -> dict[str, str]:
    """Regular expressions of the table by name, all for the server's log."""
    return {entry["name"]: entry["regex"] for entries in table().values() for entry in entries}


def locate(hits: dict[str, Any], ranks_expected: int | None, tail: set[str], engine: str | None = None) -> dict[str, Any]:
    """Phase from the hits in the log.

    `hits`: by marker name, {count, ranks: {rank: n}}. `ranks_expected`: how many ranks there should be, when known.
    `tail`: names that hit among the last lines. `engine`: whose milestones count, when known.
    Returns {phase: str|None, ranks_done: int|None, ranks: int, behind: [rank]}.
    """
    ranks = max(ranks_expected or 0, _ranks(hits), 1)
    phase: str | None = None
    done: int | None = None
    behind: list[str] = []
    if engine is None and hits.keys() & {"server_args", "dist_begin", "parallel_begin", "load_begin"}:
        engine = "sglang"
    for marker in table()["markers"]:
        hit = hits.get(marker["name"])
        if not hit or (engine in ("sglang", "vllm") and marker["engine"] not in ("any", engine)):
            continue
        if marker.get("every_rank"):
            seen = set(values.mapping(hit.get("ranks")))
            count = len(seen) or (1 if ranks == 1 else 0) or min(ranks, int(hit["count"]))
            if marker["name"] == "load_end":
                done, behind = count, sorted(_seen_ranks(hits) - seen)
            if count < ranks:
                continue
        if phase is None or PHASES.index(marker["phase"]) >= PHASES.index(phase):
            phase = marker["phase"]
    late = phase in ("warmup", "serving", "draining")
    if not late and tail & {entry["name"] for entry in table()["compiling"]}:
        phase = "jit_compile"
    if phase is None and tail & {"decode_batch", "prefill_batch"}:
        phase = "serving"
    return {"phase": phase, "ranks_done": done, "ranks": ranks, "behind": behind[:64]}


def _seen_ranks(hits: dict[str, Any]) -> set[str]:
    names = ("dist_begin", "parallel_begin", "load_begin")
    return {rank for name in names for rank in values.mapping(values.mapping(hits.get(name)).get("ranks")) if _RANK.search(rank)}


def _ranks(hits: dict[str, Any]) -> int:
    return len(_seen_ranks(hits))
