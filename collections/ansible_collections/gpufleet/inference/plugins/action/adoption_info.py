# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide on the controller about a server that runs already, with one clear message when it is in the way."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.inference.plugins.plugin_utils import adoption
from ansible_collections.gpufleet.inference.plugins.plugin_utils.plain import plain

OPTIONS: dict[str, Any] = {
    "server": {"type": "dict"},
    "deployment": {"type": "dict"},
    "settings": {"type": "dict"},
    "runtime": {"type": "str", "choices": ["venv", "existing"], "default": "venv"},
    "replace": {"type": "bool", "default": False},
}


class ActionModule(ActionBase):  # type: ignore[misc]
    """Compare what runs with what is wanted."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the decision; fails with why nothing can be done."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, options = self.validate_argument_spec(argument_spec=OPTIONS, required_together=[("deployment", "settings")])
        options = plain(options)
        server, runtime, replace = options["server"], options["runtime"], options["replace"]
        if options["deployment"] is None:
            # Asked before there is anything to compare with: only whether a stranger is in the way at all.
            foreign = server is not None and server["owner"] is None and runtime == "venv" and not replace
            decision: dict[str, Any] = {"refused": adoption.stranger(server) if foreign else None}
        else:
            decision = adoption.decide(server, options["deployment"], options["settings"], runtime, replace)
        refused = decision.pop("refused")
        failed = {"failed": True, "msg": f"{(task_vars or {}).get('inventory_hostname')}: {refused}"} if refused else {}
        return {**result, "changed": False, **decision, **failed}
