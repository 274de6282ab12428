# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan for a fleet: who may be touched in this run, and why the others may not. Pure, once per run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from . import history
from .plan_host import Decision, decide

DEFAULTS: dict[str, Any] = {
    "mode": "observe",
    "fleet_size": None,
    "partial": None,
    "owner": None,
    "max_attempts": 3,
    "max_restarts": 2,
    "attempt_window": 86400.0,
    "cooldown": 600.0,
    "confirm_visits": 2,
    "confirm_seconds": 120.0,
    "breaker_percent": 20.0,
    "breaker_max": 8,
    "breaker_window": 3600.0,
    "fallback_ttl": 2592000.0,
    "quarantine_ttl": 604800.0,
}
_FOR_THE_FLEET = ("host", "bad", "newly_bad", "rationed", "recent", "spent", "since")


def plan_fleet(hosts: Mapping[str, Mapping[str, Any]], policy: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Returns hosts (one decision each) and fleet (size, bad, newly_bad, budget, breaker, page, reasons).

    V(hosts): what was seen on each host, see V(plan_host.decide). V(policy): overrides of V(DEFAULTS); V(partial) is null or says why
    the hosts are not the whole fleet. V(now): seconds since the epoch. Raises ValueError for a policy that makes no sense.
    """
    rules = _checked(policy)
    decisions = [decide(host, history.mapping(hosts[host]), rules, now) for host in sorted(hosts)]
    size = rules["fleet_size"] or len(decisions)
    bad = sorted(d.host for d in decisions if d.bad)
    newly_bad = sorted(d.host for d in decisions if d.newly_bad)
    budget = _budget(size, rules)
    mass, partial = _mass(len(decisions), newly_bad), _partial(rules)
    exhausted = _ration(decisions, mass or partial, size, budget, rules)
    page = bool(mass) or any(d.decision in ("quarantine", "escalate") for d in decisions)
    if rules["mode"] == "observe":
        for decision in decisions:
            if decision.decision in ("act", "quarantine"):
                decision.to("would_act", "mode observe: nothing is touched")
    return {
        "hosts": {d.host: {key: value for key, value in asdict(d).items() if key not in _FOR_THE_FLEET} for d in decisions},
        "fleet": {
            "size": size,
            "bad": bad,
            "newly_bad": newly_bad,
            "budget": budget,
            "breaker": "open" if mass or exhausted else "closed",
            "page": page,
            "reasons": [reason for reason in (mass, partial, exhausted) if reason],
        },
    }


def _checked(policy: Mapping[str, Any]) -> dict[str, Any]:
    for name in policy:
        if name not in DEFAULTS:
            raise ValueError(f"unknown policy {name!r}; known are {', '.join(sorted(DEFAULTS))}")
    rules = {**DEFAULTS, **{name: value for name, value in policy.items() if value is not None}}
    if rules["mode"] not in ("observe", "heal"):
        raise ValueError(f"mode: expected observe or heal, found {rules['mode']!r}")
    if not 0 <= rules["breaker_percent"] <= 100:
        raise ValueError(f"breaker_percent: expected 0 to 100, found {rules['breaker_percent']!r}")
    for name in ("confirm_visits", "max_attempts"):
        if rules[name] < 1:
            raise ValueError(f"{name}: expected 1 or more, found {rules[name]!r}")
    for name, default in DEFAULTS.items():
        if isinstance(default, (int, float)) and rules[name] < 0:
            raise ValueError(f"{name}: expected 0 or more, found {rules[name]!r}")
    if rules["fleet_size"] is not None and rules["fleet_size"] < 1:
        raise ValueError(f"fleet_size: expected 1 or more, found {rules['fleet_size']!r}")
    return rules


def _budget(size: int, rules: Mapping[str, Any]) -> int:
    """At most so many hosts are acted on in a window. A plain percentage would never heal a fleet of four."""
    share = 1 if size <= 2 else max(1, int(size * rules["breaker_percent"] // 100))
    return int(min(share, rules["breaker_max"]))


def _mass(seen: int, newly_bad: list[str]) -> str | None:
    """Returns why nobody may be acted on when too many hosts are newly bad at once, or null."""
    if seen < 3 or len(newly_bad) * 2 <= seen:
        return None
    return (
        f"rail breaker: {len(newly_bad)} of {seen} hosts are newly bad at once; that is the checker, the network or a release, "
        "not the hosts: nobody is acted on"
    )


def _partial(rules: Mapping[str, Any]) -> str | None:
    if not rules["partial"] or rules["fleet_size"]:
        return None
    return f"rail fleet: this is not the whole fleet: {rules['partial']}; declare its size (fleet_size) to act on a part of it"


def _ration(decisions: list[Decision], stop: str | None, size: int, budget: int, rules: Mapping[str, Any]) -> str | None:
    """Refuses what the rails of the fleet do not allow; returns a sentence when the budget was not enough."""
    acted = {d.host for d in decisions if any(_counts(row, size) for row in d.spent)}
    wishes = sorted((d for d in decisions if d.rationed), key=lambda d: (d.host not in acted, d.since or "~", d.host))
    chosen: set[str] = set()
    left_out = []
    for wish in wishes:
        if stop:
            wish.to("refused", stop)
        elif len(chosen) < budget and (wish.host in acted or len(acted | chosen) < budget):
            chosen.add(wish.host)
        else:
            left_out.append(wish.host)
            used = len(acted | chosen)
            wish.to("refused", f"rail breaker: at most {budget} of {size} hosts in {rules['breaker_window']:.0f} s, {used} used")
    return f"rail breaker: the budget of {budget} hosts is used, {len(left_out)} more would need it" if left_out else None


def _counts(row: Mapping[str, Any], size: int) -> bool:
    """Whether an attempt uses up budget. With one or two hosts the next may follow once the last is well again."""
    return size > 2 or row.get("result") != "cured"
