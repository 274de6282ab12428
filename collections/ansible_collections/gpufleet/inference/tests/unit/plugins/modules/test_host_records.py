# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpufleet.inference.plugins.modules import host_lease, host_record


@pytest.fixture
def run(tmp_path, capsys):
    def call(module, _ansible_check_mode=False, **args):
        with patch_module_args({"state_dir": str(tmp_path), "_ansible_check_mode": _ansible_check_mode, **args}), pytest.raises(SystemExit):
            module.main()
        return json.loads(capsys.readouterr().out)

    return call


def test_present_ignores_times_and_measurements(run, tmp_path):
    manifest = {"profile": "safe", "port": 1}
    first = run(host_record, name="last_known_good", content={**manifest, "gate": {"seconds": 1}})
    assert first["changed"] and first["record"]["written_at"] > 0
    assert not run(host_record, name="last_known_good", content={**manifest, "gate": {"seconds": 2}})["changed"]
    assert run(host_record, name="last_known_good", content={**manifest, "port": 2})["changed"]


def test_check_mode_shows_the_difference_and_writes_nothing(run, tmp_path):
    result = run(host_record, name="manifest", content={"port": 1}, _ansible_check_mode=True)
    assert result["changed"] and result["diff"]["before"] == "" and '"port": 1' in result["diff"]["after"]
    assert list(tmp_path.iterdir()) == []


def test_attempts_are_appended_and_completed_by_id(run):
    run(host_record, name="attempts", state="appended", content={"id": "x", "result": "running"})
    done = run(host_record, name="attempts", state="appended", content={"id": "x", "result": "cured"})
    (attempt,) = done["record"]["attempts"]
    assert attempt["result"] == "cured" and attempt["at"] > 0
    assert not run(host_record, name="attempts", state="appended", content={"id": "x", "result": "cured"})["changed"]
    more = run(host_record, name="attempts", state="appended", content={"id": "y", "result": "running"})
    assert [entry["id"] for entry in more["record"]["attempts"]] == ["x", "y"]


def test_marks_are_lifted_by_their_owner_only(run):
    for owner in ("alice", "gpufleet"):
        run(host_record, name="marks", state="appended", content={"kind": "quarantine", "owner": owner}, ttl=60)
    lifted = run(host_record, name="marks", state="absent", content={"kind": "quarantine", "owner": "gpufleet"})
    assert lifted["changed"] and [mark["owner"] for mark in lifted["record"]["marks"]] == ["alice"]
    (mark,) = lifted["record"]["marks"]
    assert mark["expires"] == pytest.approx(mark["since"] + 60)
    assert not run(host_record, name="marks", state="absent", content={"kind": "quarantine", "owner": "gpufleet"})["changed"]


def test_absent_without_content_removes(run, tmp_path):
    assert not run(host_record, name="fallback", state="absent")["changed"]
    run(host_record, name="fallback", content={"profile": "safe"})
    assert run(host_record, name="fallback", state="absent")["record"] is None
    assert not (tmp_path / "fallback.json").exists()


def test_a_corrupt_history_is_an_error_but_a_corrupt_manifest_is_replaced(run, tmp_path):
    for name in ("attempts", "manifest"):
        (tmp_path / f"{name}.json").write_text("{")
    assert "attempts.json" in run(host_record, name="attempts", state="appended", content={"id": "x"})["msg"]
    assert run(host_record, name="manifest", content={"port": 1})["changed"]


def test_appended_needs_a_list(run):
    assert "needs a record with a list" in run(host_record, name="manifest", state="appended", content={})["msg"]


def test_lease_is_refused_naming_the_holder(run, tmp_path):
    assert run(host_lease, owner="a", purpose="deploy")["changed"]
    assert not run(host_lease, owner="a", purpose="deploy")["changed"]
    refused = run(host_lease, owner="b")
    assert refused["failed"] and "held by a for deploy" in refused["msg"] and refused["holder"]["owner"] == "a"
    assert run(host_lease, owner="b", _ansible_check_mode=True)["failed"]
    assert not run(host_lease, owner="b", state="absent")["changed"]
    assert run(host_lease, owner="a", state="absent", _ansible_check_mode=True)["changed"] and (tmp_path / "lease.json").exists()
    assert run(host_lease, owner="a", state="absent")["changed"] and not (tmp_path / "lease.json").exists()
