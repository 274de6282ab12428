# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check a host before a server is started on it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_check_info
short_description: Check GPUs, port and model of a host
author:
  - gpufleet contributors (@gpufleet)
description:
  - Looks at what an inference server needs before minutes are spent on loading a model.
  - The port and the GPU memory that our own running server holds count as free.
  - A check that was not asked for, because its option is not set, is left out.
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
  gpus_expected:
    description:
      - Number of GPUs that the host should have.
      - With V(0) on a host that shows none, the checks C(gpu_model) and C(gpu_memory) are left out.
    type: int
  gpu_memory_free_mib:
    description: Memory in MiB that has to be free on every GPU.
    type: int
  port:
    description: Port that the server will use.
    type: int
  bind:
    description: Address that the server will bind to.
    type: str
  model_path:
    description: Directory of the model. Every shard that its index names has to be there and whole.
    type: path
  nvidia_smi:
    description: Path or name of C(nvidia-smi).
    type: str
    default: nvidia-smi
  state_dir:
    description: Directory on the host that holds its manifest.
    type: path
    default: /var/lib/gpufleet
  work_dir:
    description: Working directory of the server. It tells the server's processes from those of another server on the host.
    type: path
  timeout:
    description: Seconds that the check of the model may take, and C(nvidia-smi).
    type: float
    default: 60
"""

EXAMPLES = r"""
- name: Is the host fit for the model?
  gpufleet.inference.host_check_info:
    gpus_expected: 8
    gpu_memory_free_mib: 90000
    port: 30000
    model_path: /models/kimi-k2.5
  register: fitness
"""

RETURN = r"""
ok:
  description: Whether no check failed.
  type: bool
  returned: always
  sample: true
checks:
  description:
    - The checks C(gpu_count), C(gpu_model), C(gpu_memory), C(port_free) and C(model_complete) as far as they were asked for.
    - C(ok) is null where nobody can tell.
  type: list
  elements: dict
  returned: always
  sample:
    - {id: gpu_count, ok: true, expected: 8, found: 8, message: "8 GPUs, gpus_expected is 8"}
    - {id: port_free, ok: false, expected: free or ours, found: process 812 (nginx), message: port 30000 is taken by process 812 (nginx)}
gpu_model:
  description: Model of the GPUs, null if there is none or more than one.
  type: str
  returned: always
  sample: NVIDIA RTX PRO 6000 Blackwell Server Edition
gpu_class:
  description:
    - Class of the GPUs that the profiles are made for, V(sm120_pcie) or V(nvlink), null for another one.
    - V(cpu) on a host without a GPU where O(gpus_expected=0).
  type: str
  returned: always
  sample: sm120_pcie
compute_cap:
  description: Compute capability of the GPUs.
  type: str
  returned: always
  sample: "12.0"
"""

import shutil
from collections.abc import Collection, Iterator
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.inference.plugins.module_utils import _fitness, _gpus, _locate, _model, _port, _proc


def run(options: dict[str, Any]) -> dict[str, Any]:
    """All checks that the options ask for."""
    located = _locate.locate(options)
    members = located.found["members"]
    gpus = _gpus.sample(options["nvidia_smi"], options["timeout"])
    devices = gpus["devices"]
    checks = []
    without_gpus = options["gpus_expected"] == 0 and not devices
    if without_gpus:
        checks.append(_fitness.gpu_absence(gpus["reason"], shutil.which(options["nvidia_smi"]) is not None))
    else:
        checks.extend(_gpu_checks(options, gpus, members))
    if options["port"] is not None:
        port = _port.collect(options["port"], None, members)
        owner = _proc.stat(port["owner_pid"]) if port["owner_pid"] else None
        checks.append(_fitness.port_free(options["port"], port, owner.comm if owner else None))
    if options["model_path"] is not None:
        checks.append(_fitness.model_complete(options["model_path"], _model.check(options["model_path"], options["timeout"])))
    models = {device["name"] for device in devices}
    first = devices[0] if len(models) == 1 else {"name": None, "compute_cap": None}
    return {
        "checks": checks,
        "ok": not any(check["ok"] is False for check in checks),
        "gpu_model": first["name"],
        "gpu_class": "cpu" if without_gpus else _gpus.gpu_class(first["name"], first["compute_cap"]),
        "compute_cap": first["compute_cap"],
    }


def _gpu_checks(options: dict[str, Any], gpus: dict[str, Any], members: Collection[int]) -> Iterator[dict[str, Any]]:
    if options["gpus_expected"] is not None:
        yield _fitness.gpu_count(gpus["devices"], options["gpus_expected"], gpus["reason"])
    yield _fitness.gpu_model(gpus["devices"])
    if options["gpu_memory_free_mib"] is not None:
        yield _fitness.gpu_memory(gpus["devices"], options["gpu_memory_free_mib"], members)


def main() -> None:
    """Read, check, return."""
    module = AnsibleModule(
        argument_spec={
            "gpus_expected": {"type": "int"},
            "gpu_memory_free_mib": {"type": "int"},
            "port": {"type": "int"},
            "bind": {"type": "str"},
            "model_path": {"type": "path"},
            "nvidia_smi": {"type": "str", "default": "nvidia-smi"},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
            "work_dir": {"type": "path"},
            "timeout": {"type": "float", "default": 60.0},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **run(module.params))


if __name__ == "__main__":
    main()
