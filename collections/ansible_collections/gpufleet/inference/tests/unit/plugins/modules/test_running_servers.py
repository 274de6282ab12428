# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _identity, _launch, _proc, _records, _service, _target
from ansible_collections.gpufleet.inference.plugins.modules import gather_diag, running_server_info, server_stop

SECRET = "topsecret1"  # on the command line of every server of these tests


def adoption(server, **changes):
    """The record of an adopted server."""
    record = {
        "pid": server.pid,
        "start": _proc.stat(server.pid).start,
        "boot_id": _proc.boot_id(),
        "work_dir": server.work_dir,
        "log_path": None,
        "since": 2000.0,
    }
    return {**record, **changes}


@pytest.fixture
def info(run_module, tmp_path):
    def run(**options):
        return run_module(running_server_info, state_dir=str(tmp_path / "state"), **options)

    return run


# ---- who runs


def test_every_launcher_is_found_once(start_server, tmp_path):
    ours, other = start_server(), start_server()
    wrapper = """
import subprocess, sys, time
program = [sys.executable, "-c", "import time; time.sleep(99)"]
children = [subprocess.Popen([*program, *sys.argv[1:], *more]) for more in ([], ["x"])]
print("up", flush=True); time.sleep(99)
"""
    argv = [sys.executable, "-c", wrapper, "-m", "sglang.launch_server", "--port", "1"]
    started = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=tmp_path, start_new_session=True)
    try:
        assert started.stdout.readline() == b"up\n"
        below = _identity.descendants(started.pid, {pid: stat.ppid for pid in _proc.pids() if (stat := _proc.stat(pid))})
        found = _identity.launchers()["servers"]
    finally:
        os.killpg(started.pid, 9)
        started.wait()
        started.stdout.close()
    assert {ours.pid, other.pid} <= set(found) and found[ours.pid]["port"] == ours.port
    assert found[ours.pid]["work_dir"] == ours.work_dir and found[ours.pid]["start"] == _proc.stat(ours.pid).start
    assert started.pid not in found and set(below) <= set(found), "what a wrapper such as conda run started is the server"


def test_a_launcher_whose_command_line_blocks_is_named(start_server, monkeypatch):
    ours, other = start_server(), start_server()
    read = _proc.cmdline

    def cmdline(pid, proc="/proc"):
        while pid == other.pid:
            os.read(os.pipe()[0], 1)
        return read(pid, proc)

    monkeypatch.setattr(_proc, "cmdline", cmdline)
    found = _identity.launchers(timeout=1.0)
    assert ours.pid in found["servers"] and other.pid not in found["servers"] and str(other.pid) in found["reason"]


def test_how_a_server_was_started(info, start_server, tmp_path):
    with (tmp_path / "server.log").open("w") as log:
        server = start_server(output=log)
    result = info(port=server.port, venv=os.path.dirname(os.path.dirname(sys.executable)) + "/./")
    seen = result["server"]
    assert result["servers"] == [seen] and result["reason"] is None and result["changed"] is False
    assert (seen["pid"], seen["start"], seen["port"]) == (server.pid, _proc.stat(server.pid).start, server.port)
    assert (seen["owner"], seen["kept_by"], seen["container"], seen["work_dir"]) == (None, None, False, server.work_dir)
    assert seen["log_path"] == str(tmp_path / "server.log") and seen["boot_id"] == _proc.boot_id()
    assert seen["venv"].endswith("/./"), "spelled as it was asked for"
    assert list(seen["secrets"]["values"]) == ["--api-key"] and SECRET not in json.dumps(result)
    assert seen["command"][seen["command"].index("--api-key") + 1] == "<redacted>"


def test_only_variables_that_can_matter_and_no_secret(info, start_server, monkeypatch):
    for name, value in {"NCCL_PROTO": "LL", "HF_TOKEN": "hf_abcdefghijklmnop1", "SGLANG_API_KEY": "secret-too", "EDITOR": "vi"}.items():
        monkeypatch.setenv(name, value)
    server = start_server()
    result = info(port=server.port)
    environment = result["server"]["environment"]
    assert environment["NCCL_PROTO"] == "LL" and environment["HF_TOKEN"] == "<redacted>" and "EDITOR" not in environment
    assert {"HF_TOKEN", "SGLANG_API_KEY", "--api-key"} == set(result["server"]["secrets"]["values"])
    assert not any(text in json.dumps(result) for text in ("hf_abcdefghijklmnop1", "secret-too", SECRET))


def test_an_environment_that_can_not_be_read_is_not_an_empty_one(info, start_server, monkeypatch):
    monkeypatch.setattr(_proc, "environ", lambda pid, proc="/proc": {})
    assert info(port=start_server().port)["server"]["environment"] is None


def test_of_two_for_one_port_the_directory_tells(info, start_server):
    ours = start_server()
    other = start_server(port=ours.port)
    result = info(port=ours.port)
    assert result["server"] is None and all(f"process {server.pid} " in result["reason"] for server in (ours, other))
    assert info(port=ours.port, work_dir=other.work_dir)["server"]["pid"] == other.pid


def test_whose_it_is(info, start_server, tmp_path, monkeypatch):
    ours, other = start_server(), start_server()
    state = str(tmp_path / "state")
    assert info(port=ours.port)["server"]["owner"] is None
    command = _proc.cmdline(ours.pid)
    _records.update(state, "manifest", lambda _old: {"command": command, "work_dir": ours.work_dir, "port": ours.port})
    assert info(port=ours.port)["server"]["owner"] == "manifest"
    _records.update(state, "manifest", lambda _old: {"command": [*command, "--x"], "work_dir": ours.work_dir, "port": ours.port})
    assert info(port=ours.port)["server"]["owner"] is None, "somebody started another one in our directory"
    _records.update(state, "adoption", lambda _old: adoption(ours))
    assert info(port=ours.port)["server"]["owner"] == "adoption" and info(port=other.port)["server"]["owner"] is None
    collect = _service.collect
    monkeypatch.setattr(_service, "collect", lambda *_arguments: {**collect(None, None, None), "main_pid": ours.pid})
    assert info(port=ours.port)["server"]["owner"] == "service"


def test_who_would_start_it_again(start_server, monkeypatch):
    server = start_server()
    row = {**_identity.launchers()["servers"][server.pid]}
    monkeypatch.setattr(_launch, "_KEEPERS", frozenset([_proc.stat(os.getpid()).comm]))
    assert _launch.describe(server.pid, row, None, 5.0)["kept_by"] == f"{_proc.stat(os.getpid()).comm} (process {os.getpid()})"
    monkeypatch.undo()
    text = _proc.text
    monkeypatch.setattr(
        _proc, "text", lambda path, *rest: "0::/system.slice/old.service" if path.endswith("/cgroup") else text(path, *rest)
    )
    for main_pid, keeper in ((server.pid, "old.service"), (1, None)):
        monkeypatch.setattr(
            _bounded, "run", lambda _argv, _timeout, pid=main_pid: _bounded.Outcome("ok", 0, f"MainPID={pid}\n".encode(), 0.0)
        )
        assert _launch.describe(server.pid, row, None, 5.0)["kept_by"] == keeper, "what was left behind in a unit is not the unit's"


# ---- an adopted server


ABSENT = {"main_pid": None, "state": "absent", "desired": None}


def test_the_record_of_an_adoption_counts_until_somebody_else_is_in_charge(start_server):
    record = adoption(start_server())
    assert _target.adopted(record, ABSENT) == record
    assert _target.adopted(record, {**ABSENT, "started": 1999.0}) == record
    for service in ({**ABSENT, "main_pid": 7}, {**ABSENT, "started": 2001.0}):
        assert _target.adopted(record, service) is None
    for broken in (
        None,
        [],
        {**record, "boot_id": "another"},
        {**record, "pid": "x"},
        {**record, "work_dir": None},
        {"error": "unreadable"},
    ):
        assert _target.adopted(broken, ABSENT) is None


def test_it_counts_as_wanted_and_running_and_when_it_is_gone_as_failed(start_server):
    server = start_server()
    resolved = {"work_dir": "/configured", "log_path": "/configured.log", "port": server.port, "service_manager": "supervisor"}
    options, service = _target.with_adopted(resolved, ABSENT, adoption(server, log_path="/its.log"))
    assert (options["work_dir"], options["log_path"]) == (server.work_dir, "/its.log")
    assert (service["state"], service["desired"], service["adopted"]) == ("running", "running", True)
    found = _identity.find(_identity.Server(**_target.server(options, service)))
    assert found["main"] == server.pid and sorted(found["members"]) == sorted(server.pids())
    for gone in (adoption(server, start=1), adoption(server, pid=2**22 + 1)):
        options, service = _target.with_adopted(resolved, ABSENT, gone)
        assert (service["state"], service["desired"]) == ("failed", "running")
    assert _target.with_adopted(resolved, ABSENT, None) == (resolved, ABSENT)


def test_a_process_that_took_over_the_number_is_not_the_adopted_one(start_server):
    server, other = start_server(), start_server()
    options, service = _target.with_adopted({"port": server.port}, ABSENT, adoption(server, pid=other.pid, start=1))
    found = _identity.find(_identity.Server(**_target.server(options, service)))
    assert found["main"] == server.pid and not set(found["members"]) & set(other.pids())


def test_an_adopted_server_is_stopped_by_its_record_and_its_neighbour_in_the_directory_is_not(
    run_module, start_server, free_port, tmp_path
):
    ours = start_server()
    state = str(tmp_path / "state")
    neighbour = subprocess.Popen(
        [sys.executable, *_proc.cmdline(ours.pid)[1:5], str(free_port()), "tame", "0"], cwd=ours.work_dir, stdout=subprocess.PIPE
    )
    try:
        assert neighbour.stdout.readline() == b"up\n"
        manifest = {"command": ["x"], "work_dir": str(tmp_path), "port": ours.port, "service_manager": "supervisor"}
        _records.update(state, "manifest", lambda _old: manifest)
        _records.update(state, "adoption", lambda _old: adoption(ours))
        checked = run_module(server_stop, True, state_dir=state)
        assert checked["changed"] and _records.read(state, "adoption")
        result = run_module(server_stop, state_dir=state, term_timeout=5)
        assert [row["pid"] for row in result["signals"]] == [ours.pid] and result["survivors"] == []
        assert neighbour.poll() is None and len(ours.pids()) == 3
        assert _records.read(state, "adoption") is None, "stopped on purpose is not crashed"
        assert run_module(server_stop, state_dir=state)["changed"] is False
    finally:
        neighbour.terminate()
        neighbour.wait()
        neighbour.stdout.close()


# ---- a host where nothing was ever deployed


@pytest.fixture
def diagnose(run_module, tmp_path, nvidia_smi):
    defaults = {"window": 0.2, "state_dir": str(tmp_path / "state"), "nvidia_smi": nvidia_smi([]), "probe": "none", "depth": "quick"}

    def run(**options):
        return run_module(gather_diag, True, **{**defaults, "kernel_log_path": os.devnull, **options})

    return run


def test_a_server_started_by_hand_tells_what_nobody_told(diagnose, start_server, tmp_path):
    with (tmp_path / "server.log").open("w") as log:
        server = start_server(output=log)
    for options in (
        {"port": server.port},
        {"work_dir": server.work_dir},
        {"port": server.port, "work_dir": "/elsewhere", "log_path": "/none"},
    ):
        seen = diagnose(**options)["snapshot"]
        assert seen["processes"]["main"]["pid"] == server.pid
        target = {name: seen["target"][name] for name in ("port", "work_dir", "log_path", "service_manager")}
        assert target == {
            "port": server.port,
            "work_dir": server.work_dir,
            "log_path": str(tmp_path / "server.log"),
            "service_manager": "existing",
        }


def test_a_log_that_was_rotated_is_read_where_the_server_writes_it(diagnose, start_server, tmp_path):
    log = tmp_path / "server.log"
    with log.open("w") as output:
        server = start_server(output=output)
    log.rename(f"{log}.1")
    log.write_text("")
    assert diagnose(port=server.port, log_path=str(log))["snapshot"]["log"]["last_line"] == "up"


def test_of_several_none_is_picked(diagnose, start_server, warned):
    ours, other = start_server(), start_server()
    result = diagnose()
    seen = result["snapshot"]
    told = " ".join(warned)
    assert seen["processes"]["status"] == "unavailable" and seen["processes"]["main"] is None
    assert all(f"process {server.pid} (port {server.port}, in {server.work_dir})" in told for server in (ours, other))
    assert diagnose(port=other.port)["snapshot"]["processes"]["main"]["pid"] == other.pid


def test_a_process_table_that_can_not_be_read_is_no_empty_one(diagnose, monkeypatch, warned):
    monkeypatch.setattr(_identity, "launchers", lambda _timeout: {"servers": {}, "reason": "no answer within 3.0 s"})
    result = diagnose()
    assert result["snapshot"]["processes"]["status"] == "unavailable" and "no answer" in warned[0]


def test_a_host_with_a_manifest_looks_for_its_own_server_only(diagnose, start_server, tmp_path):
    stranger = start_server()
    manifest = {"command": ["x"], "work_dir": str(tmp_path), "port": stranger.port, "service_manager": "existing"}
    _records.update(str(tmp_path / "state"), "manifest", lambda _old: {**manifest, "service_manager": "supervisor"})
    assert diagnose()["snapshot"]["processes"]["main"] is None


@pytest.mark.parametrize(
    ("port", "work_dir", "expected"),
    [
        (None, None, None),
        (1, None, None),
        (2, None, 30),
        (1, "/b", 20),
        (None, "/a", None),
        (None, "/b", 20),
        (None, "/c", None),
        (9, "/a", None),
    ],
)
def test_choose(port, work_dir, expected):
    servers = {10: {"port": 1, "work_dir": "/a"}, 20: {"port": 1, "work_dir": "/b"}, 30: {"port": 2, "work_dir": "/a"}}
    pid, reason = _target.choose(servers, port, work_dir)
    assert pid == expected
    assert (reason is None) == (pid is not None or port == 9 or work_dir == "/c")
