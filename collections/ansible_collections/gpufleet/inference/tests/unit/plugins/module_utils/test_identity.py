# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _identity, _proc, _processes


def server(process, **changes):
    values = {"work_dir": process.work_dir, "port": process.port, "service_manager": "supervisor", "main_pid": process.pid, **changes}
    return _identity.Server(**values)


def roles(found):
    return sorted(_identity.role(row["arguments"], "", pid == found["main"]) for pid, row in found["members"].items())


def test_two_servers_share_one_proc(start_server):
    ours, other = start_server(), start_server()
    found = _identity.find(server(ours))
    assert found["main"] == ours.pid and sorted(found["members"]) == sorted(ours.pids()) and found["reason"] is None
    assert roles(found) == ["main", "scheduler", "scheduler"]
    assert not set(found["members"]) & set(other.pids())


def test_orphans_belong_to_us(start_server):
    ours = start_server(kind="stubborn")
    found = _identity.find(server(ours))
    orphans = [row["arguments"][0] for row in found["members"].values() if row["orphan"]]
    assert orphans == ["sglang::scheduler_TP9"]


def test_without_the_managers_word_our_directory_and_port_decide(start_server):
    ours, other = start_server(), start_server()
    assert _identity.find(server(ours, main_pid=None))["main"] == ours.pid
    # The port of another server does not make it ours when we know that we live elsewhere.
    for manager in ("supervisor", None):
        assert _identity.find(server(ours, main_pid=None, port=other.port, service_manager=manager))["main"] is None
    assert _identity.find(server(other, main_pid=None, work_dir=None, service_manager="existing"))["main"] == other.pid


def test_another_launcher_in_our_directory_is_not_ours(start_server, free_port):
    ours = start_server()
    found = _identity.find(server(ours, port=free_port(), main_pid=None))
    assert found["main"] is None and found["members"] == {}


def test_what_can_not_be_told_apart_is_not_absent(start_server, free_port, monkeypatch):
    ours = start_server()
    monkeypatch.setattr(_proc, "link", lambda path: None)
    monkeypatch.setattr(_identity, "_TITLE", re.compile(f"sglang.launch_server --port {ours.port}"))
    by_port = _identity.find(server(ours, main_pid=None))
    assert by_port["main"] == ours.pid and len(by_port["members"]) == 3
    blind = _identity.find(server(ours, main_pid=None, port=free_port()))
    assert blind["members"] == {} and "without root" in blind["reason"]
    assert _processes.combine(_processes.sample(blind), None)["status"] == "unavailable"


def test_a_command_line_that_blocks_is_left_out_and_named(start_server, monkeypatch):
    ours = start_server()
    victim = next(pid for pid in ours.pids() if pid != ours.pid)
    read = _proc.cmdline

    def cmdline(pid, proc="/proc"):
        while pid == victim:
            os.read(os.pipe()[0], 1)
        return read(pid, proc)

    monkeypatch.setattr(_proc, "cmdline", cmdline)
    found = _identity.find(server(ours), timeout=0.5)
    assert found["main"] == ours.pid and found["blocked"] == [victim] and str(victim) in found["reason"]
    assert found["members"][victim]["arguments"] == ["sleep"]


@pytest.mark.parametrize(
    ("arguments", "comm", "expected"),
    [
        (["sglang::scheduler_TP3"], "sglang::schedul", "scheduler"),
        (["sglang::detokenizer"], "sglang::detoken", "detokenizer"),
        (["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"], "python", "tracker"),
        (["python", "-c", "from multiprocessing.spawn import spawn_main(tracker_fd=6)", "--multiprocessing-fork"], "python", "spawn"),
        (["/usr/local/cuda/nvvm/bin/cicc", "--x"], "cicc", "compiler"),
        (["/usr/bin/python3", "/opt/bin/ninja", "-v"], "python3", "compiler"),
        (["/bin/sleep", "3"], "sleep", "other"),
    ],
)
def test_roles(arguments, comm, expected):
    assert _identity.role(arguments, comm, False) == expected


def test_ranks_and_ports():
    titles = ("sglang::scheduler_TP3", "sglang::scheduler_DP1_TP12_EP3", "sglang::scheduler", "sglang::detokenizer")
    assert [_identity.rank(title) for title in titles] == [3, 12, 0, None]
    assert [_identity.port_of(line) for line in (["--port", "8000"], ["--port=8001"], ["x"])] == [8000, 8001, 30000]
    assert _identity.is_launcher(["/v/bin/python", "/v/bin/sglang", "serve", "--x"]) and not _identity.is_launcher(["sglang", "bench"])


def test_two_samples_measure_what_moves(tmp_path, start_server):
    ours = start_server()
    found = _identity.find(server(ours))
    first = _processes.sample(found)
    busy = subprocess.Popen(["cicc", "-c", "while :; do :; done"], executable="/bin/sh", cwd=ours.work_dir)
    try:
        found["members"][busy.pid] = {"arguments": ["cicc", "-c"], "orphan": False, "start": _proc.stat(busy.pid).start}
        _bounded.run(["/bin/sleep", "0.5"], 5)
        part = _processes.combine(first, _processes.sample(found))
    finally:
        busy.kill()
        busy.wait()
    assert part["schedulers"] == part["schedulers_alive"] == 2 and part["main"]["pid"] == ours.pid
    assert part["compilers"][0]["name"] == "cicc" and part["compilers"][0]["delta_cpu_s"] > 0.1
    quiet = next(row for row in part["members"] if row["role"] == "scheduler")
    assert quiet["delta"] == {"cpu_s": 0.0, "rchar": 0, "read_bytes": 0, "majflt": 0} and quiet["rss_anon_kb"] is not None


def test_no_process_is_absent_and_no_sample_unavailable():
    empty = _processes.sample({"main": None, "members": {}, "reason": None})
    assert _processes.combine(empty, empty)["status"] == "absent"
    assert _processes.combine(None, None)["status"] == "unavailable"


@pytest.fixture
def stranger():
    """A foreign program with one child."""
    started = []
    program = """
import os, subprocess, time
a, e = eval(os.environ['X'])
subprocess.Popen(a, executable=e)
print('up', flush=True)
time.sleep(99)
"""

    def start(work_dir, child):
        environ = {**os.environ, "X": repr(child)}
        argv = [sys.executable, "-c", program]
        started.append(subprocess.Popen(argv, cwd=work_dir, env=environ, stdout=subprocess.PIPE, start_new_session=True))
        assert started[-1].stdout.readline() == b"up\n"
        return started[-1].pid

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    "child",
    [
        (["sglang::scheduler_TP0", "99"], "/bin/sleep"),
        ([sys.executable, "-c", "import time; time.sleep(99)", "multiprocessing.spawn"], sys.executable),
        (["/bin/sh", "-c", "sleep 99; :", "grep", "sglang::scheduler"], "/bin/sh"),
        (["/bin/sh", "-c", "sleep 99; : python -m sglang.launch_server --port 30000"], "/bin/sh"),
    ],
)
def test_what_a_living_stranger_runs_in_our_directory_is_not_ours(start_server, stranger, child):
    ours = start_server(port=30000)
    before = sorted(ours.pids())
    stranger(ours.work_dir, child)
    for pid in (ours.pid, None):
        found = _identity.find(server(ours, main_pid=pid))
        assert found["main"] == ours.pid and sorted(found["members"]) == before


@pytest.mark.parametrize(
    "line", ["sh -c 'python -m sglang.launch_server'", "vim sglang/launch_server.py", "grep -r sglang.launch_server ."]
)
def test_who_only_names_the_launcher_is_none(line):
    assert not _identity.is_launcher(shlex.split(line)) and not _identity.is_engine(shlex.split(line))


@pytest.mark.parametrize("line", ["sglang::scheduler_TP3", "/v/bin/python3.12 -m sglang.launch_server --port 1", "sglang serve --port 1"])
def test_the_engines_processes_are_known_by_their_program(line):
    assert _identity.is_engine(shlex.split(line))


def test_a_directory_behind_a_link_or_made_anew_is_still_ours(start_server, tmp_path):
    ours = start_server(kind="stubborn")
    (tmp_path / "link").symlink_to(ours.work_dir)
    for pid in (ours.pid, None):
        found = _identity.find(server(ours, main_pid=pid, work_dir=str(tmp_path / "link")))
        assert sorted(found["members"]) == sorted(ours.pids())
    pids = sorted(ours.pids())
    os.rmdir(ours.work_dir)
    os.mkdir(ours.work_dir)
    try:
        assert sorted(_identity.find(server(ours, main_pid=None))["members"]) == pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def test_a_process_of_another_container_is_not_ours(start_server, monkeypatch):
    ours = start_server(kind="stubborn")
    link = _proc.link
    away = next(pid for pid, row in _identity.find(server(ours))["members"].items() if row["orphan"])
    monkeypatch.setattr(_proc, "link", lambda path: "pid:[1]" if path == f"/proc/{away}/ns/pid" else link(path))
    assert away not in _identity.find(server(ours))["members"]
