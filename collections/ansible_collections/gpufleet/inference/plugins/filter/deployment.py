# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that turns settings into a command line and an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gpufleet.inference.plugins.plugin_utils.deployment import build
from ansible_collections.gpufleet.inference.plugins.plugin_utils.plain import plain
from ansible_collections.gpufleet.inference.plugins.plugin_utils.profiles import DeploymentError

DOCUMENTATION = r"""
name: deployment
author: gpufleet contributors (@gpufleet)
version_added: 1.0.0
short_description: Turn the settings of a server into its command line and environment
description:
  - Resolves a profile for the GPU class and checks flags, environment and engine release, all before anything is touched.
  - Every flag is written in full and checked against the flags of the pinned engine, for a release without a table against the
    nearest older one.
  - Fails with one message that names what would not work.
positional: _input
options:
  _input:
    description:
      - Settings of the server. Only C(model_path) and either C(gpu_class) or C(profile) are required; an empty or null setting
        takes its default.
      - C(profile), C(ladder), C(gpu_class), C(gpu_model), C(engine_version), C(python), C(model_path), C(served_model_name),
        C(host), C(port), C(tp_size), C(context_length), C(mem_fraction_static).
      - C(extra_flags) is a dictionary of flags to values, V(true) for a switch, V(null) to drop a flag of the profile.
      - C(extra_environment) is a dictionary of variables, V(null) to drop one of the profile. Variables of NCCL must be on the
        list of those that may be set.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show how the server would be started
  ansible.builtin.debug:
    msg: "{{ {'gpu_class': 'sm120_pcie', 'model_path': '/models/kimi-k2.5'} | gpufleet.inference.deployment }}"
"""

RETURN = r"""
_value:
  description:
    - Dictionary with C(profile), C(gpu_class), C(ladder) (profiles to fall back to, in order), C(command) (list of words),
      C(arguments) (those of them that the engine's parser reads), C(environment), C(effective) (what the server runs with once
      the engine has filled in its own choices) and C(description).
  type: dict
"""


def deployment(settings: Any) -> dict[str, Any]:
    """Returns the deployment for a dictionary of settings; raises AnsibleFilterError with one message."""
    if not isinstance(settings, Mapping):
        raise AnsibleFilterError(f"deployment: expected a dictionary of settings, found {type(settings).__name__}")
    try:
        return build(plain(settings))
    except DeploymentError as error:
        raise AnsibleFilterError(f"deployment: {error}") from error


class FilterModule:
    """Offers the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Returns the filters by name."""
        return {"deployment": deployment}
