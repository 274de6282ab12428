# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import signal
import time

from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _proc


def test_command_output_and_status():
    outcome = _bounded.run(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], 5)
    assert (outcome.status, outcome.returncode, outcome.text) == ("ok", 3, "out\nerr\n")


def test_missing_command_is_named():
    assert "nosuchtool: No such file" in _bounded.run(["nosuchtool"], 5).reason()


def test_term_ignoring_shell_is_killed_and_its_output_kept():
    outcome = _bounded.run(["/bin/sh", "-c", "trap '' TERM; echo early; while :; do sleep 0.05; done"], 0.3)
    assert outcome.status == "timeout" and outcome.text == "early\n" and outcome.seconds < 2.0


def test_grandchild_that_keeps_the_output_open_does_not_stall_us():
    outcome = _bounded.run(["/bin/sh", "-c", "sleep 30 & echo $!"], 5)
    assert outcome.status == "ok" and outcome.seconds < 2.0
    os.kill(int(outcome.text), signal.SIGKILL)


def test_function_values_survive_a_hang():
    def slow(emit):
        emit({"a": 1, "b": 1})
        emit({"b": 2})
        time.sleep(60)

    outcome = _bounded.call(slow, 0.3)
    assert outcome.status == "timeout" and outcome.values == {"a": 1, "b": 2}
    assert "no answer within" in outcome.reason()


def test_exception_becomes_the_reason():
    assert _bounded.call(lambda emit: emit({"x": 1 // 0}), 5).reason() == "ZeroDivisionError: integer division or modulo by zero"


def test_unkillable_child_is_abandoned_with_its_state():
    class Stuck(_bounded.Child):
        def _reap(self):
            return False, None

    child = Stuck(["/bin/sleep", "30"], 0.1, grace=0.1)
    outcome = child.wait()
    assert outcome.status == "unkillable" and outcome.returncode is None and outcome.seconds < 1.5
    assert outcome.state is not None and "unkillable" in outcome.reason()
    os.waitpid(child.pid, 0)


def test_runaway_output_is_bounded():
    outcome = _bounded.run(["/bin/sh", "-c", "while :; do echo xxxxxxxxxxxxxxxx; done"], 10, max_bytes=1 << 16)
    assert len(outcome.output) == 1 << 16 and outcome.seconds < 5


def test_children_run_side_by_side():
    began = time.monotonic()
    children = [_bounded.Child(["/bin/sleep", "0.4"], 5) for _number in range(4)]
    _bounded.wait_all(children)
    assert time.monotonic() - began < 1.2
    assert all(_proc.stat(child.pid) is None for child in children)


def test_our_own_output_is_closed_in_the_child():
    outcome = _bounded.call(lambda emit: emit({"fds": sorted(os.listdir("/proc/self/fd"))[:4]}), 5)
    assert outcome.values["fds"][:3] == ["0", "1", "2"] and len(outcome.values["fds"]) == 4  # the fourth reads the directory


def test_helpers_of_a_child_that_is_ended_end_with_it():
    helper = "trap '' TERM; while :; do sleep 0.05; done"
    outcome = _bounded.run(["/bin/sh", "-c", f'sh -c "{helper}" & echo $!; wait'], 0.3)
    assert outcome.status == "timeout"
    pid, deadline = int(outcome.text), time.monotonic() + 3
    while (stat := _proc.stat(pid)) is not None and stat.state != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)
