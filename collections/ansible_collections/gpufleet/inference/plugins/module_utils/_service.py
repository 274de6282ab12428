# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What the service manager knows: systemd through systemctl, supervisor through its unix socket."""

from __future__ import annotations

import base64
import configparser
import http.client
import os
import re
import signal
import socket
import xmlrpc.client
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _exits, _systemd

_SUPERVISOR_EXIT = re.compile(r"exited: (\S+) \((?:exit status (\d+)|terminated by (SIG\w+))")
_SUPERVISOR_STATES = {
    "RUNNING": ("running", "running"),
    "STARTING": ("starting", "running"),
    "BACKOFF": ("failed", "running"),
    "EXITED": ("failed", "running"),
    "FATAL": ("failed", "running"),
    "STOPPING": ("running", "stopped"),
    "STOPPED": ("stopped", "stopped"),
}


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=4)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path: str, headers: list[tuple[str, str]]) -> None:
        super().__init__(headers=headers)
        self._path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        return _UnixConnection(self._path)


def supervisor(conf: str) -> Any:
    """XML-RPC proxy of the supervisord that this configuration belongs to.

    :raises OSError: the configuration can not be read or names no unix socket.
    """
    here = os.path.dirname(os.path.abspath(conf))
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";", " #"), strict=False)
    with open(conf, encoding="utf-8") as file:
        parser.read_file(file)
    if not parser.has_option("unix_http_server", "file"):
        raise OSError(f"{conf}: no [unix_http_server] file")

    def option(name: str) -> str:
        value = parser.get("unix_http_server", name, fallback="").replace("%(here)s", here)
        return re.sub(r"%\(ENV_(\w+)\)s", lambda match: os.environ.get(match.group(1), ""), value)

    headers = []
    if option("username"):
        word = base64.b64encode(f"{option('username')}:{option('password')}".encode()).decode()
        headers.append(("Authorization", f"Basic {word}"))
    path = os.path.join(here, option("file"))
    return xmlrpc.client.ServerProxy("http://localhost/RPC2", transport=_UnixTransport(path, headers), allow_none=True).supervisor


def collect(
    manager: Optional[str], name: Optional[str], conf: Optional[str], timeout: float = 5.0, state_dir: Optional[str] = None
) -> dict[str, Any]:
    """The snapshot's ``service``; ``started`` and ``log_path`` come along where the manager knows them.

    :arg state_dir: where the ends of the server are kept, for what systemd has forgotten.
    """
    if manager == "supervisor" and conf and name:
        program, path = name, conf
        return _answer(_bounded.call(lambda emit: emit(_supervisor_info(path, program)), timeout))
    if manager == "systemd" and name:
        unit = _systemd.unit_name(name)
        outcome = _systemd.show(unit, timeout)
        if outcome.status == "ok" and outcome.returncode == 0:
            kept = _bounded.call(lambda emit: emit(_kept_exit(state_dir, unit)), 2.0).values if state_dir else {}
            outcome.values = {**_systemd.parse_unit(outcome.text, kept.get("last_exit")), **kept}
        elif outcome.error is None and outcome.status == "ok":
            outcome.error = outcome.text.strip()[:200] or f"systemctl exited with {outcome.returncode}"
        return _answer(outcome)
    return {**_empty(), "status": "absent", "reason": "no service manager is known"}


def _kept_exit(state_dir: str, unit: str) -> dict[str, Any]:
    found = _exits.newest(state_dir, unit)
    return {"last_exit": found, "last_exit_text": _exits.content(found["path"])} if found else {}


def _answer(outcome: _bounded.Outcome) -> dict[str, Any]:
    reason = outcome.reason()
    known = {"status": "unavailable" if reason else "ok", "reason": reason, "seconds": round(outcome.seconds, 3)}
    return {**_empty(), **known, **outcome.values}


def _empty() -> dict[str, Any]:
    names = ("state", "desired", "main_pid", "exit_code", "exit_signal", "since", "started", "cgroup", "log_path")
    return {"seconds": 0.0, **dict.fromkeys(names)}


def _supervisor_info(conf: str, name: str) -> dict[str, Any]:
    api = supervisor(conf)
    try:
        info = api.getProcessInfo(name)
    except xmlrpc.client.Fault as fault:
        if fault.faultCode == 10:  # BAD_NAME
            return {"state": "absent"}
        raise
    result = parse_program(info)
    if result["state"] == "failed":
        result.update(_last_exit(api, name))
    return result


def parse_program(info: dict[str, Any]) -> dict[str, Any]:
    """Translate supervisor's process information."""
    statename = str(info.get("statename"))
    state, desired = _SUPERVISOR_STATES.get(statename, (None, None))
    ended = statename in ("EXITED", "FATAL", "BACKOFF", "STOPPED")
    code = info.get("exitstatus")
    return {
        "state": state,
        "desired": desired,
        "main_pid": info.get("pid") or None,
        "exit_code": code if statename == "EXITED" and code != -1 else None,
        "exit_signal": None,
        "since": (info.get("stop") if ended else info.get("start")) or None,
        "started": info.get("start") or None,
        "log_path": info.get("stdout_logfile") or None,
    }


def _last_exit(api: Any, name: str) -> dict[str, Any]:
    """Exit status or signal from supervisord's own log: its API hides the signal."""
    try:
        log = api.readLog(-16384, 0)
    except (OSError, xmlrpc.client.Error):
        return {}
    return parse_exit(log, name)


def parse_exit(log: str, name: str) -> dict[str, Any]:
    """Last ``exited`` line of a program in supervisord's log."""
    result: dict[str, Any] = {}
    for program, code, signal_name in _SUPERVISOR_EXIT.findall(log):
        if program == name.rpartition(":")[2]:
            result = {"exit_code": int(code) if code else None, "exit_signal": _signal_number(signal_name)}
    return result


def _signal_number(name: str) -> Optional[int]:
    return int(signal.Signals[name]) if name in signal.Signals.__members__ else None
