# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Which processes are our server. Several servers can share one /proc: each has its own directory and port."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _port, _proc

COMPILERS = frozenset(
    ["nvcc", "cicc", "ptxas", "fatbinary", "cudafe++", "nvlink", "ninja", "cc1", "cc1plus", "gcc", "g++", "c++", "clang", "clang++", "ld"]
)
_INTERPRETERS = re.compile(r"^(?:python[\d.]*|sh|bash|dash|perl)$")
_TITLE = re.compile(r"sglang::|sglang[./]launch_server|sglang/cli|\bsglang serve\b|multiprocessing\.(?:spawn|resource_tracker|forkserver)")
_COMM = re.compile(r"python|sglang|pt_main")
_PROGRAM = re.compile(r"^(?:python[\d.]*|pypy[\d.]*|sglang|pt_main_thread)$")
_RANK = re.compile(r"TP(\d+)")
_TRIES = 3


@dataclass(frozen=True)
class Server:
    """What tells our server from the others on this host; unknown parts are null."""

    work_dir: Optional[str]
    port: Optional[int]
    service_manager: Optional[str]
    main_pid: Optional[int]
    unit_cgroup: Optional[str] = None
    main_start: Optional[int] = None


def is_launcher(arguments: Sequence[str]) -> bool:
    """Whether this is the command line of an SGLang server's main process; a shell or an editor that names it is none."""
    if not arguments or not _PROGRAM.match(os.path.basename(arguments[0])):
        return False
    joined = " ".join(arguments[:6])
    if "sglang.launch_server" in joined or "sglang/launch_server.py" in joined:
        return True
    return any(os.path.basename(word) == "sglang" and after == "serve" for word, after in zip(arguments[:4], arguments[1:5]))


def is_engine(arguments: Sequence[str]) -> bool:
    """Whether a process is one of SGLang's by its title or by what its interpreter runs; that others name SGLang proves nothing."""
    if not arguments:
        return False
    if arguments[0].startswith("sglang::"):
        return True
    return bool(_PROGRAM.match(os.path.basename(arguments[0])) and _TITLE.search(" ".join(arguments[:6])))


def port_of(arguments: Sequence[str]) -> int:
    """The port a command line asks for; 30000 is SGLang's own default."""
    for index, word in enumerate(arguments):
        value = word[7:] if word.startswith("--port=") else arguments[index + 1] if word == "--port" and index + 1 < len(arguments) else ""
        if value.isdigit():
            return int(value)
    return 30000


def role(arguments: Sequence[str], comm: str, is_main: bool) -> str:
    """main, scheduler, detokenizer, tracker, spawn, compiler or other."""
    if is_main:
        return "main"
    title = " ".join(arguments)
    for mark, name in (
        ("sglang::scheduler", "scheduler"),
        ("sglang::detokenizer", "detokenizer"),
        ("resource_tracker", "tracker"),
        ("spawn_main", "spawn"),
    ):
        if mark in title:
            return name
    return "compiler" if compiler_name(arguments, comm) else "other"


def compiler_name(arguments: Sequence[str], comm: str) -> Optional[str]:
    """Name of the compiler that a process is, null for anything else."""
    words = [os.path.basename(word) for word in arguments[:2]]
    names = [comm, *words[:1]]
    if len(words) > 1 and _INTERPRETERS.match(words[0]):
        names.append(words[1])
    return next((name for name in names if name in COMPILERS), None)


def rank(title: str) -> Optional[int]:
    """Tensor-parallel rank in a scheduler's title; a scheduler without one is rank 0."""
    match = _RANK.search(title)
    return int(match.group(1)) if match else 0 if "sglang::scheduler" in title else None


def descendants(root: int, parents: Mapping[int, int]) -> set[int]:
    """All processes below ``root`` (which is not included)."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    queue = [root]
    while queue:
        for pid in children.get(queue.pop(), []):
            if pid not in found and pid != root:
                found.add(pid)
                queue.append(pid)
    return found


def find(server: Server, known: Optional[Mapping[int, Sequence[str]]] = None, timeout: float = 3.0) -> dict[str, Any]:
    """Find the processes of ``server`` in a bounded child.

    :arg known: command lines already read, by pid; they are not read again.
    :returns: ``main`` (pid or null), ``members`` (pid to {title, arguments, orphan, start}), ``blocked`` (pids whose
        command line can not be read), ``reason`` (null if complete).
    """
    titles = {pid: list(arguments) for pid, arguments in (known or {}).items()}
    values, blocked, problem = _scan(functools.partial(_find, server, titles), titles, timeout)
    if values is None:
        return {"main": None, "members": {}, "blocked": blocked, "reason": problem}
    members = {int(pid): member for pid, member in values["members"].items()}
    reason = "without root, whose the processes of other users are can not be told" if values["hidden"] else None
    if blocked:
        reason = f"reading the command line of {', '.join(map(str, blocked))} blocks"
    return {"main": values["main"], "members": members, "blocked": blocked, "reason": reason}


def launchers(timeout: float = 3.0) -> dict[str, Any]:
    """Find the main process of every SGLang server that shares our process ids, whoever started it, in a bounded child.

    :returns: ``servers`` (pid to {arguments, port, work_dir (null if closed to us), start, parent}) and ``reason`` (null if complete).
    """
    titles: dict[int, list[str]] = {}
    values, blocked, problem = _scan(functools.partial(_launchers, titles), titles, timeout)
    if values is None:
        return {"servers": {}, "reason": problem}
    reason = f"reading the command line of {', '.join(map(str, blocked))} blocks" if blocked else None
    return {"servers": {int(pid): row for pid, row in values["servers"].items()}, "reason": reason}


def _scan(
    body: Callable[[Sequence[int], _bounded.Emit], None], titles: dict[int, list[str]], timeout: float
) -> tuple[Optional[dict[str, Any]], list[int], Optional[str]]:
    """Run ``body`` in a child, again without the command line on which it blocked.

    :returns: what it emitted (null if it never came to its end), the processes whose command line blocks, and why there is nothing.
    """
    blocked: list[int] = []
    for _attempt in range(_TRIES):
        outcome = _bounded.call(functools.partial(body, blocked), timeout)
        values = outcome.values
        if values.get("complete"):
            return values, blocked, None
        titles.update({int(key[4:]): value for key, value in values.items() if key.startswith("cmd:")})
        if outcome.status == "ok" or values.get("reading") is None:
            return None, blocked, outcome.reason() or "the process table can not be read"
        blocked.append(values["reading"])
        timeout = min(timeout, 1.0)
    return None, blocked, "reading command lines blocks"


def _find(server: Server, titles: dict[int, list[str]], blocked: Sequence[int], emit: _bounded.Emit) -> None:
    """Child body of :func:`find`."""
    scan = _Scan(server, titles, blocked, emit)
    main = server.main_pid if scan.is_main() else scan.discover()
    below = descendants(main, scan.parents) if main is not None else set()
    members = below | ({main} if main is not None else set())
    lost = {pid for pid in scan.stats if pid not in members and scan.is_ours(pid)}
    members |= lost | {pid for root in lost for pid in descendants(root, scan.parents)}
    rows = {
        str(pid): {"arguments": scan.arguments(pid), "orphan": pid != main and pid not in below, "start": scan.stats[pid].start}
        for pid in sorted(members - {os.getpid(), os.getppid()})
    }
    emit({"complete": True, "main": main, "members": rows, "hidden": not rows and scan.hidden()})


def _launchers(titles: dict[int, list[str]], blocked: Sequence[int], emit: _bounded.Emit) -> None:
    """Child body of :func:`launchers`."""
    scan = _Scan(Server(None, None, None, None), titles, blocked, emit)
    rows: dict[int, dict[str, Any]] = {}
    for pid, stat in scan.stats.items():
        if stat.ppid == 2 or stat.state == "Z" or not _COMM.match(stat.comm) or not scan.same_space(pid):
            continue
        arguments = scan.arguments(pid)
        if is_launcher(arguments):
            work_dir = _proc.link(f"/proc/{pid}/cwd")
            rows[pid] = {"arguments": arguments, "port": port_of(arguments), "work_dir": work_dir, "start": stat.start, "parent": stat.ppid}
    for pid in list(rows):
        above = scan.parents[pid]
        while above not in rows and above in scan.parents:
            above = scan.parents[above]
        if pid in rows and above in rows:  # a copy that has not got its own title yet, or what a wrapper such as conda run started
            rows.pop(pid if rows[above]["arguments"] == rows[pid]["arguments"] else above)
    emit({"complete": True, "servers": {str(pid): row for pid, row in rows.items()}})


class _Scan:
    """One pass over the process table; command lines are read one by one and announced, so that a blocking one has a name."""

    def __init__(self, server: Server, titles: dict[int, list[str]], blocked: Sequence[int], emit: _bounded.Emit) -> None:
        self._server, self._titles, self._blocked, self._emit = server, titles, blocked, emit
        self._space = _proc.link(f"/proc/{server.main_pid or 'self'}/ns/pid")
        self._directory = os.path.realpath(server.work_dir) if server.work_dir else None
        self.stats = {pid: stat for pid in _proc.pids() if (stat := _proc.stat(pid)) is not None}
        self.parents = {pid: stat.ppid for pid, stat in self.stats.items()}

    def arguments(self, pid: int) -> list[str]:
        """Command line, or the short name where reading it blocks."""
        if pid not in self._titles:
            if pid in self._blocked:
                return [self.stats[pid].comm]
            self._emit({"reading": pid})
            self._titles[pid] = _proc.cmdline(pid)
            self._emit({f"cmd:{pid}": self._titles[pid], "reading": None})
        return self._titles[pid]

    def here(self, pid: int) -> bool:
        """Whether a process runs in our server's directory, also in one that was removed since; a container's /root is not ours."""
        path = _proc.link(f"/proc/{pid}/cwd") if self._directory else None
        return path is not None and path in (self._directory, f"{self._directory} (deleted)") and self.same_space(pid)

    def same_space(self, pid: int) -> bool:
        """Whether a process shares our server's process ids, as far as that can be told."""
        return None in (self._space, space := _proc.link(f"/proc/{pid}/ns/pid")) or space == self._space

    def is_main(self) -> bool:
        """Whether the process that somebody calls the main one runs, and is the one that was meant."""
        stat = self.stats.get(self._server.main_pid or 0)
        return stat is not None and self._server.main_start in (None, stat.start)

    def closed(self, pid: int) -> bool:
        """Whether a process hides its directory from us: then its port alone has to do."""
        if _proc.link(f"/proc/{pid}/cwd") is not None:
            return False
        now = _proc.stat(pid)  # one that ended meanwhile hides nothing
        return now is not None and now.state not in "ZX" and now.start == self.stats[pid].start

    def hidden(self) -> bool:
        """Whether there are processes of SGLang that we can not tell to be ours or not: those of the user who owns our directory."""
        owner = _proc.owner(self._directory) if self._directory else None
        return any(
            _COMM.match(stat.comm)
            and self.closed(pid)
            and (owner is None or _proc.owner(f"/proc/{pid}") == owner)
            and is_engine(self.arguments(pid))
            for pid, stat in self.stats.items()
        )

    def is_ours(self, pid: int) -> bool:
        """Whether a process outside the main process's tree belongs to it: unit's cgroup, or SGLang's in our directory."""
        if self.stats[pid].ppid in (0, 2):
            return False
        if self._server.unit_cgroup and in_cgroup(pid, self._server.unit_cgroup):
            return True
        return self.here(pid) and is_engine(self.arguments(pid)) and not self._of_another(pid)

    def _of_another(self, pid: int) -> bool:
        """Whether a launcher for another port, or a living program that is no engine, is this process or above it in our directory."""
        seen: set[int] = set()
        while pid in self.stats and pid not in seen and pid != 1 and self.here(pid):
            if is_launcher(self.arguments(pid)) and port_of(self.arguments(pid)) != self._server.port:
                return True
            if not is_engine(self.arguments(pid)):
                return True
            seen.add(pid)
            pid = self.stats[pid].ppid
        return False

    def discover(self) -> Optional[int]:
        """Main process without a manager's word: our directory and port on the command line, else the listener."""
        # A server in another directory is ours only if somebody says that ours was started by hand, or knows no directory.
        trusting = self._server.service_manager == "existing" or (self._server.service_manager is None and self._server.work_dir is None)
        for pid, stat in sorted(self.stats.items()):
            if stat.ppid == 2 or stat.state == "Z":
                continue
            if not self.here(pid) and not ((trusting or self.closed(pid)) and _COMM.match(stat.comm)):
                continue
            if is_launcher(self.arguments(pid)) and port_of(self.arguments(pid)) == self._server.port:
                return pid
        if trusting and self._server.port is not None:
            holder = _port.owner(_port.listeners(self._server.port) or set(), sorted(self.stats))
            if holder is not None and is_engine(self.arguments(holder)):
                return holder
        return None


def in_cgroup(pid: int, unit_cgroup: str) -> bool:
    """Whether a process lies in the cgroup of a unit, or below it."""
    lines = (_proc.text(f"/proc/{pid}/cgroup") or "").splitlines()
    paths = [line.rpartition(":")[2] for line in lines]
    return any(path == unit_cgroup or path.startswith(unit_cgroup + "/") for path in paths)
