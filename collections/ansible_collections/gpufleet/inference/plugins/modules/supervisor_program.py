# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start, stop and reload one program of a supervisord."""

from __future__ import annotations

DOCUMENTATION = r"""
module: supervisor_program
short_description: Manage one program of a supervisord
author:
  - gpufleet contributors (@gpufleet)
description:
  - Keeps one program of a running C(supervisord) in the wanted state, for hosts without systemd such as GPU pods.
  - Only this program is touched. Others are neither reread into a restart nor stopped.
extends_documentation_fragment:
  - gpufleet.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  conf:
    description: Configuration file of the supervisord, which names its socket.
    type: path
    required: true
  name:
    description: Name of the program.
    type: str
    required: true
  state:
    description:
      - V(started) loads the current configuration of the program and starts it unless it is running.
      - V(stopped) stops it if it is running.
      - V(present) only makes supervisord know it. A program with C(autostart=true) that is new, or whose configuration changed,
        is (re)started by that.
      - V(absent) makes supervisord forget a program whose configuration file is gone, and stops it.
    type: str
    default: started
    choices: [started, stopped, present, absent]
  supervisorctl:
    description: Path of C(supervisorctl), or its name on the search path.
    type: str
    default: supervisorctl
  timeout:
    description: Seconds that one command of C(supervisorctl) may take. A stop takes up to C(stopwaitsecs) of the program.
    type: float
    default: 300
"""

EXAMPLES = r"""
- name: The server runs
  gpufleet.inference.supervisor_program:
    conf: /etc/supervisor/supervisord.conf
    name: sglang
    state: started
"""

RETURN = r"""
program:
  description: What supervisord says about the program after the task. In check mode before it.
  returned: success
  type: dict
  contains:
    state:
      description: State in supervisord's words, V(null) when it does not know the program.
      type: str
      sample: RUNNING
    pid:
      description: Process id while it runs.
      type: int
      sample: 4711
commands:
  description: The commands of C(supervisorctl) that changed something. In check mode those that would.
  returned: success
  type: list
  elements: str
  sample: ["update sglang", "start sglang"]
"""

import re
import subprocess
from typing import Any

from ansible.module_utils.basic import AnsibleModule

RUNNING = ("RUNNING", "STARTING", "BACKOFF")
STATUS_LINE = re.compile(r"^(?P<name>\S+)\s+(?P<state>[A-Z]{4,})\b(?:\s+pid (?P<pid>\d+))?")
PENDING_LINE = re.compile(r"^(?P<name>\S+): (?P<what>available|changed|disappeared)$")


class ControlError(Exception):
    """supervisorctl could not be run, did not answer in time, or supervisord did not accept the command."""


class Control:
    """The commands of one supervisorctl on one program."""

    def __init__(self, supervisorctl: str, conf: str, name: str, timeout: float) -> None:
        self.command = [supervisorctl, "-c", conf]
        self.name = name
        self.timeout = timeout

    def run(self, *words: str) -> tuple[int, str]:
        """Exit status and output of one command. ControlError when there is no answer."""
        try:
            done = subprocess.run(
                self.command + list(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ControlError(f"supervisorctl {' '.join(words)}: no answer within {self.timeout:.0f} s") from None
        except OSError as error:
            raise ControlError(f"{self.command[0]}: {error.strerror or error}") from None
        output = done.stdout.decode("utf-8", "replace").strip()
        if re.search(r"refused connection|no such file|SHUTDOWN_STATE|error: <class", output):
            raise ControlError(f"supervisord of {self.command[2]} does not answer: {output}")
        return done.returncode, output

    def status(self) -> dict[str, Any]:
        """State and pid of the program; both None when supervisord does not know it."""
        for line in self.run("status", self.name)[1].splitlines():
            found = STATUS_LINE.match(line)
            if found and found.group("name") in (self.name, f"{self.name}:{self.name}"):
                pid = found.group("pid")
                return {"state": found.group("state"), "pid": int(pid) if pid else None}
        return {"state": None, "pid": None}

    def pending(self) -> str | None:
        """What supervisord found in the files since it last took the program over: available, changed, disappeared or None."""
        code, output = self.run("reread")
        found = [PENDING_LINE.match(line) for line in output.splitlines()]
        if code != 0 and not any(found):
            raise ControlError(f"supervisord refuses its configuration: {output}")
        return next((match.group("what") for match in found if match and match.group("name") == self.name), None)

    def change(self, verb: str) -> None:
        """One changing command. ControlError with supervisord's own words when it fails."""
        output = self.run(verb, self.name)[1]
        if "ERROR" in output and not re.search(r"ERROR \((already started|not running)\)", output):
            raise ControlError(f"supervisorctl {verb} {self.name}: {output}")


def steps(wanted: str, state: str | None, pending: str | None) -> list[str]:
    """The commands that lead from supervisord's O(state) of the program and its O(pending) configuration to O(wanted)."""
    running = state in RUNNING
    if wanted == "stopped":
        return ["stop"] if running or state == "STOPPING" else []
    if wanted == "absent":
        return ["update"] if pending == "disappeared" else []
    if wanted == "present":
        return ["update"] if pending in ("available", "changed") else []
    update = ["update"] if pending in ("available", "changed") else []
    return update + ([] if running and not update else ["start"])


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "conf": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "default": "started", "choices": ["started", "stopped", "present", "absent"]},
            "supervisorctl": {"type": "str", "default": "supervisorctl"},
            "timeout": {"type": "float", "default": 300},
        },
        supports_check_mode=True,
    )
    params = module.params
    control = Control(params["supervisorctl"], params["conf"], params["name"], params["timeout"])
    try:
        before = control.status()
        pending = control.pending() if params["state"] != "stopped" else None
        if params["state"] in ("started", "present") and before["state"] is None and pending is None:
            if module.check_mode:  # its file may be what an earlier task would have written
                module.exit_json(changed=True, program=before, commands=[f"update {params['name']}"])
            raise ControlError(f"supervisord of {params['conf']} knows no program {params['name']}")
        commands = steps(params["state"], before["state"], pending)
        if not module.check_mode:
            for verb in commands:
                control.change(verb)
        after = before if module.check_mode else control.status()
    except ControlError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(commands), program=after, commands=[f"{verb} {params['name']}" for verb in commands])


if __name__ == "__main__":
    main()
