# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts emulated servers from the source tree, with short durations, and ends every one of them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

import pytest

SOURCE = Path(__file__).parents[1] / "emulator" / "src"
sys.path.insert(0, str(SOURCE))

FAST: dict[str, Any] = {
    "imports_s": 0.05, "spawn_imports_s": 0.1, "dist_init_s": 0.05, "load_s": 0.25, "post_bar_s": 0.1, "kv_s": 0.0, "capture_s": 0.1,
    "warmup_s": 0.1, "shutdown_s": 0.2, "crash_wait_s": 0.2, "coredump_wait_s": 0.5, "port_wait_s": 0.5, "health_timeout_s": 0.9,
    "warmup_poll_s": 0.1, "drain_poll_s": 0.2, "scheduler_exit_s": 1.0, "watchdog_wait_s": 0.2, "interrupt_s": 0.1, "ready_poll_s": 0.5,
}  # fmt: skip


def until(condition: Callable[[], Any], seconds: float = 15.0, what: str = "condition") -> Any:
    """Wait for a truthy value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("timed out: " + what)


def run_tool(*arguments: str, machine: Optional[Path] = None, module: str = "sglang.emulator") -> subprocess.CompletedProcess[str]:
    """Run one of the emulator's commands."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    environment.pop("SGLANG_EMULATOR_MACHINE", None)
    if machine:
        environment["SGLANG_EMULATOR_MACHINE"] = str(machine)
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


class Server:
    """One emulated server and its machine."""

    def __init__(
        self, directory: Path, model: Path, tp: int = 2, flags: Optional[list[str]] = None, command: str = "launch_server"
    ) -> None:
        self.directory, self.model, self.tp, self.flags = directory, model, tp, flags or []
        self.machine, self.log_path = directory / "machine", directory / "server.log"
        self.scenario = ("healthy", {"weights_gib": 72.33 * tp})
        self.port, self.key, self.command = free_port(), "", command
        self.process: Optional[subprocess.Popen[bytes]] = None
        from sglang.emulator.machine import DEFAULT_MODEL, make

        make(self.machine, DEFAULT_MODEL, 8)

    def set(self, name: str, **settings: Any) -> None:
        """Set the scenario; settings are on top of the fast ones."""
        self.scenario = (name, {"weights_gib": 72.33 * self.tp, **settings})
        from sglang.emulator.scenario import write

        write(self.machine, name, {**FAST, **self.scenario[1]})

    def start(self) -> Server:
        self.set(self.scenario[0], **self.scenario[1])
        arguments = ["--model-path", str(self.model), "--trust-remote-code", "--tp-size", str(self.tp), "--mem-fraction-static", "0.85",
                     "--port", str(self.port), "--enable-metrics", *self.flags]  # fmt: skip
        start = (
            ["-m", "sglang.launch_server"] if self.command == "launch_server" else ["-c", "from sglang.cli import main; main()", "serve"]
        )
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "SGLANG_EMULATOR_MACHINE": str(self.machine)}
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *start, *arguments], stdout=log, stderr=log, env=environment, cwd=self.directory, start_new_session=True
            )
        return self

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace").replace("\r", "\n")

    def wait_log(self, text: str, seconds: float = 15.0) -> Server:
        until(lambda: text in self.log, seconds, "%r in the log" % text)
        return self

    def wait_ready(self) -> Server:
        return self.wait_log("fired up and ready")

    def wait_exit(self, seconds: float = 15.0) -> int:
        assert self.process
        return self.process.wait(seconds)

    def tree(self) -> dict[int, str]:
        """pid -> command line of living descendants."""
        from sglang.emulator.process import descendants

        return {pid: cmdline(pid) for pid in descendants(self.pid) if alive(pid)}

    def child(self, title: str) -> int:
        return until(lambda: next((pid for pid, line in self.tree().items() if line == title), 0), what=title)

    def http(self, method: str, path: str, body: Any = None, timeout: float = 10.0) -> tuple[int, Any]:
        """(status, parsed JSON or text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = "Bearer " + self.key
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    def generate(self, tokens: int = 4, timeout: float = 10.0, prompt: str = "hello") -> tuple[int, Any]:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
        return self.http("POST", "/v1/chat/completions", body, timeout)

    def metric(self, name: str, labels: str = "") -> float:
        text = self.http("GET", "/metrics")[1]
        return float(re.search(r"^sglang:%s\{[^}]*%s[^}]*\} (\S+)$" % (name, labels), text, re.M).group(1))  # type: ignore[union-attr]

    def signals(self) -> list[str]:
        return [json.loads(line)["signal"] for line in (self.machine / "signals.log").read_text().splitlines()]

    def close(self) -> None:
        if self.process is None:
            return
        pids = [self.pid, *self.tree(), *orphans(self.directory)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(5)


def cmdline(pid: int) -> str:
    try:
        return Path("/proc/%d/cmdline" % pid).read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    try:
        return Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def counter(pid: int, name: str = "rchar") -> int:
    text = Path("/proc/%d/io" % pid).read_text()
    return int(re.search(r"^%s: (\d+)" % name, text, re.M).group(1))  # type: ignore[union-attr]


def orphans(directory: Path) -> list[int]:
    """Living processes whose working directory is ours."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.readlink("/proc/%s/cwd" % name) == str(directory) and alive(int(name)):
                found.append(int(name))
        except OSError:
            continue
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model directory; setproctitle is the emulator's one dependency."""
    pytest.importorskip("setproctitle", reason="the emulator needs setproctitle in this interpreter")
    directory = tmp_path_factory.mktemp("model") / "kimi"
    done = run_tool("make-model", str(directory), "--shards", "64", "--shard-mib", "1")
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="session")
def cpu_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory of four shards with the configuration of a small DeepSeek-V3."""
    pytest.importorskip("setproctitle", reason="the emulator needs setproctitle in this interpreter")
    directory = tmp_path_factory.mktemp("model") / "deepseek"
    done = run_tool("make-model", str(directory), "--shards", "4", "--shard-mib", "1")
    assert done.returncode == 0, done.stderr
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 4, "kv_lora_rank": 64,
        "qk_rope_head_dim": 16, "vocab_size": 512, "max_position_embeddings": 2048,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def make_server(tmp_path: Path, model: Path) -> Iterator[Callable[..., Server]]:
    """Factory of servers, each in its own directory; all ended afterwards."""
    servers: list[Server] = []

    def make(tp: int = 1, flags: Optional[list[str]] = None, model_dir: Optional[Path] = None, command: str = "launch_server") -> Server:
        directory = tmp_path / ("host%d" % len(servers))
        directory.mkdir()
        servers.append(Server(directory, model_dir or model, tp, flags, command))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture(scope="session", name="free_port")
def free_port_function() -> Callable[[], int]:
    """A port that nobody uses."""
    return free_port


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the console script ``sglang``."""
    pytest.importorskip("setproctitle", reason="the emulator needs setproctitle in this interpreter")
    script = [sys.executable, "-c", "from sglang.cli import main; main()"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        return subprocess.run([*script, *arguments], env=environment, capture_output=True, text=True, timeout=30, check=False)

    return run


@pytest.fixture(scope="session")
def server_type() -> type[Server]:
    """The class, for servers that several tests share."""
    return Server
