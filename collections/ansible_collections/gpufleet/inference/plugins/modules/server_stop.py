# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stop one inference server."""

from __future__ import annotations

DOCUMENTATION = r"""
module: server_stop
short_description: Stop an SGLang server and everything that is left of it
author:
  - gpufleet contributors (@gpufleet)
description:
  - Sends SIGTERM to the main process, through its service manager where it has one, and waits O(term_timeout) seconds.
  - Then sends SIGKILL to what is left of the server, including workers that lost their parent.
  - Each process is identified again, by process id and start time, immediately before it is signalled. Processes of another server
    on the same host are never touched.
  - systemd is told before anything is signalled, so that it does not start the server again, and its unit is not left as failed.
  - A server that was adopted is no longer adopted then.
  - Stops nothing where the service manager runs a server on another port than O(port).
  - Options that are not set are taken from C(manifest.json) under O(state_dir).
extends_documentation_fragment:
  - gpufleet.inference.attributes
attributes:
  check_mode:
    support: full
    details: Lists what would be signalled.
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  state_dir:
    description: Directory on the host that holds its manifest.
    type: path
    default: /var/lib/gpufleet
  service_manager:
    description: What starts the server. V(existing) is a server started by hand.
    type: str
    choices: [systemd, supervisor, existing]
  service_name:
    description: Name of the systemd unit or of the supervisor program.
    type: str
  supervisor_conf:
    description: Configuration file of the supervisord that runs the server.
    type: path
  port:
    description: Port of the server.
    type: int
  work_dir:
    description: Working directory of the server. It tells the server's processes from those of another server on the host.
    type: path
  term_timeout:
    description: Seconds between SIGTERM and SIGKILL. A server finishes its running requests in this time.
    type: float
    default: 150
  kill_timeout:
    description: Seconds to wait for a process to disappear after SIGKILL.
    type: float
    default: 15
"""

EXAMPLES = r"""
- name: Stop the server
  gpufleet.inference.server_stop:
    term_timeout: 60
  register: stopped

- name: Stop a server that was started by hand
  gpufleet.inference.server_stop:
    service_manager: existing
    port: 8000
"""

RETURN = r"""
signals:
  description: What was sent, in order. In check mode, what would be sent.
  type: list
  elements: dict
  returned: success
  sample:
    - {pid: 4711, title: python -m sglang.launch_server, signal: TERM, at: 1769650520.1, via: supervisor}
    - {pid: 4720, title: "sglang::scheduler_TP3", signal: KILL, at: 1769650670.4, via: pidfd}
survivors:
  description: Processes of the server that are still there after SIGKILL. Only a reboot removes them.
  type: list
  elements: dict
  returned: success
  sample: [{pid: 4720, title: "sglang::scheduler_TP3", state: D, wchan: nv_wait}]
foreign:
  description: Who else listens on the server's port. It was not touched.
  type: list
  elements: dict
  returned: success
  sample: [{pid: 812, comm: nginx, holds: port 30000}]
reset:
  description:
    - Whether a unit of systemd that had failed, had ended by itself, or was about to be started again counts as stopped now.
    - How it ended stays in the records under O(state_dir).
  type: bool
  returned: success
  sample: false
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.inference.plugins.module_utils import _bounded, _identity, _locate, _records, _stop


def main() -> None:
    """Identify, stop, return."""
    module = AnsibleModule(
        argument_spec={
            "state_dir": {"type": "path", "default": "/var/lib/gpufleet"},
            "service_manager": {"type": "str", "choices": ["systemd", "supervisor", "existing"]},
            "service_name": {"type": "str"},
            "supervisor_conf": {"type": "path"},
            "port": {"type": "int"},
            "work_dir": {"type": "path"},
            "term_timeout": {"type": "float", "default": 150.0},
            "kill_timeout": {"type": "float", "default": 15.0},
        },
        supports_check_mode=True,
    )
    located = _locate.locate(module.params)
    if located.found["reason"] and located.found["main"] is None:
        module.fail_json(msg=f"the processes of the server can not be identified: {located.found['reason']}")
    main_pid, port = located.found["main"], located.options["port"]
    arguments = located.found["members"][main_pid]["arguments"] if main_pid is not None else []
    if port is not None and _identity.is_launcher(arguments) and _identity.port_of(arguments) != port:
        module.fail_json(
            msg=f"{located.options['service_manager']} runs a server on port {_identity.port_of(arguments)} as "
            f"{located.options['service_name']} (process {main_pid}), not one on port {port}: it is not stopped"
        )
    result = _stop.Stop(located, module.check_mode).run(module.params["term_timeout"], module.params["kill_timeout"])
    if located.options.get("adopted") and not module.check_mode and not result["survivors"]:
        # Stopped on purpose: nobody is to take it for one that crashed.
        problem = _bounded.call(lambda _emit: _forget_adoption(module.params["state_dir"]), 5.0).reason()
        if problem:
            module.warn(f"the record of its adoption is not removed: {problem}")
    module.exit_json(**result)


def _forget_adoption(state_dir: str) -> None:
    _records.update(state_dir, "adoption", lambda _record: None, discard_unreadable=True)


if __name__ == "__main__":
    main()
