# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge saved evidence on the controller. Documented in plugins/modules/analyze_bundle.py."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.inference.plugins.action.gather_diag import make_judge, variable_reader
from ansible_collections.gpufleet.inference.plugins.plugin_utils import bundle, diagnose, observe, signatures


class ActionModule(ActionBase):  # type: ignore[misc]
    """Reads each bundle, and gives one verdict each; sends nothing to any host."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(("paths", "policy", "signatures_extra"))

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Results in the order of C(paths)."""
        super().run(tmp, task_vars)
        _result, options = self.validate_argument_spec(
            argument_spec={
                "paths": {"type": "list", "elements": "path", "required": True},
                "policy": {"type": "dict"},
                "signatures_extra": {"type": "list", "elements": "path"},
            }
        )
        read = variable_reader(self._templar, task_vars or {})
        judge_of = make_judge(observe.resolve(options, read, observe.CONTROLLER_VARIABLES))
        return {"changed": False, "results": [judge(path, judge_of.catalog, judge_of.policy) for path in options["paths"]]}


def judge(path: str, catalog: signatures.Catalog, limits: dict[str, Any]) -> dict[str, Any]:
    """{path, verdict}, or {path, error} where the bundle can not be read."""
    try:
        return {"path": path, "verdict": diagnose.diagnose(bundle.read(path, catalog), catalog, limits)}
    except bundle.BundleError as error:
        return {"path": path, "error": str(error)}
