# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Run a command or a function in a child process that can be abandoned.

A child that sleeps in the kernel (state D) survives SIGKILL, and whoever waits for it sleeps with it. So nothing here ever
waits without a limit: the child gets its own session, writes to an unlinked file, is asked to stop (TERM), is killed (KILL),
and is at last left behind with its state as evidence.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

Emit = Callable[[dict[str, Any]], None]
Target = Union[Sequence[str], Callable[[Emit], None]]

_PR_SET_PDEATHSIG = 1
_GRACE_S = 0.5
_POLL_S = 0.005

try:
    _LIBC: Any = ctypes.CDLL(None, use_errno=True)
except (OSError, TypeError):  # a static or foreign libc: the child then merely outlives a killed module
    _LIBC = None


@dataclass
class Outcome:
    """What became of a child.

    :ivar status: ``ok`` (ended by itself), ``timeout`` (ended by us), ``unkillable`` (still there after SIGKILL).
    :ivar returncode: exit status, negative for a signal, null while it is still there.
    :ivar output: bytes written so far, at most the child's limit.
    :ivar values: for a function, everything it emitted, later emissions over earlier ones.
    :ivar error: message of the exception or of the failed exec, null when there was none.
    :ivar seconds: wall time.
    :ivar state: process state letter of an unkillable child, ``wchan`` the kernel function it sleeps in.
    """

    status: str
    returncode: Optional[int]
    output: bytes
    seconds: float
    error: Optional[str] = None
    values: dict[str, Any] = field(default_factory=dict)
    state: Optional[str] = None
    wchan: Optional[str] = None

    @property
    def text(self) -> str:
        """Output as text, undecodable bytes replaced."""
        return self.output.decode("utf-8", "replace")

    def reason(self) -> Optional[str]:
        """One sentence on why the result is incomplete, null when it is complete."""
        if self.status == "unkillable":
            return f"unkillable: still there after SIGKILL, state {self.state}, in {self.wchan or 'an unknown kernel function'}"
        if self.status == "timeout":
            return f"no answer within {self.seconds:.1f} s"
        return self.error


class Child:
    """A started child; call :meth:`poll` until it returns true, then read ``outcome``."""

    def __init__(
        self,
        target: Target,
        timeout: float,
        *,
        env: Optional[Mapping[str, str]] = None,
        stop_signal: int = signal.SIGTERM,
        grace: float = _GRACE_S,
        max_bytes: int = 32 << 20,
    ) -> None:
        self.outcome: Optional[Outcome] = None
        self._started = time.monotonic()
        self._next = self._started + max(timeout, 0.0)
        self._stage = 0
        self._stop_signal = stop_signal
        self._grace = grace
        self._max_bytes = max_bytes
        self._is_call = callable(target)
        self._fd = _unlinked_file()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _child(target, self._fd, env, parent)

    def poll(self) -> bool:
        """Advance TERM, KILL, abandon; true once there is an outcome."""
        if self.outcome is not None:
            return True
        done, returncode = self._reap()
        if done:
            self._finish("ok" if self._stage == 0 else "timeout", returncode)
            return True
        now = time.monotonic()
        if self._stage == 0 and now < self._next and os.fstat(self._fd).st_size > self._max_bytes:
            self._next = now
        if now < self._next:
            return False
        if self._stage == 2:
            self._finish("unkillable", None)
            return True
        self._signal(self._stop_signal if self._stage == 0 else signal.SIGKILL)
        self._stage += 1
        self._next = now + self._grace
        return False

    def wait(self) -> Outcome:
        """Poll to the end, which the deadline bounds."""
        while self.outcome is None:
            if not self.poll():
                time.sleep(_POLL_S)
        return self.outcome

    def _reap(self) -> tuple[bool, Optional[int]]:
        try:
            # Helpers of a child that we end end with it; until it is reaped its id is nobody else's.
            if self._stage and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                self._signal(signal.SIGKILL)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return True, None
        if pid == 0:
            return False, None
        return True, -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _signal(self, number: int) -> None:
        # The session may not exist yet when the deadline is very short: then only the child itself is there.
        for send, who in ((os.killpg, self.pid), (os.kill, self.pid)):
            try:
                send(who, number)
                return
            except OSError:
                continue

    def _finish(self, status: str, returncode: Optional[int]) -> None:
        output = _read_all(self._fd, self._max_bytes)
        os.close(self._fd)
        outcome = Outcome(status, returncode, output, time.monotonic() - self._started)
        if self._is_call:
            outcome.values = _merge(output)
            outcome.error = outcome.values.pop("__error__", None)
        elif status == "ok" and returncode == 127 and output.startswith(b"exec: "):
            outcome.error = output[6:].decode("utf-8", "replace").strip()
        if outcome.error is None and status == "ok" and returncode is not None and returncode < 0:
            outcome.error = f"killed by signal {-returncode}"
        if status == "unkillable":
            outcome.state = _proc_state(self.pid)
            outcome.wchan = _proc_text(self.pid, "wchan")
        self.outcome = outcome


def run(argv: Sequence[str], timeout: float, *, env: Optional[Mapping[str, str]] = None, max_bytes: int = 32 << 20) -> Outcome:
    """Run a command for at most ``timeout`` seconds (plus two grace periods)."""
    return Child(argv, timeout, env=env, max_bytes=max_bytes).wait()


def call(function: Callable[[Emit], None], timeout: float) -> Outcome:
    """Run a function in a child for at most ``timeout`` seconds; what it emits is in ``values``."""
    return Child(function, timeout).wait()


def wait_all(children: Iterable[Child]) -> None:
    """Wait for several children at once; each is bounded by its own deadline."""
    pending = list(children)
    while True:
        pending = [child for child in pending if not child.poll()]
        if not pending:
            return
        time.sleep(_POLL_S)


def _child(target: Target, out_fd: int, env: Optional[Mapping[str, str]], parent: int) -> None:
    """Body of the child; never returns."""
    status = 0
    try:
        os.setsid()
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # killed before it could be asked for
                os._exit(1)
        null = os.open(os.devnull, os.O_RDWR)
        for fd, source in ((0, null), (1, out_fd), (2, null if callable(target) else out_fd)):
            os.dup2(source, fd)
        # Whoever keeps the module's own output open keeps the connection to the controller open.
        os.closerange(3, 4096)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        if callable(target):
            target(_emit)
        else:
            _exec(target, env)
    except BaseException as error:  # nothing may escape into the copy of the caller
        status = 1
        _emit({"__error__": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(status)


def _exec(argv: Sequence[str], env: Optional[Mapping[str, str]]) -> None:
    environment = dict(os.environ if env is None else env)
    environment.update({"LC_ALL": "C", "LANG": "C"})
    try:
        # execvp calls a missing tool a forbidden one when some folder of PATH can not be entered.
        path = argv[0] if "/" in argv[0] else shutil.which(argv[0], path=environment.get("PATH"))
        if path is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        os.execve(path, list(argv), environment)  # noqa: S606
    except OSError as error:
        os.write(1, f"exec: {argv[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _emit(values: dict[str, Any]) -> None:
    data = json.dumps(values, default=str).encode("utf-8", "replace") + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _merge(output: bytes) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for line in output.split(b"\n"):
        try:
            part = json.loads(line)
        except ValueError:
            continue
        if isinstance(part, dict):
            values.update(part)
    return values


def _unlinked_file() -> int:
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("gpufleet", os.MFD_CLOEXEC)
        except OSError:
            pass
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _read_all(fd: int, limit: int) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while offset < limit:
        part = os.pread(fd, min(1 << 20, limit - offset), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _proc_text(pid: int, name: str) -> Optional[str]:
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip() or None
    except OSError:
        return None


def _proc_state(pid: int) -> Optional[str]:
    text = _proc_text(pid, "stat")
    return text.rpartition(")")[2].split()[0] if text else None
