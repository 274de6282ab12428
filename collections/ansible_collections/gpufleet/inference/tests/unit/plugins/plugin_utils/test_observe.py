# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.gpufleet.inference.plugins.plugin_utils import observe
from ansible_collections.gpufleet.inference.plugins.plugin_utils.waiting import Watch
from ansible_collections.gpufleet.inference.tests.unit.plugins.plugin_utils import snapshots

LIMITS = {"timeout": 100, "confirm_visits": 2, "confirm_seconds": 30}


def verdict(state="starting", phase="weights_loading", **more):
    return {"state": state, "phase": phase, "summary": f"{state} in {phase}", "next": ["look"], "proof": None, "progress": None, **more}


def follow(looks, limits=None):
    watch, lines = Watch("gpu02", limits or LIMITS), []
    for seconds, what in looks:
        lines.append(watch.look(what, {"log": {"tail": ["last words"]}}, seconds))
        if watch.done:
            break
    return watch, lines


def test_one_line_per_change():
    loading = [verdict(progress={"done": n, "total": 64, "bytes_per_s": 2.1 * 2**30}) for n in (40, 41, 41)]
    watch, lines = follow([(5 * n, look) for n, look in enumerate([*loading, verdict("serving", "serving")])])
    assert lines == ["gpu02 weights_loading 40/64, 2.1 GiB/s", "gpu02 weights_loading 41/64, 2.1 GiB/s", None, "gpu02 serving"]
    assert watch.ready and "failed" not in watch.outcome() and len(watch.outcome()["timeline"]) == 3


def test_a_hang_is_final_once_confirmed_over_time():
    stuck = verdict("stuck", proof="no_progress")
    watch, _lines = follow([(0, stuck), (10, stuck), (29, stuck)])
    assert not watch.done and watch.suspicious
    watch, _lines = follow([(0, stuck), (10, stuck), (31, stuck)])
    outcome = watch.outcome()
    assert (
        watch.done
        and outcome["failed"]
        and outcome["msg"] == "stuck in weights_loading. Next: look"
        and outcome["log_tail"] == ["last words"]
    )


def test_progress_in_between_starts_the_count_again():
    stuck = verdict("stuck", proof="no_progress")
    watch, _lines = follow([(0, stuck), (31, verdict()), (40, stuck), (60, stuck)])
    assert not watch.done


@pytest.mark.parametrize("state", ["crashed", "stopped", "gpu_fault", "host_fault"])
def test_what_is_gone_is_final_at_the_second_look(state):
    assert not follow([(0, verdict(state))])[0].done
    watch, _lines = follow([(0, verdict(state)), (5, verdict(state))])
    assert watch.done and watch.outcome()["failed"]


def test_a_bar_is_kept_in_its_last_state_only():
    watch = Watch("gpu02", LIMITS)
    bars = [f"loading:  {n}% Completed | {n}/64" for n in range(30)]
    watch.look(verdict(), {"log": {"tail": ["first", *bars, "boom: 5%"]}}, 0)
    assert watch.outcome()["log_tail"] == ["first", "loading:  29% Completed | 29/64", "boom: 5%"]


def test_a_log_without_a_line_has_no_tail():
    watch = Watch("gpu02", LIMITS)
    watch.look(verdict(), {"log": {"tail": []}}, 0)
    assert watch.outcome()["log_tail"] == []


def test_the_word_of_the_engine_needs_no_waiting():
    stuck = verdict("stuck", proof="engine")
    assert follow([(0, stuck), (5, stuck)])[0].done


def test_a_slow_start_and_an_unknown_state_are_waited_for_until_the_limit():
    for state in ("starting", "unknown"):
        watch, _lines = follow([(n, verdict(state)) for n in range(0, 99, 5)])
        assert not watch.done and not watch.out_of_time(99) and watch.out_of_time(100)
        assert watch.outcome()["msg"].startswith("not ready after 100 s")


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (verdict("stuck"), "stuck in weights_loading"),
        (verdict("unknown", None), "unknown"),
        (verdict(progress={"done": 0, "total": 64, "bytes_per_s": 30 * 2**20}), "weights_loading 0/64, 30 MiB/s"),
        (verdict(progress={"done": 64.0, "total": 64.0, "bytes_per_s": 0}), "weights_loading 64/64"),
        (verdict("serving", "serving"), "serving"),
        (verdict("crashed", "imports"), "crashed in imports"),
    ],
)
def test_words(seen, words):
    assert observe.progress_line(seen) == words


def test_an_option_comes_from_the_task_else_from_the_host():
    variables = {"sglang_port": 31001, "gpufleet_state_dir": "/state", "sglang_log_path": None}.get
    found = observe.resolve({"port": 5, "depth": "deep"}, variables, observe.VARIABLES)
    assert found == {"port": 5, "state_dir": "/state"}


def test_only_what_binds_now_is_active():
    records = {
        "fallback": {"profile": "safe", "expires": 100},
        "marks": {"marks": [{"kind": "pinned", "expires": 99}, {"kind": "maintenance", "expires": None}]},
    }
    assert observe.active(records, 99.5) == {"fallback": records["fallback"], "marks": [{"kind": "maintenance", "expires": None}]}
    assert observe.active(records, 100)["fallback"] is None
    assert observe.active({"fallback": {"error": "x"}, "marks": None}, 0) == {"fallback": None, "marks": []}


def test_gates_are_what_was_readable():
    snapshot = {"processes": {"status": "absent"}, "kernel": {"status": "absent"}, "gpus": {"status": "absent"}}
    assert observe.gates(snapshot) == {"processes": True, "kernel": True, "gpus": False}
    snapshot = {source: {"status": "unavailable"} for source in snapshot}
    assert not any(observe.gates(snapshot).values())
    assert observe.gates({"processes": None}) == {"processes": False, "kernel": False, "gpus": False}


def test_garbage_gives_a_result():
    judge = observe.Judge(None, None)
    for snapshot in ({}, {"log": 5, "records": [], "gpus": {"devices": None}}):
        result = observe.result({"snapshot": snapshot}, judge, "gpu02", with_records=True, with_snapshot=False)
        assert result["verdict"]["state"] == "unknown" and result["active"] == {"fallback": None, "marks": []}


def test_a_bad_policy_names_its_key():
    with pytest.raises(ValueError, match="silence"):
        observe.Judge({"silence": 1}, None)


@pytest.mark.parametrize("record", [{"error": "no JSON"}, {"marks": "x"}, {"marks": [1]}, 5])
def test_marks_that_can_not_be_read_bind(record):
    assert [mark["kind"] for mark in observe.active({"marks": record}, 1.0)["marks"]] == ["unreadable"]


@pytest.mark.parametrize("record", [None, {}, {"marks": []}])
def test_no_marks_bind_nothing(record):
    assert observe.active({"marks": record}, 1.0)["marks"] == []


@pytest.mark.parametrize("host", ["gpu01", "a\\1", "{{ x }}", "\\g<0>"])
def test_the_name_of_the_host_is_put_in_as_it_is(host):
    steps = observe.Judge(None, None).verdict(snapshots.build("incident"), host)["next"]
    assert any(f"--limit {host}" in step for step in steps)
