#!/usr/bin/env python3
# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventory of the embedded lab: the hosts that `make lab-up` started, or the three it would start.

What differs between hosts, and every path, is here as a plain value: Ansible does not template what a script prints,
and AWX hands a job its inventory through a script.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def folder(variable: str, name: str) -> str:
    """Where a lab lies."""
    return os.path.realpath(os.environ.get(variable) or os.path.join(ROOT, name))


def settings(lab: str, **defaults: Any) -> dict[str, Any]:
    """What `up` wrote, over the defaults."""
    found = {"python": os.path.join(ROOT, ".venv", "bin", "python"), **defaults}
    try:
        with open(os.path.join(lab, "lab.json"), encoding="utf-8") as source:
            found.update(json.load(source))
    except FileNotFoundError:
        pass
    return found


def host_variables(lab: str, name: str, port: int) -> dict[str, Any]:
    """What every host of a lab has."""
    home = os.path.join(lab, name)
    return {
        "sglang_home": os.path.join(home, "home"),
        "sglang_work_dir": os.path.join(home, "run"),
        "sglang_port": port,
        "sglang_log_path": os.path.join(home, "log", "sglang.log"),
        "sglang_supervisor_conf": os.path.join(home, "supervisord.conf"),
        "sglang_supervisor_conf_dir": os.path.join(home, "conf.d"),
        "gpufleet_state_dir": os.path.join(home, "state"),
        "gpufleet_nvidia_smi": os.path.join(home, "bin", "nvidia-smi"),
        "gpufleet_kernel_log_path": os.path.join(home, "kernel.log"),
    }


def group_variables(lab: str, found: dict[str, Any]) -> dict[str, Any]:
    """What holds for all of them."""
    return {
        "ansible_connection": "local",
        "ansible_python_interpreter": found["python"],
        "sglang_python": found["python"],
        "sglang_supervisorctl": os.path.join(os.path.dirname(found["python"]), "supervisorctl"),
        "remediation_fleet_size": found["hosts"],
        "remediation_report_dir": os.path.join(os.path.dirname(lab), "reports"),
    }


def inventory(lab: str, found: dict[str, Any], group: dict[str, Any], hosts: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """The whole of it; `group` and `hosts` add what one kind of lab has beside the usual."""
    ports = {f"gpu{number + 1:02d}": found["base_port"] + number for number in range(found["hosts"])}
    return {
        "sglang": {"hosts": list(ports), "vars": {**group_variables(lab, found), **group}},
        "_meta": {"hostvars": {name: {**host_variables(lab, name, port), **hosts(name)} for name, port in ports.items()}},
    }


def main() -> None:
    lab = folder("GPUFLEET_LAB_DIR", ".lab")
    package = os.path.join(lab, "wheels", "sglang-0.5.23-py3-none-any.whl")
    found = settings(lab, hosts=3, base_port=31001, package=package)
    group = {
        "sglang_package": found["package"],
        "sglang_pip_extra_args": "--no-index --find-links " + os.path.dirname(found["package"]),
        "sglang_model_path": os.path.join(lab, "models", "kimi-k2.5"),
    }

    def machine(name: str) -> dict[str, Any]:
        return {"sglang_extra_environment": {"SGLANG_EMULATOR_MACHINE": os.path.join(lab, name, "machine")}}

    json.dump(inventory(lab, found, group, machine) if sys.argv[1:2] != ["--host"] else {}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
