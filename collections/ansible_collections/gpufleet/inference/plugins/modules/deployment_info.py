# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: deployment_info
author: gpufleet contributors (@gpufleet)
version_added: 1.0.0
short_description: Work out the command line and environment of a server
description:
  - Resolves a profile for the GPU class and checks flags, environment and engine release, before anything is touched.
  - The same as the filter P(gpufleet.inference.deployment#filter), with an error message that stands alone.
  - Runs on the controller.
extends_documentation_fragment:
  - gpufleet.inference.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  settings:
    description: Settings of the server, see P(gpufleet.inference.deployment#filter).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Work out how the server would be started
  gpufleet.inference.deployment_info:
    settings:
      profile: flashinfer
      gpu_class: sm120_pcie
      engine_version: 0.5.23
      model_path: /models/kimi-k2.5
  register: wanted
"""

RETURN = r"""
deployment:
  description: What the filter P(gpufleet.inference.deployment#filter) returns.
  type: dict
  returned: success
  sample:
    profile: flashinfer
    gpu_class: sm120_pcie
    ladder: [triton_nccl_tuned, safe]
    command: [python3, -m, sglang.launch_server, --model-path, /models/kimi-k2.5]
    environment: {NCCL_PROTO: LL}
    effective: {attention_backend: flashinfer}
msg:
  description: What would not work, and what is accepted instead.
  type: str
  returned: failure
  sample: unknown profile 'fastest'; known are flashinfer, nvlink, nvlink_triton, safe, triton_nccl_tuned
"""
