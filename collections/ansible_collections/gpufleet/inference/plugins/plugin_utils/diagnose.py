# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""diagnose(): the verdict on one server. Pure and total: no clock, no file, no network, and an answer to any garbage."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpufleet.inference.plugins.plugin_utils import explain, facts, rules, xid
from ansible_collections.gpufleet.inference.plugins.plugin_utils.signatures import Catalog, Signature

# A harder cause wins.
TIER = {"gpu_fault": 5, "host_fault": 4, "crashed": 3, "stuck": 3, "degraded": 2, "starting": 1, "serving": 1, "stopped": 1, "unknown": 0}
DESTRUCTIVE = ("restart", "reconfigure", "repair", "quarantine")
FORBID: dict[str, tuple[str, ...]] = {
    "serving": DESTRUCTIVE,
    "starting": DESTRUCTIVE,
    "unknown": DESTRUCTIVE,
    "stopped": ("quarantine",),
    "gpu_fault": ("restart", "reconfigure", "repair"),
    "host_fault": ("restart", "reconfigure"),
}
CONFIDENCE = ("low", "medium", "high")
# Without these a harder cause can not be excluded.
EXCLUDING = ("processes", "kernel", "gpus")


def diagnose(snapshot: Any, signatures: Catalog, policy: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict on a snapshot (any object): state, phase, since, cause, confidence, action, forbid, reasons, missing, next, summary, ...

    `signatures`: a loaded catalogue. `policy`: a loaded policy. `snapshot["collected_at"]` is now.
    """
    view = facts.view(snapshot, policy, signatures)
    base = rules.judge(view)
    found = [
        finding for finding in (_admit(signature, view, base) for signature in signatures.signatures if signature.matches(view)) if finding
    ]
    best = max([base, *found], key=_weight)
    if base.state == best.state and best is not base:
        best.facts = list(dict.fromkeys([*best.facts, *base.facts]))
    return _verdict(best, view, signatures.version)


def _weight(finding: rules.Finding) -> tuple[int, float, int]:
    return TIER[finding.state], finding.priority, CONFIDENCE.index(finding.confidence)


def _admit(signature: Signature, view: Mapping[str, Any], base: rules.Finding) -> rules.Finding | None:
    """The finding of a signature that matches, unless what the server does now speaks against it."""
    state = signature.state
    refuted = {
        "crashed": _no_crash,
        "stuck": _not_stuck,
        "starting": _no_start,
        "serving": _not_serving,
        "gpu_fault": _overcome,
        "host_fault": _overcome,
    }.get(state)
    if refuted is not None and refuted(signature, view, base):
        return None
    if state == "stuck" and (view["alive"] is False or rules.exiting(view)):
        state = "crashed"
    return rules.Finding(
        state=state,
        action=signature.action,
        confidence=signature.sure(view),
        cause=signature.cause,
        phase=signature.phase,
        proof=signature.proof,
        signature=signature.id,
        forbid=signature.forbid,
        priority=signature.priority,
        means=signature.means,
        facts=signature.evidence(),
        next=signature.next,
    )


def _no_crash(_signature: Signature, view: Mapping[str, Any], base: rules.Finding) -> bool:
    was_ready = base.state == "serving" or view["phase"] == "serving"
    lives_on = view["alive"] and not view["workers_lost"] and not rules.dying(view) and (view["progress"]["any"] or was_ready)
    return bool(view["generating"] or lives_on or base.state == "stopped")


def _not_stuck(signature: Signature, view: Mapping[str, Any], base: rules.Finding) -> bool:
    moves = view["progress"]["any"] and signature.proof != "engine"
    compiles = view["compilers"] and not view["overdue"]
    return bool(view["generating"] or moves or compiles or base.state == "stopped" or _outlived(signature, view))


def _outlived(signature: Signature, view: Mapping[str, Any]) -> bool:
    """Whether a batch was logged well after every line that the signature rests on."""
    hits = [explain.look(view, ".".join(fact.split(".")[:3])) for fact in signature.evidence() if fact.startswith("hits.")]
    said = [hit.get("last_time") for hit in hits if isinstance(hit, Mapping)]
    batch, times = view["last_decode_at"], [moment for moment in said if moment is not None]
    return bool(said and len(said) == len(times) and batch is not None and batch > max(times) + 5)


def _overcome(signature: Signature, view: Mapping[str, Any], _base: rules.Finding) -> bool:
    """Whether all that the kernel said is older than a server that generates now."""
    at, started = view["last_kernel_at"], view["started_at"]
    if not view["generating"] or at is None or started is None or at >= started:
        return False
    return not signature.matches({**view, "xid": xid.read(()), "hits": {**view["hits"], "kernel": {}}})


def _no_start(_signature: Signature, view: Mapping[str, Any], base: rules.Finding) -> bool:
    late = base.state == "unknown" and view["overdue"]
    return base.state not in ("starting", "unknown") or view["alive"] is False or late


def _not_serving(_signature: Signature, _view: Mapping[str, Any], base: rules.Finding) -> bool:
    return base.state not in ("serving", "unknown")


def _verdict(best: rules.Finding, view: Mapping[str, Any], version: str) -> dict[str, Any]:
    missing = explain.missing(best, view)
    confidence = best.confidence
    if confidence == "high" and any(source in missing for source in EXCLUDING):
        confidence = "medium"
    forbid = sorted({*FORBID.get(best.state, ()), *best.forbid} - {best.action})
    phase = view["phase"] or best.phase or ("not_started" if best.state == "stopped" else None)
    if best.state in ("serving", "stopped"):
        phase = best.phase
    progress = view["progress"]
    verdict: dict[str, Any] = {
        "state": best.state,
        "phase": phase,
        "since": _since(best, view, phase),
        "cause": best.cause,
        "confidence": confidence,
        "action": best.action,
        "forbid": forbid,
        "reasons": explain.reasons(best, view),
        "missing": missing,
        "next": explain.next_commands(best, view, missing),
        "proof": best.proof,
        "signature": best.signature,
        "progress": {key: progress[key] for key in ("done", "total", "unit", "bytes_per_s")}
        if best.state in ("starting", "stuck")
        else None,
        "fallback": view["records"]["fallback"],
        "still": view["still"],
        "catalog_version": version,
    }
    verdict["summary"] = explain.summary(best, view, phase, confidence)
    return verdict


def _since(best: rules.Finding, view: Mapping[str, Any], phase: str | None) -> str | None:
    now, started, silent = view["collected_at"], view["started_at"], view["silent_s"]
    if best.state == "starting":
        moment = started
    elif best.state == "stuck" and phase == "serving":
        moment = view["last_batch_at"]  # our own probes keep the log moving
    elif best.state == "serving":
        ready = view["hits"]["log"].get("ready") or {}
        moment = started if started is not None else ready.get("first_time")
    else:
        moment = now - silent if now is not None and silent is not None else started
    if moment is None or not 0 <= moment < 4e9:
        return None
    return datetime.datetime.fromtimestamp(moment, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
