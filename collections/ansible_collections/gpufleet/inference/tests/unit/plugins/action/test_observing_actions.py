# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import types

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gpufleet.inference.plugins.action import gather_diag, wait_ready

VARIABLES = {
    "inventory_hostname": "gpu02",
    "sglang_home": "/home/gpu02",
    "sglang_work_dir": trust_as_template("{{ sglang_home }}/run"),
    "sglang_port": 31002,
    "gpufleet_policy": {"normal_silence_s": {"imports": 20}},
}


def make(plugin, answers, args=None, variables=None, check_mode=False):
    """The action with its module replaced by O(answers), and the list of options that the module got."""
    variables = VARIABLES if variables is None else variables
    task = types.SimpleNamespace(args=args or {}, check_mode=check_mode, async_val=0, diff=False)
    action = plugin.ActionModule.__new__(plugin.ActionModule)
    action._task = task
    action._templar = Templar(loader=DataLoader(), variables=variables)
    action._connection = types.SimpleNamespace(_shell=types.SimpleNamespace(tmpdir=None), has_pipelining=True)
    action._early_needs_tmp_path = lambda: False
    calls = []
    queue = iter(answers)

    def execute(module_name, module_args, task_vars):
        assert module_name == "gpufleet.inference.gather_diag"
        calls.append(module_args)
        answer = next(queue)
        if isinstance(answer, Exception):
            raise answer
        return answer

    action._execute_module = execute
    return lambda: action.run(task_vars=variables), calls


def test_options_come_from_the_host_and_controller_options_stay_here():
    run, calls = make(gather_diag, [{"changed": False, "snapshot": {}}], {"window": 1, "return_records": "yes", "policy": None})
    result = run()
    (options,) = calls
    assert options.pop("patterns")["log"][0]["regex"]
    assert options == {"window": 1, "work_dir": "/home/gpu02/run", "port": 31002}
    assert result["verdict"]["state"] == "unknown" and result["summary"] == result["verdict"]["summary"] and not result["changed"]
    assert set(result) >= {"records", "target", "gates", "active", "facts"} and "snapshot" not in result


def test_the_snapshot_is_returned_on_request_only():
    run, _calls = make(gather_diag, [{"snapshot": {"schema": 1}, "bundle": "/state/diag/x"}], {"return_snapshot": True})
    assert run()["snapshot"] == {"schema": 1}
    run, _calls = make(gather_diag, [{"snapshot": {"schema": 1}, "bundle": "/state/diag/x"}])
    result = run()
    assert set(result) == {"changed", "summary", "verdict", "facts", "bundle"}


def test_a_module_that_fails_fails_the_task():
    run, _calls = make(gather_diag, [{"failed": True, "msg": "no such option"}])
    assert run()["failed"]


@pytest.mark.parametrize("bad", [{"policy": {"silence": 1}}, {"signatures_extra": ["/nowhere.yml"]}])
def test_a_bad_policy_or_signature_file_is_one_clear_error(bad):
    run, calls = make(gather_diag, [], bad)
    with pytest.raises(AnsibleActionFail, match=r"silence|/nowhere.yml"):
        run()
    assert calls == []


def test_a_variable_that_can_not_be_evaluated_is_named():
    run, _calls = make(gather_diag, [], variables={"sglang_port": trust_as_template("{{ nowhere }}")})
    with pytest.raises(AnsibleActionFail, match="sglang_port"):
        run()


@pytest.fixture
def quiet(monkeypatch):
    lines = []
    monkeypatch.setattr(wait_ready.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(wait_ready.display, "display", lines.append)
    monkeypatch.setattr(wait_ready.observe.Judge, "verdict", lambda self, snapshot, host: snapshot["verdict"])
    return lines


def looks(*states):
    verdicts = [{"state": state, "phase": phase, "summary": f"is {state}", "next": []} for state, phase in states]
    return [{"snapshot": {"verdict": verdict, "log": {"tail": ["boom"]}}} for verdict in verdicts]


def test_waits_until_it_serves(quiet):
    run, calls = make(wait_ready, looks(("starting", "imports"), ("starting", "imports"), ("serving", "serving")), {"interval": 0})
    result = run()
    assert quiet == ["gpu02 imports", "gpu02 serving"]
    assert result["verdict"]["state"] == "serving" and not result.get("failed") and not result["changed"]
    assert [call["depth"] for call in calls] == ["quick"] * 3 and calls[0]["window"] == 2 and calls[0]["port"] == 31002
    assert not {"timeout", "interval", "policy"} & set(calls[0])


def test_a_crash_ends_it_with_the_last_lines(quiet):
    run, calls = make(wait_ready, looks(("starting", "imports"), ("crashed", "imports"), ("crashed", "imports")))
    result = run()
    assert result["failed"] and result["msg"] == "is crashed" and result["log_tail"] == ["boom"]
    assert [call["depth"] for call in calls] == ["quick", "quick", "auto"]


def test_a_lost_connection_is_borne_a_few_times(quiet):
    lost = AnsibleConnectionFailure("gone")
    run, _calls = make(wait_ready, [lost, lost, *looks(("serving", "serving"))])
    assert run()["verdict"]["state"] == "serving"
    run, _calls = make(wait_ready, [lost, lost, lost])
    with pytest.raises(AnsibleActionFail, match=r"lost sight of the host.*gone"):
        run()


def test_the_limit_holds(quiet):
    run, _calls = make(wait_ready, looks(("starting", "imports")), {"timeout": 0})
    result = run()
    assert result["failed"] and result["msg"].startswith("not ready after 0 s")


def test_check_mode_does_not_wait(quiet):
    run, calls = make(wait_ready, [], check_mode=True)
    assert run()["skipped"] and calls == []


def test_a_limit_that_is_no_number_is_told(quiet):
    run, _calls = make(wait_ready, [], {"timeout": "soon"})
    with pytest.raises(AnsibleActionFail, match=r"timeout.*soon"):
        run()


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("gpufleet_policy", [1], "expected a dictionary, found [1]"),
        ("gpufleet_policy", {"nonsense": 1}, "nonsense"),
        ("gpufleet_signatures_extra", 5, "expected a list of files, found 5"),
        ("gpufleet_signatures_extra", ["/no/such.yml"], "/no/such.yml"),
        ("gpufleet_signatures_extra", "/no/such.yml", "/no/such.yml"),
    ],
)
def test_a_wrong_policy_or_signature_file_is_named(variable, value, told):
    run, calls = make(gather_diag, [], variables={**VARIABLES, variable: value})
    with pytest.raises(AnsibleActionFail) as error:
        run()
    assert variable in str(error.value) and told in str(error.value) and not calls
