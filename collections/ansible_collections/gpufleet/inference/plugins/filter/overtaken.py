# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that says whether a plan still fits what is seen just before acting."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gpufleet.inference.plugins.plugin_utils import plan_host
from ansible_collections.gpufleet.inference.plugins.plugin_utils.plain import plain

DOCUMENTATION = r"""
name: overtaken
author: gpufleet contributors (@gpufleet)
version_added: 1.0.0
short_description: Say why a plan no longer fits a host
description:
  - Compares what was planned with what M(gpufleet.inference.gather_diag) sees under the lease, just before anything is done.
  - The plan no longer fits when the state or the main process changed, when the verdict now forbids the action, when somebody set
    a mark meanwhile, or when the evidence could not be saved.
positional: _input
options:
  _input:
    description: The later result of M(gpufleet.inference.gather_diag), with O(gpufleet.inference.gather_diag#module:return_records).
    type: dict
    required: true
  planned:
    description: The host's part of the plan of M(gpufleet.inference.fleet_plan).
    type: dict
    required: true
  before:
    description: The result that the plan was made from.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Leave a host alone that is no longer what was planned for
  ansible.builtin.debug:
    msg: "not touched: {{ again | gpufleet.inference.overtaken(plan.hosts[inventory_hostname], before) }}"
"""

RETURN = r"""
_value:
  description: Why the plan no longer fits; empty when it does.
  type: str
"""


def overtaken(again: Any, planned: Any, before: Any) -> str:
    """Returns a reason or nothing; raises AnsibleFilterError for anything but dictionaries."""
    for name, value in (("input", again), ("planned", planned), ("before", before)):
        if not isinstance(value, Mapping):
            raise AnsibleFilterError(f"overtaken: {name}: expected a dictionary, found {type(value).__name__}")
    return plan_host.overtaken(plain(planned), plain(before), plain(again), time.time()) or ""


class FilterModule:
    """Offers the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Returns the filters by name."""
        return {"overtaken": overtaken}
