# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The main process: from the command line to a served port."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
import urllib.request
from typing import Any, Callable, NoReturn, Optional

from sglang.emulator import follower
from sglang.emulator import machine as machines
from sglang.emulator.args import ConfigError, parse, resolve, server_args_line
from sglang.emulator.detokenizer import run_detokenizer_process
from sglang.emulator.endpoints import Endpoints
from sglang.emulator.ends import Ends
from sglang.emulator.frontend import UP, Frontend
from sglang.emulator.http_server import Server
from sglang.emulator.log import Log, raw
from sglang.emulator.model_dir import read_config
from sglang.emulator.process import kill_tree, record_signals, sleeping_threads
from sglang.emulator.rank import Links, Spec, run_scheduler_process, tokenizer_lines
from sglang.emulator.scenario import Scenario, machine_from_environment
from sglang.emulator.watchdog import Progress, watch

GRAPH_PHASES = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")
UVICORN_STARTUP_FAILURE = 3


def main(argv: list[str]) -> None:
    """Run a server; never returns. Usage errors exit 2, refused settings 1."""
    machine = machine_from_environment()
    scenario = Scenario(machine)
    handlers: dict[int, Callable[[], None]] = {}
    record_signals(machine, scenario, "main", handlers)
    try:
        args = parse(argv)
        time.sleep(scenario.get("imports_s"))
        log = Log("", args["log_level"])
        model = read_config(args["model_path"])
        args, notes = resolve(args, model, machines.load(machine)["compute_cap"])
    except ConfigError as error:
        frame = '  File "sglang/srt/server_args.py", line 277, in resolve_once\n    run_resolution_pipeline(self)\n'
        raw("Traceback (most recent call last):\n%s%s: %s\n" % (frame, error.kind, error))
        sys.exit(1)
    for line in [*notes, server_args_line(args)]:
        log.info(line)
    progress = Progress()
    if not args["node_rank"]:
        _tokenizer(args, model, log, scenario, progress)
    Main(Spec(args, model, machine), scenario, log, handlers, progress).run()


def _tokenizer(args: dict[str, Any], model: dict[str, Any], log: Log, scenario: Scenario, progress: Progress) -> None:
    """What the first node's main loads beside its children."""
    for line in tokenizer_lines(args, model):
        log.info(line)
    if args["soft_watchdog_timeout"]:
        watch("TokenizerManager", progress, log, scenario, float(args["soft_watchdog_timeout"]), True)
    log.info("Using default HuggingFace chat template with detected content format: %s" % ("openai" if model["vision"] else "string"))


class Main:
    """The engine's main process after its arguments are resolved."""

    def __init__(
        self, spec: Spec, scenario: Scenario, log: Log, handlers: dict[int, Callable[[], None]], progress: Progress
    ) -> None:  # fmt: skip
        self.spec, self.args, self.scenario, self.log, self.handlers = spec, spec.args, scenario, log, handlers
        self.progress = progress
        self.uvicorn = Log("", spec.args["log_level_http"] or spec.args["log_level"])
        self.started = time.monotonic()
        self.processes: dict[str, Any] = {}
        self._reporters: list[Any] = []
        self.frontend: Optional[Frontend] = None
        self.ends = Ends(scenario, log, self.uvicorn, self.processes, handlers)

    def run(self) -> None:
        """Start the tree, wait, bind, warm up, serve, shut down."""
        machines.clean(self.spec.machine)
        sleeping_threads(self.scenario.get("threads"))
        ready = self.spawn()
        if self.args["node_rank"]:
            self.wait_ready(ready)
            follower.serve(self.args, self.log, self.handlers, self.processes)
            return
        info = self.wait_ready(ready)
        self._tell_timings(info)
        front = self.frontend = Frontend(
            self.args, self.spec.model, self.scenario, self.log, self.control, self.texts, info, self.first_request
        )  # fmt: skip
        self.ends.frontend = front
        threading.Thread(target=self.ends.watch_children, daemon=True).start()
        self.uvicorn.info("INFO:     Started server process [%d]" % os.getpid())
        self.ends.listen()
        self.uvicorn.info("INFO:     Waiting for application startup.")
        self.log.warning("Using fallback token IDs for yes/no (9693/2152)")
        self.uvicorn.info("INFO:     Application startup complete.")
        quiet = tuple(self.args["uvicorn_access_log_exclude_prefixes"] or ())
        pages = Endpoints(front, self.log, self.uvicorn, dict(os.environ))
        try:
            server = Server(self.args["host"], self.args["port"], pages, self.uvicorn, quiet)
        except OSError as error:
            self.port_taken(error)
        else:
            self.uvicorn.info("INFO:     Uvicorn running on http://%s:%d (Press CTRL+C to quit)" % (self.args["host"], self.args["port"]))
            server.serve_in_background()
            warm_up = threading.Thread(target=self.warm_up, daemon=True)
            warm_up.start()
            self.ends.serve(server, warm_up)

    def first_request(self) -> None:
        """From now on main's loop feeds its watchdog, and SIGTERM drains."""
        self.progress.initializing = False
        self.ends.drain_on_sigterm()

    # start-up

    def spawn(self) -> list[Any]:
        """Start the schedulers of this node and, on the first one, the detokenizer; the pipes on which schedulers report ready."""
        context = multiprocessing.get_context("spawn")
        pipe = context.Pipe
        count = self.args["tp_size"] // self.args["nnodes"]
        first = self.args["node_rank"] * count
        self.control, rank0_control = pipe()
        detokenizer_in, rank0_out = pipe(duplex=False)
        self.texts, detokenizer_out = pipe(duplex=False)
        # only ranks of the first node have rank 0 beside them
        pairs = [pipe() for _ in range(count - 1)] if not first else []
        ready: list[Any] = []
        mine: list[Any] = [rank0_control, detokenizer_in, rank0_out, detokenizer_out]
        for number in range(count):
            end, reporter = pipe(duplex=False)
            ready.append(end)
            # main keeps its copy of the other end, as the real one does: a dead child closes nothing
            self._reporters.append(reporter)
            if first:
                links = Links(reporter, [])
            elif number == 0:
                links = Links(reporter, [pair[0] for pair in pairs], rank0_control, rank0_out)
            else:
                links = Links(reporter, [pairs[number - 1][1]])
            process = context.Process(target=run_scheduler_process, args=(first + number, self.spec, links))
            process.start()
            self.processes["scheduler_%d" % number] = process
            mine += links.peers
        if not first:
            process = context.Process(target=run_detokenizer_process, args=(self.spec, detokenizer_in, detokenizer_out))
            process.start()
            self.processes["detokenizer"] = process
        for connection in mine:
            connection.close()
        return ready

    def wait_ready(self, ready: list[Any]) -> dict[str, Any]:
        """Wait for the schedulers one after the other; the first one's report. One that is dead ends the server."""
        reports: list[dict[str, Any]] = []
        for end in ready:
            while not end.poll(self.scenario.get("ready_poll_s")):
                for number in range(len(ready)):
                    process = self.processes["scheduler_%d" % number]
                    if not process.is_alive():
                        self.child_died(number, process)
            reports.append(end.recv())
        return reports[0]

    def child_died(self, number: int, process: Any) -> NoReturn:
        """A scheduler ended without a word before it was ready. One that hit an exception has sent SIGQUIT."""
        self.ends.say_kill(False)
        kill_tree(include_self=False)
        raw(
            "Traceback (most recent call last):\nRuntimeError: Rank %d scheduler died during initialization (exit code: %s). If exit code "
            "is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.\n" % (number, process.exitcode)
        )
        os._exit(1)

    def _tell_timings(self, info: dict[str, Any]) -> None:
        """Log the start-up timings and keep them for the pages."""
        timings = info["timings"]
        startup = info["startup_time"] = {
            "load_weight": timings.get("load_weight", 0.0),
            "kv_cache_allocation": timings.get("kv_cache_allocation", 0.0),
            "scheduler_e2e": timings["scheduler_e2e"],
            "cuda_graph": {phase: timings.get("cuda_graph", 0.0) if phase == "decode" else 0.0 for phase in GRAPH_PHASES},
            "tokenizer_e2e": time.monotonic() - self.started,
        }
        info["accelerator"] = None if self.args["device"] == "cpu" else machines.load(self.spec.machine)["gpu_model"]
        graphs = ", ".join("%s=%.2f" % item for item in startup["cuda_graph"].items())
        self.log.info(
            "Engine startup timings (s): load_weight=%.2f, kv_cache_allocation=%.2f, scheduler_e2e=%.2f, cuda_graph={%s}, "
            "tokenizer_e2e=%.2f"
            % (startup["load_weight"], startup["kv_cache_allocation"], startup["scheduler_e2e"], graphs, startup["tokenizer_e2e"])
        )

    # warm-up

    def warm_up(self) -> None:
        """The server's own first request; then ready. Failure kills the server."""
        front = self.frontend
        assert front
        if not self.args["skip_server_warmup"]:
            try:
                self._wait_for_own_port()
                path, body = self._warm_up_request()
                self.request("POST", path, body, 600)
            except (OSError, ValueError) as error:
                self.log.error("Initialization failed. warmup error: Traceback (most recent call last):\n%s\n" % error)
                self.ends.kill()
        front.status = UP
        try:
            self.request("POST", "/freeze_gc", {}, 10)
        except (OSError, ValueError):
            self.log.warning("post-warmup freeze_gc failed")
        self.log.info("The server is fired up and ready to roll!")

    def _wait_for_own_port(self) -> None:
        """Ask our own address for its model once a second, 120 times. OSError or ValueError with the last answer."""
        deadline = time.monotonic() + self.scenario.get("port_wait_s")
        while True:
            time.sleep(self.scenario.get("warmup_poll_s"))
            try:
                self.request("GET", "/model_info", None, 5)
            except (OSError, ValueError) as problem:
                if time.monotonic() > deadline:
                    code = getattr(problem, "code", None)
                    raise ValueError("AssertionError: res=<Response [%s]>, res.text=''" % code if code else str(problem)) from None
            else:
                return

    def _warm_up_request(self) -> tuple[str, dict[str, Any]]:
        if not self.spec.model["vision"]:
            return "/generate", {"text": "The capital city of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
        content = [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
            {"type": "text", "text": "Describe the image."},
        ]
        messages = [{"role": "user", "content": content}]
        return "/v1/chat/completions", {"model": self.args["served_model_name"], "messages": messages, "max_tokens": 8}

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
        """The port is held. The warm-up runs all the same: it succeeds against another server, and fails against a stranger."""
        address = (self.args["host"], self.args["port"])
        self.uvicorn.error(
            "ERROR:    [Errno %s] error while attempting to bind on address %s: address already in use" % (error.errno, address)
        )
        self.uvicorn.info("INFO:     Waiting for application shutdown.")
        self.warm_up()
        self.uvicorn.info("INFO:     Application shutdown complete.")
        self.ends.say_kill(False)
        kill_tree(include_self=False)
        os._exit(UVICORN_STARTUP_FAILURE)
