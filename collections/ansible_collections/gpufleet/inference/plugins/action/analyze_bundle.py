# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge saved evidence on the controller. Documented in plugins/modules/analyze_bundle.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.inference.plugins.plugin_utils import bundle, diagnose, policy, signatures


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
        variables = task_vars or {}

        def option(name: str) -> Any:
            given = options.get(name)
            return given if given is not None else self._templar.template(variables.get(f"gpufleet_{name}"))

        try:
            limits = policy.load(option("policy"))
            catalog = signatures.load(option("signatures_extra"))
        except (policy.PolicyError, signatures.SignatureError) as error:
            raise AnsibleActionFail(str(error)) from error
        return {"changed": False, "results": [judge(path, catalog, limits) for path in options["paths"]]}


def judge(path: str, catalog: signatures.Catalog, limits: dict[str, Any]) -> dict[str, Any]:
    """{path, verdict}, or {path, error} where the bundle can not be read."""
    try:
        return {"path": path, "verdict": diagnose.diagnose(bundle.read(path, catalog), catalog, limits)}
    except bundle.BundleError as error:
        return {"path": path, "error": str(error)}
