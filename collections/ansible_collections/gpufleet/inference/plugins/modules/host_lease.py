# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Take or release the lease that a changing play needs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_lease
short_description: Take or release the lease of an inference host
author:
  - gpufleet contributors (@gpufleet)
description:
  - Two plays must not change one host at the same time. Each takes the lease of the host first and fails, naming the holder,
    when somebody else has it. A lease expires by itself, so that a controller that died blocks nobody for ever.
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
  state_dir:
    description: Directory of the records of the host.
    type: path
    default: /var/lib/gpufleet
  state:
    description:
      - V(present) takes the lease, or renews it when O(owner) has it already.
      - V(absent) gives it back. A lease of somebody else is left alone.
    type: str
    default: present
    choices: [present, absent]
  owner:
    description: Who takes it. One run of a play must use one name that no other run uses.
    type: str
    required: true
  purpose:
    description: What for, shown to whoever is refused.
    type: str
    default: change
  ttl:
    description: Seconds after which the lease expires by itself.
    type: float
    default: 7200
"""

EXAMPLES = r"""
- name: Take the lease
  gpufleet.inference.host_lease:
    owner: alice@controller 4711
    purpose: deploy

- name: Release the lease
  gpufleet.inference.host_lease:
    owner: alice@controller 4711
    state: absent
"""

RETURN = r"""
lease:
  description: The lease after the task, V(null) when O(owner) holds none. Times in seconds since the epoch.
  returned: success
  type: dict
  sample: {"owner": "alice@controller 4711", "purpose": "deploy", "since": 1764460800.0, "expires": 1764468000.0}
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.inference.plugins.module_utils import _records


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
            "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
            "owner": {"type": "str", "required": True},
            "purpose": {"type": "str", "default": "change"},
            "ttl": {"type": "float", "default": 7200},
        },
        supports_check_mode=True,
    )
    state_dir, owner = module.params["state_dir"], module.params["owner"]
    try:
        current = _records.read(state_dir, "lease")
        mine = current is not None and current.get("owner") == owner
        if module.params["state"] == "absent":
            if mine and not module.check_mode:
                mine = _records.release_lease(state_dir, owner)
            module.exit_json(changed=mine, lease=None)
        if module.check_mode:
            if current is not None and not mine and _records.lease_is_valid(current, time.time()):
                raise _records.LeaseHeldError(current)
            module.exit_json(changed=not mine, lease=current if mine else None)
        lease = _records.take_lease(state_dir, owner, module.params["purpose"], module.params["ttl"])
        module.exit_json(changed=not mine, lease=lease)
    except _records.LeaseHeldError as error:
        module.fail_json(msg=str(error), holder=error.lease)
    except _records.RecordError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
