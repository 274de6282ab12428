# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import signal
import sys

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _locate, _proc, _service, _stop, _unit
from ansible_collections.gpufleet.inference.plugins.modules import server_stop


@pytest.fixture
def stop(run_module, tmp_path):
    def run(server, check=False, **options):
        defaults = {"state_dir": str(tmp_path), "service_manager": "existing", "work_dir": server.work_dir, "port": server.port}
        return run_module(server_stop, check, **{**defaults, "term_timeout": 5, **options})

    return run


def signals(result):
    return [(row["title"].split()[0].rpartition("/")[2][:6], row["signal"]) for row in result["signals"]]


def test_a_tame_server_gets_one_term(stop, start_server):
    ours, other = start_server(), start_server()
    before = other.pids()
    result = stop(ours)
    assert result["changed"] and signals(result) == [("python", "TERM")] and result["survivors"] == [] and ours.pids() == []
    assert other.pids() == before
    assert "topsecret1" not in str(result["signals"])
    assert stop(ours)["changed"] is False


def test_a_stubborn_server_is_killed_with_its_orphan(stop, start_server):
    ours = start_server(kind="stubborn")
    result = stop(ours, term_timeout=0.3)
    assert [kind for _title, kind in signals(result)] == ["TERM", "KILL", "KILL", "KILL", "KILL"]
    assert ours.pids() == [] and result["survivors"] == []


def test_check_mode_signals_nothing(stop, start_server):
    ours = start_server(kind="stubborn")
    before = ours.pids()
    result = stop(ours, check=True)
    assert result["changed"] and len(result["signals"]) == len(before) and ours.pids() == before


def test_a_stranger_on_the_port_is_named_and_left_alone(stop, start_server, serve):
    ours = start_server()
    door = serve({})
    result = stop(ours, service_manager="supervisor", port=door.server_port)
    assert result["foreign"] == [{"pid": os.getpid(), "comm": _proc.stat(os.getpid()).comm, "holds": f"port {door.server_port}"}]
    assert len(ours.pids()) == 3 and result["changed"] is False


def test_another_process_with_the_same_id_is_not_signalled(start_server):
    ours = start_server()
    start = _proc.stat(ours.pid).start
    assert _stop.send(ours.pid, start + 1, signal.SIGKILL) is False and _stop.alive(ours.pid, start)


def test_without_pidfd_the_identity_is_still_checked(start_server, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    ours = start_server(kind="stubborn")
    start = _proc.stat(ours.pid).start
    assert _stop.send(ours.pid, start + 1, signal.SIGKILL) is False
    assert _stop.send(ours.pid, start, signal.SIGKILL) is True
    assert _stop.wait_gone({ours.pid: {"start": start}}, 3) == {}


def test_a_unit_of_our_name_that_serves_another_port_is_refused(stop, start_server, monkeypatch):
    ours, other = start_server(), start_server()
    collect = _service.collect
    monkeypatch.setattr(_service, "collect", lambda *arguments: {**collect(None, None, None), "main_pid": other.pid, "desired": "running"})
    result = stop(ours, service_manager="systemd", service_name="sglang")
    assert result["failed"] and str(other.port) in result["msg"] and len(other.pids()) == len(ours.pids()) == 3


def test_who_may_not_be_signalled_survives_and_is_named(stop, start_server, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError

    ours = start_server()
    monkeypatch.setattr(signal, "pidfd_send_signal", refuse, raising=False)
    monkeypatch.setattr(os, "kill", refuse)
    result = stop(ours, term_timeout=0.2, kill_timeout=0.2)
    monkeypatch.undo()
    assert result["signals"] == [] and len(result["survivors"]) == 3


# systemd for one unit: what `systemctl` says of it and does with it. It ends a unit as KillMode=mixed does, and keeps a helper of its own
# in the control group meanwhile (`control`).
SYSTEMCTL = r"""#!{python}
import json, os, signal, sys, time
path, words = {path!r}, sys.argv[1:]
unit = json.load(open(path))
unit["calls"].append(" ".join(words))
def alive():
    try:
        return open("/proc/%d/stat" % unit["main"]).read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
if words[0] == "stop" and unit["active"] in ("active", "activating"):
    if unit["main"]:
        unit.update(active="deactivating", sub="stop-sigterm", job=1)
        os.kill(unit["main"], signal.SIGTERM)
    else:
        unit.update(active="inactive", sub="dead")
elif words[0] == "reset-failed":
    unit.update(active="inactive", sub="dead", result="success")
if unit["active"] == "deactivating" and not alive():
    if unit["post"] > 0:
        unit.update(sub="stop-post", post=unit["post"] - 1)
    else:
        unit.update(active="failed" if unit["killed"] else "inactive", sub="dead", job=0, control=0)
json.dump(unit, open(path, "w"))
if words[0] == "show":
    main = unit["main"] if alive() else 0
    for name, value in (("LoadState", "loaded"), ("ActiveState", unit["active"]), ("SubState", unit["sub"]), ("Result", unit["result"]),
            ("MainPID", main), ("ControlPID", unit["control"]), ("Job", unit["job"] or ""), ("InvocationID", "run1"),
            ("ExecMainCode", 0 if main else 2), ("ExecMainStatus", 0 if main else 9), ("ActiveEnterTimestampMonotonic", 1)):
        print("%s=%s" % (name, value))
"""


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    """Puts a unit under a `systemctl` of our own; returns what it knows by now."""
    path = tmp_path / "unit.json"

    def make(**unit):
        defaults = {
            "active": "active",
            "sub": "running",
            "result": "success",
            "main": 0,
            "control": 0,
            "job": 0,
            "post": 0,
            "killed": False,
        }
        path.write_text(json.dumps({**defaults, "calls": [], **unit}))
        tool = tmp_path / "bin" / "systemctl"
        tool.parent.mkdir()
        tool.write_text(SYSTEMCTL.replace("{python}", sys.executable).replace("{path!r}", repr(str(path))))
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
        return lambda: json.loads(path.read_text())

    return make


def doings(unit):
    return [call for call in unit["calls"] if not call.startswith("show")]


def test_systemd_is_told_before_anything_is_signalled(stop, start_server, systemd):
    ours = start_server()
    unit = systemd(main=ours.pid, post=2)
    result = stop(ours, service_manager="systemd")
    assert [(row["signal"], row["via"]) for row in result["signals"]] == [("TERM", "systemd")] and result["reset"] is False
    assert doings(unit()) == ["stop --no-block sglang.service"] and unit()["active"] == "inactive" and ours.pids() == []


def test_a_stop_that_had_to_kill_leaves_no_failed_unit(stop, start_server, systemd, tmp_path):
    ours = start_server(kind="stubborn")
    unit = systemd(main=ours.pid, killed=True)
    result = stop(ours, service_manager="systemd", term_timeout=0.3)
    assert result["reset"] and result["survivors"] == [] and ours.pids() == []
    assert doings(unit()) == ["stop --no-block sglang.service", "reset-failed sglang.service"]
    assert stop(ours, service_manager="systemd")["changed"] is False


def test_a_stop_between_two_tries_reaches_systemd(stop, start_server, systemd):
    ours = start_server()
    ours.close()
    unit = systemd(active="activating", sub="auto-restart", result="signal")
    assert stop(ours, check=True, service_manager="systemd")["changed"] is True and doings(unit()) == []
    result = stop(ours, service_manager="systemd")
    assert (result["changed"], result["reset"], result["signals"]) == (True, True, [])
    assert doings(unit()) == ["stop --no-block sglang.service"] and unit()["active"] == "inactive"
    assert stop(ours, service_manager="systemd")["changed"] is False


def test_systemd_hears_of_it_also_when_what_runs_is_not_its_own(stop, start_server, systemd):
    ours = start_server()
    unit = systemd(active="activating", sub="auto-restart", result="signal")
    result = stop(ours, service_manager="systemd")
    assert [(row["signal"], row["via"]) for row in result["signals"]] == [("TERM", "pidfd")]
    assert doings(unit()) == ["stop --no-block sglang.service"] and ours.pids() == []


def test_a_crashed_unit_that_is_stopped_counts_as_stopped(stop, start_server, systemd, tmp_path):
    ours = start_server()
    ours.close()
    unit = systemd(active="failed", sub="failed", result="signal")
    assert _service.collect("systemd", "sglang", None, 5.0, str(tmp_path))["desired"] == "running"
    assert stop(ours, check=True, service_manager="systemd")["reset"] is True and doings(unit()) == []
    result = stop(ours, service_manager="systemd")
    assert (result["changed"], result["reset"], result["signals"]) == (True, True, [])
    told = _service.collect("systemd", "sglang", None, 5.0, str(tmp_path))
    assert (told["state"], told["desired"], told["exit_signal"], told["last_exit"]["asked"]) == ("stopped", "stopped", 9, True)
    assert stop(ours, service_manager="systemd")["changed"] is False


def test_what_systemd_runs_to_keep_the_evidence_is_not_killed(start_server, systemd, tmp_path):
    helper = start_server()
    systemd(active="deactivating", sub="stop-post", post=9, control=helper.pid)
    options = {"service_manager": "systemd", "service_name": "sglang", "state_dir": str(tmp_path)}
    unit = _unit.Unit(_locate.Located(options, _service.collect("systemd", "sglang", None), {}, None))
    members = {pid: {} for pid in [*helper.pids(), os.getpid()]}
    assert list(unit.without_helpers(members)) == [os.getpid()]
