# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table at the end of a run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

SPEC = importlib.util.spec_from_file_location("fleet", Path(__file__).parents[1] / "plugins" / "callback" / "fleet.py")
fleet = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fleet)

STUCK = {
    "state": "stuck",
    "phase": "weights_loading",
    "since": "2026-11-29T00:28:05Z",
    "cause": "sm120_unsupported_backend",
    "confidence": "low",
    "action": "reconfigure",
    "summary": "silent since the bar",
}
SERVING = {"state": "serving", "phase": "serving", "action": "none", "summary": "serves", "fallback": {"profile": "safe"}}


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("AWX_HOST", raising=False)


def result(host, action="gpufleet.inference.gather_diag", **data):
    return SimpleNamespace(host=SimpleNamespace(get_name=lambda: host), task=SimpleNamespace(action=action), result=data)


def printed(*results, unreachable=()):
    callback = fleet.CallbackModule()
    lines = []
    callback._display = SimpleNamespace(display=lambda line, color=None: lines.append(line))
    for entry in results:
        callback.v2_runner_on_ok(entry)
    for entry in unreachable:
        callback.v2_runner_on_unreachable(entry)
    callback.v2_playbook_on_stats(None)
    return lines


def test_one_aligned_line_per_host():
    assert printed(result("gpu02", verdict=STUCK), result("gpu01", verdict=SERVING)) == [
        "",
        "HOST   STATE    PHASE            SINCE         CAUSE                      CONFIDENCE  ACTION       FALLBACK  SUMMARY",
        "gpu01  serving  serving                                                               none         safe      serves",
        "gpu02  stuck    weights_loading  11-29 00:28Z  sm120_unsupported_backend  low         reconfigure            silent since the bar",
    ]


def test_the_last_verdict_counts_also_of_a_task_that_failed():
    callback = fleet.CallbackModule()
    callback.v2_runner_on_ok(result("gpu01", verdict=STUCK))
    callback.v2_runner_on_failed(result("gpu01", verdict=SERVING))
    callback.v2_runner_on_ok(result("gpu01", msg="no verdict"))
    assert callback._verdicts == {"gpu01": SERVING}


def test_a_host_out_of_reach_has_a_line_beside_others():
    assert printed(result("gpu01", verdict=SERVING), unreachable=[result("gpu02", msg="timed out")])[-1].split() == [
        "gpu02",
        "unreachable",
        "timed",
        "out",
    ]
    assert printed(unreachable=[result("gpu02", msg="timed out")]) == []


def test_silence_without_verdicts_for_bundles_and_under_awx(monkeypatch):
    assert printed(result("gpu01", msg="pong"), result("gpu02", verdict="text"), result("gpu03", verdict={})) == []
    assert printed(result("localhost", "gpufleet.inference.analyze_bundle", verdict=STUCK)) == []
    monkeypatch.setenv("AWX_HOST", "https://awx")
    assert printed(result("gpu01", verdict=STUCK)) == []


def test_silence_when_the_output_is_json(monkeypatch):
    monkeypatch.setattr(fleet.constants, "DEFAULT_STDOUT_CALLBACK", "ansible.posix.json", raising=False)
    assert printed(result("gpu01", verdict=STUCK)) == []


def test_lines_fit_the_terminal_and_can_not_steer_it(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    hostile = {**STUCK, "summary": "\x1b[2Jgone\r\n\u202edone\x9b " + "long " * 40}
    lines = printed(result("gpu02", verdict=hostile))
    assert max(map(len, lines)) <= 120
    assert all(line.isprintable() for line in lines)
    assert "[2Jgone done" in lines[-1]


def test_the_rows_of_a_report_replace_the_verdicts():
    rows = [{"host": "gpu02", "state_before": "stuck", "action": "reconfigure", "state_after": "serving", "seconds": 12.5, "note": "cured"}]
    lines = fleet.report_table(rows, 100)
    assert lines == [
        "HOST   STATE BEFORE  ACTION       STATE AFTER  SECONDS  NOTE",
        "gpu02  stuck         reconfigure  serving      12.5     cured",
    ]
