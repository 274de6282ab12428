# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Documentation of the action wait_ready, which runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: wait_ready
short_description: Follow the start of an inference server until it serves or certainly will not
author:
  - gpufleet contributors (@gpufleet)
description:
  - Runs M(gpufleet.inference.gather_diag) again and again and shows one line per change, such as
    C(gpu02 weights_loading 41/64, 2.1 GiB/s).
  - Ends when the server generates tokens. Fails early when it crashed, or when a hang is confirmed, with the verdict
    and the last lines of its log. A start that progresses is waited for however slow it is, up to O(timeout).
  - Every other option of M(gpufleet.inference.gather_diag) is accepted too and means the same.
extends_documentation_fragment:
  - gpufleet.inference.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode it returns at once.
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  timeout:
    description: Seconds after which it fails whatever is going on. Without it C(sglang_ready_timeout) of the host, else 5400.
    type: float
  interval:
    description: Seconds of rest between two looks, at most. It is a second at first and grows with the time waited.
    type: float
    default: 10
  window:
    description: Seconds between the two samples of one look.
    type: float
    default: 2
  confirm_visits:
    description:
      - How many looks in a row must see a hang that is known from missing progress alone.
      - Without it C(remediation_confirm_visits) of the host, else 2.
    type: int
  confirm_seconds:
    description:
      - How many seconds the first and the last of them must lie apart.
      - Without it C(remediation_confirm_seconds) of the host, else 120.
    type: float
  policy:
    description: Overrides of the thresholds of the judge. Without it C(gpufleet_policy) of the host.
    type: dict
  signatures_extra:
    description: Further files with signatures, on the controller. Without it C(gpufleet_signatures_extra) of the host.
    type: list
    elements: path
seealso:
  - module: gpufleet.inference.gather_diag
"""

EXAMPLES = r"""
- name: Wait until the server generates
  gpufleet.inference.wait_ready:
    timeout: 5400
"""

RETURN = r"""
verdict:
  description: The last verdict, as M(gpufleet.inference.gather_diag) returns it.
  returned: not in check mode
  type: dict
  sample: {"state": "serving", "phase": "serving", "summary": "serves"}
seconds:
  description: How long it waited.
  returned: always
  type: float
  sample: 94.2
timeline:
  description: What changed on the way, with the second in which it was seen.
  returned: always
  type: list
  elements: dict
  sample: [{"seconds": 12.0, "what": "weights_loading 41/64, 2.1 GiB/s"}]
log_tail:
  description: The last lines of the log.
  returned: failure
  type: list
  elements: str
  sample: ["torch.OutOfMemoryError: CUDA out of memory."]
"""
