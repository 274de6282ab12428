# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that quotes a deployment for the file of a service manager."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gpufleet.inference.plugins.plugin_utils.plain import plain
from ansible_collections.gpufleet.inference.plugins.plugin_utils.service_text import MANAGERS, definition

DOCUMENTATION = r"""
name: service_definition
author: gpufleet contributors (@gpufleet)
version_added: 1.0.0
short_description: Quote a command line and an environment for a service manager
description:
  - Writes words, variables and paths so that the service manager reads them back unchanged.
  - Says which of them it can not hold, so that this is known before a server is stopped.
positional: _input, manager
options:
  _input:
    description: Dictionary with C(command) (list of words) and C(environment), such as P(gpufleet.inference.deployment#filter) returns.
    type: dict
    required: true
  manager:
    description: The service manager.
    type: str
    choices: [systemd, supervisor]
    required: true
  paths:
    description: Paths that the definition names, by a name for messages.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Show what a unit would run
  ansible.builtin.debug:
    msg: "{{ ({'command': ['/bin/echo', '100 %'], 'environment': {}} | gpufleet.inference.service_definition('systemd')).command }}"
"""

RETURN = r"""
_value:
  description:
    - Dictionary with C(command) (one line), C(environment) (list of lines of an environment file for V(systemd), of pairs for
      V(supervisor)), C(paths) (as given, quoted) and C(misfits) (list with one sentence for each value that can not be held).
  type: dict
"""


def service_definition(deployment: Any, manager: str, paths: Any = None) -> dict[str, Any]:
    """Returns the quoted parts of the definition; AnsibleFilterError for what is no deployment."""
    if not isinstance(deployment, Mapping) or not deployment.get("command"):
        raise AnsibleFilterError(f"service_definition: expected a dictionary with a command, found {type(deployment).__name__}")
    if manager not in MANAGERS:
        raise AnsibleFilterError(f"service_definition: expected one of {', '.join(MANAGERS)}, found {manager!r}")
    given = plain({"deployment": deployment, "paths": paths or {}})
    return definition(manager, given["deployment"]["command"], given["deployment"].get("environment") or {}, given["paths"])


class FilterModule:
    """Offers the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Returns the filters by name."""
        return {"service_definition": service_definition}
