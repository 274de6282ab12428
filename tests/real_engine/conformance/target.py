# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server under observation: started from one of two installations, watched from outside, ended with everything it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The same for both targets. A CPU has no CUDA graphs, and both have the same few tokens.
COMMON = (
    "--device", "cpu", "--attention-backend", "torch_native", "--host", "127.0.0.1", "--max-total-tokens", "4096",
    "--mem-fraction-static", "0.3",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """An installation of the engine. ``model``: a sound model folder of four shards; ``environment`` comes on top of ours."""

    name: str
    venv: Path
    model: Path
    environment: dict[str, str]

    def command(self, entry: str, *arguments: str) -> list[str]:
        """Command line of a server: ``entry`` is serve (the console script) or module (python -m)."""
        start = [str(self.venv / "bin" / "sglang"), "serve"]
        if entry == "module":
            start = [str(self.venv / "bin" / "python"), "-m", "sglang.launch_server"]
        return [*start, *arguments]

    def start(self, arguments: list[str], cwd: Path, port: int, extra: dict[str, str] | None = None, entry: str = "serve") -> Server:
        """A running server in ``cwd``, its output in ``cwd``/server.log."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SGLANG_", "PYTHON", "COVERAGE"))}
        environment = {**inherited, **self.environment, "PATH": f"{self.venv / 'bin'}:{os.environ['PATH']}", **(extra or {})}
        return Server(self, self.command(entry, *arguments), cwd, port, environment)


@dataclass(frozen=True)
class Mark:
    """A moment in a server's life."""

    offset: int
    at: float


class Server:
    """A process tree that we started, and its log."""

    def __init__(self, target: Target, command: list[str], cwd: Path, port: int, environment: dict[str, str]) -> None:
        self.target, self.command, self.cwd, self.port = target, command, cwd, port
        cwd.mkdir(parents=True, exist_ok=True)
        self.log_path = cwd / "server.log"
        self.started = time.monotonic()
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.pid = self._process.pid
        self.ended_at = 0.0
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    def _wait(self) -> None:
        self._process.wait()
        self.ended_at = time.monotonic()

    def log(self, since: Mark | None = None) -> str:
        """The log from a moment on; bars are cut into lines."""
        with open(self.log_path, "rb") as file:
            file.seek(since.offset if since else 0)
            return file.read().decode("utf-8", "replace").replace("\r", "\n")

    def mark(self) -> Mark:
        """Now: the end of the log, and the time."""
        return Mark(self.log_path.stat().st_size, time.monotonic())

    def wait_log(self, text: str, seconds: float, since: Mark | None = None) -> bool:
        """Whether a text shows up in the log in time; no longer waited for once the server has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended = not self.running()
            if text in self.log(since):
                return True
            if ended:
                return False
            time.sleep(0.1)
        return False

    def running(self) -> bool:
        """Whether main lives."""
        return self._waiter.is_alive()

    def exit_status(self, seconds: float) -> int | None:
        """Exit status of main (negative: a signal), None if it still runs after ``seconds``."""
        self._waiter.join(seconds)
        return None if self._waiter.is_alive() else self._process.returncode

    def processes(self) -> list[dict[str, Any]]:
        """Main and its descendants, defunct ones too: {pid, ppid, title, comm, state}."""
        rows = process_table()
        found, queue = [], [self.pid]
        while queue:
            pid = queue.pop(0)
            row = rows.get(pid)
            if row is None:
                continue
            found.append(row)
            queue += sorted(other for other, entry in rows.items() if entry["ppid"] == pid)
        return found

    def child(self, title: str, seconds: float = 30.0) -> int:
        """Process id of the living child with this title."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for row in self.processes():
                if row["title"] == title and row["state"] != "Z":
                    return int(row["pid"])
            time.sleep(0.1)
        raise LookupError(f"no {title} below {self.pid}")

    def open(self) -> bool:
        """Whether somebody accepts connections on the port."""
        with socket.socket() as probe:
            probe.settimeout(2)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def signal(self, number: int, title: str = "") -> None:
        """Send a signal to main, or to the child with this title."""
        os.kill(self.child(title) if title else self.pid, number)

    def left(self) -> list[int]:
        """Living processes of this server: the tree, and whoever runs in its folder."""
        own = {row["pid"] for row in self.processes() if row["state"] != "Z"}
        return sorted(own | {row["pid"] for row in process_table().values() if row["cwd"] == str(self.cwd) and row["state"] != "Z"})

    def close(self) -> None:
        """End everything."""
        for _attempt in range(20):
            left = self.left()
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        self._waiter.join(10)


def process_table() -> dict[int, dict[str, Any]]:
    """All processes that can be read, by pid."""
    table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        row = _row(int(name))
        if row is not None:
            table[row["pid"]] = row
    return table


def _row(pid: int) -> dict[str, Any] | None:
    folder = Path("/proc") / str(pid)
    try:
        comm, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
        title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return None
    try:
        cwd = os.readlink(folder / "cwd")
    except OSError:
        cwd = ""
    state, ppid = rest.split()[:2]
    return {"pid": pid, "ppid": int(ppid), "title": title, "comm": comm.partition("(")[2], "state": state, "cwd": cwd}


def until(condition: Callable[[], Any], seconds: float, pause: float = 0.1) -> Any:
    """The condition's first truthy value within ``seconds``, else its last one."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() >= end:
            return value
        time.sleep(pause)


@contextlib.contextmanager
def stranger(port: int) -> Iterator[int]:
    """Somebody else on the port: answers any request with 404, in a process of its own."""
    code = (
        "import http.server,sys\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_error(404)\n"
        "    do_POST = do_GET\n"
        "    def log_message(self, *a): pass\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(port)], stdin=subprocess.DEVNULL)
    try:
        until(lambda: _accepts(port), 10)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
