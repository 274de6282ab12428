# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do with one host: the rails that look at nothing but the host itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import deployment, history
from .profiles import DeploymentError, load

BAD = ("stuck", "crashed", "gpu_fault", "host_fault", "unknown")
STATES = (*BAD, "serving", "starting", "stopped", "degraded")
ACTIONS = ("none", "wait", "restart", "reconfigure", "repair", "quarantine", "escalate")


@dataclass
class Decision:
    """What happens to a host and why. V(decision) is one of none, wait, act, would_act, refused, quarantine, escalate, unreachable.

    V(resumes) is the id of an attempt that was cut off and is not to stay open.

    V(newly_bad) and V(spent) (attempts in the window of the breaker) are for the rails of the fleet; V(rationed) says that those
    bind this decision.
    """

    host: str
    decision: str = "none"
    action: str = "none"
    state: str = "unknown"
    cause: str | None = None
    confidence: str | None = None
    profile_from: str | None = None
    profile_to: str | None = None
    differs: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    incident: str | None = None
    expires: float | None = None
    resumes: str | None = None
    since: str = ""
    newly_bad: bool = False
    bad: bool = False
    rationed: bool = False
    recent: list[Mapping[str, Any]] = field(default_factory=list)
    spent: list[Mapping[str, Any]] = field(default_factory=list)

    def to(self, decision: str, reason: str, action: str | None = None) -> Decision:
        """Sets the decision with its reason and returns itself."""
        self.decision = decision
        self.action = action or self.action
        self.reasons.append(reason)
        return self


def decide(host: str, seen: Mapping[str, Any], policy: Mapping[str, Any], now: float) -> Decision:
    """Returns the decision for a host before the rails of the fleet; decision act or quarantine is a wish until then.

    V(seen): the result of gather_diag (verdict, records, target, gates, or unreachable, failed and msg), and ladder, extra_flags and
    extra_environment of the host. V(policy): see V(plan.DEFAULTS). V(now): seconds since the epoch. Never raises.
    """
    verdict = history.mapping(seen.get("verdict"))
    records = history.mapping(seen.get("records"))
    # The times in the records are the host's own: a clock that is wrong there must not age them.
    now = history.epoch(seen.get("at")) or now
    result = Decision(host, bad=True, newly_bad=True, spent=history.attempts(records, now, policy["breaker_window"]))
    if seen.get("unreachable"):
        return result.to("unreachable", f"unreachable: {seen.get('msg') or 'no connection'}")
    if verdict.get("state") not in STATES or verdict.get("action") not in ACTIONS:
        return result.to("refused", f"no verdict, so nothing is permitted: {seen.get('msg') or 'gather_diag gave no result'}")

    result.state, result.action = verdict["state"], verdict["action"]
    result.cause, result.confidence, result.since = verdict.get("cause"), verdict.get("confidence"), str(verdict.get("since") or "")
    result.recent = history.attempts(records, now, policy["attempt_window"])
    held = history.marks(records, now)
    result.bad = result.state in BAD
    result.newly_bad = result.bad and not result.recent and not held
    target = history.mapping(seen.get("target"))
    manifest = history.mapping(records.get("manifest"))
    result.profile_from = target.get("profile") or manifest.get("profile")

    left = history.unfinished(records, now)
    result.resumes = str(left["id"]) if left and left.get("id") else None
    if result.state == "stopped" and left and result.resumes and left.get("to_profile"):
        result.bad = True
        result.incident = str(left.get("incident") or "")
        return _held(result, records, held, policy, now) or _resume(result, seen, verdict, policy, now, left)
    if result.state in ("serving", "starting", "stopped"):
        return result.to({"starting": "wait"}.get(result.state, "none"), f"the server is {result.state}: never touched")
    if result.state == "unknown":
        return result.to("refused", f"state unknown permits nothing: {verdict.get('summary') or 'no evidence'}")
    if result.action in ("none", "wait"):
        return result.to(result.action, f"the verdict asks for {result.action}: {verdict.get('summary') or result.state}")

    result.incident = history.incident(host, verdict, records, result.recent)
    return _held(result, records, held, policy, now) or _recommended(result, seen, verdict, policy, now)


def _held(
    result: Decision, records: Mapping[str, Any], held: list[Mapping[str, Any]], policy: Mapping[str, Any], now: float
) -> Decision | None:
    """The rails that stop everything: records that can not be read, marks, somebody's lease."""
    broken = history.unreadable(records)
    if broken:
        return result.to("refused", f"rail records: the host's history can not be read ({'; '.join(broken)})")
    for mark in held:
        if mark.get("kind") != "pinned":
            until = history.epoch(mark.get("expires"))
            end = f" until {history.utc(until)}" if until is not None else ""
            return result.to("refused", f"rail marks: {mark['kind']} by {mark.get('owner')}{end}: {mark.get('reason')}")
    foreign = history.lease(records, now, policy["owner"])
    if foreign:
        return result.to("wait", f"rail lease: held by {foreign['owner']} for {foreign.get('purpose') or 'no purpose given'}")
    return None


def _recommended(result: Decision, seen: Mapping[str, Any], verdict: Mapping[str, Any], policy: Mapping[str, Any], now: float) -> Decision:
    cause = f"cause {result.cause or 'not known'} ({result.confidence or 'no'} confidence)"
    why = f"{result.state} in {verdict.get('phase') or 'no phase'}, {cause}"
    if result.action in (verdict.get("forbid") or []):
        return result.to("escalate", f"the verdict itself forbids {result.action}: {why}")
    if result.action == "escalate":
        return result.to("escalate", f"nothing automatic helps: {why}")
    if result.state == "degraded":
        return result.to("escalate", f"a server that still serves is not taken down: {why}")
    if result.action == "quarantine":
        result.rationed = True
        return _quarantine(result, f"the host can not be cured by a restart: {why}", policy, now)
    if result.state not in ("stuck", "crashed") or result.action == "repair":
        return result.to("escalate", f"no automatic {result.action} for {result.state}: {why}")
    return _gated(result, seen, verdict, policy) or _attempt(result, seen, policy, now, why)


def _resume(
    result: Decision, seen: Mapping[str, Any], verdict: Mapping[str, Any], policy: Mapping[str, Any], now: float, left: Mapping[str, Any]
) -> Decision:
    """A repair was cut off after it had stopped the server: it goes on, within the cap of attempts."""
    why = f"a repair was cut off at {history.utc(history.epoch(left.get('at')) or now)}, after it had stopped the server"
    if len(result.recent) >= policy["max_attempts"]:
        return _quarantine(result, f"rail attempts: {len(result.recent)} of {policy['max_attempts']} are used: {why}", policy, now)
    result.action = str(left.get("action")) if left.get("action") in ("restart", "reconfigure") else "restart"
    result.profile_from, result.profile_to = left.get("from_profile"), left["to_profile"]
    result.rationed = True
    return _gated(result, seen, verdict, policy) or result.to("act", f"{why}: it goes on")


def _gated(result: Decision, seen: Mapping[str, Any], verdict: Mapping[str, Any], policy: Mapping[str, Any]) -> Decision | None:
    """The rails before anything destructive: evidence that was readable, visits that confirm, a host of ours."""
    gates = history.mapping(seen.get("gates"))
    readable = {"processes": ("ok",), "kernel": ("ok", "absent"), "gpus": ("ok",)}
    blind = [source for source, good in readable.items() if gates.get(source) is not True and gates.get(source) not in good]
    if blind:
        return result.to("refused", f"rail evidence: not readable on this host: {', '.join(blind)}")
    if result.state == "stuck" and verdict.get("proof") not in ("signature", "engine"):
        still = history.mapping(verdict.get("still"))
        visits, seconds = _number(still.get("visits")), _number(still.get("seconds"))
        if visits < policy["confirm_visits"] or seconds < policy["confirm_seconds"]:
            wanted = f"{policy['confirm_visits']} visits over {policy['confirm_seconds']:.0f} s"
            return result.to("wait", f"rail confirmation: still for {visits:.0f} visits over {seconds:.0f} s, {wanted} are needed")
    if not history.mapping(history.mapping(seen.get("records")).get("manifest")).get("command"):
        return result.to(
            "escalate",
            "no manifest on the host: this server was not deployed from here, so it can not be started again;"
            f" adopt it first: ansible-playbook deploy.yml --limit {result.host} -e sglang_runtime=existing",
        )
    return None


def _attempt(result: Decision, seen: Mapping[str, Any], policy: Mapping[str, Any], now: float, why: str) -> Decision:
    recent = result.recent
    if len(recent) >= policy["max_attempts"]:
        reason = f"rail attempts: {len(recent)} in the last {policy['attempt_window']:.0f} s, at most {policy['max_attempts']}: {why}"
        return _quarantine(result, reason, policy, now)
    since = now - (history.epoch(recent[-1]["at"]) or 0.0) if recent else None
    if since is not None and since < policy["cooldown"]:
        return result.to("wait", f"rail cooldown: the last attempt was {since:.0f} s ago, {policy['cooldown']:.0f} s are needed")

    failed = [row for row in recent if row.get("incident") == result.incident and row.get("result") != "cured"]
    restarts = sum(row.get("action") == "restart" for row in failed)
    if result.action == "restart" and restarts < policy["max_restarts"]:
        result.profile_to = result.profile_from
        result.rationed = True
        return result.to("act", why)
    if result.action == "restart":
        result.reasons.append(f"{restarts} restarts did not help: the next profile instead")
    return _reconfigure(result, seen, policy, now, why, bool(failed))


def _reconfigure(result: Decision, seen: Mapping[str, Any], policy: Mapping[str, Any], now: float, why: str, failed: bool) -> Decision:
    result.action = "reconfigure"
    if "reconfigure" in (history.mapping(seen.get("verdict")).get("forbid") or []):
        return result.to("escalate", f"the verdict itself forbids reconfigure: {why}")
    records = history.mapping(seen.get("records"))
    for mark in history.marks(records, now):
        if mark.get("kind") == "pinned":
            return result.to("refused", f"rail marks: the configuration is pinned by {mark.get('owner')}: {mark.get('reason')}")
    # A profile that was left once, or tried in vain, has had its chance.
    tried = {row.get("from_profile") for row in result.recent if row.get("action") == "reconfigure"}
    tried |= {row.get("to_profile") for row in result.recent if row.get("result") != "cured" and row.get("action") == "reconfigure"}
    profile, changes, skipped = next_profile(seen, {str(name) for name in tried if name})
    if profile is None:
        reason = f"no profile left to try: {'; '.join(skipped) or 'the ladder is empty'}: {why}"
        return _quarantine(result, reason, policy, now) if failed else result.to("escalate", reason)
    result.profile_to, result.differs, result.rationed = profile, changes, True
    result.expires = now + policy["fallback_ttl"]
    result.reasons.extend(skipped)
    return result.to("act", why)


def next_profile(seen: Mapping[str, Any], tried: set[str]) -> tuple[str | None, list[str], list[str]]:
    """Returns the next profile of the ladder that differs in effect from what runs, the differences, and why others were passed over."""
    target = history.mapping(seen.get("target"))
    manifest = history.mapping(history.mapping(seen.get("records")).get("manifest"))
    gpu_class = target.get("gpu_class") or manifest.get("gpu_class")
    version = target.get("engine_version") or manifest.get("engine_version")
    if gpu_class not in load().gpu_classes or not version:
        return None, [], [f"the GPU class ({gpu_class}) or the engine release ({version}) is not known"]
    command = target.get("command") or manifest.get("command") or []
    environment = history.mapping(target.get("environment")) or history.mapping(manifest.get("environment"))
    model = manifest.get("gpu_model")
    running = deployment.effective([str(word) for word in command], environment, gpu_class, str(version), model)
    skipped = []
    for name in seen.get("ladder") or manifest.get("ladder") or load().gpu_classes[gpu_class].ladder:
        if name in tried:
            skipped.append(f"{name} was tried already")
            continue
        wish = {"profile": name, "gpu_class": gpu_class, "gpu_model": model, "engine_version": version, "model_path": "unchanged"}
        extra = {key: seen.get(key) for key in ("extra_flags", "extra_environment")}
        try:
            candidate = deployment.build({**wish, **extra})["effective"]
        except DeploymentError as error:
            skipped.append(f"{name} can not be deployed: {error}")
            continue
        changes = deployment.differs(running, candidate, deployment.controlled(gpu_class))
        if changes:
            return name, changes, skipped
        skipped.append(f"{name} would change nothing in effect")
    return None, [], skipped


def overtaken(planned: Mapping[str, Any], before: Mapping[str, Any], again: Mapping[str, Any], now: float) -> str | None:
    """Returns why the plan no longer fits, seen under the lease just before acting, or null.

    V(planned): the host's part of the plan. V(before), V(again): results of gather_diag; V(again) has records and saved its evidence.
    """
    verdict, state = history.mapping(again.get("verdict")), history.mapping(before.get("verdict")).get("state")
    if verdict.get("state") != state:
        return f"it is {verdict.get('state')} now, it was {state} when the plan was made"
    pids = [history.mapping(result.get("facts")).get("main_pid") for result in (before, again)]
    if pids[0] != pids[1]:
        return f"another server runs now: main process {pids[1]}, it was {pids[0]}"
    if state != "stopped" and planned.get("action") in (verdict.get("forbid") or []):
        return f"the verdict now forbids {planned.get('action')}"
    for mark in history.marks(history.mapping(again.get("records")), history.epoch(again.get("at")) or now):
        if mark.get("kind") != "pinned" or planned.get("action") == "reconfigure":
            return f"{mark.get('owner')} set the mark {mark.get('kind')}: {mark.get('reason')}"
    if not again.get("bundle"):
        return "its evidence could not be saved"
    return None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _quarantine(result: Decision, reason: str, policy: Mapping[str, Any], now: float) -> Decision:
    result.expires = now + policy["quarantine_ttl"]
    return result.to("quarantine", reason, "quarantine")
