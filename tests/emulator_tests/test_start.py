# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A healthy start: process tree, log order, port, and the ways it ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any, Callable

import pytest
from sglang.emulator.process import descendants

ORDER = [
    "UserWarning: 'python -m sglang.launch_server'",
    "Attention backend not specified. Use triton backend by default.",
    "server_args={'model_path':",
    "#words: 163840 - BOS ID: 163584 - EOS ID: 163585",
    "Using default HuggingFace chat template",
    " TP0] Init parallel begin.",
    " TP0] sglang is using nccl==",
    "is disabled because it's not supported on more than two PCIe-only GPUs",
    " TP0] Init parallel ends. elapsed=",
    " TP0] Memory baseline taken. mem usage=",
    " TP0] Load weight begin. avail mem=94.14 GB",
    "Multi-thread loading shards:   0% Completed | 0/64 [00:00<?, ?it/s]",
    "Multi-thread loading shards: 100% Completed | 64/64 [",
    " TP0] Load weight end. elapsed=",
    " TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 117",
    " TP0] Memory pool end. avail mem=",
    " TP0] Capture target decode CUDA graph begin. backend=full",
    "Capturing batches (bs=",
    " TP0] Capture target decode CUDA graph end. bs=[1, 2, 4",
    " TP0] max_total_num_tokens=117",
    "Engine startup timings (s): load_weight=",
    "INFO:     Started server process [",
    "INFO:     Waiting for application startup.",
    "INFO:     Application startup complete.",
    "INFO:     Uvicorn running on http://127.0.0.1:",
    '"GET /model_info HTTP/1.1" 200 OK',
    " TP0] Prefill batch, #new-seq: 1",
    '"POST /v1/chat/completions HTTP/1.1" 200 OK',
    "The server is fired up and ready to roll!",
]


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_eight_ranks(make_server: Callable[..., Any]) -> None:
    server = make_server(tp=8, flags=["--api-key", "SECRET1", "--admin-api-key", "SECRET2"]).start()
    server.key = "SECRET1"
    server.wait_log("server_args=")
    early: set = set()
    while "Uvicorn running" not in server.log:
        assert "Uvicorn running" in server.log or not listening(server.port)
        early |= set(server.tree().values())
        time.sleep(0.05)
    assert any("spawn_main(" in line and line.endswith("--multiprocessing-fork") for line in early)
    server.wait_ready()

    log, at = server.log, 0
    for text in ORDER:
        found = log.find(text, at)
        assert found >= 0, text
        at = found
    for rank in range(8):
        # The bar of rank 0 has no newline yet: another rank's line can be glued to it, as with the real engine.
        assert len(re.findall(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d TP%d\] Load weight end\. " % rank, log)) == 1
    raw = server.log_path.read_bytes()
    assert b"\rMulti-thread loading shards:" in raw and b"64/64" in raw
    bar = raw[raw.index(b"\rMulti-thread") : raw.index(b"64/64")]
    assert b"it/s]\n" not in bar and bar.count(b"\r") > 3
    line = next(line for line in log.splitlines() if "server_args=" in line)
    assert "'api_key': 'SECRET1'" in line and "'admin_api_key': 'SECRET2'" in line and len(line) > 10000

    titles = sorted(server.tree().values())
    assert [title for title in titles if title.startswith("sglang::")] == [
        "sglang::detokenizer", *("sglang::scheduler_TP%d" % rank for rank in range(8))
    ]  # fmt: skip
    assert sum("resource_tracker" in title for title in titles) == 1 and len(titles) == 10
    rank3 = server.child("sglang::scheduler_TP3")
    assert Path("/proc/%d/comm" % rank3).read_text().strip() == "sglang::schedul"
    assert len(os.listdir("/proc/%d/task" % rank3)) >= 6
    assert "sglang.launch_server" in Path("/proc/%d/cmdline" % server.pid).read_text()

    assert server.signals() == []
    os.kill(server.pid, signal.SIGKILL)
    server.wait_exit()
    time.sleep(1)
    assert not list(descendants(server.pid))
    assert not Path("/proc/%d/cmdline" % rank3).exists() or not Path("/proc/%d/cmdline" % rank3).read_bytes()


def test_serve_command_with_positional_model_at_tp_1(make_server: Callable[..., Any]) -> None:
    server = make_server(tp=1, command="serve").start().wait_ready()
    assert "sglang::scheduler" in server.tree().values()
    assert re.search(r"^\[[^\] ]+ [^\] ]+\] max_total_num_tokens=", server.log, re.M)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    assert server.signals() == ["SIGTERM"]
    for text in (
        "SIGTERM received. signum=None frame=None. Draining",
        "Gracefully exiting... Remaining number of requests 0.",
        "Finished server",
    ):
        assert text in server.log


def test_health_is_503_until_warm(make_server: Callable[..., Any]) -> None:
    server = make_server()
    server.scenario = ("healthy", {**server.scenario[1], "warmup_s": 1.5})
    server.start().wait_log("Uvicorn running")
    assert server.http("GET", "/health")[0] == 503
    assert server.http("GET", "/v1/models")[0] == 200
    server.wait_ready()
    start = time.monotonic()
    assert server.http("GET", "/health") == (200, "")
    assert time.monotonic() - start >= 1.0


def test_sigterm_while_loading_is_the_default(make_server: Callable[..., Any]) -> None:
    server = make_server()
    server.scenario = ("healthy", {**server.scenario[1], "load_s": 20})
    server.start().wait_log("Multi-thread loading")
    children = list(server.tree())
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == -signal.SIGTERM
    time.sleep(0.5)
    assert not [
        pid for pid in children if Path("/proc/%d/exe" % pid).exists() and "scheduler" in Path("/proc/%d/cmdline" % pid).read_text()
    ]


def test_sigterm_drains_a_running_request(make_server: Callable[..., Any]) -> None:
    server = make_server().start().wait_ready()
    results: list[Any] = []
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 600, "ignore_eos": True}
    client = threading.Thread(target=lambda: results.append(server.http("POST", "/v1/chat/completions", body, 20)))
    client.start()
    time.sleep(0.5)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert server.http("GET", "/health")[0] == 503
    client.join()
    assert results[0][0] == 200 and results[0][1]["usage"]["completion_tokens"] == 600
    assert server.wait_exit() == 0
    assert "Remaining number of requests 1" in server.log


@pytest.mark.parametrize(("tp", "text"), [(1, "Subprocess scheduler_0 (pid="), (2, "Connection reset by peer")])
def test_killed_scheduler_while_serving(make_server: Callable[..., Any], tp: int, text: str) -> None:
    server = make_server(tp=tp).start().wait_ready()
    os.kill(server.child("sglang::scheduler" + ("_TP1" if tp > 1 else "")), signal.SIGKILL)
    assert server.wait_exit() == -signal.SIGKILL
    assert text in server.log and "SIGQUIT received. signum=None, frame=None." in server.log
    if tp == 1:
        assert "crashed with exit code -9. Triggering SIGQUIT for cleanup..." in server.log


def test_killed_scheduler_while_loading(make_server: Callable[..., Any]) -> None:
    """Nobody says so: main looks for dead schedulers every few seconds, and ends with a traceback."""
    server = make_server(2)
    server.scenario = ("healthy", {**server.scenario[1], "load_s": 20})
    server.start().wait_log("Multi-thread loading")
    os.kill(server.child("sglang::scheduler_TP1"), signal.SIGKILL)
    assert server.wait_exit() == 1
    assert "RuntimeError: Rank 1 scheduler died during initialization (exit code: -9)." in server.log
    assert not [title for title in server.tree().values() if title.startswith("sglang::")]


def test_killed_scheduler_while_the_other_one_waits_for_it(make_server: Callable[..., Any]) -> None:
    """The survivor's exception comes first, and then main ends by its own hand."""
    server = make_server(2)
    server.scenario = ("healthy", {**server.scenario[1], "dist_init_s": 1, "ready_poll_s": 60.0})
    server.start().wait_log(" TP1] Init parallel begin.")
    os.kill(server.child("sglang::scheduler_TP1"), signal.SIGKILL)
    assert server.wait_exit() == -signal.SIGKILL
    assert " TP0] Scheduler hit an exception: Traceback" in server.log
    assert "Received sigquit from a child process. It usually means the child failed." in server.log


def test_killed_detokenizer_while_loading(make_server: Callable[..., Any]) -> None:
    """It is missed when the schedulers are ready, before any request."""
    server = make_server()
    server.scenario = ("healthy", {**server.scenario[1], "load_s": 2, "warmup_poll_s": 4.0})
    server.start().wait_log("Multi-thread loading")
    os.kill(server.child("sglang::detokenizer"), signal.SIGKILL)
    assert server.wait_exit() == -signal.SIGKILL
    assert "Subprocess detokenizer (pid=" in server.log and "Received sigquit from a child process." in server.log


def test_killed_detokenizer(make_server: Callable[..., Any]) -> None:
    server = make_server().start().wait_ready()
    os.kill(server.child("sglang::detokenizer"), signal.SIGKILL)
    assert server.wait_exit() == -signal.SIGKILL
    assert "Waiting 0.5 seconds for CUDA coredumps" in server.log


def test_port_held_by_another_server(make_server: Callable[..., Any]) -> None:
    first = make_server().start().wait_ready()
    second = make_server()
    second.port = first.port
    second.start()
    assert second.wait_exit() == 3
    assert "[Errno 98]" in second.log and "fired up and ready" in second.log
    assert first.generate()[0] == 200


def test_port_held_by_a_stranger(make_server: Callable[..., Any]) -> None:
    server = make_server()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", server.port))
        server.start()
        assert server.wait_exit() == -signal.SIGKILL
    assert "[Errno 98]" in server.log and "Waiting for application shutdown" in server.log
    assert "Initialization failed. warmup error:" in server.log


def test_watchdog(make_server: Callable[..., Any]) -> None:
    """A rank that is stopped while a batch runs: the other one's watchdog ends the server, after dumps of both."""
    server = make_server(2, flags=["--watchdog-timeout", "1", "--soft-watchdog-timeout", "0.5"]).start().wait_ready()
    for line in ("Watchdog TokenizerManager initialized.", "Watchdog DetokenizerManager initialized."):
        assert line in server.log
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    body = {"text": "x", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
    client.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    server.wait_log("Decode batch")
    os.kill(server.child("sglang::scheduler_TP1"), signal.SIGSTOP)
    server.wait_log(" TP0] Scheduler watchdog timeout (self.watchdog_timeout=0.5, self.soft=True)")
    server.wait_log(" TP0] Scheduler watchdog timeout (self.watchdog_timeout=1.0, self.soft=False)")
    assert server.wait_exit() == -signal.SIGKILL
    assert "All pyspy dump attempts failed for PID" in server.log and "Pyspy dump for PID" in server.log
    assert "Waiting 0.5 seconds for CUDA coredumps before exiting." in server.log


def test_watchdog_sleeps_when_idle(make_server: Callable[..., Any]) -> None:
    """A rank that is stopped while nothing runs holds every request before its batch exists: no watchdog, no end."""
    server = make_server(2, flags=["--watchdog-timeout", "0.3"]).start().wait_ready()
    os.kill(server.child("sglang::scheduler_TP1"), signal.SIGSTOP)
    for ask in (lambda: server.generate(timeout=1), lambda: server.http("GET", "/server_info", timeout=0.5)):
        with pytest.raises(TimeoutError):
            ask()
    assert "watchdog timeout" not in server.log and server.process.poll() is None
