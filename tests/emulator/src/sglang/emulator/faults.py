# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rank does when a fault is on: hang with a heartbeat, read slowly, compile, run out of memory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable, NoReturn

F_SETPIPE_SZ = 1031


class OutOfMemoryError(RuntimeError):
    """CUDA's allocation failure as torch names it."""

    __module__ = "torch"


def out_of_memory(gpu: int, total_gib: float, free_gib: float, want_gib: float = 1.31) -> OutOfMemoryError:
    """The exception with torch's wording."""
    used = total_gib - free_gib
    return OutOfMemoryError(
        "CUDA out of memory. Tried to allocate %.2f GiB. GPU %d has a total capacity of %.2f GiB of which %.2f MiB is free. "
        "Process %d has %.2f GiB memory in use. Of the allocated memory %.2f GiB is allocated by PyTorch, and 26.41 MiB is reserved "
        "by PyTorch but unallocated." % (want_gib, gpu, total_gib, free_gib * 1024, os.getpid(), used, max(used - 0.6, 0))
    )


def heartbeat(first_fd: int = 126, count: int = 8) -> None:
    """One byte to each of ``count`` pipes once a second, for ever, from one thread. The pipes are wide enough for days."""
    writers = []
    for number in range(count):
        _reader, writer = os.pipe()
        fcntl.fcntl(writer, F_SETPIPE_SZ, 1 << 18)
        writers.append(fcntl.fcntl(writer, fcntl.F_DUPFD, first_fd + number))
        os.close(writer)
        os.set_blocking(writers[-1], False)
    while True:
        for writer in writers:
            with contextlib.suppress(BlockingIOError):
                os.write(writer, b"\x01")
        time.sleep(1)


def hang(rank: int) -> NoReturn:
    """Sleep for ever in a futex; rank 0 keeps a heartbeat thread."""
    if rank == 0:
        threading.Thread(target=heartbeat, daemon=True).start()
    while True:
        threading.Event().wait()


def read_slowly(files: list[Path], bytes_per_s: int, active: Callable[[], bool]) -> None:
    """Read the shards over and over at ``bytes_per_s`` while ``active()``; four reads a second."""
    chunk = max(bytes_per_s // 4, 4096)
    while True:
        for path in files:
            with open(path, "rb", buffering=0) as stream:
                while stream.read(chunk):
                    time.sleep(0.25)
                    if not active():
                        return


def compile_kernels(rank: int, share: float, active: Callable[[], bool]) -> None:
    """Wait while ``active()``; rank 0 has a compiler child ``cicc`` that uses ``share`` of a core."""
    child = subprocess.Popen([sys.executable, "-m", "sglang.emulator.cicc", str(share)]) if rank == 0 else None
    try:
        while active():
            time.sleep(0.25)
    finally:
        if child:
            child.kill()
            child.wait()
