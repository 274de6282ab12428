# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest
from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _proc, _syscalls

INCIDENT = """\
[pid 73401] futex(0x7f00, FUTEX_WAIT_BITSET_PRIVATE, 0, NULL, FUTEX_BITSET_MATCH_ANY <unfinished ...>
[pid 73402] epoll_wait(9,  <unfinished ...>
[pid 73529] 00:35:20 write(127, "\\1", 1) = 1
[pid 73529] 00:35:20 write(130, "\\1", 1) = 1
[pid 73529] clock_nanosleep(CLOCK_REALTIME, 0, {tv_sec=1, tv_nsec=0}, NULL) = 0
[pid 73529] 00:35:21 write(132, "\\1", 1) = 1
[pid 73529] clock_nanosleep(CLOCK_REALTIME, 0, {tv_sec=1, tv_nsec=0}, <detached ...>
"""


def pattern(text, seconds=1.5):
    return _syscalls.parse(text, seconds)["pattern"]


def test_the_founding_incident():
    seen = _syscalls.parse(INCIDENT, 1.5)
    assert seen["pattern"] == "heartbeat_only" and len(seen["one_byte"]) == 3
    assert seen["blocked"]["futex"] == 1 and seen["calls"]["write"] == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "unknown"),
        ("[pid 1] futex(0x1, FUTEX_WAIT, 0, NULL <unfinished ...>\n[pid 2] futex(0x2, FUTEX_WAIT, 0, NULL <detached ...>\n", "futex_wait"),
        ('pread64(7, "xx"..., 1048576, 0) = 1048576\n', "reading"),
        ("[pid 5] wait4(77,  <unfinished ...>\n", "compiling"),
        ("poll([{fd=4}], 1, 0) = 0 (Timeout)\n" * 900, "polling"),
        ("clock_nanosleep(CLOCK_REALTIME, 0, {}, NULL) = 0\n", "idle"),
        (INCIDENT + '[pid 9] openat(AT_FDCWD, "/x", O_RDONLY) = 5\n', "mixed"),
        ('write(1, "\\1", 1) = 1\n' * 3, "mixed"),
        ("[pid 3] poll([{fd=4}], 1, -1 <unfinished ...>\n[pid 3] <... poll resumed>) = 1\nioctl(3, 0x1, 0x2) = 0\n", "mixed"),
    ],
)
def test_patterns(text, expected):
    assert pattern(text) == expected


def test_kernel_view():
    assert _syscalls.classify_kernel({"futex": 190, "clock_nanosleep": 1, "poll": 2}) == "futex_wait"
    assert _syscalls.classify_kernel({"running": 1, "futex": 3}) == "unknown"
    assert _syscalls.classify_kernel({"wait4": 1}) == "compiling"


HEART = """
import os, threading, time
pipes = [os.pipe() for _ in range(8)]
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("up", flush=True)
while True:
    for _, end in pipes:
        os.write(end, b"\\1")
    time.sleep(1)
"""


@pytest.fixture
def heart():
    process = subprocess.Popen([sys.executable, "-c", HEART], stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def traced(pid):
    trace = _syscalls.Trace(pid, 0)
    _bounded.wait_all(trace.children())
    return trace.result()


@pytest.mark.skipif(shutil.which("strace") is None or os.geteuid() != 0, reason="needs strace and root")
def test_strace_of_a_heartbeat_leaves_the_target_as_it_was(heart):
    seen = traced(heart)
    assert (seen["method"], seen["pattern"], seen["descriptors"]) == ("strace", "heartbeat_only", 8)
    time.sleep(0.1)
    assert _proc.stat(heart).state in "SR"
    assert _proc.pairs(f"/proc/{heart}/status")["TracerPid"] == "0"


def test_without_strace_the_kernel_is_asked(heart, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    seen = traced(heart)
    assert seen["method"] == "proc" and seen["threads"] == 2 and seen["reason"] == "strace is not installed"
    assert seen["counts"]


def test_a_stopped_target_is_neither_traced_nor_continued(heart):
    os.kill(heart, 19)
    time.sleep(0.1)
    assert "stopped" in traced(heart)["reason"]
    assert _proc.stat(heart).state == "T"
