#!/usr/bin/env python3
# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventory of the test fleet: the hosts that `make fleet-up` started, none without it.

What differs between hosts, and every path, is here as a plain value: Ansible does not template what a script prints.
"""

from __future__ import annotations

import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
FLEET = os.path.realpath(os.environ.get("GPUFLEET_FLEET_DIR") or os.path.join(ROOT, ".fleet"))


def settings() -> dict:
    """What `make fleet-up` wrote."""
    try:
        with open(os.path.join(FLEET, "fleet.json"), encoding="utf-8") as source:
            return json.load(source)
    except FileNotFoundError:
        return {"hosts": {}, "package": ""}


def inventory() -> dict:
    fleet = settings()
    return {
        "sglang": {
            "hosts": list(fleet["hosts"]),
            "vars": {
                "ansible_user": "ops",
                "ansible_ssh_private_key_file": os.path.join(FLEET, "id_ed25519"),
                "ansible_ssh_common_args": "-o IdentitiesOnly=yes -o UserKnownHostsFile=" + os.path.join(FLEET, "known_hosts"),
                "ansible_control_path_dir": os.path.join(FLEET, "cp"),
                "sglang_package": fleet.get("package", ""),
                "sglang_pip_extra_args": "--no-index --find-links " + os.path.dirname(fleet.get("package", "")),
                "remediation_fleet_size": len(fleet["hosts"]),
                "remediation_report_dir": os.path.join(os.path.dirname(FLEET), "reports"),
            },
        },
        "_meta": {"hostvars": {name: {"ansible_host": known["address"]} for name, known in fleet["hosts"].items()}},
    }


if __name__ == "__main__":
    json.dump(inventory() if sys.argv[1:2] != ["--host"] else {}, sys.stdout, indent=1)
