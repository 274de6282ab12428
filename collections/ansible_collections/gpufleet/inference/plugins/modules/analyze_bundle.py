# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: analyze_bundle
short_description: Judge saved evidence about a server
description:
  - Reads bundles (directories of evidence about one server each) on the controller and gives one verdict each.
  - A bundle is what P(gpufleet.inference.gather_diag#module) saves, or what somebody mailed in. Every file in it is optional.
  - Nothing is sent to any host.
author:
  - gpufleet contributors (@gpufleet)
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
  paths:
    description:
      - Directories to read. Files that count are C(snapshot.json), C(server.log), C(kernel.log), C(stacks.txt), C(strace.txt),
        C(nvidia-smi.txt), C(nvidia-smi.xml), C(nccl.log), C(http.txt) and C(observed.yml).
      - Of a text file larger than 5 MiB the first 1 MiB and the last 4 MiB are read.
    type: list
    elements: path
    required: true
  policy:
    description:
      - Changes to the policy of the judge, for example another C(normal_silence_s) of a phase. See the examples.
      - Default is the variable C(gpufleet_policy).
    type: dict
  signatures_extra:
    description:
      - Files with further signatures, which replace those of the collection that have the same id. Default is the variable
        C(gpufleet_signatures_extra).
    type: list
    elements: path
seealso:
  - module: gpufleet.inference.gather_diag
"""

EXAMPLES = r"""
- name: Judge two bundles that colleagues sent
  gpufleet.inference.analyze_bundle:
    paths:
      - /srv/bundles/ticket-4711
      - /srv/bundles/ticket-4712
  register: judged

- name: Judge a bundle of a host whose storage is slow
  gpufleet.inference.analyze_bundle:
    paths: [/srv/bundles/ticket-4713]
    policy:
      normal_silence_s:
        weights_loading: 1800

- name: Show one line each
  ansible.builtin.debug:
    msg: "{{ judged.results | map(attribute='verdict.summary', default='unreadable') }}"
"""

RETURN = r"""
results:
  description: One entry for each path, in the same order.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The path as given.
      returned: always
      type: str
    verdict:
      description:
        - What is wrong, how sure that is, and what to do.
        - Among its keys are C(state), C(phase), C(since), C(cause), C(confidence), C(action), C(forbid), C(reasons), C(missing), C(next)
          and C(summary).
      returned: when the bundle could be read
      type: dict
      sample:
        state: starting
        phase: weights_loading
        cause: slow_weights
        confidence: medium
        action: wait
        summary: "starting in weights_loading 41/64: slow_weights (medium confidence); it moves, so it is not stuck; wait"
    error:
      description: What is wrong with the bundle, as C(FILE, what is wrong).
      returned: when the bundle could not be read
      type: str
      sample: "observed.yml: unknown key gpu_count (accepted: engine, engine_version, ...)"
"""
