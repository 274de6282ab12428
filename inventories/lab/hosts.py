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

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAB = os.path.realpath(os.environ.get("GPUFLEET_LAB_DIR") or os.path.join(ROOT, ".lab"))


def settings() -> dict:
    """What `make lab-up` wrote, over the defaults."""
    found = {
        "hosts": 3,
        "base_port": 31001,
        "python": os.path.join(ROOT, ".venv", "bin", "python"),
        "package": os.path.join(LAB, "wheels", "sglang-0.5.23-py3-none-any.whl"),
    }
    try:
        with open(os.path.join(LAB, "lab.json"), encoding="utf-8") as source:
            found.update(json.load(source))
    except FileNotFoundError:
        pass
    return found


def host_variables(lab: dict, name: str, port: int) -> dict:
    home = os.path.join(LAB, name)
    return {
        "sglang_home": os.path.join(home, "home"),
        "sglang_work_dir": os.path.join(home, "run"),
        "sglang_port": port,
        "sglang_log_path": os.path.join(home, "log", "sglang.log"),
        "sglang_supervisor_conf": os.path.join(home, "supervisord.conf"),
        "sglang_supervisor_conf_dir": os.path.join(home, "conf.d"),
        "sglang_extra_environment": {"SGLANG_EMULATOR_MACHINE": os.path.join(home, "machine")},
        "gpufleet_state_dir": os.path.join(home, "state"),
        "gpufleet_nvidia_smi": os.path.join(home, "bin", "nvidia-smi"),
        "gpufleet_kernel_log_path": os.path.join(home, "kernel.log"),
    }


def inventory() -> dict:
    lab = settings()
    names = [f"gpu{number:02d}" for number in range(1, lab["hosts"] + 1)]
    return {
        "sglang": {
            "hosts": names,
            "vars": {
                "ansible_connection": "local",
                "ansible_python_interpreter": lab["python"],
                "sglang_python": lab["python"],
                "sglang_package": lab["package"],
                "sglang_pip_extra_args": "--no-index --find-links " + os.path.dirname(lab["package"]),
                "sglang_model_path": os.path.join(LAB, "models", "kimi-k2.5"),
                "sglang_supervisorctl": os.path.join(os.path.dirname(lab["python"]), "supervisorctl"),
                "remediation_fleet_size": len(names),
                "remediation_report_dir": os.path.join(os.path.dirname(LAB), "reports"),
            },
        },
        "_meta": {"hostvars": {name: host_variables(lab, name, lab["base_port"] + index) for index, name in enumerate(names)}},
    }


if __name__ == "__main__":
    json.dump(inventory() if sys.argv[1:2] != ["--host"] else {}, sys.stdout, indent=1)
