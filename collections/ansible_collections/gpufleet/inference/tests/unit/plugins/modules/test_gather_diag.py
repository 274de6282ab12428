# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _gpus, _kernel, _snapshot
from ansible_collections.gpufleet.inference.plugins.modules import gather_diag

SOURCES = ("records", "service", "target", "processes", "port", "http", "log", "kernel", "gpus", "syscalls", "system", "host")
GPU = "{0}, GPU-{0}, 00000000:0{0}:00.0, NVIDIA RTX PRO 6000 Blackwell Server Edition, 580.95.05, 12.0, 74000, 97887, 0, 88, 600, None"


@pytest.fixture
def diagnose(run_module, tmp_path, nvidia_smi):
    kernel = tmp_path / "kernel.log"
    kernel.write_text("[ 5.0] NVRM: Xid (PCI:0000:01:00): 79\n")
    tool = nvidia_smi([GPU.format(0), GPU.format(1)])

    def run(check=False, **options):
        patterns = {"log": [{"name": "begin", "regex": "Load weight begin"}], "kernel": [{"name": "xid", "regex": "Xid"}]}
        defaults = {
            "window": 0.3,
            "state_dir": str(tmp_path / "state"),
            "nvidia_smi": tool,
            "kernel_log_path": str(kernel),
            "patterns": patterns,
        }
        return run_module(gather_diag, check, **{**defaults, **options})

    return run


def test_a_hung_start(diagnose, start_server, tmp_path):
    server = start_server()
    log = tmp_path / "server.log"
    log.write_text(
        time.strftime("[%Y-%m-%d %H:%M:%S TP0] Load weight begin. key topsecret1\n") + "\rshards: 100% Completed | 64/64 [00:07<00:00]"
    )
    result = diagnose(service_manager="existing", port=server.port, work_dir=server.work_dir, log_path=str(log), bundle=True)
    seen = result["snapshot"]
    assert result["changed"] is False and seen["schema"] == 1 and seen["depth"] == "deep"
    assert all({"status", "reason", "seconds"} <= set(seen[name]) for name in SOURCES)
    assert seen["port"]["listening"] is False and seen["http"]["generate"]["result"] == "refused"
    assert seen["processes"]["schedulers"] == 2 and seen["processes"]["main"]["pid"] == server.pid
    assert seen["gpus"]["count"] == 2 and seen["target"]["gpu_class"] == "sm120_pcie"
    assert seen["log"]["hits"]["begin"]["count"] == 1 and seen["log"]["bar"]["done"] == 64
    assert seen["kernel"]["hits"]["xid"]["count"] == 1
    assert seen["syscalls"]["pid"] in server.pids() and seen["syscalls"]["rank"] == 0
    assert "topsecret1" not in json.dumps(result)
    files = {path.name: path.read_text() for path in Path(result["bundle"]).iterdir()}
    assert {"snapshot.json", "server.log", "kernel.log", "nvidia-smi.txt"} <= set(files)
    assert oct(os.stat(result["bundle"]).st_mode)[-3:] == "700"
    assert not any("topsecret1" in content for content in files.values())


def test_visits_are_recorded_but_not_in_check_mode(diagnose, tmp_path):
    diagnose(check=True, bundle=True)
    assert not (tmp_path / "state").exists()
    for _number in range(3):
        diagnose()
    visits = json.loads((tmp_path / "state/visits.json").read_text())["visits"]
    assert [visit["count"] for visit in visits] == [1, 2]


def test_a_serving_host_is_not_traced(serve):
    answer = {"choices": [{"message": {"content": "hello"}}], "usage": {"completion_tokens": 4, "prompt_tokens": 3}}
    door = serve({"/v1/chat/completions": (200, answer), "/v1/models": (200, {"data": [{"id": "kimi"}]})})
    options = gather_diag.argument_spec()
    params = {name: spec.get("default") for name, spec in options.items()}
    params.update(port=door.server_port, state_dir="/nonexistent", window=0.2)
    collector = _snapshot.Snapshot(params)
    # The test's own process holds the port: let it be the server.
    collector._find = lambda identity, before: {"main": os.getpid(), "members": {os.getpid(): _member()}, "blocked": [], "reason": None}
    seen = collector.collect()
    assert seen["http"]["generate"]["result"] == "ok" and seen["depth"] == "quick" and seen["port"]["ours"] is True
    assert "/health" not in [path for _verb, path, _body, _at in door.seen]


def _member():
    from ansible_collections.gpufleet.inference.plugins.module_utils import _proc

    return {"arguments": ["python", "-m", "sglang.launch_server"], "orphan": False, "start": _proc.stat(os.getpid()).start}


def test_a_strangers_port_is_not_asked(diagnose, serve, tmp_path):
    door = serve({})
    seen = diagnose(port=door.server_port, work_dir=str(tmp_path), service_manager="existing")["snapshot"]
    assert seen["port"]["ours"] is False and seen["http"]["generate"]["result"] == "skipped" and door.seen == []


def test_the_manifest_fills_the_gaps(diagnose, tmp_path, start_server):
    server = start_server()
    (tmp_path / "state").mkdir()
    manifest = {
        "port": server.port,
        "work_dir": server.work_dir,
        "service_manager": "existing",
        "profile": "safe",
        "engine_version": "0.5.23",
    }
    (tmp_path / "state/manifest.json").write_text(json.dumps(manifest))
    target = diagnose(depth="quick")["snapshot"]["target"]
    assert (target["port"], target["profile"], target["engine_version"]) == (server.port, "safe", "0.5.23")


def test_one_broken_collector_costs_only_itself(diagnose, monkeypatch):
    def broken(*_arguments, **_options):
        raise RuntimeError("boom")

    monkeypatch.setattr(_gpus, "sample", broken)
    monkeypatch.setattr(_kernel, "collect", broken)
    seen = diagnose()["snapshot"]
    assert (seen["gpus"]["status"], seen["kernel"]["status"]) == ("unavailable", "unavailable")
    assert "boom" in seen["gpus"]["reason"] and "boom" in seen["kernel"]["reason"] and seen["system"]["status"] == "ok"


def test_the_deadline_holds_and_the_source_is_named(diagnose, nvidia_smi, tmp_path):
    slow = nvidia_smi([], prelude="trap '' TERM; while :; do sleep 1; done")
    os.mkfifo(tmp_path / "fifo")
    began = time.monotonic()
    seen = diagnose(nvidia_smi=slow, deadline=6, log_path=str(tmp_path / "fifo"))["snapshot"]
    assert time.monotonic() - began < 6.5
    assert seen["gpus"]["status"] == "unavailable" and "no answer" in seen["gpus"]["reason"]
    assert "not a regular file" in seen["log"]["reason"]


def test_without_any_tool_there_is_still_a_snapshot(diagnose, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    seen = diagnose(nvidia_smi="nvidia-smi", service_manager="systemd", service_name="sglang")["snapshot"]
    assert seen["gpus"]["status"] == "absent" and seen["service"]["status"] == "unavailable"


def test_options_of_the_action_are_refused(diagnose):
    result = diagnose(return_snapshot=True)
    assert result["failed"] and "return_snapshot" in result["msg"]
