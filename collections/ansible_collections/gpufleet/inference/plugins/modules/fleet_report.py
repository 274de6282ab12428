# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_report
author: gpufleet contributors (@gpufleet)
version_added: 1.0.0
short_description: Write the report of a run on the controller
description:
  - Writes C(report-TIME.json) and C(report-TIME.html) and the same again as C(latest.json) and C(latest.html), each atomically.
  - The page needs nothing from outside and escapes every value.
  - Runs on the controller.
extends_documentation_fragment:
  - gpufleet.inference.attributes
attributes:
  check_mode:
    support: none
    details: The report is the record of the run, so it is written in check mode too.
  diff_mode:
    support: none
  idempotent:
    support: none
    details: Every run is a report of its own.
options:
  rows:
    description:
      - One dictionary per host with C(host) and, where known, C(state_before), C(cause), C(confidence), C(action), C(state_after),
        C(seconds), C(profile), C(note), C(reasons) (list) and C(evidence) (path or list of paths). Other keys appear in the
        JSON file only.
    type: list
    elements: dict
    required: true
  dir:
    description: Directory for the reports, made when it is missing.
    type: path
    required: true
  title:
    description: Title of the report.
    type: str
    default: gpufleet report
  mode:
    description: Mode of the run, shown in the report.
    type: str
"""

EXAMPLES = r"""
- name: Write the report
  gpufleet.inference.fleet_report:
    dir: reports
    title: Remediation
    mode: heal
    rows:
      - host: gpu02
        state_before: stuck
        cause: sm120_unsupported_backend
        confidence: low
        action: reconfigure
        state_after: serving
        seconds: 212
        profile: triton_nccl_tuned
        reasons: ["log: the shard bar is at 64 of 64 and nothing followed for 400 s"]
  run_once: true
  delegate_to: localhost
"""

RETURN = r"""
json_path:
  description: Path of the JSON file.
  returned: success
  type: str
html_path:
  description: Path of the page.
  returned: success
  type: str
rows:
  description: The rows as written, sorted by host.
  returned: success
  type: list
  elements: dict
counts:
  description: Number of hosts, and how many had each state before, each state after and each action.
  returned: success
  type: dict
"""
