# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from pathlib import Path

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _gpus, _identity, _kernel, _records, _snapshot
from ansible_collections.gpufleet.inference.plugins.modules import gather_diag

SOURCES = ("records", "service", "target", "processes", "port", "http", "log", "kernel", "gpus", "syscalls", "system", "host")
GPU = "{0}, GPU-{0}, 00000000:0{0}:00.0, NVIDIA RTX PRO 6000 Blackwell Server Edition, 580.95.05, 12.0, 74000, 97887, 0, 88, 600, None"


@pytest.fixture
def diagnose(run_module, tmp_path, nvidia_smi, monkeypatch):
    # Other servers of the machine that this runs on are no part of these tests.
    monkeypatch.setattr(_identity, "launchers", lambda _timeout: {"servers": {}, "reason": None})
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


def test_a_server_that_answers_nothing_does_not_cost_its_log(serve, tmp_path):
    """Seen on the real engine without its detokenizer: the probes took all the time, and the log that told everything was lost."""
    log = tmp_path / "server.log"
    log.write_text(time.strftime("[%Y-%m-%d %H:%M:%S] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"))
    door = serve(
        {path: lambda handler: time.sleep(30) for path in ("/metrics", "/v1/models", "/v1/chat/completions", "/health", "/server_info")}
    )
    params = {name: spec.get("default") for name, spec in gather_diag.argument_spec().items()}
    patterns = {"log": [{"name": "sigquit", "regex": "SIGQUIT received"}], "kernel": []}
    params.update(port=door.server_port, state_dir="/nonexistent", window=0.2, deadline=17.0, generate_timeout=1.0, depth="quick")
    params.update(log_path=str(log), patterns=patterns, kernel_log_path=str(log))
    collector = _snapshot.Snapshot(params)
    collector._find = lambda identity, before: {"main": os.getpid(), "members": {os.getpid(): _member()}, "blocked": [], "reason": None}
    seen = collector.collect()
    assert seen["http"]["generate"]["result"] == "timeout" and seen["http"]["health"]["result"] == "timeout"
    assert seen["log"]["status"] == "ok" and seen["log"]["hits"]["sigquit"]["count"] == 1


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
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    seen = diagnose(nvidia_smi="nvidia-smi", service_manager="systemd", service_name="sglang")["snapshot"]
    assert seen["gpus"]["status"] == "absent" and seen["service"]["status"] == "unavailable"


def test_options_of_the_action_are_refused(diagnose):
    result = diagnose(return_snapshot=True)
    assert result["failed"] and "return_snapshot" in result["msg"]


@pytest.mark.parametrize("value", [None, 5, "x", [1], {"a": [1]}, True, [[]], 1e400])
def test_records_of_any_content_still_give_a_snapshot(diagnose, tmp_path, warned, value):
    (tmp_path / "state").mkdir()
    names = ("command", "environment", "port", "log_path", "work_dir", "host", "service_manager", "service_name", "profile", "ladder")
    contents = {
        "manifest": dict.fromkeys(names, value),
        "visits": {"visits": [{"at": value, "count": value, "rchar": value, "main_pid": value}, value] * 3},
        "marks": value,
        "lease": {"expires": value},
    }
    for name, content in contents.items():
        (tmp_path / f"state/{name}.json").write_text(json.dumps(content))
    for _look in range(2):
        result = diagnose(depth="quick")
        assert set(SOURCES) <= set(result["snapshot"]) and warned == []
    assert json.loads((tmp_path / "state/visits.json").read_text())["visits"][-1]["at"] > 0


def test_records_that_can_not_be_read_in_time_are_not_absent(diagnose, tmp_path, monkeypatch):
    monkeypatch.setattr(_records, "read_all", lambda _directory: time.sleep(60))
    seen = diagnose(depth="quick", deadline=6)["snapshot"]["records"]
    assert seen["status"] == "unavailable" and all("no answer" in seen[name]["error"] for name in _records.NAMES)


def test_a_state_directory_that_hangs_costs_only_the_record(diagnose, monkeypatch, warned):
    monkeypatch.setattr(_records, "update", lambda *_arguments, **_options: time.sleep(60))
    began = time.monotonic()
    assert "snapshot" in diagnose(depth="quick", deadline=6)
    assert "the visit is not recorded" in warned[0] and time.monotonic() - began < 12


def test_a_full_state_directory_costs_only_the_record(diagnose, monkeypatch, warned):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_records, "_write", full)
    assert "snapshot" in diagnose(depth="quick") and "No space left" in warned[0]


@pytest.mark.parametrize("name", ["log", "kernel"])
def test_lines_that_nobody_read_to_the_end_prove_nothing(diagnose, tmp_path, name):
    path = tmp_path / "lines"
    path.write_text("a" * 60 + "!\n")
    option = {"log": "log_path", "kernel": "kernel_log_path"}[name]
    patterns = {name: [{"name": "bad", "regex": "^(a|aa)+$"}]}
    seen = diagnose(depth="quick", deadline=6, patterns=patterns, **{option: str(path)})["snapshot"][name]
    assert seen["status"] == "unavailable" and "no answer" in seen["reason"] and seen["hits"] == {}


def test_the_log_is_read_where_the_server_writes_it(diagnose, tmp_path, start_server):
    log = tmp_path / "server.log"
    with open(log, "wb") as output:
        server = start_server(output=output)
    options = {"service_manager": "existing", "port": server.port, "work_dir": server.work_dir, "log_path": str(log), "depth": "quick"}
    for change in (lambda: os.rename(log, f"{log}.1"), lambda: os.unlink(f"{log}.1")):
        change()
        log.write_text("")
        seen = diagnose(**options)["snapshot"]["log"]
        assert seen["last_line"] == "up" and seen["status"] == "ok"


def test_who_holds_gpu_memory_is_unknown_without_an_answer(diagnose, nvidia_smi):
    tool = nvidia_smi([GPU.format(0)], prelude='case "$1" in *apps*) exit 9;; esac')
    assert diagnose(depth="quick", nvidia_smi=tool)["snapshot"]["gpus"]["devices"][0]["processes"] is None


def test_the_deadline_holds_when_everything_is_slow_at_once(diagnose, serve, nvidia_smi, tmp_path):
    deadline = 5
    for name in ("manifest", "visits", "attempts"):
        tmp_path.joinpath("state").mkdir(exist_ok=True)
        os.mkfifo(tmp_path / f"state/{name}.json")
    socket_path, conf = tmp_path / "s.sock", tmp_path / "supervisord.conf"
    conf.write_text(f"[unix_http_server]\nfile={socket_path}\n")
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(socket_path))
    silent.listen(5)
    door = serve(
        {path: lambda handler: time.sleep(30) for path in ("/metrics", "/v1/models", "/v1/chat/completions", "/health", "/server_info")}
    )
    tool = nvidia_smi([GPU.format(0)], prelude="trap '' TERM; sleep 1.5")
    began = time.monotonic()
    result = diagnose(
        deadline=deadline, window=5, port=door.server_port, service_manager="supervisor", service_name="x", supervisor_conf=str(conf),
        nvidia_smi=tool, work_dir=str(tmp_path), log_path="/dev/zero", kernel_log_path="/dev/zero", depth="deep", bundle=True,
    )  # fmt: skip
    silent.close()
    assert set(SOURCES) <= set(result["snapshot"])
    assert time.monotonic() - began < deadline + 1
