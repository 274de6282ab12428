# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that somebody started by hand: found, refused, adopted as they run, healed, replaced.

gpu01 serves, gpu02 is the incident, gpu03 runs with a flag that nobody wants. gpu02 and gpu03 share a working directory, as two
servers started from one shell do. The tests of this file build on each other, in order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.inference.plugins.plugin_utils import deployment

SCENARIOS = {"gpu01": "healthy", "gpu02": "incident", "gpu03": "healthy"}
PLACES = {"gpu01": "gpu01/by-hand", "gpu02": "shell", "gpu03": "shell"}
TOKEN = "hf_thisisasecrettoken1"
ADOPT = ["-e", "sglang_runtime=existing"]


class ByHand:
    """The servers of the lab's hosts, started with nohup."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        self.python = lab.folder / "tools" / "bin" / "python"
        inventory = json.loads(lab.run(sys.executable, "inventories/lab/hosts.py").out)
        self.variables = inventory["_meta"]["hostvars"]
        self.model = inventory["sglang"]["vars"]["sglang_model_path"]
        self.existing = [*ADOPT, "-e", f"sglang_venv={lab.folder / 'tools'}"]
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, host: str, **flags: Any) -> None:
        variables = self.variables[host]
        wanted = deployment.build(
            {
                "profile": "flashinfer",
                "gpu_class": "sm120_pcie",
                "engine_version": "0.5.23",
                "python": str(self.python),
                "model_path": self.model,
                "port": variables["sglang_port"],
                "extra_flags": {name.replace("_", "-"): value for name, value in flags.items()},
                "extra_environment": variables["sglang_extra_environment"],
            }
        )
        place = self.lab.folder / PLACES[host]
        place.mkdir(exist_ok=True)
        environment = {**wanted["environment"], "PATH": "/usr/bin:/bin", "HOME": str(place), "HF_TOKEN": TOKEN}
        with (place / f"{host}.log").open("ab") as log:
            self.started[host] = subprocess.Popen(
                ["nohup", *wanted["command"]],
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def pid(self, host: str) -> int:
        return self.started[host].pid

    def runs(self, host: str) -> bool:
        return self.started[host].poll() is None

    def written(self, host: str) -> list[Path]:
        """What a deployment leaves on a host."""
        home = self.lab.folder / host
        return sorted(path for part in ("state", "conf.d", "home", "log") for path in (home / part).rglob("*"))


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[int], Any]) -> Any:
    lab = make_lab(3)
    for host, name in SCENARIOS.items():
        lab.scenario(host, name)
    return lab


@pytest.fixture(scope="module")
def by_hand(lab: Any) -> ByHand:
    servers = ByHand(lab)
    servers.start("gpu01")
    servers.start("gpu02")
    servers.start("gpu03", chunked_prefill_size=4096)
    deadline = time.monotonic() + 90
    while {host: result["verdict"]["state"] for host, result in lab.diagnose("-a", "record_visit=false").items()} != {
        "gpu01": "serving",
        "gpu02": "stuck",
        "gpu03": "serving",
    }:
        assert time.monotonic() < deadline, lab.diagnose()
    return servers


def test_a_host_that_was_never_deployed_is_diagnosed(lab: Any, by_hand: ByHand) -> None:
    for host, result in lab.diagnose("-a", json.dumps({"record_visit": False, "return_snapshot": True})).items():
        target = result["snapshot"]["target"]
        assert result["facts"]["main_pid"] == by_hand.pid(host)
        assert target["work_dir"] == str(lab.folder / PLACES[host]) and target["log_path"] == f"{target['work_dir']}/{host}.log"
        assert target["port"] == by_hand.variables[host]["sglang_port"] and TOKEN not in json.dumps(result)


def test_several_servers_are_named_and_none_is_picked(lab: Any, by_hand: ByHand) -> None:
    words = ["ansible", "gpu01", "-i", "inventories/lab", "-m", "gpufleet.inference.gather_diag", "-a", "record_visit=false"]
    done = lab.run(*words, "-e", json.dumps({"sglang_port": None, "sglang_work_dir": None}))
    told = " ".join(done.out[done.out.index("[WARNING]") :].split())
    assert all(f"process {by_hand.pid(host)} (port" in told for host in SCENARIOS) and "set sglang_port" in told, done.out
    assert '"state": "unknown"' in done.out and '"main_pid": null' in done.out, done.out
    told_by_place = json.dumps({"sglang_port": None, "sglang_work_dir": str(lab.folder / PLACES["gpu01"])})
    (result,) = lab.diagnose("-e", told_by_place, limit="gpu01").values()
    assert result["facts"]["main_pid"] == by_hand.pid("gpu01") and result["verdict"]["state"] == "serving"


def refused(by_hand: ByHand, host: str, *words: str) -> str:
    """A deployment that must end before anything is changed; returns what it said."""
    before = by_hand.written(host)
    done = by_hand.lab.playbook("deploy.yml", "--limit", host, *words)
    assert done.code == 2 and done.recap[host]["changed"] == 0, done.out
    assert by_hand.runs(host) and by_hand.written(host) == before
    out: str = done.out
    return out


def test_without_a_word_about_it_a_strangers_server_stops_the_deployment(by_hand: ByHand) -> None:
    out = refused(by_hand, "gpu01")
    assert f"process {by_hand.pid('gpu01')}" in out and "--attention-backend flashinfer" in out and "sglang_runtime: existing" in out


def test_another_configuration_is_refused_with_the_ways_out(by_hand: ByHand) -> None:
    out = refused(by_hand, "gpu01", *by_hand.existing, "-e", "sglang_profile=triton_nccl_tuned")
    assert "attention_backend: flashinfer -> triton" in out and "sglang_replace_running" in out
    assert '{"sglang_extra_flags": {"attention-backend": "flashinfer"}}' in out.replace("\\", "")


def test_another_engine_is_refused(by_hand: ByHand) -> None:
    out = refused(by_hand, "gpu01", *by_hand.existing, "-e", "sglang_version=0.5.22")
    assert "has sglang 0.5.23; wanted is sglang 0.5.22" in out
    out = refused(by_hand, "gpu01", *ADOPT, "-e", f"sglang_venv={Path(sys.executable).parents[1]}")
    assert "has no sglang" in out


def test_check_mode_adopts_nothing(by_hand: ByHand) -> None:
    before = by_hand.written("gpu01")
    done = by_hand.lab.playbook("deploy.yml", "--limit", "gpu01", *by_hand.existing, "--check")
    assert done.code == 0 and "adopted as it runs" in done.out, done.out
    assert by_hand.written("gpu01") == before


def test_adopted_as_it_runs(lab: Any, by_hand: ByHand) -> None:
    done = lab.playbook("deploy.yml", "--limit", "gpu01", *by_hand.existing)
    assert done.code == 0 and by_hand.runs("gpu01"), done.out
    assert lab.state("gpu01", "adoption")["pid"] == by_hand.pid("gpu01")
    assert lab.state("gpu01", "last_known_good")["command"] == lab.state("gpu01", "manifest")["command"]
    assert "without HF_TOKEN" in done.out and TOKEN not in done.out
    written = by_hand.written("gpu01")
    assert lab.folder / "gpu01" / "conf.d" / "sglang.conf" in written
    assert not any(TOKEN in path.read_text(errors="replace") for path in written if path.is_file())
    again = lab.playbook("deploy.yml", "--limit", "gpu01", *by_hand.existing)
    assert again.code == 0 and again.recap["gpu01"]["changed"] == 0 and by_hand.runs("gpu01"), again.out
    (result,) = lab.diagnose(limit="gpu01").values()
    assert result["facts"]["main_pid"] == by_hand.pid("gpu01") and result["facts"]["profile"] == "flashinfer"


def test_what_was_not_deployed_is_not_healed_but_told_how(lab: Any, by_hand: ByHand) -> None:
    lab.diagnose(limit="gpu02")
    time.sleep(5)  # remediation_confirm_seconds
    done = lab.playbook("remediate.yml", "-e", "remediation_mode=heal")
    row = lab.report()["by_host"]["gpu02"]
    assert done.code == 2 and row["state_before"] == "stuck" and "sglang_runtime=existing" in row["note"], done.out
    assert all(by_hand.runs(host) for host in SCENARIOS)


def test_a_stuck_server_is_adopted_and_then_healed(lab: Any, by_hand: ByHand) -> None:
    done = lab.playbook("deploy.yml", "--limit", "gpu02", *by_hand.existing)
    assert done.code == 2 and "stuck" in done.lines("gpu02") and "remediate.yml" in done.out, done.out
    assert by_hand.runs("gpu02") and lab.state("gpu02", "adoption")["pid"] == by_hand.pid("gpu02")
    assert not (lab.folder / "gpu02" / "state" / "last_known_good.json").exists()

    healed = lab.playbook("remediate.yml", "-e", "remediation_mode=heal")
    row = lab.report()["by_host"]["gpu02"]
    assert healed.code == 0 and (row["state_after"], row["profile"]) == ("serving", "triton_nccl_tuned"), healed.out
    assert not by_hand.runs("gpu02") and by_hand.runs("gpu01") and by_hand.runs("gpu03")
    assert lab.pids()["gpu02"], "it runs under its service manager, in its own directory"
    assert not (lab.folder / "gpu02" / "state" / "adoption.json").exists()
    again = lab.playbook("deploy.yml", "--limit", "gpu02", *by_hand.existing)
    assert again.code == 0 and again.recap["gpu02"]["changed"] == 0, again.out


def test_a_server_is_replaced_when_a_person_says_so(lab: Any, by_hand: ByHand) -> None:
    others = lab.pids()["gpu02"]
    assert "chunked_prefill_size: 4096 -> not set" in refused(by_hand, "gpu03", *by_hand.existing)
    done = lab.playbook("deploy.yml", "--limit", "gpu03", *by_hand.existing, "-e", "sglang_replace_running=true")
    assert done.code == 0 and not by_hand.runs("gpu03") and lab.pids()["gpu03"], done.out
    assert not list((lab.folder / "gpu03" / "home").glob("sglang-*")), "an existing installation is used, none is made"
    assert by_hand.runs("gpu01") and lab.pids()["gpu02"] == others


def test_an_adopted_server_that_crashes_comes_back_under_the_service_manager(lab: Any, by_hand: ByHand) -> None:
    os.kill(by_hand.pid("gpu01"), 9)
    by_hand.started["gpu01"].wait()
    (result,) = lab.diagnose(limit="gpu01").values()
    assert result["verdict"]["state"] == "crashed" and result["facts"]["service"] == "failed"
    done = lab.playbook("remediate.yml", "-e", "remediation_mode=heal", "-e", "remediation_breaker_percent=70")
    assert done.code == 0 and lab.report()["by_host"]["gpu01"]["state_after"] == "serving", done.out
    assert lab.pids()["gpu01"] and not (lab.folder / "gpu01" / "state" / "adoption.json").exists()
