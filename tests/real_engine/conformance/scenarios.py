# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probes: each scenario starts servers, does something to them and writes down what is seen. Data and small functions.

A scenario is told what it runs on only by its target. Expected verdicts stand beside what was done, with the reason.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Union

from conformance import looks, verdicts
from conformance.target import COMMON, Mark, Server, Target, stranger, until

START_S = 900.0  # a start needs 35 s alone, and minutes on a machine that is full
CHAT = {"model": "x", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
TEXT = {"model": "x", "prompt": "hi", "max_tokens": 4}
NATIVE = {"text": "hi", "sampling_params": {"max_new_tokens": 4}}
LONG = "word " * 5000
# Requests that a server answers whatever its scheduler does, and the two kinds that go through it.
PAGES = {path: {"path": path} for path in ("/v1/models", "/model_info", "/v1/loads", "/ready", "/ping", "/nonsense", "/metrics")}
THROUGH = {
    "/get_server_info": {"path": "/get_server_info"},
    "/v1/chat/completions": {"path": "/v1/chat/completions", "body": CHAT},
}
Wanted = Union[str, tuple[str, ...]]
SCENARIOS: dict[str, Callable[[World], None]] = {}


class World:
    """One scenario on one target: its servers, what was seen, and the verdicts with what they should have been."""

    def __init__(
        self, name: str, target: Target, folder: Path, ports: list[int], judged: bool, release: Callable[[], None] = lambda: None
    ) -> None:
        self.name, self.target, self.folder, self.ports, self.judged = name, target, folder, ports, judged
        #: call it when nothing is left but to wait: another scenario may start its servers
        self.release = release
        folder.mkdir(parents=True)
        self.seen: dict[str, Any] = {}
        self.verdicts: list[dict[str, Any]] = []
        self.servers: list[Server] = []
        self._asking: list[threading.Thread] = []

    def start(
        self, *arguments: str, port: int = 0, model: Path | None = None, tp: int = 1, entry: str = "serve", **environment: str
    ) -> Server:
        """Start a server on port number ``port`` of ours; ``arguments`` come last."""
        number = self.ports[port]
        words = ["--model-path", str(model or self.target.model), "--port", str(number), "--tp-size", str(tp), *COMMON, *arguments]
        if tp > 1:
            environment.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "|".join(str(rank % (os.cpu_count() or 1)) for rank in range(tp)))
        folder = self.folder / f"{self.name}{len(self.servers)}"
        server = self.target.start(words, folder, number, environment, entry)
        self.servers.append(server)
        return server

    def verdict(
        self, moment: str, server: Server, state: str | tuple[str, ...], action: str | tuple[str, ...], why: str, **more: Any
    ) -> None:
        """Ask gather_diag now. ``state`` and ``action`` are what is right, ``why`` says why."""
        if not self.judged:
            return
        wanted = {"state": (state,) if isinstance(state, str) else state, "action": (action,) if isinstance(action, str) else action}
        if not server.running():
            more.setdefault("window", 1)  # nothing is left that could move
        found = verdicts.verdict(server, **more)
        row = {
            "moment": moment,
            "found": {key: found[key] for key in ("state", "phase", "cause", "confidence", "action")},
            "summary": found["summary"],
            "wanted": wanted,
            "why": why,
            "right": all(found[key] in values for key, values in wanted.items()),
        }
        self.verdicts.append(row)
        file = self.folder / (re.sub(r"\W+", "_", moment) + ".json")
        file.write_text(json.dumps({**row, "verdict": found}, indent=1))

    def verdict_beside(self, *arguments: Any, **more: Any) -> None:
        """Ask while the scenario goes on."""
        thread = threading.Thread(target=self.verdict, args=arguments, kwargs=more)
        thread.start()
        self._asking.append(thread)

    def asked(self) -> None:
        """Wait for the questions asked beside."""
        for thread in self._asking:
            thread.join()
        self._asking = []

    def close(self) -> None:
        """End every server."""
        for server in self.servers:
            server.close()
        self.asked()


def scenario(function: Callable[[World], None]) -> Callable[[World], None]:
    """Register a scenario under its name."""
    SCENARIOS[function.__name__] = function
    return function


# ---- starts


def bring_up(world: World, server: Server, asks: tuple[float, ...] = (), warm: bool = False) -> dict[str, Any]:
    """Watch a start up to ready: trees at its moments, when the port opens, what HTTP says while it warms up, milestones.

    ``asks``: seconds after the start at which gather_diag is asked, on the real engine, whose starts are long enough.
    """
    seen: dict[str, Any] = {"trees": {}, "port": {"refused while": []}}
    trees, port = seen["trees"], seen["port"]
    pending = [moment for moment in asks if world.target.name == "real"]
    opened, end = False, time.monotonic() + START_S
    while time.monotonic() < end and server.running():
        if pending and time.monotonic() - server.started >= pending[0]:
            moment = pending.pop(0)
            why = "a start that goes on"
            world.verdict_beside(f"start, {moment:.0f} s", server, ("starting", "serving"), ("wait", "none"), why, probe="none")
        text = server.log()
        late = "Init parallel begin" in text
        if not opened:
            opened = server.open()
            moment = _moment(server, text)
            if not opened and moment and moment not in port["refused while"]:
                port["refused while"].append(moment)
            if opened:
                port["open before the model is up"] = "max_total_num_tokens=" not in server.log()
                if warm:
                    seen["warm-up"] = _warm_up(server)
            elif moment and moment not in trees:
                trees[moment] = looks.tree(server)
        if "fired up and ready to roll" in text:
            break
        time.sleep(0.03 if late else 0.12)
    if "fired up and ready to roll" not in server.log():
        raise RuntimeError(f"{world.name}: the server did not come up: {server.log()[-3000:]}")
    trees["ready"] = looks.tree(server)
    seen["states"] = looks.states(server) and sorted(looks.states(server))
    seen["milestones"] = looks.milestones(server.log())
    world.asked()
    return seen


def _moment(server: Server, text: str) -> str:
    """importing (main alone), spawned (children without titles), titled (all schedulers have their titles), or nothing of these."""
    titles = [row["title"] for row in server.processes()[1:]]
    if not titles:
        return "importing"
    if all("multiprocessing" in title for title in titles) and sum("spawn_main" in title for title in titles) > 1:
        return "spawned"
    wanted = [title for title in titles if title.startswith("sglang::")]
    return "titled" if len(wanted) == len(titles) - 1 and len(wanted) > 1 else ""


def _warm_up(server: Server) -> dict[str, Any]:
    requests = {**{f"GET {path}": {"path": path} for path in ("/health", "/health_generate")}, **PAGES}
    seen = looks.together(server.port, {name: {**arguments, "timed": False} for name, arguments in requests.items()})
    still = "fired up and ready to roll" not in server.log()
    return seen if still else {"missed": True}


def ready(world: World, server: Server, asks: tuple[float, ...] = ()) -> None:
    """Wait until a server serves; its start was looked at elsewhere."""
    pending = [moment for moment in asks if world.target.name == "real"]
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.running() and "fired up and ready to roll" not in server.log():
        if pending and time.monotonic() - server.started >= pending[0]:
            moment = pending.pop(0)
            world.verdict_beside(
                f"start, {moment:.0f} s", server, ("starting", "serving"), ("wait", "none"), "a start that goes on", probe="none"
            )
        time.sleep(0.2)
    if "fired up and ready to roll" not in server.log():
        raise RuntimeError(f"{world.name}: the server did not come up: {server.log()[-3000:]}")


def after(server: Server, mark: Mark | None, seconds: float, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """How a server ends: exit status, time since ``mark``, milestones since then, what is left of it."""
    status = server.exit_status(seconds)
    seen: dict[str, Any] = {"exit": status if status is not None else "still runs"}
    if status is not None and mark:
        seen["took"] = looks.duration(server.ended_at - mark.at)
    gone = until(lambda: not server.left(), 3)
    seen["left"] = [] if gone else [row["title"] for row in looks.tree(server)]
    return {**seen, "milestones": looks.milestones(server.log(mark), leave_out)}


# ---- one server, all endpoints, stopped processes


@scenario
def endpoints(world: World) -> None:
    """Start, warm-up, all endpoints, then SIGINT."""
    server = world.start("--enable-metrics")
    world.seen["start"] = bring_up(world, server, asks=(1, 7, 14, 20, 26), warm=True)
    world.seen["serving"] = _serving(server)
    world.verdict("serving", server, "serving", "none", "it answers")
    mark = server.mark()
    server.signal(signal.SIGINT)
    world.seen["interrupted"] = after(server, mark, 30)
    world.verdict("interrupted", server, "stopped", "none", "somebody ended it in good order")


@scenario
def stopped_processes(world: World) -> None:
    """Load on every core, each process stopped and continued, then the scheduler killed."""
    server = world.start("--enable-metrics")
    ready(world, server, asks=(3, 18))
    _under_load(world, server)
    world.seen["stopped scheduler"] = _stopped(world, server, "sglang::scheduler", health=("/health", "/health_generate"))
    world.seen["stopped detokenizer"] = _stopped(world, server, "sglang::detokenizer", health=("/health",))
    world.seen["stopped main"] = _stopped(world, server, "", health=())
    mark = server.mark()
    server.signal(signal.SIGKILL, "sglang::scheduler")
    world.seen["killed scheduler"] = after(server, mark, 60)
    world.verdict("scheduler killed", server, "crashed", "restart", "nothing lives, and no configuration is to blame")


def _serving(server: Server) -> dict[str, Any]:
    port = server.port
    seen: dict[str, Any] = {f"GET {path}": looks.quick(port, path) for path in PAGES if path != "/metrics"}
    seen["GET /health"] = looks.quick(port, "/health", timeout=30)
    seen["GET /health_generate"] = looks.quick(port, "/health_generate", timeout=30)
    for path in ("/server_info", "/get_server_info", "/get_model_info"):
        seen[f"GET {path}"] = looks.ask(port, path, timeout=30, timed=False)
    for path in ("server_info", "model_info"):
        seen[f"GET /get_{path}"]["shape"] = "same" if seen[f"GET /get_{path}"]["shape"] == seen[f"GET /{path}"]["shape"] else "other"
    for path in ("/health", "/v1/models", "/metrics"):
        seen[f"POST {path}"] = looks.quick(port, path, method="POST")
    for path in ("/generate", "/v1/completions", "/v1/chat/completions"):
        seen[f"PUT {path}"] = looks.quick(port, path, method="PUT")
        seen[f"bad JSON to {path}"] = looks.quick(port, path, raw=b"{bad")
        seen[f"empty JSON to {path}"] = looks.quick(port, path, raw=b"{}")
        seen[f"no body to {path}"] = looks.quick(port, path, method="POST")
    bodies: dict[str, tuple[str, dict[str, Any]]] = {
        "generate": ("/generate", NATIVE),
        "completion": ("/v1/completions", TEXT),
        "chat": ("/v1/chat/completions", CHAT),
    }
    for name, (path, body) in bodies.items():
        seen[name] = looks.ask(port, path, body, timeout=60, timed=False)
        seen[f"{name}, streamed"] = looks.stream(port, path, body if name != "generate" else {**body, "text": "fox"})
        if name != "generate":
            seen[f"{name}, streamed with usage"] = looks.stream(port, path, {**body, "stream_options": {"include_usage": True}})
    seen["generate, too long"] = looks.ask(port, "/generate", {"text": LONG}, timed=False)
    seen["completion, too long"] = looks.ask(port, "/v1/completions", {**TEXT, "prompt": LONG}, timed=False)
    seen["chat, too long"] = looks.ask(port, "/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": LONG}]}, timed=False)
    seen["chat, too many tokens"] = looks.ask(port, "/v1/chat/completions", {**CHAT, "max_tokens": 100000}, timed=False)
    seen["chat, no tokens"] = looks.ask(port, "/v1/chat/completions", {**CHAT, "max_tokens": 0}, timed=False)
    seen["metrics"] = looks.metrics(port)
    return seen


def _under_load(world: World, server: Server) -> None:
    """Requests on all cores, and two looks meanwhile."""
    if not world.judged:
        return
    stop = threading.Event()

    def client() -> None:
        while not stop.is_set():
            looks.ask(
                server.port, "/generate", {"text": "once upon", "sampling_params": {"max_new_tokens": 64, "ignore_eos": True}}, timeout=120
            )

    clients = [threading.Thread(target=client) for _ in range(4 * (os.cpu_count() or 1))]
    for thread in clients:
        thread.start()
    try:
        time.sleep(2)
        for look in ("first", "second"):
            world.verdict(f"under load, {look} look", server, "serving", "none", "every core is busy with requests")
    finally:
        stop.set()
        for thread in clients:
            thread.join()


def _stopped(world: World, server: Server, title: str, health: tuple[str, ...]) -> dict[str, Any]:
    """SIGSTOP, look, SIGCONT, look. ``health``: endpoints asked beside nothing else."""
    time.sleep(3)  # nothing of earlier requests is on its way any more
    who, mark = title or "main", server.mark()
    server.signal(signal.SIGSTOP, title)
    seen: dict[str, Any] = {"state": until(lambda: _state(server, title) == "T", 5) and "T"}
    if title != "sglang::detokenizer":
        # Beside a detokenizer that is stopped any reply of the scheduler would count as life for /health.
        seen["side by side"] = _side_by_side(server)
    requests = {path: {"path": path, "timeout": 30.0} for path in health}
    seen.update({f"{path} alone": answer for path, answer in looks.together(server.port, requests).items()})
    if title == "sglang::detokenizer":
        seen["side by side"] = _side_by_side(server)
    world.verdict(f"{who} stopped", server, "stuck", "restart", "a stopped process holds everybody, and nobody continues it")
    server.signal(signal.SIGCONT, title)
    seen["continued"] = until(lambda: looks.ask(server.port, "/health", timeout=30)["status"] == 200, 60) and looks.quick(
        server.port, "/ready"
    )
    seen["milestones"] = looks.milestones(server.log(mark), leave_out=("prefill", "decode", "own_model_info", "own_generate"))
    return seen


def _side_by_side(server: Server) -> dict[str, Any]:
    return looks.together(server.port, {name: {**arguments, "shaped": False} for name, arguments in {**PAGES, **THROUGH}.items()})


def _state(server: Server, title: str) -> str:
    return next((row["state"] for row in server.processes() if (row["title"] == title if title else row["pid"] == server.pid)), "")


# ---- ends


REQUESTS = ("prefill", "decode", "own_generate")


def _tokens(number: int) -> dict[str, Any]:
    return {"text": "tell me", "sampling_params": {"max_new_tokens": number, "ignore_eos": True}}


@scenario
def drain(world: World) -> None:
    """SIGTERM while a request runs."""
    server = world.start()
    ready(world, server, asks=(10,))
    # As many tokens as take half a minute here and now.
    began = time.monotonic()
    looks.ask(server.port, "/generate", _tokens(48), timeout=300)
    body = _tokens(max(60, min(1900, int(30 * 48 / (time.monotonic() - began)))))
    answer: dict[str, Any] = {}
    client = threading.Thread(target=lambda: answer.update(looks.ask(server.port, "/generate", body, timeout=600, timed=False)))
    client.start()
    time.sleep(2)
    mark = server.mark()
    server.signal(signal.SIGTERM)
    server.wait_log("Gracefully exiting", 20, mark)
    seen = world.seen["draining"] = {
        "pages": {
            path: looks.ask(server.port, path, timed=False, shaped=False)
            for path in ("/health", "/ready", "/v1/models", "/v1/loads", "/nonsense")
        },
        "tree": looks.tree(server),
    }
    world.verdict("draining", server, "stopped", "wait", "it was asked to stop and finishes its requests")
    seen["request was running all the time"] = client.is_alive()
    client.join()
    seen["answer"] = answer["status"]
    world.seen["end"] = after(server, mark, 60, leave_out=REQUESTS)
    del world.seen["end"]["took"]
    world.verdict("drained", server, "stopped", "none", "it was asked to stop, and did")


@scenario
def term_while_asked(world: World) -> None:
    """SIGTERM while a request hangs that is no generation."""
    server = world.start()
    ready(world, server, asks=(16,))
    server.signal(signal.SIGSTOP, "sglang::scheduler")
    held = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    held.request("GET", "/server_info")
    time.sleep(1)
    mark = server.mark()
    server.signal(signal.SIGTERM)
    world.release()
    seen = world.seen["asked to stop"] = after(server, mark, 58)
    seen["tree"] = looks.tree(server)
    seen["/v1/models"] = looks.ask(server.port, "/v1/models", timed=False, shaped=False)
    world.verdict("hangs in its shutdown", server, ("stuck", "crashed"), "restart", "its children are gone, and nothing will end it")
    held.close()
    world.seen["the client hangs up"] = after(server, mark, 15)
    server.signal(signal.SIGINT)
    world.seen["interrupted"] = after(server, mark, 15)
    del world.seen["interrupted"]["took"]


@scenario
def term_with_hanging_generation(world: World) -> None:
    """SIGTERM while a generation hangs: the drain has no bound. Then the client hangs up."""
    server = world.start()
    ready(world, server, asks=(4, 22))
    server.signal(signal.SIGSTOP, "sglang::scheduler")
    held = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    held.request("POST", "/generate", json.dumps(NATIVE), {"Content-Type": "application/json"})
    time.sleep(1)
    mark = server.mark()
    server.signal(signal.SIGTERM)
    world.release()
    seen = world.seen["asked to stop"] = after(server, mark, 20)
    seen["tree"] = looks.tree(server)
    seen["/health"] = looks.ask(server.port, "/health", timed=False)
    world.verdict("hangs in its drain", server, "stuck", "restart", "a stopped process keeps it from finishing what it waits for")
    held.close()
    world.seen["the client hangs up"] = after(server, mark, 45)


@scenario
def kill_main(world: World) -> None:
    """SIGKILL of main."""
    server = world.start()
    ready(world, server, asks=(12,))
    mark = server.mark()
    server.signal(signal.SIGKILL)
    world.seen["end"] = after(server, mark, 10)
    world.verdict("main killed", server, "crashed", "restart", "it ended without a word, and nothing is left of it")


@scenario
def kill_detokenizer(world: World) -> None:
    """SIGKILL of the detokenizer: a minute half dead."""
    server = world.start()
    ready(world, server)
    mark = server.mark()
    server.signal(signal.SIGKILL, "sglang::detokenizer")
    server.wait_log("SIGQUIT received", 30, mark)
    world.verdict_beside("detokenizer killed, at once", server, "crashed", "restart", "the engine says that it goes down")
    server.wait_log("Waiting 60.0 seconds", 60, mark)
    requests = {path: {"path": path, "timed": False, "shaped": False} for path in ("/v1/models", "/health", "/ready", "/nonsense")}
    world.seen["half dead"] = {**looks.together(server.port, requests), "tree": looks.tree(server)}
    world.asked()
    world.release()
    world.verdict("detokenizer killed", server, "crashed", "restart", "the engine says that it goes down; the minute is a wait for dumps")
    world.seen["end"] = after(server, mark, 120)
    world.verdict("ended after its detokenizer was killed", server, "crashed", "restart", "nothing lives")


@scenario
def term_in_start(world: World) -> None:
    """SIGTERM while the children import."""
    server = world.start()
    until(lambda: _moment(server, "") == "spawned", START_S, 0.03)
    mark = server.mark()
    server.signal(signal.SIGTERM)
    world.seen["end"] = after(server, mark, 20)


@scenario
def kill_in_start(world: World) -> None:
    """SIGKILL of the scheduler while it imports."""
    server = world.start()
    until(lambda: _moment(server, "") == "spawned", START_S, 0.03)
    mark = server.mark()
    first = min(row["pid"] for row in server.processes()[1:] if "spawn_main" in row["title"])
    os.kill(first, signal.SIGKILL)
    world.seen["end"] = after(server, mark, 60)
    world.verdict(
        "scheduler killed in the start", server, "crashed", ("restart", "escalate"), "the engine names the memory killer as the usual cause"
    )


# ---- ports


@scenario
def port_of_another_engine(world: World) -> None:
    """A second server on the port of the first, then SIGTERM of the idle first one."""
    first = world.start()
    ready(world, first)
    second = world.start()
    second.wait_log("Errno 98", START_S)
    failed = second.mark()
    world.seen["second"] = {**after(second, failed, 120), "milestones": looks.milestones(second.log())}
    # Of a server that was deployed: one that was started by hand is whatever serves on its port.
    verdicts.deployed(second)
    world.verdict("port of another engine", second, "crashed", "repair", "the port must become free first", service_manager=None)
    world.seen["first"] = {"/health": looks.ask(first.port, "/health", timeout=30, timed=False)}
    world.verdict("its port was wanted by another", first, "serving", "none", "the second server did it no harm")
    mark = first.mark()
    first.signal(signal.SIGTERM)
    world.seen["first"]["end"] = after(first, mark, 30)
    world.verdict("stopped when idle", first, "stopped", "none", "it was asked to stop, and did")


@scenario
def port_of_a_stranger(world: World) -> None:
    """The port answers 404 to everything."""
    with stranger(world.ports[0]):
        server = world.start()
        server.wait_log("Errno 98", START_S)
        failed = server.mark()
        world.release()
        world.verdict("port of a stranger", server, "crashed", "repair", "it will never serve on a port that another program holds")
        world.seen["waiting"] = {"tree": looks.tree(server)}
        world.seen["end"] = {**after(server, failed, 200), "milestones": looks.milestones(server.log())}
        world.verdict("port of a stranger, ended", server, "crashed", "repair", "the port must become free first")


# ---- model folders and arguments


def _refused(
    world: World, moment: str, wanted: tuple[str | tuple[str, ...], str], *arguments: str, model: Path | None = None, start: str = "serve"
) -> dict[str, Any]:
    server = world.start(*arguments, model=model, entry=start)
    seen = after(server, None, START_S)
    world.verdict(moment, server, "crashed", wanted[0], wanted[1])
    return seen


def _broken_model(world: World, name: str) -> Path:
    folder = world.folder / name
    shutil.copytree(world.target.model, folder)
    return folder


def _shards(model: Path) -> list[Path]:
    return sorted(model.glob("*.safetensors"))


@scenario
def missing_shard(world: World) -> None:
    """A shard that the index names is not there."""
    model = _broken_model(world, "without-a-shard")
    _shards(model)[2].unlink()
    world.seen["end"] = _refused(world, "missing shard", ("escalate", "a file must be fetched"), model=model)


@scenario
def truncated_shard(world: World) -> None:
    """A shard that is cut in the middle."""
    model = _broken_model(world, "with-a-cut-shard")
    shard = _shards(model)[2]
    os.truncate(shard, shard.stat().st_size // 2)
    world.seen["end"] = _refused(world, "truncated shard", ("escalate", "a file must be fetched again"), model=model)


@scenario
def no_config(world: World) -> None:
    """A model folder without config.json, and one that does not exist."""
    model = _broken_model(world, "without-config")
    (model / "config.json").unlink()
    world.seen["no config"] = _refused(world, "no config", ("escalate", "a file must be fetched"), model=model)
    world.seen["no folder"] = _refused(
        world, "no model folder", ("escalate", "the path must be corrected"), model=world.folder / "nowhere" / "model"
    )


@scenario
def arguments(world: World) -> None:
    """Command lines that the parser or the engine refuses."""
    right = ("escalate", "a person must correct the command line")
    cases = {
        "unknown flag": ("--no-such-flag",),
        "bad choice": ("--load-format", "nonsense"),
        "ambiguous flag": ("--cuda-graph-max-bs", "16"),
        "missing value": ("--context-length",),
        "bad type": ("--watchdog-timeout", "soon"),
        "context too long": ("--context-length", "999999"),
    }
    for name, words in cases.items():
        world.seen[name] = _refused(world, name, right, *words)
    server = world.start("--no-such-flag", entry="module")
    world.seen["unknown flag, as a module"] = after(server, None, START_S)


# ---- two ranks, two nodes


@scenario
def two_ranks(world: World) -> None:
    """Two ranks: start, each stopped and continued, the last one killed."""
    server = world.start("--enable-metrics", tp=2)
    world.seen["start"] = bring_up(world, server, asks=(5, 15, 25, 35), warm=True)
    world.verdict("two ranks serving", server, "serving", "none", "it answers")
    for rank in (1, 0):
        world.seen[f"stopped TP{rank}"] = _stopped(world, server, f"sglang::scheduler_TP{rank}", health=("/health",))
    mark = server.mark()
    server.signal(signal.SIGKILL, "sglang::scheduler_TP1")
    world.seen["killed TP1"] = after(server, mark, 120)
    world.verdict("TP1 killed", server, "crashed", "restart", "nothing lives, and no configuration is to blame")


def _stop_while_it_computes(server: Server, title: str) -> threading.Thread:
    """Stop a rank during a request: of an idle engine that stands still the watchdog says nothing. The client is returned."""
    client = threading.Thread(target=looks.ask, args=(server.port, "/generate", _tokens(400)), kwargs={"timeout": 600})
    client.start()
    time.sleep(1)
    server.signal(signal.SIGSTOP, title)
    return client


@scenario
def two_ranks_as_a_module(world: World) -> None:
    """Started by python -m; a rank stopped until the soft watchdog says so, and continued; the first of the ranks killed."""
    server = world.start("--soft-watchdog-timeout", "45", tp=2, entry="module")
    seen = world.seen["start"] = bring_up(world, server, asks=(10, 20, 30, 40))
    # A start may be slow enough for it.
    seen["milestones"] = looks.milestones(server.log(), leave_out=("soft_watchdog", "pyspy_dump"))
    mark = server.mark()
    client = _stop_while_it_computes(server, "sglang::scheduler_TP1")
    world.seen["soft watchdog"] = {"spoke": server.wait_log("self.soft=True", 120, mark)}
    world.verdict("soft watchdog", server, "stuck", "restart", "a rank is stopped, and the engine's own watchdog says so")
    server.signal(signal.SIGCONT, "sglang::scheduler_TP1")
    client.join()
    health = until(lambda: looks.ask(server.port, "/health", timeout=30)["status"] == 200, 60)
    world.seen["soft watchdog"].update(
        milestones=looks.milestones(server.log(mark), leave_out=("own_generate", "decode", "health_failed")), health=health
    )
    mark = server.mark()
    server.signal(signal.SIGKILL, "sglang::scheduler_TP0")
    world.seen["killed TP0"] = after(server, mark, 120)
    world.verdict("TP0 killed", server, "crashed", "restart", "nothing lives, and no configuration is to blame")


@scenario
def watchdog(world: World) -> None:
    """One of two ranks stopped while a request runs, with a short watchdog."""
    server = world.start("--watchdog-timeout", "20", tp=2)
    ready(world, server)
    mark = server.mark()
    client = _stop_while_it_computes(server, "sglang::scheduler_TP1")
    server.wait_log("watchdog timeout", 60, mark)
    world.release()
    world.verdict("watchdog", server, ("stuck", "crashed"), "restart", "a rank is stopped, and the engine's own watchdog says so")
    world.seen["end"] = after(server, mark, 200)
    client.join()
    world.verdict("ended by its watchdog", server, ("crashed", "stuck"), "restart", "nothing lives")


def _nodes(world: World, rank: int, *more: str) -> Server:
    address = f"127.0.0.1:{world.ports[2]}"
    words = ("--nnodes", "2", "--node-rank", str(rank), "--dist-init-addr", address, *more)
    return world.start(*words, port=rank, tp=2, SGLANG_CPU_OMP_THREADS_BIND=str(rank % (os.cpu_count() or 1)))


@scenario
def nodes(world: World) -> None:
    """Two nodes, the second one late; then the second one's scheduler is killed."""
    leader = _nodes(world, 0)
    leader.wait_log("Init parallel begin", START_S)
    time.sleep(8)
    world.seen["leader waits"] = {"milestones": looks.milestones(leader.log()), "tree": looks.tree(leader), "open": leader.open()}
    world.verdict("the other node is late", leader, "starting", "wait", "a minute without the other node is no hang")
    follower = _nodes(world, 1)
    ready(world, leader)
    until(follower.open, 60)
    world.seen["serving"] = {
        "leader": {"milestones": looks.milestones(leader.log()), "tree": looks.tree(leader)},
        "follower": {
            "milestones": looks.milestones(follower.log()),
            "tree": looks.tree(follower),
            "pages": {
                path: looks.ask(follower.port, path, timed=False)
                for path in ("/health", "/health_generate", "/ping", "/v1/models", "/metrics")
            },
        },
    }
    world.verdict("two nodes, leader", leader, "serving", "none", "it answers")
    world.verdict("two nodes, follower", follower, "serving", "none", "its scheduler lives, and a follower has no API of its own")
    mark, other = leader.mark(), follower.mark()
    follower.signal(signal.SIGKILL, next(row["title"] for row in follower.processes() if row["title"].startswith("sglang::scheduler")))
    world.seen["dead node"] = {"follower": after(follower, other, 100), "leader": after(leader, mark, 150)}
    world.verdict("dead node, leader", leader, "crashed", "restart", "nothing lives")
    world.verdict("dead node, follower", follower, "crashed", "restart", "nothing lives")


@scenario
def absent_node(world: World) -> None:
    """The second node never comes."""
    leader = _nodes(world, 0, "--dist-timeout", "30")
    leader.wait_log("Init parallel begin", START_S)
    world.verdict("the other node is not there yet", leader, "starting", "wait", "a minute without the other node is no hang")
    world.seen["end"] = after(leader, None, 150)
    world.verdict("the other node never came", leader, "crashed", ("restart", "escalate"), "nothing lives")


# ---- a busy machine, on the real engine only


@scenario
def slow_imports(world: World) -> None:
    """Imports of two minutes beside programs that want every core."""
    # In sessions of their own: a kernel that groups processes shares its time between sessions.
    hogs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL, start_new_session=True)
        for _ in range(5 * (os.cpu_count() or 1))
    ]
    try:
        server = world.start()
        seconds = 15.0
        while server.running() and "Init parallel begin" not in server.log() and seconds < START_S:
            time.sleep(max(0.0, server.started + seconds - time.monotonic()))
            if "Init parallel begin" not in server.log():
                world.verdict(f"slow imports, {seconds:.0f} s", server, "starting", "wait", "slow is not stuck")
            seconds = time.monotonic() - server.started + 12
        world.seen["imports_s"] = round(time.monotonic() - server.started)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    ready(world, server)
    world.verdict("imported at last", server, "serving", "none", "it answers")
