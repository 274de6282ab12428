# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each fault's observable, and that faults can be switched while a server runs."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any, Callable

import pytest

FLASHINFER = ["--attention-backend", "flashinfer"]
FULL_BAR = "Multi-thread loading shards: 100% Completed | 64/64"


def rchar(pid: int) -> int:
    return int(re.search(r"rchar: (\d+)", Path("/proc/%d/io" % pid).read_text()).group(1))  # type: ignore[union-attr]


def written(pid: int) -> int:
    return int(re.search(r"syscw: (\d+)", Path("/proc/%d/io" % pid).read_text()).group(1))  # type: ignore[union-attr]


def cpu(pid: int) -> float:
    fields = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def hung(server: Any, tp: int, seconds: float = 2.2) -> None:
    """The incident's table of evidence."""
    server.wait_log(FULL_BAR)
    time.sleep(0.6)
    ranks = [server.child("sglang::scheduler_TP%d" % rank) for rank in range(tp)]
    size = server.log_path.stat().st_size
    before = [rchar(pid) for pid in ranks]
    writes, busy = written(ranks[0]), sum(cpu(pid) for pid in ranks)
    time.sleep(seconds)
    assert server.log_path.stat().st_size == size and "Load weight end" not in server.log
    assert [rchar(pid) for pid in ranks] == before
    assert 8 <= written(ranks[0]) - writes <= 8 * (seconds + 2)
    assert sum(cpu(pid) for pid in ranks) - busy < 0.3
    heartbeat = sorted(int(name) for name in os.listdir("/proc/%d/fd" % ranks[0]) if int(name) >= 126)
    assert heartbeat == list(range(126, 134))
    entries = [json.loads(path.read_text()) for path in (server.machine / "gpus").glob("*.json")]
    assert [74000 < entry["memory_used_mib"] < 77000 for entry in entries] == [True] * tp
    assert server.signals() == []


def test_incident(make_server: Callable[..., Any]) -> None:
    server = make_server(2, flags=FLASHINFER)
    server.scenario = ("incident", server.scenario[1])
    server.start()
    hung(server, 2)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == -signal.SIGTERM


def test_incident_needs_flashinfer(make_server: Callable[..., Any]) -> None:
    server = make_server(flags=["--attention-backend", "triton"])
    server.scenario = ("incident", server.scenario[1])
    server.start().wait_ready()
    assert server.generate()[0] == 200


def test_incident_triton(make_server: Callable[..., Any]) -> None:
    server = make_server(2, flags=["--attention-backend", "triton"])
    server.scenario = ("incident_triton", server.scenario[1])
    server.start()
    hung(server, 2, 1.1)


def test_incident_slow(make_server: Callable[..., Any]) -> None:
    server = make_server(2, flags=FLASHINFER)
    server.scenario = ("incident_slow", server.scenario[1])
    server.start().wait_log(FULL_BAR)
    time.sleep(0.5)
    ranks = [server.child("sglang::scheduler_TP%d" % rank) for rank in range(2)]
    before = [rchar(pid) for pid in ranks]
    time.sleep(1.2)
    assert [rchar(pid) - old >= 64 * 1024 for pid, old in zip(ranks, before)] == [True, True]
    assert "Load weight end" not in server.log
    server.set("healthy")
    server.wait_ready()


def test_incident_slow_ends_by_itself(make_server: Callable[..., Any]) -> None:
    server = make_server(flags=FLASHINFER)
    server.scenario = ("incident_slow", {**server.scenario[1], "slow_load_s": 1.0, "slow_bar_pct": 50})
    server.start().wait_log("50% Completed | 32/64")
    time.sleep(0.5)
    assert FULL_BAR not in server.log
    server.wait_ready()


def test_compiling(make_server: Callable[..., Any]) -> None:
    server = make_server()
    server.scenario = ("compiling", server.scenario[1])
    server.start().wait_log(FULL_BAR)
    child = server.child("cicc")
    assert Path("/proc/%d/comm" % child).read_text().strip() == "cicc"
    before = cpu(child)
    time.sleep(1.2)
    assert 0.05 < cpu(child) - before < 1.0
    server.set("healthy")
    server.wait_ready()
    assert "cicc" not in server.tree().values()


def test_oom(make_server: Callable[..., Any]) -> None:
    server = make_server(2)
    server.scenario = ("oom", {**server.scenario[1], "oom_rank": 1})
    server.start()
    assert server.wait_exit() == -signal.SIGKILL
    assert " TP1] Scheduler hit an exception: Traceback (most recent call last):" in server.log
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.31 GiB. GPU 1 has a total capacity of 94.97 GiB" in server.log
    assert "Received sigquit from a child process." in server.log


def test_green_freeze_switched_on_and_off(make_server: Callable[..., Any]) -> None:
    server = make_server().start().wait_ready()
    assert server.generate()[0] == 200
    before = server.metric("realtime_tokens_total", 'mode="decode"')
    server.set("green_freeze")
    time.sleep(0.5)
    with pytest.raises(TimeoutError):
        server.generate(timeout=1)
    assert server.http("GET", "/health")[0] == 200
    assert server.http("GET", "/server_info")[0] == 200
    assert server.metric("realtime_tokens_total", 'mode="decode"') == before
    server.set("healthy")
    time.sleep(0.5)
    assert server.generate()[0] == 200


def test_stubborn(make_server: Callable[..., Any]) -> None:
    server = make_server(2, flags=FLASHINFER)
    server.scenario = ("stubborn", server.scenario[1])
    server.start()
    hung(server, 2, 1.1)
    rank0, rank1 = server.child("sglang::scheduler_TP0"), server.child("sglang::scheduler_TP1")
    for pid in (server.pid, rank1):
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.4)
    assert server.process.poll() is None and server.signals() == ["SIGTERM", "SIGTERM"]
    os.kill(server.pid, signal.SIGKILL)
    server.wait_exit()
    time.sleep(0.4)
    assert not Path("/proc/%d/exe" % rank0).exists() or not Path("/proc/%d/cmdline" % rank0).read_bytes()
    assert Path("/proc/%d/cmdline" % rank1).read_text().strip("\0") == "sglang::scheduler_TP1"
    os.kill(rank1, signal.SIGTERM)
    time.sleep(0.3)
    assert Path("/proc/%d/cmdline" % rank1).read_bytes()

    second = make_server(2)
    (second.machine / "gpus").rmdir()
    (second.machine / "gpus").symlink_to(server.machine / "gpus")
    second.start()
    assert second.wait_exit() == -signal.SIGKILL
    assert "The memory capacity is unbalanced. Some GPUs may be occupied by other processes." in second.log


def test_stubborn_while_serving(make_server: Callable[..., Any]) -> None:
    server = make_server()
    server.scenario = ("stubborn", {**server.scenario[1], "base": "healthy"})
    server.start().wait_ready()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert server.generate()[0] == 200
