# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a server ends: signals to main in every state, and children that fail."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

CPU = ["--device", "cpu", "--attention-backend", "torch_native", "--max-total-tokens", "4096"]
CLOSING = ["Waiting for application shutdown.", "Application shutdown complete.", "Finished server process ["]


@pytest.fixture
def server(make_server: Callable[..., Any], cpu_model: Path) -> Iterator[Any]:
    return make_server(1, CPU, cpu_model, "serve").start().wait_ready()


def hold(server: Any, method: str, path: str, body: Any = None) -> http.client.HTTPConnection:
    """A request that nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    time.sleep(0.3)
    return connection


def in_order(server: Any, *texts: str) -> None:
    log, at = server.log, 0
    for text in texts:
        at = log.find(text, at)
        assert at >= 0, text


def test_sigterm_when_idle(server: Any) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    begun = ["SIGTERM received. signum=None frame=None. Draining requests and shutting down...", "Remaining number of requests 0."]
    in_order(server, *begun, "kill_process_tree called: ", "INFO:     Shutting down", *CLOSING)


def test_sigint(server: Any) -> None:
    server.process.send_signal(signal.SIGINT)
    assert server.wait_exit() == (0 if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else -signal.SIGINT)
    in_order(server, "INFO:     Shutting down", *CLOSING)
    assert "Draining" not in server.log and "Gracefully" not in server.log


def test_sigterm_with_a_stopped_scheduler(server: Any) -> None:
    """Nothing runs, so the drain ends; the scheduler does not, and main answers nothing while it waits."""
    os.kill(server.child("sglang::scheduler"), signal.SIGSTOP)
    server.set("healthy", scheduler_exit_s=3.0)
    server.process.send_signal(signal.SIGTERM)
    server.wait_log("Remaining number of requests 0.")
    time.sleep(0.3)
    with pytest.raises(TimeoutError):
        server.http("GET", "/v1/models", timeout=0.5)
    assert server.wait_exit() == 0
    in_order(
        server, "Schedulers still alive 15s after ShutdownReq, killing them before they released: [", "INFO:     Shutting down", *CLOSING
    )


def test_sigterm_while_a_page_hangs(server: Any) -> None:
    """Main kills its children, closes its port and waits for ever, also when the client is gone."""
    os.kill(server.child("sglang::scheduler"), signal.SIGSTOP)
    held = hold(server, "GET", "/server_info")
    server.process.send_signal(signal.SIGTERM)
    server.wait_log("INFO:     Waiting for connections to close. (CTRL+C to force quit)")
    assert not [title for title in server.tree().values() if title.startswith("sglang::")]
    with pytest.raises(ConnectionRefusedError):
        server.http("GET", "/v1/models")
    assert "Waiting for background tasks" not in server.log
    held.close()
    server.wait_log("INFO:     Waiting for background tasks to complete. (CTRL+C to force quit)")
    time.sleep(1)
    assert server.process.poll() is None
    server.process.send_signal(signal.SIGINT)
    assert server.wait_exit() == 0


def test_sigterm_while_a_generation_hangs(server: Any) -> None:
    """The drain looks again and again, and answers pages. It ends when the scheduler hears that the client left, not before."""
    scheduler = server.child("sglang::scheduler")
    os.kill(scheduler, signal.SIGSTOP)
    held = hold(server, "POST", "/generate", {"text": "x"})
    server.process.send_signal(signal.SIGTERM)
    time.sleep(1.5)
    assert server.log.count("Gracefully exiting... Remaining number of requests 1. Remaining requests remaining_rids=['") > 2
    assert server.http("GET", "/health")[0] == 503 and server.http("GET", "/v1/models")[0] == 200
    assert "Health check request received during shutdown. Returning 503." in server.log
    held.close()
    time.sleep(1.5)
    assert server.process.poll() is None and "Remaining number of requests 0." not in server.log
    os.kill(scheduler, signal.SIGCONT)
    assert server.wait_exit() == 0
    in_order(server, "Remaining number of requests 0.", "kill_process_tree called", *CLOSING)


def test_sigterm_after_a_failed_health_check(server: Any) -> None:
    os.kill(server.child("sglang::scheduler"), signal.SIGSTOP)
    assert server.http("GET", "/health")[0] == 503
    server.set("healthy", coredump_wait_s=1.5)
    server.process.send_signal(signal.SIGTERM)
    server.wait_log("Waiting 1.5 seconds for CUDA coredumps")
    with pytest.raises(TimeoutError):
        server.http("GET", "/v1/models", timeout=0.5)
    assert server.wait_exit() == 0
    in_order(
        server, "Signal SIGTERM received while health check failed. Force exiting.", "All pyspy dump attempts failed for PID", *CLOSING
    )


def test_sigterm_before_the_first_request(make_server: Callable[..., Any], cpu_model: Path) -> None:
    """The port is closed, the warm-up knocks at it until it gives up, and then the server kills itself."""
    server = make_server(1, CPU, cpu_model, "serve")
    server.scenario = ("healthy", {**server.scenario[1], "warmup_poll_s": 1.0, "port_wait_s": 2.0})
    server.start().wait_log("Uvicorn running")
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == -signal.SIGKILL
    in_order(server, "INFO:     Shutting down", CLOSING[0], "Initialization failed. warmup error: ")
    assert CLOSING[1] not in server.log and "fired up" not in server.log


def test_a_drained_request_is_answered(server: Any) -> None:
    found: list[int] = []
    body = {"text": "x", "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
    client = threading.Thread(target=lambda: found.append(server.http("POST", "/generate", body)[0]))
    client.start()
    time.sleep(0.3)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    # the real one refuses nothing while it drains
    assert server.generate()[0] == 200
    client.join()
    assert found == [200] and server.wait_exit() == 0


def test_sigkill_of_main_takes_the_children_along(server: Any) -> None:
    children = [pid for pid, title in server.tree().items() if title.startswith("sglang::")]
    server.process.kill()
    server.wait_exit()
    time.sleep(0.5)
    assert len(children) == 2 and not [pid for pid in children if Path("/proc/%d/exe" % pid).exists()]


def test_children_outlive_a_main_that_dies_while_they_import(make_server: Callable[..., Any], cpu_model: Path) -> None:
    """Nothing tells them. The scheduler ends when it reports ready to nobody, the detokenizer waits for ever."""
    server = make_server(1, CPU, cpu_model, "serve")
    server.scenario = ("healthy", {**server.scenario[1], "spawn_imports_s": 2.0})
    server.start().wait_log("Using default HuggingFace chat template")
    time.sleep(0.5)
    children = list(server.tree())
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == -signal.SIGTERM
    titles = [Path("/proc/%d/cmdline" % pid).read_text() for pid in children]
    assert sum("spawn_main" in title for title in titles) == 2

    def left() -> list[str]:
        paths = [Path("/proc/%d/cmdline" % pid) for pid in children]
        return [path.read_text().strip("\0") for path in paths if path.exists()]

    end = time.monotonic() + 20
    while time.monotonic() < end and [title for title in left() if title.startswith("sglang::") or "spawn" in title] != [
        "sglang::detokenizer"
    ]:
        time.sleep(0.2)
    assert "sglang::detokenizer" in left() and not [title for title in left() if "scheduler" in title or "spawn" in title]
    assert "Scheduler hit an exception: Traceback" in server.log


def test_a_killed_detokenizer_is_a_minute_half_dead(server: Any) -> None:
    server.set("healthy", coredump_wait_s=2.0)
    os.kill(server.child("sglang::detokenizer"), signal.SIGKILL)
    # a request that is on its way does not end the scheduler
    hold(server, "GET", "/health")
    server.wait_log("Waiting 2.0 seconds for CUDA coredumps before exiting.")
    for page in ("/v1/models", "/nothing"):
        with pytest.raises(TimeoutError):
            server.http("GET", page, timeout=0.3)
    assert server.child("sglang::scheduler")
    assert server.wait_exit() == -signal.SIGKILL
    in_order(
        server,
        "Subprocess detokenizer (pid=",
        "SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
        "Sleeping 5 seconds before crash diagnostics to let GPU activity settle.",
        "Pyspy dump for PID %s (py-spy dump --native --pid " % server.log.split("Pyspy dump for PID ")[1].split()[0],
        "CUDA user-triggered coredump is not enabled.",
        "Waiting 2.0 seconds for CUDA coredumps",
        "kill_process_tree called: parent_pid=%d, include_parent=True, pid=%d" % (server.pid, server.pid),
    )


def test_a_killed_scheduler_leaves_nothing_to_dump(server: Any) -> None:
    os.kill(server.child("sglang::scheduler"), signal.SIGKILL)
    assert server.wait_exit() == -signal.SIGKILL
    in_order(
        server, "Subprocess scheduler_0 (pid=", "SIGQUIT received.", "No live scheduler processes found; skipping py-spy and CUDA coredump."
    )


def test_the_soft_watchdog_sees_a_slow_start(make_server: Callable[..., Any], cpu_model: Path) -> None:
    server = make_server(1, [*CPU, "--soft-watchdog-timeout", "0.4"], cpu_model)
    server.scenario = ("healthy", {**server.scenario[1], "load_s": 3})
    server.start().wait_ready()
    for name in ("Scheduler", "TokenizerManager"):
        assert "%s watchdog timeout (self.watchdog_timeout=0.4, self.soft=True)" % name in server.log
    count = server.log.count("watchdog timeout")
    time.sleep(1)
    assert server.log.count("watchdog timeout") == count and server.generate()[0] == 200


@pytest.mark.parametrize(
    ("arguments", "code", "last"),
    [
        ([], 2, "sglang: error: the following arguments are required: subcommand"),
        (["start"], 2, "sglang: error: argument subcommand: invalid choice: 'start' (choose from 'serve', 'generate', 'version')"),
        (["serve"], 1, "Exception: Error: --model-path is required. Please provide the path to the model."),
        (["serve", "/m", "--pp", "2"], 2, "sglang serve: error: ambiguous option: --pp could match "),
        (["serve", "--model-path", "/m", "--config", "/nowhere.yaml"], 1, "ValueError: Config file not found: /nowhere.yaml"),
        (["serve", "/m/n", "--tp-size", "2"], 1, "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/m/n'."),
    ],
)
def test_command_lines(command: Callable[..., subprocess.CompletedProcess[str]], arguments: list[str], code: int, last: str) -> None:
    done = command(*arguments)
    assert done.returncode == code and last in done.stderr.strip().splitlines()[-1]


def test_tensor_parallel_ranks_must_fit_the_nodes(make_server: Callable[..., Any], cpu_model: Path) -> None:
    server = make_server(1, [*CPU, "--nnodes", "2", "--dist-init-addr", "127.0.0.1:1"], cpu_model).start()
    assert server.wait_exit() == 1 and "AssertionError: tp_size must be divisible by number of nodes" in server.log
