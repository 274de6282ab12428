# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's actions as Ansible calls them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.gpufleet.inference.plugins.action import deployment_info, fleet_plan, fleet_report
from ansible_collections.gpufleet.inference.plugins.plugin_utils import deployment


def run(plugin, args, variables=None, check=False):
    """Runs an action plugin without a connection."""
    task = SimpleNamespace(args=args, check_mode=check, diff=False, async_val=0, action="x", environment=[], delegate_to=None)
    action = plugin.ActionModule(task, SimpleNamespace(_shell=SimpleNamespace(tmpdir=None)), None, None, None, None)
    return action.run(task_vars=variables or {})


def diag(state, **verdict):
    built = deployment.build({"profile": "flashinfer", "model_path": "/m"})
    return {
        "verdict": {"state": state, "action": "none", "phase": "serving", "proof": "engine", **verdict},
        "records": {"manifest": {**built, "engine_version": "0.5.23"}},
        "gates": {"processes": True, "kernel": True, "gpus": True},
        "target": {},
    }


@pytest.fixture
def variables():
    hosts = {
        "gpu01": {"diag": diag("serving")},
        "gpu02": {"diag": diag("stuck", action="reconfigure"), "sglang_ladder": ["safe"]},
        "gpu03": {"diag": {"unreachable": True, "msg": "timed out"}},
        "gpu04": {"diag": diag("serving")},
    }
    return {"hostvars": hosts, "groups": {"sglang": list(hosts)}}


def test_plan_reads_each_hosts_result_and_ladder(variables):
    result = run(fleet_plan, {"results_var": "diag", "hosts": list(variables["hostvars"]), "mode": "heal"}, variables)
    assert not result["changed"]
    decisions = {name: d["decision"] for name, d in result["plan"]["hosts"].items()}
    assert decisions == {"gpu01": "none", "gpu02": "act", "gpu03": "unreachable", "gpu04": "none"}
    assert result["plan"]["hosts"]["gpu02"]["profile_to"] == "safe"


@pytest.mark.parametrize(("args", "check"), [({}, False), ({"mode": "heal"}, True)])
def test_plan_observes_by_default_and_in_check_mode(variables, args, check):
    result = run(fleet_plan, {"results_var": "diag", "hosts": list(variables["hostvars"]), **args}, variables, check)
    assert result["plan"]["hosts"]["gpu02"]["decision"] == "would_act"


def test_plan_refuses_a_part_of_the_group(variables):
    args = {"results_var": "diag", "hosts": ["gpu02"], "mode": "heal"}
    plan = run(fleet_plan, args, variables)["plan"]
    assert plan["hosts"]["gpu02"]["decision"] == "refused"
    assert "3 hosts of group sglang are left out, among them gpu01, gpu03, gpu04" in plan["fleet"]["reasons"][0]
    assert run(fleet_plan, {**args, "fleet_size": 4}, variables)["plan"]["hosts"]["gpu02"]["decision"] == "act"


def test_plan_takes_a_host_without_result_as_unreachable(variables):
    del variables["hostvars"]["gpu03"]["diag"]
    plan = run(fleet_plan, {"results_var": "diag", "hosts": ["gpu01", "gpu03", "gone"]}, variables)["plan"]
    assert [plan["hosts"][name]["decision"] for name in ("gpu03", "gone")] == ["unreachable", "unreachable"]


def test_plan_fails_for_a_policy_without_sense(variables):
    result = run(fleet_plan, {"results_var": "diag", "hosts": [], "cooldown": -1}, variables)
    assert result["failed"]
    assert result["msg"] == "fleet_plan: cooldown: expected 0 or more, found -1.0"


@pytest.mark.parametrize("check", [False, True])
def test_report_is_written_with_its_copies(tmp_path, check):
    target = tmp_path / "new" / "reports"
    args = {"rows": [{"host": "gpu02", "action": "restart"}], "dir": str(target), "title": "T", "mode": "heal"}
    first, second = run(fleet_report, args, check=check), run(fleet_report, args, check=check)
    assert first["changed"]
    assert first["rows"][0]["host"] == "gpu02"
    assert first["json_path"] != second["json_path"]
    assert len(list(target.iterdir())) == 6
    for suffix in ("json", "html"):
        assert (target / f"latest.{suffix}").read_text() == Path(second[f"{suffix}_path"]).read_text()


def test_report_says_where_it_can_not_write(tmp_path):
    (tmp_path / "file").write_text("")
    result = run(fleet_report, {"rows": [], "dir": str(tmp_path / "file" / "reports")})
    assert result["failed"]
    assert result["msg"].startswith(f"fleet_report: can not write the report into {tmp_path}/file/reports: ")


def test_report_says_which_row_is_wrong(tmp_path):
    result = run(fleet_report, {"rows": [{"action": "restart"}], "dir": str(tmp_path)})
    assert result["msg"].startswith("fleet_report: rows: expected a dictionary with host")
    assert not list(tmp_path.iterdir())


def test_deployment_is_worked_out_or_refused_in_one_sentence():
    settings = {"gpu_class": "sm120_pcie", "model_path": "/m"}
    assert run(deployment_info, {"settings": settings})["deployment"] == deployment.build(settings)
    refused = run(deployment_info, {"settings": {**settings, "profile": "fastest"}})
    assert refused["failed"]
    assert refused["msg"].startswith("unknown profile 'fastest'; known are cpu, flashinfer")
