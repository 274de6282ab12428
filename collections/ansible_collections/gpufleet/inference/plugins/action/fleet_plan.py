# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan what remediation may do with each host of a fleet."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.inference.plugins.plugin_utils.plain import plain
from ansible_collections.gpufleet.inference.plugins.plugin_utils.plan import DEFAULTS, plan_fleet

_SECONDS = ("attempt_window", "cooldown", "confirm_seconds", "breaker_window", "fallback_ttl", "quarantine_ttl")
_OF_THE_HOST = {"ladder": "sglang_ladder", "extra_flags": "sglang_extra_flags", "extra_environment": "sglang_extra_environment"}


class ActionModule(ActionBase):  # type: ignore[misc]
    """Collects what gather_diag found on every host and plans once for all of them."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the plan; fails for options that make no sense."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _checked, options = self.validate_argument_spec(
            argument_spec={
                "results_var": {"type": "str", "required": True},
                "hosts": {"type": "list", "elements": "str", "required": True},
                "group": {"type": "str", "default": "sglang"},
                "mode": {"type": "str", "choices": ["observe", "heal"], "default": DEFAULTS["mode"]},
                "fleet_size": {"type": "int"},
                "owner": {"type": "str"},
                "breaker_percent": {"type": "float", "default": DEFAULTS["breaker_percent"]},
                **{
                    name: {"type": "int", "default": DEFAULTS[name]}
                    for name in ("max_attempts", "max_restarts", "confirm_visits", "breaker_max")
                },
                **{name: {"type": "float", "default": DEFAULTS[name]} for name in _SECONDS},
            }
        )
        options = plain(options)
        names, group, results_var = options.pop("hosts"), options.pop("group"), options.pop("results_var")
        if self._task.check_mode:
            options["mode"] = "observe"
        hostvars = variables.get("hostvars", {})
        outside = sorted(set(plain(variables.get("groups", {})).get(group, [])) - set(names))
        if outside:
            options["partial"] = f"{len(outside)} hosts of group {group} are left out, among them {', '.join(outside[:3])}"
        try:
            plan = plan_fleet({name: _seen(hostvars, name, results_var) for name in names}, options, time.time())
        except ValueError as error:
            return {**result, "failed": True, "msg": f"fleet_plan: {error}"}
        return {**result, "changed": False, "plan": plan}


def _seen(hostvars: Mapping[str, Any], name: str, results_var: str) -> dict[str, Any]:
    """Returns what is known of one host: the result of gather_diag and the variables that shape its configuration."""
    if name not in hostvars:
        return {"unreachable": True, "msg": "not in the inventory"}
    variables = hostvars[name]
    found = plain(variables[results_var]) if results_var in variables else None
    seen: dict[str, Any] = found if isinstance(found, dict) else {"unreachable": True, "msg": f"no result in {results_var}"}
    for key, variable in _OF_THE_HOST.items():
        if variable in variables:
            seen[key] = plain(variables[variable])
    return seen
