# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The founding incident and its twins, side by side on six hosts: who is stuck, who is not, who is touched.

The tests of this file build on each other, in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

SCENARIOS = {
    "gpu01": "healthy",
    "gpu02": "incident",
    "gpu03": "incident_slow",
    "gpu04": "compiling",
    "gpu05": "incident_triton",  # and deployed with triton
    "gpu06": "healthy",  # freezes later
}
VERDICT = {"state", "phase", "since", "cause", "confidence", "action", "reasons", "missing", "next", "summary"}
STUCK = ("gpu02", "gpu05", "gpu06")


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[int], Any]) -> Any:
    lab = make_lab(6)
    for host, name in SCENARIOS.items():
        lab.scenario(host, name)
    return lab


def states(lab: Any) -> dict[str, str]:
    return {host: result["verdict"]["state"] for host, result in lab.diagnose().items()}


def test_deploy_brings_up_what_can_serve_and_gives_up_what_is_proven_stuck(lab: Any) -> None:
    with ThreadPoolExecutor() as pool:
        triton = pool.submit(lab.playbook, "deploy.yml", "--limit", "gpu05", "-e", "sglang_profile=triton_nccl_tuned")
        done = lab.playbook("deploy.yml", "--limit", "all:!gpu05", "-e", "sglang_ready_timeout=70")
    assert done.code == 2, done.out
    assert triton.result().code == 2 and "stuck" in triton.result().lines("gpu05"), triton.result().out
    failed = {host for host, counts in done.recap.items() if counts["failed"]}
    assert "gpu02" in failed and not {"gpu01", "gpu06"} & failed, done.out
    assert "stuck" in done.lines("gpu02") and "weights_loading 64/64" in done.lines("gpu02"), done.out
    assert lab.pids()["gpu02"], "a deploy that gives up leaves the evidence running"


def test_verdicts(lab: Any) -> None:
    lab.scenario("gpu06", "green_freeze")
    found = lab.diagnose()
    assert set(found) == set(SCENARIOS)
    for host, result in found.items():
        assert set(result["verdict"]) >= VERDICT, host
        assert result["size"] <= 8 * 1024, host
    verdicts = {host: result["verdict"] for host, result in found.items()}
    told = {host: (verdict["state"], verdict["phase"]) for host, verdict in verdicts.items()}
    assert told["gpu01"] == ("serving", "serving")
    assert told["gpu02"] == ("stuck", "weights_loading")
    assert told["gpu03"] == ("starting", "weights_loading")
    assert told["gpu04"][0] == "starting"
    assert told["gpu05"] == ("stuck", "weights_loading")
    assert told["gpu06"] == ("stuck", "serving")
    incident = verdicts["gpu02"]
    assert incident["cause"] == "sm120_unsupported_backend" and incident["confidence"] in ("low", "medium")
    assert incident["action"] == "reconfigure" and "stacks" in incident["missing"]
    assert verdicts["gpu05"]["cause"] != "sm120_unsupported_backend"
    assert any("health" in reason["source"] + reason["quote"] for reason in verdicts["gpu06"]["reasons"])


def test_observe_touches_nothing(lab: Any) -> None:
    before = lab.pids()
    done = lab.playbook("remediate.yml")
    assert done.code == 0, done.out
    assert lab.pids() == before
    assert all(counts["changed"] == 0 for counts in done.recap.values()), done.out
    assert not any((lab.folder / host / "state" / "attempts.json").exists() for host in SCENARIOS)


def test_check_mode_says_what_it_would_do(lab: Any) -> None:
    before = lab.pids()
    done = lab.playbook("remediate.yml", "-e", "remediation_mode=heal", "-e", "remediation_breaker_percent=50", "--check")
    assert lab.pids() == before
    assert all(counts["changed"] == 0 for counts in done.recap.values()), done.out
    rows = lab.report()["by_host"]
    assert "triton_nccl_tuned" in rows["gpu02"]["note"], rows["gpu02"]


def test_heal_moves_what_it_can_cure_and_no_other(lab: Any) -> None:
    before = lab.pids()
    with ThreadPoolExecutor() as pool:
        healing = pool.submit(lab.playbook, "remediate.yml", "-e", "remediation_mode=heal", "-e", "remediation_breaker_percent=50")
        while set(before["gpu06"]) & set(lab.pids()["gpu06"]) and not healing.done():
            time.sleep(0.2)
        lab.scenario("gpu06", "healthy")  # the freeze is gone with the process that froze
    done = healing.result()
    rows = lab.report()["by_host"]
    after = lab.pids()
    assert {host for host in SCENARIOS if after[host] != before[host]} == set(STUCK), done.out
    assert rows["gpu02"]["state_after"] == "serving" and rows["gpu02"]["profile"] == "triton_nccl_tuned", done.out
    (attempt,) = lab.state("gpu02", "attempts")["attempts"]
    assert (attempt["result"], attempt["confirms"]) == ("cured", "sm120_unsupported_backend")
    assert lab.state("gpu02", "fallback")["confirmed_cause"] == "sm120_unsupported_backend"
    assert rows["gpu06"]["state_after"] == "serving" and rows["gpu06"]["action"] == "restart", done.out
    assert rows["gpu05"]["state_after"] != "serving"
    assert lab.state("gpu05", "attempts")["attempts"][0]["result"] == "failed"
    assert done.code == 2, "a host that stays ill pages"
    assert not any((lab.folder / host / "state" / "lease.json").exists() for host in SCENARIOS)


def test_deploy_keeps_the_fallback_and_says_so(lab: Any) -> None:
    before = lab.pids()["gpu02"]
    done = lab.playbook("deploy.yml", "--limit", "gpu01,gpu02")
    assert done.code == 0, done.out
    assert {counts["changed"] for counts in done.recap.values()} == {0}, done.out
    assert lab.pids()["gpu02"] == before
    assert "triton_nccl_tuned" in done.lines("gpu02") or "keeps" in done.out, done.out
    assert states(lab)["gpu02"] == "serving"
