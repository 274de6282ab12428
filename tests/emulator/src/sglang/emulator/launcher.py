# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The main process: from the command line to a served port, and every way it ends."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import urllib.request
from multiprocessing.connection import wait
from typing import Any, Callable, Optional

from sglang.emulator import machine as machines
from sglang.emulator.args import ConfigError, parse, resolve, server_args_line
from sglang.emulator.detokenizer import run_detokenizer_process
from sglang.emulator.frontend import UNHEALTHY, UP, Frontend
from sglang.emulator.http_server import Server, serve_in_background
from sglang.emulator.log import Log, raw
from sglang.emulator.model_dir import read_config
from sglang.emulator.process import kill_tree, record_signals, sleeping_threads
from sglang.emulator.rank import Links, Spec, run_scheduler_process, tokenizer_lines
from sglang.emulator.scenario import Scenario, machine_from_environment


def main(argv: list[str]) -> None:
    """Run a server; never returns. Usage errors exit 2, refused settings 1."""
    args = parse(argv)
    machine = machine_from_environment()
    scenario = Scenario(machine)
    handlers: dict[int, Callable[[], None]] = {}
    record_signals(machine, scenario, "main", handlers)
    time.sleep(scenario.get("imports_s"))
    log = Log("", args["log_level"])
    try:
        model = read_config(args["model_path"])
        args, notes = resolve(args, model, machines.load(machine)["compute_cap"])
    except ConfigError as error:
        raw("Traceback (most recent call last):\n%s: %s\n" % (error.kind, error))
        sys.exit(1)
    for line in [*notes, server_args_line(args), *tokenizer_lines(args, model)]:
        log.info(line)
    log.info("Using default HuggingFace chat template with detected content format: openai")
    Main(Spec(args, model, machine), scenario, log, handlers).run()


class Main:
    """The engine's main process after its arguments are resolved."""

    def __init__(self, spec: Spec, scenario: Scenario, log: Log, handlers: dict[int, Callable[[], None]]) -> None:
        self.spec, self.args, self.scenario, self.log, self.handlers = spec, spec.args, scenario, log, handlers
        self.uvicorn = Log("", spec.args["log_level_http"] or spec.args["log_level"])
        self.started = time.monotonic()
        self.processes: dict[str, Any] = {}
        self.frontend: Optional[Frontend] = None
        self.stop = threading.Event()
        self.stop_signal = ""
        self._quitting = False
        handlers[signal.SIGQUIT] = self.on_quit

    def run(self) -> None:
        """Start the tree, wait, bind, warm up, serve, shut down."""
        machines.clean(self.spec.machine)
        sleeping_threads(self.scenario.get("threads"))
        ready = self.spawn()
        info = self.wait_ready(ready)
        timings = info["timings"]
        info["startup_s"] = round(time.monotonic() - self.started, 2)
        info["accelerator"] = machines.load(self.spec.machine)["gpu_model"]
        self.log.info(
            "Engine startup timings (s): load_weight=%.2f, kv_cache_allocation=%.2f, scheduler_e2e=%.2f, cuda_graph={'decode': %.2f}, "
            "tokenizer_e2e=%.2f"
            % (timings.get("load_weight", 0), timings.get("kv_cache_allocation", 0), info["startup_s"], timings.get("cuda_graph", 0), 0.4)
        )
        self.frontend = Frontend(
            self.args, self.spec.model, self.scenario, self.log, self.control, self.texts, info, self.on_first_request
        )  # fmt: skip
        threading.Thread(target=self.watch_children, daemon=True).start()
        self.uvicorn.info("INFO:     Started server process [%d]" % os.getpid())
        self.uvicorn.info("INFO:     Waiting for application startup.")
        self.uvicorn.info("INFO:     Application startup complete.")
        try:
            server = Server(self.args["host"], self.args["port"], self.frontend, self.log, self.uvicorn, dict(os.environ))
        except OSError as error:
            self.port_taken(error)
        else:
            self.uvicorn.info("INFO:     Uvicorn running on http://%s:%d (Press CTRL+C to quit)" % (self.args["host"], self.args["port"]))
            serve_in_background(server)
            threading.Thread(target=self.warm_up, daemon=True).start()
            self.handlers.setdefault(signal.SIGINT, lambda: self.ask_stop("SIGINT"))
            while not self.stop.wait(3600):
                pass
            self.shut_down()

    # start-up

    def spawn(self) -> dict[str, Any]:
        """Start the schedulers and the detokenizer; the pipes that report ready, by process name."""
        context = multiprocessing.get_context("spawn")
        pipe = context.Pipe
        tp = self.args["tp_size"]
        self.control, rank0_control = pipe()
        detokenizer_in, rank0_out = pipe(duplex=False)
        self.texts, detokenizer_out = pipe(duplex=False)
        pairs = [pipe() for _ in range(tp - 1)]
        ready, mine = {}, [rank0_control, detokenizer_in, rank0_out, detokenizer_out]
        for rank in range(tp):
            ready["scheduler_%d" % rank], reporter = pipe(duplex=False)
            if rank == 0:
                links = Links(reporter, [pair[0] for pair in pairs], rank0_control, rank0_out)
            else:
                links = Links(reporter, [pairs[rank - 1][1]])
            process = context.Process(target=run_scheduler_process, args=(rank, self.spec, links))
            process.start()
            self.processes["scheduler_%d" % rank] = process
            mine += [reporter, *links.peers]
        ready["detokenizer"], reporter = pipe(duplex=False)
        process = context.Process(target=run_detokenizer_process, args=(self.spec, detokenizer_in, detokenizer_out, reporter))
        process.start()
        self.processes["detokenizer"] = process
        for end in [*mine, reporter]:
            end.close()
        return ready

    def wait_ready(self, ready: dict[str, Any]) -> dict[str, Any]:
        """Wait for every child; rank 0's report. A dead child ends the server."""
        waiting: dict[Any, str] = {end: name for name, end in ready.items()}
        info: dict[str, Any] = {}
        while waiting:
            for end in wait([*waiting], 5.0):
                name = waiting.pop(end)
                try:
                    message: Any = end.recv()  # type: ignore[union-attr,call-arg]
                except EOFError:
                    self.child_died(name)
                if name == "scheduler_0":
                    info = message
        return info

    def child_died(self, name: str) -> None:
        """A child ended before it was ready. One that hit an exception has sent SIGQUIT already."""
        process = self.processes[name]
        process.join()
        time.sleep(0.2)
        text = "Initialization failed. Please see the error messages above."
        if name.startswith("scheduler_") and process.exitcode:
            text = (
                "Rank %s scheduler died during initialization (exit code: %s). If exit code is -9 (SIGKILL), a common cause is the OS OOM "
                "killer. Run `dmesg -T | grep -i oom` to check." % (name[10:], process.exitcode)
            )
        raw("Traceback (most recent call last):\nRuntimeError: %s\n" % text)
        kill_tree()

    def warm_up(self) -> None:
        """The server's own first request; then ready. Failure kills the server."""
        if not self.args["skip_server_warmup"]:
            try:
                self.request("GET", "/model_info", None, 5)
                if self.spec.model["vision"]:
                    content = [
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
                        {"type": "text", "text": "Describe the image."},
                    ]
                    body: dict[str, Any] = {
                        "model": self.args["served_model_name"],
                        "messages": [{"role": "user", "content": content}],
                        "max_tokens": 8,
                    }
                    self.request("POST", "/v1/chat/completions", body, 600)
                else:
                    body = {"text": "The capital city of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
                    self.request("POST", "/generate", body, 600)
                self.request("POST", "/freeze_gc", {}, 60)
            except (OSError, ValueError) as error:
                self.warm_up_failed(str(error))
        assert self.frontend
        self.frontend.status = UP
        self.log.info("The server is fired up and ready to roll!")

    def warm_up_failed(self, why: str) -> None:
        """Log and kill the tree."""
        self.log.error("Initialization failed. warmup error: Traceback (most recent call last):\n" + why)
        kill_tree()

    def request(self, method: str, path: str, body: Any, timeout: float) -> Any:
        """One HTTP request to our own address, straight, without proxies."""
        host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(self.args["host"], self.args["host"])
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request("http://%s:%d%s" % (host, self.args["port"], path), data, method=method)
        request.add_header("Content-Type", "application/json")
        if self.args["api_key"]:
            request.add_header("Authorization", "Bearer %s" % self.args["api_key"])
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout) as answer:
            return answer.read()

    def port_taken(self, error: OSError) -> None:
        """The port is held: by another server (warm-up against it, then exit 3) or by a stranger (long wait, then SIGKILL)."""
        address = (self.args["host"], self.args["port"])
        self.uvicorn.error(
            "ERROR:    [Errno %s] error while attempting to bind on address %s: address already in use" % (error.errno, address)
        )
        self.uvicorn.info("INFO:     Waiting for application shutdown.")
        deadline, why = time.monotonic() + self.scenario.get("port_wait_s"), ""
        while time.monotonic() < deadline:
            try:
                self.request("GET", "/model_info", None, 5)
                break
            except (OSError, ValueError) as problem:
                why = "AssertionError: res=%s" % problem
                time.sleep(1)
        else:
            self.warm_up_failed(why)
        self.uvicorn.info("INFO:     Application shutdown complete.")
        self.warm_up()
        kill_tree(include_self=False)
        os._exit(3)

    # the ends

    def on_quit(self) -> None:
        """SIGQUIT: a child failed."""
        if self._quitting:
            return
        self._quitting = True
        if self.frontend is None:
            self.log.error("Received sigquit from a child process. It usually means the child failed.")
            kill_tree()
        assert self.frontend
        self.frontend.dying = True
        self.log.error("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        time.sleep(self.scenario.get("crash_wait_s"))
        if not self.processes["detokenizer"].is_alive() and self.processes["scheduler_0"].is_alive():
            self.log.error("Pyspy dump for PID %d:" % self.processes["scheduler_0"].pid)
            self.log.error("Waiting %.1f seconds for CUDA coredumps" % self.scenario.get("coredump_wait_s"))
            time.sleep(self.scenario.get("coredump_wait_s"))
        kill_tree()

    def watch_children(self) -> None:
        """Look once a second for a child that died."""
        while not self.stop.is_set():
            time.sleep(1)
            for name, process in self.processes.items():
                if not self._quitting and not self.stop.is_set() and process.exitcode:
                    self.log.error(
                        "Subprocess %s (pid=%d) crashed with exit code %d. Triggering SIGQUIT for cleanup..."
                        % (name, process.pid, process.exitcode)
                    )
                    os.kill(os.getpid(), signal.SIGQUIT)
                    return

    def on_first_request(self) -> None:
        """From now on SIGTERM drains."""
        self.handlers.setdefault(signal.SIGTERM, lambda: self.ask_stop("SIGTERM"))

    def ask_stop(self, name: str) -> None:
        """Remember why and wake the main thread."""
        self.stop_signal = self.stop_signal or name
        self.stop.set()

    def shut_down(self) -> None:
        """Drain (SIGTERM), stop the schedulers, let the last HTTP calls end, exit 0."""
        front, begin = self.frontend, time.monotonic()
        assert front
        if self.stop_signal == "SIGTERM":
            self.log.info("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
            front.draining = True
            self._drain(front)
        front.send({"kind": "shutdown"})
        deadline = time.monotonic() + 15
        schedulers = [process for name, process in self.processes.items() if name != "detokenizer"]
        while any(process.is_alive() for process in schedulers) and time.monotonic() < deadline:
            time.sleep(0.05)
        alive = [process.pid for process in schedulers if process.is_alive()]
        if alive:
            self.log.warning("Schedulers still alive 15s after ShutdownReq, killing them: %s" % alive)
        kill_tree(include_self=False)
        self.uvicorn.info("INFO:     Shutting down")
        if front.active_http:
            self.uvicorn.info("INFO:     Waiting for background tasks to complete. (CTRL+C to force quit)")
        while front.active_http:
            time.sleep(0.1)
        wanted = self.scenario.get("shutdown_s") if self.stop_signal == "SIGTERM" else 0.6
        time.sleep(max(0.0, begin + wanted - time.monotonic()))
        for line in ("Waiting for application shutdown.", "Application shutdown complete.", "Finished server process [%d]" % os.getpid()):
            self.uvicorn.info("INFO:     " + line)
        os._exit(0)

    def _drain(self, front: Frontend) -> None:
        """Wait for requests in flight, without an upper bound."""
        if front.status == UNHEALTHY:
            self.log.error("Signal SIGTERM received while health check failed. Force exiting.")
            return
        while True:
            rids = front.remaining()
            self.log.info(
                "Gracefully exiting... Remaining number of requests %d. Remaining requests remaining_rids=%s." % (len(rids), rids)
            )
            if not rids:
                return
            for _ in range(50):
                time.sleep(0.1)
                if not front.remaining():
                    break
