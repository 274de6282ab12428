# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What one rank does: a short strace of all its threads and all calls, or the kernel's view of each thread."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _proc, _processes

SECONDS = 1.5
_MAX_BYTES = 8 << 20
_LINES = 12
_PROC_SAMPLES = 5

_LINE = re.compile(r"^(?:\[pid\s+(?P<tid>\d+)\]\s+)?(?:\d\d:\d\d:\d\d(?:\.\d+)?\s+)?(?P<name>[a-z_][a-z0-9_]*)\((?P<args>.*)$")
_RESUMED = re.compile(r"^(?:\[pid\s+\d+\]\s+)?(?:\d\d:\d\d:\d\d(?:\.\d+)?\s+)?<\.\.\. (?P<name>\w+) resumed>(?P<args>.*)$")
_DONE = re.compile(r"\)\s+=\s+(-?\d+|0x[0-9a-f]+|\?)")
_ONE_BYTE = re.compile(r'^(\d+), "[^"]{1,4}", 1\)\s+=\s+1\b')
_WAITS = {"select", "pselect6", "poll", "ppoll", "epoll_wait", "epoll_pwait", "epoll_pwait2", "sched_yield"}
_SLEEPS = _WAITS | {"clock_nanosleep", "nanosleep", "restart_syscall", "futex"}
_POLLS = _WAITS | {"recvmsg", "recvfrom", "read", "getpid"}
_READS = {"read", "pread64", "readv", "preadv", "preadv2", "io_uring_enter"}
_SPAWNS = {"wait4", "waitid", "execve", "vfork"}
_NUMBERS = {
    "x86_64": {
        0: "read",
        1: "write",
        7: "poll",
        16: "ioctl",
        17: "pread64",
        23: "select",
        24: "sched_yield",
        35: "nanosleep",
        45: "recvfrom",
        47: "recvmsg",
        61: "wait4",
        202: "futex",
        230: "clock_nanosleep",
        232: "epoll_wait",
        247: "waitid",
        270: "pselect6",
        271: "ppoll",
        281: "epoll_pwait",
    },
    "aarch64": {
        22: "epoll_pwait",
        29: "ioctl",
        63: "read",
        64: "write",
        67: "pread64",
        72: "pselect6",
        73: "ppoll",
        95: "waitid",
        98: "futex",
        101: "nanosleep",
        115: "clock_nanosleep",
        124: "sched_yield",
        207: "recvfrom",
        212: "recvmsg",
        260: "wait4",
    },
}


class Trace:
    """One running sample of a process. Start it, poll it beside other work, then read :meth:`result`."""

    def __init__(self, pid: int, rank: Optional[int], seconds: float = SECONDS) -> None:
        self.pid = pid
        self.rank = rank
        before = _proc.stat(pid)
        self._start = before.start if before else None
        self._was_stopped = before is not None and before.state in "Tt"
        self.strace: Optional[_bounded.Child] = None
        tool = shutil.which("strace")
        if tool and not self._was_stopped:
            # SIGTERM and SIGINT make strace detach; it is killed only if it does not end on either.
            argv = [tool, "-f", "-q", "-s", "32", "-p", str(pid)]
            self.strace = _bounded.Child(argv, seconds, stop_signal=signal.SIGINT, grace=1.0, max_bytes=_MAX_BYTES)
        self.kernel = _bounded.Child(lambda emit: _kernel_view(pid, seconds / _PROC_SAMPLES, emit), seconds + 1.0)

    def children(self) -> list[_bounded.Child]:
        """What has to be polled."""
        return [child for child in (self.strace, self.kernel) if child is not None]

    def result(self) -> dict[str, Any]:
        """The snapshot's ``syscalls`` and, under ``text``, the raw trace."""
        view = self.kernel.outcome.values if self.kernel.outcome else {}
        base: dict[str, Any] = {"status": "ok", "reason": None, "pid": self.pid, "rank": self.rank, "threads": view.get("threads")}
        outcome = self.strace.outcome if self.strace else None
        self._resume()
        if outcome is not None:
            parsed = parse(outcome.text, outcome.seconds)
            if parsed["calls"] or parsed["blocked"]:
                return {**base, "method": "strace", "seconds": round(outcome.seconds, 2), **_public(parsed), "text": outcome.text}
            reason = (outcome.text.strip().splitlines() or ["no output"])[0][:200] if outcome.status == "ok" else outcome.reason()
        else:
            reason = "the process is stopped, tracing it would change that" if self._was_stopped else "strace is not installed"
        counts = Counter(view.get("calls") or {})
        if not counts:
            return {
                **base,
                "status": "unavailable",
                "reason": reason or "no thread could be read",
                "method": None,
                "seconds": 0.0,
                "counts": {},
                "pattern": "unknown",
                "lines": [],
                "text": "",
            }
        lines = [f"{count} threads in {name}" for name, count in counts.most_common(_LINES)]
        return {
            **base,
            "reason": reason,
            "method": "proc",
            "seconds": SECONDS,
            "counts": dict(counts.most_common(30)),
            "pattern": classify_kernel(counts),
            "lines": lines,
            "text": "\n".join(lines),
        }

    def _resume(self) -> None:
        """Undo a stop that our own tracing left behind; one that was there before stays."""
        now = _proc.stat(self.pid)
        if self.strace is not None and not self._was_stopped and now is not None and now.start == self._start and now.state == "T":
            os.kill(self.pid, signal.SIGCONT)


def parse(text: str, seconds: float) -> dict[str, Any]:
    """Calls of an strace output: ``calls`` finished ones by name, ``blocked`` unfinished ones, ``one_byte`` writes by descriptor."""
    calls: Counter[str] = Counter()
    blocked: Counter[str] = Counter()
    one_byte: Counter[str] = Counter()
    read = 0
    lines: list[str] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        resumed = None if match else _RESUMED.match(line)
        if match is None and resumed is None:
            continue
        name = (match or resumed).group("name")  # type: ignore[union-attr]
        args = (match or resumed).group("args")  # type: ignore[union-attr]
        done = _DONE.search(args)
        if match is not None and done is None:
            blocked[name] += 1
            continue
        if resumed is not None and blocked[name]:
            blocked[name] -= 1
        if done is None:
            continue
        calls[name] += 1
        if name == "write" and (byte := _ONE_BYTE.match(args)):
            one_byte[byte.group(1)] += 1
        if name in _READS and done.group(1).isdigit():
            read += int(done.group(1))
        if len(lines) < _LINES and name not in ("futex", "restart_syscall"):
            lines.append(line[:160])
    blocked = +blocked
    return {
        "calls": calls,
        "blocked": blocked,
        "one_byte": one_byte,
        "lines": lines or [line[:160] for line in text.splitlines()[:_LINES]],
        "pattern": classify(calls, blocked, one_byte, read, seconds),
    }


def classify(calls: Mapping[str, int], blocked: Mapping[str, int], one_byte: Mapping[str, int], read: int, seconds: float) -> str:
    """Name the pattern of a full trace.

    ``heartbeat_only`` is the founding incident's: single bytes to several descriptors about once a second, everything else asleep.
    """
    total = sum(calls.values())
    rate = total / max(seconds, 0.1)
    if not total:
        waiting = sum(blocked.values())
        if not waiting:
            return "unknown"
        if _SPAWNS & set(blocked):
            return "compiling"
        return "futex_wait" if blocked.get("futex", 0) * 2 > waiting else "idle"
    if any(name in calls for name in ("execve", "vfork")) or _SPAWNS & set(blocked):
        return "compiling"
    if read > 65536:
        return "reading"
    work = {name: count for name, count in calls.items() if name not in _SLEEPS}
    beats = sum(one_byte.values())
    if len(one_byte) >= 2 and beats == sum(work.values()) and beats <= 25 * max(seconds, 1.0):
        return "heartbeat_only"
    polls = sum(count for name, count in calls.items() if name in _POLLS)
    if rate > 10 and polls * 2 > total:
        return "polling"
    if not work:
        futexes = calls.get("futex", 0) + blocked.get("futex", 0)
        return "futex_wait" if futexes * 2 > total + sum(blocked.values()) else "idle"
    return "mixed"


def classify_kernel(counts: Mapping[str, int]) -> str:
    """Name the pattern of the kernel's view, which shows where threads are and not what passes between."""
    total = sum(counts.values())
    if _SPAWNS & set(counts):
        return "compiling"
    if any(name in counts for name in ("pread64", "read")) and counts.get("running", 0) == 0 and counts.get("disk", 0):
        return "reading"
    if counts.get("futex", 0) * 2 > total and not counts.get("running"):
        return "futex_wait"
    if counts.get("running"):
        return "unknown"
    return "idle" if all(name in _SLEEPS for name in counts) else "unknown"


def _public(parsed: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "counts": dict(parsed["calls"].most_common(30)),
        "blocked": dict(parsed["blocked"].most_common(10)),
        "descriptors": len(parsed["one_byte"]),
        "pattern": parsed["pattern"],
        "lines": parsed["lines"],
    }


def _kernel_view(pid: int, pause: float, emit: _bounded.Emit) -> None:
    """Child body: system call, or else kernel function and state, of every thread, summed over a few looks."""
    table = _NUMBERS.get(os.uname().machine, {})
    counts: Counter[str] = Counter()
    threads: Sequence[str] = []
    for _look in range(_PROC_SAMPLES):
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            break
        for thread in threads:
            counts[_thread(f"/proc/{pid}/task/{thread}", table)] += 1
        emit({"threads": len(threads), "calls": {name: -(-count // (_look + 1)) for name, count in counts.items()}})
        time.sleep(pause)


def _thread(base: str, table: Mapping[int, str]) -> str:
    stat = _proc.parse_stat(_proc.text(f"{base}/stat") or "")
    if stat is not None and stat.state == "D":
        return "disk"
    words = (_proc.text(f"{base}/syscall") or "").split()
    if words and words[0] == "running":
        return "running"
    if words and words[0].isdigit():
        return table.get(int(words[0]), f"syscall_{words[0]}")
    return _processes.wchan(f"{base}/wchan") or (f"state_{stat.state}" if stat else "gone")
