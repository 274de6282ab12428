# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Ask the engine's own parser, in a child that can be abandoned, about a command line.

The engine is imported for that, on a host where a server may be serving: the child sees no GPU, has a home of its own for
whatever the import writes, and gets its arguments by file, because a command line is for all to read.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _engine_program, _proc, _redact, _stop

_MAX_OUTPUT = 16 << 20
_MAX_ANSWER = 1 << 20
_SWEEP_S = 5.0
# Where an import may write to. The child's are in its own directory.
_PLACES = re.compile(r"CACHE|WORKSPACE|^(?:HF_HOME|HOME|TMP|TEMP|TMPDIR|XDG_.*)$")
_ALONE = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def check(python: str, arguments: Sequence[str], variables: Mapping[str, Any], timeout: float, parent: Optional[str]) -> dict[str, Any]:
    """Ask the parser of the engine that ``python`` imports.

    :arg variables: the server's own environment.
    :arg parent: directory in which the child's own is made and removed again.
    :returns: ``status`` (ok, unavailable), ``reason`` and ``stage`` (null when ok), ``accepted`` (null when unavailable), ``problems``,
        ``abbreviations``, ``notes``, ``version``, ``seconds``.
    """
    started = time.monotonic()
    directory = os.path.realpath(tempfile.mkdtemp(prefix="gpufleet-", dir=parent))
    try:
        answer = _ask(directory, python, arguments, variables, timeout)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    blank = {"status": "ok", "reason": None, "stage": None, "accepted": None, "version": None}
    result: dict[str, Any] = {**blank, "problems": [], "abbreviations": [], "notes": [], **answer}
    result["seconds"] = round(time.monotonic() - started, 2)
    known = _redact.secrets(arguments, variables)
    for name in ("problems", "abbreviations", "notes"):
        result[name] = [_shown(line, known) for line in result[name]]
    return {**result, "reason": _redact.text(result["reason"], known) if result["reason"] else None}


def _shown(line: str, known: Sequence[str]) -> str:
    """A line without secrets; the name of a flag is none, whatever it is about."""
    subject = re.match(r"argument [^:]+: |\S+ is read as |", line)
    end = subject.end() if subject else 0
    return line[:end] + _redact.text(line[end:], known)


def _ask(directory: str, python: str, arguments: Sequence[str], variables: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    program = os.path.join(directory, "program.py")
    with open(program, "w", encoding="utf-8") as file:
        file.write(inspect.getsource(_engine_program))
    with open(os.path.join(directory, _engine_program.REQUEST), "w", encoding="utf-8") as file:
        json.dump({"arguments": list(arguments)}, file)
    since = _proc.stat(os.getpid())
    outcome = _bounded.run([python, "-B", program], timeout, env=_environment(variables, directory), max_bytes=_MAX_OUTPUT)
    _sweep(directory, since.start if since else 0)
    answer = _answer(directory)
    if outcome.returncode == 0 and outcome.status == "ok" and answer is not None:
        return _told(answer)
    return {"status": "unavailable", **_unanswered(outcome, python)}


def _environment(variables: Mapping[str, Any], directory: str) -> dict[str, str]:
    """The server's environment without the places that it writes to, and without what only our own interpreter needs."""
    ours = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ANSIBLE")) and not _redact.is_secret_name(name)
    }
    result = {**ours, **{name: str(value) for name, value in variables.items()}}
    result = {name: value for name, value in result.items() if not _PLACES.search(name)}
    # Packages of the user himself stay where they are.
    result.setdefault("PYTHONUSERBASE", os.path.join(os.path.expanduser("~"), ".local"))
    result.setdefault("USER", "nobody")
    return {**result, **_ALONE, "HOME": directory, "TMPDIR": directory}


def _sweep(directory: str, since: int) -> None:
    """End what the child left behind, also what went into a session of its own: its home tells whose it is."""
    home = f"HOME={directory}".encode()

    def body(emit: _bounded.Emit) -> None:
        own = {os.getpid(), os.getppid()}
        for _round in range(20):
            found = False
            for pid in _proc.pids():
                stat = _proc.stat(pid) if pid not in own else None
                if stat is None or stat.start < since or stat.state in "ZX":
                    continue
                here = (_proc.link(f"/proc/{pid}/cwd") or "").startswith(directory)
                if here or home in (_proc.read(f"/proc/{pid}/environ") or b"").split(b"\0"):
                    found = True
                    _stop.send(pid, stat.start, signal.SIGKILL)
            if not found:
                return
            time.sleep(0.05)

    _bounded.call(body, _SWEEP_S)


def _answer(directory: str) -> Optional[dict[str, Any]]:
    try:
        with open(os.path.join(directory, _engine_program.ANSWER), encoding="utf-8", errors="replace") as file:
            answer = json.loads(file.read(_MAX_ANSWER))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def _told(answer: Mapping[str, Any]) -> dict[str, Any]:
    version = answer.get("version")
    result: dict[str, Any] = {"version": str(version) if version else None}
    if isinstance(answer.get("accepted"), bool):
        lists = {name: [str(line) for line in answer.get(name) or []] for name in ("problems", "abbreviations", "notes")}
        return {**result, "accepted": answer["accepted"], **lists}
    return {**result, "status": "unavailable", "stage": "import", "reason": f"the engine can not be imported: {answer.get('error')}"}


def _unanswered(outcome: _bounded.Outcome, python: str) -> dict[str, str]:
    """Why there is no answer."""
    if len(outcome.output) >= _MAX_OUTPUT:
        return {"stage": "import", "reason": f"the engine printed more than {_MAX_OUTPUT >> 20} MiB while it was imported"}
    if outcome.status != "ok":
        return {"stage": "timeout", "reason": f"importing the engine: {outcome.reason()}"}
    if outcome.returncode == 127 and outcome.error:
        return {"stage": "interpreter", "reason": outcome.error if python in outcome.error else f"{python}: {outcome.error}"}
    last = next((line for line in reversed(outcome.text[-8192:].splitlines()) if line.strip()), "")
    how = outcome.error or f"exit status {outcome.returncode}"
    said = f", its last line: {last.strip()[:500]}" if last else ""
    return {"stage": "import", "reason": f"the engine ended while it was imported ({how}){said}"}
