# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn the settings of a server into its command line, on the controller, with one clear message when that can not be."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.inference.plugins.plugin_utils.deployment import build
from ansible_collections.gpufleet.inference.plugins.plugin_utils.plain import plain
from ansible_collections.gpufleet.inference.plugins.plugin_utils.profiles import DeploymentError


class ActionModule(ActionBase):  # type: ignore[misc]
    """The filter of the name deployment as a task: a filter's error is buried under where it was called from."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the deployment; fails with what would not work."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, options = self.validate_argument_spec(argument_spec={"settings": {"type": "dict", "required": True}})
        try:
            return {**result, "changed": False, "deployment": build(plain(options["settings"]))}
        except DeploymentError as error:
            return {**result, "failed": True, "msg": str(error)}
