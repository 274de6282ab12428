# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import signal

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _proc, _service, _stop
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
