#!/usr/bin/env python3
# Copyright (c) 2026 gpufleet contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventory of the lab that runs the real engine: the hosts that `make real-up` started, or the two it would start.

The engine is one that we did not install: see tests/real_engine. Everything else is as in inventories/lab.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

sys.dont_write_bytecode = True  # nothing appears in a folder of inventories
BESIDE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lab", "hosts.py")
LOADER = SourceFileLoader("lab_hosts", BESIDE)
usual: Any = ModuleType(LOADER.name)
usual.__file__ = BESIDE
LOADER.exec_module(usual)


def main() -> None:
    lab = usual.folder("GPUFLEET_REAL_LAB_DIR", ".lab_real")
    found = usual.settings(lab, hosts=2, base_port=31501, engine=os.path.join(lab, "engine"))
    group = {
        "sglang_venv": os.path.join(found["engine"], "venv"),
        "sglang_model_path": os.path.join(found["engine"], "models", "tiny-kimi-k2"),
    }

    def ranks(name: str) -> dict[str, Any]:
        # The second host has two ranks, each bound to a core of its own.
        return {"sglang_tp_size": 2, "sglang_extra_environment": {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}} if name == "gpu02" else {}

    json.dump(usual.inventory(lab, found, group, ranks) if sys.argv[1:2] != ["--host"] else {}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
