# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Follow the start of a server until it serves or certainly will not."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gpufleet.inference.plugins.action.gather_diag import make_judge, variable_reader
from ansible_collections.gpufleet.inference.plugins.plugin_utils import observe
from ansible_collections.gpufleet.inference.plugins.plugin_utils.waiting import Watch

display = Display()

DEFAULTS = {"timeout": 5400.0, "interval": 10.0, "window": 2.0, "confirm_visits": 2, "confirm_seconds": 120.0}
VARIABLES = {
    "timeout": "sglang_ready_timeout",
    "confirm_visits": "remediation_confirm_visits",
    "confirm_seconds": "remediation_confirm_seconds",
}
LOST_LOOKS = 3


class ActionModule(ActionBase):
    """Run the module gather_diag again and again, with the smallest depth that tells the state."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the last verdict, the seconds waited and what changed on the way; fails when it will not serve."""
        task_vars = task_vars or {}
        outcome: dict[str, Any] = super().run(tmp, task_vars)
        outcome["changed"] = False
        read = variable_reader(self._templar, task_vars)
        arguments = dict(self._task.args)
        limits = self._limits(arguments, read)
        if self._task.check_mode:
            outcome.update(skipped=True, msg="not waited for in check mode", verdict=None, seconds=0.0, timeline=[])
            return outcome
        judge = make_judge(observe.resolve(arguments, read, observe.CONTROLLER_VARIABLES))
        ours = {*DEFAULTS, *observe.CONTROLLER_VARIABLES} - {"window"}
        module_args = {name: value for name, value in arguments.items() if name not in ours and value is not None}
        module_args.update(observe.resolve(arguments, read, observe.VARIABLES))
        module_args.update(patterns=judge.patterns(), window=limits["window"], probe="generate")
        watch = Watch(str(task_vars.get("inventory_hostname", "")), limits)
        self._follow(watch, judge, module_args, task_vars, limits["interval"])
        outcome.update(watch.outcome())
        return outcome

    def _limits(self, arguments: dict[str, Any], read: Any) -> dict[str, float]:
        given = {name: value for name, value in arguments.items() if name in DEFAULTS and value is not None}
        given = {**DEFAULTS, **observe.resolve(arguments, read, VARIABLES), **given}
        try:
            return {name: float(value) for name, value in given.items()}
        except (TypeError, ValueError) as error:
            raise AnsibleActionFail(f"timeout, interval, window, confirm_visits and confirm_seconds are numbers: {error}") from error

    def _follow(self, watch: Watch, judge: observe.Judge, module_args: dict[str, Any], task_vars: dict[str, Any], interval: float) -> None:
        """Look until the watch has seen enough."""
        begin, lost = time.monotonic(), 0
        while True:
            # Only a look that may end the wait needs the costly evidence.
            look = dict(module_args, depth="auto" if watch.suspicious else "quick")
            try:
                answer = self._execute_module(module_name=observe.MODULE, module_args=look, task_vars=task_vars)
                problem = str(answer.get("msg") or "") if answer.get("failed") or "snapshot" not in answer else None
            except AnsibleConnectionFailure as error:
                answer, problem = {}, str(error)
            seconds = time.monotonic() - begin
            if problem is None:
                lost = 0
                snapshot = answer["snapshot"]
                line = watch.look(judge.verdict(snapshot, watch.host), snapshot, seconds)
                if line:
                    display.display(line)
            else:
                lost += 1
                if lost >= LOST_LOOKS:
                    raise AnsibleActionFail(f"lost sight of the host while waiting: {problem}")
            if watch.done or watch.out_of_time(seconds):
                return
            # Short rests first, so that a quick start is seen happening and a long one costs the host little.
            time.sleep(min(interval, max(1.0, seconds / 20)))
