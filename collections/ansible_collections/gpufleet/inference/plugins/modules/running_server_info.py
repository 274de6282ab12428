# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read how the SGLang servers that run on a host were started."""

from __future__ import annotations

DOCUMENTATION = r"""
module: running_server_info
short_description: Read how a running SGLang server was started
author:
  - gpufleet contributors (@gpufleet)
version_added: 1.0.0
description:
  - Finds the SGLang servers that run on a host by their command lines, whoever started them, and reads how each was started.
  - Reads the process table only. It sends no signal and asks the server nothing. What can block is read in a bounded child.
  - Secrets on command lines and in environments are not returned, only a salted hash to compare them by.
  - Servers in a container of their own, which have other process ids, are not seen.
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
  port:
    description: Port that the server was started for. Without it servers of all ports are looked for.
    type: int
  work_dir:
    description: Working directory that tells which of several servers for the same port is meant.
    type: path
  venv:
    description: Virtual environment that the server should run from. RV(server.venv) is spelled like this when it is the same directory.
    type: path
  state_dir:
    description: Directory on the host that holds its records.
    type: path
    default: /var/lib/gpufleet
  service_manager:
    description: What starts our own server.
    type: str
    choices: [systemd, supervisor, existing]
  service_name:
    description: Name of our systemd unit or supervisor program.
    type: str
  supervisor_conf:
    description: Configuration file of the supervisord that runs our server.
    type: path
  timeout:
    description: Seconds that a look at a process may take.
    type: float
    default: 5
"""

EXAMPLES = r"""
- name: Who serves port 8000, and how was it started?
  gpufleet.inference.running_server_info:
    port: 8000
  register: running
"""

RETURN = r"""
server:
  description: The server that was meant, null when there is none or when it can not be told which.
  type: dict
  returned: success
  contains:
    pid:
      description: Process id of its main process.
      type: int
      sample: 73402
    start:
      description: Its start in clock ticks since boot. With the process id it tells it from any other.
      type: int
      sample: 91823
    started:
      description: The same in seconds since the epoch.
      type: float
      sample: 1769649902.1
    boot_id:
      description: Boot of the host that these belong to.
      type: str
      sample: 5c2b4f0e-2f4e-4d5a-9d3c-7d8f0c1b2a3d
    owner:
      description:
        - V(service) when our service runs it, V(adoption) when it was adopted, V(manifest) when it is what we started and our service
          manager lost. Null when somebody else started it.
      type: str
      sample: adoption
    user:
      description: User that it runs as.
      type: str
      sample: root
    port:
      description: Port on its command line.
      type: int
      sample: 8000
    work_dir:
      description: Its working directory.
      type: str
      sample: /root
    venv:
      description: Where its interpreter is installed.
      type: str
      sample: /root/ml-env
    model_path:
      description: Its model as a full path.
      type: str
      sample: /shared/kimi-k2.5-int4
    command:
      description: Its command line without secrets.
      type: list
      elements: str
      sample: [python3, -m, sglang.launch_server, --port, "8000"]
    environment:
      description: Those of its variables that can matter to a server, without secrets. Null when they can not be read.
      type: dict
      sample: {NCCL_PROTO: LL}
    secrets:
      description: Salted hashes of its secrets, by the name of flag or variable.
      type: dict
      sample: {salt: 9f3c, values: {}}
    log_path:
      description: File that takes its output. Null when it is no file.
      type: str
      sample: /root/sglang.log
    kept_by:
      description: Who starts it again when it ends. Null when nobody is seen to.
      type: str
      sample: old-sglang.service
    container:
      description: Whether it has a file system of its own. Null when that can not be told.
      type: bool
      sample: false
servers:
  description: All servers that were found for O(port).
  type: list
  elements: dict
  returned: success
  sample: []
reason:
  description: Why RV(server) is null although servers run, else null.
  type: str
  returned: success
  sample: "2 SGLang servers run here, which one is meant is not told: process 12 (port 30000, in /root), process 90 (port 30001, in /srv)"
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _identity, _launch, _records, _service, _target


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Find the servers, tell whose they are, choose."""
    state_dir, timeout = options["state_dir"], options["timeout"]
    records = _bounded.call(lambda emit: emit(_records.read_all(state_dir)), timeout).values
    resolved = _target.resolve(options, _target.sound(records.get("manifest")))
    names = (resolved["service_manager"], resolved["service_name"], resolved["supervisor_conf"])
    service = _service.collect(*names, timeout, state_dir)
    found = _identity.launchers(timeout)
    servers = [
        {**_launch.describe(pid, row, options["venv"], timeout), "owner": _launch.owner(pid, row, service, records)}
        for pid, row in sorted(found["servers"].items())
        if options["port"] in (None, row["port"])
    ]
    pid, reason = _launch.choose(servers, options["port"], options["work_dir"])
    chosen = next((server for server in servers if server["pid"] == pid), None)
    return {"server": chosen, "servers": servers, "reason": reason or (None if chosen else found["reason"])}


def main() -> None:
    """Read, return."""
    module = AnsibleModule(
        argument_spec={
            "port": {"type": "int"},
            "work_dir": {"type": "path"},
            "venv": {"type": "path"},
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
            "service_manager": {"type": "str", "choices": ["systemd", "supervisor", "existing"]},
            "service_name": {"type": "str"},
            "supervisor_conf": {"type": "path"},
            "timeout": {"type": "float", "default": 5.0},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **run(module.params))


if __name__ == "__main__":
    main()
