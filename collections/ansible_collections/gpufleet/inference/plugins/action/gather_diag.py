# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Observe on the node, judge on the controller: the controller's half of M(gpufleet.inference.gather_diag)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.inference.plugins.plugin_utils import observe
from ansible_collections.gpufleet.inference.plugins.plugin_utils.plain import plain

FLAGS = ("return_snapshot", "return_records")


def variable_reader(templar: Any, task_vars: dict[str, Any]) -> Callable[[str], Any]:
    """A function that gives the templated value of a variable of the host, None when it has none."""

    def read(name: str) -> Any:
        if name not in task_vars:
            return None
        try:
            return templar.template(task_vars[name])
        except AnsibleError as error:
            raise AnsibleActionFail(f"the variable {name} can not be evaluated: {error}") from error

    return read


def make_judge(options: dict[str, Any]) -> observe.Judge:
    """The judge for the options C(policy) and C(signatures_extra), or one clear error about them."""
    overrides, extra = plain(options.get("policy")), plain(options.get("signatures_extra"))
    if overrides is not None and not isinstance(overrides, dict):
        raise AnsibleActionFail(f"gpufleet_policy: expected a dictionary, found {overrides!r}")
    extra = [extra] if isinstance(extra, str) else extra
    if extra is not None and not (isinstance(extra, list) and all(isinstance(path, str) for path in extra)):
        raise AnsibleActionFail(f"gpufleet_signatures_extra: expected a list of files, found {extra!r}")
    try:
        return observe.Judge(overrides, extra)
    except (ValueError, OSError) as error:
        raise AnsibleActionFail(f"gpufleet_policy or gpufleet_signatures_extra: {error}") from error


class ActionModule(ActionBase):
    """Fill the options from the host's variables, run the module, judge its snapshot."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the verdict with a summary; the snapshot and the records only on request."""
        task_vars = task_vars or {}
        outcome: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        flags = {name: boolean(arguments.pop(name, False)) for name in FLAGS}
        read = variable_reader(self._templar, task_vars)
        judge = make_judge(observe.resolve(arguments, read, observe.CONTROLLER_VARIABLES))
        own = {name: value for name, value in arguments.items() if name not in observe.CONTROLLER_VARIABLES and value is not None}
        own.update(observe.resolve(arguments, read, observe.VARIABLES))
        own.setdefault("patterns", judge.patterns())
        answer = self._execute_module(module_name=observe.MODULE, module_args=own, task_vars=task_vars)
        if answer.get("failed") or "snapshot" not in answer:
            outcome.update(answer)
            outcome.setdefault("failed", True)
            return outcome
        host = str(task_vars.get("inventory_hostname", ""))
        outcome.update(observe.result(answer, judge, host, with_records=flags["return_records"], with_snapshot=flags["return_snapshot"]))
        if answer.get("warnings"):
            outcome["warnings"] = answer["warnings"]
        return outcome
