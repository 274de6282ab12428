# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words for a verdict: reasons that quote, what is missing, the next commands, and one line a tired person understands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpufleet.inference.plugins.plugin_utils.rules import Finding

MAX_REASONS = 8
MAX_QUOTE = 200
CORE = ("processes", "log", "kernel", "gpus", "http")
DEEP = ("syscalls", "stacks", "nccl")
# Which source a fact of the view comes from.
_FACTS = {
    "processes": "alive process schedulers schedulers_alive frozen compilers cpu uptime_s survived_sigkill",
    "service": "exit_code exit_signal service desired",
    "http": "generate generate_tokens health tokens tokens_delta running_requests generate_s kv_tokens",
    "log": "silent_s quiet_s last_line batch_while_asked phase tail nccl_release bar ranks",
    "gpus": "gpus gpu",
    "kernel": "xid",
    "system": "host",
    "target": "env flags",
}
SOURCE = {fact: source for source, facts in _FACTS.items() for fact in facts.split()}
LAYER_SOURCE = {"gpu_memory": "gpus", "compilers": "processes", "tokens": "http"}
QUIET = ("stalled", "generating", "overdue", "engine", "version", "workers_lost", "readable")


def look(view: Mapping[str, Any], name: str) -> Any:
    """The value of a dotted name in the view, or None."""
    value: Any = view
    for part in name.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def reasons(best: Finding, view: Mapping[str, Any]) -> list[dict[str, str]]:
    """Each reason names its source, quotes its evidence, and says what it means."""
    found: list[dict[str, str]] = []
    names = list(best.facts)
    if best.proof == "no_progress":
        names += ["quiet_s", *(f"progress.layers.{layer}" for layer in view["progress"]["flat"])]
    for name in dict.fromkeys(names):
        value = look(view, name)
        root = name.partition(".")[0]
        if value is None or value == [] or value == {} or root in QUIET:
            continue
        if root == "hits":
            source, quote = name.split(".")[1], str(look(view, f"{name}.last") or look(view, f"{name}.first") or "")
            source = "log" if source == "tail" else source
        elif root == "xid":
            source, quote = "kernel", next(iter(view["xid"]["quotes"].values()), json.dumps(value))
        elif name.startswith("progress.layers."):
            layer = name.rpartition(".")[2]
            source, quote = LAYER_SOURCE.get(layer, layer), _movement(view, layer)
        else:
            source, quote = SOURCE.get(root, root), f"{name} = {json.dumps(_whole(value), default=str)}"
        entry = {"source": source, "quote": quote[:MAX_QUOTE], **({} if found else {"means": best.means[:MAX_QUOTE]})}
        if quote and not any(entry["quote"] == other["quote"] for other in found):
            found.append(entry)
        if len(found) == MAX_REASONS:
            break
    if not found:
        found.append({"source": "none", "quote": "", "means": best.means[:MAX_QUOTE]})
    return found


def _whole(value: Any) -> Any:
    """A count reads as one: 8, not 8.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _movement(view: Mapping[str, Any], layer: str) -> str:
    """What a layer of progress showed, in numbers where there are any."""
    moves, window = view["progress"]["layers"][layer], view["window_s"]
    during = f" in {window:.0f} s" if window else ""
    if layer == "processes":
        rate, busy = view["progress"]["bytes_per_s"], view["cpu"]
        return f"the server reads {rate:.0f} bytes/s{during}" if rate is not None else f"cpu = {busy}"
    if layer == "gpu_memory":
        return f"GPU memory {'changes' if moves else 'is the same'}{during}"
    if layer == "compilers":
        return f"compilers running: {', '.join(view['compilers'])}"
    if layer == "log":
        return f"last log line {view['silent_s']:.0f} s ago"
    if layer == "syscalls":
        return f"system calls: {view['syscalls']['pattern']}"
    return f"tokens = {view['tokens']}, generate = {view['generate']}"


def missing(best: Finding, view: Mapping[str, Any]) -> list[str]:
    """Sources that could change or sharpen the verdict and were not readable."""
    wanted = list(CORE)
    if best.state in ("stuck", "unknown"):
        wanted += DEEP
    if best.state in ("gpu_fault", "host_fault"):
        wanted += ["smi"] if "gpus" not in view["readable"] else []
    readable = set(view["readable"])
    return [source for source in wanted if source not in readable]


def next_commands(best: Finding, view: Mapping[str, Any], absent: list[str]) -> list[str]:
    """Commands for a person, most useful first."""
    found = list(best.next)
    if best.state in ("stuck", "unknown") and view["alive"]:
        if "stacks" in absent:
            found.append("for p in $(pgrep -f 'sglang::scheduler'); do py-spy dump --native --pid $p; done")
        if best.state == "stuck":
            found.append("ansible-playbook remediate.yml -e remediation_mode=heal --limit HOST")
    if best.state == "starting":
        found.append("ansible sglang -m gpufleet.inference.gather_diag --limit HOST   # again in a few minutes")
    if best.state in ("gpu_fault", "host_fault"):
        found += ["nvidia-smi -q -d PERFORMANCE,ECC,ROW_REMAPPER", "journalctl -k -b --no-pager | grep -E 'NVRM|AER|oom|blocked for more'"]
    if best.state == "crashed":
        found.append("tail -n 200 the server's log; journalctl -k -b | grep -iE 'oom|NVRM'")
    if "kernel" in absent:
        found.append("sudo dmesg -T | tail -n 200")
    return list(dict.fromkeys(found))[:6]


def summary(best: Finding, view: Mapping[str, Any], phase: str | None, confidence: str) -> str:
    """One line: state, where, since when, why, what to do."""
    parts = [best.state]
    if phase and phase not in (best.state, "not_started"):
        parts.append(f"in {phase}")
    progress = view["progress"]
    if best.state in ("starting", "stuck") and progress["total"] and progress["done"] is not None:
        parts.append(f"{progress['done']:.0f}/{progress['total']:.0f}")
    quiet = view["quiet_s"]
    if best.state == "stuck" and phase == "serving":
        since = view["last_batch_at"]
        waited = max(0.0, view["collected_at"] - since) if since and view["collected_at"] else 0.0
        parts.append(f"without a token for {_duration(waited)}" if waited >= 1 else "")
    elif best.state in ("stuck", "unknown") and quiet is not None:
        parts.append(f"silent for {_duration(quiet)}")
    line = " ".join(filter(None, parts))
    if best.cause and best.cause not in ("healthy", "unknown"):
        line += f": {best.cause} ({confidence} confidence)"
    line += f"; {best.means}"
    words = {"none": "nothing to do", "wait": "wait", "escalate": "a person has to look"}
    return f"{line[:260]}; {words.get(best.action, best.action)}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
