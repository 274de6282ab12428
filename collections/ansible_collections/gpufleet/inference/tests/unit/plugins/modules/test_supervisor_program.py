# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpufleet.inference.plugins.modules import supervisor_program

# A supervisorctl that plays one answer per command and notes what it was asked.
CONTROL = """#!/usr/bin/env python3
import json, sys
answers = json.load(open({answers!r}))
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[3:]) + "\\n")
print(answers.get(sys.argv[3], ""))
"""


@pytest.fixture
def run(tmp_path, capsys):
    def call(answers, check=False, **args):
        (tmp_path / "answers").write_text(json.dumps(answers))
        control = tmp_path / "supervisorctl"
        control.write_text(CONTROL.format(answers=str(tmp_path / "answers"), log=str(tmp_path / "log")))
        control.chmod(0o755)
        options = {"conf": "/etc/s.conf", "name": "sglang", "supervisorctl": str(control), "_ansible_check_mode": check}
        with patch_module_args({**options, **args}), pytest.raises(SystemExit):
            supervisor_program.main()
        log = tmp_path / "log"
        asked = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return json.loads(capsys.readouterr().out), [line for line in asked if line.split()[0] in ("start", "stop", "update")]

    return call


RUNNING = "sglang                           RUNNING   pid 4711, uptime 0:01:00"


def test_a_running_program_is_left_alone(run):
    result, asked = run({"status": RUNNING, "reread": "No config updates to processes"})
    assert not result["changed"] and asked == [] and result["program"] == {"state": "RUNNING", "pid": 4711}


@pytest.mark.parametrize(
    ("status", "reread", "wanted", "commands"),
    [
        ("sglang: ERROR (no such process)", "sglang: available", "started", ["update sglang", "start sglang"]),
        (RUNNING, "sglang: changed\nother: changed", "started", ["update sglang", "start sglang"]),
        ("sglang  EXITED    Nov 29 10:00 AM", "No config updates to processes", "started", ["start sglang"]),
        ("sglang  FATAL     Exited too quickly", "", "started", ["start sglang"]),
        (RUNNING, "", "stopped", ["stop sglang"]),
        ("sglang  EXITED    Nov 29 10:00 AM", "", "stopped", []),
        ("sglang: ERROR (no such process)", "", "stopped", []),
        (RUNNING, "other: changed", "present", []),
        (RUNNING, "sglang: disappeared", "absent", ["update sglang"]),
    ],
)
def test_commands(run, status, reread, wanted, commands):
    answers = {"status": status, "reread": reread, "start": "sglang: started"}
    result, asked = run(answers, state=wanted)
    assert asked == commands and result["changed"] is bool(commands)
    result, asked = run(answers, state=wanted, check=True)
    assert asked == [] and result["commands"] == commands


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"status": "unix:///x.sock no such file"}, "does not answer"),
        ({"status": "sglang: ERROR (no such process)", "reread": ""}, "knows no program"),
        ({"status": "sglang  EXITED  x", "start": "sglang: ERROR (no such file)"}, "does not answer|no such file"),
        ({"status": "sglang  EXITED  x", "start": "sglang: ERROR (spawn error)"}, "spawn error"),
    ],
)
def test_errors_are_told(run, answers, message):
    import re

    result, _asked = run(answers)
    assert result["failed"] and re.search(message, result["msg"])


def test_a_missing_supervisorctl_is_told(run):
    result, _asked = run({}, supervisorctl=os.path.join("/nowhere", "supervisorctl"))
    assert "/nowhere/supervisorctl" in result["msg"]


def test_check_mode_expects_the_file_that_is_not_there_yet(run):
    result, asked = run({"status": "sglang: ERROR (no such process)", "reread": ""}, check=True)
    assert result["changed"] and asked == []
