# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: adoption_info
author: gpufleet contributors (@gpufleet)
version_added: 1.0.0
short_description: Decide what becomes of a server that runs already
description:
  - Compares how a server was started with what the inventory wants, as the engine and its clients would notice it.
  - A server of ours stays up when it runs as it is wanted, else it is to be replaced. One that somebody else started is adopted,
    replaced or refused, as O(runtime) and O(replace) say.
  - Fails with one message when the server is in the way.
  - Runs on the controller and changes nothing.
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
  server:
    description: What M(gpufleet.inference.running_server_info) returned as RV(gpufleet.inference.running_server_info#module:server).
    type: dict
  deployment:
    description:
      - What M(gpufleet.inference.deployment_info) returned.
      - Without it nothing is compared, only a server of somebody else is refused where O(runtime=venv).
    type: dict
  settings:
    description: The settings that O(deployment) was made from.
    type: dict
  runtime:
    description: V(existing) adopts a server that somebody else started, V(venv) does not.
    type: str
    choices: [venv, existing]
    default: venv
  replace:
    description: Whether a server that somebody else started may be ended.
    type: bool
    default: false
seealso:
  - module: gpufleet.inference.running_server_info
"""

EXAMPLES = r"""
- name: How was it started?
  gpufleet.inference.running_server_info:
    port: 8000
  register: running

- name: Can it be adopted?
  gpufleet.inference.adoption_info:
    server: "{{ running.server }}"
    deployment: "{{ wanted.deployment }}"
    settings: "{{ settings }}"
    runtime: existing
"""

RETURN = r"""
adopt:
  description: Whether it stays up as it is.
  type: bool
  returned: with O(deployment)
  sample: true
replace:
  description: Whether it is to be stopped before ours is started.
  type: bool
  returned: with O(deployment)
  sample: false
differences:
  description: What it does otherwise than wanted, one line each.
  type: list
  elements: str
  returned: with O(deployment)
  sample: ["attention_backend: flashinfer -> triton"]
keep:
  description: Variables of the host that would make it wanted as it is.
  type: dict
  returned: with O(deployment)
  sample: {sglang_extra_flags: {attention-backend: flashinfer}}
notes:
  description: What its next start would do otherwise, and what else a person should know.
  type: list
  elements: str
  returned: with O(deployment)
  sample: [old-sglang.service starts it again when it ends]
msg:
  description: Why nothing can be done.
  type: str
  returned: failure
  sample: the server that runs as process 4711 (port 8000, in /root, user root) was not started from here
"""
