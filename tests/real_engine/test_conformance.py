# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The emulator shows what the real engine showed, the real engine still shows it, and our verdicts on it are right."""

from __future__ import annotations

from typing import Any

import pytest
from conformance import compare
from conformance.run import Runs, scenarios


def test_the_emulator_shows_what_the_real_engine_showed(scenario: str, emulator_runs: Runs, recorded: dict[str, Any]) -> None:
    seen = emulator_runs.result(scenario)["seen"]
    rest, _unused = compare.sift(compare.differences(recorded[scenario], seen, scenario), compare.accepted())
    assert not rest, "\n" + compare.text(rest)


def test_every_accepted_difference_is_still_there(emulator_runs: Runs, recorded: dict[str, Any]) -> None:
    found = []
    for name in scenarios("emulator"):
        found += compare.differences(recorded[name], emulator_runs.result(name)["seen"], name)
    _rest, unused = compare.sift(found, compare.accepted())
    assert unused == []


@pytest.mark.real_engine
def test_the_real_engine_shows_what_was_recorded(scenario: str, real_runs: Runs, recorded: dict[str, Any]) -> None:
    seen = real_runs.result(scenario)["seen"]
    if scenario in recorded:
        rest = compare.differences(recorded[scenario], seen, scenario)
        assert not rest, "\n" + compare.text(rest).replace("emulator ", "now      ").replace("real     ", "recorded ")


@pytest.mark.real_engine
def test_the_verdicts_on_the_real_engine_are_right(scenario: str, real_runs: Runs) -> None:
    verdicts = real_runs.result(scenario)["verdicts"]
    wrong = [
        f"{row['moment']}: {row['summary']} ({row['found']}); wanted {row['wanted']}: {row['why']}" for row in verdicts if not row["right"]
    ]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.real_engine
def test_no_start_and_no_load_is_called_stuck(real_runs: Runs) -> None:
    """Over all scenarios at once: many starts beside each other, imports of minutes, every core full of requests."""
    asked = [
        row
        for name in real_runs.names()
        for row in real_runs.result(name)["verdicts"]
        if row["moment"].startswith(("start,", "slow imports", "under load", "serving", "the other node is"))
    ]
    assert len(asked) >= 25
    if "slow_imports" in real_runs.names():
        assert real_runs.result("slow_imports")["seen"]["imports_s"] >= 90
    assert {row["found"]["state"] for row in asked} <= {"starting", "serving"}, [row["summary"] for row in asked]
