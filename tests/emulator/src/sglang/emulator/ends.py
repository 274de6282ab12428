# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every way a serving main process ends: a child failed, SIGTERM with its drain, SIGINT."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, Callable, Optional

from sglang.emulator.frontend import UNHEALTHY, Frontend
from sglang.emulator.http_server import Server
from sglang.emulator.log import Log, raw
from sglang.emulator.process import kill_tree
from sglang.emulator.scenario import Scenario
from sglang.emulator.watchdog import dump_stack

# An ignored SIGINT, as of a background job, stays ignored when the HTTP server raises it again.
INTERRUPTIBLE = signal.getsignal(signal.SIGINT) != signal.SIG_IGN


class Ends:
    """Signals of main and what follows. Until ``serve`` is called the server is starting."""

    def __init__(
        self, scenario: Scenario, log: Log, uvicorn: Log, processes: dict[str, Any], handlers: dict[int, Callable[[], None]]
    ) -> None:
        self.scenario, self.log, self.uvicorn, self.processes, self.handlers = scenario, log, uvicorn, processes, handlers
        self.frontend: Optional[Frontend] = None
        self._wake = threading.Event()
        self._asked: list[str] = []
        self._quitting = False
        self._handling = False  # the first request was seen
        handlers[signal.SIGQUIT] = self._on_quit

    # a child failed

    def _on_quit(self) -> None:
        """SIGQUIT. Main serves on the thread that handles it, so nothing is answered meanwhile."""
        if self._quitting:
            return
        self._quitting = True
        front = self.frontend
        if front is None or not self._handling:
            self.log.error("Received sigquit from a child process. It usually means the child failed.")
            self.kill()
        assert front
        front.blocked = True
        self.log.error("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        self.dump()
        self.kill()

    def dump(self) -> None:
        """What the engine collects before it goes down, and a wait for core dumps while a scheduler lives."""
        self.log.info("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
        time.sleep(self.scenario.get("crash_wait_s"))
        alive = [process.pid for process in self._schedulers() if process.is_alive()]
        if not alive:
            self.log.error("No live scheduler processes found; skipping py-spy and CUDA coredump.")
            return
        for pid in alive:
            dump_stack(self.log, pid)
        self.log.error("CUDA user-triggered coredump is not enabled. Set CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1 before CUDA initialization.")
        for pid in alive:
            pipe = os.path.join(os.getcwd(), "corepipe.cuda.%s.%d" % (os.uname().nodename, pid))
            self.log.error(
                "CUDA coredump pipe not found for PID %d: %s. Ensure CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1 was set before this process "
                "initialized CUDA." % (pid, pipe)
            )
        wait = self.scenario.get("coredump_wait_s")
        self.log.info("Waiting %.1f seconds for CUDA coredumps before exiting." % wait)
        time.sleep(wait)

    def kill(self) -> None:
        """SIGKILL the children and main itself: exit status 137."""
        self.say_kill(True)
        kill_tree()

    def say_kill(self, itself: bool) -> None:
        """The line of every end."""
        pid = os.getpid()
        self.log.info("kill_process_tree called: parent_pid=%d, include_parent=%s, pid=%d" % (pid, itself, pid))

    def _schedulers(self) -> list[Any]:
        return [process for name, process in self.processes.items() if name != "detokenizer"]

    def watch_children(self) -> None:
        """Look once a second for a child that died; a thread's body."""
        while not self._wake.is_set():
            time.sleep(1)
            for name, process in self.processes.items():
                if not self._quitting and not self._wake.is_set() and process.exitcode:
                    self.log.error(
                        "Subprocess %s (pid=%d) crashed with exit code %d. Triggering SIGQUIT for cleanup..."
                        % (name, process.pid, process.exitcode)
                    )
                    os.kill(os.getpid(), signal.SIGQUIT)
                    return

    # SIGTERM and SIGINT

    def listen(self) -> None:
        """The HTTP server has its handlers now: both signals end it without a drain, and then take their default effect."""
        self.handlers[signal.SIGINT] = lambda: self._ask("SIGINT")
        self.handlers[signal.SIGTERM] = lambda: self._ask("SIGTERM")

    def drain_on_sigterm(self) -> None:
        """From the first request on SIGTERM drains."""
        self._handling = True
        self.handlers[signal.SIGTERM] = self._on_sigterm

    def _on_sigterm(self) -> None:
        assert self.frontend
        self.log.warning("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
        self.frontend.draining = True
        self._ask("drain")

    def _ask(self, name: str) -> None:
        self._asked.append(name)
        self._wake.set()

    def serve(self, server: Server, warm_up: threading.Thread) -> None:
        """Wait until somebody asks for the end, and end. A warm-up that is not through is waited for, though its port is closed."""
        # systemd sends SIGCONT after SIGTERM: then another thread may take both, which does not wake this one.
        while not self._wake.wait(0.5):
            pass
        if self._asked[0] == "drain":
            time.sleep(self.scenario.get("shutdown_s"))
            self._drain()
            self._stop_schedulers()
        else:
            time.sleep(self.scenario.get("interrupt_s"))
        self._stop_http(server)
        self.uvicorn.info("INFO:     Waiting for application shutdown.")
        warm_up.join()
        self.uvicorn.info("INFO:     Application shutdown complete.")
        self.uvicorn.info("INFO:     Finished server process [%d]" % os.getpid())
        self.say_kill(False)
        kill_tree(include_self=False)
        if self._asked[0] != "drain":
            self._default_effect(self._asked[0])
        os._exit(0)

    def _default_effect(self, name: str) -> None:
        """The HTTP server raises the signal again that it caught."""
        if name == "SIGTERM" or INTERRUPTIBLE:
            if name == "SIGINT":
                raw("Traceback (most recent call last):\nKeyboardInterrupt\n")
            number = signal.Signals[name]
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            time.sleep(5)

    def _drain(self) -> None:
        """Wait for requests in flight, without an upper bound; look every few seconds."""
        front = self.frontend
        assert front
        while True:
            if front.status == UNHEALTHY:
                self.log.error("Signal SIGTERM received while health check failed. Force exiting.")
                front.blocked = True
                self.dump()
                return
            rids = front.remaining()
            self.log.info(
                "Gracefully exiting... Remaining number of requests %d. Remaining requests remaining_rids=%s." % (len(rids), rids)
            )
            if not rids:
                return
            time.sleep(self.scenario.get("drain_poll_s"))

    def _stop_schedulers(self) -> None:
        """Ask the schedulers to end; kill what is left. The thread that serves is the one that waits."""
        front = self.frontend
        assert front
        front.blocked = True
        front.send({"kind": "shutdown"})
        deadline = time.monotonic() + self.scenario.get("scheduler_exit_s")
        while time.monotonic() < deadline and any(process.is_alive() for process in self._schedulers()):
            time.sleep(0.1)
        left = [process.pid for process in self._schedulers() if process.is_alive()]
        if left:
            self.log.warning("Schedulers still alive 15s after ShutdownReq, killing them before they released: %s" % left)
        self.say_kill(False)
        kill_tree(include_self=False)
        front.blocked = False

    def _stop_http(self, server: Server) -> None:
        """No new connections; wait for requests that are not answered, for as long as it takes."""
        front = self.frontend
        assert front
        self.uvicorn.info("INFO:     Shutting down")
        server.stop_accepting()
        time.sleep(0.1)
        if server.connections:
            self.uvicorn.info("INFO:     Waiting for connections to close. (CTRL+C to force quit)")
            while any(connection.connected() for connection in list(server.connections)) and not self._forced():
                time.sleep(0.2)
        if front.tasks and not self._forced():
            self.uvicorn.info("INFO:     Waiting for background tasks to complete. (CTRL+C to force quit)")
            while front.tasks and not self._forced():
                time.sleep(0.2)

    def _forced(self) -> bool:
        """A SIGINT beside an earlier signal."""
        return "SIGINT" in self._asked[1:]
