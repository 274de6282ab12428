# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A healthy fleet stays untouched, under AWX too; a crash and a stubborn server; bad input.

The tests of this file build on each other, in order.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[int], Any]) -> Any:
    lab = make_lab(2)
    lab.bare = sorted(lab.folder.rglob("*"))
    lab.checked = lab.playbook("deploy.yml", "--check")
    lab.after_check = sorted(lab.folder.rglob("*"))
    lab.deployed = lab.playbook("deploy.yml")
    return lab


def unchanged(lab: Any, *words: str, code: int = 0) -> str:
    """Run a playbook that must neither change nor restart anything; returns what it printed."""
    before = lab.pids()
    done = lab.playbook(*words)
    assert done.code == code, done.out
    assert {counts["changed"] for counts in done.recap.values()} <= {0}, done.out
    assert lab.pids() == before
    out: str = done.out
    return out


def test_check_mode_on_bare_hosts_writes_nothing(lab: Any) -> None:
    assert lab.checked.code == 0, lab.checked.out
    assert lab.after_check == lab.bare


def test_deploy_from_bare(lab: Any) -> None:
    assert lab.deployed.code == 0, lab.deployed.out
    for host in lab.names:
        assert lab.state(host, "last_known_good")["profile"] == "flashinfer"
    assert {result["verdict"]["state"] for result in lab.diagnose().values()} == {"serving"}


def test_second_deploy_changes_nothing(lab: Any) -> None:
    unchanged(lab, "deploy.yml")


@pytest.mark.parametrize("playbook", ["deploy.yml", "remediate.yml", "gather_diag.yml"])
def test_check_mode_on_a_deployed_fleet(lab: Any, playbook: str, tmp_path: Path) -> None:
    unchanged(lab, playbook, "--check", "-e", f"gather_diag_dir={tmp_path}")


def test_remediate_with_nothing_wrong_changes_nothing(lab: Any) -> None:
    unchanged(lab, "remediate.yml", "-e", "remediation_mode=heal")


@pytest.mark.parametrize("playbook", ["deploy.yml", "remediate.yml"])
def test_as_awx_runs_it(lab: Any, shared: Path, playbook: str) -> None:
    before = lab.pids()
    done = lab.run(sys.executable, shared / "tools" / "awxlike.py", ROOT, playbook, "inventories/lab")
    assert done.code == 0, done.out
    document, _end = json.JSONDecoder().raw_decode(done.out[done.out.index("{") :])
    assert document["rc"] == 0 and document["status"] == "successful", done.out
    if playbook == "remediate.yml":
        assert document["artifact_data"]["remediation_counts"]["hosts"] == len(lab.names)
    assert lab.pids() == before


BAD = {
    "unknown profile": (["deploy.yml", "-e", "sglang_profile=fastest"], ["fastest", "triton_nccl_tuned"]),
    "flag the engine does not know": (
        ["deploy.yml", "-e", '{"sglang_extra_flags": {"enable-ep-moe": true}}'],
        ["--enable-ep-moe", "0.5.23"],
    ),
    "taken port": (["deploy.yml", "-e", "sglang_port={port}"], ["{port}"]),
    "engine below the floor": (["deploy.yml", "-e", "sglang_version=0.5.8"], ["0.5.8", "0.5.9"]),
    "missing shard": (["deploy.yml", "-e", "sglang_model_path={model}"], ["model-00007-of-"]),
    "no such model": (["deploy.yml", "-e", "sglang_model_path=/no/such/model"], ["/no/such/model"]),
    "service manager that is not there": (
        ["deploy.yml", "-e", "sglang_supervisor_conf=/no/such/supervisord.conf"],
        ["sglang_service_manager", "/no/such/supervisord.conf"],
    ),
    "service name that is no file name": (["deploy.yml", "-e", "sglang_service_name=a/b"], ["sglang_service_name", "a/b"]),
    "mode that does not exist": (["remediate.yml", "-e", "remediation_mode=fix"], ["fix", "observe", "heal"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(lab: Any, name: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    if name == "missing shard":
        shutil.copytree(lab.folder / "models" / "kimi-k2.5", model, copy_function=lambda a, b: Path(b).hardlink_to(a))
        next(model.glob("model-00007-of-*.safetensors")).unlink()
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        values = {"port": str(stranger.getsockname()[1]), "model": str(model)}
        words, told = BAD[name]
        words = [word.replace("{port}", values["port"]).replace("{model}", values["model"]) for word in words]
        out = unchanged(lab, *words, code=2)
    for word in told:
        assert word.format(**values) in out, out


def test_inventory_without_the_group(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {gpu01: {ansible_connection: local}}}\n")
    for playbook in ("deploy.yml", "remediate.yml", "gather_diag.yml"):
        done = lab.run("ansible-playbook", playbook, "-i", tmp_path / "hosts.yml")
        assert done.code != 0 and "group sglang" in done.out, done.out


def test_unknown_key_in_observed(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "observed.yml").write_text("{engine: sglang, moon_phase: full}\n")
    done = lab.run("ansible", "localhost", "-m", "gpufleet.inference.analyze_bundle", "-a", json.dumps({"paths": [str(tmp_path)]}))
    (result,) = json.loads(done.out[done.out.index("{") :])["results"]
    assert "observed.yml" in result["error"] and "moon_phase" in result["error"] and "engine_version" in result["error"]


def test_crash_is_named_and_healed(lab: Any) -> None:
    lab.scenario("gpu01", "oom")
    done = lab.playbook("deploy.yml", "--limit", "gpu01", "-e", '{"sglang_extra_flags": {"log-level-http": "warning"}}')
    assert done.code == 2, done.out
    verdict = lab.diagnose(limit="gpu01")["gpu01"]["verdict"]
    assert (verdict["state"], verdict["cause"]) == ("crashed", "gpu_oom")


def test_stubborn_server_is_ended_by_identity_and_a_heal_killed_half_way_is_finished(lab: Any) -> None:
    lab.scenario("gpu01", "stubborn")
    lab.playbook("deploy.yml", "--limit", "gpu01", "-e", '{"sglang_extra_flags": {"log-level-http": "error"}}')
    stubborn = lab.pids()
    assert stubborn["gpu01"]
    verdict = lab.diagnose(limit="gpu01")["gpu01"]["verdict"]
    assert verdict["state"] == "stuck", verdict
    heal = ["remediate.yml", "-e", "remediation_mode=heal", "-e", "remediation_cooldown=0"]
    with lab.start(*heal) as running:
        while lab.pids()["gpu01"] and running.poll() is None:
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGKILL)
    assert lab.state("gpu01", "attempts")["attempts"][-1]["result"] == "running", "killed between stop and start"

    lab.scenario("gpu01", "healthy")
    assert "rail lease: held by" in unchanged(lab, *heal)
    lab.release("gpu01", lab.state("gpu01", "lease")["owner"])
    done = lab.playbook(*heal)
    after = lab.pids()
    assert not set(stubborn["gpu01"]) & set(after["gpu01"]), done.out
    assert after["gpu02"] == stubborn["gpu02"]
    assert lab.report()["by_host"]["gpu01"]["state_after"] == "serving", done.out
    assert [row["result"] for row in lab.state("gpu01", "attempts")["attempts"][-2:]] == ["failed", "cured"]
