# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. One look at the server: all sources side by side, each bounded and on its own, two samples one window apart."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import (
    _bounded,
    _gpus,
    _http,
    _identity,
    _kernel,
    _log,
    _port,
    _probes,
    _proc,
    _processes,
    _records,
    _redact,
    _service,
    _syscalls,
    _system,
    _target,
)

SCHEMA = 1
_LOG_AGAIN_S = 3.0
_MARGIN_S = 2.0  # for assembling, the record and the way back


class Snapshot:
    """Collects one snapshot. ``document`` is the result, ``texts`` the raw output for an evidence directory, ``secrets`` what to hide,
    ``puzzle`` why it is not known which server is meant."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._started = time.monotonic()
        self._at = time.time()
        self._deadline: float = self._started + options["deadline"] - _MARGIN_S
        self._window = min(options["window"], max(0.0, options["deadline"] - _MARGIN_S - 3.0))
        self._options = dict(options)
        self._jobs: dict[str, _bounded.Child] = {}
        self._trace: Optional[_syscalls.Trace] = None
        self._begun: Optional[float] = None
        self._zone: Optional[str] = None
        self.texts: dict[str, str] = {}
        self.secrets: list[str] = []
        self.puzzle: Optional[str] = None
        self.document: dict[str, Any] = {"schema": SCHEMA, "collected_at": round(self._at, 3), "window_s": self._window}

    def collect(self) -> dict[str, Any]:
        """Run all collectors. Nothing here raises: a collector that fails is ``unavailable`` with the reason."""
        records = self._guard("records", self._read_records)
        manifest = _target.sound(records.get("manifest"))
        self._options = _target.resolve(self._options, manifest)
        service = self._guard("service", self._ask_service)
        self._options, service = _target.with_adopted(self._options, service, _target.adopted(records.get("adoption"), service))
        self.document["service"] = service
        puzzle = self.puzzle = self._discover() if _target.is_unknown(manifest, service) else None
        identity = _identity.Server(**_target.server(self._options, service))
        found = self._find(identity, None) if puzzle is None else {"main": None, "members": {}, "blocked": [], "reason": puzzle}
        first = self._sample(found)
        main = found["main"]
        self._describe(manifest, service, found)
        port = self._guard("port", lambda: _port.collect(self._options["port"], main, found["members"]))
        self._start_jobs(service, first)
        http, ask = self._start_http(port)
        closed_but_alive = port["listening"] is False and main is not None
        if self._options["depth"] == "deep" or (self._options["depth"] == "auto" and closed_but_alive):
            self._start_trace(first)
        gpus: list[Any] = [self._gpu_sample()]
        self._wait(until=first["at"] + self._window)
        second = self._sample(self._find(identity, found) if puzzle is None else found)
        self.document["processes"] = self._guard("processes", lambda: _processes.combine(first, second), seconds=second["at"] - first["at"])
        gpus.append(self._gpu_sample() if gpus[0]["devices"] else None)
        self.texts["nvidia-smi.txt"] = gpus[0]["text"]
        self.document["gpus"] = self._guard("gpus", lambda: _gpus.combine(self._options["nvidia_smi"], gpus[0], gpus[1]))
        self.document["http"] = self._guard("http", lambda: self._finish_http(http, ask, second))
        self._guard("log", self._finish_log)
        self._guard("kernel", self._finish_kernel)
        self._guard("system", self._finish_system)
        self._guard("syscalls", self._finish_trace)
        return self._finish()

    def left(self, least: float) -> float:
        """Seconds that may still be spent on writing down what was seen; the deadline does not cut below ``least``."""
        return max(least, self._deadline + _MARGIN_S / 2 - time.monotonic())

    def _guard(self, name: str, collector: Callable[[], dict[str, Any]], seconds: Optional[float] = None) -> dict[str, Any]:
        begun = time.monotonic()
        try:
            part = collector()
        except Exception as error:
            part = {**_EMPTY.get(name, {}), "status": "unavailable", "reason": f"{type(error).__name__}: {error}"[:300]}
        part.setdefault("status", "ok")
        part.setdefault("reason", None)
        part.setdefault("seconds", round(time.monotonic() - begun if seconds is None else seconds, 3))
        self.document[name] = part
        return part

    def _left(self, wanted: float) -> float:
        return max(0.1, min(wanted, self._deadline - time.monotonic()))

    def _call(self, function: Callable[..., None], timeout: float, *arguments: Any) -> _bounded.Child:
        return _bounded.Child(functools.partial(function, *arguments), self._left(timeout))

    def _wait(self, until: float) -> None:
        """Let the window pass while deadlines of running children are kept."""
        while time.monotonic() < min(until, self._deadline):
            self._poll()
            time.sleep(0.02)

    def _poll(self) -> None:
        for child in [*self._jobs.values(), *(self._trace.children() if self._trace else [])]:
            child.poll()

    def _read_records(self) -> dict[str, Any]:
        state_dir = self._options["state_dir"]
        outcome = _bounded.call(lambda emit: emit(_records.read_all(state_dir)), self._left(3.0))
        unknown = {"error": outcome.reason()} if outcome.reason() else None
        found = {**dict.fromkeys(_records.NAMES, unknown), **outcome.values}
        errors = [record["error"] for record in found.values() if record and "error" in record]
        # Not one can be read: the directory is closed to us.
        reason = errors[0] if len(errors) == len(_records.NAMES) else outcome.reason()
        return {**found, "status": "unavailable" if reason else "ok", "reason": reason}

    def _ask_service(self) -> dict[str, Any]:
        options = self._options
        names = (options["service_manager"], options["service_name"], options["supervisor_conf"])
        part = _service.collect(*names, self._left(5.0), options["state_dir"])
        self.texts["last_exit.txt"] = part.pop("last_exit_text", "")
        return part

    def _discover(self) -> Optional[str]:
        """Learn from the only server that runs what nobody told; returns why none could be chosen."""
        found = _identity.launchers(self._left(3.0))
        pid, puzzle = _target.choose(found["servers"], self._options["port"], self._options["work_dir"])
        if pid is None:
            return puzzle or found["reason"]
        self._options = _target.learn(self._options, pid, found["servers"][pid])
        return None

    def _find(self, identity: _identity.Server, before: Optional[Mapping[str, Any]]) -> dict[str, Any]:
        known: dict[int, Sequence[str]] = {}
        if before is not None:
            # A title that still says "spawn" may have become a scheduler's meanwhile.
            known = {pid: row["arguments"] for pid, row in before["members"].items() if "sglang" in " ".join(row["arguments"])}
        try:
            return _identity.find(identity, known, self._left(3.0))
        except Exception as error:
            return {"main": None, "members": {}, "blocked": [], "reason": f"{type(error).__name__}: {error}"}

    def _sample(self, found: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return _processes.sample(found)
        except Exception as error:
            return {"at": time.monotonic(), "main": None, "members": [], "reason": f"{type(error).__name__}: {error}"}

    def _describe(self, manifest: Mapping[str, Any], service: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        main = found["main"]
        command = list(found["members"][main]["arguments"]) if main is not None else []
        environ: dict[str, str] = {}
        if main is not None and main not in found["blocked"]:
            environ = _bounded.call(lambda emit: emit({"environ": _proc.environ(main)}), self._left(1.0)).values.get("environ", {})
        written = [str(word) for word in manifest.get("command") or []]
        self.secrets = _redact.secrets([*command, *written], {**(manifest.get("environment") or {}), **environ})
        self._api_key = _target.flag(command or written, "--api-key")
        if self._options["bind"] is None:
            self._options["bind"] = _target.flag(command, "--host")
        if self._options["port"] is None and _identity.is_launcher(command):
            self._options["port"] = _identity.port_of(command)
        if self._options["log_path"] is None:
            self._options["log_path"] = (_target.output(main) if main is not None else None) or service.get("log_path")
        elif main is not None:
            self._options["log_path"] = _target.rotated(str(self._options["log_path"]), main)
        self._zone = environ.get("TZ") or (manifest.get("environment") or {}).get("TZ")
        self._model = manifest.get("served_model_name") or _target.flag(command, "--served-model-name")
        self._guard("target", lambda: _target.describe(self._options, manifest, command, environ))

    def _start_jobs(self, service: Mapping[str, Any], first: Mapping[str, Any]) -> None:
        options, patterns = self._options, self._options["patterns"] or {}
        self._begun = next((row["start_time"] for row in first["members"] if row["role"] == "main"), service.get("started"))
        self._jobs["log"] = self._read_log(self._at)
        self._jobs["kernel"] = self._call(_kernel.collect, 12.0, options["kernel_log_path"], list(patterns.get("kernel") or []))
        self._jobs["system"] = self._call(_system.collect, 4.0, options["model_path"], options["log_path"], first["main"])

    def _read_log(self, now: float) -> _bounded.Child:
        patterns = list((self._options["patterns"] or {}).get("log") or [])
        collector = functools.partial(_log.collect, known=self.secrets, zone=self._zone)
        return self._call(collector, 12.0, self._options["log_path"], self._begun, now, patterns)

    def _start_http(self, port: Mapping[str, Any]) -> tuple[Optional[dict[str, Any]], bool]:
        """Start the first probes. Returns the finished part when there is nothing to ask, and whether a generation was asked for."""
        ask = self._options["probe"] == "generate"
        if port["listening"] is False:
            return _probes.skipped("refused", None), ask
        if port["listening"] is None and port["status"] == "absent":
            return _probes.skipped("skipped", "no port is known"), ask
        if port["ours"] is False:
            return _probes.skipped("skipped", f"the port belongs to process {port['owner_pid']}, which is not ours"), ask
        generate_s = min(_probes.GENERATE_S, self._options["generate_timeout"])
        timeout = self._window + generate_s + 12.0
        arguments = (self._window, generate_s, self._model, self._api_key, ask)
        self._jobs["http"] = self._call(_probes.first, timeout, _http.local(self._options["bind"]), self._options["port"], *arguments)
        return None, ask

    def _start_trace(self, sample: Mapping[str, Any]) -> None:
        schedulers = sorted((row for row in sample["members"] if row["role"] == "scheduler"), key=lambda row: row["rank"] or 0)
        chosen = schedulers or [row for row in sample["members"] if row["role"] in ("main", "spawn")]
        if chosen and self._trace is None:
            self._trace = _syscalls.Trace(chosen[0]["pid"], chosen[0]["rank"], self._left(_syscalls.SECONDS))

    def _gpu_sample(self) -> dict[str, Any]:
        try:
            return _gpus.sample(self._options["nvidia_smi"], self._left(8.0), self._poll)
        except Exception as error:
            return {"devices": [], "reason": f"{type(error).__name__}: {error}", "seconds": 0.0, "text": ""}

    def _finish_http(self, done: Optional[dict[str, Any]], ask: bool, sample: Mapping[str, Any]) -> dict[str, Any]:
        if done is not None:
            return done
        outcomes = [self._jobs["http"].wait()]
        part = _probes.combine(outcomes, ask)
        if ask and part["generate"]["result"] != "ok":
            if self._options["depth"] == "auto":
                self._start_trace(sample)
            # The log is read once more afterwards.
            limit = max(1.0, self._left(_probes.HEALTH_S + 10.0 + _LOG_AGAIN_S) - _LOG_AGAIN_S)
            health_s = max(0.9, min(_probes.HEALTH_S, limit - 1.0))
            host, port = _http.local(self._options["bind"]), self._options["port"]
            before = part["metrics"]["first"]
            self._jobs["health"] = self._call(_probes.after_failure, limit, host, port, self._api_key, health_s, before)
            children = [self._jobs["health"], *(self._trace.children() if self._trace else [])]
            _bounded.wait_all(children)
            outcomes.append(self._jobs["health"].wait())
            part = _probes.combine(outcomes, ask)
        self.texts["http.txt"] = "\n".join(f"{name}: {part[name]}" for name in ("generate", "health", "models", "server_info", "metrics"))
        return part

    def _finish_log(self) -> dict[str, Any]:
        if self.document["http"]["generate"]["result"] == "timeout":
            # What was logged while our request waited tells busy from stuck.
            earlier = self._jobs["log"]
            before = earlier.wait()
            self._jobs["log"] = self._read_log(time.time())
            if "hits" in before.values and "hits" not in self._jobs["log"].wait().values:
                self._jobs["log"] = earlier
        part = self._from_job("log", _EMPTY["log"])
        self.document["target"]["log_path"] = part["path"] or self.document["target"]["log_path"]
        return part

    def _finish_kernel(self) -> dict[str, Any]:
        part = self._from_job("kernel", _EMPTY["kernel"])
        self.texts["kernel.log"] = part.pop("text", "")
        return part

    def _finish_system(self) -> dict[str, Any]:
        part = self._from_job("system", {"boot_id": None})
        blocked = part.pop("reading", None)
        if blocked:
            part["reason"] = f"{blocked}: {part['reason']}"
        return part

    def _from_job(self, name: str, empty: Mapping[str, Any]) -> dict[str, Any]:
        outcome = self._jobs[name].wait()
        part = {**empty, **outcome.values}
        reason = outcome.reason()
        # What a child said before it was stopped stands; the reason tells that it was not all.
        part["status"] = part.get("status") or ("ok" if outcome.values and (not reason or len(outcome.values) > 1) else "unavailable")
        if reason and "hits" in empty and "hits" not in outcome.values:
            part["status"] = "unavailable"  # that nothing was found in lines that nobody read to the end proves nothing
        part["reason"] = "; ".join(text for text in (part.get("reason"), reason) if text) or None
        part["seconds"] = round(outcome.seconds, 3)
        return part

    def _finish_trace(self) -> dict[str, Any]:
        if self._trace is None:
            return {**_EMPTY["syscalls"], "status": "absent", "reason": "not asked for at this depth"}
        _bounded.wait_all(self._trace.children())
        part = self._trace.result()
        self.texts["strace.txt"] = part.pop("text", "")
        return part

    def _finish(self) -> dict[str, Any]:
        target, gpus, http = self.document["target"], self.document["gpus"], self.document["http"]
        info = http["server_info"]
        target["engine_version"] = info.get("version") or target["engine_version"]
        target["context_length"] = info.get("context_length") or target["context_length"]
        target["flags"] = {
            key: value
            for source in (self.document["log"].get("server_args") or {}, info)
            for key, value in source.items()
            if value is not None and key not in ("result", "code", "seconds", "version")
        }
        if target["gpu_class"] is None and gpus["devices"]:
            target["gpu_class"] = _gpus.gpu_class(gpus["devices"][0]["name"], gpus["devices"][0]["compute_cap"])
        self.document["host"] = {
            "status": "ok",
            "reason": None,
            "seconds": 0.0,
            "name": os.uname().nodename,
            "boot_id": _proc.boot_id(),
            "uptime_s": _proc.uptime(),
        }
        self.document["depth"] = "deep" if self._trace is not None else "quick"
        self.document["duration_s"] = round(time.monotonic() - self._started, 3)
        cleaned: dict[str, Any] = _redact.tree(self.document, self.secrets)
        self.document = cleaned
        return cleaned


_EMPTY: dict[str, dict[str, Any]] = {
    "service": {"state": None, "desired": None, "main_pid": None, "exit_code": None, "exit_signal": None, "since": None},
    "processes": _processes.combine(None, None),
    "port": {"listening": None, "owner_pid": None, "ours": None},
    "http": _probes.skipped("skipped", None),
    "gpus": _gpus.combine("nvidia-smi", None, None),
    "log": {
        **dict.fromkeys(("path", "size", "mtime", "silent_s", "start_offset", "last_line", "last_time", "bar", "server_args")),
        "tail": [],
        "hits": {},
        "ranks": {},
    },
    "kernel": {"path": None, "hits": {}, "lines": []},
    "syscalls": {"method": None, "pid": None, "rank": None, "threads": None, "counts": {}, "pattern": "unknown", "lines": []},
}
