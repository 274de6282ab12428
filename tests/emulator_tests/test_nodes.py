# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One server on two nodes: meeting, serving, and what one node sees of the other's end."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
from sglang.emulator.rendezvous import DistNetworkError, DistStoreError, Wire, address, gather, join, listen

CPU = ["--device", "cpu", "--attention-backend", "torch_native", "--max-total-tokens", "4096"]


def node(make_server: Callable[..., Any], cpu_model: Path, rank: int, port: int, *more: str) -> Any:
    flags = [*CPU, "--nnodes", "2", "--node-rank", str(rank), "--dist-init-addr", "127.0.0.1:%d" % port, *more]
    return make_server(2, flags, cpu_model, "serve")


@pytest.fixture
def nodes(make_server: Callable[..., Any], cpu_model: Path, free_port: Callable[[], int]) -> Iterator[tuple[Any, Any]]:
    """Both nodes, serving."""
    port = free_port()
    first, second = (node(make_server, cpu_model, rank, port).start() for rank in range(2))
    return first.wait_ready(), second.wait_log("Dummy health check server started")


def test_the_first_node_waits_in_silence(make_server: Callable[..., Any], cpu_model: Path, free_port: Callable[[], int]) -> None:
    port = free_port()
    first = node(make_server, cpu_model, 0, port).start().wait_log(" TP0] Init parallel begin.")
    time.sleep(0.5)
    size = first.log_path.stat().st_size
    time.sleep(1)
    assert first.log_path.stat().st_size == size and first.process.poll() is None
    for number, open_ in ((first.port, False), (port, True)):
        with socket.socket() as probe:
            assert (probe.connect_ex(("127.0.0.1", number)) == 0) is open_
    assert "sglang::scheduler_TP0" in first.tree().values() and "sglang::scheduler_TP1" not in first.tree().values()
    node(make_server, cpu_model, 1, port).start()
    first.wait_ready()


def test_the_other_node_never_comes(make_server: Callable[..., Any], cpu_model: Path, free_port: Callable[[], int]) -> None:
    first = node(make_server, cpu_model, 0, free_port(), "--dist-timeout", "1").start()
    assert first.wait_exit() == -signal.SIGKILL
    assert "Timed out after 2 seconds waiting for clients. 1/2 clients joined." in first.log
    assert "Received sigquit from a child process. It usually means the child failed." in first.log


def test_the_second_node_has_pages_that_are_always_healthy(nodes: tuple[Any, Any]) -> None:
    first, second = nodes
    assert [second.http("GET", page) for page in ("/health", "/health_generate", "/ping")] == [(200, "")] * 3
    for page in ("/v1/models", "/ready", "/metrics", "/"):
        assert second.http("GET", page) == (404, {"detail": "Not Found"})
    assert second.http("POST", "/health")[0] == 405
    titles = [title for title in second.tree().values() if title.startswith("sglang::")]
    assert titles == ["sglang::scheduler_TP1"] and "fired up" not in second.log and "chat template" not in second.log
    assert first.generate()[0] == 200 and first.http("GET", "/server_info")[1]["nnodes"] == 2
    second.process.send_signal(signal.SIGTERM)
    second.wait_log("SIGTERM received on node_rank 1; waiting for the rank-0 ShutdownReq broadcast to stop the schedulers.")
    assert second.process.poll() is None and first.generate()[0] == 200


def test_the_first_nodes_sigterm_ends_both(nodes: tuple[Any, Any]) -> None:
    first, second = nodes
    first.process.send_signal(signal.SIGTERM)
    assert (first.wait_exit(), second.wait_exit()) == (0, 0)
    assert "terminated with 0" in second.log


def test_a_dead_scheduler_of_the_second_node(nodes: tuple[Any, Any]) -> None:
    """The node that is broken ends with 0, the other one with 137."""
    first, second = nodes
    os.kill(second.child("sglang::scheduler_TP1"), signal.SIGKILL)
    assert second.wait_exit() == 0
    assert "Scheduler or DataParallelController" in second.log and "terminated with -9" in second.log
    assert first.wait_exit() == -signal.SIGKILL
    assert "Connection reset by peer" in first.log and "SIGQUIT received. signum=None" in first.log


def test_a_dead_first_node(nodes: tuple[Any, Any]) -> None:
    first, second = nodes
    first.process.kill()
    assert second.wait_exit() == -signal.SIGKILL
    assert " TP1] Scheduler hit an exception: Traceback" in second.log and "Received sigquit from a child process." in second.log


def test_wires() -> None:
    here, there = (Wire(end) for end in socket.socketpair())
    here.send([1.5, None])
    here.send("step")
    assert there.recv() == [1.5, None] and there.poll() and there.recv() == "step" and not there.poll(0.01)
    here._socket.close()
    with pytest.raises(EOFError):
        there.recv()
    there._socket.close()


def test_addresses() -> None:
    assert [address(text) for text in ("gpu01:5000", "tcp://10.0.0.1:1", "[::1]:2")] == [("gpu01", 5000), ("10.0.0.1", 1), ("::1", 2)]


def test_nobody_comes_and_nobody_listens(free_port: Callable[[], int]) -> None:
    where = "127.0.0.1:%d" % free_port()
    with (
        listen(where) as listener,
        pytest.raises(DistStoreError, match=r"Timed out after 1 seconds waiting for clients\. 1/3 clients joined\."),
    ):
        gather(listener, 2, 0.2)
    with pytest.raises(DistNetworkError, match="timed out after 200ms while trying to connect to"):
        join(where, 1, 0.2)
