# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who serves or starts is not touched, whatever the rest of the evidence looks like."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.gpufleet.inference.plugins.plugin_utils import lines, policy, signatures
from ansible_collections.gpufleet.inference.plugins.plugin_utils.diagnose import DESTRUCTIVE, diagnose
from ansible_collections.gpufleet.inference.tests.unit.plugins.plugin_utils import snapshots

CATALOG = signatures.load()
POLICY = policy.load()
LOG_EXAMPLES = [
    (signature.id, example["log"])
    for signature in CATALOG.signatures
    for example in signature.examples.get("positive", [])
    if example.get("log") and signature.state in ("crashed", "stuck")
]
KERNEL_EXAMPLES = [
    (signature.id, example["kernel"])
    for signature in CATALOG.signatures
    for example in signature.examples.get("positive", [])
    if example.get("kernel")
]


def verdict(snapshot: Any) -> dict[str, Any]:
    return diagnose(snapshot, CATALOG, POLICY)


def kind(snapshot: Any) -> tuple[str, bool]:
    told = verdict(snapshot)
    return told["state"], told["action"] in DESTRUCTIVE


def slow(health: str = "ok") -> dict[str, Any]:
    """A server under load: our request waits too long, and there are no counters that tell more."""
    snapshot = snapshots.build("busy")
    snapshot["http"]["metrics"] = {"first": None, "second": None, "tokens_delta": None}
    snapshot["http"]["health"] = {"result": health, "code": None, "seconds": 25.0}
    for device in snapshot["gpus"]["devices"]:
        device["utilization_pct"] = 97
    return snapshot


def log_hits(text: str, at: float | None) -> dict[str, Any]:
    hits = CATALOG.scanners["server"].scan([lines.clean(line) for line in lines.split(text)])
    for hit in hits.values():
        hit["last_time"] = at
    return hits


@pytest.mark.parametrize(("name", "text"), LOG_EXAMPLES)
def test_a_line_in_the_log_does_not_crash_a_server_that_is_up(name: str, text: str) -> None:
    snapshot = slow()
    hits = log_hits(text, snapshots.NOW - 500)
    if hits.keys() & {"scheduler_exception", "sigquit", "child_crashed", "draining"}:
        return  # these say that it goes down
    batch = {"count": 1, "first": "Decode batch, #running-req: 1", "last": "Decode batch, #running-req: 1"}
    snapshot["log"]["hits"] = {**snapshot["log"]["hits"], **hits, "decode_batch": {**batch, "last_time": snapshots.NOW - 100}}
    state, destructive = kind(snapshot)
    assert state != "crashed" and not destructive, verdict(snapshot)


@pytest.mark.parametrize("silent", [100.0, 1000.0])
def test_a_slow_answer_and_a_quiet_log_are_no_hang_while_the_scheduler_answers(silent: float) -> None:
    snapshot = slow()
    snapshot["log"]["silent_s"] = silent
    assert kind(snapshot) == ("unknown", False)
    snapshot["http"]["health"]["result"] = "unavailable"
    assert kind(snapshot) == (("unknown", False) if silent < 120 else ("stuck", True))


@pytest.mark.parametrize(("name", "text"), KERNEL_EXAMPLES)
@pytest.mark.parametrize("base", ["serving", "busy"])
def test_what_the_kernel_said_before_the_start_does_not_condemn_a_server_that_generates(name: str, text: str, base: str) -> None:
    snapshot = snapshots.build(base)
    scanned = [lines.clean(line) for line in lines.split(text)]
    hits = CATALOG.scanners["kernel"].scan(scanned)
    for hit in hits.values():
        hit.update(first_time=snapshots.NOW - 90_000, last_time=snapshots.NOW - 80_000)
    snapshot["kernel"].update(status="ok", lines=scanned, hits=hits)
    if hits:
        assert kind(snapshot) == ("serving", False), verdict(snapshot)


def test_a_fault_since_the_start_or_of_unknown_time_still_counts() -> None:
    snapshot = snapshots.build("serving")
    line = "NVRM: Xid (PCI:0000:c2:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    for at in (snapshots.NOW - 60, None):
        hits = CATALOG.scanners["kernel"].scan([line])
        for hit in hits.values():
            hit["last_time"] = at
        snapshot["kernel"].update(status="ok", lines=[line], hits=hits)
        assert verdict(snapshot)["state"] == "gpu_fault"


@pytest.mark.parametrize("base", ["serving", "busy"])
@pytest.mark.parametrize("state", ["T", "t"])
def test_a_server_that_generates_is_not_stopped(base: str, state: str) -> None:
    snapshot = snapshots.build(base)
    snapshot["processes"]["members"][1]["state"] = state
    snapshot["processes"]["stopped"] = [snapshot["processes"]["members"][1]["pid"]] if state == "T" else []
    assert kind(snapshot) == ("serving", False)


def test_a_traced_process_is_not_a_stopped_one_and_a_stop_has_to_last() -> None:
    snapshot = snapshots.build("compiling")
    snapshot["processes"]["members"][1]["state"] = "t"
    assert kind(snapshot) == ("starting", False)
    snapshot["processes"]["members"][1]["state"] = "T"
    told = verdict(snapshot)
    assert (told["cause"], told["proof"]) == ("process_stopped", "no_progress")


@pytest.mark.parametrize("base", ["serving", "busy"])
@pytest.mark.parametrize("service", ["running", "stopped", "failed", "absent", None])
def test_tokens_from_a_server_whose_processes_were_not_found_are_no_crash(base: str, service: str | None) -> None:
    snapshot = snapshots.build(base)
    snapshot["service"].update(state=service, main_pid=None)
    snapshot["processes"].update(main=None, members=[], schedulers=0, schedulers_alive=0)
    snapshot["port"]["ours"] = None
    assert not kind(snapshot)[1]


def test_a_counter_that_fell_is_not_frozen() -> None:
    snapshot = snapshots.build("green_freeze")
    snapshot["http"]["metrics"]["tokens_delta"] = -900
    snapshot["log"]["silent_s"] = 5.0
    for device in snapshot["gpus"]["devices"]:
        device["utilization_pct"] = 97
    assert not kind(snapshot)[1]


def test_without_root_a_start_that_only_reads_is_not_still() -> None:
    snapshot = snapshots.build("incident_triton")
    assert verdict(snapshot)["state"] == "stuck"
    snapshot["processes"]["totals"].update(rchar_per_s=None, read_bytes_per_s=None)
    assert not kind(snapshot)[1]


@pytest.mark.parametrize("seconds", [200.0, 1700.0])
def test_a_start_whose_log_is_elsewhere_gets_the_time_of_the_longest_phase(seconds: float) -> None:
    snapshot = snapshots.build("incident_triton")
    snapshot["log"].update(hits={}, tail=[], last_line=None, last_time=None, bar=None, silent_s=90_000.0)
    snapshot["processes"]["main"]["start_time"] = snapshots.NOW - seconds
    snapshot["service"]["since"] = snapshots.NOW - seconds
    assert not kind(snapshot)[1]


@pytest.mark.parametrize("change", [{"main_start": snapshots.NOW - 90_000}, {"main_pid": 999}])
def test_visits_to_an_earlier_process_confirm_nothing(change: dict[str, Any]) -> None:
    snapshot = snapshots.build("incident_triton")
    members = snapshot["processes"]["members"]
    visit = {
        "at": snapshots.NOW - 600,
        "main_pid": 1000,
        "main_start": snapshot["processes"]["main"]["start_time"],
        **{name: sum(member[name] or 0 for member in members) for name in ("rchar", "read_bytes", "majflt")},
    }
    snapshot["records"] = {"visits": {"visits": [visit]}}
    assert verdict(snapshot)["still"]["visits"] == 2
    later = copy.deepcopy(snapshot)
    later["records"]["visits"]["visits"][0].update(change)
    assert verdict(later)["still"]["visits"] == 1


@pytest.mark.parametrize("name", ["serving", "busy", "compiling", "incident_slow", "incident"])
def test_a_main_process_that_only_its_manager_sees_has_not_crashed(name: str) -> None:
    snapshot = snapshots.build(name)
    snapshot["processes"]["main"] = None
    state, _destructive = kind(snapshot)
    assert state != "crashed"


@pytest.mark.parametrize("shown", [{"total": 64}, {"done": 3}, {"done": "x", "total": 64}, {"done": None, "total": 1e300}, 5])
def test_half_a_progress_bar_still_gives_a_verdict(shown: Any) -> None:
    for name in snapshots.ALL:
        snapshot = snapshots.build(name)
        snapshot["log"]["bar"] = shown
        assert verdict(snapshot)["summary"]
